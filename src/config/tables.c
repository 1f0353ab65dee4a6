/* tables.c - the names, limits and help of all options, group by group as --help shows them.
 *
 * Offsets are into ddp_config, whose parts are the modules' own structs. Choices stand in the order
 * of the enums that they set. Constant data only. */
#include "config/config_impl.h"

#define AT(field) offsetof(ddp_config, field)
/* The largest whole number that a limit (a double) and int64_t both hold, and that nobody reaches.
 */
#define COUNT_MAX 1e15

static const ddp_option model_options[] = {
    {"model", DDP_OPT_STRING, AT(run.model), 0, 0, NULL, "NAME", "Network; see the list below"},
    {"mlp-widths", DDP_OPT_STRING, AT(model.mlp_widths), 0, 0, NULL, "N,N,...",
     "Widths of mlp's hidden layers"},
    {"label-smoothing", DDP_OPT_DOUBLE, AT(model.label_smoothing), 0, 1, NULL, "X",
     "Share of the target that is spread evenly over all classes"},
    {"dropout", DDP_OPT_DOUBLE, AT(model.dropout), 0, 0.99, NULL, "X",
     "Resnets: share of the last features that a training step sets to 0"},
    {"zero-init-residual", DDP_OPT_BOOL, AT(model.zero_init_residual), 0, 0, NULL, NULL,
     "Resnets: start the last norm of each block at 0, so that blocks start as identities"},
    {"sync-bn", DDP_OPT_BOOL, AT(run.sync_bn), 0, 0, NULL, NULL,
     "Batch norm over the samples of all ranks instead of each shard's own"},
    {"recompute", DDP_OPT_CHOICE, AT(model.recompute), 0, 0, "none|cheap|segments", NULL,
     "What backward computes again instead of keeping it: nothing, the outputs of norms, or all "
     "but a few outputs (gradient checkpointing)"},
    {"init-weights", DDP_OPT_STRING, AT(run.init_weights), 0, 0, NULL, "FILE",
     "Start from these weights (safetensors) instead of drawn ones"},
    {"init-partial", DDP_OPT_BOOL, AT(run.init_partial), 0, 0, NULL, NULL,
     "Take from --init-weights what fits by name and shape, and draw the rest"},
    {"save-weights", DDP_OPT_STRING, AT(run.save_weights), 0, 0, NULL, "FILE",
     "Write the final weights there (safetensors)"},
    {0},
};

static const ddp_option data_options[] = {
    {"dataset", DDP_OPT_STRING, AT(data.dataset), 0, 0, NULL, "NAME",
     "Data set; see the list below"},
    {"data-dir", DDP_OPT_STRING, AT(data.data_dir), 0, 0, NULL, "DIR", "Where its files lie"},
    {"verify-data", DDP_OPT_BOOL, AT(data.verify_data), 0, 0, NULL, NULL,
     "Read packed shards once for their checksums before training"},
    {"input-shape", DDP_OPT_STRING, AT(run.input_shape), 0, 0, NULL, "CxHxW",
     "Shape of a synthetic sample"},
    {"synthetic-train", DDP_OPT_INT, AT(data.synthetic_train), 1, COUNT_MAX, NULL, "N",
     "Synthetic training samples"},
    {"synthetic-test", DDP_OPT_INT, AT(data.synthetic_test), 1, COUNT_MAX, NULL, "N",
     "Synthetic test samples"},
    {"classes", DDP_OPT_INT, AT(data.synthetic_classes), 1, 1e6, NULL, "N", "Synthetic classes"},
    {"normalize", DDP_OPT_STRING, AT(run.normalize), 0, 0, NULL, "MEAN/DEV",
     "Subtract a mean and divide by a deviation, one for all channels or one each (M,M,M/D,D,D); "
     "samples are in [0, 1] before"},
    {"augment", DDP_OPT_STRING, AT(transform.augment), 0, 0, NULL, "LIST",
     "Change training images at random: crop[:PADDING] or rrc[:SIZE] (random resized crop), flip, "
     "cutout[:SIDE], with commas between; or none. Where images differ in size, rrc,flip unless "
     "given"},
    {"mixup", DDP_OPT_DOUBLE, AT(run.mixup), 0, 1e3, NULL, "ALPHA",
     "Mix every training image and label with another of its batch, weights drawn from "
     "Beta(ALPHA, ALPHA); 0: not"},
    {"input-size", DDP_OPT_INT, AT(transform.input_size), 0, 16384, NULL, "N",
     "Height and width of the images that the model gets; 0: --augment rrc:N, --eval-crop, the "
     "images' own, or 224 where they differ"},
    {"eval-resize", DDP_OPT_INT, AT(transform.eval_resize), 0, 16384, NULL, "N",
     "Resize the shorter side to N before the centre is cut out, in evaluation and where training "
     "has no rrc; 0: 8/7 of the input's size with rrc, else that size"},
    {"eval-crop", DDP_OPT_INT, AT(transform.eval_crop), 0, 16384, NULL, "N",
     "Cut N x N out of the centre, without resizing unless --eval-resize or smaller images need "
     "it; 0: the input's size"},
    {"val-split", DDP_OPT_DOUBLE, AT(run.val_split), 0, 0.99, NULL, "X",
     "Hold this share of the training set out and evaluate on it after epochs; the test set is "
     "then "
     "evaluated once, at the end"},
    {"drop-last", DDP_OPT_BOOL, AT(run.drop_last), 0, 0, NULL, NULL,
     "Drop an epoch's incomplete last batch"},
    {"workers", DDP_OPT_INT, AT(run.workers), -1, 256, NULL, "N",
     "Loader threads of a rank; 0: load in the training thread, -1: 1 where cores are left, else "
     "0"},
    {0},
};

