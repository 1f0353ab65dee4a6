/* cuda_conv.h - a convolution's plan, between its passes (cuda_conv.c) and the choice of its
 * algorithms (cuda_conv_choose.c). */
#ifndef DDP_DEVICE_CUDA_CUDA_CONV_H
#define DDP_DEVICE_CUDA_CUDA_CONV_H

#include "device/cuda/cuda_impl.h"

enum { DDPI_CONV_FORWARD, DDPI_CONV_DATA, DDPI_CONV_WEIGHTS, DDPI_CONV_PASSES };

typedef struct ddpi_cuda_conv {
    ddpi_cuda_plan base;
    cudnnTensorDescriptor_t src, dst, bias;
    cudnnFilterDescriptor_t weights;
    cudnnActivationDescriptor_t activation;
    /* One for each pass: the kind of arithmetic is part of it. */
    cudnnConvolutionDescriptor_t conv[DDPI_CONV_PASSES];
    int algo[DDPI_CONV_PASSES]; /* numbers of cudnnConvolution{Fwd,BwdData,BwdFilter}Algo_t */
    size_t work_bytes[DDPI_CONV_PASSES];
    bool has_bias, relu, fused;
    ddp_dtype dtype; /* of what is multiplied, and of dst */
    ddpi_cuda_conversion from_src, to_diff_src;
    int64_t rows, channels, weight_count;   /* rows and channels of dst */
    size_t convert_at, weights_at, work_at; /* in scratch; the converted source is at 0 */
    const void *masked;                     /* diff_dst that has been masked */
} ddpi_cuda_conv;

/* Sets algo and work_bytes, and the arithmetic of conv, for the passes that will be run. Collective
 * over the ranks that share the choice if the device's options ask for measuring. */
DDP_INNER ddp_status ddpi_cuda_conv_choose(ddpi_cuda_device *device, ddpi_cuda_conv *plan);

#endif
