/* run_verify.c - runs that prove something instead of training: --verify-world and --verify-grad;
 * --verify-resume is in run_verify_resume.c.
 *
 * --verify-world trains a few steps as the ranks are, and then once more on every rank alone, which
 * computes all logical shards by itself over a loopback world of one. --verify-grad takes the first
 * samples of each rank's first shard. Both end the run; their data and models are the run's own. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "app/run.h"
#include "ddp/fs.h"
#include "ddp/memory.h"
#include "ddp/verify.h"

enum { GRADIENT_SAMPLES = 8 };

/* ---- one world against another ---- */

/* What a few steps come to. */
typedef struct outcome {
    double *losses;
    float *params; /* flat, on the host */
} outcome;

static size_t flat_bytes(const ddpi_run *run)
{
    return ddp_param_table_length(ddp_model_params(run->net.model)) * sizeof(float);
}

static ddp_status copy_flat(const ddpi_run *run, void *dst, const void *src, ddp_copy_kind kind)
{
    ddp_stream *stream = ddp_device_main_stream(run->net.device);

    DDP_TRY(ddp_device_copy(run->net.device, stream, dst, src, flat_bytes(run), kind));
    return ddp_stream_sync(stream);
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* No more than the run itself would make: it has plans for these only. */
static int64_t step_count(const ddpi_run *run)
{
    const ddp_trainer_opts *opts = &run->config.trainer;
    int64_t steps =
        smaller(run->config.run.verify_world, opts->epochs * ddp_sampler_steps(&run->data.sampler));

    return opts->max_steps > 0 ? smaller(steps, opts->max_steps) : steps;
}

ddp_status ddpi_run_steps(ddpi_run *run, ddp_strategy *strategy, ddp_loader *loader,
                          ddp_range steps, double *losses)
{
    const ddp_sampler *sampler = &run->data.sampler;
    const int64_t epoch = ddp_sampler_steps(sampler), from = (int64_t)steps.lo;

    DDP_TRY(ddp_loader_seek(loader, from / epoch, from % epoch));
    for (int64_t step = from; step < (int64_t)steps.hi; step++) {
        ddp_step_stats stats;
        ddp_comm_note(run->comm, step + 1, "step of a self-test");
        DDP_TRY(ddp_strategy_step(strategy, loader, ddp_sampler_step_count(sampler, step % epoch),
                                  ddp_schedule_lr(&run->config.trainer.schedule, step), &stats));
        losses[step - from] = stats.loss_sum / (double)stats.count;
    }
    return DDP_OK;
}

static ddp_status train_steps(ddpi_run *run, ddp_strategy *strategy, ddp_loader *loader,
                              outcome *out)
{
    const ddp_range steps = {0, (size_t)step_count(run)};

    DDP_TRY(ddpi_run_steps(run, strategy, loader, steps, out->losses));
    return copy_flat(run, out->params, ddp_strategy_params(strategy), DDP_COPY_TO_HOST);
}

static ddp_status alone_with(ddpi_run *run, ddp_comm *solo, const float *initial, outcome *out)
{
    ddp_strategy_opts opts = {.reducer = run->config.reducer,
                              .optim = run->config.optim,
                              .seed = run->config.data.seed,
                              .loss_scale = run->config.loss_scale,
                              .loss_scale_grows = run->config.loss_scale_grows,
                              .graph = DDP_GRAPH_OFF};
    const ddp_loader_opts loader_opts = {.sampler = run->data.sampler,
                                         .shard_count = run->config.shards,
                                         .ring = 2,
                                         .transform = run->data.train_transform,
                                         .mixup = run->config.run.mixup};
    ddp_strategy *strategy = NULL;
    ddp_loader *loader = NULL;
    ddp_status st;

    opts.reducer.shards = run->config.shards;
    DDP_TRY(ddp_loader_create(&loader_opts, run->data.train, run->net.device, &loader));
    DDP_TRY_GOTO(st,
                 ddp_strategy_create(ddpi_wiring_strategy(run->config.run.strategy), &opts,
                                     run->net.model, run->net.device, solo, &strategy),
                 out);
    DDP_TRY_GOTO(st, copy_flat(run, ddp_strategy_params(strategy), initial, DDP_COPY_TO_DEVICE),
                 out);
    st = train_steps(run, strategy, loader, out);
out:
    ddp_strategy_destroy(strategy);
    ddp_loader_destroy(loader);
    return st;
}

static ddp_status train_alone(ddpi_run *run, const float *initial, outcome *out)
{
    ddp_comm_opts opts = DDP_COMM_OPTS_DEFAULTS;
    const ddp_lane_opts lane = {.deterministic = true};
    ddp_comm *solo;
    ddp_status st = DDP_OK;

    opts.exit_on_failure = false;
    DDP_TRY(ddp_comm_loopback_open(&opts, 1, NULL, &solo));
    if (!ddp_device_is_host(run->net.device))
        st = ddp_comm_attach(solo, run->net.device, ddp_lane_staged(), &lane);
    if (st == DDP_OK)
        st = alone_with(run, solo, initial, out);
    ddp_comm_close(solo);
    return st;
}

static ddp_status compare(const ddpi_run *run, const outcome *together, const outcome *alone)
{
    char what[64];

    for (int64_t step = 0; step < step_count(run); step++)
        if (memcmp(&together->losses[step], &alone->losses[step], sizeof(double)) != 0)
            return DDP_FAIL(DDP_ERR_MISMATCH,
                            "--verify-world: FAIL: step %" PRId64
                            " has a loss of %.17g on %d ranks and %.17g on one",
                            step + 1, together->losses[step], run->world, alone->losses[step]);
    snprintf(what, sizeof what, "--verify-world: FAIL: %d ranks and one", run->world);
    return ddp_check_same_params(ddp_model_params(run->net.model), together->params, alone->params,
                                 what);
}

static ddp_status allocate(const ddpi_run *run, float **initial, outcome *together, outcome *alone)
{
    const size_t steps = (size_t)step_count(run), values = flat_bytes(run) / sizeof(float);

    DDP_TRY(DDP_ALLOC(*initial, values));
    DDP_TRY(DDP_ALLOC(together->params, values));
    DDP_TRY(DDP_ALLOC(alone->params, values));
    DDP_TRY(DDP_ALLOC(together->losses, steps));
    DDP_TRY(DDP_ALLOC(alone->losses, steps));
    return copy_flat(run, *initial, ddp_strategy_params(run->net.strategy), DDP_COPY_TO_HOST);
}

static ddp_status verify_both(ddpi_run *run, const float *initial, outcome *together,
                              outcome *alone)
{
    DDP_TRY(train_steps(run, run->net.strategy, run->net.loader, together));
    ddp_strategy_destroy(run->net.strategy); /* collective; its buffers are gone from here on */
    run->net.strategy = NULL;
    run->net.params = NULL;
    ddp_status st = train_alone(run, initial, alone);
    if (st == DDP_OK)
        st = compare(run, together, alone);
    DDP_TRY(ddpi_run_agree(run, st, "verify the world"));
    if (run->rank == 0)
        ddp_log_print("verify-world: PASS: %" PRId64
                      " steps on %d ranks and on one give the same losses and weights (%016" PRIx64
                      ")",
                      step_count(run), run->world, ddp_hash64(alone->params, flat_bytes(run)));
    return DDP_OK;
}

static ddp_status verify_world(ddpi_run *run)
{
    outcome together = {0}, alone = {0};
    float *initial = NULL;
    ddp_status st = ddpi_run_agree(run, allocate(run, &initial, &together, &alone),
                                   "prepare to verify the world");

    if (st == DDP_OK)
        st = verify_both(run, initial, &together, &alone);
    ddp_free(initial);
    ddp_free(together.losses);
    ddp_free(together.params);
    ddp_free(alone.losses);
    ddp_free(alone.params);
    return st;
}

/* ---- gradients ---- */

static ddp_status backward(ddpi_run *run, const ddp_model_input *input, float *grads)
{
    ddp_param_table *table = ddp_model_params(run->net.model);
    double loss;

    /* Nobody reduces these. */
    ddp_param_table_on_ready(table, NULL, NULL);
    ddp_param_table_begin(table);
    DDP_TRY(ddp_model_forward(run->net.model, input, &loss));
    DDP_TRY(ddp_model_backward(run->net.model));
    return copy_flat(run, grads, ddp_strategy_grads(run->net.strategy), DDP_COPY_TO_HOST);
}

static ddp_status check_gradient(ddpi_run *run, const ddp_model_input *input,
                                 ddp_gradient_report *report)
{
    float *grads;

    DDP_TRY(DDP_ALLOC(grads, flat_bytes(run) / sizeof(float)));
    const ddp_gradient_check check = {.model = run->net.model,
                                      .device = run->net.device,
                                      .input = input,
                                      .params = ddp_strategy_params(run->net.strategy),
                                      .grads = grads};
    ddp_status st = backward(run, input, grads);
    if (st == DDP_OK)
        st = ddp_check_gradient(&check, report);
    ddp_free(grads);
    if (st != DDP_ERR_MISMATCH)
        return st;
    char found[512];
    snprintf(found, sizeof found, "%s", ddp_status_message());
    return ddp_status_set(st, NULL, 0, "--verify-grad: FAIL: %s", found);
}

static ddp_status take_samples(ddpi_run *run, ddp_model_input *input)
{
    const ddp_batch *batch;

    DDP_TRY(ddp_loader_seek(run->net.loader, 0, 0));
    DDP_TRY(ddp_loader_next(run->net.loader, &batch));
    *input = (ddp_model_input){.inputs = batch->inputs,
                               .labels = batch->labels,
                               .count = smaller(batch->count, GRADIENT_SAMPLES),
                               .labels2 = batch->labels2,
                               .mix = batch->mix,
                               .sample_ids = batch->sample_ids,
                               .seed = run->config.data.seed};
    return DDP_OK;
}

static ddp_status verify_grad(ddpi_run *run)
{
    ddp_gradient_report report = {0};
    ddp_model_input input;

    DDP_TRY(ddpi_run_agree(run, take_samples(run, &input), "take samples"));
    /* Planning may be collective; shards' sizes differ by one at most. */
    int64_t count = input.count;
    DDP_TRY(ddp_comm_allreduce(run->comm, &count, 1, DDP_I64, DDP_REDUCE_MIN, "samples"));
    input.count = count;
    DDP_TRY(ddpi_run_agree(run, ddp_model_plan(run->net.model, count, true), "plan samples"));
    DDP_TRY(ddpi_run_agree(run, check_gradient(run, &input, &report), "verify the gradient"));
    if (run->rank == 0)
        ddp_log_print("verify-grad: PASS: %d parameters against finite differences over %" PRId64
                      " samples, largest difference %.2g",
                      report.params, count, report.worst);
    return DDP_OK;
}

bool ddpi_run_verifies(const ddpi_run *run)
{
    const ddp_run_opts *opts = &run->config.run;

    return opts->verify_world > 0 || opts->verify_resume > 0 || opts->verify_grad;
}

ddp_status ddpi_run_verify(ddpi_run *run)
{
    if (run->config.run.verify_grad)
        return verify_grad(run);
    return run->config.run.verify_resume > 0 ? ddpi_run_verify_resume(run) : verify_world(run);
}
