/* cuda_module.c - what the module shows of itself, and the search for GPUs: all that runs before a
 * device is opened. No state; any thread. */
#include "device/cuda_module.h"

#include <stdio.h>
#include <string.h>

#include "device/cuda/cuda_impl.h"

/* "13.0" of 13000. */
static void format_version(int version, char text[16])
{
    snprintf(text, 16, "%d.%d", version / 1000, version / 10 % 100);
}

static ddp_status no_driver(void)
{
    char has[16], needs[16];
    int driver = 0, runtime = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
        (void)cudaGetLastError();
        return DDP_FAIL(DDP_ERR_UNSUPPORTED, "no NVIDIA driver on this machine");
    }
    if (cudaRuntimeGetVersion(&runtime) != cudaSuccess)
        (void)cudaGetLastError();
    format_version(driver, has);
    format_version(runtime, needs);
    return DDP_FAIL(DDP_ERR_UNSUPPORTED,
                    "the NVIDIA driver is too old: it knows CUDA %s, %s is needed", has, needs);
}

ddp_status ddpi_cuda_probe(int *count_out)
{
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaErrorInsufficientDriver) {
        (void)cudaGetLastError();
        return no_driver();
    }
    if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
        (void)cudaGetLastError();
        return DDP_FAIL(DDP_ERR_UNSUPPORTED, "the NVIDIA driver shows this process no GPU");
    }
    DDP_TRY(ddpi_cuda_check(error, "cudaGetDeviceCount", __FILE__, __LINE__));
    *count_out = count;
    return DDP_OK;
}

static ddp_status identify(int index, ddpi_cuda_identity *identity_out)
{
    struct cudaDeviceProp prop;
    ddpi_cuda_identity identity = {0};
    DDPI_CUDA_TRY(cudaGetDeviceProperties(&prop, index));
    DDPI_CUDA_TRY(cudaDeviceGetPCIBusId(identity.pci, sizeof identity.pci, index));
    for (size_t i = 0; i < sizeof prop.uuid.bytes; i++)
        snprintf(identity.uuid + 2 * i, 3, "%02x", (unsigned)(unsigned char)prop.uuid.bytes[i]);
    snprintf(identity.name, sizeof identity.name, "%.63s", prop.name);
    *identity_out = identity;
    return DDP_OK;
}

static void versions(char *text, size_t text_bytes)
{
    char driver_text[16] = "?", runtime_text[16] = "?", nccl[128];
    int driver = 0, runtime = 0;

    if (cudaDriverGetVersion(&driver) == cudaSuccess)
        format_version(driver, driver_text);
    if (cudaRuntimeGetVersion(&runtime) == cudaSuccess)
        format_version(runtime, runtime_text);
    (void)cudaGetLastError();
    ddpi_nccl_version(nccl, sizeof nccl);
    snprintf(text, text_bytes, "driver for CUDA %s, runtime %s, %s", driver_text, runtime_text,
             nccl);
}

DDP_API const ddp_cuda_module *ddp_cuda_module_get(void);

const ddp_cuda_module *ddp_cuda_module_get(void)
{
    static const ddp_cuda_module module = {.version = DDPI_CUDA_MODULE_VERSION,
                                           .device = &ddpi_device_cuda,
                                           .lane = ddpi_lane_nccl,
                                           .probe = ddpi_cuda_probe,
                                           .identify = identify,
                                           .versions = versions};
    return &module;
}
