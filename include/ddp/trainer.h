/* trainer.h - epochs, steps, evaluation, and the listeners that only observe. */
#ifndef DDP_TRAINER_H
#define DDP_TRAINER_H

#include "ddp/eval.h"
#include "ddp/inject.h"
#include "ddp/limits.h"
#include "ddp/saver.h"
#include "ddp/schedule.h"
#include "ddp/strategy.h"
#include "ddp/timeline.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a loss or a gradient that is not finite leads to, on all ranks alike. */
typedef enum ddp_on_nonfinite {
    DDP_NONFINITE_STOP,
    DDP_NONFINITE_SKIP /* the step's update is left out; the optimizer must know it in time */
} ddp_on_nonfinite;

/* What ranks with different parameters lead to. */
typedef enum ddp_on_mismatch {
    DDP_MISMATCH_STOP,
    DDP_MISMATCH_HEAL /* those that are outvoted get the majority's, where three or more agree */
} ddp_on_mismatch;

typedef struct ddp_trainer_opts {
    int64_t epochs;
    int64_t max_steps;  /* optimizer steps; 0: no limit */
    int64_t eval_every; /* epochs; 0: only at the end; below 0: never */
    /* Before every N-th step compare parameters' hashes over ranks, and after it the optimizer's
     * state with itself; 0: parameters at the start only. Otherwise the strategy seals. */
    int64_t check_replicas;
    int on_mismatch;        /* ddp_on_mismatch */
    double target_accuracy; /* end after an evaluation that reaches it; 0: none */
    ddp_schedule schedule;  /* of learning rates */
    int on_nonfinite;       /* ddp_on_nonfinite */
    ddp_inject inject;      /* mishaps on purpose */
    ddp_limits_opts limits; /* of waiting for other ranks */
} ddp_trainer_opts;

/* What stays the same during a run, for observers. */
typedef struct ddp_run_info {
    int64_t epochs, steps_per_epoch;
    double train_flops;   /* per sample */
    double machine_flops; /* peak of all ranks together */
} ddp_run_info;

typedef struct ddp_epoch_stats {
    int64_t epoch; /* from 1 */
    double train_loss, seconds, images_per_s;
    int64_t skipped_steps;
    bool evaluated;
    ddp_eval_result test;
    ddp_ledger ledger; /* of the samples that were computed, checked */
} ddp_epoch_stats;

/* After a step: epoch and step (over the run, from 1), its learning rate and what was measured. */
typedef struct ddp_step_info {
    int64_t epoch, step, step_in_epoch;
    double lr;
    const ddp_step_stats *stats;
} ddp_step_info;

typedef struct ddp_run_summary {
    ddp_saver_verdict stopped; /* before the end */
    int64_t epochs, steps, skipped_steps;
    ddp_eval_result test;
    double images_per_s;        /* median over steps */
    double comm_bytes_per_step; /* mean over the steps of this process; strategy.h: comm_bytes */
    double seconds;
    double seconds_to_target; /* below 0: target_accuracy was not reached, or not set */
    uint64_t weights_hash;
} ddp_run_summary;

/* Gets const data and changes nothing; any entry may be NULL. Called on every rank. */
typedef struct ddp_observer {
    void *arg;
    ddp_status (*on_step)(void *arg, const ddp_run_info *run, const ddp_step_info *step);
    ddp_status (*on_epoch)(void *arg, const ddp_run_info *run, const ddp_epoch_stats *epoch);
} ddp_observer;

/* What a trainer works with; all borrowed. */
typedef struct ddp_trainer_parts {
    ddp_strategy *strategy;
    ddp_model *model;
    ddp_device *device;
    ddp_comm *comm;
    ddp_loader *loader;
    const ddp_sampler *sampler;
    ddp_eval *eval;             /* NULL: no evaluation */
    ddp_saver *saver;           /* NULL: saves and stops nothing */
    ddp_timeline *timeline;     /* NULL: writes none */
    const char *dir;            /* of the run, for files of faults; NULL: none are written */
    const ddp_run_state *start; /* goes on from there; NULL: from the beginning */
    const ddp_observer *observers;
    int observer_count;
} ddp_trainer_parts;

/* Collective. Trains to the end, or until the saver says stop. DDP_ERR_INTERNAL if an epoch's
 * ledger is not what the sampler says. */
DDP_CALL ddp_status ddp_trainer_run(const ddp_trainer_opts *opts, const ddp_run_info *info,
                                    const ddp_trainer_parts *parts, ddp_run_summary *summary_out);
/* All borrowed. */
typedef struct ddp_replica_check {
    ddp_comm *comm;
    ddp_device *device;
    const ddp_param_table *table;
    float *params; /* flat, device memory */
    int64_t step;  /* for messages */
    int on_mismatch;
} ddp_replica_check;
/* Collective. DDP_ERR_MISMATCH names the first rank, and the first parameter, that differ from what
 * most ranks have; nothing is changed then, unless healing did not last. */
DDP_CALL ddp_status ddp_check_replicas(const ddp_replica_check *check);

#ifdef __cplusplus
}
#endif
#endif
