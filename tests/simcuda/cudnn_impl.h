/* cudnn_impl.h - descriptors and checks that the parts of the simulated cuDNN share.
 *
 * Descriptors are plain structs behind the library's types, with a magic number first. A status
 * that a program may ask for (NOT_SUPPORTED from a query) is only remembered for
 * cudnnGetLastErrorString(); mistakes are reported.
 */
#ifndef SIMCUDA_CUDNN_IMPL_H
#define SIMCUDA_CUDNN_IMPL_H

#include <cudnn.h>

#include "num.h"

constexpr uint32_t SIM_CUDNN_HANDLE = 0x6e6e6801, SIM_CUDNN_TENSOR = 0x6e6e6802,
                   SIM_CUDNN_FILTER = 0x6e6e6803, SIM_CUDNN_CONV = 0x6e6e6804,
                   SIM_CUDNN_ACTIVATION = 0x6e6e6805;

struct sim_handle {
    uint32_t magic;
    cudaStream_t stream;
};

struct sim_tensor {
    uint32_t magic;
    cudnnDataType_t type; // meaningless until set
    bool set;
    int64_t dims[4], strides[4]; // n, c, h, w
};

struct sim_filter {
    uint32_t magic;
    cudnnDataType_t type;
    bool set, nhwc;
    int64_t k, c, h, w;
};

struct sim_conv {
    uint32_t magic;
    bool set;
    int64_t pad[2], stride[2], dilation[2], groups;
    cudnnDataType_t compute;
    cudnnMathType_t math;
};

struct sim_activation {
    uint32_t magic;
    bool set;
    cudnnActivationMode_t mode;
    cudnnNanPropagation_t nan;
};

/* Remember `why` for cudnnGetLastErrorString(); sim_mistake() reports it, too. */
cudnnStatus_t sim_decline(cudnnStatus_t status, const char *call, const char *why);
cudnnStatus_t sim_mistake(cudnnStatus_t status, const char *call, const char *why);

/* The object behind a descriptor that was created, and set where set_needed. NULL after a report.
 */
template <class T> T *sim_object(const void *opaque, uint32_t magic, const char *call)
{
    T *found = static_cast<T *>(const_cast<void *>(opaque));
    if (found && found->magic == magic)
        return found;
    sim_mistake(CUDNN_STATUS_BAD_PARAM, call, "a handle or descriptor is not one that was created");
    return nullptr;
}

template <class T> T *sim_set_object(const void *opaque, uint32_t magic, const char *call)
{
    T *found = sim_object<T>(opaque, magic, call);
    if (!found || found->set)
        return found;
    sim_mistake(CUDNN_STATUS_BAD_PARAM, call, "a descriptor was created and never set");
    return nullptr;
}

#define SIM_HANDLE(given)     sim_object<sim_handle>(given, SIM_CUDNN_HANDLE, __func__)
#define SIM_TENSOR(given)     sim_set_object<sim_tensor>(given, SIM_CUDNN_TENSOR, __func__)
#define SIM_FILTER(given)     sim_set_object<sim_filter>(given, SIM_CUDNN_FILTER, __func__)
#define SIM_CONV(given)       sim_set_object<sim_conv>(given, SIM_CUDNN_CONV, __func__)
#define SIM_ACTIVATION(given) sim_set_object<sim_activation>(given, SIM_CUDNN_ACTIVATION, __func__)

bool sim_element(cudnnDataType_t type, sim_type *type_out);
sim_type sim_element_of(const sim_tensor &tensor);
size_t sim_tensor_bytes(const sim_tensor &tensor); /* from the first to the last element */
size_t sim_filter_bytes(const sim_filter &filter);
bool sim_packed_nhwc(const sim_tensor &tensor);

/* The operand lies in one live allocation and is aligned to its elements; else a report and false.
 */
bool sim_operand(const char *call, const char *name, const void *at, size_t bytes, size_t align);

/* y = value + beta y, where beta 0 does not read. */
void sim_blend(sim_type type, void *y, int64_t index, float value, float beta);

#endif
