/* batch_kernels.c - the passes of batch_kernels.h, as register tiles of 16-wide vectors.
 *
 * Each pass keeps a tile of sums in registers (at most 27 of the 32) and streams the other operands
 * through it. Tiles of several sizes are made from one always-inlined body with constant sizes, so
 * that the compiler unrolls it completely; what a size does not divide goes to smaller tiles.
 * No state; any thread. */
#include "device/cpu/batch_kernels.h"

#include <string.h>

#define LANES        DDPI_BATCH_LANES
#define MAX_COLS     9 /* of a tile */
#define MAX_KERNEL   5 /* columns */
#define FORWARD_OCS  3 /* out channels of a forward tile */
#define DATA_ICS     2 /* in channels of a backward data tile */
#define WEIGHTS_OCS  5 /* out channels of a backward weights tile */
#define WEIGHTS_SUMS 32

#if defined(__x86_64__)
#include <immintrin.h>
#define TARGET __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,fma")))
typedef __m512 vec;
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define SPLAT(x)     _mm512_set1_ps(x)
#else
#define TARGET
typedef float vec __attribute__((vector_size(4 * LANES)));
#define FMA(a, b, c) ((a) * (b) + (c))
#define SPLAT(x)     ((vec){0} + (x))
#endif
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));

#define INLINE static inline __attribute__((always_inline)) TARGET

/* TILE(args, cols) with cols a constant, for a width of 1 to MAX_COLS. */
#define WITH_COLS(cols, TILE, ...)                                                                 \
    switch (cols) {                                                                                \
    case 9:                                                                                        \
        TILE(__VA_ARGS__, 9);                                                                      \
        break;                                                                                     \
    case 8:                                                                                        \
        TILE(__VA_ARGS__, 8);                                                                      \
        break;                                                                                     \
    case 7:                                                                                        \
        TILE(__VA_ARGS__, 7);                                                                      \
        break;                                                                                     \
    case 6:                                                                                        \
        TILE(__VA_ARGS__, 6);                                                                      \
        break;                                                                                     \
    case 5:                                                                                        \
        TILE(__VA_ARGS__, 5);                                                                      \
        break;                                                                                     \
    case 4:                                                                                        \
        TILE(__VA_ARGS__, 4);                                                                      \
        break;                                                                                     \
    case 3:                                                                                        \
        TILE(__VA_ARGS__, 3);                                                                      \
        break;                                                                                     \
    case 2:                                                                                        \
        TILE(__VA_ARGS__, 2);                                                                      \
        break;                                                                                     \
    default:                                                                                       \
        TILE(__VA_ARGS__, 1);                                                                      \
        break;                                                                                     \
    }

bool ddpi_batch_available(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
#else
    return false;
#endif
}

bool ddpi_batch_conv_supports(const ddpi_batch_conv *shape)
{
    return shape->kernel_w == 1 || shape->kernel_w == 3 || shape->kernel_w == 5;
}

/* One pass over one block. Pointers that the pass does not use are NULL. */
typedef struct block_args {
    const ddpi_batch_conv *shape;
    const float *src, *weights, *bias;
    float *dst, *diff_src, *diff_dst, *diff_weights;
    ivec lanes; /* -1 where there is an image */
} block_args;

/* Columns [lo, hi) of a row, cut into near-equal tiles. */
static int64_t tile_start(int64_t width, int64_t tile)
{
    const int64_t tiles = (width + MAX_COLS - 1) / MAX_COLS;
    return width * tile / tiles;
}

/* ---- forward: out channels x columns of one output row ---- */

INLINE void forward_store(const block_args *args, const vec *acc, vec *out, int cols)
{
#pragma GCC unroll 16
    for (int t = 0; t < cols; t++) {
        ivec v = (ivec)acc[t];
        if (args->shape->relu)
            v &= (ivec)(acc[t] > SPLAT(0));
        out[t] = (vec)(v & args->lanes);
    }
}

