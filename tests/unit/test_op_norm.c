/* test_op_norm.c - batch normalisation in every layout: against a reference in double and finite
 * differences, with a relu and a second source, statistics combined from parts, padding, threads.
 */
#include "op_fixture.h"

#define EPS 1e-3

/* One plan with its operands, plain (tensors) and in the plan's layout. */
typedef struct norm_case {
    ddp_device *device;
    ddp_op_desc desc;
    ddp_layout *layout, *layout2; /* of src and of src2; borrowed */
    ddp_op_plan *plan;
    tensor src, src2, weights, bias, dst;
    tensor diff_dst, diff_dst2, diff_src, diff_src2, diff_weights, diff_bias;
    ddp_norm_state norm;
    double *want_mean, *want_var; /* of the reference */
    ddp_op_args args;
} norm_case;

static double *doubles(int64_t count)
{
    double *values = calloc((size_t)count, sizeof *values);
    assert_non_null(values);
    return values;
}

static void norm_open(norm_case *c, ddp_device *device, const ddp_norm_desc *norm,
                      ddp_layout *layout, ddp_layout *layout2)
{
    const ddp_shape shape = *ddp_layout_shape(layout);
    const ddp_shape channels = {1, {shape.dims[1]}};
    *c = (norm_case){.device = device, .layout = layout, .layout2 = layout2};
    c->desc = (ddp_op_desc){.kind = DDP_OP_NORM,
                            .training = true,
                            .need_diff_src = true,
                            .src2 = layout2,
                            .u.norm = *norm};
    CHECK_OK(ddp_op_plan_create(device, &c->desc, layout, NULL, &c->plan));
    assert_true(ddp_layout_equal(ddp_op_plan_dst(c->plan), layout));
    assert_true(ddp_layout_is_plain(ddp_op_plan_weights(c->plan)));
    tensor *const wide[] = {&c->src,       &c->src2,     &c->dst,      &c->diff_dst,
                            &c->diff_dst2, &c->diff_src, &c->diff_src2};
    const uint64_t seeds[] = {1, 2, 0, 3, 4, 0, 0};
    for (int i = 0; i < 7; i++)
        tensor_init(wide[i], &shape, seeds[i]);
    tensor_init(&c->weights, &channels, 5);
    tensor_init(&c->bias, &channels, 6);
    tensor_init(&c->diff_weights, &channels, 0);
    tensor_init(&c->diff_bias, &channels, 0);
    c->norm = (ddp_norm_state){.count = (double)(shape.dims[0] * shape.dims[2] * shape.dims[3]),
                               .mean = doubles(shape.dims[1]),
                               .m2 = doubles(shape.dims[1]),
                               .sum_dy = doubles(shape.dims[1]),
                               .sum_dy_xhat = doubles(shape.dims[1])};
    c->want_mean = doubles(shape.dims[1]);
    c->want_var = doubles(shape.dims[1]);
}

/* Brings the plain operands into the plan's layouts. */
static void norm_import(norm_case *c)
{
    ddp_layout *layout2 = c->layout2 != NULL ? c->layout2 : c->layout;
    c->args = (ddp_op_args){.src = imported_rounded(c->device, c->layout, &c->src),
                            .src2 = imported_rounded(c->device, layout2, &c->src2),
                            .dst = buffer(ddp_layout_bytes(c->layout)),
                            .weights = c->weights.f,
                            .bias = c->bias.f,
                            .diff_src = buffer(ddp_layout_bytes(c->layout)),
                            .diff_src2 = buffer(ddp_layout_bytes(layout2)),
                            .diff_dst = imported_rounded(c->device, c->layout, &c->diff_dst),
                            .diff_dst2 = imported_rounded(c->device, c->layout, &c->diff_dst2),
                            .diff_weights = c->diff_weights.f,
                            .diff_bias = c->diff_bias.f,
                            .scratch = buffer(ddp_op_plan_scratch_bytes(c->plan)),
                            .norm = &c->norm};
}

static void norm_pass(norm_case *c, ddp_op_pass pass)
{
    CHECK_OK(ddp_op_run(c->plan, pass, ddp_device_main_stream(c->device), &c->args));
}

