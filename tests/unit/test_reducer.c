/* test_reducer.c - buckets, order of launch, partial sums of shards, updates of owned ranges. */
#include "harness.h"

#include <math.h>

#include "ddp/reducer.h"
#include "loopback_ranks.h"
#include "reduce_reference.h"
#include "sync/bucket.h"

enum { PARAMS = 6 };
static const int64_t sizes[PARAMS] = {10, 3000, 17, 1, 999, 64};

static ddp_status make_table(ddp_device *device, ddp_param_table **table_out)
{
    DDP_TRY(ddp_param_table_create(table_out));
    for (int i = 0; i < PARAMS; i++) {
        ddp_param p = {.shape = {1, {sizes[i]}}, .use_count = 1, .init_number = (uint32_t)i};
        snprintf(p.name, sizeof p.name, "p%d", i);
        ddp_layout *layout;
        DDP_TRY(ddp_layout_plain(device, &p.shape, &layout));
        p.layout = layout;
        int index;
        ddp_status st = ddp_param_table_add(*table_out, &p, &index);
        ddp_layout_unref(layout);
        DDP_TRY(st);
    }
    return DDP_OK;
}

static ddp_status open_cpu(ddp_device **device_out)
{
    ddp_device_opts opts = DDP_DEVICE_OPTS_DEFAULTS;
    return ddp_device_open(ddp_device_cpu(), &opts, device_out);
}

static void cuts_buckets_at_parameter_borders_and_covers_everything(void **state)
{
    (void)state;
    ddp_device *device;
    ddp_param_table *table;
    CHECK_OK(open_cpu(&device));
    CHECK_OK(make_table(device, &table));
    const double caps[][2] = {{1, 1}, {12000, 100}, {1e9, 1e9}, {200, 4000}};
    const int want[] = {PARAMS, 3, 1, 3};
    for (int c = 0; c < 8; c++) {
        const int blocks = c / 4 == 0 ? 1 : DDPI_BUCKET_BLOCKS;
        ddpi_bucket_plan plan;
        const ddpi_bucket_cut cut = {caps[c % 4][0], caps[c % 4][1], NULL, 0, blocks};
        CHECK_OK(ddpi_bucket_plan_make(table, &cut, &plan));
        assert_int_equal(plan.count, want[c % 4]);
        size_t at = 0;
        int params = 0;
        for (int b = 0; b < plan.count; b++) {
            assert_int_equal(plan.ranges[b].lo, at);
            assert_true(plan.ranges[b].hi > at);
            at = plan.ranges[b].hi;
            params += plan.param_counts[b];
        }
        assert_int_equal(at, ddp_param_table_length(table));
        assert_int_equal(params, PARAMS);
        at = 0;
        for (int b = 0; b < plan.block_count; b++) {
            assert_int_equal(plan.blocks[b].lo, at);
            at = plan.blocks[b].hi;
        }
        assert_int_equal(at, ddp_param_table_length(table));
        assert_in_range(plan.block_count, plan.count, plan.count * blocks);
        for (int i = 0; i < PARAMS; i++) {
            const ddp_param *p = ddp_param_table_at(table, i);
            ddp_range range = plan.ranges[plan.bucket_of[i]];
            assert_true(range.lo <= p->offset && p->offset + p->count <= range.hi);
        }
        ddpi_bucket_plan_free(&plan);
    }
    ddp_param_table_destroy(table);
    ddp_device_close(device);
}

/* ---- whole steps ---- */

typedef struct job {
    ddp_reducer_opts opts;
    int steps;
    bool gather;   /* reduce without updating, and look at the gradients */
    bool gated;    /* two rounds of measuring come before the updates */
    int skip_rank; /* this rank's last shard is empty; -1: none */
} job;

/* A gradient that floats hold exactly, different for every (step, logical shard, element). */
static float gradient(int step, int64_t shard, size_t element)
{
    return (float)((int64_t)(element % 97) * (shard + 1) + step * 5 - 40);
}

/* Backward of one shard: parameters in flat order, but the last two swapped, so that completion is
 * not in order. */
static ddp_status fake_backward(ddp_reducer *r, ddp_param_table *table, int step, int64_t shard)
{
    float *grads = ddp_reducer_grads(r);
    for (int k = 0; k < PARAMS; k++) {
        int i = k < PARAMS - 2 ? k : 2 * PARAMS - 3 - k;
        const ddp_param *p = ddp_param_table_at(table, i);
        for (size_t e = 0; e < p->count; e++)
            grads[p->offset + e] = gradient(step, shard, p->offset + e);
        DDP_TRY(ddp_param_grad_done(table, i));
    }
    return DDP_OK;
}

