/* Worlds of several nodes, as loopback plays them: who is where, collectives on two levels, what
 * they send, and how they fail. */
#include "harness.h"

#include "comm_checks.h"
#include "loopback_ranks.h"

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

/* ---- shapes ---- */

typedef struct shape {
    const char *name;
    int world;
    int labels[8];    /* of the ranks' nodes, in any numbering */
    int node[8];      /* what is expected, by rank */
    int node_rank[8]; /* the same */
    int sizes[8];     /* by node */
    int node_count;
} shape;

static const shape shapes[] = {
    {"1", 1, {5}, {0}, {0}, {1}, 1},
    {"2+2", 4, {7, 7, 3, 3}, {0, 0, 1, 1}, {0, 1, 0, 1}, {2, 2}, 2},
    {"2+2 in turn", 4, {1, 0, 1, 0}, {0, 1, 0, 1}, {0, 0, 1, 1}, {2, 2}, 2},
    {"4+4",
     8,
     {0, 0, 0, 0, 1, 1, 1, 1},
     {0, 0, 0, 0, 1, 1, 1, 1},
     {0, 1, 2, 3, 0, 1, 2, 3},
     {4, 4},
     2},
    {"2+2+2+2",
     8,
     {0, 0, 1, 1, 2, 2, 3, 3},
     {0, 0, 1, 1, 2, 2, 3, 3},
     {0, 1, 0, 1, 0, 1, 0, 1},
     {2, 2, 2, 2},
     4},
    {"3+1", 4, {0, 0, 0, 9}, {0, 0, 0, 1}, {0, 1, 2, 0}, {3, 1}, 2},
    {"1+3", 4, {4, 2, 2, 2}, {0, 1, 1, 1}, {0, 0, 1, 2}, {1, 3}, 2},
    {"2+3", 5, {1, 1, 0, 0, 0}, {0, 0, 1, 1, 1}, {0, 1, 0, 1, 2}, {2, 3}, 2},
    {"2+2+1 mixed", 5, {0, 1, 2, 1, 0}, {0, 1, 2, 1, 0}, {0, 0, 0, 1, 1}, {2, 2, 1}, 3},
    {"1+1+1", 3, {0, 1, 2}, {0, 1, 2}, {0, 0, 0}, {1, 1, 1}, 3},
    {"2+2+2", 6, {0, 0, 1, 1, 2, 2}, {0, 0, 1, 1, 2, 2}, {0, 1, 0, 1, 0, 1}, {2, 2, 2}, 3},
};

static ddp_comm_opts options(const shape *s, ddp_allreduce_algo algo)
{
    ddp_comm_opts opts = DDP_COMM_OPTS_DEFAULTS;
    opts.allreduce = algo;
    opts.exit_on_failure = false;
    opts.loopback_nodes = s->labels;
    return opts;
}

static void run_shape(const shape *s, const ddp_comm_opts *opts, rank_fn fn, void *arg)
{
    if (run_ranks(opts, s->world, fn, arg) != DDP_OK)
        fail_msg("%s: %s", s->name, ddp_status_message());
}

/* ---- who is where ---- */

static ddp_status expect(int got, int want, const char *what)
{
    return got == want ? DDP_OK : DDP_FAIL(DDP_ERR_INTERNAL, "%s is %d, not %d", what, got, want);
}

static ddp_status check_places(ddp_comm *comm, void *arg)
{
    const shape *s = arg;
    const int rank = ddp_comm_rank(comm);
    DDP_TRY(expect(ddp_comm_node_count(comm), s->node_count, "the number of nodes"));
    DDP_TRY(expect(ddp_comm_node(comm), s->node[rank], "the own node"));
    DDP_TRY(expect(ddp_comm_node_rank(comm), s->node_rank[rank], "the rank in the node"));
    DDP_TRY(expect(ddp_comm_node_size(comm), s->sizes[s->node[rank]], "the node's size"));
    for (int r = 0; r < s->world; r++)
        DDP_TRY(expect(ddp_comm_node_of(comm, r), s->node[r], "a rank's node"));
    return DDP_OK;
}

