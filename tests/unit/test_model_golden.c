/* test_model_golden.c - the named models against float64 values from PyTorch: loss, logits, outputs
 * of layers, every gradient, and five steps of plain SGD. */
#include "harness.h"

#include "golden.h"
#include "model_fixture.h"

/* The files were made in float64. Their own float32 runs differ by 1e-6 in the worst gradient; 1e-4
 * leaves room for other kernels, and no wrong index or factor is that small. */
static const double TOLERANCE = 1e-4;

typedef struct golden_run {
    ddp_json *golden;
    model_fixture f;
    float *inputs;
    int32_t *labels;
    int64_t batch;
    ddp_model_input input; /* the same in the device's memory */
} golden_run;

static const char *string(const ddp_json *object, const char *key)
{
    const char *value = NULL;
    assert_true(ddp_json_as_string(ddp_json_get(object, key), &value));
    return value;
}

static void check_near(const char *what, const char *which, double got, double want, double scale)
{
    if (!(fabs(got - want) <= TOLERANCE * scale))
        fail_msg("%s %s is %.9g, want %.9g (tolerance %.3g)", what, which, got, want,
                 TOLERANCE * scale);
}

/* Compares the three numbers by which the files describe a tensor. A single element is compared
 * relative to the tensor's root mean square, since elements near 0 are sums that cancel; so is the
 * mean. */
static void check_stats(const char *what, const ddp_json *want, const float *values, size_t count)
{
    double squares = 0, sum = 0;
    for (size_t i = 0; i < count; i++) {
        squares += (double)values[i] * values[i];
        sum += values[i];
    }
    const double l2 = golden_number(want, "l2"), rms = l2 / sqrt((double)count);
    check_near(what, "l2", sqrt(squares), l2, l2);
    check_near(what, "mean", sum / (double)count, golden_number(want, "mean"), rms);
    const ddp_json *first = ddp_json_get(want, "first4");
    for (size_t i = 0; i < ddp_json_length(first); i++)
        check_near(what, "element", values[i], golden_element(first, i), rms);
}

static void open_run(golden_run *run, const char *file, const ddp_model_def *def, int64_t classes,
                     ddp_conv_algo algo)
{
    uint32_t state;
    CHECK_OK(golden_load(file, &run->golden));
    const ddp_json *x = ddp_json_get(run->golden, "x"), *y = ddp_json_get(run->golden, "y");
    run->batch = (int64_t)golden_number(run->golden, "batch");
    const ddp_model_opts opts = {.input_shape = {3, {1, 28, 28}},
                                 .classes = classes,
                                 .mlp_widths = "256,128",
                                 .keep_outputs = true};
    fixture_open(&run->f, def, &opts, algo, run->batch);
    const size_t values = (size_t)run->batch * 28 * 28;
    CHECK_OK(DDP_ALLOC(run->inputs, values));
    CHECK_OK(DDP_ALLOC(run->labels, (size_t)run->batch));

    /* The generator runs through all of the file's parameters, the model's or not. */
    int64_t draws =
        (int64_t)golden_number(run->golden, "draws_total") - (int64_t)values - run->batch;
    state = (uint32_t)golden_number(run->golden, "seed");
    for (int64_t i = 0; i < draws; i++)
        golden_next(&state);
    for (size_t i = 0; i < values; i++)
        run->inputs[i] = golden_unit(&state);
    for (size_t i = 0; i < (size_t)run->batch; i++) {
        run->labels[i] = (int32_t)((golden_next(&state) >> 16) % 10);
        assert_int_equal(run->labels[i], (int)golden_element(y, i));
    }
    assert_true((double)state == golden_number(run->golden, "last_state"));
    check_stats("x", ddp_json_get(x, "value"), run->inputs, values);
    run->input = (ddp_model_input){
        .inputs = fixture_upload(&run->f, run->inputs, values * sizeof(float)),
        .labels = fixture_upload(&run->f, run->labels, (size_t)run->batch * sizeof(int32_t)),
        .count = run->batch};
}

static void set_params(golden_run *run)
{
    uint32_t state;
    CHECK_OK(
        golden_set_params_from(run->golden, &state, run->f.device, run->f.table, run->f.params));
}

static void close_run(golden_run *run)
{
    const size_t count = (size_t)run->batch;
    ddp_device_free(run->f.device, (void *)run->input.inputs, count * 28 * 28 * sizeof(float));
    ddp_device_free(run->f.device, (void *)run->input.labels, count * sizeof(int32_t));
    fixture_close(&run->f);
    ddp_free(run->inputs);
    ddp_free(run->labels);
    ddp_json_destroy(run->golden);
}

