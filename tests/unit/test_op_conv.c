/* test_op_conv.c - convolution plans of every kind against a reference in double. */
#include "op_fixture.h"

/* As "auto" numbers its candidates: behind the kinds come the sets of passes that are Winograd's.
 */
enum { DIRECT, GEMM, BATCH, KINDS, WINOGRAD = KINDS - 1 };

/* Relative errors in the L2 norm. Winograd's transforms amplify roundings: up to 1.7e-6 was
 * measured on these cases. */
#define LIMIT          1e-5
#define WINOGRAD_LIMIT 4e-6

static void reference_forward(op_case *c)
{
    const ddp_conv2d_desc *v = &c->desc.u.conv2d;
    const int64_t *s = c->src.shape.dims, *d = c->dst.shape.dims;
    for (int64_t i = 0; i < (int64_t)c->dst.count; i++) {
        const int64_t ow = i % d[3], oh = i / d[3] % d[2], oc = i / d[3] / d[2] % d[1];
        const int64_t n = i / d[3] / d[2] / d[1];
        double sum = c->bias ? c->bias_values.d[oc] : 0;
        for (int64_t ic = 0; ic < s[1]; ic++)
            for (int64_t kh = 0; kh < v->kernel_h; kh++)
                for (int64_t kw = 0; kw < v->kernel_w; kw++) {
                    const int64_t h = oh * v->stride_h + kh - v->pad_h;
                    const int64_t w = ow * v->stride_w + kw - v->pad_w;
                    if (h >= 0 && h < s[2] && w >= 0 && w < s[3])
                        sum +=
                            c->src.d[((n * s[1] + ic) * s[2] + h) * s[3] + w] *
                            c->weights.d[((oc * s[1] + ic) * v->kernel_h + kh) * v->kernel_w + kw];
                }
        c->dst.d[i] = c->relu && sum < 0 ? 0 : sum;
    }
}

/* Needs the reference's dst. */
static void reference_backward(op_case *c)
{
    const ddp_conv2d_desc *v = &c->desc.u.conv2d;
    const int64_t *s = c->src.shape.dims, *d = c->dst.shape.dims;
    for (int64_t i = 0; i < (int64_t)c->dst.count; i++) {
        const int64_t ow = i % d[3], oh = i / d[3] % d[2], oc = i / d[3] / d[2] % d[1];
        const int64_t n = i / d[3] / d[2] / d[1];
        /* The operation decides by its own dst, which differs only where both are nearly 0. */
        const double g = c->relu && !(c->dst.f[i] > 0) ? 0 : (double)c->diff_dst.f[i];
        c->diff_bias.d[oc] += g;
        for (int64_t ic = 0; ic < s[1]; ic++)
            for (int64_t kh = 0; kh < v->kernel_h; kh++)
                for (int64_t kw = 0; kw < v->kernel_w; kw++) {
                    const int64_t h = oh * v->stride_h + kh - v->pad_h;
                    const int64_t w = ow * v->stride_w + kw - v->pad_w;
                    if (h < 0 || h >= s[2] || w < 0 || w >= s[3])
                        continue;
                    const int64_t at_src = ((n * s[1] + ic) * s[2] + h) * s[3] + w;
                    const int64_t at_w = ((oc * s[1] + ic) * v->kernel_h + kh) * v->kernel_w + kw;
                    c->diff_src.d[at_src] += g * c->weights.d[at_w];
                    c->diff_weights.d[at_w] += g * c->src.d[at_src];
                }
    }
}

static void check_case_within(op_case *c, const ddp_layout *src_layout, double limit)
{
    case_run_all(c, src_layout);
    reference_forward(c);
    reference_backward(c);
    CHECK_CLOSE(&c->dst, limit);
    if (!c->desc.training)
        return;
    CHECK_CLOSE(&c->diff_weights, limit);
    if (c->bias)
        CHECK_CLOSE(&c->diff_bias, limit);
    if (c->desc.need_diff_src)
        CHECK_CLOSE(&c->diff_src, limit);
}

static void check_case(op_case *c, const ddp_layout *src_layout)
{
    check_case_within(c, src_layout, LIMIT);
}

typedef struct conv_case {
    int64_t n, c, h, w;
    ddp_conv2d_desc conv;
} conv_case;

