/* allreduce_report.c - table, JSON and picture of ddp_bench allreduce. */
#include "ddp/memory.h"
#include "tools/bench/allreduce.h"

enum { MAX_CURVES = 64 };

static double algbw(const ddpi_reduce_row *row)
{
    return (double)row->bytes / row->seconds.median / 1e9;
}

static bool on_gpus(const ddpi_reduce_sweep *sweep)
{
    return sweep->opts->comm == DDPI_REDUCE_NCCL;
}

static const char *algorithm_of(const ddpi_reduce_sweep *sweep, const ddpi_reduce_row *row)
{
    return on_gpus(sweep) ? "nccl" : ddpi_reduce_algorithm_name(row->algorithm);
}

/* Where the buffers lie. */
static const char *memory_of(const ddpi_reduce_sweep *sweep)
{
    if (on_gpus(sweep))
        return "gpu";
    return sweep->opts->memory == DDPI_REDUCE_WINDOW ? "window" : "private";
}

static double bus_factor(const ddpi_reduce_sweep *sweep)
{
    return 2.0 * (sweep->ranks - 1) / sweep->ranks;
}

static double bound(const ddpi_reduce_sweep *sweep, const ddpi_reduce_row *row)
{
    return 2.0 * (double)row->bytes * sweep->ranks / sweep->copy_bytes_per_s / row->seconds.median;
}

/* ---- table ---- */

static void add_row(const ddpi_reduce_sweep *sweep, const ddpi_reduce_row *row,
                    ddpi_bench_table *table)
{
    ddpi_bench_table_add(table, "%s", algorithm_of(sweep, row));
    ddpi_bench_table_add(table, "%s", ddp_dtype_name(row->type));
    ddpi_bench_table_add(table, "%zu", row->bytes);
    ddpi_bench_table_add(table, "%d", row->seconds.count);
    ddpi_bench_table_add(table, "%.1f", row->seconds.min * 1e6);
    ddpi_bench_table_add(table, "%.1f", row->seconds.median * 1e6);
    ddpi_bench_table_add(table, "%.1f", row->seconds.p90 * 1e6);
    ddpi_bench_table_add(table, "%.3f", algbw(row));
    ddpi_bench_table_add(table, "%.3f", algbw(row) * bus_factor(sweep));
    if (sweep->hosts == 1 && !on_gpus(sweep))
        ddpi_bench_table_add(table, "%.2f", bound(sweep, row));
    else
        ddpi_bench_table_add(table, "-");
    ddpi_bench_table_add(table, "%lld", (long long)row->wrong);
}

static ddp_status print(const ddpi_reduce_sweep *sweep, ddpi_bench_out *out)
{
    static const char *const heads[] = {"algorithm",  "type",      "bytes",  "samples",
                                        "min us",     "median us", "p90 us", "algbw GB/s",
                                        "busbw GB/s", "bound",     "wrong",  NULL};
    ddpi_bench_table *table;

    DDP_TRY(ddpi_bench_table_create(heads, &table));
    for (int i = 0; i < sweep->row_count; i++)
        add_row(sweep, &sweep->rows[i], table);
    ddpi_bench_say(out, "Allreduce of %d ranks on %d host%s, in place, memory: %s", sweep->ranks,
                   sweep->hosts, sweep->hosts == 1 ? "" : "s", memory_of(sweep));
    if (on_gpus(sweep))
        ddpi_bench_say(out, ".\n\n");
    else
        ddpi_bench_say(out, "; all ranks copy %.1f GB/s (read and written).\n\n",
                       sweep->copy_bytes_per_s / 1e9);
    ddp_status st = ddpi_bench_table_print(table, out);
    ddpi_bench_table_destroy(table);
    return st;
}

/* ---- curves: rows with one algorithm and type ---- */

static int curve_end(const ddpi_reduce_sweep *sweep, int from)
{
    const ddpi_reduce_row *first = &sweep->rows[from];
    int i = from;

    while (i < sweep->row_count && sweep->rows[i].algorithm == first->algorithm &&
           sweep->rows[i].type == first->type)
        i++;
    return i;
}

static ddp_status points_json(const ddpi_reduce_sweep *sweep, int from, int to, ddp_json **out)
{
    ddp_json *points, *point;

    DDP_TRY(ddp_json_array(&points));
    for (int i = from; i < to; i++) {
        ddp_status st = ddp_json_object(&point);
        if (st != DDP_OK) {
            ddp_json_destroy(points);
            return st;
        }
        ddp_json_set_int(point, "bytes", (int64_t)sweep->rows[i].bytes);
        ddp_json_set_number(point, "seconds", sweep->rows[i].seconds.median);
        ddp_json_append(points, point);
    }
    *out = points;
    return DDP_OK;
}

