/* naive.c - what DataParallel does: all gradients to rank 0, which updates and sends the parameters
 * back.
 *
 * Here to be compared with. Rank 0's link carries everything, and the other ranks wait for its
 * update. */
#include "ddp/spans.h"
#include "ddp/thread.h"
#include "strategy/strategy_impl.h"

static ddp_status run(ddp_strategy *s, ddp_coll_kind kind, float *buf, size_t count,
                      const char *what)
{
    ddp_coll coll = {.kind = kind,
                     .dtype = DDP_F32,
                     .op = DDP_REDUCE_SUM,
                     .root = 0,
                     .buf = buf,
                     .count = count,
                     .stream =
                         ddp_comm_has_lane(s->comm) ? ddp_device_main_stream(s->device) : NULL,
                     .bucket = -1,
                     .what = what};
    ddp_work work;
    DDP_TRY(ddp_comm_submit(s->comm, &coll, &work));
    DDP_TRY(ddp_work_wait(&work));
    (void)ddp_work_span(&work, kind == DDP_COLL_REDUCE ? DDP_SPAN_BUCKET : DDP_SPAN_PUBLISH);
    return DDP_OK;
}

/* Rank 0 alone has something to measure; all come to the same decision. */
static ddp_status pass_gate(ddp_strategy *s, ddp_range range)
{
    for (bool again = true; again;) {
        if (ddp_comm_rank(s->comm) == 0)
            DDP_TRY(ddpi_strategy_measure(s, range, true));
        DDP_TRY(ddpi_strategy_decide(s, &again));
    }
    return DDP_OK;
}

static ddp_status exchange(ddp_strategy *s, ddp_step_stats *stats)
{
    size_t length = ddp_param_table_length(ddp_model_params(s->model));
    DDP_TRY(ddpi_strategy_sync(s)); /* of what follows the times are the host's */
    int64_t start = ddp_now_ns();
    DDP_TRY(run(s, DDP_COLL_REDUCE, ddp_reducer_grads(s->reducer), length, "gradients to rank 0"));
    stats->comm_bytes = (int64_t)(length * sizeof(float));
    int64_t update_start = ddp_now_ns();
    if (ddp_optim_measures(s->optim))
        DDP_TRY(pass_gate(s, (ddp_range){0, length}));
    if (ddp_comm_rank(s->comm) == 0)
        DDP_TRY(ddpi_strategy_update(s, (ddp_range){0, length}, true));
    DDP_TRY(ddpi_strategy_sync(s));
    stats->optim_ns = ddp_spans_end(DDP_SPAN_OPTIM, -1, update_start);
    DDP_TRY(run(s, DDP_COLL_BROADCAST, ddp_reducer_params(s->reducer), length, "parameters"));
    stats->comm_ns = ddp_now_ns() - start - stats->optim_ns;
    stats->exposed_ns = stats->comm_ns;
    return DDP_OK;
}

static ddp_status publish(ddp_strategy *s, float *buffer)
{
    return run(s, DDP_COLL_BROADCAST, buffer, ddp_param_table_length(ddp_model_params(s->model)),
               "moving average");
}

static const ddp_strategy_ops naive_ops = {"naive", false, false, exchange, publish, NULL};

const ddp_strategy_ops *ddp_strategy_naive(void)
{
    return &naive_ops;
}
