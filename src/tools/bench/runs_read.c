/* runs_read.c - medians of a run's step records. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "ddp/fs.h"
#include "ddp/memory.h"
#include "tools/bench/runs.h"

enum { MAX_STEPS = 100000 };
#define FILE_LIMIT ((size_t)256 << 20)

/* The times of a step record, in the order of ddpi_run_field(). */
enum {
    WALL,
    DATA,
    FORWARD,
    BACKWARD,
    COMM,
    EXPOSED,
    OPTIM,
    COMPUTE,
    MEAN_DATA,
    MEAN_EXPOSED,
    MEAN_COMPUTE,
    LEAST_EXPOSED,
    FIELDS
};
static const char *const fields[FIELDS][2] = {
    [WALL] = {"ms", "wall"},
    [DATA] = {"ms", "data"},
    [FORWARD] = {"ms", "forward"},
    [BACKWARD] = {"ms", "backward"},
    [COMM] = {"ms", "comm"},
    [EXPOSED] = {"ms", "comm_exposed"},
    [OPTIM] = {"ms", "optim"},
    [COMPUTE] = {"ms", "compute"},
    [MEAN_DATA] = {"ms_mean", "data"},
    [MEAN_EXPOSED] = {"ms_mean", "comm_exposed"},
    [MEAN_COMPUTE] = {"ms_mean", "compute"},
    [LEAST_EXPOSED] = {"ms_least", "comm_exposed"},
};

double *ddpi_run_field(ddpi_run_times *t, int field)
{
    double *const all[FIELDS] = {&t->wall,         &t->data,         &t->forward,
                                 &t->backward,     &t->comm,         &t->exposed,
                                 &t->optim,        &t->compute,      &t->mean_data,
                                 &t->mean_exposed, &t->mean_compute, &t->least_exposed};

    DDP_ASSERT((int)FIELDS == (int)DDPI_RUN_FIELDS && field >= 0 && field < (int)FIELDS);
    return all[field];
}

typedef struct reader {
    const char *path;
    int skip, seen, count, capacity;
    double (*rows)[FIELDS]; /* [count], milliseconds */
    double *column;         /* [count] */
    ddpi_run_times *times;
} reader;

static bool number_at(const ddp_json *object, const char *outer, const char *inner, double *out)
{
    const ddp_json *group = ddp_json_get(object, outer);
    const ddp_json *value = group != NULL ? ddp_json_get(group, inner) : NULL;

    return value != NULL && ddp_json_as_number(value, out);
}

static ddp_status read_step(reader *r, const ddp_json *record)
{
    double row[FIELDS], samples = 0;

    if (r->seen++ < r->skip || r->count == MAX_STEPS)
        return DDP_OK;
    for (int f = 0; f < FIELDS; f++)
        if (!number_at(record, fields[f][0], fields[f][1], &row[f]))
            return DDP_FAIL(DDP_ERR_FORMAT, "%s: step %d of the file has no %s.%s", r->path,
                            r->seen, fields[f][0], fields[f][1]);
    if (ddp_json_get(record, "samples") == NULL ||
        !ddp_json_as_number(ddp_json_get(record, "samples"), &samples))
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: a step has no samples", r->path);
    r->times->samples = samples > r->times->samples ? samples : r->times->samples;
    if (ddp_json_get(record, "comm_bytes") != NULL)
        (void)ddp_json_as_number(ddp_json_get(record, "comm_bytes"), &r->times->gradient_bytes);
    DDP_TRY(DDP_GROW(r->rows, r->capacity, r->count));
    memcpy(r->rows[r->count++], row, sizeof row);
    return DDP_OK;
}

/* An option's value, which the run record has as text. */
static double option_of(const ddp_json *record, const char *name, double otherwise)
{
    const ddp_json *options = ddp_json_get(record, "options");
    const ddp_json *value = options != NULL ? ddp_json_get(options, name) : NULL;
    const char *text;

    if (value == NULL || !ddp_json_as_string(value, &text))
        return otherwise;
    char *end;
    double number = strtod(text, &end);
    return end == text || *end != 0 ? otherwise : number;
}

