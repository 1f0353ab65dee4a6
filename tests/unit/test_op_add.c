/* test_op_add.c - sums of two tensors, their relu and gradients, in every layout and across two. */
#include "op_fixture.h"

static const ddp_shape shapes[] = {{4, {16, 20, 26, 26}}, {4, {3, 50, 9, 9}}, {4, {17, 5, 4, 11}}};

/* A plan whose first source lies as a convolution of this kind leaves it, and the second the same
 * or plain. */
typedef struct add_case {
    place place;
    ddp_device *device;
    ddp_op_plan *plan;
    ddp_layout *layout, *layout2;
    bool relu;
    tensor src, src2, dst, diff_dst, diff_dst2, result, result2;
    ddp_op_args args;
} add_case;

static void add_open(add_case *a, const ddp_shape *shape, int kind, bool relu, bool mixed)
{
    tensor *const tensors[] = {&a->src,       &a->src2,   &a->dst,    &a->diff_dst,
                               &a->diff_dst2, &a->result, &a->result2};
    const uint64_t seeds[] = {1, 2, 0, 3, 4, 0, 0};
    *a = (add_case){.relu = relu};
    place_open(&a->place, shape, kind, 1 + kind % 2);
    a->device = a->place.device;
    a->layout = a->place.layout;
    a->layout2 = mixed ? a->place.plain : a->layout;
    const ddp_op_desc desc = {.kind = DDP_OP_ADD,
                              .training = true,
                              .src2 = mixed ? a->place.plain : NULL,
                              .u.add = {relu}};
    CHECK_OK(ddp_op_plan_create(a->device, &desc, a->layout, NULL, &a->plan));
    assert_true(ddp_layout_equal(ddp_op_plan_dst(a->plan), a->layout));
    for (int i = 0; i < 7; i++)
        tensor_init(tensors[i], shape, seeds[i]);
    round_as(a->device, a->layout, &a->src2); /* whose type the sum has */
    a->args = (ddp_op_args){.src = imported_rounded(a->device, a->layout, &a->src),
                            .src2 = imported_rounded(a->device, a->layout2, &a->src2),
                            .dst = buffer(ddp_layout_bytes(a->layout)),
                            .diff_dst = imported_rounded(a->device, a->layout, &a->diff_dst),
                            .diff_dst2 = imported_rounded(a->device, a->layout, &a->diff_dst2),
                            .diff_src = buffer(ddp_layout_bytes(a->layout)),
                            .diff_src2 = buffer(ddp_layout_bytes(a->layout2)),
                            .scratch = buffer(ddp_op_plan_scratch_bytes(a->plan))};
}

static void add_run(add_case *a, ddp_op_pass pass, const ddp_op_args *args)
{
    CHECK_OK(ddp_op_run(a->plan, pass, ddp_device_main_stream(a->device), args));
}

static void add_export(add_case *a, const ddp_layout *layout, const void *memory, tensor *t)
{
    CHECK_OK(ddp_layout_export(a->device, layout, memory, t->f));
    check_padding(a->device, layout, memory);
}

static void add_close(add_case *a)
{
    void *const buffers[] = {(void *)a->args.src, (void *)a->args.src2, a->args.dst,
                             a->args.diff_dst,    a->args.diff_dst2,    a->args.diff_src,
                             a->args.diff_src2,   a->args.scratch};
    tensor *const tensors[] = {&a->src,       &a->src2,   &a->dst,    &a->diff_dst,
                               &a->diff_dst2, &a->result, &a->result2};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        ddp_free(buffers[i]);
    for (int i = 0; i < 7; i++)
        tensor_free(tensors[i]);
    ddp_op_plan_destroy(a->plan);
    place_close(&a->place);
}

/* The relative error that one rounding of the result makes. */
static double limit_of(const add_case *a)
{
    return ddp_layout_dtype(a->layout) == DDP_BF16 ? BF16_ROUNDING : 1e-7;
}

static double sum_at(const add_case *a, size_t i)
{
    const double sum = a->src.d[i] + a->src2.d[i];
    return a->relu && sum < 0 ? 0 : sum;
}

