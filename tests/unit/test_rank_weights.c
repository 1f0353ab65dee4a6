/* test_rank_weights.c - dealing logical shards in proportion to weights, and training with unequal
 * shares: whole shards dealt unequally are the same samples, losses and weights. */
#include "harness.h"

#include "ddp/config.h"
#include "ddp/rng.h"
#include "ddp/shares.h"
#include "train_world.h"

enum { WORLD = 4, STEPS = 6 };

/* ---- dealing ---- */

static void shards_follow_the_weights_by_largest_remainder(void **state)
{
    (void)state;
    const struct {
        double weights[WORLD];
        int world;
        int64_t shards, want[WORLD];
    } cases[] = {
        {{3, 1}, 2, 4, {3, 1}},
        {{1, 2, 1}, 3, 4, {1, 2, 1}},
        {{1, 1, 1, 1}, 4, 12, {3, 3, 3, 3}},
        {{1, 1, 1}, 3, 5, {2, 2, 1}}, /* equal remainders: the lower ranks */
        {{0.1, 0.1, 0.1}, 3, 6, {2, 2, 2}},
        {{5, 3, 1}, 3, 10, {6, 3, 1}}, /* 5.56, 3.33, 1.11 */
        {{1000, 1}, 2, 4, {3, 1}},     /* one at least */
        {{1000, 1, 1, 1}, 4, 4, {1, 1, 1, 1}},
        {{1, 1000, 900, 1}, 4, 5, {1, 2, 1, 1}},
        {{7}, 1, 3, {3}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t counts[WORLD];
        CHECK_OK(ddp_shares_deal(cases[i].weights, cases[i].world, cases[i].shards, counts));
        for (int r = 0; r < cases[i].world; r++)
            if (counts[r] != cases[i].want[r])
                fail_msg("case %d: rank %d has %d shards, expected %d", (int)i, r, (int)counts[r],
                         (int)cases[i].want[r]);
    }
}

static void every_shard_has_one_owner_and_every_rank_has_a_shard(void **state)
{
    (void)state;
    const ddp_rng rng = ddp_rng_make(5, DDP_RNG_TEST, 0);
    for (uint64_t i = 0; i < 500; i++) {
        enum { MOST = 9 };
        const int world = 1 + (int)(ddp_rng_u32(&rng, i * 16) % MOST);
        const int64_t shards = world + ddp_rng_u32(&rng, i * 16 + 1) % 40;
        double weights[MOST];
        int64_t counts[MOST], sum = 0;
        for (int r = 0; r < world; r++)
            weights[r] = 0.01 + pow(ddp_rng_uniform(&rng, i * 16 + 2 + (uint64_t)r), 4);
        CHECK_OK(ddp_shares_deal(weights, world, shards, counts));
        for (int r = 0; r < world; r++) {
            assert_true(counts[r] >= 1);
            sum += counts[r];
            for (int s = 0; s < world; s++) /* a heavier rank never has less */
                assert_true(weights[r] <= weights[s] || counts[r] >= counts[s]);
        }
        assert_int_equal(sum, shards);
    }
}

static void the_smallest_number_of_shards_that_fits_is_chosen(void **state)
{
    (void)state;
    const struct {
        double weights[3];
        int world;
        int64_t limit, want;
        double error;
    } cases[] = {
        {{1, 1}, 2, 16, 2, 0},         {{3, 1}, 2, 16, 4, 0},
        {{1, 2, 1}, 3, 24, 4, 0},      {{1.5, 1}, 2, 16, 5, 0},
        {{0.2, 0.1}, 2, 16, 3, 1e-12}, {{1.01, 1}, 2, 16, 2, 0.0051},
        {{3, 1}, 2, 3, 3, 0.3334}, /* not enough: 2, 1 is nearest */
        {{100, 1}, 2, 16, 16, 5.4},    {{4}, 1, 8, 1, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t shards, counts[3];
        CHECK_OK(
            ddp_shares_choose(cases[i].weights, cases[i].world, cases[i].limit, 0.02, &shards));
        if (shards != cases[i].want)
            fail_msg("case %d: %d shards, expected %d", (int)i, (int)shards, (int)cases[i].want);
        CHECK_OK(ddp_shares_deal(cases[i].weights, cases[i].world, shards, counts));
        assert_true(ddp_shares_error(cases[i].weights, cases[i].world, counts) <= cases[i].error);
    }
    int64_t counts[3];
    CHECK_FAILS(ddp_shares_deal(NULL, 3, 2, counts), DDP_ERR_USAGE, "2 logical shards for 3 ranks");
}

/* ---- the option ---- */

static ddp_config *parsed(const char *weights, const char *option, const char *value)
{
    char *argv[] = {"ddp_train", "--rank-weights", (char *)weights, (char *)option, (char *)value};
    char *envp[] = {NULL};
    ddp_options_verdict verdict;
    ddp_config *c;
    CHECK_OK(ddp_config_create("test", &c));
    CHECK_OK(ddp_config_parse(c, option != NULL ? 5 : 3, argv, envp, &verdict));
    return c;
}

static void check_shards(const char *weights, const char *option, const char *value, int world,
                         int64_t want)
{
    ddp_config *c = parsed(weights, option, value);
    CHECK_OK(ddp_config_resolve(c, world));
    if (c->shards != want)
        fail_msg("weights %s: %d shards, expected %d", weights, (int)c->shards, (int)want);
    assert_int_equal(c->reducer.shards, 0);
    ddp_config_destroy(c);
}

static void weights_decide_the_number_of_shards_unless_it_is_given(void **state)
{
    (void)state;
    check_shards("3,1", NULL, NULL, 2, 4);
    check_shards("1,2,1", NULL, NULL, 3, 4);
    check_shards("1,1", NULL, NULL, 2, 2);
    check_shards("3,1", "--logical-ranks", "7", 2, 7);
    check_shards("3,1", "--accumulate", "3", 2, 6);
    check_shards("3,1", "--batch-size", "3", 2, 3); /* no empty shards */
    check_shards("auto", NULL, NULL, 3, 12);
    check_shards("auto", "--batch-size", "7", 3, 6);
    check_shards("auto", "--batch-size", "3", 3, 3);
    check_shards("auto", "--logical-ranks", "5", 3, 5);
}

static void check_refused(const char *weights, const char *text)
{
    char *argv[] = {"ddp_train", "--rank-weights", (char *)weights}, *envp[] = {NULL};
    ddp_options_verdict verdict;
    ddp_config *c;
    CHECK_OK(ddp_config_create("test", &c));
    CHECK_FAILS(ddp_config_parse(c, 3, argv, envp, &verdict), DDP_ERR_USAGE, text);
    ddp_config_destroy(c);
}

static void weights_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    check_refused("1,0", "weight 0 for rank 1");
    check_refused("0.0,1", "start fewer ranks");
    const char *bad[] = {"", ",", "1,", "-1,1", "1,nan", "inf,1", "1 2", "fast", "1,2x", "auto,1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        check_refused(bad[i], "expected auto, or a number above 0 for each rank");
    ddp_config *c = parsed("1,2", NULL, NULL);
    CHECK_FAILS(ddp_config_resolve(c, 3), DDP_ERR_USAGE, "2 weights with 3 ranks");
    ddp_config_destroy(c);
    c = parsed("1,2", "--logical-ranks", "1");
    CHECK_FAILS(ddp_config_resolve(c, 2), DDP_ERR_USAGE, "expected one for each at least");
    ddp_config_destroy(c);
    c = parsed("1,2", "--sync-bn", "--no-quiet");
    CHECK_FAILS(ddp_config_resolve(c, 2), DDP_ERR_USAGE, "unequal --rank-weights");
    ddp_config_destroy(c);
}

/* ---- training ---- */

static world_job make_job(const ddp_model_def *model, int64_t shards)
{
    return (world_job){.model = model,
                       .size = 50, /* a last batch of 2: shards without samples */
                       .batch = 16,
                       .shards = shards,
                       .steps = STEPS,
                       .world = 1,
                       .momentum = 0.9};
}

/* Shares against equal shares of the same shards, and against one rank that has all of them. */
static void check_shares(const ddp_model_def *model, const char *label, int world,
                         const int64_t *counts, int equal_world, double tolerance)
{
    world_curve alone, equal, unequal;
    world_job job = make_job(model, 0);
    for (int r = 0; r < world; r++)
        job.shards += counts[r];
    world_curve_of(&job, &alone);
    job.world = equal_world;
    world_curve_of(&job, &equal);
    job.world = world;
    job.counts = counts;
    world_curve_of(&job, &unequal);
    world_same(label, &job, &unequal, &equal, 1e-5);
    world_same(label, &job, &unequal, &alone, tolerance);
    world_curve_free(&alone);
    world_curve_free(&equal);
    world_curve_free(&unequal);
}

static void unequal_shares_equal_equal_shares(void **state)
{
    (void)state;
    const int64_t a[] = {3, 1}, b[] = {1, 2, 1}, c[] = {1, 5};
    check_shares(&world_plain, "3, 1", 2, a, 2, 1e-5);
    check_shares(&world_plain, "1, 2, 1", 3, b, 4, 1e-5);
    check_shares(&world_norms, "3, 1 with norms", 2, a, 4, 1e-5);
    check_shares(&world_norms, "1, 2, 1 with norms", 3, b, 2, 1e-5);
    check_shares(&world_norms, "1, 5 with norms", 2, c, 3, 1e-5);
}

/* The tree of K shards splits at the largest power of two below K; ranks whose runs are its
 * branches add up in the same order as one rank does. */
static void shares_that_are_branches_of_the_tree_give_the_same_bits(void **state)
{
    (void)state;
    const int64_t a[] = {2, 1}, b[] = {4, 2}, c[] = {4, 3}, d[] = {2, 2, 1};
    check_shares(&world_plain, "2, 1", 2, a, 3, 0);
    check_shares(&world_plain, "4, 2", 2, b, 2, 0);
    check_shares(&world_norms, "4, 2 with norms", 2, b, 3, 0);
    check_shares(&world_norms, "4, 3 with norms", 2, c, 7, 0);
    check_shares(&world_plain, "2, 2, 1", 3, d, 5, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_follow_the_weights_by_largest_remainder),
        cmocka_unit_test(every_shard_has_one_owner_and_every_rank_has_a_shard),
        cmocka_unit_test(the_smallest_number_of_shards_that_fits_is_chosen),
        cmocka_unit_test(weights_decide_the_number_of_shards_unless_it_is_given),
        cmocka_unit_test(weights_that_make_no_sense_are_refused),
        cmocka_unit_test(unequal_shares_equal_equal_shares),
        cmocka_unit_test(shares_that_are_branches_of_the_tree_give_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
