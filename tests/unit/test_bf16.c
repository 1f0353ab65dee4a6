/* test_bf16.c - bf16 layouts, and convolution and linear plans in bf16 against references in
 * double.
 *
 * A number keeps 8 bits of precision: rounding one changes it by at most 2^-8 of its size, by 0.42
 * times 2^-8 in the root mean square. The plans round the weights, the result, and a source or
 * gradient that is not bf16 yet; three such errors make 0.73 times 2^-8 in the L2 norm. Sums are in
 * f32 and add nothing that could be seen. */
#include <time.h>

#include "op_fixture.h"

#define LIMIT (1.0 / 256)

/* ---- references ---- */

typedef struct tap {
    int64_t src, weight, dst; /* elements; oc = dst's channel */
} tap;

/* Calls fn for each product of a convolution; linear is one whose kernel is the whole image. */
static void each_product(const op_case *c, void (*fn)(op_case *c, const tap *t), op_case *arg)
{
    ddp_conv2d_desc v = c->desc.u.conv2d;
    const int64_t *s = c->src.shape.dims;
    const int64_t *d = c->dst.shape.dims;
    int64_t h = s[2], w = s[3], oh = d[2], ow = d[3];
    if (c->desc.kind == DDP_OP_LINEAR) {
        h = c->src.shape.ndim == 4 ? s[2] : 1;
        w = c->src.shape.ndim == 4 ? s[3] : 1;
        oh = ow = 1;
        v = (ddp_conv2d_desc){d[1], h, w, 1, 1, 0, 0, false, false};
    }
    for (int64_t i = 0; i < (int64_t)c->dst.count; i++) {
        const int64_t x = i % ow, y = i / ow % oh, oc = i / ow / oh % d[1], n = i / ow / oh / d[1];
        for (int64_t k = 0; k < s[1] * v.kernel_h * v.kernel_w; k++) {
            const int64_t kw = k % v.kernel_w, kh = k / v.kernel_w % v.kernel_h;
            const int64_t ic = k / v.kernel_w / v.kernel_h;
            const int64_t iy = y * v.stride_h + kh - v.pad_h, ix = x * v.stride_w + kw - v.pad_w;
            if (iy < 0 || iy >= h || ix < 0 || ix >= w)
                continue;
            const tap t = {((n * s[1] + ic) * h + iy) * w + ix,
                           oc * s[1] * v.kernel_h * v.kernel_w + k, i};
            fn(arg, &t);
        }
    }
}

static void add_forward(op_case *c, const tap *t)
{
    c->dst.d[t->dst] += c->src.d[t->src] * c->weights.d[t->weight];
}

static void add_backward(op_case *c, const tap *t)
{
    const double g = c->diff_dst.d[t->dst];
    c->diff_src.d[t->src] += g * c->weights.d[t->weight];
    c->diff_weights.d[t->weight] += g * c->src.d[t->src];
}

static int64_t channel_of(const op_case *c, size_t i)
{
    const int64_t *d = c->dst.shape.dims;
    const int64_t pixels = c->dst.shape.ndim == 4 ? d[2] * d[3] : 1;
    return (int64_t)i / pixels % d[1];
}

static void check_case(op_case *c, const ddp_layout *src_layout)
{
    assert_int_equal(ddp_layout_dtype(ddp_op_plan_dst(c->plan)), DDP_BF16);
    assert_int_equal(ddp_layout_dtype(ddp_op_plan_weights(c->plan)), DDP_F32);
    case_run_all(c, src_layout);
    each_product(c, add_forward, c);
    for (size_t i = 0; i < c->dst.count; i++) {
        c->dst.d[i] += c->bias ? c->bias_values.d[channel_of(c, i)] : 0;
        if (c->relu && c->dst.d[i] < 0)
            c->dst.d[i] = 0;
        if (c->relu && !(c->dst.f[i] > 0))
            c->diff_dst.d[i] = 0;
        c->diff_bias.d[channel_of(c, i)] += c->diff_dst.d[i];
    }
    each_product(c, add_backward, c);
    CHECK_CLOSE(&c->dst, LIMIT);
    if (!c->desc.training)
        return;
    CHECK_CLOSE(&c->diff_weights, LIMIT);
    if (c->bias)
        CHECK_CLOSE(&c->diff_bias, 1e-5);
    if (c->desc.need_diff_src)
        CHECK_CLOSE(&c->diff_src, LIMIT);
}

