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
                ddp_range slice = ddpi_reduce_slice(count, DDP_F32, n, r);
                assert_int_equal(slice.lo, at);
                assert_true(slice.lo % 16 == 0 || slice.lo == count);
                assert_true(slice.hi - slice.lo <= count / (size_t)n + 16);
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
        ddpi_reduction reduction = {DDP_F32, ops[i], 2, src, 1, dst, 2};
        ddpi_reduce(&reduction);
        assert_true(isnan(a[0]) && isnan(a[1]));
    }
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
        ddpi_reduction reduction = {DDP_F32, DDP_REDUCE_SUM, n, src, 2, dst, COUNT};
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
        cmocka_unit_test(test_slices),
        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_many_sources),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
