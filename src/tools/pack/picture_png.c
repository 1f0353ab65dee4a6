/* picture_png.c - PNG through libpng.
 *
 * Palettes and grey become RGB, 16 bits are scaled to 8, alpha is dropped; colours are not
 * corrected for gamma. libpng reports errors by longjmp, so all that must outlive one is in a
 * struct that is set before. */
#include <png.h>
#include <setjmp.h>
#include <string.h>

#include "ddp/memory.h"
#include "tools/pack/picture.h"

enum { MESSAGE_BYTES = 160, CHUNK_LIMIT_BYTES = 8 << 20, CHUNK_LIMIT = 1000 };

typedef struct png_source {
    const uint8_t *bytes;
    size_t left;
    char message[MESSAGE_BYTES];
    ddpi_picture picture;
    png_bytep *rows;
    ddp_status status; /* of an allocation */
} png_source;

static void on_error(png_structp png, png_const_charp message)
{
    png_source *source = png_get_error_ptr(png);
    strncpy(source->message, message, MESSAGE_BYTES - 1);
    png_longjmp(png, 1);
}

/* What libpng only warns of does not change pixels. */
static void on_warning(png_structp png, png_const_charp message)
{
    (void)png;
    (void)message;
}

static void on_read(png_structp png, png_bytep dst, size_t count)
{
    png_source *source = png_get_io_ptr(png);
    if (count > source->left)
        png_error(png, "the file is cut off");
    memcpy(dst, source->bytes, count);
    source->bytes += count;
    source->left -= count;
}

static void ask_for_rgb(png_structp png, png_infop info)
{
    png_set_expand(png); /* palettes, grey of few bits, transparent colours */
    png_set_scale_16(png);
    png_set_strip_alpha(png);
    png_set_gray_to_rgb(png);
    (void)png_set_interlace_handling(png);
    png_read_update_info(png, info);
}

static ddp_status alloc_rows(png_source *source, int64_t height, int64_t width)
{
    DDP_TRY(ddpi_picture_alloc(height, width, 3, &source->picture));
    DDP_TRY(DDP_ALLOC(source->rows, (size_t)height));
    for (int64_t y = 0; y < height; y++)
        source->rows[y] = source->picture.pixels + y * width * 3;
    return DDP_OK;
}

/* May leave by longjmp. */
static void read_image(png_structp png, png_infop info, png_source *source)
{
    png_set_read_fn(png, source, on_read);
    png_set_user_limits(png, DDPI_PICTURE_MAX_SIDE, DDPI_PICTURE_MAX_SIDE);
    png_set_chunk_malloc_max(png, CHUNK_LIMIT_BYTES);
    png_set_chunk_cache_max(png, CHUNK_LIMIT);
    png_read_info(png, info);
    ask_for_rgb(png, info);
    source->status =
        alloc_rows(source, png_get_image_height(png, info), png_get_image_width(png, info));
    if (source->status != DDP_OK)
        return;
    if (png_get_rowbytes(png, info) != (size_t)source->picture.width * 3)
        png_error(png, "rows are not RGB");
    png_read_image(png, source->rows);
    png_read_end(png, NULL);
}

static ddp_status decode(png_structp png, png_infop info, png_source *source)
{
    if (setjmp(png_jmpbuf(png)) != 0)
        return DDP_FAIL(DDP_ERR_FORMAT, "damaged PNG: %s", source->message);
    read_image(png, info, source);
    return source->status;
}

ddp_status ddpi_picture_from_png(const uint8_t *bytes, size_t byte_count, ddpi_picture *picture_out)
{
    png_source source = {.bytes = bytes, .left = byte_count};
    png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &source, on_error, on_warning);
    png_infop info = png != NULL ? png_create_info_struct(png) : NULL;
    ddp_status st = info != NULL ? decode(png, info, &source)
                                 : DDP_FAIL(DDP_ERR_NOMEM, "no memory for the PNG library");
    png_destroy_read_struct(&png, &info, NULL);
    ddp_free(source.rows);
    if (st != DDP_OK) {
        ddpi_picture_free(&source.picture);
        return st;
    }
    *picture_out = source.picture;
    return DDP_OK;
}
