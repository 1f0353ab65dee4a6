/* test_softmax.c - the loss with its gradient, and the ranks of labels, on the CUDA device against
 * the CPU's. Both compute in double, so only the order of sums differs: 1e-12 of the loss; the
 * gradient is rounded to f32 at the end. */
#include "both.h"

typedef struct loss_case {
    int64_t n, classes;
    double smoothing;
    bool two, diff; /* two labels; with a gradient */
    ddp_dtype dtype;
    float scale; /* of the gradient; 0: not given */
} loss_case;

static array labels_of(const both *b, int64_t n, int64_t classes, int64_t step)
{
    int32_t *labels = calloc((size_t)n, sizeof *labels);
    assert_non_null(labels);
    for (int64_t i = 0; i < n; i++)
        labels[i] = (int32_t)(i * step % classes);
    const array a = array_of(b, labels, (size_t)n * sizeof *labels);
    free(labels);
    return a;
}

static void check_loss(const both *b, const loss_case *c)
{
    const ddp_shape shape = {2, {c->n, c->classes}};
    const ddp_op_desc desc = {.kind = DDP_OP_SOFTMAX_XENT,
                              .training = true,
                              .need_diff_src = true,
                              .u.xent = {c->smoothing}};
    const double before = 0.25;
    ddp_layout *layout[SIDES];
    plans p;
    layout_open(b, &shape, (form){false, c->dtype}, layout);
    plans_open(b, &desc, layout, NULL, &p);
    tensor logits = tensor_of(b, layout, 1), diff = tensor_of(b, layout, 0);
    array labels = labels_of(b, c->n, c->classes, 7), labels2 = labels_of(b, c->n, c->classes, 3);
    array mix = array_random(b, (size_t)c->n, 2, 0.5f, 0.5f);
    array loss = array_of(b, &before, sizeof before);
    array scale = array_of(b, &c->scale, sizeof c->scale);
    for (int side = 0; side < SIDES; side++) {
        const ddp_op_args args = {.src = logits.on[side],
                                  .diff_src = c->diff ? diff.on[side] : NULL,
                                  .labels = labels.on[side],
                                  .labels2 = c->two ? labels2.on[side] : NULL,
                                  .mix = c->two ? mix.on[side] : NULL,
                                  .loss = loss.on[side],
                                  .diff_scale = c->scale > 0 ? scale.on[side] : NULL,
                                  .scratch = p.scratch[side]};
        CHECK_OK(ddp_op_run(p.on[side], DDP_PASS_FORWARD, stream_of(b, side), &args));
    }
    check_doubles(b, "loss", &loss, 1e-12);
    if (c->diff)
        check_tensor(b, "diff_src", &diff, rounding_of(c->dtype) + 1e-7);
    tensor_free(b, &logits);
    tensor_free(b, &diff);
    array_free(b, &labels);
    array_free(b, &labels2);
    array_free(b, &mix);
    array_free(b, &loss);
    array_free(b, &scale);
    plans_close(b, &p);
    layout_close(layout);
}

static void loss_and_gradient_match_the_cpu(void **state)
{
    const loss_case cases[] = {
        {1, 1, 0, false, true, DDP_F32, 0},     {7, 10, 0, false, true, DDP_F32, 0},
        {33, 10, 0.1, true, true, DDP_F32, 0},  {5, 33, 0.1, false, true, DDP_BF16, 0},
        {3, 1000, 0.1, true, true, DDP_F32, 0}, {300, 3, 0, true, false, DDP_F32, 0},
        {2, 513, 0, false, true, DDP_BF16, 0},  {5, 33, 0.1, false, true, DDP_F16, 0},
        {9, 10, 0, true, true, DDP_F32, 65536}, {4, 600, 0, false, true, DDP_F16, 1024}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_loss(*state, &cases[i]);
}

/* Runs the loss of given logits on the GPU alone. */
static double gpu_loss(const both *b, const float *values, int32_t label, int64_t classes)
{
    const ddp_shape shape = {2, {1, classes}};
    const ddp_op_desc desc = {.kind = DDP_OP_SOFTMAX_XENT};
    const double none = 0;
    ddp_layout *layout[SIDES];
    plans p;
    layout_open(b, &shape, (form){false, DDP_F32}, layout);
    plans_open(b, &desc, layout, NULL, &p);
    array logits = array_of(b, values, (size_t)classes * sizeof *values);
    array labels = array_of(b, &label, sizeof label), loss = array_of(b, &none, sizeof none);
    const ddp_op_args args = {.src = logits.on[GPU],
                              .labels = labels.on[GPU],
                              .loss = loss.on[GPU],
                              .scratch = p.scratch[GPU]};
    CHECK_OK(ddp_op_run(p.on[GPU], DDP_PASS_FORWARD, stream_of(b, GPU), &args));
    double *result = array_get(b, &loss, GPU), value = *result;
    free(result);
    array_free(b, &logits);
    array_free(b, &labels);
    array_free(b, &loss);
    plans_close(b, &p);
    layout_close(layout);
    return value;
}

static void large_logits_do_not_overflow(void **state)
{
    const float logits[4] = {3e38f, 2e38f, -3e38f, 0};
    assert_true(gpu_loss(*state, logits, 0, 4) == 0);
    assert_true(fabs(gpu_loss(*state, logits, 1, 4) - ((double)3e38f - (double)2e38f)) < 1e25);
}

static void what_is_no_number_or_no_class_makes_the_loss_nan(void **state)
{
    const float logits[4] = {1, 2, 3, 4}, nan[4] = {1, NAN, 3, 4}, first[4] = {NAN, 1, 2, 3};
    assert_true(isfinite(gpu_loss(*state, logits, 3, 4)));
    assert_true(isnan(gpu_loss(*state, logits, 4, 4)));
    assert_true(isnan(gpu_loss(*state, logits, -1, 4)));
    assert_true(isnan(gpu_loss(*state, nan, 0, 4)));
    assert_true(isnan(gpu_loss(*state, first, 2, 4)));
}

/* ---- ranks ---- */

static void ranks_match_the_cpu(void **state)
{
    const both *b = *state;
    const int64_t sizes[][2] = {{9, 10}, {3, 1}, {4, 1000}, {2, 600}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const int64_t n = sizes[i][0], classes = sizes[i][1];
        float *values = random_floats((size_t)(n * classes), 3, false);
        for (int64_t at = 0; at < n * classes; at++)
            values[at] = roundf(values[at] * 4); /* with ties */
        values[classes / 2] = NAN;
        array logits = array_of(b, values, (size_t)(n * classes) * sizeof *values);
        array labels = labels_of(b, n, classes, 7);
        array ranks = array_of(b, NULL, (size_t)n * sizeof(int32_t));
        for (int side = 0; side < SIDES; side++)
            CHECK_OK(ddp_op_label_rank(b->device[side], stream_of(b, side), logits.on[side],
                                       labels.on[side], n, classes, ranks.on[side]));
        check_bytes(b, "ranks", &ranks);
        free(values);
        array_free(b, &logits);
        array_free(b, &labels);
        array_free(b, &ranks);
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
        cmocka_unit_test(loss_and_gradient_match_the_cpu),
        cmocka_unit_test(large_logits_do_not_overflow),
        cmocka_unit_test(what_is_no_number_or_no_class_makes_the_loss_nan),
        cmocka_unit_test(ranks_match_the_cpu),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