typedef struct rank_state {
    ddp_reducer *reducer;
    ddp_comm *comm;
    bool gated;
    size_t updated, measured; /* elements handed over in this step */
    int rounds;
} rank_state;

static ddp_status measure(void *arg, ddp_range range, bool counts)
{
    rank_state *s = arg;
    (void)counts;
    if (s->updated > 0)
        return DDP_FAIL(DDP_ERR_INTERNAL, "measured after an update");
    s->measured += range.hi - range.lo;
    return DDP_OK;
}

/* Collective, as a gate's decision is: its place among the works must be the same everywhere. */
static ddp_status decide(void *arg, bool *again_out)
{
    rank_state *s = arg;
    DDP_TRY(ddp_comm_barrier(s->comm));
    *again_out = ++s->rounds < 2;
    return DDP_OK;
}

static ddp_status apply(void *arg, ddp_range range, bool counts)
{
    rank_state *s = arg;
    (void)counts;
    if (s->gated && s->rounds != 2)
        return DDP_FAIL(DDP_ERR_INTERNAL, "updated after %d rounds", s->rounds);
    float *w = ddp_reducer_params(s->reducer);
    const float *g = ddp_reducer_sums(s->reducer);
    for (size_t i = range.lo; i < range.hi; i++)
        w[i] -= g[i];
    s->updated += range.hi - range.lo;
    return DDP_OK;
}

static double expected_sum(const job *j, int world, int step, size_t element)
{
    double sum = 0;
    for (int rank = 0; rank < world; rank++)
        for (int64_t k = 0; k < j->opts.shards; k++)
            if (rank != j->skip_rank || k + 1 < j->opts.shards)
                sum += gradient(step, rank * j->opts.shards + k, element);
    return sum;
}

static ddp_status run_step(const job *j, ddp_comm *comm, ddp_reducer *r, ddp_param_table *table,
                           int step)
{
    ddp_reducer_times times;
    int rank = ddp_comm_rank(comm);
    for (int64_t k = 0; k < j->opts.shards; k++) {
        DDP_TRY(ddp_reducer_begin(r, k));
        if (rank == j->skip_rank && k + 1 == j->opts.shards)
            DDP_TRY(ddp_reducer_skip(r));
        else
            DDP_TRY(fake_backward(r, table, step, rank * j->opts.shards + k));
    }
    return j->gather ? ddp_reducer_gather(r, &times) : ddp_reducer_finish(r, &times);
}

static ddp_status check_values(const job *j, int world, ddp_reducer *r,
                               const ddp_param_table *table, int steps)
{
    const float *got = j->gather ? ddp_reducer_sums(r) : ddp_reducer_params(r);
    for (int i = 0; i < PARAMS; i++) {
        const ddp_param *p = ddp_param_table_at(table, i);
        for (size_t e = p->offset; e < p->offset + (size_t)sizes[i]; e++) {
            double want = 0;
            for (int s = j->gather ? steps - 1 : 0; s < steps; s++)
                want += (j->gather ? 1 : -1) * expected_sum(j, world, s, e);
            /* bf16 rounds each rank's sum, and each join, by 2^-9; no gradient is above 1000. */
            const bool halved = j->opts.hook == ddp_hook_bf16() || j->opts.hook == ddp_hook_fp16();
            const double room = halved ? steps * world * 1000.0 * 0x1p-8 : 0;
            if (!(fabs(got[e] - (halved ? want : (float)want)) <= room))
                return DDP_FAIL(DDP_ERR_INTERNAL, "element %zu: got %g, want %g", e, got[e], want);
        }
    }
    return DDP_OK;
}

