/* nccl_open.c - how NCCL's communicator comes into being and goes.
 *
 * The ranks first compare what they are about to use over the host communicator, since the library
 * itself hangs or crashes where its versions differ. Then rank 0's unique id goes to all. Rank's
 * thread only, except abort. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "comm/nccl/nccl_impl.h"
#include "ddp/memory.h"
#include "ddp/thread.h"
#include "device/cuda/cuda_native.h"
#include "device/cuda_module.h"

#define NS_PER_MS INT64_C(1000000)
/* What an abort may take before it is left behind. */
#define ABORT_NS (2000 * NS_PER_MS)
/* What it leaves to a call that is under way. */
#define ABORT_PATIENCE_NS (1000 * NS_PER_MS)
#define LOOK_NS           (NS_PER_MS / 5)

/* ---- before it starts ---- */

static ddp_status write_versions(char *text, size_t bytes)
{
    int nccl = 0, runtime = 0, driver = 0;
    ncclResult_t result = ncclGetVersion(&nccl);

    if (result != ncclSuccess)
        return ddpi_nccl_failure(NULL, result, "ncclGetVersion");
    DDPI_CUDA_TRY(cudaRuntimeGetVersion(&runtime));
    DDPI_CUDA_TRY(cudaDriverGetVersion(&driver));
    snprintf(text, bytes, "nccl=%d\ncuda_runtime=%d\ncuda_driver=%d\n", nccl, runtime, driver);
    return DDP_OK;
}

void ddpi_nccl_version(char *text, size_t text_bytes)
{
    ncclResult_t (*const get)(int *version) = ncclGetVersion;
    void *symbol;
    Dl_info info;
    int version = 0;

    memcpy(&symbol, &get, sizeof symbol);
    const char *from = dladdr(symbol, &info) != 0 && info.dli_fname ? info.dli_fname : "?";
    if (get(&version) != ncclSuccess)
        version = 0;
    snprintf(text, text_bytes, "NCCL %d.%d.%d (%.90s)", version / 10000, version / 100 % 100,
             version % 100, from);
}

static ddp_status compare_versions(ddp_comm *comm)
{
    char text[128] = "";
    ddp_status st = write_versions(text, sizeof text);

    DDP_TRY(ddp_comm_agree(comm, st, "ask for NCCL's version"));
    return ddp_comm_fingerprint(comm, text, "NCCL");
}

static ddp_status share_id(ddp_comm *comm, ncclUniqueId *id)
{
    ddp_status st = DDP_OK;

    memset(id, 0, sizeof *id);
    if (ddp_comm_rank(comm) == 0) {
        ncclResult_t result = ncclGetUniqueId(id);
        if (result != ncclSuccess)
            st = ddpi_nccl_failure(NULL, result, "ncclGetUniqueId");
    }
    DDP_TRY(ddp_comm_agree(comm, st, "start NCCL"));
    return ddp_comm_broadcast(comm, 0, id, sizeof *id);
}

/* ---- the parts that are this rank's alone ---- */

/* An event whose completion the host has just seen. */
static ddp_status drop_anchor(ddpi_nccl *n)
{
    DDP_TRY(ddp_event_create(n->base.device, &n->anchor));
    DDP_TRY(ddp_event_record(n->anchor, n->stream));
    DDP_TRY(ddp_stream_sync(n->stream));
    n->anchor_ns = ddp_now_ns();
    return DDP_OK;
}

static ddp_status create_parts(ddpi_nccl *n)
{
    DDP_TRY(ddp_stream_create(n->base.device, "comm-nccl", &n->stream));
    n->cuda_stream = ddpi_cuda_stream(n->stream);
    return drop_anchor(n);
}

static void free_slots(ddpi_nccl *n)
{
    for (int i = 0; i < n->slot_count; i++) {
        ddp_event_destroy(n->slots[i].ready);
        ddp_event_destroy(n->slots[i].start);
        ddp_event_destroy(n->slots[i].done);
        ddp_event_destroy(n->slots[i].end);
    }
    ddp_free(n->slots);
}

static void destroy_parts(ddpi_nccl *n)
{
    ddpi_nccl_free_memories(n);
    ddpi_nccl_free_scratch(n);
    free_slots(n);
    ddp_event_destroy(n->anchor);
    ddp_stream_destroy(n->stream);
    ddp_free(n);
}

/* ---- abort ---- */

