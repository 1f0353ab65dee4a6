/* test_mixup.c - mixup's laws, what it makes of batches, and that neither it nor augmentation
 * depends on shards, ranks or workers.
 *
 * Bounds on statistics are four standard errors or the 1/1000 point of a chi-square. */
#include "harness.h"

#include <math.h>
#include <stdlib.h>

#include "ddp/loader.h"
#include "ddp/memory.h"
#include "ddp/rng.h"

enum { DRAWS = 20000, SIZE = 50, BATCH = 21, CHANNELS = 3, SIDE = 12, INPUT = 8 };
enum { INPUT_COUNT = CHANNELS * INPUT * INPUT, MAX_SIDE = 2 * SIDE };

/* ---- laws ---- */

/* Mean, variance and fourth moment of Beta(alpha, alpha). */
static void check_weights(double alpha)
{
    double mean = 0, second = 0, fourth = 0, n = DRAWS;
    for (int64_t i = 0; i < DRAWS; i++) {
        float weight = ddp_mixup_weight(3, alpha, (ddp_transform_key){i % 7, i});
        assert_true(weight >= 0 && weight <= 1);
        double d = (double)weight - 0.5;
        mean += d / n;
        second += d * d / n;
        fourth += d * d * d * d / n;
    }
    double variance = 1 / (4 * (2 * alpha + 1));
    double want_fourth = variance * variance * (3 - 6 / (2 * alpha + 3));
    double error = sqrt((want_fourth - variance * variance) / n);
    if (!(fabs(mean) < 4 * sqrt(variance / n)) || !(fabs(second - variance) < 4 * error) ||
        !(fabs(fourth - want_fourth) < 0.06 * want_fourth))
        fail_msg("alpha %g: mean - 1/2 = %g, variance %g, fourth moment %g; expected 0, %g, %g",
                 alpha, mean, second, fourth, variance, want_fourth);
}

static void test_weights(void **state)
{
    static const double alphas[] = {0.1, 0.2, 0.5, 1, 4, 50};
    (void)state;
    for (size_t i = 0; i < sizeof alphas / sizeof *alphas; i++)
        check_weights(alphas[i]);

    int64_t bins[20] = {0}, same = 0;
    double chi = 0;
    for (int64_t i = 0; i < DRAWS; i++) { /* Beta(1, 1) is uniform */
        float weight = ddp_mixup_weight(9, 1, (ddp_transform_key){0, i});
        bins[weight < 1 ? (int)(weight * 20) : 19]++;
        same += weight == ddp_mixup_weight(9, 1, (ddp_transform_key){1, i});
        same += weight == ddp_mixup_weight(8, 1, (ddp_transform_key){0, i});
    }
    for (int i = 0; i < 20; i++)
        chi += pow((double)bins[i] - DRAWS / 20.0, 2) / (DRAWS / 20.0);
    assert_true(chi < 43.8);
    assert_in_range(same, 0, 5);
    for (int64_t i = 0; i < 1000; i++) { /* powers that no double holds */
        float weight = ddp_mixup_weight(3, 1e-3, (ddp_transform_key){0, i});
        assert_true(weight >= 0 && weight <= 1);
    }
}

static void test_shifts(void **state)
{
    int64_t counts[8] = {0};
    double chi = 0;
    (void)state;
    assert_int_equal(ddp_mixup_shift(1, 0, 0, 1), 0);
    assert_int_equal(ddp_mixup_shift(1, 0, 0, 2), 1);
    for (int64_t i = 0; i < 8000; i++) {
        int64_t shift = ddp_mixup_shift(1, i % 3, i, 9);
        assert_in_range(shift, 1, 8);
        counts[shift - 1]++;
    }
    for (int i = 0; i < 8; i++)
        chi += pow((double)counts[i] - 1000, 2) / 1000;
    assert_true(chi < 24.4);
}

/* ---- batches ---- */

/* Noise; lent as [h][w][c] bytes of sizes that differ, or fetched as floats of one size. */
typedef struct source {
    uint8_t bytes[SIZE][CHANNELS * MAX_SIDE * MAX_SIDE];
} source;

static source noise;

static ddp_status source_open(ddp_dataset_info *info_out, void **self_out, bool variable)
{
    ddp_rng rng = ddp_rng_make(4, DDP_RNG_TEST, 0);
    for (size_t i = 0; i < sizeof noise.bytes; i++)
        noise.bytes[i / sizeof noise.bytes[0]][i % sizeof noise.bytes[0]] =
            (uint8_t)ddp_rng_u32(&rng, i);
    int64_t side = variable ? 0 : SIDE;
    *info_out = (ddp_dataset_info){
        .shape = {3, {CHANNELS, side, side}}, .count = SIZE, .classes = 10, .variable = variable};
    *self_out = &noise;
    return DDP_OK;
}

