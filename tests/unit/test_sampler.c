/* test_sampler.c - the epoch's order is a permutation, and shards cut it without gap or overlap. */
#include "harness.h"

#include <math.h>
#include <stdlib.h>

#include "ddp/sampler.h"

static ddp_sampler make(int64_t size, int64_t batch, int64_t shards)
{
    return (ddp_sampler){size, batch, shards, 42, false, true};
}

/* Marks what an epoch's indices hit; true if each was hit once. */
static bool is_bijection(const ddp_sampler *sampler, int64_t epoch)
{
    int64_t size = sampler->size, *order = calloc((size_t)size, sizeof *order);
    unsigned char *seen = calloc((size_t)size, 1);
    bool good = order != NULL && seen != NULL;
    ddp_sampler_indices(sampler, epoch, 0, size, order);
    for (int64_t i = 0; good && i < size; i++) {
        good = order[i] >= 0 && order[i] < size && !seen[order[i]];
        if (good)
            seen[order[i]] = 1;
    }
    free(order);
    free(seen);
    return good;
}

static void test_bijection(void **state)
{
    static const int64_t sizes[] = {1,     2,     3,     4,     5,      7,     15,    16,
                                    17,    64,    65,    100,   255,    256,   257,   1000,
                                    1023,  1024,  1025,  4096,  4097,   10000, 16383, 16385,
                                    60000, 65535, 65536, 65537, 1281167};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            ddp_sampler sampler = make(sizes[i], 1, 1);
            if (!is_bijection(&sampler, epoch))
                fail_msg("size %lld, epoch %lld", (long long)sizes[i], (long long)epoch);
        }
}

static void test_every_small_size(void **state)
{
    (void)state;
    for (int64_t size = 1; size <= 600; size++) {
        ddp_sampler sampler = make(size, 1, 1);
        if (!is_bijection(&sampler, 5))
            fail_msg("size %lld", (long long)size);
    }
}

static void test_huge_sizes_stay_in_range(void **state)
{
    (void)state;
    static const int64_t sizes[] = {(INT64_C(1) << 32) + 1, (INT64_C(1) << 40) - 3, INT64_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        ddp_sampler sampler = make(sizes[i], 1, 1);
        int64_t first = ddp_sampler_index(&sampler, 0, 0), last = sizes[i] - 1;
        assert_true(first >= 0 && first < sizes[i]);
        int64_t other = ddp_sampler_index(&sampler, 0, last);
        assert_true(other >= 0 && other < sizes[i]);
        assert_true(first != other);
    }
}

/* All shards of all steps, joined, must be the epoch's order, whatever K is. */
static void check_cut(const ddp_sampler *sampler)
{
    int64_t size = sampler->size, at = 0;
    int64_t *order = calloc((size_t)size, sizeof *order),
            *part = calloc((size_t)size, sizeof *part);
    assert_true(order != NULL && part != NULL);
    ddp_sampler_indices(sampler, 3, 0, size, order);
    int64_t steps = ddp_sampler_steps(sampler);
    for (int64_t step = 0; step < steps; step++) {
        int64_t sum = 0, largest = 0, smallest = INT64_MAX, before = INT64_MAX;
        for (int64_t shard = 0; shard < sampler->shards; shard++) {
            int64_t first, count = ddp_sampler_shard(sampler, step, shard, &first);
            if (count > 0)
                assert_int_equal(first, at);
            assert_true(count <= before);
            before = count;
            largest = count > largest ? count : largest;
            smallest = count < smallest ? count : smallest;
            ddp_sampler_indices(sampler, 3, first, count, part);
            assert_memory_equal(part, order + first, (size_t)count * sizeof *part);
            at += count;
            sum += count;
        }
        assert_true(largest - smallest <= 1);
        assert_int_equal(sum, ddp_sampler_step_count(sampler, step));
        if (step + 1 < steps)
            assert_int_equal(sum, sampler->batch);
    }
    assert_int_equal(at, sampler->drop_last ? steps * sampler->batch : size);
    free(order);
    free(part);
}

static void test_cuts(void **state)
{
    static const int64_t cases[][3] = {
        {1, 1, 1},       {1, 8, 3},       {10, 4, 3},      {10, 3, 5},
        {17, 17, 4},     {17, 5, 8},      {100, 7, 3},     {100, 100, 7},
        {100, 1000, 16}, {257, 64, 5},    {256, 64, 4},    {1000, 96, 7},
        {1000, 33, 32},  {60000, 256, 8}, {60000, 250, 3}, {60000, 60001, 7}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int drop = 0; drop < 2; drop++) {
            ddp_sampler sampler = make(cases[i][0], cases[i][1], cases[i][2]);
            sampler.drop_last = drop != 0;
            if (ddp_sampler_steps(&sampler) > 0)
                check_cut(&sampler);
        }
}

