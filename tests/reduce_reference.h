/* reduce_reference.h - what a reduction must give: a scalar tree in the order that shm_reduce.h
 * states, over values that each rank makes up by itself. */
#ifndef DDP_TESTS_REDUCE_REFERENCE_H
#define DDP_TESTS_REDUCE_REFERENCE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "ddp/work.h"

static inline uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Values whose sum depends on the order: many exponents, both signs. */
static inline double value_at(int rank, size_t index, int salt)
{
    uint64_t state = ((uint64_t)rank + 1) * 1000003u + index * 7919u + (uint64_t)salt * 104729u;

    next_random(&state);
    next_random(&state);
    int exponent = (int)(next_random(&state) % 20) - 10;
    double fraction = (double)(next_random(&state) % 2000001) / 1000000.0 - 1.0;
    return ldexp(fraction, exponent);
}

/* To the nearest, ties to even; no NaN comes here. */
static inline uint16_t bf16_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float of_bf16(const void *at)
{
    uint16_t half;
    float value;
    memcpy(&half, at, sizeof half);
    const uint32_t bits = (uint32_t)half << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline void set_at(void *buf, ddp_dtype dtype, size_t i, double value)
{
    double scaled = value * 1000.0;

    switch (dtype) {
    case DDP_F32:
        ((float *)buf)[i] = (float)value;
        break;
    case DDP_BF16:
        ((uint16_t *)buf)[i] = bf16_of((float)value);
        break;
    case DDP_F64:
        ((double *)buf)[i] = value;
        break;
    case DDP_I32:
        ((int32_t *)buf)[i] = (int32_t)scaled;
        break;
    case DDP_I64:
        ((int64_t *)buf)[i] = (int64_t)scaled * 4000000000;
        break;
    case DDP_U64:
        ((uint64_t *)buf)[i] = (uint64_t)((int64_t)scaled * 4000000000);
        break;
    default:
        ((uint8_t *)buf)[i] = (uint8_t)((int)scaled & 255);
    }
}

#define JOIN(type)                                                                                 \
    do {                                                                                           \
        type a_, b_, z_;                                                                           \
        memcpy(&a_, a, sizeof a_);                                                                 \
        memcpy(&b_, b, sizeof b_);                                                                 \
        z_ = op == DDP_REDUCE_SUM ? a_ + b_ : (op == DDP_REDUCE_MAX) == (a_ > b_) ? a_ : b_;       \
        memcpy(out, &z_, sizeof z_);                                                               \
    } while (0)

static inline void join(ddp_dtype dtype, ddp_reduce_op op, const void *a, const void *b, void *out)
{
    switch (dtype) {
    case DDP_F32:
        JOIN(float);
        break;
    case DDP_F64:
        JOIN(double);
        break;
    case DDP_I32:
        JOIN(int32_t);
        break;
    case DDP_I64:
        JOIN(int64_t);
        break;
    default:
        JOIN(uint64_t);
    }
}

/* The element that ranks [first, first + n) reduce to, written into out (8 bytes). */
static inline void expect_at(ddp_coll coll, int first, int n, size_t i, int salt, void *out)
{
    uint64_t left[1] = {0}, right[1] = {0};
    int split = 1;

    if (n == 1) {
        set_at(out, coll.dtype, 0, value_at(first, i, salt));
        return;
    }
    while (split * 2 < n)
        split *= 2;
    expect_at(coll, first, split, i, salt, left);
    expect_at(coll, first + split, n - split, i, salt, right);
    join(coll.dtype, coll.op, left, right, out);
}

static inline void fill(ddp_coll coll, int rank, int salt)
{
    for (size_t i = 0; i < coll.count; i++)
        set_at(coll.buf, coll.dtype, i, value_at(rank, i, salt));
}

static inline size_t wrong_reduced(ddp_coll coll, int n, ddp_range range, int salt)
{
    size_t wrong = 0, bytes = ddp_dtype_bytes(coll.dtype);

    for (size_t i = range.lo; i < range.hi; i++) {
        uint64_t want = 0;
        expect_at(coll, 0, n, i, salt, &want);
        wrong += memcmp((char *)coll.buf + i * bytes, &want, bytes) != 0;
    }
    return wrong;
}

static inline size_t wrong_copied(const void *buf, ddp_dtype dtype, ddp_range range, int rank,
                                  int salt)
{
    size_t wrong = 0, bytes = ddp_dtype_bytes(dtype);

    for (size_t i = range.lo; i < range.hi; i++) {
        uint64_t want = 0;
        set_at(&want, dtype, 0, value_at(rank, i, salt));
        wrong += memcmp((const char *)buf + i * bytes, &want, bytes) != 0;
    }
    return wrong;
}

#endif
