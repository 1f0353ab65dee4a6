/* runs.h - starts runs of ddp_train and reads what they have recorded. Local; one thread. */
#ifndef DDP_TOOLS_BENCH_RUNS_H
#define DDP_TOOLS_BENCH_RUNS_H

#include <sys/types.h>

#include "tools/bench/bench_util.h"

enum { DDPI_RUN_PATH = 1024 };

/* How a program is started: the words of launcher, "-n RANKS", the program, the words of args, the
 * words of more, and dir_option with dir, each as it is. Words are divided by spaces. All
 * borrowed. */
typedef struct ddpi_run_plan {
    const char *launcher; /* NULL: the program alone, as one rank */
    int ranks;
    const char *program;
    const char *args, *more;      /* NULL: none */
    const char *dir_option, *dir; /* the folder that it fills */
    const char *log;              /* file for what it prints */
    int core;                     /* of those that this process may use, counted; -1: all of them */
} ddpi_run_plan;

/* The program of that name beside this one, unless another was chosen (NULL: none was). */
DDP_INNER ddp_status ddpi_run_program(const char *name, const char *chosen,
                                      char path[DDPI_RUN_PATH]);
/* The folder for runs: the one that was chosen, or (NULL) a new one in /tmp. From now on signals
 * that end a process (TERM, INT, HUP) are held back: they end the run, and it fails. */
DDP_INNER ddp_status ddpi_run_folder(const char *chosen, char path[DDPI_RUN_PATH]);
/* After all runs, with what has come of them, which it returns. The folder in /tmp goes, unless a
 * run has failed by itself: then standard error says where the logs are. Signals that were held
 * back have their effect here. */
DDP_INNER ddp_status ddpi_run_folder_close(const char *chosen, const char *path, ddp_status st);
/* Starts it and does not wait. */
DDP_INNER ddp_status ddpi_run_start(const ddpi_run_plan *plan, pid_t *pid_out);
/* Waits for it. DDP_ERR_IO if it failed: with its exit status, its command and its last lines; or
 * if a signal came for this process: the run was told to end, and what it has written is gone. */
DDP_INNER ddp_status ddpi_run_wait(const ddpi_run_plan *plan, pid_t pid);

/* Medians over a run's steps but the first ones, in seconds. See README for what they mean. */
typedef struct ddpi_run_times {
    int steps;
    double wall; /* from the end of a step to that of the next */
    double data, forward, backward, comm, exposed, optim, compute; /* slowest rank */
    double mean_data, mean_exposed, mean_compute, least_exposed;
    double samples;        /* of a step, over all ranks */
    double gradient_bytes; /* of the whole model, as it is sent */
    double first_bucket_bytes, bucket_bytes;
    int ranks, hosts;
    bool hides; /* communication goes on by itself while ranks compute */
} ddpi_run_times;
/* The times among them, by number. */
enum { DDPI_RUN_FIELDS = 12 };
double *ddpi_run_field(ddpi_run_times *times, int field);
/* Reads DIR/metrics.jsonl and leaves out the first `skip` steps. DDP_ERR_FORMAT if nothing is left,
 * or a record lacks what is needed. */
DDP_INNER ddp_status ddpi_run_read(const char *dir, int skip, ddpi_run_times *times_out);

#endif
