/* shard_manifest.h - the manifest of a split of packed shards, read strictly.
 * Immutable once parsed; any thread. */
#ifndef DDPI_DATA_SHARD_MANIFEST_H
#define DDPI_DATA_SHARD_MANIFEST_H

#include "ddp/json.h"
#include "ddp/shards.h"

#define DDPI_MANIFEST_LIMIT_BYTES (UINT64_C(1) << 28)
#define DDPI_MANIFEST_MAX_SHARDS  1000000

typedef struct ddpi_shard_file {
    const char *name; /* without folders; borrowed from the JSON */
    int64_t images, bytes;
    uint64_t xxh3;
} ddpi_shard_file;

typedef struct ddpi_shard_manifest {
    int64_t images, channels;
    int64_t min_height, max_height, min_width, max_width;
    int64_t class_count, shard_count;
    const char **classes; /* names borrowed from the JSON */
    int64_t *class_images;
    ddpi_shard_file *shards;
    ddp_json *json;
} ddpi_shard_manifest;

/* Local. `what` names the text in messages. The caller closes *manifest_out. */
DDP_INNER ddp_status ddpi_shard_manifest_parse(const char *text, size_t bytes, const char *what,
                                               ddpi_shard_manifest *manifest_out);
void ddpi_shard_manifest_close(ddpi_shard_manifest *manifest);

#endif
