/* replicas.c - are the ranks' parameters still the same, and if not, whose are right?
 *
 * Every rank hashes each parameter's memory, whose layout is the same everywhere. One hash of these
 * hashes goes around; only where it differs do the others follow, and name what differs. Ranks that
 * are outvoted by three or more, who must also be more than half, can be given the majority's
 * values. All ranks come to the same conclusions from the same numbers. */
#include <inttypes.h>

#include "ddp/fs.h"
#include "ddp/log.h"
#include "ddp/memory.h"
#include "ddp/trainer.h"

enum { LEAST_MAJORITY = 3 };

typedef struct replicas {
    const ddp_replica_check *check;
    int world, params;
    size_t largest;   /* elements of a parameter */
    float *plain;     /* host: one parameter */
    uint64_t *mine;   /* [params] */
    uint64_t *totals; /* [world] */
    uint64_t *all;    /* [world][params]; NULL until it is needed */
    int reference;    /* the first rank of the largest group that agrees; the lowest of equals */
    int agreeing;     /* its size */
} replicas;

static ddp_status allocate(replicas *r)
{
    r->params = ddp_param_table_count(r->check->table);
    for (int i = 0; i < r->params; i++) {
        const size_t count = ddp_param_table_at(r->check->table, i)->count;
        r->largest = count > r->largest ? count : r->largest;
    }
    DDP_TRY(DDP_ALLOC(r->plain, r->largest));
    DDP_TRY(DDP_ALLOC(r->mine, (size_t)r->params));
    return DDP_ALLOC(r->totals, (size_t)r->world);
}

static ddp_status copy(const replicas *r, void *dst, const void *src, size_t count,
                       ddp_copy_kind kind)
{
    ddp_stream *stream = ddp_device_main_stream(r->check->device);

    DDP_TRY(ddp_device_copy(r->check->device, stream, dst, src, count * sizeof(float), kind));
    return ddp_stream_sync(stream);
}

static ddp_status hash_mine(const replicas *r)
{
    for (int i = 0; i < r->params; i++) {
        const ddp_param *p = ddp_param_table_at(r->check->table, i);
        DDP_TRY(copy(r, r->plain, r->check->params + p->offset, p->count, DDP_COPY_TO_HOST));
        r->mine[i] = ddp_hash64(r->plain, p->count * sizeof(float));
    }
    return DDP_OK;
}

static void find_reference(replicas *r)
{
    r->agreeing = 0;
    for (int a = 0; a < r->world && r->agreeing <= r->world / 2; a++) {
        int count = 0;
        for (int b = 0; b < r->world; b++)
            count += r->totals[b] == r->totals[a];
        if (count > r->agreeing) {
            r->agreeing = count;
            r->reference = a;
        }
    }
}

static ddp_status compare_totals(replicas *r, bool *same_out)
{
    ddp_comm *comm = r->check->comm;

    DDP_TRY(ddp_comm_agree(comm, hash_mine(r), "hash parameters"));
    const uint64_t total = ddp_hash64(r->mine, (size_t)r->params * sizeof *r->mine);
    DDP_TRY(ddp_comm_allgather(comm, &total, sizeof total, r->totals));
    find_reference(r);
    *same_out = r->agreeing == r->world;
    return DDP_OK;
}

static ddp_status gather_all(replicas *r)
{
    ddp_comm *comm = r->check->comm;
    const size_t count = (size_t)r->world * (size_t)r->params;
    const ddp_status st = r->all == NULL ? DDP_ALLOC(r->all, count) : DDP_OK;

    DDP_TRY(ddp_comm_agree(comm, st, "compare parameters"));
    return ddp_comm_allgather(comm, r->mine, (size_t)r->params * sizeof *r->mine, r->all);
}

static uint64_t hash_of(const replicas *r, int rank, int param)
{
    return r->all[(size_t)rank * (size_t)r->params + (size_t)param];
}