static void norm_export(norm_case *c, const ddp_layout *layout, const void *memory, tensor *t)
{
    CHECK_OK(ddp_layout_export(c->device, layout, memory, t->f));
    check_padding(c->device, layout, memory);
}

static void norm_run_all(norm_case *c)
{
    norm_pass(c, DDP_PASS_STATISTICS);
    norm_pass(c, DDP_PASS_FORWARD);
    norm_pass(c, DDP_PASS_BACKWARD_WEIGHTS);
    norm_pass(c, DDP_PASS_BACKWARD_DATA);
    norm_export(c, c->layout, c->args.dst, &c->dst);
    norm_export(c, c->layout, c->args.diff_src, &c->diff_src);
    if (c->desc.u.norm.add)
        norm_export(c, c->layout2 != NULL ? c->layout2 : c->layout, c->args.diff_src2,
                    &c->diff_src2);
}

static void norm_close(norm_case *c)
{
    void *const buffers[] = {(void *)c->args.src, (void *)c->args.src2, c->args.dst,
                             c->args.diff_src,    c->args.diff_src2,    c->args.diff_dst,
                             c->args.diff_dst2,   c->args.scratch};
    tensor *const tensors[] = {&c->src,       &c->src2,         &c->weights,   &c->bias,
                               &c->dst,       &c->diff_dst,     &c->diff_dst2, &c->diff_src,
                               &c->diff_src2, &c->diff_weights, &c->diff_bias};
    double *const arrays[] = {c->norm.mean,        c->norm.m2,   c->norm.sum_dy,
                              c->norm.sum_dy_xhat, c->want_mean, c->want_var};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        ddp_free(buffers[i]);
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++)
        tensor_free(tensors[i]);
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        free(arrays[i]);
    ddp_op_plan_destroy(c->plan);
}

/* ---- reference ---- */

static int64_t channel_at(const norm_case *c, size_t i)
{
    const int64_t *d = c->src.shape.dims;
    return (int64_t)i / (d[2] * d[3]) % d[1];
}

static void reference_statistics(norm_case *c)
{
    const int64_t channels = c->src.shape.dims[1];
    memset(c->want_mean, 0, (size_t)channels * sizeof(double));
    memset(c->want_var, 0, (size_t)channels * sizeof(double));
    for (size_t i = 0; i < c->src.count; i++)
        c->want_mean[channel_at(c, i)] += c->src.d[i] / c->norm.count;
    for (size_t i = 0; i < c->src.count; i++) {
        const double d = c->src.d[i] - c->want_mean[channel_at(c, i)];
        c->want_var[channel_at(c, i)] += d * d / c->norm.count;
    }
}

static void reference_forward(norm_case *c)
{
    for (size_t i = 0; i < c->src.count; i++) {
        const int64_t channel = channel_at(c, i);
        double value = (c->src.d[i] - c->want_mean[channel]) / sqrt(c->want_var[channel] + EPS) *
                           c->weights.d[channel] +
                       c->bias.d[channel];
        if (c->desc.u.norm.add)
            value += c->src2.d[i];
        c->dst.d[i] = c->desc.u.norm.relu && value < 0 ? 0 : value;
    }
}

/* By the formula of the header; what is masked is decided by the plan's own dst. The sum of two
 * gradients is rounded where it is kept. */
static void reference_backward(norm_case *c)
{
    for (size_t i = 0; i < c->src.count; i++)
        c->diff_src2.f[i] = c->diff_dst.f[i] + (c->args.diff_dst2 != NULL ? c->diff_dst2.f[i] : 0);
    round_as(c->device, c->layout, &c->diff_src2);
    memset(c->diff_weights.d, 0, c->diff_weights.count * sizeof(double));
    memset(c->diff_bias.d, 0, c->diff_bias.count * sizeof(double));
    for (size_t i = 0; i < c->src.count; i++) {
        const int64_t ch = channel_at(c, i);
        double dy = c->diff_src2.d[i];
        if (c->desc.u.norm.relu && !(c->dst.f[i] > 0))
            dy = 0;
        c->diff_src2.d[i] = dy;
        c->diff_bias.d[ch] += dy;
        c->diff_weights.d[ch] +=
            dy * (c->src.d[i] - c->want_mean[ch]) / sqrt(c->want_var[ch] + EPS);
    }
    for (size_t i = 0; i < c->src.count; i++) {
        const int64_t ch = channel_at(c, i);
        const double inv = 1 / sqrt(c->want_var[ch] + EPS);
        const double xhat = (c->src.d[i] - c->want_mean[ch]) * inv;
        c->diff_src.d[i] = c->weights.d[ch] * inv *
                           (c->diff_src2.d[i] - c->diff_bias.d[ch] / c->norm.count -
                            xhat * c->diff_weights.d[ch] / c->norm.count);
    }
}

