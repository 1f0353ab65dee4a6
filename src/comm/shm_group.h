/* shm_group.h - collectives among ranks that share memory, advanced by their callers.
 *
 * The ranks are processes of one node or threads of one process; they share a control block. There
 * is no thread here: start() tells the others that this rank has entered a work, poll() does what
 * can be done at once (reduce the own slice when all have entered, see whether all have reduced)
 * and never blocks. A rank may be many works ahead of another. Works are started in the same order
 * on every rank; differing works are found and reported.
 *
 * Buffers in windows (memory of all ranks that is mapped here) are reduced in place, each rank its
 * own slice of everybody's buffer. Other buffers go in pieces through bounded slots in the control
 * block, which is meant for small ones. One thread at a time uses a group. */
#ifndef DDPI_SHM_GROUP_H
#define DDPI_SHM_GROUP_H

#include "comm/shm_reduce.h"

#define DDPI_SHM_SLOT_BYTES   ((size_t)32768)
#define DDPI_SHM_MAX_INFLIGHT 32

typedef struct ddpi_shm_group ddpi_shm_group;

typedef struct ddpi_shm_group_opts {
    int n, rank;   /* of the ranks that share the memory */
    void *control; /* ddpi_shm_control_bytes(n) zeroed bytes, 64-byte aligned, shared; borrowed */
    /* Called from poll, wait and start when a work is over. The group has set start_ns and owned;
     * a status other than DDP_OK has its message in ddp_status_message(). The work is the owner's
     * again. */
    void (*complete)(void *arg, ddp_work *work, ddp_status status);
    void *complete_arg;
    bool crowded; /* there are more threads than processors, whatever n is */
} ddpi_shm_group_opts;

/* Local. Size of the control block. */
size_t ddpi_shm_control_bytes(int n);
DDP_INNER ddp_status ddpi_shm_group_create(const ddpi_shm_group_opts *opts,
                                           ddpi_shm_group **group_out);
/* Local. NULL is fine. Works in flight are forgotten. */
void ddpi_shm_group_destroy(ddpi_shm_group *group);

/* Same order on all ranks. bases[i] is where rank i's part is mapped here; every part has `bytes`.
 * The array is copied. */
DDP_INNER ddp_status ddpi_shm_window_add(ddpi_shm_group *group, void *const *bases, size_t bytes);
/* Same order on all ranks. own_base is bases[rank] of the window; unknown ones are ignored. */
void ddpi_shm_window_remove(ddpi_shm_group *group, const void *own_base);
/* Local. Does [buf, buf + bytes) lie in a window? */
bool ddpi_shm_in_window(const ddpi_shm_group *group, const void *buf, size_t bytes);
/* Local. Can the group do this collective at all (dtype, op and root are fine)? Everything but
 * reductions of U8 can. */
bool ddpi_shm_takes(const ddpi_shm_group *group, const ddp_coll *coll);

/* Local. Enters the work (work->coll describes it; root is a rank of the group). Does not wait. If
 * DDPI_SHM_MAX_INFLIGHT works are in flight it fails with DDP_ERR_USAGE; wait for one first.
 * PUBLISH copies the slice that ddpi_reduce_slice() gives, inside and outside windows.
 * REDUCE_OWNED outside a window is an allreduce: owned is everything. */
DDP_INNER ddp_status ddpi_shm_start(ddpi_shm_group *group, ddp_work *work);
/* Local, does not block. Advances this and all other works in flight; *done_out says whether this
 * one has been completed. A failure (ranks differ) is the group's end. */
DDP_INNER ddp_status ddpi_shm_poll(ddpi_shm_group *group, ddp_work *work, bool *done_out);
/* Local. Advances until the work is complete: spins shortly if every rank can have a core, then
 * yields, then sleeps until the rank that is waited for moves. stopped (may be NULL) is asked every
 * few milliseconds at least; if it says true, DDP_ERR_COMM. DDP_ERR_TIMEOUT at the deadline. In
 * both cases the work stays in flight. */
DDP_INNER ddp_status ddpi_shm_wait(ddpi_shm_group *group, ddp_work *work, int64_t deadline_ns,
                                   bool (*stopped)(void *arg), void *arg);
/* Local. For callers with a loop of their own: waits politely, at most about a millisecond, after
 * a poll in vain. *round starts at 0 and is set to 0 again after progress. */
void ddpi_shm_idle(ddpi_shm_group *group, unsigned *round);
/* Local. Works in flight. */
int ddpi_shm_inflight(const ddpi_shm_group *group);
/* Local. Forgets all works in flight without completing them; the group is of no more use. */
void ddpi_shm_abandon(ddpi_shm_group *group);

#endif
