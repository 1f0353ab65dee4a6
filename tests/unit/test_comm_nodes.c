/* Worlds of several nodes, as loopback plays them: who is where. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_are_numbered_by_their_lowest_ranks),
        cmocka_unit_test(without_shared_memory_every_rank_is_a_node),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
