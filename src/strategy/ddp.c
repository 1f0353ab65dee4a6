/* ddp.c - bucketed reduction, overlapped with backward (ddp) or after it (sync). */
#include "strategy/strategy_impl.h"

static ddp_status exchange(ddp_strategy *s, ddp_step_stats *stats)
{
    ddp_reducer_times times;
    DDP_TRY(ddp_reducer_finish(s->reducer, &times));
    stats->comm_ns = times.comm_ns;
    stats->exposed_ns = times.exposed_ns;
    stats->optim_ns = times.update_ns;
    return DDP_OK;
}

static ddp_status publish(ddp_strategy *s, float *buffer)
{
    return ddp_reducer_publish(s->reducer, buffer);
}

static ddp_range owned(const ddp_strategy *s, int bucket)
{
    return ddp_reducer_owned(s->reducer, bucket);
}

static const ddp_strategy_ops ddp_ops = {"ddp", true, true, exchange, publish, owned};
static const ddp_strategy_ops sync_ops = {"sync", false, true, exchange, publish, owned};

const ddp_strategy_ops *ddp_strategy_ddp(void)
{
    return &ddp_ops;
}

const ddp_strategy_ops *ddp_strategy_sync(void)
{
    return &sync_ops;
}
