/* comm_checks.h - the checks of collectives that loopback and MPI tests share.
 *
 * Every value is a small integer, exact in each type, so results are compared for equality, and a
 * function of (rank, index), so each rank computes what it must get. Checks fail by a status whose
 * message says what differs where. */
#ifndef DDP_TESTS_COMM_CHECKS_H
#define DDP_TESTS_COMM_CHECKS_H

#include "ddp/comm.h"
#include "ddp/memory.h"

/* Distinct by rank and index; sums over 8 ranks stay below 256, so that bytes do not wrap. */
static inline int check_value(int rank, size_t index)
{
    return (int)((index * 7 + (size_t)rank * 13 + (index >> 9)) % 31);
}

static inline int wanted_value(int world, size_t index, ddp_reduce_op op)
{
    int result = check_value(0, index);
    for (int r = 1; r < world; r++) {
        int v = check_value(r, index);
        if (op == DDP_REDUCE_SUM)
            result += v;
        else if ((op == DDP_REDUCE_MAX) == (v > result))
            result = v;
    }
    return result;
}

static inline void check_put(void *buf, ddp_dtype dtype, size_t index, int value)
{
    switch (dtype) {
    case DDP_F32:
        ((float *)buf)[index] = (float)value;
        return;
    case DDP_F64:
        ((double *)buf)[index] = (double)value;
        return;
    case DDP_I32:
        ((int32_t *)buf)[index] = value;
        return;
    case DDP_I64:
        ((int64_t *)buf)[index] = value;
        return;
    case DDP_U64:
        ((uint64_t *)buf)[index] = (uint64_t)value;
        return;
    case DDP_U8:
        ((uint8_t *)buf)[index] = (uint8_t)value;
        return;
    case DDP_BF16:
    case DDP_F16: /* not summed; moved as bytes are */
        return;
    }
}

static inline double check_get(const void *buf, ddp_dtype dtype, size_t index)
{
    switch (dtype) {
    case DDP_F32:
        return (double)((const float *)buf)[index];
    case DDP_F64:
        return ((const double *)buf)[index];
    case DDP_I32:
        return (double)((const int32_t *)buf)[index];
    case DDP_I64:
        return (double)((const int64_t *)buf)[index];
    case DDP_U64:
        return (double)((const uint64_t *)buf)[index];
    case DDP_U8:
        return (double)((const uint8_t *)buf)[index];
    case DDP_BF16:
    case DDP_F16:
        break;
    }
    return -1;
}

static inline void check_fill(void *buf, ddp_dtype dtype, size_t count, int rank)
{
    for (size_t i = 0; i < count; i++)
        check_put(buf, dtype, i, check_value(rank, i));
}

static inline ddp_status check_result(const ddp_comm *comm, const ddp_coll *coll, ddp_range range)
{
    for (size_t i = range.lo; i < range.hi; i++) {
        double got = check_get(coll->buf, coll->dtype, i);
        int want = wanted_value(ddp_comm_world(comm), i, coll->op);
        if (got != (double)want)
            return DDP_FAIL(DDP_ERR_INTERNAL, "%s of %zu %s, op %d, rank %d: [%zu] is %g, want %d",
                            coll->what, coll->count, ddp_dtype_name(coll->dtype), coll->op,
                            ddp_comm_rank(comm), i, got, want);
    }
    return DDP_OK;
}

static inline ddp_status check_run(ddp_comm *comm, const ddp_coll *coll, ddp_work *work)
{
    DDP_TRY(ddp_comm_submit(comm, coll, work));
    DDP_TRY(ddp_work_wait(work));
    if (work->end_ns < work->start_ns || work->start_ns < work->submit_ns)
        return DDP_FAIL(DDP_ERR_INTERNAL, "%s: times run backwards", coll->what);
    return DDP_OK;
}

