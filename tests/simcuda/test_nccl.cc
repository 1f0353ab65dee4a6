/*
 * test_nccl.cc - the simulated NCCL: results of every collective between processes, groups, split,
 * capture, and what it says of programs that do not use it right or lose a peer.
 */
#include "check.h"
#include "children.h"
#include <cmath>

#include <csignal>
#include <cstdint>
#include <nccl.h>
#include <sys/mman.h>

static ncclUniqueId *shared_id; /* [0] of the case, its rank 0 writes it */
static volatile int *shared_flag;

#define NCCL(call)                                                                                 \
    do {                                                                                           \
        ncclResult_t given_ = (call);                                                              \
        if (given_ != ncclSuccess) {                                                               \
            fprintf(stderr, "%s:%d: %s gives %d\n", __FILE__, __LINE__, #call, (int)given_);       \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

struct world {
    int rank, ranks;
    ncclComm_t comm;
    cudaStream_t stream;
    float *a, *b; /* device memory of `count` each */
    float *host;
};
static const int count = 150000; /* more than a chunk */

static ncclUniqueId exchange_id(int rank)
{
    if (rank == 0) {
        NCCL(ncclGetUniqueId(shared_id));
        *shared_flag = 1;
    }
    while (!*shared_flag)
        usleep(100);
    return *shared_id;
}

static ncclResult_t settled(ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) {
        NCCL(ncclCommGetAsyncError(comm, &state));
        usleep(200);
    }
    return state;
}

static world open_world(int rank, int ranks)
{
    world w = {rank, ranks, nullptr, nullptr, nullptr, nullptr, nullptr};
    GOOD(cudaSetDevice(rank));
    GOOD(cudaStreamCreateWithFlags(&w.stream, cudaStreamNonBlocking));
    NCCL(ncclCommInitRank(&w.comm, ranks, exchange_id(rank), rank));
    NCCL(ncclMemAlloc((void **)&w.a, count * sizeof(float)));
    NCCL(ncclMemAlloc((void **)&w.b, count * sizeof(float)));
    GOOD(cudaMallocHost((void **)&w.host, count * sizeof(float)));
    return w;
}

static void close_world(world *w)
{
    GOOD(cudaStreamSynchronize(w->stream));
    NCCL(ncclCommFinalize(w->comm));
    NCCL(ncclCommDestroy(w->comm));
    NCCL(ncclMemFree(w->a));
    NCCL(ncclMemFree(w->b));
    GOOD(cudaFreeHost(w->host));
    GOOD(cudaStreamDestroy(w->stream));
}

/* a[i] = i % 100 + rank */
static void fill(world *w)
{
    for (int i = 0; i < count; i++)
        w->host[i] = (float)(i % 100 + w->rank);
    GOOD(cudaMemcpyAsync(w->a, w->host, count * sizeof(float), cudaMemcpyHostToDevice, w->stream));
}

static void fetch(world *w, const float *from)
{
    GOOD(cudaMemcpyAsync(w->host, from, count * sizeof(float), cudaMemcpyDeviceToHost, w->stream));
    GOOD(cudaStreamSynchronize(w->stream));
}

static void check_sums(world *w)
{
    int n = w->ranks;
    for (int i = 0; i < count; i++)
        CHECK(w->host[i] == (float)(i % 100 * n + n * (n - 1) / 2));
}

static void right(int rank, int ranks)
{
    world w = open_world(rank, ranks);
    int n = ranks, part = count / n;
    fill(&w);
    NCCL(ncclAllReduce(w.a, w.b, count, ncclFloat, ncclSum, w.comm, w.stream));
    fetch(&w, w.b);
    check_sums(&w);
    NCCL(ncclReduce(w.a, w.a, count, ncclFloat, ncclMax, n - 1, w.comm, w.stream)); /* in place */
    NCCL(ncclBroadcast(w.a, w.b, count, ncclFloat, n - 1, w.comm, w.stream));
    fetch(&w, w.b);
    for (int i = 0; i < count; i++)
        CHECK(w.host[i] == (float)(i % 100 + n - 1));
    fill(&w);
    NCCL(ncclAllGather(w.a, w.b, part, ncclFloat, w.comm, w.stream));
    fetch(&w, w.b);
    for (int i = 0; i < part * n; i++)
        CHECK(w.host[i] == (float)(i % part % 100 + i / part));
    fill(&w);
    NCCL(ncclReduceScatter(w.a, w.a + rank * part, part, ncclFloat, ncclAvg, w.comm, w.stream));
    fetch(&w, w.a + 0);
    for (int i = 0; i < part; i++)
        CHECK(fabsf(w.host[rank * part + i] -
                    ((float)((rank * part + i) % 100) + (float)(n - 1) / 2)) < 1e-3f);
    fill(&w);
    NCCL(ncclGroupStart());
    NCCL(ncclSend(w.a, count, ncclFloat, (rank + 1) % n, w.comm, w.stream));
    NCCL(ncclRecv(w.b, count, ncclFloat, (rank + n - 1) % n, w.comm, w.stream));
    NCCL(ncclGroupEnd());
    fetch(&w, w.b);
    for (int i = 0; i < count; i++)
        CHECK(w.host[i] == (float)(i % 100 + (rank + n - 1) % n));
    close_world(&w);
}

/* bf16: 1 + 2^-7 is a neighbour of 1, and sums of it are rounded. */
static void small_types(int rank, int ranks)
{
    world w = open_world(rank, ranks);
    uint16_t *values = (uint16_t *)w.host;
    values[0] = 0x3f81;
    values[1] = 0x3c01; /* f16: 1 + 2^-10 */
    GOOD(cudaMemcpyAsync(w.a, values, 4, cudaMemcpyHostToDevice, w.stream));
    uint16_t *place = (uint16_t *)w.a;
    NCCL(ncclAllReduce(place, place, 1, ncclBfloat16, ncclSum, w.comm, w.stream));
    NCCL(ncclAllReduce(place + 1, place + 1, 1, ncclHalf, ncclSum, w.comm, w.stream));
    GOOD(cudaMemcpyAsync(values, w.a, 4, cudaMemcpyDeviceToHost, w.stream));
    GOOD(cudaStreamSynchronize(w.stream));
    CHECK(ranks != 2 || (values[0] == 0x4001 && values[1] == 0x4001));
    CHECK(ranks != 3 || (values[0] == 0x4042 && values[1] == 0x4202));
    close_world(&w);
}

static void not_blocking(int rank, int ranks)
{
    world w = {rank, ranks, nullptr, nullptr, nullptr, nullptr, nullptr};
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    GOOD(cudaSetDevice(rank));
    GOOD(cudaStreamCreateWithFlags(&w.stream, cudaStreamNonBlocking));
    ncclUniqueId id = exchange_id(rank);
    CHECK(ncclCommInitRankConfig(&w.comm, ranks, id, rank, &config) == ncclInProgress);
    CHECK(settled(w.comm) == ncclSuccess);
    NCCL(ncclMemAlloc((void **)&w.a, count * sizeof(float)));
    NCCL(ncclMemAlloc((void **)&w.b, count * sizeof(float)));
    GOOD(cudaMallocHost((void **)&w.host, count * sizeof(float)));
    fill(&w);
    CHECK(ncclAllReduce(w.a, w.b, count, ncclFloat, ncclSum, w.comm, w.stream) == ncclInProgress);
    CHECK(settled(w.comm) == ncclSuccess);
    fetch(&w, w.b);
    check_sums(&w);
    CHECK(ncclCommFinalize(w.comm) == ncclInProgress);
    CHECK(settled(w.comm) == ncclSuccess);
    NCCL(ncclCommDestroy(w.comm));
}

static void split_and_capture(int rank, int ranks)
{
    world w = open_world(rank, ranks);
    ncclComm_t child;
    int size, own;
    NCCL(ncclCommSplit(w.comm, rank % 2, -rank, &child, nullptr));
    NCCL(ncclCommCount(child, &size));
    NCCL(ncclCommUserRank(child, &own));
    CHECK(size == (ranks + 1 - rank % 2) / 2 && own == size - 1 - rank / 2);
    NCCL(ncclCommDestroy(child));
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    GOOD(cudaStreamBeginCapture(w.stream, cudaStreamCaptureModeThreadLocal));
    NCCL(ncclAllReduce(w.a, w.b, count, ncclFloat, ncclSum, w.comm, w.stream));
    GOOD(cudaStreamEndCapture(w.stream, &graph));
    GOOD(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++) {
        fill(&w);
        GOOD(cudaGraphLaunch(exec, w.stream));
        fetch(&w, w.b);
        check_sums(&w);
    }
    GOOD(cudaGraphExecDestroy(exec));
    GOOD(cudaGraphDestroy(graph));
    close_world(&w);
}

/* Programs with a mistake, or without luck. */
static void run_to_the_end(world *w)
{
    ncclResult_t state = ncclSuccess;
    cudaEvent_t done;
    GOOD(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    GOOD(cudaEventRecord(done, w->stream));
    for (int i = 0; cudaEventQuery(done) == cudaErrorNotReady && state == ncclSuccess; i++) {
        NCCL(ncclCommGetAsyncError(w->comm, &state));
        usleep(1000);
        CHECK(i < 30000);
    }
    if (state != ncclSuccess)
        fprintf(stderr, "asynchronous error %d: %s\n", (int)state, ncclGetLastError(w->comm));
    NCCL(ncclCommAbort(w->comm));
    GOOD(cudaStreamSynchronize(w->stream));
    exit(state == ncclSuccess ? 0 : 40 + (int)state);
}

static void other_count(int rank, int ranks)
{
    world w = open_world(rank, ranks);
    NCCL(ncclAllReduce(w.a, w.b, (size_t)(rank ? 100 : 101), ncclFloat, ncclSum, w.comm, w.stream));
    run_to_the_end(&w);
}

static void other_kind(int rank, int ranks)
{
    world w = open_world(rank, ranks);
    if (rank)
        NCCL(ncclAllReduce(w.a, w.b, 100, ncclFloat, ncclSum, w.comm, w.stream));
    else
        NCCL(ncclBroadcast(w.a, w.b, 100, ncclFloat, 0, w.comm, w.stream));
    run_to_the_end(&w);
}

static void swapped(int rank, int ranks)
{
    setenv("CUSIM_NCCL_BUFFERS", "1", 1);
    world w = open_world(rank, ranks);
    NCCL(ncclGroupStart()); /* so that both are given before the first one is found out */
    for (int i = 0; i < 2; i++) {
        float *bucket = (i + rank) % 2 ? w.a : w.b;
        NCCL(ncclAllReduce(bucket, bucket, 100, ncclFloat, ncclSum, w.comm, w.stream));
    }
    NCCL(ncclGroupEnd());
    run_to_the_end(&w);
}

static void skipped(int rank, int ranks)
{
    setenv("CUSIM_NCCL_TIMEOUT_MS", "400", 1);
    world w = open_world(rank, ranks);
    NCCL(ncclAllReduce(w.a, w.b, 100, ncclFloat, ncclSum, w.comm, w.stream));
    if (rank == 0)
        NCCL(ncclAllReduce(w.a, w.b, 100, ncclFloat, ncclSum, w.comm, w.stream));
    run_to_the_end(&w);
}

static void killed(int rank, int ranks)
{
    setenv("CUSIM_NCCL_TIMEOUT_MS", "400", 1);
    world w = open_world(rank, ranks);
    if (rank == 1)
        raise(SIGKILL);
    NCCL(ncclAllReduce(w.a, w.b, 100, ncclFloat, ncclSum, w.comm, w.stream));
    run_to_the_end(&w);
}

static void injected(int rank, int ranks)
{
    setenv("CUSIM_FAIL", "ncclAsync@rank1:2", 1);
    setenv("CUSIM_NCCL_TIMEOUT_MS", "400", 1);
    world w = open_world(rank, ranks);
    for (int i = 0; i < 2; i++)
        NCCL(ncclAllReduce(w.a, w.b, 100, ncclFloat, ncclSum, w.comm, w.stream));
    run_to_the_end(&w);
}

static void same_device(int rank, int ranks)
{
    ncclComm_t comm;
    GOOD(cudaSetDevice(0));
    exit(40 + (int)ncclCommInitRank(&comm, ranks, exchange_id(rank), rank));
}

static void host_buffer(int rank, int ranks)
{
    static float plain[100];
    world w = open_world(rank, ranks);
    CHECK(ncclAllReduce(plain, w.b, 100, ncclFloat, ncclSum, w.comm, w.stream) ==
          ncclInvalidArgument);
    GOOD(cudaStreamSynchronize(w.stream));
}

struct test_case {
    const char *name;
    int ranks;
    void (*body)(int, int);
    int status[2]; /* of ranks 0 and 1; those after them end as rank 0 */
    const char *text;
};
static const test_case cases[] = {
    {"one rank", 1, right, {0, 0}, ""},
    {"collectives", 2, right, {0, 0}, ""},
    {"collectives of three", 3, right, {0, 0}, ""},
    {"bf16 and f16", 2, small_types, {0, 0}, ""},
    {"bf16 and f16 of three", 3, small_types, {0, 0}, ""},
    {"not blocking", 2, not_blocking, {0, 0}, ""},
    {"split and capture", 3, split_and_capture, {0, 0}, ""},
    {"another count", 2, other_count, {99, 99}, "calls do not match"},
    {"another kind", 2, other_kind, {99, 99}, "calls do not match"},
    {"swapped buckets", 2, swapped, {99, 99}, "buffer #"},
    {"a skipped collective", 2, skipped, {46, 0}, "collectives begun by rank: 0:2 1:1"},
    {"a killed peer", 2, killed, {46, 128 + SIGKILL}, "waits in vain in ncclAllReduce"},
    {"an injected error", 2, injected, {46, 46}, "injected in ncclAllReduce"},
    {"one device for two", 2, same_device, {45, 45}, "Duplicate GPU detected"},
    {"host memory", 2, host_buffer, {99, 99}, "do not lie in live device memory"},
};

int main()
{
    void *page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared_id = (ncclUniqueId *)page;
    shared_flag = (volatile int *)((char *)page + 2048);
    static outcome out;
    int failures = 0;
    for (const test_case &one : cases) {
        *shared_flag = 0;
        run_children(one.ranks, one.body, &out);
        bool good = strstr(out.text, one.text) != nullptr;
        for (int rank = 0; rank < one.ranks; rank++)
            good = good && out.status[rank] == one.status[rank == 1];
        printf("%s: %s\n", one.name, good ? "ok" : "FAILED");
        if (!good)
            printf("  statuses %d %d %d; said:\n%s", out.status[0], out.status[1], out.status[2],
                   out.text);
        failures += !good;
    }
    return failures != 0;
}
