/* environment.c - where a run takes place: hosts, ranks, cores, libraries, variables.
 *
 * Every rank tells the others its host, process and affinity mask. From the masks follow the
 * threads of a rank and the share of the machine that the ranks have; environment.json keeps all of
 * it. */
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "app/place.h"
#include "ddp/fs.h"
#include "ddp/memory.h"

enum { TEXT_BYTES = 512, CORES_BYTES = 512, PROC_LIMIT_BYTES = 1 << 22 };

/* ---- the ranks and their cores ---- */

/* All online cores where the mask does not fit a cpu_set_t. */
static void own_cores(cpu_set_t *cores)
{
    long online = sysconf(_SC_NPROCESSORS_ONLN);

    CPU_ZERO(cores);
    if (sched_getaffinity(0, sizeof *cores, cores) == 0 && CPU_COUNT(cores) > 0)
        return;
    for (long i = 0; i < online && i < CPU_SETSIZE; i++)
        CPU_SET((size_t)i, cores);
}

static void node_cores(const ddpi_run *run, int node, cpu_set_t *cores)
{
    CPU_ZERO(cores);
    for (int r = 0; r < run->world; r++)
        if (run->ranks[r].node == node)
            CPU_OR(cores, cores, &run->ranks[r].cores);
}

int ddpi_run_core_count(const ddpi_run *run)
{
    int count = 0;
    cpu_set_t cores;

    /* Loopback may rehearse nodes that are one machine; real nodes have cores of their own. */
    int nodes = run->app->threads ? 1 : ddp_comm_node_count(run->comm);
    for (int node = 0; node < nodes; node++) {
        node_cores(run, node, &cores);
        count += CPU_COUNT(&cores);
    }
    return count > 0 ? count : 1;
}

static void fill_info(ddpi_run *run, ddpi_rank_info *info)
{
    memset(info, 0, sizeof *info);
    snprintf(info->host, sizeof info->host, "%s", ddp_comm_host(run->comm));
    info->node = ddp_comm_node(run->comm);
    info->pid = (int32_t)getpid();
    info->threads = run->config.device.threads;
    info->online = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
    info->gpu = run->place.gpu;
    ddpi_find_network(info->network);
    own_cores(&info->cores);
}

/* Ranks that behave as if alone on a node (--no-shared-memory) still share its cores. */
static void count_cores(const ddpi_run *run, ddp_config_cores *cores_out)
{
    const ddpi_rank_info *me = &run->ranks[run->rank];
    cpu_set_t cores;

    CPU_ZERO(&cores);
    *cores_out = (ddp_config_cores){.own = CPU_COUNT(&me->cores)};
    for (int r = 0; r < run->world; r++) {
        if (strcmp(run->ranks[r].host, me->host) != 0)
            continue;
        CPU_OR(&cores, &cores, &run->ranks[r].cores);
        cores_out->node_ranks++;
    }
    cores_out->node = CPU_COUNT(&cores);
}

ddp_status ddpi_run_share_info(ddpi_run *run)
{
    ddpi_rank_info mine;

    fill_info(run, &mine);
    return ddp_comm_allgather(run->comm, &mine, sizeof mine, run->ranks);
}

static void log_place(const ddpi_run *run)
{
    const ddpi_rank_info *me = &run->ranks[run->rank];
    char cores[CORES_BYTES];

    ddp_debug("rank %d of %d on %s, process %d, cores %s, %d threads, %d loader workers, %s",
              run->rank, run->world, me->host, (int)me->pid,
              ddpi_cores_format(&me->cores, cores, sizeof cores), run->config.device.threads,
              run->config.workers, ddp_comm_library(run->comm));
}

ddp_status ddpi_run_find_machine(ddpi_run *run)
{
    ddp_config_cores cores;
    ddp_status st = DDP_ALLOC(run->ranks, (size_t)run->world);

    DDP_TRY(ddpi_run_agree(run, st, "list the ranks"));
    DDP_TRY(ddpi_run_share_info(run));
    DDP_TRY(ddpi_run_choose_device(run));
    count_cores(run, &cores);
    ddp_config_machine(&run->config, &cores);
    if (run->config.device.threads > cores.own)
        ddp_warn("%d threads on %d cores: the launcher has bound this rank, or --threads is too "
                 "high (mpirun --bind-to none)",
                 run->config.device.threads, cores.own);
    ddpi_run_warn_of_binding(run);
    log_place(run);
    DDP_TRY(ddpi_run_share_info(run)); /* now with the threads */
    return ddpi_run_log_places(run);
}

/* ---- environment.json ---- */

char *ddpi_cores_format(const cpu_set_t *cores, char *text, size_t text_bytes)
{
    size_t used = 0;

    text[0] = 0;
    for (size_t i = 0; i < CPU_SETSIZE && used < text_bytes; i++) {
        size_t first = i;
        if (!CPU_ISSET(i, cores))
            continue;
        while (i + 1 < CPU_SETSIZE && CPU_ISSET(i + 1, cores))
            i++;
        const char *comma = used > 0 ? "," : "";
        if (i > first)
            used += (size_t)snprintf(text + used, text_bytes - used, "%s%zu-%zu", comma, first, i);
        else
            used += (size_t)snprintf(text + used, text_bytes - used, "%s%zu", comma, first);
    }
    return text;
}

/* JSON holds UTF-8 only; variables and arguments may hold anything. */
static void set_text(ddp_json *object, const char *key, const char *value)
{
    char text[TEXT_BYTES];

    snprintf(text, sizeof text, "%s", value);
    for (char *at = text; *at != 0; at++)
        if ((unsigned char)*at < ' ' || (unsigned char)*at > '~')
            *at = '?';
    ddp_json_set_string(object, key, text);
}

