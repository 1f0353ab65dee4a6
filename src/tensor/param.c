/* param.c - the parameter table: offsets in the flat buffers, and counting of gradient
 * contributions.
 *
 * Entries are allocated one by one, so that a `const ddp_param *` stays valid while others are
 * added. Offsets only ever grow: a parameter lies behind the one whose gradient completes before
 * it, on the next DDP_ALIGN_BYTES border. During a backward each entry counts down from its use
 * count to 0, and the step to 0 calls the one registered callback. One thread, no locks. */
#include "ddp/param.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "ddp/memory.h"
#include "tensor/param_impl.h"

enum { LIST_BYTES = 400 };

typedef struct param_entry {
    ddp_param param;
    int awaited; /* contributions that this backward still owes */
} param_entry;

struct ddp_param_table {
    param_entry **entries;
    int count, capacity;
    size_t length; /* end of the last parameter, rounded up to the border */
    int64_t elements;
    ddp_param_ready_fn ready;
    void *ready_arg;
};

ddp_status ddp_param_table_create(ddp_param_table **table_out)
{
    ddp_param_table *table;
    DDP_TRY(DDP_ALLOC(table, 1));
    *table_out = table;
    return DDP_OK;
}

void ddp_param_table_destroy(ddp_param_table *table)
{
    if (table == NULL)
        return;
    for (int i = 0; i < table->count; i++) {
        ddp_layout_unref(table->entries[i]->param.layout);
        ddp_free(table->entries[i]);
    }
    ddp_free(table->entries);
    ddp_free(table);
}

static ddp_status check_new(const ddp_param_table *table, const ddp_param *param)
{
    if (param->name[0] == '\0' || memchr(param->name, '\0', sizeof param->name) == NULL)
        return DDP_FAIL(DDP_ERR_SHAPE, "a parameter's name must have 1 to %d bytes",
                        DDP_PARAM_NAME_BYTES - 1);
    if (ddp_param_table_find(table, param->name) >= 0)
        return DDP_FAIL(DDP_ERR_SHAPE, "parameter %s exists already", param->name);
    if (param->use_count < 1)
        return DDP_FAIL(DDP_ERR_INTERNAL, "parameter %s has a use count of %d", param->name,
                        param->use_count);
    for (int i = 0; i < table->count; i++)
        if (table->entries[i]->param.init_number == param->init_number)
            return DDP_FAIL(DDP_ERR_INTERNAL, "parameters %s and %s have the same init number %u",
                            table->entries[i]->param.name, param->name, param->init_number);
    return DDP_OK;
}

ddp_status ddp_param_table_add(ddp_param_table *table, const ddp_param *param, int *index_out)
{
    DDP_TRY(check_new(table, param));
    DDP_TRY(DDP_GROW(table->entries, table->capacity, table->count));
    param_entry *entry;
    DDP_TRY(DDP_ALLOC(entry, 1));
    entry->param = *param;
    entry->param.layout = ddp_layout_ref(param->layout);
    entry->param.offset = table->length;
    entry->param.count = ddp_layout_bytes(param->layout) / sizeof(float);

    const size_t border = DDP_ALIGN_BYTES / sizeof(float);
    table->length += (entry->param.count + border - 1) / border * border;
    table->elements += ddp_shape_count(&param->shape);
    *index_out = table->count;
    table->entries[table->count++] = entry;
    return DDP_OK;
}

int ddp_param_table_count(const ddp_param_table *table)
{
    return table->count;
}

const ddp_param *ddp_param_table_at(const ddp_param_table *table, int index)
{
    DDP_ASSERT(index >= 0 && index < table->count);
    return &table->entries[index]->param;
}

int ddp_param_table_find(const ddp_param_table *table, const char *name)
{
    for (int i = 0; i < table->count; i++)
        if (strcmp(table->entries[i]->param.name, name) == 0)
            return i;
    return -1;
}

size_t ddp_param_table_length(const ddp_param_table *table)
{
    return table->length;
}

int64_t ddp_param_table_elements(const ddp_param_table *table)
{
    return table->elements;
}

const ddp_param *ddpi_param_next_by_init(const ddp_param_table *table, const ddp_param *last)
{
    const ddp_param *next = NULL;
    for (int i = 0; i < table->count; i++) {
        const ddp_param *param = &table->entries[i]->param;
        if (last != NULL && param->init_number <= last->init_number)
            continue;
        if (next == NULL || param->init_number < next->init_number)
            next = param;
    }
    return next;
}

/* ---- freezing ---- */

static int freeze_pattern(ddp_param_table *table, const char *pattern)
{
    int hits = 0;
    for (int i = 0; i < table->count; i++) {
        ddp_param *param = &table->entries[i]->param;
        if (fnmatch(pattern, param->name, 0) != 0)
            continue;
        param->flags &= ~(unsigned)DDP_PARAM_TRAINABLE;
        hits++;
    }
    return hits;
}

ddp_status ddp_param_table_freeze(ddp_param_table *table, const char *patterns)
{
    for (const char *at = patterns;; at++) {
        char pattern[DDP_PARAM_NAME_BYTES] = "";
        const size_t bytes = strcspn(at, ",");
        if (bytes < sizeof pattern)
            memcpy(pattern, at, bytes);
        if (freeze_pattern(table, pattern) == 0)
            return DDP_FAIL(DDP_ERR_USAGE,
                            "option --freeze: found the pattern \"%.*s\", which is no parameter's "
                            "name",
                            (int)bytes, at);
        at += bytes;
        if (*at == 0)
            break;
    }
    for (int i = 0; i < table->count; i++)
        if (table->entries[i]->param.flags & DDP_PARAM_TRAINABLE)
            return DDP_OK;
    return DDP_FAIL(DDP_ERR_USAGE, "option --freeze: found \"%s\", which leaves nothing to train",
                    patterns);
}

/* ---- completion of gradients ---- */

void ddp_param_table_on_ready(ddp_param_table *table, ddp_param_ready_fn fn, void *arg)
{
    table->ready = fn;
    table->ready_arg = arg;
}

void ddp_param_table_get_ready(const ddp_param_table *table, ddp_param_ready_fn *fn_out,
                               void **arg_out)
{
    *fn_out = table->ready;
    *arg_out = table->ready_arg;
}

void ddp_param_table_begin(ddp_param_table *table)
{
    for (int i = 0; i < table->count; i++)
        table->entries[i]->awaited = table->entries[i]->param.use_count;
}

ddp_status ddp_param_grad_done(ddp_param_table *table, int index)
{
    DDP_ASSERT(index >= 0 && index < table->count);
    param_entry *entry = table->entries[index];
    if (entry->awaited == 0)
        return DDP_FAIL(DDP_ERR_INTERNAL,
                        "the gradient of %s got more than its %d contribution%s in one backward",
                        entry->param.name, entry->param.use_count,
                        entry->param.use_count == 1 ? "" : "s");
    if (--entry->awaited > 0 || table->ready == NULL)
        return DDP_OK;
    return table->ready(table->ready_arg, index);
}

ddp_status ddp_param_table_end(ddp_param_table *table)
{
    char names[LIST_BYTES] = "";
    size_t used = 0;
    int open = 0;
    for (int i = 0; i < table->count; i++) {
        if (table->entries[i]->awaited == 0)
            continue;
        if (used < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", open ? ", " : "",
                                     table->entries[i]->param.name);
        open++;
    }
    if (open == 0)
        return DDP_OK;
    return DDP_FAIL(DDP_ERR_INTERNAL, "%d gradient%s did not complete in this backward: %s%s", open,
                    open == 1 ? "" : "s", names, used >= sizeof names ? "..." : "");
}
