/*
 * test_bugs.cc - programs with a mistake, or with bad luck, each in a process of its own: the
 * simulator must end it with the status, and in the words, that stand in the table. The right
 * programs stand beside them.
 */
#include "check.h"
#include "children.h"
#include "gpu.h"

#ifdef __SANITIZE_THREAD__
static const int RACE = 66; /* the thread sanitizer finds it, too */
#else
static const int RACE = 0;
#endif
static const int count = 256;

struct copy_args {
    const float *src;
    float *dst;
    int count, shift;
};

__global__ void copy(copy_args args)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < args.count)
        args.dst[i + args.shift] = args.src[i];
}

__global__ void copy_plain(const float *src, float *dst)
{
    dst[threadIdx.x] = src[threadIdx.x];
}

/* dst[i] = src[neighbour], through shared memory. */
__global__ void rotate(const float *src, float *dst, bool barrier)
{
    __shared__ float part[count];
    part[threadIdx.x] = 0;
    __syncthreads();
    part[threadIdx.x] = src[threadIdx.x];
    if (barrier)
        __syncthreads();
    dst[threadIdx.x] = part[(threadIdx.x + 1) % count];
}

__global__ void diverge(float *dst)
{
    if (threadIdx.x < 16)
        __syncthreads();
    else
        dst[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 16);
}

struct memory {
    cudaStream_t one, two;
    cudaEvent_t event;
    float *a, *b, *pinned;
};

static memory open_memory()
{
    memory m;
    GOOD(cudaStreamCreateWithFlags(&m.one, cudaStreamNonBlocking));
    GOOD(cudaStreamCreateWithFlags(&m.two, cudaStreamNonBlocking));
    GOOD(cudaEventCreateWithFlags(&m.event, cudaEventDisableTiming));
    GOOD(cudaMalloc((void **)&m.a, count * sizeof(float)));
    GOOD(cudaMalloc((void **)&m.b, count * sizeof(float)));
    GOOD(cudaMallocHost((void **)&m.pinned, count * sizeof(float)));
    for (int i = 0; i < count; i++)
        m.pinned[i] = (float)i;
    GOOD(cudaMemcpyAsync(m.a, m.pinned, count * sizeof(float), cudaMemcpyHostToDevice, m.one));
    GOOD(cudaStreamSynchronize(m.one));
    return m;
}

static void end_of(memory *m)
{
    GOOD(cudaDeviceSynchronize());
    GOOD(cudaFree(m->a));
    GOOD(cudaFree(m->b));
    GOOD(cudaFreeHost(m->pinned));
    GOOD(cudaEventDestroy(m->event));
    GOOD(cudaStreamDestroy(m->one));
    GOOD(cudaStreamDestroy(m->two));
}

static void launch(const memory *m, cudaStream_t stream, int shift)
{
    copy_args args = {m->a, m->b, count, shift};
    GOOD(GPU_LAUNCH(copy, 2, 128, 0, stream, args));
}

static void fetch(memory *m)
{
    GOOD(cudaMemcpyAsync(m->pinned, m->b, count * sizeof(float), cudaMemcpyDeviceToHost, m->two));
    GOOD(cudaStreamSynchronize(m->two));
}

static void sleep_a_while(void *)
{
    usleep(300000); /* the host is done before that, however busy the machine is */
}

static void right(int, int)
{
    memory m = open_memory();
    GOOD(cudaLaunchHostFunc(m.one, sleep_a_while, nullptr));
    launch(&m, m.one, 0);
    GOOD(cudaEventRecord(m.event, m.one));
    GOOD(cudaStreamWaitEvent(m.two, m.event, 0));
    fetch(&m);
    CHECK(m.pinned[count - 1] == (float)(count - 1));
    GOOD(GPU_LAUNCH(rotate, 1, count, 0, m.two, m.a, m.b, true));
    fetch(&m);
    CHECK(m.pinned[0] == 1 && m.pinned[count - 1] == 0);
    end_of(&m);
}

