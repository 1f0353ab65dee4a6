/* timeline_write.c - gathers all ranks' spans to rank 0, which writes them. See timeline.h.
 *
 * A rank packs what it has into one piece of memory: its host, then each track's name and spans,
 * with times in rank 0's clock. The pieces go round by broadcast, one rank after the other, so that
 * rank 0 needs memory for one of them at a time, however many ranks there are. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "ddp/fs.h"
#include "ddp/log.h"
#include "ddp/memory.h"
#include "ddp/thread.h"
#include "ddp/trace_file.h"
#include "train/timeline_impl.h"

enum { HOST_BYTES = 64, NAME_BYTES = 24 };

typedef struct piece_head {
    char host[HOST_BYTES];
    int64_t tracks;
} piece_head;

typedef struct track_head {
    char name[NAME_BYTES];
    int64_t spans; /* that follow it */
} track_head;

/* What the ranks tell each other first. */
typedef struct piece_size {
    int64_t bytes, first_ns;
} piece_size;

typedef struct piece {
    char *memory;
    size_t used, capacity;
    int64_t first_ns; /* the earliest begin */
} piece;

/* ---- this rank's ---- */

static void pack(piece *p, const void *what, size_t bytes)
{
    DDP_ASSERT(p->used + bytes <= p->capacity);
    memcpy(p->memory + p->used, what, bytes);
    p->used += bytes;
}

/* When the first of the last `steps` steps began, as far as the ring goes back. */
static int64_t find_begin(const ddp_span *spans, size_t count, int64_t steps)
{
    int64_t last = 0, begin_ns = INT64_MIN;
    for (size_t i = 0; i < count; i++)
        if (spans[i].kind == DDP_SPAN_STEP && spans[i].step > last)
            last = spans[i].step;
    for (size_t i = 0; i < count && begin_ns == INT64_MIN; i++)
        if (spans[i].kind == DDP_SPAN_STEP && spans[i].step > last - steps)
            begin_ns = spans[i].begin_ns;
    return begin_ns;
}

/* Evaluations and the like may have come after the last step. */
static void pack_track(const ddp_timeline *t, const ddp_clock_look looks[2], int index,
                       int64_t from_ns, piece *p)
{
    track_head head = {.spans = 0};
    const size_t at = p->used, room = p->capacity - at - sizeof head;
    ddp_span *spans = (ddp_span *)(void *)(p->memory + at + sizeof head);
    head.spans =
        (int64_t)ddp_spans_read(t->parts.spans, index, from_ns, spans, room / sizeof *spans);
    snprintf(head.name, sizeof head.name, "%s", ddp_spans_track_name(t->parts.spans, index));
    pack(p, &head, sizeof head);
    for (int64_t i = 0; i < head.spans; i++) {
        spans[i].begin_ns = ddp_clocks_translate(looks, spans[i].begin_ns);
        spans[i].end_ns = ddp_clocks_translate(looks, spans[i].end_ns);
        if (spans[i].begin_ns < p->first_ns)
            p->first_ns = spans[i].begin_ns;
    }
    p->used += (size_t)head.spans * sizeof *spans;
}

static ddp_status pack_all(const ddp_timeline *t, const ddp_clock_look looks[2], int64_t steps,
                           piece *p)
{
    piece_head head = {.tracks = ddp_spans_tracks(t->parts.spans)};
    /* Workers' rings are small; a few hundred tracks of them are no more than the main one. */
    const size_t spans = DDP_SPANS_MAIN + (size_t)head.tracks * DDP_SPANS_WORKER;
    p->capacity = sizeof head + (size_t)head.tracks * sizeof(track_head) + spans * sizeof(ddp_span);
    DDP_TRY(ddp_alloc_bytes(1, p->capacity, (void **)&p->memory));
    const size_t count =
        ddp_spans_read(t->parts.spans, 0, INT64_MIN, (ddp_span *)(void *)p->memory, DDP_SPANS_MAIN);
    const int64_t from_ns = find_begin((const ddp_span *)(const void *)p->memory, count, steps);
    snprintf(head.host, sizeof head.host, "%s", ddp_comm_host(t->parts.comm));
    pack(p, &head, sizeof head);
    for (int i = 0; i < head.tracks; i++)
        pack_track(t, looks, i, from_ns, p);
    return DDP_OK;
}

/* ---- rank 0's file ---- */

