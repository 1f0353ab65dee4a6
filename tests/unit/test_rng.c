/* Philox against the published vectors, and what is derived from it. */
#include <math.h>

#include "ddp/rng.h"
#include "harness.h"

static void published_vectors(void **state)
{
    /* Random123's known answers for philox4x32-10: counter, key, output. */
    static const uint32_t vectors[][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
         0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1},
    };

    (void)state;
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        uint32_t out[4];
        ddp_philox4x32(vectors[i], vectors[i] + 4, out);
        assert_memory_equal(out, vectors[i] + 6, sizeof out);
    }
}

static void block_is_seed_purpose_and_number(void **state)
{
    uint32_t got[4];
    uint32_t want[4];
    ddp_rng rng = ddp_rng_make(0x1122334455667788, DDP_RNG_SYNTH, 9);

    (void)state;
    ddp_rng_block(&rng, 0xaabbccdd00000005, got);
    ddp_philox4x32((uint32_t[4]){5, 0xaabbccdd, DDP_RNG_SYNTH, 9},
                   (uint32_t[2]){0x55667788, 0x11223344}, want);
    assert_memory_equal(got, want, sizeof want);
    ddp_rng_block(&rng, 3, want);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(ddp_rng_u32(&rng, 12 + i), want[i]);
}

static void streams_differ(void **state)
{
    const ddp_rng rngs[] = {ddp_rng_make(1, DDP_RNG_INIT, 0), ddp_rng_make(2, DDP_RNG_INIT, 0),
                            ddp_rng_make(1, DDP_RNG_SHUFFLE, 0), ddp_rng_make(1, DDP_RNG_INIT, 1),
                            ddp_rng_make(UINT64_C(1) << 32, DDP_RNG_INIT, 0)};

    (void)state;
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < i; j++)
            assert_int_not_equal(ddp_rng_u32(&rngs[i], 0), ddp_rng_u32(&rngs[j], 0));
}

static void uniforms(void **state)
{
    enum { COUNT = 100000 };
    ddp_rng rng = ddp_rng_make(42, DDP_RNG_TEST, 0);
    double sum = 0;
    double squares = 0;

    (void)state;
    for (uint64_t i = 0; i < COUNT; i++) {
        float u = ddp_rng_uniform(&rng, i);
        assert_true(u >= 0 && u < 1);
        assert_true(u * 0x1p24f == floorf(u * 0x1p24f));
        sum += u;
        squares += (double)u * u;
    }
    double mean = sum / COUNT;
    /* Four standard errors: 1/sqrt(12 n), and sqrt(1/180n) of the variance. */
    assert_true(fabs(mean - 0.5) < 4 * sqrt(1.0 / 12 / COUNT));
    assert_true(fabs(squares / COUNT - mean * mean - 1.0 / 12) < 4 * sqrt(1.0 / 180 / COUNT));
}

static void moments_of_normals(void **state)
{
    enum { COUNT = 200000 };
    static float draws[COUNT];
    ddp_rng rng = ddp_rng_make(7, DDP_RNG_TEST, 1);
    double moments[5] = {0};
    double neighbours = 0;
    int beyond = 0;

    (void)state;
    ddp_rng_normal_fill(&rng, 0, COUNT, draws);
    for (int i = 0; i < COUNT; i++) {
        double power = 1;
        assert_true(isfinite(draws[i]));
        for (int k = 1; k <= 4; k++) {
            power *= draws[i];
            moments[k] += power / COUNT;
        }
        neighbours += i > 0 ? (double)draws[i] * draws[i - 1] / COUNT : 0;
        beyond += fabsf(draws[i]) > 1.959964f;
    }
    /* Variances of the powers' means: 1, 2, 15, 96 over n; four standard errors. */
    assert_true(fabs(moments[1]) < 4 * sqrt(1.0 / COUNT));
    assert_true(fabs(moments[2] - 1) < 4 * sqrt(2.0 / COUNT));
    assert_true(fabs(moments[3]) < 4 * sqrt(15.0 / COUNT));
    assert_true(fabs(moments[4] - 3) < 4 * sqrt(96.0 / COUNT));
    assert_true(fabs(neighbours) < 4 * sqrt(1.0 / COUNT));
    assert_true(fabs((double)beyond / COUNT - 0.05) < 4 * sqrt(0.05 * 0.95 / COUNT));
}

static void any_cut_gives_the_same(void **state)
{
    enum { COUNT = 41 };
    float whole[COUNT];
    ddp_rng rng = ddp_rng_make(3, DDP_RNG_INIT, 2);
    const uint64_t first = 1000003; /* odd, in the middle of a block */

    (void)state;
    ddp_rng_normal_fill(&rng, first, COUNT, whole);
    for (size_t cut = 0; cut <= COUNT; cut++) {
        float parts[COUNT + 1];
        parts[COUNT] = 123;
        ddp_rng_normal_fill(&rng, first, cut, parts);
        ddp_rng_normal_fill(&rng, first + cut, COUNT - cut, parts + cut);
        assert_memory_equal(parts, whole, sizeof whole);
        assert_true(parts[COUNT] == 123);
    }
    for (size_t i = 0; i < COUNT; i++) {
        float one;
        ddp_rng_normal_fill(&rng, first + i, 1, &one);
        assert_true(one == whole[i]);
    }
}

static void normals_are_box_muller(void **state)
{
    ddp_rng rng = ddp_rng_make(11, DDP_RNG_TEST, 5);
    uint32_t words[4];
    float draws[4];

    (void)state;
    ddp_rng_block(&rng, 2, words);
    ddp_rng_normal_fill(&rng, 8, 4, draws);
    for (int pair = 0; pair < 2; pair++) {
        double u = ((double)words[2 * pair] + 1) / 4294967296.0;
        double angle = 2 * M_PI * words[2 * pair + 1] / 4294967296.0;
        double r = sqrt(-2 * log(u));
        assert_true(fabs(draws[2 * pair] - r * cos(angle)) < 1e-6);
        assert_true(fabs(draws[2 * pair + 1] - r * sin(angle)) < 1e-6);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_vectors),
        cmocka_unit_test(block_is_seed_purpose_and_number),
        cmocka_unit_test(streams_differ),
        cmocka_unit_test(uniforms),
        cmocka_unit_test(moments_of_normals),
        cmocka_unit_test(any_cut_gives_the_same),
        cmocka_unit_test(normals_are_box_muller),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
