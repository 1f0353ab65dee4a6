/* test_transform.c - pixels against values worked out otherwise, draws against their laws.
 *
 * Bounds on statistics are four standard errors or the 1/1000 point of a chi-square; the seeds are
 * fixed, so a test passes always or never. */
#include "harness.h"

#include <math.h>
#include <stdlib.h>

#include "ddp/rng.h"
#include "ddp/transform.h"

enum { CHANNELS = 3, HEIGHT = 9, WIDTH = 13, PLANE = HEIGHT * WIDTH, DRAWS = 18000 };

static ddp_dataset_info fixed_info(int64_t channels, int64_t height, int64_t width)
{
    return (ddp_dataset_info){
        .shape = {3, {channels, height, width}}, .count = 1 << 20, .classes = 10};
}

static ddp_dataset_info variable_info(void)
{
    ddp_dataset_info info = fixed_info(CHANNELS, 0, 0);
    info.variable = true;
    return info;
}

static ddp_transform *make(ddp_transform_opts opts, ddp_dataset_info info, bool training)
{
    ddp_transform *t = NULL;
    CHECK_OK(ddp_transform_create(&opts, &info, training, &t));
    return t;
}

static ddp_transform *training(const char *augment, int64_t height, int64_t width)
{
    return make((ddp_transform_opts){.augment = augment, .seed = 5},
                fixed_info(CHANNELS, height, width), true);
}

static ddp_transform_params draw(const ddp_transform *t, int64_t epoch, int64_t sample,
                                 int64_t height, int64_t width)
{
    ddp_transform_params p;
    ddp_transform_draw(t, (ddp_transform_key){epoch, sample}, height, width, &p);
    return p;
}

/* ---- images ---- */

/* The same noise as [h][w][c] bytes and as [c][h][w] floats. */
typedef struct picture {
    uint8_t bytes[PLANE * CHANNELS];
    float floats[CHANNELS * PLANE];
    ddp_image packed, planar;
} picture;

static void make_picture(picture *p)
{
    ddp_rng rng = ddp_rng_make(1, DDP_RNG_TEST, 0);
    for (int64_t i = 0; i < PLANE; i++)
        for (int64_t c = 0; c < CHANNELS; c++) {
            uint8_t value = (uint8_t)ddp_rng_u32(&rng, (uint64_t)(i * CHANNELS + c));
            p->bytes[i * CHANNELS + c] = value;
            p->floats[c * PLANE + i] = (float)value / 255.0f;
        }
    p->packed = (ddp_image){.pixels = p->bytes,
                            .bytes = true,
                            .channels = CHANNELS,
                            .height = HEIGHT,
                            .width = WIDTH,
                            .stride_c = 1,
                            .stride_y = WIDTH * CHANNELS,
                            .stride_x = CHANNELS};
    p->planar = (ddp_image){.pixels = p->floats,
                            .channels = CHANNELS,
                            .height = HEIGHT,
                            .width = WIDTH,
                            .stride_c = PLANE,
                            .stride_y = WIDTH,
                            .stride_x = 1};
}

static float *apply(const ddp_transform *t, const ddp_image *image, const ddp_transform_params *p)
{
    size_t count = (size_t)ddp_shape_count(ddp_transform_shape(t));
    float *dst = malloc(count * sizeof *dst);
    assert_non_null(dst);
    for (size_t i = 0; i < count; i++)
        dst[i] = NAN; /* every element is written */
    ddp_transform_apply(t, image, p, dst);
    return dst;
}

/* A row or column of the resized box as a mixture of two of the image, in double. */
static double place(int64_t resized_at, int64_t length, int64_t resized)
{
    double at = ((double)resized_at + 0.5) * (double)length / (double)resized - 0.5;
    return fmin(fmax(at, 0), (double)(length - 1));
}

static double pixel(const picture *pic, int64_t c, int64_t y, int64_t x)
{
    return pic->bytes[(y * WIDTH + x) * CHANNELS + c] / 255.0;
}

