/* cost_cut.c - what a cut into buckets leaves exposed, and the cut that leaves the least.
 *
 * Bucket k starts when it is complete and the one before it is through, and ends t(bytes) later:
 *
 *     end_k = max(ready_k, end_(k-1)) + t_k.
 *
 * An earlier end is never worse for what follows. So the earliest end of all cuts of the pieces
 * before a border is found by dynamic programming over borders; once more, with one bucket more in
 * each round, until the whole ends soon enough, it gives the fewest buckets. */
#include <math.h>

#include "ddp/cost.h"
#include "ddp/memory.h"

/* ---- what a cut costs ---- */

static double start_of(const ddp_cost_step *step, double ready)
{
    return step->hidden ? ready : step->backward;
}

ddp_cost_open ddp_cost_cut(const ddp_cost_step *step, const int *ends, int buckets)
{
    double end = 0, publish = 0;
    ddp_cost_open open = {0};

    for (int b = 0, i = 0; b < buckets; b++) {
        double bytes = 0, ready = 0;
        for (; i < ends[b]; i++) {
            bytes += step->bytes[i];
            ready = fmax(ready, step->ready[i]);
        }
        const double seconds = ddp_cost_seconds(step->curve, bytes);
        end = fmax(end, start_of(step, ready)) + seconds;
        open.comm += seconds;
        publish += step->publish != NULL ? ddp_cost_seconds(step->publish, bytes) : 0;
    }
    open.comm += publish;
    open.end = fmax(step->backward, end) + publish;
    open.exposed = open.end - step->backward;
    return open;
}

int ddp_cost_cut_by_size(const ddp_cost_step *step, double first_bytes, double cap_bytes, int *ends)
{
    int buckets = 0;
    double bytes = 0;

    for (int i = 0; i < step->count; i++) {
        bytes += step->bytes[i];
        if (bytes < (buckets == 0 ? first_bytes : cap_bytes) && i + 1 < step->count)
            continue;
        ends[buckets++] = i + 1;
        bytes = 0;
    }
    return buckets;
}

/* ---- the best cut ---- */

typedef struct solver {
    const ddp_cost_step *step;
    double *before; /* [count + 1]: bytes before a border */
    double *ready;  /* [count + 1]: when all before a border can start */
    double *end;    /* [count + 1]: the earliest, of cuts that end at a border */
    double *next;   /* the same with one bucket more */
    int *from;      /* [count + 1][count + 1]: by buckets and border, the border before */
} solver;

/* The end of a bucket from border i to border j, behind what ends at `end`. */
static double extend(const solver *s, int i, int j, double end)
{
    return fmax(end, s->ready[j]) + ddp_cost_seconds(s->step->curve, s->before[j] - s->before[i]);
}

/* The earliest end of any cut. */
static double earliest(solver *s)
{
    const int count = s->step->count;

    s->end[0] = 0;
    for (int j = 1; j <= count; j++) {
        s->end[j] = INFINITY;
        for (int i = 0; i < j; i++)
            s->end[j] = fmin(s->end[j], extend(s, i, j, s->end[i]));
    }
    return s->end[count];
}

/* One bucket more than in s->end, which becomes the result. */
static void add_bucket(solver *s, int buckets)
{
    const int count = s->step->count;
    int *from = s->from + (size_t)buckets * ((size_t)count + 1);

    for (int j = 0; j <= count; j++) {
        s->next[j] = INFINITY;
        from[j] = -1;
        for (int i = 0; i < j; i++) {
            if (!isfinite(s->end[i]))
                continue;
            const double through = extend(s, i, j, s->end[i]);
            if (through < s->next[j]) {
                s->next[j] = through;
                from[j] = i;
            }
        }
    }
    double *swap = s->end;
    s->end = s->next;
    s->next = swap;
}

