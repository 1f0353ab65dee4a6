/* picture.c - telling formats apart, memory with limits, and grey. */
#include "tools/pack/picture.h"

#include <string.h>

#include "ddp/memory.h"

ddp_status ddpi_picture_alloc(int64_t height, int64_t width, int64_t channels,
                              ddpi_picture *picture_out)
{
    ddpi_picture picture = {NULL, height, width, channels};
    if (height < 1 || width < 1)
        return DDP_FAIL(DDP_ERR_FORMAT, "the image is %lld x %lld, expected a pixel at least",
                        (long long)width, (long long)height);
    if (height > DDPI_PICTURE_MAX_SIDE || width > DDPI_PICTURE_MAX_SIDE ||
        height * width > DDPI_PICTURE_MAX_PIXELS)
        return DDP_FAIL(DDP_ERR_FORMAT,
                        "the image is %lld x %lld, expected sides of at most %d and at most %lld "
                        "pixels",
                        (long long)width, (long long)height, DDPI_PICTURE_MAX_SIDE,
                        (long long)DDPI_PICTURE_MAX_PIXELS);
    DDP_TRY(DDP_ALLOC(picture.pixels, (size_t)(height * width * channels)));
    *picture_out = picture;
    return DDP_OK;
}

void ddpi_picture_free(ddpi_picture *picture)
{
    ddp_free(picture->pixels);
    *picture = (ddpi_picture){0};
}

ddp_status ddpi_picture_decode(const uint8_t *bytes, size_t byte_count, ddpi_picture *picture_out)
{
    static const uint8_t jpeg[] = {0xff, 0xd8, 0xff};
    static const uint8_t png[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    if (byte_count == 0)
        return DDP_FAIL(DDP_ERR_FORMAT, "the file is empty");
    if (byte_count >= sizeof jpeg && memcmp(bytes, jpeg, sizeof jpeg) == 0)
        return ddpi_picture_from_jpeg(bytes, byte_count, picture_out);
    if (byte_count >= sizeof png && memcmp(bytes, png, sizeof png) == 0)
        return ddpi_picture_from_png(bytes, byte_count, picture_out);
    return DDP_FAIL(DDP_ERR_FORMAT, "the file is neither JPEG nor PNG");
}

void ddpi_picture_to_grey(ddpi_picture *picture)
{
    /* 0.299, 0.587 and 0.114 in 65536ths: grey stays what it is. */
    enum { RED = 19595, GREEN = 38470, BLUE = 7471, HALF = 32768, SHIFT = 16 };
    const uint8_t *from = picture->pixels;
    int64_t count = picture->height * picture->width;
    DDP_ASSERT(picture->channels == 3);
    for (int64_t i = 0; i < count; i++, from += 3)
        picture->pixels[i] =
            (uint8_t)((RED * from[0] + GREEN * from[1] + BLUE * from[2] + HALF) >> SHIFT);
    picture->channels = 1;
}
