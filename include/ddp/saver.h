/* saver.h - when a run is saved and when it stops: by steps, minutes and epochs, after the best
 * evaluation, at the end, and when it is asked to stop.
 *
 * Every rank has one. What one rank alone knows (a signal, rank 0's clock, whether its part is
 * written) goes to the others as flags in the step's control word, so that all save and stop after
 * the same step. One thread a rank. */
#ifndef DDP_SAVER_H
#define DDP_SAVER_H

#include "ddp/checkpoint.h"
#include "ddp/eval.h"
#include "ddp/strategy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where a run stands between two steps. Nothing in it depends on the number of ranks or on time. */
typedef struct ddp_run_state {
    int64_t epoch, step_in_epoch; /* finished epochs, and finished steps of the next one */
    int64_t steps, skipped;       /* of the run */
    int64_t updates;              /* the optimizer's steps */
    ddp_loss_scale scale;
    /* Of the unfinished epoch: */
    double loss;
    int64_t count, loss_count, epoch_skipped;
    ddp_ledger ledger;
    /* The last evaluation, and the best one so far; steps below 0: none. */
    int64_t eval_step, best_step;
    ddp_eval_result eval;
    double best_accuracy;
} ddp_run_state;

#define DDP_RUN_STATE_START                                                                        \
    {                                                                                              \
        .eval_step = -1, .best_step = -1                                                           \
    }

/* To and from the keys of state.json. DDP_ERR_FORMAT names the key. */
DDP_CALL ddp_status ddp_run_state_write(const ddp_run_state *state, ddp_json *object);
DDP_CALL ddp_status ddp_run_state_read(const ddp_json *object, const char *what,
                                       ddp_run_state *state_out);

/* What is saved; borrowed. */
typedef struct ddp_saver_parts {
    ddp_strategy *strategy;
    ddp_model *model;
    ddp_device *device;
    ddp_comm *comm;
    int64_t shards, first_shard; /* logical shards of all ranks, and this rank's first */
    int64_t batches;             /* counted before the run's first step */
} ddp_saver_parts;

typedef struct ddp_saver_opts {
    const char *dir;     /* of checkpoints; NULL: nothing is saved */
    int64_t every;       /* steps; 0: not */
    double minutes;      /* 0: not */
    int64_t epochs;      /* 0: not */
    bool at_end;         /* also when the run is asked to stop */
    int64_t keep;        /* newest checkpoints */
    bool keep_best;      /* and that of the best evaluation */
    int64_t saved_step;  /* has a checkpoint in dir already; below 0: none */
    int64_t deadline_ns; /* stop before; rank 0's counts */
    int (*asked)(void);  /* to stop? not 0: yes. NULL: never */
    /* Rank 0: the text of state.json; the saver frees it. */
    ddp_status (*describe)(void *arg, const ddp_run_state *state, char **text_out);
    /* Rank 0: a save has ended, well or not. */
    ddp_status (*report)(void *arg, const ddp_ckpt_report *report);
    void *arg;
} ddp_saver_opts;

typedef struct ddp_saver ddp_saver;

/* Collective. The caller owns *saver_out. */
DDP_CALL ddp_status ddp_saver_create(const ddp_saver_opts *opts, const ddp_saver_parts *parts,
                                     ddp_saver **saver_out);
DDP_API void ddp_saver_destroy(ddp_saver *saver);
/* Local. For ddp_strategy_set_flags(). */
DDP_API uint32_t ddp_saver_flags(ddp_saver *saver);

typedef enum ddp_saver_verdict {
    DDP_SAVER_GO_ON,
    DDP_SAVER_ASKED, /* stop: a rank was asked to */
    DDP_SAVER_TIME   /* stop: the time is up */
} ddp_saver_verdict;
/* Collective, after a step. last: the epoch's last one, whose save waits for
 * ddp_saver_after_epoch() unless the run stops here. A verdict other than GO_ON comes after
 * everything is saved. */
DDP_CALL ddp_status ddp_saver_after_step(ddp_saver *saver, const ddp_run_state *state,
                                         const ddp_step_stats *stats, bool last,
                                         ddp_saver_verdict *verdict_out);
/* Collective, after an epoch and its evaluation, if there was one. */
DDP_CALL ddp_status ddp_saver_after_epoch(ddp_saver *saver, const ddp_run_state *state);
/* Collective, at the end of the run. */
DDP_CALL ddp_status ddp_saver_finish(ddp_saver *saver, const ddp_run_state *state);

/* Local, before the first step. Puts the checkpoint in place of everything that is saved;
 * *state_out and *batches_out come from it. `state` is its state.json. */
DDP_CALL ddp_status ddp_saver_load(const char *path, const ddp_json *state,
                                   const ddp_saver_parts *parts, ddp_run_state *state_out,
                                   int64_t *batches_out);

#ifdef __cplusplus
}
#endif
#endif
