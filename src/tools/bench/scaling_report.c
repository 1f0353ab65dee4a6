/* scaling_report.c - tables, JSON and pictures of ddp_bench scaling. */
#include <math.h>
#include <string.h>

#include "ddp/memory.h"
#include "tools/bench/scaling.h"

enum { MAX_LINES = 16, TITLE_BYTES = 64 };

static const char *mode_name(const ddpi_scaling_case *c)
{
    return c->mode == DDPI_SCALING_WEAK ? "weak" : "strong";
}

static double percent(double share)
{
    return 100 * share;
}

/* The parts that lost time is divided into; keys as in JSON. */
typedef struct part {
    const char *key, *title;
    size_t offset;
} part;
#define PART(field, title)                                                                         \
    {                                                                                              \
#field, title, offsetof(ddpi_scaling_split, field)                                         \
    }
static const part parts[] = {
    PART(latency, "latency"), PART(bandwidth, "bandwidth"), PART(stragglers, "stragglers"),
    PART(data, "data wait"),  PART(batch, "smaller batch"), PART(compute, "slower computing"),
    PART(rest, "rest"),
};
enum { PART_COUNT = sizeof parts / sizeof parts[0] };

static double part_of(const ddpi_scaling_case *c, int i)
{
    return *(const double *)(const void *)((const char *)&c->split + parts[i].offset);
}

/* ---- tables ---- */

static ddp_status print_efficiency(const ddpi_scaling_case *cases, int count, ddpi_bench_out *out)
{
    static const char *const heads[] = {"data",         "scaling", "ranks",     "batch/rank",
                                        "images/s",     "step ms", "1 rank ms", "efficiency %",
                                        "over repeats", "alone %", "ceiling %", NULL};
    ddpi_bench_table *table;

    DDP_TRY(ddpi_bench_table_create(heads, &table));
    for (int i = 0; i < count; i++) {
        const ddpi_scaling_case *c = &cases[i];
        ddpi_bench_table_add(table, "%s", c->data);
        ddpi_bench_table_add(table, "%s", mode_name(c));
        ddpi_bench_table_add(table, "%d", c->ranks);
        ddpi_bench_table_add(table, "%lld", (long long)c->rank_batch);
        ddpi_bench_table_add(table, "%.1f", c->run.samples / c->run.wall);
        ddpi_bench_table_add(table, "%.2f", c->run.wall * 1e3);
        ddpi_bench_table_add(table, "%.2f", c->base.wall * 1e3);
        ddpi_bench_table_add(table, "%.1f", percent(c->split.efficiency));
        ddpi_bench_table_add(table, "%.1f-%.1f", percent(c->efficiency_min),
                             percent(c->efficiency_max));
        if (c->mode == DDPI_SCALING_WEAK)
            ddpi_bench_table_add(table, "%.1f", percent(c->efficiency_alone));
        else
            ddpi_bench_table_add(table, "-");
        ddpi_bench_table_add(table, "%.1f", percent(c->split.ceiling));
    }
    ddp_status st = ddpi_bench_table_print(table, out);
    ddpi_bench_table_destroy(table);
    return st;
}

static ddp_status print_loss(const ddpi_scaling_case *cases, int count, ddpi_bench_out *out)
{
    const char *heads[5 + PART_COUNT] = {"data", "scaling", "ranks", "lost %"};
    ddpi_bench_table *table;

    for (int p = 0; p < PART_COUNT; p++)
        heads[4 + p] = parts[p].title;
    DDP_TRY(ddpi_bench_table_create(heads, &table));
    for (int i = 0; i < count; i++) {
        ddpi_bench_table_add(table, "%s", cases[i].data);
        ddpi_bench_table_add(table, "%s", mode_name(&cases[i]));
        ddpi_bench_table_add(table, "%d", cases[i].ranks);
        ddpi_bench_table_add(table, "%.2f", percent(cases[i].split.lost));
        for (int p = 0; p < PART_COUNT; p++)
            ddpi_bench_table_add(table, "%.2f", percent(part_of(&cases[i], p)));
    }
    ddp_status st = ddpi_bench_table_print(table, out);
    ddpi_bench_table_destroy(table);
    return st;
}

static ddp_status print(const ddpi_scaling_case *cases, int count, bool busy, ddpi_bench_out *out)
{
    ddpi_bench_say(out,
                   "Efficiency: the time of a step without any loss over the measured one. Without "
                   "loss it is that of 1 rank, %s (strong: with the whole batch, divided by the "
                   "ranks). alone: against 1 rank with nothing beside it. ceiling: what the "
                   "measured link would allow.\n\n",
                   busy ? "while copies of it keep the other cores busy" : "alone");
    DDP_TRY(print_efficiency(cases, count, out));
    ddpi_bench_say(out,
                   "\nWhere the lost time went, in percent of the measured step; the parts add "
                   "up to lost. Parts of less than the noise may be below 0.\n\n");
    return print_loss(cases, count, out);
}

