/* config.h - every option of ddp_train in one struct, and the values computed from several of them.
 */
#ifndef DDP_CONFIG_H
#define DDP_CONFIG_H

#include "ddp/log.h"
#include "ddp/options.h"
#include "ddp/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --device, --comm, --strategy as indices into their choices. */
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

typedef struct ddp_run_opts {
    const char *model, *mlp_widths, *input_shape, *run_dir, *init_weights, *save_weights,
        *normalize;
    int64_t batch_size, batch_per_rank, accumulate, logical_ranks, workers, threads, seed,
        loopback_ranks;
    int device, comm, strategy, lr_scale;
    double lr_base_batch, val_split, label_smoothing;
    bool drop_last, eval_only, quiet;
} ddp_run_opts;

typedef struct ddp_config {
    ddp_run_opts run;
    ddp_data_opts data;
    ddp_device_opts device; /* choose is set later */
    int64_t conv_algo;      /* choice */
    ddp_comm_opts comm;
    ddp_reducer_opts reducer;
    ddp_optim_opts optim;
    ddp_trainer_opts trainer;
    double comm_timeout_s;
    /* computed */
    double lr; /* effective */
    int64_t global_batch, shards;
} ddp_config;

#ifdef __cplusplus
}
#endif
#endif
