/* test_resnet.c - resnet18-small against float64 values from PyTorch: loss, logits, outputs, every
 * gradient, running statistics, inference with them, steps of plain SGD, shards with batch norm of
 * their own; and recomputation, which changes no bit. */
#include "harness.h"

#include "golden.h"
#include "model_fixture.h"

enum { CLASSES = 10, VALUES = 28 * 28 };

/* The files' own float32 runs differ from float64 by "float32_..._error"; a relu's input next to 0
 * falls on either side. Three times that is a fair bound (their README says so). */
static const double ROOM = 3.0;

typedef struct golden_run {
    ddp_json *golden;
    model_fixture f;
    /* Of the device; sum: of gradients over shards. */
    float *inputs, *running, *sum;
    int32_t *labels;
    int64_t batch;
    size_t running_bytes;
} golden_run;

static void check_near(const char *what, double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%s is %.9g, want %.9g (tolerance %.3g)", what, got, want, tolerance);
}

/* tolerance: relative to the tensor's length for l2, to its root mean square for the others. */
static void check_stats(const char *what, const ddp_json *want, const float *values, size_t count,
                        double tolerance)
{
    double squares = 0, sum = 0;
    for (size_t i = 0; i < count; i++) {
        squares += (double)values[i] * values[i];
        sum += values[i];
    }
    const double l2 = golden_number(want, "l2"), rms = l2 / sqrt((double)count);
    check_near(what, sqrt(squares), l2, tolerance * l2);
    check_near(what, sum / (double)count, golden_number(want, "mean"), tolerance * rms);
    const ddp_json *first = ddp_json_get(want, "first4");
    for (size_t i = 0; i < ddp_json_length(first); i++) /* one element may be as wrong as all */
        check_near(what, values[i], golden_element(first, i), tolerance * l2);
}

static void draw_samples(golden_run *run, uint32_t *state)
{
    const ddp_json *y = ddp_json_get(run->golden, "y");
    const size_t values = (size_t)run->batch * VALUES;
    float *inputs;
    int32_t *labels;
    CHECK_OK(DDP_ALLOC(inputs, values));
    CHECK_OK(DDP_ALLOC(labels, (size_t)run->batch));
    for (size_t i = 0; i < values; i++)
        inputs[i] = golden_unit(state);
    for (size_t i = 0; i < (size_t)run->batch; i++) {
        labels[i] = (int32_t)((golden_next(state) >> 16) % CLASSES);
        assert_int_equal(labels[i], (int)golden_element(y, i));
    }
    run->inputs = fixture_upload(&run->f, inputs, values * sizeof *inputs);
    run->labels = fixture_upload(&run->f, labels, (size_t)run->batch * sizeof *labels);
    ddp_free(inputs);
    ddp_free(labels);
}

typedef struct form {
    ddp_recompute recompute;
    int64_t planned; /* samples; 0: the whole batch */
    bool keep, bf16;
} form;

static void open_run(golden_run *run, form how)
{
    const ddp_model_opts opts = {.input_shape = {3, {1, 28, 28}},
                                 .classes = CLASSES,
                                 .compute = how.bf16 ? DDP_BF16 : DDP_F32,
                                 .recompute = how.recompute,
                                 .keep_outputs = how.keep};
    uint32_t state = 0;
    *run = (golden_run){0};
    CHECK_OK(golden_load("golden_resnet18.json", &run->golden));
    run->batch = (int64_t)golden_number(run->golden, "batch");
    fixture_open(&run->f, ddp_model_resnet18_small(), &opts, DDP_CONV_DIRECT,
                 how.planned > 0 ? how.planned : run->batch);
    CHECK_OK(
        golden_set_params_from(run->golden, &state, run->f.device, run->f.table, run->f.params));
    draw_samples(run, &state);
    assert_true((double)state == golden_number(run->golden, "last_state"));
    const ddp_buffer_table *buffers = ddp_model_buffers(run->f.model);
    float *running;
    CHECK_OK(DDP_ALLOC(running, ddp_buffer_table_length(buffers)));
    ddp_buffer_table_init(buffers, running);
    run->running_bytes = ddp_buffer_table_length(buffers) * sizeof *running;
    run->running = fixture_upload(&run->f, running, run->running_bytes);
    ddp_free(running);
    CHECK_OK(ddp_device_alloc(run->f.device, run->f.bytes, (void **)(void *)&run->sum));
}

