/* Collectives on device memory over NCCL, for any number of ranks: values, order of additions,
 * joins that do not wait, times. With an argument, one way to fail, as the modes below say: the
 * process then ends by its communicator's hand, and what it says is nccl_failures.sh's to check. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/parts.h"
#include "comm_checks.h"
#include "ddp/bf16.h"
#include "ddp/pointwise.h"
#include "ddp/sum_tree.h"
#include "ddp/thread.h"
#include "device/cuda/cuda_impl.h"
#include "device/cuda_module.h"
#include "reduce_reference.h"

enum { MOST = 300007, MANY = 40, SHORT_MS = 3000 };

typedef struct bench {
    ddp_comm *comm;
    ddp_device *device;
    ddp_stream *main;
    void *buf; /* of the lane; MOST floats */
    void *host;
    int rank, world;
} bench;

static ddp_status expect(bool right, const char *what)
{
    return right ? DDP_OK : DDP_FAIL(DDP_ERR_INTERNAL, "%s", what);
}

/* ---- a rank's device ---- */

static ddp_status open_bench(bench *b, ddp_comm *comm, bool deterministic)
{
    const ddp_lane_opts lane = {.deterministic = deterministic};
    ddp_device_opts opts = DDP_DEVICE_OPTS_DEFAULTS;

    *b = (bench){.comm = comm, .rank = ddp_comm_rank(comm), .world = ddp_comm_world(comm)};
    opts.index = b->rank;
    DDP_TRY(ddp_device_open(&ddpi_device_cuda, &opts, &b->device));
    b->main = ddp_device_main_stream(b->device);
    DDP_TRY(ddp_comm_attach(comm, b->device, ddpi_lane_nccl(), &lane));
    DDP_TRY(expect(strcmp(ddp_comm_lane_name(comm), "nccl") == 0, "name of the lane"));
    DDP_TRY(ddp_device_host_alloc(b->device, MOST * sizeof(float), &b->host));
    return ddp_comm_mem_alloc(comm, MOST * sizeof(float), &b->buf);
}

static void close_bench(bench *b)
{
    ddp_comm_mem_free(b->comm, b->buf);
    ddp_device_host_free(b->device, b->host, MOST * sizeof(float));
    ddp_comm_detach(b->comm);
    ddp_device_close(b->device);
}

static ddp_status upload(bench *b, size_t bytes)
{
    return ddp_device_copy(b->device, b->main, b->buf, b->host, bytes, DDP_COPY_TO_DEVICE);
}

static ddp_status download(bench *b, size_t bytes)
{
    DDP_TRY(ddp_device_copy(b->device, b->main, b->host, b->buf, bytes, DDP_COPY_TO_HOST));
    return ddp_stream_sync(b->main);
}

static ddp_coll coll_of(bench *b, ddp_coll_kind kind, ddp_dtype dtype, size_t count)
{
    return (ddp_coll){.kind = kind,
                      .dtype = dtype,
                      .buf = b->buf,
                      .stream = b->main,
                      .count = count,
                      .bucket = -1,
                      .what = "check"};
}

/* ---- values ---- */

static void put_value(void *buf, ddp_dtype dtype, size_t i, int value)
{
    if (dtype == DDP_F32)
        ((float *)buf)[i] = (float)value;
    else
        ((uint16_t *)buf)[i] = ddp_bf16_of_f32((float)value);
}

static float get_value(const void *buf, ddp_dtype dtype, size_t i)
{
    return dtype == DDP_F32 ? ((const float *)buf)[i] : ddp_f32_of_bf16(((const uint16_t *)buf)[i]);
}

/* One collective after an upload, whose copy it must wait for, and before a download. */
static ddp_status check_one(bench *b, const ddp_coll *coll)
{
    const size_t bytes = coll->count * ddp_dtype_bytes(coll->dtype);
    const bool root_only = coll->kind == DDP_COLL_REDUCE;
    ddp_work work;

    for (size_t i = 0; i < coll->count; i++)
        put_value(b->host, coll->dtype, i, check_value(b->rank, i));
    DDP_TRY(upload(b, bytes));
    DDP_TRY(ddp_comm_submit(b->comm, coll, &work));
    DDP_TRY(ddp_work_join(&work, b->main));
    DDP_TRY(download(b, bytes));
    DDP_TRY(ddp_work_wait(&work));
    DDP_TRY(expect(work.start_ns >= work.submit_ns && work.end_ns >= work.start_ns &&
                       work.end_ns <= ddp_now_ns(),
                   "times run backwards"));
    DDP_TRY(expect(work.owned.lo == 0 && work.owned.hi == coll->count, "not all is owned"));
    if (root_only && b->rank != coll->root)
        return DDP_OK;
    for (size_t i = 0; i < coll->count; i++) {
        const int want = coll->kind == DDP_COLL_BROADCAST
                             ? check_value(coll->root, i)
                             : wanted_value(b->world, i, DDP_REDUCE_SUM);
        const float got = get_value(b->host, coll->dtype, i);
        if (got != (float)want)
            return DDP_FAIL(DDP_ERR_INTERNAL, "kind %d of %zu %s: [%zu] is %g, want %d", coll->kind,
                            coll->count, ddp_dtype_name(coll->dtype), i, (double)got, want);
    }
    return DDP_OK;
}

