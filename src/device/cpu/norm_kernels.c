/* norm_kernels.c - the loops of norm_kernels.h. Each is one always-inlined body, made for f32 and
 * bf16 and, where a choice would cost in the innermost loop, for each choice; four rows at a time
 * keep enough sums in flight. No state; any thread. */
#include "device/cpu/norm_kernels.h"

#include "device/cpu/cpu_impl.h"
#include "device/cpu/elements.h"

#define LANES  DDPI_NORM_LANES
#define UNROLL 4 /* rows */

typedef float sums[UNROLL][LANES];

DDPI_INLINE void fold(const sums from, ddpi_norm_lanes *to)
{
    for (int u = 0; u < UNROLL; u++)
        for (int l = 0; l < LANES; l++)
            to->v[l] += from[u][l];
}

/* Calls ROW(at, lanes, u) for every row; u says which of several sums takes it. */
#define FOR_ROWS(r, ROW)                                                                           \
    for (int64_t segment = 0; segment < (r)->segments; segment++) {                                \
        int64_t at = segment * (r)->segment_step, row = 0;                                         \
        if ((r)->lanes == LANES && (r)->stride == LANES)                                           \
            for (; row + UNROLL <= (r)->rows; row += UNROLL, at += UNROLL * LANES) {               \
                ROW(at, LANES, 0);                                                                 \
                ROW(at + LANES, LANES, 1);                                                         \
                ROW(at + 2 * LANES, LANES, 2);                                                     \
                ROW(at + 3 * LANES, LANES, 3);                                                     \
            }                                                                                      \
        else if ((r)->lanes == LANES)                                                              \
            for (; row + UNROLL <= (r)->rows; row += UNROLL, at += UNROLL * (r)->stride) {         \
                ROW(at, LANES, 0);                                                                 \
                ROW(at + (r)->stride, LANES, 1);                                                   \
                ROW(at + 2 * (r)->stride, LANES, 2);                                               \
                ROW(at + 3 * (r)->stride, LANES, 3);                                               \
            }                                                                                      \
        for (; row < (r)->rows; row++, at += (r)->stride)                                          \
            ROW(at, (r)->lanes, 0);                                                                \
        ROW(at, (r)->tail, 0);                                                                     \
    }

/* ---- statistics ---- */

DDPI_INLINE void sum_row(const void *x, int64_t at, int lanes, float *restrict sum, const bool bf16)
{
    for (int l = 0; l < lanes; l++)
        sum[l] += ddpi_load(x, at + l, bf16);
}

DDPI_INLINE void sum_body(const ddpi_norm_rows *r, const void *x, ddpi_norm_lanes *sum,
                          const bool bf16)
{
    sums acc = {{0}};
#define ROW(at, lanes, u) sum_row(x, at, lanes, acc[u], bf16)
    FOR_ROWS(r, ROW)
#undef ROW
    fold(acc, sum);
}

DDPI_SIMD void ddpi_norm_sum(const ddpi_norm_rows *r, const void *x, ddpi_norm_lanes *sum)
{
    if (r->bf16)
        sum_body(r, x, sum, true);
    else
        sum_body(r, x, sum, false);
}

DDPI_INLINE void deviations_row(const void *x, int64_t at, int lanes, const float *shift,
                                float *restrict sum, float *restrict squares, const bool bf16)
{
    for (int l = 0; l < lanes; l++) {
        const float d = ddpi_load(x, at + l, bf16) - shift[l];
        sum[l] += d;
        squares[l] += d * d;
    }
}

DDPI_INLINE void deviations_body(const ddpi_norm_rows *r, const void *x, const float *shift,
                                 ddpi_norm_lanes *sum, ddpi_norm_lanes *squares, const bool bf16)
{
    sums acc = {{0}}, acc_squares = {{0}};
#define ROW(at, lanes, u) deviations_row(x, at, lanes, shift, acc[u], acc_squares[u], bf16)
    FOR_ROWS(r, ROW)
#undef ROW
    fold(acc, sum);
    fold(acc_squares, squares);
}

DDPI_SIMD void ddpi_norm_deviations(const ddpi_norm_rows *r, const void *x,
                                    const ddpi_norm_lanes *shift, ddpi_norm_lanes *sum,
                                    ddpi_norm_lanes *squares)
{
    const ddpi_norm_lanes s = *shift;
    if (r->bf16)
        deviations_body(r, x, s.v, sum, squares, true);
    else
        deviations_body(r, x, s.v, sum, squares, false);
}

/* ---- forward ---- */

DDPI_INLINE void apply_row(const ddpi_norm_forward *f, int64_t at, int lanes, const bool bf16,
                           const bool add, const bool relu)
{
    const void *x = f->x, *z = f->z;
    void *y = f->y;
#pragma GCC ivdep
    for (int l = 0; l < lanes; l++) {
        float value = (ddpi_load(x, at + l, bf16) - f->shift.v[l]) * f->scale.v[l] + f->offset.v[l];
        if (add)
            value += ddpi_load(z, at + l, bf16);
        ddpi_store(y, at + l, relu && value < 0 ? 0 : value, bf16);
    }
}

