/* sync_step.c - the synchronous data-parallel step: shards forward and backward, exchange, control
 * word.
 *
 * Losses and gradients are sums over samples everywhere; the only division is by the count of the
 * global batch, in the optimizer (and here, for the norm that is reported). The count is known from
 * the sampler before the first update, and checked against what the ranks really computed in the
 * control word, which every rank gathers at the end of every step. ddp and sync differ in one flag.
 *
 * Nothing in a step waits for the device but its end, where losses, norm and times are read; and a
 * gate, where the optimizer has one.
 *
 * With exact sums, losses and norms are added over shards and blocks instead of over ranks: each
 * rank fills its own places of one array, which is summed over the ranks and then from first to
 * last. */
#include <math.h>
#include <string.h>

#include "ddp/spans.h"
#include "ddp/thread.h"
#include "strategy/graphs.h"

/* Keeps the epochs' generators apart; odd, so that no two of 2^64 epochs meet. */
#define EPOCH_STRIDE UINT64_C(0x9e3779b97f4a7c15)

/* Intervals of the main stream. */
enum { MARK_OTHER, MARK_FORWARD, MARK_BACKWARD, MARK_KINDS };

uint64_t ddp_strategy_seed(const ddp_strategy *s, int64_t epoch)
{
    return s->opts.seed + (uint64_t)epoch * EPOCH_STRIDE;
}

/* ---- this rank's part ---- */

ddp_status ddpi_step_take(ddp_strategy *s, ddp_loader *loader, int64_t shard,
                          ddpi_control_word *word, ddp_batch *batch_out)
{
    const ddp_batch *batch;
    const int64_t begin_ns = ddp_now_ns();
    ddp_comm_note(s->comm, -1, "loading data");
    DDP_TRY(ddp_loader_next(loader, &batch));
    ddp_spans_end(DDP_SPAN_DATA, (int32_t)shard, begin_ns);
    ddp_comm_note(s->comm, -1, "training step");
    if (shard == 0)
        s->first_shard = batch->shard;
    *batch_out = *batch;
    batch_out->shard = shard; /* the loader counts over all ranks */
    ddpi_running_count(s->running, shard, batch->count);
    word->times.data_ns += batch->wait_ns;
    word->count += batch->count;
    ddp_ledger_add(&word->ledger, batch->epoch, batch->indices, batch->count);
    return DDP_OK;
}

static ddp_status forward(ddp_strategy *s, const ddp_batch *batch)
{
    const ddp_model_input input = {.inputs = batch->inputs,
                                   .labels = batch->labels,
                                   .count = batch->count,
                                   .labels2 = batch->labels2,
                                   .mix = batch->mix,
                                   .sample_ids = batch->sample_ids,
                                   .loss_scale = s->scale_place.there,
                                   .seed = ddp_strategy_seed(s, batch->epoch),
                                   .live_seed = s->live_seed};
    ddp_model_bind(s->model, ddp_reducer_params(s->reducer), ddp_reducer_grads(s->reducer));
    ddpi_running_select(s->running, batch->shard);
    return ddp_model_forward(s->model, &input, &s->results[1 + batch->shard]);
}

/* Every shard sets the same marks, those without samples too. */
ddp_status ddpi_step_shard(ddp_strategy *s, const ddp_batch *batch)
{
    ddp_stream *stream = ddp_device_main_stream(s->device);
    DDP_TRY(ddp_reducer_begin(s->reducer, batch->shard));
    DDP_TRY(ddp_marks_set(s->marks, stream, MARK_OTHER));
    int64_t begin_ns = ddp_now_ns();
    if (batch->count > 0)
        DDP_TRY(forward(s, batch));
    begin_ns += ddp_spans_end(DDP_SPAN_FORWARD, (int32_t)batch->shard, begin_ns);
    DDP_TRY(ddp_marks_set(s->marks, stream, MARK_FORWARD));
    /* Completes gradients, which starts buckets. */
    DDP_TRY(batch->count > 0 ? ddp_model_backward(s->model) : ddp_reducer_skip(s->reducer));
    ddp_spans_end(DDP_SPAN_BACKWARD, (int32_t)batch->shard, begin_ns);
    return ddp_marks_set(s->marks, stream, MARK_BACKWARD);
}

