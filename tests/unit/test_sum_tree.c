/* Sums over logical shards: the tree's nodes, and that every way to reduce keeps their order.
 *
 * Values have many exponents and both signs, so that another order gives other bits; the wanted
 * bits are those of a plain recursive sum over all shards, which knows nothing of ranks. */
#include "harness.h"

#include <string.h>

#include "ddp/memory.h"
#include "ddp/sum_tree.h"
#include "loopback_ranks.h"
#include "reduce_reference.h"

enum {
    LONGEST = 80021, /* so that messages come in several segments */
    MOST_PARTS = 4,
    MAX_LEAVES = 8 * 7,
    UNIT = 48
};

static float values[MAX_LEAVES][LONGEST];
static float sums[MAX_LEAVES + 1][LONGEST]; /* over so many leaves, where they are wanted */

/* The definition, written down once more. */
static float tree_sum(int64_t first, int64_t n, size_t index)
{
    int64_t left = 1;
    if (n == 1)
        return values[first][index];
    while (left * 2 < n)
        left *= 2;
    return tree_sum(first, left, index) + tree_sum(first + left, n - left, index);
}

static int fill_tables(void **state)
{
    (void)state;
    for (int shard = 0; shard < MAX_LEAVES; shard++)
        for (size_t i = 0; i < LONGEST; i++)
            values[shard][i] = (float)value_at(shard, i, 5);
    for (int n = 1; n <= MAX_LEAVES; n++)
        for (size_t i = 0; i < LONGEST; i++)
            sums[n][i] = tree_sum(0, n, i);
    return 0;
}

static void expect_nodes(int64_t leaves, int64_t lo, int64_t hi, const char *want)
{
    ddp_sum_node nodes[DDP_SUM_MAX_NODES];
    char got[256] = "";
    const int count = ddp_sum_nodes(leaves, lo, hi, nodes);
    for (int i = 0; i < count; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%d-%d", i > 0 ? " " : "",
                 (int)nodes[i].lo, (int)nodes[i].hi);
    assert_string_equal(got, want);
}

static void test_nodes(void **state)
{
    (void)state;
    expect_nodes(8, 0, 8, "0-8");
    expect_nodes(8, 2, 4, "2-4");
    expect_nodes(6, 0, 3, "0-2 2-3");
    expect_nodes(6, 3, 6, "3-4 4-6");
    expect_nodes(7, 4, 7, "4-7");
    expect_nodes(12, 3, 6, "3-4 4-6");
    expect_nodes(12, 8, 12, "8-12");
    assert_int_equal(ddp_sum_split(2), 1);
    assert_int_equal(ddp_sum_split(8), 4);
    assert_int_equal(ddp_sum_split(9), 8);
    assert_int_equal(ddp_sum_parts(8, 4), 1);
    assert_int_equal(ddp_sum_parts(12, 3), 1);
    assert_int_equal(ddp_sum_parts(6, 2), 2);
    assert_int_equal(ddp_sum_parts(7, 1), 1);
}

/* A change of the order must be seen by what follows. */
static void test_order_matters(void **state)
{
    int different = 0;
    (void)state;
    for (size_t i = 0; i < 1000; i++) {
        float in_turn = 0;
        for (int64_t s = 0; s < 8; s++)
            in_turn += values[s][i];
        different += in_turn != tree_sum(0, 8, i);
    }
    assert_true(different > 300);
}

typedef struct job {
    int64_t shards; /* of a rank */
    size_t count;
    bool sliced; /* owned slices are expected */
} job;

static float *place_of(const ddp_coll *coll, int place)
{
    return (float *)coll->buf + (size_t)place * coll->part_stride;
}

/* This rank's partial sums, each with what lies behind it set to a value that must not come in. */
static void fill_parts(const ddp_comm *comm, const ddp_coll *coll)
{
    ddp_sum_node nodes[DDP_SUM_MAX_NODES];
    const int64_t first = ddp_comm_rank(comm) * coll->shards;
    const int count =
        ddp_sum_nodes(coll->shards * ddp_comm_world(comm), first, first + coll->shards, nodes);
    for (int place = 0; place < count; place++)
        for (size_t i = 0; i < coll->count; i++)
            place_of(coll, place)[i] =
                tree_sum(nodes[place].lo, nodes[place].hi - nodes[place].lo, i);
}

static ddp_status check_sums(const ddp_comm *comm, const ddp_coll *coll)
{
    for (size_t i = 0; i < coll->count; i++) {
        const float want = sums[coll->shards * ddp_comm_world(comm)][i];
        const float got = ((const float *)coll->buf)[i];
        if (memcmp(&want, &got, sizeof want) != 0)
            return DDP_FAIL(DDP_ERR_INTERNAL,
                            "%lld shards on each of %d ranks, rank %d: [%zu] is %a, want %a",
                            (long long)coll->shards, ddp_comm_world(comm), ddp_comm_rank(comm), i,
                            (double)got, (double)want);
    }
    return DDP_OK;
}

