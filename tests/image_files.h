/* image_files.h - writes small JPEG and PNG files for the tests of ddp_pack, with the libraries
 * that it reads them with. */
#ifndef DDP_TESTS_IMAGE_FILES_H
#define DDP_TESTS_IMAGE_FILES_H

#include <png.h>
#include <stdlib.h>
#include <turbojpeg.h>

#include "shard_files.h"

/* Encodes as JPEG; the caller frees it with free(). */
static inline uint8_t *make_jpeg(const uint8_t *pixels, int height, int width, int format,
                                 int sampling, size_t *bytes_out)
{
    unsigned char *jpeg = NULL;
    unsigned long bytes = 0;
    tjhandle handle = tjInitCompress();
    assert_non_null(handle);
    assert_int_equal(tjCompress2(handle, pixels, width, 0, height, format, &jpeg, &bytes, sampling,
                                 100, TJFLAG_ACCURATEDCT),
                     0);
    assert_int_equal(tjDestroy(handle), 0);
    uint8_t *copy = malloc(bytes);
    assert_non_null(copy);
    memcpy(copy, jpeg, bytes);
    tjFree(jpeg);
    *bytes_out = bytes;
    return copy;
}

/* Encodes as PNG in one of libpng's simple formats; colormap as png_image_write_to_memory(). */
static inline uint8_t *make_png(const void *pixels, int height, int width, unsigned format,
                                const void *colormap, unsigned colours, size_t *bytes_out)
{
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .width = (unsigned)width,
                       .height = (unsigned)height,
                       .format = format,
                       .colormap_entries = colours};
    png_alloc_size_t bytes = 0;
    assert_int_equal(png_image_write_to_memory(&image, NULL, &bytes, 0, pixels, 0, colormap), 1);
    uint8_t *png = malloc(bytes);
    assert_non_null(png);
    assert_int_equal(png_image_write_to_memory(&image, png, &bytes, 0, pixels, 0, colormap), 1);
    *bytes_out = bytes;
    return png;
}

static inline void put_big_endian(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> (24 - 8 * i));
}

/* Another size in a PNG's header, with the checksum that fits it. */
static inline void set_png_size(uint8_t *png, uint32_t width, uint32_t height)
{
    uint32_t crc = 0xffffffff;
    put_big_endian(png + 16, width);
    put_big_endian(png + 20, height);
    for (int i = 12; i < 29; i++) {
        crc ^= png[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
    put_big_endian(png + 29, ~crc);
}

/* Another size in a JPEG's frame header. */
static inline void set_jpeg_size(uint8_t *jpeg, size_t bytes, uint16_t width, uint16_t height)
{
    for (size_t at = 2; at + 9 < bytes; at += 2 + ((size_t)jpeg[at + 2] << 8 | jpeg[at + 3]))
        if (jpeg[at + 1] == 0xc0) {
            const uint8_t size[4] = {(uint8_t)(height >> 8), (uint8_t)height, (uint8_t)(width >> 8),
                                     (uint8_t)width};
            memcpy(jpeg + at + 5, size, 4);
            return;
        }
    fail_msg("no frame header");
}

#endif