/* ---- JSON ---- */

static ddp_status times_json(ddp_json *to, const char *key, ddpi_run_times times)
{
    static const char *const names[DDPI_RUN_FIELDS] = {
        "wall",  "data",    "forward",   "backward",     "comm",         "comm_exposed",
        "optim", "compute", "mean_data", "mean_exposed", "mean_compute", "least_exposed"};
    ddp_json *json;

    DDP_TRY(ddp_json_object(&json));
    for (int f = 0; f < DDPI_RUN_FIELDS; f++)
        ddp_json_set_number(json, names[f], *ddpi_run_field(&times, f));
    ddp_json_set_int(json, "steps", times.steps);
    ddp_json_set_number(json, "samples", times.samples);
    ddp_json_set(to, key, json);
    return DDP_OK;
}

static ddp_status curve_json(ddp_json *to, const ddp_cost_curve *curve)
{
    ddp_json *json;

    DDP_TRY(ddp_json_object(&json));
    ddp_status st = ddp_cost_curve_write(curve, json);
    ddp_json_set(to, "curve", json);
    return st;
}

static ddp_status fill_case(const ddpi_scaling_case *c, ddp_json *json)
{
    ddp_json *loss;

    ddp_json_set_string(json, "data", c->data);
    ddp_json_set_string(json, "mode", mode_name(c));
    ddp_json_set_int(json, "ranks", c->ranks);
    ddp_json_set_int(json, "hosts", c->run.hosts);
    ddp_json_set_int(json, "batch_per_rank", c->rank_batch);
    ddp_json_set_number(json, "images_per_s", c->run.samples / c->run.wall);
    ddp_json_set_number(json, "efficiency", c->split.efficiency);
    ddp_json_set_number(json, "efficiency_min", c->efficiency_min);
    ddp_json_set_number(json, "efficiency_max", c->efficiency_max);
    ddp_json_set_number(json, "efficiency_alone", c->efficiency_alone);
    ddp_json_set_number(json, "ceiling", c->split.ceiling);
    ddp_json_set_number(json, "lost", c->split.lost);
    DDP_TRY(ddp_json_object(&loss));
    ddp_json_set(json, "loss", loss);
    for (int p = 0; p < PART_COUNT; p++)
        ddp_json_set_number(loss, parts[p].key, part_of(c, p));
    DDP_TRY(times_json(json, "run_s", c->run));
    DDP_TRY(times_json(json, "base_s", c->base));
    DDP_TRY(times_json(json, "alone_s", c->alone));
    if (c->mode == DDPI_SCALING_STRONG)
        DDP_TRY(times_json(json, "full_s", c->full));
    return c->curve.count > 0 ? curve_json(json, &c->curve) : DDP_OK;
}

static ddp_status fill_json(const ddpi_scaling_case *cases, int count, bool busy, ddp_json *json)
{
    ddp_json *list, *one;

    ddp_json_set_string(json, "bench", "scaling");
    ddp_json_set_string(json, "base", busy ? "busy" : "alone");
    DDP_TRY(ddp_json_array(&list));
    ddp_json_set(json, "cases", list);
    for (int i = 0; i < count; i++) {
        DDP_TRY(ddp_json_object(&one));
        ddp_status st = fill_case(&cases[i], one);
        ddp_json_append(list, one);
        DDP_TRY(st);
    }
    return DDP_OK;
}

static ddp_status write_json(const ddpi_scaling_case *cases, int count, bool busy,
                             const ddpi_bench_out *out)
{
    ddp_json *json;

    DDP_TRY(ddp_json_object(&json));
    ddp_status st = fill_json(cases, count, busy, json);
    if (st == DDP_OK)
        st = ddpi_bench_out_json(out, json);
    ddp_json_destroy(json);
    return st;
}

/* ---- pictures ---- */

/* Cases of one line: the same data and mode, one after the other. */
static int line_end(const ddpi_scaling_case *cases, int count, int from)
{
    int i = from;

    while (i < count && cases[i].mode == cases[from].mode &&
           strcmp(cases[i].data, cases[from].data) == 0)
        i++;
    return i;
}

