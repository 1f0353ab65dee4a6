/* allreduce.c - bandwidth and latency of an allreduce of f32 sums, by size.
 *
 *   mpirun -np N bench_allreduce [--allreduce ALGO] [--sizes-mb 1,4,25] [--sizes BYTES,...]
 *                                [--min-time SECONDS] [--memory window|private] [--json]
 *
 * ALGO is auto, shm, mpi, root, ring, tree or rhd: one of the communicator's, through its public
 * interface; or plain: MPI_Allreduce called by itself, without any of this project's code around
 * it. One algorithm a run, since a communicator has one.
 *
 * A sample: refill the buffer, barrier, take the time, reduce, take the time; the slowest rank's
 * time counts. algbw is bytes / median time, busbw is algbw * 2 (n-1)/n: what a ring would have to
 * move over each link. Every size is checked element by element with values that differ by rank and
 * place, before and after the timed samples; wrong is the number of bad elements over all ranks.
 *
 * bound: an allreduce in memory reads and writes every rank's buffer once: 2 * n * bytes. copy is
 * the bandwidth (bytes read and written) of all ranks copying private memory at the same time with
 * memcpy; bound is the share of the time that this traffic would take at that bandwidth. It is for
 * ranks of one node, and may exceed 1 for what stays in caches. */
#include <getopt.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ddp/comm.h"
#include "ddp/memory.h"
#include "ddp/thread.h"

#define MAX_SIZES   64
#define MAX_SAMPLES 2000
#define MIN_SAMPLES 5
#define WARMUPS     2
#define COPY_BYTES  ((size_t)64 << 20)
#define COPY_ROUNDS 7
#define PATTERN     1021 /* odd, so that pieces of a buffer do not look alike */

typedef struct options {
    const char *algorithm;
    size_t sizes[MAX_SIZES];
    int size_count;
    double min_time_s;
    bool window, json;
} options;

/* What is measured: MPI alone if comm is NULL. */
typedef struct bench {
    const options *opts;
    ddp_comm *comm;
    int rank, world;
    float *buf;
    size_t buf_bytes;
    double copy_bytes_per_s; /* of all ranks together; read and written */
} bench;

typedef struct row {
    size_t bytes, count;
    int samples;
    double min_s, median_s, mean_s;
    int64_t wrong;
} row;

static const char *const algorithms[] = {
    [DDP_ALLREDUCE_AUTO] = "auto", [DDP_ALLREDUCE_SHM] = "shm",   [DDP_ALLREDUCE_MPI] = "mpi",
    [DDP_ALLREDUCE_ROOT] = "root", [DDP_ALLREDUCE_RING] = "ring", [DDP_ALLREDUCE_TREE] = "tree",
    [DDP_ALLREDUCE_RHD] = "rhd",
};
#define ALGORITHM_COUNT ((int)(sizeof algorithms / sizeof *algorithms))

/* ---- the two ways to talk ---- */

static ddp_status mpi_result(int rc, const char *call)
{
    return rc == MPI_SUCCESS ? DDP_OK : DDP_FAIL(DDP_ERR_COMM, "%s failed with code %d", call, rc);
}

static ddp_status barrier(bench *b)
{
    if (b->comm != NULL)
        return ddp_comm_barrier(b->comm);
    return mpi_result(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier");
}

static ddp_status sum_f32(bench *b, size_t count)
{
    if (b->comm != NULL)
        return ddp_comm_allreduce(b->comm, b->buf, count, DDP_F32, DDP_REDUCE_SUM, "benchmark");
    return mpi_result(
        MPI_Allreduce(MPI_IN_PLACE, b->buf, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD),
        "MPI_Allreduce");
}

static ddp_status max_f64(bench *b, double *values, int count)
{
    if (b->comm != NULL)
        return ddp_comm_allreduce(b->comm, values, (size_t)count, DDP_F64, DDP_REDUCE_MAX, "times");
    return mpi_result(
        MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD),
        "MPI_Allreduce");
}