static ddp_status check_values(bench *b)
{
    static const size_t lengths[] = {0, 1, 31, 33, 1000, 100003, MOST};
    static const ddp_dtype dtypes[] = {DDP_F32, DDP_BF16};
    static const ddp_coll_kind kinds[] = {DDP_COLL_ALLREDUCE, DDP_COLL_REDUCE_OWNED,
                                          DDP_COLL_REDUCE, DDP_COLL_BROADCAST};

    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
        for (size_t d = 0; d < 2; d++)
            for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
                ddp_coll coll = coll_of(b, kinds[k], dtypes[d], lengths[l]);
                coll.root = b->world - 1;
                DDP_TRY(check_one(b, &coll));
            }
    return DDP_OK;
}

static ddp_status check_refusals(bench *b)
{
    ddp_coll coll = coll_of(b, DDP_COLL_ALLREDUCE, DDP_F64, 1);
    ddp_work work;

    DDP_TRY(expect(ddp_comm_submit(b->comm, &coll, &work) == DDP_ERR_UNSUPPORTED, "sum of f64"));
    coll = coll_of(b, DDP_COLL_ALLGATHER, DDP_F32, 1);
    return expect(ddp_comm_submit(b->comm, &coll, &work) == DDP_ERR_UNSUPPORTED, "allgather");
}

/* ---- order ---- */

/* The sum of parts [*next, ...) under a node of so many leaves. */
static float tree(const ddpi_parts *parts, int64_t leaves, size_t i, bool bf16, int *next)
{
    const int part = *next;

    if (parts->leaves[part] == leaves) {
        const float value = (float)value_at(part, i, 5);
        (*next)++;
        return bf16 ? ddp_f32_of_bf16(ddp_bf16_of_f32(value)) : value;
    }
    const int64_t left = ddp_sum_split(leaves);
    const float a = tree(parts, left, i, bf16, next);
    return a + tree(parts, leaves - left, i, bf16, next);
}

static void fill_parts(bench *b, const ddp_coll *coll, const ddpi_parts *parts)
{
    for (int p = 0; p < parts->n; p++) {
        char *to = (char *)b->host + ddpi_part_offset(coll, parts->place[p]);
        for (size_t i = 0; parts->rank[p] == b->rank && i < coll->count; i++) {
            const float value = (float)value_at(p, i, 5);
            if (coll->dtype == DDP_F32)
                ((float *)(void *)to)[i] = value;
            else
                ((uint16_t *)(void *)to)[i] = ddp_bf16_of_f32(value);
        }
    }
}

static ddp_status check_order_of(bench *b, ddp_dtype dtype, size_t count, int64_t shards)
{
    ddp_coll coll = coll_of(b, DDP_COLL_REDUCE_OWNED, dtype, count);
    const int64_t leaves = (shards > 0 ? shards : 1) * b->world;
    ddpi_parts parts;
    ddp_work work;

    coll.shards = shards;
    coll.part_stride = count;
    memset(b->host, 0, MOST * sizeof(float));
    ddpi_parts_list(&coll, b->world, &parts);
    fill_parts(b, &coll, &parts);
    DDP_TRY(upload(b, MOST * sizeof(float)));
    DDP_TRY(ddp_comm_submit(b->comm, &coll, &work));
    DDP_TRY(ddp_work_wait(&work));
    DDP_TRY(download(b, count * ddp_dtype_bytes(dtype)));
    for (size_t i = 0; i < count; i++) {
        int next = 0;
        float want = tree(&parts, leaves, i, dtype == DDP_BF16, &next);
        if (dtype == DDP_BF16)
            want = ddp_f32_of_bf16(ddp_bf16_of_f32(want));
        const float got = get_value(b->host, dtype, i);
        if (memcmp(&got, &want, sizeof got) != 0)
            return DDP_FAIL(DDP_ERR_INTERNAL,
                            "sum of %zu %s over %lld shards of a rank: [%zu] is %a, want %a", count,
                            ddp_dtype_name(dtype), (long long)shards, i, (double)got, (double)want);
    }
    return DDP_OK;
}

