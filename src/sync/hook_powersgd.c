/* hook_powersgd.c - weights as products of two thin matrices.
 *
 * A step of a weight with gradient G, rest E and thin matrices left and right (matrix.h), on each
 * rank: E += G; right = E^T left; sum over ranks; make right orthogonal; left = E right^T (this
 * rank's share: E -= left right); sum over ranks; the gradients are left right. What E keeps is
 * then orthogonal to what was sent, and all ranks' rests add up to what the sum lacks. The summed
 * left is what the next step starts from: over the steps it turns to the gradients' largest
 * directions.
 *
 * First round: right of all of the bucket's matrices, and what is no matrix as it is. Second round:
 * left. E -= left right is done while the second round is under way.
 *
 * A sum that is not finite spoils E: then the rest is dropped and left drawn anew, on all ranks,
 * since all see the same sum; and the gradients become NaN, for whoever looks after those. */
#include <math.h>
#include <string.h>

#include "ddp/log.h"
#include "ddp/memory.h"
#include "ddp/rng.h"
#include "sync/hook.h"
#include "sync/matrix.h"

enum { BORDER = DDP_ALIGN_BYTES / sizeof(float) };

typedef struct weight {
    ddpi_matrix matrix;
    ddp_range flat; /* of the parameter */
    size_t rank;    /* 0: sent as it is */
    size_t first;   /* in the first round's memory: right, or the parameter */
    size_t second;  /* in the second round's: left */
    uint32_t number;
    uint64_t draws; /* of left, so far */
    bool drawn;     /* left has something to start from */
    bool spoilt;    /* in this step */
} weight;

typedef struct powersgd {
    ddpi_hook base;
    weight *weights; /* [params] */
    int params;
    ddp_range *first, *second; /* [buckets]: messages */
    float *own;                /* this rank's left, as the second round's memory */
    float *scratch;
    size_t length, second_length;
} powersgd;

static powersgd *powersgd_of(ddpi_hook *hook)
{
    return (powersgd *)hook;
}

static ddpi_thin thin_of(const powersgd *p, const weight *w, float *second)
{
    return (ddpi_thin){w->rank, second + w->second, (float *)p->base.shared[0] + w->first};
}

static size_t left_count(const weight *w)
{
    return w->matrix.rows * w->rank;
}

/* ---- set-up ---- */

/* The rank that a weight gets; 0: it is not worth it. */
static size_t rank_of(const ddpi_matrix *m, const ddp_hook_opts *opts)
{
    size_t rank = (size_t)opts->rank;
    if (!m->found)
        return 0;
    if (rank > m->rows)
        rank = m->rows;
    if (rank > m->cols)
        rank = m->cols;
    const double sent = (double)rank * (double)(m->rows + m->cols);
    return (double)m->rows * (double)m->cols >= opts->min_ratio * sent ? rank : 0;
}

static size_t padded(size_t count)
{
    return (count + BORDER - 1) / BORDER * BORDER;
}

/* Gives a bucket's parameters their places in its messages. */
static void place(powersgd *p, int bucket, int *param, size_t *first, size_t *second)
{
    p->first[bucket].lo = *first;
    p->second[bucket].lo = *second;
    for (; *param < p->params && p->base.env.plan->bucket_of[*param] == bucket; ++*param) {
        weight *w = &p->weights[*param];
        w->first = *first;
        w->second = *second;
        *first += padded(w->rank > 0 ? w->rank * w->matrix.cols : w->flat.hi - w->flat.lo);
        *second += left_count(w);
    }
    p->first[bucket].hi = *first;
    p->second[bucket].hi = *second;
    *second = padded(*second);
}

static ddp_status find_weights(powersgd *p, size_t *most_out)
{
    const ddpi_hook_env *env = &p->base.env;
    *most_out = 0;
    for (int i = 0; i < p->params; i++) {
        const ddp_param *param = ddp_param_table_at(env->table, i);
        weight *w = &p->weights[i];
        DDP_TRY(ddpi_matrix_make(env->device, param, &w->matrix));
        w->flat = (ddp_range){param->offset, param->offset + param->count};
        w->number = param->init_number;
        w->rank = rank_of(&w->matrix, &env->opts);
        *most_out = w->rank > *most_out ? w->rank : *most_out;
    }
    return DDP_OK;
}