static void nodes_are_numbered_by_their_lowest_ranks(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        ddp_comm_opts opts = options(&shapes[i], DDP_ALLREDUCE_AUTO);
        run_shape(&shapes[i], &opts, check_places, (void *)(uintptr_t)&shapes[i]);
    }
}

static ddp_status check_alone(ddp_comm *comm, void *arg)
{
    (void)arg;
    DDP_TRY(expect(ddp_comm_node_count(comm), 4, "the number of nodes"));
    DDP_TRY(expect(ddp_comm_node_of(comm, 2), 2, "rank 2's node"));
    return expect(ddp_comm_node_size(comm), 1, "the node's size");
}

static void without_shared_memory_every_rank_is_a_node(void **state)
{
    (void)state;
    ddp_comm_opts opts = options(&shapes[1], DDP_ALLREDUCE_AUTO);
    opts.shared_memory = false;
    run_shape(&shapes[1], &opts, check_alone, NULL);
}

/* ---- results ---- */

static const size_t lengths[] = {0, 1, 7, 65, 1000, 100003};

static ddp_status check_at(ddp_comm *comm, size_t count, bool window)
{
    const size_t bytes = (count * 8 + 64) * (size_t)ddp_comm_world(comm);
    void *memory;
    if (window)
        DDP_TRY(ddp_comm_mem_alloc(comm, bytes, &memory));
    else
        DDP_TRY(ddp_alloc_bytes(bytes, 1, &memory));
    ddp_status st = check_all(comm, memory, count);
    if (st == DDP_OK && count == 1000)
        st = check_types(comm, memory, count);
    if (st == DDP_OK && count == 100003)
        st = check_many(comm, memory, count);
    if (window)
        ddp_comm_mem_free(comm, memory);
    else
        ddp_free(memory);
    return st;
}

static ddp_status check_everything(ddp_comm *comm, void *arg)
{
    (void)arg;
    for (size_t i = 0; i < COUNT_OF(lengths); i++)
        for (int window = 0; window < 2; window++)
            DDP_TRY(check_at(comm, lengths[i], window != 0));
    return DDP_OK;
}

static void two_levels_give_exact_results(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        ddp_comm_opts opts = options(&shapes[i], DDP_ALLREDUCE_HIER);
        run_shape(&shapes[i], &opts, check_everything, NULL);
    }
}

static void messages_between_nodes_give_exact_results(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        ddp_comm_opts opts = options(&shapes[i], DDP_ALLREDUCE_RING);
        run_shape(&shapes[i], &opts, check_everything, NULL);
    }
}

/* ---- many ranks ---- */

static ddp_status gather_sizes(ddp_comm *comm, void *arg)
{
    static const size_t sizes[] = {0, 1, 97, 5003, 40001}; /* of a share; direct, tree and ring */
    uint8_t *all;
    (void)arg;
    DDP_TRY(DDP_ALLOC(all, 40001 * (size_t)ddp_comm_world(comm)));
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        memset(all, 0xff, sizes[i] * (size_t)ddp_comm_world(comm));
        DDP_TRY(check_allgather(comm, all, sizes[i]));
    }
    ddp_free(all);
    return DDP_OK;
}

static void many_ranks_gather_from_all(void **state)
{
    (void)state;
    static const int worlds[] = {17, 32, 45};
    int nodes[48];
    for (size_t i = 0; i < COUNT_OF(worlds); i++)
        for (int size = 0; size < 4; size++) { /* of a node; 0: none shares memory */
            ddp_comm_opts opts = DDP_COMM_OPTS_DEFAULTS;
            opts.exit_on_failure = false;
            opts.shared_memory = size > 0;
            opts.loopback_nodes = nodes;
            for (int r = 0; r < worlds[i]; r++)
                nodes[r] = r / (size > 0 ? size : 1);
            if (run_ranks(&opts, worlds[i], gather_sizes, NULL) != DDP_OK)
                fail_msg("%d ranks, %d on a node: %s", worlds[i], size, ddp_status_message());
        }
}

/* ---- owners ---- */

