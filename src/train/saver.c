/* saver.c - decides about saving and stopping, and gathers what is saved. See saver.h. */
#include "ddp/saver.h"

#include <inttypes.h>

#include "ddp/log.h"
#include "ddp/memory.h"
#include "ddp/spans.h"
#include "ddp/thread.h"

enum {
    FLAG_ASKED = 1 << DDP_CKPT_FLAG_BITS,
    FLAG_TIME = 2 << DDP_CKPT_FLAG_BITS,
    FLAG_DUE = 4 << DDP_CKPT_FLAG_BITS, /* by the clock */
    CKPT_FLAGS = (1 << DDP_CKPT_FLAG_BITS) - 1
};

/* What a save is taken to need before one was measured. */
#define FIRST_SAVE_NS      INT64_C(1000000000)
#define BYTES_A_NANOSECOND 0.1

struct ddp_saver {
    ddp_saver_opts opts;
    ddp_saver_parts parts;
    ddp_ckpt *ckpt;                /* NULL: nothing is saved */
    int64_t saved_step;            /* of the last save that was begun */
    int64_t told;                  /* saves that were reported */
    int64_t last_save_ns;          /* when it was begun */
    int64_t last_call_ns, step_ns; /* the longest time between two steps lately */
    int64_t save_ns;               /* the longest that one took */
    bool due;                      /* at the epoch's end */
};

static bool is_root(const ddp_saver *s)
{
    return ddp_comm_rank(s->parts.comm) == 0;
}

static ddp_ckpt_parts parts_of(const ddp_saver_parts *p, const ddp_strategy_state *given)
{
    const ddp_strategy_state state = *given;
    ddp_ckpt_parts parts = {.device = p->device,
                            .table = ddp_model_params(p->model),
                            .params = ddp_strategy_params(p->strategy),
                            .owned = state.owned,
                            .owned_count = state.owned_count,
                            .buffers = ddp_model_buffers(p->model),
                            .combined = state.combined,
                            .counter = p->batches,
                            .shards = p->shards,
                            .first = p->first_shard,
                            .own = state.shards,
                            .running = state.running,
                            .seen = state.seen};
    for (int i = 0; i < state.optim.count; i++) {
        parts.flats[i].name = state.optim.flats[i].name;
        parts.flats[i].values = state.optim.flats[i].values;
    }
    parts.flat_count = state.optim.count;
    return parts;
}

/* ---- life ---- */

ddp_status ddp_saver_create(const ddp_saver_opts *opts, const ddp_saver_parts *parts,
                            ddp_saver **saver_out)
{
    const ddp_ckpt_opts ckpt = {.dir = opts->dir, .keep = opts->keep};
    ddp_ckpt_parts layout;
    ddp_strategy_state made;
    ddp_saver *s = NULL;
    ddp_status st = ddp_comm_agree(parts->comm, DDP_ALLOC(s, 1), "prepare checkpoints");
    if (st != DDP_OK)
        goto err;
    s->opts = *opts;
    s->parts = *parts;
    s->saved_step = opts->saved_step;
    s->last_save_ns = s->last_call_ns = ddp_now_ns();
    if (opts->dir != NULL) {
        DDP_TRY_GOTO(st, ddp_strategy_get_state(parts->strategy, false, &made), err);
        layout = parts_of(parts, &made);
        DDP_TRY_GOTO(st, ddp_ckpt_create(&ckpt, &layout, parts->comm, &s->ckpt), err);
    }
    *saver_out = s;
    return DDP_OK;
err:
    ddp_saver_destroy(s);
    return st;
}

void ddp_saver_destroy(ddp_saver *s)
{
    if (s == NULL)
        return;
    ddp_ckpt_destroy(s->ckpt);
    ddp_free(s);
}

/* ---- flags ---- */

/* Time for one more step and a save of everything. */
static int64_t reserve_ns(const ddp_saver *s)
{
    if (s->ckpt == NULL)
        return s->step_ns;
    const int64_t guess =
        FIRST_SAVE_NS + (int64_t)((double)ddp_ckpt_last(s->ckpt).bytes / BYTES_A_NANOSECOND);
    return 2 * s->step_ns + (s->save_ns > 0 ? 2 * s->save_ns : guess);
}

static bool clock_says_save(const ddp_saver *s, int64_t now)
{
    return s->ckpt != NULL && s->opts.minutes > 0 &&
           (double)(now - s->last_save_ns) >= s->opts.minutes * 60e9;
}

uint32_t ddp_saver_flags(ddp_saver *s)
{
    const int64_t now = ddp_now_ns(), taken = now - s->last_call_ns;
    uint32_t flags = s->ckpt != NULL ? ddp_ckpt_flags(s->ckpt) : 0;
    s->last_call_ns = now;
    /* Falls slowly, so that one long step is remembered for a while. */
    s->step_ns = taken > s->step_ns ? taken : s->step_ns - s->step_ns / 64;
    if (s->opts.asked != NULL && s->opts.asked() != 0)
        flags |= FLAG_ASKED;
    if (!is_root(s))
        return flags;
    if (s->opts.deadline_ns != DDP_NO_DEADLINE && now + reserve_ns(s) >= s->opts.deadline_ns)
        flags |= FLAG_TIME;
    return clock_says_save(s, now) ? flags | FLAG_DUE : flags;
}

/* ---- saving ---- */

static ddp_status tell(ddp_saver *s)
{
    const ddp_ckpt_report report = ddp_ckpt_last(s->ckpt);
    if (report.saves == s->told)
        return DDP_OK;
    s->told = report.saves;
    const int64_t taken = report.stall_ns + report.write_ns;
    s->save_ns = taken > s->save_ns ? taken : s->save_ns;
    return is_root(s) && s->opts.report != NULL ? s->opts.report(s->opts.arg, &report) : DDP_OK;
}

