/*
 * test_races.cc - what the thread sanitizer must find in programs that miss one of CUDA's edges,
 * and must not find in those that have them. Built with the sanitizer only. Each case runs several
 * times, with another seed and with other delays each time, in a process of its own.
 */
#include "check.h"
#include "children.h"
#include "gpu.h"

static const int count = 2048;
static int seed;

__global__ void add_one(float *values)
{
    values[blockIdx.x * blockDim.x + threadIdx.x] += 1;
}

__global__ void rotate(float *values, bool barrier)
{
    __shared__ float part[256];
    part[threadIdx.x] = values[threadIdx.x];
    if (barrier)
        __syncthreads();
    values[threadIdx.x] = part[(threadIdx.x + 1) % 256];
}

/* Every warp goes through shuffles, then the first one through shared memory. */
__global__ void total(float *values)
{
    __shared__ float part[8];
    float sum = values[threadIdx.x];
    for (int lanes = 16; lanes > 0; lanes /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = sum;
    __syncthreads();
    for (int i = 0; threadIdx.x == 0 && i < 8; i++)
        values[0] += part[i];
}

struct memory {
    cudaStream_t compute, comm;
    cudaEvent_t computed, sent;
    float *values, *pinned;
};

static memory open_memory()
{
    char text[16];
    memory m;
    snprintf(text, sizeof text, "%d", seed);
    setenv("CUSIM_SEED", text, 1);
    setenv("CUSIM_DELAY_US", seed % 2 ? "0" : "1000", 1);
    GOOD(cudaStreamCreateWithFlags(&m.compute, cudaStreamNonBlocking));
    GOOD(cudaStreamCreateWithFlags(&m.comm, cudaStreamNonBlocking));
    GOOD(cudaEventCreateWithFlags(&m.computed, cudaEventDisableTiming));
    GOOD(cudaEventCreateWithFlags(&m.sent, cudaEventDisableTiming));
    GOOD(cudaMalloc((void **)&m.values, count * sizeof(float)));
    GOOD(cudaMallocHost((void **)&m.pinned, count * sizeof(float)));
    for (int i = 0; i < count; i++)
        m.pinned[i] = 1;
    GOOD(cudaMemcpyAsync(m.values, m.pinned, count * sizeof(float), cudaMemcpyHostToDevice,
                         m.compute));
    return m;
}

static void launch(const memory *m, cudaStream_t stream)
{
    GOOD(GPU_LAUNCH(add_one, count / 256, 256, 0, stream, m->values));
}

enum mistake {
    NONE,
    NO_WAIT_BEFORE,
    NO_WAIT_AFTER,
    EARLY_RECORD,
    READ_TOO_EARLY,
    WRITE_TOO_EARLY,
    LOST_WAIT
};

/* Three steps of a training's pattern: compute, communicate, update, read. */
static void steps(mistake made)
{
    memory m = open_memory();
    for (int step = 0; step < 3; step++) {
        if (made == EARLY_RECORD)
            GOOD(cudaEventRecord(m.computed, m.compute));
        launch(&m, m.compute);
        if (made != EARLY_RECORD)
            GOOD(cudaEventRecord(m.computed, m.compute));
        if (made != NO_WAIT_BEFORE)
            GOOD(cudaStreamWaitEvent(m.comm, m.computed, 0));
        launch(&m, m.comm);
        GOOD(cudaEventRecord(m.sent, m.comm));
        usleep(1000); /* the host's own time orders nothing */
        if (made != NO_WAIT_AFTER)
            GOOD(cudaStreamWaitEvent(m.compute, m.sent, 0));
        launch(&m, m.compute);
        GOOD(cudaMemcpyAsync(m.pinned, m.values, count * sizeof(float), cudaMemcpyDeviceToHost,
                             m.compute));
        if (made == READ_TOO_EARLY)
            usleep(20000);
        else if (made != WRITE_TOO_EARLY)
            GOOD(cudaStreamSynchronize(m.compute));
        CHECK(made != NONE || m.pinned[count - 1] == (float)(3 * step + 4));
        volatile float read = made == WRITE_TOO_EARLY ? 0 : m.pinned[7];
        m.pinned[7] = read;
    }
    GOOD(cudaDeviceSynchronize());
}

static void right(int, int)
{
    steps(NONE);
}
static void no_wait_before(int, int)
{
    steps(NO_WAIT_BEFORE);
}
static void no_wait_after(int, int)
{
    steps(NO_WAIT_AFTER);
}
static void lost_wait(int, int)
{
    setenv("CUSIM_BUG", "wait:3", 1);
    steps(LOST_WAIT);
}
static void early_record(int, int)
{
    steps(EARLY_RECORD);
}
static void read_too_early(int, int)
{
    steps(READ_TOO_EARLY);
}
static void write_too_early(int, int)
{
    steps(WRITE_TOO_EARLY);
}

static void blocks(bool barrier)
{
    setenv("CUSIM_FIBERS", "tsan", 1);
    memory m = open_memory();
    GOOD(GPU_LAUNCH(rotate, 2, 256, 0, m.compute, m.values, barrier));
    GOOD(GPU_LAUNCH(total, 1, 256, 0, m.compute, m.values));
    GOOD(cudaStreamSynchronize(m.compute));
}
static void right_barriers(int, int)
{
    blocks(true);
}
static void missing_barrier(int, int)
{
    blocks(false);
}

/* A graph of two branches that both change the values; `ordered`: one after the other. */
static void graph_of_two(bool ordered)
{
    memory m = open_memory();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    GOOD(cudaStreamBeginCapture(m.compute, cudaStreamCaptureModeThreadLocal));
    if (ordered)
        launch(&m, m.compute);
    GOOD(cudaEventRecord(m.computed, m.compute));
    GOOD(cudaStreamWaitEvent(m.comm, m.computed, 0));
    launch(&m, m.comm);
    GOOD(cudaEventRecord(m.sent, m.comm));
    if (!ordered)
        launch(&m, m.compute);
    GOOD(cudaStreamWaitEvent(m.compute, m.sent, 0));
    launch(&m, m.compute);
    GOOD(cudaStreamEndCapture(m.compute, &graph));
    GOOD(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++)
        GOOD(cudaGraphLaunch(exec, m.compute));
    GOOD(cudaStreamSynchronize(m.compute));
    GOOD(cudaGraphExecDestroy(exec));
    GOOD(cudaGraphDestroy(graph));
}
static void right_graph(int, int)
{
    graph_of_two(true);
}
static void wrong_graph(int, int)
{
    graph_of_two(false);
}

struct test_case {
    const char *name;
    void (*body)(int, int);
    bool race;
};
static const test_case cases[] = {
    {"right steps", right, false},
    {"no wait before the communication", no_wait_before, true},
    {"no wait after the communication", no_wait_after, true},
    {"a wait that is lost", lost_wait, true},
    {"event recorded too early", early_record, true},
    {"pinned memory read too early", read_too_early, true},
    {"pinned memory written too early", write_too_early, true},
    {"right barriers", right_barriers, false},
    {"missing barrier", missing_barrier, true},
    {"right graph", right_graph, false},
    {"graph without an edge", wrong_graph, true},
};

int main(int argc, char **argv)
{
    static outcome out;
    int failures = 0, times = argc > 1 ? atoi(argv[1]) : 3;
    for (const test_case &one : cases) {
        int found = 0;
        for (seed = 0; seed < times; seed++) {
            run_children(1, one.body, &out);
            bool race = strstr(out.text, "data race") != nullptr && out.status[0] == 66;
            found += race;
            if (race != one.race)
                printf("status %d; said:\n%s", out.status[0], out.text);
        }
        bool good = found == (one.race ? times : 0);
        printf("%s: %d of %d: %s\n", one.name, found, times, good ? "ok" : "FAILED");
        failures += !good;
    }
    return failures != 0;
}
