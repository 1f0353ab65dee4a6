/* validate.c - rules between options, and the values that follow from several of them. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "config/config_impl.h"

#define USAGE(...) DDP_FAIL(DDP_ERR_USAGE, __VA_ARGS__)

/* ---- rules that need neither ranks nor data ---- */

static ddp_status check_optimizer(const ddp_optim_opts *optim)
{
    if (optim->momentum >= 1)
        return USAGE("option --momentum: found %g, expected less than 1", optim->momentum);
    if (optim->nesterov && optim->momentum == 0)
        return USAGE("option --nesterov: found without --momentum, expected a momentum above 0");
    if (optim->nesterov && optim->dampening != 0)
        return USAGE("option --dampening: found %g with --nesterov, expected 0", optim->dampening);
    if (optim->dampening != 0 && optim->momentum == 0)
        return USAGE("option --dampening: found %g without --momentum, expected a momentum above 0",
                     optim->dampening);
    return ddp_optim_check(optim);
}

static ddp_status check_batch(const ddp_config *config)
{
    const ddp_run_opts *run = &config->run;

    /* Values that agree cannot be known before the world is. */
    if (run->batch_per_rank > 0 && ddp_options_was_set(config->options, "batch-size"))
        return USAGE("option --batch-per-rank: found %" PRId64 " beside --batch-size %" PRId64
                     ", expected one of the two",
                     run->batch_per_rank, run->batch_size);
    return DDP_OK;
}

static ddp_status check_compression(const ddp_run_opts *run)
{
    const bool narrow = run->grad_dtype != DDP_PRECISION_FP32;

    if (narrow && run->strategy == DDP_STRATEGY_NAIVE)
        return USAGE("option --grad-dtype: found bf16 or fp16 with --strategy naive, which sends "
                     "gradients as they are; expected ddp or sync");
    if (run->grad_dtype == DDP_PRECISION_FP16 && run->device == DDP_DEVICE_CUDA)
        return USAGE("option --grad-dtype: found fp16 with --device cuda, expected bf16");
    if (run->compress == DDP_COMPRESS_NONE)
        return DDP_OK;
    if (narrow)
        return USAGE("option --compress: found with --grad-dtype bf16 or fp16, expected one of "
                     "them");
    if (run->strategy == DDP_STRATEGY_NAIVE)
        return USAGE("option --compress: found with --strategy naive, which sends gradients as "
                     "they are; expected ddp or sync");
    if (run->device == DDP_DEVICE_CUDA)
        return USAGE("option --compress: found with --device cuda, expected --device cpu, or "
                     "--grad-dtype bf16 instead");
    if (run->verify_resume > 0)
        return USAGE("option --compress: found with --verify-resume, expected none: checkpoints do "
                     "not keep what was left out of the gradients");
    return DDP_OK;
}

static ddp_status check_comm(const ddp_config *config)
{
    const ddp_run_opts *run = &config->run;

    if (run->loopback_ranks > 0 && run->comm != DDP_COMM_AUTO && run->comm != DDP_COMM_LOOPBACK)
        return USAGE("option --loopback-ranks: found %" PRId64
                     " with another communicator, expected --comm loopback",
                     run->loopback_ranks);
    if (run->comm == DDP_COMM_NCCL && run->device == DDP_DEVICE_CPU)
        return USAGE("option --comm: found nccl with --device cpu, expected --device cuda or "
                     "--comm mpi");
    if (run->mpi_device_buffers == DDP_DEVICE_BUFFERS_ON &&
        (run->comm == DDP_COMM_NCCL || run->comm == DDP_COMM_LOOPBACK))
        return USAGE("option --mpi-device-buffers: found on with another communicator, expected "
                     "--comm mpi");
    if (run->comm == DDP_COMM_NCCL && run->share_device)
        return USAGE("option --comm: found nccl with --share-device, expected auto or mpi (NCCL "
                     "needs a GPU for each rank)");
    DDP_TRY(check_compression(run));
    const ddp_allreduce_algo algo = config->comm.allreduce;
    if ((algo == DDP_ALLREDUCE_SHM || algo == DDP_ALLREDUCE_HIER) && !config->comm.shared_memory)
        return USAGE("option --allreduce: found %s with --no-shared-memory, expected another "
                     "algorithm",
                     algo == DDP_ALLREDUCE_SHM ? "shm" : "hier");
    return DDP_OK;
}

