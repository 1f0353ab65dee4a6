/* comm.h - communicators: a fixed set of ranks that talk through numbered works.
 *
 * Backends stand behind one table (src/comm/comm_impl.h): mpi (processes) and loopback (threads of
 * one process, for tests and rehearsal). Ranks of one node share memory: buffers from
 * ddp_comm_mem_alloc() are reduced in place there, each rank its own slice of every rank's buffer,
 * with no thread and no copy in between. Everything else runs on the communicator's own thread;
 * over several nodes that is two levels, within nodes by shared memory and then between them.
 *
 * Collective functions are called by all ranks in the same order, from one thread per rank. When a
 * work fails (peer dead, deadline passed, mismatch), the communicator has failed: every later work
 * returns the first cause at once. */
#ifndef DDP_COMM_H
#define DDP_COMM_H

#include "ddp/comm_device.h"
#include "ddp/spans.h"
#include "ddp/work.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ddp_comm_backend ddp_comm_backend; /* e.g. ddp_comm_mpi() */

typedef enum ddp_allreduce_algo {
    DDP_ALLREDUCE_AUTO, /* shm where all ranks share memory, hier where some do and it is not the
                           slower one (ddp_comm_tune), else by size: tree or rhd when small, ring
                           when large */
    DDP_ALLREDUCE_SHM,  /* in place through shared memory; needs all ranks on one node */
    DDP_ALLREDUCE_MPI,  /* the MPI library's own */
    DDP_ALLREDUCE_ROOT, /* everything to rank 0 and back */
    DDP_ALLREDUCE_RING,
    DDP_ALLREDUCE_TREE, /* binomial reduce and broadcast */
    DDP_ALLREDUCE_RHD,  /* recursive halving and doubling */
    DDP_ALLREDUCE_HIER  /* two levels: shared memory within nodes, ranks of equal place between */
} ddp_allreduce_algo;

typedef struct ddp_comm_opts {
    ddp_allreduce_algo allreduce;
    int64_t timeout_ms; /* deadline of a work, from its submission; 0: none */
    bool shared_memory; /* false: behave as if every rank were on a node of its own */
    /* What a failure does to the process. true: print the cause (first rank that knows it only),
     * and leave by _exit(1). false: works return the error (tests, loopback). */
    bool exit_on_failure;
    /* Loopback: for each rank a number that ranks of one node have in common; borrowed while the
     * world is opened. NULL: all are on one node. */
    const int *loopback_nodes;
} ddp_comm_opts;

#define DDP_COMM_OPTS_DEFAULTS                                                                     \
    {                                                                                              \
        DDP_ALLREDUCE_AUTO, 60000, true, true, NULL                                                \
    }

/* ---- life ---- */

/* Local. Whether ranks can be MPI processes: false if built with -DDDP_MPI=off. */
DDP_API bool ddp_comm_has_mpi(void);

/* Collective. The MPI world. argc and argv may be changed by MPI_Init, as MPI allows. Call once,
 * from the main thread. On a single node under Open MPI, narrows its transports to shared memory
 * for a faster start, unless the user chose some. Fails with DDP_ERR_USAGE if the scheduler started
 * several tasks but MPI sees one, with DDP_ERR_UNSUPPORTED without MPI. */
DDP_CALL ddp_status ddp_comm_mpi_open(const ddp_comm_opts *opts, int *argc, char ***argv,
                                      ddp_comm **comm_out);

/* Local. A loopback world of n communicators, for n threads; comms_out has n entries. One of them
 * belongs to each thread, which closes it. */
typedef struct ddp_loopback_faults {
    uint64_t seed;
    int64_t max_delay_us; /* each message is delayed by up to this much */
    bool reorder;  /* messages between two ranks with different tags may overtake each other */
    int lose_rank; /* this rank's messages are dropped from message number lose_after on; -1: none
                    */
    uint64_t lose_after;
    int die_rank; /* this rank's works fail from work number die_at on, as if it had died; -1: none
                   */
    uint64_t die_at;
} ddp_loopback_faults;
#define DDP_LOOPBACK_FAULTS_NONE                                                                   \
    {                                                                                              \
        0, 0, false, -1, 0, -1, 0                                                                  \
    }
