/* ring.h - the last works of a rank, for what is written when it fails.
 *
 * Entries are atomics, filled by the threads that submit and complete: no lock, so that a rank that
 * fails in whatever state can read them. An entry is valid while its key (number + 1) stands; a
 * reader looks at the key twice. Any thread. */
#ifndef DDPI_RING_H
#define DDPI_RING_H

#include "ddp/comm.h"

typedef struct ddpi_ring_entry {
    _Atomic uint64_t key;
    _Atomic int64_t step, bytes, submit_ns, start_ns, end_ns;
    _Atomic(const char *) what;
    _Atomic int32_t kind, bucket;
} ddpi_ring_entry;

typedef struct ddpi_ring {
    ddpi_ring_entry entries[DDP_WORK_RECORDS];
} ddpi_ring;

/* One thread. The work has its number and submit_ns. */
void ddpi_ring_begin(ddpi_ring *ring, const ddp_work *work, int64_t step);
/* The work has start_ns and end_ns. */
void ddpi_ring_end(ddpi_ring *ring, const ddp_work *work);
/* Oldest first. Returns how many. */
int ddpi_ring_read(const ddpi_ring *ring, uint64_t next_seq,
                   ddp_work_record records_out[DDP_WORK_RECORDS]);

#endif
