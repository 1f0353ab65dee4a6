/* run_buckets.c - --bucket-cap-mb auto: chooses where the gradients' buckets end, before the first
 * step.
 *
 * First come the times of single sums, of gradients' completion and of the update. Then a few steps
 * are tried with buckets by size: their sums take longer beside computing than alone, and the curve
 * is stretched by that. Rank 0 finds the best cut of that model and tells the others, which makes
 * it the same everywhere. It is tried in turn, and taken unless it was slower. Where all ranks
 * share memory, sums are carried out by the ranks that wait for them: nothing hides them, and only
 * their number can be chosen. */
#include <math.h>

#include "app/buckets.h"
#include "ddp/memory.h"

static const double MIB = 1024.0 * 1024.0;

/* ---- memory ---- */

static ddp_status allocate(ddpi_run *run)
{
    const ddp_param_table *table = ddp_model_params(run->net.model);
    const int params = ddp_param_table_count(table);
    ddpi_buckets *b;

    DDP_TRY(DDP_ALLOC(run->buckets, 1));
    b = run->buckets;
    b->params = params;
    b->stretch = 1;
    DDP_TRY(DDP_ALLOC(b->bytes, (size_t)params));
    DDP_TRY(DDP_ALLOC(b->ready, (size_t)params));
    DDP_TRY(DDP_ALLOC(b->size.ends, (size_t)params));
    DDP_TRY(DDP_ALLOC(b->best.ends, (size_t)params));
    for (int i = 0; i < params; i++) {
        const size_t lo = ddp_param_table_at(table, i)->offset;
        const size_t hi = i + 1 < params ? ddp_param_table_at(table, i + 1)->offset
                                         : ddp_param_table_length(table);
        b->bytes[i] = (double)(hi - lo) * sizeof(float);
    }
    return DDP_OK;
}

void ddpi_run_close_buckets(ddpi_run *run)
{
    ddpi_buckets *b = run->buckets;

    if (b == NULL)
        return;
    ddp_free(b->bytes);
    ddp_free(b->ready);
    ddp_free(b->size.ends);
    ddp_free(b->best.ends);
    ddp_free(b);
    run->buckets = NULL;
}

/* ---- trying ---- */

static ddp_reducer_opts opts_of(const ddpi_run *run, const ddpi_cut *cut)
{
    ddp_reducer_opts opts = run->config.reducer;

    opts.overlap = run->config.run.strategy == DDP_STRATEGY_DDP;
    opts.cuts = cut->ends;
    opts.cut_count = cut->count;
    return opts;
}

static ddp_status open_reducer(ddpi_run *run, const ddpi_cut *cut, ddp_reducer **reducer_out)
{
    const ddp_reducer_opts opts = opts_of(run, cut);

    return ddp_reducer_create(&opts, ddp_model_params(run->net.model), run->net.device, run->comm,
                              reducer_out);
}

/* Passes that together take about so long. */
static int pass_count(double pass_seconds)
{
    const double enough = 2, least = 3, most = 6;

    return (int)fmax(least, fmin(most, enough / fmax(pass_seconds, 1e-9)));
}

/* Of the rank that has most: all ranks must come to the same number of passes. */
static int64_t most_shards(const ddpi_run *run)
{
    int64_t most = 1;

    for (int r = 0; r < run->world; r++)
        most = run->shares.counts[r] > most ? run->shares.counts[r] : most;
    return most;
}

/* Whole steps with the reducer, whose buckets are the cut's. */
static ddp_status try_cut(ddpi_passes *passes, ddp_reducer *reducer, ddpi_cut *cut,
                          double pass_seconds, ddpi_pass_times *times)
{
    DDP_TRY(ddpi_passes_run(passes, reducer, true, pass_count(pass_seconds), times));
    cut->exposed = times->exposed;
    cut->seconds = times->seconds;
    return DDP_OK;
}

/* Computing alone, then steps with buckets by size. */
static ddp_status measure_size(ddpi_run *run, ddpi_passes *passes, ddp_reducer *reducer)
{
    ddpi_buckets *b = run->buckets;
    ddpi_pass_times times = {.ready = b->ready};

    DDP_TRY(ddpi_passes_run(passes, reducer, false, 2, &times));
    b->forward = times.forward;
    b->backward = times.backward;
    if (run->world == 1)
        return DDP_OK;
    b->hidden = ddp_comm_works_aside(run->comm, ddp_reducer_grads(reducer),
                                     ddp_param_table_length(ddp_model_params(run->net.model)) *
                                         sizeof(float));
    const double pass_seconds = times.seconds * (double)most_shards(run);
    /* What is not hidden would count as part of backward. */
    double *ready = NULL;
    DDP_TRY(DDP_ALLOC(ready, (size_t)b->params));
    times.ready = b->hidden ? b->ready : ready;
    const ddp_status st = try_cut(passes, reducer, &b->size, pass_seconds, &times);
    ddp_free(ready);
    if (b->hidden)
        b->backward = times.backward;
    b->stretch = times.comm;
    return st;
}

/* ---- choosing ---- */