static const ddp_option train_options[] = {
    {"epochs", DDP_OPT_INT, AT(trainer.epochs), 1, 1e9, NULL, "N", "Passes over the training set"},
    {"max-steps", DDP_OPT_INT, AT(trainer.max_steps), 0, COUNT_MAX, NULL, "N",
     "End after N optimizer steps; 0: no limit"},
    {"batch-size", DDP_OPT_INT, AT(run.batch_size), 1, 1e9, NULL, "N",
     "Samples of a step over all ranks"},
    {"batch-per-rank", DDP_OPT_INT, AT(run.batch_per_rank), 0, 1e9, NULL, "N",
     "The same, said per rank; 0: --batch-size counts"},
    {"accumulate", DDP_OPT_INT, AT(run.accumulate), 1, 1e6, NULL, "N",
     "Cut a rank's part of a batch into N shards that are computed one after the other"},
    {"micro-batch", DDP_OPT_INT, AT(run.micro_batch), 0, 1e9, NULL, "M",
     "The same, said as the largest number of samples of a shard; 0: --accumulate counts"},
    {"logical-ranks", DDP_OPT_INT, AT(run.logical_ranks), 0, 1e6, NULL, "K",
     "Shards of a batch over all ranks; 0: ranks times --accumulate"},
    {"exact", DDP_OPT_BOOL, AT(run.exact), 0, 0, NULL, NULL,
     "Give the same bits on every number of ranks that divides --logical-ranks (which is the "
     "number "
     "of ranks times --accumulate unless given)"},
    {"rank-weights", DDP_OPT_STRING, AT(run.rank_weights), 0, 0, NULL, "auto|X,X,...",
     "Give ranks unequal parts of a batch, as whole shards: in proportion to one number for each "
     "rank, or to the speed that is measured at the start"},
    {"seed", DDP_OPT_INT, AT(run.seed), 0, COUNT_MAX, NULL, "N",
     "Decides the initial weights, the order of samples and synthetic data"},
    {"eval-every", DDP_OPT_INT, AT(trainer.eval_every), -1, 1e9, NULL, "N",
     "Evaluate after every N epochs; 0: at the end only; -1: never"},
    {"target-accuracy", DDP_OPT_DOUBLE, AT(trainer.target_accuracy), 0, 1, NULL, "X",
     "End after an evaluation that reaches this accuracy, and tell the time to it; 0: no target"},
    {"eval-only", DDP_OPT_BOOL, AT(run.eval_only), 0, 0, NULL, NULL,
     "Evaluate --init-weights on the test set and train nothing"},
    {"dump-logits", DDP_OPT_STRING, AT(run.dump_logits), 0, 0, NULL, "FILE",
     "With --eval-only: write the test set's logits and labels there (safetensors)"},
    {"check-replicas", DDP_OPT_INT, AT(trainer.check_replicas), 0, COUNT_MAX, NULL, "N",
     "Compare the ranks' parameters before every N-th step, and let each rank check the "
     "optimizer's "
     "state after it; 0: parameters at the start only"},
    {"on-mismatch", DDP_OPT_CHOICE, AT(trainer.on_mismatch), 0, 0, "stop|heal", NULL,
     "What to do where parameters differ: end, or give outvoted ranks the majority's, where three "
     "or more agree"},
    {"inject", DDP_OPT_STRING, AT(run.inject), 0, 0, NULL, "WHAT@RANK:STEP[:SECONDS],...",
     "Rehearse mishaps: before that step the rank is killed (kill), stopped (stop), late (delay), "
     "gone without a word (exit), out of disk space (enospc), or gets a parameter that is no "
     "number (nan) "
     "or has a wrong bit (bitflip)"},
    {"replay", DDP_OPT_STRING, AT(run.replay), 0, 0, NULL, "FILE",
     "Instead of training: compute a micro-batch again that a run has kept because it was not "
     "finite, on one rank, and show all ranges; with --config and that run's config.ini"},
    {"verify-world", DDP_OPT_INT, AT(run.verify_world), 0, COUNT_MAX, NULL, "N",
     "With --exact, instead of training: make N steps, and once more on one rank, and compare all "
     "bits"},
    {"verify-resume", DDP_OPT_INT, AT(run.verify_resume), 0, 1e9, NULL, "K",
     "Instead of training: make 2K steps, and once more with a checkpoint and a restart after K, "
     "and compare all bits"},
    {"doctor", DDP_OPT_BOOL, AT(run.doctor), 0, 0, NULL, NULL,
     "Instead of training: look at hosts, limits, files and variables of all ranks, measure the "
     "messages between them, and tell what would make this run fail or slow"},
    {"verify-grad", DDP_OPT_BOOL, AT(run.verify_grad), 0, 0, NULL, NULL,
     "Instead of training: compare the gradient of each parameter with finite differences"},
    {0},
};