INLINE void forward_tile(const block_args *args, int64_t oc0, int64_t oh, int64_t ow0,
                         const int ocs, const int cols)
{
    const ddpi_batch_conv *p = args->shape;
    const int64_t step = p->in_c * p->kernel_h * p->kernel_w;
    const float *w = args->weights + oc0 * step;
    vec acc[FORWARD_OCS][MAX_COLS];
#pragma GCC unroll 16
    for (int o = 0; o < ocs; o++)
#pragma GCC unroll 16
        for (int t = 0; t < cols; t++)
            acc[o][t] = SPLAT(args->bias != NULL ? args->bias[oc0 + o] : 0.0f);
    for (int64_t ic = 0; ic < p->in_c; ic++)
        for (int64_t kh = 0; kh < p->kernel_h; kh++) {
            const vec *row =
                (const vec *)(const void *)args->src + ((ic * p->in_h + oh + kh) * p->in_w + ow0);
            for (int64_t kw = 0; kw < p->kernel_w; kw++, row++, w++) {
                vec weight[FORWARD_OCS];
#pragma GCC unroll 16
                for (int o = 0; o < ocs; o++)
                    weight[o] = SPLAT(w[o * step]);
#pragma GCC unroll 16
                for (int t = 0; t < cols; t++) {
                    const vec s = row[t];
#pragma GCC unroll 16
                    for (int o = 0; o < ocs; o++)
                        acc[o][t] = FMA(s, weight[o], acc[o][t]);
                }
            }
        }
#pragma GCC unroll 16
    for (int o = 0; o < ocs; o++)
        forward_store(args, acc[o],
                      (vec *)(void *)args->dst + (((oc0 + o) * p->out_h + oh) * p->out_w + ow0),
                      cols);
}

INLINE void forward_row(const block_args *args, int64_t oc0, int64_t oh, const int ocs)
{
    const int64_t width = args->shape->out_w;
    int64_t ow = 0;
    for (int64_t tile = 1; ow < width; tile++) {
        const int64_t next = tile_start(width, tile);
        WITH_COLS(next - ow, forward_tile, args, oc0, oh, ow, ocs)
        ow = next;
    }
}

TARGET static void forward_rows3(const block_args *args, int64_t oc)
{
    for (int64_t oh = 0; oh < args->shape->out_h; oh++)
        forward_row(args, oc, oh, 3);
}

TARGET static void forward_rows2(const block_args *args, int64_t oc)
{
    for (int64_t oh = 0; oh < args->shape->out_h; oh++)
        forward_row(args, oc, oh, 2);
}

TARGET static void forward_rows1(const block_args *args, int64_t oc)
{
    for (int64_t oh = 0; oh < args->shape->out_h; oh++)
        forward_row(args, oc, oh, 1);
}

TARGET void ddpi_batch_conv_forward(const ddpi_batch_conv *shape, const float *src,
                                    const float *weights, const float *bias, float *dst, int lanes)
{
    block_args args = {.shape = shape, .src = src, .weights = weights, .bias = bias, .dst = dst};
    int64_t oc = 0;
    for (int lane = 0; lane < LANES; lane++)
        args.lanes[lane] = lane < lanes ? -1 : 0;
    for (; oc + FORWARD_OCS <= shape->out_c; oc += FORWARD_OCS)
        forward_rows3(&args, oc);
    if (shape->out_c - oc == 2)
        forward_rows2(&args, oc);
    else if (shape->out_c - oc == 1)
        forward_rows1(&args, oc);
}

/* ---- backward data: each gradient column is spread over the columns it came from ---- */

/* Adds to columns [ow0, ow0 + cols + kernel - 1) of a row of diff_src. */
INLINE void data_tile(const block_args *args, int64_t ic0, int64_t ih, int64_t ow0, const int ics,
                      const int kernel, const int cols)
{
    const ddpi_batch_conv *p = args->shape;
    const int64_t taps = p->kernel_h * kernel, oc_step = p->in_c * taps;
    const int64_t kh_lo = ih - p->out_h + 1 > 0 ? ih - p->out_h + 1 : 0;
    const int64_t kh_hi = ih + 1 < p->kernel_h ? ih + 1 : p->kernel_h;
    vec acc[DATA_ICS][MAX_COLS + MAX_KERNEL - 1];
    vec *out = (vec *)(void *)args->diff_src + ((ic0 * p->in_h + ih) * p->in_w + ow0);
    const int64_t plane = p->in_h * p->in_w;
#pragma GCC unroll 16
    for (int i = 0; i < ics; i++)
#pragma GCC unroll 16
        for (int t = 0; t < cols + kernel - 1; t++)
            acc[i][t] = out[i * plane + t];
    for (int64_t oc = 0; oc < p->out_c; oc++)
        for (int64_t kh = kh_lo; kh < kh_hi; kh++) {
            const vec *row = (const vec *)(const void *)args->diff_dst +
                             ((oc * p->out_h + ih - kh) * p->out_w + ow0);
            const float *w = args->weights + oc * oc_step + ic0 * taps + kh * kernel;
#pragma GCC unroll 16
            for (int t = 0; t < cols; t++) {
                const vec d = row[t];
#pragma GCC unroll 16
                for (int i = 0; i < ics; i++)
#pragma GCC unroll 16
                    for (int kw = 0; kw < kernel; kw++)
                        acc[i][t + kw] = FMA(d, SPLAT(w[i * taps + kw]), acc[i][t + kw]);
            }
        }
#pragma GCC unroll 16
    for (int i = 0; i < ics; i++)
#pragma GCC unroll 16
        for (int t = 0; t < cols + kernel - 1; t++)
            out[i * plane + t] = acc[i][t];
}

