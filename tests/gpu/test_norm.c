/* test_norm.c - batch normalisation on the CUDA device against the CPU's, in every variant, and
 * against a reference in double where the mean is far from 0. */
#include "both.h"

typedef struct norm_case {
    const both *b;
    ddp_op_desc desc;
    bool second; /* a second gradient of dst */
    ddp_layout *src_layout[SIDES], *src2_layout[SIDES];
    plans plan;
    tensor src, src2, dst, diff_dst, diff_dst2, diff_src, diff_src2;
    array weights, bias, diff_weights, diff_bias, running_mean, running_var;
    array mean, m2, sum_dy, sum_dy_xhat;
} norm_case;

typedef struct variant {
    ddp_shape shape;
    form src, src2;
    bool relu, add, second;
    bool evaluate; /* not for training */
} variant;

static void case_open(norm_case *c, const both *b, const variant *v)
{
    const size_t channels = (size_t)v->shape.dims[1];
    *c = (norm_case){.b = b, .second = v->second};
    c->desc = (ddp_op_desc){.kind = DDP_OP_NORM,
                            .training = !v->evaluate,
                            .need_diff_src = !v->evaluate,
                            .u.norm = {1e-5, v->relu, v->add}};
    layout_open(b, &v->shape, v->src, c->src_layout);
    layout_open(b, &v->shape, v->src2, c->src2_layout);
    plans_open(b, &c->desc, c->src_layout, v->add ? c->src2_layout : NULL, &c->plan);
    c->src = tensor_of(b, c->src_layout, 1);
    c->src2 = tensor_of(b, c->src2_layout, 2);
    c->dst = tensor_of(b, c->plan.dst, 0);
    c->diff_dst = tensor_of(b, c->plan.dst, 3);
    c->diff_dst2 = tensor_of(b, c->plan.dst, 4);
    c->diff_src = tensor_of(b, c->src_layout, 0);
    c->diff_src2 = tensor_of(b, c->src2_layout, 0);
    c->weights = array_random(b, channels, 5, 0.5f, 1);
    c->bias = array_random(b, channels, 6, 1, 0);
    c->running_mean = array_random(b, channels, 7, 1, 0);
    c->running_var = array_random(b, channels, 8, 0.5f, 1);
    c->diff_weights = array_of(b, NULL, channels * sizeof(float));
    c->diff_bias = array_of(b, NULL, channels * sizeof(float));
    array *const doubles[] = {&c->mean, &c->m2, &c->sum_dy, &c->sum_dy_xhat};
    for (size_t i = 0; i < sizeof doubles / sizeof doubles[0]; i++)
        *doubles[i] = array_of(b, NULL, channels * sizeof(double));
}

static void case_close(norm_case *c)
{
    tensor *const tensors[] = {&c->src,       &c->src2,     &c->dst,      &c->diff_dst,
                               &c->diff_dst2, &c->diff_src, &c->diff_src2};
    array *const arrays[] = {&c->weights,      &c->bias,        &c->diff_weights, &c->diff_bias,
                             &c->running_mean, &c->running_var, &c->mean,         &c->m2,
                             &c->sum_dy,       &c->sum_dy_xhat};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++)
        tensor_free(c->b, tensors[i]);
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        array_free(c->b, arrays[i]);
    plans_close(c->b, &c->plan);
    layout_close(c->src_layout);
    layout_close(c->src2_layout);
}

static void case_pass(norm_case *c, int side, ddp_op_pass pass)
{
    const ddp_shape *shape = ddp_layout_shape(c->src_layout[side]);
    ddp_norm_state norm = {.count = (double)(ddp_shape_count(shape) / shape->dims[1]),
                           .mean = c->mean.on[side],
                           .m2 = c->m2.on[side],
                           .sum_dy = c->sum_dy.on[side],
                           .sum_dy_xhat = c->sum_dy_xhat.on[side],
                           .running_mean = c->running_mean.on[side],
                           .running_var = c->running_var.on[side]};
    const ddp_op_args args = {.src = c->src.on[side],
                              .src2 = c->src2.on[side],
                              .dst = c->dst.on[side],
                              .weights = c->weights.on[side],
                              .bias = c->bias.on[side],
                              .diff_src = c->diff_src.on[side],
                              .diff_src2 = c->diff_src2.on[side],
                              .diff_dst = c->diff_dst.on[side],
                              .diff_dst2 = c->second ? c->diff_dst2.on[side] : NULL,
                              .diff_weights = c->diff_weights.on[side],
                              .diff_bias = c->diff_bias.on[side],
                              .scratch = c->plan.scratch[side],
                              .norm = &norm};
    CHECK_OK(ddp_op_run(c->plan.on[side], pass, stream_of(c->b, side), &args));
}

static void case_run(norm_case *c)
{
    for (int side = 0; side < SIDES; side++) {
        case_pass(c, side, DDP_PASS_STATISTICS);
        case_pass(c, side, DDP_PASS_FORWARD);
        case_pass(c, side, DDP_PASS_BACKWARD_WEIGHTS);
        case_pass(c, side, DDP_PASS_BACKWARD_DATA);
    }
}

/* In f32 both devices round differently a few times per value, and sums of a few rows are in f32.
 * With bf16 and f16 the CPU works in f32 here, and the GPU rounds each result once. */
static void check_variant(const both *b, const variant *v)
{
    const double limit = 2e-6 + rounding_of(v->src.dtype);
    norm_case c;
    case_open(&c, b, v);
    case_run(&c);
    check_doubles(b, "mean", &c.mean, 1e-6);
    check_doubles(b, "m2", &c.m2, 1e-6);
    check_tensor(b, "dst", &c.dst, limit);
    check_tensor(b, "diff_dst", &c.diff_dst, limit);
    check_doubles(b, "sum_dy", &c.sum_dy, v->src.dtype != DDP_F32 ? 0.05 : 1e-4);
    check_floats(b, "diff_bias", &c.diff_bias, limit);
    check_floats(b, "diff_weights", &c.diff_weights, limit);
    check_tensor(b, "diff_src", &c.diff_src, limit);
    if (v->add)
        check_tensor(b, "diff_src2", &c.diff_src2, limit);
    case_close(&c);
}

