/* test_idx.c - the IDX reader: what it reads, and that every damage is named. */
#include "harness.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "data/idx_reader.h"

#define REAL_DIR "/usr/share/datasets/fashion-mnist"

/* A made-up file's contents. */
typedef struct bytes {
    unsigned char *data;
    size_t length;
} bytes;

static bytes make_bytes(size_t length)
{
    bytes made = {calloc(length + 1, 1), length};
    assert_non_null(made.data);
    return made;
}

static void put_u32(unsigned char *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (unsigned char)(value >> (24 - 8 * i));
}

static unsigned char pixel(size_t i)
{
    return (unsigned char)(i * 131 + i / 7);
}

static bytes images(uint32_t count, uint32_t height, uint32_t width)
{
    size_t data = (size_t)count * height * width;
    bytes made = make_bytes(16 + data);
    put_u32(made.data, 0x803);
    put_u32(made.data + 4, count);
    put_u32(made.data + 8, height);
    put_u32(made.data + 12, width);
    for (size_t i = 0; i < data; i++)
        made.data[16 + i] = pixel(i);
    return made;
}

static bytes labels(uint32_t count)
{
    bytes made = make_bytes(8 + count);
    put_u32(made.data, 0x801);
    put_u32(made.data + 4, count);
    for (uint32_t i = 0; i < count; i++)
        made.data[8 + i] = (unsigned char)(i % 10);
    return made;
}

static bytes cut(bytes from, size_t length)
{
    bytes made = make_bytes(length);
    memcpy(made.data, from.data, length < from.length ? length : from.length);
    free(from.data);
    return made;
}

static bytes pack(bytes plain, bool keep)
{
    z_stream z = {0};
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY), Z_OK);
    bytes made = make_bytes(deflateBound(&z, plain.length) + 64);
    z.next_in = plain.data;
    z.avail_in = (uInt)plain.length;
    z.next_out = made.data;
    z.avail_out = (uInt)made.length;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    made.length = z.total_out;
    deflateEnd(&z);
    if (!keep)
        free(plain.data);
    return made;
}

static bytes join(bytes a, bytes b)
{
    bytes made = make_bytes(a.length + b.length);
    memcpy(made.data, a.data, a.length);
    memcpy(made.data + a.length, b.data, b.length);
    free(a.data);
    free(b.data);
    return made;
}

/* Reads all of it, as ds_idx does; *data_out is the caller's. */
static ddp_status read_all(ddpi_idx_reader *reader, ddpi_idx_kind kind, ddpi_idx_header *header,
                           unsigned char **data_out)
{
    DDP_TRY(ddpi_idx_read_header(reader, kind, header));
    *data_out = malloc((size_t)header->data_bytes);
    assert_non_null(*data_out);
    return ddpi_idx_read_data(reader, *data_out);
}

static ddp_status read_memory(bytes from, ddpi_idx_kind kind)
{
    ddpi_idx_reader *reader;
    ddpi_idx_header header;
    unsigned char *data = NULL;
    DDP_TRY(ddpi_idx_open_memory("mem", from.data, from.length, &reader));
    ddp_status st = read_all(reader, kind, &header, &data);
    ddpi_idx_close(reader);
    free(data);
    return st;
}

/* The same bytes from a file must give the same verdict: the chunks differ. */
static ddp_status read_file(bytes from, ddpi_idx_kind kind)
{
    char path[] = "/tmp/ddp_test_idx_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, from.data, from.length), (ssize_t)from.length);
    close(fd);
    ddpi_idx_reader *reader;
    ddpi_idx_header header;
    unsigned char *data = NULL;
    ddp_status st = ddpi_idx_open_file(path, &reader);
    if (st == DDP_OK) {
        st = read_all(reader, kind, &header, &data);
        ddpi_idx_close(reader);
    }
    free(data);
    unlink(path);
    return st;
}

static void check_damage(bytes from, ddpi_idx_kind kind, const char *text)
{
    CHECK_FAILS(read_memory(from, kind), DDP_ERR_FORMAT, text);
    CHECK_FAILS(read_memory(from, kind), DDP_ERR_FORMAT, "mem");
    CHECK_FAILS(read_file(from, kind), DDP_ERR_FORMAT, text);
    free(from.data);
}

