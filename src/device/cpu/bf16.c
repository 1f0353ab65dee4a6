/* bf16.c - loops over bf16 elements. Pieces of fixed size are shared by the threads; each element
 * is treated alone. */
#include "device/cpu/bf16.h"

#include "device/cpu/cpu_impl.h"

#define PIECE 16384 /* elements */

typedef struct bf16_run {
    float *wide;
    const float *wide_src;
    uint16_t *narrow;
    const uint16_t *narrow_src;
    size_t count;
} bf16_run;

static size_t piece_end(const bf16_run *run, int64_t piece)
{
    const size_t end = ((size_t)piece + 1) * PIECE;
    return end < run->count ? end : run->count;
}

DDPI_SIMD static void widen_range(float *restrict dst, const uint16_t *restrict src, size_t count)
{
    for (size_t i = 0; i < count; i++)
        dst[i] = ddp_f32_of_bf16(src[i]);
}

static void widen_piece(void *arg, int64_t piece)
{
    const bf16_run *run = arg;
    const size_t lo = (size_t)piece * PIECE;
    widen_range(run->wide + lo, run->narrow_src + lo, piece_end(run, piece) - lo);
}

void ddpi_bf16_widen(int threads, float *dst, const uint16_t *src, size_t count)
{
    bf16_run run = {.wide = dst, .narrow_src = src, .count = count};
    ddpi_parallel(threads, ddpi_ceil_div((int64_t)count, PIECE), widen_piece, &run);
}

DDPI_SIMD static void narrow_range(uint16_t *restrict dst, const float *restrict src, size_t count)
{
    for (size_t i = 0; i < count; i++)
        dst[i] = ddp_bf16_of_f32(src[i]);
}

static void narrow_piece(void *arg, int64_t piece)
{
    const bf16_run *run = arg;
    const size_t lo = (size_t)piece * PIECE;
    narrow_range(run->narrow + lo, run->wide_src + lo, piece_end(run, piece) - lo);
}

void ddpi_bf16_narrow(int threads, uint16_t *dst, const float *src, size_t count)
{
    bf16_run run = {.narrow = dst, .wide_src = src, .count = count};
    ddpi_parallel(threads, ddpi_ceil_div((int64_t)count, PIECE), narrow_piece, &run);
}

DDPI_SIMD static void mask_range(uint16_t *restrict diff, const uint16_t *restrict value,
                                 size_t count)
{
    /* The positive numbers and their infinity are 1 to 0x7f80. */
    for (size_t i = 0; i < count; i++)
        diff[i] = (uint16_t)(value[i] - 1) < 0x7f80 ? diff[i] : 0;
}

static void mask_piece(void *arg, int64_t piece)
{
    const bf16_run *run = arg;
    const size_t lo = (size_t)piece * PIECE;
    mask_range(run->narrow + lo, run->narrow_src + lo, piece_end(run, piece) - lo);
}

void ddpi_bf16_relu_mask(int threads, uint16_t *diff, const uint16_t *value, size_t count)
{
    bf16_run run = {.narrow = diff, .narrow_src = value, .count = count};
    ddpi_parallel(threads, ddpi_ceil_div((int64_t)count, PIECE), mask_piece, &run);
}
