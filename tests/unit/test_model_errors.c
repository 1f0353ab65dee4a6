/* test_model_errors.c - what does not fit is refused with the layer's name, and calls out of order
 * are caught. */
#include "harness.h"

#include "model_fixture.h"

enum { MAX_SPECS = 8 };

/* What the next model is built of; build functions get no argument of their own. */
static ddp_layer_spec specs[MAX_SPECS];
static int spec_count;

static ddp_status build_specs(ddp_model_builder *builder, const ddp_model_opts *opts)
{
    (void)opts;
    for (int i = 0; i < spec_count; i++)
        DDP_TRY(ddp_model_add(builder, &specs[i]));
    return DDP_OK;
}

static const ddp_model_def custom = {"custom", "", build_specs};

static ddp_device *open_device(void)
{
    ddp_device_opts opts = DDP_DEVICE_OPTS_DEFAULTS;
    ddp_device *device;
    CHECK_OK(ddp_device_open(ddp_device_cpu(), &opts, &device));
    return device;
}

static ddp_status create_with(const ddp_model_def *def, const ddp_model_opts *opts)
{
    ddp_device *device = open_device();
    ddp_model *model = NULL;
    const ddp_status st = ddp_model_create(def, opts, device, &model);
    if (st != DDP_OK)
        assert_null(model);
    ddp_model_destroy(model);
    ddp_device_close(device);
    return st;
}

static ddp_status create_custom(const ddp_layer_spec *list, int count)
{
    const ddp_model_opts opts = {.input_shape = {3, {20, 3, 3}}, .classes = 10};
    spec_count = count;
    if (count > 0)
        memcpy(specs, list, (size_t)count * sizeof *list);
    return create_with(&custom, &opts);
}

static void check_message(const char *want)
{
    if (strstr(ddp_status_message(), want) == NULL)
        fail_msg("message \"%s\" does not contain \"%s\"", ddp_status_message(), want);
}

static void a_kernel_that_does_not_fit_names_layer_and_shapes(void **state)
{
    (void)state;
    const ddp_layer_spec conv = {.type = "conv2d", .name = "conv2", .out = 50, .kernel = 5};
    CHECK_FAILS(create_custom(&conv, 1), DDP_ERR_SHAPE, "layer conv2 (conv2d) on 20x3x3: ");
    check_message("kernel 5x5 does not fit");
    const ddp_layer_spec pool = {.type = "maxpool", .name = "pool9", .kernel = 4};
    CHECK_FAILS(create_custom(&pool, 1), DDP_ERR_SHAPE, "layer pool9 (maxpool) on 20x3x3: ");
    check_message("4x4");
    const ddp_model_opts tiny = {.input_shape = {3, {1, 4, 4}}, .classes = 10};
    CHECK_FAILS(create_with(ddp_model_lenet(), &tiny), DDP_ERR_SHAPE,
                "layer conv2 (conv2d) on 20x1x1: ");
}

