/* picture_scale.c - scaling by a triangle filter, rows first, then columns.
 *
 * A pixel of the result is the weighted mean of those around its place in the source. The filter's
 * half width is one pixel of whichever side is coarser: between neighbours when enlarging
 * (bilinear), over the area that a pixel covers when shrinking. Weights are whole numbers, so the
 * result is the same on every machine. */
#include <math.h>

#include "ddp/memory.h"
#include "tools/pack/picture.h"

enum { WEIGHT_BITS = 22 }; /* 255 << 22 is below 2^31 */

/* What one pixel of the result takes from the source along one axis. */
typedef struct taps {
    int64_t first, count;
    const int32_t *weights;
} taps;

typedef struct axis {
    taps *taps; /* one for each pixel of the result */
    int32_t *weights;
} axis;

static void axis_free(axis *a)
{
    ddp_free(a->taps);
    ddp_free(a->weights);
}

static void fill_taps(int64_t from, double scale, double support, int64_t i, int32_t *weights,
                      taps *out)
{
    double centre = ((double)i + 0.5) * scale, sum = 0;
    int64_t first = (int64_t)floor(centre - support + 0.5);
    int64_t last = (int64_t)floor(centre + support + 0.5); /* not included */
    first = first < 0 ? 0 : first;
    last = last > from ? from : last;
    for (int pass = 0; pass < 2; pass++) /* the sum, then weights that add up to 1 */
        for (int64_t j = first; j < last; j++) {
            double distance = fabs((double)j + 0.5 - centre) / support;
            double weight = distance < 1 ? 1 - distance : 0;
            if (pass == 0)
                sum += weight;
            else
                weights[j - first] = (int32_t)floor(weight / sum * (1 << WEIGHT_BITS) + 0.5);
        }
    *out = (taps){first, last - first, weights};
}

static ddp_status make_axis(int64_t from, int64_t to, axis *out)
{
    double scale = (double)from / (double)to, support = scale > 1 ? scale : 1;
    int64_t most = 2 * (int64_t)ceil(support) + 1;
    axis a = {0};
    ddp_status st = DDP_ALLOC(a.taps, (size_t)to);
    if (st == DDP_OK)
        st = DDP_ALLOC(a.weights, (size_t)(to * most));
    if (st != DDP_OK) {
        axis_free(&a);
        return st;
    }
    for (int64_t i = 0; i < to; i++)
        fill_taps(from, scale, support, i, a.weights + i * most, &a.taps[i]);
    *out = a;
    return DDP_OK;
}

enum { HALF = 1 << (WEIGHT_BITS - 1) };

static uint8_t rounded(int32_t sum)
{
    return (uint8_t)(sum >> WEIGHT_BITS > 255 ? 255 : sum >> WEIGHT_BITS);
}

/* One pixel of a row */
static void weigh_pixel(const uint8_t *row, int64_t channels, const taps *t, uint8_t *dst)
{
    int32_t sums[DDPI_PICTURE_MAX_CHANNELS] = {HALF, HALF, HALF, HALF};
    const uint8_t *src = row + t->first * channels;
    for (int64_t j = 0; j < t->count; j++)
        for (int64_t c = 0; c < channels; c++)
            sums[c] += *src++ * t->weights[j];
    for (int64_t c = 0; c < channels; c++)
        dst[c] = rounded(sums[c]);
}

/* One row, of rows of `count` bytes. */
static void weigh_rows(const uint8_t *src, int64_t count, const taps *t, int32_t *restrict sums,
                       uint8_t *restrict dst)
{
    for (int64_t x = 0; x < count; x++)
        sums[x] = HALF;
    for (int64_t j = 0; j < t->count; j++) {
        const uint8_t *restrict row = src + (t->first + j) * count;
        for (int64_t x = 0; x < count; x++)
            sums[x] += row[x] * t->weights[j];
    }
    for (int64_t x = 0; x < count; x++)
        dst[x] = rounded(sums[x]);
}

static ddp_status scale_rows(ddpi_picture *picture, int64_t width)
{
    ddpi_picture result;
    axis a;
    DDP_TRY(make_axis(picture->width, width, &a));
    ddp_status st = ddpi_picture_alloc(picture->height, width, picture->channels, &result);
    if (st == DDP_OK) {
        uint8_t *dst = result.pixels;
        for (int64_t y = 0; y < picture->height; y++) {
            const uint8_t *row = picture->pixels + y * picture->width * picture->channels;
            for (int64_t x = 0; x < width; x++, dst += picture->channels)
                weigh_pixel(row, picture->channels, &a.taps[x], dst);
        }
        ddpi_picture_free(picture);
        *picture = result;
    }
    axis_free(&a);
    return st;
}

static ddp_status scale_columns(ddpi_picture *picture, int64_t height)
{
    ddpi_picture result = {0};
    int32_t *sums = NULL;
    axis a;
    int64_t row = picture->width * picture->channels;
    DDP_TRY(make_axis(picture->height, height, &a));
    ddp_status st = DDP_ALLOC(sums, (size_t)row);
    if (st == DDP_OK)
        st = ddpi_picture_alloc(height, picture->width, picture->channels, &result);
    if (st == DDP_OK) {
        for (int64_t y = 0; y < height; y++)
            weigh_rows(picture->pixels, row, &a.taps[y], sums, result.pixels + y * row);
        ddpi_picture_free(picture);
        *picture = result;
    }
    ddp_free(sums);
    axis_free(&a);
    return st;
}

ddp_status ddpi_picture_scale(ddpi_picture *picture, int64_t size)
{
    int64_t height = picture->height, width = picture->width;
    int64_t side = height < width ? height : width;
    if (side == size)
        return DDP_OK;
    height = height == side ? size : height * size / side;
    width = width == side ? size : width * size / side;
    if (width != picture->width)
        DDP_TRY(scale_rows(picture, width));
    return height != picture->height ? scale_columns(picture, height) : DDP_OK;
}