static ddp_status describe(const ddp_saver *s, const ddp_run_state *state,
                           const ddp_strategy_state *made, char **text_out)
{
    ddp_run_state whole = *state;
    whole.updates = made->optim.steps;
    whole.scale = made->scale;
    *text_out = NULL;
    return is_root(s) ? s->opts.describe(s->opts.arg, &whole, text_out) : DDP_OK;
}

static ddp_status begin(ddp_saver *s, const ddp_run_state *state, int64_t stopped_ns)
{
    ddp_ckpt_save save = {.step = state->steps,
                          .best = s->opts.keep_best ? state->best_step : -1,
                          .stopped_ns = stopped_ns};
    ddp_strategy_state made;
    char *text;
    DDP_TRY(ddp_strategy_get_shares(s->parts.strategy, &made));
    ddp_ckpt_parts parts = parts_of(&s->parts, &made);
    parts.counter += state->steps;
    DDP_TRY(
        ddp_comm_agree(s->parts.comm, describe(s, state, &made, &text), "describe a checkpoint"));
    save.state = text;
    s->saved_step = state->steps;
    s->last_save_ns = ddp_now_ns();
    s->due = false;
    const ddp_status st = ddp_ckpt_begin(s->ckpt, &parts, &save);
    ddp_free(text);
    return st;
}

/* A failure that the run outlives: the disk may have room later. */
static bool tolerable(ddp_status st)
{
    return st == DDP_ERR_IO || st == DDP_ERR_FORMAT;
}

static ddp_status wait_for_last(ddp_saver *s)
{
    const ddp_status st = ddp_ckpt_finish(s->ckpt);
    return st == DDP_OK || tolerable(st) ? tell(s) : st;
}

static ddp_status save(ddp_saver *s, const ddp_run_state *state)
{
    if (s->ckpt == NULL || s->saved_step == state->steps)
        return DDP_OK;
    const int64_t begin_ns = ddp_now_ns();
    DDP_TRY(wait_for_last(s));
    const ddp_status st = begin(s, state, begin_ns);
    ddp_spans_end(DDP_SPAN_CHECKPOINT, 0, begin_ns);
    if (!tolerable(st))
        return st;
    s->saved_step = -1;
    if (is_root(s))
        ddp_error("the checkpoint of step %" PRId64 " is not written: %s", state->steps,
                  ddp_status_message());
    return DDP_OK;
}

/* There is no next chance: what cannot be saved fails the run. */
static ddp_status save_last(ddp_saver *s, const ddp_run_state *state)
{
    if (s->ckpt == NULL)
        return DDP_OK;
    DDP_TRY(wait_for_last(s));
    const ddp_ckpt_report last = ddp_ckpt_last(s->ckpt);
    if (!s->opts.at_end || (s->saved_step == state->steps && (last.saves == 0 || last.good)))
        return DDP_OK;
    const int64_t begin_ns = ddp_now_ns();
    DDP_TRY(begin(s, state, begin_ns));
    DDP_TRY(ddp_ckpt_finish(s->ckpt));
    ddp_spans_end(DDP_SPAN_CHECKPOINT, 0, begin_ns);
    return tell(s);
}

ddp_status ddp_saver_after_step(ddp_saver *s, const ddp_run_state *state,
                                const ddp_step_stats *stats, bool last,
                                ddp_saver_verdict *verdict_out)
{
    const uint32_t any = stats->flags_any;
    *verdict_out = (any & FLAG_ASKED) != 0  ? DDP_SAVER_ASKED
                   : (any & FLAG_TIME) != 0 ? DDP_SAVER_TIME
                                            : DDP_SAVER_GO_ON;
    if (s->ckpt != NULL) {
        ddp_ckpt_advance(s->ckpt, any & CKPT_FLAGS, stats->flags_all & CKPT_FLAGS);
        DDP_TRY(tell(s));
    }
    if (*verdict_out != DDP_SAVER_GO_ON)
        return save_last(s, state);
    s->due |= (any & FLAG_DUE) != 0;
    s->due |= s->opts.every > 0 && state->steps % s->opts.every == 0;
    return s->due && !last ? save(s, state) : DDP_OK;
}

ddp_status ddp_saver_after_epoch(ddp_saver *s, const ddp_run_state *state)
{
    const bool best = s->opts.keep_best && state->best_step == state->steps;
    const bool epoch =
        s->opts.epochs > 0 && state->step_in_epoch == 0 && state->epoch % s->opts.epochs == 0;
    return s->due || best || epoch ? save(s, state) : DDP_OK;
}

ddp_status ddp_saver_finish(ddp_saver *s, const ddp_run_state *state)
{
    return save_last(s, state);
}

/* ---- loading ---- */

ddp_status ddp_saver_load(const char *path, const ddp_json *state, const ddp_saver_parts *parts,
                          ddp_run_state *state_out, int64_t *batches_out)
{
    ddp_ckpt_parts into;
    ddp_run_state found;
    ddp_strategy_state made;
    DDP_TRY(ddp_run_state_read(state, path, &found));
    DDP_TRY(ddp_strategy_get_state(parts->strategy, false, &made));
    into = parts_of(parts, &made);
    DDP_TRY(ddp_ckpt_load(path, &into));
    ddp_strategy_set_steps(parts->strategy, found.updates);
    ddp_strategy_set_scale(parts->strategy, found.scale);
    *batches_out = into.counter - found.steps;
    *state_out = found;
    return DDP_OK;
}
