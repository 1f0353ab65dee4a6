/* reducer.c - counts gradients, starts buckets in order, and drives reduce -> update -> publish.
 *
 * A bucket goes through the stages of enum stage. Two cursors keep the order that all ranks share:
 * `launched` (next bucket to reduce) and `settled` (next bucket to update or measure). Both only
 * move forward, so the sequence of collectives on a communicator is: reductions in bucket order,
 * and a bucket's publication whenever its update is done. Ranks finish layers at different times,
 * therefore the publications are submitted only in finish(), after the last reduction: their place
 * in the sequence must not depend on timing. Updates themselves may come earlier, since they are
 * local. With a gate no bucket is updated early: they are measured instead, the gate's collective
 * follows the last reduction, then come all updates.
 *
 * What is sent is the hook's business (hook.h). Where it has a second round, these reductions come
 * in finish() too, for the same reason, and nothing is settled before.
 *
 * With a lane the gradients are device memory, reductions start behind what the main stream was
 * given, and the stream itself waits for them: the host gives it joins, updates and all, and goes
 * on. Then no bucket is settled early, nobody owns less than all, and times come from marks on the
 * stream, which collect() reads at the end of the step.
 *
 * Everything runs in the rank's compute thread. */
#include "ddp/reducer.h"

#include "ddp/marks.h"
#include "ddp/memory.h"
#include "ddp/thread.h"
#include "sync/hook.h"
#include "sync/partials.h"

typedef enum stage { STAGE_FILLING, STAGE_COMPLETE, STAGE_REDUCING, STAGE_SETTLED } stage;

/* Intervals of the main stream. */
enum { MARK_OTHER, MARK_WAIT, MARK_UPDATE, MARK_KINDS };

typedef struct bucket {
    stage stage;
    int pending; /* parameters whose gradient is still to come */
    int last;    /* the round that was started last */
    ddp_work rounds[DDPI_HOOK_ROUNDS], publish;
} bucket;

struct ddp_reducer {
    ddp_reducer_opts opts;
    ddp_param_table *table;
    ddp_device *device;
    ddp_comm *comm;
    ddpi_bucket_plan plan;
    bucket *buckets;
    int launched, settled;
    float *params, *grads;  /* from the communicator */
    ddpi_hook *hook;        /* how gradients travel */
    ddpi_partials partials; /* of this rank's shards */
    size_t length;
    ddp_reducer_update_fn update;
    void *update_arg;
    ddp_reducer_gate gate;
    ddp_reducer_times times;
    int64_t bytes; /* given to this step's rounds, or the recorded step's */
    bool lane;
    ddp_marks *marks;   /* with a lane, else NULL */
    ddp_event *reached; /* the main stream's, at the end of a step; NULL where it is the host */
};

/* ---- from gradients to complete buckets ---- */

/* A bucket's collective of this round: of its gradients, unless the hook wants another. */
static ddp_status start_round(ddp_reducer *r, int index, int round)
{
    ddp_range range = r->plan.ranges[index];
    ddp_coll coll = {.kind = DDP_COLL_REDUCE_OWNED,
                     .dtype = DDP_F32,
                     .op = DDP_REDUCE_SUM,
                     .buf = r->grads + range.lo,
                     .count = range.hi - range.lo,
                     .shards = r->opts.exact ? r->opts.shards : 0,
                     .part_stride = r->length,
                     .unit = r->opts.exact ? r->plan.units[index] : 0,
                     .stream = r->lane ? ddp_device_main_stream(r->device) : NULL,
                     .bucket = index,
                     .what = "gradients"};
    DDP_TRY(ddpi_hook_encode(r->hook, index, round, &coll));
    if (round > 0 && coll.count == 0)
        return DDP_OK;
    r->buckets[index].last = round;
    r->bytes += (int64_t)(coll.count * ddp_dtype_bytes(coll.dtype));
    return ddp_comm_submit(r->comm, &coll, &r->buckets[index].rounds[round]);
}

