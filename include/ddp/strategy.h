/* strategy.h - who computes what, and when the ranks talk: one training step.
 *
 * ddp: buckets reduced during backward. sync: the same after backward. naive: gradients to rank 0,
 * update there, parameters back (what DataParallel does). All give the same result. A strategy is a
 * table in src/strategy. */
#ifndef DDP_STRATEGY_H
#define DDP_STRATEGY_H

#include "ddp/loader.h"
#include "ddp/model.h"
#include "ddp/optim.h"
#include "ddp/reducer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ddp_strategy_ops ddp_strategy_ops;
DDP_API const ddp_strategy_ops *ddp_strategy_ddp(void);
DDP_API const ddp_strategy_ops *ddp_strategy_sync(void);
DDP_API const ddp_strategy_ops *ddp_strategy_naive(void);
DDP_API const char *ddp_strategy_name(const ddp_strategy_ops *ops);

/* Whether whole steps are captured as graphs of the device, once for each size of a global batch,
 * and replayed: where that can be done, or else not at all; auto does without where it cannot. */
typedef enum ddp_graph_choice { DDP_GRAPH_AUTO, DDP_GRAPH_ON, DDP_GRAPH_OFF } ddp_graph_choice;

typedef struct ddp_strategy_opts {
    ddp_reducer_opts reducer;
    ddp_optim_opts optim;
    uint64_t seed;   /* of the run: decides what dropout drops */
    bool sync_norms; /* norms' statistics over all ranks; a rank has one shard then, never empty */
    bool seals;      /* ddp_strategy_seal() will be called */
    double loss_scale;     /* gradients carry it until they are used (for f16); 0: none */
    bool loss_scale_grows; /* beyond that; it comes down in any case */
    int graph;             /* ddp_graph_choice */
} ddp_strategy_opts;

/* Where a rank's time of a step went. */
typedef struct ddp_rank_times {
    int64_t between_ns; /* since the end of the step before; 0 for the first */
    int64_t data_ns, forward_ns, backward_ns, comm_ns, exposed_ns, optim_ns, step_ns;
} ddp_rank_times;

/* One step as this rank, or after agreement all ranks, saw it. */
typedef struct ddp_step_stats {
    double loss_sum;    /* over the global batch */
    int64_t count;      /* samples of the global batch */
    double grad_norm;   /* of the mean gradient */
    int nonfinite_rank; /* the first rank whose loss or gradients are not finite; -1: none */
    bool skipped;       /* the update was left out, on all ranks */
    double loss_scale;  /* of this step; 0: none */
    bool overflow;      /* skipped since that was too much: the next step has half of it */
    int damaged_rank;   /* the first rank whose optimizer state was not as sealed; -1: none */
    /* What ddp_strategy_set_flags() had on any rank, and on all. */
    uint32_t flags_any, flags_all;
    /* Of the samples that were computed, over all ranks. */
    ddp_ledger ledger;
    int64_t data_ns, forward_ns, backward_ns, comm_ns, exposed_ns, optim_ns,
        step_ns;        /* slowest rank */
    int64_t compute_ns; /* slowest rank: of step_ns, what is neither data_ns nor exposed_ns */
    int64_t mean_data_ns, mean_exposed_ns, mean_compute_ns; /* over ranks */
    int64_t comm_bytes; /* that a rank gave to the gradients' collectives; the most of any rank */
    int64_t least_exposed_ns;    /* of the rank that waits for no other */
    const ddp_rank_times *ranks; /* the strategy's, until the next step; NULL: not after a step */
    int rank_count;
} ddp_step_stats;

typedef struct ddp_strategy ddp_strategy;

/* Collective. model is planned; the strategy makes the flat buffers and binds them. All pointers
 * are borrowed. */
DDP_CALL ddp_status ddp_strategy_create(const ddp_strategy_ops *ops, const ddp_strategy_opts *opts,
                                        ddp_model *model, ddp_device *device, ddp_comm *comm,
                                        ddp_strategy **strategy_out);
