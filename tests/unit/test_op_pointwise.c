/* test_op_pointwise.c - optimizer step, sums and label ranks on flat ranges. */
#include "op_fixture.h"

#define COUNT 70001 /* several pieces and a tail */

static float *random_floats(size_t count, uint64_t seed)
{
    float *values = buffer(count * sizeof *values);
    for (size_t i = 0; i < count; i++)
        values[i] = random_value(&seed);
    return values;
}

/* Three steps of one configuration, in double. */
static void check_sgd(const ddp_sgd_args *base, int threads)
{
    ddp_device *device = open_cpu(DDP_CONV_AUTO, NULL, threads);
    ddp_stream *stream = ddp_device_main_stream(device);
    const bool momentum = base->momentum != 0;
    float *w = random_floats(COUNT, 1), *buf = momentum ? random_floats(COUNT, 9) : NULL;
    tensor want, state;
    tensor_init(&want, &(ddp_shape){1, {COUNT}}, 1);
    tensor_init(&state, &(ddp_shape){1, {COUNT}}, 0);
    if (momentum)
        buf[5] = NAN; /* the first step may not read it */
    for (uint64_t step = 0; step < 3; step++) {
        ddp_sgd_args args = *base;
        float *grad = random_floats(COUNT, 20 + step);
        double norm = 0.5, sum = 0.5;
        args.first = step == 0;
        CHECK_OK(ddp_op_sgd(device, stream, &args, w, grad, buf, COUNT, &norm));
        for (size_t i = 0; i < COUNT; i++) {
            const double mean = (double)grad[i] * args.inv_count;
            const double g = mean + args.weight_decay * want.d[i];
            state.d[i] = step == 0 ? g : args.momentum * state.d[i] + (1 - args.dampening) * g;
            want.d[i] -= args.lr * (!momentum       ? g
                                    : args.nesterov ? g + args.momentum * state.d[i]
                                                    : state.d[i]);
            sum += mean * mean;
        }
        assert_true(fabs(norm - sum) < 1e-9 * sum);
        ddp_free(grad);
    }
    memcpy(want.f, w, COUNT * sizeof *w);
    CHECK_CLOSE(&want, 1e-6);
    tensor_free(&want);
    tensor_free(&state);
    ddp_free(w);
    ddp_free(buf);
    ddp_device_close(device);
}

static void sgd_agrees_with_its_formula(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 2; threads++)
        for (int i = 0; i < 8; i++)
            check_sgd(&(ddp_sgd_args){.lr = 0.1,
                                      .momentum = i & 1 ? 0.9 : 0,
                                      .weight_decay = i & 2 ? 0.01 : 0,
                                      .dampening = i & 4 ? 0.25 : 0,
                                      .nesterov = i == 3,
                                      .inv_count = 1.0 / 32},
                      threads);
}

static void sgd_without_norm_touches_only_its_range(void **state)
{
    ddp_device *device = open_cpu(DDP_CONV_AUTO, NULL, 1);
    float w[4] = {1, 2, 3, 4};
    const float grad[4] = {1, 1, 1, 1};
    const ddp_sgd_args args = {.lr = 0.5, .inv_count = 1};
    (void)state;
    CHECK_OK(ddp_op_sgd(device, ddp_device_main_stream(device), &args, w + 1, grad, NULL, 2, NULL));
    assert_true(w[0] == 1 && w[1] == 1.5f && w[2] == 2.5f && w[3] == 4);
    CHECK_OK(ddp_op_sgd(device, ddp_device_main_stream(device), &args, w, grad, NULL, 0, NULL));
    assert_true(w[0] == 1);
    ddp_device_close(device);
}

static void sums_do_not_depend_on_threads(void **state)
{
    float *values = random_floats(COUNT, 3);
    double want = 0, sums[2] = {2, 2};
    (void)state;
    for (size_t i = 0; i < COUNT; i++)
        want += (double)values[i] * (double)values[i] * 0.25;
    for (int threads = 1; threads <= 2; threads++) {
        ddp_device *device = open_cpu(DDP_CONV_AUTO, NULL, threads);
        CHECK_OK(ddp_op_sum_squares(device, ddp_device_main_stream(device), values, COUNT, 0.5,
                                    &sums[threads - 1]));
        ddp_device_close(device);
    }
    assert_true(fabs(sums[0] - 2 - want) < 1e-9 * want);
    assert_true(sums[0] == sums[1]);
    ddp_free(values);
}

static void add_adds_on_a_created_stream_too(void **state)
{
    ddp_device *device = open_cpu(DDP_CONV_AUTO, NULL, 1);
    ddp_stream *stream;
    float *a = random_floats(COUNT, 1), *b = random_floats(COUNT, 2), *sum = buffer(COUNT * 4);
    (void)state;
    CHECK_OK(ddp_stream_create(device, "adder", &stream));
    CHECK_OK(ddp_device_copy(device, stream, sum, a, COUNT * sizeof *a, DDP_COPY_ON_DEVICE));
    CHECK_OK(ddp_op_add(device, stream, sum, b, COUNT));
    CHECK_OK(ddp_stream_sync(stream));
    for (size_t i = 0; i < COUNT; i++)
        assert_true(sum[i] == a[i] + b[i]);
    ddp_stream_destroy(stream);
    ddp_free(a);
    ddp_free(b);
    ddp_free(sum);
    ddp_device_close(device);
}

static void label_rank_breaks_ties_by_index_and_fears_nan(void **state)
{
    ddp_device *device = open_cpu(DDP_CONV_AUTO, NULL, 1);
    const float logits[6 * 3] = {3, 2, 1, 1, 2, 3, 2, 2, 2, 2, 2, 2, 1, NAN, 0, 0, 0, -INFINITY};
    const int32_t labels[6] = {0, 0, 0, 2, 0, 2}, want[6] = {0, 2, 0, 2, 3, 2};
    int32_t ranks[6];
    (void)state;
    CHECK_OK(
        ddp_op_label_rank(device, ddp_device_main_stream(device), logits, labels, 6, 3, ranks));
    assert_memory_equal(ranks, want, sizeof want);
    ddp_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sgd_agrees_with_its_formula),
        cmocka_unit_test(sgd_without_norm_touches_only_its_range),
        cmocka_unit_test(sums_do_not_depend_on_threads),
        cmocka_unit_test(add_adds_on_a_created_stream_too),
        cmocka_unit_test(label_rank_breaks_ties_by_index_and_fears_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
