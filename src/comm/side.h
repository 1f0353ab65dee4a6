/* side.h - what each rank of a node is doing, and the first cause of a failure, in memory that all
 * of them can read while a collective hangs.
 *
 * One record per rank in a shared block. Every field is an atomic of its own: a reader may see a
 * step and a phase that were not there together, which is harmless in a message. Nothing here
 * blocks. Any thread. */
#ifndef DDPI_SIDE_H
#define DDPI_SIDE_H

#include "ddp/work.h"

#define DDPI_SIDE_CAUSE_BYTES 512
#define DDPI_SIDE_HOST_BYTES  64
#define DDPI_SIDE_TEXT_BYTES  32

typedef struct ddpi_side ddpi_side;

typedef struct ddpi_side_opts {
    void *memory;     /* ddpi_side_bytes(n) zeroed bytes, 64-byte aligned, shared; borrowed */
    int n, index;     /* records, and which of them is this rank's */
    int rank;         /* in the whole world, for messages */
    const char *host; /* copied */
} ddpi_side_opts;

/* A copy of one rank's record. */
typedef struct ddpi_side_view {
    bool present; /* the rank has opened its side */
    bool left;    /* and has closed it in order */
    int rank;
    int64_t pid;
    uint64_t start_time; /* of the process, from /proc; 0: unknown */
    uint64_t pid_space;  /* identifies the PID name space; 0: unknown */
    char host[DDPI_SIDE_HOST_BYTES];
    int64_t step;
    char phase[DDPI_SIDE_TEXT_BYTES];
    uint64_t entered, finished; /* highest work number + 1 that was submitted, completed */
    char what[DDPI_SIDE_TEXT_BYTES];
    int kind, bucket; /* of the last work submitted */
    int64_t submit_ns;
} ddpi_side_view;

size_t ddpi_side_bytes(int n);
DDP_INNER ddp_status ddpi_side_open(const ddpi_side_opts *opts, ddpi_side **side_out);
/* Marks the rank as having left in order, if left; else only frees. NULL is fine. */
void ddpi_side_close(ddpi_side *side, bool left);
/* Marks the rank as having left in order: its process may now end without anybody's alarm. */
void ddpi_side_leave(ddpi_side *side);

int ddpi_side_count(const ddpi_side *side);
int ddpi_side_index(const ddpi_side *side);

/* What this rank is doing. phase is copied (cut to DDPI_SIDE_TEXT_BYTES - 1). */
void ddpi_side_note(ddpi_side *side, int64_t step, const char *phase);
/* This rank has submitted, has completed, a work. */
void ddpi_side_entered(ddpi_side *side, const ddp_work *work);
void ddpi_side_finished(ddpi_side *side, const ddp_work *work);
void ddpi_side_view_get(const ddpi_side *side, int index, ddpi_side_view *view_out);

/* Records the first cause: text that names the rank it speaks of, since every rank repeats it as it
 * is. True: this rank was first, and is the one to print it. */
bool ddpi_side_claim(ddpi_side *side, const char *cause);
/* The first cause and the rank that recorded it; false if there is none (yet). text has
 * DDPI_SIDE_CAUSE_BYTES, and may be NULL. */
bool ddpi_side_cause(const ddpi_side *side, char *text, int *rank_out);
/* Somebody has started to record a cause, though perhaps not finished. */
bool ddpi_side_claimed(const ddpi_side *side);

/* "allreduce" */
const char *ddpi_side_kind_name(int kind);
/* "allreduce 1042 (gradients, bucket 2)" */
char *ddpi_side_work_format(int kind, uint64_t seq, const char *what, int bucket, char *text,
                            size_t text_bytes);

#endif
