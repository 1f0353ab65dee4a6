/* test_augment.c - the options of transforms: the --augment list, and what is refused. */
#include "harness.h"

#include <math.h>

#include "ddp/transform.h"

static ddp_dataset_info fixed_info(int64_t channels, int64_t height, int64_t width)
{
    return (ddp_dataset_info){.shape = {3, {channels, height, width}}, .count = 100, .classes = 10};
}

static void test_lists(void **state)
{
    static const char *const bad[] = {"crop:",      "crop:-1",
                                      "crop:x",     "crop:4x",
                                      "flip:1",     "rrc:0",
                                      "cutout:0",   "rot",
                                      "crop,,flip", ",",
                                      "crop,",      "flip,flip",
                                      "none,flip",  "crop:99999999999999999999",
                                      "rrc:16385",  "crop:4,crop:4",
                                      "flipp",      "CROP"};
    ddp_augment a;
    (void)state;
    CHECK_OK(ddp_augment_parse(NULL, &a));
    assert_false(a.given);
    CHECK_OK(ddp_augment_parse("", &a));
    assert_false(a.given);
    CHECK_OK(ddp_augment_parse("none", &a));
    assert_true(a.given && !a.crop && !a.flip && !a.resized_crop && a.cutout == 0);
    CHECK_OK(ddp_augment_parse("cutout:7,flip,crop", &a));
    assert_true(a.given && a.crop && a.flip && !a.resized_crop);
    assert_int_equal(a.padding, 4);
    assert_int_equal(a.cutout, 7);
    CHECK_OK(ddp_augment_parse("rrc:224,cutout", &a));
    assert_true(a.resized_crop && !a.crop && !a.flip);
    assert_int_equal(a.size, 224);
    assert_int_equal(a.cutout, 16);
    CHECK_OK(ddp_augment_parse("crop:0", &a));
    assert_true(a.crop && a.padding == 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_FAILS(ddp_augment_parse(bad[i], &a), DDP_ERR_USAGE, "option --augment: found \"");
    CHECK_FAILS(ddp_augment_parse("flip,rot:4", &a), DDP_ERR_USAGE, "found \"rot:4\"");
    CHECK_FAILS(ddp_augment_parse("crop,rrc", &a), DDP_ERR_USAGE, "crop beside rrc");
}

static void check_refused(ddp_transform_opts opts, ddp_dataset_info info, const char *text)
{
    ddp_transform *t = NULL;
    CHECK_FAILS(ddp_transform_create(&opts, &info, false, &t), DDP_ERR_USAGE, text);
    CHECK_FAILS(ddp_transform_create(&opts, &info, true, &t), DDP_ERR_USAGE, text);
    assert_null(t);
}

static void test_refused(void **state)
{
    static const float mean[] = {0.5f, 0.5f, 0.5f}, zero[] = {1, 0, 1}, odd[] = {1, NAN, 1};
    ddp_dataset_info info = fixed_info(3, 32, 32), flat = fixed_info(3, 4, 1);
    (void)state;
    flat.shape.ndim = 2;
    check_refused((ddp_transform_opts){.augment = "rrc:20", .input_size = 24}, info,
                  "option --augment rrc: found 20, expected 24 as with --input-size");
    check_refused((ddp_transform_opts){.eval_crop = 30, .augment = "rrc:20"}, info,
                  "option --eval-crop: found 30, expected 20 as with --augment rrc");
    check_refused((ddp_transform_opts){.eval_resize = 31}, info,
                  "option --eval-resize: found 31, expected at least the input's size, 32");
    check_refused((ddp_transform_opts){.augment = "flip"}, flat, "samples of 2 dimensions");
    check_refused((ddp_transform_opts){.mean = mean, .deviation = mean, .channels = 2}, info,
                  "given for 2 channels, the data set has 3");
    check_refused((ddp_transform_opts){.mean = mean, .deviation = zero, .channels = 3}, info,
                  "channel 1: mean 0.5, deviation 0");
    check_refused((ddp_transform_opts){.mean = mean, .deviation = odd, .channels = 3}, info,
                  "channel 1");
    check_refused((ddp_transform_opts){.mean = mean, .channels = 3}, info,
                  "a mean and a deviation");
    ddp_transform *t = NULL;
    ddp_transform_opts none = {.augment = "none"};
    CHECK_OK(ddp_transform_create(&none, &flat, true, &t));
    ddp_transform_destroy(t);
}

static void check_text(const char *augment, int64_t input_size, bool training, const char *want)
{
    const ddp_transform_opts opts = {.augment = augment, .input_size = input_size};
    ddp_dataset_info info = fixed_info(3, 32, 40);
    ddp_transform *t = NULL;
    char text[160];
    CHECK_OK(ddp_transform_create(&opts, &info, training, &t));
    assert_string_equal(ddp_transform_describe(t, text, sizeof text), want);
    ddp_transform_destroy(t);
}

static void test_descriptions(void **state)
{
    (void)state;
    check_text(NULL, 0, true, "");
    check_text("crop:4,flip,cutout:8", 0, false, "");
    check_text("crop:4,flip,cutout:8", 0, true,
               "zeros 4 wide, random crop of 32 x 40, flip, cutout 8");
    check_text("flip", 24, true, "shorter side to 24, centre of 24 x 24, flip");
    check_text("rrc:21,flip", 0, true, "rrc to 21 x 21, flip");
    check_text("rrc:21,flip", 0, false, "shorter side to 24, centre of 21 x 21");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_descriptions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
