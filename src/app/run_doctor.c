/* run_doctor.c - a run with --doctor: the first stages of a training run, each of which may fail
 * here without ending the visit, what the run would need, and the doctor's own questions.
 *
 * Nothing is written that stays, and no plan for a whole batch is made, so that a model which does
 * not fit can be told of instead of failing here. */
#include <stdio.h>
#include <string.h>

#include "app/place.h"
#include "ddp/memory.h"
#include "ddp/thread.h"
#include "doctor/doctor.h"

enum { WARNINGS = 2 };
#define WORK_LIMIT_MS 20000 /* of a measurement */

/* ---- at the start of every run ---- */

static void fill_places(const ddpi_run *run, ddpi_doctor_record *records)
{
    for (int r = 0; r < run->world; r++) {
        snprintf(records[r].host, sizeof records[r].host, "%s", run->ranks[r].host);
        records[r].cpu.cores = run->ranks[r].cores;
        records[r].cpu.online = run->ranks[r].online;
    }
}

void ddpi_run_warn_of_binding(const ddpi_run *run)
{
    ddpi_doctor_record *records = NULL;
    ddpi_findings *findings = NULL;

    /* GPUs' ranks are bound near them on purpose. */
    if (run->rank != 0 || run->world == 1 || run->config.run.doctor || run->place.cuda != NULL)
        return;
    if (DDP_ALLOC(records, (size_t)run->world) == DDP_OK && DDP_ALLOC(findings, 1) == DDP_OK) {
        fill_places(run, records);
        ddpi_rules_binding(&(ddpi_doctor_case){.world = run->world, .ranks = records}, findings);
        for (int i = 0; i < findings->count && i < WARNINGS; i++)
            ddp_warn("%s: %s", findings->list[i].because, findings->list[i].remedy);
    }
    ddp_free(findings);
    ddp_free(records);
}

/* ---- the stages of a run ---- */

static ddp_status check_dir(ddpi_run *run)
{
    return run->rank == 0 ? ddpi_run_check_dir(run) : DDP_OK;
}

/* Timing candidates would take longer than all the rest. */
static ddp_status create_model(ddpi_run *run)
{
    if (run->config.device.conv_algo == DDP_CONV_AUTO)
        run->config.device.conv_algo = DDP_CONV_DIRECT;
    run->config.device.tune = false;
    return ddpi_run_create_model(run);
}

typedef struct attempt {
    const char *name, *remedy;
    ddp_status (*run)(ddpi_run *run);
} attempt;

static const attempt by_options = {"compare options",
                                   "start all ranks with the same options, files "
                                   "and DDP_TRAIN_ variables",
                                   ddpi_run_compare_options};
static const attempt by_checkpoint = {"look at the checkpoint", "say another --resume",
                                      ddpi_run_find_start};
static const attempt by_machine = {"find the machine",
                                   "start as many ranks on a host as it has GPUs; look at "
                                   "nvidia-smi, CUDA_VISIBLE_DEVICES and the "
                                   "container's --gpus",
                                   ddpi_run_find_machine};
static const attempt by_data = {"open data", "see that --data-dir holds the data set on every host",
                                ddpi_run_open_data};
static const attempt by_model = {"open the model", "change what it names", create_model};
static const attempt by_dir = {"look at the run directory", "say a new --run-dir", check_dir};

/* Whether the ranks can still talk. */
static bool is_over(ddp_status st)
{
    return st == DDP_ERR_COMM || st == DDP_ERR_TIMEOUT || st == DDP_ERR_PEER;
}

/* False: it failed, and that is a finding. *st: the ranks cannot go on. */
static bool attempt_stage(ddpi_run *run, const attempt *a, ddpi_findings *findings, ddp_status *st)
{
    if (*st != DDP_OK)
        return false;
    ddp_comm_note(run->comm, 0, a->name);
    const ddp_status mine = ddpi_run_agree(run, a->run(run), a->name);
    if (mine == DDP_OK)
        return true;
    if (is_over(mine)) {
        *st = mine;
        return false;
    }
    run->agreed = false;
    ddpi_findings_add(findings, DDPI_FINDING_FAILS, a->remedy, "%s", ddp_status_message());
    return false;
}

/* Without a GPU that was asked for, the rest is looked at as on CPUs. */
static void do_without_device(ddpi_run *run)
{
    run->place.cuda = NULL;
    run->place.lane = DDPI_LANE_NONE;
    run->place.visible = 0;
}

/* ---- what the run needs ---- */

static bool saves(const ddp_run_opts *opts)
{
    return opts->checkpoint_every > 0 || opts->checkpoint_minutes > 0 ||
           opts->checkpoint_epochs > 0 || opts->checkpoint_at_end || opts->keep_best;
}

static size_t optimizer_values(const ddp_optim_opts *optim)
{
    const bool adaptive = optim->kind == DDP_OPTIM_ADAMW || optim->kind == DDP_OPTIM_LAMB;
    const bool keeps = adaptive || optim->momentum > 0 || optim->kind == DDP_OPTIM_LARS;

    return (size_t)(adaptive + keeps + (optim->ema > 0));
}

