/* test_picture.c - files become RGB pixels whatever they hold, damaged ones are refused for a
 * reason, and scaling weighs as it says. */
#include "harness.h"

#include "ddp/memory.h"
#include "image_files.h"
#include "tools/pack/picture.h"

enum { HEIGHT = 5, WIDTH = 7, COUNT = HEIGHT * WIDTH };

static uint8_t value_of(int i)
{
    return (uint8_t)(i * 53 + 7);
}

/* Frees the file. */
static ddpi_picture decoded(uint8_t *file, const size_t *bytes)
{
    ddpi_picture picture = {0};
    CHECK_OK(ddpi_picture_decode(file, *bytes, &picture));
    free(file);
    assert_int_equal(picture.height, HEIGHT);
    assert_int_equal(picture.width, WIDTH);
    assert_int_equal(picture.channels, 3);
    return picture;
}

static void near(int found, int want, int tolerance, int at)
{
    if (abs(found - want) > tolerance)
        fail_msg("value %d: found %d, want %d", at, found, want);
}

static void png_of_every_kind_becomes_rgb(void **state)
{
    (void)state;
    uint8_t rgb[COUNT * 3], rgba[COUNT * 4], grey[COUNT], map[4 * 3], places[COUNT];
    uint16_t deep[COUNT];
    size_t bytes;
    for (int i = 0; i < COUNT * 3; i++)
        rgb[i] = value_of(i);
    for (int i = 0; i < COUNT; i++) {
        memcpy(rgba + i * 4, rgb + i * 3, 3);
        rgba[i * 4 + 3] = (uint8_t)(i * 7);
        grey[i] = value_of(i);
        deep[i] = (uint16_t)(i * 1871);
        places[i] = (uint8_t)(i % 4);
    }
    for (int i = 0; i < 12; i++)
        map[i] = value_of(i * 5);
    ddpi_picture a = decoded(make_png(rgb, HEIGHT, WIDTH, PNG_FORMAT_RGB, NULL, 0, &bytes), &bytes);
    assert_memory_equal(a.pixels, rgb, sizeof rgb);
    ddpi_picture b =
        decoded(make_png(rgba, HEIGHT, WIDTH, PNG_FORMAT_RGBA, NULL, 0, &bytes), &bytes);
    assert_memory_equal(b.pixels, rgb, sizeof rgb);
    ddpi_picture c =
        decoded(make_png(grey, HEIGHT, WIDTH, PNG_FORMAT_GRAY, NULL, 0, &bytes), &bytes);
    ddpi_picture d =
        decoded(make_png(deep, HEIGHT, WIDTH, PNG_FORMAT_LINEAR_Y, NULL, 0, &bytes), &bytes);
    ddpi_picture e =
        decoded(make_png(places, HEIGHT, WIDTH, PNG_FORMAT_RGB_COLORMAP, map, 4, &bytes), &bytes);
    for (int i = 0; i < COUNT * 3; i++) {
        assert_int_equal(c.pixels[i], grey[i / 3]);
        assert_int_equal(d.pixels[i], (deep[i / 3] + 128) / 257);
        assert_int_equal(e.pixels[i], map[i / 3 % 4 * 3 + i % 3]);
    }
    ddpi_picture *all[] = {&a, &b, &c, &d, &e};
    for (int i = 0; i < 5; i++)
        ddpi_picture_free(all[i]);
}

static void jpeg_of_every_kind_becomes_rgb(void **state)
{
    (void)state;
    uint8_t rgb[COUNT * 3], grey[COUNT], cmyk[COUNT * 4];
    size_t bytes;
    for (int i = 0; i < COUNT; i++) {
        rgb[i * 3] = 200;
        rgb[i * 3 + 1] = 90;
        rgb[i * 3 + 2] = 30;
        grey[i] = (uint8_t)(i * 5);
        memcpy(cmyk + i * 4, (uint8_t[]){250, 120, 60, 200}, 4);
    }
    ddpi_picture a = decoded(make_jpeg(rgb, HEIGHT, WIDTH, TJPF_RGB, TJSAMP_420, &bytes), &bytes);
    ddpi_picture b =
        decoded(make_jpeg(grey, HEIGHT, WIDTH, TJPF_GRAY, TJSAMP_GRAY, &bytes), &bytes);
    ddpi_picture c = decoded(make_jpeg(cmyk, HEIGHT, WIDTH, TJPF_CMYK, TJSAMP_444, &bytes), &bytes);
    for (int i = 0; i < COUNT * 3; i++) {
        near(a.pixels[i], rgb[i], 2, i);
        near(b.pixels[i], grey[i / 3], 2, i);
        near(c.pixels[i], cmyk[i % 3] * 200 / 255, 3, i); /* Adobe's: 255 is no ink */
    }
    uint8_t *file = make_jpeg(cmyk, HEIGHT, WIDTH, TJPF_CMYK, TJSAMP_444, &bytes);
    uint8_t *mark = memmem(file, bytes, "Adobe", 5);
    assert_non_null(mark);
    memcpy(mark, "Other", 5);
    ddpi_picture d = {0};
    CHECK_OK(ddpi_picture_decode(file, bytes, &d)); /* 0 is no ink; without the mark it is CMYK */
    free(file);
    assert_int_equal(d.channels, 3);
    ddpi_picture *all[] = {&a, &b, &c, &d};
    for (int i = 0; i < 4; i++)
        ddpi_picture_free(all[i]);
}