/* Every parameter in flat against the file's numbers under `key`, scaled by factor first. */
static double check_params(golden_run *run, const char *key, const float *flat, double factor)
{
    const ddp_json *params = ddp_json_get(run->golden, "params");
    double squares = 0;
    assert_int_equal(ddp_json_length(params), ddp_param_table_count(run->f.table));
    for (size_t i = 0; i < ddp_json_length(params); i++) {
        const ddp_json *entry = ddp_json_at(params, i);
        const ddp_param *param = ddp_param_table_at(
            run->f.table, ddp_param_table_find(run->f.table, string(entry, "name")));
        const size_t count = (size_t)ddp_shape_count(&param->shape);
        assert_int_equal(param->init_number, i);
        float *plain;
        CHECK_OK(DDP_ALLOC(plain, count));
        CHECK_OK(ddp_param_export(run->f.device, param, flat, plain));
        for (size_t j = 0; j < count; j++) {
            plain[j] = (float)(plain[j] * factor);
            squares += (double)plain[j] * plain[j];
        }
        check_stats(param->name, ddp_json_get(entry, key), plain, count);
        ddp_free(plain);
    }
    return sqrt(squares);
}

static void check_logits(golden_run *run)
{
    const ddp_json *rows = ddp_json_get(run->golden, "logits");
    const size_t count = (size_t)run->batch * 10;
    ddp_stream *stream = ddp_device_main_stream(run->f.device);
    const float *on_device;
    float *logits;
    double loss = 0;
    CHECK_OK(DDP_ALLOC(logits, count));
    CHECK_OK(ddp_model_plan(run->f.model, run->batch, false));
    CHECK_OK(ddp_model_infer(run->f.model, &run->input, &on_device, &loss));
    CHECK_OK(ddp_device_copy(run->f.device, stream, logits, on_device, count * sizeof *logits,
                             DDP_COPY_TO_HOST));
    CHECK_OK(ddp_stream_sync(stream));
    check_near("inference", "loss", loss / (double)run->batch, golden_number(run->golden, "loss"),
               1);
    for (size_t n = 0; n < ddp_json_length(rows); n++)
        for (size_t c = 0; c < 10; c++) {
            const double want = golden_element(ddp_json_at(rows, n), c);
            check_near("logits", "element", logits[n * 10 + c], want, 0.1);
        }
    ddp_free(logits);
}

/* Outputs with a fused relu are compared before it by the tests of prefixes below. */
static void check_last_outputs(golden_run *run, const char *const *names)
{
    const ddp_json *outputs = ddp_json_get(run->golden, "activations");
    int found = 0, wanted = 0;
    for (size_t i = 0; i < ddp_json_length(outputs); i++) {
        const ddp_json *entry = ddp_json_at(outputs, i);
        const ddp_json *dims = ddp_json_get(entry, "shape");
        for (int k = 0; names[k] != NULL; k++) {
            if (strcmp(names[k], string(entry, "name")) != 0)
                continue;
            size_t count = 1;
            float *plain;
            for (size_t d = 0; d < ddp_json_length(dims); d++)
                count *= (size_t)golden_element(dims, d);
            CHECK_OK(DDP_ALLOC(plain, count));
            CHECK_OK(ddp_model_export_output(run->f.model, names[k], plain, count));
            check_stats(names[k], entry, plain, count);
            ddp_free(plain);
            found++;
        }
    }
    while (names[wanted] != NULL)
        wanted++;
    assert_int_equal(found, wanted);
}

static void train_and_check(golden_run *run)
{
    const ddp_json *losses = ddp_json_get(run->golden, "losses");
    const ddp_sgd_args sgd = {.lr = golden_number(run->golden, "lr"),
                              .inv_count = 1.0 / (double)run->batch};
    const size_t length = ddp_param_table_length(run->f.table);
    const size_t steps = ddp_json_length(losses) - 1;
    assert_int_equal(steps, 5);
    for (size_t step = 0;; step++) {
        const double loss = fixture_loss(&run->f, &run->input) / (double)run->batch;
        check_near("training", "loss", loss, golden_element(losses, step),
                   golden_element(losses, step));
        if (step == steps)
            break;
        CHECK_OK(ddp_model_backward(run->f.model));
        if (step == 0)
            check_near("gradient", "l2", check_params(run, "grad", run->f.grads, sgd.inv_count),
                       golden_number(run->golden, "total_grad_l2"),
                       golden_number(run->golden, "total_grad_l2"));
        CHECK_OK(ddp_op_sgd(run->f.device, ddp_device_main_stream(run->f.device), &sgd,
                            run->f.params, run->f.grads, NULL, length, NULL));
    }
    check_params(run, "after_5_steps", run->f.params, 1);
}