static ddp_status launch(ddp_reducer *r, int index)
{
    r->buckets[index].stage = STAGE_REDUCING;
    return start_round(r, index, 0);
}

static ddp_work *last_round(ddp_reducer *r, int index)
{
    return &r->buckets[index].rounds[r->buckets[index].last];
}

/* Complete buckets start in index order: collectives pair up by launch order, and ranks may finish
 * layers in different orders. */
static ddp_status launch_ready(ddp_reducer *r)
{
    while (r->launched < r->plan.count && r->buckets[r->launched].stage == STAGE_COMPLETE)
        DDP_TRY(launch(r, r->launched++));
    return DDP_OK;
}

/* What this rank owns of a reduced bucket. */
static ddp_range owned_of(const ddp_reducer *r, int index)
{
    ddp_range range = r->plan.ranges[index], owned = r->buckets[index].rounds[0].owned;
    if (ddpi_hook_owns_all(r->hook))
        return range;
    return (ddp_range){range.lo + owned.lo, range.lo + owned.hi};
}

/* Is this the owner whose part goes into sums over ranks? */
static bool counts_of(const ddp_reducer *r, int index)
{
    if (ddpi_hook_owns_all(r->hook))
        return ddp_comm_rank(r->comm) == 0;
    return r->buckets[index].rounds[0].counts;
}

/* Blocks are owned as a whole. */
static ddp_status hand_over_blocks(ddp_reducer *r, int index, ddp_reducer_update_fn fn, void *arg)
{
    ddp_range owned = owned_of(r, index);
    for (int b = r->plan.first_block[index]; b < r->plan.first_block[index + 1]; b++) {
        ddp_range block = r->plan.blocks[b];
        if (block.lo >= owned.lo && block.hi <= owned.hi)
            DDP_TRY(fn(arg, block, counts_of(r, index)));
    }
    return DDP_OK;
}

static ddp_status hand_over(ddp_reducer *r, int index, ddp_reducer_update_fn fn, void *arg)
{
    ddp_range owned = owned_of(r, index);
    bool counts = counts_of(r, index);
    int64_t start = ddp_now_ns();
    DDP_TRY(r->opts.exact ? hand_over_blocks(r, index, fn, arg) : fn(arg, owned, counts));
    r->times.update_ns += ddp_spans_end(DDP_SPAN_OPTIM, index, start);
    return DDP_OK;
}

static bool has_gate(const ddp_reducer *r)
{
    return r->update != NULL && r->gate.measure != NULL;
}

/* A bucket is reduced: update it, or have it measured. */
static ddp_status settle_bucket(ddp_reducer *r, int index)
{
    int64_t start = ddp_now_ns();
    r->buckets[index].stage = STAGE_SETTLED;
    DDP_TRY(ddpi_hook_decode(r->hook, index, owned_of(r, index)));
    r->times.update_ns += ddp_now_ns() - start;
    if (has_gate(r))
        return hand_over(r, index, r->gate.measure, r->gate.arg);
    return r->update == NULL ? DDP_OK : hand_over(r, index, r->update, r->update_arg);
}

/* Lets started reductions go on, and settles the buckets that are through, in order. Does not wait.
 */
static ddp_status advance(ddp_reducer *r)
{
    while (r->settled < r->launched) {
        bool done;
        DDP_TRY(ddp_work_poll(last_round(r, r->settled), &done));
        if (!done || !r->opts.update_early || ddpi_hook_rounds(r->hook) > 1)
            return DDP_OK;
        DDP_TRY(ddp_work_wait(last_round(r, r->settled)));
        DDP_TRY(settle_bucket(r, r->settled++));
    }
    return DDP_OK;
}

