/* f16.h - f16 numbers, IEEE 754's binary16: 1 bit of sign, 5 of exponent (bias 15), 10 of fraction.
 *
 * By bits alone, since not every compiler of the project has a type for them. Any thread. */
#ifndef DDP_F16_H
#define DDP_F16_H

#include <stdint.h>
#include <string.h>

#include "ddp/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Exact: every f16 is an f32. */
static inline float ddp_f32_of_f16(uint16_t value)
{
    const uint32_t sign = (uint32_t)(value >> 15) << 31;
    const uint32_t exponent = value >> 10 & 31, fraction = value & 1023;
    uint32_t bits = sign | (exponent + 127 - 15) << 23 | fraction << 13;
    float result;
    if (exponent == 31) /* infinite, or NaN */
        bits = sign | UINT32_C(0xff) << 23 | fraction << 13;
    if (exponent == 0) { /* subnormal: in units of 2^-24 */
        const float magnitude = (float)fraction * 0x1p-24f;
        memcpy(&bits, &magnitude, sizeof bits);
        bits |= sign;
    }
    memcpy(&result, &bits, sizeof result);
    return result;
}

/* To the nearest, ties to even. A NaN stays one, an infinity too; 65520 and more become infinite.
 */
static inline uint16_t ddp_f16_of_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000;
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 1023));
    if (magnitude >= 0x477ff000)
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) { /* below 2^-14: the sum with 0.5 rounds to units of 2^-24 */
        float rounded;
        memcpy(&rounded, &magnitude, sizeof rounded);
        rounded += 0.5f;
        memcpy(&bits, &rounded, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3f000000));
    }
    const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | ((rounded >> 13) - ((127 - 15) << 10)));
}

#ifdef __cplusplus
}
#endif
#endif