/* Every element has one owner that counts, and an owner on every node that has slices. */
static ddp_status check_owners(ddp_comm *comm, void *arg)
{
    const shape *s = arg;
    const size_t count = 5003;
    const bool sliced = s->sizes[0] * s->node_count == s->world && s->node_count < s->world;
    float *memory, *owners;
    void *window;
    ddp_work work;
    DDP_TRY(ddp_comm_mem_alloc(comm, count * sizeof(float), &window));
    memory = window;
    DDP_TRY(DDP_ALLOC(owners, 2 * count));
    ddp_coll coll = {.kind = DDP_COLL_REDUCE_OWNED,
                     .dtype = DDP_F32,
                     .buf = memory,
                     .count = count,
                     .bucket = -1,
                     .what = "owners"};
    DDP_TRY(check_run(comm, &coll, &work));
    if (s->node_count > 1 && (work.owned.hi - work.owned.lo < count) != sliced)
        return DDP_FAIL(DDP_ERR_INTERNAL, "owned is %zu to %zu", work.owned.lo, work.owned.hi);
    for (size_t i = work.owned.lo; i < work.owned.hi; i++) {
        owners[i] = 1;
        owners[count + i] = work.counts;
    }
    DDP_TRY(ddp_comm_allreduce(comm, owners, 2 * count, DDP_F32, DDP_REDUCE_SUM, "owners"));
    for (size_t i = 0; i < count; i++)
        if (owners[count + i] != 1 || (sliced && owners[i] != (float)s->node_count))
            return DDP_FAIL(DDP_ERR_INTERNAL, "[%zu] has %g owners, %g that count", i,
                            (double)owners[i], (double)owners[count + i]);
    ddp_free(owners);
    ddp_comm_mem_free(comm, window);
    return DDP_OK;
}

static void one_owner_of_each_element_counts(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        ddp_comm_opts opts = options(&shapes[i], DDP_ALLREDUCE_HIER);
        run_shape(&shapes[i], &opts, check_owners, (void *)(uintptr_t)&shapes[i]);
    }
}

/* ---- bytes ---- */

enum { SUM_COUNT = 250000, SUMS = 3 };

typedef struct counts {
    uint64_t across[8], sent[8]; /* by rank */
} counts;

static ddp_status count_bytes(ddp_comm *comm, void *arg)
{
    counts *c = arg;
    const int rank = ddp_comm_rank(comm);
    void *memory;
    DDP_TRY(ddp_comm_mem_alloc(comm, SUM_COUNT * sizeof(float), &memory));
    DDP_TRY(ddp_comm_barrier(comm));
    const uint64_t across = ddp_comm_bytes_across(comm), sent = ddp_comm_bytes_sent(comm);
    for (int i = 0; i < SUMS; i++)
        DDP_TRY(ddp_comm_allreduce(comm, memory, SUM_COUNT, DDP_F32, DDP_REDUCE_SUM, "gradients"));
    c->across[rank] = ddp_comm_bytes_across(comm) - across;
    c->sent[rank] = ddp_comm_bytes_sent(comm) - sent;
    DDP_TRY(ddp_comm_barrier(comm));
    ddp_comm_mem_free(comm, memory);
    return DDP_OK;
}

/* 2 (nodes - 1) / nodes of the buffer, and a few elements where it cannot be cut evenly. */
static void a_node_sends_no_more_than_one_rank_would(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        const shape *s = &shapes[i];
        ddp_comm_opts opts = options(s, DDP_ALLREDUCE_HIER);
        counts c = {.across = {0}};
        uint64_t by_node[8] = {0}, all = 0, least;
        run_shape(s, &opts, count_bytes, &c);
        for (int r = 0; r < s->world; r++) {
            by_node[s->node[r]] += c.across[r];
            all += c.across[r];
        }
        least = (uint64_t)SUMS * 2 * SUM_COUNT * sizeof(float) * (uint64_t)(s->node_count - 1);
        for (int k = 0; k < s->node_count; k++)
            if (by_node[k] > least / (uint64_t)s->node_count + 1024)
                fail_msg("%s: node %d sends %llu bytes", s->name, k,
                         (unsigned long long)by_node[k]);
        assert_true(all + 1024 >= least);
    }
}