/* buf holds count elements. */
static inline ddp_status check_allreduce(ddp_comm *comm, void *buf, size_t count, ddp_dtype dtype,
                                         ddp_reduce_op op)
{
    ddp_work work;
    ddp_coll coll = {.kind = DDP_COLL_ALLREDUCE,
                     .dtype = dtype,
                     .op = op,
                     .buf = buf,
                     .count = count,
                     .bucket = -1,
                     .what = "allreduce check"};
    check_fill(buf, dtype, count, ddp_comm_rank(comm));
    DDP_TRY(check_run(comm, &coll, &work));
    if (work.owned.lo != 0 || work.owned.hi != count)
        return DDP_FAIL(DDP_ERR_INTERNAL, "an allreduce does not own everything");
    return check_result(comm, &coll, work.owned);
}

/* Reduces, checks the own range, adds one to it, publishes, and checks that all of it is there. */
static inline ddp_status check_owned(ddp_comm *comm, float *buf, size_t count)
{
    ddp_work work;
    ddp_coll coll = {.kind = DDP_COLL_REDUCE_OWNED,
                     .dtype = DDP_F32,
                     .buf = buf,
                     .count = count,
                     .bucket = 3,
                     .what = "owned check"};
    check_fill(buf, DDP_F32, count, ddp_comm_rank(comm));
    DDP_TRY(check_run(comm, &coll, &work));
    ddp_range owned = work.owned;
    DDP_TRY(check_result(comm, &coll, owned));
    for (size_t i = owned.lo; i < owned.hi; i++)
        buf[i] += 1;
    coll.kind = DDP_COLL_PUBLISH;
    DDP_TRY(check_run(comm, &coll, &work));
    for (size_t i = 0; i < count; i++)
        buf[i] -= 1;
    coll.what = "publish check";
    return check_result(comm, &coll, (ddp_range){0, count});
}

static inline ddp_status check_reduce(ddp_comm *comm, void *buf, size_t count, int root)
{
    ddp_work work;
    ddp_coll coll = {.kind = DDP_COLL_REDUCE,
                     .dtype = DDP_F64,
                     .root = root,
                     .buf = buf,
                     .count = count,
                     .bucket = -1,
                     .what = "reduce check"};
    check_fill(buf, DDP_F64, count, ddp_comm_rank(comm));
    DDP_TRY(check_run(comm, &coll, &work));
    return ddp_comm_rank(comm) == root ? check_result(comm, &coll, (ddp_range){0, count}) : DDP_OK;
}

static inline ddp_status check_broadcast(ddp_comm *comm, uint8_t *buf, size_t bytes, int root)
{
    check_fill(buf, DDP_U8, bytes, ddp_comm_rank(comm));
    DDP_TRY(ddp_comm_broadcast(comm, root, buf, bytes));
    for (size_t i = 0; i < bytes; i++)
        if (buf[i] != check_value(root, i))
            return DDP_FAIL(DDP_ERR_INTERNAL, "broadcast of %zu from %d: [%zu] is %d", bytes, root,
                            i, buf[i]);
    return DDP_OK;
}

/* all holds world * bytes. */
static inline ddp_status check_allgather(ddp_comm *comm, uint8_t *all, size_t bytes)
{
    uint8_t *mine;
    DDP_TRY(DDP_ALLOC(mine, bytes));
    check_fill(mine, DDP_U8, bytes, ddp_comm_rank(comm));
    ddp_status st = ddp_comm_allgather(comm, mine, bytes, all);
    ddp_free(mine);
    DDP_TRY(st);
    for (int r = 0; r < ddp_comm_world(comm); r++)
        for (size_t i = 0; i < bytes; i++)
            if (all[(size_t)r * bytes + i] != check_value(r, i))
                return DDP_FAIL(DDP_ERR_INTERNAL, "allgather of %zu: rank %d's [%zu] is %d", bytes,
                                r, i, all[(size_t)r * bytes + i]);
    return DDP_OK;
}

/* There and back between two ranks of one machine: the other's stamp lies in between, and what is
 * behind it comes back as it went. */
