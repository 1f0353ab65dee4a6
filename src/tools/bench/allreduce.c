/* allreduce.c - ddp_bench allreduce: reads what to measure, and makes the ranks that do it. */
#include "tools/bench/allreduce.h"

#include <string.h>

#include "ddp/memory.h"
#include "ddp/thread.h"

enum { MAX_NAMES = 16, MAX_LOOPBACK = 64 };

#define AT(field) offsetof(ddpi_reduce_opts, field)
static const ddp_option reduce_options[] = {
    {"comm", DDP_OPT_CHOICE, AT(comm), 0, 0, "mpi|loopback|nccl", NULL,
     "Ranks are MPI's processes, or threads of this one; nccl: MPI's processes, which sum memory "
     "of "
     "their GPUs through NCCL"},
    {"loopback-ranks", DDP_OPT_INT, AT(loopback_ranks), 1, MAX_LOOPBACK, NULL, "N",
     "Ranks of --comm loopback"},
    {"allreduce", DDP_OPT_STRING, AT(algorithms), 0, 0, NULL, "LIST",
     "Algorithms, with commas between them, as ddp_train's --allreduce names them"},
    {"types", DDP_OPT_STRING, AT(types), 0, 0, NULL, "LIST",
     "Types of elements, of f32, bf16, f64, i32 and i64 (--comm nccl: f32 and bf16)"},
    {"sizes", DDP_OPT_STRING, AT(sizes), 0, 0, NULL, "LIST",
     "Bytes of the buffer; K, M and G stand for 1024, 1024^2 and 1024^3"},
    {"memory", DDP_OPT_CHOICE, AT(memory), 0, 0, "window|private", NULL,
     "Buffers from the communicator, which shares them within a host, as training's are, or the "
     "process's own"},
    {"min-time", DDP_OPT_DOUBLE, AT(min_time_s), 0.0001, 3600, NULL, "SECONDS",
     "Measure each case for about so long (5 samples at least)"},
    {0},
};

static const char doc[] =
    "Measures allreduces by size, algorithm and type of elements, checks every sum, and says what "
    "bandwidth that is.\v"
    "Example: mpirun -np 4 ddp_bench allreduce --allreduce auto,ring,rhd --out report\n\n"
    "All sums are in place. A sample is the time of the slowest rank, from a barrier on. algbw is "
    "bytes / median time; busbw is algbw * 2 (n-1)/n, what each link carries where the algorithm "
    "sends the least possible. bound is the share of the time that reading and writing all buffers "
    "once takes at memcpy's bandwidth (one host only).\n\n"
    "--out DIR writes allreduce.txt, allreduce.json (its \"points\" are a cost curve for the other "
    "commands) and allreduce.svg.";

/* ---- what to measure ---- */

static const char *const algorithm_names[] = {
    [DDP_ALLREDUCE_AUTO] = "auto", [DDP_ALLREDUCE_SHM] = "shm",   [DDP_ALLREDUCE_MPI] = "mpi",
    [DDP_ALLREDUCE_ROOT] = "root", [DDP_ALLREDUCE_RING] = "ring", [DDP_ALLREDUCE_TREE] = "tree",
    [DDP_ALLREDUCE_RHD] = "rhd",   [DDP_ALLREDUCE_HIER] = "hier",
};
static const char *const type_names[] = {
    [DDP_F32] = "f32", [DDP_F64] = "f64", [DDP_I32] = "i32", [DDP_I64] = "i64", [DDP_BF16] = "bf16",
};
#define COUNT_OF(array) (int)(sizeof(array) / sizeof *(array))

const char *ddpi_reduce_algorithm_name(ddp_allreduce_algo algorithm)
{
    return algorithm_names[algorithm];
}

static int find_name(const char *const *names, int count, const char *text, size_t bytes)
{
    for (int i = 0; i < count; i++)
        if (names[i] != NULL && strlen(names[i]) == bytes && memcmp(names[i], text, bytes) == 0)
            return i;
    return -1;
}