DDP_CALL ddp_status ddp_comm_loopback_open(const ddp_comm_opts *opts, int world,
                                           const ddp_loopback_faults *faults, ddp_comm **comms_out);

/* Collective when the communicator is healthy. After a failure it does not wait for anybody. For
 * the MPI world this also finalizes MPI. NULL is fine. */
DDP_API void ddp_comm_close(ddp_comm *comm);

/* ---- who is there ---- */
DDP_API int ddp_comm_rank(const ddp_comm *comm);
DDP_API int ddp_comm_world(const ddp_comm *comm);
/* Rank and number of ranks within the node, the node's number and the number of nodes. */
DDP_API int ddp_comm_node_rank(const ddp_comm *comm);
DDP_API int ddp_comm_node_size(const ddp_comm *comm);
DDP_API int ddp_comm_node(const ddp_comm *comm);
DDP_API int ddp_comm_node_count(const ddp_comm *comm);
/* The node of any rank. Nodes are numbered in the order of their lowest ranks. */
DDP_API int ddp_comm_node_of(const ddp_comm *comm, int rank);
/* Number of the rank among those of its machine, also where they must not share memory. */
DDP_API int ddp_comm_local_rank(const ddp_comm *comm);
DDP_API const char *ddp_comm_host(const ddp_comm *comm);         /* of this rank */
DDP_API const char *ddp_comm_backend_name(const ddp_comm *comm); /* "mpi", "loopback" */
DDP_API const char *ddp_comm_library(const ddp_comm *comm);      /* MPI library version, one line */

/* ---- memory ---- */

/* Collective (same bytes everywhere). With a lane: zeroed device memory. Else zeroed, touched
 * memory that reductions like best: in a window that the node's ranks share, or private (with a
 * note in the log) where shared memory is too small. */
DDP_CALL ddp_status ddp_comm_mem_alloc(ddp_comm *comm, size_t bytes, void **memory_out);
/* Collective. NULL is fine. */
DDP_API void ddp_comm_mem_free(ddp_comm *comm, void *memory);
/* Collective. One memory for all ranks of a node: bytes is the node's first rank's word. The first
 * rank fills it, then all call ddp_comm_agree(). Read-only for the others by convention. */
DDP_CALL ddp_status ddp_comm_node_alloc(ddp_comm *comm, size_t bytes, void **memory_out);
DDP_API void ddp_comm_node_free(ddp_comm *comm, void *memory);

/* ---- works ---- */

/* Local. Numbers the collective, sets its deadline and starts it. *work is the caller's. On failure
 * to start the work is done with that status. */
DDP_CALL ddp_status ddp_comm_submit(ddp_comm *comm, const ddp_coll *coll, ddp_work *work);
/* Local, does not wait. Lets the work (and those before it) progress in the caller, where it needs
 * that. */
DDP_CALL ddp_status ddp_work_poll(ddp_work *work, bool *done_out);
/* Waits politely (spins shortly, then yields, then sleeps) until the work is done; returns its
 * status. */
DDP_CALL ddp_status ddp_work_wait(ddp_work *work);

/* Local. How long the work took, now that it is done; the calling thread keeps it as a span. */
DDP_API int64_t ddp_work_span(const ddp_work *work, ddp_span_kind kind);

/* Local. The deadline of works that are submitted from now on; 0: none. */
DDP_API void ddp_comm_set_timeout(ddp_comm *comm, int64_t timeout_ms);

/* Local, with no work under way; all ranks alike: how sums are made from now on.
 * DDP_ERR_UNSUPPORTED, with nothing changed, where this communicator cannot do it so. */
DDP_CALL ddp_status ddp_comm_set_allreduce(ddp_comm *comm, ddp_allreduce_algo algo);

/* Collective, with no work under way. With several nodes and DDP_ALLREDUCE_AUTO: measures for some
 * lengths whether sums are faster on two levels, for about a quarter of a second, and keeps to
 * that. Elsewhere, and with a lane, does nothing. */
DDP_CALL ddp_status ddp_comm_tune(ddp_comm *comm);
typedef struct ddp_sum_trial {
    size_t bytes;
    double flat_seconds, two_level_seconds; /* of a sum, by rank 0's clock; the worse and the better
                                               of two rounds */
    bool two_level;                         /* what sums of about this length are made by */
} ddp_sum_trial;
/* Local. What ddp_comm_tune() has found: length number index, from 0; false: there are no more. */
DDP_API bool ddp_comm_tuned(const ddp_comm *comm, int index, ddp_sum_trial *choice_out);