/* Collective. */
DDP_API void ddp_strategy_destroy(ddp_strategy *strategy);
/* The flat parameters; owned by the strategy. */
DDP_API float *ddp_strategy_params(ddp_strategy *strategy);
/* The flat gradients of the last step, for tests: where they were reduced, before clipping. */
DDP_API const float *ddp_strategy_grads(ddp_strategy *strategy);

/* Collective. The parameters to evaluate and to save, on every rank alike: their moving average, if
 * there is one and a step was made. Binds them to the model. Device memory, valid until the next
 * step. */
DDP_CALL ddp_status ddp_strategy_average(ddp_strategy *strategy, float **params_out);
/* Collective. Combines the logical shards' running statistics, weighted by the samples that each
 * has seen, and binds the result to the model for inference; the shards' own stay as they are.
 * *running_out: device memory, valid until the next call; NULL for a model without any. */
DDP_CALL ddp_status ddp_strategy_combine(ddp_strategy *strategy, const float **running_out);
/* Local. Every shard's running statistics start from these (device memory). */
DDP_CALL ddp_status ddp_strategy_set_running(ddp_strategy *strategy, const float *running);

/* Collective. One global step: takes this rank's shards from the loader, computes, reduces,
 * updates. count is the global batch of the step (sampler.h), lr its learning rate. */
DDP_CALL ddp_status ddp_strategy_step(ddp_strategy *strategy, ddp_loader *loader, int64_t count,
                                      double lr, ddp_step_stats *stats_out);
/* Local. Words of this rank's that the next step's control word carries to all ranks. */
DDP_API void ddp_strategy_set_flags(ddp_strategy *strategy, uint32_t flags);

/* What generators of an epoch's forwards start from (model.h: seed). */
DDP_API uint64_t ddp_strategy_seed(const ddp_strategy *strategy, int64_t epoch);

/* Local, between steps. Takes checksums of the optimizer's state in the ranges that this rank
 * updates. The next step compares them, before it uses that state, and tells all ranks. */
DDP_CALL ddp_status ddp_strategy_seal(ddp_strategy *strategy);
/* The state's tensor that this rank has found damaged, as files name it; NULL: none. */
DDP_API const char *ddp_strategy_damage(const ddp_strategy *strategy);

/* A number that gradients are multiplied by, and good steps since it has changed. */
typedef struct ddp_loss_scale {
    double value; /* 0: none */
    int64_t good_steps;
} ddp_loss_scale;

/* All that a step leaves behind for the next, beside the parameters; device memory but `seen`. */
typedef struct ddp_strategy_state {
    ddp_optim_state optim;
    int64_t shards;        /* of this rank */
    const float *combined; /* running statistics as for inference; NULL: none, like running */
    float *running;        /* [shards][length of the buffer table] */
    double *seen;          /* [shards]: samples */
    ddp_loss_scale scale;
    /* Of get_shares(); the strategy's own. Else NULL. */
    const ddp_range *owned;
    int owned_count;
} ddp_strategy_state;
/* Collective, between steps. With `complete` every rank gets the whole of the optimizer's state and
 * the combination; else the state is what this rank has, to be written to. */
DDP_CALL ddp_status ddp_strategy_get_state(ddp_strategy *strategy, bool complete,
                                           ddp_strategy_state *state_out);
/* Collective, between steps. The combination, and of the optimizer's state what the ranks have
 * without exchanging it: the flats are right in the ranges `owned` of them, ascending, as many on
 * every rank; over all ranks these cover everything. NULL: the whole of it. */
DDP_CALL ddp_status ddp_strategy_get_shares(ddp_strategy *strategy, ddp_strategy_state *state_out);
/* Local. The optimizer goes on as after so many steps. */
DDP_API void ddp_strategy_set_steps(ddp_strategy *strategy, int64_t steps);
/* Local. Goes on with that loss scale, if the strategy has any. */
DDP_API void ddp_strategy_set_scale(ddp_strategy *strategy, ddp_loss_scale scale);

/* Collective, for tests: as step, but stops before the update; then grads hold the sums over the
 * global batch, times the loss scale, on every rank. */
DDP_CALL ddp_status ddp_strategy_gradients(ddp_strategy *strategy, ddp_loader *loader,
                                           int64_t count, ddp_step_stats *stats_out);

#ifdef __cplusplus
}
#endif
#endif
