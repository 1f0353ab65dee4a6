/* transform.h - from an image of a data set to a model's input: augmentation in training, resizing
 * and cropping in evaluation, normalization in both.
 *
 * An image is brought to size in one of three ways, all bilinear without antialiasing:
 *   - training with "rrc": a random box of it is resized to the output's size
 *   - training with "crop": it is resized as in evaluation, zeros are put around it, and a window
 *     of the output's size is taken at a random place
 *   - otherwise: its shorter side is resized, and the window is the centre
 * Then come the flip, the normalization and the cutout, whatever their order in the list; so the
 * zeros around an image are normalized like black pixels, and a cutout is 0 (the mean).
 *
 * The options mean what their counterparts in torchvision.transforms mean: RandomResizedCrop,
 * RandomCrop(padding), RandomHorizontalFlip, Resize(antialias=False), CenterCrop, Normalize;
 * rounding included. cutout is DeVries and Taylor's (arXiv:1708.04552).
 *
 * What is drawn is a function of (seed, epoch, index of the sample in its data set): rank, worker
 * and place in the batch do not enter. Any thread may use a transform. Local. */
#ifndef DDP_TRANSFORM_H
#define DDP_TRANSFORM_H

#include "ddp/dataset.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An --augment list in numbers. */
typedef struct ddp_augment {
    bool given;        /* false: nothing is said, the data set decides */
    bool crop;         /* window at a random place */
    int64_t padding;   /* of the crop */
    bool resized_crop; /* random box */
    int64_t size;      /* of the box when resized; 0: the input size */
    bool flip;         /* left to right, every other time */
    int64_t cutout;    /* side of the square; 0: none */
} ddp_augment;

/* "crop:4,flip,cutout:16": names of crop[:PADDING], rrc[:SIZE], flip, cutout[:SIDE], or none. NULL
 * or "": nothing is said. DDP_ERR_USAGE names --augment. */
DDP_CALL ddp_status ddp_augment_parse(const char *text, ddp_augment *augment_out);

typedef struct ddp_transform_opts {
    const char *augment; /* see ddp_augment_parse() */
    int64_t input_size;  /* side of the square output; 0: see ddp_transform_create() */
    int64_t eval_resize; /* length of the shorter side before the crop; 0: likewise */
    int64_t eval_crop;   /* another way to say input_size, without resizing */
    uint64_t seed;
    const float *mean, *deviation; /* per channel, copied; NULL: none */
    int channels;                  /* entries of mean and deviation */
} ddp_transform_opts;

typedef struct ddp_transform ddp_transform;

/* For the samples of data sets of this shape; the caller owns *transform_out.
 *
 * Unless an option says the size, it is the set's own, and 224 where images differ in size. For
 * evaluation an image that has not that size gets its shorter side resized to 8/7 of it (256 for
 * 224) where training uses rrc, else to it. Where images differ in size, training uses rrc and
 * flip unless --augment says something else. DDP_ERR_USAGE names the options that contradict each
 * other. */
DDP_CALL ddp_status ddp_transform_create(const ddp_transform_opts *opts,
                                         const ddp_dataset_info *info, bool training,
                                         ddp_transform **transform_out);
DDP_API void ddp_transform_destroy(ddp_transform *transform);
/* "rrc to 224 x 224, flip": what is done beside normalization, for people; "" if nothing. */
DDP_API const char *ddp_transform_describe(const ddp_transform *transform, char *text,
                                           size_t text_bytes);
/* Of the output: [c][h][w]. */
DDP_API const ddp_shape *ddp_transform_shape(const ddp_transform *transform);

/* What is done to one image: the box is resized, the window (of the output's size) is taken from
 * the result; where it reaches beyond, there are zeros. */
typedef struct ddp_transform_params {
    int64_t box_top, box_left, box_height, box_width;
    int64_t resized_height, resized_width;
    int64_t top, left; /* of the window */
    bool flip;
    int64_t cut_top, cut_bottom, cut_left, cut_right; /* in the output; empty: no cutout */
} ddp_transform_params;

/* Whose draws. */
typedef struct ddp_transform_key {
    int64_t epoch, sample;
} ddp_transform_key;

/* Pure. */
DDP_API void ddp_transform_draw(const ddp_transform *transform, ddp_transform_key key,
                                int64_t height, int64_t width, ddp_transform_params *params_out);
/* Writes [c][h][w]. */
DDP_API void ddp_transform_apply(const ddp_transform *transform, const ddp_image *image,
                                 const ddp_transform_params *params, float *dst);

/* Where transformed samples go. */
typedef struct ddp_transform_dst {
    float *inputs; /* [n][c][h][w] */
    int32_t *labels;
    float *scratch; /* ddp_transform_scratch_count() elements of this thread */
} ddp_transform_dst;

/* 0 for most data sets. */
DDP_API size_t ddp_transform_scratch_count(const ddp_transform *transform,
                                           const ddp_dataset *dataset);
/* Fetches and transforms n samples. A NULL transform leaves them as the set fetches them. Allocates
 * nothing. */
DDP_CALL ddp_status ddp_transform_fetch(const ddp_transform *transform, ddp_dataset *dataset,
                                        int64_t epoch, const int64_t *indices, int64_t n,
                                        const ddp_transform_dst *dst);

/* ---- mixup (Zhang et al., arXiv:1710.09412) ---- */

/* Pure. The weight of a sample's own image and label: a Beta(alpha, alpha) draw for each sample. */
DDP_API float ddp_mixup_weight(uint64_t seed, double alpha, ddp_transform_key key);
/* Pure. How many positions further on in the global batch, of `count` samples, a sample's partner
 * is (from the end on it goes on at the beginning): the same for all samples of a step, from 1 to
 * count - 1, or 0 for a batch of one. */
DDP_API int64_t ddp_mixup_shift(uint64_t seed, int64_t epoch, int64_t step, int64_t count);

#ifdef __cplusplus
}
#endif
#endif
