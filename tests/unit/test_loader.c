/* test_loader.c - batches are the same for any number of workers; failures, restarts and early
 * ends. */
#include "harness.h"

#include "ddp/loader.h"
#include "ddp/memory.h"
#include "ddp/rng.h"
#include "ddp/thread.h"

enum { CHANNELS = 2, PLANE = 6, PIXELS = CHANNELS * PLANE, SIZE = 103 };

/* A data set whose samples tell their index; some fail or take their time. */
typedef struct probe {
    int64_t bad;      /* this sample fails; -1: none */
    int64_t delay_ns; /* of every fetch, on average */
    int fetches;      /* through __atomic builtins */
} probe;

static float value_of(int64_t index, int64_t p)
{
    return (float)index + (float)p / 16;
}

static ddp_status probe_open(const ddp_data_opts *opts, ddp_split split, ddp_comm *comm,
                             ddp_dataset_info *info_out, void **self_out)
{
    (void)split;
    (void)comm;
    *info_out = (ddp_dataset_info){.shape = {3, {CHANNELS, 2, 3}}, .count = SIZE, .classes = 10};
    *self_out = (void *)(uintptr_t)opts->seed; /* the test's own probe */
    return DDP_OK;
}

static ddp_status probe_fetch(void *self, const int64_t *indices, int64_t n, float *dst,
                              int32_t *labels)
{
    probe *source = self;
    int number = __atomic_fetch_add(&source->fetches, 1, __ATOMIC_RELAXED);
    if (source->delay_ns > 0) {
        ddp_rng rng = ddp_rng_make(1, DDP_RNG_TEST, 0);
        float share = 2 * ddp_rng_uniform(&rng, (uint64_t)number);
        ddp_sleep_ns((int64_t)(share * (float)source->delay_ns));
    }
    for (int64_t i = 0; i < n; i++) {
        if (indices[i] == source->bad)
            return DDP_FAIL(DDP_ERR_IO, "sample %lld is not to be had", (long long)indices[i]);
        for (int64_t p = 0; p < PIXELS; p++)
            dst[i * PIXELS + p] = value_of(indices[i], p);
        labels[i] = (int32_t)(indices[i] % 10);
    }
    return DDP_OK;
}

static void probe_close(void *self, ddp_comm *comm)
{
    (void)self;
    (void)comm;
}

static const ddp_dataset_ops probe_ops = {
    .name = "probe", .open = probe_open, .fetch = probe_fetch, .close = probe_close};

/* What every test needs. */
typedef struct bench {
    probe source;
    ddp_comm *comm;
    ddp_device *device;
    ddp_dataset *dataset;
    ddp_loader_opts opts;
} bench;

static void bench_open(bench *b)
{
    ddp_comm_opts comm_opts = DDP_COMM_OPTS_DEFAULTS;
    ddp_device_opts device_opts = DDP_DEVICE_OPTS_DEFAULTS;
    comm_opts.exit_on_failure = false;
    memset(b, 0, sizeof *b);
    b->source.bad = -1;
    CHECK_OK(ddp_comm_loopback_open(&comm_opts, 1, NULL, &b->comm));
    CHECK_OK(ddp_device_open(ddp_device_cpu(), &device_opts, &b->device));
    ddp_data_opts data_opts = {.seed = (uint64_t)(uintptr_t)&b->source};
    CHECK_OK(ddp_dataset_open(&probe_ops, &data_opts, DDP_SPLIT_TRAIN, b->comm, &b->dataset));
    b->opts = (ddp_loader_opts){.sampler = {SIZE, 25, 4, 9, false, true},
                                .first_shard = 1,
                                .shard_count = 2,
                                .workers = 1,
                                .ring = 3};
}

static void bench_close(bench *b)
{
    ddp_dataset_close(b->dataset);
    ddp_device_close(b->device);
    ddp_comm_close(b->comm);
}

static ddp_loader *make_loader(bench *b)
{
    ddp_loader *loader = NULL;
    CHECK_OK(ddp_loader_create(&b->opts, b->dataset, b->device, &loader));
    return loader;
}

