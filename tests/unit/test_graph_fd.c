/* test_graph_fd.c - models whose layers read two outputs or share one: gradients against central
 * differences, with recomputation of every kind, and what is refused. */
#include "harness.h"

#include "fd_check.h"

/* A block with a shortcut past two norms, both kinds of norm; its output is read three times: by a
 * convolution, by a plain sum with that, and by another sum. */
static ddp_status build_shared(ddp_model_builder *builder, const ddp_model_opts *opts)
{
    const ddp_layer_spec specs[] = {
        {.type = "conv2d",
         .name = "c1",
         .out = 18,
         .kernel = 3,
         .pad = 1,
         .no_bias = true,
         DRAW(0.4)},
        {.type = "batchnorm", .name = "n1", .bias_init = {DDP_INIT_UNIFORM, 0.5}},
        {.type = "relu", .name = "r1"},
        {.type = "conv2d",
         .name = "c2",
         .out = 18,
         .kernel = 3,
         .pad = 1,
         .no_bias = true,
         DRAW(0.2)},
        {.type = "batchnorm", .name = "n2", .weight_init = {DDP_INIT_UNIFORM, 1.0}},
        {.type = "add", .name = "a1", .input = "n2", .input2 = "r1"},
        {.type = "relu", .name = "r2"},
        {.type = "conv2d", .name = "c3", .out = 18, .kernel = 1, DRAW(0.3)},
        {.type = "add", .name = "a2", .input = "c3", .input2 = "r2"},
        {.type = "relu", .name = "r3"},
        {.type = "add", .name = "a3", .input = "r2", .input2 = "r3"},
        {.type = "dropout", .name = "d", .rate = 0.3},
        {.type = "globalavgpool", .name = "g"},
        {.type = "flatten", .name = "f"},
        {.type = "linear", .name = "l", .out = opts->classes, DRAW(0.5)},
    };
    return add_all(builder, specs, sizeof specs / sizeof specs[0]);
}

/* The shortcut has a convolution, which comes behind the block's last norm and in front of it; a
 * sum of a layer with itself; a norm that nothing follows. */
static ddp_status build_shortcuts(ddp_model_builder *builder, const ddp_model_opts *opts)
{
    const ddp_layer_spec specs[] = {
        {.type = "conv2d",
         .name = "c1",
         .out = 7,
         .kernel = 3,
         .stride = 2,
         .no_bias = true,
         DRAW(0.4)},
        {.type = "batchnorm", .name = "n1", .eps = 1e-3, .momentum = 0.2},
        {.type = "conv2d",
         .name = "c2",
         .out = 9,
         .kernel = 3,
         .pad = 1,
         .stride = 2,
         .no_bias = true,
         DRAW(0.3)},
        {.type = "batchnorm", .name = "n2"},
        {.type = "conv2d",
         .name = "s1",
         .input = "n1",
         .out = 9,
         .kernel = 1,
         .stride = 2,
         DRAW(0.5)},
        {.type = "add", .name = "a1", .input = "n2", .input2 = "s1"},
        {.type = "relu", .name = "r1"},
        {.type = "conv2d",
         .name = "s2",
         .input = "r1",
         .out = 4,
         .kernel = 1,
         .no_bias = true,
         DRAW(0.4)},
        {.type = "conv2d",
         .name = "c3",
         .input = "r1",
         .out = 4,
         .kernel = 3,
         .pad = 1,
         .no_bias = true,
         DRAW(0.3)},
        {.type = "batchnorm", .name = "n3"},
        {.type = "add", .name = "a2", .input = "n3", .input2 = "s2"},
        {.type = "add", .name = "a3", .input = "a2", .input2 = "a2"},
        {.type = "flatten", .name = "f"},
        {.type = "linear", .name = "l", .out = opts->classes, DRAW(0.2)},
    };
    return add_all(builder, specs, sizeof specs / sizeof specs[0]);
}

static void shared_outputs_sum_their_gradients(void **state)
{
    (void)state;
    check_model("shared", build_shared, 0, DDP_CONV_DIRECT);
    check_model("shared", build_shared, 0, DDP_CONV_GEMM);
    check_model("shared", build_shared, 0, DDP_CONV_AUTO);
}

