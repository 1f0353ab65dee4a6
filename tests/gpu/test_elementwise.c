/* test_elementwise.c - relu, sums of two tensors and dropout on the CUDA device against the CPU's.
 * Each result is one operation in f32 (or its rounding), so f32 results are equal to the
 * bit. */
#include "both.h"

static const ddp_shape shapes[] = {
    {4, {2, 3, 5, 7}}, {4, {3, 16, 8, 8}}, {4, {1, 1, 1, 1}}, {4, {4, 10, 7, 7}}, {2, {5, 13}}};
enum { SHAPES = sizeof shapes / sizeof shapes[0], FORMS = 2 * FLOAT_TYPES };

static form form_of(const ddp_shape *shape, int index)
{
    return (form){shape->ndim == 4 && index % 2 != 0, float_types[index / 2]};
}

typedef struct op_buffers {
    tensor src, src2, dst, diff_dst, diff_dst2, diff_src, diff_src2;
} op_buffers;

static op_buffers buffers_of(const both *b, const plans *p, ddp_layout *const src[SIDES],
                             ddp_layout *const src2[SIDES])
{
    return (op_buffers){tensor_of(b, src, 1),    tensor_of(b, src2, 2),   tensor_of(b, p->dst, 0),
                        tensor_of(b, p->dst, 3), tensor_of(b, p->dst, 4), tensor_of(b, src, 0),
                        tensor_of(b, src2, 0)};
}

static void buffers_free(const both *b, op_buffers *t)
{
    tensor *const all[] = {&t->src,       &t->src2,     &t->dst,      &t->diff_dst,
                           &t->diff_dst2, &t->diff_src, &t->diff_src2};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        tensor_free(b, all[i]);
}

/* ---- relu ---- */

static void relu_and_its_gradient_match_the_cpu(void **state)
{
    const both *b = *state;
    const ddp_op_desc desc = {.kind = DDP_OP_RELU, .training = true, .need_diff_src = true};
    for (int i = 0; i < SHAPES * FORMS; i++) {
        const form f = form_of(&shapes[i / FORMS], i % FORMS);
        ddp_layout *layout[SIDES];
        plans p;
        layout_open(b, &shapes[i / FORMS], f, layout);
        plans_open(b, &desc, layout, NULL, &p);
        op_buffers t = buffers_of(b, &p, layout, layout);
        for (int side = 0; side < SIDES; side++) {
            const ddp_op_args args = {.src = t.src.on[side],
                                      .dst = t.dst.on[side],
                                      .diff_dst = t.diff_dst.on[side],
                                      .diff_src = t.diff_src.on[side],
                                      .scratch = p.scratch[side]};
            CHECK_OK(ddp_op_run(p.on[side], DDP_PASS_FORWARD, stream_of(b, side), &args));
            CHECK_OK(ddp_op_run(p.on[side], DDP_PASS_BACKWARD_DATA, stream_of(b, side), &args));
        }
        check_tensor(b, "dst", &t.dst, 0);
        check_tensor(b, "diff_src", &t.diff_src, 0);
        buffers_free(b, &t);
        plans_close(b, &p);
        layout_close(layout);
    }
}

/* ---- sums ---- */

typedef struct add_variant {
    ddp_shape shape;
    form src, src2;
    bool relu, second, first_too; /* a second gradient; diff_src is wanted too */
} add_variant;

static void check_add(const both *b, const add_variant *v)
{
    const ddp_op_desc desc = {
        .kind = DDP_OP_ADD, .training = true, .need_diff_src = true, .u.add = {v->relu}};
    ddp_layout *src[SIDES], *src2[SIDES];
    plans p;
    layout_open(b, &v->shape, v->src, src);
    layout_open(b, &v->shape, v->src2, src2);
    plans_open(b, &desc, src, src2, &p);
    op_buffers t = buffers_of(b, &p, src, src2);
    for (int side = 0; side < SIDES; side++) {
        const ddp_op_args args = {.src = t.src.on[side],
                                  .src2 = t.src2.on[side],
                                  .dst = t.dst.on[side],
                                  .diff_dst = t.diff_dst.on[side],
                                  .diff_dst2 = v->second ? t.diff_dst2.on[side] : NULL,
                                  .diff_src = v->first_too ? t.diff_src.on[side] : NULL,
                                  .diff_src2 = t.diff_src2.on[side],
                                  .scratch = p.scratch[side]};
        CHECK_OK(ddp_op_run(p.on[side], DDP_PASS_FORWARD, stream_of(b, side), &args));
        CHECK_OK(ddp_op_run(p.on[side], DDP_PASS_BACKWARD_DATA, stream_of(b, side), &args));
    }
    const double limit = rounding_of(v->src.dtype);
    check_tensor(b, "dst", &t.dst, limit);
    check_tensor(b, "diff_dst", &t.diff_dst, limit);
    check_tensor(b, "diff_src2", &t.diff_src2, limit + rounding_of(v->src2.dtype));
    if (v->first_too)
        check_tensor(b, "diff_src", &t.diff_src, limit);
    buffers_free(b, &t);
    plans_close(b, &p);
    layout_close(src);
    layout_close(src2);
}