static void check_statistics(const norm_case *c, double limit)
{
    for (int64_t ch = 0; ch < c->src.shape.dims[1]; ch++) {
        const double var = c->norm.m2[ch] / c->norm.count;
        assert_true(fabs(c->norm.mean[ch] - c->want_mean[ch]) <=
                    limit * sqrt(c->want_var[ch] + c->want_mean[ch] * c->want_mean[ch]));
        assert_true(fabs(var - c->want_var[ch]) <= limit * c->want_var[ch]);
    }
}

/* diff_dst itself is the gradient of src2 after backward weights; diff_src2 is its copy. */
static void check_second_gradient(norm_case *c)
{
    ddp_layout *layout2 = c->layout2 != NULL ? c->layout2 : c->layout;
    tensor kept;
    tensor_init(&kept, &c->src.shape, 0);
    norm_export(c, c->layout, c->args.diff_dst, &kept);
    memcpy(kept.d, c->diff_src2.d, kept.count * sizeof *kept.d);
    CHECK_CLOSE(&kept, 1e-7);
    round_as(c->device, layout2, &kept);
    norm_export(c, layout2, c->args.diff_src2, &c->diff_src2);
    assert_memory_equal(kept.f, c->diff_src2.f, kept.count * sizeof *kept.f);
    tensor_free(&kept);
}

static void check_all(norm_case *c)
{
    const double rounding = ddp_layout_dtype(c->layout) == DDP_BF16 ? BF16_ROUNDING : 0;
    reference_statistics(c);
    reference_forward(c);
    reference_backward(c);
    if (c->desc.u.norm.add)
        check_second_gradient(c);
    check_statistics(c, 1e-6);
    CHECK_CLOSE(&c->dst, 1e-6 + rounding);
    CHECK_CLOSE(&c->diff_weights, 3e-6);
    CHECK_CLOSE(&c->diff_bias, 3e-6);
    CHECK_CLOSE(&c->diff_src, 3e-6 + rounding);
    for (int64_t ch = 0; ch < c->src.shape.dims[1]; ch++) {
        assert_true((float)c->norm.sum_dy[ch] == c->diff_bias.f[ch]);
        assert_true((float)c->norm.sum_dy_xhat[ch] == c->diff_weights.f[ch]);
    }
}

/* ---- layouts ---- */

/* Plain, and what convolutions by oneDNN and over blocks of images leave. Several chunks, several
 * rows, tails; channels and images that do not fill a block. */
static const ddp_shape shapes[] = {{4, {16, 20, 26, 26}}, {4, {3, 50, 9, 9}},  {4, {1, 3, 7, 5}},
                                   {4, {17, 5, 4, 11}},   {4, {2, 4, 70, 71}}, {4, {40, 33, 2, 2}}};
static const ddp_norm_desc kinds[] = {
    {EPS, false, false}, {EPS, true, false}, {EPS, false, true}, {EPS, true, true}};
enum { KINDS = 4 };

static void normalising_agrees_with_reference_in_every_layout(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int i = 0; i < PLACES * KINDS; i++) {
            place p;
            place_open(&p, &shapes[s], i / KINDS, 1);
            norm_case c;
            norm_open(&c, p.device, &kinds[i % KINDS], p.layout, NULL);
            norm_import(&c);
            ddp_mem_freeze();
            norm_pass(&c, DDP_PASS_STATISTICS);
            norm_pass(&c, DDP_PASS_FORWARD);
            assert_int_equal(ddp_mem_allocs_since_freeze(), 0);
            ddp_mem_thaw();
            if (i % 2 == 1) {
                ddp_free(c.args.diff_dst2);
                c.args.diff_dst2 = NULL;
            }
            norm_run_all(&c);
            check_all(&c);
            norm_close(&c);
            place_close(&p);
        }
}