static void shortcuts_of_every_kind(void **state)
{
    (void)state;
    check_model("shortcuts", build_shortcuts, 0, DDP_CONV_DIRECT);
    check_model("shortcuts", build_shortcuts, 0, DDP_CONV_GEMM);
    check_model("shortcuts", build_shortcuts, 0, DDP_CONV_AUTO);
}

/* Gradients of one pass, in plain bytes. The caller frees them. */
static float *gradients(ddp_status (*build)(ddp_model_builder *, const ddp_model_opts *),
                        ddp_recompute recompute, size_t *bytes_out)
{
    const ddp_model_def def = {"graph", "", build};
    const ddp_model_opts opts = {
        .input_shape = {3, {CHANNELS, SIDE, SIDE}}, .classes = CLASSES, .recompute = recompute};
    model_fixture f;
    float *inputs, *copy;
    int32_t *labels;
    fixture_open(&f, &def, &opts, DDP_CONV_DIRECT, BATCH);
    fixture_samples(5, CHANNELS * SIDE * SIDE, BATCH, CLASSES, &inputs, &labels);
    const ddp_model_input input = {
        .inputs = inputs, .labels = labels, .count = BATCH, .sample_ids = SAMPLE_IDS};
    CHECK_OK(ddp_param_table_init(f.device, f.table, 3, f.params));
    fixture_loss(&f, &input);
    CHECK_OK(ddp_model_backward(f.model));
    CHECK_OK(ddp_alloc_bytes(f.bytes, 1, (void **)(void *)&copy));
    memcpy(copy, f.grads, f.bytes);
    *bytes_out = f.bytes;
    ddp_free(inputs);
    ddp_free(labels);
    fixture_close(&f);
    return copy;
}

static void recomputed_graphs_give_the_same_bits(void **state)
{
    (void)state;
    ddp_status (*const builds[])(ddp_model_builder *, const ddp_model_opts *) = {build_shared,
                                                                                 build_shortcuts};
    for (int b = 0; b < 2; b++) {
        size_t bytes;
        float *want = gradients(builds[b], DDP_RECOMPUTE_NONE, &bytes);
        for (int recompute = DDP_RECOMPUTE_CHEAP; recompute <= DDP_RECOMPUTE_SEGMENTS;
             recompute++) {
            float *got = gradients(builds[b], (ddp_recompute)recompute, &bytes);
            assert_memory_equal(got, want, bytes);
            ddp_free(got);
        }
        ddp_free(want);
    }
}

/* What dropout leaves depends on the samples' numbers and the seed, not on their places. */
static void dropout_follows_the_sample(void **state)
{
    (void)state;
    const ddp_model_def def = {"shared", "", build_shared};
    const ddp_model_opts opts = {.input_shape = {3, {CHANNELS, SIDE, SIDE}}, .classes = CLASSES};
    const int64_t numbers[] = {40, 7, 7}, others[] = {41};
    model_fixture f;
    float *inputs;
    int32_t *labels;
    fixture_open(&f, &def, &opts, DDP_CONV_DIRECT, 1);
    fixture_samples(5, CHANNELS * SIDE * SIDE, 1, CLASSES, &inputs, &labels);
    CHECK_OK(ddp_param_table_init(f.device, f.table, 3, f.params));
    ddp_model_input input = {.inputs = inputs, .labels = labels, .count = 1, .seed = 9};
    double plain;
    CHECK_FAILS(ddp_model_forward(f.model, &input, &plain), DDP_ERR_INTERNAL, "numbers");
    input.sample_ids = numbers;
    plain = fixture_loss(&f, &input);
    input.sample_ids = numbers + 1;
    const double seven = fixture_loss(&f, &input);
    input.sample_ids = numbers + 2;
    assert_true(fixture_loss(&f, &input) == seven);
    input.sample_ids = others;
    assert_true(fixture_loss(&f, &input) != seven);
    input.sample_ids = numbers + 1;
    input.seed = 10;
    assert_true(fixture_loss(&f, &input) != seven && plain != seven);
    ddp_free(inputs);
    ddp_free(labels);
    fixture_close(&f);
}

static double length_of(const model_fixture *f, const char *name)
{
    const int index = ddp_param_table_find(f->table, name);
    assert_true(index >= 0);
    const ddp_param *param = ddp_param_table_at(f->table, index);
    return sqrt(sum_squares(f->grads + param->offset, param->count));
}