static void senseless_numbers_name_the_layer(void **state)
{
    (void)state;
    const ddp_layer_spec bad[] = {
        {.type = "conv2d", .name = "a", .out = 0, .kernel = 3},
        {.type = "conv2d", .name = "a", .out = -4, .kernel = 3},
        {.type = "conv2d", .name = "a", .out = 4, .kernel = 0},
        {.type = "conv2d", .name = "a", .out = 4, .kernel = 3, .stride = -1},
        {.type = "conv2d", .name = "a", .out = 4, .kernel = 3, .pad = -1},
        {.type = "linear", .name = "a", .out = 0},
        {.type = "avgpool", .name = "a", .kernel = 0},
        {.type = "avgpool", .name = "a", .kernel = 2, .stride = -2},
        {.type = "maxpool", .name = "a", .kernel = 2, .pad = -1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK_FAILS(create_custom(&bad[i], 1), DDP_ERR_SHAPE, "layer a (");
}

static void an_unknown_type_lists_the_known_ones(void **state)
{
    (void)state;
    const ddp_layer_spec layer = {.type = "convv2d", .name = "conv1", .out = 3};
    CHECK_FAILS(create_custom(&layer, 1), DDP_ERR_UNSUPPORTED,
                "layer conv1: there is no layer type 'convv2d' (there are: conv2d, linear, relu, "
                "avgpool, maxpool, globalavgpool, flatten, batchnorm, add, dropout)");
    const ddp_layer_spec untyped = {.name = "conv1"};
    CHECK_FAILS(create_custom(&untyped, 1), DDP_ERR_UNSUPPORTED, "layer type ''");
}

static void names_must_be_there_once_and_short(void **state)
{
    (void)state;
    const ddp_layer_spec twice[] = {{.type = "flatten", .name = "x"},
                                    {.type = "relu", .name = "x"}};
    CHECK_FAILS(create_custom(twice, 2), DDP_ERR_SHAPE, "two layers of the name x");
    const ddp_layer_spec unnamed = {.type = "relu"};
    CHECK_FAILS(create_custom(&unnamed, 1), DDP_ERR_SHAPE, "layer number 1 has no name");
    const ddp_layer_spec empty = {.type = "relu", .name = ""};
    CHECK_FAILS(create_custom(&empty, 1), DDP_ERR_SHAPE, "layer number 1 has no name");
    const ddp_layer_spec lengthy = {
        .type = "linear", .name = "a-name-of-a-layer-that-goes-on-and-on-and-on-and-on", .out = 10};
    CHECK_FAILS(create_custom(&lengthy, 1), DDP_ERR_SHAPE, "name is longer than");
}

static void the_last_output_must_be_the_classes(void **state)
{
    (void)state;
    const ddp_layer_spec nine = {.type = "linear", .name = "fc", .out = 9};
    CHECK_FAILS(create_custom(&nine, 1), DDP_ERR_SHAPE,
                "layer fc (linear): the last layer's output for a sample is 9, but 10 classes need "
                "10 values");
    const ddp_layer_spec image = {.type = "conv2d", .name = "c", .out = 10, .kernel = 3};
    CHECK_FAILS(create_custom(&image, 1), DDP_ERR_SHAPE, "output for a sample is 10x1x1");
    CHECK_FAILS(create_custom(NULL, 0), DDP_ERR_SHAPE, "model custom has no layers");
}

static void options_are_checked(void **state)
{
    (void)state;
    ddp_model_opts opts = {.input_shape = {1, {784}}, .classes = 10};
    CHECK_FAILS(create_with(ddp_model_lenet(), &opts), DDP_ERR_SHAPE,
                "channels x height x width, not 784");
    opts.input_shape = (ddp_shape){3, {1, 0, 28}};
    CHECK_FAILS(create_with(ddp_model_lenet(), &opts), DDP_ERR_SHAPE, "1x0x28");
    opts.input_shape = (ddp_shape){3, {1, 28, 28}};
    opts.classes = 0;
    CHECK_FAILS(create_with(ddp_model_lenet(), &opts), DDP_ERR_SHAPE, "0 classes");
    opts.classes = 10;
    const double bad[] = {-0.1, 1.0, NAN};
    for (int i = 0; i < 3; i++) {
        opts.label_smoothing = bad[i];
        CHECK_FAILS(create_with(ddp_model_lenet(), &opts), DDP_ERR_USAGE, "label smoothing");
    }
}

static void widths_are_parsed_strictly(void **state)
{
    (void)state;
    ddp_model_opts opts = {.input_shape = {3, {1, 8, 8}}, .classes = 10};
    const char *const bad[] = {"",
                               ",",
                               "12,",
                               ",12",
                               "12,,3",
                               "0",
                               "-5",
                               "+5",
                               " 5",
                               "5 ",
                               "5;6",
                               "12x",
                               "0x10",
                               "1e3",
                               "5,abc",
                               "1.5",
                               "99999999999999999999",
                               "1048577"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        opts.mlp_widths = bad[i];
        CHECK_FAILS(create_with(ddp_model_mlp(), &opts), DDP_ERR_USAGE, "--mlp-widths");
    }
    char many[2 * 65 + 1] = "";
    for (int i = 0; i < 65; i++)
        memcpy(many + 2 * i, i < 64 ? "3," : "3", i < 64 ? 3 : 2);
    opts.mlp_widths = many;
    CHECK_FAILS(create_with(ddp_model_mlp(), &opts), DDP_ERR_USAGE, "more than 64 widths");

    opts.mlp_widths = "12,7,3";
    model_fixture f;
    fixture_open(&f, ddp_model_mlp(), &opts, DDP_CONV_AUTO, 2);
    assert_int_equal(ddp_param_table_count(f.table), 8);
    const ddp_param *fc2 = ddp_param_table_at(f.table, ddp_param_table_find(f.table, "fc2.weight"));
    const ddp_shape want = {2, {7, 12}};
    assert_true(ddp_shape_equal(&fc2->shape, &want));
    assert_true(fabs(fc2->init.scale - 1 / sqrt(12.0)) < 1e-12);
    fixture_close(&f);
}

static void calls_out_of_order_are_caught(void **state)
{
    (void)state;
    const ddp_model_opts opts = {.input_shape = {3, {1, 28, 28}}, .classes = 10};
    model_fixture f;
    float *inputs, row[10];
    int32_t *labels;
    const float *logits;
    double loss;
    fixture_open(&f, ddp_model_lenet(), &opts, DDP_CONV_AUTO, 2);
    fixture_samples(1, 28 * 28, 4, 10, &inputs, &labels);
    const ddp_model_input two = {.inputs = inputs, .labels = labels, .count = 2},
                          four = {.inputs = inputs, .labels = labels, .count = 4};
    CHECK_FAILS(ddp_model_backward(f.model), DDP_ERR_INTERNAL, "without a forward");
    CHECK_FAILS(ddp_model_forward(f.model, &four, &loss), DDP_ERR_INTERNAL,
                "no plan for training on 4 samples");
    CHECK_FAILS(ddp_model_infer(f.model, &two, &logits, NULL), DDP_ERR_INTERNAL,
                "no plan for inference over 2 samples");
    CHECK_FAILS(ddp_model_plan(f.model, 0, true), DDP_ERR_SHAPE, "0 samples");
    CHECK_FAILS(ddp_model_export_output(f.model, "fc2", row, 10), DDP_ERR_INTERNAL, "forward");
    CHECK_OK(ddp_model_forward(f.model, &two, &loss));
    CHECK_FAILS(ddp_model_export_output(f.model, "fc2", row, 10), DDP_ERR_SHAPE,
                "20 elements, not 10");
    CHECK_FAILS(ddp_model_export_output(f.model, "fc3", row, 10), DDP_ERR_SHAPE, "no layer fc3");
    CHECK_FAILS(ddp_model_plan(f.model, 4, true), DDP_ERR_INTERNAL,
                "between a forward and its backward");
    CHECK_OK(ddp_model_backward(f.model));
    CHECK_FAILS(ddp_model_backward(f.model), DDP_ERR_INTERNAL, "without a forward");
    CHECK_OK(ddp_model_plan(f.model, 4, true));
    CHECK_OK(ddp_model_forward(f.model, &four, &loss));
    ddp_free(inputs);
    ddp_free(labels);
    fixture_close(&f);
}

/* Not an error, but the place for what is said about a model. */
static void summary_and_fingerprint_describe_the_model(void **state)
{
    (void)state;
    const ddp_model_opts opts = {.input_shape = {3, {1, 28, 28}}, .classes = 10};
    model_fixture f;
    char *text;
    fixture_open(&f, ddp_model_lenet(), &opts, DDP_CONV_AUTO, 2);
    CHECK_OK(ddp_model_summary(f.model, &text));
    assert_non_null(strstr(text, "conv1"));
    assert_non_null(strstr(text, "20x26x26"));
    assert_non_null(strstr(text, "(fused)"));
    assert_non_null(strstr(text, "102528")); /* fc1 */
    assert_non_null(strstr(text, "129068 parameters"));
    ddp_free(text);
    CHECK_OK(ddp_model_fingerprint(f.model, &text));
    assert_non_null(strstr(text, "model=lenet\n"));
    assert_non_null(strstr(text, "param.conv2.weight=50x20x5x5 "));
    ddp_free(text);
    /* By hand: 26x26 outputs of 9 products, and so on; a multiply-add is two operations. */
    const double conv1 = 2.0 * 20 * 26 * 26 * 9, conv2 = 2.0 * 50 * 9 * 9 * 20 * 25,
                 fc = 2.0 * (800 * 128 + 128 * 10);
    const double forward = ddp_model_forward_flops(f.model);
    assert_true(forward >= conv1 + conv2 + fc && forward < 1.05 * (conv1 + conv2 + fc));
    const double train = ddp_model_train_flops(f.model);
    const double want = 3 * (conv1 + conv2 + fc) - conv1; /* nobody needs the samples' gradient */
    assert_true(train >= want && train < 1.05 * want);
    assert_string_equal(ddp_model_name(f.model), "lenet");
    assert_int_equal(ddp_model_classes(f.model), 10);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kernel_that_does_not_fit_names_layer_and_shapes),
        cmocka_unit_test(senseless_numbers_name_the_layer),
        cmocka_unit_test(an_unknown_type_lists_the_known_ones),
        cmocka_unit_test(names_must_be_there_once_and_short),
        cmocka_unit_test(the_last_output_must_be_the_classes),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(widths_are_parsed_strictly),
        cmocka_unit_test(calls_out_of_order_are_caught),
        cmocka_unit_test(summary_and_fingerprint_describe_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
