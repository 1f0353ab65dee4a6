/* test_synthetic.c - made-up data: a function of (seed, split, index), learnable, and split without
 * overlap. */
#include "harness.h"

#include <stdlib.h>

#include "ddp/dataset.h"

enum { PIXELS = 2 * 5 * 7, COUNT = 400, CLASSES = 6 };

static ddp_comm *open_world(void)
{
    ddp_comm_opts opts = DDP_COMM_OPTS_DEFAULTS;
    opts.exit_on_failure = false;
    ddp_comm *comm = NULL;
    CHECK_OK(ddp_comm_loopback_open(&opts, 1, NULL, &comm));
    return comm;
}

static ddp_data_opts make_opts(void)
{
    return (ddp_data_opts){.dataset = "synthetic",
                           .input_shape = {3, {2, 5, 7}},
                           .synthetic_train = COUNT,
                           .synthetic_test = 90,
                           .synthetic_classes = CLASSES,
                           .seed = 11};
}

static ddp_dataset *open_set(const ddp_data_opts *opts, ddp_split split, ddp_comm *comm)
{
    ddp_dataset *dataset = NULL;
    CHECK_OK(ddp_dataset_open(ddp_dataset_synthetic(), opts, split, comm, &dataset));
    return dataset;
}

typedef struct sample {
    float pixels[PIXELS];
    int32_t label;
} sample;

static sample fetch(ddp_dataset *dataset, int64_t index)
{
    sample got;
    CHECK_OK(ddp_dataset_fetch(dataset, &index, 1, got.pixels, &got.label));
    return got;
}

static bool equal(const sample *a, const sample *b)
{
    return a->label == b->label && memcmp(a->pixels, b->pixels, sizeof a->pixels) == 0;
}

static void test_info(void **state)
{
    (void)state;
    ddp_comm *comm = open_world();
    ddp_data_opts opts = make_opts();
    ddp_dataset *train = open_set(&opts, DDP_SPLIT_TRAIN, comm);
    ddp_dataset *test = open_set(&opts, DDP_SPLIT_TEST, comm);
    assert_int_equal(ddp_dataset_get_info(train)->count, COUNT);
    assert_int_equal(ddp_dataset_get_info(test)->count, 90);
    assert_int_equal(ddp_dataset_get_info(test)->classes, CLASSES);
    assert_true(ddp_shape_equal(&ddp_dataset_get_info(test)->shape, &opts.input_shape));
    ddp_dataset_close(train);
    ddp_dataset_close(test);
    ddp_comm_close(comm);
}

static void test_pure_function(void **state)
{
    (void)state;
    ddp_comm *comm = open_world();
    ddp_data_opts opts = make_opts(), other = opts;
    other.seed = 12;
    ddp_dataset *a = open_set(&opts, DDP_SPLIT_TRAIN, comm);
    ddp_dataset *again = open_set(&opts, DDP_SPLIT_TRAIN, comm);
    ddp_dataset *test = open_set(&opts, DDP_SPLIT_TEST, comm);
    ddp_dataset *reseeded = open_set(&other, DDP_SPLIT_TRAIN, comm);
    int64_t indices[COUNT];
    float *all = calloc((size_t)COUNT * PIXELS, sizeof *all);
    int32_t labels[COUNT];
    assert_non_null(all);
    for (int64_t i = 0; i < COUNT; i++)
        indices[i] = COUNT - 1 - i;
    CHECK_OK(ddp_dataset_fetch(a, indices, COUNT, all, labels));
    int same_test = 0, same_seed = 0, same_next = 0;
    for (int64_t i = 0; i < COUNT; i++) {
        sample one = fetch(again, indices[i]);
        assert_int_equal(one.label, labels[i]);
        assert_memory_equal(one.pixels, all + i * PIXELS, sizeof one.pixels);
        sample elsewhere = fetch(reseeded, indices[i]);
        same_seed += equal(&one, &elsewhere);
        if (indices[i] < 90) {
            elsewhere = fetch(test, indices[i]);
            same_test += equal(&one, &elsewhere);
        }
        if (i > 0)
            same_next += memcmp(all + i * PIXELS, all + (i - 1) * PIXELS, sizeof one.pixels) == 0;
    }
    assert_int_equal(same_seed, 0);
    assert_int_equal(same_test, 0);
    assert_int_equal(same_next, 0);
    free(all);
    ddp_dataset_close(a);
    ddp_dataset_close(again);
    ddp_dataset_close(test);
    ddp_dataset_close(reseeded);
    ddp_comm_close(comm);
}