static void close_run(golden_run *run)
{
    ddp_device *device = run->f.device;
    ddp_device_free(device, run->inputs, (size_t)run->batch * VALUES * sizeof *run->inputs);
    ddp_device_free(device, run->labels, (size_t)run->batch * sizeof *run->labels);
    ddp_device_free(device, run->running, run->running_bytes);
    ddp_device_free(device, run->sum, run->f.bytes);
    fixture_close(&run->f);
    ddp_json_destroy(run->golden);
}

static ddp_model_input samples(const golden_run *run, int64_t from, int64_t count)
{
    return (ddp_model_input){
        .inputs = run->inputs + from * VALUES, .labels = run->labels + from, .count = count};
}

/* Forward and backward over `parts` equal parts, each with norms of its own; sums the gradients and
 * returns the mean loss. */
static double pass(golden_run *run, int64_t parts)
{
    ddp_stream *stream = ddp_device_main_stream(run->f.device);
    double loss = 0;
    CHECK_OK(ddp_device_zero(run->f.device, stream, run->sum, run->f.bytes));
    for (int64_t p = 0; p < parts; p++) {
        const ddp_model_input input = samples(run, p * run->batch / parts, run->batch / parts);
        loss += fixture_loss(&run->f, &input);
        CHECK_OK(ddp_model_backward(run->f.model));
        CHECK_OK(ddp_op_add(run->f.device, stream, run->sum, run->f.grads,
                            run->f.bytes / sizeof(float)));
    }
    CHECK_OK(ddp_stream_sync(stream));
    return loss / (double)run->batch;
}

static void step(golden_run *run)
{
    const ddp_sgd_args sgd = {.lr = golden_number(run->golden, "lr"),
                              .inv_count = 1.0 / (double)run->batch};
    CHECK_OK(ddp_op_sgd(run->f.device, ddp_device_main_stream(run->f.device), &sgd, run->f.params,
                        run->sum, NULL, ddp_param_table_length(run->f.table), NULL));
}

/* A bias in front of a norm has no influence: what is left of its gradient is rounding. */
static bool is_cancelled(const char *name)
{
    return strstr(name, ".bias") != NULL && strstr(name, "bn") == NULL &&
           strstr(name, "conv3") == NULL && strcmp(name, "fc.bias") != 0;
}

static void check_gradient(golden_run *run, const ddp_json *entry, const ddp_json *want,
                           double total)
{
    const char *name = NULL;
    assert_true(ddp_json_as_string(ddp_json_get(entry, "name"), &name));
    const int index = ddp_param_table_find(run->f.table, name);
    assert_true(index >= 0);
    const ddp_param *param = ddp_param_table_at(run->f.table, index);
    const size_t count = (size_t)ddp_shape_count(&param->shape);
    float *plain;
    double squares = 0;
    CHECK_OK(DDP_ALLOC(plain, count));
    CHECK_OK(ddp_param_export(run->f.device, param, run->sum, plain));
    for (size_t i = 0; i < count; i++) {
        plain[i] /= (float)run->batch;
        squares += (double)plain[i] * plain[i];
    }
    if (is_cancelled(name))
        check_near(name, sqrt(squares), 0, 1e-5 * total);
    else
        check_stats(name, want, plain, count,
                    ROOM * fmax(golden_number(entry, "float32_grad_rel_l2_error"), 1e-3));
    ddp_free(plain);
}

/* by_name: NULL, or an object of gradients by parameter's name. */
static void check_gradients(golden_run *run, const ddp_json *by_name)
{
    const ddp_json *params = ddp_json_get(run->golden, "params");
    const double total = golden_number(run->golden, "total_grad_l2");
    assert_int_equal(ddp_json_length(params), ddp_param_table_count(run->f.table));
    for (size_t i = 0; i < ddp_json_length(params); i++) {
        const ddp_json *entry = ddp_json_at(params, i);
        const char *name = NULL;
        assert_true(ddp_json_as_string(ddp_json_get(entry, "name"), &name));
        check_gradient(run, entry,
                       by_name != NULL ? ddp_json_get(by_name, name) : ddp_json_get(entry, "grad"),
                       total);
    }
}

static void check_losses(golden_run *run, const ddp_json *losses, int64_t parts)
{
    const ddp_json *errors = ddp_json_get(ddp_json_get(run->golden, "float32"), "losses_rel_error");
    for (size_t i = 0; i < ddp_json_length(losses); i++) {
        const double want = golden_element(losses, i), loss = pass(run, parts);
        check_near("loss", loss, want, ROOM * fmax(golden_element(errors, i), 3e-6) * want);
        step(run);
    }
}

/* ---- the cases ---- */

