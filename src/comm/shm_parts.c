/* shm_parts.c - a rank's own part of a work among ranks that share memory: reducing or copying its
 * slice in a window, and passing pieces through the slots.
 *
 * Called by shm_group.c, which has made sure that the data may be touched, or says so itself
 * (try_fill, try_drain) by what it returns. */
#include <string.h>

#include "comm/parts.h"
#include "comm/shm_group_impl.h"

/* ---- own parts in windows ---- */

static void *peer_buffer(const ddpi_shm_flight *f, int rank)
{
    return (char *)f->window->bases[rank] + f->offset;
}

ddp_range ddpi_shm_own_slice(const ddpi_shm_group *group, const ddp_coll *coll)
{
    return ddpi_reduce_slice(coll->count, coll->dtype, coll->unit, group->opts.n, group->opts.rank);
}

static void reduce_in_window(ddpi_shm_group *group, const ddpi_shm_flight *f)
{
    const ddp_coll *coll = &f->work->coll;
    int n = group->opts.n;
    ddp_range slice = ddpi_shm_own_slice(group, coll);
    void **dst = group->pointers, **src = dst + n;
    ddpi_parts parts;

    ddpi_parts_list(coll, n, &parts);
    for (int i = 0; i < n; i++)
        dst[i] = (char *)peer_buffer(f, i) + slice.lo * ddp_dtype_bytes(coll->dtype);
    for (int i = 0; i < parts.n; i++)
        src[i] = (char *)dst[parts.rank[i]] + ddpi_part_offset(coll, parts.place[i]);
    if (coll->kind == DDP_COLL_REDUCE_OWNED)
        dst[0] = dst[group->opts.rank];
    else if (coll->kind == DDP_COLL_REDUCE)
        dst[0] = dst[coll->root];
    ddpi_reduction reduction = {
        .dtype = coll->dtype,
        .op = coll->op,
        .n = parts.n,
        .src = (const void *const *)src,
        .leaves = parts.n > n ? parts.leaves : NULL,
        .dst_count = coll->kind == DDP_COLL_ALLREDUCE ? n : 1,
        .dst = dst,
        .count = slice.hi - slice.lo,
    };
    ddpi_reduce(&reduction);
}

static void copy_in_window(const ddpi_shm_group *group, const ddpi_shm_flight *f)
{
    const ddp_coll *coll = &f->work->coll;

    if (coll->kind == DDP_COLL_BROADCAST) {
        if (coll->root != group->opts.rank)
            memcpy(coll->buf, peer_buffer(f, coll->root), f->bytes);
        return;
    }
    ddp_range slice = ddpi_shm_own_slice(group, coll);
    size_t lo = slice.lo * ddp_dtype_bytes(coll->dtype);
    size_t hi = slice.hi * ddp_dtype_bytes(coll->dtype);
    for (int i = 1; i < group->opts.n; i++) {
        int peer = (group->opts.rank + i) % group->opts.n;
        memcpy((char *)peer_buffer(f, peer) + lo, (const char *)coll->buf + lo, hi - lo);
    }
}

void ddpi_shm_window_part(ddpi_shm_group *group, const ddpi_shm_flight *f)
{
    if (ddpi_shm_is_reduction(f->work->coll.kind))
        reduce_in_window(group, f);
    else
        copy_in_window(group, f);
    ddpi_shm_publish(group, &group->own->done, f->number);
}

/* ---- own parts through slots ---- */

static char *slot_of(ddpi_shm_group *group, int rank, uint64_t piece)
{
    return group->ranks[rank].slot[piece % 2];
}

