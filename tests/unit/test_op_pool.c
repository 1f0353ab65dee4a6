/* test_op_pool.c - pooling, relu and flatten plans in every layout, against references in double.
 */
#include "op_fixture.h"

/* The value of an output, or where its maximum lies. */
static double pool_at(const op_case *c, int64_t plane, int64_t oh, int64_t ow, int64_t *best_out,
                      int64_t *count_out)
{
    const ddp_pool2d_desc *p = &c->desc.u.pool2d;
    const int64_t *s = c->src.shape.dims;
    double sum = 0, most = -INFINITY;
    *count_out = 0;
    for (int64_t kh = 0; kh < p->kernel_h; kh++)
        for (int64_t kw = 0; kw < p->kernel_w; kw++) {
            const int64_t h = oh * p->stride_h + kh - p->pad_h;
            const int64_t w = ow * p->stride_w + kw - p->pad_w;
            if (h < 0 || h >= s[2] || w < 0 || w >= s[3])
                continue;
            const int64_t at = (plane * s[2] + h) * s[3] + w;
            sum += c->src.d[at];
            (*count_out)++;
            if (c->src.d[at] > most) {
                most = c->src.d[at];
                *best_out = at;
            }
        }
    return p->maximum ? most : sum / (double)*count_out;
}

static void spread(op_case *c, int64_t plane, int64_t oh, int64_t ow, double g, int64_t best,
                   int64_t count)
{
    const ddp_pool2d_desc *p = &c->desc.u.pool2d;
    const int64_t *s = c->src.shape.dims;
    if (p->maximum) {
        c->diff_src.d[best] += g;
        return;
    }
    for (int64_t kh = 0; kh < p->kernel_h; kh++)
        for (int64_t kw = 0; kw < p->kernel_w; kw++) {
            const int64_t h = oh * p->stride_h + kh - p->pad_h;
            const int64_t w = ow * p->stride_w + kw - p->pad_w;
            if (h >= 0 && h < s[2] && w >= 0 && w < s[3])
                c->diff_src.d[(plane * s[2] + h) * s[3] + w] += g / (double)count;
        }
}

static void reference(op_case *c)
{
    const int64_t *d = c->dst.shape.dims;
    memset(c->diff_src.d, 0, c->diff_src.count * sizeof *c->diff_src.d);
    for (int64_t i = 0; i < (int64_t)c->dst.count; i++) {
        const int64_t plane = i / d[3] / d[2], oh = i / d[3] % d[2], ow = i % d[3];
        int64_t best = 0, count;
        c->dst.d[i] = pool_at(c, plane, oh, ow, &best, &count);
        spread(c, plane, oh, ow, (double)c->diff_dst.f[i], best, count);
    }
}

static void check_case(const place *p, const ddp_op_desc *desc, double limit,
                       void (*compute)(op_case *c))
{
    op_case c;
    case_open(&c, p->device, desc, ddp_layout_shape(p->layout), p->layout, NULL);
    ddp_mem_freeze();
    case_run(&c, DDP_PASS_FORWARD);
    case_run(&c, DDP_PASS_BACKWARD_DATA);
    assert_int_equal(ddp_mem_allocs_since_freeze(), 0);
    ddp_mem_thaw();
    case_run_all(&c, p->layout);
    compute(&c);
    CHECK_CLOSE(&c.dst, limit);
    CHECK_CLOSE(&c.diff_src, limit);
    case_close(&c);
}

/* Each of several descriptors, in every layout, with one thread and two. */
static void check_everywhere(const ddp_op_desc *descs, size_t count, const ddp_shape *src,
                             void (*compute)(op_case *c))
{
    for (int kind = 0; kind < PLACES; kind++)
        for (int threads = 1; threads <= 2; threads++) {
            place p;
            place_open(&p, src, kind, threads);
            for (size_t i = 0; i < count; i++)
                check_case(&p, &descs[i], kind == PLACE_BF16 ? BF16_ROUNDING : 1e-6, compute);
            place_close(&p);
        }
}

static const ddp_shape shapes[] = {
    {4, {16, 20, 26, 26}}, {4, {3, 50, 9, 9}}, {4, {1, 3, 7, 5}}, {4, {17, 5, 4, 11}}};
static const ddp_pool2d_desc windows[] = {
    {false, 2, 2, 2, 2, 0, 0, false}, {false, 3, 3, 2, 2, 1, 1, false},
    {false, 2, 3, 1, 2, 0, 1, false}, {true, 2, 2, 2, 2, 0, 0, false},
    {true, 3, 3, 2, 2, 1, 1, false},  {true, 3, 2, 1, 3, 2, 1, false}};

static void pooling_agrees_with_reference_in_every_layout(void **state)
{
    enum { WINDOWS = sizeof windows / sizeof windows[0] };
    ddp_op_desc descs[WINDOWS];
    (void)state;
    for (size_t w = 0; w < WINDOWS; w++)
        descs[w] = (ddp_op_desc){
            .kind = DDP_OP_POOL2D, .training = true, .need_diff_src = true, .u.pool2d = windows[w]};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        check_everywhere(descs, WINDOWS, &shapes[s], reference);
}

static void global_reference(op_case *c)
{
    const size_t pixels = (size_t)(c->src.shape.dims[2] * c->src.shape.dims[3]);
    memset(c->dst.d, 0, c->dst.count * sizeof *c->dst.d);
    for (size_t i = 0; i < c->src.count; i++) {
        c->dst.d[i / pixels] += c->src.d[i] / (double)pixels;
        c->diff_src.d[i] = (double)c->diff_dst.f[i / pixels] / (double)pixels;
    }
}

