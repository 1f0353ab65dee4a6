/* bf16.h - bf16 numbers: the upper half of an f32, rounded to the nearest, ties to even.
 *
 * In the header, so that loops over them become vector code. Any thread. */
#ifndef DDP_BF16_H
#define DDP_BF16_H

#include <stdint.h>
#include <string.h>

#include "ddp/base.h"

#ifdef __cplusplus
extern "C" {
#endif

static inline float ddp_f32_of_bf16(uint16_t value)
{
    const uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

/* A NaN stays one, an infinity too; what is too large becomes infinite. */
static inline uint16_t ddp_bf16_of_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const uint32_t quiet = bits >> 16 | 0x40;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

#ifdef __cplusplus
}
#endif
#endif
