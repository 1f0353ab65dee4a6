/* loader.h - worker threads that prepare the batches of a rank's logical shards ahead of the step.
 *
 * The loader walks (epoch, step, shard) in the order in which the trainer asks for it, from a start
 * given once. Samples do not depend on the number of workers. One consumer thread. */
#ifndef DDP_LOADER_H
#define DDP_LOADER_H

#include "ddp/dataset.h"
#include "ddp/device.h"
#include "ddp/sampler.h"
#include "ddp/transform.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ddp_loader_opts {
    ddp_sampler sampler;
    int64_t first_shard, shard_count; /* this rank's run of logical shards */
    int workers;                      /* 0: prepare in the caller */
    int ring;                         /* ready batches to keep, at least 2 */
    const ddp_transform *transform;   /* borrowed; NULL: samples as the data set fetches them */
    double mixup;                     /* alpha of its weights; 0: none */
} ddp_loader_opts;

typedef struct ddp_batch {
    int64_t epoch, step, shard;
    int64_t count;             /* samples, may be 0 */
    const float *inputs;       /* [count][c][h][w], device memory, like all but indices */
    const int32_t *labels;     /* [count] */
    const int64_t *indices;    /* of the samples; host memory */
    const int64_t *sample_ids; /* the same for the device */
    /* With mixup, else NULL: inputs are mix * the sample's + (1 - mix) * its partner's, and the
     * partner's label counts with 1 - mix. [count] each. */
    const int32_t *labels2;
    const float *mix;
    int64_t wait_ns; /* how long the consumer waited for it */
} ddp_batch;

typedef struct ddp_loader ddp_loader;

/* The caller owns *loader_out. dataset and device are borrowed and outlive it. */
DDP_CALL ddp_status ddp_loader_create(const ddp_loader_opts *opts, ddp_dataset *dataset,
                                      ddp_device *device, ddp_loader **loader_out);
/* Joins the workers. */
DDP_API void ddp_loader_destroy(ddp_loader *loader);
/* Starts at (epoch, step): the next batch is that step's first shard of this rank. Then batches
 * follow shard by shard, step by step, epoch by epoch without end. */
DDP_CALL ddp_status ddp_loader_seek(ddp_loader *loader, int64_t epoch, int64_t step);
/* *batch_out points into the ring and is valid until the next call. */
DDP_CALL ddp_status ddp_loader_next(ddp_loader *loader, const ddp_batch **batch_out);
/* Where device memory is not the host's: copies, on the main stream, the device's part of the batch
 * that the last call of next gave to where the loader keeps this rank's batch number `shard` of a
 * step: always the same place, for graphs. *held_out: the batch there, in device memory until the
 * next call for that number; its indices are next's. */
DDP_CALL ddp_status ddp_loader_hold(ddp_loader *loader, int64_t shard, ddp_batch *held_out);

#ifdef __cplusplus
}
#endif
#endif
