/* test_shm_reduce.c - the reduction kernels: slices, order of sums, NaNs, many sources. */
#include "harness.h"

#include <math.h>

#include "comm/shm_reduce.h"
#include "ddp/memory.h"
#include "reduce_reference.h"

/* Slices are a partition, cut on 64-byte borders, and differ by at most one unit. */
static void test_slices(void **state)
{
    (void)state;
    for (int n = 1; n <= 9; n++) {
        for (size_t count = 0; count < 300; count++) {
            size_t at = 0;
            for (int r = 0; r < n; r++) {
                ddp_range slice = ddpi_reduce_slice(count, DDP_F32, 0, n, r);
                assert_int_equal(slice.lo, at);
                assert_true(slice.lo % 32 == 0 || slice.lo == count);
                assert_true(slice.hi - slice.lo <= count / (size_t)n + 32);
                ddp_range half = ddpi_reduce_slice(count, DDP_BF16, 0, n, r);
                assert_true(half.lo == slice.lo && half.hi == slice.hi); /* one owner */
                at = slice.hi;
            }
            assert_int_equal(at, count);
        }
    }
}

static void test_nan(void **state)
{
    (void)state;
    static const ddp_reduce_op ops[] = {DDP_REDUCE_SUM, DDP_REDUCE_MAX, DDP_REDUCE_MIN};
    for (size_t i = 0; i < 3; i++) {
        float a[2] = {NAN, 1.0f}, b[2] = {1.0f, NAN};
        const void *src[2] = {a, b};
        void *dst[1] = {a};
        ddpi_reduction reduction = {DDP_F32, ops[i], 2, src, NULL, 1, dst, 2};
        ddpi_reduce(&reduction);
        assert_true(isnan(a[0]) && isnan(a[1]));
    }
}

/* bf16 sums are float sums of each join, rounded once: ties to even, NaN and infinity survive. */
static void test_bf16(void **state)
{
    (void)state;
    /* 1, 2^-8 (half a unit of 1), 1 + 2^-7, infinity, NaN, the largest */
    uint16_t a[6] = {0x3f80, 0x3b80, 0x3f81, 0x7f80, 0x7fc0, 0x7f7f};
    uint16_t b[6] = {0x3b80, 0x3f80, 0x3b80, 0x3f80, 0x3f80, 0x7f7f};
    const uint16_t want[6] = {0x3f80, 0x3f80, 0x3f82, 0x7f80, 0x7fc0, 0x7f80};
    const void *src[2] = {a, b};
    void *dst[1] = {b};
    const ddpi_reduction reduction = {DDP_BF16, DDP_REDUCE_SUM, 2, src, NULL, 1, dst, 6};
    ddpi_reduce(&reduction);
    assert_memory_equal(b, want, sizeof want);
    /* 1 + 2^-8 + (2^-9 + 2^-9): rounding in between would lose all but the 1. */
    uint16_t four[4] = {0x3f80, 0x3b80, 0x3b00, 0x3b00};
    const void *sources[4] = {four, four + 1, four + 2, four + 3};
    void *first[1] = {four};
    const ddpi_reduction tree = {DDP_BF16, DDP_REDUCE_SUM, 4, sources, NULL, 1, first, 1};
    ddpi_reduce(&tree);
    assert_int_equal(four[0], 0x3f81);
    assert_false(ddpi_reduce_supports(DDP_BF16, DDP_REDUCE_MAX));
    assert_false(ddpi_reduce_supports(DDP_F16, DDP_REDUCE_MAX));
    assert_false(ddpi_reduce_supports(DDP_U8, DDP_REDUCE_SUM));
}

/* The same with the borders of f16. */
static void test_f16(void **state)
{
    (void)state;
    /* 1, 2^-11 (half a unit of 1), 1 + 2^-10, infinity, NaN, the largest, two of the smallest */
    uint16_t a[7] = {0x3c00, 0x1000, 0x3c01, 0x7c00, 0x7e00, 0x7bff, 0x0001};
    uint16_t b[7] = {0x1000, 0x3c00, 0x1000, 0x3c00, 0x3c00, 0x7bff, 0x0001};
    const uint16_t want[7] = {0x3c00, 0x3c00, 0x3c02, 0x7c00, 0x7e00, 0x7c00, 0x0002};
    const void *src[2] = {a, b};
    void *dst[1] = {b};
    const ddpi_reduction reduction = {DDP_F16, DDP_REDUCE_SUM, 2, src, NULL, 1, dst, 7};
    ddpi_reduce(&reduction);
    assert_memory_equal(b, want, sizeof want);
    /* 1 + 2^-11 + (2^-12 + 2^-12): rounding in between would lose all but the 1. */
    uint16_t four[4] = {0x3c00, 0x1000, 0x0c00, 0x0c00};
    const void *sources[4] = {four, four + 1, four + 2, four + 3};
    void *first[1] = {four};
    const ddpi_reduction tree = {DDP_F16, DDP_REDUCE_SUM, 4, sources, NULL, 1, first, 1};
    ddpi_reduce(&tree);
    assert_int_equal(four[0], 0x3c01);
}

/* Many sources: the tree's scratch levels, with the result in the place of one of the sources. */
static void test_many_sources(void **state)
{
    (void)state;
    for (int n = 1; n <= 130; n += n < 20 ? 1 : 37) {
        enum { COUNT = 1500 };
        float *values;
        const void *src[130];
        void *dst[2];
        ddp_coll coll = {.dtype = DDP_F32, .count = COUNT};
        CHECK_OK(DDP_ALLOC(values, (size_t)n * COUNT));
        for (int r = 0; r < n; r++) {
            coll.buf = values + (size_t)r * COUNT;
            fill(coll, r, 9);
            src[r] = coll.buf;
        }
        dst[0] = values + (size_t)(n / 2) * COUNT;
        dst[1] = values + (size_t)(n - 1) * COUNT;
        ddpi_reduction reduction = {DDP_F32, DDP_REDUCE_SUM, n, src, NULL, 2, dst, COUNT};
        ddpi_reduce(&reduction);
        for (int d = 0; d < 2; d++) {
            coll.buf = dst[d];
            assert_int_equal(wrong_reduced(coll, n, (ddp_range){0, COUNT}, 9), 0);
        }
        ddp_free(values);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slices),       cmocka_unit_test(test_nan),
        cmocka_unit_test(test_bf16),         cmocka_unit_test(test_f16),
        cmocka_unit_test(test_many_sources),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