/* Frees the file, which is copied to its exact length, so that reading on is found. */
static void refused(uint8_t *file, size_t bytes, const char *text)
{
    ddpi_picture picture;
    uint8_t *exact = malloc(bytes + (bytes == 0));
    assert_non_null(exact);
    memcpy(exact, file, bytes);
    CHECK_FAILS(ddpi_picture_decode(exact, bytes, &picture), DDP_ERR_FORMAT, text);
    free(exact);
    free(file);
}

static uint8_t *jpeg(size_t *bytes_out)
{
    uint8_t rgb[64 * 64 * 3];
    for (int i = 0; i < 64 * 64 * 3; i++)
        rgb[i] = value_of(i);
    return make_jpeg(rgb, 64, 64, TJPF_RGB, TJSAMP_444, bytes_out);
}

static uint8_t *png(size_t *bytes_out)
{
    uint8_t rgb[64 * 64 * 3];
    for (int i = 0; i < 64 * 64 * 3; i++)
        rgb[i] = value_of(i * i);
    return make_png(rgb, 64, 64, PNG_FORMAT_RGB, NULL, 0, bytes_out);
}

static void damaged_files_are_refused(void **state)
{
    (void)state;
    size_t bytes;
    uint8_t *file = jpeg(&bytes);
    refused(file, bytes - 200, "damaged JPEG: ");
    file = jpeg(&bytes);
    refused(file, bytes - 2, "damaged JPEG: ");
    file = jpeg(&bytes);
    refused(file, 30, "damaged JPEG: ");
    file = jpeg(&bytes);
    refused(file, 3, "damaged JPEG: ");
    file = jpeg(&bytes);
    refused(file, 2, "neither JPEG nor PNG");
    file = jpeg(&bytes);
    refused(file, 0, "the file is empty");
    file = jpeg(&bytes);
    set_jpeg_size(file, bytes, 0, 0);
    refused(file, bytes, "damaged JPEG: ");
    file = jpeg(&bytes);
    set_jpeg_size(file, bytes, 65500, 65500);
    refused(file, bytes, "the image is 65500 x 65500, expected sides of at most");

    file = png(&bytes);
    refused(file, bytes - 12, "damaged PNG: the file is cut off");
    file = png(&bytes);
    refused(file, bytes / 2, "damaged PNG: the file is cut off");
    file = png(&bytes);
    refused(file, 8, "damaged PNG: the file is cut off");
    file = png(&bytes);
    file[bytes / 2] ^= 1;
    refused(file, bytes, "damaged PNG: ");
    file = png(&bytes);
    set_png_size(file, 0, 0);
    refused(file, bytes, "damaged PNG: ");
    file = png(&bytes);
    set_png_size(file, 60000, 60000);
    refused(file, bytes, "the image is 60000 x 60000, expected sides of at most");
    file = png(&bytes);
    set_png_size(file, 0x7fffffff, 1);
    refused(file, bytes, "damaged PNG: ");
    file = png(&bytes);
    set_png_size(file, 64, 65);
    refused(file, bytes, "damaged PNG: ");
}

/* ---- scaling and grey ---- */

static ddpi_picture filled(int64_t height, int64_t width, int64_t channels,
                           uint8_t (*value)(int64_t y, int64_t x))
{
    ddpi_picture p;
    CHECK_OK(ddpi_picture_alloc(height, width, channels, &p));
    for (int64_t y = 0; y < height; y++)
        for (int64_t x = 0; x < width; x++)
            for (int64_t c = 0; c < channels; c++)
                p.pixels[(y * width + x) * channels + c] = (uint8_t)(value(y, x) + c);
    return p;
}

static uint8_t flat(int64_t y, int64_t x)
{
    (void)y;
    (void)x;
    return 253;
}

static uint8_t ramp(int64_t y, int64_t x)
{
    (void)y;
    return (uint8_t)(x * 4);
}

static uint8_t slope(int64_t y, int64_t x)
{
    (void)x;
    return (uint8_t)(y * 4);
}

