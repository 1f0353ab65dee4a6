/* schedule.h - the learning rate of a step: warm-up, then constant, steps, cosine or polynomial.
 *
 * A pure function of the step (from 0, over the run), so that a resumed run needs no state of it.
 * Local; any thread. */
#ifndef DDP_SCHEDULE_H
#define DDP_SCHEDULE_H

#include "ddp/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ddp_schedule_kind {
    DDP_SCHEDULE_CONSTANT,
    DDP_SCHEDULE_STEP,
    DDP_SCHEDULE_COSINE,
    DDP_SCHEDULE_POLY
} ddp_schedule_kind;

/* As users say it: lengths in epochs, which may be fractions. */
typedef struct ddp_schedule_opts {
    int kind; /* ddp_schedule_kind */
    int64_t warmup_steps;
    double warmup_epochs;
    double warmup_lr;    /* rate of step 0; below 0: see below */
    double step_every;   /* STEP: epochs between two factors gamma; 0: none */
    const char *step_at; /* STEP: "30,60,80", epochs with a factor gamma; NULL: none */
    double gamma, min, power;
    int64_t total_steps; /* where COSINE and POLY end; 0: with the run */
} ddp_schedule_opts;

#define DDP_SCHEDULE_OPTS_DEFAULTS                                                                 \
    {                                                                                              \
        .kind = DDP_SCHEDULE_CONSTANT, .warmup_lr = -1, .gamma = 0.1, .power = 1                   \
    }

enum { DDP_SCHEDULE_MAX_MILESTONES = 32 };

/* In steps; plain data. */
typedef struct ddp_schedule {
    ddp_schedule_kind kind;
    double base, min, gamma, power;
    /* Below `warmup` steps: from warmup_lr in equal parts, so that step number `warmup` is the
     * first with the base rate; or, if that is below 0, base * (step + 1) / warmup. */
    double warmup_lr;
    int64_t warmup;
    int64_t total;                                   /* COSINE, POLY: from here on `min` */
    int64_t step_every;                              /* 0: none */
    int64_t milestones[DDP_SCHEDULE_MAX_MILESTONES]; /* growing */
    int milestone_count;
} ddp_schedule;

/* Checks what needs no other options; DDP_ERR_USAGE names the option. */
DDP_CALL ddp_status ddp_schedule_check(const ddp_schedule_opts *opts);
/* steps: of the whole run. DDP_ERR_USAGE if they leave nothing between warm-up and end. */
DDP_CALL ddp_status ddp_schedule_make(const ddp_schedule_opts *opts, double base,
                                      int64_t steps_per_epoch, int64_t steps,
                                      ddp_schedule *schedule_out);
/* The rate of this step. STEP never goes below min; COSINE: min + (base - min) * (1 + cos(pi p)) /
 * 2 and POLY: min + (base - min) * (1 - p)^power with p from 0 after the warm-up to 1 at `total`.
 */
DDP_API double ddp_schedule_lr(const ddp_schedule *schedule, int64_t step);

#ifdef __cplusplus
}
#endif
#endif