static void write_piece(ddp_trace_file *file, int rank, char *memory)
{
    const piece_head *h = (const piece_head *)(const void *)memory;
    char *at = memory + sizeof *h;
    ddp_trace_rank(file, rank, h->host);
    for (int64_t i = 0; i < h->tracks; i++) {
        const track_head *next = (const track_head *)(const void *)at;
        at += sizeof *next;
        ddp_trace_track(file, (int)i, next->name, (ddp_span *)(void *)at, (size_t)next->spans);
        at += (size_t)next->spans * sizeof(ddp_span);
    }
}

/* Every rank's piece comes by; file: rank 0's, or NULL. */
static ddp_status pass_pieces(const ddp_timeline *t, const piece_size *sizes, const piece *mine,
                              char *memory, ddp_trace_file *file)
{
    ddp_comm *comm = t->parts.comm;
    for (int r = 0; r < ddp_comm_world(comm); r++) {
        if (r == ddp_comm_rank(comm))
            memcpy(memory, mine->memory, mine->used);
        DDP_TRY(ddp_comm_broadcast(comm, r, memory, (size_t)sizes[r].bytes));
        if (file != NULL)
            write_piece(file, r, memory);
    }
    return DDP_OK;
}

/* The origin is the earliest begin of all. */
static ddp_status open_file(const ddp_timeline *t, const char *path, const piece_size *sizes,
                            ddp_trace_file **file_out)
{
    ddp_trace_opts opts = {
        .origin_ns = INT64_MAX, .layers = t->layers, .layer_count = t->layer_count};
    for (int r = 0; r < ddp_comm_world(t->parts.comm); r++)
        if (sizes[r].first_ns < opts.origin_ns)
            opts.origin_ns = sizes[r].first_ns;
    return ddp_trace_open(&opts, path, file_out);
}

static void tell(ddp_status st, const char *path)
{
    if (st == DDP_OK)
        ddp_info("timeline: %s", path);
    else
        ddp_warn("no timeline: %s", ddp_status_message());
}

static ddp_status write_all(const ddp_timeline *t, const char *name, const piece_size *sizes,
                            const piece *mine, char *memory)
{
    char path[PATH_MAX] = "";
    ddp_trace_file *file = NULL;
    ddp_status written = DDP_OK;
    const bool writes = ddp_comm_rank(t->parts.comm) == 0;
    if (writes) {
        written = ddp_fs_join(path, sizeof path, t->parts.dir, name);
        if (written == DDP_OK)
            written = open_file(t, path, sizes, &file);
        if (written != DDP_OK)
            tell(written, path);
    }
    const ddp_status st = pass_pieces(t, sizes, mine, memory, file);
    if (st != DDP_OK) {
        ddp_trace_abandon(file);
        return st;
    }
    if (file != NULL)
        tell(ddp_trace_close(file), path);
    return DDP_OK;
}

/* ---- all together ---- */

static ddp_status exchange(const ddp_timeline *t, const char *name, const piece *mine)
{
    ddp_comm *comm = t->parts.comm;
    const piece_size own = {.bytes = (int64_t)mine->used, .first_ns = mine->first_ns};
    piece_size *sizes = NULL;
    char *memory = NULL;
    size_t most = 0;
    ddp_status st = DDP_ALLOC(sizes, (size_t)ddp_comm_world(comm));
    st = ddp_comm_agree(comm, st, "gather a timeline");
    if (st == DDP_OK)
        st = ddp_comm_allgather(comm, &own, sizeof own, sizes);
    for (int r = 0; st == DDP_OK && r < ddp_comm_world(comm); r++)
        most = (size_t)sizes[r].bytes > most ? (size_t)sizes[r].bytes : most;
    if (st == DDP_OK)
        st = ddp_comm_agree(comm, ddp_alloc_bytes(1, most, (void **)&memory), "gather a timeline");
    if (st == DDP_OK)
        st = write_all(t, name, sizes, mine, memory);
    ddp_free(memory);
    ddp_free(sizes);
    return st;
}

ddp_status ddpi_timeline_write(ddp_timeline *t, const char *name, int64_t steps)
{
    ddp_clock_look looks[2] = {t->started};
    piece mine = {.first_ns = INT64_MAX};
    DDP_TRY(ddp_clocks_look(t->parts.comm, &looks[1]));
    ddp_status st = pack_all(t, looks, steps, &mine);
    st = ddp_comm_agree(t->parts.comm, st, "gather a timeline");
    if (st == DDP_OK)
        st = exchange(t, name, &mine);
    ddp_free(mine.memory);
    return st;
}
