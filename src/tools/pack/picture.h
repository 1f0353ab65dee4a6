/* picture.h - a decoded image: made from the bytes of a file, scaled, turned grey.
 * All functions are pure; any thread. */
#ifndef DDPI_TOOLS_PICTURE_H
#define DDPI_TOOLS_PICTURE_H

#include "ddp/status.h"

/* What a file may hold; a larger one is refused before memory is taken for it. */
#define DDPI_PICTURE_MAX_SIDE     65535
#define DDPI_PICTURE_MAX_PIXELS   (INT64_C(1) << 26)
#define DDPI_PICTURE_MAX_CHANNELS 4

typedef struct ddpi_picture {
    uint8_t *pixels; /* [height][width][channels] */
    int64_t height, width, channels;
} ddpi_picture;

/* A JPEG or PNG file as RGB. The caller frees *picture_out. DDP_ERR_FORMAT with the reason where it
 * is no whole image; the message does not name the file. */
DDP_INNER ddp_status ddpi_picture_decode(const uint8_t *bytes, size_t byte_count,
                                         ddpi_picture *picture_out);
DDP_INNER ddp_status ddpi_picture_from_jpeg(const uint8_t *bytes, size_t byte_count,
                                            ddpi_picture *picture_out);
DDP_INNER ddp_status ddpi_picture_from_png(const uint8_t *bytes, size_t byte_count,
                                           ddpi_picture *picture_out);
/* Replaces the picture by one whose shorter side has `size` pixels and whose longer side keeps the
 * proportion, rounded down. */
DDP_INNER ddp_status ddpi_picture_scale(ddpi_picture *picture, int64_t size);
/* RGB becomes its luma (ITU-R BT.601), in place. */
void ddpi_picture_to_grey(ddpi_picture *picture);
DDP_INNER ddp_status ddpi_picture_alloc(int64_t height, int64_t width, int64_t channels,
                                        ddpi_picture *picture_out);
void ddpi_picture_free(ddpi_picture *picture);

#endif