static const conv_case cases[] = {
    {16, 1, 28, 28, {20, 3, 3, 1, 1, 0, 0, true, true}},  /* lenet's first */
    {16, 20, 13, 13, {50, 5, 5, 1, 1, 0, 0, true, true}}, /* and second */
    {3, 20, 13, 13, {50, 5, 5, 1, 1, 0, 0, true, true}},
    {1, 3, 7, 9, {4, 3, 3, 1, 1, 1, 1, true, false}},
    {16, 3, 8, 11, {7, 3, 3, 1, 1, 1, 1, false, true}},
    {11, 5, 12, 21, {6, 5, 5, 1, 1, 2, 2, true, true}},
    {9, 2, 6, 6, {1, 1, 1, 1, 1, 0, 0, true, false}},
    {16, 3, 9, 13, {2, 5, 3, 1, 1, 1, 0, true, true}},
    {20, 4, 10, 7, {9, 3, 1, 1, 1, 0, 0, false, false}},
    {3, 3, 9, 9, {8, 3, 3, 2, 2, 1, 1, true, true}},
    {16, 2, 11, 8, {5, 4, 2, 3, 1, 2, 1, true, false}},
    {3, 16, 7, 7, {32, 1, 1, 2, 2, 0, 0, false, true}},
    {2, 3, 17, 19, {6, 7, 7, 2, 3, 3, 3, true, true}},
    {32, 1, 5, 5, {3, 5, 5, 1, 1, 0, 0, true, true}},
};
#define CASES ((int)(sizeof cases / sizeof cases[0]))

static ddp_op_desc desc_of(const conv_case *from)
{
    return (ddp_op_desc){
        .kind = DDP_OP_CONV2D, .training = true, .need_diff_src = true, .u.conv2d = from->conv};
}

static void run_cases(ddp_conv_algo algo, int forced, int threads)
{
    ddp_device *device = open_cpu(algo, &forced, threads);
    for (int i = 0; i < CASES; i++) {
        const ddp_op_desc desc = desc_of(&cases[i]);
        const ddp_shape src = {4, {cases[i].n, cases[i].c, cases[i].h, cases[i].w}};
        op_case c;
        case_open(&c, device, &desc, &src, NULL, NULL);
        check_case(&c, NULL);
        case_close(&c);
    }
    ddp_device_close(device);
}

static void direct_agrees_with_reference(void **state)
{
    (void)state;
    run_cases(DDP_CONV_DIRECT, DDP_TEST_OWN, 1);
}

static void gemm_agrees_with_reference(void **state)
{
    (void)state;
    run_cases(DDP_CONV_GEMM, DDP_TEST_OWN, 1);
}

static void batch_agrees_with_reference(void **state)
{
    (void)state;
    run_cases(DDP_CONV_AUTO, BATCH, 1);
}

static void batch_by_name_agrees_with_reference(void **state)
{
    ddp_device *device = open_cpu(DDP_CONV_BATCH, NULL, 1);
    const ddp_op_desc desc = desc_of(&cases[1]);
    const ddp_shape src = {4, {cases[1].n, cases[1].c, cases[1].h, cases[1].w}};
    op_case c;
    (void)state;
    case_open(&c, device, &desc, &src, NULL, NULL);
    if (strncmp(ddp_op_plan_impl(c.plan), "batch", 5) != 0)
        assert_string_equal(ddp_op_plan_impl(c.plan), "gemm:im2col"); /* without AVX-512 */
    case_close(&c);
    ddp_device_close(device);
}

static void own_choice_agrees_with_reference(void **state)
{
    (void)state;
    run_cases(DDP_CONV_AUTO, DDP_TEST_OWN, 1);
}

static void two_threads_agree_with_reference(void **state)
{
    (void)state;
    run_cases(DDP_CONV_GEMM, DDP_TEST_OWN, 2);
    run_cases(DDP_CONV_AUTO, BATCH, 2);
    run_cases(DDP_CONV_DIRECT, DDP_TEST_OWN, 2);
}

/* ---- Winograd ---- */

static bool have_winograd(void)
{
    const ddp_device_opts opts = {.threads = 1, .conv_algo = DDP_CONV_WINOGRAD};
    ddp_device *device;
    const ddp_status st = ddp_device_open(ddp_device_cpu(), &opts, &device);
    if (st == DDP_OK)
        ddp_device_close(device);
    else
        CHECK_FAILS(st, DDP_ERR_UNSUPPORTED, "winograd: oneDNN has none");
    return st == DDP_OK;
}