static ddp_status reduce(ddp_comm *comm, const job *j, void *memory, size_t stride)
{
    ddp_work work;
    ddp_coll coll = {.kind = DDP_COLL_REDUCE_OWNED,
                     .dtype = DDP_F32,
                     .buf = memory,
                     .count = j->count,
                     .shards = j->shards,
                     .part_stride = stride,
                     .unit = UNIT,
                     .bucket = -1,
                     .what = "ordered sums"};
    fill_parts(comm, &coll);
    DDP_TRY(ddp_comm_submit(comm, &coll, &work));
    DDP_TRY(ddp_work_wait(&work));
    if (work.owned.lo < work.owned.hi && work.owned.lo % UNIT != 0)
        return DDP_FAIL(DDP_ERR_INTERNAL, "a slice starts at %zu", work.owned.lo);
    const bool sliced = work.owned.hi - work.owned.lo < j->count;
    if (j->count > UNIT && sliced != j->sliced)
        return DDP_FAIL(DDP_ERR_INTERNAL, "owned is %zu to %zu of %zu", work.owned.lo,
                        work.owned.hi, j->count);
    const ddp_coll summed = coll;
    coll.kind = DDP_COLL_PUBLISH;
    coll.shards = 0;
    DDP_TRY(ddp_comm_submit(comm, &coll, &work));
    DDP_TRY(ddp_work_wait(&work));
    return check_sums(comm, &summed);
}

/* One memory for all lengths and numbers of shards, in a window or this rank's own. */
static ddp_status reduce_all(ddp_comm *comm, bool window, bool in_place, void *memory)
{
    static const int64_t shards[] = {1, 2, 3, 4, 5, 7};
    static const size_t lengths[] = {0, 1, 5, 1000, LONGEST};
    for (size_t s = 0; s < sizeof shards / sizeof *shards; s++)
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
            const job j = {shards[s], lengths[l], in_place && window && ddp_comm_world(comm) > 1};
            DDP_TRY(reduce(comm, &j, memory, lengths[l] + 7));
        }
    return DDP_OK;
}

static ddp_status reduce_rank(ddp_comm *comm, void *arg)
{
    const size_t bytes = (LONGEST + 7) * MOST_PARTS * sizeof(float);
    const bool in_place = *(const bool *)arg;
    void *memory = NULL;
    DDP_TRY(ddp_comm_mem_alloc(comm, bytes, &memory));
    ddp_status st = reduce_all(comm, true, in_place, memory);
    ddp_comm_mem_free(comm, memory);
    DDP_TRY(st);
    DDP_TRY(ddp_alloc_bytes(1, bytes, &memory));
    st = reduce_all(comm, false, in_place, memory);
    ddp_free(memory);
    return st;
}

static ddp_comm_opts options(ddp_allreduce_algo algo, bool shared)
{
    ddp_comm_opts opts = DDP_COMM_OPTS_DEFAULTS;
    opts.allreduce = algo;
    opts.shared_memory = shared;
    opts.exit_on_failure = false;
    return opts;
}

static void run_world(int world, ddp_allreduce_algo algo, bool shared)
{
    const ddp_comm_opts opts = options(algo, shared);
    bool in_place = shared && (algo == DDP_ALLREDUCE_AUTO || algo == DDP_ALLREDUCE_SHM);
    CHECK_OK(run_ranks(&opts, world, reduce_rank, &in_place));
}

static void test_reductions(void **state)
{
    static const int worlds[] = {1, 2, 3, 4, 6, 8};
    (void)state;
    for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++) {
        run_world(worlds[w], DDP_ALLREDUCE_SHM, true);
        run_world(worlds[w], DDP_ALLREDUCE_AUTO, true);
        run_world(worlds[w], DDP_ALLREDUCE_AUTO, false);
        run_world(worlds[w], DDP_ALLREDUCE_TREE, false);
        run_world(worlds[w], DDP_ALLREDUCE_RHD, false);
    }
}

/* ---- refusals ---- */

static ddp_status submit(ddp_comm *comm, ddp_coll coll)
{
    ddp_work work;
    DDP_TRY(ddp_comm_submit(comm, &coll, &work));
    return ddp_work_wait(&work);
}

static ddp_status ring_rank(ddp_comm *comm, void *arg)
{
    float few[4] = {0};
    const ddp_coll coll = {.kind = DDP_COLL_REDUCE_OWNED,
                           .dtype = DDP_F32,
                           .buf = few,
                           .count = 4,
                           .shards = 1,
                           .what = "ordered sums"};
    (void)arg;
    return submit(comm, coll);
}

static ddp_status refuse_rank(ddp_comm *comm, void *arg)
{
    float few[4] = {0};
    ddp_coll coll = {.kind = DDP_COLL_ALLREDUCE,
                     .dtype = DDP_F32,
                     .buf = few,
                     .count = 2,
                     .shards = 1,
                     .what = "ordered sums"};
    (void)arg;
    CHECK_FAILS(submit(comm, coll), DDP_ERR_USAGE, "owned slices");
    coll.kind = DDP_COLL_REDUCE_OWNED;
    coll.shards = 3;
    coll.part_stride = 1;
    CHECK_FAILS(submit(comm, coll), DDP_ERR_USAGE, "2 elements lie 1 apart");
    coll.shards = 1023;
    CHECK_FAILS(submit(comm, coll), DDP_ERR_USAGE, "too many to be added in order");
    return DDP_OK;
}

static void test_refusals(void **state)
{
    ddp_comm_opts opts = options(DDP_ALLREDUCE_RING, false);
    (void)state;
    CHECK_FAILS(run_ranks(&opts, 2, ring_rank, NULL), DDP_ERR_UNSUPPORTED, "does not keep");
    opts = options(DDP_ALLREDUCE_AUTO, true);
    CHECK_OK(run_ranks(&opts, 2, refuse_rank, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nodes),
        cmocka_unit_test(test_order_matters),
        cmocka_unit_test(test_reductions),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, fill_tables, NULL);
}