/* Names with commas between them, as indices. */
static ddp_status read_names(const char *option, const char *text, const char *const *names,
                             int name_count, int indices_out[MAX_NAMES], int *count_out)
{
    int count = 0;

    for (const char *at = text;; at++) {
        size_t bytes = strcspn(at, ",");
        int index = count < MAX_NAMES ? find_name(names, name_count, at, bytes) : -1;
        if (index < 0) {
            char known[128] = "";
            for (int i = 0; i < name_count; i++)
                if (names[i] != NULL)
                    snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s",
                             known[0] != 0 ? ", " : "", names[i]);
            return DDP_FAIL(DDP_ERR_USAGE, "option --%s: found \"%s\", expected some of %s", option,
                            text, known);
        }
        indices_out[count++] = index;
        at += bytes;
        if (*at == 0)
            break;
    }
    *count_out = count;
    return DDP_OK;
}

/* The caller frees the rows. */
static ddp_status plan(const ddpi_reduce_opts *opts, ddpi_reduce_sweep *sweep)
{
    const ddpi_bench_list sizes = {.option = "sizes",
                                   .min = 8,
                                   .max = INT64_C(1) << 36,
                                   .sizes = true,
                                   .limit = DDPI_REDUCE_MAX_SIZES};
    int algorithms[MAX_NAMES], types[MAX_NAMES];
    int algorithm_count = 0, type_count = 0, size_count = 0, n = 0;
    int64_t bytes[DDPI_REDUCE_MAX_SIZES];

    DDP_TRY(read_names("allreduce", opts->algorithms, algorithm_names, COUNT_OF(algorithm_names),
                       algorithms, &algorithm_count));
    DDP_TRY(read_names("types", opts->types, type_names, COUNT_OF(type_names), types, &type_count));
    DDP_TRY(ddpi_bench_numbers(&sizes, opts->sizes, bytes, &size_count));
    for (int t = 0; t < type_count && opts->comm == DDPI_REDUCE_NCCL; t++)
        if (types[t] != DDP_F32 && types[t] != DDP_BF16)
            return DDP_FAIL(DDP_ERR_USAGE,
                            "option --types: found %s with --comm nccl, expected f32 or bf16",
                            type_names[types[t]]);
    if (opts->comm == DDPI_REDUCE_NCCL &&
        (algorithm_count != 1 || algorithms[0] != DDP_ALLREDUCE_AUTO))
        return DDP_FAIL(
            DDP_ERR_USAGE,
            "option --allreduce: found \"%s\" with --comm nccl, expected auto: NCCL has "
            "algorithms of its own",
            opts->algorithms);
    sweep->opts = opts;
    sweep->row_count = algorithm_count * type_count * size_count;
    DDP_TRY(DDP_ALLOC(sweep->rows, (size_t)sweep->row_count));
    for (int a = 0; a < algorithm_count; a++)
        for (int t = 0; t < type_count; t++)
            for (int s = 0; s < size_count; s++)
                sweep->rows[n++] = (ddpi_reduce_row){.algorithm = (ddp_allreduce_algo)algorithms[a],
                                                     .type = (ddp_dtype)types[t],
                                                     .bytes = (size_t)bytes[s] & ~(size_t)7};
    return DDP_OK;
}

/* ---- ranks ---- */

static ddp_status conclude(const ddpi_reduce_sweep *sweep, ddpi_bench_out *out)
{
    int64_t wrong = 0;

    ddp_status st = ddpi_bench_out_open(out, "allreduce");
    if (st == DDP_OK)
        st = ddpi_reduce_report(sweep, out);
    ddp_status closed = ddpi_bench_out_close(out);
    DDP_TRY(st);
    DDP_TRY(closed);
    for (int i = 0; i < sweep->row_count; i++)
        wrong += sweep->rows[i].wrong;
    if (wrong != 0)
        return DDP_FAIL(DDP_ERR_INTERNAL, "%lld elements are wrong", (long long)wrong);
    return DDP_OK;
}

static ddp_status run_mpi(ddpi_reduce_sweep *sweep, ddpi_bench_out *out)
{
    ddp_comm_opts opts = DDP_COMM_OPTS_DEFAULTS;
    ddp_comm *comm;

    DDP_TRY(ddp_comm_mpi_open(&opts, NULL, NULL, &comm));
    const bool speaks = ddp_comm_rank(comm) == 0;
    ddp_status st =
        ddp_comm_agree(comm, speaks ? ddpi_bench_out_check(out) : DDP_OK, "prepare --out");
    if (st == DDP_OK)
        st = ddpi_reduce_measure(comm, sweep);
    if (speaks && st == DDP_OK)
        st = conclude(sweep, out);
    ddp_comm_close(comm);
    return st;
}

