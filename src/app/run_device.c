/* run_device.c - which device the ranks compute on, and where a rank's threads go for it.
 *
 * All ranks compute on one kind of device: with --device auto on GPUs if every rank sees one. Then
 * each takes the one that its place among its host's ranks gives it, tells the others which that
 * is, and moves its threads to the cores near it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/place.h"
#include "ddp/memory.h"
#include "ddp/sum_tree.h"

/* ---- the kind of device ---- */

/* visible_out: GPUs that this process sees. */
static ddp_status look_for_cuda(ddpi_run *run, int *visible_out)
{
    const int choice = run->config.run.device;
    int32_t found = 0;
    ddp_status st = DDP_OK;

    if (choice == DDP_DEVICE_CPU)
        return DDP_OK;
    if (choice == DDP_DEVICE_CUDA || ddpi_cuda_is_likely()) {
        st = ddpi_cuda_module_open(&run->place.cuda, visible_out);
        found = st == DDP_OK;
    }
    if (choice == DDP_DEVICE_CUDA)
        return ddpi_run_agree(run, st, "find a GPU");
    if (st != DDP_OK)
        ddp_debug("no GPU: %s", ddp_status_message());
    DDP_TRY(ddp_comm_allreduce(run->comm, &found, 1, DDP_I32, DDP_REDUCE_MIN, "devices"));
    if (found == 0)
        run->place.cuda = NULL;
    return DDP_OK;
}

/* ---- NCCL's variables ---- */