void ddpi_step_reset(ddp_strategy *s)
{
    s->measured_sq = 0;
    s->decided = s->refused = false;
    memset(s->results, 0, (1 + (size_t)s->opts.reducer.shards) * sizeof *s->results);
    if (s->exact != NULL)
        memset(s->exact, 0, s->exact_count * sizeof *s->exact);
}

ddp_status ddpi_step_begin(ddp_strategy *s)
{
    ddp_marks_clear(s->marks);
    DDP_TRY(ddpi_scale_send(&s->scale_place, s->scale.value));
    return ddp_device_zero(s->device, ddp_device_main_stream(s->device), s->grad_sq,
                           sizeof *s->grad_sq);
}

static ddp_status compute(ddp_strategy *s, ddp_loader *loader, ddpi_control_word *word)
{
    ddpi_step_reset(s);
    DDP_TRY(ddpi_step_begin(s));
    for (int64_t i = 0; i < s->opts.reducer.shards; i++) {
        ddp_batch batch;
        DDP_TRY(ddpi_step_take(s, loader, i, word, &batch));
        DDP_TRY(ddpi_step_shard(s, &batch));
    }
    return DDP_OK;
}

static void collect_exact(ddp_strategy *s, ddpi_control_word *word)
{
    size_t count;
    memcpy(s->exact + s->first_shard, s->results + 1,
           (size_t)s->opts.reducer.shards * sizeof *s->exact);
    if (ddp_optim_measures(s->optim))
        return;
    (void)ddp_optim_sums(s->optim, &count); /* from here on knows what was fetched */
    word->grad_sq = ddp_optim_grad_sq(s->optim);
}

/* On a device: when the main stream, which has just come to the end of the step, did what. */
static ddp_status keep_stream(const ddp_strategy *s, int64_t end_ns)
{
    static const int kinds[MARK_KINDS] = {
        [MARK_OTHER] = -1, [MARK_FORWARD] = DDP_SPAN_FORWARD, [MARK_BACKWARD] = DDP_SPAN_BACKWARD};
    const ddp_marks *marks = ddp_reducer_marks(s->reducer);
    if (ddp_device_is_host(s->device) || marks == NULL)
        return DDP_OK;
    DDP_TRY(ddp_marks_spans(s->marks, marks, end_ns, kinds));
    return ddp_reducer_stream_spans(s->reducer, end_ns);
}

/* Waits for the step's end, and fills in what is known then. */
static ddp_status collect(ddp_strategy *s, bool replayed, ddpi_control_word *word)
{
    ddp_stream *stream = ddp_device_main_stream(s->device);
    int64_t ns[MARK_KINDS] = {0};
    ddp_reducer_times times;
    DDP_TRY(ddp_device_copy(s->device, stream, &s->results[0], s->grad_sq, sizeof *s->grad_sq,
                            DDP_COPY_TO_HOST));
    if (s->exact != NULL)
        DDP_TRY(ddp_optim_fetch(s->optim, stream));
    DDP_TRY(replayed ? ddpi_graphs_collect(s->graphs, &times)
                     : ddp_reducer_collect(s->reducer, &times));
    DDP_TRY(keep_stream(s, ddp_now_ns()));
    DDP_TRY(ddp_marks_add(s->marks, ns, MARK_KINDS));
    word->times.forward_ns = ns[MARK_FORWARD];
    word->times.backward_ns = ns[MARK_BACKWARD];
    word->times.comm_ns += times.comm_ns;
    word->times.exposed_ns += times.exposed_ns;
    word->times.optim_ns += times.update_ns;
    word->comm_bytes += times.bytes;
    word->loss_sum = ddpi_strategy_loss(s);
    word->grad_sq = s->results[0] + s->measured_sq;
    if (s->exact != NULL)
        collect_exact(s, word);
    if (s->refused)
        word->grad_sq = NAN; /* what was not applied was not added either */
    return DDP_OK;
}