static void *abort_main(void *arg)
{
    ddpi_nccl *n = arg;
    int64_t until_ns = ddp_now_ns() + ABORT_PATIENCE_NS;

    pthread_detach(pthread_self());
    while (__atomic_load_n(&n->calling, __ATOMIC_SEQ_CST) != 0 && ddp_now_ns() < until_ns)
        ddp_sleep_ns(LOOK_NS);
    (void)ncclCommAbort(n->nccl);
    __atomic_store_n(&n->aborted, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* The library may take its time, so a thread that nobody needs does it. It is never joined: its
 * last act on the lane is to say that it is done. */
void ddpi_nccl_abort(ddpi_lane *lane)
{
    ddpi_nccl *n = (ddpi_nccl *)lane;
    ddp_thread thread;

    if (__atomic_exchange_n(&n->aborting, 1, __ATOMIC_SEQ_CST) != 0)
        return;
    if (n->nccl == NULL || ddp_thread_start(&thread, "nccl-abort", abort_main, n) != DDP_OK)
        __atomic_store_n(&n->aborted, 1, __ATOMIC_RELEASE);
}

static bool wait_for_abort(const ddpi_nccl *n)
{
    int64_t until_ns = ddp_now_ns() + ABORT_NS;

    while (__atomic_load_n(&n->aborted, __ATOMIC_ACQUIRE) == 0) {
        if (ddp_now_ns() > until_ns)
            return false;
        ddp_sleep_ns(LOOK_NS);
    }
    return true;
}

/* ---- life ---- */

static ddp_status finalize(ddpi_nccl *n)
{
    DDPI_NCCL_TRY(n, ncclCommFinalize, n->nccl);
    return DDP_OK;
}

static void destroy_comm(ddpi_nccl *n)
{
    if (finalize(n) != DDP_OK) {
        ddpi_nccl_abort(&n->base);
        return;
    }
    (void)ncclCommDestroy(n->nccl);
}

void ddpi_nccl_close(ddpi_lane *lane)
{
    ddpi_nccl *n = (ddpi_nccl *)lane;

    if (n == NULL)
        return;
    if (n->nccl != NULL && ddpi_comm_failed(n->base.comm))
        ddpi_nccl_abort(lane);
    bool healthy = __atomic_load_n(&n->aborting, __ATOMIC_SEQ_CST) == 0;
    if (healthy) {
        (void)!ddp_stream_sync(n->stream);
        ddpi_nccl_free_memories(n);
        if (n->nccl != NULL)
            destroy_comm(n);
    }
    /* What still runs may use all of it, so then it stays. */
    if (__atomic_load_n(&n->aborting, __ATOMIC_SEQ_CST) == 0 || wait_for_abort(n))
        destroy_parts(n);
}

static ddp_status init_comm(ddpi_nccl *n, const ncclUniqueId *id)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

    config.blocking = 0;
    DDP_TRY(ddpi_cuda_enter(n->base.device));
    DDPI_NCCL_TRY(n, ncclCommInitRankConfig, &n->nccl, n->world, *id, n->rank, &config);
    return DDP_OK;
}

/* The others are in the library by now, where only a failure of the communicator reaches them. */
static ddp_status start_comm(ddpi_nccl *n, const ncclUniqueId *id)
{
    ddp_status st = init_comm(n, id);

    if (st != DDP_OK && !ddpi_comm_failed(n->base.comm))
        ddp_comm_fail(n->base.comm, ddp_status_message());
    return st;
}

ddp_status ddpi_nccl_open(ddp_comm *comm, ddp_device *device, const ddp_lane_opts *opts,
                          ddpi_lane **lane_out)
{
    ncclUniqueId id;
    ddpi_nccl *n = NULL;

    DDP_TRY(compare_versions(comm));
    ddp_status st = ddp_comm_agree(comm, DDP_ALLOC(n, 1), "open NCCL's lane");
    if (st != DDP_OK) {
        ddp_free(n);
        return st;
    }
    n->base = (ddpi_lane){.ops = ddpi_lane_nccl(), .comm = comm, .device = device};
    n->rank = ddp_comm_rank(comm);
    n->world = ddp_comm_world(comm);
    n->deterministic = opts->deterministic;
    st = ddp_comm_agree(comm, create_parts(n), "open NCCL's lane");
    if (st == DDP_OK)
        st = share_id(comm, &id);
    if (st == DDP_OK)
        st = ddp_comm_agree(comm, start_comm(n, &id), "start NCCL");
    if (st != DDP_OK) {
        /* Half a communicator cannot be finalized. */
        ddpi_nccl_abort(&n->base);
        ddpi_nccl_close(&n->base);
        return st;
    }
    *lane_out = &n->base;
    return DDP_OK;
}