static void second_source_may_lie_otherwise(void **state)
{
    (void)state;
    for (int kind = 0; kind < PLACES; kind++)
        for (int swap = 0; swap < 2; swap++) {
            place p;
            place_open(&p, &shapes[1], kind, 2);
            norm_case c;
            norm_open(&c, p.device, &kinds[3], swap ? p.plain : p.layout,
                      swap ? p.layout : p.plain);
            norm_import(&c);
            norm_run_all(&c);
            check_all(&c);
            norm_close(&c);
            place_close(&p);
        }
}

static void threads_change_no_bit(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int kind = 0; kind < PLACES; kind++) {
            place p[2];
            place_open(&p[0], &shapes[s], kind, 1);
            place_open(&p[1], &shapes[s], kind, 3);
            norm_case c[2];
            for (int i = 0; i < 2; i++) {
                norm_open(&c[i], p[i].device, &kinds[3], p[i].layout, NULL);
                norm_import(&c[i]);
                norm_run_all(&c[i]);
            }
            const size_t bytes = c[0].src.count * sizeof(float);
            const size_t channels = c[0].weights.count;
            assert_memory_equal(c[0].norm.mean, c[1].norm.mean, channels * sizeof(double));
            assert_memory_equal(c[0].norm.m2, c[1].norm.m2, channels * sizeof(double));
            assert_memory_equal(c[0].norm.sum_dy, c[1].norm.sum_dy, channels * sizeof(double));
            assert_memory_equal(c[0].dst.f, c[1].dst.f, bytes);
            assert_memory_equal(c[0].diff_src.f, c[1].diff_src.f, bytes);
            for (int i = 0; i < 2; i++) {
                norm_close(&c[i]);
                place_close(&p[i]);
            }
        }
}

/* ---- gradients by differences ---- */

static double weighted_sum(norm_case *c)
{
    double sum = 0;
    reference_statistics(c);
    reference_forward(c);
    for (size_t i = 0; i < c->dst.count; i++)
        sum += c->dst.d[i] * ((double)c->diff_dst.f[i] + (double)c->diff_dst2.f[i]);
    return sum;
}

static void check_by_differences(norm_case *c, const tensor *gradient, double *operand)
{
    const double step = 1e-6;
    for (size_t i = 0; i < gradient->count; i += gradient->count / 7 + 1) {
        const double before = operand[i];
        double sides[2];
        for (int side = 0; side < 2; side++) {
            operand[i] = before + (side == 0 ? step : -step);
            sides[side] = weighted_sum(c);
        }
        operand[i] = before;
        const double want = (sides[0] - sides[1]) / (2 * step);
        if (fabs(want - (double)gradient->f[i]) > 1e-4 * (1 + fabs(want)))
            fail_msg("entry %zu: %g, by differences %g", i, (double)gradient->f[i], want);
    }
}

static void gradients_agree_with_finite_differences(void **state)
{
    const ddp_shape shape = {4, {5, 3, 4, 6}};
    (void)state;
    for (int i = 0; i < F32_PLACES * KINDS; i++) {
        place p;
        place_open(&p, &shape, i / KINDS, 1);
        norm_case c;
        norm_open(&c, p.device, &kinds[i % KINDS], p.layout, NULL);
        norm_import(&c);
        norm_run_all(&c);
        check_by_differences(&c, &c.diff_src, c.src.d);
        check_by_differences(&c, &c.diff_weights, c.weights.d);
        check_by_differences(&c, &c.diff_bias, c.bias.d);
        if (c.desc.u.norm.add)
            check_by_differences(&c, &c.diff_src2, c.src2.d);
        norm_close(&c);
        place_close(&p);
    }
}

/* ---- statistics ---- */