static ddp_status lent_open(const ddp_data_opts *opts, ddp_split split, ddp_comm *comm,
                            ddp_dataset_info *info_out, void **self_out)
{
    (void)opts;
    (void)split;
    (void)comm;
    return source_open(info_out, self_out, true);
}

static ddp_status fetched_open(const ddp_data_opts *opts, ddp_split split, ddp_comm *comm,
                               ddp_dataset_info *info_out, void **self_out)
{
    (void)opts;
    (void)split;
    (void)comm;
    return source_open(info_out, self_out, false);
}

static ddp_status lent_image(void *self, int64_t index, ddp_image *image_out)
{
    source *set = self;
    int64_t width = SIDE + index % (MAX_SIDE - SIDE);
    *image_out = (ddp_image){.pixels = set->bytes[index],
                             .bytes = true,
                             .channels = CHANNELS,
                             .height = SIDE + index * 5 % (MAX_SIDE - SIDE),
                             .width = width,
                             .stride_c = 1,
                             .stride_y = width * CHANNELS,
                             .stride_x = CHANNELS,
                             .label = (int32_t)(index % 10)};
    return DDP_OK;
}

static ddp_status fetched_fetch(void *self, const int64_t *indices, int64_t n, float *dst,
                                int32_t *labels)
{
    const source *set = self;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t p = 0; p < CHANNELS * SIDE * SIDE; p++)
            *dst++ = (float)set->bytes[indices[i]][p] / 255.0f;
        labels[i] = (int32_t)(indices[i] % 10);
    }
    return DDP_OK;
}

static void source_close(void *self, ddp_comm *comm)
{
    (void)self;
    (void)comm;
}

static const ddp_dataset_ops lent_ops = {
    .name = "lent", .open = lent_open, .close = source_close, .image = lent_image};
static const ddp_dataset_ops fetched_ops = {
    .name = "fetched", .open = fetched_open, .close = source_close, .fetch = fetched_fetch};

typedef struct bench {
    ddp_comm *comm;
    ddp_device *device;
    ddp_dataset *dataset;
    ddp_transform *transform;
    ddp_loader_opts opts;
} bench;

static void bench_open(bench *b, const ddp_dataset_ops *ops, const char *augment)
{
    static const float mean[] = {0.5f, 0.4f, 0.3f}, deviation[] = {0.2f, 0.25f, 0.3f};
    ddp_comm_opts comm_opts = DDP_COMM_OPTS_DEFAULTS;
    ddp_device_opts device_opts = DDP_DEVICE_OPTS_DEFAULTS;
    ddp_data_opts data_opts = {0};
    const ddp_transform_opts transform_opts = {.augment = augment,
                                               .input_size = INPUT,
                                               .seed = 6,
                                               .mean = mean,
                                               .deviation = deviation,
                                               .channels = CHANNELS};
    device_opts.threads = 1;
    CHECK_OK(ddp_comm_loopback_open(&comm_opts, 1, NULL, &b->comm));
    CHECK_OK(ddp_device_open(ddp_device_cpu(), &device_opts, &b->device));
    CHECK_OK(ddp_dataset_open(ops, &data_opts, DDP_SPLIT_TRAIN, b->comm, &b->dataset));
    CHECK_OK(ddp_transform_create(&transform_opts, ddp_dataset_get_info(b->dataset), true,
                                  &b->transform));
    b->opts = (ddp_loader_opts){.sampler = {SIZE, BATCH, 1, 9, false, true},
                                .shard_count = 1,
                                .ring = 3,
                                .transform = b->transform};
}

static void bench_close(bench *b)
{
    ddp_transform_destroy(b->transform);
    ddp_dataset_close(b->dataset);
    ddp_device_close(b->device);
    ddp_comm_close(b->comm);
}

/* What all shards of some steps hold, in order of positions. */
typedef struct record {
    int64_t count;
    float inputs[6 * BATCH][INPUT_COUNT];
    int32_t labels[6 * BATCH], labels2[6 * BATCH];
    int64_t indices[6 * BATCH];
    float mix[6 * BATCH];
} record;

enum { STEPS = 6 }; /* two epochs of three, the last step of eight samples */

static void append(record *r, const ddp_batch *batch)
{
    size_t n = (size_t)batch->count;
    memcpy(r->inputs[r->count], batch->inputs, n * sizeof r->inputs[0]);
    memcpy(r->labels + r->count, batch->labels, n * sizeof *r->labels);
    memcpy(r->indices + r->count, batch->indices, n * sizeof *r->indices);
    if (batch->mix != NULL) {
        memcpy(r->labels2 + r->count, batch->labels2, n * sizeof *r->labels2);
        memcpy(r->mix + r->count, batch->mix, n * sizeof *r->mix);
    }
    r->count += batch->count;
}

