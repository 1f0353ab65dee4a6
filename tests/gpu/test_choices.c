/* test_choices.c - what the device's options promise of its choices: the same bits each time, tf32
 * only where it is allowed; and the shapes of real networks beside the CPU device.
 *
 * The simulator's libraries sum in another order each time where they promise none, and round to
 * tf32 where they may, so a wrong choice shows. */
#include "gpu/gpu_fixture.h"

#define F32_LIMIT  2e-6
#define TF32_LIMIT 2e-3

/* Two roundings of bf16. With f16 it is for single elements next to 0, which a relu keeps on one
 * side only: the bias is added to a rounded sum. */
#define NARROW_LIMIT (2.0 / 256)

enum { RUNS = 10 };

static ddp_device *open_with(bool deterministic, bool tf32)
{
    ddp_device_opts opts = DDP_DEVICE_OPTS_DEFAULTS;
    opts.deterministic = deterministic;
    opts.tf32 = tf32;
    return gpu_open_with(&opts);
}

static op_check conv_check(ddp_dtype dtype)
{
    return (op_check){.desc = {.kind = DDP_OP_CONV2D,
                               .training = true,
                               .need_diff_src = true,
                               .compute = dtype,
                               .u.conv2d = {24, 3, 3, 1, 1, 1, 1, false, false}},
                      .src = {4, {5, 16, 9, 7}},
                      .src_nhwc = true,
                      .src_dtype = dtype};
}

static op_check linear_check(ddp_dtype dtype)
{
    return (op_check){.desc = {.kind = DDP_OP_LINEAR,
                               .training = true,
                               .need_diff_src = true,
                               .compute = dtype,
                               .u.linear = {12, true, false}},
                      .src = {2, {17, 40}},
                      .src_dtype = dtype};
}

/* ---- the same bits ---- */

typedef struct gradients {
    float *src, *weights;
} gradients;

static gradients run_backward(op_side *s)
{
    ddp_stream *stream = ddp_device_main_stream(s->device);
    gradients g;
    CHECK_OK(ddp_op_run(s->plan, DDP_PASS_BACKWARD_WEIGHTS, stream, &s->args));
    CHECK_OK(ddp_op_run(s->plan, DDP_PASS_BACKWARD_DATA, stream, &s->args));
    g.weights = side_export(s, ddp_op_plan_weights(s->plan), s->args.diff_weights);
    g.src = side_export(s, s->src_layout, s->args.diff_src);
    return g;
}

/* Of RUNS backward passes on the same operands, how many differ from the first: [0] in the
 * gradient of the source, [1] in that of the weights. */
static void count_changes(ddp_device *device, const op_check *check, int changes[2])
{
    op_side s = {.device = device};
    side_open(&s, check);
    const size_t src = (size_t)ddp_shape_count(&check->src) * sizeof(float);
    const size_t weights =
        (size_t)ddp_shape_count(ddp_layout_shape(ddp_op_plan_weights(s.plan))) * sizeof(float);
    CHECK_OK(ddp_op_run(s.plan, DDP_PASS_FORWARD, ddp_device_main_stream(device), &s.args));
    gradients first = run_backward(&s);
    changes[0] = changes[1] = 0;
    for (int run = 1; run < RUNS; run++) {
        gradients g = run_backward(&s);
        changes[0] += memcmp(g.src, first.src, src) != 0;
        changes[1] += memcmp(g.weights, first.weights, weights) != 0;
        free(g.src);
        free(g.weights);
    }
    free(first.src);
    free(first.weights);
    side_close(&s);
}

static void deterministic_plans_repeat_their_bits(void **state)
{
    ddp_device *device = open_with(true, false);
    (void)state;
    for (int i = 0; i < 4; i++) {
        const op_check check = i < 2 ? conv_check(i % 2 == 1 ? DDP_BF16 : DDP_F32)
                                     : linear_check(i % 2 == 1 ? DDP_BF16 : DDP_F32);
        int changes[2];
        count_changes(device, &check, changes);
        assert_int_equal(changes[0], 0);
        assert_int_equal(changes[1], 0);
    }
    ddp_device_close(device);
}

/* Or the test above could not fail. */
static void other_plans_take_faster_algorithms(void **state)
{
    ddp_device *device = open_with(false, false);
    const op_check check = conv_check(DDP_F32);
    int changes[2];
    (void)state;
    count_changes(device, &check, changes);
    assert_true(changes[0] > 0);
    assert_true(changes[1] > 0);
    ddp_device_close(device);
}

/* ---- tf32 ---- */