static const conv_case winograd_cases[] = {
    {2, 16, 8, 9, {32, 3, 3, 1, 1, 1, 1, true, true}},
    {2, 64, 7, 7, {16, 3, 3, 1, 1, 1, 1, false, false}},
    {3, 20, 9, 11, {40, 3, 3, 1, 1, 0, 0, true, true}},
    {1, 256, 4, 4, {16, 3, 3, 1, 1, 1, 1, true, false}},
};
#define WINOGRAD_CASES ((int)(sizeof winograd_cases / sizeof winograd_cases[0]))

static void open_case(op_case *c, ddp_device *device, const conv_case *from)
{
    const ddp_op_desc desc = desc_of(from);
    const ddp_shape src = {4, {from->n, from->c, from->h, from->w}};
    case_open(c, device, &desc, &src, NULL, NULL);
}

static void winograd_agrees_with_reference(void **state)
{
    op_case c;
    (void)state;
    if (!have_winograd())
        skip();
    for (int threads = 1; threads < 3; threads++) {
        ddp_device *device = open_cpu(DDP_CONV_WINOGRAD, NULL, threads);
        for (int i = 0; i < WINOGRAD_CASES; i++) {
            open_case(&c, device, &winograd_cases[i]);
            assert_non_null(strstr(ddp_op_plan_impl(c.plan), "+winograd:fdw"));
            check_case_within(&c, NULL, WINOGRAD_LIMIT);
            case_close(&c);
        }
        ddp_device_close(device);
    }
}

/* Every set of passes, and plans for other batches that follow what was chosen. */
static void winograd_is_chosen_pass_by_pass(void **state)
{
    static const char letters[] = "fdw";
    const conv_case *conv = &winograd_cases[0];
    op_case c;
    (void)state;
    if (!have_winograd())
        skip();
    for (int set = 1; set < 8; set++) {
        int forced = WINOGRAD + set;
        char want[32] = "+winograd:";
        for (int pass = 0; pass < 3; pass++)
            if ((set >> pass & 1) != 0)
                snprintf(want + strlen(want), sizeof want - strlen(want), "%c", letters[pass]);
        ddp_device *device = open_cpu(DDP_CONV_AUTO, &forced, 1);
        open_case(&c, device, conv);
        const char *found = strchr(ddp_op_plan_impl(c.plan), '+');
        assert_string_equal(found, want);
        check_case_within(&c, NULL, WINOGRAD_LIMIT);
        ddp_layout *weights = ddp_layout_ref(ddp_op_plan_weights(c.plan));
        case_close(&c);
        const ddp_op_desc desc = desc_of(conv);
        const ddp_shape other = {4, {3, conv->c, conv->h, conv->w}};
        case_open(&c, device, &desc, &other, NULL, weights);
        found = strchr(ddp_op_plan_impl(c.plan), '+');
        assert_string_equal(found, want);
        check_case_within(&c, NULL, WINOGRAD_LIMIT);
        case_close(&c);
        ddp_layout_unref(weights);
        ddp_device_close(device);
    }
}

typedef struct choices {
    int calls, mine[4];
} choices;

static int note_choice(void *arg, int mine, int count)
{
    choices *c = arg;
    (void)count;
    assert_true(c->calls < 4);
    c->mine[c->calls++] = mine;
    return mine;
}

/* The ranks are asked for every layer, though layers of equal shape are timed once. */
static void every_layer_asks_and_equal_ones_agree(void **state)
{
    choices seen = {0};
    const ddp_device_opts opts = {.threads = 1, .choose = note_choice, .choose_arg = &seen};
    ddp_device *device;
    op_case c;
    (void)state;
    CHECK_OK(ddp_device_open(ddp_device_cpu(), &opts, &device));
    for (int i = 0; i < 4; i++) {
        open_case(&c, device, &winograd_cases[i / 2]);
        case_close(&c);
    }
    assert_int_equal(seen.calls, 4);
    assert_int_equal(seen.mine[0], seen.mine[1]);
    assert_int_equal(seen.mine[2], seen.mine[3]);
    ddp_device_close(device);
}

/* ---- all kinds ---- */

