/* scaling.h - the parts of ddp_bench scaling: what is run (scaling.c), what the times say
 * (scaling_split.c), and how it is told (scaling_report.c).
 *
 * A case is a number of ranks on some data, weak (the batch of a rank stays) or strong (the global
 * batch stays). Beside it, one rank trains with the batch that each of its ranks has: alone, and
 * while copies of it keep as many cores busy as the case does, so that shared caches and clocks are
 * the same. The efficiency is the ideal time of a step over the measured one; the ideal is the time
 * of one rank, for strong scaling with the global batch and divided by the ranks. */
#ifndef DDP_TOOLS_BENCH_SCALING_H
#define DDP_TOOLS_BENCH_SCALING_H

#include "ddp/cost.h"
#include "tools/bench/runs.h"

enum { DDPI_SCALING_MAX_RANKS = 16, DDPI_SCALING_MAX_DATA = 4 };

typedef enum ddpi_scaling_mode { DDPI_SCALING_WEAK, DDPI_SCALING_STRONG } ddpi_scaling_mode;

/* Where a step's lost share went: the parts add up to `lost`, and each may be a little below zero,
 * where noise is larger than it. */
typedef struct ddpi_scaling_split {
    double efficiency, lost;   /* of the measured step's time; lost = 1 - efficiency */
    double latency, bandwidth; /* communication that nothing hid, by what it is made of */
    double stragglers;         /* the mean rank waits for the slowest */
    double data;               /* waits for data */
    double batch;              /* strong: a smaller batch is computed less efficiently */
    double compute;            /* computing itself is slower */
    double rest;
    double ceiling; /* the best efficiency that the measured link allows */
} ddpi_scaling_split;

typedef struct ddpi_scaling_case {
    const char *data;
    ddpi_scaling_mode mode;
    int ranks;
    int64_t rank_batch;
    ddpi_run_times run;
    ddpi_run_times base;  /* one rank with rank_batch, as --base says */
    ddpi_run_times alone; /* the same, with nothing beside it */
    ddpi_run_times full;  /* strong: one rank with the global batch, as --base says */
    ddp_cost_curve curve; /* of an allreduce between these ranks; empty for one rank */
    ddpi_scaling_split split;
    double efficiency_min, efficiency_max; /* over repeats */
    double efficiency_alone;               /* against one rank alone */
} ddpi_scaling_case;

/* Local. Fills in split from the times and the curve. */
void ddpi_scaling_divide(ddpi_scaling_case *c);
/* Local. The time of a step that one would have without any loss. */
double ddpi_scaling_ideal(ddpi_scaling_mode mode, int ranks, const ddpi_run_times *base,
                          const ddpi_run_times *full);

/* Local. Tables, JSON and pictures. */
DDP_INNER ddp_status ddpi_scaling_report(const ddpi_scaling_case *cases, int count, bool busy,
                                         ddpi_bench_out *out);

#endif
