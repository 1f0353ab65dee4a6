/* test_model_batches.c - plans for several batch sizes agree, share memory, and allocate nothing
 * when run. */
#include "harness.h"

#include "model_fixture.h"

enum { SAMPLES = 16, VALUES = 28 * 28, CLASSES = 10 };
static const double TOLERANCE = 1e-5; /* of the gradient's length: sums in another order */

typedef struct batches {
    model_fixture f;
    float *inputs;
    int32_t *labels;
    float *sum; /* of the single samples' gradients */
    double loss_sum;
} batches;

static ddp_model_input samples(const batches *b, int64_t from, int64_t count)
{
    return (ddp_model_input){
        .inputs = b->inputs + from * VALUES, .labels = b->labels + from, .count = count};
}

/* lenet's own initial weights are so small that logits hardly depend on the samples. */
static void widen_weights(batches *b)
{
    for (size_t i = 0; i < b->f.bytes / sizeof(float); i++)
        b->f.params[i] *= 10.0f;
}

static void open_batches(batches *b, const ddp_model_def *def, ddp_conv_algo algo)
{
    const ddp_model_opts opts = {
        .input_shape = {3, {1, 28, 28}}, .classes = CLASSES, .mlp_widths = "33,17"};
    *b = (batches){0};
    fixture_open(&b->f, def, &opts, algo, SAMPLES);
    CHECK_OK(ddp_param_table_init(b->f.device, b->f.table, 11, b->f.params));
    widen_weights(b);
    fixture_samples(8, VALUES, SAMPLES, CLASSES, &b->inputs, &b->labels);
    CHECK_OK(ddp_alloc_bytes(b->f.bytes, 1, (void **)(void *)&b->sum));
}

static void close_batches(batches *b)
{
    ddp_free(b->inputs);
    ddp_free(b->labels);
    ddp_free(b->sum);
    fixture_close(&b->f);
}

static void sum_single_samples(batches *b, int64_t count)
{
    memset(b->sum, 0, b->f.bytes);
    b->loss_sum = 0;
    CHECK_OK(ddp_model_plan(b->f.model, 1, true));
    for (int64_t n = 0; n < count; n++) {
        const ddp_model_input one = samples(b, n, 1);
        b->loss_sum += fixture_loss(&b->f, &one);
        CHECK_OK(ddp_model_backward(b->f.model));
        for (size_t i = 0; i < b->f.bytes / sizeof(float); i++)
            b->sum[i] += b->f.grads[i];
    }
}

static void check_batch(batches *b, int64_t count)
{
    double difference = 0, length = 0;
    sum_single_samples(b, count);
    CHECK_OK(ddp_model_plan(b->f.model, count, true));
    const ddp_model_input input = samples(b, 0, count);
    const double loss = fixture_loss(&b->f, &input);
    CHECK_OK(ddp_model_backward(b->f.model));
    for (size_t i = 0; i < b->f.bytes / sizeof(float); i++) {
        difference += pow((double)b->f.grads[i] - b->sum[i], 2);
        length += pow((double)b->sum[i], 2);
    }
    if (!(fabs(loss - b->loss_sum) <= TOLERANCE * b->loss_sum))
        fail_msg("%d samples: loss %.9g, single samples give %.9g", (int)count, loss, b->loss_sum);
    if (!(length > 0 && sqrt(difference) <= TOLERANCE * sqrt(length)))
        fail_msg("%d samples: gradient differs by %g of its length", (int)count,
                 sqrt(difference / length));
}

/* Inference over a block against training passes over its single samples. */
static void check_inference(batches *b, int64_t from, int64_t count, const char *last)
{
    const float *logits;
    double loss = 0.5, single = 0.5; /* infer adds */
    float row[CLASSES];
    CHECK_OK(ddp_model_plan(b->f.model, count, false));
    CHECK_OK(ddp_model_plan(b->f.model, 1, true));
    float copy[SAMPLES * CLASSES];
    const ddp_model_input block = samples(b, from, count);
    CHECK_OK(ddp_model_infer(b->f.model, &block, &logits, &loss));
    memcpy(copy, logits, (size_t)count * CLASSES * sizeof *copy);
    for (int64_t n = 0; n < count; n++) {
        const ddp_model_input one = samples(b, from + n, 1);
        single += fixture_loss(&b->f, &one);
        CHECK_OK(ddp_model_export_output(b->f.model, last, row, CLASSES));
        /* A logit near 0 is a sum that cancels: rounding goes with the size of the row. */
        float largest = 1.0f;
        for (int c = 0; c < CLASSES; c++)
            largest = fmaxf(largest, fabsf(row[c]));
        for (int c = 0; c < CLASSES; c++)
            if (!(fabsf(row[c] - copy[n * CLASSES + c]) <= (float)TOLERANCE * largest))
                fail_msg("logit %d of sample %d: %g, alone %g (largest %g)", c, (int)n,
                         copy[n * CLASSES + c], row[c], largest);
    }
    assert_true(fabs(loss - single) <= TOLERANCE * single);
    const ddp_model_input unlabelled = {.inputs = block.inputs, .count = count};
    CHECK_OK(ddp_model_infer(b->f.model, &unlabelled, &logits, NULL));
    assert_memory_equal(logits, copy, (size_t)count * CLASSES * sizeof *copy);
}

