/* test_optim.c - the update rules against float64 values, and updates by ranges that cut
 * parameters.
 *
 * SGD and AdamW follow recorded runs of PyTorch, LARS and LAMB those of a script of ours
 * (tests/data/golden/make_lars_lamb.py). Every step is made in two pieces, as owners of slices
 * would. */
#include "harness.h"

#include <math.h>

#include "ddp/optim.h"
#include "golden.h"

enum { WEIGHT = DDP_PARAM_TRAINABLE | DDP_PARAM_DECAY, BIAS = DDP_PARAM_TRAINABLE };
enum { STEPS = 10, MAX_PARAMS = 4, MAX_ELEMENTS = 16 };

typedef struct fixture {
    ddp_device *device;
    ddp_param_table *table;
    float *w, *g;
    int params;
} fixture;

static const ddp_param *param(const fixture *f, int index)
{
    return ddp_param_table_at(f->table, index);
}

static void add_param(fixture *f, const char *name, int64_t n, unsigned flags)
{
    ddp_param p = {.shape = {1, {n}}, .use_count = 1, .flags = flags};
    snprintf(p.name, sizeof p.name, "%s", name);
    p.init_number = (uint32_t)f->params;
    CHECK_OK(ddp_layout_plain(f->device, &p.shape, &p.layout));
    int index;
    CHECK_OK(ddp_param_table_add(f->table, &p, &index));
    ddp_layout_unref(p.layout);
    f->params++;
}

static void open_fixture(fixture *f)
{
    ddp_device_opts opts = DDP_DEVICE_OPTS_DEFAULTS;
    *f = (fixture){0};
    CHECK_OK(ddp_device_open(ddp_device_cpu(), &opts, &f->device));
    CHECK_OK(ddp_param_table_create(&f->table));
}

static void make_buffers(fixture *f)
{
    CHECK_OK(DDP_ALLOC(f->w, ddp_param_table_length(f->table)));
    CHECK_OK(DDP_ALLOC(f->g, ddp_param_table_length(f->table)));
}

static void close_fixture(fixture *f)
{
    ddp_free(f->w);
    ddp_free(f->g);
    ddp_param_table_destroy(f->table);
    ddp_device_close(f->device);
}

/* A step in two pieces that cut at `cut`; the squared norm of the mean gradient comes back. */
static double step(fixture *f, ddp_optim *optim, double lr, double count, size_t cut)
{
    ddp_stream *stream = ddp_device_main_stream(f->device);
    const ddp_range low = {0, cut}, high = {cut, ddp_param_table_length(f->table)};
    double grad_sq = 0;
    ddp_optim_begin(optim, lr, 1 / count);
    for (bool again = ddp_optim_measures(optim); again;) {
        size_t sums;
        CHECK_OK(ddp_optim_measure(optim, stream, f->w, f->g, high, true));
        CHECK_OK(ddp_optim_measure(optim, stream, f->w, f->g, low, true));
        CHECK_OK(ddp_optim_fetch(optim, stream));
        CHECK_OK(ddp_stream_sync(stream));
        grad_sq += ddp_optim_sums(optim, &sums)[0];
        again = ddp_optim_decide(optim);
    }
    CHECK_OK(ddp_optim_update(optim, stream, f->w, f->g, high, &grad_sq));
    CHECK_OK(ddp_optim_update(optim, stream, f->w, f->g, low, &grad_sq));
    ddp_optim_end(optim);
    return grad_sq;
}

/* ---- golden runs ---- */

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

/* The problem of a golden file: its parameters' elements one after the other. */
typedef struct problem {
    size_t count;
    size_t offset[MAX_ELEMENTS]; /* in the flat buffers */
    double w0[MAX_ELEMENTS], t[MAX_ELEMENTS], a[MAX_ELEMENTS];
} problem;

static void read_elements(fixture *f, problem *p, const ddp_json *source, int index)
{
    size_t n = ddp_json_length(ddp_json_get(source, "w0"));
    for (size_t i = 0; i < n; i++, p->count++) {
        assert_true(p->count < MAX_ELEMENTS);
        p->offset[p->count] = param(f, index)->offset + i;
        p->w0[p->count] = element(ddp_json_get(source, "w0"), i);
        p->t[p->count] = element(ddp_json_get(source, "t"), i);
        p->a[p->count] = element(ddp_json_get(source, "a"), i);
    }
}

static void read_problem(fixture *f, problem *p, const ddp_json *golden)
{
    const ddp_json *list = ddp_json_get(golden, "params");
    *p = (problem){0};
    if (list == NULL) {
        add_param(f, "w", (int64_t)ddp_json_length(ddp_json_get(golden, "w0")), WEIGHT);
        read_elements(f, p, golden, 0);
        return;
    }
    for (size_t i = 0; i < ddp_json_length(list); i++) {
        const ddp_json *entry = ddp_json_at(list, i);
        const char *name;
        assert_true(ddp_json_as_string(ddp_json_get(entry, "name"), &name));
        add_param(f, name, (int64_t)ddp_json_length(ddp_json_get(entry, "w0")),
                  strcmp(name, "weight") == 0 ? WEIGHT : BIAS);
        read_elements(f, p, entry, (int)i);
    }
}

