/* shm_group_impl.h - what the two halves of the shared-memory group share: the record of a rank in
 * the control block, a work in flight, and the group of one rank.
 *
 * shm_group.c keeps the queue of works and decides when something is done; shm_parts.c moves and
 * reduces the data. */
#ifndef DDPI_SHM_GROUP_IMPL_H
#define DDPI_SHM_GROUP_IMPL_H

#include <stdatomic.h>

#include "comm/shm_group.h"

/* Twice the works in flight: the oldest signature that anybody may still compare is that of a work
 * that this rank has finished, but another has only entered. */
#define DDPI_SHM_SIGNATURES (2 * DDPI_SHM_MAX_INFLIGHT)

typedef struct ddpi_shm_rank {
    _Alignas(DDP_ALIGN_BYTES) _Atomic uint64_t entered; /* works */
    _Atomic uint64_t done;                              /* works: own part */
    _Atomic uint64_t filled, drained;                   /* pieces */
    _Alignas(DDP_ALIGN_BYTES) _Atomic uint32_t bell;    /* changes when a sleeper should look */
    _Atomic uint32_t sleepers;
    _Alignas(DDP_ALIGN_BYTES) _Atomic uint64_t signature[DDPI_SHM_SIGNATURES];
    _Alignas(DDP_ALIGN_BYTES) char slot[2][DDPI_SHM_SLOT_BYTES];
} ddpi_shm_rank;

typedef struct ddpi_shm_window {
    void **bases;
    size_t bytes;
    uint64_t id; /* the same on all ranks */
    struct ddpi_shm_window *next;
} ddpi_shm_window;

typedef enum ddpi_shm_path { DDPI_PATH_LOCAL, DDPI_PATH_WINDOW, DDPI_PATH_SLOTS } ddpi_shm_path;

typedef struct ddpi_shm_flight {
    ddp_work *work; /* NULL once complete */
    uint64_t number;
    ddpi_shm_path path;
    const ddpi_shm_window *window;
    size_t offset; /* of the buffer in the window */
    size_t bytes;  /* of the buffer, for ALLGATHER of one rank's share */
    uint64_t signature;
    uint64_t first_piece, pieces, filled, drained;
    bool all_entered, own_done;
} ddpi_shm_flight;

struct ddpi_shm_group {
    ddpi_shm_group_opts opts;
    ddpi_shm_rank *ranks, *own;
    ddpi_shm_window *windows;
    uint64_t next_window;
    ddpi_shm_flight flights[DDPI_SHM_MAX_INFLIGHT]; /* ring: oldest at head */
    unsigned head, count;
    uint64_t started, pieces;
    /* What the oldest unfinished work waits for, as of the last poll; NULL: nothing. */
    const _Atomic uint64_t *awaited;
    uint64_t awaited_value;
    int awaited_rank;
    uint64_t moves; /* counts own progress */
    bool crowded;   /* more ranks than processors */
    bool failed, abandoned;
    void **pointers; /* scratch for reductions: destinations, then sources */
};

/* Stores a counter of the own record, and wakes who sleeps on it. */
void ddpi_shm_publish(ddpi_shm_group *group, _Atomic uint64_t *counter, uint64_t value);
/* Has this counter of the rank reached the value? If not, notes it as what is waited for, unless an
 * older work already waits for something. */
bool ddpi_shm_reached(ddpi_shm_group *group, int rank, const _Atomic uint64_t *counter,
                      uint64_t value);
/* The same for one counter of all other ranks. */
#define DDPI_ALL_REACHED(group, field, value)                                                      \
    ddpi_shm_all_reached((group), offsetof(ddpi_shm_rank, field), (value))

bool ddpi_shm_all_reached(ddpi_shm_group *group, size_t field_offset, uint64_t value);
bool ddpi_shm_is_reduction(ddp_coll_kind kind);

ddp_range ddpi_shm_own_slice(const ddpi_shm_group *group, const ddp_coll *coll);
/* All ranks have entered: does the own part of a work in a window. */
void ddpi_shm_window_part(ddpi_shm_group *group, const ddpi_shm_flight *f);
/* Puts the own data of the next piece into the own slot; false if the slot is still in use. */
bool ddpi_shm_try_fill(ddpi_shm_group *group, ddpi_shm_flight *f);
/* Takes the next piece out of the slots; false if a rank that is needed has not filled its own. */
bool ddpi_shm_try_drain(ddpi_shm_group *group, ddpi_shm_flight *f);

#endif