static double forward_error(ddp_device *gpu, ddp_device *cpu, const op_check *check)
{
    op_side g = {.device = gpu}, c = {.device = cpu};
    side_open(&g, check);
    side_open(&c, check);
    side_run(&g, check);
    side_run(&c, check);
    const size_t count = (size_t)ddp_shape_count(ddp_layout_shape(ddp_op_plan_dst(g.plan)));
    const double error = relative_error(g.dst, c.dst, count);
    side_close(&g);
    side_close(&c);
    return error;
}

static void f32_is_rounded_to_tf32_only_where_allowed(void **state)
{
    ddp_device *cpu = cpu_open();
    (void)state;
    for (int tf32 = 0; tf32 < 2; tf32++) {
        ddp_device *gpu = open_with(false, tf32 == 1);
        for (int i = 0; i < 2; i++) {
            op_check check = i == 0 ? conv_check(DDP_F32) : linear_check(DDP_F32);
            check.desc.training = false;
            const double error = forward_error(gpu, cpu, &check);
            assert_true(error < (tf32 ? TF32_LIMIT : F32_LIMIT));
            assert_true(!tf32 || error > 10 * F32_LIMIT);
        }
        ddp_device_close(gpu);
    }
    ddp_device_close(cpu);
}

/* ---- real shapes ---- */

/* A refusal at run time would go unnoticed otherwise: the plan then takes the longer way. */
static void bias_and_relu_stay_in_the_librarys_call(void **state)
{
    (void)state;
    ddp_device *device = open_with(false, false);
    op_check check = conv_check(DDP_F32);
    check.desc.u.conv2d.bias = check.desc.u.conv2d.relu = true;
    op_side s = {.device = device};
    side_open(&s, &check);
    CHECK_OK(ddp_op_run(s.plan, DDP_PASS_FORWARD, ddp_device_main_stream(device), &s.args));
    CHECK_OK(ddp_stream_sync(ddp_device_main_stream(device)));
    assert_non_null(strstr(ddp_op_plan_impl(s.plan), "+act"));
    side_close(&s);
    ddp_device_close(device);
}

static void shapes_of_networks_agree_with_the_cpu(void **state)
{
    static const struct {
        ddp_shape src;
        ddp_conv2d_desc conv;
        bool first; /* no gradient of the source */
    } cases[] = {
        {{4, {4, 1, 28, 28}}, {20, 5, 5, 1, 1, 0, 0, true, true}, true},   /* lenet */
        {{4, {4, 20, 12, 12}}, {50, 5, 5, 1, 1, 0, 0, true, true}, false}, /* and its second */
        {{4, {2, 3, 32, 32}}, {16, 3, 3, 1, 1, 1, 1, false, false}, true}, /* resnet for cifar */
        {{4, {1, 3, 40, 40}}, {24, 7, 7, 2, 2, 3, 3, false, false}, true}, /* resnet's stem */
        {{4, {2, 64, 8, 8}}, {64, 3, 3, 1, 1, 1, 1, false, false}, false}, /* inside a block */
        {{4, {2, 64, 8, 8}}, {128, 3, 3, 2, 2, 1, 1, false, false}, false},
        {{4, {2, 64, 8, 8}}, {128, 1, 1, 2, 2, 0, 0, false, false}, false}, /* beside it */
        {{4, {3, 128, 4, 4}}, {32, 1, 1, 1, 1, 0, 0, true, false}, false},
        {{4, {1, 7, 1, 1}}, {9, 1, 1, 1, 1, 0, 0, true, true}, false},
    };
    ddp_device *gpu = gpu_open(), *cpu = cpu_open();
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int way = 0; way < 2 * FLOAT_TYPES; way++) {
            const ddp_dtype dtype = float_types[way % FLOAT_TYPES];
            const bool training = way >= FLOAT_TYPES;
            op_check check = {.desc = {.kind = DDP_OP_CONV2D,
                                       .training = training,
                                       .need_diff_src = training && !cases[i].first,
                                       .compute = dtype,
                                       .u.conv2d = cases[i].conv},
                              .src = cases[i].src,
                              .src_nhwc = !cases[i].first,
                              .src_dtype = cases[i].first ? DDP_F32 : dtype,
                              .limit = dtype == DDP_F32 ? F32_LIMIT : NARROW_LIMIT};
            check_op(gpu, cpu, &check);
        }
    ddp_device_close(gpu);
    ddp_device_close(cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deterministic_plans_repeat_their_bits),
        cmocka_unit_test(other_plans_take_faster_algorithms),
        cmocka_unit_test(f32_is_rounded_to_tf32_only_where_allowed),
        cmocka_unit_test(bias_and_relu_stay_in_the_librarys_call),
        cmocka_unit_test(shapes_of_networks_agree_with_the_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
