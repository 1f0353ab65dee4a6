/* test_run_state.c - where a run stands survives its way through JSON, bit by bit; what is missing
 * or of the wrong kind is named. */
#include "harness.h"

#include <math.h>

#include "ddp/memory.h"
#include "ddp/saver.h"

static const ddp_run_state example = {
    .epoch = 3,
    .step_in_epoch = 14,
    .steps = 1234567,
    .skipped = 2,
    .updates = 1234565,
    .loss = 0.1 + 0.2, /* more digits than a short number has */
    .count = 999,
    .loss_count = 990,
    .epoch_skipped = 1,
    .ledger = {UINT64_C(0xfedcba9876543210), UINT64_C(0x8000000000000001), 999},
    .eval_step = 1200000,
    .best_step = 900000,
    .eval = {.count = 100, .top1 = 90, .top5 = 99, .loss = 1.0 / 3},
    .best_accuracy = 0.91,
    .scale = {32768, 77},
};

static ddp_json *written(const ddp_run_state *state)
{
    ddp_json *object, *again;
    char *text;

    CHECK_OK(ddp_json_object(&object));
    CHECK_OK(ddp_run_state_write(state, object));
    CHECK_OK(ddp_json_text(object, 2, &text));
    CHECK_OK(ddp_json_load(text, strlen(text), "test", &again));
    ddp_json_destroy(object);
    ddp_free(text);
    return again;
}

static void all_bits_come_back(void **unused)
{
    ddp_run_state got;

    (void)unused;
    ddp_json *object = written(&example);
    CHECK_OK(ddp_run_state_read(object, "test", &got));
    ddp_json_destroy(object);
    assert_true(got.epoch == example.epoch && got.step_in_epoch == example.step_in_epoch);
    assert_true(got.steps == example.steps && got.skipped == example.skipped);
    assert_int_equal(got.updates, example.updates);
    assert_true(got.loss == example.loss && got.best_accuracy == example.best_accuracy);
    assert_true(got.count == example.count && got.loss_count == example.loss_count);
    assert_int_equal(got.epoch_skipped, example.epoch_skipped);
    assert_true(ddp_ledger_equal(&got.ledger, &example.ledger));
    assert_true(got.eval_step == example.eval_step && got.best_step == example.best_step);
    assert_true(got.eval.count == 100 && got.eval.top1 == 90 && got.eval.top5 == 99);
    assert_true(got.eval.loss == example.eval.loss);
    assert_true(got.scale.value == 32768 && got.scale.good_steps == 77);
}

static void runs_without_a_scale_say_nothing_of_it(void **unused)
{
    ddp_run_state state = example, got;

    (void)unused;
    state.scale = (ddp_loss_scale){0};
    ddp_json *object = written(&state);
    assert_null(ddp_json_get(object, "loss_scale"));
    CHECK_OK(ddp_run_state_read(object, "test", &got));
    assert_true(got.scale.value == 0);
    ddp_json_destroy(object);
}

static void what_is_not_finite_comes_back_as_no_number(void **unused)
{
    ddp_run_state state = example, got;

    (void)unused;
    state.loss = INFINITY;
    state.eval.loss = NAN;
    ddp_json *object = written(&state);
    CHECK_OK(ddp_run_state_read(object, "test", &got));
    assert_true(isnan(got.loss) && isnan(got.eval.loss));
    ddp_json_destroy(object);
}

/* Every key in turn is replaced by something else. */
static void each_key_is_needed(void **unused)
{
    static const char *const keys[] = {"epoch",   "step_in_epoch",    "step",       "skipped_steps",
                                       "updates", "unfinished_epoch", "evaluation", "best"};
    static const char *const inner[][2] = {{"unfinished_epoch", "ledger_sum"},
                                           {"unfinished_epoch", "samples"},
                                           {"evaluation", "top1"},
                                           {"best", "step"},
                                           {"loss_scale", "value"},
                                           {"loss_scale", "good_steps"}};
    ddp_run_state got;

    (void)unused;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        ddp_json *object = written(&example);
        ddp_json_set_string(object, keys[i], "-");
        CHECK_FAILS(ddp_run_state_read(object, "the file", &got), DDP_ERR_FORMAT, "the file: \"");
        ddp_json_destroy(object);
    }
    for (size_t i = 0; i < sizeof inner / sizeof inner[0]; i++) {
        ddp_json *object = written(&example);
        ddp_json *part = (ddp_json *)ddp_json_get(object, inner[i][0]);
        ddp_json_set_string(part, inner[i][1], "fedcba987654321");
        CHECK_FAILS(ddp_run_state_read(object, "the file", &got), DDP_ERR_FORMAT, inner[i][1]);
        ddp_json_destroy(object);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_bits_come_back),
        cmocka_unit_test(runs_without_a_scale_say_nothing_of_it),
        cmocka_unit_test(what_is_not_finite_comes_back_as_no_number),
        cmocka_unit_test(each_key_is_needed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