/* All gradients of a bucket have been written by this shard. */
static ddp_status bucket_filled(ddp_reducer *r, int index)
{
    DDP_TRY(ddpi_partials_add(&r->partials, r->plan.ranges[index]));
    if (r->partials.shard + 1 < r->opts.shards)
        return DDP_OK;
    r->buckets[index].stage = STAGE_COMPLETE;
    if (!r->opts.overlap)
        return DDP_OK;
    int64_t start = ddp_now_ns(), update_before = r->times.update_ns;
    DDP_TRY(launch_ready(r));
    if (!r->lane)
        DDP_TRY(advance(r));
    r->times.exposed_ns +=
        ddp_spans_end(DDP_SPAN_WAIT, index, start) - (r->times.update_ns - update_before);
    return DDP_OK;
}

static ddp_status on_param_ready(void *arg, int index)
{
    ddp_reducer *r = arg;
    int b = r->plan.bucket_of[index];
    if (--r->buckets[b].pending > 0)
        return DDP_OK;
    return bucket_filled(r, b);
}

/* ---- a step ---- */

ddp_status ddp_reducer_begin(ddp_reducer *r, int64_t shard)
{
    DDP_ASSERT(shard >= 0 && shard < r->opts.shards);
    ddpi_partials_begin(&r->partials, r->grads, shard);
    if (shard == 0) {
        r->times = (ddp_reducer_times){0};
        r->launched = r->settled = 0;
        r->bytes = 0;
        ddpi_hook_begin(r->hook);
        if (r->lane)
            ddp_marks_clear(r->marks);
    }
    for (int i = 0; i < r->plan.count; i++) {
        r->buckets[i].stage = STAGE_FILLING;
        r->buckets[i].pending = r->plan.param_counts[i];
    }
    ddp_param_table_begin(r->table);
    return DDP_OK;
}

ddp_status ddp_reducer_skip(ddp_reducer *r)
{
    DDP_TRY(ddp_device_zero(r->device, ddp_device_main_stream(r->device), r->partials.target,
                            r->length * sizeof(float)));
    for (int i = 0; i < r->plan.count; i++) {
        r->buckets[i].pending = 0;
        DDP_TRY(bucket_filled(r, i));
    }
    return DDP_OK;
}

static ddp_status publish(ddp_reducer *r, int index, float *buffer)
{
    ddp_range range = r->plan.ranges[index];
    ddp_coll coll = {.kind = DDP_COLL_PUBLISH,
                     .dtype = DDP_F32,
                     .buf = buffer + range.lo,
                     .count = range.hi - range.lo,
                     .unit = r->opts.exact ? r->plan.units[index] : 0,
                     .bucket = index,
                     .what = "owned slices"};
    return ddp_comm_submit(r->comm, &coll, &r->buckets[index].publish);
}

/* The main stream's work since the mark before was of this kind. */
static ddp_status mark(ddp_reducer *r, int kind)
{
    return r->lane ? ddp_marks_set(r->marks, ddp_device_main_stream(r->device), kind) : DDP_OK;
}

static ddp_status hand_over_all(ddp_reducer *r, ddp_reducer_update_fn fn, void *arg)
{
    DDP_TRY(mark(r, MARK_OTHER));
    for (int i = 0; i < r->plan.count; i++)
        DDP_TRY(hand_over(r, i, fn, arg));
    return mark(r, MARK_UPDATE);
}

static ddp_status pass_gate(ddp_reducer *r)
{
    for (bool again = true;;) {
        DDP_TRY(r->gate.decide(r->gate.arg, &again));
        if (!again)
            break;
        DDP_TRY(hand_over_all(r, r->gate.measure, r->gate.arg));
    }
    return hand_over_all(r, r->update, r->update_arg);
}

/* Rounds that need the result of another. */
static ddp_status run_later_rounds(ddp_reducer *r)
{
    for (int round = 1; round < ddpi_hook_rounds(r->hook); round++)
        for (int i = 0; i < r->plan.count; i++) {
            DDP_TRY(ddp_work_wait(last_round(r, i)));
            DDP_TRY(start_round(r, i, round));
        }
    for (int i = 0; i < r->plan.count; i++)
        ddpi_hook_meanwhile(r->hook, i);
    return DDP_OK;
}