/* Without the wait the copy comes too early and brings what fresh memory holds. */
static void missing_wait(int, int)
{
    memory m = open_memory();
    GOOD(cudaLaunchHostFunc(m.one, sleep_a_while, nullptr));
    launch(&m, m.one, 0);
    fetch(&m);
    if (m.pinned[0] != m.pinned[0])
        fprintf(stderr, "not a number\n");
    end_of(&m);
}

static void missing_barrier(int, int)
{
    memory m = open_memory();
    GOOD(GPU_LAUNCH(rotate, 1, count, 0, m.two, m.a, m.b, false));
    fetch(&m);
    if (m.pinned[5] != 6)
        fprintf(stderr, "wrong values\n");
    end_of(&m);
}

static void host_dereference(int, int)
{
    memory m = open_memory();
    *(volatile float *)(m.a + 5) = 1;
}

static void overrun(int, int)
{
    memory m = open_memory();
    launch(&m, m.one, 1); /* the last thread writes one element too many */
    GOOD(cudaStreamSynchronize(m.one));
}

static void small_overrun(int, int)
{
    float *odd;
    memory m = open_memory();
    GOOD(cudaMalloc((void **)&odd, (count - 1) * sizeof(float)));
    GOOD(GPU_LAUNCH(copy_plain, 1, count, 0, m.one, m.a, odd));
    GOOD(cudaStreamSynchronize(m.one));
    GOOD(cudaFree(odd));
    end_of(&m);
}

static void host_argument(int, int)
{
    static float plain[count];
    memory m = open_memory();
    GIVES(GPU_LAUNCH(copy_plain, 1, count, 0, m.one, (const float *)plain, m.b),
          cudaErrorInvalidValue);
}

static void host_member(int, int)
{
    float plain[count] = {0};
    memory m = open_memory();
    copy_args args = {plain, m.b, count, 0};
    GIVES(GPU_LAUNCH(copy, 2, 128, 0, m.one, args), cudaErrorInvalidValue);
}

static void freed_argument(int, int)
{
    memory m = open_memory();
    GOOD(cudaFree(m.b));
    copy_args args = {m.a, m.b, count, 0};
    GIVES(GPU_LAUNCH(copy, 2, 128, 0, m.one, args), cudaErrorInvalidValue);
}

static void freed_twice(int, int)
{
    memory m = open_memory();
    GOOD(cudaFree(m.b));
    GIVES(cudaFree(m.b), cudaErrorInvalidValue);
}

static void freed_pinned(int, int)
{
    memory m = open_memory();
    volatile float *pinned = m.pinned;
    GOOD(cudaFreeHost(m.pinned));
    pinned[0] = 1;
}

static void copy_too_far(int, int)
{
    memory m = open_memory();
    GIVES(cudaMemcpyAsync(m.b + 1, m.a, count * sizeof(float), cudaMemcpyDeviceToDevice, m.one),
          cudaErrorInvalidValue);
}

static void copy_direction(int, int)
{
    memory m = open_memory();
    GIVES(cudaMemcpyAsync(m.b, m.pinned, 4, cudaMemcpyDeviceToDevice, m.one),
          cudaErrorInvalidValue);
}

static void never_recorded(int, int)
{
    memory m = open_memory();
    GOOD(cudaStreamWaitEvent(m.two, m.event, 0));
    end_of(&m);
}

static void never_recorded_at_exit(int, int)
{
    memory m = open_memory();
    GOOD(cudaStreamWaitEvent(m.two, m.event, 0)); /* no call follows: found when the process ends */
}

static void dead_stream(int, int)
{
    memory m = open_memory();
    GOOD(cudaStreamDestroy(m.one));
    GIVES(cudaEventRecord(m.event, m.one), cudaErrorInvalidResourceHandle);
}

static void deadlock(int, int)
{
    memory m = open_memory();
    GOOD(GPU_LAUNCH(diverge, 1, 32, 0, m.one, m.b));
    GOOD(cudaStreamSynchronize(m.one));
}

static void call_from_host_function(int, int)
{
    memory m = open_memory();
    GOOD(cudaLaunchHostFunc(
        m.one, [](void *arg) { (void)cudaStreamSynchronize((cudaStream_t)arg); }, m.two));
    GOOD(cudaStreamSynchronize(m.one));
    end_of(&m);
}

