/* nccl_call.c - calls of NCCL that cannot hang, and its failures in words.
 *
 * A non-blocking communicator answers "in progress" and goes on in a thread of its own; this file
 * asks until it is done. Rank's thread only, apart from the two flags (see nccl_impl.h). */
#include <sched.h>

#include "comm/nccl/nccl_impl.h"
#include "ddp/thread.h"

#define POLL_NS     INT64_C(50000)
#define SPIN_ROUNDS 200

static bool is_aborting(const ddpi_nccl *n)
{
    return __atomic_load_n(&n->aborting, __ATOMIC_SEQ_CST) != 0;
}

static ddp_status gone(const ddpi_nccl *n)
{
    if (ddpi_comm_failed(n->base.comm))
        return ddpi_comm_cause(n->base.comm);
    return DDP_FAIL(DDP_ERR_COMM, "the NCCL communicator was aborted");
}

ddp_status ddpi_nccl_failure(ncclComm_t nccl, ncclResult_t result, const char *call)
{
    const char *detail = ncclGetLastError(nccl);
    bool more = detail != NULL && detail[0] != '\0';

    return DDP_FAIL(DDP_ERR_COMM, "%s: %s%s%.300s", call, ncclGetErrorString(result),
                    more ? ": " : "", more ? detail : "");
}

ddp_status ddpi_nccl_enter(ddpi_nccl *n)
{
    __atomic_store_n(&n->calling, 1, __ATOMIC_SEQ_CST);
    if (!is_aborting(n))
        return DDP_OK;
    __atomic_store_n(&n->calling, 0, __ATOMIC_SEQ_CST);
    return gone(n);
}

static ddp_status follow_up(ddpi_nccl *n, ncclResult_t result, const char *call)
{
    int64_t timeout_ms = n->base.comm->opts.timeout_ms;
    int64_t deadline_ns = ddp_deadline_after_ms(timeout_ms);

    for (unsigned round = 0; result == ncclInProgress; round++) {
        ncclResult_t asked;
        if (is_aborting(n) || ddpi_comm_failed(n->base.comm))
            return gone(n);
        if (ddp_now_ns() > deadline_ns)
            return DDP_FAIL(DDP_ERR_TIMEOUT, "%s is not complete after %.1f s", call,
                            (double)timeout_ms / 1e3);
        if (round < SPIN_ROUNDS)
            sched_yield();
        else
            ddp_sleep_ns(POLL_NS);
        asked = ncclCommGetAsyncError(n->nccl, &result);
        if (asked != ncclSuccess)
            result = asked;
    }
    return result == ncclSuccess ? DDP_OK : ddpi_nccl_failure(n->nccl, result, call);
}

ddp_status ddpi_nccl_leave(ddpi_nccl *n, ncclResult_t result, const char *call)
{
    ddp_status st = result == ncclSuccess ? DDP_OK : follow_up(n, result, call);

    __atomic_store_n(&n->calling, 0, __ATOMIC_SEQ_CST);
    return st;
}
