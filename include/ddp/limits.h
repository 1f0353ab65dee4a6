/* limits.h - how long ranks wait for each other in each phase of a run: as an option says, or
 * learned from how long the phase has taken so far.
 *
 * One thread. A rank learns for itself: whoever's limit is over first ends the run for all. */
#ifndef DDP_LIMITS_H
#define DDP_LIMITS_H

#include "ddp/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ddp_phase {
    DDP_PHASE_START,
    DDP_PHASE_STEP,
    DDP_PHASE_EVAL,
    DDP_PHASE_CHECKPOINT, /* between two steps */
    DDP_PHASE_COUNT
} ddp_phase;

typedef struct ddp_limits_opts {
    double seconds[DDP_PHASE_COUNT]; /* 0: learned */
    double least;                    /* of what is learned; 0: there is no limit then */
} ddp_limits_opts;

enum { DDP_LIMITS_KEPT = 63 };

typedef struct ddp_limits {
    ddp_limits_opts opts;
    struct {
        int64_t last_ns[DDP_LIMITS_KEPT]; /* a ring of durations */
        int64_t count, longest_ns;
    } taken[DDP_PHASE_COUNT];
} ddp_limits;

DDP_API void ddp_limits_init(ddp_limits *limits, const ddp_limits_opts *opts);
/* The phase has taken so long. */
DDP_API void ddp_limits_learn(ddp_limits *limits, ddp_phase phase, int64_t taken_ns);
/* What a work of the phase may take, in ms; 0: as long as it likes. Learned: 20 times the median
 * of the last durations, for checkpoints of the longest one, since most steps save nothing. */
DDP_API int64_t ddp_limits_ms(const ddp_limits *limits, ddp_phase phase);
/* Works that are submitted from now on have this phase's limit. */
DDP_API void ddp_limits_enter(const ddp_limits *limits, ddp_phase phase, ddp_comm *comm);

#ifdef __cplusplus
}
#endif
#endif
