/* test_schedule.c - learning rates against values from PyTorch and from their formulas. */
#include "harness.h"

#include <math.h>

#include "ddp/schedule.h"
#include "golden.h"

/* Base 0.4, warm-up 5, total 20, minimum 0.04: the file's own. */
enum { WARMUP = 5, TOTAL = 20 };
static const double BASE = 0.4, MIN = 0.04;

typedef struct golden_case {
    const char *name;
    ddp_schedule schedule;
} golden_case;

#define COMMON .base = 0.4, .warmup_lr = -1, .power = 1, .total = TOTAL
static const golden_case cases[] = {
    {"cosine_warmup", {.kind = DDP_SCHEDULE_COSINE, .min = 0.04, .warmup = WARMUP, COMMON}},
    {"torch_cosine", {.kind = DDP_SCHEDULE_COSINE, .min = 0.04, COMMON}},
    {"torch_step", {.kind = DDP_SCHEDULE_STEP, .step_every = 6, .gamma = 0.5, COMMON}},
    {"torch_multistep",
     {.kind = DDP_SCHEDULE_STEP,
      .milestones = {4, 9, 15},
      .milestone_count = 3,
      .gamma = 0.1,
      COMMON}},
    {"linear_warmup_decay", {.kind = DDP_SCHEDULE_POLY, .warmup = WARMUP, COMMON}},
    {"linear_decay", {.kind = DDP_SCHEDULE_POLY, .min = 0.04, COMMON}},
#undef COMMON
#define COMMON .base = 0.4, .warmup = WARMUP, .total = TOTAL
    {"cosine_warmup_from_zero", {.kind = DDP_SCHEDULE_COSINE, .warmup_lr = 0, COMMON}},
    {"d2l_cosine", {.kind = DDP_SCHEDULE_COSINE, .min = 0.04, .warmup_lr = 0.1, COMMON}},
    {"torch_linear", {.kind = DDP_SCHEDULE_CONSTANT, .warmup_lr = 0.1, COMMON}},
    {"torch_sequential_warmup_cosine",
     {.kind = DDP_SCHEDULE_COSINE, .min = 0.04, .warmup_lr = 0.4 / 5, COMMON}},
#undef COMMON
};
enum { CASES = sizeof cases / sizeof cases[0] };

static double number(const ddp_json *value)
{
    double number = NAN;
    assert_true(ddp_json_as_number(value, &number));
    return number;
}

static void follow(const golden_case *c, const ddp_json *run)
{
    const ddp_json *rates = ddp_json_get(run, "lr");
    assert_true(ddp_json_length(rates) > TOTAL);
    for (size_t s = 0; s < ddp_json_length(rates); s++) {
        double want = number(ddp_json_at(rates, s));
        double got = ddp_schedule_lr(&c->schedule, (int64_t)s);
        if (!(fabs(got - want) <= 1e-12 * fabs(want)))
            fail_msg("%s, step %zu: got %.17g, want %.17g", c->name, s, got, want);
    }
}

static void every_golden_schedule_is_followed_to_1e_12(void **state)
{
    (void)state;
    ddp_json *golden;
    CHECK_OK(golden_load("golden_lr_schedules.json", &golden));
    assert_true(number(ddp_json_get(golden, "base")) == BASE);
    assert_true(number(ddp_json_get(golden, "min")) == MIN);
    const ddp_json *runs = ddp_json_get(golden, "runs");
    assert_int_equal(ddp_json_length(runs), CASES);
    int found = 0;
    for (size_t i = 0; i < ddp_json_length(runs); i++)
        for (int c = 0; c < CASES; c++) {
            const char *name;
            const ddp_json *run = ddp_json_at(runs, i);
            assert_true(ddp_json_as_string(ddp_json_get(run, "name"), &name));
            if (strcmp(name, cases[c].name) == 0) {
                follow(&cases[c], run);
                found++;
            }
        }
    assert_int_equal(found, CASES);
    ddp_json_destroy(golden);
}

static ddp_schedule made(const ddp_schedule_opts *opts)
{
    ddp_schedule s;
    CHECK_OK(ddp_schedule_make(opts, BASE, 10, 100, &s));
    return s;
}