static ddp_status run_rank(ddp_comm *comm, void *arg)
{
    const job *j = arg;
    ddp_device *device;
    ddp_param_table *table;
    rank_state state = {.comm = comm, .gated = j->gated};
    DDP_TRY(open_cpu(&device));
    DDP_TRY(make_table(device, &table));
    DDP_TRY(ddp_reducer_create(&j->opts, table, device, comm, &state.reducer));
    if (!j->gather)
        ddp_reducer_on_update(state.reducer, apply, &state);
    if (j->gated)
        ddp_reducer_set_gate(state.reducer, (ddp_reducer_gate){measure, decide, &state});
    for (int step = 0; step < j->steps; step++) {
        state.updated = state.measured = 0;
        state.rounds = 0;
        ddp_reducer_set_count(state.reducer, 48);
        DDP_TRY(run_step(j, comm, state.reducer, table, step));
        if (j->gated && !j->gather && state.measured != 2 * state.updated)
            return DDP_FAIL(DDP_ERR_INTERNAL, "measured %zu elements, updated %zu", state.measured,
                            state.updated);
        DDP_TRY(check_values(j, ddp_comm_world(comm), state.reducer, table, step + 1));
        DDP_TRY(ddp_comm_barrier(comm)); /* nobody writes gradients while another still checks */
    }
    ddp_reducer_destroy(state.reducer);
    ddp_param_table_destroy(table);
    ddp_device_close(device);
    return DDP_OK;
}

static void sums_and_updates_are_exact_for_every_world_and_algorithm(void **state)
{
    (void)state;
    const ddp_allreduce_algo algos[] = {DDP_ALLREDUCE_SHM, DDP_ALLREDUCE_RING, DDP_ALLREDUCE_RHD,
                                        DDP_ALLREDUCE_HIER};
    const int worlds[] = {1, 2, 3, 4, 5, 8};
    static const int nodes[] = {0, 0, 1, 1, 0, 1, 0, 1}; /* 1, 2, 2+1, 2+2, 3+2, 4+4 */
    for (int a = 0; a < 4; a++)
        for (int w = 0; w < 6; w++)
            for (int variant = 0; variant < 16; variant++) {
                ddp_comm_opts comm = DDP_COMM_OPTS_DEFAULTS;
                comm.allreduce = algos[a];
                comm.exit_on_failure = false;
                comm.loopback_nodes = algos[a] == DDP_ALLREDUCE_HIER ? nodes : NULL;
                job j = {.opts = DDP_REDUCER_OPTS_DEFAULTS, .steps = 3, .skip_rank = -1};
                j.opts.first_bucket_mb = 200.0 / (1 << 20);
                j.opts.bucket_cap_mb = 4000.0 / (1 << 20);
                j.opts.overlap = variant & 1;
                j.opts.update_early = variant & 2;
                j.gather = variant & 4;
                j.gated = variant & 8;
                CHECK_OK(run_ranks(&comm, worlds[w], run_rank, &j));
            }
}

/* Every cut of the parameters there is, which the reducer takes as it is. */
static void sums_and_updates_do_not_care_where_buckets_are_cut(void **state)
{
    (void)state;
    for (unsigned mask = 0; mask < 1u << (PARAMS - 1); mask++) {
        int cuts[PARAMS], count = 0;
        for (int i = 1; i <= PARAMS; i++)
            if (i == PARAMS || (mask >> (i - 1)) & 1)
                cuts[count++] = i;
        ddp_comm_opts comm = DDP_COMM_OPTS_DEFAULTS;
        comm.allreduce = mask & 1 ? DDP_ALLREDUCE_SHM : DDP_ALLREDUCE_RING;
        comm.exit_on_failure = false;
        job j = {.opts = DDP_REDUCER_OPTS_DEFAULTS, .steps = 2, .skip_rank = -1};
        j.opts.cuts = cuts;
        j.opts.cut_count = count;
        CHECK_OK(run_ranks(&comm, 3, run_rank, &j));
    }
}

static void given_cuts_are_taken_as_they_are(void **state)
{
    (void)state;
    ddp_device *device;
    ddp_param_table *table;
    ddpi_bucket_plan plan;
    const int ends[] = {1, 4, PARAMS};
    const ddpi_bucket_cut cut = {1, 1, ends, 3, 1};
    CHECK_OK(open_cpu(&device));
    CHECK_OK(make_table(device, &table));
    CHECK_OK(ddpi_bucket_plan_make(table, &cut, &plan));
    assert_int_equal(plan.count, 3);
    for (int b = 0; b < 3; b++) {
        const int first = b > 0 ? ends[b - 1] : 0;
        assert_int_equal(plan.param_counts[b], ends[b] - first);
        assert_int_equal(plan.ranges[b].lo, ddp_param_table_at(table, first)->offset);
        for (int i = first; i < ends[b]; i++)
            assert_int_equal(plan.bucket_of[i], b);
    }
    assert_int_equal(plan.ranges[2].hi, ddp_param_table_length(table));
    ddpi_bucket_plan_free(&plan);
    ddp_param_table_destroy(table);
    ddp_device_close(device);
}

