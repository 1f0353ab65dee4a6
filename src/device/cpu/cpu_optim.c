/* cpu_optim.c - what optimizers do to ranges of the flat buffers, each as one pass over memory.
 *
 * Large ranges are cut into pieces of fixed size, which the threads share; sums are kept per lane
 * within a piece and added piece by piece, so the number of threads does not change them. The
 * rules' arithmetic is in float, as the parameters are; factors are computed in double, once a
 * call. */
#include <math.h>
#include <string.h>

#include "device/cpu/cpu_impl.h"

#define PIECE 16384 /* elements */
#define LANES 16
/* Pieces whose sums wait to be added, before the next lot starts. */
#define LOT      64
#define MAX_SUMS 3

#define INLINE static inline __attribute__((always_inline))

/* ---- pieces and their sums ---- */

/* Runs fn over lots of pieces; fn leaves each piece's sums in a row of sums. */
typedef struct sum_run {
    void (*fn)(const void *arg, size_t lo, size_t hi, double *sums_out);
    const void *arg;
    size_t count;
    int64_t first; /* piece of the lot */
    double sums[LOT][MAX_SUMS];
} sum_run;

static void sum_piece(void *arg, int64_t index)
{
    sum_run *run = arg;
    const size_t lo = (size_t)(run->first + index) * PIECE;
    const size_t hi = lo + PIECE < run->count ? lo + PIECE : run->count;
    run->fn(run->arg, lo, hi, run->sums[index]);
}

/* Adds `kinds` sums over everything to totals. */
static void sum_over(sum_run *run, int threads, int kinds, double *totals)
{
    const int64_t all = ddpi_ceil_div((int64_t)run->count, PIECE);
    double sums[MAX_SUMS] = {0};
    for (run->first = 0; run->first < all; run->first += LOT) {
        const int64_t lot = ddpi_min(LOT, all - run->first);
        ddpi_parallel(threads, lot, sum_piece, run);
        for (int64_t i = 0; i < lot; i++)
            for (int k = 0; k < kinds; k++)
                sums[k] += run->sums[i][k];
    }
    for (int k = 0; k < kinds; k++)
        totals[k] += sums[k];
}

INLINE double lanes_total(const double *lanes)
{
    double total = 0;
    for (int l = 0; l < LANES; l++)
        total += lanes[l];
    return total;
}

INLINE void add_square(double *lane, float value)
{
    *lane += (double)value * (double)value;
}

/* ---- SGD ---- */

typedef struct sgd_task {
    ddp_sgd_args args;
    int threads;
    float *w;
    const float *grad;
    float *buf;
    size_t count;
    double *grad_sq;
} sgd_task;

_Static_assert(sizeof(sgd_task) <= DDPI_TASK_BYTES, "an update fits into a stream's slot");

/* The same update for every element; what differs between runs is in the factors: buf = keep * buf
 * + take * g, step = direct * g + carry * buf. */
typedef struct sgd_factors {
    float inv_count, weight_decay, lr, keep, take, direct, carry;
} sgd_factors;

static sgd_factors factors_of(const ddp_sgd_args *args)
{
    return (sgd_factors){
        .inv_count = (float)args->inv_count,
        .weight_decay = (float)args->weight_decay,
        .lr = (float)args->lr,
        .keep = args->first ? 0 : (float)args->momentum,
        .take = args->first ? 1 : (float)(1 - args->dampening),
        .direct = args->nesterov ? 1 : 0,
        .carry = args->nesterov ? (float)args->momentum : 1,
    };
}

INLINE void sgd_step(const sgd_task *task, sgd_factors f, size_t i, bool momentum)
{
    const float g = task->grad[i] * f.inv_count + f.weight_decay * task->w[i];
    float step = g;
    if (momentum) {
        const float buf = f.keep * task->buf[i] + f.take * g;
        task->buf[i] = buf;
        step = f.direct * g + f.carry * buf;
    }
    task->w[i] -= f.lr * step;
}

INLINE void sgd_body(const sgd_task *task, size_t lo, size_t hi, bool momentum, double *sum_out)
{
    const sgd_factors f = factors_of(&task->args);
    const double inv_count = task->args.inv_count;
    const float *restrict grad = task->grad;
    float *restrict w = task->w, *restrict buf = task->buf;
    const sgd_task own = {.w = w, .grad = grad, .buf = buf};
    double lanes[LANES] = {0};
    size_t i = lo;
    for (; i + LANES <= hi; i += LANES) {
        if (task->grad_sq != NULL)
            for (int l = 0; l < LANES; l++)
                add_square(&lanes[l], grad[i + l]);
#pragma GCC ivdep
        for (int l = 0; l < LANES; l++)
            sgd_step(&own, f, i + l, momentum);
    }
    for (; i < hi; i++) {
        add_square(&lanes[0], grad[i]);
        sgd_step(&own, f, i, momentum);
    }
    *sum_out = lanes_total(lanes) * inv_count * inv_count;
}

