/* test_optim.c - SGD against float64 values from PyTorch, and updates by ranges. */
#include "harness.h"

#include <math.h>

#include "ddp/fs.h"
#include "ddp/json.h"
#include "ddp/memory.h"
#include "ddp/optim.h"

#define GOLDEN DDP_TEST_DATA "/golden/golden_sgd_momentum_nesterov.json"

typedef struct fixture {
    ddp_device *device;
    ddp_param_table *table;
    ddp_layout *layout;
} fixture;

/* One parameter of n elements. */
static void open_fixture(fixture *f, int64_t n)
{
    ddp_device_opts opts = DDP_DEVICE_OPTS_DEFAULTS;
    CHECK_OK(ddp_device_open(ddp_device_cpu(), &opts, &f->device));
    CHECK_OK(ddp_param_table_create(&f->table));
    ddp_param p = {.name = "w", .shape = {1, {n}}, .use_count = 1};
    CHECK_OK(ddp_layout_plain(f->device, &p.shape, &f->layout));
    p.layout = f->layout;
    int index;
    CHECK_OK(ddp_param_table_add(f->table, &p, &index));
}

static void close_fixture(fixture *f)
{
    ddp_param_table_destroy(f->table);
    ddp_layout_unref(f->layout);
    ddp_device_close(f->device);
}

static double number(const ddp_json *object, const char *key, double otherwise)
{
    double value = otherwise;
    const ddp_json *member = ddp_json_get(object, key);
    if (member != NULL)
        assert_true(ddp_json_as_number(member, &value));
    return value;
}

static double element(const ddp_json *array, size_t i)
{
    double value = NAN;
    assert_true(ddp_json_as_number(ddp_json_at(array, i), &value));
    return value;
}

static ddp_optim_opts run_options(const ddp_json *run)
{
    const ddp_json *o = ddp_json_get(run, "options");
    ddp_optim_opts opts = DDP_OPTIM_OPTS_DEFAULTS;
    opts.lr = number(o, "lr", 0);
    opts.momentum = number(o, "momentum", 0);
    opts.dampening = number(o, "dampening", 0);
    opts.weight_decay = number(o, "weight_decay", 0);
    opts.nesterov = ddp_json_get(o, "nesterov") != NULL;
    return opts;
}

/* The gradients handed over are sums over `count` samples. */
static void follow_run(const ddp_json *golden, const ddp_json *run, double count)
{
    enum { N = 7 };
    fixture f;
    open_fixture(&f, N);
    size_t length = ddp_param_table_length(f.table);
    float *w, *g;
    CHECK_OK(DDP_ALLOC(w, length));
    CHECK_OK(DDP_ALLOC(g, length));
    const ddp_json *a = ddp_json_get(golden, "a"), *t = ddp_json_get(golden, "t");
    for (size_t i = 0; i < N; i++)
        w[i] = (float)element(ddp_json_get(golden, "w0"), i);
    ddp_optim_opts opts = run_options(run);
    ddp_optim *optim;
    CHECK_OK(ddp_optim_create(&opts, f.device, f.table, &optim));
    const ddp_json *after = ddp_json_get(run, "w_after_step");
    assert_int_equal(ddp_json_length(after), 10);
    for (size_t step = 0; step < 10; step++) {
        double want_sq = 0, got_sq = 0;
        for (size_t i = 0; i < N; i++) {
            double grad = element(a, i) * (w[i] - element(t, i));
            g[i] = (float)(grad * count);
            want_sq += grad * grad;
        }
        ddp_optim_begin(optim, opts.lr, 1 / count);
        /* In two pieces, as owners of slices would. */
        ddp_stream *stream = ddp_device_main_stream(f.device);
        CHECK_OK(ddp_optim_update(optim, stream, w, g, (ddp_range){3, length}, &got_sq));
        CHECK_OK(ddp_optim_update(optim, stream, w, g, (ddp_range){0, 3}, &got_sq));
        ddp_optim_end(optim);
        assert_true(fabs(got_sq - want_sq) <= 1e-5 * want_sq + 1e-12);
        for (size_t i = 0; i < N; i++) {
            double want = element(ddp_json_at(after, step), i);
            if (fabs(w[i] - want) > 2e-6)
                fail_msg("step %zu element %zu: got %.9g, want %.9g", step, i, w[i], want);
        }
    }
    ddp_optim_destroy(optim);
    ddp_free(w);
    ddp_free(g);
    close_fixture(&f);
}

static void follows_pytorch_for_every_option_set(void **state)
{
    (void)state;
    char *text;
    size_t bytes;
    ddp_json *golden;
    CHECK_OK(ddp_fs_read(GOLDEN, 1 << 20, &text, &bytes));
    CHECK_OK(ddp_json_load(text, bytes, GOLDEN, &golden));
    const ddp_json *runs = ddp_json_get(golden, "runs");
    assert_true(ddp_json_length(runs) >= 5);
    for (size_t i = 0; i < ddp_json_length(runs); i++) {
        follow_run(golden, ddp_json_at(runs, i), 1);
        follow_run(golden, ddp_json_at(runs, i), 48);
    }
    ddp_json_destroy(golden);
    ddp_free(text);
}

static void refuses_nesterov_without_momentum(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, 4);
    ddp_optim_opts opts = DDP_OPTIM_OPTS_DEFAULTS;
    opts.nesterov = true;
    ddp_optim *optim;
    CHECK_FAILS(ddp_optim_create(&opts, f.device, f.table, &optim), DDP_ERR_USAGE, "--nesterov");
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_pytorch_for_every_option_set),
        cmocka_unit_test(refuses_nesterov_without_momentum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
