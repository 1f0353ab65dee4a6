/*
 * gpu.h - what a kernel file includes instead of CUDA's own headers (nvcc's side).
 *
 * The kernels are compiled twice: by nvcc with this header, and by an ordinary C++ compiler with
 * the header of the same name that belongs to the simulator of the CUDA runtime in the tests. Both
 * define the two things that plain C++ cannot express: the launch and the block's dynamic shared
 * memory. Kernel files hold nothing else that only nvcc understands (no inline PTX, no cooperative
 * groups).
 */
#ifndef DDP_DEVICE_CUDA_GPU_H
#define DDP_DEVICE_CUDA_GPU_H

#include <cuda_runtime.h>
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

/* Launches KERNEL(arguments) and gives the launch's cudaError_t. The kernel takes its arguments by
 * value: pointers to device or pinned memory, numbers, and structs of them. */
#define GPU_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                 \
    (kernel<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__), cudaGetLastError())

/* Declares `type *name`, the dynamic shared memory of the block. At most once in a kernel. */
#define GPU_DYN_SHARED(type, name)                                                                 \
    extern __shared__ __align__(16) unsigned char gpu_dynamic_shared[];                            \
    type *name = reinterpret_cast<type *>(gpu_dynamic_shared)

#endif