/* ---- all ranks' parts ---- */

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The rank to name: a loss is its rank's own, while a gradient is owned by whoever reduced it. */
static int find_nonfinite(const ddpi_control_word *words, int world)
{
    for (int r = 0; r < world; r++)
        if (!isfinite(words[r].loss_sum))
            return r;
    for (int r = 0; r < world; r++)
        if (!isfinite(words[r].grad_sq))
            return r;
    return -1;
}

static int find_damaged(const ddpi_control_word *words, int world)
{
    for (int r = 0; r < world; r++)
        if (words[r].damaged != 0)
            return r;
    return -1;
}

static int64_t compute_of(const ddp_rank_times *t)
{
    return larger(0, t->step_ns - t->data_ns - t->exposed_ns);
}

/* What the mean rank waits for the slowest is its exposed time above the least. */
static void average(ddp_step_stats *stats)
{
    stats->least_exposed_ns = stats->ranks[0].exposed_ns;
    for (int r = 0; r < stats->rank_count; r++) {
        const ddp_rank_times *t = &stats->ranks[r];
        stats->mean_data_ns += t->data_ns;
        stats->mean_exposed_ns += t->exposed_ns;
        stats->mean_compute_ns += compute_of(t);
        if (t->exposed_ns < stats->least_exposed_ns)
            stats->least_exposed_ns = t->exposed_ns;
    }
    stats->mean_data_ns /= stats->rank_count;
    stats->mean_exposed_ns /= stats->rank_count;
    stats->mean_compute_ns /= stats->rank_count;
}

/* As those of the slowest rank. */
static void combine_times(ddp_step_stats *stats)
{
    for (int r = 0; r < stats->rank_count; r++) {
        const ddp_rank_times *t = &stats->ranks[r];
        stats->data_ns = larger(stats->data_ns, t->data_ns);
        stats->forward_ns = larger(stats->forward_ns, t->forward_ns);
        stats->backward_ns = larger(stats->backward_ns, t->backward_ns);
        stats->comm_ns = larger(stats->comm_ns, t->comm_ns);
        stats->exposed_ns = larger(stats->exposed_ns, t->exposed_ns);
        stats->optim_ns = larger(stats->optim_ns, t->optim_ns);
        stats->step_ns = larger(stats->step_ns, t->step_ns);
        stats->compute_ns = larger(stats->compute_ns, compute_of(t));
    }
}

/* Sums in rank order. */
static void combine(ddp_strategy *s, ddp_step_stats *stats)
{
    const int world = ddp_comm_world(s->comm);
    double grad_sq = 0;
    *stats = (ddp_step_stats){.nonfinite_rank = find_nonfinite(s->words, world),
                              .damaged_rank = find_damaged(s->words, world),
                              .flags_all = UINT32_MAX,
                              .ranks = s->times,
                              .rank_count = world};
    for (int r = 0; r < world; r++) {
        const ddpi_control_word *w = &s->words[r];
        stats->loss_sum += w->loss_sum;
        stats->count += w->count;
        grad_sq += w->grad_sq;
        ddp_ledger_join(&stats->ledger, &w->ledger);
        stats->flags_any |= (uint32_t)w->flags;
        stats->flags_all &= (uint32_t)w->flags;
        s->times[r] = w->times;
        stats->comm_bytes = larger(stats->comm_bytes, w->comm_bytes);
    }
    combine_times(stats);
    average(stats);
    stats->grad_norm = sqrt(grad_sq);
}

/* The optimizer's sums are this rank's only while nothing has been measured. */
static ddp_status add_exactly(ddp_strategy *s, ddp_step_stats *stats)
{
    size_t sums_count;
    double *sums = ddp_optim_sums(s->optim, &sums_count);
    const size_t shards = s->exact_count - sums_count;
    const bool measured = ddp_optim_measures(s->optim);
    if (!measured)
        memcpy(s->exact + shards, sums, sums_count * sizeof *sums);
    DDP_TRY(ddp_comm_allreduce(s->comm, s->exact, measured ? shards : s->exact_count, DDP_F64,
                               DDP_REDUCE_SUM, "losses and norms"));
    if (!measured)
        memcpy(sums, s->exact + shards, sums_count * sizeof *sums);
    stats->loss_sum = 0;
    for (size_t i = 0; i < shards; i++)
        stats->loss_sum += s->exact[i];
    stats->grad_norm = sqrt(ddp_optim_grad_sq(s->optim));
    return DDP_OK;
}