static void global_average_agrees_with_reference_in_every_layout(void **state)
{
    static const ddp_shape more[] = {{4, {2, 5, 71, 70}}, {4, {33, 3, 1, 1}}};
    const ddp_op_desc desc = {.kind = DDP_OP_POOL2D,
                              .training = true,
                              .need_diff_src = true,
                              .u.pool2d = {.global = true}};
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        check_everywhere(&desc, 1, &shapes[s], global_reference);
    for (size_t s = 0; s < sizeof more / sizeof more[0]; s++)
        check_everywhere(&desc, 1, &more[s], global_reference);
}

static void relu_reference(op_case *c)
{
    for (size_t i = 0; i < c->src.count; i++) {
        c->dst.d[i] = c->src.d[i] > 0 ? c->src.d[i] : 0;
        c->diff_src.d[i] = c->src.d[i] > 0 ? (double)c->diff_dst.f[i] : 0;
    }
}

static void relu_agrees_with_reference_in_every_layout(void **state)
{
    const ddp_op_desc desc = {.kind = DDP_OP_RELU, .training = true, .need_diff_src = true};
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        check_everywhere(&desc, 1, &shapes[s], relu_reference);
}

static void flatten_reference(op_case *c)
{
    for (size_t i = 0; i < c->src.count; i++) {
        c->dst.d[i] = c->src.d[i];
        c->diff_src.d[i] = (double)c->diff_dst.f[i];
    }
}

static void flatten_gives_plain_order_from_every_layout(void **state)
{
    const ddp_op_desc desc = {.kind = DDP_OP_RESHAPE, .training = true, .need_diff_src = true};
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        check_everywhere(&desc, 1, &shapes[s], flatten_reference);
}

static void maximum_takes_the_first_of_equals_and_keeps_nan(void **state)
{
    ddp_device *device = open_cpu(DDP_CONV_AUTO, NULL, 1);
    const ddp_op_desc desc = {.kind = DDP_OP_POOL2D,
                              .training = true,
                              .need_diff_src = true,
                              .u.pool2d = {true, 2, 2, 2, 2, 0, 0, false}};
    const ddp_shape src = {4, {1, 1, 2, 4}};
    const float values[8] = {1, 1, 2, NAN, 1, 1, 3, 4}, gradients[2] = {5, 6};
    const float want[8] = {5, 0, 0, 6, 0, 0, 0, 0};
    op_case c;
    (void)state;
    case_open(&c, device, &desc, &src, NULL, NULL);
    memcpy((void *)c.args.src, values, sizeof values);
    memcpy(c.args.diff_dst, gradients, sizeof gradients);
    case_run(&c, DDP_PASS_FORWARD);
    assert_true(((float *)c.args.dst)[0] == 1 && isnan(((float *)c.args.dst)[1]));
    case_run(&c, DDP_PASS_BACKWARD_DATA);
    assert_memory_equal(c.args.diff_src, want, sizeof want);
    case_close(&c);
    ddp_device_close(device);
}

static void layouts_round_trip(void **state)
{
    (void)state;
    for (int kind = 0; kind < PLACE_PLAIN; kind++)
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
            place p;
            place_open(&p, &shapes[s], kind, 1);
            ddp_layout *of[2] = {p.layout, ddp_op_plan_weights(p.maker)};
            for (int i = 0; i < 2; i++) {
                tensor t, back;
                tensor_init(&t, ddp_layout_shape(of[i]), 7);
                tensor_init(&back, ddp_layout_shape(of[i]), 0);
                void *memory = imported(p.device, of[i], t.f);
                check_padding(p.device, of[i], memory);
                CHECK_OK(ddp_layout_export(p.device, of[i], memory, back.f));
                assert_memory_equal(t.f, back.f, t.count * sizeof *t.f);
                ddp_free(memory);
                tensor_free(&t);
                tensor_free(&back);
            }
            place_close(&p);
        }
}

static void infer_says_what_does_not_fit(void **state)
{
    const ddp_op_desc desc = {.kind = DDP_OP_POOL2D, .u.pool2d = {false, 4, 4, 4, 4, 1, 1, false}};
    const ddp_shape small = {4, {2, 1, 1, 3}}, good = {4, {2, 1, 9, 3}};
    ddp_shape dst, weights;
    (void)state;
    CHECK_FAILS(ddp_op_infer(&desc, &small, &dst, &weights), DDP_ERR_SHAPE,
                "pooling: kernel 4x4 does not fit input 1x3 with padding 1");
    CHECK_OK(ddp_op_infer(&desc, &good, &dst, &weights));
    assert_true(ddp_shape_equal(&dst, &(ddp_shape){4, {2, 1, 2, 1}}));
    assert_int_equal(weights.ndim, 0);
    const ddp_op_desc global = {.kind = DDP_OP_POOL2D, .u.pool2d = {.global = true}};
    CHECK_OK(ddp_op_infer(&global, &good, &dst, &weights));
    assert_true(ddp_shape_equal(&dst, &(ddp_shape){4, {2, 1, 1, 1}}));
    CHECK_FAILS(ddp_op_infer(&global, &(ddp_shape){2, {4, 5}}, &dst, &weights), DDP_ERR_SHAPE,
                "global pooling needs images");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pooling_agrees_with_reference_in_every_layout),
        cmocka_unit_test(global_average_agrees_with_reference_in_every_layout),
        cmocka_unit_test(relu_agrees_with_reference_in_every_layout),
        cmocka_unit_test(flatten_gives_plain_order_from_every_layout),
        cmocka_unit_test(maximum_takes_the_first_of_equals_and_keeps_nan),
        cmocka_unit_test(layouts_round_trip),
        cmocka_unit_test(infer_says_what_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