DDPI_SIMD static void sgd_range(const void *arg, size_t lo, size_t hi, double *sum_out)
{
    const sgd_task *task = arg;
    /* At the first step buf may hold anything: keep = 0 must not meet a NaN in it. */
    if (task->buf != NULL && task->args.first)
        memset(task->buf + lo, 0, (hi - lo) * sizeof *task->buf);
    if (task->buf != NULL)
        sgd_body(task, lo, hi, true, sum_out);
    else
        sgd_body(task, lo, hi, false, sum_out);
}

static ddp_status run_sgd(const void *payload)
{
    const sgd_task *task = payload;
    sum_run run = {.fn = sgd_range, .arg = task, .count = task->count};
    double unused = 0;
    sum_over(&run, task->threads, 1, task->grad_sq != NULL ? task->grad_sq : &unused);
    return DDP_OK;
}

ddp_status ddpi_cpu_sgd(ddp_stream *stream, const ddp_sgd_args *args, float *w, const float *grad,
                        float *buf, size_t count, double *grad_sq)
{
    const sgd_task task = {*args, stream->device->opts.threads, w, grad, buf, count, grad_sq};
    return ddpi_cpu_submit(stream, run_sgd, &task, sizeof task);
}

/* ---- AdamW and LAMB ---- */

typedef struct adam_task {
    ddp_adam_args args;
    ddp_adam_span span;
    int threads;
    double *sums; /* may be NULL */
} adam_task;

_Static_assert(sizeof(adam_task) <= DDPI_TASK_BYTES, "an update fits into a stream's slot");

/* With the corrections of the moments, which start at 0, folded in. */
typedef struct adam_factors {
    float inv_count, keep1, take1, keep2, take2;
    float mean, root; /* m and sqrt(v) times these are unbiased */
    float eps, decay, lr;
} adam_factors;

static adam_factors adam_factors_of(const ddp_adam_args *args)
{
    return (adam_factors){
        .inv_count = (float)args->inv_count,
        .keep1 = (float)args->beta1,
        .take1 = (float)(1 - args->beta1),
        .keep2 = (float)args->beta2,
        .take2 = (float)(1 - args->beta2),
        .mean = (float)(1 / (1 - pow(args->beta1, (double)args->step))),
        .root = (float)(1 / sqrt(1 - pow(args->beta2, (double)args->step))),
        .eps = (float)args->eps,
        .decay = (float)args->weight_decay,
        .lr = (float)args->lr,
    };
}

/* Moves the moments and gives the direction, without decay. */
INLINE float adam_moments(const ddp_adam_span *s, const adam_factors *f, size_t i)
{
    const float g = s->grad[i] * f->inv_count;
    const float m = f->keep1 * s->m[i] + f->take1 * g;
    const float v = f->keep2 * s->v[i] + f->take2 * g * g;
    s->m[i] = m;
    s->v[i] = v;
    return m * f->mean / (sqrtf(v) * f->root + f->eps);
}

/* Blocks of lanes, then the rest: BLOCK(i, l) is the work of element i + l in lane l. */
#define FOR_LANES(BLOCK)                                                                           \
    size_t i = lo;                                                                                 \
    for (; i + LANES <= hi; i += LANES) {                                                          \
        _Pragma("GCC ivdep") for (int l = 0; l < LANES; l++) BLOCK(i + (size_t)l, l);              \
    }                                                                                              \
    for (; i < hi; i++)                                                                            \
    BLOCK(i, 0)

DDPI_SIMD static void adamw_range(const void *arg, size_t lo, size_t hi, double *sums_out)
{
    const adam_task *task = arg;
    const adam_factors f = adam_factors_of(&task->args);
    const float shrink = (float)(1 - task->args.lr * task->args.weight_decay);
    const double inv_count = task->args.inv_count;
    float *restrict w = task->span.w, *restrict m = task->span.m, *restrict v = task->span.v;
    const float *restrict grad = task->span.grad;
    const ddp_adam_span own = {.grad = grad, .m = m, .v = v};
    double lanes[LANES] = {0};
#define STEP(at, lane)                                                                             \
    do {                                                                                           \
        add_square(&lanes[lane], grad[at]);                                                        \
        w[at] = w[at] * shrink - f.lr * adam_moments(&own, &f, at);                                \
    } while (0)
    FOR_LANES(STEP);
#undef STEP
    sums_out[0] = lanes_total(lanes) * inv_count * inv_count;
}