/* The batch must be what the sampler says for this place of the walk. */
static void check_batch(const bench *b, const ddp_batch *batch, int64_t epoch, int64_t step,
                        int64_t shard)
{
    int64_t first, count = ddp_sampler_shard(&b->opts.sampler, step, shard, &first);
    assert_int_equal(batch->epoch, epoch);
    assert_int_equal(batch->step, step);
    assert_int_equal(batch->shard, shard);
    assert_int_equal(batch->count, count);
    for (int64_t i = 0; i < count; i++) {
        int64_t index = ddp_sampler_index(&b->opts.sampler, epoch, first + i);
        assert_int_equal(batch->indices[i], index);
        assert_int_equal(batch->labels[i], index % 10);
        for (int64_t p = 0; p < PIXELS; p++)
            assert_true(batch->inputs[i * PIXELS + p] == value_of(index, p));
    }
    assert_true(batch->wait_ns >= 0);
}

/* Takes batches from (epoch, step) on, over `steps` steps. */
static void check_walk(const bench *b, ddp_loader *loader, int64_t epoch, int64_t step,
                       int64_t steps)
{
    int64_t per_epoch = ddp_sampler_steps(&b->opts.sampler);
    for (int64_t s = 0; s < steps; s++) {
        for (int64_t v = 0; v < b->opts.shard_count; v++) {
            const ddp_batch *batch = NULL;
            CHECK_OK(ddp_loader_next(loader, &batch));
            check_batch(b, batch, epoch, step, b->opts.first_shard + v);
        }
        if (++step == per_epoch) {
            step = 0;
            epoch++;
        }
    }
}

static void test_workers_do_not_matter(void **state)
{
    static const int workers[] = {0, 1, 3, 8}, rings[] = {2, 3, 7};
    (void)state;
    for (size_t w = 0; w < sizeof workers / sizeof *workers; w++)
        for (size_t r = 0; r < sizeof rings / sizeof *rings; r++) {
            bench b;
            bench_open(&b);
            b.source.delay_ns = 50000;
            b.opts.workers = workers[w];
            b.opts.ring = rings[r];
            ddp_loader *loader = make_loader(&b);
            CHECK_OK(ddp_loader_seek(loader, 0, 0));
            check_walk(&b, loader, 0, 0, 12);
            ddp_loader_destroy(loader);
            bench_close(&b);
        }
}

static void test_starts_at_zero_without_seek(void **state)
{
    (void)state;
    for (int workers = 0; workers < 3; workers += 2) {
        bench b;
        bench_open(&b);
        b.opts.workers = workers;
        ddp_loader *loader = make_loader(&b);
        check_walk(&b, loader, 0, 0, 2);
        ddp_loader_destroy(loader);
        bench_close(&b);
    }
}

static void test_seek(void **state)
{
    (void)state;
    for (int workers = 0; workers < 4; workers += 3) {
        bench b;
        bench_open(&b);
        b.source.delay_ns = 100000;
        b.opts.workers = workers;
        ddp_loader *loader = make_loader(&b);
        for (int round = 0; round < 20; round++) {
            CHECK_OK(ddp_loader_seek(loader, round % 4, round % 5));
            check_walk(&b, loader, round % 4, round % 5, round % 3);
        }
        /* The end of an epoch is the next one's beginning. */
        CHECK_OK(ddp_loader_seek(loader, 6, 5));
        check_walk(&b, loader, 7, 0, 1);
        CHECK_FAILS(ddp_loader_seek(loader, 0, 6), DDP_ERR_INTERNAL, "epoch 0, step 6 of 5");
        CHECK_FAILS(ddp_loader_seek(loader, -1, 0), DDP_ERR_INTERNAL, "epoch -1");
        CHECK_FAILS(ddp_loader_seek(loader, INT64_MAX, 0), DDP_ERR_INTERNAL, "cannot start");
        /* A refused seek changes nothing. */
        check_walk(&b, loader, 7, 1, 2);
        ddp_loader_destroy(loader);
        bench_close(&b);
    }
}

/* Until so many have begun; half a minute at most. */
static void await_fetches(probe *source, int count)
{
    const int64_t end_ns = ddp_deadline_after_ms(30000);
    while (__atomic_load_n(&source->fetches, __ATOMIC_RELAXED) < count && ddp_now_ns() < end_ns)
        ddp_sleep_ns(1000000);
}

static void test_batch_stays_until_next(void **state)
{
    (void)state;
    bench b;
    bench_open(&b);
    b.opts.workers = 3;
    b.opts.ring = 2;
    ddp_loader *loader = make_loader(&b);
    const ddp_batch *batch;
    CHECK_OK(ddp_loader_next(loader, &batch));
    await_fetches(&b.source, 2);
    ddp_sleep_ns(20000000); /* only one other slot is the workers': the rest is not for them */
    check_batch(&b, batch, 0, 0, 1);
    assert_int_equal(__atomic_load_n(&b.source.fetches, __ATOMIC_RELAXED), 2);
    ddp_loader_destroy(loader);
    bench_close(&b);
}

