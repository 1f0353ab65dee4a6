/* mpi_transport.c - messages of works as started and tested MPI operations.
 *
 * Communication thread only. Nothing here blocks; MPI makes progress inside of its test calls, so
 * the back-off between them is short, and shorter still where processors are free. */
#include <limits.h>
#include <sched.h>
#include <string.h>

#include "comm/mpi/mpi_impl.h"
#include "ddp/thread.h"

/* Waiting rounds: tests at once, then yields, then sleeps that grow. While the rank computes,
 * sleeps alone: its threads fill the processors, and a thread that has turned or yielded among them
 * gets its next turn late (in 3 ms, in which a link of 1 Gbit/s moves 350 KB), one that sleeps gets
 * it as it wakes. */
/* Open MPI sends up to 64 KiB over TCP without asking, its own headers included. */
#define EAGER_BYTES   61440
#define SPIN_ROUNDS   300
#define YIELD_ROUNDS  30
#define SLEEP_MIN_NS  10000
#define SLEEP_MAX_NS  100000
#define SLEEP_STEP_NS 1000

_Static_assert(sizeof(MPI_Request) <= sizeof((ddpi_request *)0)->handle, "requests must fit");

ddp_status ddpi_mpi_error(int code, const char *call)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;

    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
        return DDP_FAIL(DDP_ERR_COMM, "%s failed with code %d", call, code);
    return DDP_FAIL(DDP_ERR_COMM, "%s failed: %s", call, text);
}

static ddp_status started(int code, const char *call, const MPI_Request *mpi, ddpi_request *request)
{
    if (code != MPI_SUCCESS)
        return ddpi_mpi_error(code, call);
    memcpy(request->handle, mpi, sizeof *mpi);
    return DDP_OK;
}

static ddp_status send_start(void *self, ddpi_request *request)
{
    MPI_Request mpi;

    (void)self;
    DDP_ASSERT(request->bytes <= INT_MAX);
    int code = MPI_Isend(request->buf, (int)request->bytes, MPI_BYTE, request->peer, request->tag,
                         MPI_COMM_WORLD, &mpi);
    return started(code, "MPI_Isend", &mpi, request);
}

static ddp_status recv_start(void *self, ddpi_request *request)
{
    MPI_Request mpi;

    (void)self;
    DDP_ASSERT(request->bytes <= INT_MAX);
    int code = MPI_Irecv(request->buf, (int)request->bytes, MPI_BYTE, request->peer, request->tag,
                         MPI_COMM_WORLD, &mpi);
    return started(code, "MPI_Irecv", &mpi, request);
}

/* A longer message is an error of MPI already. */
static ddp_status check_length(const ddpi_request *request, const MPI_Status *status)
{
    int count = 0;

    if (MPI_Get_count(status, MPI_BYTE, &count) == MPI_SUCCESS && (size_t)count == request->bytes)
        return DDP_OK;
    return DDP_FAIL(DDP_ERR_MISMATCH, "rank %d has sent %d bytes, expected %zu", request->peer,
                    count, request->bytes);
}

static ddp_status test(void *self, ddpi_request *request, bool *done_out)
{
    MPI_Request mpi;
    MPI_Status status;
    int done = 0;

    (void)self;
    memcpy(&mpi, request->handle, sizeof mpi);
    int code = MPI_Test(&mpi, &done, &status);
    memcpy(request->handle, &mpi, sizeof mpi);
    if (code != MPI_SUCCESS)
        return ddpi_mpi_error(code, "MPI_Test");
    *done_out = done != 0;
    if (done && request->receives && request->peer >= 0)
        return check_length(request, &status);
    return DDP_OK;
}

static MPI_Datatype type_of(ddp_dtype dtype)
{
    switch (dtype) {
    case DDP_F32:
        return MPI_FLOAT;
    case DDP_F64:
        return MPI_DOUBLE;
    case DDP_I32:
        return MPI_INT32_T;
    case DDP_I64:
        return MPI_INT64_T;
    case DDP_U64:
        return MPI_UINT64_T;
    case DDP_U8:
        return MPI_UINT8_T;
    case DDP_BF16:
    case DDP_F16: /* moved, never summed by MPI */
        return MPI_UINT16_T;
    }
    return MPI_BYTE;
}

static ddp_status allreduce_start(void *self, const ddp_coll *coll, ddpi_request *request)
{
    MPI_Request mpi;
    MPI_Op op = coll->op == DDP_REDUCE_SUM   ? MPI_SUM
                : coll->op == DDP_REDUCE_MAX ? MPI_MAX
                                             : MPI_MIN;

    (void)self;
    DDP_ASSERT(coll->count <= INT_MAX);
    int code = MPI_Iallreduce(MPI_IN_PLACE, coll->buf, (int)coll->count, type_of(coll->dtype), op,
                              MPI_COMM_WORLD, &mpi);
    return started(code, "MPI_Iallreduce", &mpi, request);
}

static void idle(void *self, unsigned round, bool aside)
{
    const ddpi_mpi_comm *comm = self;
    const unsigned spins = aside || comm->base.crowded ? 0 : SPIN_ROUNDS;
    const unsigned yields = aside ? 0 : YIELD_ROUNDS;

    if (round < spins)
        return;
    if (round < spins + yields) {
        sched_yield();
        return;
    }
    int64_t ns = SLEEP_MIN_NS + (int64_t)(round - spins - yields) * SLEEP_STEP_NS;
    ddp_sleep_ns(ns < SLEEP_MAX_NS ? ns : SLEEP_MAX_NS);
}

const ddpi_transport ddpi_mpi_transport = {
    .send_start = send_start,
    .recv_start = recv_start,
    .test = test,
    .allreduce_start = allreduce_start,
    .eager_bytes = EAGER_BYTES,
    .idle = idle,
};