static ddp_optim_opts run_options(const ddp_json *run, int kind)
{
    const ddp_json *o = ddp_json_get(run, "options");
    const ddp_json *betas = ddp_json_get(o, "betas");
    ddp_optim_opts opts = DDP_OPTIM_OPTS_DEFAULTS;
    opts.kind = kind;
    opts.lr = number(o, "lr", 0);
    opts.momentum = number(o, "momentum", 0);
    opts.dampening = number(o, "dampening", 0);
    opts.weight_decay = number(o, "weight_decay", 0);
    opts.nesterov = ddp_json_get(o, "nesterov") != NULL;
    opts.beta1 = betas != NULL ? element(betas, 0) : number(o, "beta1", 0.9);
    opts.beta2 = betas != NULL ? element(betas, 1) : number(o, "beta2", 0.999);
    opts.eps = number(o, "eps", 1e-8);
    opts.trust = number(o, "trust", 0.001);
    opts.clip_grad_norm = number(o, "clip_grad_norm", 0);
    return opts;
}

/* The gradients handed over are sums over `count` samples. */
static void follow_run(const ddp_json *golden, const ddp_json *run, int kind, double count)
{
    fixture f;
    problem p;
    open_fixture(&f);
    read_problem(&f, &p, golden);
    make_buffers(&f);
    for (size_t i = 0; i < p.count; i++)
        f.w[p.offset[i]] = (float)p.w0[i];
    ddp_optim_opts opts = run_options(run, kind);
    ddp_optim *optim;
    CHECK_OK(ddp_optim_create(&opts, f.device, f.table, &optim));
    const ddp_json *after = ddp_json_get(run, "w_after_step");
    assert_int_equal(ddp_json_length(after), STEPS);
    for (size_t s = 0; s < STEPS; s++) {
        double want_sq = 0;
        for (size_t i = 0; i < p.count; i++) {
            double grad = p.a[i] * (f.w[p.offset[i]] - p.t[i]);
            f.g[p.offset[i]] = (float)(grad * count);
            want_sq += grad * grad;
        }
        double got_sq = step(&f, optim, opts.lr, count, 3);
        assert_true(fabs(got_sq - want_sq) <= 1e-5 * want_sq + 1e-12);
        for (size_t i = 0; i < p.count; i++) {
            double want = element(ddp_json_at(after, s), i);
            if (!(fabs(f.w[p.offset[i]] - want) <= 2e-6))
                fail_msg("optimizer %d, step %zu element %zu: got %.9g, want %.9g", kind, s, i,
                         f.w[p.offset[i]], want);
        }
    }
    ddp_optim_destroy(optim);
    close_fixture(&f);
}

/* Follows the runs whose `key` is `value`; the number of them comes back. */
static int follow(const char *file, const char *key, const char *value, int kind)
{
    ddp_json *golden;
    int followed = 0;
    CHECK_OK(golden_load(file, &golden));
    const ddp_json *runs = ddp_json_get(golden, "runs");
    for (size_t i = 0; i < ddp_json_length(runs); i++) {
        const char *found;
        const ddp_json *run = ddp_json_at(runs, i);
        assert_true(ddp_json_as_string(ddp_json_get(run, key), &found));
        if (strcmp(found, value) != 0)
            continue;
        follow_run(golden, run, kind, 1);
        follow_run(golden, run, kind, 48);
        followed++;
    }
    ddp_json_destroy(golden);
    return followed;
}

static void sgd_and_adamw_follow_pytorch_for_every_option_set(void **state)
{
    (void)state;
    assert_int_equal(
        follow("golden_sgd_momentum_nesterov.json", "torch_class", "SGD", DDP_OPTIM_SGD), 7);
    assert_int_equal(follow("golden_adamw.json", "torch_class", "AdamW", DDP_OPTIM_ADAMW), 4);
}

static void lars_and_lamb_follow_the_papers_formulas(void **state)
{
    (void)state;
    assert_int_equal(follow("golden_lars_lamb.json", "optimizer", "lars", DDP_OPTIM_LARS), 3);
    assert_int_equal(follow("golden_lars_lamb.json", "optimizer", "lamb", DDP_OPTIM_LAMB), 3);
}

/* ---- settings of parameters ---- */

enum { N = 5 };

