/* overlap_report.c - tables, JSON and picture of ddp_bench overlap. */
#include <math.h>

#include "ddp/memory.h"
#include "tools/bench/overlap.h"

enum { MAX_RANKS_SHOWN = 4, COLUMNS = 4 };

static double ms(double seconds)
{
    return seconds * 1e3;
}

static const char *verdict(double exposed, const ddpi_overlap *o)
{
    return exposed <= ddpi_overlap_allowed(o) ? "yes" : "no";
}

/* ---- tables ---- */

static ddp_status print_buckets(const ddpi_overlap *o, ddpi_bench_out *out)
{
    static const char *const heads[] = {"bucket",  "bytes",     "ready ms",  "start ms", "end ms",
                                        "took ms", "hidden ms", "waited ms", NULL};
    ddpi_bench_table *table;

    DDP_TRY(ddpi_bench_table_create(heads, &table));
    for (int i = 0; i < o->bucket_count; i++) {
        const ddpi_overlap_bucket *b = &o->buckets[i];
        ddpi_bench_table_add(table, "%d", i);
        ddpi_bench_table_add(table, "%.0f", b->bytes);
        const double times[] = {b->ready, b->start, b->end, b->took, b->hidden, b->waited};
        for (size_t t = 0; t < sizeof times / sizeof times[0]; t++)
            ddpi_bench_table_add(table, "%.3f", ms(times[t]));
    }
    ddp_status st = ddpi_bench_table_print(table, out);
    ddpi_bench_table_destroy(table);
    return st;
}

static void add_total(ddpi_bench_table *table, const char *name, const ddpi_overlap *o)
{
    ddpi_bench_table_add(table, "%s", name);
    const double times[] = {o->step,    o->backward,    o->comm, ddpi_overlap_allowed(o),
                            o->exposed, o->exposed_mean};
    for (size_t t = 0; t < sizeof times / sizeof times[0]; t++)
        ddpi_bench_table_add(table, "%.3f", ms(times[t]));
    ddpi_bench_table_add(table, "%.1f", 100 * ddpi_overlap_share(o));
    ddpi_bench_table_add(table, "%s", verdict(o->exposed, o));
}

static ddp_status print_totals(const ddpi_overlap *o, const ddpi_overlap *sync, ddpi_bench_out *out)
{
    static const char *const heads[] = {"strategy",    "step ms",    "backward ms",     "comm ms",
                                        "allowed ms",  "exposed ms", "with waiting ms", "hidden %",
                                        "by the rule", NULL};
    ddpi_bench_table *table;

    DDP_TRY(ddpi_bench_table_create(heads, &table));
    add_total(table, "overlap", o);
    if (sync != NULL)
        add_total(table, "sync", sync);
    ddp_status st = ddpi_bench_table_print(table, out);
    ddpi_bench_table_destroy(table);
    return st;
}

static ddp_status print(const ddpi_overlap *o, const ddpi_overlap *sync, ddpi_bench_out *out)
{
    ddpi_bench_say(
        out,
        "Gradient buckets of %d ranks, medians over %d steps; times count from the "
        "beginning of backward. A bucket is ready when this rank has all of its "
        "gradients, and starts when all ranks have come. hidden: the main thread "
        "computed meanwhile. waited: it did nothing but wait for it, or carry it out.\n\n",
        o->ranks, o->steps);
    DDP_TRY(print_buckets(o, out));
    ddpi_bench_say(
        out, "\nWhole steps. exposed: what the rank waits for communication that waits for no "
             "other rank; with waiting: the mean rank, which also waits for slower ranks. "
             "allowed: what backward is too short to hide, and a tenth of the communication. "
             "hidden: of the communication that fits behind backward.\n\n");
    return print_totals(o, sync, out);
}

/* ---- JSON ---- */

static ddp_status bucket_json(const ddpi_overlap_bucket *b, ddp_json *list)
{
    ddp_json *json;

    DDP_TRY(ddp_json_object(&json));
    ddp_json_set_number(json, "bytes", b->bytes);
    ddp_json_set_number(json, "ready_s", b->ready);
    ddp_json_set_number(json, "start_s", b->start);
    ddp_json_set_number(json, "end_s", b->end);
    ddp_json_set_number(json, "took_s", b->took);
    ddp_json_set_number(json, "hidden_s", b->hidden);
    ddp_json_set_number(json, "waited_s", b->waited);
    ddp_json_append(list, json);
    return DDP_OK;
}

static ddp_status totals_json(const ddpi_overlap *o, ddp_json *json)
{
    ddp_json *list;

    ddp_json_set_int(json, "ranks", o->ranks);
    ddp_json_set_int(json, "steps", o->steps);
    ddp_json_set_number(json, "step_s", o->step);
    ddp_json_set_number(json, "backward_s", o->backward);
    ddp_json_set_number(json, "comm_s", o->comm);
    ddp_json_set_number(json, "exposed_s", o->exposed);
    ddp_json_set_number(json, "exposed_mean_s", o->exposed_mean);
    ddp_json_set_number(json, "allowed_s", ddpi_overlap_allowed(o));
    ddp_json_set_number(json, "hidden_share", ddpi_overlap_share(o));
    ddp_json_set_bool(json, "hidden", o->exposed <= ddpi_overlap_allowed(o));
    ddp_json_set_bool(json, "hidden_with_waiting", o->exposed_mean <= ddpi_overlap_allowed(o));
    DDP_TRY(ddp_json_array(&list));
    ddp_json_set(json, "buckets", list);
    for (int i = 0; i < o->bucket_count; i++)
        DDP_TRY(bucket_json(&o->buckets[i], list));
    return DDP_OK;
}

