/* fd_check.h - gradients of a model against central differences of its loss.
 *
 * For a direction v, (L(w + e v) - L(w - e v)) / 2e is compared with the product of gradient and v.
 * v has random signs, so the product is of the size of the gradient's length g = |grad|, and a
 * gradient that is wrong in some elements is off by their length.
 *
 * Tolerance: L is a sum of six single-precision losses around 2, so its rounding is about 1e-6. The
 * steps have |e v| = 0.008, 0.002 and 0.0005, so rounding puts an error of 1e-6 |v| / 0.001 = 1e-3
 * |v| on the smallest, where |v| (root of the number of elements) is below 20 and g is above 1: 2%
 * at the very worst. Curvature adds less than that even on the largest. What remains are units of
 * relu and maximum that switch inside a step; a smaller step lies beside them, so the best of the
 * three counts. A wrong factor, index or missing term is off by about g in most directions, on all
 * three. */
#ifndef DDP_TESTS_FD_CHECK_H
#define DDP_TESTS_FD_CHECK_H

#include "model_fixture.h"

enum { BATCH = 6, CLASSES = 5, DIRECTIONS = 6, SIDE = 11, CHANNELS = 3 };
static const double STEP_LENGTHS[] = {0.008, 0.002, 0.0005};
static const double TOLERANCE = 0.02;
static const int64_t SAMPLE_IDS[BATCH] = {0, 1, 2, 3, 4, 5};

#define DRAW(width) .weight_init = {DDP_INIT_UNIFORM, (width)}, .bias_init = {DDP_INIT_UNIFORM, 0.2}

static inline ddp_status add_all(ddp_model_builder *builder, const ddp_layer_spec *specs, int count)
{
    for (int i = 0; i < count; i++)
        DDP_TRY(ddp_model_add(builder, &specs[i]));
    return DDP_OK;
}

static inline double sum_squares(const float *values, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += (double)values[i] * values[i];
    return sum;
}

/* Random signs on a parameter's elements, 0 elsewhere; padding stays out. */
static inline void make_direction(model_fixture *f, int index, uint32_t number, float *direction)
{
    const ddp_param *param = ddp_param_table_at(f->table, index);
    const ddp_rng rng = ddp_rng_make(99, DDP_RNG_TEST, 100 + number);
    const size_t count = (size_t)ddp_shape_count(&param->shape);
    float *plain;
    CHECK_OK(DDP_ALLOC(plain, count));
    for (size_t i = 0; i < count; i++)
        plain[i] = ddp_rng_u32(&rng, i) & 1 ? 1.0f : -1.0f;
    CHECK_OK(ddp_param_import(f->device, param, plain, direction));
    ddp_free(plain);
}

static inline double loss_at(model_fixture *f, const ddp_model_input *input, const float *start,
                             const float *direction, double step)
{
    const size_t length = f->bytes / sizeof(float);
    for (size_t i = 0; i < length; i++)
        f->params[i] = (float)(start[i] + step * direction[i]);
    return fixture_loss(f, input);
}

static inline void check_direction(model_fixture *f, const ddp_model_input *input, const char *what,
                                   const float *start, const float *direction)
{
    const size_t length = f->bytes / sizeof(float);
    const double size = sqrt(sum_squares(direction, length));
    double product = 0, gradient = 0, nearest = INFINITY;
    for (size_t i = 0; i < length; i++) {
        product += (double)f->grads[i] * direction[i];
        if (direction[i] != 0)
            gradient += (double)f->grads[i] * f->grads[i];
    }
    gradient = sqrt(gradient);
    if (gradient < 1e-2)
        fail_msg("%s: the gradient's length is %g: too small to say anything", what, gradient);
    for (int i = 0; i < 3; i++) {
        const double step = STEP_LENGTHS[i] / size;
        const double above = loss_at(f, input, start, direction, step);
        const double difference = (above - loss_at(f, input, start, direction, -step)) / (2 * step);
        if (fabs(product - difference) < fabs(product - nearest))
            nearest = difference;
    }
    if (!(fabs(product - nearest) <= TOLERANCE * gradient))
        fail_msg("%s: gradient says %.6g, differences say %.6g (length %.4g)", what, product,
                 nearest, gradient);
}

static inline void check_model(const char *name,
                               ddp_status (*build)(ddp_model_builder *, const ddp_model_opts *),
                               double smoothing, ddp_conv_algo algo)
{
    const ddp_model_def def = {name, "", build};
    const ddp_model_opts opts = {.input_shape = {3, {CHANNELS, SIDE, SIDE}},
                                 .classes = CLASSES,
                                 .label_smoothing = smoothing};
    model_fixture f;
    float *inputs, *start, *direction;
    int32_t *labels;
    fixture_open(&f, &def, &opts, algo, BATCH);
    fixture_samples(5, CHANNELS * SIDE * SIDE, BATCH, CLASSES, &inputs, &labels);
    const ddp_model_input input = {
        .inputs = inputs, .labels = labels, .count = BATCH, .sample_ids = SAMPLE_IDS};
    CHECK_OK(ddp_param_table_init(f.device, f.table, 3, f.params));
    CHECK_OK(ddp_alloc_bytes(f.bytes, 1, (void **)(void *)&start));
    CHECK_OK(ddp_alloc_bytes(f.bytes, 1, (void **)(void *)&direction));
    memcpy(start, f.params, f.bytes);
    fixture_loss(&f, &input);
    CHECK_OK(ddp_model_backward(f.model));
    const int params = ddp_param_table_count(f.table);
    for (int k = 0; k < DIRECTIONS; k++) {
        for (int i = 0; i < params; i++) {
            memset(direction, 0, f.bytes);
            make_direction(&f, i, (uint32_t)k, direction);
            check_direction(&f, &input, ddp_param_table_at(f.table, i)->name, start, direction);
        }
        memset(direction, 0, f.bytes);
        for (int i = 0; i < params; i++)
            make_direction(&f, i, (uint32_t)(1000 + k * params + i), direction);
        check_direction(&f, &input, "all parameters", start, direction);
    }
    ddp_free(inputs);
    ddp_free(labels);
    ddp_free(start);
    ddp_free(direction);
    fixture_close(&f);
}

#endif
