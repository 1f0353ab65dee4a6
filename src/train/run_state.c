/* run_state.c - a run's position as JSON: 64-bit words as hexadecimal text, since JSON's numbers
 * lose bits elsewhere; doubles with all their digits. No state. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ddp/saver.h"

/* ---- writing ---- */

static void set_word(ddp_json *object, const char *key, uint64_t word)
{
    char text[20];
    snprintf(text, sizeof text, "%016" PRIx64, word);
    ddp_json_set_string(object, key, text);
}

static ddp_status add_object(ddp_json *parent, const char *key, ddp_json **object_out)
{
    DDP_TRY(ddp_json_object(object_out));
    ddp_json_set(parent, key, *object_out);
    return DDP_OK;
}

static ddp_status write_epoch(const ddp_run_state *state, ddp_json *object)
{
    ddp_json *part;
    DDP_TRY(add_object(object, "unfinished_epoch", &part));
    ddp_json_set_number(part, "loss_sum", state->loss);
    ddp_json_set_int(part, "samples", state->count);
    ddp_json_set_int(part, "loss_samples", state->loss_count);
    ddp_json_set_int(part, "skipped_steps", state->epoch_skipped);
    set_word(part, "ledger_sum", state->ledger.sum);
    set_word(part, "ledger_parity", state->ledger.parity);
    ddp_json_set_int(part, "ledger_samples", state->ledger.count);
    return DDP_OK;
}

/* Runs without a loss scale say nothing of it. */
static ddp_status write_scale(const ddp_run_state *state, ddp_json *object)
{
    ddp_json *part;
    if (state->scale.value == 0)
        return DDP_OK;
    DDP_TRY(add_object(object, "loss_scale", &part));
    ddp_json_set_number(part, "value", state->scale.value);
    ddp_json_set_int(part, "good_steps", state->scale.good_steps);
    return DDP_OK;
}

static ddp_status write_eval(const ddp_run_state *state, ddp_json *object)
{
    ddp_json *part;
    DDP_TRY(add_object(object, "evaluation", &part));
    ddp_json_set_int(part, "step", state->eval_step);
    ddp_json_set_int(part, "samples", state->eval.count);
    ddp_json_set_int(part, "top1", state->eval.top1);
    ddp_json_set_int(part, "top5", state->eval.top5);
    ddp_json_set_number(part, "loss", state->eval.loss);
    DDP_TRY(add_object(object, "best", &part));
    ddp_json_set_int(part, "step", state->best_step);
    ddp_json_set_number(part, "accuracy", state->best_accuracy);
    return DDP_OK;
}

ddp_status ddp_run_state_write(const ddp_run_state *state, ddp_json *object)
{
    ddp_json_set_int(object, "epoch", state->epoch);
    ddp_json_set_int(object, "step_in_epoch", state->step_in_epoch);
    ddp_json_set_int(object, "step", state->steps);
    ddp_json_set_int(object, "skipped_steps", state->skipped);
    ddp_json_set_int(object, "updates", state->updates);
    DDP_TRY(write_scale(state, object));
    DDP_TRY(write_epoch(state, object));
    return write_eval(state, object);
}

/* ---- reading ---- */

/* The first key that is wrong is kept. */
typedef struct reader {
    const ddp_json *object;
    const char *wrong;
} reader;

static int64_t get_int(reader *r, const char *key, int64_t least)
{
    int64_t value = 0;
    const bool good = r->object != NULL && ddp_json_as_int(ddp_json_get(r->object, key), &value) &&
                      value >= least;
    if (!good && r->wrong == NULL)
        r->wrong = key;
    return value;
}

/* Numbers that are not finite are written as null. */
static double get_number(reader *r, const char *key)
{
    double value = NAN;
    const ddp_json *member = r->object != NULL ? ddp_json_get(r->object, key) : NULL;
    if (member == NULL && r->wrong == NULL)
        r->wrong = key;
    return member != NULL && ddp_json_as_number(member, &value) ? value : NAN;
}

static uint64_t get_word(reader *r, const char *key)
{
    const char *text = "";
    const bool good = r->object != NULL &&
                      ddp_json_as_string(ddp_json_get(r->object, key), &text) &&
                      strlen(text) == 16 && strspn(text, "0123456789abcdef") == 16;
    if (!good && r->wrong == NULL)
        r->wrong = key;
    return good ? strtoull(text, NULL, 16) : 0;
}

static reader inner(const reader *r, const char *key)
{
    return (reader){ddp_json_get(r->object, key), r->wrong};
}

static void read_scale(reader *r, ddp_loss_scale *scale)
{
    reader part = inner(r, "loss_scale");
    if (part.object == NULL)
        return;
    scale->value = get_number(&part, "value");
    scale->good_steps = get_int(&part, "good_steps", 0);
    if (!(scale->value > 0) && part.wrong == NULL)
        part.wrong = "value";
    r->wrong = part.wrong;
}

static void read_parts(reader *r, ddp_run_state *state)
{
    reader part = inner(r, "unfinished_epoch");
    state->loss = get_number(&part, "loss_sum");
    state->count = get_int(&part, "samples", 0);
    state->loss_count = get_int(&part, "loss_samples", 0);
    state->epoch_skipped = get_int(&part, "skipped_steps", 0);
    state->ledger.sum = get_word(&part, "ledger_sum");
    state->ledger.parity = get_word(&part, "ledger_parity");
    state->ledger.count = get_int(&part, "ledger_samples", 0);
    r->wrong = part.wrong;
    part = inner(r, "evaluation");
    state->eval_step = get_int(&part, "step", -1);
    state->eval.count = get_int(&part, "samples", 0);
    state->eval.top1 = get_int(&part, "top1", 0);
    state->eval.top5 = get_int(&part, "top5", 0);
    state->eval.loss = get_number(&part, "loss");
    r->wrong = part.wrong;
    part = inner(r, "best");
    state->best_step = get_int(&part, "step", -1);
    state->best_accuracy = get_number(&part, "accuracy");
    r->wrong = part.wrong;
}

ddp_status ddp_run_state_read(const ddp_json *object, const char *what, ddp_run_state *state_out)
{
    reader r = {.object = object};
    ddp_run_state state = DDP_RUN_STATE_START;
    state.epoch = get_int(&r, "epoch", 0);
    state.step_in_epoch = get_int(&r, "step_in_epoch", 0);
    state.steps = get_int(&r, "step", 0);
    state.skipped = get_int(&r, "skipped_steps", 0);
    state.updates = get_int(&r, "updates", 0);
    read_scale(&r, &state.scale);
    read_parts(&r, &state);
    if (r.wrong != NULL)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: \"%s\" is missing or not what it should be", what,
                        r.wrong);
    *state_out = state;
    return DDP_OK;
}