static bool option_is(const ddp_json *record, const char *name, const char *value)
{
    const ddp_json *options = ddp_json_get(record, "options");
    const ddp_json *found = options != NULL ? ddp_json_get(options, name) : NULL;
    const char *text;

    return found != NULL && ddp_json_as_string(found, &text) && strcmp(text, value) == 0;
}

static void read_run(reader *r, const ddp_json *record)
{
    const ddp_json *hosts = ddp_json_get(record, "hosts");
    double parameters = 0;
    int64_t ranks = 0;

    if (ddp_json_get(record, "parameters") != NULL)
        (void)ddp_json_as_number(ddp_json_get(record, "parameters"), &parameters);
    if (ddp_json_get(record, "world_size") != NULL)
        (void)ddp_json_as_int(ddp_json_get(record, "world_size"), &ranks);
    bool halves =
        option_is(record, "grad-dtype", "bf16") || option_is(record, "grad-dtype", "fp16");
    r->times->gradient_bytes = parameters * (halves ? 2 : 4);
    r->times->first_bucket_bytes = option_of(record, "first-bucket-mb", 1) * 1048576;
    r->times->bucket_bytes = option_of(record, "bucket-cap-mb", 25) * 1048576;
    r->times->ranks = (int)ranks;
    r->times->hosts = hosts != NULL ? (int)ddp_json_length(hosts) : 1;
    /* Ranks of one host reduce in shared memory, themselves. */
    r->times->hides =
        r->times->hosts > 1 || option_is(record, "device", "cuda") ||
        !(option_is(record, "allreduce", "auto") || option_is(record, "allreduce", "shm"));
}

static ddp_status read_line(reader *r, const char *line, size_t bytes)
{
    ddp_json *record;
    const char *kind = "";

    DDP_TRY(ddp_json_load(line, bytes, r->path, &record));
    if (ddp_json_is_object(record) && ddp_json_get(record, "kind") != NULL)
        (void)ddp_json_as_string(ddp_json_get(record, "kind"), &kind);
    ddp_status st = DDP_OK;
    if (strcmp(kind, "step") == 0)
        st = read_step(r, record);
    else if (strcmp(kind, "run") == 0)
        read_run(r, record);
    ddp_json_destroy(record);
    return st;
}

static double median_of(reader *r, int field)
{
    for (int i = 0; i < r->count; i++)
        r->column[i] = r->rows[i][field] / 1000;
    return ddpi_bench_measure(r->column, r->count).median;
}

static ddp_status summarize(reader *r)
{
    ddpi_run_times *t = r->times;

    if (r->count == 0)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: %d steps, of which the first %d do not count", r->path,
                        r->seen, r->skip);
    DDP_TRY(DDP_ALLOC(r->column, (size_t)r->count));
    for (int f = 0; f < FIELDS; f++)
        *ddpi_run_field(t, f) = median_of(r, f);
    t->steps = r->count;
    ddp_free(r->column);
    return DDP_OK;
}

ddp_status ddpi_run_read(const char *dir, int skip, ddpi_run_times *times_out)
{
    char path[PATH_MAX], *text;
    size_t bytes;
    ddpi_run_times times = {0};
    reader r = {.path = path, .skip = skip > 0 ? skip : 1, .times = &times};
    ddp_status st = DDP_OK;

    DDP_TRY(ddp_fs_join(path, sizeof path, dir, "metrics.jsonl"));
    DDP_TRY(ddp_fs_read(path, FILE_LIMIT, &text, &bytes));
    for (size_t at = 0; at < bytes && st == DDP_OK;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        if (end == NULL)
            break; /* half a line is no record */
        size_t length = (size_t)(end - (text + at));
        st = read_line(&r, text + at, length);
        at += length + 1;
    }
    ddp_free(text);
    if (st == DDP_OK)
        st = summarize(&r);
    ddp_free(r.rows);
    if (st == DDP_OK)
        *times_out = times;
    return st;
}
