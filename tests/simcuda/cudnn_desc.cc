/* cudnn_desc.cc - handles, errors and descriptors of the simulated cuDNN (libcudnn.so.9). The last
 * error is the calling thread's own; everything else belongs to who created it. */
#include <cstdio>

#include "cudnn_impl.h"

static thread_local char last_error[256] = "";

cudnnStatus_t sim_decline(cudnnStatus_t status, const char *call, const char *why)
{
    std::snprintf(last_error, sizeof last_error, "%s: %s", call, why);
    return status;
}

cudnnStatus_t sim_mistake(cudnnStatus_t status, const char *call, const char *why)
{
    cusim_report("%s: %s", call, why);
    return sim_decline(status, call, why);
}

bool sim_element(cudnnDataType_t type, sim_type *type_out)
{
    switch (type) {
    case CUDNN_DATA_FLOAT:
        *type_out = SIM_F32;
        return true;
    case CUDNN_DATA_BFLOAT16:
        *type_out = SIM_BF16;
        return true;
    case CUDNN_DATA_HALF:
        *type_out = SIM_F16;
        return true;
    default:
        return false;
    }
}

sim_type sim_element_of(const sim_tensor &tensor)
{
    sim_type type = SIM_F32;
    sim_element(tensor.type, &type);
    return type;
}

size_t sim_tensor_bytes(const sim_tensor &tensor)
{
    int64_t last = 0;
    for (int i = 0; i < 4; i++)
        last += (tensor.dims[i] - 1) * tensor.strides[i];
    return (size_t)(last + 1) * sim_type_bytes(sim_element_of(tensor));
}

size_t sim_filter_bytes(const sim_filter &filter)
{
    sim_type type = SIM_F32;
    sim_element(filter.type, &type);
    return (size_t)(filter.k * filter.c * filter.h * filter.w) * sim_type_bytes(type);
}

// An extent of 1 may have any stride.
bool sim_packed_nhwc(const sim_tensor &tensor)
{
    static const int order[4] = {0, 2, 3, 1};
    int64_t stride = 1;
    for (int i = 3; i >= 0; i--) {
        int dim = order[i];
        if (tensor.dims[dim] != 1 && tensor.strides[dim] != stride)
            return false;
        stride *= tensor.dims[dim];
    }
    return true;
}

bool sim_operand(const char *call, const char *name, const void *at, size_t bytes, size_t align)
{
    char why[160];
    if (!at || !cusim_valid(at, bytes))
        std::snprintf(why, sizeof why,
                      "%s (%p, %zu bytes) does not lie in one allocation of the device", name, at,
                      bytes);
    else if ((uintptr_t)at % align)
        std::snprintf(why, sizeof why, "%s (%p) is not aligned to %zu bytes", name, at, align);
    else
        return true;
    sim_mistake(CUDNN_STATUS_BAD_PARAM, call, why);
    return false;
}

void sim_blend(sim_type type, void *y, int64_t index, float value, float beta)
{
    if (beta != 0.0f)
        value += beta * sim_load(type, y, index);
    sim_store(type, y, index, value);
}

template <class T, class D>
static cudnnStatus_t create(D *desc_out, uint32_t magic, const char *call)
{
    if (!desc_out)
        return sim_mistake(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, call,
                           "nowhere to put the descriptor");
    T *made = new T{};
    made->magic = magic;
    *desc_out = reinterpret_cast<D>(made);
    return CUDNN_STATUS_SUCCESS;
}

template <class T> static cudnnStatus_t destroy(void *desc, uint32_t magic, const char *call)
{
    T *found = sim_object<T>(desc, magic, call);
    if (!found)
        return CUDNN_STATUS_BAD_PARAM;
    found->magic = 0;
    delete found;
    return CUDNN_STATUS_SUCCESS;
}