/* Waits for the reductions in order; each bucket is settled as soon as it is there, unless updates
 * wait for all. */
static ddp_status settle(ddp_reducer *r)
{
    DDP_TRY(run_later_rounds(r));
    int waited = r->settled;
    for (; waited < r->plan.count; waited++) {
        DDP_TRY(ddp_work_wait(last_round(r, waited)));
        if (r->opts.update_early)
            DDP_TRY(settle_bucket(r, r->settled++));
    }
    while (r->settled < r->plan.count)
        DDP_TRY(settle_bucket(r, r->settled++));
    return has_gate(r) ? pass_gate(r) : DDP_OK;
}

/* The same in the stream's order. */
static ddp_status settle_in_stream(ddp_reducer *r)
{
    ddp_stream *stream = ddp_device_main_stream(r->device);
    DDP_TRY(mark(r, MARK_OTHER));
    while (r->settled < r->plan.count) {
        DDP_TRY(ddp_work_join(last_round(r, r->settled), stream));
        DDP_TRY(mark(r, MARK_WAIT));
        DDP_TRY(settle_bucket(r, r->settled++));
        DDP_TRY(mark(r, MARK_UPDATE));
    }
    if (!has_gate(r))
        return DDP_OK;
    /* The host waits at the gate in any case, and sees errors of the lane sooner here. */
    for (int i = 0; i < r->plan.count; i++)
        DDP_TRY(ddp_work_wait(last_round(r, i)));
    return pass_gate(r);
}

ddp_status ddp_reducer_publish(ddp_reducer *r, float *buffer)
{
    if (r->lane || ddpi_hook_owns_all(r->hook)) /* everybody owns all */
        return DDP_OK;
    for (int i = 0; i < r->plan.count; i++)
        DDP_TRY(publish(r, i, buffer));
    for (int i = 0; i < r->plan.count; i++)
        DDP_TRY(ddp_work_wait(&r->buckets[i].publish));
    return DDP_OK;
}

/* Reduces what is left, and sends the owned slices of `buffer` to everybody. */
static ddp_status complete(ddp_reducer *r, float *buffer, ddp_reducer_times *times_out)
{
    int64_t start = ddp_now_ns(), update_before = r->times.update_ns;
    DDP_TRY(launch_ready(r));
    if (r->launched < r->plan.count) {
        DDP_TRY(ddp_param_table_end(r->table)); /* names what is missing */
        return DDP_FAIL(DDP_ERR_INTERNAL, "bucket %d is not complete after backward", r->launched);
    }
    r->partials.target = r->grads;
    if (r->lane) {
        *times_out = (ddp_reducer_times){0};
        return settle_in_stream(r);
    }
    DDP_TRY(settle(r));
    DDP_TRY(ddp_reducer_publish(r, buffer));
    r->times.exposed_ns += ddp_now_ns() - start - (r->times.update_ns - update_before);
    for (int i = 0; i < r->plan.count; i++) {
        const bucket *b = &r->buckets[i];
        for (int round = 0; round <= b->last; round++)
            r->times.comm_ns += ddp_work_span(&b->rounds[round], DDP_SPAN_BUCKET);
        r->times.publish_ns += ddp_work_span(&b->publish, DDP_SPAN_PUBLISH);
    }
    r->times.comm_ns += r->times.publish_ns;
    *times_out = r->times;
    return DDP_OK;
}

ddp_status ddp_reducer_finish(ddp_reducer *r, ddp_reducer_times *times_out)
{
    return complete(r, r->params, times_out);
}

ddp_status ddp_reducer_gather(ddp_reducer *r, ddp_reducer_times *times_out)
{
    DDP_ASSERT(r->update == NULL);
    return complete(r, r->grads, times_out);
}