/* Returns the number of buckets; 0: no cut keeps the limit. */
static int fewest(solver *s, double limit, int *ends)
{
    const int count = s->step->count;
    int buckets = 0;

    for (int j = 0; j <= count; j++)
        s->end[j] = j == 0 ? 0 : INFINITY;
    do {
        if (buckets == count)
            return 0;
        add_bucket(s, ++buckets);
    } while (s->end[count] > limit);
    for (int b = buckets, at = count; b > 0; b--) {
        ends[b - 1] = at;
        at = s->from[(size_t)b * ((size_t)count + 1) + (size_t)at];
    }
    return buckets;
}

static ddp_status open_solver(const ddp_cost_step *step, solver *s)
{
    const size_t borders = (size_t)step->count + 1;

    s->step = step;
    DDP_TRY(DDP_ALLOC(s->before, borders));
    DDP_TRY(DDP_ALLOC(s->ready, borders));
    DDP_TRY(DDP_ALLOC(s->end, borders));
    DDP_TRY(DDP_ALLOC(s->next, borders));
    DDP_TRY(DDP_ALLOC(s->from, borders * borders));
    s->before[0] = s->ready[0] = 0;
    for (int i = 0; i < step->count; i++) {
        /* Buckets start in order, so what is ready early waits for what lies before it. */
        s->ready[i + 1] = fmax(s->ready[i], start_of(step, step->ready[i]));
        s->before[i + 1] = s->before[i] + step->bytes[i];
    }
    return DDP_OK;
}

static void close_solver(solver *s)
{
    ddp_free(s->before);
    ddp_free(s->ready);
    ddp_free(s->end);
    ddp_free(s->next);
    ddp_free(s->from);
}

ddp_status ddp_cost_best_cut(const ddp_cost_step *step, double slack, const int *other,
                             int other_buckets, int *ends, int *buckets_out)
{
    solver s = {0};
    ddp_status st;

    DDP_ASSERT(step->count >= 1);
    DDP_TRY_GOTO(st, open_solver(step, &s), done);
    /* Sums in another order may differ in their last bits. */
    const double rounding = 1e-9 * step->backward;
    const double least = fmax(step->backward, earliest(&s));
    ddp_cost_step bare = *step;
    bare.publish = NULL;
    const double known = other != NULL ? ddp_cost_cut(&bare, other, other_buckets).end : INFINITY;
    const double limit = fmax(least, fmin(least + slack, known)) + rounding;
    *buckets_out = fewest(&s, limit, ends);
    DDP_ASSERT(*buckets_out >= 1);
done:
    close_solver(&s);
    return st;
}

/* Differences below the slack nobody notices. */
static ddp_status best_with(const ddp_cost_step *step, double margin, const int *other,
                            int other_buckets, int *ends, int *buckets_out)
{
    const double least_slack = 20e-6, share = 0.01;
    ddp_cost_curve curve = *step->curve;
    ddp_cost_step slower = *step;

    slower.curve = &curve;
    for (int i = 0; i < curve.count; i++)
        curve.points[i].seconds *= margin;
    const double comm = ddp_cost_cut(&slower, other, other_buckets).comm;
    return ddp_cost_best_cut(&slower, fmax(least_slack, share * comm), other, other_buckets, ends,
                             buckets_out);
}

ddp_status ddp_cost_choose_cut(const ddp_cost_step *step, const int *other, int other_buckets,
                               int *ends, int *buckets_out)
{
    const double margin = 1.25, end = ddp_cost_cut(step, other, other_buckets).end;

    DDP_TRY(best_with(step, margin, other, other_buckets, ends, buckets_out));
    if (ddp_cost_cut(step, ends, *buckets_out).end <= end)
        return DDP_OK;
    DDP_TRY(best_with(step, 1, other, other_buckets, ends, buckets_out));
    if (ddp_cost_cut(step, ends, *buckets_out).end <= end)
        return DDP_OK;
    *buckets_out = other_buckets;
    for (int b = 0; b < other_buckets; b++)
        ends[b] = other[b];
    return DDP_OK;
}