static ddp_status share(ddp_strategy *s, const ddpi_control_word *word, int64_t count,
                        ddp_step_stats *stats_out)
{
    const int64_t begin_ns = ddp_now_ns();
    DDP_TRY(ddp_comm_allgather(s->comm, word, sizeof *word, s->words));
    ddp_spans_end(DDP_SPAN_CONTROL, 0, begin_ns);
    combine(s, stats_out);
    s->ended_ns = ddp_now_ns();
    if (stats_out->count != count)
        return DDP_FAIL(DDP_ERR_INTERNAL, "the ranks computed %lld samples in a step of %lld",
                        (long long)stats_out->count, (long long)count);
    return s->exact != NULL ? add_exactly(s, stats_out) : DDP_OK;
}

/* A loss that is not finite is no matter of scale. */
static ddp_status next_scale(ddp_strategy *s, ddp_step_stats *stats)
{
    stats->loss_scale = s->scale.value;
    if (s->scale.value == 0 || !isfinite(stats->loss_sum))
        return DDP_OK;
    stats->overflow = stats->skipped;
    return ddpi_scale_next(&s->scale, s->opts.loss_scale_grows, !stats->overflow);
}

ddp_status ddp_strategy_step(ddp_strategy *s, ddp_loader *loader, int64_t count, double lr,
                             ddp_step_stats *stats_out)
{
    ddpi_control_word word = {.flags = s->flags};
    ddp_step_stats mine = {0};
    ddpi_step_how how = DDPI_STEP_OPEN;
    int64_t start = ddp_now_ns();
    word.times.between_ns = s->ended_ns > 0 ? start - s->ended_ns : 0;
    if (s->seal != NULL && !ddp_device_is_host(s->device))
        DDP_TRY(ddpi_seal_verify_all(s->seal));
    ddp_optim_begin(s->optim, lr, 1 / ((double)count * (s->scale.value > 0 ? s->scale.value : 1)));
    ddp_reducer_set_count(s->reducer, count);
    if (s->graphs != NULL)
        DDP_TRY(ddpi_graphs_step(s, loader, count, &word, &how));
    if (how == DDPI_STEP_OPEN) {
        DDP_TRY(compute(s, loader, &word));
        DDP_TRY(s->ops->exchange(s, &mine));
    }
    ddp_optim_end(s->optim);
    word.times.comm_ns = mine.comm_ns;
    word.times.exposed_ns = mine.exposed_ns;
    word.times.optim_ns = mine.optim_ns;
    word.comm_bytes = mine.comm_bytes;
    DDP_TRY(collect(s, how == DDPI_STEP_REPLAYED, &word));
    word.damaged = ddp_strategy_damage(s) != NULL;
    word.times.step_ns = ddp_now_ns() - start;
    DDP_TRY(share(s, &word, count, stats_out));
    stats_out->skipped = ddp_optim_vetoed(s->optim);
    return next_scale(s, stats_out);
}

ddp_status ddp_strategy_gradients(ddp_strategy *s, ddp_loader *loader, int64_t count,
                                  ddp_step_stats *stats_out)
{
    ddpi_control_word word = {0};
    ddp_reducer_times times;
    ddp_reducer_on_update(s->reducer, NULL, NULL);
    ddp_reducer_set_count(s->reducer, count);
    DDP_TRY(compute(s, loader, &word));
    DDP_TRY(ddp_reducer_gather(s->reducer, &times));
    DDP_TRY(collect(s, /*replayed*/ false, &word));
    ddp_reducer_on_update(s->reducer, ddpi_strategy_update, s);
    return share(s, &word, count, stats_out);
}