/* Threads of one process live, write and die together. */
static ddp_status check_inject(const ddp_config *config)
{
    const ddp_run_opts *run = &config->run;

    if (run->comm != DDP_COMM_LOOPBACK)
        return DDP_OK;
    for (int i = 0; i < config->trainer.inject.count; i++)
        if (ddp_inject_ends(config->trainer.inject.list[i].kind))
            return USAGE("option --inject: found %s with --comm loopback, where ranks are threads; "
                         "expected delay, nan or bitflip, or another communicator",
                         ddp_inject_name(config->trainer.inject.list[i].kind));
    return DDP_OK;
}

static ddp_status check_timeline(const ddp_timeline_opts *timeline)
{
    if (!timeline->spans && (timeline->steps > 0 || timeline->slow > 0))
        return USAGE("option --%s: found with --no-spans, expected spans: it is made of them",
                     timeline->steps > 0 ? "trace-steps" : "trace-slow");
    if (timeline->slow > 0 && timeline->slow <= 1)
        return USAGE("option --trace-slow: found %g, expected 0, or more than 1 median step",
                     timeline->slow);
    return DDP_OK;
}

static ddp_status check_precision(const ddp_run_opts *run)
{
    double scale;
    bool grows;

    if (run->precision == DDP_PRECISION_FP16 && run->device == DDP_DEVICE_CPU)
        return USAGE("option --precision: found fp16 with --device cpu, expected bf16, or --device "
                     "cuda");
    if (run->loss_scale == NULL)
        return DDP_OK;
    if (run->precision != DDP_PRECISION_FP16)
        return USAGE("option --loss-scale: found without --precision fp16, expected both: other "
                     "numbers are not that small");
    return ddpi_config_parse_scale(run->loss_scale, &scale, &grows);
}

static ddp_status check_buckets(const ddp_run_opts *run)
{
    bool chosen;
    double mb;

    DDP_TRY(ddpi_config_parse_buckets(run->bucket_cap, &chosen, &mb));
    if (chosen && run->exact)
        return USAGE(
            "option --bucket-cap-mb: found auto with --exact, expected a number: norms are "
            "added bucket by bucket, and measured buckets differ from run to run");
    if (chosen && run->compress != DDP_COMPRESS_NONE)
        return USAGE("option --bucket-cap-mb: found auto with --compress, expected a number: what "
                     "such a bucket takes does not follow from its size");
    if (chosen && run->strategy == DDP_STRATEGY_NAIVE)
        return USAGE("option --bucket-cap-mb: found auto with --strategy naive, which has no "
                     "buckets; expected ddp or sync");
    return DDP_OK;
}

/* What --exact cannot keep its promise with. */
static ddp_status check_exact(const ddp_config *config)
{
    const ddp_run_opts *run = &config->run;
    const int algo = (int)config->comm.allreduce;

    if (!run->exact)
        return DDP_OK;
    if (algo != DDP_ALLREDUCE_AUTO && algo != DDP_ALLREDUCE_SHM && algo != DDP_ALLREDUCE_TREE &&
        algo != DDP_ALLREDUCE_RHD && algo != DDP_ALLREDUCE_HIER)
        return USAGE("option --allreduce: found an algorithm whose order of additions depends on "
                     "the number of ranks, with --exact; expected auto, shm, tree, rhd or hier");
    if (run->strategy == DDP_STRATEGY_NAIVE)
        return USAGE("option --strategy: found naive with --exact, expected ddp or sync");
    if (run->grad_dtype != DDP_PRECISION_FP32)
        return USAGE("option --grad-dtype: found bf16 or fp16 with --exact, expected fp32: sums of "
                     "several shards would be rounded where ranks meet");
    if (run->compress != DDP_COMPRESS_NONE)
        return USAGE("option --compress: found with --exact, expected none: what ranks keep back "
                     "depends on their number");
    if (run->rank_weights != NULL)
        return USAGE("option --rank-weights: found with --exact, expected equal shares");
    if (config->device.tune)
        return USAGE("option --tune-kernels: found with --exact, expected kernels that follow from "
                     "the shapes alone");
    return DDP_OK;
}