/* LAMB's direction has the decay in it. */
DDPI_SIMD static void lamb_moments_range(const void *arg, size_t lo, size_t hi, double *sums_out)
{
    const adam_task *task = arg;
    const adam_factors f = adam_factors_of(&task->args);
    const double inv_count = task->args.inv_count;
    float *restrict m = task->span.m, *restrict v = task->span.v;
    const float *restrict grad = task->span.grad, *restrict w = task->span.w;
    const ddp_adam_span own = {.grad = grad, .m = m, .v = v};
    double grads[LANES] = {0}, weights[LANES] = {0}, directions[LANES] = {0};
#define STEP(at, lane)                                                                             \
    do {                                                                                           \
        add_square(&grads[lane], grad[at]);                                                        \
        add_square(&weights[lane], w[at]);                                                         \
        add_square(&directions[lane], adam_moments(&own, &f, at) + f.decay * w[at]);               \
    } while (0)
    FOR_LANES(STEP);
#undef STEP
    sums_out[0] = lanes_total(grads) * inv_count * inv_count;
    sums_out[1] = lanes_total(weights);
    sums_out[2] = lanes_total(directions);
}

DDPI_SIMD static void lamb_apply_range(const void *arg, size_t lo, size_t hi, double *sums_out)
{
    const adam_task *task = arg;
    const adam_factors f = adam_factors_of(&task->args);
    float *restrict w = task->span.w;
    const float *restrict m = task->span.m, *restrict v = task->span.v;
#define STEP(at, lane)                                                                             \
    w[at] -= f.lr * (m[at] * f.mean / (sqrtf(v[at]) * f.root + f.eps) + f.decay * w[at])
    FOR_LANES(STEP);
#undef STEP
    sums_out[0] = 0;
}

static void run_adam(const adam_task *task, int kinds,
                     void (*fn)(const void *, size_t, size_t, double *))
{
    sum_run run = {.fn = fn, .arg = task, .count = task->span.count};
    double unused[MAX_SUMS] = {0};
    sum_over(&run, task->threads, kinds, task->sums != NULL ? task->sums : unused);
}

static ddp_status run_adamw(const void *payload)
{
    run_adam(payload, 1, adamw_range);
    return DDP_OK;
}

static ddp_status run_lamb_moments(const void *payload)
{
    run_adam(payload, 3, lamb_moments_range);
    return DDP_OK;
}

static ddp_status run_lamb_apply(const void *payload)
{
    run_adam(payload, 1, lamb_apply_range);
    return DDP_OK;
}

ddp_status ddpi_cpu_adam(ddp_stream *stream, ddp_adam_pass pass, const ddp_adam_args *args,
                         const ddp_adam_span *span, double *sums)
{
    static ddp_status (*const runs[])(const void *) = {
        [DDP_ADAMW] = run_adamw,
        [DDP_LAMB_MOMENTS] = run_lamb_moments,
        [DDP_LAMB_APPLY] = run_lamb_apply,
    };
    const adam_task task = {*args, *span, stream->device->opts.threads, sums};
    return ddpi_cpu_submit(stream, runs[pass], &task, sizeof task);
}

/* ---- moving average ---- */

typedef struct average_task {
    int threads;
    float *dst;
    const float *src;
    float weight;
    size_t count;
} average_task;

DDPI_SIMD static void average_range(const void *arg, size_t lo, size_t hi, double *sums_out)
{
    const average_task *task = arg;
    float *restrict dst = task->dst;
    const float *restrict src = task->src;
    const float weight = task->weight;
    for (size_t i = lo; i < hi; i++)
        dst[i] += weight * (src[i] - dst[i]);
    sums_out[0] = 0;
}

static ddp_status run_average(const void *payload)
{
    const average_task *task = payload;
    sum_run run = {.fn = average_range, .arg = task, .count = task->count};
    double unused = 0;
    sum_over(&run, task->threads, 1, &unused);
    return DDP_OK;
}

ddp_status ddpi_cpu_average(ddp_stream *stream, float *dst, const float *src, double weight,
                            size_t count)
{
    const average_task task = {stream->device->opts.threads, dst, src, (float)weight, count};
    return ddpi_cpu_submit(stream, run_average, &task, sizeof task);
}

/* ---- sum of squares ---- */

typedef struct squares_task {
    int threads;
    const float *src;
    size_t count;
    double scale;
    double *sum_out;
} squares_task;

DDPI_SIMD static void squares_range(const void *arg, size_t lo, size_t hi, double *sum_out)
{
    const float *src = ((const squares_task *)arg)->src;
    double lanes[LANES] = {0};
    size_t i = lo;
    for (; i + LANES <= hi; i += LANES)
        for (int l = 0; l < LANES; l++)
            add_square(&lanes[l], src[i + l]);
    for (; i < hi; i++)
        add_square(&lanes[0], src[i]);
    *sum_out = lanes_total(lanes);
}

static ddp_status run_squares(const void *payload)
{
    const squares_task *task = payload;
    sum_run run = {.fn = squares_range, .arg = task, .count = task->count};
    double sum = 0;
    sum_over(&run, task->threads, 1, &sum);
    *task->sum_out += sum * task->scale * task->scale;
    return DDP_OK;
}

ddp_status ddpi_cpu_sum_squares(ddp_stream *stream, const float *src, size_t count, double scale,
                                double *sum_out)
{
    const squares_task task = {stream->device->opts.threads, src, count, scale, sum_out};
    return ddpi_cpu_submit(stream, run_squares, &task, sizeof task);
}