/* They change what ranks do together. Two are about a process alone. */
static bool is_common(const char *variable)
{
    static const char *const own[] = {"NCCL_DEBUG", "NCCL_HOSTID"};

    if (strncmp(variable, "NCCL_", 5) != 0)
        return false;
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (strncmp(variable, own[i], strlen(own[i])) == 0)
            return false;
    return true;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

ddp_status ddpi_nccl_variables(char *const *envp, char **text_out)
{
    size_t count = 0, bytes = 1, used = 0;
    const char **list;
    char *text;

    for (char *const *at = envp; at != NULL && *at != NULL; at++)
        if (is_common(*at) && ++count > 0)
            bytes += strlen(*at) + 1;
    DDP_TRY(DDP_ALLOC(list, count));
    ddp_status st = DDP_ALLOC(text, bytes);
    if (st == DDP_OK) {
        count = 0;
        for (char *const *at = envp; at != NULL && *at != NULL; at++)
            if (is_common(*at))
                list[count++] = *at;
        qsort(list, count, sizeof *list, by_text);
        for (size_t i = 0; i < count; i++)
            used += (size_t)snprintf(text + used, bytes - used, "%s\n", list[i]);
        *text_out = text;
    }
    ddp_free(list);
    return st;
}

static ddp_status compare_variables(ddpi_run *run)
{
    char *text = NULL;
    ddp_status st = ddpi_nccl_variables(run->app->envp, &text);

    st = ddpi_run_agree(run, st, "list NCCL's variables");
    if (st == DDP_OK)
        st = ddp_comm_fingerprint(run->comm, text, "environment of NCCL");
    ddp_free(text);
    return st;
}

/* ---- a rank's GPU ---- */

static ddp_status take_gpu(ddpi_run *run, int visible)
{
    int index = ddpi_place_index(ddp_comm_local_rank(run->comm), visible);

    run->config.device.index = index;
    return run->place.cuda->identify(index, &run->place.gpu);
}

/* Not being bound costs speed only. */
static void bind_near(ddpi_run *run)
{
    const char *pci = run->place.gpu.pci;
    cpu_set_t cores = run->ranks[run->rank].cores, near_cores;

    if (run->config.run.bind == DDP_BIND_NONE)
        return;
    if (!ddpi_near_cores(pci, &near_cores))
        ddp_debug("which cores are near the GPU at %s is not known", pci);
    else if (!ddpi_cores_narrow(&cores, &near_cores))
        ddp_debug("no core that this rank may use is near the GPU at %s", pci);
    else if (ddpi_bind_threads(&cores, run->app->threads) != DDP_OK)
        ddp_warn("%s", ddp_status_message());
}

static ddp_status choose_lane(ddpi_run *run)
{
    const ddp_run_opts *opts = &run->config.run;
    const bool sums = run->config.reducer.exact;
    int32_t aware = ddp_comm_device_aware(run->comm);
    int a, b;
    DDP_TRY(ddp_comm_allreduce(run->comm, &aware, 1, DDP_I32, DDP_REDUCE_MIN, "device buffers"));
    const ddpi_lane_wish wish = {.cuda = run->place.cuda != NULL,
                                 .comm = opts->comm,
                                 .shared = ddpi_place_find_shared(run->ranks, run->world, &a, &b),
                                 .nccl = run->place.cuda != NULL && run->place.cuda->lane != NULL,
                                 .buffers = opts->mpi_device_buffers,
                                 .aware = aware != 0,
                                 .exact = run->config.device.deterministic || sums,
                                 .parts = sums ? ddp_sum_parts(run->config.shards, run->world) : 1};

    return ddpi_place_lane(&wish, &run->place.lane);
}

ddp_status ddpi_run_choose_device(ddpi_run *run)
{
    int visible = 0;

    DDP_TRY(look_for_cuda(run, &visible));
    run->place.visible = visible;
    if (run->place.cuda == NULL && run->config.run.precision == DDP_PRECISION_FP16)
        return DDP_FAIL(DDP_ERR_USAGE,
                        "option --precision: found fp16 where ranks compute on CPUs, "
                        "expected bf16, or a GPU for every rank");
    if (run->place.cuda != NULL) {
        DDP_TRY(ddpi_run_agree(run, take_gpu(run, visible), "take a GPU"));
        bind_near(run);
    }
    DDP_TRY(ddpi_run_share_info(run));
    DDP_TRY(ddpi_place_check(run->ranks, run->world, run->config.run.share_device));
    DDP_TRY(choose_lane(run));
    return run->place.lane == DDPI_LANE_NCCL ? compare_variables(run) : DDP_OK;
}

static const ddp_lane_ops *lane_ops(const ddpi_run *run)
{
    if (run->place.lane == DDPI_LANE_NCCL)
        return run->place.cuda->lane();
    return run->place.lane == DDPI_LANE_DIRECT ? ddp_lane_direct() : ddp_lane_staged();
}

static ddp_status attach(ddpi_run *run)
{
    const ddp_lane_opts opts = {.deterministic = run->config.device.deterministic};

    return ddp_comm_attach(run->comm, run->net.device, lane_ops(run), &opts);
}

ddp_status ddpi_run_attach_lane(ddpi_run *run)
{
    /* Sums of an exact run have one order, and thus one way. */
    if (run->place.lane == DDPI_LANE_NONE)
        return run->config.reducer.exact ? DDP_OK : ddp_comm_tune(run->comm);
    DDP_TRY(attach(run));
    if (run->place.lane != DDPI_LANE_DIRECT)
        return DDP_OK;
    ddp_status st = ddp_comm_probe_lane(run->comm);
    if (st == DDP_OK || st != DDP_ERR_COMM ||
        run->config.run.mpi_device_buffers == DDP_DEVICE_BUFFERS_ON)
        return st;
    if (run->rank == 0)
        ddp_warn("gradients go through host memory: %s", ddp_status_message());
    ddp_comm_detach(run->comm);
    run->place.lane = DDPI_LANE_STAGED;
    return attach(run);
}

const char *ddpi_run_lane_name(const ddpi_run *run)
{
    const char *lane = ddp_comm_lane_name(run->comm);

    return lane != NULL ? lane : ddp_comm_backend_name(run->comm);
}

/* On CPUs there is little in it that the launch did not say. */
ddp_status ddpi_run_log_places(const ddpi_run *run)
{
    char *text;

    if (run->rank != 0 || run->config.run.doctor) /* whose own table says more */
        return DDP_OK;
    DDP_TRY(ddpi_place_table(run->ranks, run->world, &text));
    if (run->place.cuda != NULL)
        ddp_info("ranks:\n%s", text);
    else
        ddp_debug("ranks:\n%s", text);
    ddp_free(text);
    return DDP_OK;
}