static ddp_status check_self_tests(const ddp_run_opts *run, const ddp_trainer_opts *trainer)
{
    if (trainer->on_mismatch == DDP_MISMATCH_HEAL && trainer->check_replicas == 0)
        return USAGE("option --on-mismatch: found heal without --check-replicas, expected both");
    if (run->verify_world > 0 && !run->exact)
        return USAGE("option --verify-world: found without --exact, expected both");
    if (run->verify_world > 0 && run->sync_bn)
        return USAGE("option --verify-world: found with --sync-bn, expected statistics of each "
                     "shard, which one rank can compute, too");
    if (run->verify_grad && run->precision != DDP_PRECISION_FP32)
        return USAGE("option --verify-grad: found with --precision bf16 or fp16, expected fp32: "
                     "differences of such losses are rounding");
    if (run->verify_grad && run->sync_bn)
        return USAGE(
            "option --verify-grad: found with --sync-bn, expected statistics of each shard");
    if (run->verify_resume > 0 && run->resume != NULL && strcmp(run->resume, "none") != 0)
        return USAGE("option --verify-resume: found with --resume, expected a run of its own");
    const int modes = run->eval_only + (run->verify_world > 0) + (run->verify_resume > 0) +
                      run->verify_grad + (run->replay != NULL) + run->doctor;
    if (modes > 1)
        return USAGE("options --eval-only, --replay, --doctor, --verify-world, --verify-resume and "
                     "--verify-grad: found several, expected one of them");
    return DDP_OK;
}

static ddp_status check_paths(const ddp_run_opts *run)
{
    const char *const names[] = {"run-dir", "init-weights", "save-weights", "dump-logits",
                                 "resume"};
    const char *const values[] = {run->run_dir, run->init_weights, run->save_weights,
                                  run->dump_logits, run->resume};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (values[i] != NULL && values[i][0] == 0)
            return USAGE("option --%s: found an empty text, expected a path", names[i]);
    if (run->eval_only && run->init_weights == NULL)
        return USAGE(
            "option --eval-only: found without --init-weights, expected a file of weights");
    if (run->init_partial && run->init_weights == NULL)
        return USAGE(
            "option --init-partial: found without --init-weights, expected a file of weights");
    if (run->dump_logits != NULL && !run->eval_only)
        return USAGE("option --dump-logits: found without --eval-only, expected both");
    return DDP_OK;
}

static ddp_status check_resume(const ddp_run_opts *run)
{
    if (run->resume == NULL || strcmp(run->resume, "none") == 0)
        return DDP_OK;
    if (strcmp(run->resume, "auto") == 0 && run->run_dir == NULL)
        return USAGE("option --resume: found auto without --run-dir, expected the directory of the "
                     "run that goes on");
    if (run->eval_only)
        return USAGE("option --resume: found with --eval-only, expected --init-weights with the "
                     "checkpoint's model.safetensors");
    if (run->init_weights != NULL && strcmp(run->resume, "auto") != 0)
        return USAGE("option --resume: found beside --init-weights, expected one of them");
    return DDP_OK;
}

/* What does not depend on the data; ddp_transform_create() has the rest. */
static ddp_status check_images(const ddp_config *config)
{
    ddp_augment augment;

    if (config->trainer.target_accuracy > 0 && config->trainer.eval_every < 0)
        return USAGE("option --target-accuracy: found with --eval-every -1, expected evaluations");
    if (config->trainer.target_accuracy > 0 && config->run.eval_only)
        return USAGE("option --target-accuracy: found with --eval-only, expected training");
    return ddp_augment_parse(config->transform.augment, &augment);
}

ddp_status ddpi_config_check(const ddp_config *config)
{
    DDP_TRY(check_optimizer(&config->optim));
    DDP_TRY(ddp_schedule_check(&config->schedule));
    DDP_TRY(check_images(config));
    DDP_TRY(check_batch(config));
    DDP_TRY(check_comm(config));
    DDP_TRY(check_precision(&config->run));
    DDP_TRY(check_inject(config));
    DDP_TRY(check_timeline(&config->timeline));
    DDP_TRY(check_exact(config));
    DDP_TRY(check_buckets(&config->run));
    DDP_TRY(check_self_tests(&config->run, &config->trainer));
    DDP_TRY(ddpi_config_check_weights(config->run.rank_weights));
    if (config->model.label_smoothing >= 1)
        return USAGE("option --label-smoothing: found %g, expected less than 1",
                     config->model.label_smoothing);
    DDP_TRY(check_paths(&config->run));
    return check_resume(&config->run);
}

/* ---- with the number of ranks ---- */

