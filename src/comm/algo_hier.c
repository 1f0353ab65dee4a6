/* algo_hier.c - collectives on two levels: within nodes through shared memory, and between them.
 *
 * Allreduce: the ranks of a node add up their buffers, each its own slice; then slice i is summed
 * over the nodes by their i-th ranks, by the algorithm that its size calls for; then every rank
 * hands its slice to the others of its node. Where owned slices will do, that last part is left to
 * the work that publishes them, and every node has an owner of each. So a node sends no more than
 * if it were one rank: 2 (nodes - 1) / nodes of the buffer where that algorithm is the ring. Where
 * nodes have different numbers of ranks, as many slices are cut as the smallest node has ranks, and
 * each is collected by its leader and spread from there. Sums whose order is given keep it where a
 * node's sum is a node of the tree; elsewhere they are not made here.
 *
 * The node's part is the shared-memory group's, which this thread advances while it looks for
 * failures and deadlines as elsewhere. The part between nodes is an ordinary algorithm that sees
 * the leaders as its world. Engine thread only. */
#include "comm/algo.h"
#include "comm/comm_impl.h"
#include "comm/parts.h"
#include "comm/team.h"

/* Of all shares. Beyond, a ring over ranks in order sends hardly more, and copies less. */
#define GATHER_BYTES ((size_t)1048576)

/* ---- within the node ---- */

/* Enters a work on a range of the buffer. */
static ddp_status local_start(ddpi_algo *a, ddp_coll_kind kind, ddp_range range, int root,
                              ddp_work *work)
{
    *work = (ddp_work){.coll = a->work->coll};
    ddp_coll *coll = &work->coll;
    coll->kind = kind;
    coll->root = root;
    coll->buf = (char *)coll->buf + range.lo * ddp_dtype_bytes(coll->dtype);
    coll->count = range.hi - range.lo;
    coll->shards = 0; /* of ranks in a row, each with one sum, the group keeps the order */
    return ddpi_shm_start(a->team->group, work);
}

static ddp_status local_wait(ddpi_algo *a, ddp_work *work)
{
    ddpi_shm_group *group = a->team->group;
    unsigned round = 0;
    bool done = false;

    for (;;) {
        ddp_status st = ddpi_shm_poll(group, work, &done);
        if (st == DDP_OK && done)
            break;
        if (st == DDP_OK)
            st = ddpi_algo_check(a);
        if (st != DDP_OK) {
            ddpi_shm_abandon(group); /* it must forget what lies on this thread's stack */
            return st;
        }
        ddpi_shm_idle(group, &round);
    }
    if (a->work->start_ns == 0)
        a->work->start_ns = work->start_ns;
    return DDP_OK;
}

static ddp_status local(ddpi_algo *a, ddp_coll_kind kind, ddp_range range, int root)
{
    ddp_work work;

    DDP_TRY(local_start(a, kind, range, root, &work));
    return local_wait(a, &work);
}

/* ---- between nodes ---- */

/* Runs an algorithm over one rank of every node, on a range of the buffer. */
static ddp_status across(ddpi_algo *a, const int *ranks, ddp_range range, const ddp_coll *coll,
                         ddp_status (*run)(ddpi_algo *a))
{
    ddp_work *const whole = a->work;
    const int rank = a->rank, world = a->world;
    ddp_work piece = *whole;

    piece.coll = *coll;
    piece.coll.buf = (char *)coll->buf + range.lo * ddp_dtype_bytes(coll->dtype);
    piece.coll.count = range.hi - range.lo;
    a->work = &piece;
    a->ranks = ranks;
    a->rank = a->team->node;
    a->world = a->team->nodes;
    const ddp_status st = run(a);
    a->work = whole;
    a->ranks = NULL;
    a->rank = rank;
    a->world = world;
    whole->start_ns = piece.start_ns;
    return st;
}

static ddp_status sum_across(ddpi_algo *a, int leader, ddp_range slice)
{
    const ddpi_team *t = a->team;

    if (slice.lo == slice.hi)
        return DDP_OK;
    return across(a, &t->table[leader * t->nodes], slice, &a->work->coll, ddpi_algo_allreduce_flat);
}

/* ---- sums ---- */

static ddp_range all_of(const ddpi_algo *a)
{
    return (ddp_range){0, a->work->coll.count};
}

static ddp_range slice_of(const ddpi_algo *a, int leader)
{
    const ddp_coll *coll = &a->work->coll;

    return ddpi_reduce_slice(coll->count, coll->dtype, coll->unit, a->team->leaders, leader);
}

static ddp_status sum_even(ddpi_algo *a)
{
    const int own = a->team->node_rank;

    DDP_TRY(local(a, DDP_COLL_REDUCE_OWNED, all_of(a), 0));
    DDP_TRY(sum_across(a, own, slice_of(a, own)));
    if (a->work->coll.kind == DDP_COLL_REDUCE_OWNED) {
        a->work->owned = slice_of(a, own);
        a->work->counts = a->team->node == 0;
        return DDP_OK;
    }
    return local(a, DDP_COLL_PUBLISH, all_of(a), 0);
}

