/* ckpt_layout.c - which bytes of a checkpoint's files are what, and the snapshot of a rank's part.
 *
 * The files' layout follows from names, shapes and the number of logical shards alone. Set-up but
 * for the snapshot; one thread. */
#include <stdio.h>
#include <string.h>

#include "ckpt/ckpt_impl.h"
#include "ddp/memory.h"

enum { NAME_BYTES = 2 * DDP_PARAM_NAME_BYTES };

const char *const ddpi_ckpt_file_names[DDPI_CKPT_FILES] = {"model.safetensors",
                                                           "optimizer.safetensors"};

/* One tensor before it is cut into pieces. */
typedef struct entry {
    ddpi_ckpt_piece piece;
    bool shared; /* the same on all ranks */
    char name[NAME_BYTES];
    ddpi_st_dtype dtype;
    ddp_shape shape;
} entry;

typedef struct entry_list {
    entry *items;
    int count, capacity;
} entry_list;

void ddpi_ckpt_name(char *name, size_t bytes, const char *group, const char *member)
{
    snprintf(name, bytes, "%s.%s", group, member);
}

/* ---- tensors ---- */

static ddp_status add_entry(entry_list *list, const entry *e)
{
    DDP_TRY(DDP_GROW(list->items, list->capacity, list->count));
    list->items[list->count++] = *e;
    return DDP_OK;
}

static ddp_status add_model(const ddpi_weight_list *weights, entry_list *list)
{
    for (size_t i = 0; i < weights->count; i++) {
        const ddpi_weight *w = &weights->items[i];
        entry e = {.shared = true, .shape = w->shape, .dtype = DDPI_ST_F32};
        e.piece = (ddpi_ckpt_piece){.kind = w->param != NULL ? DDPI_CKPT_PARAM : DDPI_CKPT_COMBINED,
                                    .file = DDPI_CKPT_MODEL,
                                    .flat = -1,
                                    .param = w->param,
                                    .buffer = w->buffer};
        if (w->counter) {
            e.piece.kind = DDPI_CKPT_COUNTER;
            e.dtype = DDPI_ST_I64;
        }
        snprintf(e.name, sizeof e.name, "%s", w->name);
        DDP_TRY(add_entry(list, &e));
    }
    return DDP_OK;
}

static ddp_status add_flat(const ddp_ckpt_parts *parts, const ddpi_weight_list *weights, int flat,
                           entry_list *list)
{
    for (size_t i = 0; i < weights->count; i++) {
        const ddpi_weight *w = &weights->items[i];
        if (w->param == NULL)
            continue;
        entry e = {.shared = true, .shape = w->shape, .dtype = DDPI_ST_F32};
        e.piece = (ddpi_ckpt_piece){
            .kind = DDPI_CKPT_PARAM, .file = DDPI_CKPT_OPTIMIZER, .flat = flat, .param = w->param};
        ddpi_ckpt_name(e.name, sizeof e.name, parts->flats[flat].name, w->name);
        DDP_TRY(add_entry(list, &e));
    }
    return DDP_OK;
}

static ddp_status add_running(const ddp_ckpt_parts *parts, entry_list *list)
{
    if (ddp_buffer_table_length(parts->buffers) == 0)
        return DDP_OK;
    for (int i = 0; i < ddp_buffer_table_count(parts->buffers); i++) {
        const ddp_buffer *buffer = ddp_buffer_table_at(parts->buffers, i);
        if (buffer->counter)
            continue;
        entry e = {.dtype = DDPI_ST_F32, .shape = {2, {parts->shards, buffer->count}}};
        e.piece =
            (ddpi_ckpt_piece){.kind = DDPI_CKPT_ROW, .file = DDPI_CKPT_OPTIMIZER, .buffer = buffer};
        ddpi_ckpt_name(e.name, sizeof e.name, "running", buffer->name);
        DDP_TRY(add_entry(list, &e));
    }
    entry seen = {.dtype = DDPI_ST_F64, .shape = {1, {parts->shards}}};
    seen.piece = (ddpi_ckpt_piece){.kind = DDPI_CKPT_SEEN, .file = DDPI_CKPT_OPTIMIZER};
    ddpi_ckpt_name(seen.name, sizeof seen.name, "running", "seen");
    return add_entry(list, &seen);
}