/* The plan whose dst is the source of another: every kind behind every kind. */
static void every_kind_takes_every_layout(void **state)
{
    const conv_case first = {11, 3, 9, 9, {20, 3, 3, 1, 1, 1, 1, true, true}};
    const conv_case second = {11, 20, 9, 9, {6, 3, 3, 1, 1, 1, 1, true, true}};
    (void)state;
    for (int before = 0; before < KINDS; before++)
        for (int after = 0; after < KINDS; after++) {
            int forced = before;
            ddp_device *device = open_cpu(DDP_CONV_AUTO, &forced, 1);
            const ddp_shape src = {4, {first.n, first.c, first.h, first.w}};
            const ddp_shape middle = {4, {second.n, second.c, second.h, second.w}};
            const ddp_op_desc desc[2] = {desc_of(&first), desc_of(&second)};
            op_case a, b;
            case_open(&a, device, &desc[0], &src, NULL, NULL);
            forced = after;
            ddp_layout *between = ddp_op_plan_dst(a.plan);
            case_open(&b, device, &desc[1], &middle, between, NULL);
            check_case(&b, between);
            case_close(&b);
            case_close(&a);
            ddp_device_close(device);
        }
}

static void weights_layout_fits_other_batch_sizes(void **state)
{
    const conv_case conv = {16, 20, 13, 13, {50, 5, 5, 1, 1, 0, 0, true, true}};
    static const int64_t other[] = {7, 1, 33};
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        ddp_device *device = open_cpu(DDP_CONV_AUTO, &kind, 1);
        const ddp_op_desc desc = desc_of(&conv);
        ddp_shape src = {4, {conv.n, conv.c, conv.h, conv.w}};
        op_case c;
        case_open(&c, device, &desc, &src, NULL, NULL);
        ddp_layout *weights = ddp_layout_ref(ddp_op_plan_weights(c.plan));
        case_close(&c);
        for (int i = 0; i < 3; i++) {
            src.dims[0] = other[i];
            case_open(&c, device, &desc, &src, NULL, weights);
            assert_true(ddp_layout_equal(weights, ddp_op_plan_weights(c.plan)));
            check_case(&c, NULL);
            case_close(&c);
        }
        ddp_layout_unref(weights);
        ddp_device_close(device);
    }
}

static void gradients_agree_with_differences(void **state)
{
    const conv_case conv = {3, 2, 6, 5, {4, 3, 3, 1, 1, 1, 1, true, false}};
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        ddp_device *device = open_cpu(DDP_CONV_AUTO, &kind, 1);
        const ddp_op_desc desc = desc_of(&conv);
        const ddp_shape src = {4, {conv.n, conv.c, conv.h, conv.w}};
        op_case c;
        case_open(&c, device, &desc, &src, NULL, NULL);
        case_run_all(&c, NULL);
        check_differences(&c, &c.diff_src, c.src.d, reference_forward);
        check_differences(&c, &c.diff_weights, c.weights.d, reference_forward);
        check_differences(&c, &c.diff_bias, c.bias_values.d, reference_forward);
        case_close(&c);
        ddp_device_close(device);
    }
}

/* With a fused relu the first backward pass masks diff_dst, whichever it is. */
static void either_backward_pass_masks_the_gradient(void **state)
{
    const conv_case conv = {16, 3, 8, 8, {5, 3, 3, 1, 1, 0, 0, true, true}};
    (void)state;
    for (int kind = 0; kind < KINDS; kind++)
        for (int data_only = 0; data_only < 2; data_only++) {
            ddp_device *device = open_cpu(DDP_CONV_AUTO, &kind, 1);
            const ddp_op_desc desc = desc_of(&conv);
            const ddp_shape src = {4, {conv.n, conv.c, conv.h, conv.w}};
            op_case c;
            case_open(&c, device, &desc, &src, NULL, NULL);
            ddp_layout *out = ddp_op_plan_dst(c.plan);
            case_run(&c, DDP_PASS_FORWARD);
            CHECK_OK(ddp_layout_export(device, out, c.args.dst, c.dst.f));
            case_run(&c, data_only ? DDP_PASS_BACKWARD_DATA : DDP_PASS_BACKWARD_WEIGHTS);
            float *masked = calloc(c.dst.count, sizeof *masked);
            assert_non_null(masked);
            CHECK_OK(ddp_layout_export(device, out, c.args.diff_dst, masked));
            for (size_t i = 0; i < c.dst.count; i++)
                assert_true(masked[i] == (c.dst.f[i] > 0 ? c.diff_dst.f[i] : 0));
            free(masked);
            case_close(&c);
            ddp_device_close(device);
        }
}