/* ---- plans ---- */

typedef struct conv_case {
    int64_t n, c, h, w;
    ddp_conv2d_desc conv;
} conv_case;

static const conv_case convs[] = {
    {16, 1, 14, 14, {20, 3, 3, 1, 1, 0, 0, true, true}},
    {3, 3, 17, 19, {6, 7, 7, 2, 2, 3, 3, false, true}},
    {2, 32, 9, 9, {48, 3, 3, 1, 1, 1, 1, true, true}},
    {5, 20, 7, 7, {33, 1, 1, 2, 2, 0, 0, true, false}},
    {4, 16, 6, 6, {32, 1, 1, 1, 1, 0, 0, false, false}},
    {3, 5, 7, 5, {3, 3, 3, 1, 1, 1, 1, true, true}},
};
#define CONVS ((int)(sizeof convs / sizeof convs[0]))

static ddp_op_desc conv_desc(const conv_case *from)
{
    return (ddp_op_desc){.kind = DDP_OP_CONV2D,
                         .training = true,
                         .need_diff_src = true,
                         .compute = DDP_BF16,
                         .u.conv2d = from->conv};
}

static void convolutions_agree_with_reference(void **state)
{
    ddp_device *device = open_cpu_bf16();
    (void)state;
    for (int i = 0; i < CONVS; i++) {
        const ddp_op_desc desc = conv_desc(&convs[i]);
        const ddp_shape src = {4, {convs[i].n, convs[i].c, convs[i].h, convs[i].w}};
        op_case c;
        case_open(&c, device, &desc, &src, NULL, NULL);
        check_case(&c, NULL);
        case_close(&c);
    }
    ddp_device_close(device);
}

static const struct {
    ddp_shape src;
    ddp_linear_desc linear;
} linears[] = {
    {{2, {16, 50}}, {10, true, false}},
    {{2, {7, 33}}, {65, true, true}},
    {{4, {5, 20, 3, 3}}, {17, false, true}},
    {{2, {1, 128}}, {64, true, true}},
};

static ddp_op_desc linear_desc(int i)
{
    return (ddp_op_desc){.kind = DDP_OP_LINEAR,
                         .training = true,
                         .need_diff_src = true,
                         .compute = DDP_BF16,
                         .u.linear = linears[i].linear};
}

static void linear_layers_agree_with_reference(void **state)
{
    ddp_device *device = open_cpu_bf16();
    (void)state;
    for (int i = 0; i < 4; i++) {
        const ddp_op_desc desc = linear_desc(i);
        op_case c;
        case_open(&c, device, &desc, &linears[i].src, NULL, NULL);
        check_case(&c, NULL);
        case_close(&c);
    }
    ddp_device_close(device);
}

/* A chain of bf16 layers: the second takes the first's bf16 result in its layout. */
static void plans_take_bf16_sources(void **state)
{
    ddp_device *device = open_cpu_bf16();
    const ddp_op_desc first = conv_desc(&convs[2]);
    const ddp_shape src = {4, {2, 32, 9, 9}}, middle = {4, {2, 48, 9, 9}};
    const ddp_op_desc next[] = {
        conv_desc(&(conv_case){2, 48, 9, 9, {17, 3, 3, 2, 2, 1, 1, true, true}}), linear_desc(1)};
    (void)state;
    for (int i = 0; i < 2; i++) {
        op_case a, b;
        case_open(&a, device, &first, &src, NULL, NULL);
        case_open(&b, device, &next[i], &middle, ddp_op_plan_dst(a.plan), NULL);
        check_case(&b, ddp_op_plan_dst(a.plan));
        case_close(&b);
        case_close(&a);
    }
    ddp_device_close(device);
}