static void tell(const powersgd *p, size_t sent)
{
    int products = 0;
    for (int i = 0; i < p->params; i++)
        products += p->weights[i].rank > 0;
    if (ddp_comm_rank(p->base.env.comm) == 0)
        ddp_info("powersgd: %d of %d parameters as products of rank %lld, %.2f MiB a step instead "
                 "of %.2f",
                 products, p->params, (long long)p->base.env.opts.rank,
                 (double)(sent * sizeof(float)) / (1 << 20),
                 (double)(p->length * sizeof(float)) / (1 << 20));
}

static ddp_status alloc_floats(powersgd *p, size_t count, float **floats_out)
{
    void *memory;
    DDP_TRY(ddp_device_alloc(p->base.env.device, (count + 1) * sizeof(float), &memory));
    p->base.state_bytes += (count + 1) * sizeof(float);
    *floats_out = memory;
    return DDP_OK;
}

static ddp_status set_up(powersgd *p)
{
    const int buckets = p->base.env.plan->count;
    size_t first = 0, second = 0, most;
    int param = 0;
    DDP_TRY(DDP_ALLOC(p->weights, (size_t)p->params));
    DDP_TRY(DDP_ALLOC(p->first, (size_t)buckets));
    DDP_TRY(DDP_ALLOC(p->second, (size_t)buckets));
    DDP_TRY(find_weights(p, &most));
    for (int b = 0; b < buckets; b++)
        place(p, b, &param, &first, &second);
    p->second_length = second;
    p->base.shared_bytes[0] = first * sizeof(float);
    p->base.shared_bytes[1] = second * sizeof(float);
    DDP_TRY(alloc_floats(p, p->length, &p->base.rest));
    DDP_TRY(alloc_floats(p, second, &p->own));
    DDP_TRY(DDP_ALLOC(p->scratch, DDPI_MATRIX_SCRATCH(most) + 1));
    tell(p, first + second);
    return DDP_OK;
}

static void destroy(ddpi_hook *hook)
{
    powersgd *p = powersgd_of(hook);
    ddp_device *device = hook->env.device;
    for (int i = 0; p->weights != NULL && i < p->params; i++)
        ddpi_matrix_free(&p->weights[i].matrix);
    if (p->base.rest != NULL)
        ddp_device_free(device, p->base.rest, (p->length + 1) * sizeof(float));
    if (p->own != NULL)
        ddp_device_free(device, p->own, (p->second_length + 1) * sizeof(float));
    ddp_free(p->scratch);
    ddp_free(p->second);
    ddp_free(p->first);
    ddp_free(p->weights);
    ddp_free(p);
}

static ddp_status create(const ddpi_hook_env *env, ddpi_hook **hook_out)
{
    powersgd *p;
    DDP_TRY(DDP_ALLOC(p, 1));
    p->base.env = *env;
    p->params = ddp_param_table_count(env->table);
    p->length = ddp_param_table_length(env->table);
    const ddp_status st = set_up(p);
    if (st != DDP_OK) {
        destroy(&p->base);
        return st;
    }
    *hook_out = &p->base;
    return DDP_OK;
}

/* ---- a step ---- */

/* A bucket's parameters. */
static ddp_range params_of(const powersgd *p, int bucket)
{
    const int *bucket_of = p->base.env.plan->bucket_of;
    ddp_range params = {0, 0};
    while (bucket_of[params.lo] < bucket)
        params.lo++;
    params.hi = params.lo + (size_t)p->base.env.plan->param_counts[bucket];
    return params;
}

/* Equal on all ranks, which have drawn equally often. */
static void draw(weight *w, float *left)
{
    const ddp_rng rng = ddp_rng_make(0, DDP_RNG_COMPRESS, w->number);
    ddp_rng_normal_fill(&rng, w->draws++ * left_count(w), left_count(w), left);
}

static void project(powersgd *p, weight *w)
{
    const ddpi_thin thin = thin_of(p, w, p->base.shared[1]);
    if (!w->drawn)
        draw(w, thin.left);
    w->drawn = true;
    ddpi_matrix_right(&w->matrix, &thin, p->base.env.grads, p->base.rest);
}