static void check_good(bytes from, uint32_t count, uint32_t height, uint32_t width)
{
    char path[] = "/tmp/ddp_test_idx_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, from.data, from.length), (ssize_t)from.length);
    close(fd);
    for (int file = 0; file < 2; file++) {
        ddpi_idx_reader *reader;
        ddpi_idx_header header;
        unsigned char *data = NULL;
        if (file)
            CHECK_OK(ddpi_idx_open_file(path, &reader));
        else
            CHECK_OK(ddpi_idx_open_memory("mem", from.data, from.length, &reader));
        CHECK_OK(read_all(reader, DDPI_IDX_IMAGES, &header, &data));
        assert_int_equal(header.count, count);
        assert_int_equal(header.height, height);
        assert_int_equal(header.width, width);
        assert_int_equal(header.data_bytes, (int64_t)count * height * width);
        for (int64_t i = 0; i < header.data_bytes; i++)
            if (data[i] != pixel((size_t)i))
                fail_msg("byte %lld", (long long)i);
        ddpi_idx_close(reader);
        free(data);
    }
    unlink(path);
    free(from.data);
}

static void test_good(void **state)
{
    (void)state;
    check_good(images(1, 1, 1), 1, 1, 1);
    check_good(images(5, 3, 4), 5, 3, 4);
    check_good(images(1000, 28, 28), 1000, 28, 28); /* several chunks */
    check_good(pack(images(1, 1, 1), false), 1, 1, 1);
    check_good(pack(images(5, 3, 4), false), 5, 3, 4);
    check_good(pack(images(9000, 28, 28), false), 9000, 28, 28);
}

/* Data that does not compress: the gzip file itself has several chunks. */
static void test_long_gzip(void **state)
{
    (void)state;
    bytes plain = images(2000, 28, 28);
    uint64_t noise = 1;
    for (size_t i = 16; i < plain.length; i++) {
        noise = noise * UINT64_C(6364136223846793005) + 1442695040888963407u;
        plain.data[i] = (unsigned char)(noise >> 56);
    }
    bytes packed = pack(plain, true);
    assert_true(packed.length > 1 << 20);
    char path[] = "/tmp/ddp_test_idx_XXXXXX";
    int fd = mkstemp(path);
    assert_int_equal(write(fd, packed.data, packed.length), (ssize_t)packed.length);
    close(fd);
    ddpi_idx_reader *reader;
    ddpi_idx_header header;
    unsigned char *data = NULL;
    CHECK_OK(ddpi_idx_open_file(path, &reader));
    CHECK_OK(read_all(reader, DDPI_IDX_IMAGES, &header, &data));
    assert_memory_equal(data, plain.data + 16, plain.length - 16);
    ddpi_idx_close(reader);
    unlink(path);
    free(data);
    free(plain.data);
    /* One bit in the middle, and a cut within a later chunk. */
    bytes bad = make_bytes(packed.length);
    memcpy(bad.data, packed.data, packed.length);
    bad.data[packed.length / 2] ^= 1;
    check_damage(bad, DDPI_IDX_IMAGES, "damaged gzip data near byte");
    check_damage(cut(packed, packed.length / 2), DDPI_IDX_IMAGES, "is cut off");
}

static void test_gzip_members(void **state)
{
    (void)state;
    bytes whole = images(6, 2, 2), tail = make_bytes(whole.length - 21);
    memcpy(tail.data, whole.data + 21, tail.length);
    bytes both = join(pack(cut(whole, 21), false), pack(tail, false));
    check_good(both, 6, 2, 2);
    /* Another member behind the data is data too. */
    check_damage(join(pack(images(6, 2, 2), false), pack(labels(1), false)), DDPI_IDX_IMAGES,
                 "goes on after the 24 bytes");
}