/* Sums of squares in float would keep no digit of the variance. */
static void variance_survives_a_mean_far_from_0(void **state)
{
    const ddp_shape shape = {4, {20, 18, 28, 28}};
    (void)state;
    for (int kind = 0; kind < F32_PLACES; kind++) {
        place p;
        place_open(&p, &shape, kind, 1);
        norm_case c;
        norm_open(&c, p.device, &kinds[0], p.layout, NULL);
        for (size_t i = 0; i < c.src.count; i++)
            c.src.d[i] = (double)(c.src.f[i] = 1000 + c.src.f[i] * 1.7320508f);
        norm_import(&c);
        norm_run_all(&c);
        reference_statistics(&c);
        assert_true(fabs(c.want_var[0] - 1) < 0.05);
        check_statistics(&c, 1e-6);
        reference_forward(&c);
        CHECK_CLOSE(&c.dst, 1e-6);
        norm_close(&c);
        place_close(&p);
    }
}

/* A first row that is nothing like the rest must not spoil the deviations. */
static void variance_survives_an_odd_first_row(void **state)
{
    place p;
    place_open(&p, &shapes[0], PLACE_PLAIN, 1);
    norm_case c;
    (void)state;
    norm_open(&c, p.device, &kinds[0], p.layout, NULL);
    for (size_t i = 0; i < c.src.count; i++)
        c.src.d[i] = (double)(c.src.f[i] = i % (26 * 26) < 32 ? -3000 : c.src.f[i]);
    norm_import(&c);
    norm_pass(&c, DDP_PASS_STATISTICS);
    reference_statistics(&c);
    check_statistics(&c, 1e-6);
    norm_close(&c);
    place_close(&p);
}

/* As ranks do: each has half of the images, and they exchange statistics and sums. */
static void halves_combined_equal_the_whole(void **state)
{
    const ddp_shape whole = {4, {34, 20, 5, 6}}, half = {4, {17, 20, 5, 6}};
    (void)state;
    for (int kind = 0; kind < F32_PLACES; kind++) {
        place all, part;
        place_open(&all, &whole, kind, 1);
        place_open(&part, &half, kind, 1);
        norm_case c, h[2];
        norm_open(&c, all.device, &kinds[3], all.layout, NULL);
        norm_import(&c);
        norm_run_all(&c);
        for (int i = 0; i < 2; i++) {
            norm_open(&h[i], part.device, &kinds[3], part.layout, NULL);
            const size_t from = (size_t)i * h[i].src.count, bytes = h[i].src.count * sizeof(float);
            memcpy(h[i].src.f, c.src.f + from, bytes);
            memcpy(h[i].src2.f, c.src2.f + from, bytes);
            memcpy(h[i].diff_dst.f, c.diff_dst.f + from, bytes);
            memcpy(h[i].diff_dst2.f, c.diff_dst2.f + from, bytes);
            norm_import(&h[i]);
            norm_pass(&h[i], DDP_PASS_STATISTICS);
        }
        for (int64_t ch = 0; ch < 20; ch++) {
            const double delta = h[1].norm.mean[ch] - h[0].norm.mean[ch];
            const double mean = h[0].norm.mean[ch] + delta / 2;
            const double m2 =
                h[0].norm.m2[ch] + h[1].norm.m2[ch] + delta * delta * h[0].norm.count / 2;
            for (int i = 0; i < 2; i++) {
                h[i].norm.mean[ch] = mean;
                h[i].norm.m2[ch] = m2;
            }
        }
        for (int i = 0; i < 2; i++) {
            h[i].norm.count = c.norm.count;
            norm_pass(&h[i], DDP_PASS_FORWARD);
            norm_pass(&h[i], DDP_PASS_BACKWARD_WEIGHTS);
        }
        for (int64_t ch = 0; ch < 20; ch++) {
            const double dy = h[0].norm.sum_dy[ch] + h[1].norm.sum_dy[ch];
            const double xhat = h[0].norm.sum_dy_xhat[ch] + h[1].norm.sum_dy_xhat[ch];
            assert_true(fabs(dy - c.norm.sum_dy[ch]) < 1e-4);
            assert_true(fabs(xhat - c.norm.sum_dy_xhat[ch]) < 1e-4);
            for (int i = 0; i < 2; i++) {
                h[i].norm.sum_dy[ch] = dy;
                h[i].norm.sum_dy_xhat[ch] = xhat;
            }
        }
        for (int i = 0; i < 2; i++) {
            norm_pass(&h[i], DDP_PASS_BACKWARD_DATA);
            norm_export(&h[i], part.layout, h[i].args.dst, &h[i].dst);
            norm_export(&h[i], part.layout, h[i].args.diff_src, &h[i].diff_src);
            for (size_t k = 0; k < h[i].src.count; k++) {
                h[i].dst.d[k] = (double)c.dst.f[(size_t)i * h[i].src.count + k];
                h[i].diff_src.d[k] = (double)c.diff_src.f[(size_t)i * h[i].src.count + k];
            }
            CHECK_CLOSE(&h[i].dst, 1e-6);
            CHECK_CLOSE(&h[i].diff_src, 1e-6);
            norm_close(&h[i]);
        }
        norm_close(&c);
        place_close(&all);
        place_close(&part);
    }
}

