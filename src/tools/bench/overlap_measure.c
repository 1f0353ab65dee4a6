/* overlap_measure.c - from spans to what was hidden. Pure arithmetic on sets of intervals. */
#include <math.h>
#include <stdlib.h>

#include "ddp/memory.h"
#include "tools/bench/overlap.h"

/* ---- sets of intervals ---- */

typedef struct interval {
    double lo, hi;
} interval;

/* Sorted and apart from each other, once normalised. */
typedef struct set {
    interval *items;
    int count;
} set;

static int by_lo(const void *a, const void *b)
{
    const interval *x = a, *y = b;

    return (x->lo > y->lo) - (x->lo < y->lo);
}

static void normalise(set *s)
{
    int kept = 0;

    qsort(s->items, (size_t)s->count, sizeof *s->items, by_lo);
    for (int i = 0; i < s->count; i++) {
        if (kept > 0 && s->items[i].lo <= s->items[kept - 1].hi)
            s->items[kept - 1].hi = fmax(s->items[kept - 1].hi, s->items[i].hi);
        else
            s->items[kept++] = s->items[i];
    }
    s->count = kept;
}

static double length_of(const set *s)
{
    double sum = 0;

    for (int i = 0; i < s->count; i++)
        sum += s->items[i].hi - s->items[i].lo;
    return sum;
}

static double common(const set *a, const set *b)
{
    double sum = 0;

    for (int i = 0, j = 0; i < a->count && j < b->count;) {
        double lo = fmax(a->items[i].lo, b->items[j].lo);
        double hi = fmin(a->items[i].hi, b->items[j].hi);
        sum += fmax(0, hi - lo);
        if (a->items[i].hi < b->items[j].hi)
            i++;
        else
            j++;
    }
    return sum;
}

/* ---- one step of one rank ---- */

typedef struct part {
    const ddpi_overlap_span *spans;
    int count;
    set backward, waits, updates; /* of the main thread */
    set one;                      /* room for a bucket's */
} part;

typedef struct part_times {
    double step, backward, comm, exposed;
} part_times;

/* The spans that may be bucket's (id < 0: of all buckets). */
static void collect(const part *p, ddp_span_kind kind, int id, set *s)
{
    s->count = 0;
    for (int i = 0; i < p->count; i++) {
        const ddpi_overlap_span *span = &p->spans[i];
        bool wanted = span->kind == kind && (id < 0 ? span->id >= 0 : span->id == id);
        if (wanted && (span->main || kind == DDP_SPAN_BUCKET || kind == DDP_SPAN_PUBLISH))
            s->items[s->count++] = (interval){span->begin, span->end};
    }
    normalise(s);
}

/* The time of a set of waits, without the updates that were done in between. */
static double waited(const part *p, const set *waits)
{
    return length_of(waits) - common(waits, &p->updates);
}

static double computed_meanwhile(const part *p, const set *s)
{
    double waits_in_both = 0;
    set both = {.items = (interval[1]){{0, 0}}, .count = 1};

    for (int i = 0; i < p->backward.count; i++)
        for (int j = 0; j < s->count; j++) {
            both.items[0] = (interval){fmax(p->backward.items[i].lo, s->items[j].lo),
                                       fmin(p->backward.items[i].hi, s->items[j].hi)};
            if (both.items[0].hi > both.items[0].lo)
                waits_in_both += common(&both, &p->waits);
        }
    return common(&p->backward, s) - waits_in_both;
}

static ddpi_overlap_bucket look_at_bucket(part *p, int id)
{
    ddpi_overlap_bucket b = {.ready = NAN};
    const double origin = p->backward.items[0].lo;

    collect(p, DDP_SPAN_WAIT, id, &p->one);
    b.waited = waited(p, &p->one);
    if (p->one.count > 0)
        b.ready = p->one.items[0].lo - origin;
    collect(p, DDP_SPAN_BUCKET, id, &p->one);
    if (p->one.count > 0) {
        b.start = p->one.items[0].lo - origin;
        b.end = p->one.items[p->one.count - 1].hi - origin;
        b.took = length_of(&p->one);
        b.hidden = computed_meanwhile(p, &p->one);
    }
    if (!(b.ready < b.start))
        b.ready = b.start;
    for (int i = 0; i < p->count; i++)
        if (p->spans[i].kind == DDP_SPAN_BUCKET && p->spans[i].id == id)
            b.bytes += p->spans[i].bytes;
    return b;
}