static void test_range_and_labels(void **state)
{
    (void)state;
    ddp_comm *comm = open_world();
    ddp_data_opts opts = make_opts();
    ddp_dataset *train = open_set(&opts, DDP_SPLIT_TRAIN, comm);
    int counts[CLASSES] = {0};
    for (int64_t i = 0; i < COUNT; i++) {
        sample got = fetch(train, i);
        assert_in_range(got.label, 0, CLASSES - 1);
        counts[got.label]++;
        for (int p = 0; p < PIXELS; p++)
            assert_true(got.pixels[p] >= 0 && got.pixels[p] <= 1);
    }
    /* 400 / 6 = 67, deviation 7.5 */
    for (int c = 0; c < CLASSES; c++)
        assert_in_range(counts[c], 30, 105);
    ddp_dataset_close(train);
    ddp_comm_close(comm);
}

/* Class means of the training split classify the test split: there is something to learn, and it
 * carries over. */
static void test_learnable(void **state)
{
    (void)state;
    ddp_comm *comm = open_world();
    ddp_data_opts opts = make_opts();
    ddp_dataset *train = open_set(&opts, DDP_SPLIT_TRAIN, comm);
    ddp_dataset *test = open_set(&opts, DDP_SPLIT_TEST, comm);
    double mean[CLASSES][PIXELS] = {{0}};
    int counts[CLASSES] = {0}, right = 0;
    for (int64_t i = 0; i < COUNT; i++) {
        sample got = fetch(train, i);
        counts[got.label]++;
        for (int p = 0; p < PIXELS; p++)
            mean[got.label][p] += (double)got.pixels[p];
    }
    for (int64_t i = 0; i < 90; i++) {
        sample got = fetch(test, i);
        int best = 0;
        double least = 1e30;
        for (int c = 0; c < CLASSES; c++) {
            double distance = 0;
            for (int p = 0; p < PIXELS; p++) {
                double gap = (double)got.pixels[p] - mean[c][p] / counts[c];
                distance += gap * gap;
            }
            if (distance < least) {
                least = distance;
                best = c;
            }
        }
        right += best == got.label;
    }
    assert_true(right >= 60); /* chance is 15 */
    ddp_dataset_close(train);
    ddp_dataset_close(test);
    ddp_comm_close(comm);
}

static void check_refused(ddp_data_opts opts, ddp_split split, const char *text)
{
    ddp_comm *comm = open_world();
    ddp_dataset *dataset = NULL;
    CHECK_FAILS(ddp_dataset_open(ddp_dataset_synthetic(), &opts, split, comm, &dataset),
                DDP_ERR_USAGE, text);
    assert_null(dataset);
    ddp_comm_close(comm);
}

static void test_refused(void **state)
{
    (void)state;
    ddp_data_opts opts = make_opts();
    opts.input_shape.ndim = 2;
    check_refused(opts, DDP_SPLIT_TRAIN, "2 dimensions, expected 3");
    opts = make_opts();
    opts.input_shape.dims[1] = 0;
    check_refused(opts, DDP_SPLIT_TRAIN, "2 x 0 x 7");
    opts.input_shape.dims[1] = INT64_C(1) << 60;
    check_refused(opts, DDP_SPLIT_TRAIN, "expected 1 to 268435456 elements");
    opts = make_opts();
    opts.synthetic_classes = 0;
    check_refused(opts, DDP_SPLIT_TRAIN, "0 classes");
    opts = make_opts();
    opts.synthetic_test = 0;
    check_refused(opts, DDP_SPLIT_TEST, "0 samples");
}

static void test_fetch_range(void **state)
{
    (void)state;
    ddp_comm *comm = open_world();
    ddp_data_opts opts = make_opts();
    ddp_dataset *train = open_set(&opts, DDP_SPLIT_TRAIN, comm);
    sample got;
    int64_t below = -1, above = COUNT;
    CHECK_FAILS(ddp_dataset_fetch(train, &below, 1, got.pixels, &got.label), DDP_ERR_INTERNAL,
                "sample -1 asked for, it has 400");
    CHECK_FAILS(ddp_dataset_fetch(train, &above, 1, got.pixels, &got.label), DDP_ERR_INTERNAL,
                "sample 400 asked for");
    CHECK_OK(ddp_dataset_fetch(train, NULL, 0, NULL, NULL));
    ddp_dataset_close(train);
    ddp_comm_close(comm);
}

/* A program's own data set that gives nonsense is refused, and closed again. */
static ddp_status odd_open(const ddp_data_opts *opts, ddp_split split, ddp_comm *comm,
                           ddp_dataset_info *info_out, void **self_out)
{
    (void)split;
    (void)comm;
    *info_out = (ddp_dataset_info){
        .shape = opts->input_shape, .count = opts->synthetic_train, .classes = 10};
    *self_out = (void *)(uintptr_t)opts->seed; /* counts how often it was closed */
    return DDP_OK;
}

static void odd_close(void *self, ddp_comm *comm)
{
    (void)comm;
    ++*(int *)self;
}

