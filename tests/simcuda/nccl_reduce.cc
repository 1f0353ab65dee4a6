/* nccl_reduce.cc - sums and the like over NCCL's types; bf16 and f16 are rounded after each step.
 */
#include "nccl_impl.h"

#include <cmath>
#include <cstring>

namespace simnccl
{
size_t type_bytes(ncclDataType_t type)
{
    static const size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return (unsigned)type < sizeof bytes / sizeof *bytes ? bytes[type] : 0;
}

struct Bf16 {
    uint16_t bits;
    operator float() const
    {
        uint32_t wide = (uint32_t)bits << 16;
        float value;
        memcpy(&value, &wide, sizeof value);
        return value;
    }
    Bf16(float value)
    {
        uint32_t wide;
        memcpy(&wide, &value, sizeof wide);
        if (value != value)
            bits = (uint16_t)(wide >> 16 | 0x40);
        else
            bits = (uint16_t)((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
    }
};
struct Half {
    uint16_t bits;
    operator float() const
    {
        int exponent = bits >> 10 & 31, fraction = bits & 1023;
        float value = exponent == 31 ? (fraction ? NAN : INFINITY)
                      : exponent     ? ldexpf((float)(fraction + 1024), exponent - 25)
                                     : ldexpf((float)fraction, -24);
        return bits & 0x8000 ? -value : value;
    }
    Half(float value)
    {
        uint16_t sign = std::signbit(value) ? 0x8000 : 0;
        float size = fabsf(value);
        if (value != value) {
            bits = 0x7e00;
        } else if (size >= 65520.0f) {
            bits = sign | 0x7c00;
        } else if (size < 6.103515625e-5f) {
            bits = sign | (uint16_t)nearbyintf(ldexpf(size, 24));
        } else {
            int exponent;
            float fraction = frexpf(size, &exponent); /* [0.5, 1) */
            int rounded = (int)nearbyintf(ldexpf(fraction, 11));
            bits = sign | (uint16_t)(((exponent + 13) << 10) + rounded);
        }
    }
};

template <class T, class Wide>
static void combine(void *dst, const void *src, size_t count, ncclRedOp_t op)
{
    T *to = static_cast<T *>(dst);
    const T *from = static_cast<const T *>(src);
    for (size_t i = 0; i < count; i++) {
        Wide a = (Wide)to[i], b = (Wide)from[i];
        Wide value = op == ncclProd  ? (Wide)(a * b)
                     : op == ncclMax ? (a < b ? b : a)
                     : op == ncclMin ? (b < a ? b : a)
                                     : (Wide)(a + b);
        to[i] = T(value);
    }
}

void reduce(void *dst, const void *src, size_t count, ncclDataType_t type, ncclRedOp_t op)
{
    switch (type) {
    case ncclInt8:
        return combine<int8_t, int8_t>(dst, src, count, op);
    case ncclUint8:
        return combine<uint8_t, uint8_t>(dst, src, count, op);
    case ncclInt32:
        return combine<int32_t, int32_t>(dst, src, count, op);
    case ncclUint32:
        return combine<uint32_t, uint32_t>(dst, src, count, op);
    case ncclInt64:
        return combine<int64_t, int64_t>(dst, src, count, op);
    case ncclUint64:
        return combine<uint64_t, uint64_t>(dst, src, count, op);
    case ncclFloat16:
        return combine<Half, float>(dst, src, count, op);
    case ncclFloat32:
        return combine<float, float>(dst, src, count, op);
    case ncclFloat64:
        return combine<double, double>(dst, src, count, op);
    default:
        return combine<Bf16, float>(dst, src, count, op);
    }
}

template <class T, class Wide> static void share(void *dst, size_t count, int ranks)
{
    T *to = static_cast<T *>(dst);
    for (size_t i = 0; i < count; i++)
        to[i] = T((Wide)to[i] / (Wide)ranks);
}

void divide(void *dst, size_t count, ncclDataType_t type, int ranks)
{
    switch (type) {
    case ncclInt8:
        return share<int8_t, int>(dst, count, ranks);
    case ncclUint8:
        return share<uint8_t, int>(dst, count, ranks);
    case ncclInt32:
        return share<int32_t, int32_t>(dst, count, ranks);
    case ncclUint32:
        return share<uint32_t, uint32_t>(dst, count, ranks);
    case ncclInt64:
        return share<int64_t, int64_t>(dst, count, ranks);
    case ncclUint64:
        return share<uint64_t, uint64_t>(dst, count, ranks);
    case ncclFloat16:
        return share<Half, float>(dst, count, ranks);
    case ncclFloat32:
        return share<float, float>(dst, count, ranks);
    case ncclFloat64:
        return share<double, double>(dst, count, ranks);
    default:
        return share<Bf16, float>(dst, count, ranks);
    }
}
} // namespace simnccl
