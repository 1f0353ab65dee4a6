/* resume.c - the checkpoint that a run goes on from: found before there are ranks, since it decides
 * the batch and the number of logical shards; compared over ranks later.
 *
 * Every process looks for itself, and reads all of what it finds for its checksums. What the stored
 * run and this one may differ in is said; what they may not is refused. */
#include "app/resume.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "app/run.h"
#include "ddp/fs.h"
#include "ddp/memory.h"

#define USAGE(...) DDP_FAIL(DDP_ERR_USAGE, __VA_ARGS__)

struct ddpi_resume {
    char path[PATH_MAX]; /* "": nothing was found */
    ddp_json *state;
    char notes[DDP_CKPT_NOTE_BYTES];
    char changes[DDP_CKPT_NOTE_BYTES]; /* options that differ, a line each */
};

/* ---- finding ---- */

static ddp_status find_auto(const char *run_dir, ddpi_resume *r)
{
    char dir[PATH_MAX];

    DDP_TRY(ddp_fs_join(dir, sizeof dir, run_dir, DDPI_CHECKPOINTS));
    return ddp_ckpt_find(dir, r->path, sizeof r->path, &r->state, r->notes);
}

/* A run that has no checkpoint yet begins; one whose checkpoints are all damaged, or cannot be read
 * now, must not: its records would go. */
static ddp_status find_own(const char *run_dir, ddpi_resume *r)
{
    DDP_TRY(find_auto(run_dir, r));
    if (r->path[0] == 0 && r->notes[0] != 0)
        return DDP_FAIL(DDP_ERR_IO,
                        "option --resume auto: %.300s has checkpoints, but none to go on from: "
                        "%.600s",
                        run_dir, r->notes);
    return DDP_OK;
}

/* A checkpoint, a run's directory, or a folder of checkpoints. */
static ddp_status find_given(const char *given, ddpi_resume *r)
{
    char manifest[PATH_MAX];

    DDP_TRY(ddp_fs_join(manifest, sizeof manifest, given, "MANIFEST.json"));
    if (ddp_fs_exists(manifest)) {
        snprintf(r->path, sizeof r->path, "%s", given);
        return ddp_ckpt_check(r->path, &r->state);
    }
    if (!ddp_fs_exists(given))
        return DDP_FAIL(
            DDP_ERR_IO,
            "option --resume %.300s: is not there, expected auto, a run's directory or a "
            "checkpoint",
            given);
    DDP_TRY(find_auto(given, r));
    if (r->path[0] == 0 && r->notes[0] == 0)
        DDP_TRY(ddp_ckpt_find(given, r->path, sizeof r->path, &r->state, r->notes));
    if (r->path[0] == 0)
        return DDP_FAIL(DDP_ERR_IO, "option --resume %.300s: has no complete checkpoint%s%.600s",
                        given, r->notes[0] != 0 ? ": " : "", r->notes);
    return DDP_OK;
}

/* ---- what the stored run decides ---- */

static ddp_status stored_int(const ddpi_resume *r, const char *key, int64_t *value_out)
{
    if (!ddp_json_as_int(ddp_json_get(r->state, key), value_out) || *value_out < 1)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: state.json has no \"%s\"", r->path, key);
    return DDP_OK;
}

static ddp_status refuse(const ddp_config *config, const char *option, int64_t found, int64_t want)
{
    if (!ddp_options_was_set(config->options, option) || found == want)
        return DDP_OK;
    return USAGE("option --%s: found %" PRId64 ", but the run that goes on has %" PRId64
                 ", which cannot change",
                 option, found, want);
}

static void add_change(ddpi_resume *r, const char *name, const char *before, const char *now)
{
    const size_t used = strlen(r->changes);

    snprintf(r->changes + used, sizeof r->changes - used, "option --%s: was %s, is %s now\n", name,
             before[0] != 0 ? before : "not given", now[0] != 0 ? now : "not given");
}

/* The stored global batch and shards win over what is said per rank. */
static ddp_status apply_sizes(ddp_config *config, ddpi_resume *r)
{
    ddp_run_opts *run = &config->run;
    int64_t batch, shards;

    DDP_TRY(stored_int(r, "global_batch", &batch));
    DDP_TRY(stored_int(r, "logical_ranks", &shards));
    DDP_TRY(refuse(config, "batch-size", run->batch_size, batch));
    if (run->logical_ranks > 0)
        DDP_TRY(refuse(config, "logical-ranks", run->logical_ranks, shards));
    run->batch_size = batch;
    run->batch_per_rank = run->micro_batch = 0;
    run->accumulate = 1;
    run->logical_ranks = shards;
    config->uneven_shards = !run->exact;
    return DDP_OK;
}

/* ---- options ---- */

