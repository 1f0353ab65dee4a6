/* cuda_device.c - opening a GPU, its memory and its library handles.
 *
 * Device memory is handed out zeroed, one allocation of CUDA each: buffers are made at set-up and
 * are large, so there is nothing that a pool of our own could save. Host memory is pinned. The
 * handles are made once; cuDNN's is moved between streams where a plan asks for another. */
#include <stdio.h>
#include <string.h>

#include "ddp/memory.h"
#include "device/cuda/cuda_impl.h"

int ddpi_cuda_index(const ddp_device *device)
{
    return ((const ddpi_cuda_device *)device)->index;
}

ddp_status ddpi_cuda_enter(const ddp_device *device)
{
    return DDPI_CUDA_CHECK(cudaSetDevice(ddpi_cuda_index(device)));
}

/* ---- memory ---- */

/* Reads of whole vectors may run past the end of a tensor. */
static size_t rounded(size_t bytes)
{
    const size_t unit = 512;
    return (bytes + unit - 1) / unit * unit + (bytes == 0 ? unit : 0);
}

static ddp_status no_memory(const ddp_device *device, cudaError_t error, const char *what,
                            size_t bytes)
{
    size_t free_bytes = 0, total_bytes = 0;
    (void)cudaGetLastError();
    if (error != cudaErrorMemoryAllocation)
        return ddpi_cuda_check(error, what, __FILE__, __LINE__);
    if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess)
        (void)cudaGetLastError();
    return DDP_FAIL(DDP_ERR_NOMEM,
                    "CUDA: %s: %.3f MiB are not to be had on GPU %d (%.1f of %.1f MiB are free)",
                    what, (double)bytes / 1048576, ddpi_cuda_index(device),
                    (double)free_bytes / 1048576, (double)total_bytes / 1048576);
}

ddp_status ddpi_cuda_alloc(ddp_device *device, size_t bytes, void **memory_out)
{
    const size_t size = rounded(bytes);
    const cudaStream_t stream = ddpi_cuda_of(device)->main->handle;
    void *memory;
    DDP_TRY(ddpi_cuda_enter(device));
    const cudaError_t error = cudaMalloc(&memory, size);
    if (error != cudaSuccess)
        return no_memory(device, error, "cudaMalloc", size);
    ddp_status st = DDPI_CUDA_CHECK(cudaMemsetAsync(memory, 0, size, stream));
    if (st == DDP_OK)
        st = DDPI_CUDA_CHECK(cudaStreamSynchronize(stream));
    if (st != DDP_OK) {
        (void)cudaFree(memory);
        return st;
    }
    *memory_out = memory;
    return DDP_OK;
}

void ddpi_cuda_free(ddp_device *device, void *memory, size_t bytes)
{
    (void)bytes;
    if (ddpi_cuda_enter(device) == DDP_OK)
        (void)cudaFree(memory);
}

ddp_status ddpi_cuda_host_alloc(ddp_device *device, size_t bytes, void **memory_out)
{
    const size_t size = rounded(bytes);
    void *memory;
    DDP_TRY(ddpi_cuda_enter(device));
    const cudaError_t error = cudaHostAlloc(&memory, size, cudaHostAllocPortable);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return DDP_FAIL(DDP_ERR_NOMEM, "CUDA: cudaHostAlloc: %.3f MiB cannot be pinned",
                        (double)size / 1048576);
    }
    DDP_TRY(ddpi_cuda_check(error, "cudaHostAlloc", __FILE__, __LINE__));
    memset(memory, 0, size);
    *memory_out = memory;
    return DDP_OK;
}

void ddpi_cuda_host_free(ddp_device *device, void *memory, size_t bytes)
{
    (void)bytes;
    if (ddpi_cuda_enter(device) == DDP_OK)
        (void)cudaFreeHost(memory);
}

/* ---- opening ---- */

