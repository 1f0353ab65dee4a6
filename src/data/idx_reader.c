/* idx_reader.c - the IDX format, from a file or from memory, plain or gzip.
 *
 * Three stages: input chunks (a file is read in pieces that stay in the cache; memory is one
 * chunk), decoding (none, or zlib's inflate, told apart by the first two bytes), and the format.
 * Data goes from the decoder straight to its destination: a plain file by read(), a gzip file by
 * inflate() with all of the destination as output, which then serves as its own window.
 *
 * Files are not trusted: dimensions are bounded before anybody allocates, and a gzip file can not
 * promise more than deflate's highest ratio allows. One thread per reader, no locks. */
#include "data/idx_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#define ZLIB_CONST /* inputs are const */
#include <zlib.h>

#include "ddp/memory.h"

#define CHUNK_BYTES      (256u << 10)
#define DEFLATE_MAX_GAIN 1032 /* 258 bytes from 2 bits, RFC 1951 */
#define GZIP_WINDOW_BITS 31   /* 15, and 16 for the gzip wrapper */
#define ZLIB_PIECE_BYTES (1u << 30)

struct ddpi_idx_reader {
    const char *name;
    int fd;              /* -1: memory */
    uint8_t *buffer;     /* CHUNK_BYTES; NULL: memory */
    uint64_t length;     /* of the whole input */
    uint64_t taken;      /* bytes of it that were read into chunks */
    const uint8_t *next; /* the chunk's unread part */
    size_t left;
    bool gzip;
    bool gzip_open;
    z_stream zlib;
    ddpi_idx_header header;
    size_t header_bytes;
};

/* ---- input ---- */

static ddp_status read_fd(ddpi_idx_reader *reader, uint8_t *dst, size_t want, size_t *got_out)
{
    size_t got = 0;
    while (got < want) {
        ssize_t bytes = read(reader->fd, dst + got, want - got);
        if (bytes < 0 && errno == EINTR)
            continue;
        if (bytes < 0)
            return DDP_FAIL(DDP_ERR_IO, "read %s: %s", reader->name, strerror(errno));
        if (bytes == 0)
            break;
        got += (size_t)bytes;
    }
    reader->taken += got;
    *got_out = got;
    return DDP_OK;
}

/* Makes sure that the chunk has unread bytes, unless the input is at its end. */
static ddp_status refill(ddpi_idx_reader *reader)
{
    if (reader->left > 0 || reader->fd < 0)
        return DDP_OK;
    reader->next = reader->buffer;
    return read_fd(reader, reader->buffer, CHUNK_BYTES, &reader->left);
}

/* ---- decoding: both fill dst as far as the data goes ---- */

static ddp_status get_plain(ddpi_idx_reader *reader, uint8_t *dst, size_t want, size_t *got_out)
{
    size_t chunk = reader->left < want ? reader->left : want, more = 0;
    if (chunk > 0)
        memcpy(dst, reader->next, chunk);
    reader->next += chunk;
    reader->left -= chunk;
    if (chunk < want && reader->fd >= 0)
        DDP_TRY(read_fd(reader, dst + chunk, want - chunk, &more));
    *got_out = chunk + more;
    return DDP_OK;
}

static ddp_status gzip_failure(const ddpi_idx_reader *reader, int result)
{
    uint64_t place = reader->taken - reader->left;
    if (result == Z_BUF_ERROR)
        return DDP_FAIL(DDP_ERR_FORMAT,
                        "%s: the gzip data is cut off: it breaks off after %llu bytes",
                        reader->name, (unsigned long long)place);
    if (result == Z_MEM_ERROR)
        return DDP_FAIL(DDP_ERR_NOMEM, "%s: no memory for zlib", reader->name);
    return DDP_FAIL(DDP_ERR_FORMAT, "%s: damaged gzip data near byte %llu: %s", reader->name,
                    (unsigned long long)place, reader->zlib.msg ? reader->zlib.msg : "unknown");
}

/* One inflate() over what the chunk has, into dst. */
static int inflate_piece(ddpi_idx_reader *reader, uint8_t *dst, size_t want, size_t *got_out)
{
    z_stream *zlib = &reader->zlib;
    size_t input = reader->left < ZLIB_PIECE_BYTES ? reader->left : ZLIB_PIECE_BYTES;
    size_t output = want < ZLIB_PIECE_BYTES ? want : ZLIB_PIECE_BYTES;
    zlib->next_in = reader->next;
    zlib->avail_in = (uInt)input;
    zlib->next_out = dst;
    zlib->avail_out = (uInt)output;
    int result = inflate(zlib, Z_NO_FLUSH);
    reader->next += input - zlib->avail_in;
    reader->left -= input - zlib->avail_in;
    *got_out = output - zlib->avail_out;
    return result;
}

