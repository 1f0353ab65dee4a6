/*
 * launch.cc - kernel launches. Arguments are copied at the call; the stream's thread runs the
 * blocks one after another (in another order when CUSIM_SEED is set: a result that depends on it is
 * a race between blocks). Threads: checks on the host's, blocks on the stream's. Locks: those of
 * the streams.
 */
#include "fiber.h"

namespace sim
{
static const size_t ARGUMENTS = 4096;
static const size_t SHARED = 227 << 10;
static std::atomic<bool> large_shared{false}; /* somebody asked for more than 48 KiB */

struct Launch : Quiet {
    const char *kernel;
    dim3 grid, block;
    size_t shared_bytes;
    void (*call)(const void *);
    size_t bytes;
    bool faults;
    void *arguments;
};

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    return b ? common_divisor(b, a % b) : a;
}

/* Any step that has no divisor in common with the count visits every block once. */
static uint64_t block_step(uint64_t count)
{
    static const long seed = setting("CUSIM_SEED", 0);
    if (seed == 0 || count < 3)
        return 1;
    uint64_t step = (uint64_t)seed * 7919 % count;
    while (step < 2 || common_divisor(step, count) != 1)
        step++;
    return step;
}

/* Shared memory begins as NaN in every block. */
static void *shared_memory(size_t bytes)
{
    static __thread void *memory __attribute__((tls_model("initial-exec")));
    if (bytes == 0)
        return nullptr;
    if (!memory)
        memory = quiet_alloc(SHARED + 16);
    char *place = (char *)(((uintptr_t)memory + 15) / 16 * 16);
    for (size_t at = 0; at + 8 <= bytes + 7; at += 8)
        *(volatile uint64_t *)(place + at) = ~0ull;
    return place;
}

static void run_blocks(Stream *stream, const Launch *launch, const void *arguments)
{
    const dim3 g = launch->grid, b = launch->block;
    uint64_t count = (uint64_t)g.x * g.y * g.z, step = block_step(count), place = 0;
    bool loose = mistake("barrier", launch->kernel + (launch->kernel[0] == '('));
    cusim_current.block_dim = {b.x, b.y, b.z};
    cusim_current.grid_dim = {g.x, g.y, g.z};
    for (uint64_t i = 0; i < count; i++) {
        cusim_current.block = {(unsigned)(place % g.x), (unsigned)(place / g.x % g.y),
                               (unsigned)(place / g.x / g.y)};
        cusim_current.shared = shared_memory(launch->shared_bytes);
        run_block(&stream->fibers, b.x * b.y * b.z, loose, launch->call, arguments);
        place = (place + step) % count;
    }
}

/* The kernel reads its arguments at a place that only this stream's thread ever uses. */
static void run_launch(void *arg)
{
    const Launch *launch = static_cast<const Launch *>(arg);
    Stream *stream = running_stream();
    if (launch->faults) {
        note("kernel %s: illegal memory access injected", launch->kernel);
        set_sticky(cudaErrorIllegalAddress);
        return;
    }
    void *arguments = (void *)(((uintptr_t)stream->arguments + 63) / 64 * 64);
    __builtin_memcpy(arguments, launch->arguments, launch->bytes);
    running_kernel = launch->kernel;
    run_blocks(stream, launch, arguments);
    running_kernel = nullptr;
}

static void delete_launch(void *arg)
{
    Launch *launch = static_cast<Launch *>(arg);
    quiet_free(launch->arguments);
    delete launch;
}

static cudaError_t check_sizes(dim3 grid, dim3 block, size_t shared_bytes, size_t bytes)
{
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (threads == 0 || threads > 1024 || block.z > 64 || grid.x == 0 || grid.y == 0 || grid.z == 0)
        return cudaErrorInvalidConfiguration;
    if (grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535)
        return cudaErrorInvalidConfiguration;
    if (shared_bytes > (large_shared.load() ? SHARED : 48 << 10) || bytes > ARGUMENTS)
        return cudaErrorInvalidValue;
    return cudaSuccess;
}
} // namespace sim

using namespace sim;

extern "C" {
cudaError_t cusim_refuse(const char *)
{
    ends_if_reported();
    return result(cudaErrorInvalidValue);
}

cudaError_t cusim_launch(const char *kernel, const void *, dim3 grid, dim3 block,
                         size_t shared_bytes, cudaStream_t handle, void (*call)(const void *),
                         const void *arguments, size_t bytes)
{
    CUSIM_ENTER("launch");
    if (cudaError_t error = check_sizes(grid, block, shared_bytes, bytes)) {
        note("kernel %s: grid (%u,%u,%u), block (%u,%u,%u), %zu bytes of shared memory are refused",
             kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_bytes);
        return result(error);
    }
    Stream *stream = find_stream(handle);
    if (!stream)
        return result(device_count() ? cudaErrorInvalidResourceHandle : cudaErrorNoDevice);
    if (stream->device != current_device()) {
        cusim_report("kernel %s: the stream belongs to device %d, the current device is %d", kernel,
                     stream->device, current_device());
        return result(cudaErrorInvalidResourceHandle);
    }
    Launch *launch = new Launch();
    launch->kernel = kernel;
    launch->grid = grid;
    launch->block = block;
    launch->shared_bytes = shared_bytes;
    launch->call = call;
    launch->bytes = bytes;
    launch->faults = cusim_inject("kernel");
    launch->arguments = quiet_alloc(bytes);
    __builtin_memcpy(launch->arguments, arguments, bytes);
    cusim_enqueue(handle, kernel, run_launch, delete_launch, launch);
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *, enum cudaFuncAttribute attribute, int value)
{
    CUSIM_ENTER("cudaFuncSetAttribute");
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (value < 0 || (size_t)value > SHARED)
            return result(cudaErrorInvalidValue);
        large_shared = true;
    }
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *)
{
    CUSIM_ENTER("cudaFuncGetAttributes");
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->maxDynamicSharedSizeBytes = large_shared.load() ? (int)SHARED : 48 << 10;
    attributes->numRegs = 32;
    attributes->binaryVersion = attributes->ptxVersion = 90;
    return cudaSuccess;
}
}