/* ---- exact ---- */

static float rounding_gradient(int64_t shard, size_t element)
{
    return (float)value_at((int)shard, element, 3);
}

static float tree_sum(int64_t first, int64_t n, size_t element)
{
    int64_t left = 1;
    if (n == 1)
        return rounding_gradient(first, element);
    while (left * 2 < n)
        left *= 2;
    return tree_sum(first, left, element) + tree_sum(first + left, n - left, element);
}

/* Every block comes once over all ranks, and as a whole. */
static ddp_status apply_block(void *arg, ddp_range range, bool counts)
{
    rank_state *s = arg;
    bool known = false;
    (void)counts;
    for (int b = 0; b < ddp_reducer_block_count(s->reducer); b++) {
        const ddp_range block = ddp_reducer_block(s->reducer, b);
        known |= block.lo == range.lo && block.hi == range.hi;
    }
    if (!known)
        return DDP_FAIL(DDP_ERR_INTERNAL, "%zu to %zu is no block", range.lo, range.hi);
    memcpy(ddp_reducer_params(s->reducer) + range.lo, ddp_reducer_sums(s->reducer) + range.lo,
           (range.hi - range.lo) * sizeof(float));
    return DDP_OK;
}

static ddp_status exact_step(ddp_reducer *r, ddp_param_table *table, int64_t first, int64_t shards)
{
    ddp_reducer_times times;
    for (int64_t k = 0; k < shards; k++) {
        DDP_TRY(ddp_reducer_begin(r, k));
        for (int i = PARAMS - 1; i >= 0; i--) {
            const ddp_param *p = ddp_param_table_at(table, i);
            for (size_t e = p->offset; e < p->offset + p->count; e++)
                ddp_reducer_grads(r)[e] = rounding_gradient(first + k, e);
            DDP_TRY(ddp_param_grad_done(table, i));
        }
    }
    return ddp_reducer_finish(r, &times);
}

static ddp_status exact_rank(ddp_comm *comm, void *arg)
{
    const int64_t all = *(const int64_t *)arg, shards = all / ddp_comm_world(comm);
    rank_state state = {.comm = comm};
    ddp_device *device;
    ddp_param_table *table;
    ddp_reducer_opts opts = DDP_REDUCER_OPTS_DEFAULTS;
    opts.first_bucket_mb = 200.0 / (1 << 20);
    opts.bucket_cap_mb = 4000.0 / (1 << 20);
    opts.shards = shards;
    opts.exact = true;
    DDP_TRY(open_cpu(&device));
    DDP_TRY(make_table(device, &table));
    DDP_TRY(ddp_reducer_create(&opts, table, device, comm, &state.reducer));
    ddp_reducer_on_update(state.reducer, apply_block, &state);
    for (int step = 0; step < 2; step++)
        DDP_TRY(exact_step(state.reducer, table, ddp_comm_rank(comm) * shards, shards));
    for (int i = 0; i < PARAMS; i++)
        for (size_t n = 0; n < (size_t)sizes[i]; n++) {
            const size_t e = ddp_param_table_at(table, i)->offset + n;
            const float want = tree_sum(0, all, e), got = ddp_reducer_params(state.reducer)[e];
            if (memcmp(&want, &got, sizeof want) != 0)
                return DDP_FAIL(DDP_ERR_INTERNAL, "%lld shards, element %zu: %a, want %a",
                                (long long)all, e, (double)got, (double)want);
        }
    ddp_reducer_destroy(state.reducer);
    ddp_param_table_destroy(table);
    ddp_device_close(device);
    return DDP_OK;
}

static void exact_sums_do_not_depend_on_the_world(void **state)
{
    static const ddp_allreduce_algo algos[] = {DDP_ALLREDUCE_SHM, DDP_ALLREDUCE_TREE,
                                               DDP_ALLREDUCE_RHD};
    (void)state;
    for (int64_t all = 1; all <= 12; all++)
        for (int world = 1; world <= all; world++)
            for (int a = 0; a < 3 && all % world == 0; a++) {
                ddp_comm_opts comm = DDP_COMM_OPTS_DEFAULTS;
                comm.allreduce = algos[a];
                comm.exit_on_failure = false;
                CHECK_OK(run_ranks(&comm, world, exact_rank, &all));
            }
}

