/* cuda_native.h - CUDA's own handles behind this device's objects, and how CUDA's errors become
 * ours. For the device itself and for the NCCL communicator, which share a module. */
#ifndef DDP_DEVICE_CUDA_CUDA_NATIVE_H
#define DDP_DEVICE_CUDA_CUDA_NATIVE_H

#include <cuda_runtime_api.h>

#include "ddp/device.h"

/* The handle; makes the stream's device the calling thread's current one, so that a kernel can be
 * launched on it at once. */
cudaStream_t ddpi_cuda_stream(ddp_stream *stream);
/* The number that cudaSetDevice() takes. */
int ddpi_cuda_index(const ddp_device *device);
/* Makes the device the calling thread's current one. */
DDP_INNER ddp_status ddpi_cuda_enter(const ddp_device *device);

/* DDP_OK, or a failure that says which call failed with which error. `call` may be a whole
 * expression: its text ends at the first parenthesis. */
DDP_INNER ddp_status ddpi_cuda_check(cudaError_t error, const char *call, const char *file,
                                     int line);

#define DDPI_CUDA_CHECK(call) ddpi_cuda_check((call), #call, __FILE__, __LINE__)
#define DDPI_CUDA_TRY(call)   DDP_TRY(DDPI_CUDA_CHECK(call))

#endif