static ddp_status describe(ddpi_cuda_device *device)
{
    struct cudaDeviceProp prop;
    int runtime = 0;
    const size_t cudnn = cudnnGetVersion(), cublas = cublasLtGetVersion();
    DDPI_CUDA_TRY(cudaGetDeviceProperties(&prop, device->index));
    DDPI_CUDA_TRY(cudaRuntimeGetVersion(&runtime));
    if (prop.major < 8)
        return DDP_FAIL(DDP_ERR_UNSUPPORTED,
                        "GPU %d (%.60s) has compute capability %d.%d, 8.0 or more is needed",
                        device->index, prop.name, prop.major, prop.minor);
    device->sm_count = prop.multiProcessorCount;
    snprintf(device->description, sizeof device->description,
             "%.80s, sm_%d%d, %.1f GiB, CUDA %d.%d, cuDNN %zu.%zu.%zu, cuBLASLt %zu.%zu.%zu",
             prop.name, prop.major, prop.minor, (double)prop.totalGlobalMem / 1073741824,
             runtime / 1000, runtime / 10 % 100, cudnn / 10000, cudnn / 100 % 100, cudnn % 100,
             cublas / 10000, cublas / 100 % 100, cublas % 100);
    return DDP_OK;
}

void ddpi_cuda_close(ddp_device *base)
{
    ddpi_cuda_device *device = ddpi_cuda_of(base);
    if (device->cublas != NULL)
        (void)cublasLtDestroy(device->cublas);
    if (device->cudnn != NULL)
        (void)cudnnDestroy(device->cudnn);
    if (device->main != NULL)
        ddpi_cuda_stream_destroy(&device->main->base);
    ddp_free(device);
}

static ddp_status fill(ddpi_cuda_device *device)
{
    ddp_stream *main_stream;
    DDP_TRY(ddpi_cuda_enter(&device->base));
    DDP_TRY(describe(device));
    DDP_TRY(ddpi_cuda_stream_create(&device->base, "main", &main_stream));
    device->main = (ddpi_cuda_stream_obj *)main_stream;
    DDPI_CUDNN_TRY(cudnnCreate(&device->cudnn));
    DDPI_CUBLAS_TRY(cublasLtCreate(&device->cublas));
    DDPI_CUDNN_TRY(cudnnSetStream(device->cudnn, device->main->handle));
    device->cudnn_stream = device->main->handle;
    return DDP_OK;
}

ddp_status ddpi_cuda_open(const ddp_device_opts *opts, ddp_device **device_out)
{
    ddpi_cuda_device *device;
    int count;
    DDP_TRY(ddpi_cuda_probe(&count));
    if (opts->index >= count)
        return DDP_FAIL(DDP_ERR_USAGE, "GPU %d: there are %d, counted from 0", opts->index, count);
    DDP_TRY(DDP_ALLOC(device, 1));
    device->base.ops = &ddpi_device_cuda;
    device->base.opts = *opts;
    device->index = opts->index < 0 ? 0 : opts->index;
    const ddp_status st = fill(device);
    if (st != DDP_OK) {
        ddpi_cuda_close(&device->base);
        return st;
    }
    *device_out = &device->base;
    return DDP_OK;
}

const char *ddpi_cuda_describe(const ddp_device *device)
{
    return ((const ddpi_cuda_device *)device)->description;
}

bool ddpi_cuda_computes(const ddp_device *device, ddp_dtype dtype)
{
    (void)device;
    return dtype == DDP_F32 || dtype == DDP_BF16 ||
           dtype == DDP_F16; /* from compute capability 8.0 on, and no less is opened */
}

bool ddpi_cuda_is_host(const ddp_device *device)
{
    (void)device;
    return false;
}

ddp_status ddpi_cuda_cudnn(ddp_stream *stream, cudnnHandle_t *handle_out)
{
    ddpi_cuda_device *device = ddpi_cuda_of(stream->device);
    const cudaStream_t handle = ddpi_cuda_stream(stream);
    if (device->cudnn_stream != handle) {
        DDPI_CUDNN_TRY(cudnnSetStream(device->cudnn, handle));
        device->cudnn_stream = handle;
    }
    *handle_out = device->cudnn;
    return DDP_OK;
}