/* Mistakes that CUDA itself tells by an error. */
static void sync_in_capture(int, int)
{
    cudaGraph_t graph;
    memory m = open_memory();
    GOOD(cudaStreamBeginCapture(m.one, cudaStreamCaptureModeThreadLocal));
    launch(&m, m.one, 0);
    GIVES(cudaStreamSynchronize(m.one), cudaErrorStreamCaptureUnsupported);
    GIVES(cudaStreamEndCapture(m.one, &graph), cudaErrorStreamCaptureInvalidated);
    end_of(&m);
}

static void malloc_in_capture(int, int)
{
    cudaGraph_t graph;
    void *more;
    memory m = open_memory();
    GOOD(cudaStreamBeginCapture(m.one, cudaStreamCaptureModeGlobal));
    GIVES(cudaMalloc(&more, 16), cudaErrorStreamCaptureUnsupported);
    GIVES(cudaStreamEndCapture(m.one, &graph), cudaErrorStreamCaptureInvalidated);
    GOOD(cudaStreamBeginCapture(m.one, cudaStreamCaptureModeRelaxed));
    GOOD(cudaMalloc(&more, 16));
    launch(&m, m.one, 0);
    GOOD(cudaStreamEndCapture(m.one, &graph));
    GOOD(cudaGraphDestroy(graph));
    GOOD(cudaFree(more));
    end_of(&m);
}

static void unjoined(int, int)
{
    cudaGraph_t graph;
    memory m = open_memory();
    GOOD(cudaStreamBeginCapture(m.one, cudaStreamCaptureModeThreadLocal));
    GOOD(cudaEventRecord(m.event, m.one));
    GOOD(cudaStreamWaitEvent(m.two, m.event, 0));
    launch(&m, m.two, 0);
    GIVES(cudaStreamEndCapture(m.one, &graph), cudaErrorStreamCaptureUnjoined);
    end_of(&m);
}

static void event_from_outside(int, int)
{
    cudaGraph_t graph;
    memory m = open_memory();
    GOOD(cudaEventRecord(m.event, m.two));
    GOOD(cudaStreamBeginCapture(m.one, cudaStreamCaptureModeThreadLocal));
    GIVES(cudaStreamWaitEvent(m.one, m.event, 0), cudaErrorStreamCaptureIsolation);
    GIVES(cudaStreamEndCapture(m.one, &graph), cudaErrorStreamCaptureInvalidated);
    end_of(&m);
}

/* Bad luck, which a program has to live with. */
static void faulting_kernel(int, int)
{
    setenv("CUSIM_FAIL", "kernel:2", 1);
    void *more;
    memory m = open_memory();
    launch(&m, m.one, 0);
    launch(&m, m.one, 0);
    launch(&m, m.one, 0);
    GIVES(cudaStreamSynchronize(m.one), cudaErrorIllegalAddress);
    GIVES(cudaMalloc(&more, 16), cudaErrorIllegalAddress);
    GIVES(cudaGetLastError(), cudaErrorIllegalAddress);
    GIVES(cudaGetLastError(), cudaErrorIllegalAddress);
}

static void failing_calls(int, int)
{
    setenv("CUSIM_FAIL", "cudaMalloc@3,cudaEventRecord@rank0:2=46,cudaEventQuery@rank1", 1);
    void *more;
    memory m = open_memory(); /* two allocations */
    GIVES(cudaMalloc(&more, 16), cudaErrorMemoryAllocation);
    GOOD(cudaMalloc(&more, 16));
    GOOD(cudaEventRecord(m.event, m.one));
    GIVES(cudaEventRecord(m.event, m.one), (cudaError_t)46);
    GOOD(cudaEventSynchronize(m.event));
    GOOD(cudaEventQuery(m.event));
    GOOD(cudaFree(more));
    end_of(&m);
}

static void small_device(int, int)
{
    setenv("CUSIM_MEMORY_MB", "1", 1);
    void *half, *more;
    GOOD(cudaMalloc(&half, 600 << 10));
    GIVES(cudaMalloc(&more, 600 << 10), cudaErrorMemoryAllocation);
    GOOD(cudaFree(half));
    GOOD(cudaMalloc(&more, 600 << 10));
    GOOD(cudaFree(more));
}

