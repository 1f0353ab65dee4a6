/* types.c - element types and shapes of base.h. Pure functions, any thread. */
#include "ddp/base.h"

#include <inttypes.h>
#include <stdio.h>

#include "ddp/status.h"

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
    [DDP_F32] = {"f32", 4},   [DDP_F64] = {"f64", 8}, [DDP_I32] = {"i32", 4},
    [DDP_I64] = {"i64", 8},   [DDP_U64] = {"u64", 8}, [DDP_U8] = {"u8", 1},
    [DDP_BF16] = {"bf16", 2}, [DDP_F16] = {"f16", 2},
};

static bool dtype_known(ddp_dtype dtype)
{
    return (size_t)dtype < sizeof dtypes / sizeof dtypes[0];
}

size_t ddp_dtype_bytes(ddp_dtype dtype)
{
    DDP_ASSERT(dtype_known(dtype));
    return dtypes[dtype].bytes;
}

const char *ddp_dtype_name(ddp_dtype dtype)
{
    return dtype_known(dtype) ? dtypes[dtype].name : "unknown";
}

int64_t ddp_shape_count(const ddp_shape *shape)
{
    int64_t count = 1;

    for (int i = 0; i < shape->ndim; i++)
        DDP_ASSERT(!__builtin_mul_overflow(count, shape->dims[i], &count));
    return count;
}

bool ddp_shape_equal(const ddp_shape *a, const ddp_shape *b)
{
    if (a->ndim != b->ndim)
        return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->dims[i] != b->dims[i])
            return false;
    return true;
}

char *ddp_shape_format(const ddp_shape *shape, char *text, size_t text_bytes)
{
    size_t used = 0;

    if (text_bytes == 0)
        return text;
    if (shape->ndim == 0)
        snprintf(text, text_bytes, "scalar");
    for (int i = 0; i < shape->ndim && used < text_bytes; i++) {
        int n = snprintf(text + used, text_bytes - used, "%s%" PRId64, i > 0 ? "x" : "",
                         shape->dims[i]);
        used += n > 0 ? (size_t)n : 0;
    }
    return text;
}
