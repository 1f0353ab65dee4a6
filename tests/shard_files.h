/* shard_files.h - writes packed shards byte by byte as shards.h describes them, for the tests that
 * read them; independent of ddp_pack. */
#ifndef DDP_TESTS_SHARD_FILES_H
#define DDP_TESTS_SHARD_FILES_H

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ddp/fs.h"
#include "ddp/shards.h"

typedef struct test_size {
    uint32_t height, width;
} test_size;

static inline uint8_t shard_pixel(int64_t image, int64_t p)
{
    return (uint8_t)(image * 41 + p * 7 + 1);
}

/* Images numbered from `first` on, of these sizes, with the labels image % classes. The caller
 * frees the shard with free(). */
static inline uint8_t *make_shard(int64_t first, const test_size *sizes, uint32_t count,
                                  uint32_t classes, uint32_t channels, size_t *bytes_out)
{
    uint64_t index_bytes = (uint64_t)count * sizeof(ddp_shard_entry);
    uint64_t data = (sizeof(ddp_shard_header) + index_bytes + 63) / 64 * 64, end = data;
    for (uint32_t i = 0; i < count; i++)
        end += ((uint64_t)sizes[i].height * sizes[i].width * channels + 63) / 64 * 64;
    uint8_t *shard = calloc(1, end);
    assert_non_null(shard);
    ddp_shard_entry *entries = (ddp_shard_entry *)(shard + sizeof(ddp_shard_header));
    uint64_t at = data;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t bytes = (uint64_t)sizes[i].height * sizes[i].width * channels;
        entries[i] = (ddp_shard_entry){at, sizes[i].height, sizes[i].width, channels,
                                       (uint32_t)((first + i) % classes)};
        for (uint64_t p = 0; p < bytes; p++)
            shard[at + p] = shard_pixel(first + i, (int64_t)p);
        at += (bytes + 63) / 64 * 64;
    }
    ddp_shard_header header = {"", 1, count, classes, channels, data, end, 0, {0, 0}};
    memcpy(header.magic, "DDPSHARD", 8);
    header.index_xxh3 = ddp_hash64(entries, index_bytes);
    memcpy(shard, &header, sizeof header);
    *bytes_out = end;
    return shard;
}

/* A changed index gets the checksum that fits it, so that the check behind that one is met. */
static inline void seal_shard(uint8_t *shard)
{
    ddp_shard_header *header = (ddp_shard_header *)shard;
    header->index_xxh3 =
        ddp_hash64(shard + sizeof *header, header->count * sizeof(ddp_shard_entry));
}

static inline void write_bytes(const char *dir, const char *name, const void *data, size_t bytes)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

/* Removes a folder and all in it. */
static inline void remove_tree(const char *dir)
{
    char command[600];
    assert_non_null(strstr(dir, "/ddp_test_"));
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    assert_int_equal(system(command), 0);
}

#endif
