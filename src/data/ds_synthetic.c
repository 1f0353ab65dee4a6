/* ds_synthetic.c - made-up samples of any shape, for benchmarks and tests.
 *
 * Sample i is a function of (seed, split, i). Its label is a uniform draw. Its pixels are
 *     1/2 noise + 3/8 pattern of the class + 1/8 brightness of the class      (within [0, 1])
 * so that every kind of model finds something to learn: fully connected ones the pattern, those
 * that average over the image the brightness. Noise and patterns are windows of one bank of uniform
 * draws, at a place drawn for the sample and at a place of the class. So a sample costs two reads
 * and a write per pixel, however large it is, and memory is one sample and a megabyte. Samples
 * whose windows overlap share noise at different pixels.
 *
 * The bank is each rank's own: it takes about as long to make as to share. Both splits use the same
 * patterns. fetch only reads: any number of threads. */
#include <limits.h>

#include "ddp/dataset.h"
#include "ddp/memory.h"
#include "ddp/rng.h"

/* Places at which a window can start. */
#define PLACES (INT64_C(1) << 18)
/* Odd, near PLACES divided by the golden ratio: classes get different places, far apart. */
#define CLASS_STRIDE    162013
#define MAX_SAMPLE_SIZE (INT64_C(1) << 28)

enum { STREAM_BANK = 0, STREAM_SPLIT = 1 };

typedef struct synthetic {
    float *bank; /* PLACES + pixels */
    int64_t pixels;
    int64_t classes;
    ddp_rng rng; /* block i: label and place of sample i */
} synthetic;

static ddp_status check_opts(const ddp_data_opts *opts, int64_t count)
{
    const ddp_shape *shape = &opts->input_shape;
    int64_t pixels = 1;
    if (shape->ndim != 3)
        return DDP_FAIL(DDP_ERR_USAGE,
                        "the synthetic data set's sample shape has %d dimensions, expected 3 "
                        "(channels, height, width)",
                        shape->ndim);
    for (int i = 0; i < shape->ndim; i++) {
        if (shape->dims[i] < 1 || shape->dims[i] > MAX_SAMPLE_SIZE / pixels)
            return DDP_FAIL(DDP_ERR_USAGE,
                            "the synthetic data set's sample shape is %lld x %lld x %lld, expected "
                            "1 to %lld elements",
                            (long long)shape->dims[0], (long long)shape->dims[1],
                            (long long)shape->dims[2], (long long)MAX_SAMPLE_SIZE);
        pixels *= shape->dims[i];
    }
    if (opts->synthetic_classes < 1 || opts->synthetic_classes > PLACES)
        return DDP_FAIL(DDP_ERR_USAGE,
                        "the synthetic data set has %lld classes, expected 1 to %lld",
                        (long long)opts->synthetic_classes, (long long)PLACES);
    if (count < 1)
        return DDP_FAIL(DDP_ERR_USAGE,
                        "the synthetic data set has %lld samples, expected at least 1",
                        (long long)count);
    return DDP_OK;
}

static void synthetic_close(void *self, ddp_comm *comm)
{
    synthetic *set = self;
    (void)comm;
    if (set == NULL)
        return;
    ddp_free(set->bank);
    ddp_free(set);
}

static ddp_status make(const ddp_data_opts *opts, ddp_split split, int64_t count,
                       synthetic **set_out)
{
    synthetic *set;
    DDP_TRY(check_opts(opts, count));
    DDP_TRY(DDP_ALLOC(set, 1));
    set->pixels = ddp_shape_count(&opts->input_shape);
    set->classes = opts->synthetic_classes;
    set->rng = ddp_rng_make(opts->seed, DDP_RNG_SYNTH, STREAM_SPLIT + (uint32_t)split);

    int64_t length = PLACES + set->pixels;
    ddp_status st = DDP_ALLOC(set->bank, (size_t)length);
    if (st != DDP_OK) {
        synthetic_close(set, NULL);
        return st;
    }
    ddp_rng rng = ddp_rng_make(opts->seed, DDP_RNG_SYNTH, STREAM_BANK);
    for (int64_t i = 0; i < length; i += 4) {
        uint32_t words[4];
        ddp_rng_block(&rng, (uint64_t)(i / 4), words);
        for (int64_t k = 0; k < 4 && i + k < length; k++)
            set->bank[i + k] = (float)(words[k] >> 8) * 0x1p-24f;
    }
    *set_out = set;
    return DDP_OK;
}

static ddp_status synthetic_open(const ddp_data_opts *opts, ddp_split split, ddp_comm *comm,
                                 ddp_dataset_info *info_out, void **self_out)
{
    synthetic *set = NULL;
    int64_t count = split == DDP_SPLIT_TRAIN ? opts->synthetic_train : opts->synthetic_test;
    ddp_status st = ddp_comm_agree(comm, make(opts, split, count, &set), "making synthetic data");
    if (st != DDP_OK) {
        synthetic_close(set, comm);
        return st;
    }
    *info_out = (ddp_dataset_info){
        .shape = opts->input_shape, .count = count, .classes = opts->synthetic_classes};
    *self_out = set;
    return DDP_OK;
}

static ddp_status synthetic_fetch(void *self, const int64_t *indices, int64_t n, float *dst,
                                  int32_t *labels)
{
    const synthetic *set = self;
    int64_t pixels = set->pixels;
    for (int64_t i = 0; i < n; i++) {
        uint32_t words[4];
        ddp_rng_block(&set->rng, (uint64_t)indices[i], words);
        int64_t label = (int64_t)(((uint64_t)words[0] * (uint64_t)set->classes) >> 32);
        const float *noise = set->bank + words[1] % PLACES;
        const float *pattern = set->bank + label * CLASS_STRIDE % PLACES;
        float brightness = 0.125f * ((float)label + 0.5f) / (float)set->classes;
        float *image = dst + i * pixels;
        for (int64_t p = 0; p < pixels; p++)
            image[p] = 0.5f * noise[p] + 0.375f * pattern[p] + brightness;
        labels[i] = (int32_t)label;
    }
    return DDP_OK;
}

static const ddp_dataset_ops synthetic_ops = {
    .name = "synthetic",
    .open = synthetic_open,
    .fetch = synthetic_fetch,
    .close = synthetic_close,
};

const ddp_dataset_ops *ddp_dataset_synthetic(void)
{
    return &synthetic_ops;
}
