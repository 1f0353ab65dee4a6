/* strategy_impl.h - the table behind a strategy, and what the data-parallel ones share. */
#ifndef DDP_STRATEGY_IMPL_H
#define DDP_STRATEGY_IMPL_H

#include "ddp/marks.h"
#include "ddp/strategy.h"
#include "strategy/running.h"
#include "strategy/scale.h"
#include "strategy/seal.h"

struct ddp_strategy_ops {
    const char *name;
    bool overlap;   /* reductions start during backward */
    bool in_stream; /* with a lane, exchange waits for nothing: it can be part of a graph */
    /* After the last shard's backward: reduces, updates and shares, and fills comm_ns and
     * exposed_ns. */
    ddp_status (*exchange)(ddp_strategy *strategy, ddp_step_stats *stats);
    /* Collective, between steps: what was updated in another flat buffer goes to everybody. */
    ddp_status (*publish)(ddp_strategy *strategy, float *buffer);
    /* Local: of every bucket, what this rank updates; NULL where publish has to come first. */
    ddp_range (*owned)(const ddp_strategy *strategy, int bucket);
};

/* What a rank tells the others about its part of a step. */
typedef struct ddpi_control_word {
    double loss_sum, grad_sq;
    int64_t count;
    ddp_ledger ledger;
    uint64_t flags;
    int64_t damaged; /* the optimizer's state was not as sealed */
    ddp_rank_times times;
    int64_t comm_bytes;
} ddpi_control_word;

struct ddp_strategy {
    const ddp_strategy_ops *ops;
    ddp_strategy_opts opts;
    ddp_model *model;
    ddp_device *device;
    ddp_comm *comm;
    ddp_reducer *reducer;
    ddp_optim *optim;
    ddpi_running *running;
    ddpi_seal *seal; /* NULL: nothing is sealed */
    ddp_loss_scale scale;
    ddpi_scale_place scale_place;
    ddp_model_sync sync;      /* of norms' statistics, if asked for */
    ddpi_control_word *words; /* [world] */
    ddp_rank_times *times;    /* [world]: of the last step */
    int64_t ended_ns;         /* the last step; 0: there was none */
    double *grad_sq;    /* device: of the ranges that this rank answers for, unless measured */
    double measured_sq; /* the same, where it was measured before the updates */
    double *results;    /* pinned: grad_sq, then the losses of this rank's shards */
    ddp_marks *marks;   /* forwards and backwards of a step */
    ddp_event *reached; /* the main stream's, where the host waits within a step */
    bool decided;       /* something, in this step */
    bool refused;       /* an update, in this step: its gradient is not finite */
    /* With exact sums: losses of all ranks' shards, and behind them the optimizer's sums, in which
     * the others' places are 0. */
    double *exact;
    size_t exact_count;
    ddp_range *owned;           /* [buckets]: as get_shares() gave them last */
    int64_t first_shard;        /* of this rank, over all ranks */
    uint32_t flags;             /* for the next control word */
    struct ddpi_graphs *graphs; /* of whole steps (graphs.h); NULL: steps are not replayed */
    const uint64_t *live_seed;  /* while a step is captured: where its seed will be */
};

/* ---- parts of a step (sync_step.c) ---- */

/* The next batch of the loader, this rank's shard number `shard` of the step; adds what is known of
 * it to the word. */
DDP_INNER ddp_status ddpi_step_take(ddp_strategy *strategy, ddp_loader *loader, int64_t shard,
                                    ddpi_control_word *word, ddp_batch *batch_out);
/* What a step starts with on the host, and in the main stream. */
void ddpi_step_reset(ddp_strategy *strategy);
DDP_INNER ddp_status ddpi_step_begin(ddp_strategy *strategy);
/* Forward and backward. */
DDP_INNER ddp_status ddpi_step_shard(ddp_strategy *strategy, const ddp_batch *batch);

/* Updates a range in the flat buffers; the reducer's callback. */
DDP_INNER ddp_status ddpi_strategy_update(void *strategy, ddp_range range, bool counts);
/* The reducer's gate: measures a range, and adds up over all ranks what was measured. */
DDP_INNER ddp_status ddpi_strategy_measure(void *strategy, ddp_range range, bool counts);
DDP_INNER ddp_status ddpi_strategy_decide(void *strategy, bool *again_out);
/* Waits until the main stream has done what it was given, where it runs behind its caller. */
DDP_INNER ddp_status ddpi_strategy_sync(ddp_strategy *strategy);
/* The sum of this rank's losses, when the main stream has done the forwards. */
double ddpi_strategy_loss(const ddp_strategy *strategy);

#endif
