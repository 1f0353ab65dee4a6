/* cublaslt_impl.h - handle, descriptors and algorithms of the simulated cuBLASLt. Descriptors are
 * plain structs behind the library's types; a magic number tells them apart. */
#ifndef SIMCUDA_CUBLASLT_IMPL_H
#define SIMCUDA_CUBLASLT_IMPL_H

#include <cublasLt.h>

#include "num.h"

namespace simlt
{

constexpr uint32_t MAGIC_HANDLE = 0x6c745f68, MAGIC_DESC = 0x6c745f64, MAGIC_LAYOUT = 0x6c745f6c,
                   MAGIC_PREFERENCE = 0x6c745f70, MAGIC_ALGO = 0x6c745f61;
constexpr size_t ALGO_WORKSPACE[3] = {65536, 4096, 0};

struct handle {
    uint32_t magic;
};

struct layout {
    uint32_t magic;
    cudaDataType type;
    uint64_t rows, cols;
    int64_t ld;
    int32_t batch;
    int64_t batch_stride;
};

struct matmul {
    uint32_t magic;
    cublasComputeType_t compute;
    int32_t trans_a, trans_b, bias_type;
    uint32_t epilogue;
    void *bias;
};

struct preference {
    uint32_t magic;
    uint64_t workspace;
    uint32_t align[4]; // A, B, C, D
};

struct algorithm {
    uint32_t magic;
    int32_t id;
    uint64_t problem;
    uint32_t align[4];
};
static_assert(sizeof(algorithm) <= sizeof(cublasLtMatmulAlgo_t),
              "the algorithm must fit the library's type");

// The object behind a descriptor. NULL after a report.
template <class T> T *object(const void *opaque, uint32_t magic, const char *what)
{
    T *found = static_cast<T *>(const_cast<void *>(opaque));
    if (found && found->magic == magic)
        return found;
    cusim_report("cublasLt: %s is not one that was created", what);
    return nullptr;
}

// A mistake of the program: a report.
inline cublasStatus_t refuse(cublasStatus_t status, const char *call, const char *why)
{
    cusim_report("%s: %s", call, why);
    return status;
}

} // namespace simlt

#endif
