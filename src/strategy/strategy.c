/* strategy.c - what all strategies share: life, buffers, and the update of a range. */
#include "strategy/graphs.h"

#include <math.h>

#include "ddp/memory.h"
#include "ddp/spans.h"
#include "ddp/thread.h"

const char *ddp_strategy_name(const ddp_strategy_ops *ops)
{
    return ops->name;
}

/* Where work is given to a device, it may be given again without passing here: there all is
 * verified before the step. */
static ddp_status verify_seal(ddp_strategy *s, ddp_range range)
{
    if (s->seal == NULL)
        return DDP_OK;
    DDP_TRY(ddpi_seal_note(s->seal, range));
    return ddp_device_is_host(s->device) ? ddpi_seal_verify(s->seal, range) : DDP_OK;
}

/* Where the host can know in time, nothing that is not finite is applied, so that what it comes
 * from can be found. A gate has decided about that already. */
static ddp_status check_range(ddp_strategy *s, ddp_range range)
{
    double sum = 0;
    if (!ddp_device_is_host(s->device) || ddp_optim_measures(s->optim))
        return DDP_OK;
    DDP_TRY(ddp_op_sum_squares(s->device, ddp_device_main_stream(s->device),
                               ddp_reducer_sums(s->reducer) + range.lo, range.hi - range.lo, 1,
                               &sum));
    s->refused = s->refused || !isfinite(sum);
    return DDP_OK;
}

ddp_status ddpi_strategy_update(void *arg, ddp_range range, bool counts)
{
    ddp_strategy *s = arg;
    DDP_TRY(verify_seal(s, range));
    DDP_TRY(check_range(s, range));
    if (s->refused)
        return DDP_OK;
    return ddp_optim_update(s->optim, ddp_device_main_stream(s->device),
                            ddp_reducer_params(s->reducer), ddp_reducer_sums(s->reducer), range,
                            counts ? s->grad_sq : NULL);
}

ddp_status ddpi_strategy_measure(void *arg, ddp_range range, bool counts)
{
    ddp_strategy *s = arg;
    DDP_TRY(verify_seal(s, range)); /* measuring may move the state */
    return ddp_optim_measure(s->optim, ddp_device_main_stream(s->device),
                             ddp_reducer_params(s->reducer), ddp_reducer_sums(s->reducer), range,
                             counts);
}

ddp_status ddpi_strategy_sync(ddp_strategy *s)
{
    if (ddp_device_is_host(s->device))
        return DDP_OK;
    DDP_TRY(ddp_event_record(s->reached, ddp_device_main_stream(s->device)));
    return ddp_comm_sync_event(s->comm, s->reached, "the training step");
}

double ddpi_strategy_loss(const ddp_strategy *s)
{
    double sum = 0;
    for (int64_t i = 0; i < s->opts.reducer.shards; i++)
        sum += s->results[1 + i];
    return sum;
}

ddp_status ddpi_strategy_decide(void *arg, bool *again_out)
{
    ddp_strategy *s = arg;
    size_t count;
    DDP_TRY(ddp_optim_fetch(s->optim, ddp_device_main_stream(s->device)));
    DDP_TRY(ddpi_strategy_sync(s));
    if (!s->decided && !isfinite(ddpi_strategy_loss(s)))
        ddp_optim_veto(s->optim);
    s->decided = true;
    double *sums = ddp_optim_sums(s->optim, &count);
    s->measured_sq += ddp_optim_grad_sq(s->optim); /* this rank's part, for the control word */
    const int64_t begin_ns = ddp_now_ns();
    DDP_TRY(ddp_comm_allreduce(s->comm, sums, count, DDP_F64, DDP_REDUCE_SUM, "norms"));
    ddp_spans_end(DDP_SPAN_CONTROL, 0, begin_ns);
    *again_out = ddp_optim_decide(s->optim);
    return DDP_OK;
}

/* Norms' values of all ranks. Every rank comes here at the same places of its passes. */
static ddp_status gather(void *arg, const double *mine, size_t n, double *all_out)
{
    return ddp_comm_allgather(((ddp_strategy *)arg)->comm, mine, n * sizeof *mine, all_out);
}