/* A gzip file is one or more members, whose contents follow each other (RFC 1952). */
static ddp_status get_gzip(ddpi_idx_reader *reader, uint8_t *dst, size_t want, size_t *got_out)
{
    size_t got = 0;
    while (got < want) {
        DDP_TRY(refill(reader));
        if (reader->left == 0 && !reader->gzip_open)
            break;
        if (!reader->gzip_open) {
            int reset = inflateReset2(&reader->zlib, GZIP_WINDOW_BITS);
            if (reset != Z_OK)
                return gzip_failure(reader, reset);
            reader->gzip_open = true;
        }
        size_t piece = 0;
        int result = inflate_piece(reader, dst + got, want - got, &piece);
        got += piece;
        if (result == Z_STREAM_END)
            reader->gzip_open = false;
        else if (result != Z_OK)
            return gzip_failure(reader, result);
    }
    *got_out = got;
    return DDP_OK;
}

static ddp_status get(ddpi_idx_reader *reader, uint8_t *dst, size_t want, size_t *got_out)
{
    return reader->gzip ? get_gzip(reader, dst, want, got_out)
                        : get_plain(reader, dst, want, got_out);
}

/* ---- life ---- */

static ddp_status start(ddpi_idx_reader *reader)
{
    if (reader->length == 0)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s is empty, expected an IDX file", reader->name);
    DDP_TRY(refill(reader));
    reader->gzip = reader->left >= 2 && reader->next[0] == 0x1f && reader->next[1] == 0x8b;
    if (!reader->gzip)
        return DDP_OK;
    int result = inflateInit2(&reader->zlib, GZIP_WINDOW_BITS);
    if (result != Z_OK) {
        reader->gzip = false;
        return gzip_failure(reader, result);
    }
    reader->gzip_open = true;
    return DDP_OK;
}