/* Element (c, y, x) of the output without normalization and cutout. */
static double reference(const picture *pic, const ddp_transform_params *p, int64_t c, int64_t y,
                        int64_t x)
{
    int64_t ry = y + p->top, rx = x + p->left;
    if (ry < 0 || rx < 0 || ry >= p->resized_height || rx >= p->resized_width)
        return 0;
    double sy = place(ry, p->box_height, p->resized_height);
    double sx = place(rx, p->box_width, p->resized_width);
    int64_t y0 = (int64_t)sy, x0 = (int64_t)sx;
    int64_t y1 = y0 + (y0 + 1 < p->box_height), x1 = x0 + (x0 + 1 < p->box_width);
    double wy = sy - (double)y0, wx = sx - (double)x0, value = 0;
    value += (1 - wy) * (1 - wx) * pixel(pic, c, p->box_top + y0, p->box_left + x0);
    value += (1 - wy) * wx * pixel(pic, c, p->box_top + y0, p->box_left + x1);
    value += wy * (1 - wx) * pixel(pic, c, p->box_top + y1, p->box_left + x0);
    value += wy * wx * pixel(pic, c, p->box_top + y1, p->box_left + x1);
    return value;
}

static void check_pixels(const ddp_transform *t, const picture *pic, const ddp_transform_params *p)
{
    const int64_t *dims = ddp_transform_shape(t)->dims;
    float *from_bytes = apply(t, &pic->packed, p), *from_floats = apply(t, &pic->planar, p);
    bool interpolates = p->resized_height != p->box_height || p->resized_width != p->box_width;
    for (int64_t c = 0; c < dims[0]; c++)
        for (int64_t y = 0; y < dims[1]; y++)
            for (int64_t x = 0; x < dims[2]; x++) {
                int64_t at = (c * dims[1] + y) * dims[2] + x;
                bool cut =
                    y >= p->cut_top && y < p->cut_bottom && x >= p->cut_left && x < p->cut_right;
                double want = cut ? 0 : reference(pic, p, c, y, p->flip ? dims[2] - 1 - x : x);
                double bound = interpolates ? 3e-7 : 0; /* some roundings of numbers up to 1 */
                if (!(fabs(from_bytes[at] - (interpolates ? want : (float)want)) <= bound) ||
                    !(fabs(from_floats[at] - (interpolates ? want : (float)want)) <= bound))
                    fail_msg("channel %d, row %d, column %d: %.9g and %.9g, expected %.9g", (int)c,
                             (int)y, (int)x, (double)from_bytes[at], (double)from_floats[at], want);
            }
    free(from_bytes);
    free(from_floats);
}

static void test_identity(void **state)
{
    static const float mean[] = {0.25f, 0.5f, 0.75f}, deviation[] = {0.5f, 0.25f, 2};
    (void)state;
    picture pic;
    make_picture(&pic);
    for (int train = 0; train < 2; train++) {
        ddp_transform_opts opts = {0};
        ddp_transform *t = make(opts, fixed_info(CHANNELS, HEIGHT, WIDTH), train);
        ddp_transform_params p = draw(t, 3, 8, HEIGHT, WIDTH);
        check_pixels(t, &pic, &p);
        float *plain = apply(t, &pic.packed, &p);
        assert_memory_equal(plain, pic.floats, sizeof pic.floats);
        free(plain);
        ddp_transform_destroy(t);

        float given_mean[3], given_deviation[3];
        memcpy(given_mean, mean, sizeof mean);
        memcpy(given_deviation, deviation, sizeof deviation);
        opts = (ddp_transform_opts){
            .mean = given_mean, .deviation = given_deviation, .channels = CHANNELS};
        t = make(opts, fixed_info(CHANNELS, HEIGHT, WIDTH), train);
        given_mean[0] = given_deviation[0] = 77; /* it has its own copy */
        float *got = apply(t, &pic.packed, &p), *same = apply(t, &pic.planar, &p);
        for (int64_t i = 0; i < CHANNELS * PLANE; i++) {
            assert_true(got[i] == (pic.floats[i] - mean[i / PLANE]) / deviation[i / PLANE]);
            assert_true(got[i] == same[i]);
        }
        free(got);
        free(same);
        ddp_transform_destroy(t);
    }
    ddp_transform_destroy(NULL);
}

