/* spans.c - rings of spans, one per thread. See spans.h.
 *
 * A ring has one writer. It fills the entry of number `next`, then counts next up; a reader copies
 * entries below next and looks at next again: what may have been overwritten meanwhile it drops.
 * Words of an entry are stored with release and loaded with acquire, so that a reader that has seen
 * a word of a later span also sees how far the writer had come before it. No locks in there; the
 * mutex only guards who has which ring. Rings stay until the end, so readers need no care. */
#include "ddp/spans.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "ddp/memory.h"
#include "ddp/thread.h"

enum { MAX_TRACKS = 320, NAME_BYTES = 24 };

typedef struct entry {
    _Atomic int64_t begin_ns, end_ns, what, step, bytes; /* what: kind and id */
} entry;

typedef struct ring {
    char name[NAME_BYTES];
    bool taken; /* by a thread; under the mutex */
    size_t capacity;
    entry *entries;
    _Atomic uint64_t next;
    ddp_spans *owner;
} ring;

struct ddp_spans {
    pthread_mutex_t mutex;
    ring *rings[MAX_TRACKS]; /* under the mutex */
    int count;               /* the same */
    _Atomic int64_t step;
};

static _Thread_local ring *own;

static const char *const names[DDP_SPAN_KINDS] = {
    [DDP_SPAN_STEP] = "step",
    [DDP_SPAN_DATA] = "data",
    [DDP_SPAN_FORWARD] = "forward",
    [DDP_SPAN_BACKWARD] = "backward",
    [DDP_SPAN_LAYER_FORWARD] = "layer forward",
    [DDP_SPAN_LAYER_BACKWARD] = "layer backward",
    [DDP_SPAN_BUCKET] = "bucket",
    [DDP_SPAN_PUBLISH] = "publish",
    [DDP_SPAN_WAIT] = "wait",
    [DDP_SPAN_OPTIM] = "optimizer",
    [DDP_SPAN_CONTROL] = "control word",
    [DDP_SPAN_EVAL] = "evaluation",
    [DDP_SPAN_CHECKPOINT] = "checkpoint",
    [DDP_SPAN_WRITE] = "checkpoint write",
    [DDP_SPAN_LOAD] = "load",
};

const char *ddp_span_kind_name(ddp_span_kind kind)
{
    const unsigned plain = (unsigned)kind & ~(unsigned)DDP_SPAN_ON_STREAM;

    return plain < DDP_SPAN_KINDS ? names[plain] : "unknown";
}

/* ---- life ---- */

ddp_status ddp_spans_create(ddp_spans **spans_out)
{
    ddp_spans *spans;

    DDP_TRY(DDP_ALLOC(spans, 1));
    int error = pthread_mutex_init(&spans->mutex, NULL);
    if (error != 0) {
        ddp_free(spans);
        return DDP_FAIL(DDP_ERR_NOMEM, "make a mutex: %s", strerror(error));
    }
    *spans_out = spans;
    return DDP_OK;
}

static void ring_free(ring *r)
{
    if (r != NULL)
        ddp_free(r->entries);
    ddp_free(r);
}

void ddp_spans_destroy(ddp_spans *spans)
{
    if (spans == NULL)
        return;
    for (int i = 0; i < spans->count; i++)
        ring_free(spans->rings[i]);
    DDP_ASSERT(pthread_mutex_destroy(&spans->mutex) == 0);
    ddp_free(spans);
}

/* Memory that has not been written to would cost the first steps a page fault now and then. */
static ring *ring_make(ddp_spans *owner, const char *name, size_t capacity)
{
    ring *r;

    if (DDP_ALLOC(r, 1) != DDP_OK)
        return NULL;
    if (DDP_ALLOC(r->entries, capacity) != DDP_OK) {
        ring_free(r);
        return NULL;
    }
    for (size_t i = 0; i < capacity; i++)
        atomic_store_explicit(&r->entries[i].what, 0, memory_order_relaxed);
    snprintf(r->name, sizeof r->name, "%s", name);
    r->capacity = capacity;
    r->owner = owner;
    return r;
}

/* The caller holds the mutex. */
static ring *find_free(const ddp_spans *spans, const char *name, size_t capacity)
{
    for (int i = 0; i < spans->count; i++) {
        ring *r = spans->rings[i];
        if (!r->taken && r->capacity == capacity && strcmp(r->name, name) == 0)
            return r;
    }
    return NULL;
}