ddp_status ddp_reducer_collect_replay(ddp_reducer *r, int64_t comm_ns, ddp_reducer_times *times_out)
{
    int64_t ns[MARK_KINDS] = {0};
    if (r->reached != NULL) {
        DDP_TRY(ddp_event_record(r->reached, ddp_device_main_stream(r->device)));
        DDP_TRY(ddp_comm_sync_event(r->comm, r->reached, "the training step"));
    }
    if (r->lane)
        DDP_TRY(ddp_marks_add(r->marks, ns, MARK_KINDS));
    *times_out = (ddp_reducer_times){.comm_ns = comm_ns,
                                     .exposed_ns = ns[MARK_WAIT],
                                     .update_ns = ns[MARK_UPDATE],
                                     .bytes = r->bytes};
    return DDP_OK;
}

ddp_status ddp_reducer_collect(ddp_reducer *r, ddp_reducer_times *times_out)
{
    int64_t comm_ns = 0;
    for (int i = 0; r->lane && i < r->launched; i++) {
        DDP_TRY(ddp_work_wait(last_round(r, i)));
        comm_ns += ddp_work_span(last_round(r, i), DDP_SPAN_BUCKET);
    }
    return ddp_reducer_collect_replay(r, comm_ns, times_out);
}

ddp_status ddp_reducer_stream_spans(const ddp_reducer *r, int64_t end_ns)
{
    static const int kinds[MARK_KINDS] = {
        [MARK_OTHER] = -1, [MARK_WAIT] = DDP_SPAN_WAIT, [MARK_UPDATE] = DDP_SPAN_OPTIM};
    return r->lane ? ddp_marks_spans(r->marks, r->marks, end_ns, kinds) : DDP_OK;
}

const ddp_marks *ddp_reducer_marks(const ddp_reducer *r)
{
    return r->marks;
}

/* ---- life ---- */

/* Two marks for each bucket, and what the rounds of the gate need. */
static ddp_status follow_stream(ddp_reducer *r)
{
    enum { GATE_MARKS = 8 };
    if (!ddp_device_is_host(r->device) && !r->lane)
        return DDP_FAIL(DDP_ERR_INTERNAL, "gradients in device memory need a lane");
    if (!ddp_device_is_host(r->device))
        DDP_TRY(ddp_event_create(r->device, &r->reached));
    return r->lane ? ddp_marks_create(r->device, 2 * r->plan.count + GATE_MARKS, &r->marks)
                   : DDP_OK;
}

static ddp_status alloc_all(ddp_reducer *r)
{
    const double mib = 1024.0 * 1024.0;
    const ddpi_bucket_cut cut = {r->opts.first_bucket_mb * mib, r->opts.bucket_cap_mb * mib,
                                 r->opts.cuts, r->opts.cut_count, r->lane ? 1 : DDPI_BUCKET_BLOCKS};
    DDP_TRY(ddpi_bucket_plan_make(r->table, &cut, &r->plan));
    if (r->opts.exact && r->opts.hook != NULL && r->opts.hook != ddp_hook_plain())
        return DDP_FAIL(DDP_ERR_USAGE, "exact sums need gradients that travel as f32");
    DDP_TRY(DDP_ALLOC(r->buckets, (size_t)r->plan.count));
    DDP_TRY(follow_stream(r));
    return ddpi_partials_open(&r->partials, r->device, r->comm, r->opts.exact);
}

static ddp_status open_hook(ddp_reducer *r)
{
    const ddpi_hook_env env = {.device = r->device,
                               .comm = r->comm,
                               .table = r->table,
                               .plan = &r->plan,
                               .grads = r->grads,
                               .opts = r->opts.hook_opts};
    return ddpi_hook_open(r->opts.hook != NULL ? r->opts.hook : ddp_hook_plain(), &env, &r->hook);
}