static void check_model(const char *file, const ddp_model_def *def, const char *const *outputs,
                        ddp_conv_algo algo)
{
    golden_run run;
    open_run(&run, file, def, 10, algo);
    set_params(&run);
    check_params(&run, "value", run.f.params, 1);
    check_logits(&run);
    fixture_loss(&run.f, &run.input);
    check_last_outputs(&run, outputs);
    train_and_check(&run);
    close_run(&run);
}

static const char *const lenet_outputs[] = {"pool1", "pool2", "fc2", NULL};
static const char *const mlp_outputs[] = {"fc3", NULL};

static void lenet_equals_float64_with_direct_convolution(void **state)
{
    (void)state;
    check_model("golden_lenet.json", ddp_model_lenet(), lenet_outputs, DDP_CONV_DIRECT);
}

static void lenet_equals_float64_with_gemm_convolution(void **state)
{
    (void)state;
    check_model("golden_lenet.json", ddp_model_lenet(), lenet_outputs, DDP_CONV_GEMM);
}

static void lenet_equals_float64_with_chosen_convolution(void **state)
{
    (void)state;
    check_model("golden_lenet.json", ddp_model_lenet(), lenet_outputs, DDP_CONV_AUTO);
}

static void mlp_equals_float64(void **state)
{
    (void)state;
    check_model("golden_mlp.json", ddp_model_mlp(), mlp_outputs, DDP_CONV_AUTO);
}

/* ---- outputs before the relu: models that end at the layer ---- */

/* Layers of lenet, cut after `count`; the flatten makes any output [n][classes]. */
static ddp_status build_lenet_prefix(ddp_model_builder *builder, int count)
{
    const ddp_layer_spec layers[] = {
        {.type = "conv2d", .name = "conv1", .out = 20, .kernel = 3},
        {.type = "relu", .name = "relu1"},
        {.type = "avgpool", .name = "pool1", .kernel = 2},
        {.type = "conv2d", .name = "conv2", .out = 50, .kernel = 5},
        {.type = "relu", .name = "relu2"},
        {.type = "avgpool", .name = "pool2", .kernel = 2},
        {.type = "flatten", .name = "flatten"},
        {.type = "linear", .name = "fc1", .out = 128},
    };
    for (int i = 0; i < count; i++)
        DDP_TRY(ddp_model_add(builder, &layers[i]));
    const ddp_layer_spec end = {.type = "flatten", .name = "end"};
    return count < 7 ? ddp_model_add(builder, &end) : DDP_OK;
}

static ddp_status build_to_conv1(ddp_model_builder *builder, const ddp_model_opts *opts)
{
    (void)opts;
    return build_lenet_prefix(builder, 1);
}

static ddp_status build_to_conv2(ddp_model_builder *builder, const ddp_model_opts *opts)
{
    (void)opts;
    return build_lenet_prefix(builder, 4);
}

static ddp_status build_to_fc1(ddp_model_builder *builder, const ddp_model_opts *opts)
{
    (void)opts;
    return build_lenet_prefix(builder, 8);
}

static void check_prefix(ddp_status (*build)(ddp_model_builder *, const ddp_model_opts *),
                         int64_t classes, const char *const *outputs, ddp_conv_algo algo)
{
    const ddp_model_def def = {"prefix", "", build};
    golden_run run;
    open_run(&run, "golden_lenet.json", &def, classes, algo);
    const ddp_json *params = ddp_json_get(run.golden, "params");
    uint32_t state = (uint32_t)golden_number(run.golden, "seed");
    for (size_t i = 0; i < (size_t)ddp_param_table_count(run.f.table); i++)
        CHECK_OK(golden_set_one(ddp_json_at(params, i), &state, run.f.device, run.f.table,
                                run.f.params));
    fixture_loss(&run.f, &run.input);
    check_last_outputs(&run, outputs);
    close_run(&run);
}

static void outputs_before_relu_equal_float64(void **state)
{
    (void)state;
    static const char *const conv1[] = {"conv1", NULL}, *const conv2[] = {"pool1", "conv2", NULL},
                             *const fc1[] = {"pool2", "fc1", NULL};
    const ddp_conv_algo algos[] = {DDP_CONV_DIRECT, DDP_CONV_GEMM};
    for (int i = 0; i < 2; i++) {
        check_prefix(build_to_conv1, 20 * 26 * 26, conv1, algos[i]);
        check_prefix(build_to_conv2, 50 * 9 * 9, conv2, algos[i]);
        check_prefix(build_to_fc1, 128, fc1, algos[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lenet_equals_float64_with_direct_convolution),
        cmocka_unit_test(lenet_equals_float64_with_gemm_convolution),
        cmocka_unit_test(lenet_equals_float64_with_chosen_convolution),
        cmocka_unit_test(mlp_equals_float64),
        cmocka_unit_test(outputs_before_relu_equal_float64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