static ddp_status set_up_norms(ddp_strategy *s)
{
    if (s->opts.sync_norms && s->opts.reducer.shards > 1)
        return DDP_FAIL(DDP_ERR_USAGE,
                        "synchronised norms need one logical shard for each rank, a rank has %lld",
                        (long long)s->opts.reducer.shards);
    s->sync = (ddp_model_sync){ddp_comm_world(s->comm), gather, s};
    DDP_TRY(ddp_model_sync_norms(s->model, s->opts.sync_norms ? &s->sync : NULL));
    return ddpi_running_create(s->model, s->device, s->opts.reducer.shards, &s->running);
}

static size_t results_bytes(const ddp_strategy *s)
{
    return (1 + (size_t)s->opts.reducer.shards) * sizeof *s->results;
}

/* What a step brings to the host at its end, and how it knows when. */
static ddp_status set_up_results(ddp_strategy *s)
{
    enum { SHARD_MARKS = 3 };
    void *memory;
    DDP_TRY(ddp_device_alloc(s->device, sizeof *s->grad_sq, &memory));
    s->grad_sq = memory;
    DDP_TRY(ddp_device_host_alloc(s->device, results_bytes(s), &memory));
    s->results = memory;
    DDP_TRY(ddp_event_create(s->device, &s->reached));
    return ddp_marks_create(s->device, SHARD_MARKS * (int)s->opts.reducer.shards, &s->marks);
}

/* Whether all gradients are finite must be known before the first of them is used. */
static ddp_status set_up_scale(ddp_strategy *s)
{
    s->scale.value = s->opts.loss_scale;
    if (s->opts.loss_scale == 0)
        return DDP_OK;
    s->opts.optim.skip_nonfinite = true;
    return ddpi_scale_place_open(s->device, &s->scale_place);
}

static ddp_status create_local(ddp_strategy *s)
{
    DDP_TRY(set_up_results(s));
    DDP_TRY(set_up_scale(s));
    DDP_TRY(DDP_ALLOC(s->words, (size_t)ddp_comm_world(s->comm)));
    DDP_TRY(DDP_ALLOC(s->times, (size_t)ddp_comm_world(s->comm)));
    DDP_TRY(set_up_norms(s));
    DDP_TRY(ddp_optim_create(&s->opts.optim, s->device, ddp_model_params(s->model), &s->optim));
    if (!s->opts.seals)
        return DDP_OK;
    return ddpi_seal_create(s->optim, s->device, ddp_model_params(s->model), &s->seal);
}

/* The optimizer works in the reducer's blocks, if there are any. */
static ddp_status set_up_exact(ddp_strategy *s)
{
    const int count = ddp_reducer_block_count(s->reducer);
    ddp_range *blocks;
    size_t sums;
    if (count == 0)
        return DDP_OK;
    DDP_TRY(DDP_ALLOC(blocks, (size_t)count));
    for (int i = 0; i < count; i++)
        blocks[i] = ddp_reducer_block(s->reducer, i);
    ddp_status st = ddp_optim_set_blocks(s->optim, blocks, count);
    ddp_free(blocks);
    DDP_TRY(st);
    ddp_optim_sums(s->optim, &sums);
    s->exact_count = (size_t)(s->opts.reducer.shards * ddp_comm_world(s->comm)) + sums;
    return DDP_ALLOC(s->exact, s->exact_count);
}

ddp_status ddp_strategy_create(const ddp_strategy_ops *ops, const ddp_strategy_opts *opts,
                               ddp_model *model, ddp_device *device, ddp_comm *comm,
                               ddp_strategy **strategy_out)
{
    ddp_strategy *s = NULL;
    ddp_status st = DDP_ALLOC(s, 1);
    if (st == DDP_OK) {
        s->ops = ops;
        s->opts = *opts;
        s->opts.reducer.overlap = ops->overlap;
        s->model = model;
        s->device = device;
        s->comm = comm;
        st = create_local(s);
    }
    DDP_TRY_GOTO(st, ddp_comm_agree(comm, st, "set up the optimizer"), err);
    DDP_TRY_GOTO(
        st,
        ddp_reducer_create(&s->opts.reducer, ddp_model_params(model), device, comm, &s->reducer),
        err);
    DDP_TRY_GOTO(st, ddp_comm_agree(comm, set_up_exact(s), "set up exact sums"), err);
    DDP_TRY_GOTO(st,
                 ddp_comm_agree(comm,
                                DDP_ALLOC(s->owned, (size_t)ddp_reducer_bucket_count(s->reducer)),
                                "set up the optimizer"),
                 err);
    ddp_reducer_on_update(s->reducer, ddpi_strategy_update, s);
    if (ddp_optim_measures(s->optim))
        ddp_reducer_set_gate(s->reducer,
                             (ddp_reducer_gate){ddpi_strategy_measure, ddpi_strategy_decide, s});
    ddp_model_bind(model, ddp_reducer_params(s->reducer), ddp_reducer_grads(s->reducer));
    DDP_TRY_GOTO(st, ddp_comm_agree(comm, ddpi_graphs_create(s), "set up graphs of steps"), err);
    *strategy_out = s;
    return DDP_OK;
err:
    ddp_strategy_destroy(s);
    return st;
}

