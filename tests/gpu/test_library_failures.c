/* test_library_failures.c - what the CUDA device says when cuDNN or cuBLASLt refuses a call. The
 * simulator fails those that CUSIM_FAIL names, which it reads once: so this is a program of its
 * own. */
#include "gpu/gpu_fixture.h"

static op_check conv_check(void)
{
    return (op_check){.desc = {.kind = DDP_OP_CONV2D,
                               .training = true,
                               .need_diff_src = true,
                               .u.conv2d = {8, 3, 3, 1, 1, 1, 1, false, false}},
                      .src = {4, {2, 4, 6, 6}},
                      .src_nhwc = true};
}

static op_check linear_check(void)
{
    return (op_check){.desc = {.kind = DDP_OP_LINEAR, .u.linear = {8, false, false}},
                      .src = {2, {4, 6}}};
}

/* In the order of the passes: the calls that are asked to fail are each one's first. */
static void a_failing_convolution_is_named(void **state)
{
    const op_check check = conv_check();
    op_side s = {.device = gpu_open()};
    ddp_stream *stream = ddp_device_main_stream(s.device);
    (void)state;
    side_open(&s, &check);
    CHECK_FAILS(ddp_op_run(s.plan, DDP_PASS_FORWARD, stream, &s.args), DDP_ERR_IO,
                "cuDNN: cudnnConvolutionForward: CUDNN_STATUS_EXECUTION_FAILED");
    CHECK_FAILS(ddp_op_run(s.plan, DDP_PASS_BACKWARD_WEIGHTS, stream, &s.args), DDP_ERR_IO,
                "cuDNN: cudnnConvolutionBackwardFilter: CUDNN_STATUS_EXECUTION_FAILED");
    CHECK_FAILS(ddp_op_run(s.plan, DDP_PASS_BACKWARD_DATA, stream, &s.args), DDP_ERR_IO,
                "cuDNN: cudnnConvolutionBackwardData: CUDNN_STATUS_EXECUTION_FAILED");
    side_run(&s, &check); /* the second time they work */
    side_close(&s);
    ddp_device_close(s.device);
}

static void a_failing_product_is_named(void **state)
{
    const op_check check = linear_check();
    op_side s = {.device = gpu_open()};
    (void)state;
    side_open(&s, &check);
    CHECK_FAILS(ddp_op_run(s.plan, DDP_PASS_FORWARD, ddp_device_main_stream(s.device), &s.args),
                DDP_ERR_IO, "cuBLASLt: cublasLtMatmul: CUBLAS_STATUS_EXECUTION_FAILED");
    side_close(&s);
    ddp_device_close(s.device);
}

static void a_product_that_the_library_does_not_have_is_refused(void **state)
{
    const op_check check = linear_check();
    ddp_device *device = gpu_open();
    ddp_layout *layout;
    ddp_op_plan *plan;
    (void)state;
    CHECK_OK(ddp_layout_plain(device, &check.src, &layout));
    CHECK_FAILS(ddp_op_plan_create(device, &check.desc, layout, NULL, &plan), DDP_ERR_UNSUPPORTED,
                "cuBLASLt has no matrix product");
    CHECK_OK(ddp_op_plan_create(device, &check.desc, layout, NULL, &plan));
    ddp_op_plan_destroy(plan);
    ddp_layout_unref(layout);
    ddp_device_close(device);
}

static void a_device_without_its_libraries_does_not_open(void **state)
{
    const ddp_device_opts opts = DDP_DEVICE_OPTS_DEFAULTS;
    ddp_device *device;
    (void)state;
    CHECK_FAILS(ddp_device_open(&ddpi_device_cuda, &opts, &device), DDP_ERR_IO, "cudnnCreate");
    CHECK_FAILS(ddp_device_open(&ddpi_device_cuda, &opts, &device), DDP_ERR_IO, "cublasLtCreate");
    device = gpu_open();
    ddp_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_without_its_libraries_does_not_open),
        cmocka_unit_test(a_failing_convolution_is_named),
        cmocka_unit_test(a_failing_product_is_named),
        cmocka_unit_test(a_product_that_the_library_does_not_have_is_refused),
    };
    setenv("CUSIM_FAIL",
           "cudnnCreate,cublasLtCreate,cudnnConvolutionForward,cudnnConvolutionBackwardData,"
           "cudnnConvolutionBackwardFilter,cublasLtMatmul,cublasLtMatmulAlgoGetHeuristic:2",
           1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
