/* test_op_softmax.c - softmax cross-entropy: loss, gradient of the sum, extreme logits, labels. */
#include "op_fixture.h"

typedef struct xent_case {
    ddp_device *device;
    ddp_op_plan *plan;
    int64_t n, classes;
    double smoothing;
    float *logits, *diff;
    int32_t *labels, *labels2; /* labels2 NULL: not mixed */
    float *mix;
    const float *diff_scale;
    double loss;
} xent_case;

static void xent_open(xent_case *x, int64_t n, int64_t classes, double smoothing)
{
    const ddp_op_desc desc = {.kind = DDP_OP_SOFTMAX_XENT, .training = true, .u.xent = {smoothing}};
    const ddp_shape shape = {2, {n, classes}};
    uint64_t state = 5;
    ddp_layout *layout;
    *x = (xent_case){.n = n, .classes = classes, .smoothing = smoothing};
    x->device = open_cpu(DDP_CONV_AUTO, NULL, 1);
    CHECK_OK(ddp_layout_plain(x->device, &shape, &layout));
    CHECK_OK(ddp_op_plan_create(x->device, &desc, layout, NULL, &x->plan));
    ddp_layout_unref(layout);
    x->logits = buffer((size_t)(n * classes) * sizeof(float));
    x->diff = buffer((size_t)(n * classes) * sizeof(float));
    x->labels = buffer((size_t)n * sizeof(int32_t));
    for (int64_t i = 0; i < n * classes; i++)
        x->logits[i] = 4 * random_value(&state);
    for (int64_t i = 0; i < n; i++)
        x->labels[i] = (int32_t)((i * 7 + 3) % classes);
}

/* A second label each, at times the same, with shares from 0 to 1. */
static void xent_mix(xent_case *x)
{
    x->labels2 = buffer((size_t)x->n * sizeof(int32_t));
    x->mix = buffer((size_t)x->n * sizeof(float));
    for (int64_t i = 0; i < x->n; i++) {
        x->labels2[i] = (int32_t)((i * 3 + 3) % x->classes);
        x->mix[i] = (float)(i % 5) / 4;
    }
}

static void xent_run(xent_case *x, bool gradient)
{
    const ddp_op_args args = {.src = x->logits,
                              .diff_src = gradient ? x->diff : NULL,
                              .labels = x->labels,
                              .labels2 = x->labels2,
                              .mix = x->mix,
                              .loss = &x->loss,
                              .diff_scale = x->diff_scale};
    CHECK_OK(ddp_op_run(x->plan, DDP_PASS_FORWARD, ddp_device_main_stream(x->device), &args));
}

static void xent_close(xent_case *x)
{
    ddp_op_plan_destroy(x->plan);
    ddp_free(x->logits);
    ddp_free(x->diff);
    ddp_free(x->labels);
    ddp_free(x->labels2);
    ddp_free(x->mix);
    ddp_device_close(x->device);
}

/* By the definition, without any care for large logits. */
static double reference_loss(const xent_case *x, const double *logits)
{
    double loss = 0;
    for (int64_t n = 0; n < x->n; n++) {
        double sum = 0;
        for (int64_t c = 0; c < x->classes; c++)
            sum += exp(logits[n * x->classes + c]);
        for (int64_t c = 0; c < x->classes; c++) {
            double onehot = c == x->labels[n];
            if (x->labels2 != NULL)
                onehot =
                    (double)x->mix[n] * onehot + (1 - (double)x->mix[n]) * (c == x->labels2[n]);
            const double target = (1 - x->smoothing) * onehot + x->smoothing / (double)x->classes;
            loss -= target * log(exp(logits[n * x->classes + c]) / sum);
        }
    }
    return loss;
}

static void check_definition(xent_case *x)
{
    const int64_t count = x->n * x->classes;
    double *logits = calloc((size_t)count, sizeof *logits);
    assert_non_null(logits);
    xent_run(x, true);
    for (int64_t i = 0; i < count; i++)
        logits[i] = (double)x->logits[i];
    const double want = reference_loss(x, logits);
    assert_true(fabs(x->loss - want) < 1e-9 * want);
    for (int64_t i = 0; i < count; i++) {
        double sides[2];
        for (int side = 0; side < 2; side++) {
            logits[i] = (double)x->logits[i] + (side == 0 ? 1e-5 : -1e-5);
            sides[side] = reference_loss(x, logits);
        }
        logits[i] = (double)x->logits[i];
        assert_true(fabs((sides[0] - sides[1]) / 2e-5 - (double)x->diff[i]) < 1e-6);
    }
    free(logits);
}

