/* overlap_read.c - spans from a trace.json: Trace Event Format, of which only complete events ("X")
 * of known categories matter. */
#include <math.h>
#include <string.h>

#include "ddp/fs.h"
#include "ddp/memory.h"
#include "tools/bench/overlap.h"

#define FILE_LIMIT ((size_t)1 << 30)
/* What ddp_train could have written: as many ranks as its options allow, and thirty years. */
enum { MAX_RANK = 65535, MAX_ID = 1 << 20 };
#define MAX_US    1e15
#define MAX_BYTES 1e15

static bool string_at(const ddp_json *object, const char *key, const char **out)
{
    const ddp_json *value = ddp_json_get(object, key);

    return value != NULL && ddp_json_as_string(value, out);
}

static bool number_at(const ddp_json *object, const char *key, double *out)
{
    const ddp_json *value = ddp_json_get(object, key);

    return value != NULL && ddp_json_as_number(value, out);
}

static bool int_at(const ddp_json *object, const char *key, int64_t *out)
{
    const ddp_json *value = ddp_json_get(object, key);

    return value != NULL && ddp_json_as_int(value, out);
}

/* DDP_SPAN_KINDS: none of them. */
static ddp_span_kind kind_of(const char *name)
{
    int kind = 0;

    while (kind < (int)DDP_SPAN_KINDS && strcmp(ddp_span_kind_name((ddp_span_kind)kind), name) != 0)
        kind++;
    return (ddp_span_kind)kind;
}

/* The first track of a rank is its main thread's. */
static bool read_event(const ddp_json *event, ddpi_overlap_span *span_out)
{
    const ddp_json *args = ddp_json_get(event, "args");
    const char *category;
    double begin_us, took_us, bytes = 0;
    int64_t rank, track, step, id;

    if (args == NULL || !ddp_json_is_object(args) || !string_at(event, "cat", &category) ||
        !number_at(event, "ts", &begin_us) || !number_at(event, "dur", &took_us) ||
        !int_at(event, "pid", &rank) || !int_at(event, "tid", &track) ||
        !int_at(args, "step", &step) || !int_at(args, "id", &id))
        return false;
    (void)number_at(args, "bytes", &bytes);
    if (rank < 0 || rank > MAX_RANK || id < -1 || id > MAX_ID || !(fabs(begin_us) <= MAX_US) ||
        !(took_us >= 0 && took_us <= MAX_US) || !(bytes >= 0 && bytes <= MAX_BYTES))
        return false;
    *span_out = (ddpi_overlap_span){.rank = (int)rank,
                                    .main = track == 0,
                                    .kind = kind_of(category),
                                    .id = (int)id,
                                    .step = step,
                                    .begin = begin_us * 1e-6,
                                    .end = (begin_us + took_us) * 1e-6,
                                    .bytes = bytes};
    return true;
}

static ddp_status read_events(const ddp_json *events, const char *path, ddpi_overlap_trace *trace)
{
    for (size_t i = 0; i < ddp_json_length(events); i++) {
        const ddp_json *event = ddp_json_at(events, i);
        const char *phase = "";
        ddpi_overlap_span span;
        if (!ddp_json_is_object(event) || !string_at(event, "ph", &phase))
            return DDP_FAIL(DDP_ERR_FORMAT, "%s: event %zu has no phase", path, i);
        if (strcmp(phase, "X") != 0)
            continue;
        if (!read_event(event, &span))
            return DDP_FAIL(DDP_ERR_FORMAT, "%s: event %zu is not one of ddp_train's", path, i);
        if (span.kind == DDP_SPAN_KINDS)
            continue;
        DDP_TRY(DDP_GROW(trace->spans, trace->capacity, trace->count));
        trace->spans[trace->count++] = span;
    }
    return DDP_OK;
}

ddp_status ddpi_overlap_read(const char *path, ddpi_overlap_trace *trace_out)
{
    ddpi_overlap_trace trace = {0};
    ddp_json *json = NULL;
    char *text;
    size_t bytes;

    DDP_TRY(ddp_fs_read(path, FILE_LIMIT, &text, &bytes));
    ddp_status st = ddp_json_load(text, bytes, path, &json);
    ddp_free(text);
    DDP_TRY(st);
    const ddp_json *events = ddp_json_is_object(json) ? ddp_json_get(json, "traceEvents") : NULL;
    if (events == NULL || !ddp_json_is_array(events))
        st = DDP_FAIL(DDP_ERR_FORMAT, "%s: there are no traceEvents in it", path);
    else
        st = read_events(events, path, &trace);
    ddp_json_destroy(json);
    if (st == DDP_OK)
        *trace_out = trace;
    else
        ddp_free(trace.spans);
    return st;
}