/* Ranks take turns: rank v has shard v of `shards`. */
static record *walk(const bench *b, int64_t shards, int workers, double mixup)
{
    record *r = calloc(1, sizeof *r);
    ddp_loader *loaders[8];
    assert_non_null(r);
    for (int64_t v = 0; v < shards; v++) {
        ddp_loader_opts opts = b->opts;
        opts.sampler.shards = shards;
        opts.first_shard = v;
        opts.workers = workers;
        opts.mixup = mixup;
        CHECK_OK(ddp_loader_create(&opts, b->dataset, b->device, &loaders[v]));
    }
    ddp_mem_freeze();
    for (int step = 0; step < STEPS; step++)
        for (int64_t v = 0; v < shards; v++) {
            const ddp_batch *batch;
            CHECK_OK(ddp_loader_next(loaders[v], &batch));
            assert_true((batch->mix != NULL) == (mixup > 0));
            assert_true((batch->labels2 != NULL) == (mixup > 0));
            append(r, batch);
        }
    assert_int_equal(ddp_mem_allocs_since_freeze(), 0);
    ddp_mem_thaw();
    for (int64_t v = 0; v < shards; v++)
        ddp_loader_destroy(loaders[v]);
    assert_int_equal(r->count, 2 * SIZE);
    return r;
}

static const struct {
    const ddp_dataset_ops *ops;
    const char *augment;
} cases[] = {
    {&lent_ops, "rrc,flip,cutout:3"},
    {&lent_ops, "crop:3,flip,cutout:3"},
    {&fetched_ops, "crop:2,flip,cutout:4"},
    {&fetched_ops, "rrc,flip"},
};

static void test_worlds_and_workers(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int mixed = 0; mixed < 2; mixed++) {
            bench b;
            bench_open(&b, cases[c].ops, cases[c].augment);
            record *one = walk(&b, 1, 0, mixed * 0.4);
            for (int64_t shards = 1; shards < 8; shards += 2)
                for (int workers = 0; workers < 4; workers += 3) {
                    record *other = walk(&b, shards, workers, mixed * 0.4);
                    assert_memory_equal(other, one, sizeof *one);
                    free(other);
                }
            free(one);
            bench_close(&b);
        }
}

/* Each sample is mixed with another of its step, as that one is without mixup. */
static void test_mixtures(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        bench b;
        bench_open(&b, cases[c].ops, cases[c].augment);
        record *plain = walk(&b, 1, 0, 0), *mixed = walk(&b, 3, 2, 0.7);
        for (int64_t i = 0; i < 2 * SIZE; i++) {
            int64_t epoch = i / SIZE, at = i % SIZE, step = at / BATCH, first = step * BATCH;
            int64_t count = SIZE - first < BATCH ? SIZE - first : BATCH;
            int64_t shift = ddp_mixup_shift(9, epoch, step, count);
            int64_t k = epoch * SIZE + first + (at - first + shift) % count;
            float w = ddp_mixup_weight(9, 0.7, (ddp_transform_key){epoch, plain->indices[i]});
            assert_int_not_equal(plain->indices[i], plain->indices[k]);
            assert_true(mixed->mix[i] == w);
            assert_int_equal(mixed->labels[i], plain->labels[i]);
            assert_int_equal(mixed->labels2[i], plain->labels[k]);
            for (int p = 0; p < INPUT_COUNT; p++) {
                float want = w * plain->inputs[i][p] + (1 - w) * plain->inputs[k][p];
                assert_true(fabsf(mixed->inputs[i][p] - want) <= 1e-6f);
            }
        }
        free(plain);
        free(mixed);
        bench_close(&b);
    }
}

/* An epoch's images are not those of the one before. */
static void test_epochs_differ(void **state)
{
    (void)state;
    bench b;
    bench_open(&b, &lent_ops, NULL); /* images differ in size: rrc,flip */
    record *r = walk(&b, 1, 0, 0);
    int64_t same = 0;
    for (int64_t i = 0; i < SIZE; i++)
        for (int64_t k = SIZE; k < 2 * SIZE; k++)
            if (r->indices[i] == r->indices[k])
                same += memcmp(r->inputs[i], r->inputs[k], sizeof r->inputs[i]) == 0;
    assert_int_equal(same, 0);
    free(r);
    bench_close(&b);
}

static void test_refused(void **state)
{
    (void)state;
    bench b;
    ddp_loader *loader;
    bench_open(&b, &lent_ops, NULL);
    b.opts.mixup = -0.1;
    CHECK_FAILS(ddp_loader_create(&b.opts, b.dataset, b.device, &loader), DDP_ERR_USAGE,
                "mixup with alpha -0.1");
    b.opts.mixup = 0;
    b.opts.transform = NULL;
    CHECK_FAILS(ddp_loader_create(&b.opts, b.dataset, b.device, &loader), DDP_ERR_INTERNAL,
                "needs a transform");
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights),       cmocka_unit_test(test_shifts),
        cmocka_unit_test(test_mixtures),      cmocka_unit_test(test_worlds_and_workers),
        cmocka_unit_test(test_epochs_differ), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