static void check_running(golden_run *run)
{
    const ddp_buffer_table *buffers = ddp_model_buffers(run->f.model);
    const ddp_json *golden = ddp_json_get(run->golden, "running_after_1_forward");
    int checked = 0;
    float *running;
    CHECK_OK(ddp_alloc_bytes(run->running_bytes, 1, (void **)(void *)&running));
    fixture_download(&run->f, run->running, running, run->running_bytes);
    for (int i = 0; i < ddp_buffer_table_count(buffers); i++) {
        const ddp_buffer *buffer = ddp_buffer_table_at(buffers, i);
        char layer[DDP_PARAM_NAME_BYTES];
        if (buffer->counter)
            continue;
        memcpy(layer, buffer->name, sizeof layer);
        char *suffix = strrchr(layer, '.');
        *suffix = '\0';
        const ddp_json *want = ddp_json_get(
            ddp_json_get(golden, layer), strcmp(suffix + 1, "running_mean") == 0 ? "mean" : "var");
        assert_non_null(want);
        check_stats(buffer->name, want, running + buffer->offset, (size_t)buffer->count, 1e-5);
        checked++;
    }
    ddp_free(running);
    assert_int_equal(checked, 2 * 17);
}

static void check_inference(golden_run *run)
{
    const ddp_json *want = ddp_json_get(run->golden, "eval_after_1_forward");
    const ddp_model_input input = samples(run, 0, run->batch);
    const float *there;
    float logits[8 * CLASSES];
    double loss = 0, squares = 0;
    assert_int_equal(run->batch, 8);
    CHECK_OK(ddp_model_plan(run->f.model, run->batch, false));
    CHECK_OK(ddp_model_infer(run->f.model, &input, &there, &loss));
    fixture_download(&run->f, there, logits, sizeof logits);
    check_near("inference loss", loss / (double)run->batch, golden_number(want, "loss"), 1e-4);
    for (int64_t i = 0; i < run->batch * CLASSES; i++)
        squares += (double)logits[i] * logits[i];
    check_near("inference logits", sqrt(squares), golden_number(want, "logits_l2"),
               1e-4 * golden_number(want, "logits_l2"));
    const ddp_json *first = ddp_json_get(want, "first4");
    for (size_t i = 0; i < ddp_json_length(first); i++)
        check_near("inference logit", logits[i], golden_element(first, i), 1e-3);
}

static void one_pass_equals_float64(void **state)
{
    (void)state;
    static const char *const ends[] = {"block0", "block3", "block7", NULL};
    golden_run run;
    open_run(&run, (form){.keep = true});
    ddp_model_bind_running(run.f.model, run.running);
    const ddp_model_input input = samples(&run, 0, run.batch);
    const double loss = fixture_loss(&run.f, &input) / (double)run.batch;
    check_near("loss", loss, golden_number(run.golden, "loss"), 3e-6);
    const ddp_json *outputs = ddp_json_get(run.golden, "activations");
    for (size_t i = 0, found = 0; found < 3; i++) {
        const char *name = NULL;
        char layer[64];
        assert_true(i < ddp_json_length(outputs));
        assert_true(ddp_json_as_string(ddp_json_get(ddp_json_at(outputs, i), "name"), &name));
        if (strcmp(name, ends[found]) != 0)
            continue;
        const ddp_json *dims = ddp_json_get(ddp_json_at(outputs, i), "shape");
        size_t count = 1;
        float *plain;
        for (size_t d = 0; d < 4; d++)
            count *= (size_t)golden_element(dims, d);
        CHECK_OK(DDP_ALLOC(plain, count));
        snprintf(layer, sizeof layer, "%s.relu2", name);
        CHECK_OK(ddp_model_export_output(run.f.model, layer, plain, count));
        check_stats(layer, ddp_json_at(outputs, i), plain, count, 1e-4);
        ddp_free(plain);
        found++;
    }
    check_running(&run);
    check_inference(&run);
    close_run(&run);
}

static void gradients_and_steps_equal_float64(void **state)
{
    (void)state;
    golden_run run;
    open_run(&run, (form){0});
    check_near("loss", pass(&run, 1), golden_number(run.golden, "loss"), 3e-6);
    check_gradients(&run, NULL);
    check_losses(&run, ddp_json_get(run.golden, "losses"), 1);
    close_run(&run);
}