static void visible_devices(int, int)
{
    setenv("CUDA_VISIBLE_DEVICES", "3,GPU-53494d02,9,1", 1);
    int devices;
    char id[32];
    GOOD(cudaGetDeviceCount(&devices));
    CHECK(devices == 2); /* the 9 ends the list */
    GOOD(cudaDeviceGetPCIBusId(id, sizeof id, 0));
    CHECK(!strcmp(id, "0000:13:00.0"));
    GOOD(cudaDeviceGetPCIBusId(id, sizeof id, 1));
    CHECK(!strcmp(id, "0000:11:00.0"));
}

static void no_device(int, int)
{
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    int devices = -1;
    void *memory;
    GIVES(cudaGetDeviceCount(&devices), cudaErrorNoDevice);
    CHECK(devices == 0);
    GIVES(cudaMalloc(&memory, 16), cudaErrorNoDevice);
}

static void old_driver(int, int)
{
    setenv("CUSIM_DRIVER_VERSION", "12040", 1);
    int number;
    GIVES(cudaGetDeviceCount(&number), cudaErrorInsufficientDriver);
    GOOD(cudaDriverGetVersion(&number));
    CHECK(number == 12040);
}

struct test_case {
    const char *name;
    void (*body)(int, int);
    int status;
    const char *text;
};
static const test_case cases[] = {
    {"a right program", right, 0, ""},
    {"missing wait", missing_wait, RACE, "not a number"},
    {"missing barrier", missing_barrier, 0, "wrong values"},
    {"host dereferences", host_dereference, 99,
     "host code dereferences a device pointer: device allocation #1 +20 of 1024 bytes"},
    {"overrun", overrun, 99, "kernel copy, block (1,0,0), thread (127,0,0): illegal access"},
    {"small overrun", small_overrun, 99, "was written outside, at +1020"},
    {"host argument", host_argument, 99, "is neither device nor pinned"},
    {"host pointer in a struct", host_member, 99, "0 bytes into a struct, is neither device nor"},
    {"freed argument", freed_argument, 99, "allocation #2 +0 of 1024 bytes, which was freed"},
    {"freed twice", freed_twice, 99, "which was freed"},
    {"freed pinned memory", freed_pinned, 99, "illegal access to pinned allocation #1"},
    {"copy too far", copy_too_far, 99, "do not lie in one live allocation"},
    {"copy in another direction", copy_direction, 99, "is not device memory"},
    {"event never recorded", never_recorded, 99, "was never recorded"},
    {"event never recorded, at exit", never_recorded_at_exit, 99, "was never recorded"},
    {"dead stream", dead_stream, 99, "is no live stream"},
    {"deadlock", deadlock, 99, "deadlock: 0 of 32 threads have ended, 16 wait at __syncthreads"},
    {"call from a host function", call_from_host_function, 99, "from a host function"},
    {"sync in a capture", sync_in_capture, 0, "the capture is lost"},
    {"malloc in a capture", malloc_in_capture, 0, "the capture is lost"},
    {"unjoined capture", unjoined, 0, "not all of its work"},
    {"event from outside", event_from_outside, 0, "outside the capture"},
    {"faulting kernel", faulting_kernel, 0, "illegal memory access injected"},
    {"failing calls", failing_calls, 0, "failure number 3 injected"},
    {"small device", small_device, 0, ""},
    {"visible devices", visible_devices, 0, ""},
    {"no device", no_device, 0, ""},
    {"old driver", old_driver, 0, ""},
};

int main()
{
    static outcome out;
    int failures = 0;
    for (const test_case &one : cases) {
        run_children(1, one.body, &out);
        bool quiet = one.text[0] || !out.text[0];
        bool good = out.status[0] == one.status && strstr(out.text, one.text) && quiet;
        printf("%s: %s\n", one.name, good ? "ok" : "FAILED");
        if (!good)
            printf("  status %d; said:\n%s", out.status[0], out.text);
        failures += !good;
    }
    return failures != 0;
}
