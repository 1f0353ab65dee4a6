/* run.h - one rank's run from an open communicator to its end: what the stages hand on.
 *
 * A run is a list of stages (run.c). Every stage that one rank alone may fail ends in
 * ddp_comm_agree(), so that all ranks leave at the same place. One thread: the rank's main one. */
#ifndef DDP_APP_RUN_H
#define DDP_APP_RUN_H

#include <limits.h>
#include <sched.h>

#include "app/resume.h"
#include "app/wiring.h"
#include "ddp/events.h"
#include "ddp/metrics.h"
#include "ddp/stragglers.h"

enum { DDPI_HOST_BYTES = 64, DDPI_NETWORK_BYTES = 16 };

/* What the process knows before there are ranks. Read only while ranks run. */
typedef struct ddpi_app {
    int argc;
    char **argv;
    char **envp;
    bool launched;     /* by mpirun or srun, as one of several tasks or as the only one */
    int launcher_rank; /* 0 if not launched */
    int launcher_size; /* 0: unknown */
    bool threads;      /* ranks are threads of this process */
    int64_t start_ns;  /* when the process began, and how many cores it had then */
    int start_cores;
    const ddpi_registry *registry;
    ddp_config *config;
    ddpi_resume *resume; /* NULL without --resume */
    int64_t deadline_ns; /* to be gone by */
    ddp_status early;    /* of the options: every rank fails with it, once they can talk */
    char early_message[1024];
} ddpi_app;

/* Gathered from every rank. Plain bytes. */
typedef struct ddpi_rank_info {
    char host[DDPI_HOST_BYTES];
    char network[DDPI_NETWORK_BYTES];   /* the interface by which other hosts are reached, or "-" */
    int32_t node, pid, threads, online; /* online: cores of the host */
    cpu_set_t cores;
    ddpi_cuda_identity gpu; /* empty: it computes on the CPU */
} ddpi_rank_info;

/* What gradients on the device travel through. */
typedef enum ddpi_lane_choice {
    DDPI_LANE_NONE,   /* they are host memory: the communicator itself */
    DDPI_LANE_STAGED, /* copied to host memory and back */
    DDPI_LANE_DIRECT, /* messages from and into device memory */
    DDPI_LANE_NCCL
} ddpi_lane_choice;

/* Where a rank computes (run_device.c). */
typedef struct ddpi_run_place {
    const ddp_cuda_module *cuda; /* NULL: on the CPU, like all ranks */
    int visible;                 /* GPUs, to this process, where it has looked for them */
    ddpi_cuda_identity gpu;
    ddpi_lane_choice lane;
} ddpi_run_place;

typedef struct ddpi_run_data {
    ddp_dataset *whole; /* the training set as it was opened */
    ddp_dataset *train; /* whole, or the part of it that --val-split leaves */
    ddp_dataset *val;   /* NULL without --val-split */
    ddp_dataset *test;
    ddp_transform *train_transform; /* NULL with --eval-only */
    ddp_transform *eval_transform;  /* of test and val */
    ddp_sampler sampler;
} ddpi_run_data;

typedef struct ddpi_run_net {
    ddp_device *device;
    ddp_model *model;
    ddp_loader *loader;     /* NULL with --eval-only, like strategy */
    ddp_strategy *strategy; /* owns the parameters */
    ddp_saver *saver;
    ddp_timeline *timeline; /* NULL: none can be written */
    float *params;
    float *running;         /* running statistics; NULL: the strategy's, or none */
    size_t eval_only_bytes; /* of params and running, where there is no strategy that owns them */
    int64_t batches;        /* counted by the file of initial weights */
    uint64_t running_hash;  /* of the statistics in that file */
    float *logits;          /* of the test set; NULL without --dump-logits, like labels */
    int64_t *labels;
    ddp_eval *test, *val; /* val: NULL without --val-split */
    double peak_flops;    /* of the machine, as far as the ranks can use it */
} ddpi_run_net;

/* How the logical shards are dealt, all ranks alike. [world] each; NULL with --eval-only. */
typedef struct ddpi_run_shares {
    int64_t *counts;
    double *weights;
    double *seconds; /* of a shard's forward and backward; NULL unless weights are measured */
} ddpi_run_shares;

typedef struct ddpi_buckets ddpi_buckets;

typedef struct ddpi_run {
    const ddpi_app *app;
    ddp_config config; /* this rank's */
    ddp_comm *comm;
    int rank, world;
    ddp_log *log;
    ddp_spans *spans; /* what the rank's threads do */
    bool agreed;      /* a failure that all ranks have agreed on */
    ddpi_rank_info *ranks;
    ddpi_run_place place;
    char dir[PATH_MAX];   /* "" until it exists */
    int lock;             /* rank 0's: descriptor + 1 of the directory's lock */
    ddp_metrics *metrics; /* rank 0's */
    ddpi_run_data data;
    ddpi_run_net net;
    ddpi_run_shares shares;
    ddpi_buckets *buckets; /* how they were chosen; NULL: by size */
    ddp_run_state start;   /* where the run goes on */
    ddp_run_summary summary;
    ddp_eval_result val;
} ddpi_run;

