/* test_weights_torch.c - files that PyTorch wrote (tests/data/weights) give PyTorch's logits here,
 * and go back as they came. */
#include "harness.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "ckpt/safetensors.h"
#include "ddp/fs.h"
#include "ddp/weights.h"
#include "model_fixture.h"

enum { SAMPLES = 4, CLASSES = 5 };

/* Two blocks of 4 and 8 channels, as make_torch_files.py has them. */
static ddp_status build(ddp_model_builder *builder, const ddp_model_opts *opts)
{
    const ddp_param_init draw = {DDP_INIT_NORMAL, 0.1};
#define CONV(NAME, INPUT, OUT, KERNEL, STRIDE)                                                     \
    {                                                                                              \
        .type = "conv2d", .name = (NAME), .input = (INPUT), .out = (OUT), .kernel = (KERNEL),      \
        .stride = (STRIDE), .pad = (KERNEL) / 2, .no_bias = true, .weight_init = draw              \
    }
    const ddp_layer_spec layers[] = {
        CONV("conv1", NULL, 4, 7, 2),
        {.type = "batchnorm", .name = "bn1"},
        {.type = "relu", .name = "relu"},
        {.type = "maxpool", .name = "maxpool", .kernel = 3, .stride = 2, .pad = 1},
        CONV("layer1.0.conv1", NULL, 4, 3, 1),
        {.type = "batchnorm", .name = "layer1.0.bn1"},
        {.type = "relu", .name = "layer1.0.relu1"},
        CONV("layer1.0.conv2", NULL, 4, 3, 1),
        {.type = "batchnorm", .name = "layer1.0.bn2"},
        {.type = "add", .name = "layer1.0.add", .input2 = "maxpool"},
        {.type = "relu", .name = "layer1.0.relu2"},
        CONV("layer2.0.downsample.0", NULL, 8, 1, 2),
        {.type = "batchnorm", .name = "layer2.0.downsample.1"},
        CONV("layer2.0.conv1", "layer1.0.relu2", 8, 3, 2),
        {.type = "batchnorm", .name = "layer2.0.bn1"},
        {.type = "relu", .name = "layer2.0.relu1"},
        CONV("layer2.0.conv2", NULL, 8, 3, 1),
        {.type = "batchnorm", .name = "layer2.0.bn2"},
        {.type = "add", .name = "layer2.0.add", .input2 = "layer2.0.downsample.1"},
        {.type = "relu", .name = "layer2.0.relu2"},
        {.type = "globalavgpool", .name = "avgpool"},
        {.type = "flatten", .name = "flatten"},
        {.type = "linear", .name = "fc", .out = opts->classes, .weight_init = draw},
    };
#undef CONV
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++)
        DDP_TRY(ddp_model_add(builder, &layers[i]));
    return DDP_OK;
}

/* A file in memory. */
typedef struct opened {
    char *text;
    ddpi_safetensors file;
} opened;

static void open_file(opened *o, const char *path)
{
    size_t bytes;
    CHECK_OK(ddp_fs_read(path, 1 << 20, &o->text, &bytes));
    CHECK_OK(ddpi_safetensors_parse(o->text, bytes, path, &o->file));
}

static void close_file(opened *o)
{
    ddpi_safetensors_close(&o->file);
    ddp_free(o->text);
}

static const ddpi_safetensor *tensor_of(const opened *o, const char *name)
{
    for (size_t i = 0; i < o->file.count; i++)
        if (strcmp(o->file.tensors[i].name, name) == 0)
            return &o->file.tensors[i];
    fail_msg("%s is not in the file", name);
    return NULL;
}

/* The caller frees it: tensors need not be aligned in a file. */
static float *floats_of(const opened *o, const char *name)
{
    const ddpi_safetensor *tensor = tensor_of(o, name);
    float *copy;
    assert_int_equal(tensor->dtype, DDPI_ST_F32);
    CHECK_OK(ddp_alloc_bytes(tensor->end - tensor->begin, 1, (void **)(void *)&copy));
    memcpy(copy, o->file.data + tensor->begin, tensor->end - tensor->begin);
    return copy;
}