/* Zeros around the image are normalized, a cutout is not. */
static void test_zeros(void **state)
{
    static const float mean[] = {0.5f, 0.5f, 0.5f}, deviation[] = {0.25f, 0.5f, 1};
    (void)state;
    picture pic;
    make_picture(&pic);
    ddp_transform *t = make((ddp_transform_opts){.augment = "crop:4,cutout:4",
                                                 .mean = mean,
                                                 .deviation = deviation,
                                                 .channels = CHANNELS},
                            fixed_info(CHANNELS, HEIGHT, WIDTH), true);
    ddp_transform_params p = draw(t, 0, 0, HEIGHT, WIDTH);
    p.top = -3;
    p.left = 2;
    p.cut_top = p.cut_left = 0;
    p.cut_bottom = p.cut_right = 2;
    float *got = apply(t, &pic.packed, &p);
    assert_true(got[0] == 0 && got[WIDTH + 1] == 0);
    assert_true(got[2] == -2 && got[2 * WIDTH] == -2); /* (0 - 0.5) / 0.25 */
    assert_true(got[3 * WIDTH - 1] == -2 && got[4 * WIDTH - 1] == -2);
    assert_true(got[PLANE + 2] == -1 && got[2 * PLANE + 2] == -0.5f);
    assert_true(got[3 * WIDTH] == (pic.floats[2] - mean[0]) / deviation[0]);
    free(got);
    ddp_transform_destroy(t);
}

static void test_pixels_of_draws(void **state)
{
    static const char *const lists[] = {"crop:3", "crop:20",       "flip",
                                        "rrc",    "rrc:17,flip",   "crop:2,flip,cutout:5",
                                        "none",   "rrc:6,cutout:3"};
    (void)state;
    picture pic;
    make_picture(&pic);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        for (int variable = 0; variable < 2; variable++) {
            ddp_transform_opts opts = {.augment = lists[i], .seed = 2};
            if (strstr(lists[i], "rrc:") == NULL && variable)
                opts.input_size = 7;
            ddp_transform *t =
                make(opts, variable ? variable_info() : fixed_info(CHANNELS, HEIGHT, WIDTH), true);
            for (int64_t sample = 0; sample < 60; sample++) {
                ddp_transform_params p = draw(t, 1, sample, HEIGHT, WIDTH);
                check_pixels(t, &pic, &p);
            }
            ddp_transform_destroy(t);
        }
}

/* Wider than the tile in which columns are made. */
static void test_wide(void **state)
{
    (void)state;
    picture pic;
    make_picture(&pic);
    ddp_transform *t = make((ddp_transform_opts){.input_size = 700, .augment = "crop:9,flip"},
                            fixed_info(CHANNELS, HEIGHT, WIDTH), true);
    for (int64_t sample = 0; sample < 3; sample++) {
        ddp_transform_params p = draw(t, 0, sample, HEIGHT, WIDTH);
        assert_int_equal(p.resized_width, 700 * WIDTH / HEIGHT);
        check_pixels(t, &pic, &p);
    }
    ddp_transform_destroy(t);
}

/* ---- values by hand ---- */

static void test_resize_by_hand(void **state)
{
    static const uint8_t bytes[] = {0, 255, 51, 102};
    (void)state;
    ddp_transform *t = make((ddp_transform_opts){.input_size = 4}, fixed_info(1, 2, 2), false);
    ddp_image image = {.pixels = bytes,
                       .bytes = true,
                       .channels = 1,
                       .height = 2,
                       .width = 2,
                       .stride_c = 4,
                       .stride_y = 2,
                       .stride_x = 1};
    ddp_transform_params p = draw(t, 0, 0, 2, 2);
    float *got = apply(t, &image, &p);
    /* The two outer rows are the image's; the inner ones are 3/4 of the near and 1/4 of the far. */
    const float top[4] = {0, 0.25f, 0.75f, 1}, bottom[4] = {0.2f, 0.25f, 0.35f, 0.4f};
    for (int x = 0; x < 4; x++) {
        assert_true(fabsf(got[x] - top[x]) < 1e-6f);
        assert_true(fabsf(got[4 + x] - (0.75f * top[x] + 0.25f * bottom[x])) < 1e-6f);
        assert_true(fabsf(got[8 + x] - (0.25f * top[x] + 0.75f * bottom[x])) < 1e-6f);
        assert_true(fabsf(got[12 + x] - bottom[x]) < 1e-6f);
    }
    free(got);
    ddp_transform_destroy(t);
}

