/* comm_impl.h - what is behind a ddp_comm: common state, the backend's table, the failure state.
 *
 * A backend (mpi, loopback) embeds ddp_comm as its first member and supplies memory that ranks of a
 * node share, and a transport for messages (engine.h). Everything else is common: works are
 * numbered and routed in comm.c, advanced in work.c, and fail in failure.c.
 *
 * Threads: the rank's thread submits and waits; the engine's thread runs message collectives; the
 * watchdog's thread only reports. They meet in the failure state, which is written once, and in
 * ddp_work.done. */
#ifndef DDPI_COMM_IMPL_H
#define DDPI_COMM_IMPL_H

#include "comm/engine.h"
#include "comm/lane.h"
#include "comm/ring.h"
#include "comm/shm_group.h"
#include "comm/side.h"
#include "comm/team.h"
#include "comm/watchdog.h"
#include "ddp/comm.h"

#define DDPI_CAUSE_BYTES        DDPI_SIDE_CAUSE_BYTES
#define DDPI_SEGMENT_NAME_BYTES 48

/* How a work is carried out; kept in ddp_work.stage. */
typedef enum ddpi_route {
    DDPI_ROUTE_LOCAL,  /* nothing to be done, or only by this rank */
    DDPI_ROUTE_SHM,    /* the shared-memory group, advanced by the caller */
    DDPI_ROUTE_ENGINE, /* messages, by the communication thread */
    DDPI_ROUTE_LANE    /* the lane, polled by the caller */
} ddpi_route;

/* Memory that all ranks of a node map, or that is this rank's own. */
typedef struct ddpi_segment {
    char name[DDPI_SEGMENT_NAME_BYTES]; /* "" : private */
    void *base;
    size_t bytes;
    void *part; /* what the user has got */
    bool window;
    bool lane; /* the lane's memory */
    struct ddpi_segment *next;
} ddpi_segment;

/* Where a rank is. */
typedef struct ddpi_place {
    int node, node_rank;
} ddpi_place;

/* One per set of ranks that share a side channel, beside the side's memory. */
typedef struct ddpi_board {
    _Alignas(DDP_ALIGN_BYTES) int first_status; /* __atomic; of the first cause, 0: not yet known */
} ddpi_board;

struct ddp_comm_backend {
    const char *name;
    /* Called by the first rank of a node; sets name and base of a zeroed segment of s->bytes. */
    ddp_status (*segment_create)(ddp_comm *comm, ddpi_segment *s);
    /* Called by the others: s->name and s->bytes are the creator's. */
    ddp_status (*segment_attach)(ddp_comm *comm, ddpi_segment *s);
    /* All ranks have attached, or given up. */
    void (*segment_settled)(ddp_comm *comm, ddpi_segment *s);
    void (*segment_detach)(ddp_comm *comm, ddpi_segment *s);
    /* A work gets its number; a failure here is this rank's death. */
    ddp_status (*admit)(ddp_comm *comm, uint64_t seq);
    /* The last thing; frees comm. */
    void (*close)(ddp_comm *comm);
};

struct ddp_comm {
    const ddp_comm_backend *backend;
    ddp_comm_opts opts;
    int rank, world, node_rank, node_size, node, node_count;
    ddpi_place *places; /* of all ranks; owned */
    int local_rank;     /* on the machine, whether its ranks share memory or not */
    char host[DDPI_SIDE_HOST_BYTES];
    char library[128];
    uint64_t next_seq;     /* __atomic; written by the rank's thread */
    ddpi_shm_group *group; /* NULL: the ranks do not all share memory */
    ddpi_team *team;       /* NULL: all of them do, or none */
    ddpi_engine *engine;   /* NULL: a world of one */
    ddpi_side *side;       /* the two are NULL in a world of one */
    ddpi_watchdog *watchdog;
    ddpi_net *net; /* of a node's first rank, where there are several nodes; may be NULL there */
    ddpi_board *board;
    ddpi_ring ring; /* of the last works */
    int64_t step;   /* __atomic; of the last note */
    ddpi_segment *segments;
    ddpi_lane *lane;          /* NULL: host memory only */
    ddp_recording *recording; /* that works go to now; NULL: they are carried out */
    int windows;              /* segments that the group knows */
    bool device_aware;        /* the backend's word: messages may lie in device memory */
    bool crowded;             /* the node has more ranks than processors */
    int awaited;              /* __atomic; the rank's thread waits for the engine */
    int fail_state;           /* __atomic: enum in failure.c */
    bool heard; /* __atomic: the cause is another rank's, which tells it to everybody */
    ddp_status cause_status;
    char cause[DDPI_CAUSE_BYTES];
    void (*on_failure)(void *arg, const char *cause); /* __atomic; NULL: nobody */
    void *on_failure_arg;
};

