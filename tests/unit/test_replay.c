/* test_replay.c - what is not finite is found where it begins: inputs, parameters, outputs, loss,
 * gradients; a file of the micro-batch gives the same again, and files that are not whole are
 * refused. */
#include "harness.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "ddp/fs.h"
#include "ddp/memory.h"
#include "ddp/replay.h"

enum { COUNT = 3, CLASSES = 4, PIXELS = 16, HIDDEN = 5 };

typedef struct rig {
    ddp_device *device;
    ddp_model *model;
    float *params, *grads;
    size_t bytes;
    ddp_replay_parts parts;
    float inputs[COUNT * PIXELS];
    int32_t labels[COUNT];
    int64_t indices[COUNT];
} rig;

static void open_rig(rig *g)
{
    const ddp_device_opts device = DDP_DEVICE_OPTS_DEFAULTS;
    const ddp_model_opts opts = {
        .input_shape = {3, {1, 4, 4}}, .classes = CLASSES, .mlp_widths = "5"};
    void *memory;
    *g = (rig){.labels = {1, 0, 3}, .indices = {70, 8, 900}};
    CHECK_OK(ddp_device_open(ddp_device_cpu(), &device, &g->device));
    CHECK_OK(ddp_model_create(ddp_model_mlp(), &opts, g->device, &g->model));
    CHECK_OK(ddp_model_plan(g->model, COUNT, true));
    g->bytes = ddp_param_table_length(ddp_model_params(g->model)) * sizeof(float);
    CHECK_OK(ddp_device_alloc(g->device, g->bytes, &memory));
    g->params = memory;
    CHECK_OK(ddp_device_alloc(g->device, g->bytes, &memory));
    g->grads = memory;
    CHECK_OK(ddp_param_table_init(g->device, ddp_model_params(g->model), 1, g->params));
    ddp_model_bind(g->model, g->params, g->grads);
    for (int i = 0; i < COUNT * PIXELS; i++)
        g->inputs[i] = (float)(i % 7) / 7;
    g->parts =
        (ddp_replay_parts){.device = g->device,
                           .model = g->model,
                           .params = g->params,
                           .input = {.inputs = g->inputs, .labels = g->labels, .count = COUNT}};
}

static void close_rig(rig *g)
{
    ddp_device_free(g->device, g->params, g->bytes);
    ddp_device_free(g->device, g->grads, g->bytes);
    ddp_model_destroy(g->model);
    ddp_device_close(g->device);
}

/* Fills a parameter with a value. */
static void fill(rig *g, const char *name, float value)
{
    const ddp_param_table *table = ddp_model_params(g->model);
    const ddp_param *p = ddp_param_table_at(table, ddp_param_table_find(table, name));
    float plain[PIXELS * HIDDEN];
    for (size_t i = 0; i < PIXELS * HIDDEN; i++)
        plain[i] = value;
    CHECK_OK(ddp_param_import(g->device, p, plain, g->params));
}

static ddp_fault find(const rig *g)
{
    ddp_fault fault;
    double loss;
    CHECK_OK(ddp_find_fault(&g->parts, NULL, NULL, &loss, &fault));
    return fault;
}

/* ---- what is first ---- */

static void finite_numbers_are_no_fault(void **state)
{
    (void)state;
    rig g;
    open_rig(&g);
    assert_string_equal(find(&g).what, "");
    close_rig(&g);
}

static void a_sample_is_named_by_its_place(void **state)
{
    (void)state;
    rig g;
    open_rig(&g);
    g.inputs[PIXELS + 2] = NAN;
    g.inputs[2 * PIXELS + 3] = INFINITY;
    g.inputs[2 * PIXELS + 4] = INFINITY;
    const ddp_fault fault = find(&g);
    assert_string_equal(fault.what, "inputs");
    assert_int_equal(fault.bad, 3);
    assert_int_equal(fault.count, COUNT * PIXELS);
    assert_int_equal(fault.samples, 2);
    assert_int_equal(fault.places[0], 1);
    assert_int_equal(fault.places[1], 2);
    close_rig(&g);
}

static void a_parameter_comes_before_what_it_spoils(void **state)
{
    (void)state;
    rig g;
    open_rig(&g);
    fill(&g, "fc2.bias", NAN);
    const ddp_fault fault = find(&g);
    assert_string_equal(fault.what, "parameter fc2.bias");
    assert_int_equal(fault.bad, CLASSES);
    assert_int_equal(fault.samples, 0);
    close_rig(&g);
}

