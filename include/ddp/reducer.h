/* reducer.h - buckets of the flat gradient buffer, reduced while backward goes on.
 *
 * A bucket is a range of the flat gradient buffer, cut at parameter borders, in backward-completion
 * order: nothing is copied in or out. When the last shard's backward completes a bucket's last
 * parameter, its reduction starts, in bucket order on every rank. A rank that has several logical
 * shards sums them first: the partial sums follow the one tree that splits n shards at the largest
 * power of two below n, as a binary counter of flat buffers. With `exact` this is the tree over all
 * ranks' shards (sum_tree.h), and a rank sums what belongs to one node of it. A bucket that is
 * reduced is handed to the owner's callback with the range that this rank owns, and then the
 * updated parameters of that range are published. One thread per rank. */
#ifndef DDP_REDUCER_H
#define DDP_REDUCER_H

#include "ddp/comm.h"
#include "ddp/cost.h"
#include "ddp/hook.h"
#include "ddp/marks.h"
#include "ddp/param.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ddp_reducer_opts {
    double first_bucket_mb;   /* MiB; a small first one, so that communication starts early */
    double bucket_cap_mb;     /* MiB */
    int64_t shards;           /* logical shards of this rank per step */
    bool overlap;             /* false: all starts in finish(), if that is called */
    bool update_early;        /* hand buckets over as they come; false: only when all are reduced */
    const ddp_hook_ops *hook; /* how gradients travel; NULL: as they are */
    ddp_hook_opts hook_opts;
    /* The sums are functions of the shards alone, not of who computes them: all ranks have equally
     * many, gradients travel as f32, and ranges are handed over block by block. */
    bool exact;
    /* Where buckets end instead, as numbers of parameters before it: bucket b has the parameters
     * cuts[b-1] .. cuts[b]-1. The same on all ranks; borrowed while the reducer is created. NULL:
     * by size. */
    const int *cuts;
    int cut_count;
} ddp_reducer_opts;

#define DDP_REDUCER_OPTS_DEFAULTS                                                                  \
    {                                                                                              \
        1.0, 25.0, 1, true, true, NULL, DDP_HOOK_OPTS_DEFAULTS, false, NULL, 0                     \
    }

/* Updates the parameters of a range (elements of the flat buffers) from the summed gradients there.
 * Others may own the same range, and do the same; counts: this rank is the one of them whose part
 * goes into sums over ranks. */
typedef ddp_status (*ddp_reducer_update_fn)(void *arg, ddp_range range, bool counts);

/* What a step's communication took on this rank, in nanoseconds. */
typedef struct ddp_reducer_times {
    int64_t comm_ns;    /* sum over buckets: from all ranks' entry to completion */
    int64_t publish_ns; /* of that, of owned slices to everybody: after the last reduction */
    int64_t
        exposed_ns; /* spent waiting for communication after backward, or advancing it in between */
    int64_t update_ns; /* in the update callback */
    int64_t bytes;     /* of this rank's parts of the gradients' collectives; from collect only */
} ddp_reducer_times;

typedef struct ddp_reducer ddp_reducer;

/* Collective (allocates the flat buffers from the communicator). The caller owns *reducer_out;
 * table, comm and device are borrowed. Registers itself as the table's ready callback. */
DDP_CALL ddp_status ddp_reducer_create(const ddp_reducer_opts *opts, ddp_param_table *table,
                                       ddp_device *device, ddp_comm *comm,
                                       ddp_reducer **reducer_out);
/* Collective. NULL is fine. */
DDP_API void ddp_reducer_destroy(ddp_reducer *reducer);
/* The flat buffers; owned by the reducer. Backward writes to grads(); it may change from shard to
 * shard. The sums over all ranks come to sums(). */
DDP_API float *ddp_reducer_params(ddp_reducer *reducer);
DDP_API float *ddp_reducer_grads(ddp_reducer *reducer);
DDP_API float *ddp_reducer_sums(ddp_reducer *reducer);
/* NULL: nobody; then gradients are reduced but nothing is updated or published. Not during a step.
 */
DDP_API void ddp_reducer_on_update(ddp_reducer *reducer, ddp_reducer_update_fn fn, void *arg);
/* Where something may veto or change an update once all gradients are known: buckets are measured
 * where they would be updated, all of them; then decide, which is collective, may ask for another
 * round of measuring; then all are updated. */
