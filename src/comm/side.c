/* side.c - status records in shared memory.
 *
 * Texts are kept as words of relaxed atomics, so that a reader beside a writer sees at worst a mix
 * of two texts. The cause of a failure is different: it is written once, by the rank that turned
 * the state from free to writing, and is read only after the state has become written. The rest of
 * a record orders nothing. */
#include "comm/side.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/proc.h"
#include "ddp/memory.h"

#define WORD_BYTES  sizeof(uint64_t)
#define TEXT_WORDS  (DDPI_SIDE_TEXT_BYTES / WORD_BYTES)
#define HOST_WORDS  (DDPI_SIDE_HOST_BYTES / WORD_BYTES)
#define CAUSE_WORDS (DDPI_SIDE_CAUSE_BYTES / WORD_BYTES)

enum { CAUSE_FREE, CAUSE_WRITING, CAUSE_WRITTEN };
enum { RANK_ABSENT, RANK_PRESENT, RANK_LEFT };

typedef struct side_head {
    _Alignas(DDP_ALIGN_BYTES) _Atomic int32_t cause_state;
    _Atomic int32_t cause_rank;
    _Atomic uint64_t cause[CAUSE_WORDS];
} side_head;

typedef struct side_record {
    _Alignas(DDP_ALIGN_BYTES) _Atomic int32_t state;
    _Atomic int32_t rank, kind, bucket;
    _Atomic int64_t pid, step, submit_ns;
    _Atomic uint64_t start_time, pid_space, entered, finished;
    _Atomic uint64_t host[HOST_WORDS], phase[TEXT_WORDS], what[TEXT_WORDS];
} side_record;

struct ddpi_side {
    int n, index, rank;
    side_head *head;
    side_record *records, *own;
};

static void text_store(_Atomic uint64_t *words, size_t count, const char *text)
{
    char bytes[DDPI_SIDE_CAUSE_BYTES] = "";
    size_t length = text != NULL ? strnlen(text, count * WORD_BYTES - 1) : 0;

    if (length > 0)
        memcpy(bytes, text, length);
    for (size_t i = 0; i < count; i++) {
        uint64_t word;
        memcpy(&word, bytes + i * WORD_BYTES, WORD_BYTES);
        atomic_store_explicit(&words[i], word, memory_order_relaxed);
    }
}

static void text_load(const _Atomic uint64_t *words, size_t count, char *text)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t word = atomic_load_explicit(&words[i], memory_order_relaxed);
        memcpy(text + i * WORD_BYTES, &word, WORD_BYTES);
    }
    text[count * WORD_BYTES - 1] = '\0';
}

#define STORE(field, value) atomic_store_explicit(&(field), (value), memory_order_relaxed)
#define LOAD(field)         atomic_load_explicit(&(field), memory_order_relaxed)

size_t ddpi_side_bytes(int n)
{
    return sizeof(side_head) + (size_t)n * sizeof(side_record);
}

ddp_status ddpi_side_open(const ddpi_side_opts *opts, ddpi_side **side_out)
{
    ddpi_side *side;
    int64_t pid = getpid();
    ddpi_proc_info proc;

    DDP_TRY(DDP_ALLOC(side, 1));
    side->n = opts->n;
    side->index = opts->index;
    side->rank = opts->rank;
    side->head = opts->memory;
    side->records = (side_record *)(side->head + 1);
    side->own = &side->records[opts->index];
    if (ddpi_proc_read(pid, &proc) == DDPI_PROC_ALIVE)
        STORE(side->own->start_time, proc.start_time);
    STORE(side->own->pid_space, ddpi_proc_space());
    STORE(side->own->pid, pid);
    STORE(side->own->rank, opts->rank);
    STORE(side->own->bucket, -1);
    text_store(side->own->host, HOST_WORDS, opts->host);
    atomic_store_explicit(&side->own->state, RANK_PRESENT, memory_order_release);
    *side_out = side;
    return DDP_OK;
}

void ddpi_side_leave(ddpi_side *side)
{
    atomic_store_explicit(&side->own->state, RANK_LEFT, memory_order_release);
}

void ddpi_side_close(ddpi_side *side, bool left)
{
    if (side == NULL)
        return;
    if (left)
        ddpi_side_leave(side);
    ddp_free(side);
}

int ddpi_side_count(const ddpi_side *side)
{
    return side->n;
}

int ddpi_side_index(const ddpi_side *side)
{
    return side->index;
}