static void bytes_to_ones_own_node_are_not_counted_as_across(void **state)
{
    (void)state;
    const shape *s = &shapes[1]; /* 2+2: of a ring's four links, two cross */
    ddp_comm_opts opts = options(s, DDP_ALLREDUCE_RING);
    counts c = {.across = {0}};
    run_shape(s, &opts, count_bytes, &c);
    for (int r = 0; r < s->world; r++) {
        assert_true(c.sent[r] > 0);
        assert_int_equal(c.across[r], r % 2 == 1 ? c.sent[r] : 0);
    }
}

/* ---- sums in order ---- */

enum { ORDERED_COUNT = 100003 };

typedef struct ordered {
    float sums[8][ORDERED_COUNT]; /* by rank */
    uint64_t across[8];
} ordered;

static ddp_status sum_in_order(ddp_comm *comm, void *arg)
{
    ordered *o = arg;
    const int rank = ddp_comm_rank(comm);
    void *window;
    ddp_work work;
    DDP_TRY(ddp_comm_mem_alloc(comm, ORDERED_COUNT * sizeof(float), &window));
    float *memory = window;
    for (size_t i = 0; i < ORDERED_COUNT; i++)
        memory[i] = 1 / (float)(i * 3 + (size_t)rank * 7 + 1);
    DDP_TRY(ddp_comm_barrier(comm));
    const uint64_t across = ddp_comm_bytes_across(comm);
    ddp_coll coll = {.kind = DDP_COLL_REDUCE_OWNED,
                     .dtype = DDP_F32,
                     .buf = memory,
                     .count = ORDERED_COUNT,
                     .shards = 2,
                     .unit = 48,
                     .bucket = -1,
                     .what = "sums in order"};
    DDP_TRY(check_run(comm, &coll, &work));
    if (work.owned.lo < work.owned.hi && work.owned.lo % coll.unit != 0)
        return DDP_FAIL(DDP_ERR_INTERNAL, "a slice starts at %zu", work.owned.lo);
    coll.kind = DDP_COLL_PUBLISH;
    coll.shards = 0;
    DDP_TRY(check_run(comm, &coll, &work));
    o->across[rank] = ddp_comm_bytes_across(comm) - across;
    memcpy(o->sums[rank], memory, sizeof o->sums[rank]);
    DDP_TRY(ddp_comm_barrier(comm));
    ddp_comm_mem_free(comm, window);
    return DDP_OK;
}

static void sums_in_order_have_the_same_bits_on_nodes(void **state)
{
    (void)state;
    static ordered alone, nodes;
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        const shape *s = &shapes[i];
        ddp_comm_opts opts = options(s, DDP_ALLREDUCE_AUTO);
        run_shape(s, &opts, sum_in_order, &nodes);
        opts.shared_memory = false;
        run_shape(s, &opts, sum_in_order, &alone);
        for (int r = 0; r < s->world; r++)
            if (memcmp(nodes.sums[r], alone.sums[0], sizeof nodes.sums[r]) != 0)
                fail_msg("%s: rank %d has other bits", s->name, r);
    }
}

/* Nodes of equally many ranks in a row, a power of two. */
static void sums_in_order_take_two_levels_where_they_can(void **state)
{
    (void)state;
    static ordered o;
    const size_t can[] = {1, 3, 4, 10};
    for (size_t i = 0; i < COUNT_OF(can); i++) {
        const shape *s = &shapes[can[i]];
        ddp_comm_opts opts = options(s, DDP_ALLREDUCE_AUTO);
        uint64_t by_node[8] = {0};
        run_shape(s, &opts, sum_in_order, &o);
        for (int r = 0; r < s->world; r++)
            by_node[s->node[r]] += o.across[r];
        const size_t least = 2 * ORDERED_COUNT * sizeof(float) * (size_t)(s->node_count - 1);
        for (int k = 0; k < s->node_count; k++)
            if (by_node[k] > least / (size_t)s->node_count + 2048)
                fail_msg("%s: node %d sends %llu bytes", s->name, k,
                         (unsigned long long)by_node[k]);
    }
}

/* ---- the choice ---- */