static void test_known_cut(void **state)
{
    (void)state;
    ddp_sampler sampler = make(10, 7, 3);
    int64_t first;
    assert_int_equal(ddp_sampler_steps(&sampler), 2);
    assert_int_equal(ddp_sampler_shard(&sampler, 0, 0, &first), 3);
    assert_int_equal(first, 0);
    assert_int_equal(ddp_sampler_shard(&sampler, 0, 1, &first), 2);
    assert_int_equal(first, 3);
    assert_int_equal(ddp_sampler_shard(&sampler, 0, 2, &first), 2);
    assert_int_equal(first, 5);
    assert_int_equal(ddp_sampler_shard(&sampler, 1, 2, &first), 1);
    assert_int_equal(first, 9);
    assert_int_equal(ddp_sampler_step_count(&sampler, 1), 3);
    assert_int_equal(ddp_sampler_step_count(&sampler, 2), 0);
    sampler.drop_last = true;
    assert_int_equal(ddp_sampler_steps(&sampler), 1);
    assert_int_equal(ddp_sampler_step_count(&sampler, 1), 0);
}

static void test_without_shuffle(void **state)
{
    (void)state;
    ddp_sampler sampler = make(100, 10, 2);
    sampler.shuffle = false;
    for (int64_t i = 0; i < 100; i++)
        assert_int_equal(ddp_sampler_index(&sampler, 7, i), i);
}

/* Number of positions at which two orders agree: about 1 for independent permutations. */
static int64_t common(const ddp_sampler *a, int64_t epoch_a, const ddp_sampler *b, int64_t epoch_b)
{
    int64_t same = 0;
    for (int64_t i = 0; i < a->size; i++)
        same += ddp_sampler_index(a, epoch_a, i) == ddp_sampler_index(b, epoch_b, i);
    return same;
}

static void test_keys_matter(void **state)
{
    (void)state;
    ddp_sampler a = make(10000, 100, 2), b = a, c = a;
    b.seed = 43;
    c.seed = 42 + (UINT64_C(1) << 40);
    assert_int_equal(common(&a, 0, &a, 0), 10000);
    assert_true(common(&a, 0, &a, 1) < 12);
    assert_true(common(&a, 0, &b, 0) < 12);
    assert_true(common(&a, 0, &c, 0) < 12);
    assert_true(common(&a, 1, &a, 1 + (INT64_C(1) << 32)) < 12);
    /* Neither the batch nor K enters the order. */
    ddp_sampler d = make(10000, 7, 5);
    assert_int_equal(common(&a, 4, &d, 4), 10000);
}

/* Resumed runs depend on these values: a change of them is a change of the file format. */
static void test_order_is_fixed(void **state)
{
    static const int64_t expected[] = {52959, 46927, 46336, 34624, 26270, 29584, 55359, 47147};
    (void)state;
    ddp_sampler sampler = make(60000, 256, 4);
    for (int64_t i = 0; i < 8; i++)
        assert_int_equal(ddp_sampler_index(&sampler, 2, i), expected[i]);
}

/* Chi-square of a histogram with equal expectations, in standard deviations from its mean. */
static double chi_square_z(const int64_t *counts, int cells, double expected)
{
    double sum = 0;
    for (int i = 0; i < cells; i++)
        sum += ((double)counts[i] - expected) * ((double)counts[i] - expected) / expected;
    double degrees = cells - 1;
    return (sum - degrees) / sqrt(2 * degrees);
}

/* Where a position lands over many epochs, and by how much neighbours differ: both uniform. */
static void test_uniform(void **state)
{
    enum { CELLS = 50, EPOCHS = 20000 };
    static const int64_t sizes[] = {50, 1000, 60000};
    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        ddp_sampler sampler = make(sizes[s], 10, 1);
        int64_t place[CELLS] = {0}, last[CELLS] = {0}, step[CELLS] = {0};
        for (int64_t epoch = 0; epoch < EPOCHS; epoch++) {
            int64_t pair[2];
            ddp_sampler_indices(&sampler, epoch, 0, 2, pair);
            place[pair[0] * CELLS / sizes[s]]++;
            last[ddp_sampler_index(&sampler, epoch, sizes[s] - 1) * CELLS / sizes[s]]++;
            step[(pair[1] - pair[0] + sizes[s]) % sizes[s] * CELLS / sizes[s]]++;
        }
        assert_true(fabs(chi_square_z(place, CELLS, (double)EPOCHS / CELLS)) < 4.5);
        assert_true(fabs(chi_square_z(last, CELLS, (double)EPOCHS / CELLS)) < 4.5);
        if (sizes[s] > 50) /* a step of 0 cannot happen, which a cell of one value would show */
            assert_true(fabs(chi_square_z(step, CELLS, (double)EPOCHS / CELLS)) < 4.5);
    }
}