static ddp_status check_order(bench *b)
{
    static const size_t lengths[] = {1, 5, 32, 65, 40009};

    for (size_t l = 0; l < sizeof lengths / sizeof *lengths && b->world > 1; l++)
        for (int64_t shards = 0; shards <= 6; shards += shards == 0 ? 2 : 1) {
            DDP_TRY(check_order_of(b, DDP_F32, lengths[l], shards));
            DDP_TRY(check_order_of(b, DDP_BF16, lengths[l], shards));
        }
    return DDP_OK;
}

/* ---- joins ---- */

static ddp_status wait_for(const int *flag)
{
    const int64_t until_ns = ddp_now_ns() + INT64_C(20000000000);

    while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) == 0) {
        if (ddp_now_ns() > until_ns)
            return DDP_FAIL(DDP_ERR_TIMEOUT, "rank 0 has not come back from ddp_work_join()");
        ddp_sleep_ns(100000);
    }
    return DDP_OK;
}

/* The others start only after rank 0 has joined, and given its stream what reads the result. */
static ddp_status check_join(bench *b)
{
    ddp_coll coll = coll_of(b, DDP_COLL_ALLREDUCE, DDP_F32, 1000);
    void *node, *twice;
    ddp_work work;

    DDP_TRY(ddp_comm_node_alloc(b->comm, sizeof(int), &node));
    DDP_TRY(ddp_device_alloc(b->device, 1000 * sizeof(float), &twice));
    check_fill(b->host, DDP_F32, 1000, b->rank);
    DDP_TRY(upload(b, 1000 * sizeof(float)));
    if (b->rank != 0)
        DDP_TRY(wait_for(node));
    DDP_TRY(ddp_comm_submit(b->comm, &coll, &work));
    DDP_TRY(ddp_work_join(&work, b->main));
    DDP_TRY(ddp_op_add(b->device, b->main, twice, b->buf, 1000));
    DDP_TRY(ddp_op_add(b->device, b->main, twice, b->buf, 1000));
    if (b->rank == 0)
        __atomic_store_n((int *)node, 1, __ATOMIC_RELEASE);
    DDP_TRY(ddp_work_wait(&work));
    DDP_TRY(ddp_device_copy(b->device, b->main, b->host, twice, 1000 * sizeof(float),
                            DDP_COPY_TO_HOST));
    DDP_TRY(ddp_stream_sync(b->main));
    for (size_t i = 0; i < 1000; i++)
        DDP_TRY(expect(((float *)b->host)[i] == 2 * (float)wanted_value(b->world, i, coll.op),
                       "what followed a join"));
    ddp_device_free(b->device, twice, 1000 * sizeof(float));
    ddp_comm_node_free(b->comm, node);
    return DDP_OK;
}

/* More works in flight than the lane begins with, waited for in the wrong order. */
static ddp_status check_many_works(bench *b)
{
    enum { EACH = 1000 };
    ddp_work works[MANY];

    check_fill(b->host, DDP_F32, (size_t)MANY * EACH, b->rank);
    DDP_TRY(upload(b, MANY * EACH * sizeof(float)));
    for (int i = 0; i < MANY; i++) {
        ddp_coll coll = coll_of(b, DDP_COLL_ALLREDUCE, DDP_F32, EACH);
        coll.buf = (float *)b->buf + (size_t)i * EACH;
        coll.bucket = i;
        DDP_TRY(ddp_comm_submit(b->comm, &coll, &works[i]));
    }
    for (int i = MANY - 1; i >= 0; i--)
        DDP_TRY(ddp_work_wait(&works[i]));
    DDP_TRY(download(b, MANY * EACH * sizeof(float)));
    for (size_t i = 0; i < (size_t)MANY * EACH; i++)
        DDP_TRY(expect(((float *)b->host)[i] == (float)wanted_value(b->world, i, DDP_REDUCE_SUM),
                       "one of many works"));
    return DDP_OK;
}

/* Two sums of the buffer, one behind the other, launched twice. */
static ddp_status record_sums(bench *b, size_t count, ddp_recording **recording_out)
{
    const ddp_coll coll = coll_of(b, DDP_COLL_ALLREDUCE, DDP_F32, count);
    ddp_work works[2];

    DDP_TRY(ddp_comm_record_begin(b->comm, recording_out));
    for (int i = 0; i < 2; i++) {
        DDP_TRY(ddp_comm_submit(b->comm, &coll, &works[i]));
        DDP_TRY(ddp_work_join(&works[i], b->main));
        DDP_TRY(ddp_work_wait(&works[i]));
    }
    ddp_comm_record_end(b->comm);
    return DDP_OK;
}