/* arg: int, the number of lengths that were measured. */
static ddp_status tune(ddp_comm *comm, void *arg)
{
    ddp_sum_trial trial;
    const size_t count = (size_t)1 << 19;
    void *memory;
    int measured = 0;
    DDP_TRY(ddp_comm_tune(comm));
    while (ddp_comm_tuned(comm, measured, &trial))
        measured++;
    DDP_TRY(expect(ddp_comm_tuned(comm, measured + 1, &trial), false, "a length behind the last"));
    DDP_TRY(ddp_comm_mem_alloc(comm, count * sizeof(float), &memory));
    DDP_TRY(check_allreduce(comm, memory, 1024, DDP_F32, DDP_REDUCE_SUM));
    DDP_TRY(check_allreduce(comm, memory, count, DDP_F32, DDP_REDUCE_SUM));
    ddp_comm_mem_free(comm, memory);
    if (ddp_comm_rank(comm) == 0)
        *(int *)arg = measured;
    return DDP_OK;
}

static void only_auto_on_several_nodes_is_measured(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        for (int hier = 0; hier < 2; hier++) {
            ddp_comm_opts opts =
                options(&shapes[i], hier != 0 ? DDP_ALLREDUCE_HIER : DDP_ALLREDUCE_AUTO);
            const bool some =
                hier == 0 && shapes[i].node_count > 1 && shapes[i].node_count < shapes[i].world;
            int measured = 0;
            run_shape(&shapes[i], &opts, tune, &measured);
            if ((measured > 0) != some)
                fail_msg("%s, hier %d: %d lengths", shapes[i].name, hier, measured);
        }
}

/* ---- failures ---- */

typedef struct verdicts {
    ddp_status status[8];
    char message[8][512];
} verdicts;

static ddp_status keep_summing(ddp_comm *comm)
{
    const size_t count = 50000;
    void *memory;
    DDP_TRY(ddp_comm_mem_alloc(comm, count * sizeof(float), &memory));
    ddp_status st = DDP_OK;
    for (int i = 0; i < 100 && st == DDP_OK; i++)
        st = ddp_comm_allreduce(comm, memory, count, DDP_F32, DDP_REDUCE_SUM, "gradients");
    return st;
}

static ddp_status sum_until_failure(ddp_comm *comm, void *arg)
{
    verdicts *v = arg;
    const int rank = ddp_comm_rank(comm);
    v->status[rank] = keep_summing(comm);
    snprintf(v->message[rank], sizeof v->message[rank], "%s", ddp_status_message());
    return DDP_OK;
}

static ddp_status rank_2_hangs(ddp_comm *comm, void *arg)
{
    if (ddp_comm_rank(comm) != 2)
        return sum_until_failure(comm, arg);
    verdicts *v = arg;
    void *memory;
    DDP_TRY(ddp_comm_mem_alloc(comm, 50000 * sizeof(float), &memory));
    ddp_comm_note(comm, 87, "forward");
    ddp_sleep_ns(2500000000);
    v->status[2] = ddp_comm_barrier(comm);
    snprintf(v->message[2], sizeof v->message[2], "%s", ddp_status_message());
    return DDP_OK;
}

static void expect_failure(const shape *s, const verdicts *v, ddp_status want, const char *text)
{
    for (int r = 0; r < s->world; r++) {
        const bool own = want == DDP_ERR_PEER && v->status[r] == DDP_ERR_COMM;
        if ((v->status[r] != want && !own) || strstr(v->message[r], text) == NULL)
            fail_msg("%s, rank %d: %s: %s", s->name, r, ddp_status_name(v->status[r]),
                     v->message[r]);
    }
}

static void a_rank_that_hangs_is_named(void **state)
{
    (void)state;
    for (size_t i = 2; i < 9; i += 3) { /* even and uneven */
        verdicts v = {.status = {DDP_OK}};
        ddp_comm_opts opts = options(&shapes[i], DDP_ALLREDUCE_HIER);
        opts.timeout_ms = 1200; /* in which the others get there, however busy the machine is */
        run_shape(&shapes[i], &opts, rank_2_hangs, &v);
        expect_failure(&shapes[i], &v, DDP_ERR_TIMEOUT, "rank 2 on ");
        expect_failure(&shapes[i], &v, DDP_ERR_TIMEOUT, "(gradients)");
    }
}

static void run_faulty(const shape *s, const ddp_comm_opts *opts, const ddp_loopback_faults *faults,
                       verdicts *v)
{
    if (run_faulty_ranks(opts, s->world, faults, sum_until_failure, v) != DDP_OK)
        fail_msg("%s: %s", s->name, ddp_status_message());
}