/* Collective, blocking: submit and wait. */
DDP_CALL ddp_status ddp_comm_barrier(ddp_comm *comm);
DDP_CALL ddp_status ddp_comm_broadcast(ddp_comm *comm, int root, void *buf, size_t bytes);
DDP_CALL ddp_status ddp_comm_allreduce(ddp_comm *comm, void *buf, size_t count, ddp_dtype dtype,
                                       ddp_reduce_op op, const char *what);
DDP_CALL ddp_status ddp_comm_allgather(ddp_comm *comm, const void *mine, size_t bytes, void *all);

/* One message there and back, as a rank has seen it. */
typedef struct ddp_ping {
    int64_t sent_ns, back_ns; /* this rank's monotonic clock */
    ddp_ping_stamp stamp;     /* the other's, when the message had arrived */
} ddp_ping;
/* Collective. Rank from sends bytes (at least those of a stamp) to rank to, by message also where
 * they share memory, and gets them back. buf is needed on both, ping_out on from; elsewhere they
 * may be NULL. */
DDP_CALL ddp_status ddp_comm_ping(ddp_comm *comm, int from, int to, void *buf, size_t bytes,
                                  ddp_ping *ping_out);

/* Collective. All ranks return the same verdict: DDP_OK if every rank's status is, else the status
 * and message of the lowest failing rank, prefixed with its rank and host where it is another's. */
DDP_CALL ddp_status ddp_comm_agree(ddp_comm *comm, ddp_status mine, const char *what);
/* Collective. Compares a text over ranks; DDP_ERR_MISMATCH names the first rank that differs from
 * rank 0, with both texts' first differing line. Texts are key=value lines. */
DDP_CALL ddp_status ddp_comm_fingerprint(ddp_comm *comm, const char *text, const char *what);

/* ---- failure ---- */

/* Any thread. Marks the communicator as failed with a cause, on every rank that can still hear it.
 * Never blocks. */
DDP_API void ddp_comm_fail(ddp_comm *comm, const char *cause);
/* Local. With exit_on_failure: fn is called with the cause when one of the communicator's own
 * threads is about to end the process, after the cause was printed. It must not wait for anybody.
 */
DDP_API void ddp_comm_on_failure(ddp_comm *comm, void (*fn)(void *arg, const char *cause),
                                 void *arg);
/* The rank's thread. What it is doing, for the others' messages. phase is a literal; a step below 0
 * is the same step as before. */
DDP_API void ddp_comm_note(ddp_comm *comm, int64_t step, const char *phase);
/* One of a rank's last works. Times as ddp_now_ns(); 0: not yet. */
enum { DDP_WORK_RECORDS = 256 };
typedef struct ddp_work_record {
    uint64_t seq;
    const char *kind, *what;
    int64_t bytes, step, submit_ns, start_ns, end_ns;
    int bucket;
} ddp_work_record;
/* Any thread. This rank's last works, oldest first; returns how many. */
DDP_API int ddp_comm_records(const ddp_comm *comm, ddp_work_record records_out[DDP_WORK_RECORDS]);
/* Any thread. Why the communicator has failed; "" if it has not. True if this rank is the one that
 * says it. */
DDP_API bool ddp_comm_cause(const ddp_comm *comm, char *text, size_t text_bytes);
/* Any thread. What a rank of this node is doing, or was when it died, in a line; false: unknown. */
DDP_API bool ddp_comm_describe(const ddp_comm *comm, int rank, char *text, size_t text_bytes);
/* Any thread. The address by which this rank's node is connected to rank 0's beside messages; "" on
 * ranks that are not the first of a node, and on rank 0's node. False: it should be, and is not. */
DDP_API bool ddp_comm_side_address(const ddp_comm *comm, char *text, size_t text_bytes);
/* Local. Bytes that this rank has sent in messages, and those of them to other nodes. */
DDP_API uint64_t ddp_comm_bytes_sent(const ddp_comm *comm);
DDP_API uint64_t ddp_comm_bytes_across(const ddp_comm *comm);

#ifdef __cplusplus
}
#endif
#endif