static void repeated_runs_give_the_same_bits_and_allocate_nothing(void **state)
{
    const conv_case conv = {19, 20, 13, 13, {50, 5, 5, 1, 1, 0, 0, true, true}};
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        ddp_device *device = open_cpu(DDP_CONV_AUTO, &kind, 1);
        const ddp_op_desc desc = desc_of(&conv);
        const ddp_shape src = {4, {conv.n, conv.c, conv.h, conv.w}};
        op_case c;
        case_open(&c, device, &desc, &src, NULL, NULL);
        const size_t bytes = ddp_layout_bytes(ddp_op_plan_weights(c.plan));
        void *before = buffer(bytes);
        for (int run = 0; run < 2; run++) {
            ddp_mem_freeze();
            case_run(&c, DDP_PASS_FORWARD);
            case_run(&c, DDP_PASS_BACKWARD_WEIGHTS);
            case_run(&c, DDP_PASS_BACKWARD_DATA);
            const uint64_t allocs = ddp_mem_allocs_since_freeze();
            ddp_mem_thaw();
            assert_int_equal(allocs, 0);
            if (run == 0)
                memcpy(before, c.args.diff_weights, bytes);
        }
        assert_memory_equal(before, c.args.diff_weights, bytes);
        ddp_free(before);
        case_close(&c);
        ddp_device_close(device);
    }
}

static void plans_for_inference_run_forward_only(void **state)
{
    const conv_case conv = {5, 3, 8, 8, {5, 3, 3, 1, 1, 0, 0, true, true}};
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        ddp_device *device = open_cpu(DDP_CONV_AUTO, &kind, 1);
        const ddp_shape src = {4, {conv.n, conv.c, conv.h, conv.w}};
        ddp_op_desc desc = desc_of(&conv);
        desc.training = desc.need_diff_src = false;
        op_case c;
        case_open(&c, device, &desc, &src, NULL, NULL);
        check_case(&c, NULL);
        CHECK_FAILS(
            ddp_op_run(c.plan, DDP_PASS_BACKWARD_WEIGHTS, ddp_device_main_stream(device), &c.args),
            DDP_ERR_INTERNAL, "not for training");
        case_close(&c);
        ddp_device_close(device);
    }
}

static void infer_says_what_does_not_fit(void **state)
{
    ddp_op_desc desc = {.kind = DDP_OP_CONV2D, .u.conv2d = {4, 5, 5, 1, 1, 0, 0, true, false}};
    const ddp_shape small = {4, {2, 1, 3, 3}}, flat = {2, {2, 9}};
    ddp_shape dst, weights;
    double flops;
    (void)state;
    CHECK_FAILS(ddp_op_infer(&desc, &small, &dst, &weights), DDP_ERR_SHAPE,
                "kernel 5x5 does not fit input 3x3 with padding 0");
    CHECK_FAILS(ddp_op_infer(&desc, &flat, &dst, &weights), DDP_ERR_SHAPE, "2x9");
    desc.u.conv2d.stride_h = 0;
    CHECK_FAILS(ddp_op_infer(&desc, &small, &dst, &weights), DDP_ERR_SHAPE, "stride 0x1");
    desc.u.conv2d.stride_h = 1;
    desc.u.conv2d.pad_h = 5;
    CHECK_FAILS(ddp_op_infer(&desc, &small, &dst, &weights), DDP_ERR_SHAPE, "padding 5x0");
    desc.u.conv2d = (ddp_conv2d_desc){50, 5, 5, 1, 1, 0, 0, true, true};
    CHECK_OK(ddp_op_flops(&desc, &(ddp_shape){4, {2, 20, 13, 13}}, &flops));
    assert_true(flops == 2 * 4050000.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(direct_agrees_with_reference),
        cmocka_unit_test(gemm_agrees_with_reference),
        cmocka_unit_test(batch_agrees_with_reference),
        cmocka_unit_test(batch_by_name_agrees_with_reference),
        cmocka_unit_test(own_choice_agrees_with_reference),
        cmocka_unit_test(two_threads_agree_with_reference),
        cmocka_unit_test(winograd_agrees_with_reference),
        cmocka_unit_test(winograd_is_chosen_pass_by_pass),
        cmocka_unit_test(every_layer_asks_and_equal_ones_agree),
        cmocka_unit_test(every_kind_takes_every_layout),
        cmocka_unit_test(weights_layout_fits_other_batch_sizes),
        cmocka_unit_test(gradients_agree_with_differences),
        cmocka_unit_test(either_backward_pass_masks_the_gradient),
        cmocka_unit_test(repeated_runs_give_the_same_bits_and_allocate_nothing),
        cmocka_unit_test(plans_for_inference_run_forward_only),
        cmocka_unit_test(infer_says_what_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