static ddp_status bf16_rank(ddp_comm *comm, void *arg)
{
    ddp_device *device;
    ddp_param_table *table;
    ddp_reducer *r = NULL;
    ddp_reducer_opts opts = DDP_REDUCER_OPTS_DEFAULTS;
    (void)arg;
    opts.exact = true;
    opts.hook = ddp_hook_bf16();
    DDP_TRY(open_cpu(&device));
    DDP_TRY(make_table(device, &table));
    CHECK_FAILS(ddp_reducer_create(&opts, table, device, comm, &r), DDP_ERR_USAGE, "as f32");
    ddp_param_table_destroy(table);
    ddp_device_close(device);
    return DDP_OK;
}

static void exact_sums_of_bf16_are_refused(void **state)
{
    ddp_comm_opts comm = DDP_COMM_OPTS_DEFAULTS;
    comm.exit_on_failure = false;
    (void)state;
    CHECK_OK(run_ranks(&comm, 1, bf16_rank, NULL));
}

/* Of these hooks powersgd finds nothing to compress, and topk sends everything. */
static void check_hook(const ddp_hook_ops *hook)
{
    const ddp_allreduce_algo algos[] = {DDP_ALLREDUCE_SHM, DDP_ALLREDUCE_RING, DDP_ALLREDUCE_RHD};
    for (int a = 0; a < 3; a++)
        for (int world = 1; world <= 4; world++)
            for (int variant = 0; variant < 4; variant++) {
                ddp_comm_opts comm = DDP_COMM_OPTS_DEFAULTS;
                comm.allreduce = algos[a];
                comm.exit_on_failure = false;
                job j = {.opts = DDP_REDUCER_OPTS_DEFAULTS, .steps = 2, .skip_rank = -1};
                j.opts.first_bucket_mb = 200.0 / (1 << 20);
                j.opts.bucket_cap_mb = 4000.0 / (1 << 20);
                j.opts.shards = 1 + (variant & 1);
                j.opts.hook = hook;
                j.opts.hook_opts.share = 1;
                j.gather = variant & 2;
                CHECK_OK(run_ranks(&comm, world, run_rank, &j));
            }
}

static void gradients_may_travel_in_other_ways(void **state)
{
    (void)state;
    check_hook(ddp_hook_bf16());
    check_hook(ddp_hook_fp16());
    check_hook(ddp_hook_powersgd());
    check_hook(ddp_hook_topk());
}

/* That they did: 257 does not survive, 256 and 258 do. */
static ddp_status round_one(ddp_comm *comm, void *arg)
{
    (void)arg;
    ddp_device *device;
    ddp_param_table *table;
    ddp_reducer *r;
    ddp_reducer_times times;
    DDP_TRY(open_cpu(&device));
    DDP_TRY(make_table(device, &table));
    ddp_reducer_opts opts = DDP_REDUCER_OPTS_DEFAULTS;
    opts.hook = ddp_hook_bf16();
    DDP_TRY(ddp_reducer_create(&opts, table, device, comm, &r));
    ddp_reducer_set_count(r, 4);
    DDP_TRY(ddp_reducer_begin(r, 0));
    for (int i = 0; i < PARAMS; i++) {
        ddp_reducer_grads(r)[ddp_param_table_at(table, i)->offset] = (float)(256 + i);
        DDP_TRY(ddp_param_grad_done(table, i));
    }
    DDP_TRY(ddp_reducer_gather(r, &times));
    const float want[PARAMS] = {256, 256, 258, 260, 260, 260};
    bool right = true;
    for (int i = 0; i < PARAMS; i++)
        right = right && ddp_reducer_grads(r)[ddp_param_table_at(table, i)->offset] == want[i];
    ddp_reducer_destroy(r);
    ddp_param_table_destroy(table);
    ddp_device_close(device);
    return right ? DDP_OK : DDP_FAIL(DDP_ERR_INTERNAL, "gradients were not rounded to bf16");
}

static void bf16_gradients_are_rounded_once(void **state)
{
    (void)state;
    ddp_comm_opts comm = DDP_COMM_OPTS_DEFAULTS;
    comm.exit_on_failure = false;
    CHECK_OK(run_ranks(&comm, 1, round_one, NULL));
}

static void shards_of_a_rank_add_up_for_every_count(void **state)
{
    (void)state;
    for (int64_t shards = 1; shards <= 9; shards++) {
        ddp_comm_opts comm = DDP_COMM_OPTS_DEFAULTS;
        comm.exit_on_failure = false;
        job j = {.opts = DDP_REDUCER_OPTS_DEFAULTS, .steps = 2, .skip_rank = -1};
        j.opts.shards = shards;
        CHECK_OK(run_ranks(&comm, 2, run_rank, &j));
        j.skip_rank = 1;
        CHECK_OK(run_ranks(&comm, 2, run_rank, &j));
    }
}

