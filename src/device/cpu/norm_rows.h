/* norm_rows.h - the loops of norm_kernels.h for one instruction set: norm_kernels.c includes this
 * once for each, with ISA (the end of the functions' names), TARGET (their attribute) and ROUND
 * defined. Vectors are of 16 floats everywhere; the compiler splits them where registers are
 * shorter, which it decides when it first sees a function, so that each needs its attribute. They
 * are handed over by address, since passing them by value depends on the instruction set too.
 *
 * Each loop is one always-inlined body, made for f32 and bf16 and for each choice that would cost
 * in the innermost loop; four rows at a time keep enough sums in flight. */
#define PASTE(name, isa)  name##_##isa
#define EXPAND(name, isa) PASTE(name, isa)
#define FN(name)          EXPAND(name, ISA)
#define INLINE            static inline __attribute__((always_inline)) TARGET

/* ---- elements ---- */

INLINE void FN(load)(const void *elements, int64_t at, int lanes, const bool bf16, vec *out)
{
    if (bf16) {
        hvec halves = {0};
        memcpy(&halves, (const uint16_t *)elements + at, (size_t)lanes * sizeof(uint16_t));
        *out = (vec)(__builtin_convertvector(halves, uvec) << 16);
    } else {
        vec values = {0};
        memcpy(&values, (const float *)elements + at, (size_t)lanes * sizeof(float));
        *out = values;
    }
}

/* Comparisons of vectors longer than registers are taken apart element by element; arithmetic on
 * the bits is not. All ones where it holds, and else 0: */
#define IS_NEGATIVE(bits) ((ivec)(bits) >> 31)
#define IS_NAN(bits)      ((0x7f800000 - ((ivec)(bits)&0x7fffffff)) >> 31)
#define IS_ZERO(bits)     ((((ivec)(bits)&0x7fffffff) - 1) >> 31)

/* 0 where it is negative; a NaN stays one. */
INLINE void FN(relu)(vec *value)
{
    *value = (vec)((ivec)*value & (~IS_NEGATIVE(*value) | IS_NAN(*value)));
}

/* g = 0 where value <= 0 or is a NaN. */
INLINE void FN(mask)(const vec *value, vec *g)
{
    *g = (vec)((ivec)*g & ~(IS_NEGATIVE(*value) | IS_ZERO(*value) | IS_NAN(*value)));
}

/* As ddp_bf16_of_f32 does. Apart where narrowing has no instruction and takes a page of code. */
static ROUND TARGET void FN(round)(const vec *values, hvec *out)
{
    const uvec bits = (uvec)*values;
    const uvec rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const uvec quiet = bits >> 16 | 0x40;
    const uvec nan = (uvec)IS_NAN(bits);
    *out = __builtin_convertvector((quiet & nan) | (rounded & ~nan), hvec);
}

INLINE void FN(store)(void *elements, int64_t at, int lanes, const vec *values, const bool bf16)
{
    if (bf16) {
        hvec halves;
        FN(round)(values, &halves);
        memcpy((uint16_t *)elements + at, &halves, (size_t)lanes * sizeof(uint16_t));
    } else {
        memcpy((float *)elements + at, values, (size_t)lanes * sizeof(float));
    }
}

INLINE void FN(fold)(const vec from[UNROLL], ddpi_norm_lanes *to)
{
    const vec sum = (from[0] + from[1]) + (from[2] + from[3]);
    for (int l = 0; l < LANES; l++)
        to->v[l] += sum[l];
}

/* Calls ROW(at, lanes, u) for every row; u says which of several sums takes it. */
#define FOR_ROWS(r, ROW)                                                                           \
    const int64_t stride = (r)->stride, whole = (r)->lanes == LANES ? (r)->rows : 0;               \
    for (int64_t segment = 0; segment < (r)->segments; segment++) {                                \
        int64_t at = segment * (r)->segment_step, row = 0;                                         \
        for (; row + UNROLL <= whole; row += UNROLL, at += UNROLL * stride) {                      \
            ROW(at, LANES, 0);                                                                     \
            ROW(at + stride, LANES, 1);                                                            \
            ROW(at + 2 * stride, LANES, 2);                                                        \
            ROW(at + 3 * stride, LANES, 3);                                                        \
        }                                                                                          \
        for (; row < whole; row++, at += stride)                                                   \
            ROW(at, LANES, 0);                                                                     \
        for (; row < (r)->rows + ((r)->tail > 0); row++, at += stride)                             \
            ROW(at, row < (r)->rows ? (r)->lanes : (r)->tail, 0);                                  \
    }