void ddpi_side_note(ddpi_side *side, int64_t step, const char *phase)
{
    STORE(side->own->step, step);
    text_store(side->own->phase, TEXT_WORDS, phase);
}

static void raise_to(_Atomic uint64_t *counter, uint64_t value)
{
    uint64_t now = atomic_load_explicit(counter, memory_order_relaxed);

    while (now < value && !atomic_compare_exchange_weak_explicit(
                              counter, &now, value, memory_order_relaxed, memory_order_relaxed)) {
    }
}

void ddpi_side_entered(ddpi_side *side, const ddp_work *work)
{
    side_record *own = side->own;

    STORE(own->kind, (int32_t)work->coll.kind);
    STORE(own->bucket, work->coll.bucket);
    STORE(own->submit_ns, work->submit_ns);
    text_store(own->what, TEXT_WORDS, work->coll.what);
    raise_to(&own->entered, work->seq + 1);
}

void ddpi_side_finished(ddpi_side *side, const ddp_work *work)
{
    raise_to(&side->own->finished, work->seq + 1);
}

void ddpi_side_view_get(const ddpi_side *side, int index, ddpi_side_view *view_out)
{
    const side_record *record = &side->records[index];
    int32_t state = atomic_load_explicit(&record->state, memory_order_acquire);

    *view_out = (ddpi_side_view){
        .present = state != RANK_ABSENT,
        .left = state == RANK_LEFT,
        .rank = LOAD(record->rank),
        .pid = LOAD(record->pid),
        .start_time = LOAD(record->start_time),
        .pid_space = LOAD(record->pid_space),
        .step = LOAD(record->step),
        .entered = LOAD(record->entered),
        .finished = LOAD(record->finished),
        .kind = LOAD(record->kind),
        .bucket = LOAD(record->bucket),
        .submit_ns = LOAD(record->submit_ns),
    };
    text_load(record->host, HOST_WORDS, view_out->host);
    text_load(record->phase, TEXT_WORDS, view_out->phase);
    text_load(record->what, TEXT_WORDS, view_out->what);
}

bool ddpi_side_claim(ddpi_side *side, const char *cause)
{
    int32_t expected = CAUSE_FREE;

    if (!atomic_compare_exchange_strong(&side->head->cause_state, &expected, CAUSE_WRITING))
        return false;
    STORE(side->head->cause_rank, side->rank);
    text_store(side->head->cause, CAUSE_WORDS, cause);
    atomic_store_explicit(&side->head->cause_state, CAUSE_WRITTEN, memory_order_release);
    return true;
}

bool ddpi_side_claimed(const ddpi_side *side)
{
    return atomic_load_explicit(&side->head->cause_state, memory_order_acquire) != CAUSE_FREE;
}

bool ddpi_side_cause(const ddpi_side *side, char *text, int *rank_out)
{
    if (atomic_load_explicit(&side->head->cause_state, memory_order_acquire) != CAUSE_WRITTEN)
        return false;
    if (text != NULL)
        text_load(side->head->cause, CAUSE_WORDS, text);
    if (rank_out != NULL)
        *rank_out = LOAD(side->head->cause_rank);
    return true;
}

const char *ddpi_side_kind_name(int kind)
{
    static const char *const names[] = {
        [DDP_COLL_BARRIER] = "barrier",     [DDP_COLL_BROADCAST] = "broadcast",
        [DDP_COLL_REDUCE] = "reduce",       [DDP_COLL_ALLREDUCE] = "allreduce",
        [DDP_COLL_PUBLISH] = "publish",     [DDP_COLL_REDUCE_OWNED] = "reduce_owned",
        [DDP_COLL_ALLGATHER] = "allgather", [DDP_COLL_PING] = "ping",
    };

    return (size_t)kind < sizeof names / sizeof *names ? names[kind] : "work";
}

char *ddpi_side_work_format(int kind, uint64_t seq, const char *what, int bucket, char *text,
                            size_t text_bytes)
{
    int used =
        snprintf(text, text_bytes, "%s %llu", ddpi_side_kind_name(kind), (unsigned long long)seq);
    size_t at = used > 0 && (size_t)used < text_bytes ? (size_t)used : 0;
    bool named = what != NULL && what[0] != '\0';

    if (named && bucket >= 0)
        snprintf(text + at, text_bytes - at, " (%s, bucket %d)", what, bucket);
    else if (named)
        snprintf(text + at, text_bytes - at, " (%s)", what);
    return text;
}
