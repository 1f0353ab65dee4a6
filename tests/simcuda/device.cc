/*
 * device.cc - devices, their attributes, versions, names of errors.
 *
 * CUSIM_DEVICES physical devices per machine; CUDA_VISIBLE_DEVICES chooses among them by number or
 * by the beginning of the UUID, and an entry that names none ends the list, as with the real
 * runtime. CUSIM_DRIVER_VERSION (default 13000) below 13000 stands for a driver that is too old, 0
 * for none. Threads: the current device is a thread's own. Locks: none.
 */
#include "sim.h"

#include <cstdio>
#include <cstdlib>

namespace sim
{
struct Devices {
    int count;
    int physical[64];
};
static __thread int current __attribute__((tls_model("initial-exec")));

static void uuid_bytes(int physical, unsigned char bytes[16])
{
    static const unsigned char base[16] = {0x53, 0x49, 0x4d, 0x00, 0x12, 0x34, 0x4a, 0xbc,
                                           0x8d, 0xef, 0x10, 0x20, 0x30, 0x40, 0x50, 0x00};
    memcpy(bytes, base, 16);
    bytes[3] = bytes[15] = (unsigned char)(physical + 1);
}

static void uuid_text(int physical, char text[48])
{
    unsigned char b[16];
    uuid_bytes(physical, b);
    snprintf(text, 48, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
             b[14], b[15]);
}

static int named_device(const char *entry, int present)
{
    if (!strncmp(entry, "GPU-", 4)) {
        for (int i = 0; i < present; i++) {
            char text[48];
            uuid_text(i, text);
            if (!strncmp(text, entry, strlen(entry)))
                return i;
        }
        return -1;
    }
    char *end;
    long number = strtol(entry, &end, 10);
    return end != entry && *end == 0 && number >= 0 && number < present ? (int)number : -1;
}

static void choose_visible(Devices *devices, int present, const char *list)
{
    while (*list && devices->count < 64) {
        char entry[64];
        size_t length = strcspn(list, ",");
        snprintf(entry, sizeof entry, "%.*s", (int)length, list);
        int device = named_device(entry, present);
        if (device < 0)
            return;
        devices->physical[devices->count++] = device;
        list += length + (list[length] == ',');
    }
}

static const Devices *devices()
{
    static const Devices all = [] {
        Devices made = {};
        int present = (int)setting("CUSIM_DEVICES", 8);
        const char *list = getenv("CUDA_VISIBLE_DEVICES");
        if (list)
            choose_visible(&made, present, list);
        for (int i = 0; !list && i < present && i < 64; i++)
            made.physical[made.count++] = i;
        return made;
    }();
    return &all;
}

static int driver_version()
{
    return (int)setting("CUSIM_DRIVER_VERSION", 13000);
}

int device_count()
{
    return driver_version() < 13000 ? 0 : devices()->count;
}

int physical_device(int visible)
{
    return devices()->physical[visible];
}

int current_device()
{
    return current;
}

static cudaError_t device_error()
{
    if (driver_version() < 13000)
        return cudaErrorInsufficientDriver;
    return devices()->count == 0 ? cudaErrorNoDevice : cudaSuccess;
}

static cudaError_t check_device(int device)
{
    if (cudaError_t error = device_error())
        return error;
    return device < 0 || device >= device_count() ? cudaErrorInvalidDevice : cudaSuccess;
}

struct ErrorText {
    cudaError_t error;
    const char *name, *text;
};
#define E(name, text)                                                                              \
    {                                                                                              \
        name, #name, text                                                                          \
    }
static const ErrorText errors[] = {
    E(cudaSuccess, "no error"),
    E(cudaErrorInvalidValue, "invalid argument"),
    E(cudaErrorMemoryAllocation, "out of memory"),
    E(cudaErrorInitializationError, "initialization error"),
    E(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    E(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"),
    E(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    E(cudaErrorInvalidDevice, "invalid device ordinal"),
    E(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    E(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    E(cudaErrorNotReady, "device not ready"),
    E(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    E(cudaErrorLaunchFailure, "unspecified launch failure"),
    E(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    E(cudaErrorHostMemoryAlreadyRegistered,
      "part or all of the requested memory range is already mapped"),
    E(cudaErrorHostMemoryNotRegistered,
      "pointer does not correspond to a registered memory region"),
    E(cudaErrorNotPermitted, "operation not permitted"),
    E(cudaErrorNotSupported, "operation not supported"),
    E(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered"),
    E(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    E(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    E(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"),
    E(cudaErrorStreamCaptureUnmatched, "capture was not initiated in this stream"),
    E(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    E(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream"),
    E(cudaErrorStreamCaptureImplicit,
      "operation would make the legacy stream depend on a capturing blocking stream"),
    E(cudaErrorStreamCaptureWrongThread,
      "attempt to terminate a thread-local capture sequence from another thread"),
    E(cudaErrorCapturedEvent,
      "operation not permitted on an event last recorded in a capturing stream"),
    E(cudaErrorGraphExecUpdateFailure, "the graph update was not performed"),
    E(cudaErrorUnknown, "unknown error"),
};
#undef E

static const ErrorText *find_error(cudaError_t error)
{
    for (const ErrorText &one : errors)
        if (one.error == error)
            return &one;
    return nullptr;
}
} // namespace sim

using namespace sim;

extern "C" {
int cusim_current_device(void)
{
    return current;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    CUSIM_ENTER("cudaGetDeviceCount");
    *count = device_count();
    return result(device_error());
}

cudaError_t cudaSetDevice(int device)
{
    CUSIM_ENTER("cudaSetDevice");
    if (cudaError_t error = check_device(device))
        return result(error);
    current = device;
    return cudaSuccess;
}

cudaError_t cudaInitDevice(int device, unsigned, unsigned)
{
    CUSIM_ENTER("cudaInitDevice");
    return result(check_device(device));
}

cudaError_t cudaGetDevice(int *device)
{
    CUSIM_ENTER("cudaGetDevice");
    *device = current;
    return result(device_error());
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device)
{
    CUSIM_ENTER("cudaGetDeviceProperties");
    if (cudaError_t error = check_device(device))
        return result(error);
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "Simulated GPU");
    uuid_bytes(physical_device(device), (unsigned char *)out->uuid.bytes);
    out->totalGlobalMem = (size_t)setting("CUSIM_MEMORY_MB", 4096) << 20;
    out->sharedMemPerBlock = 48 << 10;
    out->sharedMemPerBlockOptin = 227 << 10;
    out->sharedMemPerMultiprocessor = 228 << 10;
    out->regsPerBlock = out->regsPerMultiprocessor = 65536;
    out->warpSize = 32;
    out->maxThreadsPerBlock = out->maxThreadsDim[0] = out->maxThreadsDim[1] = 1024;
    out->maxThreadsDim[2] = 64;
    out->maxGridSize[0] = 2147483647;
    out->maxGridSize[1] = out->maxGridSize[2] = 65535;
    out->major = 9;
    out->multiProcessorCount = 4;
    out->maxThreadsPerMultiProcessor = 2048;
    out->maxBlocksPerMultiProcessor = 32;
    out->canMapHostMemory = out->unifiedAddressing = out->concurrentKernels = 1;
    out->asyncEngineCount = 2;
    out->streamPrioritiesSupported = out->hostRegisterSupported = 1;
    out->l2CacheSize = 4 << 20;
    out->pciBusID = 0x10 + physical_device(device);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    CUSIM_ENTER("cudaDeviceGetAttribute");
    struct cudaDeviceProp p;
    if (cudaError_t error = cudaGetDeviceProperties(&p, device))
        return error;
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
        return *value = p.maxThreadsPerBlock, cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
        return *value = p.multiProcessorCount, cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        return *value = (int)p.sharedMemPerBlock, cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        return *value = (int)p.sharedMemPerBlockOptin, cudaSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        return *value = p.maxThreadsPerMultiProcessor, cudaSuccess;
    case cudaDevAttrWarpSize:
        return *value = p.warpSize, cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
        return *value = p.major, cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        return *value = p.minor, cudaSuccess;
    case cudaDevAttrPciBusId:
        return *value = p.pciBusID, cudaSuccess;
    case cudaDevAttrPciDeviceId:
    case cudaDevAttrPciDomainId:
        return *value = 0, cudaSuccess;
    case cudaDevAttrL2CacheSize:
        return *value = p.l2CacheSize, cudaSuccess;
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrConcurrentKernels:
        return *value = 1, cudaSuccess;
    default:
        cusim_report("cudaDeviceGetAttribute: attribute %d is not simulated", (int)attribute);
        return result(cudaErrorInvalidValue);
    }
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device)
{
    CUSIM_ENTER("cudaDeviceGetPCIBusId");
    if (cudaError_t error = check_device(device))
        return result(error);
    if (size < 13)
        return result(cudaErrorInvalidValue);
    snprintf(text, (size_t)size, "0000:%02x:00.0", 0x10 + physical_device(device));
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    CUSIM_ENTER("cudaDeviceGetStreamPriorityRange");
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned)
{
    CUSIM_ENTER("cudaSetDeviceFlags");
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    CUSIM_ENTER("cudaDriverGetVersion");
    *version = driver_version();
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    CUSIM_ENTER("cudaRuntimeGetVersion");
    *version = CUDART_VERSION;
    return cudaSuccess;
}

const char *cudaGetErrorName(cudaError_t error)
{
    const ErrorText *known = find_error(error);
    return known ? known->name : "cudaErrorOfTheSimulator";
}

const char *cudaGetErrorString(cudaError_t error)
{
    const ErrorText *known = find_error(error);
    return known ? known->text : "an error that the simulator has no text for";
}
}
