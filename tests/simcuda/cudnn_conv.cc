/* cudnn_conv.cc - the convolutions of the simulated cuDNN: which algorithms exist, and the checked
 * calls.
 *
 * As with the library, filters stored channels last go with two algorithms a direction and with
 * tensors that are channels last and packed; the others need channels first. Algorithms that the
 * library's documentation calls non-deterministic sum in another order each time. Measuring
 * (Find...Ex) ranks them by chance, as a busy device does, and leaves garbage in the output. f32 is
 * rounded to tf32 unless the math type is FMA.
 */
#include <algorithm>
#include <cmath>
#include <cstring>
#include <unistd.h>

#include "cudnn_conv.h"

namespace
{

struct algorithm {
    int id;
    bool changing, channels_last, small_only; // small_only: 3x3, stride 1
    size_t workspace;
};

// Fastest first, as the heuristics would rank them.
const algorithm FORWARD[] = {
    {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, false, true, false, 8192},
    {CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED, false, false, true, 65536},
    {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, false, true, false, 0},
};
const algorithm BACKWARD_DATA[] = {
    {CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, true, true, false, 0},
    {CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, false, true, false, 16384},
    {CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED, false, false, true, 65536},
};
const algorithm BACKWARD_FILTER[] = {
    {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0, true, true, false, 0},
    {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, false, true, false, 16384},
    {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3, true, false, false, 4096},
    {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED, false, false, true, 65536},
};

struct algorithm_list {
    const algorithm *first;
    int count;
    int library_count; // numbers that the library's enum gives out
};

algorithm_list algorithms(sim_direction direction)
{
    switch (direction) {
    case SIM_FORWARD:
        return {FORWARD, 3, CUDNN_CONVOLUTION_FWD_ALGO_COUNT};
    case SIM_BACKWARD_DATA:
        return {BACKWARD_DATA, 3, CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT};
    case SIM_BACKWARD_FILTER:
        break;
    }
    return {BACKWARD_FILTER, 4, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT};
}

int64_t out_extent(const sim_conv &conv, int dim, int64_t in, int64_t kernel)
{
    int64_t span = in + 2 * conv.pad[dim] - ((kernel - 1) * conv.dilation[dim] + 1);
    return span < 0 ? 0 : span / conv.stride[dim] + 1;
}

// The four descriptors as one shape. BAD_PARAM: a mistake, reported. NOT_SUPPORTED: to be asked.
cudnnStatus_t describe(const char *call, cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                       cudnnConvolutionDescriptor_t conv, cudnnTensorDescriptor_t y,
                       sim_conv_shape *s)
{
    sim_tensor *found_x = sim_set_object<sim_tensor>(x, SIM_CUDNN_TENSOR, call);
    sim_tensor *found_y = sim_set_object<sim_tensor>(y, SIM_CUDNN_TENSOR, call);
    sim_filter *found_w = sim_set_object<sim_filter>(w, SIM_CUDNN_FILTER, call);
    sim_conv *found_conv = sim_set_object<sim_conv>(conv, SIM_CUDNN_CONV, call);
    if (!found_x || !found_y || !found_w || !found_conv)
        return CUDNN_STATUS_BAD_PARAM;
    s->x = *found_x, s->y = *found_y, s->w = *found_w, s->conv = *found_conv;
    int64_t groups = s->conv.groups;
    if (s->x.dims[1] != s->w.c * groups || s->w.k % groups)
        return sim_mistake(CUDNN_STATUS_BAD_PARAM, call,
                           "the channels of x, filter and groups do not fit");
    s->k_group = s->w.k / groups;
    s->c_group = s->w.c;
    s->depth = s->w.c * s->w.h * s->w.w;
    s->out_h = out_extent(s->conv, 0, s->x.dims[2], s->w.h);
    s->out_w = out_extent(s->conv, 1, s->x.dims[3], s->w.w);
    int64_t out[4] = {s->x.dims[0], s->w.k, s->out_h, s->out_w};
    if (std::memcmp(out, s->y.dims, sizeof out))
        return sim_mistake(CUDNN_STATUS_BAD_PARAM, call, "y does not have the shape of the result");
    if (s->x.type != s->w.type || s->x.type != s->y.type)
        return sim_mistake(CUDNN_STATUS_BAD_PARAM, call, "x, filter and y have different types");
    s->type = sim_element_of(s->x);
    s->tf32 = s->type == SIM_F32 && s->conv.math != CUDNN_FMA_MATH;
    if (s->w.nhwc && (!sim_packed_nhwc(s->x) || !sim_packed_nhwc(s->y)))
        return sim_decline(CUDNN_STATUS_NOT_SUPPORTED, call,
                           "a filter stored channels last needs packed tensors stored alike");
    return CUDNN_STATUS_SUCCESS;
}

bool supports(const sim_conv_shape &s, const algorithm &algo)
{
    bool small = s.w.h == 3 && s.w.w == 3 && s.conv.groups == 1;
    for (int i = 0; i < 2; i++)
        small = small && s.conv.stride[i] == 1 && s.conv.dilation[i] == 1;
    return (algo.channels_last || !s.w.nhwc) && (small || !algo.small_only);
}

size_t workspace_bytes(const sim_conv_shape &s, const algorithm &algo)
{
    return algo.workspace ? algo.workspace + (size_t)s.w.k * 16 : 0;
}

cudnnStatus_t find_algorithm(const char *call, const sim_conv_shape &s, sim_direction direction,
                             int id, const algorithm **algo_out)
{
    algorithm_list list = algorithms(direction);
    for (int i = 0; i < list.count; i++)
        if (list.first[i].id == id && supports(s, list.first[i])) {
            *algo_out = &list.first[i];
            return CUDNN_STATUS_SUCCESS;
        }
    if (id < 0 || id >= list.library_count)
        return sim_mistake(CUDNN_STATUS_BAD_PARAM, call, "no algorithm has this number");
    return sim_decline(CUDNN_STATUS_NOT_SUPPORTED, call,
                       "the algorithm does not do this convolution");
}

cudnnMathType_t math_of(const sim_conv_shape &s)
{
    return s.type == SIM_F32 ? s.conv.math : CUDNN_TENSOR_OP_MATH;
}

// The list of candidates, best first, those that cannot do it behind. measured: ranked by chance.
template <class Perf>
cudnnStatus_t list_algorithms(const char *call, const sim_conv_shape &s, sim_direction direction,
                              bool measured, size_t limit, int requested, int *returned,
                              Perf *results)
{
    if (requested <= 0 || !returned || !results)
        return sim_mistake(CUDNN_STATUS_BAD_PARAM, call, "no room for results");
    algorithm_list list = algorithms(direction);
    Perf all[8] = {};
    for (int i = 0; i < list.count; i++) {
        const algorithm &algo = list.first[i];
        size_t bytes = workspace_bytes(s, algo);
        bool usable = supports(s, algo) && bytes <= limit;
        all[i].algo = static_cast<decltype(all[i].algo)>(algo.id);
        all[i].status = usable ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
        all[i].time = measured && usable
                          ? (float)((sim_changing() ^ (uint64_t)getpid() * 2654435761u) % 1000)
                          : -1;
        all[i].memory = bytes;
        all[i].determinism = algo.changing ? CUDNN_NON_DETERMINISTIC : CUDNN_DETERMINISTIC;
        all[i].mathType = math_of(s);
    }
    std::stable_sort(all, all + list.count, [](const Perf &a, const Perf &b) {
        return a.status != b.status ? a.status == CUDNN_STATUS_SUCCESS : a.time < b.time;
    });
    *returned = std::min(requested, list.count);
    std::copy_n(all, *returned, results);
    return CUDNN_STATUS_SUCCESS;
}

// What a run gets: descriptors checked, pointers not yet.
struct call_args {
    const char *name;
    cudnnHandle_t handle;
    cudnnTensorDescriptor_t x_desc;
    const void *x;
    cudnnFilterDescriptor_t w_desc;
    const void *w;
    cudnnConvolutionDescriptor_t conv_desc;
    cudnnTensorDescriptor_t y_desc;
    const void *y;
};

bool check_operands(const call_args &args, const sim_conv_shape &s)
{
    size_t align = sim_type_bytes(s.type);
    return sim_operand(args.name, "x", args.x, sim_tensor_bytes(s.x), align) &&
           sim_operand(args.name, "the filter", args.w, sim_filter_bytes(s.w), align) &&
           sim_operand(args.name, "y", args.y, sim_tensor_bytes(s.y), align);
}

template <class Perf>
cudnnStatus_t get_algorithms(const call_args &args, sim_direction direction, int requested,
                             int *returned, Perf *results)
{
    if (!sim_object<sim_handle>(args.handle, SIM_CUDNN_HANDLE, args.name))
        return CUDNN_STATUS_BAD_PARAM;
    sim_conv_shape s;
    cudnnStatus_t status =
        describe(args.name, args.x_desc, args.w_desc, args.conv_desc, args.y_desc, &s);
    if (status != CUDNN_STATUS_SUCCESS)
        return status;
    return list_algorithms(args.name, s, direction, false, SIZE_MAX, requested, returned, results);
}

template <class Perf>
cudnnStatus_t measure_algorithms(const call_args &args, sim_direction direction, int requested,
                                 int *returned, Perf *results, void *workspace,
                                 size_t workspace_given)
{
    sim_handle *h = sim_object<sim_handle>(args.handle, SIM_CUDNN_HANDLE, args.name);
    if (!h)
        return CUDNN_STATUS_BAD_PARAM;
    if (int error = cusim_inject_error(args.name, CUDNN_STATUS_EXECUTION_FAILED))
        return sim_decline((cudnnStatus_t)error, args.name,
                           "failed because CUSIM_FAIL asks for it");
    sim_conv_shape s;
    cudnnStatus_t status =
        describe(args.name, args.x_desc, args.w_desc, args.conv_desc, args.y_desc, &s);
    if (status != CUDNN_STATUS_SUCCESS)
        return status;
    if (!check_operands(args, s) ||
        (workspace_given &&
         !sim_operand(args.name, "the workspace", workspace, workspace_given, 16)))
        return CUDNN_STATUS_BAD_PARAM;
    void *out = const_cast<void *>(direction == SIM_FORWARD         ? args.y
                                   : direction == SIM_BACKWARD_DATA ? args.x
                                                                    : args.w);
    size_t bytes = direction == SIM_FORWARD         ? sim_tensor_bytes(s.y)
                   : direction == SIM_BACKWARD_DATA ? sim_tensor_bytes(s.x)
                                                    : sim_filter_bytes(s.w);
    sim_type type = s.type;
    sim_enqueue(h->stream, args.name, [out, bytes, type, workspace, workspace_given] {
        sim_spoil(workspace, workspace_given);
        cusim_writes(out, bytes);
        for (size_t i = 0; i < bytes / sim_type_bytes(type); i++)
            sim_store(type, cusim_host(out), (int64_t)i, NAN);
    });
    if (cudaStreamSynchronize(h->stream) != cudaSuccess)
        return sim_decline(CUDNN_STATUS_EXECUTION_FAILED, args.name, "the stream failed");
    return list_algorithms(args.name, s, direction, true, workspace_given, requested, returned,
                           results);
}

cudnnStatus_t get_workspace(const call_args &args, sim_direction direction, int id,
                            size_t *bytes_out)
{
    if (!sim_object<sim_handle>(args.handle, SIM_CUDNN_HANDLE, args.name) || !bytes_out)
        return CUDNN_STATUS_BAD_PARAM;
    sim_conv_shape s;
    const algorithm *algo;
    cudnnStatus_t status =
        describe(args.name, args.x_desc, args.w_desc, args.conv_desc, args.y_desc, &s);
    if (status == CUDNN_STATUS_SUCCESS)
        status = find_algorithm(args.name, s, direction, id, &algo);
    if (status == CUDNN_STATUS_SUCCESS)
        *bytes_out = workspace_bytes(s, *algo);
    return status;
}

struct run_args {
    int algo;
    void *workspace;
    size_t workspace_bytes;
    const void *alpha, *beta;
};

// Checks a run and fills what its loops need. The stream is the handle's.
cudnnStatus_t prepare(const call_args &args, sim_direction direction, const run_args &given,
                      sim_conv_shape *s, sim_conv_run *run, cudaStream_t *stream)
{
    sim_handle *h = sim_object<sim_handle>(args.handle, SIM_CUDNN_HANDLE, args.name);
    if (!h)
        return CUDNN_STATUS_BAD_PARAM;
    if (int error = cusim_inject_error(args.name, CUDNN_STATUS_EXECUTION_FAILED))
        return sim_decline((cudnnStatus_t)error, args.name,
                           "failed because CUSIM_FAIL asks for it");
    const algorithm *algo;
    cudnnStatus_t status =
        describe(args.name, args.x_desc, args.w_desc, args.conv_desc, args.y_desc, s);
    if (status == CUDNN_STATUS_SUCCESS)
        status = find_algorithm(args.name, *s, direction, given.algo, &algo);
    if (status != CUDNN_STATUS_SUCCESS)
        return status;
    if (!given.alpha || !given.beta)
        return sim_mistake(CUDNN_STATUS_BAD_PARAM, args.name, "alpha or beta is missing");
    if (!check_operands(args, *s))
        return CUDNN_STATUS_BAD_PARAM;
    size_t needed = workspace_bytes(*s, *algo);
    if (given.workspace_bytes < needed)
        return sim_mistake(CUDNN_STATUS_BAD_PARAM, args.name,
                           "the workspace is smaller than the algorithm needs");
    if (needed && !sim_operand(args.name, "the workspace", given.workspace, needed, 16))
        return CUDNN_STATUS_BAD_PARAM;
    *run = {};
    run->name = args.name;
    run->x = args.x, run->w = args.w, run->y = args.y;
    run->workspace = needed ? given.workspace : nullptr;
    run->workspace_bytes = needed;
    run->alpha = *static_cast<const float *>(given.alpha);
    run->beta = *static_cast<const float *>(given.beta);
    run->changing = algo->changing;
    *stream = h->stream;
    return CUDNN_STATUS_SUCCESS;
}

// What the fused forward call adds to the checks. NOT_SUPPORTED is the library's own way to say no.
cudnnStatus_t prepare_fused(const char *call, const sim_conv_shape &s, int algo,
                            const sim_activation &act, const sim_tensor &bias, const sim_tensor &z)
{
    if (act.mode == CUDNN_ACTIVATION_IDENTITY &&
        algo != CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM)
        return sim_decline(CUDNN_STATUS_NOT_SUPPORTED, call,
                           "IDENTITY goes with IMPLICIT_PRECOMP_GEMM only");
    if (act.nan != CUDNN_NOT_PROPAGATE_NAN)
        return sim_decline(CUDNN_STATUS_NOT_SUPPORTED, call,
                           "the activation may not propagate NaN");
    if (bias.dims[0] != 1 || bias.dims[1] != s.w.k || bias.dims[2] != 1 || bias.dims[3] != 1 ||
        bias.strides[1] != 1 || bias.type != s.y.type)
        return sim_decline(CUDNN_STATUS_NOT_SUPPORTED, call,
                           "the bias is not one value a channel, of y's type");
    if (std::memcmp(z.dims, s.y.dims, sizeof z.dims) || z.type != s.y.type ||
        std::memcmp(z.strides, s.y.strides, sizeof z.strides))
        return sim_decline(CUDNN_STATUS_NOT_SUPPORTED, call, "z and y are described differently");
    return CUDNN_STATUS_SUCCESS;
}

} // namespace