static void an_overflow_is_found_in_its_layer(void **state)
{
    (void)state;
    rig g;
    open_rig(&g);
    fill(&g, "fc1.weight", 3e38F);
    const ddp_fault fault = find(&g);
    assert_string_equal(fault.what, "output of layer fc1");
    assert_int_equal(fault.samples, COUNT);
    close_rig(&g);
}

/* All hidden units are 0, so that huge weights behind them do not show before backward. */
static void an_overflow_of_a_gradient_is_found(void **state)
{
    (void)state;
    rig g;
    open_rig(&g);
    fill(&g, "fc1.weight", 0);
    fill(&g, "fc1.bias", 0);
    fill(&g, "fc2.bias", 0);
    const ddp_param_table *table = ddp_model_params(g.model);
    const ddp_param *p = ddp_param_table_at(table, ddp_param_table_find(table, "fc2.weight"));
    float weights[HIDDEN * CLASSES];
    /* The class of all labels pulls one way, the others the other way: nothing cancels. */
    for (int i = 0; i < HIDDEN * CLASSES; i++)
        weights[i] = i / HIDDEN == 0 ? -3e38F : 3e38F;
    CHECK_OK(ddp_param_import(g.device, p, weights, g.params));
    g.labels[0] = g.labels[1] = g.labels[2] = 0;
    assert_string_equal(find(&g).what, "gradient of the output of layer fc1");
    close_rig(&g);
}

/* ---- files ---- */

static void a_file_gives_the_same_again(void **state)
{
    (void)state;
    const ddp_replay_info info = {
        .epoch = 2, .step = 17, .shard = 5, .classes = CLASSES, .rank = 3, .seed = UINT64_MAX - 4};
    char path[] = "/tmp/ddp_replay_XXXXXX";
    const int fd = mkstemp(path);
    ddp_replay *replay;
    rig g, again;
    assert_true(fd >= 0);
    close(fd);
    open_rig(&g);
    g.inputs[PIXELS] = NAN;
    CHECK_OK(ddp_replay_save(path, &g.parts, g.indices, NULL, &info));
    open_rig(&again);
    memset(again.params, 0, again.bytes);
    CHECK_OK(ddp_replay_open(path, &replay));
    const ddp_replay_info *read = ddp_replay_get_info(replay);
    assert_true(read->epoch == info.epoch && read->step == info.step && read->shard == info.shard &&
                read->classes == info.classes && read->rank == info.rank &&
                read->seed == info.seed);
    assert_memory_equal(ddp_replay_indices(replay), g.indices, sizeof g.indices);
    CHECK_OK(ddp_replay_load(replay, again.device, ddp_model_params(again.model), again.params,
                             &again.parts.input));
    assert_memory_equal(again.params, g.params, g.bytes);
    assert_true(again.parts.input.seed == info.seed);
    const ddp_fault fault = find(&again);
    assert_string_equal(fault.what, "inputs");
    assert_int_equal(fault.places[0], 1);
    ddp_replay_close(replay);
    close_rig(&again);
    close_rig(&g);
    unlink(path);
}

/* Labels outside the classes would be read behind the logits. */
static void labels_of_other_classes_are_refused(void **state)
{
    (void)state;
    const ddp_replay_info info = {.classes = 2};
    char path[] = "/tmp/ddp_replay_XXXXXX";
    const int fd = mkstemp(path);
    ddp_replay *replay;
    rig g;
    assert_true(fd >= 0);
    close(fd);
    open_rig(&g);
    CHECK_OK(ddp_replay_save(path, &g.parts, g.indices, NULL, &info));
    CHECK_FAILS(ddp_replay_open(path, &replay), DDP_ERR_FORMAT, "not whole");
    close_rig(&g);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finite_numbers_are_no_fault),
        cmocka_unit_test(a_sample_is_named_by_its_place),
        cmocka_unit_test(a_parameter_comes_before_what_it_spoils),
        cmocka_unit_test(an_overflow_is_found_in_its_layer),
        cmocka_unit_test(an_overflow_of_a_gradient_is_found),
        cmocka_unit_test(a_file_gives_the_same_again),
        cmocka_unit_test(labels_of_other_classes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