ddp_status ddp_reducer_create(const ddp_reducer_opts *opts, ddp_param_table *table,
                              ddp_device *device, ddp_comm *comm, ddp_reducer **reducer_out)
{
    DDP_ASSERT(opts->shards >= 1 && opts->shards < INT64_C(1) << 30);
    ddp_reducer *r = NULL;
    ddp_status st = DDP_ALLOC(r, 1);
    if (st == DDP_OK) {
        r->opts = *opts;
        r->table = table;
        r->device = device;
        r->comm = comm;
        r->lane = ddp_comm_has_lane(comm);
        r->length = ddp_param_table_length(table);
        r->partials = (ddpi_partials){.shards = opts->shards, .length = r->length};
        st = alloc_all(r);
    }
    st = ddp_comm_agree(comm, st, "set up buckets");
    if (st != DDP_OK)
        goto err;
    void *memory;
    DDP_TRY_GOTO(st, ddp_comm_mem_alloc(comm, r->length * sizeof(float), &memory), err);
    r->params = memory;
    DDP_TRY_GOTO(
        st,
        ddp_comm_mem_alloc(comm, (size_t)r->partials.parts * r->length * sizeof(float), &memory),
        err);
    r->grads = memory;
    DDP_TRY_GOTO(st, open_hook(r), err);
    ddp_param_table_on_ready(table, on_param_ready, r);
    *reducer_out = r;
    return DDP_OK;
err:
    ddp_reducer_destroy(r);
    return st;
}

void ddp_reducer_destroy(ddp_reducer *r)
{
    if (r == NULL)
        return;
    ddp_param_table_on_ready(r->table, NULL, NULL);
    ddpi_hook_close(r->hook);
    ddp_comm_mem_free(r->comm, r->grads);
    ddp_comm_mem_free(r->comm, r->params);
    ddpi_partials_close(&r->partials);
    ddp_marks_destroy(r->marks);
    ddp_event_destroy(r->reached);
    ddpi_bucket_plan_free(&r->plan);
    ddp_free(r->buckets);
    ddp_free(r);
}

float *ddp_reducer_params(ddp_reducer *r)
{
    return r->params;
}

float *ddp_reducer_grads(ddp_reducer *r)
{
    return r->partials.target != NULL ? r->partials.target : r->grads;
}

float *ddp_reducer_sums(ddp_reducer *r)
{
    return r->grads;
}

void ddp_reducer_set_count(ddp_reducer *r, int64_t count)
{
    DDP_ASSERT(count >= 1);
    r->hook->count = (double)count;
}

void ddp_reducer_set_steps(ddp_reducer *r, int64_t steps)
{
    ddpi_hook_set_steps(r->hook, steps);
}

void ddp_reducer_on_update(ddp_reducer *r, ddp_reducer_update_fn fn, void *arg)
{
    r->update = fn;
    r->update_arg = arg;
}

void ddp_reducer_set_gate(ddp_reducer *r, ddp_reducer_gate gate)
{
    r->gate = gate;
}

int ddp_reducer_bucket_count(const ddp_reducer *r)
{
    return r->plan.count;
}

ddp_range ddp_reducer_bucket(const ddp_reducer *r, int index)
{
    DDP_ASSERT(index >= 0 && index < r->plan.count);
    return r->plan.ranges[index];
}

ddp_range ddp_reducer_owned(const ddp_reducer *r, int index)
{
    DDP_ASSERT(index >= 0 && index < r->plan.count);
    return r->settled == r->plan.count ? owned_of(r, index) : r->plan.ranges[index];
}

int ddp_reducer_block_count(const ddp_reducer *r)
{
    return r->opts.exact ? r->plan.block_count : 0;
}

ddp_range ddp_reducer_block(const ddp_reducer *r, int block)
{
    DDP_ASSERT(block >= 0 && block < r->plan.block_count);
    return r->plan.blocks[block];
}
