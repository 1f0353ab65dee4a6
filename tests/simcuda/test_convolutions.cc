/* test_convolutions.cc - the simulated cuDNN against plain double loops, and what it refuses. */
#include <cstring>
#include <cudnn.h>
#include <functional>
#include <set>

#include "math_check.h"

namespace
{

cudnnDataType_t dnn_type(sim_type type)
{
    return type == SIM_F32    ? CUDNN_DATA_FLOAT
           : type == SIM_BF16 ? CUDNN_DATA_BFLOAT16
                              : CUDNN_DATA_HALF;
}

cudnnHandle_t dnn;

struct conv_case {
    sim_type type;
    bool channels_last;
    int64_t n, c, h, w, k, r, s;
    int64_t pad[2], stride[2], dilation[2], groups; // vertical, horizontal
    float alpha, beta;
    cudnnMathType_t math = CUDNN_FMA_MATH;
};

struct conv_objects {
    cudnnTensorDescriptor_t x, y, bias;
    cudnnFilterDescriptor_t w;
    cudnnConvolutionDescriptor_t conv;
    cudnnActivationDescriptor_t relu;
    int out[4];

    explicit conv_objects(const conv_case &t)
    {
        cudnnTensorFormat_t format = t.channels_last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
        CHECK(!cudnnCreateTensorDescriptor(&x) && !cudnnCreateTensorDescriptor(&y) &&
              !cudnnCreateTensorDescriptor(&bias) && !cudnnCreateFilterDescriptor(&w) &&
              !cudnnCreateConvolutionDescriptor(&conv) && !cudnnCreateActivationDescriptor(&relu));
        CHECK(!cudnnSetTensor4dDescriptor(x, format, dnn_type(t.type), (int)t.n, (int)t.c, (int)t.h,
                                          (int)t.w));
        CHECK(!cudnnSetFilter4dDescriptor(w, dnn_type(t.type), format, (int)t.k,
                                          (int)(t.c / t.groups), (int)t.r, (int)t.s));
        CHECK(!cudnnSetConvolution2dDescriptor(
            conv, (int)t.pad[0], (int)t.pad[1], (int)t.stride[0], (int)t.stride[1],
            (int)t.dilation[0], (int)t.dilation[1], CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
        CHECK(!cudnnSetConvolutionGroupCount(conv, (int)t.groups));
        CHECK(!cudnnSetConvolutionMathType(conv, t.math));
        CHECK(
            !cudnnGetConvolution2dForwardOutputDim(conv, x, w, &out[0], &out[1], &out[2], &out[3]));
        CHECK(!cudnnSetTensor4dDescriptor(y, format, dnn_type(t.type), out[0], out[1], out[2],
                                          out[3]));
        CHECK(!cudnnSetTensor4dDescriptor(bias, format, dnn_type(t.type), 1, out[1], 1, 1));
        CHECK(
            !cudnnSetActivationDescriptor(relu, CUDNN_ACTIVATION_RELU, CUDNN_NOT_PROPAGATE_NAN, 0));
    }
    ~conv_objects()
    {
        CHECK(!cudnnDestroyTensorDescriptor(x) && !cudnnDestroyTensorDescriptor(y) &&
              !cudnnDestroyTensorDescriptor(bias) && !cudnnDestroyFilterDescriptor(w) &&
              !cudnnDestroyConvolutionDescriptor(conv) && !cudnnDestroyActivationDescriptor(relu));
    }
};

size_t place(bool channels_last, const int64_t dims[4], int64_t n, int64_t c, int64_t h, int64_t w)
{
    return (size_t)(channels_last ? ((n * dims[2] + h) * dims[3] + w) * dims[1] + c
                                  : ((n * dims[1] + c) * dims[2] + h) * dims[3] + w);
}

// All three directions at once: what each tap of the convolution contributes.
struct conv_reference {
    std::vector<double> y, dx, dw;

    conv_reference(const conv_case &t, const int out[4], const array &x, const array &w,
                   const array &dy)
        : y(dy.values.size()), dx(x.values.size()), dw(w.values.size())
    {
        int64_t c_group = t.c / t.groups, k_group = t.k / t.groups;
        int64_t x_dims[4] = {t.n, t.c, t.h, t.w}, w_dims[4] = {t.k, c_group, t.r, t.s};
        int64_t y_dims[4] = {out[0], out[1], out[2], out[3]};
        for (int64_t n = 0; n < t.n; n++)
            for (int64_t k = 0; k < t.k; k++)
                for (int64_t i = 0; i < out[2] * out[3]; i++)
                    for (int64_t tap = 0; tap < c_group * t.r * t.s; tap++) {
                        int64_t c = tap / (t.r * t.s), r = tap / t.s % t.r, s = tap % t.s;
                        int64_t h = i / out[3] * t.stride[0] - t.pad[0] + r * t.dilation[0];
                        int64_t v = i % out[3] * t.stride[1] - t.pad[1] + s * t.dilation[1];
                        if (h < 0 || h >= t.h || v < 0 || v >= t.w)
                            continue;
                        size_t at_x =
                            place(t.channels_last, x_dims, n, k / k_group * c_group + c, h, v);
                        size_t at_w = place(t.channels_last, w_dims, k, c, r, s);
                        size_t at_y = place(t.channels_last, y_dims, n, k, i / out[3], i % out[3]);
                        y[at_y] += (double)x.values[at_x] * w.values[at_w];
                        dx[at_x] += (double)dy.values[at_y] * w.values[at_w];
                        dw[at_w] += (double)dy.values[at_y] * x.values[at_x];
                    }
    }
};

void compare(const char *what, const conv_case &t, const std::vector<double> &expected,
             const array &result, int64_t terms)
{
    std::vector<float> got = result.read();
    int64_t wrong = 0;
    for (size_t i = 0; i < got.size(); i++)
        wrong +=
            !near(t.type, t.alpha * expected[i] + (t.beta != 0 ? t.beta * result.values[i] : 0),
                  got[i], terms);
    if (wrong)
        std::printf("%s of %lldx%lldx%lldx%lld to %lld, window %lldx%lld, groups %lld, type %d, "
                    "channels last %d: %lld of %zu wrong\n",
                    what, (long long)t.n, (long long)t.c, (long long)t.h, (long long)t.w,
                    (long long)t.k, (long long)t.r, (long long)t.s, (long long)t.groups, t.type,
                    t.channels_last, (long long)wrong, got.size());
    CHECK(wrong == 0);
}

void reset(const array &a)
{
    std::vector<char> bytes = a.stored();
    CHECK(cudaMemcpy(a.device, bytes.data(), bytes.size(), cudaMemcpyHostToDevice) == cudaSuccess);
}

void check_conv(const conv_case &t)
{
    conv_objects o(t);
    int64_t y_count = (int64_t)o.out[0] * o.out[1] * o.out[2] * o.out[3];
    array x(t.type, t.n * t.c * t.h * t.w), w(t.type, t.k * t.c / t.groups * t.r * t.s),
        dy(t.type, y_count);
    array y(t.type, y_count, t.beta != 0), dx(t.type, (int64_t)x.values.size(), t.beta != 0),
        dw(t.type, (int64_t)w.values.size(), t.beta != 0), workspace(SIM_F32, 1 << 18);
    conv_reference reference(t, o.out, x, w, dy);
    size_t limit = 1 << 20;
    int count;
    cudnnConvolutionFwdAlgoPerf_t forward[8];
    CHECK(!cudnnGetConvolutionForwardAlgorithm_v7(dnn, o.x, o.w, o.conv, o.y, 8, &count, forward));
    for (int i = 0; i < count && !forward[i].status; i++) {
        reset(y);
        CHECK(!cudnnConvolutionForward(dnn, &t.alpha, o.x, x.device, o.w, w.device, o.conv,
                                       forward[i].algo, workspace.device, limit, &t.beta, o.y,
                                       y.device));
        compare("forward", t, reference.y, y, (int64_t)w.values.size() / t.k);
    }
    cudnnConvolutionBwdDataAlgoPerf_t data[8];
    CHECK(
        !cudnnGetConvolutionBackwardDataAlgorithm_v7(dnn, o.w, o.y, o.conv, o.x, 8, &count, data));
    for (int i = 0; i < count && !data[i].status; i++) {
        reset(dx);
        CHECK(!cudnnConvolutionBackwardData(dnn, &t.alpha, o.w, w.device, o.y, dy.device, o.conv,
                                            data[i].algo, workspace.device, limit, &t.beta, o.x,
                                            dx.device));
        compare("backward data", t, reference.dx, dx, t.k * t.r * t.s);
    }
    cudnnConvolutionBwdFilterAlgoPerf_t filter[8];
    CHECK(!cudnnGetConvolutionBackwardFilterAlgorithm_v7(dnn, o.x, o.y, o.conv, o.w, 8, &count,
                                                         filter));
    for (int i = 0; i < count && !filter[i].status; i++) {
        reset(dw);
        CHECK(!cudnnConvolutionBackwardFilter(dnn, &t.alpha, o.x, x.device, o.y, dy.device, o.conv,
                                              filter[i].algo, workspace.device, limit, &t.beta, o.w,
                                              dw.device));
        compare("backward filter", t, reference.dw, dw, t.n * o.out[2] * o.out[3]);
    }
}

void test_convolutions()
{
    const sim_type types[] = {SIM_F32, SIM_BF16, SIM_F16};
    for (int i = 0; i < (WATCHED ? 12 : 48); i++) {
        conv_case t = {types[i % 3],
                       i % 2 == 0,
                       draw(1, 3),
                       draw(1, 9),
                       draw(5, 11),
                       draw(5, 11),
                       draw(1, 20),
                       draw(1, 3),
                       draw(1, 3),
                       {draw(0, 2), draw(0, 2)},
                       {draw(1, 2), draw(1, 3)},
                       {i % 5 ? 1 : 2, i % 10 ? 1 : 2},
                       1,
                       i % 4 ? 1.0f : 0.5f,
                       i % 7 ? 0.0f : 0.25f};
        if (i % 6 == 0) {
            t.groups = draw(2, 3);
            t.c *= t.groups;
            t.k *= t.groups;
        }
        if (i % 8 == 1) // the shape that more algorithms do
            t.r = t.s = 3, t.stride[0] = t.stride[1] = t.dilation[0] = t.dilation[1] = 1;
        check_conv(t);
    }
}

void test_fused_convolution()
{
    conv_case t = {SIM_F32, true, 2, 5, 7, 6, 11, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1, 1, 0};
    conv_objects o(t);
    const cudnnConvolutionFwdAlgo_t algo = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
                                    plain = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM;
    array x(t.type, 2 * 5 * 7 * 6), w(t.type, 11 * 5 * 9), y(t.type, 2 * 11 * 7 * 6),
        z(t.type, 2 * 11 * 7 * 6), bias(t.type, 11), workspace(SIM_F32, 1 << 18);
    conv_reference reference(t, o.out, x, w, y);
    cudnnActivationDescriptor_t other;
    CHECK(!cudnnCreateActivationDescriptor(&other));
    auto run = [&](float alpha_z, cudnnActivationDescriptor_t act,
                   cudnnConvolutionFwdAlgo_t which) {
        float one = 1;
        return cudnnConvolutionBiasActivationForward(
            dnn, &one, o.x, x.device, o.w, w.device, o.conv, which, workspace.device, 1 << 20,
            &alpha_z, o.y, z.device, o.bias, bias.device, act, o.y, y.device);
    };
    for (float alpha_z : {0.0f, 0.5f})
        for (bool relu : {true, false}) {
            CHECK(!cudnnSetActivationDescriptor(
                other, relu ? CUDNN_ACTIVATION_RELU : CUDNN_ACTIVATION_IDENTITY,
                CUDNN_NOT_PROPAGATE_NAN, 0));
            CHECK(run(alpha_z, other, algo) == CUDNN_STATUS_SUCCESS);
            std::vector<float> got = y.read();
            int wrong = 0;
            for (size_t i = 0; i < got.size(); i++) {
                double value = reference.y[i] + bias.values[i % 11] + alpha_z * z.values[i];
                wrong += !near(SIM_F32, relu ? std::fmax(value, 0) : value, got[i], 45);
            }
            CHECK(wrong == 0);
        }
    CHECK(run(0, other, plain) == CUDNN_STATUS_NOT_SUPPORTED); // IDENTITY
    CHECK(run(0, o.relu, plain) == CUDNN_STATUS_SUCCESS);
    CHECK(!cudnnSetActivationDescriptor(other, CUDNN_ACTIVATION_RELU, CUDNN_PROPAGATE_NAN, 0));
    CHECK(run(0, other, algo) == CUDNN_STATUS_NOT_SUPPORTED);
    CHECK(!cudnnSetTensor4dDescriptor(o.bias, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, 1, 10, 1, 1));
    CHECK(run(0, o.relu, algo) == CUDNN_STATUS_NOT_SUPPORTED);
    CHECK(!cudnnDestroyActivationDescriptor(other));
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
}

// How many different results n runs of the backward passes give.
size_t results_of(int n, const std::function<cudnnStatus_t()> &run, const array &result)
{
    std::set<std::vector<float>> seen;
    for (int i = 0; i < n; i++) {
        CHECK(run() == CUDNN_STATUS_SUCCESS);
        seen.insert(result.read());
    }
    return seen.size();
}

void test_determinism()
{
    conv_case t = {SIM_F32, true, 3, 8, 9, 9, 16, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1, 1, 0};
    conv_objects o(t);
    array x(t.type, 3 * 8 * 81), w(t.type, 16 * 8 * 9), y(t.type, 3 * 16 * 81),
        workspace(SIM_F32, 1 << 18);
    array dx(t.type, 3 * 8 * 81), dw(t.type, 16 * 8 * 9);
    float one = 1, zero = 0;
    int count;
    cudnnConvolutionBwdDataAlgoPerf_t data[8];
    CHECK(
        !cudnnGetConvolutionBackwardDataAlgorithm_v7(dnn, o.w, o.y, o.conv, o.x, 8, &count, data));
    CHECK(data[0].determinism == CUDNN_NON_DETERMINISTIC &&
          data[1].determinism == CUDNN_DETERMINISTIC);
    for (int i = 0; i < count && !data[i].status; i++) {
        size_t seen = results_of(
            10,
            [&] {
                return cudnnConvolutionBackwardData(dnn, &one, o.w, w.device, o.y, y.device, o.conv,
                                                    data[i].algo, workspace.device, data[i].memory,
                                                    &zero, o.x, dx.device);
            },
            dx);
        CHECK((seen > 1) == (data[i].determinism == CUDNN_NON_DETERMINISTIC));
    }
    cudnnConvolutionBwdFilterAlgoPerf_t filter[8];
    CHECK(!cudnnGetConvolutionBackwardFilterAlgorithm_v7(dnn, o.x, o.y, o.conv, o.w, 8, &count,
                                                         filter));
    CHECK(filter[0].determinism == CUDNN_NON_DETERMINISTIC &&
          filter[1].determinism == CUDNN_DETERMINISTIC);
    for (int i = 0; i < count && !filter[i].status; i++) {
        size_t seen = results_of(
            10,
            [&] {
                return cudnnConvolutionBackwardFilter(dnn, &one, o.x, x.device, o.y, y.device,
                                                      o.conv, filter[i].algo, workspace.device,
                                                      filter[i].memory, &zero, o.w, dw.device);
            },
            dw);
        CHECK((seen > 1) == (filter[i].determinism == CUDNN_NON_DETERMINISTIC));
    }
}

void test_measuring()
{
    conv_case t = {SIM_F32, true, 2, 4, 6, 6, 8, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1, 1, 0};
    conv_objects o(t);
    array x(t.type, 2 * 4 * 36), w(t.type, 8 * 4 * 9), y(t.type, 2 * 8 * 36),
        workspace(SIM_F32, 4096);
    cudnnConvolutionFwdAlgoPerf_t results[8];
    int count;
    CHECK(!cudnnFindConvolutionForwardAlgorithmEx(dnn, o.x, x.device, o.w, w.device, o.conv, o.y,
                                                  y.device, 8, &count, results, workspace.device,
                                                  16384));
    CHECK(count == 3 && !results[0].status && !results[1].status);
    CHECK(results[0].time <= results[1].time && results[2].status == CUDNN_STATUS_NOT_SUPPORTED);
    CHECK(std::isnan(y.read()[0])); // the output is used for trying
    CHECK(!cudnnFindConvolutionForwardAlgorithmEx(dnn, o.x, x.device, o.w, w.device, o.conv, o.y,
                                                  y.device, 8, &count, results, nullptr, 0));
    CHECK(results[0].algo == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM && results[1].status);
}

// The math type decides about tf32.
void test_tf32_convolution()
{
    for (cudnnMathType_t math : {CUDNN_DEFAULT_MATH, CUDNN_FMA_MATH}) {
        conv_case t = {SIM_F32, true, 1, 16, 4, 4, 4, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1, 1, 0, math};
        conv_objects o(t);
        array x(t.type, 16 * 16), w(t.type, 4 * 16 * 9), y(t.type, 4 * 16);
        conv_reference reference(t, o.out, x, w, y);
        CHECK(!cudnnConvolutionForward(dnn, &t.alpha, o.x, x.device, o.w, w.device, o.conv,
                                       CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, nullptr, 0,
                                       &t.beta, o.y, y.device));
        std::vector<float> got = y.read();
        double worst = 0;
        for (size_t i = 0; i < got.size(); i++)
            worst = std::fmax(worst, std::fabs(got[i] - reference.y[i]));
        CHECK(math == CUDNN_FMA_MATH ? worst < 2e-5 : worst > 1e-4 && worst < 1e-2);
    }
}

void test_refused_convolutions()
{
    conv_case t = {SIM_F32, true, 2, 4, 6, 6, 8, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1, 1, 0};
    conv_objects o(t);
    array x(t.type, 2 * 4 * 36), w(t.type, 8 * 4 * 9), y(t.type, 2 * 8 * 36),
        workspace(SIM_F32, 1 << 16);
    const cudnnConvolutionFwdAlgo_t algo = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
    float one = 1, zero = 0, on_host[1000] = {};
    size_t needed = 0;
    CHECK(!cudnnGetConvolutionForwardWorkspaceSize(dnn, o.x, o.w, o.conv, o.y, algo, &needed) &&
          needed > 0);
    CHECK(cudnnGetConvolutionForwardWorkspaceSize(
              dnn, o.x, o.w, o.conv, o.y, CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED,
              &needed) == CUDNN_STATUS_NOT_SUPPORTED); // channels last
    auto run = [&](const void *x_given, cudnnTensorDescriptor_t y_desc, void *y_given, void *memory,
                   size_t bytes) {
        return cudnnConvolutionForward(dnn, &one, o.x, x_given, o.w, w.device, o.conv, algo, memory,
                                       bytes, &zero, y_desc, y_given);
    };
    CHECK(run(x.device, o.y, y.device, workspace.device, needed) == CUDNN_STATUS_SUCCESS);
    CHECK(run(x.device, o.y, y.device, workspace.device, needed - 1) == CUDNN_STATUS_BAD_PARAM);
    CHECK(run(x.device, o.y, y.device, (char *)workspace.device + 4, needed) ==
          CUDNN_STATUS_BAD_PARAM);
    CHECK(run(x.device, o.y, y.device, nullptr, needed) == CUDNN_STATUS_BAD_PARAM);
    CHECK(run(on_host, o.y, y.device, workspace.device, needed) == CUDNN_STATUS_BAD_PARAM);
    CHECK(run(x.device, o.y, (float *)y.device + 64, workspace.device, needed) ==
          CUDNN_STATUS_BAD_PARAM);
    CHECK(run(x.device, o.x, y.device, workspace.device, needed) ==
          CUDNN_STATUS_BAD_PARAM); // another shape
    char message[256];
    cudnnGetLastErrorString(message, sizeof message);
    CHECK(std::strstr(message, "shape") != nullptr);
    CHECK(!cudnnSetTensor4dDescriptor(o.y, CUDNN_TENSOR_NHWC, CUDNN_DATA_BFLOAT16, 2, 8, 6, 6));
    CHECK(run(x.device, o.y, y.device, workspace.device, needed) ==
          CUDNN_STATUS_BAD_PARAM); // another type
    CHECK(!cudnnSetTensor4dDescriptor(o.y, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 2, 8, 6, 6));
    CHECK(run(x.device, o.y, y.device, workspace.device, needed) ==
          CUDNN_STATUS_NOT_SUPPORTED); // another order
    cudnnTensorDescriptor_t unset;
    CHECK(!cudnnCreateTensorDescriptor(&unset));
    CHECK(run(x.device, unset, y.device, workspace.device, needed) == CUDNN_STATUS_BAD_PARAM);
    CHECK(!cudnnDestroyTensorDescriptor(unset));
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
}

// A second stream writes into the workspace while the first computes: the report is the proof.
[[maybe_unused]] void test_shared_workspace()
{
    conv_case t = {SIM_F32, true, 8, 32, 32, 32, 32, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1, 1, 0};
    conv_objects o(t);
    array x(t.type, 8 * 32 * 1024), w(t.type, 32 * 32 * 9), y(t.type, 8 * 32 * 1024),
        workspace(SIM_F32, 1 << 16);
    cudaStream_t other;
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) == cudaSuccess);
    bool found = false;
    for (int attempt = 0; attempt < 50 && !found; attempt++) { // the write has to fall into a run
        CHECK(!cudnnConvolutionForward(dnn, &t.alpha, o.x, x.device, o.w, w.device, o.conv,
                                       CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
                                       workspace.device, 1 << 18, &t.beta, o.y, y.device));
        while (cudaStreamQuery(stream) == cudaErrorNotReady)
            CHECK(cudaMemsetAsync(workspace.device, 0, 4096, other) == cudaSuccess &&
                  cudaStreamSynchronize(other) == cudaSuccess);
        found = reports().find("workspace was overwritten") != std::string::npos;
    }
    CHECK(found);
    CHECK(cudaStreamDestroy(other) == cudaSuccess);
}

} // namespace

int main(void)
{
    begin();
    CHECK(cudnnCreate(&dnn) == CUDNN_STATUS_SUCCESS);
    CHECK(cudnnSetStream(dnn, stream) == CUDNN_STATUS_SUCCESS);
    test_convolutions();
    test_fused_convolution();
    test_determinism();
    test_measuring();
    test_tf32_convolution();
    test_refused_convolutions();
    if (!WATCHED)
        test_shared_workspace();
    CHECK(cudnnDestroy(dnn) == CUDNN_STATUS_SUCCESS);
    return end();
}