static void loss_and_gradient_agree_with_the_definition(void **state)
{
    static const double smoothings[] = {0, 0.1};
    (void)state;
    for (int i = 0; i < 4; i++)
        for (int64_t n = 1; n <= 16; n += 5) {
            xent_case x;
            xent_open(&x, n, 10, smoothings[i % 2]);
            if (i >= 2)
                xent_mix(&x);
            check_definition(&x);
            xent_close(&x);
        }
}

static void second_label_outside_the_classes_makes_the_loss_nan(void **state)
{
    xent_case x;
    (void)state;
    xent_open(&x, 2, 3, 0);
    xent_mix(&x);
    x.labels2[1] = 3;
    xent_run(&x, true);
    assert_true(isnan(x.loss));
    xent_close(&x);
}

static void loss_is_added_and_gradient_optional(void **state)
{
    xent_case x;
    (void)state;
    xent_open(&x, 4, 3, 0);
    xent_run(&x, true);
    const double once = x.loss;
    memset(x.diff, 0x55, sizeof(float) * 12);
    float before[12];
    memcpy(before, x.diff, sizeof before);
    xent_run(&x, false);
    assert_true(once > 0 && x.loss == 2 * once);
    assert_memory_equal(before, x.diff, sizeof before);
    xent_close(&x);
}

static void gradient_alone_is_scaled(void **state)
{
    const float scale = 65536;
    float before[12];
    xent_case x;
    (void)state;
    xent_open(&x, 4, 3, 0.1);
    xent_run(&x, true);
    const double once = x.loss;
    memcpy(before, x.diff, sizeof before);
    x.diff_scale = &scale;
    xent_run(&x, true);
    assert_true(x.loss == 2 * once);
    for (int i = 0; i < 12; i++)
        assert_true(before[i] != 0 && x.diff[i] == scale * before[i]);
    xent_close(&x);
}

static void large_logits_stay_finite(void **state)
{
    xent_case x;
    (void)state;
    xent_open(&x, 2, 3, 0);
    const float logits[6] = {1e30f, -1e30f, 0, 1000, 1001, 999};
    memcpy(x.logits, logits, sizeof logits);
    x.labels[0] = 0;
    x.labels[1] = 0;
    xent_run(&x, true);
    assert_true(fabs(x.loss - (1 + log(1 + exp(-1) + exp(-2)))) < 1e-9);
    for (int i = 0; i < 6; i++)
        assert_true(isfinite(x.diff[i]));
    xent_close(&x);
}

static void label_outside_the_classes_makes_the_loss_nan(void **state)
{
    static const int32_t wrong[] = {-1, 3};
    (void)state;
    for (int i = 0; i < 2; i++) {
        xent_case x;
        xent_open(&x, 2, 3, 0);
        x.labels[1] = wrong[i];
        xent_run(&x, true);
        assert_true(isnan(x.loss));
        xent_close(&x);
    }
}

static void nan_logits_reach_the_loss(void **state)
{
    xent_case x;
    (void)state;
    xent_open(&x, 2, 3, 0);
    x.logits[4] = NAN;
    xent_run(&x, true);
    assert_true(isnan(x.loss));
    xent_close(&x);
}

static void images_and_bad_smoothing_are_refused(void **state)
{
    ddp_op_desc desc = {.kind = DDP_OP_SOFTMAX_XENT};
    ddp_shape dst, weights;
    (void)state;
    CHECK_FAILS(ddp_op_infer(&desc, &(ddp_shape){4, {2, 1, 3, 3}}, &dst, &weights), DDP_ERR_SHAPE,
                "2x1x3x3");
    desc.u.xent.label_smoothing = 1;
    CHECK_FAILS(ddp_op_infer(&desc, &(ddp_shape){2, {2, 3}}, &dst, &weights), DDP_ERR_USAGE,
                "label smoothing 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_and_gradient_agree_with_the_definition),
        cmocka_unit_test(loss_is_added_and_gradient_optional),
        cmocka_unit_test(gradient_alone_is_scaled),
        cmocka_unit_test(large_logits_stay_finite),
        cmocka_unit_test(label_outside_the_classes_makes_the_loss_nan),
        cmocka_unit_test(second_label_outside_the_classes_makes_the_loss_nan),
        cmocka_unit_test(nan_logits_reach_the_loss),
        cmocka_unit_test(images_and_bad_smoothing_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
