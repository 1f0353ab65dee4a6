/* timeline.h - what all ranks' threads did in the last steps, as one file: at the end of a run,
 * when a process gets the signal USR2, and after a step that was unusually slow.
 *
 * Every rank has one. A request of one rank goes to the others as a flag in a step's control word,
 * so that all write after the same step: rank 0 gathers the rings of spans (spans.h), brings clocks
 * together (clocks.h) and writes. Requests of several ranks that come with that step, or shortly
 * after, are one. One thread a rank. */
#ifndef DDP_TIMELINE_H
#define DDP_TIMELINE_H

#include "ddp/strategy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Steps that a file on request shows where nobody says how many. */
enum { DDP_TIMELINE_STEPS = 20 };
/* Bits of a control word's flags. */
enum { DDP_TIMELINE_ASKED = 1 << 16, DDP_TIMELINE_SLOW = 2 << 16 };

typedef struct ddp_timeline_opts {
    bool spans;    /* are kept at all: without them there is nothing to write */
    int64_t steps; /* the last ones that files show; above 0: one is written at the end, too */
    double slow;   /* a step takes so many times the median: write; 0: never */
} ddp_timeline_opts;

#define DDP_TIMELINE_OPTS_DEFAULTS                                                                 \
    {                                                                                              \
        true, 0, 0                                                                                 \
    }

typedef struct ddp_timeline_parts {
    ddp_comm *comm;
    ddp_model *model;
    ddp_spans *spans;   /* this rank's; its first track is the main thread's */
    const char *dir;    /* for trace.json and trace-step-N.json; rank 0's counts */
    int (*asked)(void); /* how often the process was asked for one, so far; NULL: never */
} ddp_timeline_parts;

typedef struct ddp_timeline ddp_timeline;

/* Collective. All pointers are borrowed. The caller owns *timeline_out. */
DDP_CALL ddp_status ddp_timeline_create(const ddp_timeline_opts *opts,
                                        const ddp_timeline_parts *parts,
                                        ddp_timeline **timeline_out);
DDP_API void ddp_timeline_destroy(ddp_timeline *timeline);
/* Local, before a step. For ddp_strategy_set_flags(). */
DDP_API uint32_t ddp_timeline_flags(ddp_timeline *timeline);
/* Local, after a step: how long it took this rank. */
DDP_API void ddp_timeline_learn(ddp_timeline *timeline, int64_t taken_ns);
/* Collective, after a step whose control word had these flags on any rank: writes, if any of them
 * asks for it. A file that cannot be written is a warning. */
DDP_CALL ddp_status ddp_timeline_after_step(ddp_timeline *timeline, int64_t step, uint32_t any);
/* Collective, at the end. */
DDP_CALL ddp_status ddp_timeline_finish(ddp_timeline *timeline);

#ifdef __cplusplus
}
#endif
#endif
