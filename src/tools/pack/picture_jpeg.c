/* picture_jpeg.c - JPEG through libjpeg-turbo's TurboJPEG interface.
 *
 * Decoding is exact (the accurate transform), and a file for which the library has as much as a
 * warning counts as damaged: it warns of data that are cut off and fills up with grey. CMYK becomes
 * RGB without a colour profile; programs that write an Adobe marker store it inverted. */
#include <string.h>
#include <turbojpeg.h>

#include "ddp/memory.h"
#include "tools/pack/picture.h"

enum { FLAGS = TJFLAG_ACCURATEDCT | TJFLAG_STOPONWARNING | TJFLAG_LIMITSCANS };

static ddp_status failure(tjhandle handle)
{
    return DDP_FAIL(DDP_ERR_FORMAT, "damaged JPEG: %.160s", tjGetErrorStr2(handle));
}

/* Whether there is an Adobe marker among those in front of the image data. */
static bool has_adobe_marker(const uint8_t *bytes, size_t count)
{
    enum { APP14 = 0xee, SOS = 0xda, LENGTH_BYTES = 2 };
    size_t at = 2;
    while (at + 4 <= count && bytes[at] == 0xff) {
        uint8_t marker = bytes[at + 1];
        size_t length = (size_t)bytes[at + 2] << 8 | bytes[at + 3];
        if (marker == 0xff) { /* a fill byte */
            at++;
            continue;
        }
        if (marker == SOS || length < LENGTH_BYTES)
            return false;
        if (marker == APP14 && length >= LENGTH_BYTES + 5 && at + 9 <= count &&
            memcmp(bytes + at + 4, "Adobe", 5) == 0)
            return true;
        at += 2 + length;
    }
    return false;
}

/* Of CMYK where 255 is no ink. */
static void rgb_from_inverted(const uint8_t *cmyk, uint8_t *rgb, int64_t count, uint8_t invert)
{
    for (int64_t i = 0; i < count; i++, cmyk += 4, rgb += 3) {
        int black = cmyk[3] ^ invert;
        for (int c = 0; c < 3; c++)
            rgb[c] = (uint8_t)(((cmyk[c] ^ invert) * black + 127) / 255);
    }
}

static ddp_status decode_cmyk(tjhandle handle, const uint8_t *bytes, size_t byte_count,
                              ddpi_picture *picture)
{
    ddpi_picture inks = {0};
    DDP_TRY(ddpi_picture_alloc(picture->height, picture->width, 4, &inks));
    ddp_status st = DDP_OK;
    if (tjDecompress2(handle, bytes, byte_count, inks.pixels, (int)inks.width, 0, (int)inks.height,
                      TJPF_CMYK, FLAGS) != 0)
        st = failure(handle);
    else
        rgb_from_inverted(inks.pixels, picture->pixels, inks.height * inks.width,
                          has_adobe_marker(bytes, byte_count) ? 0 : 255);
    ddpi_picture_free(&inks);
    return st;
}

static ddp_status decode(tjhandle handle, const uint8_t *bytes, size_t byte_count,
                         ddpi_picture *picture)
{
    int width = 0, height = 0, sampling = 0, space = -1;
    int failed = tjDecompressHeader3(handle, bytes, byte_count, &width, &height, &sampling, &space);
    /* A rare subsampling, which the library cannot name, is no obstacle to decoding. */
    if (width < 1 || height < 1 || space < 0)
        return failed != 0 ? failure(handle)
                           : DDP_FAIL(DDP_ERR_FORMAT, "damaged JPEG: the header is cut off");
    DDP_TRY(ddpi_picture_alloc(height, width, 3, picture));
    if (space == TJCS_CMYK || space == TJCS_YCCK)
        return decode_cmyk(handle, bytes, byte_count, picture);
    if (tjDecompress2(handle, bytes, byte_count, picture->pixels, width, 0, height, TJPF_RGB,
                      FLAGS) != 0)
        return failure(handle);
    return DDP_OK;
}

ddp_status ddpi_picture_from_jpeg(const uint8_t *bytes, size_t byte_count,
                                  ddpi_picture *picture_out)
{
    ddpi_picture picture = {0};
    tjhandle handle = tjInitDecompress();
    if (handle == NULL)
        return DDP_FAIL(DDP_ERR_NOMEM, "no memory for the JPEG library");
    ddp_status st = decode(handle, bytes, byte_count, &picture);
    (void)tjDestroy(handle);
    if (st != DDP_OK) {
        ddpi_picture_free(&picture);
        return st;
    }
    *picture_out = picture;
    return DDP_OK;
}