static ddp_status replay_sums(bench *b, ddp_recording *recording, ddp_graph *graph, size_t count)
{
    int64_t ns = -1;
    ddp_work works[2];

    for (size_t i = 0; i < count; i++)
        put_value(b->host, DDP_F32, i, check_value(b->rank, i));
    DDP_TRY(upload(b, count * sizeof(float)));
    for (int i = 0; i < 2; i++)
        DDP_TRY(ddp_comm_replay(recording, graph, b->main, &works[i]));
    DDP_TRY(expect(works[1].seq == works[0].seq + 2, "numbers of a replay's works"));
    DDP_TRY(ddp_work_wait(&works[0]));
    DDP_TRY(ddp_work_wait(&works[1]));
    DDP_TRY(expect(works[1].end_ns >= works[1].start_ns, "times of a replay"));
    DDP_TRY(ddp_recording_ns(recording, &ns));
    DDP_TRY(expect(b->world == 1 ? ns == 0 : ns > 0, "time of a replay's works"));
    DDP_TRY(download(b, count * sizeof(float)));
    const float again = (float)(b->world * b->world * b->world);
    for (size_t i = 0; i < count; i++)
        DDP_TRY(expect(((float *)b->host)[i] ==
                           again * (float)wanted_value(b->world, i, DDP_REDUCE_SUM),
                       "a sum that was launched in a graph"));
    return DDP_OK;
}

static ddp_status check_replays(bench *b)
{
    const size_t count = 100003;
    ddp_coll host = coll_of(b, DDP_COLL_ALLREDUCE, DDP_F32, 1);
    ddp_recording *recording;
    ddp_graph *graph;
    ddp_work work;

    DDP_TRY(ddp_graph_begin(b->main));
    DDP_TRY(record_sums(b, count, &recording));
    DDP_TRY(ddp_graph_end(b->main, &graph));
    DDP_TRY(replay_sums(b, recording, graph, count));
    ddp_graph_destroy(graph);
    ddp_recording_destroy(recording);
    /* The host's works are none for graphs. */
    host.buf = b->host;
    host.stream = NULL;
    DDP_TRY(ddp_comm_record_begin(b->comm, &recording));
    const ddp_status st = ddp_comm_submit(b->comm, &host, &work);
    ddp_comm_record_end(b->comm);
    ddp_recording_destroy(recording);
    return expect(st == DDP_ERR_UNSUPPORTED, "a host's work in a graph is refused");
}

static ddp_status check_all_of(ddp_comm *comm, bool deterministic)
{
    bench b;

    DDP_TRY(open_bench(&b, comm, deterministic));
    DDP_TRY(check_values(&b));
    DDP_TRY(check_refusals(&b));
    if (deterministic)
        DDP_TRY(check_order(&b));
    DDP_TRY(check_join(&b));
    DDP_TRY(check_many_works(&b));
    DDP_TRY(check_replays(&b));
    close_bench(&b);
    return DDP_OK;
}

/* ---- ways to fail ---- */

static ddp_status one_sum(bench *b)
{
    const ddp_coll coll = coll_of(b, DDP_COLL_ALLREDUCE, DDP_F32, 1000);
    ddp_work work;

    DDP_TRY(ddp_comm_submit(b->comm, &coll, &work));
    return ddp_work_wait(&work);
}

/* die: the last rank is killed. skip: it leaves a sum out. go: nobody does anything wrong, but for
 * what the simulator is told to break. */
static ddp_status fail_by(ddp_comm *comm, const char *mode)
{
    bench b;

    DDP_TRY(open_bench(&b, comm, false));
    for (int i = 0; i < MANY; i++) {
        const bool culprit = i == MANY / 2 && b.rank == b.world - 1;
        if (culprit && strcmp(mode, "die") == 0)
            raise(SIGKILL);
        if (culprit && strcmp(mode, "skip") == 0)
            continue;
        DDP_TRY(one_sum(&b));
    }
    DDP_TRY(ddp_comm_barrier(comm));
    close_bench(&b);
    return DDP_OK;
}

static ddp_status run(ddp_comm *comm, const char *mode)
{
    if (mode != NULL)
        return fail_by(comm, mode);
    DDP_TRY(check_all_of(comm, false));
    return check_all_of(comm, true);
}

int main(int argc, char **argv)
{
    ddp_comm_opts opts = DDP_COMM_OPTS_DEFAULTS;
    const char *mode = argc > 1 ? argv[1] : NULL;
    ddp_comm *comm;

    opts.timeout_ms = mode != NULL ? SHORT_MS : 30000;
    if (ddp_comm_mpi_open(&opts, &argc, &argv, &comm) != DDP_OK) {
        fprintf(stderr, "open: %s\n", ddp_status_message());
        return 1;
    }
    ddp_status st = run(comm, mode);
    /* What all have agreed on, one of them says. */
    if (st != DDP_OK && (mode == NULL || ddp_comm_rank(comm) == 0))
        ddp_fatal("%s", ddp_status_message());
    ddp_comm_close(comm);
    return st == DDP_OK ? 0 : 1;
}
