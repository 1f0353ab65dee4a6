/* timeline.c - when a timeline is written. See timeline.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ddp/log.h"
#include "ddp/memory.h"
#include "ddp/thread.h"
#include "train/timeline_impl.h"

enum {
    WARM_STEPS = 16,    /* before anything is called slow */
    MAX_SLOW_FILES = 3, /* of a run */
    NAME_BYTES = 64
};

/* A launcher does not signal all its processes at once: what comes so soon after a file asked for
 * that file. */
#define SAME_REQUEST_NS INT64_C(1000000000)

/* ---- life ---- */

static ddp_status name_layers(ddp_timeline *t)
{
    t->layer_count = ddp_model_layer_count(t->parts.model) + 1;
    DDP_TRY(DDP_ALLOC(t->layers, (size_t)t->layer_count));
    for (int i = 0; i + 1 < t->layer_count; i++)
        t->layers[i] = ddp_model_layer_name(t->parts.model, i);
    t->layers[t->layer_count - 1] = "loss";
    return DDP_OK;
}

ddp_status ddp_timeline_create(const ddp_timeline_opts *opts, const ddp_timeline_parts *parts,
                               ddp_timeline **timeline_out)
{
    ddp_timeline *t = NULL;
    ddp_status st = DDP_ALLOC(t, 1);
    if (st == DDP_OK) {
        t->opts = *opts;
        t->parts = *parts;
        t->answered = parts->asked != NULL ? parts->asked() : 0;
        st = name_layers(t);
    }
    st = ddp_comm_agree(parts->comm, st, "prepare a timeline");
    if (st == DDP_OK)
        st = ddp_clocks_look(parts->comm, &t->started);
    if (st != DDP_OK) {
        ddp_timeline_destroy(t);
        return st;
    }
    *timeline_out = t;
    return DDP_OK;
}

void ddp_timeline_destroy(ddp_timeline *t)
{
    if (t == NULL)
        return;
    ddp_free(t->layers);
    ddp_free(t);
}

/* ---- requests ---- */

static bool is_asked(ddp_timeline *t)
{
    const int asked = t->parts.asked != NULL ? t->parts.asked() : 0;
    if (asked == t->answered)
        return false;
    const bool same = t->answered_ns > 0 && ddp_now_ns() - t->answered_ns < SAME_REQUEST_NS;
    if (same)
        t->answered = asked;
    return !same;
}

uint32_t ddp_timeline_flags(ddp_timeline *t)
{
    uint32_t flags = is_asked(t) ? DDP_TIMELINE_ASKED : 0;
    if (t->slow && t->slow_files < MAX_SLOW_FILES)
        flags |= DDP_TIMELINE_SLOW;
    t->slow = false;
    return flags;
}

static int by_value(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int64_t median_ns(const ddp_timeline *t)
{
    const int64_t count = t->taken_count;
    const size_t n = (size_t)(count < DDPI_TIMELINE_KEPT ? count : DDPI_TIMELINE_KEPT);
    int64_t sorted[DDPI_TIMELINE_KEPT];
    memcpy(sorted, t->taken_ns, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_value);
    return sorted[n / 2];
}

void ddp_timeline_learn(ddp_timeline *t, int64_t taken_ns)
{
    if (t->opts.slow <= 0)
        return;
    if (t->taken_count >= WARM_STEPS && (double)taken_ns > t->opts.slow * (double)median_ns(t))
        t->slow = true;
    t->taken_ns[t->taken_count++ % DDPI_TIMELINE_KEPT] = taken_ns;
}

/* ---- files ---- */

static int64_t steps_of(const ddp_timeline *t)
{
    return t->opts.steps > 0 ? t->opts.steps : DDP_TIMELINE_STEPS;
}

/* Slow steps that follow each other are in one file. All ranks count alike. */
static bool takes_slow(ddp_timeline *t, int64_t step, uint32_t any)
{
    if ((any & DDP_TIMELINE_SLOW) == 0 || t->slow_files == MAX_SLOW_FILES ||
        (t->slow_files > 0 && step - t->slow_step < steps_of(t)))
        return false;
    t->slow_files++;
    t->slow_step = step;
    return true;
}

ddp_status ddp_timeline_after_step(ddp_timeline *t, int64_t step, uint32_t any)
{
    char name[NAME_BYTES];
    const bool asked = (any & DDP_TIMELINE_ASKED) != 0, slow = takes_slow(t, step, any);
    if (!asked && !slow)
        return DDP_OK;
    snprintf(name, sizeof name, "trace-step-%" PRId64 ".json", step);
    if (slow && ddp_comm_rank(t->parts.comm) == 0)
        ddp_info("step %" PRId64 " took more than %g times the median", step - 1, t->opts.slow);
    DDP_TRY(ddpi_timeline_write(t, name, steps_of(t)));
    t->answered_ns = ddp_now_ns();
    if (t->parts.asked != NULL)
        t->answered = t->parts.asked();
    return DDP_OK;
}

ddp_status ddp_timeline_finish(ddp_timeline *t)
{
    return t->opts.steps > 0 ? ddpi_timeline_write(t, "trace.json", t->opts.steps) : DDP_OK;
}
