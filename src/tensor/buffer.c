/* buffer.c - the buffer table: names and places of running statistics. One thread, no locks. */
#include "ddp/buffer.h"

#include <string.h>

#include "ddp/memory.h"

struct ddp_buffer_table {
    ddp_buffer *entries;
    int count, capacity;
    size_t length;
};

ddp_status ddp_buffer_table_create(ddp_buffer_table **table_out)
{
    ddp_buffer_table *table;
    DDP_TRY(DDP_ALLOC(table, 1));
    *table_out = table;
    return DDP_OK;
}

void ddp_buffer_table_destroy(ddp_buffer_table *table)
{
    if (table == NULL)
        return;
    ddp_free(table->entries);
    ddp_free(table);
}

static ddp_status check_new(const ddp_buffer_table *table, const ddp_buffer *buffer)
{
    if (buffer->name[0] == '\0' || memchr(buffer->name, '\0', sizeof buffer->name) == NULL)
        return DDP_FAIL(DDP_ERR_SHAPE, "a buffer's name must have 1 to %d bytes",
                        DDP_PARAM_NAME_BYTES - 1);
    if (!buffer->counter && buffer->count < 1)
        return DDP_FAIL(DDP_ERR_SHAPE, "buffer %s has %lld values", buffer->name,
                        (long long)buffer->count);
    for (int i = 0; i < table->count; i++)
        if (strcmp(table->entries[i].name, buffer->name) == 0)
            return DDP_FAIL(DDP_ERR_SHAPE, "buffer %s exists already", buffer->name);
    return DDP_OK;
}

ddp_status ddp_buffer_table_add(ddp_buffer_table *table, const ddp_buffer *buffer, int *index_out)
{
    const size_t border = DDP_ALIGN_BYTES / sizeof(float);
    DDP_TRY(check_new(table, buffer));
    DDP_TRY(DDP_GROW(table->entries, table->capacity, table->count));
    ddp_buffer *entry = &table->entries[table->count];
    *entry = *buffer;
    entry->offset = table->length;
    if (!buffer->counter)
        table->length += ((size_t)buffer->count + border - 1) / border * border;
    *index_out = table->count++;
    return DDP_OK;
}

int ddp_buffer_table_count(const ddp_buffer_table *table)
{
    return table->count;
}

const ddp_buffer *ddp_buffer_table_at(const ddp_buffer_table *table, int index)
{
    DDP_ASSERT(index >= 0 && index < table->count);
    return &table->entries[index];
}

size_t ddp_buffer_table_length(const ddp_buffer_table *table)
{
    return table->length;
}

void ddp_buffer_table_init(const ddp_buffer_table *table, float *flat)
{
    if (table->length > 0)
        memset(flat, 0, table->length * sizeof *flat);
    for (int i = 0; i < table->count; i++) {
        const ddp_buffer *buffer = &table->entries[i];
        for (int64_t c = 0; !buffer->counter && c < buffer->count; c++)
            flat[buffer->offset + (size_t)c] = buffer->init;
    }
}