void ddp_strategy_destroy(ddp_strategy *s)
{
    if (s == NULL)
        return;
    ddpi_graphs_destroy(s->graphs);
    ddpi_running_destroy(s->running);
    ddpi_seal_destroy(s->seal);
    ddp_reducer_destroy(s->reducer);
    ddp_optim_destroy(s->optim);
    ddp_marks_destroy(s->marks);
    ddpi_scale_place_close(&s->scale_place);
    ddp_event_destroy(s->reached);
    if (s->results != NULL)
        ddp_device_host_free(s->device, s->results, results_bytes(s));
    if (s->grad_sq != NULL)
        ddp_device_free(s->device, s->grad_sq, sizeof *s->grad_sq);
    ddp_free(s->words);
    ddp_free(s->times);
    ddp_free(s->exact);
    ddp_free(s->owned);
    ddp_free(s);
}

float *ddp_strategy_params(ddp_strategy *s)
{
    return ddp_reducer_params(s->reducer);
}

const float *ddp_strategy_grads(ddp_strategy *s)
{
    return ddp_reducer_sums(s->reducer);
}

ddp_status ddp_strategy_average(ddp_strategy *s, float **params_out)
{
    float *average = ddp_optim_average(s->optim);
    *params_out = ddp_reducer_params(s->reducer);
    if (average != NULL) {
        DDP_TRY(s->ops->publish(s, average));
        *params_out = average;
    }
    ddp_model_bind(s->model, *params_out, ddp_reducer_grads(s->reducer));
    return DDP_OK;
}

ddp_status ddp_strategy_combine(ddp_strategy *s, const float **running_out)
{
    return ddpi_running_combine(s->running, s->comm, running_out);
}

ddp_status ddp_strategy_set_running(ddp_strategy *s, const float *running)
{
    return ddpi_running_set(s->running, running);
}

/* ---- between steps ---- */

void ddp_strategy_set_flags(ddp_strategy *s, uint32_t flags)
{
    s->flags = flags;
}

ddp_status ddp_strategy_seal(ddp_strategy *s)
{
    DDP_ASSERT(s->seal != NULL);
    return ddpi_seal_take(s->seal);
}

const char *ddp_strategy_damage(const ddp_strategy *s)
{
    return s->seal != NULL ? ddpi_seal_damage(s->seal) : NULL;
}

ddp_status ddp_strategy_get_state(ddp_strategy *s, bool complete, ddp_strategy_state *state_out)
{
    *state_out = (ddp_strategy_state){.optim = ddp_optim_get_state(s->optim),
                                      .shards = s->opts.reducer.shards,
                                      .scale = s->scale};
    ddpi_running_rows(s->running, &state_out->running, &state_out->seen);
    if (!complete)
        return DDP_OK;
    for (int i = 0; i < state_out->optim.count; i++)
        DDP_TRY(s->ops->publish(s, state_out->optim.flats[i].values));
    return ddpi_running_combine(s->running, s->comm, &state_out->combined);
}

ddp_status ddp_strategy_get_shares(ddp_strategy *s, ddp_strategy_state *state_out)
{
    const int count = ddp_reducer_bucket_count(s->reducer);
    if (s->ops->owned == NULL)
        return ddp_strategy_get_state(s, true, state_out);
    DDP_TRY(ddp_strategy_get_state(s, false, state_out));
    for (int i = 0; i < count; i++)
        s->owned[i] = s->ops->owned(s, i);
    state_out->owned = s->owned;
    state_out->owned_count = count;
    return ddpi_running_combine(s->running, s->comm, &state_out->combined);
}

void ddp_strategy_set_steps(ddp_strategy *s, int64_t steps)
{
    ddp_optim_set_steps(s->optim, steps);
    ddp_reducer_set_steps(s->reducer, steps);
}

void ddp_strategy_set_scale(ddp_strategy *s, ddp_loss_scale scale)
{
    if (s->scale.value > 0 && scale.value > 0)
        s->scale = scale;
}