static void epochs_become_steps(void **state)
{
    (void)state;
    ddp_schedule_opts opts = DDP_SCHEDULE_OPTS_DEFAULTS;
    opts.kind = DDP_SCHEDULE_STEP;
    opts.step_at = "3,6.5";
    opts.warmup_epochs = 0.5;
    ddp_schedule s = made(&opts);
    assert_int_equal(s.warmup, 5);
    assert_int_equal(s.milestone_count, 2);
    assert_int_equal(s.milestones[0], 30);
    assert_int_equal(s.milestones[1], 65);
    assert_true(ddp_schedule_lr(&s, 29) == BASE && ddp_schedule_lr(&s, 30) < 0.05);
    opts.step_at = NULL;
    opts.step_every = 2.5;
    assert_int_equal(made(&opts).step_every, 25);
    opts = (ddp_schedule_opts)DDP_SCHEDULE_OPTS_DEFAULTS;
    opts.kind = DDP_SCHEDULE_POLY;
    assert_int_equal(made(&opts).total, 100);
    opts.total_steps = 40;
    assert_int_equal(made(&opts).total, 40);
}

static void a_square_root_comes_down_by_its_power(void **state)
{
    (void)state;
    ddp_schedule_opts opts = DDP_SCHEDULE_OPTS_DEFAULTS;
    opts.kind = DDP_SCHEDULE_POLY;
    opts.power = 0.5;
    opts.min = 0.1;
    const ddp_schedule s = made(&opts);
    assert_true(fabs(ddp_schedule_lr(&s, 75) - (0.1 + 0.3 * 0.5)) < 1e-12);
    assert_true(ddp_schedule_lr(&s, 100) == 0.1 && ddp_schedule_lr(&s, 5000) == 0.1);
}

static void steps_do_not_go_below_the_minimum(void **state)
{
    (void)state;
    ddp_schedule_opts opts = DDP_SCHEDULE_OPTS_DEFAULTS;
    opts.kind = DDP_SCHEDULE_STEP;
    opts.step_every = 1;
    opts.min = 0.01;
    const ddp_schedule s = made(&opts);
    assert_true(fabs(ddp_schedule_lr(&s, 10) - 0.04) < 1e-12);
    assert_true(ddp_schedule_lr(&s, 90) == 0.01);
}

static void what_makes_no_schedule_is_refused(void **state)
{
    (void)state;
    ddp_schedule s;
    ddp_schedule_opts opts = DDP_SCHEDULE_OPTS_DEFAULTS;
    opts.kind = DDP_SCHEDULE_COSINE;
    opts.warmup_steps = 100;
    CHECK_FAILS(ddp_schedule_make(&opts, BASE, 10, 100, &s), DDP_ERR_USAGE, "--warmup-steps");
    opts.warmup_steps = 0;
    opts.min = 0.5;
    CHECK_FAILS(ddp_schedule_make(&opts, BASE, 10, 100, &s), DDP_ERR_USAGE, "--lr-min");
    opts = (ddp_schedule_opts)DDP_SCHEDULE_OPTS_DEFAULTS;
    opts.kind = DDP_SCHEDULE_STEP;
    const char *bad[] = {"", "1,", "a", "0", "-1", "2,2", "3,2", "1;2", "nan", "1,inf"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        opts.step_at = bad[i];
        CHECK_FAILS(ddp_schedule_check(&opts), DDP_ERR_USAGE, "--lr-step-at");
    }
    char many[4 * DDP_SCHEDULE_MAX_MILESTONES + 8] = "1";
    for (int i = 2; i <= DDP_SCHEDULE_MAX_MILESTONES + 1; i++)
        snprintf(many + strlen(many), sizeof many - strlen(many), ",%d", i);
    opts.step_at = many;
    CHECK_FAILS(ddp_schedule_check(&opts), DDP_ERR_USAGE, "at most 32");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_golden_schedule_is_followed_to_1e_12),
        cmocka_unit_test(epochs_become_steps),
        cmocka_unit_test(a_square_root_comes_down_by_its_power),
        cmocka_unit_test(steps_do_not_go_below_the_minimum),
        cmocka_unit_test(what_makes_no_schedule_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
