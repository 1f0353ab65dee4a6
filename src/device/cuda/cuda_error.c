/* cuda_error.c - errors of CUDA, cuDNN and cuBLASLt as ours: the call that failed, the error's name
 * and its text. No state; any thread. */
#include <string.h>

#include "device/cuda/cuda_impl.h"

/* The name of the function in the text of a call. */
static int name_length(const char *call)
{
    return (int)strcspn(call, "(");
}

static ddp_status status_of(cudaError_t error)
{
    switch (error) {
    case cudaErrorMemoryAllocation:
        return DDP_ERR_NOMEM;
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorNotSupported:
        return DDP_ERR_UNSUPPORTED;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorInvalidConfiguration:
        return DDP_ERR_INTERNAL;
    default:
        return DDP_ERR_IO;
    }
}

ddp_status ddpi_cuda_check(cudaError_t error, const char *call, const char *file, int line)
{
    if (error == cudaSuccess)
        return DDP_OK;
    (void)cudaGetLastError(); /* or the next kernel's launch would be blamed for it */
    return ddp_status_set(status_of(error), file, line, "CUDA: %.*s: %s (%s)", name_length(call),
                          call, cudaGetErrorString(error), cudaGetErrorName(error));
}

ddp_status ddpi_cudnn_check(cudnnStatus_t error, const char *call, const char *file, int line)
{
    char detail[256] = "";
    if (error == CUDNN_STATUS_SUCCESS)
        return DDP_OK;
    cudnnGetLastErrorString(detail, sizeof detail);
    const ddp_status st = error == CUDNN_STATUS_ALLOC_FAILED    ? DDP_ERR_NOMEM
                          : error == CUDNN_STATUS_NOT_SUPPORTED ? DDP_ERR_UNSUPPORTED
                          : error == CUDNN_STATUS_BAD_PARAM     ? DDP_ERR_INTERNAL
                                                                : DDP_ERR_IO;
    return ddp_status_set(st, file, line, "cuDNN: %.*s: %s%s%s", name_length(call), call,
                          cudnnGetErrorString(error), detail[0] != '\0' ? ": " : "", detail);
}

ddp_status ddpi_cublas_check(cublasStatus_t error, const char *call, const char *file, int line)
{
    if (error == CUBLAS_STATUS_SUCCESS)
        return DDP_OK;
    const ddp_status st = error == CUBLAS_STATUS_ALLOC_FAILED    ? DDP_ERR_NOMEM
                          : error == CUBLAS_STATUS_NOT_SUPPORTED ? DDP_ERR_UNSUPPORTED
                          : error == CUBLAS_STATUS_INVALID_VALUE ? DDP_ERR_INTERNAL
                                                                 : DDP_ERR_IO;
    return ddp_status_set(st, file, line, "cuBLASLt: %.*s: %s", name_length(call), call,
                          cublasLtGetStatusString(error));
}