/* ---- statistics ---- */

INLINE void FN(sum_row)(const void *x, int64_t at, int lanes, vec *sum, const bool bf16)
{
    vec values;
    FN(load)(x, at, lanes, bf16, &values);
    *sum += values;
}

INLINE void FN(sum_body)(const ddpi_norm_rows *r, const void *x, ddpi_norm_lanes *sum,
                         const bool bf16)
{
    vec acc[UNROLL] = {{0}};
#define ROW(at, lanes, u) FN(sum_row)(x, at, lanes, &acc[u], bf16)
    FOR_ROWS(r, ROW)
#undef ROW
    FN(fold)(acc, sum);
}

TARGET static void FN(sum)(const ddpi_norm_rows *r, const void *x, ddpi_norm_lanes *sum)
{
    if (r->bf16)
        FN(sum_body)(r, x, sum, true);
    else
        FN(sum_body)(r, x, sum, false);
}

/* What a short row lacks counts as equal to the shift. */
INLINE void FN(deviations_row)(const void *x, int64_t at, int lanes, const vec *shift, pair *acc,
                               const bool bf16)
{
    const ivec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    vec d;
    FN(load)(x, at, lanes, bf16, &d);
    d -= *shift;
    if (lanes < LANES)
        d = (vec)((ivec)d & (lane < lanes));
    acc->first += d;
    acc->second += d * d;
}

INLINE void FN(fold_pairs)(const pair from[UNROLL], ddpi_norm_lanes *first, ddpi_norm_lanes *second)
{
    vec firsts[UNROLL], seconds[UNROLL];
    for (int u = 0; u < UNROLL; u++) {
        firsts[u] = from[u].first;
        seconds[u] = from[u].second;
    }
    FN(fold)(firsts, first);
    FN(fold)(seconds, second);
}

INLINE void FN(deviations_body)(const ddpi_norm_rows *r, const void *x,
                                const ddpi_norm_lanes *shift, ddpi_norm_lanes *sum,
                                ddpi_norm_lanes *squares, const bool bf16)
{
    pair acc[UNROLL] = {{{0}, {0}}};
    vec from;
    memcpy(&from, shift, sizeof from);
#define ROW(at, lanes, u) FN(deviations_row)(x, at, lanes, &from, &acc[u], bf16)
    FOR_ROWS(r, ROW)
#undef ROW
    FN(fold_pairs)(acc, sum, squares);
}

TARGET static void FN(deviations)(const ddpi_norm_rows *r, const void *x,
                                  const ddpi_norm_lanes *shift, ddpi_norm_lanes *sum,
                                  ddpi_norm_lanes *squares)
{
    if (r->bf16)
        FN(deviations_body)(r, x, shift, sum, squares, true);
    else
        FN(deviations_body)(r, x, shift, sum, squares, false);
}

/* ---- forward ---- */

INLINE void FN(apply_row)(const ddpi_norm_forward *f, const factors *by, int64_t at, int lanes,
                          const int choice)
{
    const bool bf16 = (choice & BF16) != 0;
    vec value, other;
    FN(load)(f->x, at, lanes, bf16, &value);
    value = (value - by->shift) * by->scale + by->offset;
    if (choice & TWO) {
        FN(load)(f->z, at, lanes, bf16, &other);
        value += other;
    }
    if (choice & RELU)
        FN(relu)(&value);
    FN(store)(f->y, at, lanes, &value, bf16);
}

INLINE void FN(apply_body)(const ddpi_norm_rows *r, const ddpi_norm_forward *f, const int choice)
{
    factors by;
    memcpy(&by.shift, &f->shift, sizeof by.shift);
    memcpy(&by.scale, &f->scale, sizeof by.scale);
    memcpy(&by.offset, &f->offset, sizeof by.offset);
#define ROW(at, lanes, u) FN(apply_row)(f, &by, at, lanes, choice)
    FOR_ROWS(r, ROW)
#undef ROW
}

