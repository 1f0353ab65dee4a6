/* test_pointwise.c - optimizers, sums and conversions of flat ranges on the CUDA device against the
 * CPU's: odd counts, ranges that begin anywhere.
 *
 * The rules are the same few operations in f32; a compiler may fuse a product with a sum, which
 * changes a value by 2^-24 of its size. Sums are in double, in another order. */
#include "both.h"

#define F32_LIMIT 1e-6
#define SUM_LIMIT 1e-12

/* Ranges [offset, offset + count) of larger buffers. */
typedef struct range {
    size_t offset, count;
} range;

static const range ranges[] = {{0, 1}, {0, 4}, {1, 3}, {3, 1000}, {2, 4099}, {0, 33}, {5, 12345}};
enum { RANGES = sizeof ranges / sizeof ranges[0], ROOM = 12400 };

/* Four buffers with room on both sides, which nothing may touch. */
typedef struct flat {
    array w, grad, first, second, sums;
} flat;

static flat flat_of(const both *b)
{
    const double sums[3] = {0.5, 1, 2};
    return (flat){array_random(b, ROOM, 1, 1, 0), array_random(b, ROOM, 2, 8, 0),
                  array_random(b, ROOM, 3, 1, 0), array_random(b, ROOM, 4, 0.5f, 0.75f),
                  array_of(b, sums, sizeof sums)};
}

static void flat_check(const both *b, const flat *f)
{
    check_floats(b, "w", &f->w, F32_LIMIT);
    check_floats(b, "first", &f->first, F32_LIMIT);
    check_floats(b, "second", &f->second, F32_LIMIT);
    check_doubles(b, "sums", &f->sums, SUM_LIMIT);
}

static void flat_free(const both *b, flat *f)
{
    array *const all[] = {&f->w, &f->grad, &f->first, &f->second, &f->sums};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        array_free(b, all[i]);
}

static float *at(const array *a, int side, size_t offset)
{
    return (float *)a->on[side] + offset;
}

/* ---- optimizers ---- */

static void sgd(const both *b, flat *f, int side, const ddp_sgd_args *args, bool sum, range r)
{
    float *buf = args->momentum != 0 ? at(&f->first, side, r.offset) : NULL;
    CHECK_OK(ddp_op_sgd(b->device[side], stream_of(b, side), args, at(&f->w, side, r.offset),
                        at(&f->grad, side, r.offset), buf, r.count, sum ? f->sums.on[side] : NULL));
}

static void sgd_matches_the_cpu(void **state)
{
    const both *b = *state;
    const ddp_sgd_args variants[] = {
        {.lr = 0.1, .inv_count = 0.25},
        {.lr = 0.1, .momentum = 0.9, .inv_count = 0.25, .first = true},
        {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .dampening = 0.5, .inv_count = 0.25},
        {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true, .inv_count = 0.25}};
    for (int i = 0; i < RANGES * 4; i++) {
        flat f = flat_of(b);
        for (int side = 0; side < SIDES; side++)
            sgd(b, &f, side, &variants[i % 4], i % 3 != 0, ranges[i / 4]);
        flat_check(b, &f);
        flat_free(b, &f);
    }
}

static void the_first_step_does_not_read_the_buffer(void **state)
{
    const both *b = *state;
    const ddp_sgd_args args = {.lr = 0.1, .momentum = 0.9, .inv_count = 1, .first = true};
    flat f = flat_of(b);
    array_free(b, &f.first);
    f.first = array_of(b, NULL, ROOM * sizeof(float)); /* not a number */
    for (int side = 0; side < SIDES; side++)
        sgd(b, &f, side, &args, true, (range){0, ROOM});
    flat_check(b, &f);
    flat_free(b, &f);
}