static void check_eval(const ddp_transform *t, int64_t height, int64_t width, const int64_t want[4])
{
    ddp_transform_params p = draw(t, 9, 9, height, width);
    if (p.resized_height != want[0] || p.resized_width != want[1] || p.top != want[2] ||
        p.left != want[3])
        fail_msg("%dx%d: resized to %dx%d from %d, %d", (int)height, (int)width,
                 (int)p.resized_height, (int)p.resized_width, (int)p.top, (int)p.left);
    assert_int_equal(p.box_top, 0);
    assert_int_equal(p.box_left, 0);
    assert_int_equal(p.box_height, height);
    assert_int_equal(p.box_width, width);
    assert_false(p.flip);
    assert_int_equal(p.cut_bottom, 0);
}

/* torchvision's Resize(256) and CenterCrop(224), rounding included. */
static void test_evaluation(void **state)
{
    (void)state;
    ddp_transform *t = make((ddp_transform_opts){0}, variable_info(), false);
    assert_int_equal(ddp_transform_shape(t)->dims[0], CHANNELS);
    assert_int_equal(ddp_transform_shape(t)->dims[1], 224);
    assert_int_equal(ddp_transform_shape(t)->dims[2], 224);
    check_eval(t, 500, 375, (const int64_t[]){341, 256, 58, 16}); /* 341.33; 58.5 */
    check_eval(t, 375, 500, (const int64_t[]){256, 341, 16, 58});
    check_eval(t, 256, 256, (const int64_t[]){256, 256, 16, 16});
    check_eval(t, 100, 103, (const int64_t[]){256, 263, 16, 20}); /* 263.68; 19.5 */
    ddp_transform_destroy(t);

    t = make((ddp_transform_opts){.augment = "rrc:160"}, fixed_info(3, 256, 256), false);
    check_eval(t, 256, 256, (const int64_t[]){183, 183, 12, 12}); /* 182.86; 11.5 */
    ddp_transform_destroy(t);
    t = make((ddp_transform_opts){.augment = "rrc"}, fixed_info(3, 32, 32), false);
    check_eval(t, 32, 32, (const int64_t[]){32, 32, 0, 0});
    ddp_transform_destroy(t);
    t = make((ddp_transform_opts){.eval_crop = 224}, fixed_info(3, 256, 300), false);
    check_eval(t, 256, 300, (const int64_t[]){256, 300, 16, 38});
    ddp_transform_destroy(t);
    t = make((ddp_transform_opts){.eval_crop = 32, .eval_resize = 40}, fixed_info(1, 28, 28),
             false);
    check_eval(t, 28, 28, (const int64_t[]){40, 40, 4, 4});
    ddp_transform_destroy(t);
    /* Without rrc there is nothing to make up for. */
    t = make((ddp_transform_opts){.input_size = 32, .augment = "crop:4"}, fixed_info(1, 28, 28),
             false);
    check_eval(t, 28, 28, (const int64_t[]){32, 32, 0, 0});
    ddp_transform_destroy(t);
}

/* ---- laws ---- */

static double chi_square(const int64_t *counts, int cells, double total)
{
    double sum = 0, want = total / cells;
    for (int i = 0; i < cells; i++)
        sum += ((double)counts[i] - want) * ((double)counts[i] - want) / want;
    return sum;
}

/* Over samples, and for one sample over epochs. */
static void test_crop_and_flip(void **state)
{
    (void)state;
    ddp_transform *t = training("crop:4,flip", 28, 28);
    for (int epochs = 0; epochs < 2; epochs++) {
        int64_t cells[81] = {0}, flipped[9] = {0}, repeats = 0;
        ddp_transform_params last = {0};
        for (int64_t i = 0; i < DRAWS; i++) {
            ddp_transform_params p = draw(t, epochs ? i : 0, epochs ? 77 : i, 28, 28);
            assert_in_range(p.top + 4, 0, 8);
            assert_in_range(p.left + 4, 0, 8);
            cells[(p.top + 4) * 9 + p.left + 4]++;
            flipped[p.top + 4] += p.flip;
            repeats += p.top == last.top && p.left == last.left;
            last = p;
        }
        int64_t sums[2][9] = {{0}}, flips = 0;
        for (int i = 0; i < 81; i++) {
            sums[0][i / 9] += cells[i];
            sums[1][i % 9] += cells[i];
        }
        assert_true(chi_square(cells, 81, DRAWS) < 124.8);
        assert_true(chi_square(sums[0], 9, DRAWS) < 26.1);
        assert_true(chi_square(sums[1], 9, DRAWS) < 26.1);
        for (int i = 0; i < 9; i++) {
            flips += flipped[i]; /* whatever the crop */
            assert_true(fabs((double)flipped[i] / (double)sums[0][i] - 0.5) < 4 * 0.5 / sqrt(2000));
        }
        assert_true(fabs((double)flips / DRAWS - 0.5) < 4 * 0.5 / sqrt(DRAWS));
        assert_true(fabs((double)repeats - DRAWS / 81.0) < 4 * sqrt(DRAWS / 81.0));
    }
    ddp_transform_destroy(t);
}

