/*
 * test_runtime.cc - the simulated runtime gives right programs what CUDA gives them: memory,
 * kernels with barriers and shuffles, order within and between streams, events, capture, errors
 * that are no mistakes.
 */
#include "check.h"
#include "gpu.h"

#include <cstdlib>
#include <vector>

struct scale_args {
    const float *src;
    float *dst;
    int64_t count;
    float factor;
};

__global__ void scale(scale_args args)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < args.count)
        args.dst[i] = args.src[i] * args.factor;
}

/* Sum of the block's threads by shared memory, then by shuffles over its first warp. */
__global__ void block_sums(const float *src, float *dst, int count)
{
    __shared__ float part[256];
    GPU_DYN_SHARED(float, copy);
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    copy[threadIdx.x] = i < count ? src[i] : 0.0f;
    __syncthreads();
    part[threadIdx.x] = copy[blockDim.x - 1 - threadIdx.x];
    for (unsigned half = blockDim.x / 2; half >= 32; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            part[threadIdx.x] += part[threadIdx.x + half];
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        float sum = part[threadIdx.x];
        for (int lanes = 16; lanes > 0; lanes /= 2)
            sum += __shfl_down_sync(0xffffffffu, sum, (unsigned)lanes);
        if (threadIdx.x == 0)
            dst[blockIdx.x] = sum;
    }
}

/* A quarter of the threads ends before the barrier. */
__global__ void early_exit(int *out)
{
    int number = (int)(threadIdx.x + blockDim.x * threadIdx.y);
    if (number >= 48)
        return;
    int voted = __syncthreads_count(number % 2 == 0);
    int any = __any_sync(0xffffffffu, number == 40);
    int other = __shfl_xor_sync(0xffffffffu, number, 1);
    atomicAdd(out, voted == 24);
    atomicAdd(out + 1, any);
    atomicMax(out + 2, other);
}

__global__ void slow_add(int *place, int rounds)
{
    for (int i = 0; i < rounds; i++)
        *(volatile int *)place = *(volatile int *)place + 1;
}

static void test_memory()
{
    float *device, *pinned, plain[64];
    GOOD(cudaMalloc((void **)&device, sizeof plain));
    GOOD(cudaMallocHost((void **)&pinned, sizeof plain));
    for (int i = 0; i < 64; i++)
        pinned[i] = (float)i;
    GOOD(cudaMemcpyAsync(device, pinned, sizeof plain, cudaMemcpyHostToDevice, nullptr));
    GOOD(cudaMemcpy(plain, device, sizeof plain, cudaMemcpyDeviceToHost));
    CHECK(plain[0] == 0 && plain[63] == 63);
    GOOD(cudaMemset(device, 0, 32 * sizeof *device));
    GOOD(cudaMemcpy(plain, device, sizeof plain, cudaMemcpyDefault));
    CHECK(plain[31] == 0 && plain[32] == 32);
    struct cudaPointerAttributes what;
    GOOD(cudaPointerGetAttributes(&what, device + 3));
    CHECK(what.type == cudaMemoryTypeDevice);
    GOOD(cudaPointerGetAttributes(&what, pinned));
    CHECK(what.type == cudaMemoryTypeHost);
    size_t unused, total;
    GOOD(cudaMemGetInfo(&unused, &total));
    CHECK(unused == total - sizeof plain);
    void *large;
    GIVES(cudaMalloc(&large, total), cudaErrorMemoryAllocation);
    GIVES(cudaGetLastError(), cudaErrorMemoryAllocation);
    GIVES(cudaGetLastError(), cudaSuccess);
    GOOD(cudaFree(device));
    GOOD(cudaFreeHost(pinned));
    GOOD(cudaMemGetInfo(&unused, &total));
    CHECK(unused == total);
}