static const ddp_option optim_options[] = {
    {"optimizer", DDP_OPT_CHOICE, AT(optim.kind), 0, 0, "sgd|adamw|lars|lamb", NULL, "Update rule"},
    {"lr", DDP_OPT_DOUBLE, AT(optim.lr), 0, 1e6, NULL, "X",
     "Learning rate; unless given, 0.001 with adamw and lamb"},
    {"momentum", DDP_OPT_DOUBLE, AT(optim.momentum), 0, 1, NULL, "X", "Momentum"},
    {"dampening", DDP_OPT_DOUBLE, AT(optim.dampening), 0, 1, NULL, "X", "Dampening of momentum"},
    {"nesterov", DDP_OPT_BOOL, AT(optim.nesterov), 0, 0, NULL, NULL, "Nesterov's momentum"},
    {"weight-decay", DDP_OPT_DOUBLE, AT(optim.weight_decay), 0, 1e6, NULL, "X", "Weight decay"},
    {"weight-decay-on", DDP_OPT_CHOICE, AT(optim.decay_on), 0, 0, "weights|all", NULL,
     "weights: biases and norms' parameters have none"},
    {"beta1", DDP_OPT_DOUBLE, AT(optim.beta1), 0, 1, NULL, "X",
     "What adamw and lamb keep of the gradients' mean in a step"},
    {"beta2", DDP_OPT_DOUBLE, AT(optim.beta2), 0, 1, NULL, "X", "The same for their squares"},
    {"eps", DDP_OPT_DOUBLE, AT(optim.eps), 0, 1, NULL, "X", "adamw's and lamb's divisor is larger"},
    {"trust", DDP_OPT_DOUBLE, AT(optim.trust), 0, 1e6, NULL, "X",
     "lars: share of its norm that a weight moves by at rate 1"},
    {"param-group", DDP_OPT_STRING, AT(optim.groups), 0, 0, NULL, "PATTERN:lr=X,wd=X;...",
     "Learning rate and weight decay of parameters whose names match; the last match counts"},
    {"freeze", DDP_OPT_STRING, AT(run.freeze), 0, 0, NULL, "PATTERN,...",
     "Leave the parameters whose names match as they are"},
    {"clip-grad-norm", DDP_OPT_DOUBLE, AT(optim.clip_grad_norm), 0, 1e30, NULL, "X",
     "Scale the gradient down to this norm where it is longer; 0: never"},
    {"on-nonfinite", DDP_OPT_CHOICE, AT(trainer.on_nonfinite), 0, 0, "stop|skip", NULL,
     "What to do at a step whose loss or gradients are not finite: end, or go on without it"},
    {"ema", DDP_OPT_DOUBLE, AT(optim.ema), 0, 1, NULL, "DECAY",
     "Evaluate and save a moving average of the weights, which keeps this share in a step; 0: "
     "none"},
    {"lr-scale", DDP_OPT_CHOICE, AT(run.lr_scale), 0, 0, "none|linear|sqrt", NULL,
     "Scale --lr by the global batch over --lr-base-batch, or by its root"},
    {"lr-base-batch", DDP_OPT_DOUBLE, AT(run.lr_base_batch), 1, 1e9, NULL, "N",
     "The batch that --lr is meant for"},
    {"lr-schedule", DDP_OPT_CHOICE, AT(schedule.kind), 0, 0, "constant|step|cosine|poly", NULL,
     "How the learning rate comes down over the run, after the warm-up"},
    {"warmup-steps", DDP_OPT_INT, AT(schedule.warmup_steps), 0, COUNT_MAX, NULL, "N",
     "Steps in which the learning rate rises to --lr in equal parts"},
    {"warmup-epochs", DDP_OPT_DOUBLE, AT(schedule.warmup_epochs), 0, 1e6, NULL, "X",
     "The same, said in epochs"},
    {"warmup-lr", DDP_OPT_DOUBLE, AT(schedule.warmup_lr), -1, 1e6, NULL, "X",
     "Learning rate of the warm-up's first step; -1: --lr over the warm-up's steps"},
    {"lr-step-every", DDP_OPT_DOUBLE, AT(schedule.step_every), 0, 1e6, NULL, "X",
     "Epochs between two factors --lr-gamma of --lr-schedule step"},
    {"lr-step-at", DDP_OPT_STRING, AT(schedule.step_at), 0, 0, NULL, "X,X,...",
     "Epochs after which it has a factor --lr-gamma"},
    {"lr-gamma", DDP_OPT_DOUBLE, AT(schedule.gamma), 0, 1, NULL, "X", "The factor of a step"},
    {"lr-min", DDP_OPT_DOUBLE, AT(schedule.min), 0, 1e6, NULL, "X",
     "Learning rate below which no schedule goes after the warm-up"},
    {"lr-power", DDP_OPT_DOUBLE, AT(schedule.power), 0, 100, NULL, "X",
     "Power of --lr-schedule poly; 1: a straight line"},
    {"lr-steps", DDP_OPT_INT, AT(schedule.total_steps), 0, COUNT_MAX, NULL, "N",
     "Steps after which cosine and poly have come down to --lr-min; 0: after all --epochs"},
    {0},
};