/* Activations of a shard: a straight line through two small batches. */
static ddp_status estimate_activations(ddpi_run *run, size_t *bytes_out)
{
    enum { FEW = 2, MORE = 4 };
    const int64_t shards = run->config.shards > 0 ? run->config.shards : 1;
    const int64_t batch = (run->config.global_batch + shards - 1) / shards;

    DDP_TRY(ddp_model_plan(run->net.model, FEW, true));
    const size_t few = ddp_model_activation_bytes(run->net.model);
    DDP_TRY(ddp_model_plan(run->net.model, MORE, true));
    const size_t more = ddp_model_activation_bytes(run->net.model);
    const size_t each = more > few ? (more - few) / (MORE - FEW) : more / MORE;
    *bytes_out = batch > FEW ? few + each * (size_t)(batch - FEW) : few;
    return DDP_OK;
}

static ddp_status fill_model_needs(ddpi_run *run, ddpi_doctor_needs *needs)
{
    const bool host = run->place.cuda == NULL;
    size_t activations = 0;

    DDP_TRY(ddpi_run_agree(run, estimate_activations(run, &activations), "plan the model"));
    const size_t values = ddp_param_table_length(ddp_model_params(run->net.model));
    const size_t bytes = values * sizeof(float);
    const size_t shared =
        2 * bytes + (run->config.run.grad_dtype == DDP_PRECISION_BF16 ? bytes / 2 : 0);
    needs->parameters = (size_t)ddp_param_table_elements(ddp_model_params(run->net.model));
    needs->gradient_values = values;
    if (host)
        needs->memory_bytes = shared + activations + optimizer_values(&run->config.optim) * bytes;
    if (host && run->config.comm.shared_memory && ddp_comm_node_size(run->comm) > 1)
        needs->shared_bytes = shared;
    return DDP_OK;
}

static bool reads_files(const ddp_config *config)
{
    return strcmp(config->data.dataset, "synthetic") != 0;
}

static void fill_needs(const ddpi_run *run, ddpi_doctor_needs *needs)
{
    const ddp_config *config = &run->config;

    needs->model = config->run.model;
    needs->run_dir = config->run.run_dir != NULL ? config->run.run_dir : "runs";
    needs->data_dir = reads_files(config) ? config->data.data_dir : NULL;
    needs->saves = saves(&config->run);
    needs->exact = config->run.exact;
    needs->cuda = run->place.cuda != NULL;
    needs->nccl = run->place.lane == DDPI_LANE_NCCL;
}

static void fill_gpu(const ddpi_run *run, ddpi_doctor_gpu *gpu, char *versions, size_t bytes)
{
    gpu->visible = run->place.visible;
    versions[0] = '\0';
    if (run->place.cuda == NULL)
        return;
    memcpy(gpu->uuid, run->place.gpu.uuid, sizeof gpu->uuid);
    memcpy(gpu->pci, run->place.gpu.pci, sizeof gpu->pci);
    memcpy(gpu->name, run->place.gpu.name, sizeof gpu->name);
    run->place.cuda->versions(versions, bytes);
}

/* ---- the visit ---- */

/* Whether there is a model in the end. Ranks with different options would not do the same. */
static bool pass_stages(ddpi_run *run, ddpi_findings *findings, ddp_status *st)
{
    if (!attempt_stage(run, &by_options, findings, st)) {
        do_without_device(run);
        return false;
    }
    attempt_stage(run, &by_checkpoint, findings, st);
    const bool machine = attempt_stage(run, &by_machine, findings, st);
    if (!machine)
        do_without_device(run);
    const bool data = attempt_stage(run, &by_data, findings, st);
    const bool model = machine && data && attempt_stage(run, &by_model, findings, st);
    attempt_stage(run, &by_dir, findings, st);
    return model;
}

static ddp_status visit(ddpi_run *run, ddpi_findings *findings, int *fails)
{
    char versions[DDPI_DOCTOR_VERSION_BYTES];
    ddpi_doctor_input input = {.comm = run->comm,
                               .envp = run->app->envp,
                               .cores_at_start = run->app->start_cores,
                               .start_s = (double)(ddp_now_ns() - run->app->start_ns) / 1e9};
    ddp_status st = DDP_OK;

    ddp_comm_set_timeout(run->comm, WORK_LIMIT_MS);
    const bool model = pass_stages(run, findings, &st);
    DDP_TRY(st);
    fill_needs(run, &input.needs);
    if (model)
        DDP_TRY(fill_model_needs(run, &input.needs));
    fill_gpu(run, &input.gpu, versions, sizeof versions);
    input.cuda = versions;
    input.threads = run->config.device.threads;
    if (model)
        input.device = ddp_device_describe(run->net.device);
    if (ddp_comm_has_lane(run->comm))
        input.stream = ddp_device_main_stream(run->net.device);
    return ddpi_doctor_run(&input, findings, fails);
}

ddp_status ddpi_run_doctor(ddpi_run *run)
{
    ddpi_findings *findings;
    int fails = 0;
    ddp_status st = DDP_ALLOC(findings, 1);

    DDP_TRY(ddpi_run_agree(run, st, "call the doctor"));
    st = visit(run, findings, &fails);
    ddp_free(findings);
    DDP_TRY(st);
    if (fails == 0)
        return DDP_OK;
    run->agreed = true;
    return DDP_FAIL(DDP_ERR_UNSUPPORTED, "doctor: %d reason%s why this would fail, see above",
                    fails, fails == 1 ? "" : "s");
}