static void test_errors(void **state)
{
    (void)state;
    for (int workers = 0; workers < 4; workers++) {
        bench b;
        bench_open(&b);
        b.opts.workers = workers;
        int64_t first;
        (void)ddp_sampler_shard(&b.opts.sampler, 2, 2, &first);
        b.source.bad = ddp_sampler_index(&b.opts.sampler, 0, first + 1);
        char text[64];
        snprintf(text, sizeof text, "sample %lld is not to be had", (long long)b.source.bad);

        ddp_loader *loader = make_loader(&b);
        CHECK_OK(ddp_loader_seek(loader, 0, 0));
        check_walk(&b, loader, 0, 0, 2);
        const ddp_batch *batch = NULL;
        CHECK_OK(ddp_loader_next(loader, &batch));
        check_batch(&b, batch, 0, 2, 1);
        for (int again = 0; again < 2; again++) {
            (void)DDP_FAIL(DDP_ERR_USAGE, "another message");
            CHECK_FAILS(ddp_loader_next(loader, &batch), DDP_ERR_IO, text);
        }
        CHECK_OK(ddp_loader_seek(loader, 0, 3));
        check_walk(&b, loader, 0, 3, 1);
        ddp_loader_destroy(loader);
        bench_close(&b);
    }
}

static void test_early_end(void **state)
{
    (void)state;
    ddp_loader_destroy(NULL);
    for (int taken = -2; taken < 6; taken++)
        for (int workers = 0; workers < 5; workers += 2) {
            bench b;
            bench_open(&b);
            b.opts.workers = workers;
            b.source.delay_ns = 200000;
            ddp_loader *loader = make_loader(&b);
            if (taken > -2) /* -2: no worker has had anything to do */
                CHECK_OK(ddp_loader_seek(loader, 1, 1));
            for (int i = 0; i < taken; i++) {
                const ddp_batch *batch;
                CHECK_OK(ddp_loader_next(loader, &batch));
            }
            ddp_loader_destroy(loader);
            bench_close(&b);
        }
}

static void test_empty_shards(void **state)
{
    (void)state;
    for (int workers = 0; workers < 3; workers++) {
        bench b;
        bench_open(&b);
        b.opts.workers = workers;
        b.opts.sampler.batch = 5;
        b.opts.sampler.shards = 8;
        b.opts.first_shard = 3;
        b.opts.shard_count =
            5; /* two with a sample, three without; the last step has three samples */
        ddp_loader *loader = make_loader(&b);
        CHECK_OK(ddp_loader_seek(loader, 0, 19));
        check_walk(&b, loader, 0, 19, 4);
        ddp_loader_destroy(loader);
        bench_close(&b);
    }
}

static void test_drop_last(void **state)
{
    (void)state;
    bench b;
    bench_open(&b);
    b.opts.sampler.drop_last = true;
    ddp_loader *loader = make_loader(&b);
    CHECK_OK(ddp_loader_seek(loader, 0, 3));
    check_walk(&b, loader, 0, 3, 3); /* four steps an epoch: step 4 does not come */
    assert_int_equal(ddp_sampler_steps(&b.opts.sampler), 4);
    ddp_loader_destroy(loader);
    bench_close(&b);
}

/* What a transform does is test_transform.c's; here, that its output is what batches hold. */
static void test_transform(void **state)
{
    static const float mean[] = {0.5f, 3}, deviation[] = {2, 0.25f};
    ddp_transform_opts opts = {
        .mean = mean, .deviation = deviation, .channels = CHANNELS, .augment = "crop:2,flip"};
    (void)state;
    for (int augmented = 0; augmented < 2; augmented++) {
        bench b;
        bench_open(&b);
        ddp_transform *transform = NULL;
        CHECK_OK(
            ddp_transform_create(&opts, ddp_dataset_get_info(b.dataset), augmented, &transform));
        b.opts.transform = transform;
        ddp_loader *loader = make_loader(&b);
        const ddp_batch *batch;
        CHECK_OK(ddp_loader_seek(loader, 2, 0));
        CHECK_OK(ddp_loader_next(loader, &batch));
        assert_true(batch->count > 1 && batch->labels2 == NULL && batch->mix == NULL);
        for (int64_t i = 0; i < batch->count; i++) {
            float raw[PIXELS], want[PIXELS];
            ddp_image image = {.pixels = raw,
                               .channels = CHANNELS,
                               .height = 2,
                               .width = 3,
                               .stride_c = PLANE,
                               .stride_y = 3,
                               .stride_x = 1};
            for (int64_t p = 0; p < PIXELS; p++)
                raw[p] = value_of(batch->indices[i], p);
            ddp_transform_params params;
            ddp_transform_draw(transform, (ddp_transform_key){2, batch->indices[i]}, 2, 3, &params);
            ddp_transform_apply(transform, &image, &params, want);
            assert_memory_equal(batch->inputs + i * PIXELS, want, sizeof want);
        }
        ddp_loader_destroy(loader);
        ddp_transform_destroy(transform);
        bench_close(&b);
    }
}