static const ddp_option machine_options[] = {
    {"device", DDP_OPT_CHOICE, AT(run.device), 0, 0, "auto|cpu|cuda", NULL, "What computes"},
    {"share-device", DDP_OPT_BOOL, AT(run.share_device), 0, 0, NULL, NULL,
     "Allow several ranks on one GPU; their gradients then go through host memory"},
    {"bind", DDP_OPT_CHOICE, AT(run.bind), 0, 0, "auto|none", NULL,
     "Where a rank's threads run; auto: on the cores near its GPU"},
    {"threads", DDP_OPT_INT, AT(run.threads), 0, 4096, NULL, "N",
     "Threads of a rank's operations; 0: the cores of the node shared out among its ranks"},
    {"precision", DDP_OPT_CHOICE, AT(run.precision), 0, 0, "fp32|bf16|fp16", NULL,
     "What activations and products are computed in; parameters and their sums stay fp32. fp16: on "
     "GPUs only"},
    {"loss-scale", DDP_OPT_STRING, AT(run.loss_scale), 0, 0, NULL, "dynamic|N",
     "What --precision fp16 multiplies gradients by: it is halved when they overflow, and that "
     "step "
     "skipped. dynamic: from 65536, and doubled after 2000 good steps; N: from N, and never more"},
    {"emulate", DDP_OPT_BOOL, AT(device.emulate_bf16), 0, 0, NULL, NULL,
     "Compute bf16 also where the processor cannot, slowly"},
    {"conv-algo", DDP_OPT_CHOICE, AT(device.conv_algo), 0, 0, "auto|direct|gemm|winograd|batch",
     NULL, "How convolutions are computed; auto: rank 0 measures"},
    {"tf32", DDP_OPT_BOOL, AT(device.tf32), 0, 0, NULL, NULL,
     "Let GPUs round the operands of fp32 products to tf32"},
    {"tune-kernels", DDP_OPT_BOOL, AT(device.tune), 0, 0, NULL, NULL,
     "Choose GPUs' algorithms of convolutions by measuring on rank 0, not by the library's guess"},
    {"cuda-graph", DDP_OPT_CHOICE, AT(run.cuda_graph), 0, 0, "auto|on|off", NULL,
     "Capture whole steps on GPUs and replay them; auto: where nothing needs the host within a "
     "step"},
    {0},
};