/* The first difference, in the order of ranks, to the reference. */
static ddp_status name_difference(const replicas *r)
{
    for (int rank = 0; rank < r->world; rank++)
        for (int i = 0; i < r->params; i++)
            if (hash_of(r, rank, i) != hash_of(r, r->reference, i))
                return DDP_FAIL(
                    DDP_ERR_MISMATCH,
                    "step %" PRId64 ": parameter %s differs between rank %d and rank %d (hash "
                    "%016" PRIx64 " and %016" PRIx64 "); %d of %d ranks have what rank %d has",
                    r->check->step, ddp_param_table_at(r->check->table, i)->name, r->reference,
                    rank, hash_of(r, r->reference, i), hash_of(r, rank, i), r->agreeing, r->world,
                    r->reference);
    return DDP_FAIL(DDP_ERR_INTERNAL, "step %" PRId64 ": hashes of equal hashes differ",
                    r->check->step);
}

/* ---- healing ---- */

/* Whether any rank has another value than the reference; rank 0 says which. */
static bool is_damaged(const replicas *r, int param)
{
    bool damaged = false;

    for (int rank = 0; rank < r->world; rank++) {
        if (hash_of(r, rank, param) == hash_of(r, r->reference, param))
            continue;
        damaged = true;
        if (ddp_comm_rank(r->check->comm) == 0)
            ddp_warn("step %" PRId64 ": parameter %s of rank %d was damaged and is that of rank %d "
                     "again, as %d of %d ranks have it",
                     r->check->step, ddp_param_table_at(r->check->table, param)->name, rank,
                     r->reference, r->agreeing, r->world);
    }
    return damaged;
}

static ddp_status replace(const replicas *r, int param)
{
    const ddp_param *p = ddp_param_table_at(r->check->table, param);
    ddp_comm *comm = r->check->comm;
    const int rank = ddp_comm_rank(comm);
    float *values = r->check->params + p->offset;
    ddp_status st = DDP_OK;

    if (rank == r->reference)
        st = copy(r, r->plain, values, p->count, DDP_COPY_TO_HOST);
    DDP_TRY(ddp_comm_agree(comm, st, "read a parameter"));
    DDP_TRY(ddp_comm_broadcast(comm, r->reference, r->plain, p->count * sizeof(float)));
    if (hash_of(r, rank, param) != hash_of(r, r->reference, param))
        st = copy(r, values, r->plain, p->count, DDP_COPY_TO_DEVICE);
    return ddp_comm_agree(comm, st, "write a parameter");
}

static ddp_status heal(const replicas *r)
{
    for (int i = 0; i < r->params; i++)
        if (is_damaged(r, i))
            DDP_TRY(replace(r, i));
    return DDP_OK;
}

static bool can_heal(const replicas *r)
{
    return r->check->on_mismatch == DDP_MISMATCH_HEAL && r->agreeing >= LEAST_MAJORITY &&
           2 * r->agreeing > r->world;
}

/* After healing there must be nothing more to heal: memory that does not keep what is written stops
 * the run. */
static ddp_status compare(replicas *r)
{
    bool same;

    DDP_TRY(compare_totals(r, &same));
    if (same)
        return DDP_OK;
    DDP_TRY(gather_all(r));
    if (!can_heal(r))
        return name_difference(r);
    DDP_TRY(heal(r));
    DDP_TRY(compare_totals(r, &same));
    if (same)
        return DDP_OK;
    DDP_TRY(gather_all(r));
    return name_difference(r);
}

ddp_status ddp_check_replicas(const ddp_replica_check *check)
{
    replicas r = {.check = check, .world = ddp_comm_world(check->comm)};
    ddp_status st = ddp_comm_agree(check->comm, allocate(&r), "hash parameters");

    if (st == DDP_OK)
        st = compare(&r);
    ddp_free(r.plain);
    ddp_free(r.mine);
    ddp_free(r.totals);
    ddp_free(r.all);
    return st;
}