/* ---- who is where (nodes.c) ---- */

/* comm->rank and world are set. labels: a number for each rank that the ranks of one node have in
 * common; NULL: every rank is on a node of its own. Fills places and all node_... fields; may be
 * called again. places is freed by the backend, with comm. */
DDP_INNER ddp_status ddpi_comm_set_nodes(ddp_comm *comm, const int *labels);

/* ---- set-up (comm.c) ---- */

/* What the backend hands over. Memory is zeroed and borrowed until close. */
typedef struct ddpi_comm_parts {
    void *side_memory; /* ddpi_board, then ddpi_side_bytes(side_count); see ddpi_comm_side_bytes */
    int side_count, side_index;
    bool watch_processes;
    void *group_memory; /* ddpi_shm_control_bytes(node_size), of the node; NULL: no group, and no
                           team, on any rank */
    const ddpi_transport *transport;
    void *transport_self;
} ddpi_comm_parts;

size_t ddpi_comm_side_bytes(int side_count);
/* The backend has filled backend, opts, ranks, node, host and library. Starts the threads, under a
 * rank context of their own. On failure the backend still owns comm. */
DDP_INNER ddp_status ddpi_comm_start(ddp_comm *comm, const ddpi_comm_parts *parts);
/* Joins the threads and frees all that ddpi_comm_start() made, and the segments. */
void ddpi_comm_stop(ddp_comm *comm);
/* Is this algorithm one that the shared-memory group carries out, or one for two levels? */
bool ddpi_comm_wants_shm(const ddp_comm *comm);
/* The context for threads that work for this rank. */
void ddpi_comm_rank_ctx(ddp_comm *comm, ddp_rank_ctx *ctx_out);

/* A work that is checked and has its stage: numbers it with the last of so many numbers, has it
 * watched and starts it. */
DDP_INNER ddp_status ddpi_comm_start_work(ddp_comm *comm, ddp_work *work, uint64_t numbers);

/* ---- messages there and back (ping.c) ---- */
DDP_INNER ddp_status ddpi_ping_check(const ddp_comm *comm, const ddp_coll *coll);

/* ---- works in graphs (recording.c) ---- */

/* A work that is checked and has its stage. */
DDP_INNER ddp_status ddpi_recording_add(ddp_recording *recording, ddp_work *work);

/* ---- memory (comm_memory.c) ---- */
void ddpi_segment_free(ddp_comm *comm, ddpi_segment *s);
/* What the user has left, at the end: the lane's memory, or the other. */
void ddpi_comm_segments_free(ddp_comm *comm, bool lane);

/* ---- works (work.c) ---- */
void ddpi_work_complete(ddp_comm *comm, ddp_work *work, ddp_status status);

/* ---- failure (failure.c) ---- */

DDP_MODULE_API bool ddpi_comm_failed(const ddp_comm *comm);
/* The communicator has failed: its cause, as the calling thread's failure. */
DDP_MODULE_API DDP_INNER ddp_status ddpi_comm_cause(const ddp_comm *comm);
/* The calling thread's last failure is this communicator's end. Returns the first cause, or, with
 * exit_on_failure, does not return. */
DDP_INNER ddp_status ddpi_comm_raise(ddp_comm *comm, ddp_status status);
/* The rank's thread has met the failure. With exit_on_failure it must not go on, and perhaps end
 * the process, before the thread that found it has said the cause: this does not return then. */
void ddpi_comm_park(const ddp_comm *comm);
/* Another rank, without a side channel to this one, has told us its cause. */
void ddpi_comm_hear(ddp_comm *comm, int from, ddp_status status, const char *cause);
/* The watchdog's callback, and the hook of the fatal path; arg is the ddp_comm. */
void ddpi_comm_on_watchdog(void *arg, ddp_status status, const char *cause, bool first);
void ddpi_comm_on_net(void *arg, const ddpi_net_cause *cause);
void ddpi_comm_on_fatal(void *arg, const char *cause);

#endif
