/* bench.h - the subcommands of ddp_bench. Each reads its own options, prints its table, and with
 * --out writes NAME.txt, NAME.json and NAME.svg. One thread, but for the ranks of loopback. */
#ifndef DDP_TOOLS_BENCH_BENCH_H
#define DDP_TOOLS_BENCH_BENCH_H

#include "ddp/status.h"

/* A subcommand as it was called; argv[0] is its name. */
typedef struct ddpi_bench_call {
    int argc;
    char **argv;
    char **envp;
    int launcher_rank; /* the launcher's word; 0 without one */
} ddpi_bench_call;

/* Under mpirun. */
DDP_INNER ddp_status ddpi_bench_allreduce(const ddpi_bench_call *call);

/* Plain processes, which start ddp_train. */
DDP_INNER ddp_status ddpi_bench_overlap(const ddpi_bench_call *call);
DDP_INNER ddp_status ddpi_bench_scaling(const ddpi_bench_call *call);
DDP_INNER ddp_status ddpi_bench_predict(const ddpi_bench_call *call);
DDP_INNER ddp_status ddpi_bench_sleepstep(const ddpi_bench_call *call);

/* Local. Runs a whole command line and returns the exit status: 0, 1 failed, 2 usage. */
int ddpi_bench_main(int argc, char **argv, char **envp);

#endif