/* Bytes [lo, hi) of rank's buffer that make up a piece of the work; empty if the rank has none. */
static ddp_range piece_range(const ddpi_shm_group *group, const ddpi_shm_flight *f, int rank,
                             uint64_t piece)
{
    const ddp_coll *coll = &f->work->coll;
    ddp_range whole = {0, f->bytes};

    if (coll->kind == DDP_COLL_PUBLISH) {
        whole = ddpi_reduce_slice(coll->count, coll->dtype, coll->unit, group->opts.n, rank);
        whole.lo *= ddp_dtype_bytes(coll->dtype);
        whole.hi *= ddp_dtype_bytes(coll->dtype);
    }
    size_t lo = whole.lo + piece * DDPI_SHM_SLOT_BYTES;
    size_t hi = lo + DDPI_SHM_SLOT_BYTES;
    return (ddp_range){lo < whole.hi ? lo : whole.hi, hi < whole.hi ? hi : whole.hi};
}

bool ddpi_shm_try_fill(ddpi_shm_group *group, ddpi_shm_flight *f)
{
    const ddp_coll *coll = &f->work->coll;
    uint64_t piece = f->first_piece + f->filled;

    if (coll->kind != DDP_COLL_BROADCAST || coll->root == group->opts.rank) {
        if (piece >= 2 && !DDPI_ALL_REACHED(group, drained, piece - 1))
            return false;
        const char *from = coll->kind == DDP_COLL_ALLGATHER ? coll->src : coll->buf;
        ddp_range range = piece_range(group, f, group->opts.rank, f->filled);
        memcpy(slot_of(group, group->opts.rank, piece), from + range.lo, range.hi - range.lo);
    }
    f->filled++;
    ddpi_shm_publish(group, &group->own->filled, piece + 1);
    return true;
}

static void drain_reduction(ddpi_shm_group *group, const ddpi_shm_flight *f)
{
    const ddp_coll *coll = &f->work->coll;
    ddp_range range = piece_range(group, f, group->opts.rank, f->drained);
    void *dst = (char *)coll->buf + range.lo;

    if (coll->kind == DDP_COLL_REDUCE && coll->root != group->opts.rank)
        return;
    for (int i = 0; i < group->opts.n; i++)
        group->pointers[i] = slot_of(group, i, f->first_piece + f->drained);
    ddpi_reduction reduction = {
        .dtype = coll->dtype,
        .op = coll->op,
        .n = group->opts.n,
        .src = (const void *const *)group->pointers,
        .dst_count = 1,
        .dst = &dst,
        .count = (range.hi - range.lo) / ddp_dtype_bytes(coll->dtype),
    };
    ddpi_reduce(&reduction);
}

static void drain_copies(ddpi_shm_group *group, const ddpi_shm_flight *f)
{
    const ddp_coll *coll = &f->work->coll;

    for (int i = 0; i < group->opts.n; i++) {
        bool wanted = coll->kind == DDP_COLL_BROADCAST ? i == coll->root && i != group->opts.rank
                      : coll->kind == DDP_COLL_PUBLISH ? i != group->opts.rank
                                                       : true;
        if (!wanted)
            continue;
        ddp_range range = piece_range(group, f, i, f->drained);
        char *dst = coll->buf;
        if (coll->kind == DDP_COLL_ALLGATHER)
            dst += (size_t)i * f->bytes;
        memcpy(dst + range.lo, slot_of(group, i, f->first_piece + f->drained), range.hi - range.lo);
    }
}

bool ddpi_shm_try_drain(ddpi_shm_group *group, ddpi_shm_flight *f)
{
    const ddp_coll *coll = &f->work->coll;
    uint64_t piece = f->first_piece + f->drained;

    if (coll->kind == DDP_COLL_BROADCAST) {
        ddpi_shm_rank *root = &group->ranks[coll->root];
        if (!ddpi_shm_reached(group, coll->root, &root->filled, piece + 1))
            return false;
    } else if (!DDPI_ALL_REACHED(group, filled, piece + 1)) {
        return false;
    }
    if (ddpi_shm_is_reduction(coll->kind))
        drain_reduction(group, f);
    else
        drain_copies(group, f);
    f->drained++;
    ddpi_shm_publish(group, &group->own->drained, piece + 1);
    return true;
}