INLINE void data_rows(const block_args *args, int64_t ic0, const int ics, const int kernel)
{
    const int64_t width = args->shape->out_w;
    for (int64_t ih = 0; ih < args->shape->in_h; ih++) {
        int64_t ow = 0;
        for (int64_t tile = 1; ow < width; tile++) {
            const int64_t next = tile_start(width, tile);
            WITH_COLS(next - ow, data_tile, args, ic0, ih, ow, ics, kernel)
            ow = next;
        }
    }
}

#define DATA_KERNEL(KERNEL)                                                                        \
    TARGET static void data_kernel##KERNEL(const block_args *args)                                 \
    {                                                                                              \
        int64_t ic = 0;                                                                            \
        for (; ic + DATA_ICS <= args->shape->in_c; ic += DATA_ICS)                                 \
            data_rows(args, ic, DATA_ICS, KERNEL);                                                 \
        if (ic < args->shape->in_c)                                                                \
            data_rows(args, ic, 1, KERNEL);                                                        \
    }
DATA_KERNEL(1)
DATA_KERNEL(3)
DATA_KERNEL(5)

void ddpi_batch_conv_backward_data(const ddpi_batch_conv *shape, const float *diff_dst,
                                   const float *weights, float *diff_src)
{
    const block_args args = {
        .shape = shape, .diff_dst = (float *)diff_dst, .weights = weights, .diff_src = diff_src};
    memset(diff_src, 0,
           (size_t)(shape->in_c * shape->in_h * shape->in_w) * LANES * sizeof *diff_src);
    if (shape->kernel_w == 5)
        data_kernel5(&args);
    else if (shape->kernel_w == 3)
        data_kernel3(&args);
    else
        data_kernel1(&args);
}

/* ---- backward weights: out channels x kernel columns, summed over all pixels ---- */

/* sums[i] = the sum of the lanes of v[i], for 16 vectors: a transposition that adds as it goes. */
INLINE void lane_sums(vec *v, float *sums)
{
#pragma GCC unroll 16
    for (int i = 0; i < 8; i++)
        v[i] = __builtin_shufflevector(v[i], v[i + 8], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20,
                                       21, 22, 23) +
               __builtin_shufflevector(v[i], v[i + 8], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27,
                                       28, 29, 30, 31);
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++)
        v[i] = __builtin_shufflevector(v[i], v[i + 4], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24,
                                       25, 26, 27) +
               __builtin_shufflevector(v[i], v[i + 4], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15,
                                       28, 29, 30, 31);