static void partial_sums_follow_the_power_of_two_tree(void **state)
{
    (void)state;
    /* 1 + 2^-24 + 2^-24 tells orders apart in f32: (1 + e) + e is 1, 1 + (e + e) is not. */
    const float e = 0x1p-24f;
    const float shard[7] = {1, 0, 0, 0, e, 0, e};
    ddp_device *device;
    ddp_param_table *table;
    ddp_comm *comm;
    ddp_reducer *r;
    ddp_comm_opts comm_opts = DDP_COMM_OPTS_DEFAULTS;
    comm_opts.exit_on_failure = false;
    const ddp_loopback_faults none = DDP_LOOPBACK_FAULTS_NONE;
    CHECK_OK(open_cpu(&device));
    CHECK_OK(make_table(device, &table));
    CHECK_OK(ddp_comm_loopback_open(&comm_opts, 1, &none, &comm));
    ddp_reducer_opts opts = DDP_REDUCER_OPTS_DEFAULTS;
    opts.shards = 7;
    CHECK_OK(ddp_reducer_create(&opts, table, device, comm, &r));
    for (int64_t k = 0; k < opts.shards; k++) {
        CHECK_OK(ddp_reducer_begin(r, k));
        for (int i = 0; i < PARAMS; i++) {
            ddp_reducer_grads(r)[ddp_param_table_at(table, i)->offset] = shard[k];
            CHECK_OK(ddp_param_grad_done(table, i));
        }
    }
    ddp_reducer_times times;
    CHECK_OK(ddp_reducer_gather(r, &times));
    /* (s0..s3) + ((s4 + s5) + s6) = 1 + 2e */
    assert_true(ddp_reducer_grads(r)[0] == 1.0f + 2 * e);
    ddp_reducer_destroy(r);
    ddp_comm_close(comm);
    ddp_param_table_destroy(table);
    ddp_device_close(device);
}

static ddp_status forget_a_parameter(ddp_comm *comm, void *arg)
{
    (void)arg;
    ddp_device *device;
    ddp_param_table *table;
    ddp_reducer *r;
    ddp_reducer_times times;
    DDP_TRY(open_cpu(&device));
    DDP_TRY(make_table(device, &table));
    ddp_reducer_opts opts = DDP_REDUCER_OPTS_DEFAULTS;
    DDP_TRY(ddp_reducer_create(&opts, table, device, comm, &r));
    DDP_TRY(ddp_reducer_begin(r, 0));
    for (int i = 0; i < PARAMS; i++)
        if (i != 3)
            DDP_TRY(ddp_param_grad_done(table, i));
    ddp_status st = ddp_reducer_finish(r, &times);
    bool named = strstr(ddp_status_message(), "p3") != NULL;
    ddp_reducer_destroy(r);
    ddp_param_table_destroy(table);
    ddp_device_close(device);
    return st == DDP_ERR_INTERNAL && named ? DDP_OK
                                           : DDP_FAIL(DDP_ERR_INTERNAL, "p3 was not missed");
}

static void a_gradient_that_never_came_is_named(void **state)
{
    (void)state;
    ddp_comm_opts comm = DDP_COMM_OPTS_DEFAULTS;
    comm.exit_on_failure = false;
    CHECK_OK(run_ranks(&comm, 1, forget_a_parameter, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuts_buckets_at_parameter_borders_and_covers_everything),
        cmocka_unit_test(given_cuts_are_taken_as_they_are),
        cmocka_unit_test(sums_and_updates_are_exact_for_every_world_and_algorithm),
        cmocka_unit_test(sums_and_updates_do_not_care_where_buckets_are_cut),
        cmocka_unit_test(exact_sums_do_not_depend_on_the_world),
        cmocka_unit_test(exact_sums_of_bf16_are_refused),
        cmocka_unit_test(gradients_may_travel_in_other_ways),
        cmocka_unit_test(bf16_gradients_are_rounded_once),
        cmocka_unit_test(shards_of_a_rank_add_up_for_every_count),
        cmocka_unit_test(partial_sums_follow_the_power_of_two_tree),
        cmocka_unit_test(a_gradient_that_never_came_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