extern "C" {

cudnnStatus_t cudnnGetConvolution2dForwardOutputDim(const cudnnConvolutionDescriptor_t convDesc,
                                                    const cudnnTensorDescriptor_t inputTensorDesc,
                                                    const cudnnFilterDescriptor_t filterDesc,
                                                    int *n, int *c, int *h, int *w)
{
    sim_conv *conv = SIM_CONV(convDesc);
    sim_tensor *x = SIM_TENSOR(inputTensorDesc);
    sim_filter *f = SIM_FILTER(filterDesc);
    if (!conv || !x || !f || !n || !c || !h || !w)
        return CUDNN_STATUS_BAD_PARAM;
    if (x->dims[1] != f->c * conv->groups)
        return sim_mistake(CUDNN_STATUS_BAD_PARAM, __func__,
                           "the channels of x and filter do not fit");
    *n = (int)x->dims[0];
    *c = (int)f->k;
    *h = (int)out_extent(*conv, 0, x->dims[2], f->h);
    *w = (int)out_extent(*conv, 1, x->dims[3], f->w);
    return *h > 0 && *w > 0 ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t srcDesc,
    const cudnnFilterDescriptor_t filterDesc, const cudnnConvolutionDescriptor_t convDesc,
    const cudnnTensorDescriptor_t destDesc, const int requestedAlgoCount, int *returnedAlgoCount,
    cudnnConvolutionFwdAlgoPerf_t *perfResults)
{
    call_args args = {__func__, handle,   srcDesc,  nullptr, filterDesc,
                      nullptr,  convDesc, destDesc, nullptr};
    return get_algorithms(args, SIM_FORWARD, requestedAlgoCount, returnedAlgoCount, perfResults);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t filterDesc,
    const cudnnTensorDescriptor_t diffDesc, const cudnnConvolutionDescriptor_t convDesc,
    const cudnnTensorDescriptor_t gradDesc, const int requestedAlgoCount, int *returnedAlgoCount,
    cudnnConvolutionBwdDataAlgoPerf_t *perfResults)
{
    call_args args = {__func__, handle,   gradDesc, nullptr, filterDesc,
                      nullptr,  convDesc, diffDesc, nullptr};
    return get_algorithms(args, SIM_BACKWARD_DATA, requestedAlgoCount, returnedAlgoCount,
                          perfResults);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t srcDesc,
    const cudnnTensorDescriptor_t diffDesc, const cudnnConvolutionDescriptor_t convDesc,
    const cudnnFilterDescriptor_t gradDesc, const int requestedAlgoCount, int *returnedAlgoCount,
    cudnnConvolutionBwdFilterAlgoPerf_t *perfResults)
{
    call_args args = {__func__, handle,   srcDesc,  nullptr, gradDesc,
                      nullptr,  convDesc, diffDesc, nullptr};
    return get_algorithms(args, SIM_BACKWARD_FILTER, requestedAlgoCount, returnedAlgoCount,
                          perfResults);
}

cudnnStatus_t cudnnFindConvolutionForwardAlgorithmEx(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t xDesc, const void *x,
    const cudnnFilterDescriptor_t wDesc, const void *w, const cudnnConvolutionDescriptor_t convDesc,
    const cudnnTensorDescriptor_t yDesc, void *y, const int requestedAlgoCount,
    int *returnedAlgoCount, cudnnConvolutionFwdAlgoPerf_t *perfResults, void *workSpace,
    size_t workSpaceSizeInBytes)
{
    call_args args = {__func__, handle, xDesc, x, wDesc, w, convDesc, yDesc, y};
    return measure_algorithms(args, SIM_FORWARD, requestedAlgoCount, returnedAlgoCount, perfResults,
                              workSpace, workSpaceSizeInBytes);
}

cudnnStatus_t cudnnFindConvolutionBackwardDataAlgorithmEx(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t wDesc, const void *w,
    const cudnnTensorDescriptor_t dyDesc, const void *dy,
    const cudnnConvolutionDescriptor_t convDesc, const cudnnTensorDescriptor_t dxDesc, void *dx,
    const int requestedAlgoCount, int *returnedAlgoCount,
    cudnnConvolutionBwdDataAlgoPerf_t *perfResults, void *workSpace, size_t workSpaceSizeInBytes)
{
    call_args args = {__func__, handle, dxDesc, dx, wDesc, w, convDesc, dyDesc, dy};
    return measure_algorithms(args, SIM_BACKWARD_DATA, requestedAlgoCount, returnedAlgoCount,
                              perfResults, workSpace, workSpaceSizeInBytes);
}

cudnnStatus_t cudnnFindConvolutionBackwardFilterAlgorithmEx(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t xDesc, const void *x,
    const cudnnTensorDescriptor_t dyDesc, const void *y,
    const cudnnConvolutionDescriptor_t convDesc, const cudnnFilterDescriptor_t dwDesc, void *dw,
    const int requestedAlgoCount, int *returnedAlgoCount,
    cudnnConvolutionBwdFilterAlgoPerf_t *perfResults, void *workSpace, size_t workSpaceSizeInBytes)
{
    call_args args = {__func__, handle, xDesc, x, dwDesc, dw, convDesc, dyDesc, y};
    return measure_algorithms(args, SIM_BACKWARD_FILTER, requestedAlgoCount, returnedAlgoCount,
                              perfResults, workSpace, workSpaceSizeInBytes);
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t xDesc, const cudnnFilterDescriptor_t wDesc,
    const cudnnConvolutionDescriptor_t convDesc, const cudnnTensorDescriptor_t yDesc,
    cudnnConvolutionFwdAlgo_t algo, size_t *sizeInBytes)
{
    call_args args = {__func__, handle, xDesc, nullptr, wDesc, nullptr, convDesc, yDesc, nullptr};
    return get_workspace(args, SIM_FORWARD, algo, sizeInBytes);
}

cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t wDesc, const cudnnTensorDescriptor_t dyDesc,
    const cudnnConvolutionDescriptor_t convDesc, const cudnnTensorDescriptor_t dxDesc,
    cudnnConvolutionBwdDataAlgo_t algo, size_t *sizeInBytes)
{
    call_args args = {__func__, handle, dxDesc, nullptr, wDesc, nullptr, convDesc, dyDesc, nullptr};
    return get_workspace(args, SIM_BACKWARD_DATA, algo, sizeInBytes);
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t xDesc, const cudnnTensorDescriptor_t dyDesc,
    const cudnnConvolutionDescriptor_t convDesc, const cudnnFilterDescriptor_t gradDesc,
    cudnnConvolutionBwdFilterAlgo_t algo, size_t *sizeInBytes)
{
    call_args args = {__func__, handle,   xDesc,  nullptr, gradDesc,
                      nullptr,  convDesc, dyDesc, nullptr};
    return get_workspace(args, SIM_BACKWARD_FILTER, algo, sizeInBytes);
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void *alpha,
                                      const cudnnTensorDescriptor_t xDesc, const void *x,
                                      const cudnnFilterDescriptor_t wDesc, const void *w,
                                      const cudnnConvolutionDescriptor_t convDesc,
                                      cudnnConvolutionFwdAlgo_t algo, void *workSpace,
                                      size_t workSpaceSizeInBytes, const void *beta,
                                      const cudnnTensorDescriptor_t yDesc, void *y)
{
    call_args args = {__func__, handle, xDesc, x, wDesc, w, convDesc, yDesc, y};
    sim_conv_shape s;
    sim_conv_run run;
    cudaStream_t stream = nullptr;
    cudnnStatus_t status = prepare(
        args, SIM_FORWARD, {algo, workSpace, workSpaceSizeInBytes, alpha, beta}, &s, &run, &stream);
    if (status == CUDNN_STATUS_SUCCESS)
        sim_enqueue(stream, run.name, [s, run] { sim_conv_forward(s, run); });
    return status;
}