typedef struct moments {
    double n, sum, squares;
} moments;

static void add(moments *m, double value, double weight)
{
    m->n += weight;
    m->sum += weight * value;
    m->squares += weight * value * value;
}

static double mean_of(const moments *m)
{
    return m->sum / m->n;
}

static double variance_of(const moments *m)
{
    return m->squares / m->n - mean_of(m) * mean_of(m);
}

/* Means within four standard errors; variances within 5 %, also more than four (the laws here are
 * flatter than the normal one, whose error is sqrt(2/n)). */
static void check_law(const char *name, const moments *got, double mean, double variance)
{
    double bound = 4 * sqrt(variance / got->n);
    if (!(fabs(mean_of(got) - mean) < bound) ||
        !(fabs(variance_of(got) - variance) < 0.05 * variance))
        fail_msg("%s: mean %g, variance %g; expected %g +- %g, %g", name, mean_of(got),
                 variance_of(got), mean, bound, variance);
}

/* What RandomResizedCrop's law says for an image: area uniform on [0.08, 1], logarithm of the
 * ratio uniform, given that the box fits; by quadrature. */
static void box_law(double height, double width, moments *area, moments *ratio)
{
    const int steps = 1500;
    double limit = log(4.0 / 3);
    for (int i = 0; i < steps; i++)
        for (int k = 0; k < steps; k++) {
            double a = 0.08 + 0.92 * (i + 0.5) / steps, r = -limit + 2 * limit * (k + 0.5) / steps;
            double pixels = a * height * width;
            if (pixels * exp(r) > width * width || pixels * exp(-r) > height * height)
                continue;
            add(area, a, 1);
            add(ratio, r, 1);
        }
}

static void test_random_box(void **state)
{
    static const int64_t sizes[][2] = {{2000, 2000}, {1200, 2000}};
    (void)state;
    ddp_transform *t = make((ddp_transform_opts){.seed = 5}, variable_info(), true);
    for (int s = 0; s < 2; s++) {
        int64_t height = sizes[s][0], width = sizes[s][1], flips = 0;
        moments area = {0}, ratio = {0}, top = {0}, left = {0}, want_area = {0}, want_ratio = {0};
        for (int64_t i = 0; i < DRAWS; i++) {
            ddp_transform_params p = draw(t, 4, i, height, width);
            assert_in_range(p.box_top, 0, height - p.box_height);
            assert_in_range(p.box_left, 0, width - p.box_width);
            assert_true(p.resized_height == 224 && p.resized_width == 224);
            assert_true(p.top == 0 && p.left == 0);
            add(&area, (double)(p.box_height * p.box_width) / (double)(height * width), 1);
            add(&ratio, log((double)p.box_width / (double)p.box_height), 1);
            if (height - p.box_height > 100)
                add(&top, (double)p.box_top / (double)(height - p.box_height), 1);
            if (width - p.box_width > 100)
                add(&left, (double)p.box_left / (double)(width - p.box_width), 1);
            flips += p.flip;
        }
        box_law((double)height, (double)width, &want_area, &want_ratio);
        check_law("area", &area, mean_of(&want_area), variance_of(&want_area));
        check_law("ratio", &ratio, mean_of(&want_ratio), variance_of(&want_ratio));
        check_law("top", &top, 0.5, 1.0 / 12);
        check_law("left", &left, 0.5, 1.0 / 12);
        assert_true(fabs((double)flips / DRAWS - 0.5) < 4 * 0.5 / sqrt(DRAWS));
    }
    /* No box of any allowed ratio fits: the middle. */
    ddp_transform_params p = draw(t, 0, 0, 10, 1000);
    assert_true(p.box_top == 0 && p.box_height == 10 && p.box_width == 13 && p.box_left == 493);
    p = draw(t, 0, 0, 1000, 10);
    assert_true(p.box_left == 0 && p.box_width == 10 && p.box_height == 13 && p.box_top == 493);
    ddp_transform_destroy(t);
}