static void a_rank_that_dies_ends_all(void **state)
{
    (void)state;
    for (size_t i = 2; i < 9; i += 3) {
        verdicts v = {.status = {DDP_OK}};
        ddp_comm_opts opts = options(&shapes[i], DDP_ALLREDUCE_HIER);
        ddp_loopback_faults faults = {.lose_rank = -1, .die_rank = 2, .die_at = 20};
        run_faulty(&shapes[i], &opts, &faults, &v);
        expect_failure(&shapes[i], &v, DDP_ERR_PEER, "rank 2 died at work 20");
    }
}

static void messages_lost_between_nodes_time_out(void **state)
{
    (void)state;
    for (size_t i = 2; i < 9; i += 3) {
        verdicts v = {.status = {DDP_OK}};
        ddp_comm_opts opts = options(&shapes[i], DDP_ALLREDUCE_HIER);
        ddp_loopback_faults faults = {.lose_rank = 0, .lose_after = 30, .die_rank = -1};
        opts.timeout_ms = 500;
        run_faulty(&shapes[i], &opts, &faults, &v);
        expect_failure(&shapes[i], &v, DDP_ERR_TIMEOUT, "");
    }
}

static void delays_and_reordering_change_nothing(void **state)
{
    (void)state;
    for (size_t i = 2; i < 9; i += 3) {
        ddp_comm_opts opts = options(&shapes[i], DDP_ALLREDUCE_HIER);
        ddp_loopback_faults faults = {
            .seed = i, .max_delay_us = 1000, .reorder = true, .lose_rank = -1, .die_rank = -1};
        if (run_faulty_ranks(&opts, shapes[i].world, &faults, check_everything, NULL) != DDP_OK)
            fail_msg("%s: %s", shapes[i].name, ddp_status_message());
    }
}

/* ---- memory ---- */

static ddp_status steady(ddp_comm *comm, void *arg)
{
    void *memory;
    (void)arg;
    DDP_TRY(ddp_comm_mem_alloc(comm, SUM_COUNT * sizeof(float), &memory));
    for (int i = 0; i < 70; i++) {
        DDP_TRY(check_owned(comm, memory, SUM_COUNT / 10));
        if (i != 10)
            continue;
        DDP_TRY(ddp_comm_barrier(comm));
        ddp_mem_freeze();
    }
    DDP_TRY(ddp_comm_barrier(comm));
    ddp_comm_mem_free(comm, memory);
    return DDP_OK;
}

/* The mailboxes may still grow: how many messages are on their way at a time is a matter of luck.
 */
static void sums_on_two_levels_do_not_allocate_each_time(void **state)
{
    (void)state;
    ddp_comm_opts opts = options(&shapes[7], DDP_ALLREDUCE_HIER);
    run_shape(&shapes[7], &opts, steady, NULL);
    assert_in_range(ddp_mem_allocs_since_freeze(), 0, 30);
    ddp_mem_thaw();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_are_numbered_by_their_lowest_ranks),
        cmocka_unit_test(without_shared_memory_every_rank_is_a_node),
        cmocka_unit_test(two_levels_give_exact_results),
        cmocka_unit_test(messages_between_nodes_give_exact_results),
        cmocka_unit_test(many_ranks_gather_from_all),
        cmocka_unit_test(one_owner_of_each_element_counts),
        cmocka_unit_test(a_node_sends_no_more_than_one_rank_would),
        cmocka_unit_test(bytes_to_ones_own_node_are_not_counted_as_across),
        cmocka_unit_test(sums_in_order_have_the_same_bits_on_nodes),
        cmocka_unit_test(sums_in_order_take_two_levels_where_they_can),
        cmocka_unit_test(only_auto_on_several_nodes_is_measured),
        cmocka_unit_test(a_rank_that_hangs_is_named),
        cmocka_unit_test(a_rank_that_dies_ends_all),
        cmocka_unit_test(messages_lost_between_nodes_time_out),
        cmocka_unit_test(delays_and_reordering_change_nothing),
        cmocka_unit_test(sums_on_two_levels_do_not_allocate_each_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