static void test_kernels()
{
    const int count = 1000;
    float *src, *dst, *host;
    int *counts;
    GOOD(cudaMalloc((void **)&src, count * sizeof *src));
    GOOD(cudaMalloc((void **)&dst, count * sizeof *dst));
    GOOD(cudaMalloc((void **)&counts, 3 * sizeof *counts));
    GOOD(cudaHostAlloc((void **)&host, count * sizeof *host, 0));
    for (int i = 0; i < count; i++)
        host[i] = (float)i;
    scale_args args = {host, src, count, 2.0f}; /* kernels read pinned memory */
    GOOD(GPU_LAUNCH(scale, 4, 256, 0, nullptr, args));
    GOOD(GPU_LAUNCH(block_sums, 4, 256, 256 * sizeof(float), nullptr, src, dst, count));
    GOOD(cudaMemcpy(host, dst, 4 * sizeof *host, cudaMemcpyDeviceToHost));
    CHECK(host[0] == 255 * 256 && host[0] + host[1] + host[2] + host[3] == 999 * 1000);
    GOOD(cudaMemset(counts, 0, 3 * sizeof *counts));
    GOOD(GPU_LAUNCH(early_exit, dim3(2), dim3(16, 4), 0, nullptr, counts));
    int got[3];
    GOOD(cudaMemcpy(got, counts, sizeof got, cudaMemcpyDeviceToHost));
    CHECK(got[0] == 2 * 48 && got[1] == 2 * 16 && got[2] == 47);
    GIVES(GPU_LAUNCH(slow_add, 1, 2048, 0, nullptr, counts, 1), cudaErrorInvalidConfiguration);
    GIVES(cudaGetLastError(), cudaErrorInvalidConfiguration);
    GOOD(cudaFree(src));
    GOOD(cudaFree(dst));
    GOOD(cudaFree(counts));
    GOOD(cudaFreeHost(host));
}