/* Every batch of one epoch draws from the whole range: pairs (half of the epoch, cell of the index)
 * are uniform. */
static void test_batches_are_mixed(void **state)
{
    enum { PARTS = 30, CELLS = 40 };
    (void)state;
    int64_t counts[PARTS * CELLS] = {0};
    ddp_sampler sampler = make(60000, 2000, 1);
    for (int64_t i = 0; i < 60000; i++)
        counts[i / 2000 * CELLS + ddp_sampler_index(&sampler, 1, i) / 1500]++;
    assert_true(fabs(chi_square_z(counts, PARTS * CELLS, 50.0)) < 4.5);
}

static void test_check(void **state)
{
    (void)state;
    ddp_sampler sampler = make(10, 4, 2);
    CHECK_OK(ddp_sampler_check(&sampler));
    sampler = make(0, 4, 2);
    CHECK_FAILS(ddp_sampler_check(&sampler), DDP_ERR_USAGE, "0 samples");
    sampler = make(10, 0, 2);
    CHECK_FAILS(ddp_sampler_check(&sampler), DDP_ERR_USAGE, "batch is 0");
    sampler = make(10, 4, 0);
    CHECK_FAILS(ddp_sampler_check(&sampler), DDP_ERR_USAGE, "0 logical shards");
    sampler = make(10, 11, 1);
    CHECK_OK(ddp_sampler_check(&sampler));
    sampler.drop_last = true;
    CHECK_FAILS(ddp_sampler_check(&sampler), DDP_ERR_USAGE, "leaves no batch");
}

/* Whatever the cut, the sum of what the shards take is what the epoch expects; and what is left
 * out, taken twice or taken from another epoch shows. */
static void test_ledger(void **state)
{
    (void)state;
    for (int64_t shards = 1; shards <= 5; shards++) {
        const ddp_sampler sampler = make(1000, 96, shards);
        const int64_t steps = ddp_sampler_steps(&sampler);
        ddp_ledger all = {0}, part;
        int64_t indices[96], first;
        for (int64_t step = steps - 1; step >= 0; step--) {
            ddp_ledger mine = {0};
            for (int64_t shard = 0; shard < shards; shard++) {
                int64_t count = ddp_sampler_shard(&sampler, step, shard, &first);
                ddp_sampler_indices(&sampler, 7, first, count, indices);
                ddp_ledger_add(&mine, 7, indices, count);
            }
            ddp_ledger_join(&all, &mine);
        }
        part = ddp_ledger_expect(&sampler, 7, steps);
        assert_int_equal(part.count, 1000);
        assert_true(ddp_ledger_equal(&all, &part));
        part = ddp_ledger_expect(&sampler, 8, steps);
        assert_false(ddp_ledger_equal(&all, &part));
        part = ddp_ledger_expect(&sampler, 7, steps - 1);
        assert_int_equal(part.count, 10 * 96);
        assert_false(ddp_ledger_equal(&all, &part));
        /* One sample in the place of another. */
        ddp_ledger wrong = {0};
        const int64_t same[] = {3, 3}, other[] = {3, 4};
        ddp_ledger_add(&wrong, 7, same, 2);
        part = (ddp_ledger){0};
        ddp_ledger_add(&part, 7, other, 2);
        assert_false(ddp_ledger_equal(&wrong, &part));
        part = ddp_ledger_expect(&sampler, 7, 0);
        assert_int_equal(part.count, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bijection),
        cmocka_unit_test(test_every_small_size),
        cmocka_unit_test(test_huge_sizes_stay_in_range),
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_known_cut),
        cmocka_unit_test(test_without_shuffle),
        cmocka_unit_test(test_keys_matter),
        cmocka_unit_test(test_order_is_fixed),
        cmocka_unit_test(test_uniform),
        cmocka_unit_test(test_batches_are_mixed),
        cmocka_unit_test(test_ledger),
        cmocka_unit_test(test_check),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