/* Collective. Runs one rank to its end, closes comm, and returns what all ranks return, except
 * where the communicator itself failed. message has the cause then; it is printed already, unless
 * ranks are threads. */
DDP_INNER ddp_status ddpi_run_rank(const ddpi_app *app, ddp_comm *comm, char *message,
                                   size_t message_bytes);
/* Runs --loopback-ranks ranks as threads and prints the cause of a failure once. */
DDP_INNER ddp_status ddpi_loopback_run(const ddpi_app *app, const ddp_comm_opts *opts, int world);

/* Collective. All ranks return the same; remembers a failure as agreed. */
DDP_INNER ddp_status ddpi_run_agree(ddpi_run *run, ddp_status mine, const char *what);

/* ---- stages ---- */
DDP_INNER ddp_status ddpi_run_find_start(ddpi_run *run);     /* run_save.c */
DDP_INNER ddp_status ddpi_run_find_machine(ddpi_run *run);   /* environment.c */
DDP_INNER ddp_status ddpi_run_open_data(ddpi_run *run);      /* run_data.c */
DDP_INNER ddp_status ddpi_run_open_model(ddpi_run *run);     /* run_model.c */
DDP_INNER ddp_status ddpi_run_open_dir(ddpi_run *run);       /* run_dir.c */
DDP_INNER ddp_status ddpi_run_deal(ddpi_run *run);           /* run_shares.c */
DDP_INNER ddp_status ddpi_run_open_training(ddpi_run *run);  /* run_model.c */
DDP_INNER ddp_status ddpi_run_load_weights(ddpi_run *run);   /* run_weights.c */
DDP_INNER ddp_status ddpi_run_prepare_saving(ddpi_run *run); /* run_save.c */
DDP_INNER ddp_status ddpi_run_compare_models(ddpi_run *run); /* run_model.c */
DDP_INNER ddp_status ddpi_run_measure_peak(ddpi_run *run);   /* run_model.c */
DDP_INNER ddp_status ddpi_run_describe(ddpi_run *run);       /* records.c */
DDP_INNER ddp_status ddpi_run_work(ddpi_run *run);           /* run_train.c */
DDP_INNER ddp_status ddpi_run_verify(ddpi_run *run);         /* run_verify.c */
DDP_INNER ddp_status ddpi_run_save_weights(ddpi_run *run);   /* run_weights.c */
DDP_INNER ddp_status ddpi_run_finish(ddpi_run *run);         /* records.c */

/* ---- pieces ---- */
/* From here on another run may use the directory. */
void ddpi_run_unlock_dir(ddpi_run *run);
/* Collective. Makes these steps, counted over the run from 0, and nothing beside; losses are means
 * over each step's samples. */
DDP_INNER ddp_status ddpi_run_steps(ddpi_run *run, ddp_strategy *strategy, ddp_loader *loader,
                                    ddp_range steps, double *losses);
DDP_INNER ddp_status ddpi_run_verify_resume(ddpi_run *run);
/* Collective. All of a run with --replay, once the machine is known. */
DDP_INNER ddp_status ddpi_run_replay(ddpi_run *run);
/* Collective. A new loader and a new strategy without weights; there is no saver any more. */
DDP_INNER ddp_status ddpi_run_restart(ddpi_run *run);
/* Collective. A checkpoint in the run's directory, whatever the options say. */
DDP_INNER ddp_status ddpi_run_save_at(ddpi_run *run, const ddp_run_state *state,
                                      char path[PATH_MAX]);
