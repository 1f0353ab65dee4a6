/* hook_cast.c - gradients in bf16 or f16, in a second flat buffer of the communicator's.
 *
 * What is sent is scaled by 1 / the global batch: sums over all ranks are then mean gradients,
 * which neither overflow f16 where batches are large, nor depend in their rounding on how the batch
 * is cut. */
#include "ddp/memory.h"
#include "sync/hook.h"

static ddp_status create(const ddpi_hook_env *env, ddpi_hook **hook_out)
{
    DDP_TRY(DDP_ALLOC(*hook_out, 1));
    (*hook_out)->shared_bytes[0] = ddp_param_table_length(env->table) * sizeof(uint16_t);
    return DDP_OK;
}

/* Lanes do not sum f16. */
static ddp_status create_f16(const ddpi_hook_env *env, ddpi_hook **hook_out)
{
    if (ddp_comm_has_lane(env->comm))
        return DDP_FAIL(DDP_ERR_USAGE, "option --grad-dtype: found fp16 on a GPU, expected bf16");
    return create(env, hook_out);
}

static void destroy(ddpi_hook *hook)
{
    ddp_free(hook);
}

static uint16_t *packed_at(const ddpi_hook *hook, size_t at)
{
    return (uint16_t *)hook->shared[0] + at;
}

static ddp_status encode_bf16(ddpi_hook *hook, int bucket, int round, ddp_coll *coll)
{
    const ddp_range range = hook->env.plan->ranges[bucket];
    (void)round;
    coll->dtype = DDP_BF16;
    coll->buf = packed_at(hook, range.lo);
    return ddp_op_to_bf16(hook->env.device, ddp_device_main_stream(hook->env.device), coll->buf,
                          hook->env.grads + range.lo, range.hi - range.lo, 1.0 / hook->count);
}

static ddp_status decode_bf16(ddpi_hook *hook, int bucket, ddp_range owned)
{
    (void)bucket;
    return ddp_op_from_bf16(hook->env.device, ddp_device_main_stream(hook->env.device),
                            hook->env.grads + owned.lo, packed_at(hook, owned.lo),
                            owned.hi - owned.lo, hook->count);
}

static ddp_status encode_f16(ddpi_hook *hook, int bucket, int round, ddp_coll *coll)
{
    const ddp_range range = hook->env.plan->ranges[bucket];
    (void)round;
    coll->dtype = DDP_F16;
    coll->buf = packed_at(hook, range.lo);
    return ddp_op_to_f16(hook->env.device, ddp_device_main_stream(hook->env.device), coll->buf,
                         hook->env.grads + range.lo, range.hi - range.lo, 1.0 / hook->count);
}

static ddp_status decode_f16(ddpi_hook *hook, int bucket, ddp_range owned)
{
    (void)bucket;
    return ddp_op_from_f16(hook->env.device, ddp_device_main_stream(hook->env.device),
                           hook->env.grads + owned.lo, packed_at(hook, owned.lo),
                           owned.hi - owned.lo, hook->count);
}

const ddp_hook_ops *ddp_hook_bf16(void)
{
    static const ddp_hook_ops ops = {.name = "bf16",
                                     .rounds = 1,
                                     .create = create,
                                     .destroy = destroy,
                                     .encode = encode_bf16,
                                     .decode = decode_bf16};
    return &ops;
}

const ddp_hook_ops *ddp_hook_fp16(void)
{
    static const ddp_hook_ops ops = {.name = "fp16",
                                     .rounds = 1,
                                     .create = create_f16,
                                     .destroy = destroy,
                                     .encode = encode_f16,
                                     .decode = decode_f16};
    return &ops;
}