static void check_sums(add_case *a)
{
    ddp_mem_freeze();
    add_run(a, DDP_PASS_FORWARD, &a->args);
    assert_int_equal(ddp_mem_allocs_since_freeze(), 0);
    ddp_mem_thaw();
    add_export(a, a->layout, a->args.dst, &a->dst);
    for (size_t i = 0; i < a->dst.count; i++)
        a->dst.d[i] = sum_at(a, i);
    CHECK_CLOSE(&a->dst, limit_of(a));
}

/* The gradient stands in diff_dst, and where the caller asked for it. */
static void check_gradients(add_case *a)
{
    ddp_op_args args = a->args;
    add_run(a, DDP_PASS_BACKWARD_DATA, &args);
    add_export(a, a->layout, args.diff_dst, &a->result);
    for (size_t i = 0; i < a->result.count; i++)
        a->result.d[i] = a->relu && sum_at(a, i) <= 0 ? 0 : a->diff_dst.d[i] + a->diff_dst2.d[i];
    CHECK_CLOSE(&a->result, limit_of(a));
    assert_memory_equal(args.diff_src, args.diff_dst, ddp_layout_bytes(a->layout));
    add_export(a, a->layout2, args.diff_src2, &a->result2);
    round_as(a->device, a->layout2, &a->result);
    assert_memory_equal(a->result2.f, a->result.f, a->result.count * sizeof(float));
    /* Alone, without a second gradient: masked once more, nothing changes. */
    args.diff_dst2 = args.diff_src = args.diff_src2 = NULL;
    add_run(a, DDP_PASS_BACKWARD_DATA, &args);
    assert_memory_equal(args.diff_dst, a->args.diff_src, ddp_layout_bytes(a->layout));
}

static void sums_and_gradients_are_right_in_every_layout(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int i = 0; i < 4 * PLACES; i++) {
            add_case a;
            add_open(&a, &shapes[s], i / 4, i % 2 == 1, i / 2 % 2 == 1);
            check_sums(&a);
            check_gradients(&a);
            add_close(&a);
        }
}

static void accumulating_adds_whole_tensors(void **state)
{
    (void)state;
    for (int kind = 0; kind < PLACES; kind++) {
        add_case a;
        ddp_stream *stream;
        add_open(&a, &shapes[0], kind, false, false);
        CHECK_OK(ddp_stream_create(a.device, "adder", &stream));
        CHECK_OK(ddp_op_accumulate(a.device, stream, a.layout, a.args.diff_dst, a.args.diff_dst2));
        CHECK_OK(ddp_stream_sync(stream));
        add_export(&a, a.layout, a.args.diff_dst, &a.result);
        for (size_t i = 0; i < a.result.count; i++)
            a.result.d[i] = a.diff_dst.d[i] + a.diff_dst2.d[i];
        CHECK_CLOSE(&a.result, limit_of(&a));
        ddp_stream_destroy(stream);
        add_close(&a);
    }
}

static void nan_is_not_hidden_by_relu(void **state)
{
    add_case a;
    (void)state;
    add_open(&a, &shapes[2], 1, true, true);
    ((float *)a.args.src2)[3] = NAN;
    add_run(&a, DDP_PASS_FORWARD, &a.args);
    add_export(&a, a.layout, a.args.dst, &a.dst);
    assert_true(isnan(a.dst.f[3]));
    add_close(&a);
}

static void sources_of_two_shapes_are_refused(void **state)
{
    ddp_device *device = open_cpu(DDP_CONV_AUTO, NULL, 1);
    ddp_layout *a, *b;
    ddp_op_plan *plan;
    (void)state;
    CHECK_OK(ddp_layout_plain(device, &(ddp_shape){2, {2, 3}}, &a));
    CHECK_OK(ddp_layout_plain(device, &(ddp_shape){2, {2, 4}}, &b));
    const ddp_op_desc desc = {.kind = DDP_OP_ADD, .src2 = b};
    CHECK_FAILS(ddp_op_plan_create(device, &desc, a, NULL, &plan), DDP_ERR_SHAPE,
                "second input is 2x4, but the first is 2x3");
    ddp_layout_unref(a);
    ddp_layout_unref(b);
    ddp_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_and_gradients_are_right_in_every_layout),
        cmocka_unit_test(accumulating_adds_whole_tensors),
        cmocka_unit_test(nan_is_not_hidden_by_relu),
        cmocka_unit_test(sources_of_two_shapes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
