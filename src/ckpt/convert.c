/* convert.c - F64, F16 and BF16 to f32. Pure functions, any thread. */
#include <math.h>
#include <string.h>

#include "ckpt/weights_impl.h"
#include "ddp/bf16.h"
#include "ddp/f16.h"

bool ddpi_weights_is_float(ddpi_st_dtype dtype)
{
    return dtype == DDPI_ST_F32 || dtype == DDPI_ST_F64 || dtype == DDPI_ST_F16 ||
           dtype == DDPI_ST_BF16;
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
        dst[i] = dtype == DDPI_ST_F16 ? ddp_f32_of_f16(bits) : ddp_f32_of_bf16(bits);
    }
    return true;
}
