/* transform_apply.c - the pixels of a transform.
 *
 * The output is made row by row: columns inside the resized box come from the image, copied where
 * the box keeps its size and interpolated where not, the others are 0; then the row is normalized.
 * An image that is taken as it is goes a plane at a time. Memory is the stack. Any thread. */
#include <math.h>
#include <string.h>

#include "data/transform_impl.h"

enum { TILE = 256 }; /* output columns whose places are worked out together */

static void normalize(const ddp_transform *t, int64_t channel, float *x, int64_t n)
{
    if (t->mean == NULL)
        return;
    float mean = t->mean[channel], deviation = t->deviation[channel];
    for (int64_t i = 0; i < n; i++)
        x[i] = (x[i] - mean) / deviation;
}

/* ---- copies ---- */

/* A division rounds exactly, as a product with 1/255 would not, and as vector code it beats a
 * table. */
static void scale_bytes(const uint8_t *restrict src, float *restrict dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = (float)src[i] / 255.0f;
}

/* n elements from `at` on, `step` apart. */
static void copy(const ddp_image *image, int64_t at, int64_t step, float *dst, int64_t n)
{
    if (image->bytes) {
        const uint8_t *src = (const uint8_t *)image->pixels + at;
        if (step == 1)
            scale_bytes(src, dst, n);
        else
            for (int64_t i = 0; i < n; i++)
                dst[i] = (float)src[i * step] / 255.0f;
        return;
    }
    const float *src = (const float *)image->pixels + at;
    if (step == 1)
        memcpy(dst, src, (size_t)n * sizeof *dst);
    else
        for (int64_t i = 0; i < n; i++)
            dst[i] = src[i * step];
}

/* ---- interpolation ---- */

/* Places along one side: element offsets of two neighbours and the weight of the second. */
typedef struct places {
    int64_t near[TILE], far[TILE];
    float weight[TILE];
} places;

/* One side of the box. */
typedef struct side {
    int64_t first, length, resized, stride;
} side;

/* Pixel centres are at halves, and beyond the outer ones there is their own value: torch's
 * interpolate(mode="bilinear", align_corners=False, antialias=False). */
static void find_place(const side *s, int64_t resized_at, int64_t *near, int64_t *far,
                       float *weight)
{
    double at = ((double)resized_at + 0.5) * (double)s->length / (double)s->resized - 0.5;
    if (at < 0)
        at = 0;
    int64_t low = (int64_t)at;
    int64_t high = low + 1 < s->length ? low + 1 : low;
    *weight = (float)(at - (double)low);
    *near = (s->first + low) * s->stride;
    *far = (s->first + high) * s->stride;
}

static void interpolate_bytes(const uint8_t *upper, const uint8_t *lower, float share,
                              const places *x, float *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float w = x->weight[i];
        float a = (1 - w) * (float)upper[x->near[i]] + w * (float)upper[x->far[i]];
        float b = (1 - w) * (float)lower[x->near[i]] + w * (float)lower[x->far[i]];
        dst[i] = ((1 - share) * a + share * b) / 255.0f;
    }
}

static void interpolate_floats(const float *upper, const float *lower, float share, const places *x,
                               float *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float w = x->weight[i];
        float a = (1 - w) * upper[x->near[i]] + w * upper[x->far[i]];
        float b = (1 - w) * lower[x->near[i]] + w * lower[x->far[i]];
        dst[i] = (1 - share) * a + share * b;
    }
}

/* ---- rows ---- */

/* What is being made. */
typedef struct job {
    const ddp_transform *t;
    const ddp_image *image;
    const ddp_transform_params *p;
    float *dst;
    int64_t height, width;
    int64_t begin, end; /* output columns inside the resized box */
} job;

/* Column of the resized box that output column x shows. */
static int64_t column(const job *j, int64_t x)
{
    return j->p->left + (j->p->flip ? j->width - 1 - x : x);
}

static void find_columns(job *j)
{
    int64_t begin = -j->p->left, end = j->p->resized_width - j->p->left;
    begin = begin < 0 ? 0 : begin;
    end = end > j->width ? j->width : end;
    j->begin = j->p->flip ? j->width - end : begin;
    j->end = j->p->flip ? j->width - begin : end;
}

/* Row y of a channel; its columns outside the box, or the whole row, are 0. Returns whether there
 * is something inside. */
static bool clear_outside(const job *j, int64_t y, float *row)
{
    int64_t resized_y = y + j->p->top;
    if (resized_y < 0 || resized_y >= j->p->resized_height || j->begin >= j->end) {
        memset(row, 0, (size_t)j->width * sizeof *row);
        return false;
    }
    memset(row, 0, (size_t)j->begin * sizeof *row);
    memset(row + j->end, 0, (size_t)(j->width - j->end) * sizeof *row);
    return true;
}