extern "C" {

size_t cudnnGetVersion(void)
{
    return CUDNN_VERSION;
}

size_t cudnnGetCudartVersion(void)
{
    return CUDART_VERSION;
}

cudnnStatus_t cudnnGetProperty(libraryPropertyType type, int *value)
{
    if (!value || type < MAJOR_VERSION || type > PATCH_LEVEL)
        return CUDNN_STATUS_BAD_PARAM;
    *value = type == MAJOR_VERSION   ? CUDNN_MAJOR
             : type == MINOR_VERSION ? CUDNN_MINOR
                                     : CUDNN_PATCHLEVEL;
    return CUDNN_STATUS_SUCCESS;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    switch ((int)status) {
    case CUDNN_STATUS_SUCCESS:
        return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_NOT_INITIALIZED:
        return "CUDNN_STATUS_NOT_INITIALIZED";
    case CUDNN_STATUS_BAD_PARAM:
        return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_BAD_PARAM_NULL_POINTER:
        return "CUDNN_STATUS_BAD_PARAM_NULL_POINTER";
    case CUDNN_STATUS_NOT_SUPPORTED:
        return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_INTERNAL_ERROR:
        return "CUDNN_STATUS_INTERNAL_ERROR";
    case CUDNN_STATUS_EXECUTION_FAILED:
        return "CUDNN_STATUS_EXECUTION_FAILED";
    default:
        return "CUDNN_UNKNOWN_STATUS";
    }
}

void cudnnGetLastErrorString(char *message, size_t max_size)
{
    if (message && max_size)
        std::snprintf(message, max_size, "%s", last_error);
    last_error[0] = '\0';
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    if (int error = cusim_inject_error(__func__, CUDNN_STATUS_NOT_INITIALIZED))
        return sim_decline((cudnnStatus_t)error, __func__, "failed because CUSIM_FAIL asks for it");
    return create<sim_handle>(handle, SIM_CUDNN_HANDLE, __func__);
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    return destroy<sim_handle>(handle, SIM_CUDNN_HANDLE, __func__);
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t streamId)
{
    sim_handle *h = SIM_HANDLE(handle);
    if (!h)
        return CUDNN_STATUS_BAD_PARAM;
    h->stream = streamId;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *streamId)
{
    sim_handle *h = SIM_HANDLE(handle);
    if (!h || !streamId)
        return CUDNN_STATUS_BAD_PARAM;
    *streamId = h->stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *tensorDesc)
{
    return create<sim_tensor>(tensorDesc, SIM_CUDNN_TENSOR, __func__);
}

cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensorDesc)
{
    return destroy<sim_tensor>(tensorDesc, SIM_CUDNN_TENSOR, __func__);
}

cudnnStatus_t cudnnSetTensor4dDescriptorEx(cudnnTensorDescriptor_t tensorDesc,
                                           cudnnDataType_t dataType, int n, int c, int h, int w,
                                           int nStride, int cStride, int hStride, int wStride)
{
    sim_tensor *t = sim_object<sim_tensor>(tensorDesc, SIM_CUDNN_TENSOR, __func__);
    if (!t)
        return CUDNN_STATUS_BAD_PARAM;
    sim_type type;
    if (!sim_element(dataType, &type))
        return sim_mistake(CUDNN_STATUS_NOT_SUPPORTED, __func__, "this data type is not simulated");
    if (n <= 0 || c <= 0 || h <= 0 || w <= 0 || nStride <= 0 || cStride <= 0 || hStride <= 0 ||
        wStride <= 0)
        return sim_mistake(CUDNN_STATUS_BAD_PARAM, __func__,
                           "an extent or a stride is not positive");
    *t = {SIM_CUDNN_TENSOR, dataType, true, {n, c, h, w}, {nStride, cStride, hStride, wStride}};
    if (sim_tensor_bytes(*t) / sim_type_bytes(type) > 0x7fffffffu)
        return sim_mistake(CUDNN_STATUS_NOT_SUPPORTED, __func__,
                           "the tensor has 2^31 elements or more");
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t tensorDesc,
                                         cudnnTensorFormat_t format, cudnnDataType_t dataType,
                                         int n, int c, int h, int w)
{
    if (format == CUDNN_TENSOR_NCHW)
        return cudnnSetTensor4dDescriptorEx(tensorDesc, dataType, n, c, h, w, c * h * w, h * w, w,
                                            1);
    if (format == CUDNN_TENSOR_NHWC)
        return cudnnSetTensor4dDescriptorEx(tensorDesc, dataType, n, c, h, w, c * h * w, 1, w * c,
                                            c);
    return sim_mistake(CUDNN_STATUS_NOT_SUPPORTED, __func__, "only NCHW and NHWC are simulated");
}

cudnnStatus_t cudnnGetTensor4dDescriptor(const cudnnTensorDescriptor_t tensorDesc,
                                         cudnnDataType_t *dataType, int *n, int *c, int *h, int *w,
                                         int *nStride, int *cStride, int *hStride, int *wStride)
{
    sim_tensor *t = SIM_TENSOR(tensorDesc);
    if (!t)
        return CUDNN_STATUS_BAD_PARAM;
    *dataType = t->type;
    int *dims[4] = {n, c, h, w}, *strides[4] = {nStride, cStride, hStride, wStride};
    for (int i = 0; i < 4; i++) {
        *dims[i] = (int)t->dims[i];
        *strides[i] = (int)t->strides[i];
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetTensorSizeInBytes(const cudnnTensorDescriptor_t tensorDesc, size_t *size)
{
    sim_tensor *t = SIM_TENSOR(tensorDesc);
    if (!t || !size)
        return CUDNN_STATUS_BAD_PARAM;
    *size = sim_tensor_bytes(*t);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t *filterDesc)
{
    return create<sim_filter>(filterDesc, SIM_CUDNN_FILTER, __func__);
}

cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t filterDesc)
{
    return destroy<sim_filter>(filterDesc, SIM_CUDNN_FILTER, __func__);
}

cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t filterDesc,
                                         cudnnDataType_t dataType, cudnnTensorFormat_t format,
                                         int k, int c, int h, int w)
{
    sim_filter *f = sim_object<sim_filter>(filterDesc, SIM_CUDNN_FILTER, __func__);
    sim_type type;
    if (!f || k <= 0 || c <= 0 || h <= 0 || w <= 0)
        return sim_mistake(CUDNN_STATUS_BAD_PARAM, __func__, "an extent is not positive");
    if (!sim_element(dataType, &type) ||
        (format != CUDNN_TENSOR_NCHW && format != CUDNN_TENSOR_NHWC))
        return sim_mistake(CUDNN_STATUS_NOT_SUPPORTED, __func__,
                           "this type or format is not simulated");
    *f = {SIM_CUDNN_FILTER, dataType, true, format == CUDNN_TENSOR_NHWC, k, c, h, w};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetFilterSizeInBytes(const cudnnFilterDescriptor_t filterDesc, size_t *size)
{
    sim_filter *f = SIM_FILTER(filterDesc);
    if (!f || !size)
        return CUDNN_STATUS_BAD_PARAM;
    *size = sim_filter_bytes(*f);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t *convDesc)
{
    return create<sim_conv>(convDesc, SIM_CUDNN_CONV, __func__);
}

cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t convDesc)
{
    return destroy<sim_conv>(convDesc, SIM_CUDNN_CONV, __func__);
}

cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t convDesc, int pad_h,
                                              int pad_w, int u, int v, int dilation_h,
                                              int dilation_w, cudnnConvolutionMode_t mode,
                                              cudnnDataType_t computeType)
{
    sim_conv *conv = sim_object<sim_conv>(convDesc, SIM_CUDNN_CONV, __func__);
    if (!conv || pad_h < 0 || pad_w < 0 || u <= 0 || v <= 0 || dilation_h <= 0 || dilation_w <= 0)
        return sim_mistake(CUDNN_STATUS_BAD_PARAM, __func__,
                           "a padding, stride or dilation is out of range");
    if (mode != CUDNN_CROSS_CORRELATION || computeType != CUDNN_DATA_FLOAT)
        return sim_mistake(CUDNN_STATUS_NOT_SUPPORTED, __func__,
                           "only cross-correlation computed in float is simulated");
    *conv = {SIM_CUDNN_CONV,           true, {pad_h, pad_w}, {u, v},
             {dilation_h, dilation_w}, 1,    computeType,    CUDNN_DEFAULT_MATH};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t convDesc,
                                          cudnnMathType_t mathType)
{
    sim_conv *conv = SIM_CONV(convDesc); // setting the shape afterwards would reset it
    if (!conv || mathType < CUDNN_DEFAULT_MATH || mathType > CUDNN_FMA_MATH)
        return sim_mistake(CUDNN_STATUS_BAD_PARAM, __func__, "not a math type");
    conv->math = mathType;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionMathType(cudnnConvolutionDescriptor_t convDesc,
                                          cudnnMathType_t *mathType)
{
    sim_conv *conv = SIM_CONV(convDesc);
    if (!conv || !mathType)
        return CUDNN_STATUS_BAD_PARAM;
    *mathType = conv->math;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t convDesc, int groupCount)
{
    sim_conv *conv = SIM_CONV(convDesc);
    if (!conv || groupCount <= 0)
        return sim_mistake(CUDNN_STATUS_BAD_PARAM, __func__,
                           "the number of groups is not positive");
    conv->groups = groupCount;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionGroupCount(cudnnConvolutionDescriptor_t convDesc, int *groupCount)
{
    sim_conv *conv = SIM_CONV(convDesc);
    if (!conv || !groupCount)
        return CUDNN_STATUS_BAD_PARAM;
    *groupCount = (int)conv->groups;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreateActivationDescriptor(cudnnActivationDescriptor_t *activationDesc)
{
    return create<sim_activation>(activationDesc, SIM_CUDNN_ACTIVATION, __func__);
}

cudnnStatus_t cudnnDestroyActivationDescriptor(cudnnActivationDescriptor_t activationDesc)
{
    return destroy<sim_activation>(activationDesc, SIM_CUDNN_ACTIVATION, __func__);
}

cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t activationDesc,
                                           cudnnActivationMode_t mode,
                                           cudnnNanPropagation_t reluNanOpt, double)
{
    sim_activation *act =
        sim_object<sim_activation>(activationDesc, SIM_CUDNN_ACTIVATION, __func__);
    if (!act)
        return CUDNN_STATUS_BAD_PARAM;
    if (mode != CUDNN_ACTIVATION_RELU && mode != CUDNN_ACTIVATION_IDENTITY)
        return sim_mistake(CUDNN_STATUS_NOT_SUPPORTED, __func__,
                           "only RELU and IDENTITY are simulated");
    *act = {SIM_CUDNN_ACTIVATION, true, mode, reluNanOpt};
    return CUDNN_STATUS_SUCCESS;
}

} // extern "C"