static ddp_status open_fd(ddpi_idx_reader *reader)
{
    struct stat info;
    DDP_TRY(DDP_ALLOC(reader->buffer, CHUNK_BYTES));
    reader->fd = open(reader->name, O_RDONLY | O_CLOEXEC);
    if (reader->fd < 0)
        return DDP_FAIL(DDP_ERR_IO, "open %s: %s", reader->name, strerror(errno));
    if (fstat(reader->fd, &info) != 0)
        return DDP_FAIL(DDP_ERR_IO, "stat %s: %s", reader->name, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return DDP_FAIL(DDP_ERR_IO, "%s is not a regular file", reader->name);
    reader->length = (uint64_t)info.st_size;
    /* Only a hint: the kernel may read ahead while the first pieces are decoded. */
    (void)posix_fadvise(reader->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    return start(reader);
}

ddp_status ddpi_idx_open_file(const char *path, ddpi_idx_reader **reader_out)
{
    ddpi_idx_reader *reader;
    DDP_TRY(DDP_ALLOC(reader, 1));
    reader->name = path;
    reader->fd = -1;
    ddp_status st = open_fd(reader);
    if (st != DDP_OK) {
        ddpi_idx_close(reader);
        return st;
    }
    *reader_out = reader;
    return DDP_OK;
}

ddp_status ddpi_idx_open_memory(const char *name, const void *data, size_t bytes,
                                ddpi_idx_reader **reader_out)
{
    ddpi_idx_reader *reader;
    DDP_TRY(DDP_ALLOC(reader, 1));
    reader->name = name;
    reader->fd = -1;
    reader->next = data;
    reader->left = bytes;
    reader->length = reader->taken = bytes;
    ddp_status st = start(reader);
    if (st != DDP_OK) {
        ddpi_idx_close(reader);
        return st;
    }
    *reader_out = reader;
    return DDP_OK;
}

void ddpi_idx_close(ddpi_idx_reader *reader)
{
    if (reader == NULL)
        return;
    if (reader->gzip)
        (void)inflateEnd(&reader->zlib);
    if (reader->fd >= 0)
        (void)close(reader->fd);
    ddp_free(reader->buffer);
    ddp_free(reader);
}

/* ---- format ---- */

static uint32_t big_endian(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static ddp_status check_range(const ddpi_idx_reader *reader, const char *what, int64_t value,
                              int64_t limit)
{
    if (value >= 1 && value <= limit)
        return DDP_OK;
    return DDP_FAIL(DDP_ERR_FORMAT, "%s: the header says %s = %lld, expected 1 to %lld",
                    reader->name, what, (long long)value, (long long)limit);
}

static ddp_status check_dimensions(const ddpi_idx_reader *reader, ddpi_idx_header *header)
{
    DDP_TRY(check_range(reader, "count", header->count, DDPI_IDX_MAX_COUNT));
    DDP_TRY(check_range(reader, "height", header->height, DDPI_IDX_MAX_SIDE));
    DDP_TRY(check_range(reader, "width", header->width, DDPI_IDX_MAX_SIDE));
    /* At most 2^31 * 2^12 * 2^12: no overflow. */
    header->data_bytes = header->count * header->height * header->width;
    return check_range(reader, "count x height x width", header->data_bytes, DDPI_IDX_MAX_BYTES);
}

/* What the input's own length says about the header, before anything is allocated for it. */
static ddp_status check_length(const ddpi_idx_reader *reader)
{
    const ddpi_idx_header *header = &reader->header;
    uint64_t expected = (uint64_t)header->data_bytes + reader->header_bytes;
    if (reader->gzip && expected / DEFLATE_MAX_GAIN > reader->length)
        return DDP_FAIL(DDP_ERR_FORMAT,
                        "%s: the header promises %lld x %lld x %lld bytes, more than %llu bytes of "
                        "gzip data can hold",
                        reader->name, (long long)header->count, (long long)header->height,
                        (long long)header->width, (unsigned long long)reader->length);
    if (!reader->gzip && reader->length != expected)
        return DDP_FAIL(DDP_ERR_FORMAT,
                        "%s: the file has %llu bytes, expected %llu (%zu of header and %lld x %lld "
                        "x %lld of data)",
                        reader->name, (unsigned long long)reader->length,
                        (unsigned long long)expected, reader->header_bytes,
                        (long long)header->count, (long long)header->height,
                        (long long)header->width);
    return DDP_OK;
}

ddp_status ddpi_idx_read_header(ddpi_idx_reader *reader, ddpi_idx_kind kind,
                                ddpi_idx_header *header_out)
{
    DDP_ASSERT(reader->header_bytes == 0);
    uint8_t bytes[4 + 4 * DDPI_IDX_IMAGES];
    size_t want = 4 + 4 * (size_t)kind, got;
    uint32_t magic = 0x00000800u | (uint32_t)kind;
    DDP_TRY(get(reader, bytes, want, &got));
    if (got >= 4 && big_endian(bytes) != magic)
        return DDP_FAIL(DDP_ERR_FORMAT,
                        "%s: the file begins with 0x%08x, expected 0x%08x (IDX, unsigned bytes, %d "
                        "dimension%s)",
                        reader->name, big_endian(bytes), magic, (int)kind,
                        kind == DDPI_IDX_LABELS ? "" : "s");
    if (got < want)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: ends after %zu bytes, expected %zu bytes of header",
                        reader->name, got, want);
    bool images = kind == DDPI_IDX_IMAGES;
    reader->header.count = big_endian(bytes + 4);
    reader->header.height = images ? big_endian(bytes + 8) : 1;
    reader->header.width = images ? big_endian(bytes + 12) : 1;
    reader->header_bytes = want;
    DDP_TRY(check_dimensions(reader, &reader->header));
    DDP_TRY(check_length(reader));
    *header_out = reader->header;
    return DDP_OK;
}

ddp_status ddpi_idx_read_data(ddpi_idx_reader *reader, void *dst)
{
    DDP_ASSERT(reader->header_bytes > 0);
    size_t want = (size_t)reader->header.data_bytes, got, surplus;
    uint8_t extra;
    DDP_TRY(get(reader, dst, want, &got));
    if (got < want)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: the data ends after %zu bytes, expected %zu",
                        reader->name, got, want);
    /* Asking for one byte more also makes zlib check the sum and the length behind the data. */
    DDP_TRY(get(reader, &extra, 1, &surplus));
    if (surplus != 0)
        return DDP_FAIL(DDP_ERR_FORMAT,
                        "%s: the data goes on after the %zu bytes that the header promises",
                        reader->name, want);
    return DDP_OK;
}

ddp_status ddpi_idx_check_counts(const char *images_name, const ddpi_idx_header *images,
                                 const char *labels_name, const ddpi_idx_header *labels)
{
    if (images->count == labels->count)
        return DDP_OK;
    return DDP_FAIL(DDP_ERR_FORMAT, "%s has %lld labels, expected %lld, one for each image of %s",
                    labels_name, (long long)labels->count, (long long)images->count, images_name);
}

ddp_status ddpi_idx_check_labels(const char *labels_name, const uint8_t *labels, int64_t count,
                                 int64_t classes)
{
    for (int64_t i = 0; i < count; i++)
        if (labels[i] >= classes)
            return DDP_FAIL(DDP_ERR_FORMAT, "%s: label %lld is %d, expected 0 to %lld", labels_name,
                            (long long)i, (int)labels[i], (long long)classes - 1);
    return DDP_OK;
}