static void test_headers(void **state)
{
    (void)state;
    check_damage(make_bytes(0), DDPI_IDX_IMAGES, "is empty");
    check_damage(labels(20), DDPI_IDX_IMAGES, "begins with 0x00000801, expected 0x00000803");
    check_damage(images(1, 2, 2), DDPI_IDX_LABELS, "begins with 0x00000803, expected 0x00000801");
    check_damage(pack(labels(20), false), DDPI_IDX_IMAGES, "begins with 0x00000801");
    bytes html = make_bytes(40);
    memcpy(html.data, "<!DOCTYPE html>", 15);
    check_damage(html, DDPI_IDX_IMAGES, "begins with 0x3c21444f");
    bytes floats = images(1, 2, 2);
    put_u32(floats.data, 0xd03);
    check_damage(floats, DDPI_IDX_IMAGES, "unsigned bytes");
    check_damage(cut(images(1, 1, 1), 3), DDPI_IDX_IMAGES, "ends after 3 bytes, expected 16");
    check_damage(cut(images(1, 1, 1), 15), DDPI_IDX_IMAGES, "ends after 15 bytes, expected 16");
    check_damage(cut(labels(1), 7), DDPI_IDX_LABELS, "ends after 7 bytes, expected 8");
    check_damage(pack(cut(images(1, 1, 1), 15), false), DDPI_IDX_IMAGES, "ends after 15 bytes");
}

static bytes with_dims(uint32_t count, uint32_t height, uint32_t width)
{
    bytes made = images(1, 1, 1);
    put_u32(made.data + 4, count);
    put_u32(made.data + 8, height);
    put_u32(made.data + 12, width);
    return made;
}

static void test_dimensions(void **state)
{
    (void)state;
    check_damage(with_dims(0, 1, 1), DDPI_IDX_IMAGES, "count = 0, expected 1 to 2147483648");
    check_damage(with_dims(0x80000001u, 1, 1), DDPI_IDX_IMAGES, "count = 2147483649");
    check_damage(with_dims(1, 0, 1), DDPI_IDX_IMAGES, "height = 0, expected 1 to 4096");
    check_damage(with_dims(1, 4097, 1), DDPI_IDX_IMAGES, "height = 4097");
    check_damage(with_dims(1, 1, 0), DDPI_IDX_IMAGES, "width = 0");
    check_damage(with_dims(1, 1, 0xffffffffu), DDPI_IDX_IMAGES, "width = 4294967295");
    check_damage(with_dims(0x80000000u, 4096, 4096), DDPI_IDX_IMAGES, "count x height x width");
    check_damage(pack(with_dims(1u << 20, 1024, 1024), false), DDPI_IDX_IMAGES,
                 "promises 1048576 x 1024 x 1024 bytes, more than");
    check_damage(pack(with_dims(60000, 28, 28), false), DDPI_IDX_IMAGES,
                 "promises 60000 x 28 x 28 bytes, more than");
}

static void test_lengths(void **state)
{
    (void)state;
    check_damage(cut(images(3, 4, 5), 75), DDPI_IDX_IMAGES, "has 75 bytes, expected 76");
    check_damage(cut(images(3, 4, 5), 77), DDPI_IDX_IMAGES, "has 77 bytes, expected 76");
    check_damage(cut(labels(9), 16), DDPI_IDX_LABELS, "has 16 bytes, expected 17");
    check_damage(pack(cut(images(3, 4, 5), 75), false), DDPI_IDX_IMAGES,
                 "ends after 59 bytes, expected 60");
    check_damage(pack(cut(images(3, 4, 5), 77), false), DDPI_IDX_IMAGES,
                 "goes on after the 60 bytes");
}