static part_times look_at_part(part *p)
{
    part_times t = {0};

    for (int i = 0; i < p->count; i++) {
        const ddpi_overlap_span *span = &p->spans[i];
        if (span->kind == DDP_SPAN_STEP && span->main)
            t.step += span->end - span->begin;
        if (span->kind == DDP_SPAN_BUCKET || span->kind == DDP_SPAN_PUBLISH)
            t.comm += span->end - span->begin;
    }
    t.backward = length_of(&p->backward);
    t.exposed = waited(p, &p->waits);
    return t;
}

/* ---- all of them ---- */

static int by_step_and_rank(const void *a, const void *b)
{
    const ddpi_overlap_span *x = a, *y = b;

    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

typedef struct step_times {
    int64_t step;
    double duration, backward, comm, exposed_mean, exposed;
} step_times;

typedef struct work {
    const ddpi_overlap_trace *trace;
    ddpi_overlap *result;
    part part;
    step_times *steps;         /* [result->steps] */
    ddpi_overlap_bucket *seen; /* [parts][bucket_count] */
    int parts;
    double *values;
} work;

static int run_end(const ddpi_overlap_trace *t, int from, bool ranks)
{
    int i = from;

    while (i < t->count && t->spans[i].step == t->spans[from].step &&
           (!ranks || t->spans[i].rank == t->spans[from].rank))
        i++;
    return i;
}

/* A step counts if every rank has its backward and all buckets in it. */
static bool is_complete(const work *w, int from, int to)
{
    int backwards = 0, buckets = 0, last = -1, ranks = 0;

    for (int i = from; i < to; i++) {
        const ddpi_overlap_span *span = &w->trace->spans[i];
        if (span->kind == DDP_SPAN_BACKWARD && span->main && span->id >= 0 && span->rank != last) {
            backwards++;
            last = span->rank;
        }
        buckets += span->kind == DDP_SPAN_BUCKET && span->id == w->result->bucket_count - 1;
        ranks += span->kind == DDP_SPAN_STEP && span->main;
    }
    return backwards == w->result->ranks && buckets >= w->result->ranks &&
           ranks == w->result->ranks;
}

static void add_step(work *w, int from, int to)
{
    const int ranks = w->result->ranks, buckets = w->result->bucket_count;
    step_times s = {.step = w->trace->spans[from].step, .exposed = INFINITY};

    for (int at = from; at < to; at = run_end(w->trace, at, true)) {
        part *p = &w->part;
        p->spans = w->trace->spans + at;
        p->count = run_end(w->trace, at, true) - at;
        collect(p, DDP_SPAN_BACKWARD, -1, &p->backward);
        collect(p, DDP_SPAN_WAIT, -1, &p->waits);
        collect(p, DDP_SPAN_OPTIM, -1, &p->updates);
        part_times t = look_at_part(p);
        s.duration += t.step / ranks;
        s.backward += t.backward / ranks;
        s.comm += t.comm / ranks;
        s.exposed_mean += t.exposed / ranks;
        s.exposed = fmin(s.exposed, t.exposed);
        for (int b = 0; b < buckets; b++)
            w->seen[(size_t)w->parts * (size_t)buckets + (size_t)b] = look_at_bucket(p, b);
        w->parts++;
    }
    w->steps[w->result->steps++] = s;
}

/* The median of a field, which lies so far from the beginning of each item. */
static double median_of(work *w, const void *items, int count, size_t item_bytes, size_t offset)
{
    for (int i = 0; i < count; i++)
        w->values[i] =
            *(const double *)(const void *)((const char *)items + (size_t)i * item_bytes + offset);
    return ddpi_bench_measure(w->values, count).median;
}

static void conclude(work *w)
{
    ddpi_overlap *r = w->result;
    const size_t step_bytes = sizeof *w->steps;
    const size_t stride = (size_t)r->bucket_count * sizeof *w->seen;

    r->step = median_of(w, w->steps, r->steps, step_bytes, offsetof(step_times, duration));
    r->backward = median_of(w, w->steps, r->steps, step_bytes, offsetof(step_times, backward));
    r->comm = median_of(w, w->steps, r->steps, step_bytes, offsetof(step_times, comm));
    r->exposed = median_of(w, w->steps, r->steps, step_bytes, offsetof(step_times, exposed));
    r->exposed_mean =
        median_of(w, w->steps, r->steps, step_bytes, offsetof(step_times, exposed_mean));
    for (int b = 0; b < r->bucket_count; b++) {
        double *const fields = &r->buckets[b].bytes;
        for (size_t f = 0; f < sizeof *r->buckets / sizeof *fields; f++)
            fields[f] = median_of(w, w->seen + b, w->parts, stride, f * sizeof *fields);
    }
    double best = INFINITY;
    for (int i = 0; i < r->steps; i++)
        if (fabs(w->steps[i].duration - r->step) < best) {
            best = fabs(w->steps[i].duration - r->step);
            r->median_step = w->steps[i].step;
        }
}

static ddp_status allocate(work *w)
{
    const size_t all = (size_t)w->trace->count + 1;
    size_t parts = 0;
    ddpi_overlap *r = w->result;

    for (int at = 0; at < w->trace->count; at = run_end(w->trace, at, true))
        parts++;

    DDP_TRY(DDP_ALLOC(w->part.backward.items, all));
    DDP_TRY(DDP_ALLOC(w->part.waits.items, all));
    DDP_TRY(DDP_ALLOC(w->part.updates.items, all));
    DDP_TRY(DDP_ALLOC(w->part.one.items, all));
    DDP_TRY(DDP_ALLOC(w->values, all));
    DDP_TRY(DDP_ALLOC(w->steps, all));
    DDP_TRY(DDP_ALLOC(w->seen, parts * (size_t)r->bucket_count));
    return DDP_ALLOC(r->buckets, (size_t)r->bucket_count);
}

static ddp_status measure(work *w, int64_t from_step)
{
    const ddpi_overlap_trace *t = w->trace;

    for (int i = 0; i < t->count; i++) {
        const ddpi_overlap_span *span = &t->spans[i];
        w->result->ranks = span->rank >= w->result->ranks ? span->rank + 1 : w->result->ranks;
        if (span->kind == DDP_SPAN_BUCKET && span->id >= w->result->bucket_count)
            w->result->bucket_count = span->id + 1;
    }
    if (w->result->bucket_count == 0)
        return DDP_FAIL(
            DDP_ERR_FORMAT,
            "the trace has no spans of buckets by number; with --strategy naive there are none");
    if (w->result->bucket_count > t->count)
        return DDP_FAIL(DDP_ERR_FORMAT, "the trace has a bucket %d, but %d spans in all",
                        w->result->bucket_count - 1, t->count);
    DDP_TRY(allocate(w));
    for (int at = 0; at < t->count; at = run_end(t, at, false)) {
        int end = run_end(t, at, false);
        if (t->spans[at].step >= from_step && t->spans[at].step > 0 && is_complete(w, at, end))
            add_step(w, at, end);
    }
    if (w->result->steps == 0)
        return DDP_FAIL(DDP_ERR_FORMAT, "the trace has no complete step from step %lld on",
                        (long long)from_step);
    conclude(w);
    return DDP_OK;
}

ddp_status ddpi_overlap_measure(ddpi_overlap_trace *trace, int64_t from, ddpi_overlap *overlap_out)
{
    ddpi_overlap result = {0};
    work w = {.trace = trace, .result = &result};

    if (trace->count > 0)
        qsort(trace->spans, (size_t)trace->count, sizeof *trace->spans, by_step_and_rank);
    ddp_status st = measure(&w, from);
    ddp_free(w.part.backward.items);
    ddp_free(w.part.waits.items);
    ddp_free(w.part.updates.items);
    ddp_free(w.part.one.items);
    ddp_free(w.values);
    ddp_free(w.steps);
    ddp_free(w.seen);
    if (st == DDP_OK)
        *overlap_out = result;
    else
        ddpi_overlap_free(&result);
    return st;
}

void ddpi_overlap_free(ddpi_overlap *overlap)
{
    ddp_free(overlap->buckets);
    overlap->buckets = NULL;
}

double ddpi_overlap_allowed(const ddpi_overlap *o)
{
    return fmax(0, o->comm - o->backward) + 0.1 * o->comm;
}

double ddpi_overlap_share(const ddpi_overlap *o)
{
    double fits = fmin(o->comm, o->backward);

    return fits > 0 ? fmin(1, fmax(0, (o->comm - o->exposed) / fits)) : 1;
}
