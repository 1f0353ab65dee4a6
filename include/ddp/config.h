/* config.h - every option of ddp_train in one struct, and the values computed from several of them.
 *
 * The struct is made of the modules' own option structs, so that each module is handed its part
 * unchanged. Order of life: create (defaults), parse (sources, rules that need nothing else),
 * resolve (what depends on the number of ranks), then the checks against data and machine. After
 * resolve a plain copy of the struct is a rank's own. Every refusal is DDP_ERR_USAGE and names the
 * option, what was found and what was expected. Local; one thread. */
#ifndef DDP_CONFIG_H
#define DDP_CONFIG_H

#include "ddp/log.h"
#include "ddp/options.h"
#include "ddp/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --device, --comm, --strategy, --lr-scale as indices into their choices. */
typedef enum ddp_device_choice {
    DDP_DEVICE_AUTO,
    DDP_DEVICE_CPU,
    DDP_DEVICE_CUDA
} ddp_device_choice;
typedef enum ddp_comm_choice {
    DDP_COMM_AUTO,
    DDP_COMM_NCCL,
    DDP_COMM_MPI,
    DDP_COMM_LOOPBACK
} ddp_comm_choice;
typedef enum ddp_strategy_choice {
    DDP_STRATEGY_DDP,
    DDP_STRATEGY_SYNC,
    DDP_STRATEGY_NAIVE
} ddp_strategy_choice;
typedef enum ddp_lr_scale {
    DDP_LR_SCALE_NONE,
    DDP_LR_SCALE_LINEAR,
    DDP_LR_SCALE_SQRT
} ddp_lr_scale;

/* --mpi-device-buffers: may messages be sent from GPU memory itself? */
typedef enum ddp_device_buffers {
    DDP_DEVICE_BUFFERS_AUTO,
    DDP_DEVICE_BUFFERS_ON,
    DDP_DEVICE_BUFFERS_OFF
} ddp_device_buffers;
typedef enum ddp_bind { DDP_BIND_AUTO, DDP_BIND_NONE } ddp_bind;
typedef enum ddp_precision {
    DDP_PRECISION_FP32,
    DDP_PRECISION_BF16,
    DDP_PRECISION_FP16
} ddp_precision;

typedef enum ddp_compress {
    DDP_COMPRESS_NONE,
    DDP_COMPRESS_POWERSGD,
    DDP_COMPRESS_TOPK
} ddp_compress;

enum { DDP_CONFIG_MAX_CHANNELS = 64 };

/* Weights of ranks count as met when no rank's part of the shards differs by more than this,
 * relatively. */
#define DDP_CONFIG_SHARE_TOLERANCE 0.02

/* Options as given that belong to no module alone. Texts may be NULL: not given. */
typedef struct ddp_run_opts {
    const char *model, *input_shape, *normalize, *run_dir, *init_weights, *save_weights,
        *dump_logits, *freeze, *rank_weights, *resume, *time_limit, *loss_scale, *replay, *inject,
        *bucket_cap;
    int64_t batch_size, batch_per_rank, accumulate, micro_batch, logical_ranks;
    int64_t seed, workers, threads, loopback_ranks, verify_world, verify_resume;
    int64_t checkpoint_every, checkpoint_epochs, keep;
    int device, comm, strategy, lr_scale, log_level, precision, grad_dtype, compress, bind,
        cuda_graph, mpi_device_buffers;
    double lr_base_batch, val_split, comm_timeout, mixup, checkpoint_minutes;
    bool drop_last, eval_only, init_partial, quiet, tensorboard, sync_bn, share_device, exact,
        verify_grad;
    bool checkpoint_at_end, keep_best, doctor;
} ddp_run_opts;

/* --normalize in numbers: per channel, or one value for all. */
typedef struct ddp_normalize {
    int count; /* 0: none */
    float mean[DDP_CONFIG_MAX_CHANNELS], deviation[DDP_CONFIG_MAX_CHANNELS];
} ddp_normalize;

typedef struct ddp_config {
    ddp_run_opts run;
    ddp_model_opts model; /* input_shape and classes are the data set's */
    ddp_data_opts data;
    ddp_device_opts device; /* threads: see ddp_config_machine(); choose is the program's */
    ddp_comm_opts comm;
    ddp_reducer_opts reducer;
    ddp_optim_opts optim; /* lr as given */
    ddp_schedule_opts schedule;
    ddp_timeline_opts timeline;
    ddp_trainer_opts trainer;     /* schedule: see ddp_config_resolve_schedule() */
    ddp_transform_opts transform; /* mean and deviation are the program's to set */
    ddp_normalize normalize;
    int64_t global_batch, shards; /* per step, over all ranks */
    bool uneven_shards;           /* ranks need not have equal numbers of them; the program's */
    double time_limit;            /* seconds; 0: none */
    double loss_scale;            /* to begin with; 0: none */
    bool loss_scale_grows;
    bool auto_buckets;    /* --bucket-cap-mb auto; reducer.bucket_cap_mb is the default then */
    double lr;            /* after --lr-scale */
    int workers;          /* loader threads of this rank */
    ddp_options *options; /* owned by what ddp_config_create() gave */
} ddp_config;

/* The caller owns *config_out. doc is the text around the options in --help; borrowed. */
DDP_CALL ddp_status ddp_config_create(const char *doc, ddp_config **config_out);
DDP_API void ddp_config_destroy(ddp_config *config);

/* Reads all sources, then checks what needs neither ranks nor data. Prints nothing. */
DDP_CALL ddp_status ddp_config_parse(ddp_config *config, int argc, char **argv, char **envp,
                                     ddp_options_verdict *verdict_out);
/* Global batch, shards and effective learning rate for this number of ranks. --batch-per-rank
 * becomes --batch-size, so that the values written to config.ini stand for the same run. With
 * --rank-weights reducer.shards stays 0: how the shards are dealt is the program's to find out. */
DDP_CALL ddp_status ddp_config_resolve(ddp_config *config, int world);
/* The learning rates of all steps. */
DDP_CALL ddp_status ddp_config_resolve_schedule(ddp_config *config, int64_t steps_per_epoch);
/* Whether --rank-weights is auto. */
DDP_API bool ddp_config_measures_weights(const ddp_config *config);
/* The numbers of --rank-weights, one for each rank; equal ones without the option or with auto.
 * weights_out: [world]. */
DDP_CALL ddp_status ddp_config_rank_weights(const ddp_config *config, int world,
                                            double *weights_out);
/* Spreads --normalize over the channels and compares the world with the number of training samples.
 */
DDP_CALL ddp_status ddp_config_check_data(ddp_config *config, int world, int64_t samples,
                                          int64_t channels);

/* What a rank may run on: cores of its own affinity mask, cores of all the node's ranks together.
 */
typedef struct ddp_config_cores {
    int own, node, node_ranks;
} ddp_config_cores;
/* Chooses threads and loader workers where they are left to the program. */
DDP_API void ddp_config_machine(ddp_config *config, const ddp_config_cores *cores);

/* key=value lines of what must be the same on every rank. The caller frees the text. */
DDP_CALL ddp_status ddp_config_fingerprint(const ddp_config *config, char **text_out);

#ifdef __cplusplus
}
#endif
#endif