static void test_own_data_set_is_checked(void **state)
{
    static const ddp_dataset_ops ops = {.name = "odd", .open = odd_open, .close = odd_close};
    (void)state;
    ddp_comm *comm = open_world();
    int closed = 0;
    ddp_dataset *dataset = NULL;
    ddp_data_opts opts = make_opts();
    opts.seed = (uint64_t)(uintptr_t)&closed;
    opts.synthetic_train = 0;
    CHECK_FAILS(ddp_dataset_open(&ops, &opts, DDP_SPLIT_TRAIN, comm, &dataset), DDP_ERR_USAGE,
                "data set odd: 0 samples of shape 2x5x7 in 10 classes");
    assert_int_equal(closed, 1);
    opts.synthetic_train = 5;
    opts.input_shape.ndim = DDP_MAX_DIMS + 1;
    CHECK_FAILS(ddp_dataset_open(&ops, &opts, DDP_SPLIT_TRAIN, comm, &dataset), DDP_ERR_USAGE,
                "5 samples of shape (none)");
    assert_int_equal(closed, 2);
    opts.input_shape = make_opts().input_shape;
    CHECK_FAILS(ddp_dataset_open(&ops, &opts, DDP_SPLIT_TRAIN, comm, &dataset), DDP_ERR_USAGE,
                "data set odd has no image(), expected one from a set without fetch()");
    assert_int_equal(closed, 3);
    assert_null(dataset);
    ddp_comm_close(comm);
}

/* Which sample of the whole a view's sample is: they are all different. */
static int64_t find(ddp_dataset *whole, const sample *wanted)
{
    for (int64_t i = 0; i < COUNT; i++) {
        sample got = fetch(whole, i);
        if (equal(&got, wanted))
            return i;
    }
    fail_msg("a sample of the subset is not in the whole");
    return -1;
}

static void test_subset(void **state)
{
    enum { KEPT = 330 };
    (void)state;
    ddp_comm *comm = open_world();
    ddp_data_opts opts = make_opts();
    ddp_dataset *whole = open_set(&opts, DDP_SPLIT_TRAIN, comm), *kept, *held, *reseeded;
    CHECK_OK(ddp_dataset_subset(whole, 5, 0, KEPT, &kept));
    CHECK_OK(ddp_dataset_subset(whole, 5, KEPT, COUNT - KEPT, &held));
    CHECK_OK(ddp_dataset_subset(whole, 6, KEPT, COUNT - KEPT, &reseeded));
    assert_int_equal(ddp_dataset_get_info(kept)->count, KEPT);
    assert_int_equal(ddp_dataset_get_info(held)->count, COUNT - KEPT);
    int seen[COUNT] = {0}, moved = 0, other = 0;
    for (int64_t i = 0; i < COUNT; i++) {
        sample got = i < KEPT ? fetch(kept, i) : fetch(held, i - KEPT);
        int64_t place = find(whole, &got);
        moved += place != i;
        seen[place]++;
    }
    for (int64_t i = 0; i < COUNT; i++)
        assert_int_equal(seen[i], 1);
    assert_true(moved > COUNT / 2);
    for (int64_t i = 0; i < COUNT - KEPT; i++) {
        sample a = fetch(held, i), b = fetch(reseeded, i);
        other += !equal(&a, &b);
    }
    assert_true(other > (COUNT - KEPT) / 2);
    /* Many at once: more than the view translates in one piece. */
    int64_t indices[KEPT];
    int32_t labels[KEPT];
    float *pixels = calloc((size_t)KEPT * PIXELS, sizeof *pixels);
    for (int64_t i = 0; i < KEPT; i++)
        indices[i] = i;
    CHECK_OK(ddp_dataset_fetch(kept, indices, KEPT, pixels, labels));
    for (int64_t i = 0; i < KEPT; i++) {
        sample one = fetch(kept, i);
        assert_int_equal(labels[i], one.label);
        assert_memory_equal(pixels + i * PIXELS, one.pixels, sizeof one.pixels);
    }
    free(pixels);
    ddp_dataset *bad;
    CHECK_FAILS(ddp_dataset_subset(whole, 5, KEPT, COUNT - KEPT + 1, &bad), DDP_ERR_USAGE,
                "71 samples from 330 on does not fit");
    CHECK_FAILS(ddp_dataset_subset(whole, 5, 0, 0, &bad), DDP_ERR_USAGE, "does not fit");
    CHECK_FAILS(ddp_dataset_subset(whole, 5, -1, 2, &bad), DDP_ERR_USAGE, "does not fit");
    ddp_dataset_close(reseeded);
    ddp_dataset_close(held);
    ddp_dataset_close(kept);
    ddp_dataset_close(whole);
    ddp_comm_close(comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_info),
        cmocka_unit_test(test_pure_function),
        cmocka_unit_test(test_range_and_labels),
        cmocka_unit_test(test_learnable),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_fetch_range),
        cmocka_unit_test(test_own_data_set_is_checked),
        cmocka_unit_test(test_subset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