static ddp_status sum_i64(bench *b, int64_t *value)
{
    if (b->comm != NULL)
        return ddp_comm_allreduce(b->comm, value, 1, DDP_I64, DDP_REDUCE_SUM, "errors");
    return mpi_result(MPI_Allreduce(MPI_IN_PLACE, value, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD),
                      "MPI_Allreduce");
}

/* ---- measuring ---- */

/* Small whole numbers: their sums are exact in f32 in any order. */
static float pattern_at(size_t index, int rank)
{
    return (float)(index % PATTERN + (size_t)rank);
}

static ddp_status count_wrong(bench *b, size_t count, int64_t *wrong)
{
    float ranks = (float)b->world * (float)(b->world - 1) / 2.0f;
    int64_t bad = 0;

    for (size_t i = 0; i < count; i++)
        b->buf[i] = pattern_at(i, b->rank);
    DDP_TRY(sum_f32(b, count));
    for (size_t i = 0; i < count; i++)
        bad += b->buf[i] != pattern_at(i, 0) * (float)b->world + ranks;
    DDP_TRY(sum_i64(b, &bad));
    *wrong += bad;
    return DDP_OK;
}

static ddp_status sample(bench *b, size_t count, double *seconds_out)
{
    for (size_t i = 0; i < count; i++)
        b->buf[i] = 1.0f;
    DDP_TRY(barrier(b));
    int64_t begin_ns = ddp_now_ns();
    DDP_TRY(sum_f32(b, count));
    *seconds_out = (double)(ddp_now_ns() - begin_ns) / 1e9;
    return DDP_OK;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void summarize(double *seconds, row *r)
{
    double sum = 0;

    qsort(seconds, (size_t)r->samples, sizeof *seconds, compare_doubles);
    for (int i = 0; i < r->samples; i++)
        sum += seconds[i];
    r->min_s = seconds[0];
    r->median_s = seconds[r->samples / 2];
    r->mean_s = sum / r->samples;
}

static ddp_status measure(bench *b, size_t bytes, row *row_out)
{
    static double seconds[MAX_SAMPLES];
    row r = {.bytes = bytes, .count = bytes / sizeof(float)};
    double warm = 0;

    DDP_TRY(count_wrong(b, r.count, &r.wrong));
    for (int i = 0; i < WARMUPS; i++)
        DDP_TRY(sample(b, r.count, &warm));
    DDP_TRY(max_f64(b, &warm, 1));
    double wanted = b->opts->min_time_s / (warm > 1e-9 ? warm : 1e-9);
    r.samples = wanted > MAX_SAMPLES   ? MAX_SAMPLES
                : wanted < MIN_SAMPLES ? MIN_SAMPLES
                                       : (int)wanted;
    for (int i = 0; i < r.samples; i++)
        DDP_TRY(sample(b, r.count, &seconds[i]));
    DDP_TRY(max_f64(b, seconds, r.samples));
    summarize(seconds, &r);
    DDP_TRY(count_wrong(b, r.count, &r.wrong));
    *row_out = r;
    return DDP_OK;
}

static ddp_status measure_copy(bench *b)
{
    void *src, *dst;
    double best = 1e30;

    DDP_TRY(ddp_large_alloc(COPY_BYTES, &src));
    DDP_TRY(ddp_large_alloc(COPY_BYTES, &dst));
    for (int i = 0; i < COPY_ROUNDS; i++) {
        DDP_TRY(barrier(b));
        int64_t begin_ns = ddp_now_ns();
        memcpy(dst, src, COPY_BYTES);
        /* The copy must not be left out because nobody reads it. */
        __asm__ volatile("" : : "r"(dst) : "memory");
        double seconds = (double)(ddp_now_ns() - begin_ns) / 1e9;
        DDP_TRY(max_f64(b, &seconds, 1));
        best = seconds < best ? seconds : best;
    }
    b->copy_bytes_per_s = 2.0 * (double)COPY_BYTES * b->world / best;
    ddp_large_free(src, COPY_BYTES);
    ddp_large_free(dst, COPY_BYTES);
    return DDP_OK;
}

/* ---- output ---- */

static void print_head(const bench *b)
{
    if (b->rank != 0 || b->opts->json)
        return;
    printf("# ranks %d, algorithm %s, memory %s, copy %.1f GB/s (all ranks, read and written)\n",
           b->world, b->opts->algorithm, b->opts->window ? "window" : "private",
           b->copy_bytes_per_s / 1e9);
    printf("%12s %11s %10s %8s %11s %11s %11s %8s %8s %6s %6s\n", "bytes", "count", "algorithm",
           "samples", "min us", "median us", "avg us", "algbw", "busbw", "bound", "wrong");
}

static void print_row(const bench *b, const row *r)
{
    double algbw = (double)r->bytes / r->median_s / 1e9;
    double busbw = algbw * 2.0 * (b->world - 1) / b->world;
    double bound = 2.0 * (double)r->bytes * b->world / b->copy_bytes_per_s / r->median_s;

    if (b->rank != 0)
        return;
    if (b->opts->json)
        printf("{\"bench\": \"allreduce\", \"ranks\": %d, \"algorithm\": \"%s\", \"memory\": "
               "\"%s\", \"bytes\": %zu, \"count\": %zu, \"samples\": %d, \"min_s\": %.9f, "
               "\"median_s\": %.9f, \"avg_s\": %.9f, \"algbw_GBps\": %.6f, \"busbw_GBps\": %.6f, "
               "\"copy_GBps\": %.3f, \"bound\": %.4f, \"wrong\": %lld}\n",
               b->world, b->opts->algorithm, b->opts->window ? "window" : "private", r->bytes,
               r->count, r->samples, r->min_s, r->median_s, r->mean_s, algbw, busbw,
               b->copy_bytes_per_s / 1e9, bound, (long long)r->wrong);
    else
        printf("%12zu %11zu %10s %8d %11.1f %11.1f %11.1f %8.3f %8.3f %6.2f %6lld\n", r->bytes,
               r->count, b->opts->algorithm, r->samples, r->min_s * 1e6, r->median_s * 1e6,
               r->mean_s * 1e6, algbw, busbw, bound, (long long)r->wrong);
    fflush(stdout);
}

static ddp_status run(bench *b)
{
    int64_t wrong = 0;

    DDP_TRY(measure_copy(b));
    print_head(b);
    for (int i = 0; i < b->opts->size_count; i++) {
        row r;
        DDP_TRY(measure(b, b->opts->sizes[i], &r));
        print_row(b, &r);
        wrong += r.wrong;
    }
    if (wrong != 0)
        return DDP_FAIL(DDP_ERR_INTERNAL, "%lld elements are wrong", (long long)wrong);
    return DDP_OK;
}

/* ---- options ---- */

static bool parse_sizes(const char *text, double unit, options *opts)
{
    char *end;

    opts->size_count = 0;
    for (const char *at = text;; at = end + 1) {
        double value = strtod(at, &end);
        size_t bytes = (size_t)(value * unit) / sizeof(float) * sizeof(float);
        if (end == at || bytes == 0 || value * unit > 8e9 || opts->size_count == MAX_SIZES)
            return false;
        opts->sizes[opts->size_count++] = bytes;
        if (*end != ',')
            return *end == '\0';
    }
}

static bool parse_options(int argc, char **argv, options *opts)
{
    static const struct option table[] = {
        {"allreduce", required_argument, NULL, 'a'},
        {"sizes-mb", required_argument, NULL, 'm'},
        {"sizes", required_argument, NULL, 's'},
        {"min-time", required_argument, NULL, 't'},
        {"memory", required_argument, NULL, 'w'},
        {"json", no_argument, NULL, 'j'},
        {NULL, 0, NULL, 0},
    };
    bool fine = parse_sizes("4,1024,65536,1048576,4194304,26214400,67108864", 1, opts);

    for (int c; fine && (c = getopt_long(argc, argv, "", table, NULL)) != -1;) {
        char *end = NULL;
        if (c == 'a')
            opts->algorithm = optarg;
        else if (c == 'm')
            fine = parse_sizes(optarg, 1 << 20, opts);
        else if (c == 's')
            fine = parse_sizes(optarg, 1, opts);
        else if (c == 't')
            fine = (opts->min_time_s = strtod(optarg, &end)) > 0 && *end == '\0';
        else if (c == 'w')
            fine = (opts->window = strcmp(optarg, "window") == 0) || !strcmp(optarg, "private");
        else if (c == 'j')
            opts->json = true;
        else
            fine = false;
    }
    return fine && optind == argc;
}

/* ---- set-up ---- */

static int algorithm_index(const char *name)
{
    for (int i = 0; i < ALGORITHM_COUNT; i++) {
        if (strcmp(algorithms[i], name) == 0)
            return i;
    }
    return -1;
}

static ddp_status run_plain(bench *b, int *argc, char ***argv)
{
    DDP_TRY(mpi_result(MPI_Init(argc, argv), "MPI_Init"));
    MPI_Comm_rank(MPI_COMM_WORLD, &b->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &b->world);
    void *memory;
    DDP_TRY(ddp_large_alloc(b->buf_bytes, &memory));
    b->buf = memory;
    ddp_status status = run(b);
    ddp_large_free(memory, b->buf_bytes);
    MPI_Finalize();
    return status;
}

static ddp_status run_comm(bench *b, int algorithm, int *argc, char ***argv)
{
    ddp_comm_opts opts = DDP_COMM_OPTS_DEFAULTS;
    void *memory;

    opts.allreduce = (ddp_allreduce_algo)algorithm;
    DDP_TRY(ddp_comm_mpi_open(&opts, argc, argv, &b->comm));
    b->rank = ddp_comm_rank(b->comm);
    b->world = ddp_comm_world(b->comm);
    if (b->opts->window)
        DDP_TRY(ddp_comm_mem_alloc(b->comm, b->buf_bytes, &memory));
    else
        DDP_TRY(ddp_large_alloc(b->buf_bytes, &memory));
    b->buf = memory;
    ddp_status status = run(b);
    if (b->opts->window)
        ddp_comm_mem_free(b->comm, memory);
    else
        ddp_large_free(memory, b->buf_bytes);
    ddp_comm_close(b->comm);
    return status;
}

int main(int argc, char **argv)
{
    options opts = {.algorithm = "auto", .min_time_s = 0.5, .window = true};
    bench b = {.opts = &opts};

    if (!parse_options(argc, argv, &opts)) {
        fprintf(stderr, "bench_allreduce: bad arguments; see the head of benchmarks/allreduce.c\n");
        return 2;
    }
    for (int i = 0; i < opts.size_count; i++)
        b.buf_bytes = opts.sizes[i] > b.buf_bytes ? opts.sizes[i] : b.buf_bytes;
    bool plain = strcmp(opts.algorithm, "plain") == 0;
    int algorithm = algorithm_index(opts.algorithm);
    if (!plain && algorithm < 0) {
        fprintf(stderr, "bench_allreduce: no allreduce algorithm is called %s\n", opts.algorithm);
        return 2;
    }
    opts.window = opts.window && !plain;
    ddp_status status = plain ? run_plain(&b, &argc, &argv) : run_comm(&b, algorithm, &argc, &argv);
    if (status != DDP_OK)
        fprintf(stderr, "bench_allreduce: rank %d: %s\n", b.rank, ddp_status_message());
    return ddp_status_exit_code(status);
}