static void shards_with_norms_of_their_own_equal_float64(void **state)
{
    (void)state;
    static const char *const keys[] = {"ranks_2_local_batch_norm", "ranks_4_local_batch_norm"};
    for (int i = 0; i < 2; i++) {
        const int64_t parts = 2 << i;
        golden_run run;
        open_run(&run, (form){.planned = 8 / parts});
        const ddp_json *want = ddp_json_get(run.golden, keys[i]);
        check_near("loss", pass(&run, parts), golden_number(want, "loss"), 1e-5);
        check_gradients(&run, ddp_json_get(want, "grads"));
        check_losses(&run, ddp_json_get(want, "losses"), parts);
        close_run(&run);
    }
}

static uint64_t hash_of(const golden_run *run, const void *there, size_t bytes)
{
    void *here;
    CHECK_OK(ddp_alloc_bytes(bytes, 1, &here));
    fixture_download(&run->f, there, here, bytes);
    const uint64_t hash = ddp_hash64(here, bytes);
    ddp_free(here);
    return hash;
}

/* Two steps' gradients, running statistics and losses, bit by bit. */
static void recomputation_changes_no_bit_and_needs_less_memory(void **state)
{
    (void)state;
    double first_loss = NAN;
    uint64_t first_hash[2] = {0};
    size_t bytes = 0;
    for (int recompute = DDP_RECOMPUTE_NONE; recompute <= DDP_RECOMPUTE_SEGMENTS; recompute++) {
        golden_run run;
        open_run(&run, (form){.recompute = (ddp_recompute)recompute});
        ddp_model_bind_running(run.f.model, run.running);
        (void)pass(&run, 1);
        step(&run);
        const double loss = pass(&run, 1);
        const uint64_t hash[2] = {hash_of(&run, run.sum, run.f.bytes),
                                  hash_of(&run, run.running, run.running_bytes)};
        if (recompute == DDP_RECOMPUTE_NONE) {
            first_loss = loss;
            memcpy(first_hash, hash, sizeof hash);
        } else {
            assert_true(loss == first_loss);
            assert_memory_equal(hash, first_hash, sizeof hash);
            assert_true(ddp_model_activation_bytes(run.f.model) < bytes);
        }
        bytes = ddp_model_activation_bytes(run.f.model);
        close_run(&run);
    }
}

/* Relative length of the difference between two runs' gradients of all parameters. */
static double difference(const golden_run *a, const golden_run *b)
{
    double squares = 0, length = 0;
    for (int i = 0; i < ddp_param_table_count(b->f.table); i++) {
        const ddp_param *param = ddp_param_table_at(b->f.table, i);
        const size_t count = (size_t)ddp_shape_count(&param->shape);
        float *x, *y;
        CHECK_OK(DDP_ALLOC(x, count));
        CHECK_OK(DDP_ALLOC(y, count));
        CHECK_OK(ddp_param_export(a->f.device, ddp_param_table_at(a->f.table, i), a->sum, x));
        CHECK_OK(ddp_param_export(b->f.device, param, b->sum, y));
        for (size_t j = 0; j < count; j++) {
            squares += pow((double)x[j] - y[j], 2);
            length += pow((double)y[j], 2);
        }
        ddp_free(x);
        ddp_free(y);
    }
    return sqrt(squares / length);
}

/* bf16 keeps 8 bits, an error of 2^-9 in each number. With norms over 8 samples and relus that
 * switch, this network makes much of small errors: fp32's 2^-24 is 7e-3 in the worst gradient (see
 * ROOM). 0.27 was measured for all gradients together; each operation alone is held to its rounding
 * in test_bf16.c and test_op_norm.c. A wrong factor or a missing term is off by 1. */
static void bf16_comes_near_fp32(void **state)
{
    (void)state;
    golden_run full;
    open_run(&full, (form){0});
    const double loss = pass(&full, 1);
    for (int recompute = DDP_RECOMPUTE_NONE; recompute <= DDP_RECOMPUTE_SEGMENTS; recompute += 2) {
        golden_run half;
        open_run(&half, (form){.recompute = (ddp_recompute)recompute, .bf16 = true});
        check_near("bf16 loss", pass(&half, 1), loss, 0.02 * loss);
        const double off = difference(&half, &full);
        if (!(off > 1e-4 && off < 0.5))
            fail_msg("bf16 gradient is off by %g of its length", off);
        close_run(&half);
    }
    close_run(&full);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_pass_equals_float64),
        cmocka_unit_test(gradients_and_steps_equal_float64),
        cmocka_unit_test(shards_with_norms_of_their_own_equal_float64),
        cmocka_unit_test(bf16_comes_near_fp32),
        cmocka_unit_test(recomputation_changes_no_bit_and_needs_less_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
