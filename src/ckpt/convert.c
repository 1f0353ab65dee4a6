/* convert.c - F64, F16 and BF16 to f32. Pure functions, any thread. */
#include <math.h>
#include <string.h>

#include "ckpt/weights_impl.h"

bool ddpi_weights_is_float(ddpi_st_dtype dtype)
{
    return dtype == DDPI_ST_F32 || dtype == DDPI_ST_F64 || dtype == DDPI_ST_F16 ||
           dtype == DDPI_ST_BF16;
}

static float of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* IEEE 754 binary16: 1 bit sign, 5 exponent (bias 15), 10 fraction. Every value is an f32. */
static float of_half(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half >> 15) << 31;
    const uint32_t exponent = half >> 10 & 31, fraction = half & 1023;
    if (exponent == 31) /* infinite, or NaN */
        return of_bits(sign | UINT32_C(0xff) << 23 | fraction << 13);
    if (exponent == 0) /* subnormal: in units of 2^-24 */
        return copysignf((float)fraction * 0x1p-24f, of_bits(sign));
    return of_bits(sign | (exponent + 127 - 15) << 23 | fraction << 13);
}

static bool convert_doubles(const char *src, size_t count, float *dst)
{
    bool fit = true;
    for (size_t i = 0; i < count; i++) {
        double value;
        memcpy(&value, src + i * sizeof value, sizeof value);
        dst[i] = (float)value;
        fit &= isfinite(dst[i]) || !isfinite(value);
    }
    return fit;
}

bool ddpi_weights_convert(ddpi_st_dtype dtype, const char *src, size_t count, float *dst)
{
    DDP_ASSERT(ddpi_weights_is_float(dtype));
    if (count == 0)
        return true;
    if (dtype == DDPI_ST_F32) {
        memcpy(dst, src, count * sizeof *dst);
        return true;
    }
    if (dtype == DDPI_ST_F64)
        return convert_doubles(src, count, dst);
    for (size_t i = 0; i < count; i++) {
        uint16_t bits;
        memcpy(&bits, src + i * sizeof bits, sizeof bits);
        dst[i] = dtype == DDPI_ST_F16 ? of_half(bits) : of_bits((uint32_t)bits << 16);
    }
    return true;
}
