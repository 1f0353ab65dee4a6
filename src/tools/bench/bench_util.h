/* bench_util.h - what the subcommands of ddp_bench share: options, statistics, tables, files and
 * pictures. Local; one thread. */
#ifndef DDP_TOOLS_BENCH_BENCH_UTIL_H
#define DDP_TOOLS_BENCH_BENCH_UTIL_H

#include <stdio.h>

#include "ddp/json.h"
#include "ddp/options.h"
#include "tools/bench/bench.h"

/* ---- options (bench_args.c) ---- */

/* Where results go. Every subcommand has these options: put ddpi_bench_out_options into a group
 * whose target is one of these. */
typedef struct ddpi_bench_out {
    const char *dir;     /* NULL: standard output only */
    const char *gnuplot; /* the program */
    const char *name;    /* of the files, set by ddpi_bench_out_open() */
    FILE *text;          /* DIR/NAME.txt */
} ddpi_bench_out;
extern const ddp_option ddpi_bench_out_options[];
#define DDPI_BENCH_OUT_DEFAULTS                                                                    \
    {                                                                                              \
        .gnuplot = "gnuplot"                                                                       \
    }

typedef struct ddpi_bench_form {
    const char *program; /* "ddp_bench allreduce" */
    const char *doc;
    const ddp_option_group *groups;
    size_t group_count;
} ddpi_bench_form;
/* Reads the command line into the groups' targets, whose strings belong to *options_out.
 * *run_out is false where --help and the like were answered. The caller destroys *options_out, also
 * after a failure. */
DDP_INNER ddp_status ddpi_bench_parse(const ddpi_bench_call *call, const ddpi_bench_form *form,
                                      ddp_options **options_out, bool *run_out);

/* "1,2,4" into at most limit numbers of [min, max]; with sizes, K, M and G may follow (1024, ...).
 * DDP_ERR_USAGE names the option. */
typedef struct ddpi_bench_list {
    const char *option;
    int64_t min, max;
    bool sizes;
    int limit;
} ddpi_bench_list;
DDP_INNER ddp_status ddpi_bench_numbers(const ddpi_bench_list *list, const char *text,
                                        int64_t *values_out, int *count_out);

/* ---- statistics (bench_stats.c) ---- */

typedef struct ddpi_bench_stats {
    int count;
    double min, p25, median, p75, p90, max, mean;
} ddpi_bench_stats;
/* Sorts the values. Quantiles are interpolated between neighbours: q lies at q * (count - 1). All
 * zero without values. */
ddpi_bench_stats ddpi_bench_measure(double *values, int count);

/* ---- tables (bench_table.c) ---- */

typedef struct ddpi_bench_table ddpi_bench_table;
/* heads ends with NULL. The caller owns *table_out. */
DDP_INNER ddp_status ddpi_bench_table_create(const char *const *heads,
                                             ddpi_bench_table **table_out);
void ddpi_bench_table_destroy(ddpi_bench_table *table);
/* The next cell, row by row. Without memory for it, printing fails. */
void ddpi_bench_table_add(ddpi_bench_table *table, const char *fmt, ...) DDP_PRINTF(2, 3);
/* In columns that Markdown reads, too. */
DDP_INNER ddp_status ddpi_bench_table_print(const ddpi_bench_table *table, ddpi_bench_out *out);

/* ---- files (bench_out.c) ---- */

/* Makes the folder, for which it would be a pity to fail when all is measured. */
DDP_INNER ddp_status ddpi_bench_out_check(const ddpi_bench_out *out);
/* Makes the folder, and NAME.txt in it, for what is said from now on. name is borrowed. */
DDP_INNER ddp_status ddpi_bench_out_open(ddpi_bench_out *out, const char *name);
/* Prints on standard output and into NAME.txt. */
void ddpi_bench_say(ddpi_bench_out *out, const char *fmt, ...) DDP_PRINTF(2, 3);
/* Writes NAME.json; without --out nothing. */
DDP_INNER ddp_status ddpi_bench_out_json(const ddpi_bench_out *out, const ddp_json *value);
/* Also after a failed open. DDP_ERR_IO: not all that was said has arrived. */
DDP_INNER ddp_status ddpi_bench_out_close(ddpi_bench_out *out);

/* ---- pictures (bench_plot.c) ---- */

typedef struct ddpi_bench_series {
    const char *title; /* in the key; NULL: not there */
    const char *style; /* what follows the data in gnuplot's plot: "using 1:2 with linespoints" */
    const double *values; /* [rows][columns] */
    int rows, columns;
} ddpi_bench_series;
typedef struct ddpi_bench_plot {
    const char *name; /* of the files */
    const char *title, *x, *y;
    const char *setup; /* more of gnuplot's commands, each with its newline; NULL: none */
    const ddpi_bench_series *series;
    int series_count;
} ddpi_bench_plot;
/* Writes NAME.gp, data included, and has gnuplot make NAME.svg of it. Without gnuplot it says so,
 * keeps the script, and is content. Without --out nothing is done. */
DDP_INNER ddp_status ddpi_bench_draw(ddpi_bench_out *out, const ddpi_bench_plot *plot);

#endif