/* An f32 layer behind a bf16 one, as the head of a network is. */
static void f32_plans_take_bf16_sources(void **state)
{
    ddp_device *device = open_cpu_bf16();
    const ddp_op_desc first = conv_desc(&convs[2]);
    const ddp_shape src = {4, {2, 32, 9, 9}}, middle = {4, {2, 48, 9, 9}};
    ddp_op_desc desc = linear_desc(1);
    op_case a, b;
    (void)state;
    desc.compute = DDP_F32;
    desc.u.linear.relu = false;
    case_open(&a, device, &first, &src, NULL, NULL);
    ddp_layout *between = ddp_op_plan_dst(a.plan);
    case_open(&b, device, &desc, &middle, between, NULL);
    assert_int_equal(ddp_layout_dtype(ddp_op_plan_dst(b.plan)), DDP_F32);
    b.desc.need_diff_src = false;
    case_run_all(&b, between);
    each_product(&b, add_forward, &b);
    for (size_t i = 0; i < b.dst.count; i++)
        b.dst.d[i] += b.bias_values.d[channel_of(&b, i)];
    CHECK_CLOSE(&b.dst, 1e-5);
    case_close(&b);
    case_close(&a);
    ddp_device_close(device);
}

static void weights_layout_fits_other_batch_sizes(void **state)
{
    ddp_device *device = open_cpu_bf16();
    ddp_op_desc desc = conv_desc(&convs[2]);
    ddp_shape src = {4, {2, 32, 9, 9}};
    op_case c;
    (void)state;
    case_open(&c, device, &desc, &src, NULL, NULL);
    ddp_layout *weights = ddp_layout_ref(ddp_op_plan_weights(c.plan));
    case_close(&c);
    src.dims[0] = 5;
    for (int training = 0; training < 2; training++) {
        desc.training = desc.need_diff_src = training != 0;
        case_open(&c, device, &desc, &src, NULL, weights);
        assert_true(ddp_layout_equal(weights, ddp_op_plan_weights(c.plan)));
        check_case(&c, NULL);
        case_close(&c);
    }
    ddp_layout_unref(weights);
    ddp_device_close(device);
}

static void either_backward_pass_masks_the_gradient(void **state)
{
    ddp_device *device = open_cpu_bf16();
    const ddp_op_desc desc[2] = {conv_desc(&convs[2]), linear_desc(1)};
    const ddp_shape src[2] = {{4, {2, 32, 9, 9}}, {2, {7, 33}}};
    (void)state;
    for (int i = 0; i < 4; i++) {
        op_case c;
        case_open(&c, device, &desc[i / 2], &src[i / 2], NULL, NULL);
        ddp_layout *out = ddp_op_plan_dst(c.plan);
        case_run(&c, DDP_PASS_FORWARD);
        CHECK_OK(ddp_layout_export(device, out, c.args.dst, c.dst.f));
        case_run(&c, i % 2 == 0 ? DDP_PASS_BACKWARD_DATA : DDP_PASS_BACKWARD_WEIGHTS);
        float *masked = calloc(c.dst.count, sizeof *masked);
        assert_non_null(masked);
        CHECK_OK(ddp_layout_export(device, out, c.args.diff_dst, masked));
        for (size_t k = 0; k < c.dst.count; k++)
            assert_true(masked[k] == (c.dst.f[k] > 0 ? c.diff_dst.f[k] : 0));
        free(masked);
        case_close(&c);
    }
    ddp_device_close(device);
}

