/* shards.h - packed image shards: the files that ddp_pack writes and the data set "shards" reads.
 *
 * A data set is a folder with train/ and test/, each of which holds
 *   MANIFEST.json                what there is, and checksums
 *   shard-00000.ddp, ...         images, ready to be used where they lie
 *
 * A shard is, in this order and little-endian:
 *   ddp_shard_header             64 bytes
 *   ddp_shard_entry[count]       24 bytes each
 *   zeros up to a border of 64 bytes
 *   for each image: height x width x channels bytes (rows from the top, channels of a pixel side
 *   by side; a byte stands for value / 255), zeros up to a border of 64 bytes
 * Images stand in the order of their entries without gaps, and the file ends behind the last zeros.
 *
 * The manifest is one JSON object:
 *   "format": "ddp-shards", "version": 1
 *   "images", "channels"         of the whole split
 *   "min_height", "max_height", "min_width", "max_width"
 *   "classes": ["cat", ...]      names; a label is a place in this list
 *   "class_images": [n, ...]     images of each class
 *   "shards": [{"file", "images", "bytes", "xxh3"}, ...]
 *                                in order; xxh3: XXH3 (64 bits) of the whole file, 16 hex digits
 *   "damaged": [{"file", "reason"}, ...]
 *                                what was skipped; for people, not read again
 *   "input", "options"           what ddp_pack was given; likewise
 *
 * Readers here trust nothing: whatever a file says is checked before it is used. */
#ifndef DDP_SHARDS_H
#define DDP_SHARDS_H

#include "ddp/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DDP_SHARD_MAGIC       "DDPSHARD"
#define DDP_SHARD_VERSION     1
#define DDP_SHARD_ALIGN_BYTES 64
#define DDP_SHARD_MANIFEST    "MANIFEST.json"

/* Limits of what is accepted. */
#define DDP_SHARD_MAX_SIDE     65535
#define DDP_SHARD_MAX_PIXELS   (INT64_C(1) << 28) /* of an image: height x width */
#define DDP_SHARD_MAX_COUNT    (INT64_C(1) << 26) /* images of a shard */
#define DDP_SHARD_MAX_CLASSES  1000000
#define DDP_SHARD_MAX_CHANNELS 4

typedef struct ddp_shard_header {
    char magic[8];
    uint32_t version;
    uint32_t count;       /* images, at least 1 */
    uint32_t classes;     /* labels are below it */
    uint32_t channels;    /* of every image */
    uint64_t data_offset; /* of the first image's pixels */
    uint64_t file_bytes;
    uint64_t index_xxh3; /* of the entries */
    uint64_t zeros[2];
} ddp_shard_header;

typedef struct ddp_shard_entry {
    uint64_t offset; /* of the pixels, from the file's start */
    uint32_t height, width;
    uint32_t channels;
    uint32_t label;
} ddp_shard_entry;

/* A shard in memory; all pointers go into it. */
typedef struct ddp_shard {
    const ddp_shard_header *header;
    const ddp_shard_entry *entries;
    const uint8_t *bytes;
    size_t byte_count;
} ddp_shard;

/* Local. Checks all but the pixels of a shard that lies in memory on a border of 8 bytes; `what`
 * names it in messages. */
DDP_CALL ddp_status ddp_shard_parse(const void *bytes, size_t byte_count, const char *what,
                                    ddp_shard *shard_out);
/* Local. Maps a file and parses it. The caller closes *shard_out. The file must not be cut while it
 * is open. */
DDP_CALL ddp_status ddp_shard_open(const char *path, ddp_shard *shard_out);
/* Of a shard from ddp_shard_open(), or one with bytes NULL. */
DDP_API void ddp_shard_close(ddp_shard *shard);
/* Where the next thing starts behind `bytes`. */
DDP_API uint64_t ddp_shard_align(uint64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
