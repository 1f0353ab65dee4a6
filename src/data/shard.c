/* shard.c - one packed shard: mapped, checked from the outside in, used where it lies.
 *
 * The header is checked against the file's size, the entries against the header's checksum and then
 * one by one. An image must start exactly where the one before ends, rounded up to the border, and
 * the last one must end the file; that leaves no room for gaps, overlaps or ranges outside. Pixels
 * need no check, any byte is one. No state, any thread. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ddp/fs.h"
#include "ddp/memory.h"
#include "ddp/shards.h"

_Static_assert(sizeof(ddp_shard_header) == 64, "the header's size in files");
_Static_assert(sizeof(ddp_shard_entry) == 24, "an entry's size in files");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers in the files are little-endian");

uint64_t ddp_shard_align(uint64_t bytes)
{
    return (bytes + DDP_SHARD_ALIGN_BYTES - 1) / DDP_SHARD_ALIGN_BYTES * DDP_SHARD_ALIGN_BYTES;
}

static ddp_status check_range(const char *what, const char *name, uint64_t value, uint64_t limit)
{
    if (value >= 1 && value <= limit)
        return DDP_OK;
    return DDP_FAIL(DDP_ERR_FORMAT, "%s: the header says %s = %llu, expected 1 to %llu", what, name,
                    (unsigned long long)value, (unsigned long long)limit);
}

static ddp_status check_header(const ddp_shard_header *header, size_t byte_count, const char *what)
{
    if (memcmp(header->magic, DDP_SHARD_MAGIC, sizeof header->magic) != 0)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: does not begin with %s, so it is no packed shard",
                        what, DDP_SHARD_MAGIC);
    if (header->version != DDP_SHARD_VERSION)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: has format version %u, expected %d", what,
                        header->version, DDP_SHARD_VERSION);
    DDP_TRY(check_range(what, "count", header->count, DDP_SHARD_MAX_COUNT));
    DDP_TRY(check_range(what, "classes", header->classes, DDP_SHARD_MAX_CLASSES));
    DDP_TRY(check_range(what, "channels", header->channels, DDP_SHARD_MAX_CHANNELS));
    if (header->zeros[0] != 0 || header->zeros[1] != 0)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: the header's last 16 bytes are not 0", what);
    if (header->file_bytes != byte_count)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: the file has %zu bytes, its header says %llu", what,
                        byte_count, (unsigned long long)header->file_bytes);
    uint64_t data =
        ddp_shard_align(sizeof *header + (uint64_t)header->count * sizeof(ddp_shard_entry));
    if (header->data_offset != data || data > byte_count)
        return DDP_FAIL(DDP_ERR_FORMAT,
                        "%s: the header says that pixels start at byte %llu of %zu, expected %llu "
                        "for %u images",
                        what, (unsigned long long)header->data_offset, byte_count,
                        (unsigned long long)data, header->count);
    return DDP_OK;
}

static ddp_status check_entry(const ddp_shard *shard, uint32_t i, uint64_t start, const char *what)
{
    const ddp_shard_entry *e = &shard->entries[i];
    if (e->height < 1 || e->height > DDP_SHARD_MAX_SIDE || e->width < 1 ||
        e->width > DDP_SHARD_MAX_SIDE || (int64_t)e->height * e->width > DDP_SHARD_MAX_PIXELS)
        return DDP_FAIL(
            DDP_ERR_FORMAT,
            "%s: image %u is %u x %u, expected sides of 1 to %d and at most %lld pixels", what, i,
            e->height, e->width, DDP_SHARD_MAX_SIDE, (long long)DDP_SHARD_MAX_PIXELS);
    if (e->channels != shard->header->channels)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: image %u has %u channels, expected %u", what, i,
                        e->channels, shard->header->channels);
    if (e->label >= shard->header->classes)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: the label of image %u is %u, expected 0 to %u", what,
                        i, e->label, shard->header->classes - 1);
    if (e->offset != start)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: image %u starts at byte %llu, expected %llu (%s)",
                        what, i, (unsigned long long)e->offset, (unsigned long long)start,
                        e->offset < start ? "overlap" : "gap");
    return DDP_OK;
}

static ddp_status check_entries(const ddp_shard *shard, const char *what)
{
    const ddp_shard_header *header = shard->header;
    uint64_t start = header->data_offset;
    uint64_t hash = ddp_hash64(shard->entries, header->count * sizeof *shard->entries);
    if (hash != header->index_xxh3)
        return DDP_FAIL(DDP_ERR_FORMAT,
                        "%s: the index has the checksum %016llx, expected %016llx: it is damaged",
                        what, (unsigned long long)hash, (unsigned long long)header->index_xxh3);
    for (uint32_t i = 0; i < header->count; i++) {
        const ddp_shard_entry *e = &shard->entries[i];
        DDP_TRY(check_entry(shard, i, start, what));
        /* Below 2^31 for each image, and start is within the file: no overflow. */
        start = ddp_shard_align(start + (uint64_t)e->height * e->width * e->channels);
        if (start > shard->byte_count)
            return DDP_FAIL(DDP_ERR_FORMAT, "%s: image %u ends at byte %llu, the file has %zu",
                            what, i, (unsigned long long)start, shard->byte_count);
    }
    if (start != shard->byte_count)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: the images end at byte %llu, the file has %zu", what,
                        (unsigned long long)start, shard->byte_count);
    return DDP_OK;
}

ddp_status ddp_shard_parse(const void *bytes, size_t byte_count, const char *what,
                           ddp_shard *shard_out)
{
    DDP_ASSERT((uintptr_t)bytes % sizeof(uint64_t) == 0);
    ddp_shard shard = {.header = bytes, .bytes = bytes, .byte_count = byte_count};
    if (byte_count < sizeof *shard.header)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: %zu bytes are too few for a packed shard", what,
                        byte_count);
    shard.entries = (const ddp_shard_entry *)(shard.header + 1);
    DDP_TRY(check_header(shard.header, byte_count, what));
    DDP_TRY(check_entries(&shard, what));
    *shard_out = shard;
    return DDP_OK;
}

static ddp_status map_file(int fd, const char *path, ddp_shard *shard)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return DDP_FAIL(DDP_ERR_IO, "stat %s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return DDP_FAIL(DDP_ERR_IO, "%s is not a regular file", path);
    if (info.st_size == 0) /* which cannot be mapped */
        return DDP_FAIL(DDP_ERR_FORMAT, "%s is empty, expected a packed shard", path);
    void *bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (bytes == MAP_FAILED)
        return DDP_FAIL(DDP_ERR_IO, "map %s: %s", path, strerror(errno));
    shard->bytes = bytes;
    shard->byte_count = (size_t)info.st_size;
    return DDP_OK;
}

ddp_status ddp_shard_open(const char *path, ddp_shard *shard_out)
{
    ddp_shard shard = {0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return DDP_FAIL(DDP_ERR_IO, "open %s: %s", path, strerror(errno));
    ddp_status st = map_file(fd, path, &shard);
    (void)close(fd); /* the map stays */
    if (st == DDP_OK)
        st = ddp_shard_parse(shard.bytes, shard.byte_count, path, &shard);
    if (st != DDP_OK) {
        ddp_shard_close(&shard);
        return st;
    }
    *shard_out = shard;
    return DDP_OK;
}

void ddp_shard_close(ddp_shard *shard)
{
    if (shard->bytes != NULL)
        (void)munmap((void *)(uintptr_t)shard->bytes, shard->byte_count);
    *shard = (ddp_shard){0};
}
