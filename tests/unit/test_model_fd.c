/* test_model_fd.c - gradients against central differences of the loss, for every layer type.
 *
 * For a direction v, (L(w + e v) - L(w - e v)) / 2e is compared with the product of gradient and v.
 * v has random signs, so the product is of the size of the gradient's length g = |grad|, and a
 * gradient that is wrong in some elements is off by their length.
 *
 * Tolerance: L is a sum of six single-precision losses around 2, so its rounding is about 1e-6. The
 * steps have |e v| = 0.008, 0.002 and 0.0005, so rounding puts an error of 1e-6 |v| / 0.001 = 1e-3
 * |v| on the smallest, where |v| (root of the number of elements) is below 20 and g is above 1: 2%
 * at the very worst. Curvature adds less than that even on the largest. What remains are units of
 * relu and maximum that switch inside a step; a smaller step lies beside them, so the best of the
 * three counts. A wrong factor, index or missing term is off by about g in most directions, on all
 * three. */
#include "harness.h"

#include "model_fixture.h"

enum { BATCH = 6, CLASSES = 5, DIRECTIONS = 6, SIDE = 11, CHANNELS = 3 };
static const double STEP_LENGTHS[] = {0.008, 0.002, 0.0005};
static const double TOLERANCE = 0.02;

#define DRAW(width) .weight_init = {DDP_INIT_UNIFORM, (width)}, .bias_init = {DDP_INIT_UNIFORM, 0.2}

static ddp_status add_all(ddp_model_builder *builder, const ddp_layer_spec *specs, int count)
{
    for (int i = 0; i < count; i++)
        DDP_TRY(ddp_model_add(builder, &specs[i]));
    return DDP_OK;
}

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

static double sum_squares(const float *values, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += (double)values[i] * values[i];
    return sum;
}

/* Random signs on a parameter's elements, 0 elsewhere; padding stays out. */
static void make_direction(model_fixture *f, int index, uint32_t number, float *direction)
{
    const ddp_param *param = ddp_param_table_at(f->table, index);
    const ddp_rng rng = ddp_rng_make(99, DDP_RNG_TEST, 100 + number);
    const size_t count = (size_t)ddp_shape_count(&param->shape);
    float *plain;
    CHECK_OK(DDP_ALLOC(plain, count));
    for (size_t i = 0; i < count; i++)
        plain[i] = ddp_rng_u32(&rng, i) & 1 ? 1.0f : -1.0f;
    CHECK_OK(ddp_param_import(f->device, param, plain, direction));
    ddp_free(plain);
}

static double loss_at(model_fixture *f, const ddp_model_input *input, const float *start,
                      const float *direction, double step)
{
    const size_t length = f->bytes / sizeof(float);
    for (size_t i = 0; i < length; i++)
        f->params[i] = (float)(start[i] + step * direction[i]);
    return fixture_loss(f, input);
}

static void check_direction(model_fixture *f, const ddp_model_input *input, const char *what,
                            const float *start, const float *direction)
{
    const size_t length = f->bytes / sizeof(float);
    const double size = sqrt(sum_squares(direction, length));
    double product = 0, gradient = 0, nearest = INFINITY;
    for (size_t i = 0; i < length; i++) {
        product += (double)f->grads[i] * direction[i];
        if (direction[i] != 0)
            gradient += (double)f->grads[i] * f->grads[i];
    }
    gradient = sqrt(gradient);
    if (gradient < 1e-2)
        fail_msg("%s: the gradient's length is %g: too small to say anything", what, gradient);
    for (int i = 0; i < 3; i++) {
        const double step = STEP_LENGTHS[i] / size;
        const double above = loss_at(f, input, start, direction, step);
        const double difference = (above - loss_at(f, input, start, direction, -step)) / (2 * step);
        if (fabs(product - difference) < fabs(product - nearest))
            nearest = difference;
    }
    if (!(fabs(product - nearest) <= TOLERANCE * gradient))
        fail_msg("%s: gradient says %.6g, differences say %.6g (length %.4g)", what, product,
                 nearest, gradient);
}

static void check_model(const char *name,
                        ddp_status (*build)(ddp_model_builder *, const ddp_model_opts *),
                        double smoothing, ddp_conv_algo algo)
{
    const ddp_model_def def = {name, "", build};
    const ddp_model_opts opts = {.input_shape = {3, {CHANNELS, SIDE, SIDE}},
                                 .classes = CLASSES,
                                 .label_smoothing = smoothing};
    model_fixture f;
    float *inputs, *start, *direction;
    int32_t *labels;
    fixture_open(&f, &def, &opts, algo, BATCH);
    fixture_samples(5, CHANNELS * SIDE * SIDE, BATCH, CLASSES, &inputs, &labels);
    const ddp_model_input input = {.inputs = inputs, .labels = labels, .count = BATCH};
    CHECK_OK(ddp_param_table_init(f.device, f.table, 3, f.params));
    CHECK_OK(ddp_alloc_bytes(f.bytes, 1, (void **)(void *)&start));
    CHECK_OK(ddp_alloc_bytes(f.bytes, 1, (void **)(void *)&direction));
    memcpy(start, f.params, f.bytes);
    fixture_loss(&f, &input);
    CHECK_OK(ddp_model_backward(f.model));
    const int params = ddp_param_table_count(f.table);
    for (int k = 0; k < DIRECTIONS; k++) {
        for (int i = 0; i < params; i++) {
            memset(direction, 0, f.bytes);
            make_direction(&f, i, (uint32_t)k, direction);
            check_direction(&f, &input, ddp_param_table_at(f.table, i)->name, start, direction);
        }
        memset(direction, 0, f.bytes);
        for (int i = 0; i < params; i++)
            make_direction(&f, i, (uint32_t)(1000 + k * params + i), direction);
        check_direction(&f, &input, "all parameters", start, direction);
    }
    ddp_free(inputs);
    ddp_free(labels);
    ddp_free(start);
    ddp_free(direction);
    fixture_close(&f);
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