typedef struct ddp_reducer_gate {
    ddp_reducer_update_fn measure;
    ddp_status (*decide)(void *arg, bool *again_out);
    void *arg;
} ddp_reducer_gate;
/* Copied; an empty one (the default) is none. Without effect while there is no update callback. Not
 * during a step. */
DDP_API void ddp_reducer_set_gate(ddp_reducer *reducer, ddp_reducer_gate gate);
DDP_API int ddp_reducer_bucket_count(const ddp_reducer *reducer);
/* Elements of a bucket. */
DDP_API ddp_range ddp_reducer_bucket(const ddp_reducer *reducer, int bucket);
/* Between steps: of a bucket, what this rank updated in the last step; before the first one all of
 * it, since all ranks are alike then. */
DDP_API ddp_range ddp_reducer_owned(const ddp_reducer *reducer, int bucket);
/* With `exact`: what is handed over in one piece, whoever owns it; in order, covering the flat
 * buffer. Functions of the parameters, the buckets' sizes and whether there is a lane. Else there
 * are none. */
DDP_API int ddp_reducer_block_count(const ddp_reducer *reducer);
DDP_API ddp_range ddp_reducer_block(const ddp_reducer *reducer, int block);

/* Before a step's first shard: the global batch that its sums are over. Needed with bf16 and fp16
 * only: what they send is a share of the mean. */
DDP_API void ddp_reducer_set_count(ddp_reducer *reducer, int64_t count);
/* Not during a step: the run goes on after so many steps. Hooks that keep something start anew. */
DDP_API void ddp_reducer_set_steps(ddp_reducer *reducer, int64_t steps);
/* Before the backward of this rank's shard number `shard` of the step, in order from 0. */
DDP_CALL ddp_status ddp_reducer_begin(ddp_reducer *reducer, int64_t shard);
/* A shard without samples: contributes zeros. Instead of backward, after begin. */
DDP_CALL ddp_status ddp_reducer_skip(ddp_reducer *reducer);
/* Collective, after the last shard's backward: starts what has not started, waits, updates,
 * publishes. */
DDP_CALL ddp_status ddp_reducer_finish(ddp_reducer *reducer, ddp_reducer_times *times_out);
/* Local, after finish or gather. Waits until the main stream has done all that it was given, where
 * it runs behind its caller, and with it the step's communication. Gives the times that were not
 * known before: those of a lane's works, with which finish() gives none. */
DDP_CALL ddp_status ddp_reducer_collect(ddp_reducer *reducer, ddp_reducer_times *times_out);
/* The same after all from the first begin to finish was replayed from a graph; comm_ns: of the
 * replay's works. */
DDP_CALL ddp_status ddp_reducer_collect_replay(ddp_reducer *reducer, int64_t comm_ns,
                                               ddp_reducer_times *times_out);
/* After either, with a lane: keeps the waits and updates of the main stream as spans. It had done
 * everything at end_ns. */
DDP_CALL ddp_status ddp_reducer_stream_spans(const ddp_reducer *reducer, int64_t end_ns);
/* The marks that these come from; NULL without a lane. */
DDP_API const ddp_marks *ddp_reducer_marks(const ddp_reducer *reducer);
/* Collective, instead of finish, without an update callback: afterwards every rank has the sums of
 * all gradients. */
DDP_CALL ddp_status ddp_reducer_gather(ddp_reducer *reducer, ddp_reducer_times *times_out);
/* Collective, between steps. In another buffer of the flat length: the ranges that this rank owned
 * in the last step go to everybody. */
DDP_CALL ddp_status ddp_reducer_publish(ddp_reducer *reducer, float *buffer);

/* Collective, without any reducer at hand: how long a bucket takes from its last gradient to its
 * sum, over its size, with these options on these ranks; and then until owned slices are
 * everybody's, where sums go on aside: else that is part of the first. For sizes up to `most`
 * bytes, or until half a second is spent. */
DDP_CALL ddp_status ddp_reducer_time_sums(const ddp_reducer_opts *opts, ddp_device *device,
                                          ddp_comm *comm, double most, ddp_cost_curve *curve_out,
                                          ddp_cost_curve *publish_out);

#ifdef __cplusplus
}
#endif
#endif