static inline ddp_status check_ping(ddp_comm *comm, size_t bytes, int from, int to)
{
    uint8_t buf[4096];
    ddp_ping ping = {0};
    for (size_t i = 0; i < bytes; i++)
        buf[i] = (uint8_t)(ddp_comm_rank(comm) == from ? check_value(from, i) : 0);
    DDP_TRY(ddp_comm_ping(comm, from, to, buf, bytes, &ping));
    if (ddp_comm_rank(comm) != from)
        return DDP_OK;
    for (size_t i = sizeof ping.stamp; i < bytes; i++)
        if (buf[i] != check_value(from, i))
            return DDP_FAIL(DDP_ERR_INTERNAL, "ping of %zu: [%zu] came back as %d", bytes, i,
                            buf[i]);
    if (ping.sent_ns <= 0 || ping.stamp.monotonic_ns < ping.sent_ns ||
        ping.stamp.monotonic_ns > ping.back_ns || ping.stamp.real_ns <= 0)
        return DDP_FAIL(
            DDP_ERR_INTERNAL, "ping of %zu: sent at %lld, stamped at %lld, back at %lld", bytes,
            (long long)ping.sent_ns, (long long)ping.stamp.monotonic_ns, (long long)ping.back_ns);
    return DDP_OK;
}

static inline ddp_status check_pings(ddp_comm *comm)
{
    const int last = ddp_comm_world(comm) - 1;
    if (last == 0)
        return DDP_OK;
    DDP_TRY(check_ping(comm, sizeof(ddp_ping_stamp), 0, last));
    DDP_TRY(check_ping(comm, 4096, last, 0));
    return check_ping(comm, 100, last / 2, last);
}

/* All collectives at one length. memory holds 8 * world * count bytes; windowed, if it can be. */
static inline ddp_status check_all(ddp_comm *comm, void *memory, size_t count)
{
    int world = ddp_comm_world(comm);
    DDP_TRY(ddp_comm_barrier(comm));
    DDP_TRY(check_pings(comm));
    for (int op = DDP_REDUCE_SUM; op <= DDP_REDUCE_MIN; op++)
        DDP_TRY(check_allreduce(comm, memory, count, DDP_F32, (ddp_reduce_op)op));
    DDP_TRY(check_owned(comm, memory, count));
    for (int root = 0; root<world; root += world> 1 ? world - 1 : 1) {
        DDP_TRY(check_reduce(comm, memory, count, root));
        DDP_TRY(check_broadcast(comm, memory, count, root));
    }
    return check_allgather(comm, memory, count);
}

/* Types that check_all() does not reduce. */
static inline ddp_status check_types(ddp_comm *comm, void *memory, size_t count)
{
    for (int dtype = DDP_F32; dtype <= DDP_U8; dtype++)
        for (int op = DDP_REDUCE_SUM; op <= DDP_REDUCE_MIN; op++)
            DDP_TRY(check_allreduce(comm, memory, count, (ddp_dtype)dtype, (ddp_reduce_op)op));
    return DDP_OK;
}

/* Several works at once, small and large, waited for in an order that differs by rank. */
static inline ddp_status check_many(ddp_comm *comm, float *memory, size_t count)
{
    enum { WORKS = 6 };
    ddp_work works[WORKS];
    size_t lengths[WORKS] = {count / 2, 3, count / 4, 0, count / 8, 17}, at = 0;
    ddp_coll colls[WORKS];
    for (int i = 0; i < WORKS; i++) {
        colls[i] = (ddp_coll){.kind = DDP_COLL_ALLREDUCE,
                              .dtype = DDP_F32,
                              .buf = memory + at,
                              .count = lengths[i],
                              .bucket = i,
                              .what = "pending works"};
        check_fill(colls[i].buf, DDP_F32, lengths[i], ddp_comm_rank(comm));
        DDP_TRY(ddp_comm_submit(comm, &colls[i], &works[i]));
        at += lengths[i];
    }
    for (int i = 0; i < WORKS; i++) {
        int w = ddp_comm_rank(comm) % 2 == 0 ? i : WORKS - 1 - i;
        bool done;
        DDP_TRY(ddp_work_poll(&works[w], &done));
        DDP_TRY(ddp_work_wait(&works[w]));
        DDP_TRY(check_result(comm, &colls[w], (ddp_range){0, lengths[w]}));
    }
    return DDP_OK;
}

#endif