static void encode_first(powersgd *p, int bucket)
{
    const ddp_range params = params_of(p, bucket);
    for (size_t i = params.lo; i < params.hi; i++) {
        weight *w = &p->weights[i];
        if (w->rank > 0)
            project(p, w);
        else
            memcpy((float *)p->base.shared[0] + w->first, p->base.env.grads + w->flat.lo,
                   (w->flat.hi - w->flat.lo) * sizeof(float));
    }
}

static void project_back(powersgd *p, weight *w)
{
    const ddpi_thin own = thin_of(p, w, p->own);
    const size_t count = w->rank * w->matrix.cols;
    w->spoilt = !ddpi_all_finite(own.right, count);
    if (w->spoilt) {
        memset(own.left, 0, left_count(w) * sizeof(float));
    } else {
        ddpi_orthonormalise(own.right, w->rank, w->matrix.cols);
        ddpi_matrix_left(&w->matrix, &own, p->base.rest, p->scratch);
    }
    memcpy((float *)p->base.shared[1] + w->second, own.left, left_count(w) * sizeof(float));
}

static void encode_second(powersgd *p, int bucket)
{
    const ddp_range params = params_of(p, bucket);
    for (size_t i = params.lo; i < params.hi; i++)
        if (p->weights[i].rank > 0)
            project_back(p, &p->weights[i]);
}

static ddp_status encode(ddpi_hook *hook, int bucket, int round, ddp_coll *coll)
{
    powersgd *p = powersgd_of(hook);
    const ddp_range message = round == 0 ? p->first[bucket] : p->second[bucket];
    coll->buf = (float *)hook->shared[round] + message.lo;
    coll->count = message.hi - message.lo;
    if (round == 0)
        encode_first(p, bucket);
    else
        encode_second(p, bucket);
    return DDP_OK;
}

static void meanwhile(ddpi_hook *hook, int bucket)
{
    powersgd *p = powersgd_of(hook);
    const ddp_range params = params_of(p, bucket);
    for (size_t i = params.lo; i < params.hi; i++) {
        const weight *w = &p->weights[i];
        const ddpi_thin own = thin_of(p, w, p->own);
        if (w->rank > 0 && !w->spoilt)
            ddpi_matrix_subtract(&w->matrix, &own, p->base.rest);
    }
}

/* A row of right that was 0 has made a column of left 0, which would stay so. */
static void revive(powersgd *p, weight *w, const ddpi_thin *thin)
{
    bool drawn = false;
    for (size_t k = 0; k < w->rank; k++) {
        const float *row = thin->right + k * w->matrix.cols;
        size_t c = 0;
        while (c < w->matrix.cols && row[c] == 0)
            c++;
        if (c < w->matrix.cols)
            continue;
        if (!drawn)
            draw(w, p->own + w->second);
        drawn = true;
        for (size_t r = 0; r < w->matrix.rows; r++)
            thin->left[r * w->rank + k] = p->own[w->second + r * w->rank + k];
    }
}

static void expand(powersgd *p, weight *w)
{
    const ddpi_thin thin = thin_of(p, w, p->base.shared[1]);
    if (w->spoilt || !ddpi_all_finite(thin.left, left_count(w))) {
        ddpi_matrix_fill(&w->matrix, NAN, p->base.env.grads);
        ddpi_matrix_fill(&w->matrix, 0, p->base.rest);
        w->drawn = false;
        return;
    }
    ddpi_matrix_expand(&w->matrix, &thin, p->base.env.grads);
    revive(p, w, &thin);
}

static ddp_status decode(ddpi_hook *hook, int bucket, ddp_range owned)
{
    powersgd *p = powersgd_of(hook);
    const ddp_range params = params_of(p, bucket);
    (void)owned;
    for (size_t i = params.lo; i < params.hi; i++) {
        weight *w = &p->weights[i];
        if (w->rank > 0)
            expand(p, w);
        else
            memcpy(p->base.env.grads + w->flat.lo, (float *)p->base.shared[0] + w->first,
                   (w->flat.hi - w->flat.lo) * sizeof(float));
    }
    return DDP_OK;
}

const ddp_hook_ops *ddp_hook_powersgd(void)
{
    static const ddp_hook_ops ops = {.name = "powersgd",
                                     .rounds = 2,
                                     .owns_all = true,
                                     .stateful = true,
                                     .create = create,
                                     .destroy = destroy,
                                     .encode = encode,
                                     .meanwhile = meanwhile,
                                     .decode = decode};
    return &ops;
}