/* Local. Goes on from a checkpoint. */
DDP_INNER ddp_status ddpi_run_load_at(ddpi_run *run, const char *path, ddp_run_state *state_out);
/* Rank 0 warns of ranks that the launcher has bound badly (run_doctor.c). */
void ddpi_run_warn_of_binding(const ddpi_run *run);
/* Collective. All of a run with --doctor (run_doctor.c). */
DDP_INNER ddp_status ddpi_run_doctor(ddpi_run *run);
/* Collective. The options of all ranks are the same. */
DDP_INNER ddp_status ddpi_run_compare_options(ddpi_run *run);
/* Device, lane and model, without plans. */
DDP_INNER ddp_status ddpi_run_create_model(ddpi_run *run);
/* Local. Whether a new run may use the directory, as far as its files tell; makes nothing. */
DDP_INNER ddp_status ddpi_run_check_dir(const ddpi_run *run);
/* Whether the run proves something instead of training. */
bool ddpi_run_verifies(const ddpi_run *run);
/* Collective. Fills run->ranks with what the ranks are now. */
DDP_INNER ddp_status ddpi_run_share_info(ddpi_run *run);
/* Collective. Device, GPU and lane, from run->ranks, which then has the GPUs, too. */
DDP_INNER ddp_status ddpi_run_choose_device(ddpi_run *run);
/* Collective. Attaches the lane to the communicator, before anything asks that for memory. */
DDP_INNER ddp_status ddpi_run_attach_lane(ddpi_run *run);
/* What carries gradients: the lane or, without one, the communicator. */
const char *ddpi_run_lane_name(const ddpi_run *run);
/* Rank 0 logs where all ranks are. */
DDP_INNER ddp_status ddpi_run_log_places(const ddpi_run *run);
void ddpi_run_close_data(ddpi_run *run);
void ddpi_run_close_model(ddpi_run *run);
/* Collective. The running statistics that the ranks have read are the same. */
DDP_INNER ddp_status ddpi_run_compare_running(const ddpi_run *run);
/* With --dump-logits: memory for the test set's logits, and rank 0's file of them. */
DDP_INNER ddp_status ddpi_run_keep_logits(ddpi_run *run, ddp_eval_opts *opts);
DDP_INNER ddp_status ddpi_run_save_logits(const ddpi_run *run);
/* Whether the run goes on from a checkpoint, and that checkpoint in place of initial weights. */
bool ddpi_run_resumes(const ddpi_run *run);
DDP_INNER ddp_status ddpi_run_load_checkpoint(ddpi_run *run);
void ddpi_run_close_shares(ddpi_run *run);
/* Number of the first logical shard of this rank. */
int64_t ddpi_run_first_shard(const ddpi_run *run);
/* What --rank-weights came to: lines for the console, keys for the run record. Nothing without the
 * option. */
void ddpi_run_print_shares(const ddpi_run *run);
DDP_INNER ddp_status ddpi_run_add_shares(const ddpi_run *run, ddp_json *record);
/* Collective. With --bucket-cap-mb auto: measures, and cuts the gradients' buckets by it; what it
 * came to as lines for the console, and as keys for the run record. Else nothing. */
DDP_INNER ddp_status ddpi_run_choose_buckets(ddpi_run *run);
void ddpi_run_print_buckets(const ddpi_run *run);
DDP_INNER ddp_status ddpi_run_add_buckets(const ddpi_run *run, ddp_json *record);
/* Rank 0: the run directory's layers.json. */
DDP_INNER ddp_status ddpi_run_write_layers(const ddpi_run *run);
/* Rank 0, each step: after a few says what training came to. */
void ddpi_run_watch_buckets(const ddpi_run *run, const ddp_step_stats *stats);
void ddpi_run_close_buckets(ddpi_run *run);
/* How the run has ended, unless it failed: "trained", "evaluated", "stopped". */
const char *ddpi_run_status_word(const ddpi_run *run);
/* Writes the run directory's status file, if there is a directory. Any rank may say "failed": it
 * may be rank 0 that is gone. */
void ddpi_run_write_status(const ddpi_run *run, const char *word);
/* The process is about to end for a failure: this rank's last works, as a file; and, by the rank
 * that has said the cause, a page of all ranks (run_failure.c). */
void ddpi_run_write_failure(const ddpi_run *run);
void ddpi_run_merge_failure(const ddpi_run *run);
/* Rank 0, before the run: what an earlier failure of a run that goes on has left. */
DDP_INNER ddp_status ddpi_run_put_failure_aside(const ddpi_run *run);
/* Rank 0's path of a file in the run directory. */
DDP_INNER ddp_status ddpi_run_path(const ddpi_run *run, const char *name, char path[PATH_MAX]);
/* Writes environment.json; rank 0 calls it. */
DDP_INNER ddp_status ddpi_environment_write(const ddpi_run *run);
/* "0-3,8" */
char *ddpi_cores_format(const cpu_set_t *cores, char *text, size_t text_bytes);
/* Cores of all nodes that the ranks may use. */
int ddpi_run_core_count(const ddpi_run *run);

/* Listeners of rank 0: progress, metrics, a line an epoch. */
typedef struct ddpi_observer_state {
    ddpi_run *run;
    double rate;                /* smoothed, images/s */
    int64_t last_ns;            /* the end of the step before; 0: there was none */
    ddp_stragglers *stragglers; /* of the epoch */
    ddp_events *events;         /* NULL: not wanted */
    int64_t step;               /* the last */
} ddpi_observer_state;
/* Rank 0. *state outlives the observer. */
DDP_INNER ddp_status ddpi_observer_open(ddpi_observer_state *state, ddpi_run *run,
                                        ddp_observer *observer_out);
void ddpi_observer_close(ddpi_observer_state *state);

#endif