static void copy_box(const job *j)
{
    const ddp_image *image = j->image;
    const ddp_transform_params *p = j->p;
    int64_t step = p->flip ? -image->stride_x : image->stride_x;
    float *row = j->dst;
    for (int64_t c = 0; c < image->channels; c++)
        for (int64_t y = 0; y < j->height; y++, row += j->width) {
            if (clear_outside(j, y, row))
                copy(image,
                     c * image->stride_c + (p->box_top + p->top + y) * image->stride_y +
                         (p->box_left + column(j, j->begin)) * image->stride_x,
                     step, row + j->begin, j->end - j->begin);
            normalize(j->t, c, row, j->width);
        }
}

/* Columns [first, first + n) of every row. */
static void interpolate_tile(const job *j, const places *x, int64_t first, int64_t n)
{
    const ddp_image *image = j->image;
    const ddp_transform_params *p = j->p;
    const side rows = {p->box_top, p->box_height, p->resized_height, image->stride_y};
    for (int64_t y = 0; y < j->height; y++) {
        int64_t upper, lower, resized_y = y + p->top;
        float share;
        if (resized_y < 0 || resized_y >= p->resized_height)
            continue;
        find_place(&rows, resized_y, &upper, &lower, &share);
        for (int64_t c = 0; c < image->channels; c++) {
            float *dst = j->dst + (c * j->height + y) * j->width + first;
            upper += c > 0 ? image->stride_c : 0;
            lower += c > 0 ? image->stride_c : 0;
            if (image->bytes)
                interpolate_bytes((const uint8_t *)image->pixels + upper,
                                  (const uint8_t *)image->pixels + lower, share, x, dst, n);
            else
                interpolate_floats((const float *)image->pixels + upper,
                                   (const float *)image->pixels + lower, share, x, dst, n);
        }
    }
}

static void interpolate_box(const job *j)
{
    const ddp_transform_params *p = j->p;
    const side columns = {p->box_left, p->box_width, p->resized_width, j->image->stride_x};
    int64_t rows = j->image->channels * j->height;
    places x;
    for (int64_t r = 0; r < rows; r++)
        (void)clear_outside(j, r % j->height, j->dst + r * j->width);
    for (int64_t first = j->begin; first < j->end; first += TILE) {
        int64_t n = j->end - first < TILE ? j->end - first : TILE;
        for (int64_t i = 0; i < n; i++)
            find_place(&columns, column(j, first + i), &x.near[i], &x.far[i], &x.weight[i]);
        interpolate_tile(j, &x, first, n);
    }
    for (int64_t c = 0; c < j->image->channels; c++)
        normalize(j->t, c, j->dst + c * j->height * j->width, j->height * j->width);
}

/* ---- the image ---- */

/* The image as it is, with its rows one behind the other. */
static bool takes_planes(const job *j)
{
    const ddp_transform_params *p = j->p;
    return !p->flip && p->top == 0 && p->left == 0 && p->resized_height == j->height &&
           p->resized_width == j->width && j->image->stride_x == 1 &&
           j->image->stride_y == j->width;
}

static void copy_planes(const job *j)
{
    int64_t pixels = j->height * j->width;
    for (int64_t c = 0; c < j->image->channels; c++) {
        float *plane = j->dst + c * pixels;
        copy(j->image, c * j->image->stride_c + j->p->box_top * j->image->stride_y + j->p->box_left,
             1, plane, pixels);
        normalize(j->t, c, plane, pixels);
    }
}

static void cut_out(const job *j)
{
    const ddp_transform_params *p = j->p;
    if (p->cut_left >= p->cut_right)
        return;
    for (int64_t c = 0; c < j->image->channels; c++)
        for (int64_t y = p->cut_top; y < p->cut_bottom; y++)
            memset(j->dst + (c * j->height + y) * j->width + p->cut_left, 0,
                   (size_t)(p->cut_right - p->cut_left) * sizeof *j->dst);
}

void ddp_transform_apply(const ddp_transform *transform, const ddp_image *image,
                         const ddp_transform_params *params, float *dst)
{
    job j = {.t = transform,
             .image = image,
             .p = params,
             .dst = dst,
             .height = transform->dst.dims[1],
             .width = transform->dst.dims[2]};
    bool resized =
        params->resized_height != params->box_height || params->resized_width != params->box_width;
    find_columns(&j);
    if (resized)
        interpolate_box(&j);
    else if (takes_planes(&j))
        copy_planes(&j);
    else
        copy_box(&j);
    cut_out(&j);
}
