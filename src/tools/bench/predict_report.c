/* predict_report.c - what ddp_bench predict prints: ranks over links, and what would help. */
#include <stdlib.h>

#include "ddp/memory.h"
#include "tools/bench/predict.h"

enum { CHANGES = 6 };

typedef struct change {
    const char *name;
    ddpi_outlook outlook;
} change;

static int better_first(const void *a, const void *b)
{
    const change *x = a, *y = b;

    return (x->outlook.efficiency < y->outlook.efficiency) -
           (x->outlook.efficiency > y->outlook.efficiency);
}

/* One thing at a time; what is so already is left out. */
static ddp_status try_changes(const ddpi_prediction *p, int link, change changes[CHANGES],
                              int *count_out)
{
    const ddpi_scene now = ddpi_predict_scene(p, link, p->ranks[p->rank_count - 1]);
    ddpi_scene scenes[CHANGES];
    int count = 0;
#define CHANGE(text, condition, field, value)                                                      \
    if (condition) {                                                                               \
        scenes[count] = now;                                                                       \
        scenes[count].field = (value);                                                             \
        changes[count++].name = (text);                                                            \
    }
    CHANGE("buckets cut for this link", now.cap_bytes > 0, cap_bytes, 0)
    CHANGE("twice the accumulation", true, accumulate, 2 * now.accumulate)
    CHANGE("four times the accumulation", true, accumulate, 4 * now.accumulate)
    CHANGE("gradients in bf16", now.shrink == 1, shrink, 0.5)
    CHANGE("two levels", !now.two_levels && now.net->per_host > 1, two_levels, true)
    CHANGE("the best algorithm for each size", now.algo != DDPI_SUM_BEST, algo, DDPI_SUM_BEST)
#undef CHANGE
    for (int i = 0; i < count; i++)
        DDP_TRY(ddpi_foresee(&scenes[i], &changes[i].outlook));
    qsort(changes, (size_t)count, sizeof *changes, better_first);
    *count_out = count;
    return DDP_OK;
}

/* ---- reports ---- */

static ddp_status print_ranks(const ddpi_prediction *p, ddpi_bench_out *out)
{
    static const char *const heads[] = {"link",         "ranks",      "step ms",
                                        "efficiency %", "exposed ms", "sums ms",
                                        "straggler ms", "buckets",    NULL};
    ddpi_bench_table *table;

    DDP_TRY(ddpi_bench_table_create(heads, &table));
    for (int l = 0; l < p->link_count; l++)
        for (int r = 0; r < p->rank_count; r++) {
            const ddpi_outlook *o = &p->outlooks[l * p->rank_count + r];
            ddpi_bench_table_add(table, "%s", p->links[l].name);
            ddpi_bench_table_add(table, "%lld", (long long)p->ranks[r]);
            ddpi_bench_table_add(table, "%.2f", o->step * 1e3);
            ddpi_bench_table_add(table, "%.1f", o->efficiency * 1e2);
            ddpi_bench_table_add(table, "%.2f", o->exposed * 1e3);
            ddpi_bench_table_add(table, "%.2f", o->comm * 1e3);
            ddpi_bench_table_add(table, "%.2f", o->straggling * 1e3);
            ddpi_bench_table_add(table, "%d", o->buckets);
        }
    const ddp_status st = ddpi_bench_table_print(table, out);
    ddpi_bench_table_destroy(table);
    return st;
}

static ddp_status add_changes(const ddpi_prediction *p, int link, ddpi_bench_table *table,
                              ddp_json *list)
{
    change changes[CHANGES];
    int count;
    const double now = p->outlooks[link * p->rank_count + p->rank_count - 1].efficiency;

    DDP_TRY(try_changes(p, link, changes, &count));
    for (int i = 0; i < count; i++) {
        ddp_json *item;
        const double gain = changes[i].outlook.efficiency - now;
        ddpi_bench_table_add(table, "%s", p->links[link].name);
        ddpi_bench_table_add(table, "%s", changes[i].name);
        ddpi_bench_table_add(table, "%.1f", changes[i].outlook.efficiency * 1e2);
        ddpi_bench_table_add(table, "%+.1f", gain * 1e2);
        DDP_TRY(ddp_json_object(&item));
        ddp_json_set_string(item, "link", p->links[link].name);
        ddp_json_set_string(item, "change", changes[i].name);
        ddp_json_set_number(item, "efficiency", changes[i].outlook.efficiency);
        ddp_json_set_number(item, "gain", gain);
        ddp_json_append(list, item);
    }
    return DDP_OK;
}