static void inference_takes_the_running_statistics(void **state)
{
    float mean[20], var[20];
    (void)state;
    for (int kind = 0; kind < F32_PLACES; kind++) {
        place p;
        place_open(&p, &shapes[0], kind, 2);
        norm_case c;
        norm_open(&c, p.device, &kinds[3], p.layout, NULL);
        ddp_op_plan_destroy(c.plan);
        c.desc.training = false;
        CHECK_OK(ddp_op_plan_create(p.device, &c.desc, p.layout, NULL, &c.plan));
        norm_import(&c);
        for (int i = 0; i < 20; i++) {
            c.want_mean[i] = (double)(mean[i] = 0.25f * (float)i - 2);
            c.want_var[i] = (double)(var[i] = 0.5f + (float)i);
            c.norm.mean[i] = c.norm.m2[i] = (double)NAN; /* not to be read */
        }
        c.norm.running_mean = mean;
        c.norm.running_var = var;
        norm_pass(&c, DDP_PASS_FORWARD);
        norm_export(&c, c.layout, c.args.dst, &c.dst);
        reference_forward(&c);
        CHECK_CLOSE(&c.dst, 1e-6);
        CHECK_FAILS(
            ddp_op_run(c.plan, DDP_PASS_STATISTICS, ddp_device_main_stream(p.device), &c.args),
            DDP_ERR_INTERNAL, "not for training");
        norm_close(&c);
        place_close(&p);
    }
}

static void nan_reaches_its_channel_only(void **state)
{
    (void)state;
    for (int kind = 0; kind < F32_PLACES; kind++) {
        place p;
        place_open(&p, &shapes[3], kind, 1);
        norm_case c;
        norm_open(&c, p.device, &kinds[1], p.layout, NULL);
        c.src.f[2 * 44 + 7] = NAN; /* channel 2 of the first image */
        norm_import(&c);
        norm_pass(&c, DDP_PASS_STATISTICS);
        norm_pass(&c, DDP_PASS_FORWARD);
        norm_export(&c, c.layout, c.args.dst, &c.dst);
        for (size_t i = 0; i < c.dst.count; i++)
            assert_true(isnan(c.dst.f[i]) == (channel_at(&c, i) == 2));
        norm_close(&c);
        place_close(&p);
    }
}

static void what_does_not_fit_is_refused(void **state)
{
    ddp_op_desc desc = {.kind = DDP_OP_NORM, .u.norm = {.eps = EPS}};
    ddp_shape dst, weights;
    (void)state;
    CHECK_OK(ddp_op_infer(&desc, &shapes[0], &dst, &weights));
    assert_true(ddp_shape_equal(&dst, &shapes[0]));
    assert_true(ddp_shape_equal(&weights, &(ddp_shape){1, {20}}));
    CHECK_FAILS(ddp_op_infer(&desc, &(ddp_shape){2, {2, 3}}, &dst, &weights), DDP_ERR_SHAPE, "2x3");
    desc.u.norm.eps = 0;
    CHECK_FAILS(ddp_op_infer(&desc, &shapes[0], &dst, &weights), DDP_ERR_USAGE, "eps 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(normalising_agrees_with_reference_in_every_layout),
        cmocka_unit_test(second_source_may_lie_otherwise),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(gradients_agree_with_finite_differences),
        cmocka_unit_test(variance_survives_a_mean_far_from_0),
        cmocka_unit_test(variance_survives_an_odd_first_row),
        cmocka_unit_test(halves_combined_equal_the_whole),
        cmocka_unit_test(inference_takes_the_running_statistics),
        cmocka_unit_test(nan_reaches_its_channel_only),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