static void open_three(fixture *f)
{
    open_fixture(f);
    add_param(f, "fc.bias", N, BIAS);
    add_param(f, "fc.weight", N, WEIGHT);
    add_param(f, "conv.weight", N, WEIGHT);
    make_buffers(f);
}

static void fill(fixture *f, float w, float g)
{
    for (int i = 0; i < f->params; i++)
        for (size_t e = 0; e < N; e++) {
            f->w[param(f, i)->offset + e] = w;
            f->g[param(f, i)->offset + e] = g;
        }
}

static void all_elements_are(const fixture *f, int index, double want)
{
    for (size_t e = 0; e < N; e++) {
        float got = f->w[param(f, index)->offset + e];
        if (!(fabs(got - want) <= 1e-6))
            fail_msg("%s[%zu]: got %.9g, want %.9g", param(f, index)->name, e, got, want);
    }
}

/* One SGD step from w = 1, g = 1 with rate 0.1. */
static ddp_optim *stepped(fixture *f, const ddp_optim_opts *opts)
{
    ddp_optim *optim;
    fill(f, 1, 1);
    CHECK_OK(ddp_optim_create(opts, f->device, f->table, &optim));
    step(f, optim, 0.1, 1, 18);
    return optim;
}

static void decay_spares_biases_unless_all_have_it(void **state)
{
    (void)state;
    fixture f;
    open_three(&f);
    ddp_optim_opts opts = DDP_OPTIM_OPTS_DEFAULTS;
    opts.weight_decay = 0.5;
    ddp_optim_destroy(stepped(&f, &opts));
    all_elements_are(&f, 0, 0.9);
    all_elements_are(&f, 1, 0.85);
    opts.decay_on = DDP_DECAY_ON_ALL;
    ddp_optim_destroy(stepped(&f, &opts));
    all_elements_are(&f, 0, 0.85);
    close_fixture(&f);
}

static void later_groups_win_and_follow_the_schedule(void **state)
{
    (void)state;
    fixture f;
    open_three(&f);
    ddp_optim_opts opts = DDP_OPTIM_OPTS_DEFAULTS;
    opts.lr = 0.2; /* the step's rate is half of it */
    opts.weight_decay = 0.5;
    opts.groups = "*.weight:lr=0.4,wd=0;conv.*:wd=1;fc.bias:wd=2";
    ddp_optim_destroy(stepped(&f, &opts));
    all_elements_are(&f, 0, 1 - 0.1 * 3);
    all_elements_are(&f, 1, 1 - 0.2 * 1);
    all_elements_are(&f, 2, 1 - 0.2 * 2);
    close_fixture(&f);
}

static void frozen_parameters_stay_and_do_not_count(void **state)
{
    (void)state;
    fixture f;
    open_three(&f);
    CHECK_FAILS(ddp_param_table_freeze(f.table, "conv.*,nothing*"), DDP_ERR_USAGE, "\"nothing*\"");
    CHECK_OK(ddp_param_table_freeze(f.table, "conv.*,fc.bias"));
    ddp_optim_opts opts = DDP_OPTIM_OPTS_DEFAULTS;
    opts.weight_decay = 0.5;
    opts.clip_grad_norm = sqrt(N) / 2;
    ddp_optim *optim;
    CHECK_OK(ddp_optim_create(&opts, f.device, f.table, &optim));
    fill(&f, 1, 1);
    f.g[param(&f, 2)->offset] = NAN; /* nobody looks at it */
    double grad_sq = step(&f, optim, 0.1, 1, 18);
    assert_false(ddp_optim_vetoed(optim));
    assert_true(fabs(grad_sq - N) < 1e-9);
    for (size_t e = 0; e < N; e++) {
        assert_true(f.w[param(&f, 0)->offset + e] == 1);
        assert_true(f.w[param(&f, 2)->offset + e] == 1);
    }
    all_elements_are(&f, 1, 1 - 0.1 * (0.5 + 0.5)); /* half the gradient, all of the decay */
    ddp_optim_destroy(optim);
    CHECK_FAILS(ddp_param_table_freeze(f.table, "*"), DDP_ERR_USAGE, "nothing to train");
    close_fixture(&f);
}

/* ---- vetoes and averages ---- */