/* A work of the group for each leader's slice, all at once. */
static ddp_status each_slice(ddpi_algo *a, ddp_coll_kind kind)
{
    ddp_work works[DDPI_SHM_MAX_INFLIGHT];

    for (int i = 0; i < a->team->leaders; i++)
        DDP_TRY(local_start(a, kind, slice_of(a, i), i, &works[i]));
    for (int i = 0; i < a->team->leaders; i++)
        DDP_TRY(local_wait(a, &works[i]));
    return DDP_OK;
}

static ddp_status sum_uneven(ddpi_algo *a)
{
    const int own = a->team->node_rank;

    DDP_TRY(each_slice(a, DDP_COLL_REDUCE));
    if (own < a->team->leaders)
        DDP_TRY(sum_across(a, own, slice_of(a, own)));
    return each_slice(a, DDP_COLL_BROADCAST);
}

/* ---- the others ---- */

static ddp_status barrier(ddpi_algo *a)
{
    const ddpi_team *t = a->team;

    DDP_TRY(local(a, DDP_COLL_BARRIER, all_of(a), 0));
    if (t->node_rank == 0)
        DDP_TRY(across(a, t->table, all_of(a), &a->work->coll, ddpi_algo_barrier));
    return local(a, DDP_COLL_BARRIER, all_of(a), 0);
}

static ddp_status broadcast_from_root(ddpi_algo *a)
{
    return ddpi_algo_broadcast(a, a->work->coll.root);
}

/* The root speaks for its node, the first rank for every other. */
static ddp_status broadcast(ddpi_algo *a, const ddpi_place *root)
{
    const ddpi_team *t = a->team;
    const int head = t->node == root->node ? root->node_rank : 0;
    ddp_coll coll = a->work->coll;

    for (int k = 0; k < t->nodes; k++)
        t->heads[k] = t->table[k];
    t->heads[root->node] = coll.root;
    coll.root = root->node;
    if (t->node_rank == head)
        DDP_TRY(across(a, t->heads, all_of(a), &coll, broadcast_from_root));
    return local(a, DDP_COLL_BROADCAST, all_of(a), head);
}

/* Every node's shares follow each other: they are collected in place, exchanged as one by the first
 * ranks, and what has come together is spread. */
static ddp_status allgather(ddpi_algo *a)
{
    const ddpi_team *t = a->team;
    ddp_coll coll = a->work->coll;
    const size_t block = coll.count * (size_t)t->node_size;
    const size_t offset = (size_t)t->node * block * ddp_dtype_bytes(coll.dtype);
    ddp_work work = {.coll = coll};

    work.coll.buf = (char *)coll.buf + offset;
    DDP_TRY(ddpi_shm_start(t->group, &work));
    DDP_TRY(local_wait(a, &work));
    coll.src = (const char *)coll.buf + offset;
    if (t->node_rank == 0)
        DDP_TRY(across(a, t->table, (ddp_range){0, block}, &coll, ddpi_algo_allgather));
    return local(a, DDP_COLL_BROADCAST, (ddp_range){0, block * (size_t)t->nodes}, 0);
}

/* ---- the choice ---- */

/* By the number of elements alone: what is summed in bf16 may be published in f32. */
static bool sums_on_two_levels(const ddpi_algo *a, ddp_allreduce_algo choice)
{
    const size_t bytes = a->work->coll.count * sizeof(float);

    return choice == DDP_ALLREDUCE_HIER || a->team->two_level[ddpi_team_class(bytes)];
}

bool ddpi_algo_is_hier(const ddpi_algo *a, ddp_allreduce_algo choice)
{
    const ddp_coll *coll = &a->work->coll;

    /* Device memory is out of the group's reach. */
    if (a->team == NULL || a->combine != NULL ||
        (choice != DDP_ALLREDUCE_AUTO && choice != DDP_ALLREDUCE_HIER))
        return false;
    switch (coll->kind) {
    case DDP_COLL_BARRIER:
    case DDP_COLL_BROADCAST:
        return true;
    case DDP_COLL_ALLGATHER:
        return a->team->in_order &&
               coll->count * ddp_dtype_bytes(coll->dtype) * (size_t)a->world <= GATHER_BYTES;
    case DDP_COLL_PUBLISH:
        return ddpi_team_publishes(a->team, coll) &&
               (coll->unit > 0 || sums_on_two_levels(a, choice));
    case DDP_COLL_ALLREDUCE:
    case DDP_COLL_REDUCE_OWNED:
        break;
    default:
        return false;
    }
    if (!ddpi_shm_takes(a->team->group, coll))
        return false;
    /* A sum with a fixed order is never measured: it has the same bits either way. */
    if (coll->shards > 0)
        return a->team->ordered && ddpi_parts_most(coll, a->world) == 1;
    return sums_on_two_levels(a, choice);
}

ddp_status ddpi_algo_hier(ddpi_algo *a)
{
    switch (a->work->coll.kind) {
    case DDP_COLL_BARRIER:
        return barrier(a);
    case DDP_COLL_BROADCAST:
        return broadcast(a, &a->places[a->work->coll.root]);
    case DDP_COLL_PUBLISH:
        return local(a, DDP_COLL_PUBLISH, all_of(a), 0);
    case DDP_COLL_ALLGATHER:
        return allgather(a);
    default:
        return a->team->even ? sum_even(a) : sum_uneven(a);
    }
}
