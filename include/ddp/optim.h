/* optim.h - optimizers: one pass over a range of the flat buffers, two where norms are needed.
 *
 * Gradients arrive as sums over the global batch; the optimizer multiplies by 1/count. State lives
 * in flat buffers of the same layout as the parameters; a rank that owns a range only ever touches
 * that range of them. Parameters that are not trainable (param.h) are left as they are, and count
 * in no norm.
 *
 * A step is begin, update of every owned range, end. Where something may still change or stop the
 * update when all gradients are there (clipping, norms of whole parameters, a number that is not
 * finite), ddp_optim_measures() is true, and before the first update come rounds of: measure every
 * owned range, add sums() over all ranks, decide(). Ranges may cut parameters anywhere.
 *
 * One thread; local. */
#ifndef DDP_OPTIM_H
#define DDP_OPTIM_H

#include "ddp/param.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ddp_optim_kind {
    DDP_OPTIM_SGD,
    DDP_OPTIM_ADAMW,
    DDP_OPTIM_LARS,
    DDP_OPTIM_LAMB
} ddp_optim_kind;

/* Which parameters have weight decay. */
typedef enum ddp_decay_on {
    DDP_DECAY_ON_WEIGHTS, /* those with DDP_PARAM_DECAY */
    DDP_DECAY_ON_ALL
} ddp_decay_on;

typedef struct ddp_optim_opts {
    int kind; /* ddp_optim_kind */
    double lr, momentum, weight_decay, dampening;
    bool nesterov;
    double beta1, beta2, eps; /* AdamW, LAMB */
    double trust;             /* LARS: share of a parameter's norm that one step may move it by */
    int decay_on;             /* ddp_decay_on */
    double clip_grad_norm;    /* the mean gradient's largest norm; 0: none */
    bool skip_nonfinite;      /* know before the update whether all numbers are finite */
    /* "PATTERN:lr=X,wd=X;...": rates and decay of the parameters whose names match (fnmatch); later
     * ones win. lr is what they have where others have opts.lr. NULL: none. */
    const char *groups;
    double ema; /* decay of a moving average of the parameters; 0: none */
} ddp_optim_opts;

#define DDP_OPTIM_OPTS_DEFAULTS                                                                    \
    {                                                                                              \
        .kind = DDP_OPTIM_SGD, .lr = 0.2, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8,               \
        .trust = 0.001                                                                             \
    }

typedef struct ddp_optim ddp_optim;

/* DDP_ERR_USAGE for values that make no sense together; the groups' text is checked too. */
DDP_CALL ddp_status ddp_optim_check(const ddp_optim_opts *opts);
/* Also DDP_ERR_USAGE for a group that no parameter is in. The caller owns *optim_out; device and
 * table are borrowed, and flags are read here once. params and grads are the flat buffers. */
DDP_CALL ddp_status ddp_optim_create(const ddp_optim_opts *opts, ddp_device *device,
                                     const ddp_param_table *table, ddp_optim **optim_out);
DDP_API void ddp_optim_destroy(ddp_optim *optim);
/* Before the first step: all that is updated and measured comes in these blocks, adjacent, in order
 * and covering the flat buffers. Then sums over blocks are functions of the values alone, whoever
 * takes them: sums() has a few numbers for each block, and decide() adds them in order. */
DDP_CALL ddp_status ddp_optim_set_blocks(ddp_optim *optim, const ddp_range *blocks, int count);
/* Starts a step: the learning rate and 1/count hold for all ranges of it. */
DDP_API void ddp_optim_begin(ddp_optim *optim, double lr, double inv_count);
/* Updates params[range] from grads[range]; adds the squared norm of the mean gradient over the
 * range to *grad_sq (device memory), unless that was measured. */
DDP_CALL ddp_status ddp_optim_update(ddp_optim *optim, ddp_stream *stream, float *params,
                                     const float *grads, ddp_range range, double *grad_sq);
/* Ends a step. */
DDP_API void ddp_optim_end(ddp_optim *optim);

/* ---- before the update ---- */
DDP_API bool ddp_optim_measures(const ddp_optim *optim);
/* This rank has seen something that forbids this step's update. After begin, before decide. */
DDP_API void ddp_optim_veto(ddp_optim *optim);
/* counts: false where another rank measures the same range. */
DDP_CALL ddp_status ddp_optim_measure(ddp_optim *optim, ddp_stream *stream, const float *params,
                                      const float *grads, ddp_range range, bool counts);
/* Starts to bring to the host what was measured, and with blocks what updates have added. sums()
 * knows it when the stream has done that. Once for each round, and once behind the updates where
 * nothing is measured. */
DDP_CALL ddp_status ddp_optim_fetch(ddp_optim *optim, ddp_stream *stream);
/* This rank's part of the round, to be replaced by the sum over all ranks. With blocks, what
 * updates have added is there too, if nothing was measured. */
DDP_API double *ddp_optim_sums(ddp_optim *optim, size_t *count_out);
/* The squared norm of the mean gradient as far as sums() knows it: this rank's part, or the whole.
 * 0 in a round that does not measure it; after the rounds what they came to. Without blocks only
 * what was measured. */
DDP_API double ddp_optim_grad_sq(const ddp_optim *optim);
/* true: another round of measuring and adding follows. */
DDP_API bool ddp_optim_decide(ddp_optim *optim);
/* After the rounds: updates of this step do nothing. */
DDP_API bool ddp_optim_vetoed(const ddp_optim *optim);

/* ---- steps in graphs (device.h) ---- */

/* Room for the numbers that change from step to step in the updates of so many ranges, which
 * together cover the flat buffers. */
DDP_API size_t ddp_optim_live_bytes(const ddp_optim *optim, int ranges);
/* For optimizers that measure nothing, after the first step: from now on until ddp_optim_live_end()
 * updates read their numbers from `device`, of the room above, when they are done. */
DDP_API void ddp_optim_live_begin(ddp_optim *optim, const void *device);
DDP_API void ddp_optim_live_end(ddp_optim *optim);
/* Between begin and end of a step: the numbers of the updates made since the last live_begin, as
 * this step has them, to be copied to there. Returns their bytes. */
DDP_API size_t ddp_optim_live_write(const ddp_optim *optim, void *host);

/* ---- moving average ---- */
/* Flat buffer, up to date in the ranges that this rank updates; NULL without an average, and before
 * the first step, where the parameters themselves are it. */
DDP_API float *ddp_optim_average(ddp_optim *optim);

/* ---- for checkpoints ---- */

enum { DDP_OPTIM_MAX_FLATS = 3 };

/* All that a step leaves behind for the next: flat buffers, up to date in the ranges that this rank
 * updates, and the number of steps. Names are those of files: "momentum", "exp_avg", "ema". */
typedef struct ddp_optim_state {
    struct {
        const char *name;
        float *values;
    } flats[DDP_OPTIM_MAX_FLATS];
    int count;
    int64_t steps;
} ddp_optim_state;
DDP_API ddp_optim_state ddp_optim_get_state(ddp_optim *optim);
/* Goes on as after so many steps. */
DDP_API void ddp_optim_set_steps(ddp_optim *optim, int64_t steps);

#ifdef __cplusplus
}
#endif
#endif