static void a_vetoed_step_changes_nothing(void **state)
{
    (void)state;
    const int kinds[] = {DDP_OPTIM_SGD, DDP_OPTIM_ADAMW, DDP_OPTIM_LARS, DDP_OPTIM_LAMB};
    for (int k = 0; k < 4; k++) {
        fixture f, want;
        ddp_optim *optim, *other;
        ddp_optim_opts opts = DDP_OPTIM_OPTS_DEFAULTS;
        opts.kind = kinds[k];
        opts.skip_nonfinite = true;
        opts.ema = 0.5;
        open_three(&f);
        open_three(&want);
        fill(&f, 1, INFINITY);
        CHECK_OK(ddp_optim_create(&opts, f.device, f.table, &optim));
        CHECK_OK(ddp_optim_create(&opts, want.device, want.table, &other));
        step(&f, optim, 0.1, 1, 18);
        assert_true(ddp_optim_vetoed(optim));
        assert_null(ddp_optim_average(optim));
        all_elements_are(&f, 1, 1);
        /* The steps after it are those of an optimizer that has never seen it. */
        fill(&want, 1, 1);
        for (int s = 0; s < 3; s++) {
            fill(&f, f.w[0], 1);
            step(&f, optim, 0.1, 1, 18);
            assert_false(ddp_optim_vetoed(optim));
            fill(&want, want.w[0], 1);
            step(&want, other, 0.1, 1, 18);
            assert_memory_equal(f.w, want.w, ddp_param_table_length(f.table) * sizeof(float));
        }
        assert_true(f.w[0] != 1);
        ddp_optim_destroy(optim);
        ddp_optim_destroy(other);
        close_fixture(&f);
        close_fixture(&want);
    }
}

static void the_average_starts_at_the_first_weights(void **state)
{
    (void)state;
    fixture f;
    open_three(&f);
    ddp_optim_opts opts = DDP_OPTIM_OPTS_DEFAULTS;
    opts.ema = 0.75;
    ddp_optim *optim;
    CHECK_OK(ddp_optim_create(&opts, f.device, f.table, &optim));
    fill(&f, 1, 1);
    assert_null(ddp_optim_average(optim));
    double average = 1, w = 1;
    for (int s = 0; s < 4; s++) {
        step(&f, optim, 0.1, 1, 18);
        w -= 0.1;
        average = 0.75 * average + 0.25 * w;
        const float *got = ddp_optim_average(optim);
        assert_non_null(got);
        for (int i = 0; i < f.params; i++)
            assert_true(fabs(got[param(&f, i)->offset + N - 1] - average) < 1e-6);
        assert_true(got[param(&f, 0)->offset + N] == 0); /* padding */
    }
    ddp_optim_destroy(optim);
    close_fixture(&f);
}

/* ---- refusals ---- */

static void refused(const ddp_optim_opts *opts, const char *text)
{
    fixture f;
    ddp_optim *optim;
    open_three(&f);
    CHECK_FAILS(ddp_optim_create(opts, f.device, f.table, &optim), DDP_ERR_USAGE, text);
    close_fixture(&f);
}

static void options_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    const ddp_optim_opts sane = DDP_OPTIM_OPTS_DEFAULTS;
    ddp_optim_opts opts = sane;
    opts.nesterov = true;
    refused(&opts, "--nesterov");
    opts = sane;
    opts.kind = DDP_OPTIM_ADAMW;
    opts.momentum = 0.9;
    refused(&opts, "--beta1");
    opts.momentum = 0;
    opts.beta2 = 1;
    refused(&opts, "--beta2");
    opts.beta2 = 0.9;
    opts.eps = 0;
    refused(&opts, "--eps");
    opts = sane;
    opts.kind = DDP_OPTIM_LARS;
    opts.dampening = 0.1;
    refused(&opts, "dampening");
    opts = sane;
    opts.ema = 1;
    refused(&opts, "--ema");
    opts = sane;
    opts.kind = 99;
    refused(&opts, "99");
}

static void texts_that_are_no_groups_are_refused(void **state)
{
    (void)state;
    const char *const bad[] = {
        "x",          ":lr=1",    "*:",        "*:lr",      "*:lr=",
        "*:lr=a",     "*:lr=-1",  "*:mom=0.9", "*:lr=1,",   "*:lr=1,,wd=0",
        "*:wd=0;x:w", "*:lr=nan", ";*:lr=1",   "*:lr=1 wd", "*:lr=1;;*:wd=0"};
    ddp_optim_opts opts = DDP_OPTIM_OPTS_DEFAULTS;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        opts.groups = bad[i];
        refused(&opts, "--param-group");
    }
    opts.groups = "fc.*:wd=0;nobody:lr=1";
    refused(&opts, "\"nobody\"");
    opts.groups = "fc.*:lr=1";
    opts.lr = 0;
    refused(&opts, "--lr 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sgd_and_adamw_follow_pytorch_for_every_option_set),
        cmocka_unit_test(lars_and_lamb_follow_the_papers_formulas),
        cmocka_unit_test(decay_spares_biases_unless_all_have_it),
        cmocka_unit_test(later_groups_win_and_follow_the_schedule),
        cmocka_unit_test(frozen_parameters_stay_and_do_not_count),
        cmocka_unit_test(a_vetoed_step_changes_nothing),
        cmocka_unit_test(the_average_starts_at_the_first_weights),
        cmocka_unit_test(options_that_make_no_sense_are_refused),
        cmocka_unit_test(texts_that_are_no_groups_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
