/* hook_topk.c - of each bucket the elements of largest magnitude, with their places.
 *
 * Gradients are added to the rest of earlier steps; what is sent leaves the rest. Every rank
 * chooses by itself and gets what all have chosen, and adds it in the order of the ranks, so that
 * all have the same bits. Magnitudes are compared as whole numbers, where what is not finite is
 * larger than all else: it is always sent, and seen by everybody. The bucket's rest is then
 * dropped on all ranks. */
#include <math.h>
#include <string.h>

#include "ddp/log.h"
#include "ddp/memory.h"
#include "sync/hook.h"
#include "sync/largest.h"

/* An element on its way. */
typedef struct entry {
    uint32_t place; /* in the bucket */
    float value;
} entry;

typedef struct topk {
    ddpi_hook base;
    entry *mine;        /* [sum of counts] */
    entry *all;         /* [world * sum of counts]: a bucket's of all ranks lie together */
    ddp_range *entries; /* [buckets]: in mine */
    ddpi_largest *largest;
    size_t length, total;
} topk;

static topk *topk_of(ddpi_hook *hook)
{
    return (topk *)hook;
}

static size_t entries_for(size_t length, double share)
{
    const size_t count = (size_t)ceil((double)length * share);
    return count < 1 ? 1 : count > length ? length : count;
}

static ddp_status alloc(topk *t, size_t bytes, void **memory_out)
{
    DDP_TRY(ddp_device_alloc(t->base.env.device, bytes, memory_out));
    t->base.state_bytes += bytes;
    return DDP_OK;
}

static size_t all_bytes(const topk *t)
{
    return (size_t)ddp_comm_world(t->base.env.comm) * t->total * sizeof(entry);
}

static ddp_status set_up(topk *t)
{
    const ddpi_bucket_plan *plan = t->base.env.plan;
    size_t longest = 0;
    void *memory;
    DDP_TRY(DDP_ALLOC(t->entries, (size_t)plan->count));
    for (int b = 0; b < plan->count; b++) {
        const size_t length = plan->ranges[b].hi - plan->ranges[b].lo;
        if (length > UINT32_MAX)
            return DDP_FAIL(DDP_ERR_USAGE,
                            "option --bucket-cap-mb: a bucket of %zu elements is too long for "
                            "--compress topk",
                            length);
        t->entries[b].lo = t->total;
        t->total += entries_for(length, t->base.env.opts.share);
        t->entries[b].hi = t->total;
        longest = length > longest ? length : longest;
    }
    DDP_TRY(alloc(t, t->length * sizeof(float), &memory));
    t->base.rest = memory;
    DDP_TRY(alloc(t, t->total * sizeof(entry), &memory));
    t->mine = memory;
    DDP_TRY(alloc(t, all_bytes(t), &memory));
    t->all = memory;
    DDP_TRY(ddpi_largest_create(longest, &t->largest));
    if (ddp_comm_rank(t->base.env.comm) == 0)
        ddp_info("topk: %zu of %zu elements, %.2f MiB a step instead of %.2f", t->total, t->length,
                 (double)(t->total * sizeof(entry)) / (1 << 20),
                 (double)(t->length * sizeof(float)) / (1 << 20));
    return DDP_OK;
}

static void destroy(ddpi_hook *hook)
{
    topk *t = topk_of(hook);
    ddp_device *device = hook->env.device;
    ddpi_largest_destroy(t->largest);
    if (t->all != NULL)
        ddp_device_free(device, t->all, all_bytes(t));
    if (t->mine != NULL)
        ddp_device_free(device, t->mine, t->total * sizeof(entry));
    if (t->base.rest != NULL)
        ddp_device_free(device, t->base.rest, t->length * sizeof(float));
    ddp_free(t->entries);
    ddp_free(t);
}

static ddp_status create(const ddpi_hook_env *env, ddpi_hook **hook_out)
{
    topk *t;
    DDP_TRY(DDP_ALLOC(t, 1));
    t->base.env = *env;
    t->length = ddp_param_table_length(env->table);
    const ddp_status st = set_up(t);
    if (st != DDP_OK) {
        destroy(&t->base);
        return st;
    }
    *hook_out = &t->base;
    return DDP_OK;
}

/* ---- a step ---- */

static entry *all_of(const topk *t, int bucket)
{
    return t->all + (size_t)ddp_comm_world(t->base.env.comm) * t->entries[bucket].lo;
}

static ddp_status encode(ddpi_hook *hook, int bucket, int round, ddp_coll *coll)
{
    topk *t = topk_of(hook);
    const ddp_range range = hook->env.plan->ranges[bucket], entries = t->entries[bucket];
    float *rest = t->base.rest + range.lo;
    entry *mine = t->mine + entries.lo;
    (void)round;
    DDP_TRY(ddp_op_add(hook->env.device, ddp_device_main_stream(hook->env.device), rest,
                       hook->env.grads + range.lo, range.hi - range.lo));
    const size_t count = entries.hi - entries.lo;
    const uint32_t *places = ddpi_largest_find(t->largest, rest, range.hi - range.lo, count);
    for (size_t i = 0; i < count; i++) {
        mine[i] = (entry){places[i], rest[places[i]]};
        rest[places[i]] = 0;
    }
    coll->kind = DDP_COLL_ALLGATHER;
    coll->dtype = DDP_I32;
    coll->src = mine;
    coll->buf = all_of(t, bucket);
    coll->count = count * (sizeof(entry) / sizeof(int32_t));
    coll->what = "largest gradients";
    return DDP_OK;
}

static ddp_status decode(ddpi_hook *hook, int bucket, ddp_range owned)
{
    topk *t = topk_of(hook);
    const ddp_range range = hook->env.plan->ranges[bucket], entries = t->entries[bucket];
    const size_t count = (entries.hi - entries.lo) * (size_t)ddp_comm_world(hook->env.comm);
    const entry *all = all_of(t, bucket);
    float *grads = hook->env.grads + range.lo;
    bool finite = true;
    (void)owned;
    memset(grads, 0, (range.hi - range.lo) * sizeof *grads);
    for (size_t i = 0; i < count; i++) {
        grads[all[i].place] += all[i].value;
        finite = finite && isfinite(all[i].value);
    }
    if (!finite)
        memset(t->base.rest + range.lo, 0, (range.hi - range.lo) * sizeof *t->base.rest);
    return DDP_OK;
}

const ddp_hook_ops *ddp_hook_topk(void)
{
    static const ddp_hook_ops ops = {.name = "topk",
                                     .rounds = 1,
                                     .owns_all = true,
                                     .stateful = true,
                                     .create = create,
                                     .destroy = destroy,
                                     .encode = encode,
                                     .decode = decode};
    return &ops;
}
