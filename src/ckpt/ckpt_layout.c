/* ckpt_layout.c - which bytes of a checkpoint's files are what.
 *
 * The files' layout follows from names, shapes and the number of logical shards alone. Set-up; one
 * thread. */
#include <stdio.h>
#include <string.h>

#include "ckpt/ckpt_impl.h"
#include "ddp/memory.h"

enum { NAME_BYTES = 2 * DDP_PARAM_NAME_BYTES };

const char *const ddpi_ckpt_file_names[DDPI_CKPT_FILES] = {"model.safetensors",
                                                           "optimizer.safetensors"};

/* One tensor, whole. */
typedef struct entry {
    ddpi_ckpt_piece piece;
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
        entry e = {.shape = w->shape, .dtype = DDPI_ST_F32};
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
        entry e = {.shape = w->shape, .dtype = DDPI_ST_F32};
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

/* ---- life ---- */

static ddp_status make(const ddp_ckpt_parts *parts, entry_list *list, ddpi_ckpt_layout *layout)
{
    DDP_TRY(list_entries(parts, list));
    for (int file = 0; file < DDPI_CKPT_FILES; file++)
        DDP_TRY(make_head(list, file, layout));
    for (int i = 0; i < list->count; i++) {
        DDP_TRY(DDP_GROW(layout->tensors, layout->tensor_capacity, layout->tensor_count));
        layout->tensors[layout->tensor_count++] = list->items[i].piece;
    }
    return DDP_OK;
}

ddp_status ddpi_ckpt_layout_make(const ddp_ckpt_parts *parts, ddpi_ckpt_layout *layout_out)
{
    ddpi_ckpt_layout layout = {0};
    entry_list list = {0};
    const ddp_status st = make(parts, &list, &layout);
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
    ddp_free(layout->tensors);
    ddp_free(layout->pieces);
    ddp_free(layout->spans);
    *layout = (ddpi_ckpt_layout){0};
}
