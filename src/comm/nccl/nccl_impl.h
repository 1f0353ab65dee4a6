/* nccl_impl.h - the lane over NCCL: its state, and how its files call the library.
 *
 * The communicator is a non-blocking one. A call that the library cannot finish at once is followed
 * up until it can, or the ddp_comm fails, or the deadline passes; so nothing here waits without an
 * end, whatever the library does.
 *
 * Threads: the rank's thread, and one that aborts. An aborted communicator is freed by the library,
 * so the aborting thread first says that it is coming and then waits until no call is under way;
 * calls that find it coming are not made. */
#ifndef DDPI_NCCL_IMPL_H
#define DDPI_NCCL_IMPL_H

#include <nccl.h>

#include "comm/comm_impl.h"
#include "comm/lane.h"
#include "ddp/device.h"

/* The events of a collective on its way. */
typedef struct ddpi_nccl_slot {
    ddp_event *ready; /* on the caller's stream: the buffer may be read */
    ddp_event *start, *done;
    ddp_event *end; /* in graphs: as done, for reading times */
    bool used;
} ddpi_nccl_slot;

/* Memory that the lane has handed out. */
typedef struct ddpi_nccl_memory {
    void *base;
    size_t bytes;
    void *handle;  /* of the registration; NULL: none */
    bool librarys; /* ncclMemAlloc's; else the device's */
    struct ddpi_nccl_memory *next;
} ddpi_nccl_memory;

typedef struct ddpi_nccl {
    ddpi_lane base;
    int rank, world;
    bool deterministic;
    ncclComm_t nccl;
    ddp_stream *stream;       /* all collectives of the lane, in order */
    cudaStream_t cuda_stream; /* the same, as CUDA calls it */
    ddpi_nccl_slot *slots;
    int slot_count, slot_capacity;
    ddpi_nccl_memory *memories;
    ddp_event *anchor; /* when it completed, the host's clock was at anchor_ns */
    int64_t anchor_ns;
    void *pieces;   /* sums in order: this rank's slice of the others' partial sums */
    float *widened; /* the same in f32, for bf16 */
    int calling;    /* __atomic: a call of the library is under way */
    int aborting;   /* __atomic: no call may begin */
    int aborted;    /* __atomic: the communicator is gone */
} ddpi_nccl;

/* ---- calls of the library (nccl_call.c) ---- */

DDP_INNER ddp_status ddpi_nccl_enter(ddpi_nccl *n);
/* Ends what enter began: follows the call up until the library has taken it. */
DDP_INNER ddp_status ddpi_nccl_leave(ddpi_nccl *n, ncclResult_t result, const char *call);
/* What the library says of a failure, as this thread's. */
DDP_INNER ddp_status ddpi_nccl_failure(ncclComm_t nccl, ncclResult_t result, const char *call);
/* Calls a function of the library that takes this lane's communicator. */
#define DDPI_NCCL_TRY(n, function, ...)                                                            \
    do {                                                                                           \
        DDP_TRY(ddpi_nccl_enter(n));                                                               \
        DDP_TRY(ddpi_nccl_leave((n), function(__VA_ARGS__), #function));                           \
    } while (0)

/* ---- life (nccl_open.c) ---- */

DDP_INNER ddp_status ddpi_nccl_open(ddp_comm *comm, ddp_device *device, const ddp_lane_opts *opts,
                                    ddpi_lane **lane_out);
void ddpi_nccl_abort(ddpi_lane *lane);
void ddpi_nccl_close(ddpi_lane *lane);
/* What mem_free has not given back. */
void ddpi_nccl_free_memories(ddpi_nccl *n);

/* ---- sums in a fixed order (nccl_sum.c) ---- */

/* Enqueues a sum of f32 or bf16, which everybody gets, on the lane's stream. Every element is
 * summed on one rank, in f32, in the order of sum_tree.h over the works' shards, or over the ranks.
 */
DDP_INNER ddp_status ddpi_nccl_sum(ddpi_nccl *n, const ddp_coll *coll);
void ddpi_nccl_free_scratch(ddpi_nccl *n);

#endif