static void sums_and_their_gradients_match_the_cpu(void **state)
{
    for (int shape = 0; shape < SHAPES; shape++)
        for (int bits = 0; bits < 8 * FLOAT_TYPES; bits++) {
            const form f = form_of(&shapes[shape], 2 * (bits / 8) + 1);
            const add_variant v = {shapes[shape],  f, f, (bits & 1) != 0, (bits & 2) != 0,
                                   (bits & 4) != 0};
            check_add(*state, &v);
        }
}

static void sums_take_sources_that_lie_otherwise(void **state)
{
    for (int i = 0; i < FORMS; i++)
        for (int j = 0; j < FORMS; j++) {
            if (i / 2 + j / 2 == 3) /* bf16 and f16 never meet */
                continue;
            const add_variant v = {
                shapes[1], form_of(&shapes[1], i), form_of(&shapes[1], j), true, false, false};
            check_add(*state, &v);
        }
}

/* ---- dropout ---- */

static void check_dropout(const both *b, const ddp_shape *shape, form f, bool training)
{
    const ddp_op_desc desc = {.kind = DDP_OP_DROPOUT,
                              .training = training,
                              .need_diff_src = training,
                              .u.dropout = {0.3}};
    int64_t ids[16];
    ddp_layout *layout[SIDES];
    plans p;
    for (int i = 0; i < 16; i++)
        ids[i] = ((int64_t)1 << 33) + 1001 * i;
    array sample_ids = array_of(b, ids, sizeof ids);
    layout_open(b, shape, f, layout);
    plans_open(b, &desc, layout, NULL, &p);
    op_buffers t = buffers_of(b, &p, layout, layout);
    for (int side = 0; side < SIDES; side++) {
        const ddp_op_args args = {.src = t.src.on[side],
                                  .dst = t.dst.on[side],
                                  .diff_dst = t.diff_dst.on[side],
                                  .diff_src = t.diff_src.on[side],
                                  .scratch = p.scratch[side],
                                  .sample_ids = sample_ids.on[side],
                                  .rng_seed = 0x123456789abcdefull,
                                  .rng_stream = 7};
        CHECK_OK(ddp_op_run(p.on[side], DDP_PASS_FORWARD, stream_of(b, side), &args));
        if (training)
            CHECK_OK(ddp_op_run(p.on[side], DDP_PASS_BACKWARD_DATA, stream_of(b, side), &args));
    }
    /* Which elements are 0 is the same in any case: a rounded one is not. */
    check_tensor(b, "dst", &t.dst, training ? rounding_of(f.dtype) : 0);
    if (training)
        check_tensor(b, "diff_src", &t.diff_src, rounding_of(f.dtype));
    buffers_free(b, &t);
    plans_close(b, &p);
    layout_close(layout);
    array_free(b, &sample_ids);
}

static void dropout_draws_the_cpus_numbers(void **state)
{
    for (int i = 0; i < SHAPES * FORMS; i++)
        for (int training = 0; training < 2; training++)
            check_dropout(*state, &shapes[i / FORMS], form_of(&shapes[i / FORMS], i % FORMS),
                          training == 1);
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
        cmocka_unit_test(relu_and_its_gradient_match_the_cpu),
        cmocka_unit_test(sums_and_their_gradients_match_the_cpu),
        cmocka_unit_test(sums_take_sources_that_lie_otherwise),
        cmocka_unit_test(dropout_draws_the_cpus_numbers),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
