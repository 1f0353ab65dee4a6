/* ckpt_cut.c - which ranks write what of a checkpoint, and the snapshot of a rank's part.
 *
 * Every element of a flat is written by one of the ranks that own it: where several do, they share
 * it out equally. All ranks compute this from the same numbers. One thread. */
#include <stdlib.h>
#include <string.h>

#include "ckpt/ckpt_impl.h"
#include "ddp/memory.h"

enum { ALIGN_FLOATS = DDP_ALIGN_BYTES / sizeof(float) };

/* ---- pieces ---- */

static size_t aligned(size_t bytes)
{
    return (bytes + DDP_ALIGN_BYTES - 1) / DDP_ALIGN_BYTES * DDP_ALIGN_BYTES;
}

static ddp_status add_piece(ddpi_ckpt_layout *layout, const ddpi_ckpt_piece *piece)
{
    DDP_TRY(DDP_GROW(layout->pieces, layout->capacity, layout->count));
    layout->pieces[layout->count++] = *piece;
    return DDP_OK;
}

/* Bytes of a tensor that is no parameter's. */
static ddp_status add_bytes(ddpi_ckpt_layout *layout, const ddpi_ckpt_piece *tensor, size_t from,
                            size_t bytes)
{
    ddpi_ckpt_piece piece = *tensor;
    if (bytes == 0)
        return DDP_OK;
    piece.from = from;
    piece.bytes = bytes;
    piece.offset = tensor->offset + from;
    piece.memory = layout->memory_bytes;
    layout->memory_bytes += aligned(bytes);
    return add_piece(layout, &piece);
}

/* Within a span everything has the alignment that it has in the flat. */
static ddp_status add_span(ddpi_ckpt_layout *layout, int flat, ddp_range range)
{
    if (range.lo == range.hi)
        return DDP_OK;
    const size_t lead = range.lo % ALIGN_FLOATS * sizeof(float);
    const ddpi_ckpt_span span = {flat, range, layout->memory_bytes + lead};
    layout->memory_bytes += aligned(lead + (range.hi - range.lo) * sizeof(float));
    DDP_TRY(DDP_GROW(layout->spans, layout->span_capacity, layout->span_count));
    layout->spans[layout->span_count++] = span;
    return DDP_OK;
}

static ddp_status add_parts(ddpi_ckpt_layout *layout, const ddpi_ckpt_piece *tensor)
{
    const ddp_param *param = tensor->param;
    const size_t end = param->offset + param->count;
    for (int i = 0; i < layout->span_count; i++) {
        const ddpi_ckpt_span *span = &layout->spans[i];
        ddpi_ckpt_piece piece = *tensor;
        piece.part.lo = span->range.lo > param->offset ? span->range.lo : param->offset;
        piece.part.hi = span->range.hi < end ? span->range.hi : end;
        if (span->flat != tensor->flat || piece.part.lo >= piece.part.hi)
            continue;
        piece.memory = span->memory + (piece.part.lo - span->range.lo) * sizeof(float);
        DDP_TRY(add_piece(layout, &piece));
    }
    return DDP_OK;
}

/* ---- shares ---- */

/* Share number `index` of `count` equal ones. */
static ddp_range share_of(ddp_range range, int index, int count)
{
    const size_t units = (range.hi - range.lo) / ALIGN_FLOATS;
    const size_t lo = units * (size_t)index / (size_t)count * ALIGN_FLOATS;
    const size_t hi = units * (size_t)(index + 1) / (size_t)count * ALIGN_FLOATS;
    return (ddp_range){range.lo + lo, index + 1 == count ? range.hi : range.lo + hi};
}

static int compare_sizes(const void *a, const void *b)
{
    const size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return x < y ? -1 : x > y;
}

/* Between two of these places every element has the same owners. */
static size_t list_borders(const ddpi_ckpt_owners *owners, size_t length, size_t *borders)
{
    size_t count = 0, kept = 0;
    borders[count++] = 0;
    borders[count++] = length;
    for (int i = 0; i < owners->world * owners->count; i++) {
        borders[count++] = owners->ranges[i].lo;
        borders[count++] = owners->ranges[i].hi;
    }
    qsort(borders, count, sizeof *borders, compare_sizes);
    for (size_t i = 0; i < count; i++)
        if (kept == 0 || borders[i] != borders[kept - 1])
            borders[kept++] = borders[i];
    return kept;
}

/* next: of each rank's ranges, the first that does not end before this one. */
static bool owns(const ddpi_ckpt_owners *owners, int rank, int *next, ddp_range range)
{
    const ddp_range *ranges = owners->ranges + (size_t)rank * (size_t)owners->count;
    while (next[rank] < owners->count && ranges[next[rank]].hi <= range.lo)
        next[rank]++;
    return next[rank] < owners->count && ranges[next[rank]].lo <= range.lo;
}

/* This rank's shares of every flat. */
static ddp_status add_shares(ddpi_ckpt_layout *layout, int flats, const ddpi_ckpt_owners *owners,
                             ddp_range range, int *next)
{
    int before = 0, all = 0;
    bool mine = false;
    for (int rank = 0; rank < owners->world; rank++) {
        if (!owns(owners, rank, next, range))
            continue;
        before += rank < owners->rank;
        mine = mine || rank == owners->rank;
        all++;
    }
    if (all == 0)
        return DDP_FAIL(DDP_ERR_INTERNAL, "no rank has the optimizer's state %zu to %zu", range.lo,
                        range.hi);
    for (int flat = 0; flat < flats && mine; flat++)
        DDP_TRY(add_span(layout, flat, share_of(range, before, all)));
    return DDP_OK;
}