static ddp_status print_changes(const ddpi_prediction *p, ddpi_bench_out *out, ddp_json *record)
{
    static const char *const heads[] = {"link", "change", "efficiency %", "gain", NULL};
    ddpi_bench_table *table;
    ddp_json *list;
    ddp_status st = DDP_OK;

    DDP_TRY(ddp_json_array(&list));
    ddp_json_set(record, "changes", list);
    DDP_TRY(ddpi_bench_table_create(heads, &table));
    for (int l = 0; l < p->link_count && st == DDP_OK; l++)
        st = add_changes(p, l, table, list);
    ddpi_bench_say(out, "\nWhat would help at %lld ranks, the best first:\n\n",
                   (long long)p->ranks[p->rank_count - 1]);
    if (st == DDP_OK)
        st = ddpi_bench_table_print(table, out);
    ddpi_bench_table_destroy(table);
    return st;
}

static ddp_status fill_record(const ddpi_prediction *p, ddp_json *record)
{
    ddp_json *rows, *row;

    ddp_json_set_string(record, "model", p->profile.model);
    ddp_json_set_number(record, "spread", p->spread);
    DDP_TRY(ddp_json_array(&rows));
    ddp_json_set(record, "rows", rows);
    for (int l = 0; l < p->link_count; l++)
        for (int r = 0; r < p->rank_count; r++) {
            const ddpi_outlook *o = &p->outlooks[l * p->rank_count + r];
            DDP_TRY(ddp_json_object(&row));
            ddp_json_set_string(row, "link", p->links[l].name);
            ddp_json_set_int(row, "ranks", p->ranks[r]);
            ddp_json_set_number(row, "step", o->step);
            ddp_json_set_number(row, "efficiency", o->efficiency);
            ddp_json_set_number(row, "exposed", o->exposed);
            ddp_json_set_number(row, "sums", o->comm);
            ddp_json_set_number(row, "straggling", o->straggling);
            ddp_json_append(rows, row);
        }
    return DDP_OK;
}

static ddp_status draw(const ddpi_prediction *p, ddpi_bench_out *out)
{
    double values[DDPI_PREDICT_LINKS][DDPI_PREDICT_RANKS][2];
    ddpi_bench_series series[DDPI_PREDICT_LINKS];
    char title[128];

    if (p->rank_count < 2) /* no line to draw */
        return DDP_OK;
    snprintf(title, sizeof title, "Predicted efficiency of %s", p->profile.model);
    for (int l = 0; l < p->link_count; l++) {
        for (int r = 0; r < p->rank_count; r++) {
            values[l][r][0] = (double)p->ranks[r];
            values[l][r][1] = p->outlooks[l * p->rank_count + r].efficiency * 100;
        }
        series[l] = (ddpi_bench_series){.title = p->links[l].name,
                                        .style = "using 1:2 with linespoints linewidth 2",
                                        .values = &values[l][0][0],
                                        .rows = p->rank_count,
                                        .columns = 2};
    }
    const ddpi_bench_plot plot = {.name = "predict",
                                  .title = title,
                                  .x = "ranks",
                                  .y = "efficiency, %",
                                  .setup = "set logscale x 2\nset yrange [0:105]\n",
                                  .series = series,
                                  .series_count = p->link_count};
    return ddpi_bench_draw(out, &plot);
}

ddp_status ddpi_predict_report(const ddpi_prediction *p, ddpi_bench_out *out)
{
    ddp_json *record;

    ddpi_bench_say(
        out,
        "%s: forward %.2f ms, backward %.2f ms, update %.2f ms of a rank alone; computing "
        "spreads by %.2f %%; %lld ranks a host%s.\n\n",
        p->profile.model, p->profile.forward * 1e3, p->profile.backward * 1e3,
        p->profile.update * 1e3, p->spread * 1e2, (long long)p->opts.per_host,
        p->opts.two_levels ? ", sums on two levels" : "");
    DDP_TRY(print_ranks(p, out));
    DDP_TRY(ddp_json_object(&record));
    ddp_status st = fill_record(p, record);
    if (st == DDP_OK)
        st = print_changes(p, out, record);
    if (st == DDP_OK)
        st = ddpi_bench_out_json(out, record);
    ddp_json_destroy(record);
    return st == DDP_OK ? draw(p, out) : st;
}