static const ddp_option comm_options[] = {
    {"comm", DDP_OPT_CHOICE, AT(run.comm), 0, 0, "auto|nccl|mpi|loopback", NULL,
     "How ranks talk; loopback: ranks are threads of one process"},
    {"loopback-ranks", DDP_OPT_INT, AT(run.loopback_ranks), 0, 256, NULL, "N",
     "Ranks of --comm loopback; 0: 1"},
    {"strategy", DDP_OPT_CHOICE, AT(run.strategy), 0, 0, "ddp|sync|naive", NULL,
     "ddp: reduce during backward; sync: after it; naive: through rank 0"},
    {"allreduce", DDP_OPT_CHOICE, AT(comm.allreduce), 0, 0, "auto|shm|mpi|root|ring|tree|rhd|hier",
     NULL,
     "Algorithm of gradient sums; hier: within nodes by shared memory, then between them; auto: "
     "that on several nodes, unless measured to be slower"},
    {"grad-dtype", DDP_OPT_CHOICE, AT(run.grad_dtype), 0, 0, "fp32|bf16|fp16", NULL,
     "What gradients travel as between ranks; bf16, fp16: half the bytes, rounded to 8 or 11 bits"},
    {"compress", DDP_OPT_CHOICE, AT(run.compress), 0, 0, "none|powersgd|topk", NULL,
     "Send less of the gradients, and what is left out with the next ones: weights as products of "
     "thin matrices (powersgd), or the largest elements (topk). On CPUs only"},
    {"powersgd-rank", DDP_OPT_INT, AT(reducer.hook_opts.rank), 1, 1024, NULL, "N",
     "Columns of powersgd's thin matrices"},
    {"powersgd-min-ratio", DDP_OPT_DOUBLE, AT(reducer.hook_opts.min_ratio), 0, 1e6, NULL, "X",
     "powersgd sends a weight as it is unless that is X times as much"},
    {"topk", DDP_OPT_DOUBLE, AT(reducer.hook_opts.share), 1e-6, 1, NULL, "X",
     "Share of a bucket's elements that --compress topk sends"},
    {"compress-after", DDP_OPT_INT, AT(reducer.hook_opts.after), 0, COUNT_MAX, NULL, "N",
     "Compress nothing in the run's first N steps"},
    {"mpi-device-buffers", DDP_OPT_CHOICE, AT(run.mpi_device_buffers), 0, 0, "auto|on|off", NULL,
     "--comm mpi on GPUs: send from their memory itself, or (off) by way of host memory; auto: "
     "itself where MPI says that it can and a probe agrees"},
    {"first-bucket-mb", DDP_OPT_DOUBLE, AT(reducer.first_bucket_mb), 1e-3, 65536, NULL, "MIB",
     "Size of the first gradient bucket"},
    {"bucket-cap-mb", DDP_OPT_STRING, AT(run.bucket_cap), 0, 0, NULL, "auto|MIB",
     "Size of the others; auto: at the start a few steps are tried, and buckets end where the "
     "least "
     "of their sums is predicted to stay exposed, unless 25 MiB were faster"},
    {"shared-memory", DDP_OPT_BOOL, AT(comm.shared_memory), 0, 0, NULL, NULL,
     "Share memory between the ranks of a node; --no-shared-memory: every rank as if on its own"},
    {"comm-timeout", DDP_OPT_DOUBLE, AT(run.comm_timeout), 0, 1e6, NULL, "SECONDS",
     "Give up when ranks wait this long for each other, or 20 times as long as usual if that is "
     "more; "
     "0: never"},
    {"limit-start", DDP_OPT_DOUBLE, AT(trainer.limits.seconds[DDP_PHASE_START]), 0, 1e6, NULL,
     "SECONDS", "The limit before the first step; 0: --comm-timeout"},
    {"limit-step", DDP_OPT_DOUBLE, AT(trainer.limits.seconds[DDP_PHASE_STEP]), 0, 1e6, NULL,
     "SECONDS", "The limit in a training step; 0: --comm-timeout, or 20 median steps"},
    {"limit-eval", DDP_OPT_DOUBLE, AT(trainer.limits.seconds[DDP_PHASE_EVAL]), 0, 1e6, NULL,
     "SECONDS", "The limit in an evaluation; 0: --comm-timeout, or 20 median evaluations"},
    {"limit-checkpoint", DDP_OPT_DOUBLE, AT(trainer.limits.seconds[DDP_PHASE_CHECKPOINT]), 0, 1e6,
     NULL, "SECONDS", "The limit while saving; 0: --comm-timeout, or 20 times the longest save"},
    {0},
};

