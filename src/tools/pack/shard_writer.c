/* shard_writer.c - the layout of shards.h, from the writing side. */
#include "tools/pack/shard_writer.h"

#include <string.h>

#include "ddp/fs.h"
#include "ddp/memory.h"

static size_t pixel_bytes(const ddpi_picture *picture)
{
    return (size_t)(picture->height * picture->width * picture->channels);
}

size_t ddpi_shard_writer_need(const ddpi_picture *picture)
{
    return ddp_shard_align(pixel_bytes(picture));
}

static ddp_status make_room(ddpi_shard_writer *writer, size_t more)
{
    size_t capacity = writer->pixel_capacity > 0 ? writer->pixel_capacity : 1 << 20;
    uint8_t *larger;
    if (writer->used + more <= writer->pixel_capacity)
        return DDP_OK;
    while (capacity < writer->used + more)
        capacity *= 2;
    DDP_TRY(DDP_ALLOC(larger, capacity));
    if (writer->used > 0)
        memcpy(larger, writer->pixels, writer->used);
    ddp_free(writer->pixels);
    writer->pixels = larger;
    writer->pixel_capacity = capacity;
    return DDP_OK;
}

ddp_status ddpi_shard_writer_add(ddpi_shard_writer *writer, const ddpi_picture *picture,
                                 int64_t label)
{
    size_t bytes = pixel_bytes(picture), need = ddpi_shard_writer_need(picture);
    DDP_TRY(make_room(writer, need));
    DDP_TRY(DDP_GROW(writer->entries, writer->capacity, writer->count));
    writer->entries[writer->count++] = (ddp_shard_entry){.offset = writer->used,
                                                         .height = (uint32_t)picture->height,
                                                         .width = (uint32_t)picture->width,
                                                         .channels = (uint32_t)picture->channels,
                                                         .label = (uint32_t)label};
    memcpy(writer->pixels + writer->used, picture->pixels, bytes);
    memset(writer->pixels + writer->used + bytes, 0, need - bytes);
    writer->used += need;
    return DDP_OK;
}

ddp_status ddpi_shard_writer_write(ddpi_shard_writer *writer, int64_t classes, int64_t channels,
                                   const char *path, uint64_t *bytes_out, uint64_t *xxh3_out)
{
    size_t index_bytes = (size_t)writer->count * sizeof *writer->entries;
    uint64_t data = ddp_shard_align(sizeof(ddp_shard_header) + index_bytes);
    ddp_shard_header header = {.version = DDP_SHARD_VERSION,
                               .count = (uint32_t)writer->count,
                               .classes = (uint32_t)classes,
                               .channels = (uint32_t)channels,
                               .data_offset = data,
                               .file_bytes = data + writer->used};
    uint8_t *file;
    DDP_TRY(DDP_ALLOC(file, header.file_bytes));
    for (int i = 0; i < writer->count; i++)
        writer->entries[i].offset += data;
    memcpy(header.magic, DDP_SHARD_MAGIC, sizeof header.magic);
    header.index_xxh3 = ddp_hash64(writer->entries, index_bytes);
    memcpy(file, &header, sizeof header);
    memcpy(file + sizeof header, writer->entries, index_bytes);
    memcpy(file + data, writer->pixels, writer->used);
    ddp_status st = ddp_fs_write_atomic(path, file, header.file_bytes);
    *bytes_out = header.file_bytes;
    *xxh3_out = ddp_hash64(file, header.file_bytes);
    ddp_free(file);
    writer->count = 0;
    writer->used = 0;
    return st;
}

void ddpi_shard_writer_free(ddpi_shard_writer *writer)
{
    ddp_free(writer->entries);
    ddp_free(writer->pixels);
    *writer = (ddpi_shard_writer){0};
}