/* values: [count][3]: ranks, efficiency, ceiling */
static ddp_status draw_efficiency(const ddpi_scaling_case *cases, int count, double *values,
                                  ddpi_bench_out *out)
{
    ddpi_bench_series series[2 * MAX_LINES];
    char titles[2 * MAX_LINES][TITLE_BYTES], setup[128];
    int n = 0, fewest = cases[0].ranks, most = fewest;

    for (int i = 0; i < count; i++) {
        values[3 * i] = cases[i].ranks;
        values[3 * i + 1] = percent(cases[i].split.efficiency);
        values[3 * i + 2] = percent(cases[i].split.ceiling);
        fewest = cases[i].ranks < fewest ? cases[i].ranks : fewest;
        most = cases[i].ranks > most ? cases[i].ranks : most;
    }
    snprintf(setup, sizeof setup, "set logscale x 2\nset xrange [%g:%g]\nset yrange [0:110<*]\n",
             fewest / 1.2, most * 1.2);
    for (int from = 0; from < count && n < 2 * MAX_LINES; n += 2) {
        int to = line_end(cases, count, from);
        const ddpi_bench_series line = {
            .values = values + 3 * (size_t)from, .rows = to - from, .columns = 3};
        series[n] = series[n + 1] = line;
        snprintf(titles[n], TITLE_BYTES, "%.40s, %s", cases[from].data, mode_name(&cases[from]));
        snprintf(titles[n + 1], TITLE_BYTES, "%.40s, %s: ceiling", cases[from].data,
                 mode_name(&cases[from]));
        series[n].style = "using 1:2 with linespoints pt 7 lw 2";
        series[n + 1].style = "using 1:3 with lines dt 2";
        series[n].title = titles[n];
        series[n + 1].title = titles[n + 1];
        from = to;
    }
    const ddpi_bench_plot plot = {.name = "scaling",
                                  .title = "Efficiency of training",
                                  .x = "ranks",
                                  .y = "efficiency, %",
                                  .setup = setup,
                                  .series = series,
                                  .series_count = n};
    return ddpi_bench_draw(out, &plot);
}

/* Bars on each other. values: [count][PART_COUNT + 1]: place, then parts, added up. */
static ddp_status draw_loss(const ddpi_scaling_case *cases, int count, double *values,
                            ddpi_bench_out *out)
{
    ddpi_bench_series series[PART_COUNT];
    char styles[PART_COUNT][TITLE_BYTES],
        setup[8192] = "set style fill solid 1\nset xtics rotate by -25 (";
    size_t used = strlen(setup);

    for (int i = 0; i < count; i++) {
        double *row = values + (size_t)i * (PART_COUNT + 1), sum = 0;
        row[0] = i;
        for (int p = 0; p < PART_COUNT; p++)
            row[1 + p] = sum += fmax(0, percent(part_of(&cases[i], p)));
        if (used < sizeof setup)
            used += (size_t)snprintf(setup + used, sizeof setup - used, "%s\"%.20s, %s, %d\" %d",
                                     i > 0 ? ", " : "", cases[i].data, mode_name(&cases[i]),
                                     cases[i].ranks, i);
    }
    if (used < sizeof setup)
        snprintf(setup + used, sizeof setup - used,
                 ")\nset xrange [-0.7:%d-0.3]\nset yrange [0:*]\n", count);
    /* The tallest first, so that the others stand before it. */
    for (int p = 0; p < PART_COUNT; p++) {
        int column = PART_COUNT - p;
        snprintf(styles[p], TITLE_BYTES, "using 1:%d:(0.6) with boxes lc %d", column + 1, column);
        series[p] = (ddpi_bench_series){.title = parts[column - 1].title,
                                        .style = styles[p],
                                        .values = values,
                                        .rows = count,
                                        .columns = PART_COUNT + 1};
    }
    const ddpi_bench_plot plot = {.name = "scaling-loss",
                                  .title =
                                      "Where a step's time is lost (parts below 0 are left out)",
                                  .x = "",
                                  .y = "% of the step",
                                  .setup = setup,
                                  .series = series,
                                  .series_count = PART_COUNT};
    return ddpi_bench_draw(out, &plot);
}

ddp_status ddpi_scaling_report(const ddpi_scaling_case *cases, int count, bool busy,
                               ddpi_bench_out *out)
{
    double *values;

    DDP_TRY(print(cases, count, busy, out));
    DDP_TRY(write_json(cases, count, busy, out));
    DDP_TRY(DDP_ALLOC(values, (size_t)count * (PART_COUNT + 1)));
    ddp_status st = draw_efficiency(cases, count, values, out);
    if (st == DDP_OK)
        st = draw_loss(cases, count, values, out);
    ddp_free(values);
    return st;
}