static void adam_and_lamb_match_the_cpu(void **state)
{
    const both *b = *state;
    const ddp_adam_args args = {.lr = 0.01,
                                .beta1 = 0.9,
                                .beta2 = 0.999,
                                .eps = 1e-8,
                                .weight_decay = 0.1,
                                .step = 3,
                                .inv_count = 0.125};
    for (int i = 0; i < RANGES * 6; i++) {
        const range r = ranges[i / 6];
        const ddp_adam_pass pass = (ddp_adam_pass)(i % 3);
        flat f = flat_of(b);
        for (int side = 0; side < SIDES; side++) {
            const ddp_adam_span span = {at(&f.w, side, r.offset), at(&f.grad, side, r.offset),
                                        at(&f.first, side, r.offset), at(&f.second, side, r.offset),
                                        r.count};
            CHECK_OK(ddp_op_adam(b->device[side], stream_of(b, side), pass, &args, &span,
                                 i % 6 < 3 ? f.sums.on[side] : NULL));
        }
        flat_check(b, &f);
        flat_free(b, &f);
    }
}

/* ---- sums and averages ---- */

static void averages_sums_and_squares_match_the_cpu(void **state)
{
    const both *b = *state;
    for (int i = 0; i < RANGES; i++) {
        const range r = ranges[i];
        flat f = flat_of(b);
        for (int side = 0; side < SIDES; side++) {
            ddp_device *device = b->device[side];
            ddp_stream *stream = stream_of(b, side);
            /* Both ranges begin apart, too. */
            CHECK_OK(ddp_op_average(device, stream, at(&f.w, side, r.offset),
                                    at(&f.grad, side, r.offset + 2), 0.3, r.count));
            CHECK_OK(ddp_op_add(device, stream, at(&f.first, side, r.offset),
                                at(&f.grad, side, r.offset), r.count));
            CHECK_OK(ddp_op_sum_squares(device, stream, at(&f.grad, side, r.offset), r.count, 0.5,
                                        (double *)f.sums.on[side] + 1));
        }
        flat_check(b, &f);
        flat_free(b, &f);
    }
}

static void gradients_of_all_types_accumulate(void **state)
{
    const both *b = *state;
    const ddp_shape shape = {4, {3, 5, 7, 2}};
    for (int type = 0; type < FLOAT_TYPES; type++) {
        ddp_layout *layout[SIDES];
        layout_open(b, &shape, (form){true, float_types[type]}, layout);
        tensor to = tensor_of(b, layout, 1), from = tensor_of(b, layout, 2);
        for (int side = 0; side < SIDES; side++)
            CHECK_OK(ddp_op_accumulate(b->device[side], stream_of(b, side), layout[side],
                                       to.on[side], from.on[side]));
        check_tensor(b, "sum", &to, rounding_of(float_types[type]));
        tensor_free(b, &to);
        tensor_free(b, &from);
        layout_close(layout);
    }
}

/* More than one block's worth of partial sums, twice. */
static void sums_have_the_same_bits_every_time(void **state)
{
    const both *b = *state;
    double seen[2];
    array src = array_random(b, 300001, 5, 1, 0);
    for (int run = 0; run < 2; run++) {
        const double none = 0;
        array sum = array_of(b, &none, sizeof none);
        CHECK_OK(ddp_op_sum_squares(b->device[GPU], stream_of(b, GPU), src.on[GPU], 300001, 1,
                                    sum.on[GPU]));
        device_get(b->device[GPU], &seen[run], sum.on[GPU], sizeof seen[run]);
        array_free(b, &sum);
    }
    assert_memory_equal(&seen[0], &seen[1], sizeof seen[0]);
    assert_true(fabs(seen[0] - 100000) < 1000); /* the mean square of [-1, 1) is 1/3 */
    array_free(b, &src);
}

/* ---- types ---- */

/* Ties and numbers that become infinite. What is no number stays none; its bits are the device's
 * own affair. */
typedef ddp_status narrow_fn(ddp_device *, ddp_stream *, uint16_t *, const float *, size_t, double);
typedef ddp_status widen_fn(ddp_device *, ddp_stream *, float *, const uint16_t *, size_t, double);