static double seconds_of_weights_gradient(ddp_device *device, ddp_op_desc desc, bool bf16)
{
    const ddp_shape src = {4, {32, 1, 28, 28}};
    double best = INFINITY;
    op_case c;
    desc.compute = bf16 ? DDP_BF16 : DDP_F32;
    case_open(&c, device, &desc, &src, NULL, NULL);
    for (int i = 0; i < 4; i++) {
        struct timespec from, to;
        case_run(&c, DDP_PASS_FORWARD);
        assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from), 0);
        case_run(&c, DDP_PASS_BACKWARD_WEIGHTS);
        assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to), 0);
        best = fmin(best,
                    (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec));
    }
    case_close(&c);
    return best;
}

/* The library has plain loops where it has no kernel, which take a thousand times as long as an f32
 * kernel does. Time of the processor, and the least of four runs, so that other programs do not
 * matter. */
static void no_pass_runs_plain_loops(void **state)
{
    ddp_device *device = open_cpu_bf16();
    const ddp_op_desc desc = conv_desc(&convs[0]);
    (void)state;
    const double f32 = seconds_of_weights_gradient(device, desc, false);
    const double bf16 = seconds_of_weights_gradient(device, desc, true);
    if (bf16 > 40 * f32)
        fail_msg("bf16 takes %.3g ms, f32 %.3g ms", 1e3 * bf16, 1e3 * f32);
    ddp_device_close(device);
}

static void passes_allocate_nothing(void **state)
{
    ddp_device *device = open_cpu_bf16();
    const ddp_op_desc desc[2] = {conv_desc(&convs[2]), linear_desc(1)};
    const ddp_shape src[2] = {{4, {2, 32, 9, 9}}, {2, {7, 33}}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        op_case c;
        case_open(&c, device, &desc[i], &src[i], NULL, NULL);
        case_run(&c, DDP_PASS_FORWARD);
        ddp_mem_freeze();
        case_run(&c, DDP_PASS_FORWARD);
        case_run(&c, DDP_PASS_BACKWARD_WEIGHTS);
        case_run(&c, DDP_PASS_BACKWARD_DATA);
        const uint64_t allocs = ddp_mem_allocs_since_freeze();
        ddp_mem_thaw();
        assert_int_equal(allocs, 0);
        case_close(&c);
    }
    ddp_device_close(device);
}

/* ---- layouts ---- */

/* The neighbouring bf16 numbers of a float, by arithmetic instead of bits. */
static bool is_nearest(float value, float rounded)
{
    const double step = ldexp(1.0, ilogb((double)value) - 7);
    return fabs((double)value - (double)rounded) <= step / 2 &&
           fmod((double)rounded, step / 2) == 0;
}

static void check_round_trip(ddp_device *device, const ddp_layout *layout)
{
    tensor t;
    tensor_init(&t, ddp_layout_shape(layout), 7);
    void *memory = imported(device, layout, t.f);
    float *back = calloc(t.count, sizeof *back), *again = calloc(t.count, sizeof *again);
    assert_non_null(back);
    assert_non_null(again);
    CHECK_OK(ddp_layout_export(device, layout, memory, back));
    check_padding(device, layout, memory);
    for (size_t i = 0; i < t.count; i++)
        if (!is_nearest(t.f[i], back[i]))
            fail_msg("%s: %.9g became %.9g", ddp_layout_name(layout), (double)t.f[i],
                     (double)back[i]);
    CHECK_OK(ddp_layout_import(device, layout, back, memory));
    CHECK_OK(ddp_layout_export(device, layout, memory, again));
    assert_memory_equal(back, again, t.count * sizeof *back);
    free(back);
    free(again);
    ddp_free(memory);
    tensor_free(&t);
}