/* What a run cannot change on its way: it would be another run, or its state would not fit. */
static bool is_fixed(const char *name)
{
    static const char *const fixed[] = {"model",           "mlp-widths", "dataset",  "input-shape",
                                        "synthetic-train", "classes",    "seed",     "val-split",
                                        "drop-last",       "optimizer",  "precision"};

    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++)
        if (strcmp(name, fixed[i]) == 0)
            return true;
    return false;
}

bool ddpi_resume_stores(const char *name)
{
    static const char *const other[] = {"resume",
                                        "run-dir",
                                        "log-level",
                                        "trace-steps",
                                        "trace-slow",
                                        "spans",
                                        "quiet",
                                        "tensorboard",
                                        "threads",
                                        "workers",
                                        "loopback-ranks",
                                        "comm",
                                        "shared-memory",
                                        "comm-timeout",
                                        "limit-start",
                                        "limit-step",
                                        "limit-eval",
                                        "limit-checkpoint",
                                        "allreduce",
                                        "rank-weights",
                                        "batch-size",
                                        "batch-per-rank",
                                        "accumulate",
                                        "micro-batch",
                                        "logical-ranks",
                                        "save-weights",
                                        "init-weights",
                                        "init-partial",
                                        "max-steps",
                                        "time-limit",
                                        "checkpoint-every",
                                        "checkpoint-minutes",
                                        "keep",
                                        "checkpoint-epochs",
                                        "checkpoint-at-end",
                                        "keep-best",
                                        "check-replicas",
                                        "verify-data",
                                        "verify-world",
                                        "verify-grad",
                                        "verify-resume",
                                        "on-mismatch",
                                        "replay",
                                        "doctor",
                                        "inject"};

    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++)
        if (strcmp(name, other[i]) == 0)
            return false;
    return true;
}

typedef struct comparison {
    ddpi_resume *resume;
    const ddp_json *options; /* stored */
    char fixed[64];          /* the first that must not differ, but does */
    char before[256], now[256];
} comparison;

static void compare_option(void *arg, const char *name, const char *value)
{
    comparison *c = arg;
    const char *before;

    /* One that the stored run did not know had its default. */
    if (!ddpi_resume_stores(name) || !ddp_json_as_string(ddp_json_get(c->options, name), &before) ||
        strcmp(before, value) == 0)
        return;
    if (!is_fixed(name)) {
        add_change(c->resume, name, before, value);
        return;
    }
    if (c->fixed[0] != 0)
        return;
    snprintf(c->fixed, sizeof c->fixed, "%s", name);
    snprintf(c->before, sizeof c->before, "%s", before);
    snprintf(c->now, sizeof c->now, "%s", value);
}

static ddp_status compare_options(const ddp_config *config, ddpi_resume *r)
{
    comparison c = {.resume = r, .options = ddp_json_get(r->state, "options")};

    if (c.options == NULL || !ddp_json_is_object(c.options))
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: state.json has no \"options\"", r->path);
    ddp_options_visit(config->options, compare_option, &c);
    if (c.fixed[0] == 0)
        return DDP_OK;
    return USAGE(
        "option --%s: found %.100s, but the run that goes on from %.300s has %.100s, which "
        "cannot change",
        c.fixed, c.now, r->path, c.before);
}

/* ---- life ---- */

static ddp_status prepare(ddp_config *config, ddpi_resume *r)
{
    const ddp_run_opts *run = &config->run;

    if (strcmp(run->resume, "auto") == 0)
        DDP_TRY(find_own(run->run_dir, r));
    else
        DDP_TRY(find_given(run->resume, r));
    if (r->path[0] == 0)
        return DDP_OK;
    DDP_TRY(compare_options(config, r));
    return apply_sizes(config, r);
}

ddp_status ddpi_resume_find(ddp_config *config, ddpi_resume **resume_out)
{
    ddpi_resume *r;

    *resume_out = NULL;
    if (config->run.resume == NULL || strcmp(config->run.resume, "none") == 0)
        return DDP_OK;
    DDP_TRY(DDP_ALLOC(r, 1));
    ddp_status st = prepare(config, r);
    if (st != DDP_OK) {
        ddpi_resume_free(r);
        return st;
    }
    *resume_out = r;
    return DDP_OK;
}

void ddpi_resume_free(ddpi_resume *r)
{
    if (r == NULL)
        return;
    ddp_json_destroy(r->state);
    ddp_free(r);
}

const char *ddpi_resume_path(const ddpi_resume *r)
{
    return r != NULL && r->path[0] != 0 ? r->path : NULL;
}

const ddp_json *ddpi_resume_state(const ddpi_resume *r)
{
    return r->state;
}

const char *ddpi_resume_notes(const ddpi_resume *r)
{
    return r->notes;
}

const char *ddpi_resume_changes(const ddpi_resume *r)
{
    return r->changes;
}