static ddp_status row_json(const ddpi_reduce_sweep *sweep, const ddpi_reduce_row *row,
                           ddp_json *rows)
{
    ddp_json *json;

    DDP_TRY(ddp_json_object(&json));
    ddp_json_set_string(json, "algorithm", algorithm_of(sweep, row));
    ddp_json_set_string(json, "type", ddp_dtype_name(row->type));
    ddp_json_set_int(json, "bytes", (int64_t)row->bytes);
    ddp_json_set_int(json, "samples", row->seconds.count);
    ddp_json_set_number(json, "min_s", row->seconds.min);
    ddp_json_set_number(json, "median_s", row->seconds.median);
    ddp_json_set_number(json, "p90_s", row->seconds.p90);
    ddp_json_set_number(json, "mean_s", row->seconds.mean);
    ddp_json_set_number(json, "algbw_GBps", algbw(row));
    ddp_json_set_number(json, "busbw_GBps", algbw(row) * bus_factor(sweep));
    ddp_json_set_number(json, "bound", bound(sweep, row));
    ddp_json_set_int(json, "wrong", row->wrong);
    ddp_json_append(rows, json);
    return DDP_OK;
}

static ddp_status fill_json(const ddpi_reduce_sweep *sweep, ddp_json *json)
{
    ddp_json *points, *rows;

    ddp_json_set_string(json, "bench", "allreduce");
    ddp_json_set_int(json, "ranks", sweep->ranks);
    ddp_json_set_int(json, "hosts", sweep->hosts);
    ddp_json_set_string(json, "memory", memory_of(sweep));
    ddp_json_set_number(json, "copy_GBps", sweep->copy_bytes_per_s / 1e9);
    ddp_json_set_number(json, "bus_factor", bus_factor(sweep));
    /* The first curve alone is what cost models read. */
    DDP_TRY(points_json(sweep, 0, curve_end(sweep, 0), &points));
    ddp_json_set(json, "points", points);
    DDP_TRY(ddp_json_array(&rows));
    ddp_json_set(json, "rows", rows);
    for (int i = 0; i < sweep->row_count; i++)
        DDP_TRY(row_json(sweep, &sweep->rows[i], rows));
    return DDP_OK;
}

static ddp_status write_json(const ddpi_reduce_sweep *sweep, const ddpi_bench_out *out)
{
    ddp_json *json;

    DDP_TRY(ddp_json_object(&json));
    ddp_status st = fill_json(sweep, json);
    if (st == DDP_OK)
        st = ddpi_bench_out_json(out, json);
    ddp_json_destroy(json);
    return st;
}

/* ---- picture ---- */

static ddp_status draw(const ddpi_reduce_sweep *sweep, ddpi_bench_out *out, double *values)
{
    ddpi_bench_series series[MAX_CURVES];
    char titles[MAX_CURVES][32], title[96];
    int count = 0;

    for (int from = 0; from < sweep->row_count && count < MAX_CURVES; count++) {
        int to = curve_end(sweep, from);
        for (int i = from; i < to; i++) {
            values[2 * i] = (double)sweep->rows[i].bytes;
            values[2 * i + 1] = sweep->rows[i].seconds.median * 1e6;
        }
        snprintf(titles[count], sizeof titles[count], "%s %s",
                 algorithm_of(sweep, &sweep->rows[from]), ddp_dtype_name(sweep->rows[from].type));
        series[count] = (ddpi_bench_series){.title = titles[count],
                                            .style = "using 1:2 with linespoints pt 7 ps 0.6",
                                            .values = values + 2 * (size_t)from,
                                            .rows = to - from,
                                            .columns = 2};
        from = to;
    }
    snprintf(title, sizeof title, "Allreduce of %d ranks on %d host%s", sweep->ranks, sweep->hosts,
             sweep->hosts == 1 ? "" : "s");
    const ddpi_bench_plot plot = {.name = "allreduce",
                                  .title = title,
                                  .x = "buffer, bytes",
                                  .y = "median time, microseconds",
                                  .setup = "set logscale x 2\nset logscale y\n"
                                           "set format x '%.0b %BB'\n",
                                  .series = series,
                                  .series_count = count};
    return ddpi_bench_draw(out, &plot);
}

ddp_status ddpi_reduce_report(const ddpi_reduce_sweep *sweep, ddpi_bench_out *out)
{
    double *values;

    DDP_TRY(print(sweep, out));
    DDP_TRY(write_json(sweep, out));
    DDP_TRY(DDP_ALLOC(values, 2 * (size_t)sweep->row_count));
    ddp_status st = draw(sweep, out, values);
    ddp_free(values);
    return st;
}