static void the_shorter_side_gets_the_size(void **state)
{
    (void)state;
    static const int64_t cases[][5] = {
        /* height and width, size, then height and width */
        {40, 60, 20, 20, 30}, {60, 40, 20, 30, 20},      {3, 10, 7, 7, 23}, {10, 3, 7, 23, 7},
        {5, 5, 5, 5, 5},      {333, 500, 256, 256, 384}, {1, 9, 4, 4, 36},  {1, 1, 3, 3, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ddpi_picture p = filled(cases[i][0], cases[i][1], 3, flat);
        CHECK_OK(ddpi_picture_scale(&p, cases[i][2]));
        assert_int_equal(p.height, cases[i][3]);
        assert_int_equal(p.width, cases[i][4]);
        for (int64_t j = 0; j < p.height * p.width * 3; j++)
            assert_int_equal(p.pixels[j], 253 + j % 3); /* flat stays flat */
        ddpi_picture_free(&p);
    }
    ddpi_picture thin = filled(1, 40000, 1, flat);
    CHECK_FAILS(ddpi_picture_scale(&thin, 1000), DDP_ERR_FORMAT, "the image is 40000000 x 1");
    ddpi_picture_free(&thin);
}

static void a_slope_keeps_its_values(void **state)
{
    (void)state;
    /* Twice as coarse: pixel i has its centre between 2i and 2i + 1. */
    ddpi_picture p = filled(40, 40, 3, ramp);
    CHECK_OK(ddpi_picture_scale(&p, 20));
    for (int64_t y = 0; y < 20; y++)
        for (int64_t x = 1; x < 19; x++)
            for (int64_t c = 0; c < 3; c++)
                assert_int_equal(p.pixels[(y * 20 + x) * 3 + c], 8 * x + 2 + c);
    ddpi_picture_free(&p);
    p = filled(40, 40, 1, slope);
    CHECK_OK(ddpi_picture_scale(&p, 20));
    for (int64_t y = 1; y < 19; y++)
        assert_int_equal(p.pixels[y * 20 + 7], 8 * y + 2);
    ddpi_picture_free(&p);
    /* Twice as fine: between neighbours, at a quarter and three quarters. */
    p = filled(10, 10, 1, ramp);
    CHECK_OK(ddpi_picture_scale(&p, 20));
    for (int64_t x = 1; x < 19; x++)
        assert_int_equal(p.pixels[5 * 20 + x], 2 * x - 1);
    assert_int_equal(p.pixels[0], 0);
    assert_int_equal(p.pixels[19], 36);
    ddpi_picture_free(&p);
}

/* Against the filter's definition in floating point, for a scale that is no whole number. */
static void any_scale_follows_the_filter(void **state)
{
    (void)state;
    enum { FROM = 50, TO = 17 };
    ddpi_picture p;
    uint8_t src[FROM];
    CHECK_OK(ddpi_picture_alloc(FROM, FROM, 1, &p));
    for (int x = 0; x < FROM; x++)
        src[x] = value_of(x * x);
    for (int i = 0; i < FROM * FROM; i++)
        p.pixels[i] = src[i % FROM];
    CHECK_OK(ddpi_picture_scale(&p, TO));
    for (int i = 0; i < TO; i++) {
        double scale = (double)FROM / TO, sum = 0, weights = 0;
        for (int x = 0; x < FROM; x++) {
            double distance = (x + 0.5 - (i + 0.5) * scale) / scale;
            double weight = 1 - (distance < 0 ? -distance : distance);
            if (weight > 0) {
                sum += weight * src[x];
                weights += weight;
            }
        }
        near(p.pixels[3 * TO + i], (int)(sum / weights + 0.5), 1, i);
    }
    ddpi_picture_free(&p);
}

static void grey_is_luma(void **state)
{
    (void)state;
    static const uint8_t colours[][4] = {/* red, green, blue, grey */
                                         {255, 0, 0, 76}, {0, 255, 0, 150},     {0, 0, 255, 29},
                                         {9, 9, 9, 9},    {255, 255, 255, 255}, {0, 0, 0, 0}};
    ddpi_picture p;
    CHECK_OK(ddpi_picture_alloc(2, 3, 3, &p));
    for (int i = 0; i < 6; i++)
        memcpy(p.pixels + i * 3, colours[i], 3);
    ddpi_picture_to_grey(&p);
    assert_int_equal(p.channels, 1);
    for (int i = 0; i < 6; i++)
        assert_int_equal(p.pixels[i], colours[i][3]);
    ddpi_picture_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(png_of_every_kind_becomes_rgb),
        cmocka_unit_test(jpeg_of_every_kind_becomes_rgb),
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(the_shorter_side_gets_the_size),
        cmocka_unit_test(a_slope_keeps_its_values),
        cmocka_unit_test(any_scale_follows_the_filter),
        cmocka_unit_test(grey_is_luma),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