static double scaled_lr(const ddp_config *config)
{
    double ratio = (double)config->global_batch / config->run.lr_base_batch;

    switch ((ddp_lr_scale)config->run.lr_scale) {
    case DDP_LR_SCALE_LINEAR:
        return config->optim.lr * ratio;
    case DDP_LR_SCALE_SQRT:
        return config->optim.lr * sqrt(ratio);
    case DDP_LR_SCALE_NONE:
        break;
    }
    return config->optim.lr;
}

static ddp_status resolve_precision(ddp_config *config)
{
    static const ddp_dtype compute[] = {[DDP_PRECISION_FP32] = DDP_F32,
                                        [DDP_PRECISION_BF16] = DDP_BF16,
                                        [DDP_PRECISION_FP16] = DDP_F16};
    const ddp_run_opts *run = &config->run;

    config->model.compute = compute[run->precision];
    if (run->precision != DDP_PRECISION_FP16)
        return DDP_OK;
    return ddpi_config_parse_scale(run->loss_scale != NULL ? run->loss_scale : "dynamic",
                                   &config->loss_scale, &config->loss_scale_grows);
}

ddp_status ddp_config_resolve(ddp_config *config, int world)
{
    ddp_run_opts *run = &config->run;

    for (int i = 0; i < config->trainer.inject.count; i++)
        if (config->trainer.inject.list[i].rank >= world)
            return USAGE("option --inject: found rank %d with %d ranks",
                         config->trainer.inject.list[i].rank, world);
    config->global_batch = run->batch_per_rank > 0 ? run->batch_per_rank * world : run->batch_size;
    DDP_TRY(ddpi_config_resolve_shards(config, world));
    if (config->global_batch < world)
        return USAGE("option --batch-size: found %" PRId64
                     " with %d ranks, expected at least one sample for each rank",
                     config->global_batch, world);
    if (config->global_batch < config->shards)
        return USAGE(
            "option --batch-size: found %" PRId64 " with %" PRId64
            " shards (ranks times --accumulate, --logical-ranks or --rank-weights), expected at "
            "least one sample for each",
            config->global_batch, config->shards);
    run->batch_size = config->global_batch;
    run->batch_per_rank = 0;
    config->lr = scaled_lr(config);
    config->reducer.exact = run->exact;
    config->device.deterministic = run->exact;
    DDP_TRY(resolve_precision(config));
    DDP_TRY(ddpi_config_parse_buckets(run->bucket_cap, &config->auto_buckets,
                                      &config->reducer.bucket_cap_mb));
    return DDP_OK;
}

ddp_status ddp_config_resolve_schedule(ddp_config *config, int64_t steps_per_epoch)
{
    /* Not --max-steps: a run that is ended early and goes on later has one schedule. */
    return ddp_schedule_make(&config->schedule, config->lr, steps_per_epoch,
                             config->trainer.epochs * steps_per_epoch, &config->trainer.schedule);
}

/* ---- with the data and the machine ---- */

static ddp_status spread_normalize(ddp_normalize *n, int64_t channels)
{
    if (n->count == 0 || n->count == channels)
        return DDP_OK;
    if (n->count > 1 || channels > DDP_CONFIG_MAX_CHANNELS)
        return USAGE("option --normalize: found %d means, expected one, or one for each of the "
                     "data's %" PRId64 " channels (at most %d)",
                     n->count, channels, DDP_CONFIG_MAX_CHANNELS);
    for (int i = 1; i < channels; i++) {
        n->mean[i] = n->mean[0];
        n->deviation[i] = n->deviation[0];
    }
    n->count = (int)channels;
    return DDP_OK;
}

ddp_status ddp_config_check_data(ddp_config *config, int world, int64_t samples, int64_t channels)
{
    if (samples < world)
        return USAGE("%d ranks for %" PRId64
                     " samples of data set %s: expected no more ranks than samples",
                     world, samples, config->data.dataset);
    return spread_normalize(&config->normalize, channels);
}

void ddp_config_machine(ddp_config *config, const ddp_config_cores *cores)
{
    int share = cores->node / cores->node_ranks;

    if (share > cores->own)
        share = cores->own;
    /* The bits of a sum depend on the number of threads that share it. */
    if (config->run.exact)
        share = 1;
    config->device.threads = config->run.threads > 0 ? (int)config->run.threads
                             : share > 1             ? share
                                                     : 1;
    config->workers =
        config->run.workers >= 0 ? (int)config->run.workers : cores->node > cores->node_ranks;
}