static void test_gzip_damage(void **state)
{
    (void)state;
    bytes packed = pack(images(50, 9, 9), false);
    size_t length = packed.length;
    /* Every cut is an error of the gzip data, or of what is left of it. */
    for (size_t left = 2; left < length; left++) {
        bytes part = make_bytes(left);
        memcpy(part.data, packed.data, left);
        CHECK_FAILS(read_memory(part, DDPI_IDX_IMAGES), DDP_ERR_FORMAT, "mem: ");
        CHECK_FAILS(read_file(part, DDPI_IDX_IMAGES), DDP_ERR_FORMAT, "");
        free(part.data);
    }
    /* The sum and the length behind the data are checked. */
    packed.data[length - 8] ^= 1;
    CHECK_FAILS(read_memory(packed, DDPI_IDX_IMAGES), DDP_ERR_FORMAT, "incorrect data check");
    packed.data[length - 8] ^= 1;
    packed.data[length - 1] ^= 1;
    CHECK_FAILS(read_memory(packed, DDPI_IDX_IMAGES), DDP_ERR_FORMAT, "incorrect length check");
    packed.data[length - 1] ^= 1;
    CHECK_OK(read_memory(packed, DDPI_IDX_IMAGES));
    /* The place is named: here the first block's type, right behind gzip's own header. */
    unsigned char kept = packed.data[10];
    packed.data[10] = 7;
    CHECK_FAILS(read_memory(packed, DDPI_IDX_IMAGES), DDP_ERR_FORMAT, "invalid block type");
    const char *place = strstr(ddp_status_message(), "near byte ");
    assert_non_null(place);
    assert_in_range(atoi(place + strlen("near byte ")), 10, 20);
    packed.data[10] = kept;
    bytes garbage = make_bytes(20);
    check_damage(join(packed, garbage), DDPI_IDX_IMAGES, "incorrect header check");
    check_damage(cut(pack(images(2, 2, 2), false), 2), DDPI_IDX_IMAGES, "cut off");
}

static void test_files(void **state)
{
    (void)state;
    ddpi_idx_reader *reader;
    CHECK_FAILS(ddpi_idx_open_file("/nonexistent/images", &reader), DDP_ERR_IO,
                "open /nonexistent/images: No such file");
    CHECK_FAILS(ddpi_idx_open_file("/tmp", &reader), DDP_ERR_IO, "/tmp is not a regular file");
}

static void test_pairs(void **state)
{
    (void)state;
    ddpi_idx_header pictures = {7, 2, 2, 28}, names = {8, 1, 1, 8};
    CHECK_FAILS(ddpi_idx_check_counts("a", &pictures, "b", &names), DDP_ERR_FORMAT,
                "b has 8 labels, expected 7, one for each image of a");
    names.count = 7;
    CHECK_OK(ddpi_idx_check_counts("a", &pictures, "b", &names));
    const uint8_t good[] = {0, 9, 5}, bad[] = {0, 9, 10, 3, 255};
    CHECK_OK(ddpi_idx_check_labels("b", good, 3, 10));
    CHECK_FAILS(ddpi_idx_check_labels("b", bad, 5, 10), DDP_ERR_FORMAT,
                "b: label 2 is 10, expected 0 to 9");
}

static void test_fashion_mnist(void **state)
{
    (void)state;
    if (access(REAL_DIR "/train-images-idx3-ubyte.gz", R_OK) != 0)
        skip();
    ddpi_idx_reader *reader;
    ddpi_idx_header header;
    unsigned char *data = NULL;
    CHECK_OK(ddpi_idx_open_file(REAL_DIR "/train-labels-idx1-ubyte.gz", &reader));
    CHECK_OK(read_all(reader, DDPI_IDX_LABELS, &header, &data));
    ddpi_idx_close(reader);
    assert_int_equal(header.count, 60000);
    int64_t counts[10] = {0};
    CHECK_OK(ddpi_idx_check_labels("labels", data, header.count, 10));
    for (int i = 0; i < 60000; i++)
        counts[data[i]]++;
    for (int c = 0; c < 10; c++)
        assert_int_equal(counts[c], 6000);
    assert_int_equal(data[0], 9);
    free(data);
    CHECK_OK(ddpi_idx_open_file(REAL_DIR "/train-images-idx3-ubyte.gz", &reader));
    CHECK_OK(read_all(reader, DDPI_IDX_IMAGES, &header, &data));
    ddpi_idx_close(reader);
    assert_int_equal(header.count, 60000);
    assert_int_equal(header.height, 28);
    assert_int_equal(header.width, 28);
    double sum = 0;
    for (int64_t i = 0; i < header.data_bytes; i++)
        sum += data[i];
    /* The data set's published mean is 0.2860. */
    double mean = sum / (double)header.data_bytes / 255;
    assert_true(mean > 0.28595 && mean < 0.28605);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),         cmocka_unit_test(test_long_gzip),
        cmocka_unit_test(test_gzip_members), cmocka_unit_test(test_headers),
        cmocka_unit_test(test_dimensions),   cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_gzip_damage),  cmocka_unit_test(test_files),
        cmocka_unit_test(test_pairs),        cmocka_unit_test(test_fashion_mnist),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
