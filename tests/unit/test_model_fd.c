/* test_model_fd.c - gradients against central differences of the loss, for every layer type of one
 * source. */
#include "harness.h"

#include "fd_check.h"

/* Padding and strides in convolution and overlapping maximum; relu fused into both kinds of layer.
 */
static ddp_status build_strided(ddp_model_builder *builder, const ddp_model_opts *opts)
{
    const ddp_layer_spec specs[] = {
        {.type = "conv2d", .name = "c1", .out = 5, .kernel = 3, .stride = 2, .pad = 1, DRAW(0.4)},
        {.type = "relu", .name = "r1"},
        {.type = "maxpool", .name = "m1", .kernel = 3, .stride = 2, .pad = 1},
        {.type = "flatten", .name = "f"},
        {.type = "linear", .name = "l1", .out = 7, DRAW(0.4)},
        {.type = "relu", .name = "r2"},
        {.type = "linear", .name = "l2", .out = opts->classes, DRAW(0.6)},
    };
    return add_all(builder, specs, 7);
}

/* Overlapping average with padding, relu and flatten that nobody takes over, a convolution behind a
 * pool, no biases. */
static ddp_status build_standalone(ddp_model_builder *builder, const ddp_model_opts *opts)
{
    const ddp_layer_spec specs[] = {
        {.type = "conv2d", .name = "c1", .out = 6, .kernel = 3, .no_bias = true, DRAW(0.5)},
        {.type = "avgpool", .name = "a1", .kernel = 3, .stride = 2, .pad = 1},
        {.type = "relu", .name = "r1"},
        {.type = "conv2d", .name = "c2", .out = 4, .kernel = 2, .pad = 1, DRAW(0.5)},
        {.type = "maxpool", .name = "m1", .kernel = 2},
        {.type = "relu", .name = "r2"},
        {.type = "flatten", .name = "f"},
        {.type = "relu", .name = "r3"},
        {.type = "linear", .name = "l1", .out = opts->classes, .no_bias = true, DRAW(0.5)},
    };
    return add_all(builder, specs, 9);
}

/* Layers before the first parameters; a plain average; the flatten at the end makes the logits. */
static ddp_status build_late(ddp_model_builder *builder, const ddp_model_opts *opts)
{
    const ddp_layer_spec specs[] = {
        {.type = "maxpool", .name = "m1", .kernel = 2},
        {.type = "relu", .name = "r1"},
        {.type = "conv2d", .name = "c1", .out = opts->classes, .kernel = 2, DRAW(0.8)},
        {.type = "avgpool", .name = "a1", .kernel = 4},
        {.type = "flatten", .name = "f"},
    };
    return add_all(builder, specs, 5);
}

static ddp_status build_linear(ddp_model_builder *builder, const ddp_model_opts *opts)
{
    const ddp_layer_spec specs[] = {
        {.type = "flatten", .name = "f"},
        {.type = "linear", .name = "l1", .out = 9, DRAW(0.1)},
        {.type = "relu", .name = "r1"},
        {.type = "linear", .name = "l2", .out = opts->classes, DRAW(0.5)},
    };
    return add_all(builder, specs, 4);
}

static void strided_padded_and_fused_layers(void **state)
{
    (void)state;
    check_model("strided", build_strided, 0, DDP_CONV_DIRECT);
    check_model("strided", build_strided, 0, DDP_CONV_GEMM);
    check_model("strided", build_strided, 0.1, DDP_CONV_AUTO);
}

static void layers_that_stand_alone(void **state)
{
    (void)state;
    check_model("standalone", build_standalone, 0, DDP_CONV_DIRECT);
    check_model("standalone", build_standalone, 0, DDP_CONV_GEMM);
    check_model("standalone", build_standalone, 0.2, DDP_CONV_AUTO);
}

static void layers_before_the_first_parameters(void **state)
{
    (void)state;
    check_model("late", build_late, 0, DDP_CONV_DIRECT);
    check_model("late", build_late, 0, DDP_CONV_GEMM);
    check_model("late", build_late, 0.3, DDP_CONV_AUTO);
}

static void linear_layers_with_label_smoothing(void **state)
{
    (void)state;
    check_model("linear", build_linear, 0, DDP_CONV_AUTO);
    check_model("linear", build_linear, 0.1, DDP_CONV_AUTO);
}

/* The differences above would not notice a smoothing that is wrong in loss and gradient alike. */
static void smoothed_loss_equals_its_definition(void **state)
{
    (void)state;
    const double smoothing = 0.15;
    const ddp_model_def def = {"linear", "", build_linear};
    const ddp_model_opts opts = {.input_shape = {3, {CHANNELS, SIDE, SIDE}},
                                 .classes = CLASSES,
                                 .label_smoothing = smoothing};
    model_fixture f;
    float *inputs, logits[BATCH * CLASSES];
    int32_t *labels;
    fixture_open(&f, &def, &opts, DDP_CONV_AUTO, BATCH);
    fixture_samples(5, CHANNELS * SIDE * SIDE, BATCH, CLASSES, &inputs, &labels);
    CHECK_OK(ddp_param_table_init(f.device, f.table, 3, f.params));
    const ddp_model_input input = {.inputs = inputs, .labels = labels, .count = BATCH};
    const double loss = fixture_loss(&f, &input);
    CHECK_OK(ddp_model_export_output(f.model, "l2", logits, BATCH * CLASSES));
    double want = 0;
    for (int n = 0; n < BATCH; n++) {
        const float *row = logits + n * CLASSES;
        double sum = 0;
        for (int c = 0; c < CLASSES; c++)
            sum += exp((double)row[c]);
        for (int c = 0; c < CLASSES; c++) {
            const double target = (1 - smoothing) * (c == labels[n]) + smoothing / CLASSES;
            want += target * (log(sum) - row[c]);
        }
    }
    if (!(fabs(loss - want) <= 1e-5 * want))
        fail_msg("loss %.9g, its definition gives %.9g", loss, want);
    ddp_free(inputs);
    ddp_free(labels);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strided_padded_and_fused_layers),
        cmocka_unit_test(layers_that_stand_alone),
        cmocka_unit_test(layers_before_the_first_parameters),
        cmocka_unit_test(linear_layers_with_label_smoothing),
        cmocka_unit_test(smoothed_loss_equals_its_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
