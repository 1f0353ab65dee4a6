/* work.h - one communication: what it is (descriptor), its number, deadline, progress and times.
 *
 * The caller owns the ddp_work struct and the buffers; both belong to the operation until
 * ddp_work_wait() returns, whatever it returns. Works of a communicator are numbered in the order
 * of submission, which is the same on every rank; a work that is not complete at its deadline
 * fails, and with it the communicator. */
#ifndef DDP_WORK_H
#define DDP_WORK_H

#include "ddp/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ddp_reduce_op { DDP_REDUCE_SUM, DDP_REDUCE_MAX, DDP_REDUCE_MIN } ddp_reduce_op;

typedef enum ddp_coll_kind {
    DDP_COLL_BARRIER,
    DDP_COLL_BROADCAST, /* buf: root's to everybody's */
    DDP_COLL_REDUCE,    /* buf: sum lands at root; the others' contents are undefined afterwards */
    DDP_COLL_ALLREDUCE, /* buf: in place, everybody has everything; work.owned covers the buffer */
    DDP_COLL_REDUCE_OWNED, /* buf: in place; only work.owned holds the result afterwards. A backend
                            * that has no use for slices does an allreduce and everybody owns
                            * everything. */
    DDP_COLL_PUBLISH,   /* buf: everybody's owned range (as REDUCE_OWNED of the same buffer length
                         * gave it) is copied to  everybody. Nothing to do where everybody owns
                         * everything. */
    DDP_COLL_ALLGATHER, /* src: count elements of each rank; buf: world * count elements in rank
                           order */
    DDP_COLL_PING /* buf: from root by message to peer and back; the other ranks have no part in it.
                     peer puts its clocks in front (ddp_ping_stamp); start to end is the time. */
} ddp_coll_kind;

/* What the other end of a PING puts in front of the buffer, when it has arrived. */
typedef struct ddp_ping_stamp {
    int64_t monotonic_ns, real_ns; /* CLOCK_MONOTONIC and CLOCK_REALTIME */
} ddp_ping_stamp;

/* One collective, as the caller describes it. */
typedef struct ddp_coll {
    ddp_coll_kind kind;
    ddp_dtype dtype;
    ddp_reduce_op op;
    int root;
    int peer;        /* PING only */
    const void *src; /* ALLGATHER only */
    void *buf;
    size_t count; /* elements */
    /* Sums (REDUCE_OWNED) whose order must not depend on the number of ranks: every rank has summed
     * this many logical shards, in the order of sum_tree.h over those of all ranks. 0: any order.
     * A rank whose run falls into several nodes has a partial sum for each: in buf, buf +
     * part_stride elements, ...; the result lands in buf, and the others are used up. */
    int64_t shards;
    size_t part_stride;
    /* REDUCE_OWNED and PUBLISH: owned ranges start at multiples of so many elements. 0: wherever
     * the backend likes. */
    size_t unit;
    /* Not NULL: buf is memory of this stream's device, and the work starts behind what the stream
     * was given so far. NULL: host memory. */
    ddp_stream *stream;
    int bucket;       /* for messages and traces; -1 if none */
    const char *what; /* a literal, for messages: "gradients", "control word" */
} ddp_coll;

typedef struct ddp_comm ddp_comm;

typedef struct ddp_work {
    ddp_comm *comm;
    ddp_coll coll;
    uint64_t seq;
    int64_t submit_ns, start_ns,
        end_ns; /* monotonic; start: all ranks had entered, as far as this rank knows */
    int64_t deadline_ns;
    ddp_range owned;
    bool counts; /* of all ranks that own this range, it is this one that adds it to sums over ranks
                  */
    ddp_status status; /* valid once done */
    char message[256]; /* the cause, if status is not DDP_OK */
    int done;          /* read and written through __atomic builtins only: C and C++ agree on it */
    int stage;         /* the backend's own */
    int lane_slot;     /* the lane's own */
    bool recorded;     /* only a part of a recording (comm.h): there is nothing to wait for */
    ddp_graph *graph;  /* a replay: what it launches; else NULL */
    struct ddp_work *next; /* the queue's own */
} ddp_work;

/* Local. Whether a sum of so many bytes over this buffer goes on while the rank computes; false: it
 * is carried out by the rank that waits for it. */
DDP_API bool ddp_comm_works_aside(const ddp_comm *comm, void *buf, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