static ddp_cost_step step_of(const ddpi_buckets *b)
{
    return (ddp_cost_step){.count = b->params,
                           .bytes = b->bytes,
                           .ready = b->ready,
                           .backward = b->backward,
                           .curve = &b->curve,
                           .publish = b->publish.count > 0 ? &b->publish : NULL,
                           .hidden = b->hidden};
}

/* So that the buckets by size take in the model what they took when tried. */
static void stretch_curve(ddpi_buckets *b)
{
    const ddp_cost_step step = step_of(b);
    const double most = 8, alone = ddp_cost_cut(&step, b->size.ends, b->size.count).comm;
    ddp_cost_curve *curve = &b->curve;

    b->stretch = alone > 0 ? fmax(1, fmin(most, b->stretch / alone)) : 1;
    for (int i = 0; i < curve->count; i++) {
        curve->points[i].seconds *= b->stretch;
        b->publish.points[i].seconds *= b->stretch;
    }
}

static ddp_status solve(ddpi_run *run)
{
    ddpi_buckets *b = run->buckets;
    ddpi_cut *size = &b->size, *best = &b->best;

    stretch_curve(b);
    ddp_cost_step step = step_of(b);
    if (run->config.run.strategy != DDP_STRATEGY_DDP) /* all start when backward is over */
        step.hidden = false;
    DDP_TRY(ddpi_run_agree(run,
                           run->rank == 0 ? ddp_cost_choose_cut(&step, size->ends, size->count,
                                                                best->ends, &best->count)
                                          : DDP_OK,
                           "choose buckets"));
    DDP_TRY(ddp_comm_broadcast(run->comm, 0, &best->count, sizeof best->count));
    DDP_TRY(ddp_comm_broadcast(run->comm, 0, best->ends, (size_t)b->params * sizeof(int)));
    size->predicted = ddp_cost_cut(&step, size->ends, size->count).exposed;
    best->predicted = ddp_cost_cut(&step, best->ends, best->count).exposed;
    return DDP_OK;
}

/* What is exposed says more than whole steps, which differ a little from pass to pass whatever
 * their buckets are; but it must not have been paid for with slower computing. */
static bool is_better(const ddpi_cut *best, const ddpi_cut *size)
{
    const double alike = 1.02;

    return best->exposed < size->exposed && best->seconds <= alike * size->seconds;
}

static ddp_status try_best(ddpi_run *run, ddpi_passes *passes)
{
    ddpi_buckets *b = run->buckets;
    ddp_reducer *reducer = NULL;
    ddpi_pass_times times = {0};

    if (ddpi_cut_same(&b->size, &b->best))
        return DDP_OK;
    DDP_TRY(ddpi_run_agree(run, DDP_ALLOC(times.ready, (size_t)b->params), "try buckets"));
    ddp_status st = open_reducer(run, &b->best, &reducer);
    if (st == DDP_OK)
        st = try_cut(passes, reducer, &b->best, b->size.seconds, &times);
    ddp_reducer_destroy(reducer);
    ddp_free(times.ready);
    b->better = st == DDP_OK && is_better(&b->best, &b->size);
    return st;
}

static ddp_status choose(ddpi_run *run, ddpi_passes *passes)
{
    ddpi_buckets *b = run->buckets;
    const ddp_reducer_opts *opts = &run->config.reducer;
    const size_t flat = ddp_param_table_length(ddp_model_params(run->net.model));
    const double most = 16 * MIB;
    ddp_reducer *reducer = NULL;
    const ddp_cost_step step = step_of(b);

    b->size.count = ddp_cost_cut_by_size(&step, opts->first_bucket_mb * MIB,
                                         opts->bucket_cap_mb * MIB, b->size.ends);
    DDP_TRY(ddpi_buckets_time_update(run, &b->update_per_byte));
    if (run->world > 1)
        DDP_TRY(ddp_reducer_time_sums(opts, run->net.device, run->comm,
                                      fmin(most, (double)flat * sizeof(float)), &b->curve,
                                      &b->publish));
    ddp_status st = open_reducer(run, &b->size, &reducer);
    if (st == DDP_OK)
        st = measure_size(run, passes, reducer);
    ddp_reducer_destroy(reducer);
    if (st != DDP_OK || run->world == 1)
        return st;
    DDP_TRY(solve(run));
    return try_best(run, passes);
}

ddp_status ddpi_run_choose_buckets(ddpi_run *run)
{
    ddpi_passes *passes = NULL;

    if (!run->config.auto_buckets || run->config.run.eval_only || run->buckets != NULL)
        return DDP_OK;
    ddp_comm_note(run->comm, 0, "choosing buckets");
    run->config.reducer.hook = ddpi_wiring_hook(&run->config.run); /* as in training */
    ddp_status st = allocate(run);
    if (st == DDP_OK)
        st = ddpi_passes_create(run, &passes);
    st = ddpi_run_agree(run, st, "prepare to choose buckets");
    if (st == DDP_OK)
        st = choose(run, passes);
    ddpi_passes_destroy(passes);
    ddp_model_bind(run->net.model, NULL, NULL);
    if (st != DDP_OK || !run->buckets->better)
        return st;
    run->config.reducer.cuts = run->buckets->best.ends;
    run->config.reducer.cut_count = run->buckets->best.count;
    return DDP_OK;
}