static void test_cutout(void **state)
{
    enum { SIDE = 16, SIZE = 32 };
    (void)state;
    ddp_transform *t = training("cutout", SIZE, SIZE); /* 16 */
    moments area = {0}, rows = {0}, law = {0}, row_law = {0};
    int64_t tops[SIZE] = {0};
    for (int64_t i = 0; i < DRAWS; i++) {
        ddp_transform_params p = draw(t, 0, i, SIZE, SIZE);
        int64_t height = p.cut_bottom - p.cut_top, width = p.cut_right - p.cut_left;
        assert_in_range(p.cut_top, 0, SIZE - 1);
        assert_in_range(p.cut_left, 0, SIZE - 1);
        assert_in_range(height, SIDE / 2, SIDE);
        assert_in_range(width, SIDE / 2, SIDE);
        add(&area, (double)(height * width), 1);
        add(&rows, (double)height, 1);
        tops[p.cut_bottom - SIDE / 2 < SIZE - SIDE / 2 ? p.cut_bottom - SIDE / 2 : SIZE - 1]++;
    }
    for (int y = 0; y < SIZE; y++)
        for (int x = 0; x < SIZE; x++) {
            int height =
                (y + SIDE / 2 < SIZE ? y + SIDE / 2 : SIZE) - (y > SIDE / 2 ? y - SIDE / 2 : 0);
            int width =
                (x + SIDE / 2 < SIZE ? x + SIDE / 2 : SIZE) - (x > SIDE / 2 ? x - SIDE / 2 : 0);
            add(&law, height * width, 1);
            add(&row_law, height, 1);
        }
    check_law("area", &area, mean_of(&law), variance_of(&law));
    check_law("rows", &rows, mean_of(&row_law), variance_of(&row_law));
    assert_true(chi_square(tops, SIZE - SIDE / 2, (double)DRAWS * (SIZE - SIDE / 2) / SIZE) < 49.8);
    ddp_transform_destroy(t);

    t = training("cutout:5", HEIGHT, WIDTH); /* an odd side keeps its length */
    int64_t largest = 0;
    for (int64_t i = 0; i < 200; i++) {
        ddp_transform_params p = draw(t, 0, i, HEIGHT, WIDTH);
        int64_t cells = (p.cut_bottom - p.cut_top) * (p.cut_right - p.cut_left);
        largest = cells > largest ? cells : largest;
    }
    assert_int_equal(largest, 25);
    ddp_transform_destroy(t);
}

/* Seed, epoch and sample enter, other augmentations do not. */
static void test_keys(void **state)
{
    (void)state;
    ddp_transform *a = training("crop:9", 28, 28), *b = training("crop:9,flip,cutout:4", 28, 28);
    ddp_transform *c = make((ddp_transform_opts){.augment = "crop:9", .seed = 6},
                            fixed_info(CHANNELS, 28, 28), true);
    int same_seed = 0, same_epoch = 0, same_sample = 0;
    for (int64_t i = 0; i < 1000; i++) {
        ddp_transform_params p = draw(a, 0, i, 28, 28), q = draw(b, 0, i, 28, 28);
        assert_true(p.top == q.top && p.left == q.left);
        q = draw(c, 0, i, 28, 28);
        same_seed += p.top == q.top && p.left == q.left;
        q = draw(a, 1, i, 28, 28);
        same_epoch += p.top == q.top && p.left == q.left;
        q = draw(a, 0, i + 1, 28, 28);
        same_sample += p.top == q.top && p.left == q.left;
    }
    assert_in_range(same_seed, 0, 12); /* one in 361 by chance */
    assert_in_range(same_epoch, 0, 12);
    assert_in_range(same_sample, 0, 12);
    ddp_transform_destroy(a);
    ddp_transform_destroy(b);
    ddp_transform_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_identity),        cmocka_unit_test(test_zeros),
        cmocka_unit_test(test_pixels_of_draws), cmocka_unit_test(test_wide),
        cmocka_unit_test(test_resize_by_hand),  cmocka_unit_test(test_evaluation),
        cmocka_unit_test(test_crop_and_flip),   cmocka_unit_test(test_random_box),
        cmocka_unit_test(test_cutout),          cmocka_unit_test(test_keys),

    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