static const ddp_option checkpoint_options[] = {
    {"resume", DDP_OPT_STRING, AT(run.resume), 0, 0, NULL, "auto|none|DIR",
     "auto: go on from the newest complete checkpoint in --run-dir, if there is one; none (unless "
     "given): begin; DIR: go on from that checkpoint, or from the newest of that run"},
    {"checkpoint-every", DDP_OPT_INT, AT(run.checkpoint_every), 0, COUNT_MAX, NULL, "N",
     "Save after every N steps; 0: not"},
    {"checkpoint-minutes", DDP_OPT_DOUBLE, AT(run.checkpoint_minutes), 0, 1e6, NULL, "X",
     "Save when X minutes have passed since the last time; 0: not"},
    {"checkpoint-epochs", DDP_OPT_INT, AT(run.checkpoint_epochs), 0, 1e9, NULL, "N",
     "Save after every N epochs; 0: not"},
    {"checkpoint-at-end", DDP_OPT_BOOL, AT(run.checkpoint_at_end), 0, 0, NULL, NULL,
     "Save at the end, and when asked to stop (signals TERM, INT, USR1)"},
    {"keep", DDP_OPT_INT, AT(run.keep), 1, 1e6, NULL, "N", "Checkpoints that stay: the newest N"},
    {"keep-best", DDP_OPT_BOOL, AT(run.keep_best), 0, 0, NULL, NULL,
     "Save after every evaluation that is the best so far, and keep that checkpoint, too"},
    {"time-limit", DDP_OPT_STRING, AT(run.time_limit), 0, 0, NULL, "TIME",
     "Save and stop, with status 3, before this time has passed since the start: 90, 15m, 1h30m or "
     "D-HH:MM:SS. A Slurm job's own end counts, too"},
    {0},
};

static const ddp_option output_options[] = {
    {"run-dir", DDP_OPT_STRING, AT(run.run_dir), 0, 0, NULL, "DIR",
     "Where the run's files go; runs/TIME-MODEL unless given"},
    {"trace-steps", DDP_OPT_INT, AT(timeline.steps), 0, 1e6, NULL, "N",
     "At the end, write what all ranks did in the last N steps into the run directory, as "
     "trace.json for Perfetto; 0: not. Signal USR2 writes trace-step-STEP.json meanwhile, of 20 "
     "steps if this is 0"},
    {"trace-slow", DDP_OPT_DOUBLE, AT(timeline.slow), 0, 1e6, NULL, "X",
     "Write trace-step-STEP.json after a step that takes more than X times the median, at most 3 "
     "times; 0: never"},
    {"spans", DDP_OPT_BOOL, AT(timeline.spans), 0, 0, NULL, NULL,
     "Keep when each thread did what, of which these files are made; --no-spans: do not"},
    {"log-level", DDP_OPT_CHOICE, AT(run.log_level), 0, 0, "error|warn|info|debug", "LEVEL",
     "What the console shows"},
    {"quiet", DDP_OPT_BOOL, AT(run.quiet), 0, 0, NULL, NULL,
     "Show the results only, and warnings and errors"},
    {"tensorboard", DDP_OPT_BOOL, AT(run.tensorboard), 0, 0, NULL, NULL,
     "Write an event file for TensorBoard into the run directory, too"},
    {0},
};

void ddpi_config_groups(ddp_config *config, ddp_option_group groups[DDPI_CONFIG_GROUPS])
{
    const ddp_option_group all[DDPI_CONFIG_GROUPS] = {
        {"Model", model_options, config},
        {"Data", data_options, config},
        {"Training", train_options, config},
        {"Optimizer", optim_options, config},
        {"Device", machine_options, config},
        {"Communication", comm_options, config},
        {"Checkpoints", checkpoint_options, config},
        {"Output", output_options, config},
    };

    for (int i = 0; i < DDPI_CONFIG_GROUPS; i++)
        groups[i] = all[i];
}