static void test_no_allocation(void **state)
{
    (void)state;
    for (int workers = 0; workers < 3; workers++) {
        bench b;
        bench_open(&b);
        b.opts.workers = workers;
        ddp_loader *loader = make_loader(&b);
        ddp_mem_freeze();
        check_walk(&b, loader, 0, 0, 11);
        CHECK_OK(ddp_loader_seek(loader, 4, 1));
        check_walk(&b, loader, 4, 1, 6);
        uint64_t count = ddp_mem_allocs_since_freeze();
        ddp_mem_thaw();
        assert_int_equal(count, 0);
        ddp_loader_destroy(loader);
        bench_close(&b);
    }
}

/* Without workers the consumer waits for the fetch; with one that is ahead it does not, but for
 * what else the machine does in one of three calls. */
static void test_wait_time(void **state)
{
    (void)state;
    for (int workers = 0; workers < 2; workers++) {
        bench b;
        bench_open(&b);
        b.opts.workers = workers;
        b.source.delay_ns = 20000000;
        ddp_loader *loader = make_loader(&b);
        CHECK_OK(ddp_loader_seek(loader, 0, 0));
        int64_t waited = 0, least = INT64_MAX, begin_ns = ddp_now_ns(), elapsed = 0;
        for (int i = 0; i < 3; i++) { /* as many as the ring has */
            const ddp_batch *batch;
            if (workers > 0)
                await_fetches(&b.source, i + 2); /* this one is complete */
            begin_ns = ddp_now_ns();
            CHECK_OK(ddp_loader_next(loader, &batch));
            elapsed += ddp_now_ns() - begin_ns;
            waited += batch->wait_ns;
            least = batch->wait_ns < least ? batch->wait_ns : least;
        }
        assert_true(waited <= elapsed);
        if (workers == 0)
            assert_true(waited > elapsed / 2 && waited > 10000000);
        else
            assert_true(least < b.source.delay_ns / 10);
        ddp_loader_destroy(loader);
        bench_close(&b);
    }
}

static void check_refused(const bench *b, ddp_loader_opts opts, ddp_status status, const char *text)
{
    ddp_loader *loader = NULL;
    CHECK_FAILS(ddp_loader_create(&opts, b->dataset, b->device, &loader), status, text);
    assert_null(loader);
}

static void test_refused(void **state)
{
    (void)state;
    bench b;
    bench_open(&b);
    ddp_loader_opts opts = b.opts;
    opts.sampler.size = SIZE - 1;
    check_refused(&b, opts, DDP_ERR_INTERNAL, "for 102 samples, the data set has 103");
    opts = b.opts;
    opts.sampler.batch = 0;
    check_refused(&b, opts, DDP_ERR_USAGE, "batch is 0");
    opts = b.opts;
    opts.first_shard = 3;
    check_refused(&b, opts, DDP_ERR_INTERNAL, "shards 3 to 4 asked for, a step has 4");
    opts = b.opts;
    opts.shard_count = 0;
    check_refused(&b, opts, DDP_ERR_INTERNAL, "asked for");
    opts = b.opts;
    opts.ring = 1;
    check_refused(&b, opts, DDP_ERR_USAGE, "1 batches to keep ready, expected 2 to");
    opts = b.opts;
    opts.workers = -1;
    check_refused(&b, opts, DDP_ERR_USAGE, "-1 loader workers");
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_workers_do_not_matter),
        cmocka_unit_test(test_starts_at_zero_without_seek),
        cmocka_unit_test(test_seek),
        cmocka_unit_test(test_batch_stays_until_next),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_early_end),
        cmocka_unit_test(test_empty_shards),
        cmocka_unit_test(test_drop_last),
        cmocka_unit_test(test_transform),
        cmocka_unit_test(test_no_allocation),
        cmocka_unit_test(test_wait_time),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