static ddp_status cut_owned(ddpi_ckpt_layout *layout, int flats, size_t length,
                            const ddpi_ckpt_owners *owners)
{
    size_t *borders;
    int *next = NULL;
    DDP_TRY(DDP_ALLOC(borders, 2 * ((size_t)owners->world * (size_t)owners->count + 1)));
    ddp_status st = DDP_ALLOC(next, (size_t)owners->world);
    const size_t count = list_borders(owners, length, borders);
    for (size_t i = 1; i < count && st == DDP_OK; i++)
        st = add_shares(layout, flats, owners, (ddp_range){borders[i - 1], borders[i]}, next);
    ddp_free(next);
    ddp_free(borders);
    return st;
}

static ddp_status cut_flats(ddpi_ckpt_layout *layout, const ddp_ckpt_parts *parts,
                            const ddpi_ckpt_owners *owners)
{
    const size_t length = ddp_param_table_length(parts->table);
    const ddp_range share = share_of((ddp_range){0, length}, owners->rank, owners->world);
    DDP_TRY(add_span(layout, -1, share));
    if (owners->count > 0)
        return cut_owned(layout, parts->flat_count, length, owners);
    for (int flat = 0; flat < parts->flat_count; flat++)
        DDP_TRY(add_span(layout, flat, share));
    return DDP_OK;
}

/* Of shards' statistics. */
static ddp_status add_rows(ddpi_ckpt_layout *layout, const ddp_ckpt_parts *parts,
                           const ddpi_ckpt_piece *tensor)
{
    const size_t row_bytes = tensor->bytes / (size_t)parts->shards;
    ddpi_ckpt_piece whole = *tensor;
    if (tensor->kind == DDPI_CKPT_SEEN)
        return add_bytes(layout, tensor, row_bytes * (size_t)parts->first,
                         row_bytes * (size_t)parts->own);
    for (; whole.row < parts->own; whole.row++)
        DDP_TRY(
            add_bytes(layout, &whole, row_bytes * (size_t)(parts->first + whole.row), row_bytes));
    return DDP_OK;
}

ddp_status ddpi_ckpt_cut(ddpi_ckpt_layout *layout, const ddp_ckpt_parts *parts,
                         const ddpi_ckpt_owners *owners)
{
    layout->count = layout->span_count = 0;
    layout->memory_bytes = 0;
    DDP_TRY(cut_flats(layout, parts, owners));
    for (int i = 0; i < layout->tensor_count; i++) {
        const ddpi_ckpt_piece *tensor = &layout->tensors[i];
        if (tensor->kind == DDPI_CKPT_PARAM)
            DDP_TRY(add_parts(layout, tensor));
        else if (tensor->kind == DDPI_CKPT_ROW || tensor->kind == DDPI_CKPT_SEEN)
            DDP_TRY(add_rows(layout, parts, tensor));
        else if (i % owners->world == owners->rank)
            DDP_TRY(add_bytes(layout, tensor, 0, tensor->bytes));
    }
    return DDP_OK;
}

/* ---- the snapshot ---- */

static ddp_status copy_floats(const ddp_ckpt_parts *parts, const float *src, size_t bytes,
                              char *dst)
{
    return ddp_device_copy(parts->device, ddp_device_main_stream(parts->device), dst, src, bytes,
                           DDP_COPY_TO_HOST);
}

static ddp_status copy_span(const ddpi_ckpt_span *span, const ddp_ckpt_parts *parts, char *memory)
{
    const float *flat = span->flat < 0 ? parts->params : parts->flats[span->flat].values;
    return copy_floats(parts, flat + span->range.lo,
                       (span->range.hi - span->range.lo) * sizeof(float), memory + span->memory);
}

static ddp_status copy_piece(const ddpi_ckpt_piece *piece, const ddp_ckpt_parts *parts, char *dst)
{
    switch (piece->kind) {
    case DDPI_CKPT_PARAM:
        return DDP_OK; /* in a span */
    case DDPI_CKPT_COMBINED:
        return copy_floats(parts,
                           parts->combined + piece->buffer->offset + piece->from / sizeof(float),
                           piece->bytes, dst);
    case DDPI_CKPT_COUNTER:
        memcpy(dst, (const char *)&parts->counter + piece->from, piece->bytes);
        return DDP_OK;
    case DDPI_CKPT_ROW:
        return copy_floats(parts,
                           parts->running +
                               (size_t)piece->row * ddp_buffer_table_length(parts->buffers) +
                               piece->buffer->offset,
                           piece->bytes, dst);
    case DDPI_CKPT_SEEN:
        memcpy(dst, parts->seen, piece->bytes);
        return DDP_OK;
    }
    return DDP_FAIL(DDP_ERR_INTERNAL, "a checkpoint has no pieces of kind %d", (int)piece->kind);
}

ddp_status ddpi_ckpt_snapshot(const ddpi_ckpt_layout *layout, const ddp_ckpt_parts *parts,
                              char *memory)
{
    for (int i = 0; i < layout->span_count; i++)
        DDP_TRY(copy_span(&layout->spans[i], parts, memory));
    for (int i = 0; i < layout->count; i++)
        DDP_TRY(copy_piece(&layout->pieces[i], parts, memory + layout->pieces[i].memory));
    return ddp_stream_sync(ddp_device_main_stream(parts->device));
}
