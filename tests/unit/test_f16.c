/* test_f16.c - conversions between f32 and f16: all f16 numbers, and every border between two. */
#include <math.h>

#include "ddp/f16.h"
#include "harness.h"

enum { INFINITE = 0x7c00, SIGN = 0x8000 };

static double value_of(int bits)
{
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double magnitude =
        exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
    return bits & SIGN ? -magnitude : magnitude;
}

static void every_number_survives(void **state)
{
    (void)state;
    for (int bits = 0; bits < INFINITE; bits++)
        for (int sign = 0; sign <= SIGN; sign += SIGN) {
            const float wide = ddp_f32_of_f16((uint16_t)(bits | sign));
            assert_true((double)wide == value_of(bits | sign));
            assert_int_equal(signbit(wide) != 0, sign != 0);
            assert_int_equal(ddp_f16_of_f32(wide), bits | sign);
        }
}

/* Behind the largest number comes what would be the next one, were there no infinity. */
static void numbers_between_two_go_to_the_nearer_one(void **state)
{
    (void)state;
    for (int bits = 0; bits < INFINITE; bits++) {
        const float middle = (float)((value_of(bits) + value_of(bits + 1)) / 2);
        const int even = bits % 2 == 0 ? bits : bits + 1;
        assert_int_equal(ddp_f16_of_f32(middle), even);
        assert_int_equal(ddp_f16_of_f32(-middle), even | SIGN);
        assert_int_equal(ddp_f16_of_f32(nextafterf(middle, 0)), bits);
        assert_int_equal(ddp_f16_of_f32(nextafterf(middle, INFINITY)), bits + 1);
    }
    assert_int_equal(ddp_f16_of_f32(3e38f), INFINITE);
    assert_int_equal(ddp_f16_of_f32(1e-45f), 0);
}

static void what_is_not_finite_stays_so(void **state)
{
    static const uint32_t nans[] = {0x7fc00000, 0x7f800001, 0xffffffff};
    (void)state;
    assert_int_equal(ddp_f16_of_f32(INFINITY), INFINITE);
    assert_int_equal(ddp_f16_of_f32(-INFINITY), INFINITE | SIGN);
    assert_true(isinf(ddp_f32_of_f16(INFINITE)) && ddp_f32_of_f16(INFINITE) > 0);
    assert_true(isinf(ddp_f32_of_f16(INFINITE | SIGN)) && ddp_f32_of_f16(INFINITE | SIGN) < 0);
    for (size_t i = 0; i < sizeof nans / sizeof nans[0]; i++) {
        float nan;
        memcpy(&nan, &nans[i], sizeof nan);
        assert_true(isnan(ddp_f32_of_f16(ddp_f16_of_f32(nan))));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_survives),
        cmocka_unit_test(numbers_between_two_go_to_the_nearer_one),
        cmocka_unit_test(what_is_not_finite_stays_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
