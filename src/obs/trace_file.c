/* trace_file.c - the Trace Event Format. See trace_file.h.
 *
 * Nanoseconds are written as microseconds with three decimals, so that nothing is rounded and what
 * nests still nests for the reader. Errors of writing show when the file is closed. */
#include "ddp/trace_file.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ddp/fs.h"
#include "ddp/memory.h"

enum { STREAM_TRACK = 999, FIRST_LANE = 1000, MAX_LANES = 64, NAME_BYTES = 128 };

struct ddp_trace_file {
    ddp_trace_opts opts;
    FILE *stream;
    char path[PATH_MAX], beside[PATH_MAX];
    bool comma; /* an event was written */
    int rank;
    int lanes; /* of the rank */
};

/* ---- life ---- */

ddp_status ddp_trace_open(const ddp_trace_opts *opts, const char *path, ddp_trace_file **file_out)
{
    ddp_trace_file *f;

    DDP_TRY(DDP_ALLOC(f, 1));
    f->opts = *opts;
    const int bytes = snprintf(f->beside, sizeof f->beside, "%s.tmp", path);
    if (bytes < 0 || (size_t)bytes >= sizeof f->beside) {
        ddp_free(f);
        return DDP_FAIL(DDP_ERR_IO, "the timeline's path is too long");
    }
    snprintf(f->path, sizeof f->path, "%s", path);
    f->stream = fopen(f->beside, "we");
    if (f->stream == NULL) {
        ddp_status st = DDP_FAIL(DDP_ERR_IO, "create %s: %s", f->beside, strerror(errno));
        ddp_free(f);
        return st;
    }
    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[", f->stream);
    *file_out = f;
    return DDP_OK;
}

void ddp_trace_abandon(ddp_trace_file *f)
{
    if (f == NULL)
        return;
    fclose(f->stream);
    unlink(f->beside);
    ddp_free(f);
}

ddp_status ddp_trace_close(ddp_trace_file *f)
{
    errno = 0;
    fputs("\n]}\n", f->stream);
    const bool good = fflush(f->stream) == 0 && ferror(f->stream) == 0;
    ddp_status st = good ? ddp_fs_sync(fileno(f->stream), f->beside)
                         : DDP_FAIL(DDP_ERR_IO, "write %s: %s", f->beside,
                                    errno != 0 ? strerror(errno) : "not all was taken");
    if (st == DDP_OK)
        st = ddp_fs_rename(f->beside, f->path);
    if (st != DDP_OK) {
        ddp_trace_abandon(f);
        return st;
    }
    fclose(f->stream);
    ddp_free(f);
    return DDP_OK;
}

/* ---- events ---- */

/* Names of hosts and layers are theirs to choose. */
static void put_text(FILE *stream, const char *text)
{
    fputc('"', stream);
    for (; *text != 0; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', stream);
        fputc((unsigned char)*text < ' ' || *text == 0x7f ? '?' : *text, stream);
    }
    fputc('"', stream);
}

static void next_event(ddp_trace_file *f)
{
    fputs(f->comma ? ",\n" : "\n", f->stream);
    f->comma = true;
}

static void put_name(ddp_trace_file *f, const char *what, int track, const char *name)
{
    next_event(f);
    fprintf(f->stream,
            "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":", what,
            f->rank, track);
    put_text(f->stream, name);
    fputs("}}", f->stream);
}

static void put_index(ddp_trace_file *f, const char *what, int track, int index)
{
    next_event(f);
    fprintf(f->stream,
            "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"args\":{\"sort_index\":%d}}",
            what, f->rank, track, index);
}

static void put_track(ddp_trace_file *f, int track, const char *name, int index)
{
    put_name(f, "thread_name", track, name);
    put_index(f, "thread_sort_index", track, index);
}

static void put_us(FILE *stream, const char *key, int64_t ns)
{
    fprintf(stream, ",\"%s\":%" PRId64 ".%03d", key, ns / 1000, (int)(ns % 1000));
}

static const char *name_of(const ddp_trace_file *f, const ddp_span *span, char text[NAME_BYTES])
{
    const ddp_span_kind kind = (ddp_span_kind)(span->kind & ~DDP_SPAN_ON_STREAM);
    const bool numbered = kind == DDP_SPAN_BUCKET || kind == DDP_SPAN_PUBLISH ||
                          ((kind == DDP_SPAN_WAIT || kind == DDP_SPAN_OPTIM) && span->id >= 0);
    const bool layer = kind == DDP_SPAN_LAYER_FORWARD || kind == DDP_SPAN_LAYER_BACKWARD;

    if (layer && span->id >= 0 && span->id < f->opts.layer_count)
        snprintf(text, NAME_BYTES, "%s", f->opts.layers[span->id]);
    else if (layer)
        snprintf(text, NAME_BYTES, "layer %d", span->id);
    else if (numbered && span->id >= 0)
        snprintf(text, NAME_BYTES, "%s %d", ddp_span_kind_name(kind), span->id);
    else if (kind == DDP_SPAN_STEP)
        snprintf(text, NAME_BYTES, "step %" PRId64, span->step);
    else
        snprintf(text, NAME_BYTES, "%s", ddp_span_kind_name(kind));
    return text;
}

static void put_span(ddp_trace_file *f, int track, const ddp_span *span)
{
    char text[NAME_BYTES];

    next_event(f);
    fputs("{\"ph\":\"X\",\"name\":", f->stream);
    put_text(f->stream, name_of(f, span, text));
    fprintf(f->stream, ",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d",
            ddp_span_kind_name((ddp_span_kind)span->kind), f->rank, track);
    put_us(f->stream, "ts", span->begin_ns - f->opts.origin_ns);
    put_us(f->stream, "dur", span->end_ns - span->begin_ns);
    fprintf(f->stream, ",\"args\":{\"step\":%" PRId64 ",\"id\":%d", span->step, span->id);
    if (span->bytes > 0)
        fprintf(f->stream, ",\"bytes\":%" PRId64, span->bytes);
    fputs("}}", f->stream);
}

/* ---- tracks ---- */

void ddp_trace_rank(ddp_trace_file *f, int rank, const char *host)
{
    char name[NAME_BYTES];

    f->rank = rank;
    f->lanes = 0;
    snprintf(name, sizeof name, "rank %d on %s", rank, host);
    put_name(f, "process_name", 0, name);
    put_index(f, "process_sort_index", 0, rank);
}

/* What contains another comes before it. */
static int by_begin(const void *a, const void *b)
{
    const ddp_span *x = a, *y = b;

    if (x->begin_ns != y->begin_ns)
        return x->begin_ns < y->begin_ns ? -1 : 1;
    return (x->end_ns < y->end_ns) - (x->end_ns > y->end_ns);
}

static bool travels(const ddp_span *span)
{
    return span->kind == DDP_SPAN_BUCKET || span->kind == DDP_SPAN_PUBLISH;
}

static void put_lane(ddp_trace_file *f, int lane)
{
    char name[NAME_BYTES];

    snprintf(name, sizeof name, lane == 0 ? "communication" : "communication %d", lane + 1);
    put_track(f, FIRST_LANE + lane, name, lane + 1);
    f->lanes = lane + 1;
}

/* Each to the first lane that is free again. */
static void put_travelling(ddp_trace_file *f, const ddp_span *spans, size_t count)
{
    int64_t free_ns[MAX_LANES];
    const int before = f->lanes;
    int lanes = 0;

    for (size_t i = 0; i < count; i++) {
        int lane = 0;
        if (!travels(&spans[i]))
            continue;
        while (lane < lanes && free_ns[lane] > spans[i].begin_ns)
            lane++;
        if (lane == lanes && lanes + before < MAX_LANES)
            put_lane(f, before + lanes++);
        if (lane == lanes)
            continue; /* no picture could show so many */
        free_ns[lane] = spans[i].end_ns;
        put_span(f, FIRST_LANE + before + lane, &spans[i]);
    }
}

static void put_stream(ddp_trace_file *f, const ddp_span *spans, size_t count)
{
    bool named = false;

    for (size_t i = 0; i < count; i++) {
        if ((spans[i].kind & DDP_SPAN_ON_STREAM) == 0)
            continue;
        if (!named)
            put_track(f, STREAM_TRACK, "stream", 0);
        named = true;
        put_span(f, STREAM_TRACK, &spans[i]);
    }
}

void ddp_trace_track(ddp_trace_file *f, int track, const char *name, ddp_span *spans, size_t count)
{
    DDP_ASSERT(track >= 0 && track < STREAM_TRACK);
    qsort(spans, count, sizeof *spans, by_begin);
    put_track(f, track, name, track == 0 ? 0 : MAX_LANES + track);
    for (size_t i = 0; i < count; i++)
        if (!travels(&spans[i]) && (spans[i].kind & DDP_SPAN_ON_STREAM) == 0)
            put_span(f, track, &spans[i]);
    put_stream(f, spans, count);
    put_travelling(f, spans, count);
}
