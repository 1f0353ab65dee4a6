/* hook.c - a hook's life, and what all hooks have in common: the steps that come before the first
 * compressed one. In these, gradients travel as they are, but to everybody: ownership, and with it
 * the place of the optimizer's state, does not change when compression starts. */
#include "sync/hook.h"

#include "ddp/log.h"
#include "ddp/memory.h"

const char *ddp_hook_name(const ddp_hook_ops *ops)
{
    return ops->name;
}

/* ---- the hook that changes nothing ---- */

static ddp_status plain_create(const ddpi_hook_env *env, ddpi_hook **hook_out)
{
    (void)env;
    return DDP_ALLOC(*hook_out, 1);
}

static void plain_destroy(ddpi_hook *hook)
{
    ddp_free(hook);
}

static ddp_status plain_encode(ddpi_hook *hook, int bucket, int round, ddp_coll *coll)
{
    (void)hook;
    (void)bucket;
    (void)round;
    (void)coll;
    return DDP_OK;
}

static ddp_status plain_decode(ddpi_hook *hook, int bucket, ddp_range owned)
{
    (void)hook;
    (void)bucket;
    (void)owned;
    return DDP_OK;
}

const ddp_hook_ops *ddp_hook_plain(void)
{
    static const ddp_hook_ops ops = {.name = "plain",
                                     .rounds = 1,
                                     .create = plain_create,
                                     .destroy = plain_destroy,
                                     .encode = plain_encode,
                                     .decode = plain_decode};
    return &ops;
}

/* ---- life ---- */

static ddp_status create(const ddp_hook_ops *ops, const ddpi_hook_env *env, ddpi_hook **hook_out)
{
    if (ops->stateful && !ddp_device_is_host(env->device))
        return DDP_FAIL(DDP_ERR_USAGE,
                        "option --compress: found %s on a GPU, expected --device cpu, or none with "
                        "--grad-dtype bf16",
                        ops->name);
    DDP_TRY(ops->create(env, hook_out));
    (*hook_out)->ops = ops;
    (*hook_out)->env = *env;
    (*hook_out)->count = 1;
    return DDP_OK;
}

ddp_status ddpi_hook_open(const ddp_hook_ops *ops, const ddpi_hook_env *env, ddpi_hook **hook_out)
{
    ddpi_hook *hook = NULL;
    ddp_status st = ddp_comm_agree(env->comm, create(ops, env, &hook), "set up compression");
    for (int i = 0; st == DDP_OK && i < DDPI_HOOK_SHARED; i++)
        if (hook->shared_bytes[i] > 0)
            st = ddp_comm_mem_alloc(env->comm, hook->shared_bytes[i], &hook->shared[i]);
    if (st != DDP_OK) {
        ddpi_hook_close(hook);
        return st;
    }
    if (ops->stateful && ddp_comm_rank(env->comm) == 0)
        ddp_debug("%s keeps %.1f MiB on each rank", ops->name,
                  (double)hook->state_bytes / (1 << 20));
    *hook_out = hook;
    return DDP_OK;
}

void ddpi_hook_close(ddpi_hook *hook)
{
    if (hook == NULL)
        return;
    for (int i = DDPI_HOOK_SHARED - 1; i >= 0; i--)
        ddp_comm_mem_free(hook->env.comm, hook->shared[i]);
    hook->ops->destroy(hook);
}

void ddpi_hook_set_steps(ddpi_hook *hook, int64_t steps)
{
    if (hook->ops->stateful && steps > hook->env.opts.after && ddp_comm_rank(hook->env.comm) == 0)
        ddp_info("--compress %s goes on without the error memory, which checkpoints do not keep",
                 hook->ops->name);
    hook->steps = steps;
}

/* ---- a step ---- */

static bool active(const ddpi_hook *hook)
{
    return !hook->ops->stateful || hook->steps > hook->env.opts.after;
}

void ddpi_hook_begin(ddpi_hook *hook)
{
    hook->steps++;
}

int ddpi_hook_rounds(const ddpi_hook *hook)
{
    return active(hook) ? hook->ops->rounds : 1;
}

bool ddpi_hook_owns_all(const ddpi_hook *hook)
{
    return hook->ops->owns_all;
}

ddp_status ddpi_hook_encode(ddpi_hook *hook, int bucket, int round, ddp_coll *coll)
{
    if (hook->ops->owns_all)
        coll->kind = DDP_COLL_ALLREDUCE;
    return active(hook) ? hook->ops->encode(hook, bucket, round, coll) : DDP_OK;
}

void ddpi_hook_meanwhile(ddpi_hook *hook, int bucket)
{
    if (active(hook) && hook->ops->meanwhile != NULL)
        hook->ops->meanwhile(hook, bucket);
}

ddp_status ddpi_hook_decode(ddpi_hook *hook, int bucket, ddp_range owned)
{
    return active(hook) ? hook->ops->decode(hook, bucket, owned) : DDP_OK;
}
