/* test_images.c - data sets that lend images: order in memory, sizes that differ, views. */
#include "harness.h"

#include "ddp/dataset.h"

enum { COUNT = 11, CHANNELS = 3, HEIGHT = 4, WIDTH = 5, PIXELS = CHANNELS * HEIGHT * WIDTH };

/* Bytes as files have them: [h][w][c]. */
typedef struct source {
    bool variable;
    uint8_t pixels[COUNT][PIXELS];
} source;

static uint8_t value_of(int64_t index, int64_t c, int64_t y, int64_t x)
{
    return (uint8_t)(index * 23 + c * 71 + y * 5 + x);
}

static ddp_status source_open(const ddp_data_opts *opts, ddp_split split, ddp_comm *comm,
                              ddp_dataset_info *info_out, void **self_out)
{
    static const char *const names[] = {"cat", "dog"};
    source *set = (void *)(uintptr_t)opts->seed; /* the test's own */
    (void)split;
    (void)comm;
    for (int64_t i = 0; i < COUNT; i++)
        for (int64_t y = 0; y < HEIGHT; y++)
            for (int64_t x = 0; x < WIDTH; x++)
                for (int64_t c = 0; c < CHANNELS; c++)
                    set->pixels[i][(y * WIDTH + x) * CHANNELS + c] = value_of(i, c, y, x);
    *info_out = (ddp_dataset_info){
        .shape = {3, {CHANNELS, set->variable ? 0 : HEIGHT, set->variable ? 0 : WIDTH}},
        .count = COUNT,
        .classes = 2,
        .variable = set->variable,
        .class_names = names};
    *self_out = set;
    return DDP_OK;
}

/* A variable set's images lose a row every other time. */
static ddp_status source_image(void *self, int64_t index, ddp_image *image_out)
{
    const source *set = self;
    *image_out = (ddp_image){.pixels = set->pixels[index],
                             .bytes = true,
                             .channels = CHANNELS,
                             .height = HEIGHT - (set->variable ? index % 2 : 0),
                             .width = WIDTH,
                             .stride_c = 1,
                             .stride_y = (int64_t)WIDTH * CHANNELS,
                             .stride_x = CHANNELS,
                             .label = (int32_t)(index % 2)};
    return DDP_OK;
}

static void source_close(void *self, ddp_comm *comm)
{
    (void)self;
    (void)comm;
}

static const ddp_dataset_ops source_ops = {
    .name = "source", .open = source_open, .close = source_close, .image = source_image};

static ddp_dataset *open_source(source *set, ddp_comm **comm_out)
{
    ddp_comm_opts comm_opts = DDP_COMM_OPTS_DEFAULTS;
    ddp_data_opts opts = {.seed = (uint64_t)(uintptr_t)set};
    ddp_dataset *dataset = NULL;
    CHECK_OK(ddp_comm_loopback_open(&comm_opts, 1, NULL, comm_out));
    CHECK_OK(ddp_dataset_open(&source_ops, &opts, DDP_SPLIT_TRAIN, *comm_out, &dataset));
    return dataset;
}

static void test_fetch_from_images(void **state)
{
    static const int64_t indices[] = {7, 0, 10};
    (void)state;
    source set = {.variable = false};
    ddp_comm *comm;
    ddp_dataset *dataset = open_source(&set, &comm);
    float pixels[3 * PIXELS], *at = pixels;
    int32_t labels[3];
    assert_true(ddp_dataset_has_image(dataset));
    assert_string_equal(ddp_dataset_get_info(dataset)->class_names[1], "dog");
    CHECK_OK(ddp_dataset_fetch(dataset, indices, 3, pixels, labels));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(labels[i], indices[i] % 2);
        for (int64_t c = 0; c < CHANNELS; c++)
            for (int64_t y = 0; y < HEIGHT; y++)
                for (int64_t x = 0; x < WIDTH; x++)
                    assert_true(*at++ == (float)value_of(indices[i], c, y, x) / 255.0f);
    }
    ddp_image image;
    CHECK_FAILS(ddp_dataset_image(dataset, COUNT, &image), DDP_ERR_INTERNAL,
                "sample 11 asked for, it has 11");
    CHECK_FAILS(ddp_dataset_image(dataset, -1, &image), DDP_ERR_INTERNAL, "sample -1");
    ddp_dataset_close(dataset);
    ddp_comm_close(comm);
}

static void test_variable(void **state)
{
    (void)state;
    source set = {.variable = true};
    ddp_comm *comm;
    ddp_dataset *dataset = open_source(&set, &comm);
    ddp_image image;
    float pixels[PIXELS];
    int32_t label;
    int64_t index = 3;
    CHECK_OK(ddp_dataset_image(dataset, index, &image));
    assert_int_equal(image.height, HEIGHT - 1);
    CHECK_FAILS(ddp_dataset_fetch(dataset, &index, 1, pixels, &label), DDP_ERR_UNSUPPORTED,
                "differ in size");
    ddp_dataset_close(dataset);
    ddp_comm_close(comm);
}

/* The two sides of a split lend the images of the whole, each one once. */
static void test_views(void **state)
{
    (void)state;
    source set = {.variable = true};
    ddp_comm *comm;
    ddp_dataset *whole = open_source(&set, &comm), *sides[2];
    bool seen[COUNT] = {false};
    CHECK_OK(ddp_dataset_subset(whole, 5, 0, 8, &sides[0]));
    CHECK_OK(ddp_dataset_subset(whole, 5, 8, COUNT - 8, &sides[1]));
    for (int s = 0; s < 2; s++) {
        const ddp_dataset_info *info = ddp_dataset_get_info(sides[s]);
        assert_true(info->variable);
        assert_string_equal(info->class_names[0], "cat");
        for (int64_t i = 0; i < info->count; i++) {
            ddp_image image;
            CHECK_OK(ddp_dataset_image(sides[s], i, &image));
            int64_t index = ((const uint8_t *)image.pixels - set.pixels[0]) / PIXELS;
            assert_false(seen[index]);
            seen[index] = true;
            assert_int_equal(image.label, index % 2);
        }
        ddp_dataset_close(sides[s]);
    }
    for (int i = 0; i < COUNT; i++)
        assert_true(seen[i]);
    ddp_dataset_close(whole);
    ddp_comm_close(comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fetch_from_images),
        cmocka_unit_test(test_variable),
        cmocka_unit_test(test_views),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