cudnnStatus_t cudnnConvolutionBiasActivationForward(
    cudnnHandle_t handle, const void *alpha1, const cudnnTensorDescriptor_t xDesc, const void *x,
    const cudnnFilterDescriptor_t wDesc, const void *w, const cudnnConvolutionDescriptor_t convDesc,
    cudnnConvolutionFwdAlgo_t algo, void *workSpace, size_t workSpaceSizeInBytes,
    const void *alpha2, const cudnnTensorDescriptor_t zDesc, const void *z,
    const cudnnTensorDescriptor_t biasDesc, const void *bias,
    const cudnnActivationDescriptor_t activationDesc, const cudnnTensorDescriptor_t yDesc, void *y)
{
    call_args args = {__func__, handle, xDesc, x, wDesc, w, convDesc, yDesc, y};
    sim_conv_shape s;
    sim_conv_run run;
    cudaStream_t stream = nullptr;
    cudnnStatus_t status =
        prepare(args, SIM_FORWARD, {algo, workSpace, workSpaceSizeInBytes, alpha1, alpha2}, &s,
                &run, &stream);
    if (status != CUDNN_STATUS_SUCCESS)
        return status;
    sim_activation *act = SIM_ACTIVATION(activationDesc);
    sim_tensor *bias_tensor = SIM_TENSOR(biasDesc), *z_tensor = SIM_TENSOR(zDesc);
    if (!act || !bias_tensor || !z_tensor)
        return CUDNN_STATUS_BAD_PARAM;
    status = prepare_fused(__func__, s, algo, *act, *bias_tensor, *z_tensor);
    if (status != CUDNN_STATUS_SUCCESS)
        return status;
    size_t align = sim_type_bytes(s.type);
    if (!sim_operand(__func__, "the bias", bias, sim_tensor_bytes(*bias_tensor), align) ||
        !sim_operand(__func__, "z", z, sim_tensor_bytes(*z_tensor), align))
        return CUDNN_STATUS_BAD_PARAM;
    run.alpha_z = run.beta;
    run.beta = 0.0f;
    run.z = run.alpha_z != 0.0f ? z : nullptr;
    run.bias = bias;
    run.z_desc = *z_tensor, run.bias_desc = *bias_tensor;
    run.relu = act->mode == CUDNN_ACTIVATION_RELU;
    sim_enqueue(stream, run.name, [s, run] { sim_conv_forward(s, run); });
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void *alpha,
                                           const cudnnFilterDescriptor_t wDesc, const void *w,
                                           const cudnnTensorDescriptor_t dyDesc, const void *dy,
                                           const cudnnConvolutionDescriptor_t convDesc,
                                           cudnnConvolutionBwdDataAlgo_t algo, void *workSpace,
                                           size_t workSpaceSizeInBytes, const void *beta,
                                           const cudnnTensorDescriptor_t dxDesc, void *dx)
{
    call_args args = {__func__, handle, dxDesc, dx, wDesc, w, convDesc, dyDesc, dy};
    sim_conv_shape s;
    sim_conv_run run;
    cudaStream_t stream = nullptr;
    cudnnStatus_t status =
        prepare(args, SIM_BACKWARD_DATA, {algo, workSpace, workSpaceSizeInBytes, alpha, beta}, &s,
                &run, &stream);
    if (status == CUDNN_STATUS_SUCCESS)
        sim_enqueue(stream, run.name, [s, run] { sim_conv_backward_data(s, run); });
    return status;
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void *alpha,
                                             const cudnnTensorDescriptor_t xDesc, const void *x,
                                             const cudnnTensorDescriptor_t dyDesc, const void *dy,
                                             const cudnnConvolutionDescriptor_t convDesc,
                                             cudnnConvolutionBwdFilterAlgo_t algo, void *workSpace,
                                             size_t workSpaceSizeInBytes, const void *beta,
                                             const cudnnFilterDescriptor_t dwDesc, void *dw)
{
    call_args args = {__func__, handle, xDesc, x, dwDesc, dw, convDesc, dyDesc, dy};
    sim_conv_shape s;
    sim_conv_run run;
    cudaStream_t stream = nullptr;
    cudnnStatus_t status =
        prepare(args, SIM_BACKWARD_FILTER, {algo, workSpace, workSpaceSizeInBytes, alpha, beta}, &s,
                &run, &stream);
    if (status == CUDNN_STATUS_SUCCESS)
        sim_enqueue(stream, run.name, [s, run] { sim_conv_backward_filter(s, run); });
    return status;
}

} // extern "C"