static void test_streams()
{
    cudaStream_t one, two;
    cudaEvent_t begin, end;
    int *place, *host;
    GOOD(cudaMalloc((void **)&place, sizeof *place));
    GOOD(cudaMallocHost((void **)&host, sizeof *host));
    GOOD(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
    GOOD(cudaStreamCreateWithPriority(&two, cudaStreamNonBlocking, -5));
    GOOD(cudaEventCreate(&begin));
    GOOD(cudaEventCreate(&end));
    GOOD(cudaMemsetAsync(place, 0, sizeof *place, one));
    GOOD(cudaEventRecord(begin, one));
    for (int i = 0; i < 10; i++) {
        GOOD(GPU_LAUNCH(slow_add, 1, 1, 0, i % 2 ? two : one, place, 10000));
        GOOD(cudaEventRecord(end, i % 2 ? two : one));
        GOOD(cudaStreamWaitEvent(i % 2 ? one : two, end, 0));
    }
    GOOD(cudaMemcpyAsync(host, place, sizeof *host, cudaMemcpyDeviceToHost, one));
    GOOD(cudaLaunchHostFunc(
        one, [](void *) { usleep(500000); }, nullptr));
    GIVES(cudaStreamQuery(one), cudaErrorNotReady);
    GOOD(cudaStreamSynchronize(one));
    CHECK(*host == 100000);
    GOOD(cudaStreamQuery(one));
    GOOD(cudaEventQuery(end));
    float ms = -1;
    GOOD(cudaEventElapsedTime(&ms, begin, end));
    CHECK(ms > 0 && ms < 10000);
    GOOD(cudaLaunchHostFunc(
        two, [](void *arg) { *(int *)arg = 7; }, host));
    GOOD(cudaEventRecord(end, two));
    GOOD(cudaEventSynchronize(end));
    CHECK(*host == 7);
    GOOD(cudaEventDestroy(begin));
    GOOD(cudaEventDestroy(end));
    GOOD(cudaStreamDestroy(one));
    GOOD(cudaStreamDestroy(two));
    GOOD(cudaFree(place));
    GOOD(cudaFreeHost(host));
    (void)cudaGetLastError();
}

/* Two kernels side by side between two others; the graph is then changed, and launched again. */
static cudaGraph_t capture(cudaStream_t one, cudaStream_t two, cudaEvent_t fork, cudaEvent_t join,
                           int *place, int rounds)
{
    cudaGraph_t graph;
    GOOD(cudaStreamBeginCapture(one, cudaStreamCaptureModeGlobal));
    GOOD(GPU_LAUNCH(slow_add, 1, 1, 0, one, place, rounds));
    GOOD(cudaEventRecord(fork, one));
    GOOD(cudaStreamWaitEvent(two, fork, 0));
    GOOD(GPU_LAUNCH(slow_add, 1, 1, 0, two, place + 1, rounds));
    GOOD(GPU_LAUNCH(slow_add, 1, 1, 0, one, place + 2, rounds));
    GOOD(cudaEventRecord(join, two));
    GOOD(cudaStreamWaitEvent(one, join, 0));
    GOOD(GPU_LAUNCH(slow_add, 1, 1, 0, one, place + 1, 1));
    cudaStreamCaptureStatus status;
    GOOD(cudaStreamIsCapturing(two, &status));
    CHECK(status == cudaStreamCaptureStatusActive);
    GOOD(cudaStreamEndCapture(one, &graph));
    GOOD(cudaStreamIsCapturing(two, &status));
    CHECK(status == cudaStreamCaptureStatusNone);
    return graph;
}

static void test_graph()
{
    cudaStream_t one, two;
    cudaEvent_t fork, join;
    int *place, host[3];
    GOOD(cudaMalloc((void **)&place, sizeof host));
    GOOD(cudaMemset(place, 0, sizeof host));
    GOOD(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
    GOOD(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking));
    GOOD(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    GOOD(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    GOOD(cudaDeviceSynchronize());
    cudaGraph_t graph = capture(one, two, fork, join, place, 10);
    cudaGraphExec_t exec;
    size_t nodes;
    GOOD(cudaGraphGetNodes(graph, nullptr, &nodes));
    CHECK(nodes == 4);
    GOOD(cudaGraphInstantiate(&exec, graph, 0));
    GOOD(cudaGraphDestroy(graph));
    for (int i = 0; i < 5; i++)
        GOOD(cudaGraphLaunch(exec, one));
    graph = capture(one, two, fork, join, place, 100);
    cudaGraphExecUpdateResultInfo info;
    GOOD(cudaGraphExecUpdate(exec, graph, &info));
    GOOD(cudaGraphDestroy(graph));
    GOOD(cudaGraphLaunch(exec, one));
    GOOD(cudaStreamSynchronize(one));
    GOOD(cudaMemcpy(host, place, sizeof host, cudaMemcpyDeviceToHost));
    CHECK(host[0] == 150 && host[1] == 156 && host[2] == 150);
    GOOD(cudaGraphExecDestroy(exec));
    GOOD(cudaEventDestroy(fork));
    GOOD(cudaEventDestroy(join));
    GOOD(cudaStreamDestroy(one));
    GOOD(cudaStreamDestroy(two));
    GOOD(cudaFree(place));
}

/* External events are recorded by each launch. */
static void test_stamps()
{
    cudaStream_t stream;
    cudaEvent_t begin, end;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int *place;
    GOOD(cudaMalloc((void **)&place, sizeof *place));
    GOOD(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    GOOD(cudaEventCreate(&begin));
    GOOD(cudaEventCreate(&end));
    GOOD(cudaDeviceSynchronize());
    GOOD(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    GOOD(cudaEventRecordWithFlags(begin, stream, cudaEventRecordExternal));
    GOOD(GPU_LAUNCH(slow_add, 1, 1, 0, stream, place, 1000));
    GOOD(cudaEventRecordWithFlags(end, stream, cudaEventRecordExternal));
    GOOD(cudaStreamEndCapture(stream, &graph));
    GOOD(cudaGraphInstantiate(&exec, graph, 0));
    GOOD(cudaGraphDestroy(graph));
    float first = 0, second = 0;
    GIVES(cudaEventElapsedTime(&first, begin, end), cudaErrorInvalidResourceHandle);
    GOOD(cudaGraphLaunch(exec, stream));
    GOOD(cudaEventSynchronize(end));
    GOOD(cudaEventElapsedTime(&first, begin, end));
    CHECK(first > 0);
    GOOD(cudaEventRecord(begin, stream)); /* behind the first launch's end */
    GOOD(cudaStreamSynchronize(stream));
    GOOD(cudaEventElapsedTime(&first, begin, end));
    CHECK(first <= 0);
    GOOD(cudaGraphLaunch(exec, stream));
    GOOD(cudaStreamSynchronize(stream));
    GOOD(cudaEventElapsedTime(&second, begin, end));
    CHECK(second > 0);
    GOOD(cudaGraphExecDestroy(exec));
    GOOD(cudaEventDestroy(begin));
    GOOD(cudaEventDestroy(end));
    GOOD(cudaStreamDestroy(stream));
    GOOD(cudaFree(place));
    (void)cudaGetLastError();
}

static void test_devices()
{
    int count, number = -1;
    char id[2][32];
    struct cudaDeviceProp properties[2];
    GOOD(cudaGetDeviceCount(&count));
    CHECK(count == 8);
    for (int i = 0; i < 2; i++) {
        GOOD(cudaGetDeviceProperties(&properties[i], i));
        GOOD(cudaDeviceGetPCIBusId(id[i], sizeof id[i], i));
    }
    CHECK(memcmp(&properties[0].uuid, &properties[1].uuid, sizeof(cudaUUID_t)) != 0);
    CHECK(strcmp(id[0], id[1]) != 0);
    GIVES(cudaSetDevice(count), cudaErrorInvalidDevice);
    GOOD(cudaSetDevice(1));
    GOOD(cudaGetDevice(&number));
    CHECK(number == 1);
    GOOD(cudaSetDevice(0));
    (void)cudaGetLastError();
}

int main()
{
    test_devices();
    test_memory();
    test_kernels();
    test_streams();
    test_graph();
    test_stamps();
    puts("the simulated runtime behaves");
    return 0;
}
