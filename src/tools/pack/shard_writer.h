/* shard_writer.h - gathers images in memory and writes them as one shard. One thread. */
#ifndef DDPI_TOOLS_SHARD_WRITER_H
#define DDPI_TOOLS_SHARD_WRITER_H

#include "ddp/shards.h"
#include "tools/pack/picture.h"

typedef struct ddpi_shard_writer {
    ddp_shard_entry *entries; /* offsets count from the first image until it is written */
    int count, capacity;
    uint8_t *pixels;
    size_t used, pixel_capacity;
} ddpi_shard_writer;

/* Bytes that an image takes in a shard. */
size_t ddpi_shard_writer_need(const ddpi_picture *picture);
/* Copies the image. */
DDP_INNER ddp_status ddpi_shard_writer_add(ddpi_shard_writer *writer, const ddpi_picture *picture,
                                           int64_t label);
/* Writes all that was added, complete or not at all, and begins anew. */
DDP_INNER ddp_status ddpi_shard_writer_write(ddpi_shard_writer *writer, int64_t classes,
                                             int64_t channels, const char *path,
                                             uint64_t *bytes_out, uint64_t *xxh3_out);
void ddpi_shard_writer_free(ddpi_shard_writer *writer);

#endif
