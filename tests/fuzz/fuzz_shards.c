/* fuzz_shards.c - libFuzzer target: any bytes, taken as a packed shard and as a manifest.
 *
 * Beyond the sanitizers' findings: what is accepted as a shard must lie within it without overlap
 * and within the limits, and every pixel must be readable; a manifest's counts must add up. A
 * shard's checksum of its index is made to fit, as no fuzzer would find one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/shard_manifest.h"
#include "ddp/fs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void require(bool truth, const char *what)
{
    if (truth)
        return;
    fprintf(stderr, "fuzz_shards: %s\n", what);
    abort();
}

static void check_shard(const ddp_shard *shard, size_t bytes)
{
    const ddp_shard_header *header = shard->header;
    uint64_t end = header->data_offset;
    unsigned sum = 0;
    require(header->file_bytes == bytes && header->count >= 1, "header");
    for (uint32_t i = 0; i < header->count; i++) {
        const ddp_shard_entry *e = &shard->entries[i];
        uint64_t pixels = (uint64_t)e->height * e->width * e->channels;
        require(e->offset >= end && e->offset % DDP_SHARD_ALIGN_BYTES == 0, "offset");
        require(pixels >= 1 && pixels <= bytes && e->offset <= bytes - pixels, "range");
        require(e->label < header->classes && e->channels == header->channels, "entry");
        for (uint64_t p = 0; p < pixels; p++)
            sum += shard->bytes[e->offset + p];
        end = e->offset + pixels;
    }
    require(sum <= 255 * bytes, "sum");
}

static void read_shard(const uint8_t *data, size_t bytes)
{
    ddp_shard shard;
    ddp_shard_header header;
    uint8_t *copy = malloc(bytes + (bytes == 0)); /* aligned, and of the exact length */
    if (copy == NULL)
        return;
    memcpy(copy, data, bytes);
    if (bytes >= sizeof header) {
        memcpy(&header, copy, sizeof header);
        uint64_t index = (uint64_t)header.count * sizeof(ddp_shard_entry);
        if (index <= bytes - sizeof header)
            header.index_xxh3 = ddp_hash64(copy + sizeof header, index);
        memcpy(copy, &header, sizeof header);
    }
    if (ddp_shard_parse(copy, bytes, "input", &shard) == DDP_OK)
        check_shard(&shard, bytes);
    free(copy);
}

static void read_manifest(const uint8_t *data, size_t bytes)
{
    ddpi_shard_manifest m;
    int64_t images = 0, of_classes = 0;
    if (ddpi_shard_manifest_parse((const char *)data, bytes, "input", &m) != DDP_OK)
        return;
    for (int64_t i = 0; i < m.shard_count; i++) {
        require(strchr(m.shards[i].name, '/') == NULL && m.shards[i].name[0] != '.', "name");
        images += m.shards[i].images;
    }
    for (int64_t i = 0; i < m.class_count; i++) {
        require(m.classes[i] != NULL, "class");
        of_classes += m.class_images[i];
    }
    require(images == m.images && of_classes == m.images, "counts");
    ddpi_shard_manifest_close(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    read_shard(data, bytes);
    read_manifest(data, bytes);
    return 0;
}