TARGET static void FN(apply)(const ddpi_norm_rows *r, const ddpi_norm_forward *f)
{
    const int choice = (r->bf16 ? BF16 : 0) | (f->z != NULL ? TWO : 0) | (f->relu ? RELU : 0);
    FOR_CHOICES(choice, FN(apply_body), r, f)
}

/* ---- backward ---- */

/* The sums are of what is stored, so that the gradient of src sums to 0 in bf16 too. */
INLINE void FN(reduce_row)(const ddpi_norm_reduce *b, const vec *shift, int64_t at, int lanes,
                           pair *acc, const int choice)
{
    const bool bf16 = (choice & BF16) != 0;
    vec g, other;
    FN(load)(b->dy, at, lanes, bf16, &g);
    if (choice & TWO) {
        FN(load)(b->dy2, at, lanes, bf16, &other);
        g += other;
    }
    if (choice & RELU) {
        FN(load)(b->value, at, lanes, bf16, &other);
        FN(mask)(&other, &g);
    }
    if ((choice & TWO) && bf16) {
        hvec halves;
        FN(round)(&g, &halves);
        g = (vec)(__builtin_convertvector(halves, uvec) << 16);
    }
    if (choice & (TWO | RELU))
        FN(store)(b->dy, at, lanes, &g, bf16);
    FN(load)(b->x, at, lanes, bf16, &other);
    acc->first += g;
    acc->second += g * (other - *shift);
}

INLINE void FN(reduce_body)(const ddpi_norm_rows *r, ddpi_norm_reduce *b, const int choice)
{
    pair acc[UNROLL] = {{{0}, {0}}};
    const ddpi_norm_reduce own = *b;
    vec shift;
    memcpy(&shift, &b->shift, sizeof shift);
#define ROW(at, lanes, u) FN(reduce_row)(&own, &shift, at, lanes, &acc[u], choice)
    FOR_ROWS(r, ROW)
#undef ROW
    FN(fold_pairs)(acc, &b->sum_dy, &b->sum_dy_x);
}

TARGET static void FN(reduce)(const ddpi_norm_rows *r, ddpi_norm_reduce *b)
{
    const int choice =
        (r->bf16 ? BF16 : 0) | (b->dy2 != NULL ? TWO : 0) | (b->value != NULL ? RELU : 0);
    FOR_CHOICES(choice, FN(reduce_body), r, b)
}

INLINE void FN(spread_row)(const ddpi_norm_backward *b, const factors *by, int64_t at, int lanes,
                           const bool bf16)
{
    vec x, dy;
    FN(load)(b->x, at, lanes, bf16, &x);
    FN(load)(b->dy, at, lanes, bf16, &dy);
    dy = dy * by->of_dy + (x - by->shift) * by->scale + by->offset;
    FN(store)(b->dx, at, lanes, &dy, bf16);
}

INLINE void FN(spread_body)(const ddpi_norm_rows *r, const ddpi_norm_backward *b, const bool bf16)
{
    factors by;
    memcpy(&by.shift, &b->shift, sizeof by.shift);
    memcpy(&by.scale, &b->of_x, sizeof by.scale);
    memcpy(&by.offset, &b->offset, sizeof by.offset);
    memcpy(&by.of_dy, &b->of_dy, sizeof by.of_dy);
#define ROW(at, lanes, u) FN(spread_row)(b, &by, at, lanes, bf16)
    FOR_ROWS(r, ROW)
#undef ROW
}

TARGET static void FN(spread)(const ddpi_norm_rows *r, const ddpi_norm_backward *b)
{
    if (r->bf16)
        FN(spread_body)(r, b, true);
    else
        FN(spread_body)(r, b, false);
}

#undef PASTE
#undef EXPAND
#undef FN
#undef INLINE
#undef FOR_ROWS
#undef IS_NEGATIVE
#undef IS_NAN
#undef IS_ZERO
#undef ISA
#undef TARGET
#undef ROUND
