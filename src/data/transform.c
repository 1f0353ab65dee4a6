/* transform.c - what a transform does with a data set's images: sizes, defaults, fetching.
 *
 * Draws are in transform_draw.c, pixels in transform_apply.c. */
#include "ddp/transform.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "data/dataset_impl.h"
#include "data/transform_impl.h"
#include "ddp/memory.h"

/* The size and the shorter side before the centre crop that ImageNet's models are evaluated with:
 * 224 and 256. */
enum { VARIABLE_SIZE = 224, MARGIN_ABOVE = 8, MARGIN_BELOW = 7 };

/* ---- creation ---- */

static ddp_status check_normalization(const ddp_transform_opts *opts, const ddp_dataset_info *info)
{
    if (opts->mean == NULL && opts->deviation == NULL)
        return DDP_OK;
    if (opts->mean == NULL || opts->deviation == NULL || opts->channels != info->shape.dims[0])
        return DDP_FAIL(DDP_ERR_USAGE,
                        "normalization needs a mean and a deviation for each channel: given for %d "
                        "channels, the data set has %lld",
                        opts->channels, (long long)info->shape.dims[0]);
    for (int c = 0; c < opts->channels; c++)
        if (!isfinite(opts->mean[c]) || !isfinite(opts->deviation[c]) || opts->deviation[c] <= 0)
            return DDP_FAIL(DDP_ERR_USAGE,
                            "normalization of channel %d: mean %g, deviation %g; expected finite "
                            "numbers and a deviation above 0",
                            c, (double)opts->mean[c], (double)opts->deviation[c]);
    return DDP_OK;
}

/* The options that say the output's size must say the same. 0: none says one. */
static ddp_status said_size(const ddp_transform_opts *opts, const ddp_augment *augment,
                            int64_t *size_out)
{
    static const char *const names[] = {"--input-size", "--augment rrc", "--eval-crop"};
    const int64_t sizes[] = {opts->input_size, augment->size, opts->eval_crop};
    int first = -1;
    *size_out = 0;
    for (int i = 0; i < 3; i++) {
        if (sizes[i] == 0)
            continue;
        if (first >= 0 && sizes[i] != *size_out)
            return DDP_FAIL(DDP_ERR_USAGE,
                            "option %s: found %lld, expected %lld as with %s: training and "
                            "evaluation give the model images of one size",
                            names[i], (long long)sizes[i], (long long)*size_out, names[first]);
        if (first < 0)
            first = i;
        *size_out = sizes[i];
    }
    return DDP_OK;
}

static ddp_status decide_size(ddp_transform *t, const ddp_transform_opts *opts)
{
    int64_t size;
    DDP_TRY(said_size(opts, &t->augment, &size));
    t->dst = t->src;
    if (size == 0 && t->variable)
        size = VARIABLE_SIZE;
    if (size > 0 && t->src.ndim == 3)
        t->dst.dims[1] = t->dst.dims[2] = size;
    return DDP_OK;
}