static void check_sizes(const ddp_model_def *def, ddp_conv_algo algo, const char *last)
{
    batches b;
    open_batches(&b, def, algo);
    check_batch(&b, 16);
    check_batch(&b, 7);
    check_inference(&b, 3, 5, last);
    check_inference(&b, 0, 16, last);
    check_batch(&b, 16); /* the first plans still work */
    close_batches(&b);
}

static void lenet_batches_equal_sums_of_single_samples(void **state)
{
    (void)state;
    check_sizes(ddp_model_lenet(), DDP_CONV_DIRECT, "fc2");
    check_sizes(ddp_model_lenet(), DDP_CONV_GEMM, "fc2");
    check_sizes(ddp_model_lenet(), DDP_CONV_AUTO, "fc2");
}

static void mlp_batches_equal_sums_of_single_samples(void **state)
{
    (void)state;
    check_sizes(ddp_model_mlp(), DDP_CONV_AUTO, "fc3");
}

static void passes_allocate_nothing_after_planning(void **state)
{
    (void)state;
    const ddp_conv_algo algos[] = {DDP_CONV_DIRECT, DDP_CONV_GEMM, DDP_CONV_AUTO};
    for (int i = 0; i < 3; i++) {
        batches b;
        const float *logits;
        double loss = 0;
        open_batches(&b, ddp_model_lenet(), algos[i]);
        CHECK_OK(ddp_model_plan(b.f.model, 7, true));
        CHECK_OK(ddp_model_plan(b.f.model, 5, false));
        const ddp_model_input full = samples(&b, 0, 16), part = samples(&b, 0, 7),
                              block = samples(&b, 0, 5);
        const size_t bytes = ddp_model_activation_bytes(b.f.model);
        ddp_mem_freeze();
        for (int step = 0; step < 3; step++) {
            fixture_loss(&b.f, &full);
            CHECK_OK(ddp_model_backward(b.f.model));
            fixture_loss(&b.f, &part);
            CHECK_OK(ddp_model_backward(b.f.model));
            CHECK_OK(ddp_model_infer(b.f.model, &block, &logits, &loss));
            CHECK_OK(ddp_model_plan(b.f.model, 16, true)); /* exists */
        }
        const uint64_t allocs = ddp_mem_allocs_since_freeze();
        ddp_mem_thaw();
        assert_int_equal(allocs, 0);
        assert_int_equal(ddp_model_activation_bytes(b.f.model), bytes);
        close_batches(&b);
    }
}

typedef struct order {
    const batches *b;
    int next;
} order;

/* Parameters complete in the table's order, and at that moment the gradient is final. */
static ddp_status on_ready(void *arg, int index)
{
    order *o = arg;
    const ddp_param *param = ddp_param_table_at(o->b->f.table, index);
    if (index != o->next)
        return DDP_FAIL(DDP_ERR_INTERNAL, "%s completed out of order", param->name);
    o->next++;
    /* What a bucket's update does: nothing that still runs may read these parameters. */
    memcpy(o->b->sum + param->offset, o->b->f.grads + param->offset, param->count * sizeof(float));
    memset(o->b->f.params + param->offset, 0xff, param->count * sizeof(float));
    return DDP_OK;
}

static void parameters_may_change_as_soon_as_they_complete(void **state)
{
    (void)state;
    batches b;
    open_batches(&b, ddp_model_lenet(), DDP_CONV_AUTO);
    const ddp_model_input input = samples(&b, 0, 16);
    float *want;
    fixture_loss(&b.f, &input);
    CHECK_OK(ddp_model_backward(b.f.model));
    CHECK_OK(ddp_alloc_bytes(b.f.bytes, 1, (void **)(void *)&want));
    memcpy(want, b.f.grads, b.f.bytes);

    order o = {&b, 0};
    ddp_param_table_on_ready(b.f.table, on_ready, &o);
    fixture_loss(&b.f, &input);
    CHECK_OK(ddp_model_backward(b.f.model));
    assert_int_equal(o.next, 8);
    assert_memory_equal(b.f.grads, want, b.f.bytes);
    assert_memory_equal(b.sum, want, b.f.bytes);
    ddp_free(want);
    close_batches(&b);
}

static void a_failing_ready_callback_ends_the_backward(void **state)
{
    (void)state;
    batches b;
    open_batches(&b, ddp_model_lenet(), DDP_CONV_AUTO);
    const ddp_model_input input = samples(&b, 0, 16);
    order o = {&b, 5}; /* the first call is out of order */
    ddp_param_table_on_ready(b.f.table, on_ready, &o);
    fixture_loss(&b.f, &input);
    CHECK_FAILS(ddp_model_backward(b.f.model), DDP_ERR_INTERNAL,
                "fc2.weight completed out of order");
    close_batches(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lenet_batches_equal_sums_of_single_samples),
        cmocka_unit_test(mlp_batches_equal_sums_of_single_samples),
        cmocka_unit_test(passes_allocate_nothing_after_planning),
        cmocka_unit_test(parameters_may_change_as_soon_as_they_complete),
        cmocka_unit_test(a_failing_ready_callback_ends_the_backward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
