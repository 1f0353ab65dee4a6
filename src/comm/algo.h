/* algo.h - collectives as algorithms over sends and receives.
 *
 * Algorithms run in the engine's thread, for any number of ranks and any length. Their order of
 * additions depends on rank, world and length alone (of ordered, tree, and rhd with 2^k ranks on
 * the world alone: it is that of sum_tree.h), and every rank gets the same bits, since each
 * element is summed in one place and copied from there. Messages are cut into segments, so that a
 * segment is added while the next one arrives, and scratch memory has a fixed size. */
#ifndef DDPI_ALGO_H
#define DDPI_ALGO_H

#include "comm/engine.h"
#include "ddp/comm.h"

/* The longest segment that combine() is given. */
#define DDPI_SEGMENT_BYTES ((size_t)262144)
/* The memory that segments arrive in. */
#define DDPI_SCRATCH_BYTES ((size_t)2097152)

typedef struct ddpi_algo {
    int rank, world;
    int node;         /* of this rank */
    const int *ranks; /* whom messages to 0 .. world - 1 go to; NULL: to the ranks of that name */
    const struct ddpi_place *places; /* of all ranks of the communicator */
    struct ddpi_team *team;          /* NULL: there is only one level */
    ddp_work *work;
    int tag;
    const ddpi_transport *transport;
    void *self;
    void *scratch;          /* DDPI_SCRATCH_BYTES */
    ddpi_request *requests; /* 2 * world */
    ddpi_engine *engine;    /* for ddpi_algo_check() */
    /* dst += src where buffers and scratch are not host memory; returns when it is done. NULL: they
     * are. */
    ddp_status (*combine)(void *arg, struct ddpi_algo *a, void *dst, const void *src, size_t count);
    void *combine_arg;
    uint64_t bytes_sent, bytes_across; /* the second: to other nodes */
} ddpi_algo;

/* Elements [lo, hi) that go to one rank and come from another. peer < 0: none. */
typedef struct ddpi_flow {
    int to;
    ddp_range send;
    int from;
    ddp_range recv;
} ddpi_flow;

/* ---- building blocks (algo.c) ---- */

/* Has the communicator failed, or the work's deadline passed? */
DDP_INNER ddp_status ddpi_algo_check(ddpi_algo *a);
DDP_INNER ddp_status ddpi_algo_send(ddpi_algo *a, int to, const void *buf, size_t bytes,
                                    ddpi_request *request);
DDP_INNER ddp_status ddpi_algo_recv(ddpi_algo *a, int from, void *buf, size_t bytes,
                                    ddpi_request *request);
/* Looks whether it is complete, and is no longer active then. */
DDP_INNER ddp_status ddpi_algo_test(ddpi_algo *a, ddpi_request *request);
/* Between looks in vain, of which there have been *round since something moved. */
DDP_INNER ddp_status ddpi_algo_idle(ddpi_algo *a, unsigned *round);
/* dst += src in the work's type, of count elements. */
DDP_INNER ddp_status ddpi_algo_add(ddpi_algo *a, void *dst, const void *src, size_t count);
/* Waits for an event of a device. */
DDP_INNER ddp_status ddpi_algo_await(ddpi_algo *a, ddp_event *event);
/* Waits for all of them. */
DDP_INNER ddp_status ddpi_algo_wait(ddpi_algo *a, ddpi_request *requests, int count);
/* The work's buffer: sends one range and replaces another. */
DDP_INNER ddp_status ddpi_algo_move(ddpi_algo *a, const ddpi_flow *flow);
/* The same, but what arrives is reduced into the range. The ranges must not overlap. */
DDP_INNER ddp_status ddpi_algo_reduce(ddpi_algo *a, const ddpi_flow *flow);
/* Equal shares of count elements: that of one of n. */
ddp_range ddpi_algo_share(size_t count, int n, int index);
bool ddpi_algo_takes(ddp_dtype dtype, ddp_reduce_op op);

/* ---- collectives ---- */
DDP_INNER ddp_status ddpi_algo_barrier(ddpi_algo *a);
DDP_INNER ddp_status ddpi_algo_broadcast(ddpi_algo *a, int root); /* binomial tree */
DDP_INNER ddp_status ddpi_algo_reduce_to(ddpi_algo *a, int root); /* binomial tree */
/* By number of ranks and size: direct, tree or ring. Of the tree, own shares are in place. */
DDP_INNER ddp_status ddpi_algo_allgather(ddpi_algo *a);
DDP_INNER ddp_status ddpi_algo_allgather_tree(ddpi_algo *a);
DDP_INNER ddp_status ddpi_algo_allreduce_root(ddpi_algo *a);
DDP_INNER ddp_status ddpi_algo_allreduce_ring(ddpi_algo *a);
DDP_INNER ddp_status ddpi_algo_allreduce_tree(ddpi_algo *a);
DDP_INNER ddp_status ddpi_algo_allreduce_rhd(ddpi_algo *a);
DDP_INNER ddp_status ddpi_algo_allreduce_ordered(ddpi_algo *a);
DDP_INNER ddp_status ddpi_algo_ping(ddpi_algo *a); /* ping.c */
/* By messages alone, with the algorithm that its size calls for. */
DDP_INNER ddp_status ddpi_algo_allreduce_flat(ddpi_algo *a);
/* Is the work one for two levels? Then ddpi_algo_hier() does it. */
bool ddpi_algo_is_hier(const ddpi_algo *a, ddp_allreduce_algo choice);
DDP_INNER ddp_status ddpi_algo_hier(ddpi_algo *a);
/* Whatever the work is, with the algorithm that the options and its size call for. */
DDP_INNER ddp_status ddpi_algo_run(ddpi_algo *a, ddp_allreduce_algo choice);

#endif