DDPI_INLINE void apply_body(const ddpi_norm_rows *r, const ddpi_norm_forward *forward,
                            const bool bf16, const bool add, const bool relu)
{
    const ddpi_norm_forward own = *forward, *f = &own;
#define ROW(at, lanes, u) apply_row(f, at, lanes, bf16, add, relu)
    FOR_ROWS(r, ROW)
#undef ROW
}

DDPI_SIMD void ddpi_norm_apply(const ddpi_norm_rows *r, const ddpi_norm_forward *f)
{
    switch ((r->bf16 ? 4 : 0) + (f->z != NULL ? 2 : 0) + f->relu) {
    case 0:
        apply_body(r, f, false, false, false);
        break;
    case 1:
        apply_body(r, f, false, false, true);
        break;
    case 2:
        apply_body(r, f, false, true, false);
        break;
    case 3:
        apply_body(r, f, false, true, true);
        break;
    case 4:
        apply_body(r, f, true, false, false);
        break;
    case 5:
        apply_body(r, f, true, false, true);
        break;
    case 6:
        apply_body(r, f, true, true, false);
        break;
    default:
        apply_body(r, f, true, true, true);
        break;
    }
}

/* ---- backward ---- */

/* The sums are of what is stored, so that the gradient of src sums to 0 in bf16 too. */
DDPI_INLINE void reduce_row(const ddpi_norm_reduce *b, int64_t at, int lanes, float *restrict sum,
                            float *restrict sum_x, const bool bf16, const bool two, const bool mask)
{
    const void *x = b->x, *value = b->value, *dy2 = b->dy2;
    void *dy = b->dy;
#pragma GCC ivdep
    for (int l = 0; l < lanes; l++) {
        float g = ddpi_load(dy, at + l, bf16);
        if (two)
            g += ddpi_load(dy2, at + l, bf16);
        if (mask)
            g = ddpi_load(value, at + l, bf16) > 0 ? g : 0;
        if (two && bf16)
            g = ddpi_f32_of_bf16(ddpi_bf16_of_f32(g));
        if (two || mask)
            ddpi_store(dy, at + l, g, bf16);
        sum[l] += g;
        sum_x[l] += g * (ddpi_load(x, at + l, bf16) - b->shift.v[l]);
    }
}

DDPI_INLINE void reduce_body(const ddpi_norm_rows *r, ddpi_norm_reduce *reduce, const bool bf16,
                             const bool two, const bool mask)
{
    const ddpi_norm_reduce own = *reduce, *b = &own;
    sums acc = {{0}}, acc_x = {{0}};
#define ROW(at, lanes, u) reduce_row(b, at, lanes, acc[u], acc_x[u], bf16, two, mask)
    FOR_ROWS(r, ROW)
#undef ROW
    fold(acc, &reduce->sum_dy);
    fold(acc_x, &reduce->sum_dy_x);
}

DDPI_SIMD void ddpi_norm_reduce_gradient(const ddpi_norm_rows *r, ddpi_norm_reduce *b)
{
    switch ((r->bf16 ? 4 : 0) + (b->dy2 != NULL ? 2 : 0) + (b->value != NULL)) {
    case 0:
        reduce_body(r, b, false, false, false);
        break;
    case 1:
        reduce_body(r, b, false, false, true);
        break;
    case 2:
        reduce_body(r, b, false, true, false);
        break;
    case 3:
        reduce_body(r, b, false, true, true);
        break;
    case 4:
        reduce_body(r, b, true, false, false);
        break;
    case 5:
        reduce_body(r, b, true, false, true);
        break;
    case 6:
        reduce_body(r, b, true, true, false);
        break;
    default:
        reduce_body(r, b, true, true, true);
        break;
    }
}

DDPI_INLINE void spread_row(const ddpi_norm_backward *b, int64_t at, int lanes, const bool bf16)
{
    const void *x = b->x, *dy = b->dy;
    void *dx = b->dx;
#pragma GCC ivdep
    for (int l = 0; l < lanes; l++)
        ddpi_store(dx, at + l,
                   ddpi_load(dy, at + l, bf16) * b->of_dy.v[l] +
                       (ddpi_load(x, at + l, bf16) - b->shift.v[l]) * b->of_x.v[l] + b->offset.v[l],
                   bf16);
}

DDPI_INLINE void spread_body(const ddpi_norm_rows *r, const ddpi_norm_backward *backward,
                             const bool bf16)
{
    const ddpi_norm_backward own = *backward, *b = &own;
#define ROW(at, lanes, u) spread_row(b, at, lanes, bf16)
    FOR_ROWS(r, ROW)
#undef ROW
}

DDPI_SIMD void ddpi_norm_spread_gradient(const ddpi_norm_rows *r, const ddpi_norm_backward *b)
{
    if (r->bf16)
        spread_body(r, b, true);
    else
        spread_body(r, b, false);
}