typedef struct rank_thread {
    ddp_thread thread;
    ddp_comm *comm;
    ddpi_reduce_sweep sweep;
    ddp_status status;
    char message[512];
} rank_thread;

static void *rank_main(void *arg)
{
    rank_thread *t = arg;

    t->status = ddpi_reduce_measure(t->comm, &t->sweep);
    if (t->status != DDP_OK) {
        snprintf(t->message, sizeof t->message, "%s", ddp_status_message());
        ddp_comm_fail(t->comm, t->message);
    }
    ddp_comm_close(t->comm);
    return NULL;
}

static ddp_status run_threads(rank_thread *threads, int world)
{
    ddp_comm_opts opts = DDP_COMM_OPTS_DEFAULTS;
    ddp_comm *comms[MAX_LOOPBACK];

    opts.exit_on_failure = false;
    DDP_TRY(ddp_comm_loopback_open(&opts, world, NULL, comms));
    for (int r = 0; r < world; r++) {
        threads[r].comm = comms[r];
        /* Ranks that run already would wait for those that do not. */
        if (ddp_thread_start(&threads[r].thread, "rank", rank_main, &threads[r]) != DDP_OK)
            ddp_fatal("%s", ddp_status_message());
    }
    for (int r = 0; r < world; r++)
        ddp_thread_join(&threads[r].thread);
    for (int r = 0; r < world; r++)
        if (threads[r].status != DDP_OK && threads[r].status != DDP_ERR_PEER)
            return ddp_status_set(threads[r].status, NULL, 0, "%s", threads[r].message);
    return threads[0].status;
}

/* Every rank has rows of its own. */
static ddp_status run_loopback(ddpi_reduce_sweep *sweep, int world, ddpi_bench_out *out)
{
    rank_thread *threads = NULL;
    ddp_status st = ddpi_bench_out_check(out);

    if (st == DDP_OK)
        st = DDP_ALLOC(threads, (size_t)world);
    for (int r = 0; r < world && st == DDP_OK; r++) {
        threads[r].sweep = *sweep;
        threads[r].sweep.rows = NULL;
        st = DDP_ALLOC(threads[r].sweep.rows, (size_t)sweep->row_count);
        if (st == DDP_OK)
            memcpy(threads[r].sweep.rows, sweep->rows,
                   (size_t)sweep->row_count * sizeof *sweep->rows);
    }
    if (st == DDP_OK)
        st = run_threads(threads, world);
    if (st == DDP_OK)
        st = conclude(&threads[0].sweep, out);
    for (int r = 0; threads != NULL && r < world; r++)
        ddp_free(threads[r].sweep.rows);
    ddp_free(threads);
    return st;
}

ddp_status ddpi_bench_allreduce(const ddpi_bench_call *call)
{
    ddpi_reduce_opts opts = {.loopback_ranks = 2,
                             .algorithms = "auto",
                             .types = "f32",
                             .sizes = "8,64,512,4K,32K,256K,1M,4M,16M,64M,256M",
                             .min_time_s = 0.5,
                             .out = DDPI_BENCH_OUT_DEFAULTS};
    const ddp_option_group groups[] = {{"What is measured", reduce_options, &opts},
                                       {"Results", ddpi_bench_out_options, &opts.out}};
    const ddpi_bench_form form = {"ddp_bench allreduce", doc, groups, 2};
    ddpi_reduce_sweep sweep = {0};
    ddp_options *options;
    bool run = false;

    ddp_status st = ddpi_bench_parse(call, &form, &options, &run);
    if (st == DDP_OK && run)
        st = plan(&opts, &sweep);
    if (st == DDP_OK && run)
        st = opts.comm == DDPI_REDUCE_LOOPBACK
                 ? run_loopback(&sweep, (int)opts.loopback_ranks, &opts.out)
                 : run_mpi(&sweep, &opts.out);
    ddp_free(sweep.rows);
    ddp_options_destroy(options);
    return st;
}
