/* test_plans.c - convolution, linear, pooling and reshape on the CUDA device beside the CPU device,
 * whose results are tested against references in double.
 *
 * Limits: sums of f32 in another order differ by some 1e-6 of the result. With bf16 and f16,
 * operands and results are rounded, but not always at the same places. */
#include "gpu/gpu_fixture.h"

#define F32_LIMIT 2e-6

typedef struct devices {
    ddp_device *gpu, *cpu;
} devices;

static int open_devices(void **state)
{
    static devices d;
    d.gpu = gpu_open();
    d.cpu = cpu_open();
    *state = &d;
    return 0;
}

static int close_devices(void **state)
{
    devices *d = *state;
    ddp_device_close(d->gpu);
    ddp_device_close(d->cpu);
    return 0;
}

/* Every place that a source may have, in every type; narrow: the operation computes in them. */
static void check_everywhere(const devices *d, op_check *check, bool narrow)
{
    for (int place = 0; place < 2 * FLOAT_TYPES; place++) {
        check->src_nhwc = place % 2 == 1;
        check->src_dtype = float_types[place / 2];
        if (check->src_nhwc && check->src.ndim != 4)
            continue;
        for (int type = 0; type < (narrow ? FLOAT_TYPES : 1); type++) {
            const ddp_dtype compute = float_types[type], src = check->src_dtype;
            const double rounding = fmax(rounding_of(compute), rounding_of(src));
            if (src != DDP_F32 && compute != DDP_F32 && src != compute)
                continue; /* bf16 and f16 never meet */
            check->desc.compute = compute;
            check->limit = F32_LIMIT + 2 * rounding;
            check_op(d->gpu, d->cpu, check);
        }
    }
}

static void convolutions_agree_with_the_cpu(void **state)
{
    static const struct {
        ddp_shape src;
        ddp_conv2d_desc conv;
    } cases[] = {
        {{4, {2, 3, 9, 7}}, {8, 3, 3, 1, 1, 1, 1, false, false}},
        {{4, {2, 1, 12, 12}}, {6, 5, 5, 1, 1, 0, 0, true, true}},
        {{4, {3, 5, 8, 8}}, {4, 1, 1, 2, 2, 0, 0, true, false}},
        {{4, {2, 4, 10, 6}}, {5, 3, 2, 2, 1, 1, 0, false, true}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        op_check check = {.desc = {.kind = DDP_OP_CONV2D, .training = true, .need_diff_src = true},
                          .src = cases[i].src};
        check.desc.u.conv2d = cases[i].conv;
        check_everywhere(*state, &check, true);
    }
}

static void linear_layers_agree_with_the_cpu(void **state)
{
    static const ddp_shape shapes[] = {{2, {5, 33}}, {4, {3, 4, 5, 2}}, {4, {4, 7, 1, 1}}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int flags = 0; flags < 4; flags++) {
            op_check check = {
                .desc = {.kind = DDP_OP_LINEAR, .training = true, .need_diff_src = true},
                .src = shapes[i]};
            check.desc.u.linear = (ddp_linear_desc){10, flags % 2 == 1, flags >= 2};
            check_everywhere(*state, &check, true);
        }
}

static void pooling_agrees_with_the_cpu(void **state)
{
    static const struct {
        ddp_shape src;
        ddp_pool2d_desc pool;
    } cases[] = {
        {{4, {2, 4, 8, 8}}, {true, 2, 2, 2, 2, 0, 0, false}},
        {{4, {2, 8, 9, 7}}, {true, 3, 3, 2, 2, 1, 1, false}},
        {{4, {2, 3, 8, 6}}, {false, 2, 2, 2, 2, 0, 0, false}},
        {{4, {1, 8, 7, 9}}, {false, 3, 2, 1, 2, 1, 1, false}},
        {{4, {3, 6, 5, 4}}, {false, 0, 0, 0, 0, 0, 0, true}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        op_check check = {.desc = {.kind = DDP_OP_POOL2D, .training = true, .need_diff_src = true},
                          .src = cases[i].src};
        check.desc.u.pool2d = cases[i].pool;
        check_everywhere(*state, &check, false);
    }
}

static void flattening_agrees_with_the_cpu(void **state)
{
    op_check check = {.desc = {.kind = DDP_OP_RESHAPE, .training = true, .need_diff_src = true},
                      .src = {4, {3, 5, 2, 3}}};
    check_everywhere(*state, &check, false);
}

static void evaluation_needs_no_gradients(void **state)
{
    const devices *d = *state;
    op_check check = {
        .desc = {.kind = DDP_OP_CONV2D, .u.conv2d = {8, 3, 3, 1, 1, 1, 1, true, true}},
        .src = {4, {2, 3, 6, 6}},
        .limit = F32_LIMIT};
    check_op(d->gpu, d->cpu, &check);
    check.desc = (ddp_op_desc){.kind = DDP_OP_POOL2D, .u.pool2d = {true, 2, 2, 2, 2, 0, 0, false}};
    check_op(d->gpu, d->cpu, &check);
    check.desc = (ddp_op_desc){.kind = DDP_OP_LINEAR, .u.linear = {4, true, true}};
    check_op(d->gpu, d->cpu, &check);
}

static int choose_last(void *arg, int mine, int count)
{
    assert_true(mine >= 0 && mine < count);
    ++*(int *)arg;
    return mine;
}

static void measured_choices_compute_the_same(void **state)
{
    const devices *d = *state;
    int asked = 0;
    ddp_device_opts opts = DDP_DEVICE_OPTS_DEFAULTS;
    opts.tune = true;
    opts.choose = choose_last;
    opts.choose_arg = &asked;
    ddp_device *gpu = gpu_open_with(&opts);
    op_check check = {.desc = {.kind = DDP_OP_CONV2D,
                               .training = true,
                               .need_diff_src = true,
                               .u.conv2d = {8, 3, 3, 1, 1, 1, 1, true, true}},
                      .src = {4, {2, 3, 6, 6}},
                      .limit = F32_LIMIT};
    check_op(gpu, d->cpu, &check);
    assert_int_equal(asked, 3); /* once for each pass */
    ddp_device_close(gpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolutions_agree_with_the_cpu),
        cmocka_unit_test(linear_layers_agree_with_the_cpu),
        cmocka_unit_test(pooling_agrees_with_the_cpu),
        cmocka_unit_test(flattening_agrees_with_the_cpu),
        cmocka_unit_test(evaluation_needs_no_gradients),
        cmocka_unit_test(measured_choices_compute_the_same),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