static void import_rounds_and_export_widens(void **state)
{
    ddp_device *device = open_cpu_bf16();
    (void)state;
    for (int i = 0; i < CONVS; i++) {
        const ddp_op_desc desc = conv_desc(&convs[i]);
        const ddp_shape src = {4, {convs[i].n, convs[i].c, convs[i].h, convs[i].w}};
        op_case c;
        case_open(&c, device, &desc, &src, NULL, NULL);
        check_round_trip(device, ddp_op_plan_dst(c.plan));
        assert_non_null(strstr(ddp_layout_name(ddp_op_plan_dst(c.plan)), "bf16"));
        assert_false(ddp_layout_is_plain(ddp_op_plan_dst(c.plan)));
        case_close(&c);
    }
    for (int i = 0; i < 4; i++) {
        const ddp_op_desc desc = linear_desc(i);
        op_case c;
        case_open(&c, device, &desc, &linears[i].src, NULL, NULL);
        check_round_trip(device, ddp_op_plan_dst(c.plan));
        case_close(&c);
    }
    ddp_device_close(device);
}

static void special_numbers_survive(void **state)
{
    ddp_device *device = open_cpu_bf16();
    ddp_op_desc desc = linear_desc(0);
    const ddp_shape src = {2, {1, 3}};
    /* A tie goes to the even neighbour; what is too large becomes infinite; a NaN whose upper
     * half is that of infinity stays one. */
    const uint32_t nan_bits = 0x7f800001;
    float in[8] = {1.0f + 1.0f / 256, 1.0f + 3.0f / 256, -INFINITY, 3.4e38f, 0, -0.0f, 1e-40f, 0};
    const float want[8] = {1.0f, 1.0f + 4.0f / 256, -INFINITY, INFINITY, 0, -0.0f, 1e-40f, 0};
    float out[8];
    op_case c;
    (void)state;
    memcpy(&in[7], &nan_bits, sizeof in[7]);
    desc.u.linear.out_features = 8;
    case_open(&c, device, &desc, &src, NULL, NULL);
    ddp_layout *layout = ddp_op_plan_dst(c.plan);
    void *memory = imported(device, layout, in);
    CHECK_OK(ddp_layout_export(device, layout, memory, out));
    for (int i = 0; i < 6; i++)
        assert_true(out[i] == want[i] && signbit(out[i]) == signbit(want[i]));
    assert_true(isnan(out[7]));
    ddp_free(memory);
    case_close(&c);
    ddp_device_close(device);
}

/* ---- devices ---- */

static void a_device_without_bf16_refuses(void **state)
{
    ddp_device *device = open_cpu(DDP_CONV_AUTO, NULL, 1);
    const ddp_shape src = {2, {7, 33}};
    ddp_op_desc desc = linear_desc(1);
    ddp_layout *plain;
    ddp_op_plan *plan;
    (void)state;
    CHECK_OK(ddp_layout_plain(device, &src, &plain));
    assert_int_equal(ddp_layout_dtype(plain), DDP_F32);
    if (ddp_device_computes(device, DDP_BF16)) {
        CHECK_OK(ddp_op_plan_create(device, &desc, plain, NULL, &plan));
        ddp_op_plan_destroy(plan);
    } else {
        CHECK_FAILS(ddp_op_plan_create(device, &desc, plain, NULL, &plan), DDP_ERR_UNSUPPORTED,
                    "no instructions for it");
    }
    desc.compute = DDP_F16;
    CHECK_FAILS(ddp_op_plan_create(device, &desc, plain, NULL, &plan), DDP_ERR_UNSUPPORTED,
                "f16: the cpu device does not compute in it");
    ddp_layout_unref(plain);
    ddp_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolutions_agree_with_reference),
        cmocka_unit_test(linear_layers_agree_with_reference),
        cmocka_unit_test(plans_take_bf16_sources),
        cmocka_unit_test(f32_plans_take_bf16_sources),
        cmocka_unit_test(weights_layout_fits_other_batch_sizes),
        cmocka_unit_test(either_backward_pass_masks_the_gradient),
        cmocka_unit_test(no_pass_runs_plain_loops),
        cmocka_unit_test(passes_allocate_nothing),
        cmocka_unit_test(import_rounds_and_export_widens),
        cmocka_unit_test(special_numbers_survive),
        cmocka_unit_test(a_device_without_bf16_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