typedef struct net {
    model_fixture f;
    float *running;
    size_t running_bytes;
    ddp_weights weights;
} net;

static void open_net(net *t)
{
    static const ddp_model_def def = {"torch", "", build};
    const ddp_model_opts opts = {.input_shape = {3, {3, 16, 16}}, .classes = CLASSES};
    fixture_open(&t->f, &def, &opts, DDP_CONV_DIRECT, SAMPLES);
    CHECK_OK(ddp_model_plan(t->f.model, SAMPLES, false));
    const ddp_buffer_table *buffers = ddp_model_buffers(t->f.model);
    t->running_bytes = ddp_buffer_table_length(buffers) * sizeof(float);
    CHECK_OK(ddp_device_alloc(t->f.device, t->running_bytes, (void **)(void *)&t->running));
    ddp_model_bind_running(t->f.model, t->running);
    t->weights = (ddp_weights){.device = t->f.device,
                               .table = t->f.table,
                               .params = t->f.params,
                               .buffers = buffers,
                               .running = t->running};
}

static void close_net(net *t)
{
    ddp_device_free(t->f.device, t->running, t->running_bytes);
    fixture_close(&t->f);
}

static void check_logits(net *t, const char *wanted)
{
    opened o;
    const float *logits;
    double largest = 0;
    open_file(&o, DDP_TEST_DATA "/weights/logits.safetensors");
    float *inputs = floats_of(&o, "inputs"), *want = floats_of(&o, wanted);
    const ddp_model_input input = {.inputs = inputs, .count = SAMPLES};
    CHECK_OK(ddp_model_infer(t->f.model, &input, &logits, NULL));
    for (int i = 0; i < SAMPLES * CLASSES; i++) {
        largest = fmax(largest, fabs((double)want[i]));
        if (!(fabs((double)(logits[i] - want[i])) <= 1e-5))
            fail_msg("logit %d is %.8g, PyTorch's %s has %.8g", i, (double)logits[i], wanted,
                     (double)want[i]);
    }
    assert_true(largest > 0.1);
    ddp_free(inputs);
    ddp_free(want);
    close_file(&o);
}

static void a_state_dict_gives_the_same_logits(void **state)
{
    (void)state;
    net t;
    open_net(&t);
    CHECK_OK(ddp_weights_load(DDP_TEST_DATA "/weights/resnet.safetensors", false, &t.weights));
    assert_int_equal(t.weights.counter, 3);
    check_logits(&t, "logits");
    close_net(&t);
}

static void halves_of_a_wrapped_model_give_the_same_logits(void **state)
{
    (void)state;
    net t;
    open_net(&t);
    CHECK_OK(ddp_weights_load(DDP_TEST_DATA "/weights/wrapped.safetensors", false, &t.weights));
    assert_int_equal(t.weights.counter, 0);
    check_logits(&t, "wrapped_logits");
    close_net(&t);
}

static void a_state_dict_goes_back_as_it_came(void **state)
{
    (void)state;
    net t;
    opened theirs, ours;
    char path[] = "/tmp/ddp_torch_XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    open_net(&t);
    CHECK_OK(ddp_weights_load(DDP_TEST_DATA "/weights/resnet.safetensors", false, &t.weights));
    CHECK_OK(ddp_weights_save(path, &t.weights));
    open_file(&theirs, DDP_TEST_DATA "/weights/resnet.safetensors");
    open_file(&ours, path);
    assert_int_equal(ours.file.count, theirs.file.count);
    for (size_t i = 0; i < theirs.file.count; i++) {
        const ddpi_safetensor *a = &theirs.file.tensors[i], *b = tensor_of(&ours, a->name);
        assert_int_equal(a->dtype, b->dtype);
        assert_true(ddp_shape_equal(&a->shape, &b->shape));
        assert_memory_equal(theirs.file.data + a->begin, ours.file.data + b->begin,
                            a->end - a->begin);
    }
    close_file(&theirs);
    close_file(&ours);
    close_net(&t);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_state_dict_gives_the_same_logits),
        cmocka_unit_test(halves_of_a_wrapped_model_give_the_same_logits),
        cmocka_unit_test(a_state_dict_goes_back_as_it_came),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