static ddp_status fill_json(const ddpi_overlap *o, const ddpi_overlap *sync, ddp_json *json)
{
    ddp_json *other;

    ddp_json_set_string(json, "bench", "overlap");
    DDP_TRY(totals_json(o, json));
    if (sync == NULL)
        return DDP_OK;
    DDP_TRY(ddp_json_object(&other));
    ddp_json_set(json, "sync", other);
    return totals_json(sync, other);
}

static ddp_status write_json(const ddpi_overlap *o, const ddpi_overlap *sync,
                             const ddpi_bench_out *out)
{
    ddp_json *json;

    DDP_TRY(ddp_json_object(&json));
    ddp_status st = fill_json(o, sync, json);
    if (st == DDP_OK)
        st = ddpi_bench_out_json(out, json);
    ddp_json_destroy(json);
    return st;
}

/* ---- picture: what each rank did in the median step ---- */

/* From top to bottom in the key, and in this order on each other. */
static const struct {
    ddp_span_kind kind;
    const char *title, *color;
    bool comm; /* on the rank's lower row */
} shown[] = {
    {DDP_SPAN_FORWARD, "forward", "#9ecae1", false},
    {DDP_SPAN_BACKWARD, "backward", "#3182bd", false},
    {DDP_SPAN_WAIT, "waits, or reduces", "#de2d26", false},
    {DDP_SPAN_OPTIM, "update", "#fd8d3c", false},
    {DDP_SPAN_BUCKET, "bucket's sum", "#31a354", true},
    {DDP_SPAN_PUBLISH, "slices to all", "#a1d99b", true},
};
enum { SHOWN = sizeof shown / sizeof shown[0] };

typedef struct rows {
    double *values; /* [count][4]: x from, x to, y from, y to */
    int count;
} rows;

static double first_begin(const ddpi_overlap_trace *t, int64_t step)
{
    double first = INFINITY;

    for (int i = 0; i < t->count; i++)
        if (t->spans[i].step == step && t->spans[i].kind == DDP_SPAN_FORWARD)
            first = fmin(first, t->spans[i].begin);
    return first;
}

static void add_boxes(const ddpi_overlap *o, const ddpi_overlap_trace *t, int kind, rows *r)
{
    const double origin = first_begin(t, o->median_step);

    r->count = 0;
    for (int i = 0; i < t->count; i++) {
        const ddpi_overlap_span *span = &t->spans[i];
        bool wanted = span->step == o->median_step && span->kind == shown[kind].kind &&
                      span->rank < MAX_RANKS_SHOWN && (span->main || shown[kind].comm) &&
                      (span->kind != DDP_SPAN_WAIT || span->id >= 0);
        if (!wanted)
            continue;
        const double y = -2.0 * span->rank - (shown[kind].comm ? 1 : 0);
        double *row = r->values + COLUMNS * (size_t)r->count++;
        row[0] = ms(span->begin - origin);
        row[1] = ms(span->end - origin);
        row[2] = y - 0.4;
        row[3] = y + 0.4;
    }
}

static ddp_status draw(const ddpi_overlap *o, const ddpi_overlap_trace *t, double *values,
                       ddpi_bench_out *out)
{
    ddpi_bench_series series[SHOWN];
    char setup[1024] = "set style fill solid noborder\nset xrange [0:*]\nset ytics (",
         styles[SHOWN][96];
    const int ranks = o->ranks < MAX_RANKS_SHOWN ? o->ranks : MAX_RANKS_SHOWN;
    size_t used = 0;
    int count = 0;

    while (setup[used] != 0)
        used++;
    for (int r = 0; r < ranks; r++)
        used +=
            (size_t)snprintf(setup + used, sizeof setup - used, "%s\"rank %d\" %d, \"buckets\" %d",
                             r > 0 ? ", " : "", r, -2 * r, -2 * r - 1);
    snprintf(setup + used, sizeof setup - used, ")\nset yrange [-%d.7:0.7]\n", 2 * ranks - 1);
    for (int kind = 0; kind < SHOWN; kind++) {
        rows r = {.values = values + COLUMNS * (size_t)t->count * (size_t)kind};
        add_boxes(o, t, kind, &r);
        if (r.count == 0)
            continue;
        snprintf(styles[count], sizeof styles[count],
                 "using 1:3:1:2:3:4 with boxxyerror lc rgb '%s'", shown[kind].color);
        series[count] = (ddpi_bench_series){.title = shown[kind].title,
                                            .style = styles[count],
                                            .values = r.values,
                                            .rows = r.count,
                                            .columns = COLUMNS};
        count++;
    }
    const ddpi_bench_plot plot = {.name = out->name,
                                  .title = "One step: what is computed, and what travels",
                                  .x = "ms",
                                  .y = "",
                                  .setup = setup,
                                  .series = series,
                                  .series_count = count};
    return count > 0 ? ddpi_bench_draw(out, &plot) : DDP_OK;
}

ddp_status ddpi_overlap_report(const ddpi_overlap *overlap, const ddpi_overlap *sync,
                               const ddpi_overlap_trace *trace, ddpi_bench_out *out)
{
    double *values;

    DDP_TRY(print(overlap, sync, out));
    DDP_TRY(write_json(overlap, sync, out));
    DDP_TRY(DDP_ALLOC(values, (size_t)COLUMNS * SHOWN * (size_t)(trace->count + 1)));
    ddp_status st = draw(overlap, trace, values, out);
    ddp_free(values);
    return st;
}