static ddp_status list_entries(const ddp_ckpt_parts *parts, entry_list *list)
{
    ddpi_weight_list weights;
    DDP_TRY(ddpi_weights_list(parts->table, parts->buffers, &weights));
    ddp_status st = add_model(&weights, list);
    for (int i = 0; i < parts->flat_count && st == DDP_OK; i++)
        st = add_flat(parts, &weights, i, list);
    ddp_free(weights.items);
    return st == DDP_OK ? add_running(parts, list) : st;
}

/* ---- files ---- */

static ddp_status make_head(entry_list *list, int file, ddpi_ckpt_layout *layout)
{
    ddpi_safetensor *tensors;
    size_t data_bytes;
    int count = 0;
    DDP_TRY(DDP_ALLOC(tensors, (size_t)list->count));
    for (int i = 0; i < list->count; i++)
        if (list->items[i].piece.file == file)
            tensors[count++] = (ddpi_safetensor){.name = list->items[i].name,
                                                 .dtype = list->items[i].dtype,
                                                 .shape = list->items[i].shape};
    const ddp_status st = ddpi_safetensors_head(tensors, (size_t)count, &layout->heads[file],
                                                &layout->head_bytes[file], &data_bytes);
    count = 0;
    for (int i = 0; i < list->count && st == DDP_OK; i++) {
        ddpi_ckpt_piece *piece = &list->items[i].piece;
        if (piece->file != file)
            continue;
        piece->offset = layout->head_bytes[file] + tensors[count].begin;
        piece->bytes = tensors[count].end - tensors[count].begin;
        count++;
    }
    if (st == DDP_OK)
        layout->file_bytes[file] = layout->head_bytes[file] + data_bytes;
    ddp_free(tensors);
    return st;
}

/* ---- a rank's pieces ---- */

static ddp_status add_piece(ddpi_ckpt_layout *layout, const ddpi_ckpt_piece *whole, size_t from,
                            size_t bytes)
{
    if (bytes == 0)
        return DDP_OK;
    DDP_TRY(DDP_GROW(layout->pieces, layout->capacity, layout->count));
    ddpi_ckpt_piece *piece = &layout->pieces[layout->count++];
    *piece = *whole;
    piece->from = from;
    piece->bytes = bytes;
    piece->offset = whole->offset + from;
    piece->memory = layout->memory_bytes;
    const size_t taken =
        piece->kind == DDPI_CKPT_PARAM ? ddp_layout_bytes(piece->param->layout) : bytes;
    layout->memory_bytes += (taken + DDP_ALIGN_BYTES - 1) / DDP_ALIGN_BYTES * DDP_ALIGN_BYTES;
    return DDP_OK;
}

/* Shares are cut at whole elements of every type. */
static size_t share_start(size_t total, int rank, int world)
{
    const size_t words = total / sizeof(double);
    return rank == world ? total : words * (size_t)rank / (size_t)world * sizeof(double);
}

static ddp_status cut_shared(const entry_list *list, int rank, int world, ddpi_ckpt_layout *layout)
{
    size_t total = 0, start = 0;
    for (int i = 0; i < list->count; i++)
        total += list->items[i].shared ? list->items[i].piece.bytes : 0;
    const size_t lo = share_start(total, rank, world), hi = share_start(total, rank + 1, world);
    for (int i = 0; i < list->count; i++) {
        const ddpi_ckpt_piece *piece = &list->items[i].piece;
        if (!list->items[i].shared)
            continue;
        const size_t end = start + piece->bytes;
        const size_t from = start > lo ? start : lo, to = end < hi ? end : hi;
        if (from < to)
            DDP_TRY(add_piece(layout, piece, from - start, to - from));
        start = end;
    }
    return DDP_OK;
}