/* Frozen layers at the start end backward early, one in between costs no weights' pass; the others'
 * gradients stay what they were. */
static void frozen_layers_get_no_gradient(void **state)
{
    (void)state;
    static const char *const frozen[] = {"c1.weight", "n1.weight", "n1.bias", "c3.weight",
                                         "c3.bias"};
    static const char *const others[] = {"c2.weight", "n2.weight", "n2.bias", "l.weight"};
    const ddp_model_def def = {"shared", "", build_shared};
    const ddp_model_opts opts = {.input_shape = {3, {CHANNELS, SIDE, SIDE}}, .classes = CLASSES};
    model_fixture f;
    float *inputs;
    int32_t *labels;
    double before[4];
    fixture_open(&f, &def, &opts, DDP_CONV_DIRECT, BATCH);
    fixture_samples(5, CHANNELS * SIDE * SIDE, BATCH, CLASSES, &inputs, &labels);
    const ddp_model_input input = {
        .inputs = inputs, .labels = labels, .count = BATCH, .sample_ids = SAMPLE_IDS};
    CHECK_OK(ddp_param_table_init(f.device, f.table, 3, f.params));
    for (int frozen_pass = 0; frozen_pass < 2; frozen_pass++) {
        if (frozen_pass)
            CHECK_OK(ddp_param_table_freeze(f.table, "c1.*,n1.*,c3.*"));
        fixture_loss(&f, &input);
        CHECK_OK(ddp_model_backward(f.model)); /* every parameter is announced, or it fails */
        for (int i = 0; i < 5; i++)
            assert_true((length_of(&f, frozen[i]) == 0) == frozen_pass);
        for (int i = 0; i < 4; i++) {
            assert_true(!frozen_pass || length_of(&f, others[i]) == before[i]);
            before[i] = length_of(&f, others[i]);
        }
    }
    ddp_free(inputs);
    ddp_free(labels);
    fixture_close(&f);
}

static ddp_layer_spec bad_end; /* of the model that build_bad() makes */

static ddp_status build_bad(ddp_model_builder *builder, const ddp_model_opts *opts)
{
    (void)opts;
    const ddp_layer_spec first[] = {
        {.type = "conv2d", .name = "c1", .out = 4, .kernel = 3},
        {.type = "conv2d", .name = "c2", .out = 4, .kernel = 3},
    };
    DDP_TRY(add_all(builder, first, 2));
    return ddp_model_add(builder, &bad_end);
}

static void bad_graphs_are_refused(void **state)
{
    (void)state;
    static const struct {
        ddp_layer_spec end;
        const char *message;
    } cases[] = {
        {{.type = "add", .name = "a", .input2 = "c9"},
         "layer a (add): there is no layer c9 before"},
        {{.type = "add", .name = "a"}, "layer a (add): it reads two layers"},
        {{.type = "add", .name = "a", .input = "c2", .input2 = "c1"}, "different shapes"},
        {{.type = "add", .name = "a", .input = "a", .input2 = "c1"}, "there is no layer a before"},
        {{.type = "flatten", .name = "f", .input = "c1"}, "layer c2 (conv2d): no layer reads"},
        {{.type = "batchnorm", .name = "n", .eps = -1}, "layer n (batchnorm)"},
        {{.type = "dropout", .name = "d", .rate = 1}, "layer d (dropout)"},
    };
    const ddp_model_def def = {"bad", "", build_bad};
    const ddp_model_opts opts = {.input_shape = {3, {1, 8, 8}}, .classes = 4 * 6 * 6};
    ddp_device_opts device_opts = DDP_DEVICE_OPTS_DEFAULTS;
    ddp_device *device;
    ddp_model *model;
    CHECK_OK(ddp_device_open(ddp_device_cpu(), &device_opts, &device));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bad_end = cases[i].end;
        CHECK_FAILS(ddp_model_create(&def, &opts, device, &model), DDP_ERR_SHAPE, cases[i].message);
    }
    ddp_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_outputs_sum_their_gradients),
        cmocka_unit_test(shortcuts_of_every_kind),
        cmocka_unit_test(recomputed_graphs_give_the_same_bits),
        cmocka_unit_test(dropout_follows_the_sample),
        cmocka_unit_test(frozen_layers_get_no_gradient),
        cmocka_unit_test(bad_graphs_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