void ddp_spans_join(const char *name, size_t capacity)
{
    ddp_spans *spans = ddp_rank_ctx_get()->spans;

    if (spans == NULL || own != NULL)
        return;
    DDP_ASSERT(capacity > 0 && strlen(name) < NAME_BYTES);
    DDP_ASSERT(pthread_mutex_lock(&spans->mutex) == 0);
    ring *r = find_free(spans, name, capacity);
    if (r == NULL && spans->count < MAX_TRACKS) {
        r = ring_make(spans, name, capacity);
        if (r != NULL)
            spans->rings[spans->count++] = r;
    }
    if (r != NULL)
        r->taken = true;
    DDP_ASSERT(pthread_mutex_unlock(&spans->mutex) == 0);
    own = r;
}

void ddp_spans_leave(void)
{
    ring *r = own;

    own = NULL;
    if (r == NULL)
        return;
    DDP_ASSERT(pthread_mutex_lock(&r->owner->mutex) == 0);
    r->taken = false;
    DDP_ASSERT(pthread_mutex_unlock(&r->owner->mutex) == 0);
}

bool ddp_spans_joined(void)
{
    return own != NULL;
}

/* ---- writing ---- */

void ddp_spans_set_step(int64_t step)
{
    ddp_spans *spans = ddp_rank_ctx_get()->spans;

    if (spans != NULL)
        atomic_store_explicit(&spans->step, step, memory_order_relaxed);
}

static void put(_Atomic int64_t *word, int64_t value)
{
    atomic_store_explicit(word, value, memory_order_release);
}

void ddp_spans_add(ddp_span_kind kind, int32_t id, int64_t step, int64_t begin_ns, int64_t end_ns,
                   int64_t bytes)
{
    ring *r = own;

    if (r == NULL)
        return;
    const uint64_t next = atomic_load_explicit(&r->next, memory_order_relaxed);
    entry *e = &r->entries[next % r->capacity];
    if (step < 0)
        step = atomic_load_explicit(&r->owner->step, memory_order_relaxed);
    put(&e->begin_ns, begin_ns);
    put(&e->end_ns, end_ns);
    put(&e->what, (int64_t)kind << 32 | (int64_t)(uint32_t)id);
    put(&e->step, step);
    put(&e->bytes, bytes);
    atomic_store_explicit(&r->next, next + 1, memory_order_release);
}

int64_t ddp_spans_end(ddp_span_kind kind, int32_t id, int64_t begin_ns)
{
    const int64_t now_ns = ddp_now_ns();

    ddp_spans_add(kind, id, -1, begin_ns, now_ns, 0);
    return now_ns - begin_ns;
}

/* ---- reading ---- */

static int64_t get(_Atomic int64_t *word)
{
    return atomic_load_explicit(word, memory_order_acquire);
}

static ddp_span read_entry(entry *e)
{
    const int64_t what = get(&e->what);

    return (ddp_span){.begin_ns = get(&e->begin_ns),
                      .end_ns = get(&e->end_ns),
                      .kind = (int32_t)(what >> 32),
                      .id = (int32_t)(uint32_t)what,
                      .step = get(&e->step),
                      .bytes = get(&e->bytes)};
}

static ring *ring_at(ddp_spans *spans, int track)
{
    DDP_ASSERT(pthread_mutex_lock(&spans->mutex) == 0);
    DDP_ASSERT(track >= 0 && track < spans->count);
    ring *r = spans->rings[track];
    DDP_ASSERT(pthread_mutex_unlock(&spans->mutex) == 0);
    return r;
}

int ddp_spans_tracks(ddp_spans *spans)
{
    DDP_ASSERT(pthread_mutex_lock(&spans->mutex) == 0);
    const int count = spans->count;
    DDP_ASSERT(pthread_mutex_unlock(&spans->mutex) == 0);
    return count;
}

const char *ddp_spans_track_name(ddp_spans *spans, int track)
{
    return ring_at(spans, track)->name;
}

/* From the newest to the oldest; then turned round, without those that were not whole. */
size_t ddp_spans_read(ddp_spans *spans, int track, int64_t from_ns, ddp_span *spans_out,
                      size_t capacity)
{
    ring *r = ring_at(spans, track);
    const uint64_t end = atomic_load_explicit(&r->next, memory_order_acquire);
    uint64_t first = end;
    size_t count = 0;

    while (first > 0 && end - first < r->capacity && count < capacity) {
        const ddp_span span = read_entry(&r->entries[(first - 1) % r->capacity]);
        /* The entry that the writer may be in now is the one of number `now` as well. */
        const uint64_t now = atomic_load_explicit(&r->next, memory_order_acquire);
        if (now >= first - 1 + r->capacity)
            break;
        first--;
        if (span.end_ns > from_ns)
            spans_out[count++] = span;
    }
    for (size_t i = 0; i < count / 2; i++) {
        const ddp_span span = spans_out[i];
        spans_out[i] = spans_out[count - 1 - i];
        spans_out[count - 1 - i] = span;
    }
    return count;
}
