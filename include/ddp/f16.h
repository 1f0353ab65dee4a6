/* f16.h - f16 numbers, IEEE 754's binary16: 1 bit of sign, 5 of exponent (bias 15), 10 of fraction.
 *
 * By bits alone, since not every compiler of the project has a type for them. Any thread. */
#ifndef DDP_F16_H
#define DDP_F16_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "ddp/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All cases are computed and one is taken, by its bits: loops over these functions then have no
 * branches. */
static inline uint32_t ddp_f16_take(bool which, uint32_t yes, uint32_t no)
{
    const uint32_t mask = 0 - (uint32_t)which;
    return (yes & mask) | (no & ~mask);
}

/* Exact: every f16 is an f32. */
static inline float ddp_f32_of_f16(uint16_t value)
{
    const uint32_t sign = (uint32_t)(value >> 15) << 31;
    const uint32_t magnitude = value & 0x7fff;
    const float tiny = (float)(int32_t)magnitude * 0x1p-24f; /* subnormal: in units of 2^-24 */
    uint32_t bits;
    float result;
    memcpy(&bits, &tiny, sizeof bits);
    const uint32_t normal = (magnitude << 13) + ((127u - 15) << 23);
    const uint32_t special = magnitude << 13 | UINT32_C(0xff) << 23; /* infinite, or NaN */
    bits = ddp_f16_take(magnitude >= 0x400, normal, bits);
    bits = ddp_f16_take(magnitude >= 0x7c00, special, bits) | sign;
    memcpy(&result, &bits, sizeof result);
    return result;
}

/* To the nearest, ties to even. A NaN stays one, an infinity too; 65520 and more become infinite.
 */
static inline uint16_t ddp_f16_of_f32(float value)
{
    uint32_t bits, tiny;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000;
    const int32_t magnitude = (int32_t)(bits & 0x7fffffff);
    const uint32_t rounded = (uint32_t)magnitude + 0xfff + (bits >> 13 & 1);
    float sum; /* below 2^-14: the sum with 0.5 rounds to units of 2^-24 */
    memcpy(&sum, &magnitude, sizeof sum);
    sum += 0.5f;
    memcpy(&tiny, &sum, sizeof tiny);
    uint32_t result = (rounded >> 13) - ((127 - 15) << 10);
    result = ddp_f16_take(magnitude < 0x38800000, tiny - 0x3f000000, result);
    result = ddp_f16_take(magnitude >= 0x477ff000, 0x7c00, result);
    result = ddp_f16_take(magnitude > 0x7f800000, 0x7e00 | (bits >> 13 & 1023), result);
    return (uint16_t)(sign | result);
}

#ifdef __cplusplus
}
#endif
#endif