static void check_conversions(const both *b, narrow_fn *to_narrow, widen_fn *from_narrow)
{
    const size_t count = 1003;
    float *values = random_floats(count, 6, false);
    const uint32_t special[] = {0x3f808000, 0x3f818000, 0x7f7fffff, 0xff7fffff,
                                0x7f800000, 0xff800000, 0x00000001, 0x80000000};
    memcpy(values + 500, special, sizeof special);
    for (size_t offset = 0; offset < 2; offset++) {
        array wide = array_of(b, values, count * sizeof *values);
        array narrow = array_of(b, NULL, count * sizeof(uint16_t));
        array back = array_of(b, NULL, count * sizeof(float));
        for (int side = 0; side < SIDES; side++) {
            uint16_t *to = (uint16_t *)narrow.on[side] + offset;
            CHECK_OK(to_narrow(b->device[side], stream_of(b, side), to, at(&wide, side, offset),
                               count - offset, 1));
            CHECK_OK(from_narrow(b->device[side], stream_of(b, side), at(&back, side, offset), to,
                                 count - offset, 0.5));
        }
        check_bytes(b, "half", &narrow);
        check_bytes(b, "f32", &back);
        array_free(b, &wide);
        array_free(b, &narrow);
        array_free(b, &back);
    }
    free(values);
}

static void conversions_have_the_cpus_bits(void **state)
{
    check_conversions(*state, ddp_op_to_bf16, ddp_op_from_bf16);
    check_conversions(*state, ddp_op_to_f16, ddp_op_from_f16);
}

static void what_is_no_number_stays_none(void **state)
{
    const both *b = *state;
    const uint32_t nans[3] = {0x7fc00000, 0x7f800001, 0xffffffff};
    array wide = array_of(b, nans, sizeof nans), narrow = array_of(b, NULL, 3 * sizeof(uint16_t));
    CHECK_OK(ddp_op_to_bf16(b->device[GPU], stream_of(b, GPU), narrow.on[GPU], wide.on[GPU], 3, 1));
    uint16_t *values = array_get(b, &narrow, GPU);
    for (int i = 0; i < 3; i++)
        assert_true(isnan(ddp_f32_of_bf16(values[i])));
    free(values);
    array_free(b, &wide);
    array_free(b, &narrow);
}

/* ---- running statistics ---- */

static void running_statistics_match_the_cpu(void **state)
{
    const both *b = *state;
    const size_t channels = 300;
    double *values = calloc(channels, sizeof *values);
    uint64_t seed = 7;
    assert_non_null(values);
    for (size_t i = 0; i < channels; i++)
        values[i] = 1.5 + (double)next_random(&seed);
    array mean = array_of(b, values, channels * sizeof *values);
    array m2 = array_of(b, values, channels * sizeof *values);
    free(values);
    for (int count = 1; count < 10; count += 8) {
        array running_mean = array_random(b, channels, 8, 1, 0);
        array running_var = array_random(b, channels, 9, 1, 2);
        for (int side = 0; side < SIDES; side++) {
            const ddp_norm_running_args args = {
                (int64_t)channels,   0.1, count, mean.on[side], m2.on[side], running_mean.on[side],
                running_var.on[side]};
            CHECK_OK(ddp_op_norm_running(b->device[side], stream_of(b, side), &args));
        }
        check_floats(b, "running mean", &running_mean, 1e-7);
        check_floats(b, "running variance", &running_var, 1e-7);
        array_free(b, &running_mean);
        array_free(b, &running_var);
    }
    array_free(b, &mean);
    array_free(b, &m2);
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
        cmocka_unit_test(sgd_matches_the_cpu),
        cmocka_unit_test(the_first_step_does_not_read_the_buffer),
        cmocka_unit_test(adam_and_lamb_match_the_cpu),
        cmocka_unit_test(averages_sums_and_squares_match_the_cpu),
        cmocka_unit_test(gradients_of_all_types_accumulate),
        cmocka_unit_test(sums_have_the_same_bits_every_time),
        cmocka_unit_test(conversions_have_the_cpus_bits),
        cmocka_unit_test(what_is_no_number_stays_none),
        cmocka_unit_test(running_statistics_match_the_cpu),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