static ddp_status cut_own(const entry_list *list, const ddp_ckpt_parts *parts,
                          ddpi_ckpt_layout *layout)
{
    for (int i = 0; i < list->count; i++) {
        ddpi_ckpt_piece piece = list->items[i].piece;
        const size_t row_bytes = piece.bytes / (size_t)parts->shards;
        if (piece.kind == DDPI_CKPT_SEEN)
            DDP_TRY(add_piece(layout, &piece, row_bytes * (size_t)parts->first,
                              row_bytes * (size_t)parts->own));
        for (int64_t row = 0; piece.kind == DDPI_CKPT_ROW && row < parts->own; row++) {
            piece.row = row;
            DDP_TRY(add_piece(layout, &piece, row_bytes * (size_t)(parts->first + row), row_bytes));
        }
    }
    return DDP_OK;
}

static ddp_status make(const ddp_ckpt_parts *parts, int rank, int world, entry_list *list,
                       ddpi_ckpt_layout *layout)
{
    DDP_TRY(list_entries(parts, list));
    for (int file = 0; file < DDPI_CKPT_FILES; file++)
        DDP_TRY(make_head(list, file, layout));
    layout->largest_param = 1;
    for (int i = 0; i < ddp_param_table_count(parts->table); i++) {
        const size_t count = (size_t)ddp_shape_count(&ddp_param_table_at(parts->table, i)->shape);
        layout->largest_param = count > layout->largest_param ? count : layout->largest_param;
    }
    DDP_TRY(cut_shared(list, rank, world, layout));
    return cut_own(list, parts, layout);
}

ddp_status ddpi_ckpt_layout_make(const ddp_ckpt_parts *parts, int rank, int world,
                                 ddpi_ckpt_layout *layout_out)
{
    ddpi_ckpt_layout layout = {0};
    entry_list list = {0};
    const ddp_status st = make(parts, rank, world, &list, &layout);
    ddp_free(list.items);
    if (st != DDP_OK) {
        ddpi_ckpt_layout_free(&layout);
        return st;
    }
    *layout_out = layout;
    return DDP_OK;
}

void ddpi_ckpt_layout_free(ddpi_ckpt_layout *layout)
{
    for (int file = 0; file < DDPI_CKPT_FILES; file++)
        ddp_free(layout->heads[file]);
    ddp_free(layout->pieces);
    *layout = (ddpi_ckpt_layout){0};
}

/* ---- the snapshot ---- */

static ddp_status copy_floats(const ddp_ckpt_parts *parts, const float *src, size_t bytes,
                              char *dst)
{
    return ddp_device_copy(parts->device, ddp_device_main_stream(parts->device), dst, src, bytes,
                           DDP_COPY_TO_HOST);
}

static ddp_status copy_piece(const ddpi_ckpt_piece *piece, const ddp_ckpt_parts *parts, char *dst)
{
    const float *flat = piece->flat < 0 ? parts->params : parts->flats[piece->flat].values;
    switch (piece->kind) {
    case DDPI_CKPT_PARAM:
        return copy_floats(parts, flat + piece->param->offset,
                           ddp_layout_bytes(piece->param->layout), dst);
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
    for (int i = 0; i < layout->count; i++)
        DDP_TRY(copy_piece(&layout->pieces[i], parts, memory + layout->pieces[i].memory));
    return ddp_stream_sync(ddp_device_main_stream(parts->device));
}

ddp_status ddpi_ckpt_piece_bytes(const ddpi_ckpt_piece *piece, const char *memory, float *scratch,
                                 const char **bytes_out)
{
    const char *at = memory + piece->memory;
    *bytes_out = at;
    if (piece->kind != DDPI_CKPT_PARAM)
        return DDP_OK;
    if (!ddp_layout_is_plain(piece->param->layout)) {
        DDP_TRY(ddp_layout_unpack(piece->param->layout, at, scratch));
        at = (const char *)scratch;
    }
    *bytes_out = at + piece->from;
    return DDP_OK;
}
