/* test_op_linear.c - fully connected plans against a reference in double. */
#include "op_fixture.h"

static void reference_forward(op_case *c)
{
    const int64_t out = c->weights.shape.dims[0], in = c->weights.shape.dims[1];
    for (int64_t i = 0; i < (int64_t)c->dst.count; i++) {
        double sum = c->bias ? c->bias_values.d[i % out] : 0;
        for (int64_t k = 0; k < in; k++)
            sum += c->src.d[i / out * in + k] * c->weights.d[i % out * in + k];
        c->dst.d[i] = c->relu && sum < 0 ? 0 : sum;
    }
}

static void reference_backward(op_case *c)
{
    const int64_t out = c->weights.shape.dims[0], in = c->weights.shape.dims[1];
    for (int64_t i = 0; i < (int64_t)c->dst.count; i++) {
        const double g = c->relu && !(c->dst.f[i] > 0) ? 0 : (double)c->diff_dst.f[i];
        c->diff_bias.d[i % out] += g;
        for (int64_t k = 0; k < in; k++) {
            c->diff_src.d[i / out * in + k] += g * c->weights.d[i % out * in + k];
            c->diff_weights.d[i % out * in + k] += g * c->src.d[i / out * in + k];
        }
    }
}

static void check_case(op_case *c, const ddp_layout *src_layout)
{
    case_run_all(c, src_layout);
    reference_forward(c);
    reference_backward(c);
    CHECK_CLOSE(&c->dst, 1e-5);
    CHECK_CLOSE(&c->diff_weights, 1e-5);
    CHECK_CLOSE(&c->diff_src, 1e-5);
    if (c->bias)
        CHECK_CLOSE(&c->diff_bias, 1e-5);
}

static ddp_op_desc desc_of(int64_t out, bool bias, bool relu)
{
    return (ddp_op_desc){.kind = DDP_OP_LINEAR,
                         .training = true,
                         .need_diff_src = true,
                         .u.linear = {out, bias, relu}};
}

static void plans_agree_with_reference(void **state)
{
    static const int64_t batches[] = {1, 3, 16, 33}, ins[] = {1, 37, 200}, outs[] = {1, 10, 131};
    (void)state;
    for (int threads = 1; threads <= 2; threads++) {
        ddp_device *device = open_cpu(DDP_CONV_AUTO, NULL, threads);
        for (int i = 0; i < 4 * 3 * 3 * 4; i++) {
            const ddp_op_desc desc = desc_of(outs[i / 4 % 3], i / 36 % 2, i / 72);
            const ddp_shape src = {2, {batches[i % 4], ins[i / 12 % 3]}};
            op_case c;
            case_open(&c, device, &desc, &src, NULL, NULL);
            check_case(&c, NULL);
            case_close(&c);
        }
        ddp_device_close(device);
    }
}

/* Images in the layouts that convolutions leave are flattened in plain order. */
static void images_of_any_layout_are_flattened(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++)
        for (int64_t n = 9; n <= 16; n += 7) {
            ddp_device *device = open_cpu(DDP_CONV_AUTO, &kind, 1);
            const ddp_shape src = {4, {n, 2, 6, 6}}, middle = {4, {n, 20, 4, 4}};
            const ddp_op_desc conv = {.kind = DDP_OP_CONV2D,
                                      .u.conv2d = {20, 3, 3, 1, 1, 0, 0, false, false}};
            const ddp_op_desc desc = desc_of(7, true, true);
            ddp_op_plan *before;
            ddp_layout *plain;
            op_case c;
            CHECK_OK(ddp_layout_plain(device, &src, &plain));
            CHECK_OK(ddp_op_plan_create(device, &conv, plain, NULL, &before));
            ddp_layout *between = ddp_op_plan_dst(before);
            case_open(&c, device, &desc, &middle, between, NULL);
            check_case(&c, between);
            case_close(&c);
            ddp_layout_unref(plain);
            ddp_op_plan_destroy(before);
            ddp_device_close(device);
        }
}

static void gradients_agree_with_differences(void **state)
{
    ddp_device *device = open_cpu(DDP_CONV_AUTO, NULL, 1);
    const ddp_op_desc desc = desc_of(6, true, false);
    const ddp_shape src = {2, {3, 17}};
    op_case c;
    (void)state;
    case_open(&c, device, &desc, &src, NULL, NULL);
    case_run_all(&c, NULL);
    check_differences(&c, &c.diff_src, c.src.d, reference_forward);
    check_differences(&c, &c.diff_weights, c.weights.d, reference_forward);
    check_differences(&c, &c.diff_bias, c.bias_values.d, reference_forward);
    case_close(&c);
    ddp_device_close(device);
}

static void first_layer_runs_no_backward_data(void **state)
{
    ddp_device *device = open_cpu(DDP_CONV_AUTO, NULL, 1);
    ddp_op_desc desc = desc_of(6, true, true);
    const ddp_shape src = {2, {3, 17}};
    op_case c;
    (void)state;
    desc.need_diff_src = false;
    case_open(&c, device, &desc, &src, NULL, NULL);
    CHECK_FAILS(ddp_op_run(c.plan, DDP_PASS_BACKWARD_DATA, ddp_device_main_stream(device), &c.args),
                DDP_ERR_INTERNAL, "without it");
    case_close(&c);
    ddp_device_close(device);
}

static void runs_allocate_nothing(void **state)
{
    ddp_device *device = open_cpu(DDP_CONV_AUTO, NULL, 1);
    const ddp_op_desc desc = desc_of(128, true, true);
    const ddp_shape src = {2, {32, 800}};
    op_case c;
    (void)state;
    case_open(&c, device, &desc, &src, NULL, NULL);
    ddp_mem_freeze();
    case_run(&c, DDP_PASS_FORWARD);
    case_run(&c, DDP_PASS_BACKWARD_WEIGHTS);
    case_run(&c, DDP_PASS_BACKWARD_DATA);
    assert_int_equal(ddp_mem_allocs_since_freeze(), 0);
    ddp_mem_thaw();
    case_close(&c);
    ddp_device_close(device);
}

static void weights_of_another_shape_are_refused(void **state)
{
    ddp_device *device = open_cpu(DDP_CONV_AUTO, NULL, 1);
    const ddp_op_desc desc = desc_of(6, true, true);
    const ddp_shape src = {2, {3, 17}}, wrong = {2, {6, 16}};
    ddp_layout *in, *weights;
    ddp_op_plan *plan;
    (void)state;
    CHECK_OK(ddp_layout_plain(device, &src, &in));
    CHECK_OK(ddp_layout_plain(device, &wrong, &weights));
    CHECK_FAILS(ddp_op_plan_create(device, &desc, in, weights, &plan), DDP_ERR_SHAPE, "6x17");
    ddp_layout_unref(in);
    ddp_layout_unref(weights);
    ddp_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_agree_with_reference),
        cmocka_unit_test(images_of_any_layout_are_flattened),
        cmocka_unit_test(gradients_agree_with_differences),
        cmocka_unit_test(first_layer_runs_no_backward_data),
        cmocka_unit_test(runs_allocate_nothing),
        cmocka_unit_test(weights_of_another_shape_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
