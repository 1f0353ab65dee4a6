/* bf16.h - bf16 elements: the upper half of an f32, rounded to the nearest, ties to even. */
#ifndef DDP_DEVICE_CPU_BF16_H
#define DDP_DEVICE_CPU_BF16_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline float ddpi_f32_of_bf16(uint16_t value)
{
    const uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

/* A NaN stays one, an infinity too; what is too large becomes infinite. */
static inline uint16_t ddpi_bf16_of_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const uint32_t quiet = bits >> 16 | 0x40;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

void ddpi_bf16_widen(int threads, float *dst, const uint16_t *src, size_t count);
void ddpi_bf16_narrow(int threads, uint16_t *dst, const float *src, size_t count);
/* diff[i] = 0 where value[i] <= 0. */
void ddpi_bf16_relu_mask(int threads, uint16_t *diff, const uint16_t *value, size_t count);

#endif