static const ddp_shape shapes[] = {{4, {2, 3, 5, 7}},   {4, {3, 16, 8, 8}},  {4, {2, 64, 9, 16}},
                                   {4, {3, 130, 3, 3}}, {4, {1, 1, 1, 300}}, {4, {40, 20, 1, 1}},
                                   {4, {2, 257, 5, 4}}, {4, {9, 4, 30, 31}}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static void matches_the_cpu_for_all_shapes(void **state)
{
    for (int i = 0; i < SHAPES; i++)
        for (int type = 0; type < FLOAT_TYPES; type++) {
            const form f = {true, float_types[type]};
            const variant v = {shapes[i], f, f, i % 2 == 0, false, false, false};
            check_variant(*state, &v);
        }
}

static void fuses_relu_addition_and_second_gradients(void **state)
{
    for (int bits = 0; bits < 8 * FLOAT_TYPES; bits++) {
        const form f = {true, float_types[bits / 8]};
        const variant v = {shapes[2],       f,    f, (bits & 1) != 0, (bits & 2) != 0,
                           (bits & 4) != 0, false};
        check_variant(*state, &v);
    }
}

static void takes_sources_that_lie_otherwise(void **state)
{
    const form last = {true, DDP_F32}, plain = {false, DDP_F32}, last_bf16 = {true, DDP_BF16},
               last_f16 = {true, DDP_F16};
    const variant variants[] = {{shapes[0], plain, plain, true, false, false, false},
                                {shapes[1], plain, last, true, true, false, false},
                                {shapes[1], last, plain, true, true, true, false},
                                {shapes[1], last_bf16, plain, false, true, false, false},
                                {shapes[1], last_bf16, last, true, true, false, false},
                                {shapes[1], last_f16, plain, false, true, false, false}};
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++)
        check_variant(*state, &variants[i]);
}

static void evaluates_with_running_statistics(void **state)
{
    const both *b = *state;
    const form f = {true, DDP_F32};
    const variant v = {.shape = shapes[3], .src = f, .src2 = f, .relu = true, .evaluate = true};
    norm_case c;
    case_open(&c, b, &v);
    for (int side = 0; side < SIDES; side++)
        case_pass(&c, side, DDP_PASS_FORWARD);
    check_tensor(b, "dst", &c.dst, 1e-6);
    case_close(&c);
}

/* Around 1000, where f32 leaves 14 bits behind the point: a sum of squares would have nothing left
 * of the variance. */
static void a_mean_far_from_zero_costs_no_digits(void **state)
{
    const both *b = *state;
    const form f = {true, DDP_F32};
    const variant v = {{4, {16, 5, 20, 20}}, f, f, false, false, false, false};
    const int64_t pixels = 400, n = 16, channels = 5;
    norm_case c;
    case_open(&c, b, &v);
    float *values = random_floats((size_t)(n * channels * pixels), 9, false);
    for (int64_t i = 0; i < n * channels * pixels; i++)
        values[i] += 1000;
    CHECK_OK(ddp_layout_import(b->device[GPU], c.src_layout[GPU], values, c.src.on[GPU]));
    case_pass(&c, GPU, DDP_PASS_STATISTICS);
    double *mean = array_get(b, &c.mean, GPU), *m2 = array_get(b, &c.m2, GPU);
    for (int64_t ch = 0; ch < channels; ch++) {
        double want = 0, squares = 0;
        for (int64_t i = 0; i < n * pixels; i++)
            want += (double)values[(i / pixels * channels + ch) * pixels + i % pixels];
        want /= (double)(n * pixels);
        for (int64_t i = 0; i < n * pixels; i++) {
            const double d =
                (double)values[(i / pixels * channels + ch) * pixels + i % pixels] - want;
            squares += d * d;
        }
        assert_true(fabs(mean[ch] - want) < 1e-6);
        assert_true(fabs(m2[ch] - squares) < 1e-6 * squares);
    }
    free(values);
    free(mean);
    free(m2);
    case_close(&c);
}

static void gives_the_same_bits_every_time(void **state)
{
    const both *b = *state;
    const form f = {true, DDP_F32};
    const variant v = {shapes[7], f, f, true, true, true, false};
    void *first[4] = {0};
    for (int run = 0; run < 2; run++) {
        norm_case c;
        case_open(&c, b, &v);
        case_run(&c);
        const array *const results[] = {&c.mean, &c.m2, &c.sum_dy, &c.sum_dy_xhat};
        for (int i = 0; i < 4; i++) {
            void *now = array_get(b, results[i], GPU);
            if (run == 1)
                assert_memory_equal(first[i], now, results[i]->bytes);
            free(first[i]);
            first[i] = run == 0 ? now : NULL;
            if (run == 1)
                free(now);
        }
        case_close(&c);
    }
}

static int set_up(void **state)
{
    static both b;
    both_open(&b);
    *state = &b;
    return 0;
}

static int tear_down(void **state)
{
    both_close(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_the_cpu_for_all_shapes),
        cmocka_unit_test(fuses_relu_addition_and_second_gradients),
        cmocka_unit_test(takes_sources_that_lie_otherwise),
        cmocka_unit_test(evaluates_with_running_statistics),
        cmocka_unit_test(a_mean_far_from_zero_costs_no_digits),
        cmocka_unit_test(gives_the_same_bits_every_time),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