static void add_time(ddp_json *object)
{
    char text[32];
    time_t now = time(NULL);
    struct tm utc;

    gmtime_r(&now, &utc);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
    ddp_json_set_string(object, "time", text);
}

static void add_kernel(ddp_json *object)
{
    char text[TEXT_BYTES];
    struct utsname name;

    if (uname(&name) != 0)
        return;
    snprintf(text, sizeof text, "%.100s %.100s %.100s %.100s", name.sysname, name.release,
             name.version, name.machine);
    set_text(object, "kernel", text);
}

static void add_cpu(ddp_json *object)
{
    char *text;
    size_t bytes;

    if (ddp_fs_read("/proc/cpuinfo", PROC_LIMIT_BYTES, &text, &bytes) != DDP_OK)
        return;
    char *line = strstr(text, "model name");
    char *value = line != NULL ? strchr(line, ':') : NULL;
    if (value != NULL) {
        value[strcspn(value, "\n")] = 0;
        set_text(object, "cpu", value + 1 + strspn(value + 1, " "));
    }
    ddp_free(text);
}

/* Variables that change how a run behaves. Those of the launcher's own plumbing change at every run
 * and may carry its secrets. */
static bool is_relevant(const char *variable)
{
    static const char *const wanted[] = {"DDP_TRAIN_", "OMP_",   "GOMP_",  "DNNL_",  "ONEDNN_",
                                         "OMPI_MCA_",  "MPICH_", "UCX_",   "SLURM_", "MALLOC_",
                                         "NCCL_",      "CUDA_",  "CUDNN_", "CUBLAS_"};
    static const char *const unwanted[] = {"OMPI_MCA_orte_", "OMPI_MCA_ess_", "OMPI_MCA_pmix"};

    for (size_t i = 0; i < sizeof unwanted / sizeof unwanted[0]; i++)
        if (strncmp(variable, unwanted[i], strlen(unwanted[i])) == 0)
            return false;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        if (strncmp(variable, wanted[i], strlen(wanted[i])) == 0)
            return true;
    return false;
}

static ddp_status add_variables(const ddpi_run *run, ddp_json *object)
{
    ddp_json *variables;

    DDP_TRY(ddp_json_object(&variables));
    for (char **at = run->app->envp; at != NULL && *at != NULL; at++) {
        char name[TEXT_BYTES];
        size_t bytes = strcspn(*at, "=");
        if (!is_relevant(*at) || bytes >= sizeof name || (*at)[bytes] == 0)
            continue;
        memcpy(name, *at, bytes);
        name[bytes] = 0;
        set_text(variables, name, *at + bytes + 1);
    }
    ddp_json_set(object, "variables", variables);
    return DDP_OK;
}

static void add_gpu(ddp_json *rank, const ddpi_cuda_identity *gpu)
{
    if (gpu->name[0] == '\0')
        return;
    set_text(rank, "gpu", gpu->name);
    set_text(rank, "gpu_uuid", gpu->uuid);
    set_text(rank, "gpu_pci", gpu->pci);
}

static ddp_status add_ranks(const ddpi_run *run, ddp_json *object)
{
    ddp_json *ranks;

    DDP_TRY(ddp_json_array(&ranks));
    for (int r = 0; r < run->world; r++) {
        const ddpi_rank_info *info = &run->ranks[r];
        char cores[CORES_BYTES];
        ddp_json *rank;
        ddp_status st = ddp_json_object(&rank);
        if (st != DDP_OK) {
            ddp_json_destroy(ranks);
            return st;
        }
        ddp_json_set_int(rank, "rank", r);
        set_text(rank, "host", info->host);
        ddp_json_set_int(rank, "node", info->node);
        ddp_json_set_int(rank, "pid", info->pid);
        ddp_json_set_string(rank, "cores", ddpi_cores_format(&info->cores, cores, sizeof cores));
        ddp_json_set_int(rank, "threads", info->threads);
        set_text(rank, "interface", info->network);
        add_gpu(rank, &info->gpu);
        ddp_json_append(ranks, rank);
    }
    ddp_json_set(object, "ranks", ranks);
    return DDP_OK;
}

static ddp_status fill_environment(const ddpi_run *run, ddp_json *object)
{
    ddp_json_set_string(object, "ddp_train", DDP_VERSION);
    ddp_json_set_string(object, "compiler", __VERSION__);
    ddp_json_set_string(object, "communicator", ddp_comm_backend_name(run->comm));
    ddp_json_set_string(object, "gradients", ddpi_run_lane_name(run));
    set_text(object, "communication_library", ddp_comm_library(run->comm));
    set_text(object, "device", ddp_device_describe(run->net.device));
    add_time(object);
    add_kernel(object);
    add_cpu(object);
    ddp_json_set_int(object, "world_size", run->world);
    ddp_json_set_int(object, "nodes", ddp_comm_node_count(run->comm));
    DDP_TRY(add_ranks(run, object));
    return add_variables(run, object);
}

ddp_status ddpi_environment_write(const ddpi_run *run)
{
    char path[PATH_MAX];
    char *text = NULL;
    ddp_json *object;

    DDP_TRY(ddpi_run_path(run, "environment.json", path));
    DDP_TRY(ddp_json_object(&object));
    ddp_status st = fill_environment(run, object);
    if (st == DDP_OK)
        st = ddp_json_text(object, 2, &text);
    if (st == DDP_OK)
        st = ddp_fs_write_atomic(path, text, strlen(text));
    ddp_free(text);
    ddp_json_destroy(object);
    return st;
}