static int64_t shorter(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* After decide_size(). */
static ddp_status decide_resize(ddp_transform *t, const ddp_transform_opts *opts)
{
    const int64_t *src = t->src.dims, *dst = t->dst.dims;
    int64_t longer = dst[1] > dst[2] ? dst[1] : dst[2];
    bool cut = opts->eval_crop > 0 && !t->variable && shorter(src[1], src[2]) >= longer;

    t->resize = opts->eval_resize;
    if (t->resize == 0 && !cut && !ddp_shape_equal(&t->src, &t->dst)) {
        t->resize = longer;
        if (t->augment.resized_crop || t->variable)
            t->resize = (longer * MARGIN_ABOVE + MARGIN_BELOW / 2) / MARGIN_BELOW;
    }
    if (t->resize > 0 && t->resize < longer)
        return DDP_FAIL(
            DDP_ERR_USAGE,
            "option --eval-resize: found %lld, expected at least the input's size, %lld",
            (long long)t->resize, (long long)longer);
    /* Most often it has that size already. */
    if (!t->variable && shorter(src[1], src[2]) == t->resize)
        t->resize = 0;
    return DDP_OK;
}

static ddp_status decide(ddp_transform *t, const ddp_transform_opts *opts)
{
    DDP_TRY(ddp_augment_parse(opts->augment, &t->augment));
    if (!t->augment.given && t->variable)
        t->augment.resized_crop = t->augment.flip = true;
    const ddp_augment *a = &t->augment;
    bool shapes = opts->input_size > 0 || opts->eval_resize > 0 || opts->eval_crop > 0;
    bool changes = a->crop || a->resized_crop || a->flip || a->cutout > 0;
    DDP_TRY(decide_size(t, opts));
    t->pointwise = true;
    if (!shapes && !changes && !t->variable)
        return DDP_OK;
    if (t->src.ndim != 3)
        return DDP_FAIL(
            DDP_ERR_USAGE,
            "options --augment, --input-size, --eval-resize and --eval-crop: found with "
            "samples of %d dimensions, expected images of three",
            t->src.ndim);
    DDP_TRY(decide_resize(t, opts));
    t->pointwise = !(t->training && changes) && t->resize == 0 && ddp_shape_equal(&t->src, &t->dst);
    return DDP_OK;
}

static ddp_status copy_normalization(ddp_transform *t, const ddp_transform_opts *opts)
{
    size_t channels = (size_t)opts->channels;
    if (opts->mean == NULL)
        return DDP_OK;
    DDP_TRY(DDP_ALLOC(t->mean, channels));
    DDP_TRY(DDP_ALLOC(t->deviation, channels));
    memcpy(t->mean, opts->mean, channels * sizeof(float));
    memcpy(t->deviation, opts->deviation, channels * sizeof(float));
    return DDP_OK;
}

ddp_status ddp_transform_create(const ddp_transform_opts *opts, const ddp_dataset_info *info,
                                bool training, ddp_transform **transform_out)
{
    ddp_transform *t;
    DDP_TRY(check_normalization(opts, info));
    DDP_TRY(DDP_ALLOC(t, 1));
    t->training = training;
    t->src = info->shape;
    t->variable = info->variable;
    t->seed = opts->seed;
    ddp_status st = decide(t, opts);
    if (st == DDP_OK)
        st = copy_normalization(t, opts);
    if (st != DDP_OK) {
        ddp_transform_destroy(t);
        return st;
    }
    *transform_out = t;
    return DDP_OK;
}

void ddp_transform_destroy(ddp_transform *transform)
{
    if (transform == NULL)
        return;
    ddp_free(transform->mean);
    ddp_free(transform->deviation);
    ddp_free(transform);
}

const char *ddp_transform_describe(const ddp_transform *transform, char *text, size_t text_bytes)
{
    const ddp_augment none = {0}, *a = transform->training ? &transform->augment : &none;
    const int64_t *dims = transform->dst.dims;
    char start[64] = "", cutout[32] = "";
    if (text_bytes > 0)
        text[0] = 0;
    if (transform->pointwise)
        return text;
    if (transform->resize > 0 && !a->resized_crop)
        snprintf(start, sizeof start, "shorter side to %lld, ", (long long)transform->resize);
    if (a->crop && a->padding > 0)
        snprintf(start + strlen(start), sizeof start - strlen(start), "zeros %lld wide, ",
                 (long long)a->padding);
    if (a->cutout > 0)
        snprintf(cutout, sizeof cutout, ", cutout %lld", (long long)a->cutout);
    snprintf(text, text_bytes, "%s%s %lld x %lld%s%s", start,
             a->resized_crop ? "rrc to"
             : a->crop       ? "random crop of"
                             : "centre of",
             (long long)dims[1], (long long)dims[2], a->flip ? ", flip" : "", cutout);
    return text;
}

const ddp_shape *ddp_transform_shape(const ddp_transform *transform)
{
    return &transform->dst;
}

/* ---- fetching ---- */

/* Sets that lend nothing, and samples that are no images, go through fetch(). */
static bool lends(const ddp_transform *t, const ddp_dataset *dataset)
{
    return ddp_dataset_has_image(dataset) && t->src.ndim == 3;
}

size_t ddp_transform_scratch_count(const ddp_transform *transform, const ddp_dataset *dataset)
{
    if (transform == NULL || transform->pointwise || lends(transform, dataset))
        return 0;
    return (size_t)ddp_shape_count(&transform->src);
}

static ddp_status check_image(const ddp_transform *t, int64_t index, const ddp_image *image)
{
    const int64_t *want = t->src.dims;
    bool same = t->variable ? image->height > 0 && image->width > 0
                            : image->height == want[1] && image->width == want[2];
    if (same && image->channels == want[0])
        return DDP_OK;
    return DDP_FAIL(DDP_ERR_SHAPE,
                    "sample %lld of the data set is %lld x %lld x %lld, expected %lld x %lld x "
                    "%lld%s",
                    (long long)index, (long long)image->channels, (long long)image->height,
                    (long long)image->width, (long long)want[0], (long long)want[1],
                    (long long)want[2], t->variable ? " with 0 for any size" : "");
}

static void transform_one(const ddp_transform *t, ddp_transform_key key, const ddp_image *image,
                          float *dst)
{
    ddp_transform_params params;
    ddp_transform_draw(t, key, image->height, image->width, &params);
    ddp_transform_apply(t, image, &params, dst);
}

/* One sample through the scratch image. */
static ddp_status fetch_one(const ddp_transform *t, ddp_dataset *dataset, ddp_transform_key key,
                            const ddp_transform_dst *dst)
{
    const int64_t *dims = t->src.dims;
    DDP_TRY(ddp_dataset_fetch(dataset, &key.sample, 1, dst->scratch, dst->labels));
    ddp_image image = {.pixels = dst->scratch,
                       .channels = dims[0],
                       .height = dims[1],
                       .width = dims[2],
                       .stride_c = dims[1] * dims[2],
                       .stride_y = dims[2],
                       .stride_x = 1};
    transform_one(t, key, &image, dst->inputs);
    return DDP_OK;
}

static ddp_status borrow_one(const ddp_transform *t, ddp_dataset *dataset, ddp_transform_key key,
                             const ddp_transform_dst *dst)
{
    ddp_image image;
    DDP_TRY(ddp_dataset_image(dataset, key.sample, &image));
    DDP_TRY(check_image(t, key.sample, &image));
    transform_one(t, key, &image, dst->inputs);
    *dst->labels = image.label;
    return DDP_OK;
}

static void normalize(const ddp_transform *t, float *inputs, int64_t n)
{
    int64_t channels = t->src.dims[0], pixels = ddp_shape_count(&t->src) / channels;
    for (int64_t i = 0; i < n * channels; i++) {
        float mean = t->mean[i % channels], deviation = t->deviation[i % channels];
        float *plane = inputs + i * pixels;
        for (int64_t p = 0; p < pixels; p++)
            plane[p] = (plane[p] - mean) / deviation;
    }
}

ddp_status ddp_transform_fetch(const ddp_transform *transform, ddp_dataset *dataset, int64_t epoch,
                               const int64_t *indices, int64_t n, const ddp_transform_dst *dst)
{
    if (transform == NULL)
        return ddp_dataset_fetch(dataset, indices, n, dst->inputs, dst->labels);
    bool borrows = lends(transform, dataset);
    /* A fetch of many at once beats a call for each. */
    if (transform->pointwise && (!borrows || dataset->ops->fetch != NULL)) {
        DDP_TRY(ddp_dataset_fetch(dataset, indices, n, dst->inputs, dst->labels));
        if (transform->mean != NULL)
            normalize(transform, dst->inputs, n);
        return DDP_OK;
    }
    int64_t pixels = ddp_shape_count(&transform->dst);
    for (int64_t i = 0; i < n; i++) {
        ddp_transform_key key = {epoch, indices[i]};
        ddp_transform_dst one = {dst->inputs + i * pixels, dst->labels + i, dst->scratch};
        DDP_TRY(borrows ? borrow_one(transform, dataset, key, &one)
                        : fetch_one(transform, dataset, key, &one));
    }
    return DDP_OK;
}