#pragma GCC unroll 16
    for (int i = 0; i < 2; i++)
        v[i] = __builtin_shufflevector(v[i], v[i + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12,
                                       13, 28, 29) +
               __builtin_shufflevector(v[i], v[i + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27,
                                       14, 15, 30, 31);
    const vec all = __builtin_shufflevector(v[0], v[1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26,
                                            12, 28, 14, 30) +
                    __builtin_shufflevector(v[0], v[1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27,
                                            13, 29, 15, 31);
    memcpy(sums, &all, sizeof all);
}

INLINE void weights_tile(const block_args *args, int64_t oc0, int64_t ic, int64_t kh, const int ocs,
                         const int kernel)
{
    const ddpi_batch_conv *p = args->shape;
    const int64_t taps = p->kernel_h * kernel, oc_step = p->in_c * taps;
    const int64_t plane = p->out_h * p->out_w;
    vec acc[WEIGHTS_SUMS] = {{0}};
    for (int64_t oh = 0; oh < p->out_h; oh++) {
        const vec *s = (const vec *)(const void *)args->src + (ic * p->in_h + oh + kh) * p->in_w;
        const vec *d = (const vec *)(const void *)args->diff_dst + (oc0 * p->out_h + oh) * p->out_w;
        for (int64_t ow = 0; ow < p->out_w; ow++, s++, d++) {
#pragma GCC unroll 16
            for (int kw = 0; kw < kernel; kw++) {
#pragma GCC unroll 16
                for (int o = 0; o < ocs; o++)
                    acc[o * kernel + kw] = FMA(d[o * plane], s[kw], acc[o * kernel + kw]);
            }
        }
    }
    float sums[WEIGHTS_SUMS];
    lane_sums(acc, sums);
    if (ocs * kernel > LANES)
        lane_sums(acc + LANES, sums + LANES);
    float *out = args->diff_weights + oc0 * oc_step + ic * taps + kh * kernel;
#pragma GCC unroll 16
    for (int o = 0; o < ocs; o++)
#pragma GCC unroll 16
        for (int kw = 0; kw < kernel; kw++)
            out[o * oc_step + kw] += sums[o * kernel + kw];
}

#define WEIGHTS_KERNEL(KERNEL)                                                                     \
    TARGET static void weights_kernel##KERNEL(const block_args *args, int64_t oc, int64_t ocs)     \
    {                                                                                              \
        for (int64_t ic = 0; ic < args->shape->in_c; ic++)                                         \
            for (int64_t kh = 0; kh < args->shape->kernel_h; kh++)                                 \
                switch (ocs) {                                                                     \
                case 5:                                                                            \
                    weights_tile(args, oc, ic, kh, 5, KERNEL);                                     \
                    break;                                                                         \
                case 4:                                                                            \
                    weights_tile(args, oc, ic, kh, 4, KERNEL);                                     \
                    break;                                                                         \
                case 3:                                                                            \
                    weights_tile(args, oc, ic, kh, 3, KERNEL);                                     \
                    break;                                                                         \
                case 2:                                                                            \
                    weights_tile(args, oc, ic, kh, 2, KERNEL);                                     \
                    break;                                                                         \
                default:                                                                           \
                    weights_tile(args, oc, ic, kh, 1, KERNEL);                                     \
                    break;                                                                         \
                }                                                                                  \
    }
WEIGHTS_KERNEL(1)
WEIGHTS_KERNEL(3)
WEIGHTS_KERNEL(5)

/* Masks one channel's gradients where relu was not active, and returns their sum. */
TARGET static float mask_and_sum(const block_args *args, int64_t oc)
{
    const int64_t plane = args->shape->out_h * args->shape->out_w;
    vec *d = (vec *)(void *)args->diff_dst + oc * plane;
    const vec *value = (const vec *)(const void *)args->dst + oc * plane;
    vec sum[2] = {{0}, {0}};
    if (args->shape->relu)
        for (int64_t i = 0; i < plane; i++)
            d[i] = (vec)((ivec)d[i] & (ivec)(value[i] > SPLAT(0)));
    for (int64_t i = 0; i < plane; i++)
        sum[i % 2] += d[i];
    const vec both = sum[0] + sum[1];
    float total = 0;
    for (int lane = 0; lane < LANES; lane++)
        total += both[lane];
    return total;
}

/* Tile by tile of channels, so that what was masked is still in the cache. */
void ddpi_batch_conv_backward_weights(const ddpi_batch_conv *shape, const float *src,
                                      const float *dst, float *diff_dst, float *diff_weights,
                                      float *diff_bias)
{
    const block_args args = {.shape = shape,
                             .src = src,
                             .dst = (float *)dst,
                             .diff_dst = diff_dst,
                             .diff_weights = diff_weights};
    int64_t ocs;
    for (int64_t oc = 0; oc < shape->out_c; oc += ocs) {
        ocs = shape->out_c - oc < WEIGHTS_OCS ? shape->out_c - oc : WEIGHTS_OCS;
        for (int64_t o = oc; o < oc + ocs; o++) {
            const float sum = mask_and_sum(&args, o);
            if (diff_bias != NULL)
                diff_bias[o] += sum;
        }
        if (shape->kernel_w == 5)
            weights_kernel5(&args, oc, ocs);
        else if (shape->kernel_w == 3)
            weights_kernel3(&args, oc, ocs);
        else
            weights_kernel1(&args, oc, ocs);
    }
}

/* ---- packing ---- */

void ddpi_batch_pack(const float *plain, int64_t elements, int lanes, float *block)
{
    if (lanes < LANES)
        memset(block, 0, (size_t)elements * LANES * sizeof *block);
    /* Short runs of each image, so that all images' cache lines in use stay in the first level. */
    for (int64_t first = 0; first < elements; first += LANES) {
        const int64_t end = first + LANES < elements ? first + LANES : elements;
        for (int lane = 0; lane < lanes; lane++)
            for (int64_t i = first; i < end; i++)
                block[i * LANES + lane] = plain[lane * elements + i];
    }
}

void ddpi_batch_unpack(const float *block, int64_t elements, int lanes, float *plain)
{
    for (int64_t first = 0; first < elements; first += LANES) {
        const int64_t end = first + LANES < elements ? first + LANES : elements;
        for (int lane = 0; lane < lanes; lane++)
            for (int64_t i = first; i < end; i++)
                plain[lane * elements + i] = block[i * LANES + lane];
    }
}
