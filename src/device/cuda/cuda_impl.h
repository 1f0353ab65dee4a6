/* cuda_impl.h - the objects of the CUDA device, and what its files share.
 *
 * Activations of four dimensions lie as NHWC, their type is f32, bf16 or f16;
 * weights of convolutions
 * lie as OHWI by the same rule; everything else lies row by row. The model's input comes as plain
 * NCHW, which a convolution converts into its scratch first.
 *
 * Plans are tables of two functions; what a plan runs is enqueued on the given stream and neither
 * allocates nor waits. The library handles and a plan are used by one thread at a time, which is
 * the one that drives the main stream; copies, events and streams may be used by others. */
#ifndef DDP_DEVICE_CUDA_CUDA_IMPL_H
#define DDP_DEVICE_CUDA_CUDA_IMPL_H

#include <cublasLt.h>
#include <cudnn.h>

#include "device/cuda/cuda_native.h"
#include "device/device_impl.h"

/* ---- errors ---- */

DDP_INNER ddp_status ddpi_cudnn_check(cudnnStatus_t error, const char *call, const char *file,
                                      int line);
DDP_INNER ddp_status ddpi_cublas_check(cublasStatus_t error, const char *call, const char *file,
                                       int line);

#define DDPI_CUDNN_CHECK(call)  ddpi_cudnn_check((call), #call, __FILE__, __LINE__)
#define DDPI_CUDNN_TRY(call)    DDP_TRY(DDPI_CUDNN_CHECK(call))
#define DDPI_CUBLAS_CHECK(call) ddpi_cublas_check((call), #call, __FILE__, __LINE__)
#define DDPI_CUBLAS_TRY(call)   DDP_TRY(DDPI_CUBLAS_CHECK(call))

/* ---- device ---- */

/* Room for the partial results of sums in two stages: 4 values each of up to 2048 blocks. */
enum { DDPI_CUDA_SUM_BYTES = 4 * 2048 * 8 };

typedef struct ddpi_cuda_stream_obj {
    ddp_stream base;
    cudaStream_t handle;
    double *sums; /* DDPI_CUDA_SUM_BYTES of device memory; of whatever the stream runs now */
} ddpi_cuda_stream_obj;

typedef struct ddpi_cuda_device {
    ddp_device base;
    int index, sm_count;
    ddpi_cuda_stream_obj *main;
    cudnnHandle_t cudnn;
    cudaStream_t cudnn_stream; /* that the handle is set to */
    cublasLtHandle_t cublas;
    char description[256];
} ddpi_cuda_device;

static inline ddpi_cuda_device *ddpi_cuda_of(ddp_device *device)
{
    return (ddpi_cuda_device *)device;
}

static inline double *ddpi_cuda_sums(ddp_stream *stream)
{
    return ((ddpi_cuda_stream_obj *)stream)->sums;
}

/* The device's cuDNN handle, set to that stream. */
DDP_INNER ddp_status ddpi_cuda_cudnn(ddp_stream *stream, cudnnHandle_t *handle_out);

/* The device's table (cuda_table.c). */
extern const ddp_device_ops ddpi_device_cuda;

/* cuda_device.c, cuda_stream.c: the slots of that name. */
DDP_INNER ddp_status ddpi_cuda_open(const ddp_device_opts *opts, ddp_device **device_out);
void ddpi_cuda_close(ddp_device *device);
const char *ddpi_cuda_describe(const ddp_device *device);
bool ddpi_cuda_computes(const ddp_device *device, ddp_dtype dtype);
bool ddpi_cuda_is_host(const ddp_device *device);
DDP_INNER ddp_status ddpi_cuda_measure_peak(ddp_device *device, double *flops_out);
DDP_INNER ddp_status ddpi_cuda_alloc(ddp_device *device, size_t bytes, void **memory_out);
void ddpi_cuda_free(ddp_device *device, void *memory, size_t bytes);
DDP_INNER ddp_status ddpi_cuda_host_alloc(ddp_device *device, size_t bytes, void **memory_out);
void ddpi_cuda_host_free(ddp_device *device, void *memory, size_t bytes);
DDP_INNER ddp_status ddpi_cuda_copy(ddp_stream *stream, void *dst, const void *src, size_t bytes,
                                    ddp_copy_kind kind);
DDP_INNER ddp_status ddpi_cuda_zero(ddp_stream *stream, void *dst, size_t bytes);
ddp_stream *ddpi_cuda_main_stream(ddp_device *device);
DDP_INNER ddp_status ddpi_cuda_stream_create(ddp_device *device, const char *name,
                                             ddp_stream **stream_out);
void ddpi_cuda_stream_destroy(ddp_stream *stream);
DDP_INNER ddp_status ddpi_cuda_stream_call(ddp_stream *stream, void (*fn)(void *arg), void *arg);
DDP_INNER ddp_status ddpi_cuda_stream_sync(ddp_stream *stream);
DDP_INNER ddp_status ddpi_cuda_stream_wait_event(ddp_stream *stream, ddp_event *event);
DDP_INNER ddp_status ddpi_cuda_event_create(ddp_device *device, ddp_event **event_out);
void ddpi_cuda_event_destroy(ddp_event *event);
DDP_INNER ddp_status ddpi_cuda_event_record(ddp_event *event, ddp_stream *stream);
DDP_INNER ddp_status ddpi_cuda_event_query(ddp_event *event, bool *done_out);
DDP_INNER ddp_status ddpi_cuda_event_sync(ddp_event *event, int64_t deadline_ns);
DDP_INNER ddp_status ddpi_cuda_event_elapsed(const ddp_event *from, const ddp_event *to,
                                             int64_t *ns_out);

/* cuda_graph.c: the slots of that name. */
DDP_INNER ddp_status ddpi_cuda_graph_begin(ddp_stream *stream);
DDP_INNER ddp_status ddpi_cuda_graph_end(ddp_stream *stream, ddp_graph **graph_out);
DDP_INNER ddp_status ddpi_cuda_graph_launch(ddp_graph *graph, ddp_stream *stream);
void ddpi_cuda_graph_destroy(ddp_graph *graph);
DDP_INNER ddp_status ddpi_cuda_event_stamp(ddp_event *event, ddp_stream *stream);

/* cuda_module.c: as the module's table says. */
DDP_INNER ddp_status ddpi_cuda_probe(int *count_out);

/* ---- layouts (cuda_layout.c) ---- */

/* nhwc: channels last, for four dimensions; where that is the order of rows anyway (one channel, or
 * one pixel) the layout is the same as without. */
DDP_INNER ddp_status ddpi_cuda_layout_create(ddp_device *device, const ddp_shape *shape, bool nhwc,
                                             ddp_dtype dtype, ddp_layout **layout_out);
/* Behind the names of layouts and implementations: ":bf16", ":f16"; "" for f32. */
const char *ddpi_cuda_type_mark(ddp_dtype dtype);
/* Whether the elements of a 4-d tensor lie channels last: by layout, or because it is the same. */
bool ddpi_cuda_is_nhwc(const ddp_layout *layout);
/* Whether they lie row by row: by layout, or because it is the same. */
bool ddpi_cuda_is_rows(const ddp_layout *layout);

DDP_INNER ddp_status ddpi_cuda_layout_plain(ddp_device *device, const ddp_shape *shape,
                                            ddp_layout **layout_out);
void ddpi_cuda_layout_destroy(ddp_layout *layout);
bool ddpi_cuda_layout_equal(const ddp_layout *a, const ddp_layout *b);
DDP_INNER ddp_status ddpi_cuda_layout_import(ddp_device *device, const ddp_layout *layout,
                                             const float *plain, void *dst);
DDP_INNER ddp_status ddpi_cuda_layout_unpack(const ddp_layout *layout, const void *copy,
                                             float *plain);

/* ---- conversions between layouts (cuda_convert.c) ---- */

typedef struct ddpi_cuda_form {
    bool nhwc;
    ddp_dtype dtype;
} ddpi_cuda_form;

typedef struct ddpi_cuda_conversion {
    int64_t n, channels, pixels;
    ddpi_cuda_form from, to;
    bool same; /* nothing changes */
} ddpi_cuda_conversion;

/* From a layout to that order and type; and back. nhwc is for four dimensions. */
ddpi_cuda_conversion ddpi_cuda_conversion_of(const ddp_layout *from, bool nhwc, ddp_dtype dtype);
ddpi_cuda_conversion ddpi_cuda_reversed(const ddpi_cuda_conversion *conversion);
/* Bytes of the result. */
size_t ddpi_cuda_converted_bytes(const ddpi_cuda_conversion *conversion);
/* Scratch memory that the conversion itself needs; the same for the reversed one. */
size_t ddpi_cuda_conversion_bytes(const ddpi_cuda_conversion *conversion);
/* Enqueues it; copies where nothing changes. */
DDP_INNER ddp_status ddpi_cuda_convert(const ddpi_cuda_conversion *conversion, ddp_stream *stream,
                                       const void *src, void *dst, void *scratch);

/* ---- matrix products (cuda_matmul.c) ---- */

/* d = op(a) * op(b) [+ bias] [relu], columns first as BLAS has them: d is m x n, op(a) m x k. */
typedef struct ddpi_cuda_matmul_desc {
    int64_t m, n, k;
    bool trans_a, trans_b, bias, relu;
    ddp_dtype from, to; /* of a and b; of d and the bias (one value for each of the m rows) */
} ddpi_cuda_matmul_desc;

typedef struct ddpi_cuda_matmul {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
    size_t workspace_bytes;
    bool bias;
} ddpi_cuda_matmul;

typedef struct ddpi_cuda_matmul_args {
    const void *a, *b, *bias;
    void *d, *workspace; /* workspace: of workspace_bytes, aligned to 256 */
} ddpi_cuda_matmul_args;

/* Chooses the implementation. The caller owns what matmul holds, also after a failure. */
DDP_INNER ddp_status ddpi_cuda_matmul_create(ddpi_cuda_device *device,
                                             const ddpi_cuda_matmul_desc *desc,
                                             ddpi_cuda_matmul *matmul);
void ddpi_cuda_matmul_destroy(ddpi_cuda_matmul *matmul);
DDP_INNER ddp_status ddpi_cuda_matmul_run(const ddpi_cuda_matmul *matmul, ddp_stream *stream,
                                          const ddpi_cuda_matmul_args *args);

/* ---- plans (cuda_plan.c) ---- */

/* Most that a library may ask for as workspace. */
#define DDPI_CUDA_WORKSPACE_LIMIT ((size_t)256 << 20)

typedef struct ddpi_cuda_plan ddpi_cuda_plan;

typedef struct ddpi_cuda_plan_ops {
    ddp_status (*run)(ddpi_cuda_plan *plan, ddp_op_pass pass, ddp_stream *stream,
                      const ddp_op_args *args);
    void (*destroy)(ddpi_cuda_plan *plan); /* what the kind's own fields hold; NULL: nothing */
} ddpi_cuda_plan_ops;

/* First member of every kind's plan. */
struct ddpi_cuda_plan {
    ddp_op_plan base;
    const ddpi_cuda_plan_ops *ops;
};

/* Zeroed memory of struct_bytes with base filled in: device, desc, references to src and src2, and
 * ops. dst and weights, sizes and name are the kind's to set. */
DDP_INNER ddp_status ddpi_cuda_plan_alloc(ddpi_cuda_device *device, const ddp_op_desc *desc,
                                          ddp_layout *src, const ddpi_cuda_plan_ops *ops,
                                          size_t struct_bytes, ddpi_cuda_plan **plan_out);
/* For a kind whose creation fails half-way, too. */
void ddpi_cuda_plan_free(ddpi_cuda_plan *plan);

/* The beginning of a backward pass of dst = [relu](product + bias): sets diff_dst to 0 in place
 * where value (dst, if it is a relu's result) is not greater than 0, and sums it up. value and
 * diff_bias may be NULL; partials: ddpi_k_bias_grad_bytes(), for diff_bias only. */
typedef struct ddpi_cuda_gradient {
    void *diff_dst;
    const void *value;
    float *diff_bias;
    void *partials;
    int64_t rows, channels;
    ddp_dtype dtype;
} ddpi_cuda_gradient;
DDP_INNER ddp_status ddpi_cuda_start_gradient(const ddpi_cuda_gradient *gradient,
                                              ddp_stream *stream);

/* A part of a plan's scratch memory: its offset; *bytes grows by its size, rounded up. Offsets are
 * of ddpi_cuda_scratch(), which begins on the border that cuBLASLt asks of a workspace; what the
 * caller gives need not, and *bytes, if anything was taken, has room for that. */
size_t ddpi_cuda_take(size_t *bytes, size_t size);
char *ddpi_cuda_scratch(const ddp_op_args *args);
/* Elements of a tensor. */
int64_t ddpi_cuda_count(const ddp_layout *layout);

/* The slots of that name. */
DDP_INNER ddp_status ddpi_cuda_plan_create(ddp_device *device, const ddp_op_desc *desc,
                                           ddp_layout *src, ddp_layout *weights,
                                           ddp_op_plan **plan_out);
void ddpi_cuda_plan_destroy(ddp_op_plan *plan);
DDP_INNER ddp_status ddpi_cuda_plan_run(ddp_op_plan *plan, ddp_op_pass pass, ddp_stream *stream,
                                        const ddp_op_args *args);

/* One per kind. src's shape has been inferred without an error; weights: NULL, or a layout of the
 * right shape. */
typedef ddp_status (*ddpi_cuda_plan_fn)(ddpi_cuda_device *device, const ddp_op_desc *desc,
                                        ddp_layout *src, ddp_layout *weights,
                                        ddp_op_plan **plan_out);
#define DDPI_CUDA_PLAN(kind)                                                                       \
    DDP_INNER ddp_status ddpi_cuda_##kind##_plan(ddpi_cuda_device *device,                         \
                                                 const ddp_op_desc *desc, ddp_layout *src,         \
                                                 ddp_layout *weights, ddp_op_plan **plan_out)
DDPI_CUDA_PLAN(conv);
DDPI_CUDA_PLAN(linear);
DDPI_CUDA_PLAN(relu);
DDPI_CUDA_PLAN(pool);
DDPI_CUDA_PLAN(reshape);
DDPI_CUDA_PLAN(softmax);
DDPI_CUDA_PLAN(norm);
DDPI_CUDA_PLAN(add);
DDPI_CUDA_PLAN(dropout);

/* ---- pointwise work (cuda_pointwise.c): the slots of that name ---- */

DDP_INNER ddp_status ddpi_cuda_sgd(ddp_stream *stream, const ddp_sgd_args *args, float *w,
                                   const float *grad, float *buf, size_t count, double *grad_sq);
DDP_INNER ddp_status ddpi_cuda_adam(ddp_stream *stream, ddp_adam_pass pass,
                                    const ddp_adam_args *args, const ddp_adam_span *span,
                                    double *sums);
void ddpi_cuda_sgd_live(const ddp_sgd_args *args, void *live_out);
void ddpi_cuda_adam_live(const ddp_adam_args *args, void *live_out);
DDP_INNER ddp_status ddpi_cuda_average(ddp_stream *stream, float *dst, const float *src,
                                       double weight, size_t count);
DDP_INNER ddp_status ddpi_cuda_add(ddp_stream *stream, float *dst, const float *src, size_t count);
DDP_INNER ddp_status ddpi_cuda_accumulate(ddp_stream *stream, const ddp_layout *layout, void *dst,
                                          const void *src);
DDP_INNER ddp_status ddpi_cuda_norm_running(ddp_stream *stream, const ddp_norm_running_args *args);
DDP_INNER ddp_status ddpi_cuda_to_bf16(ddp_stream *stream, uint16_t *dst, const float *src,
                                       size_t count, double scale);
DDP_INNER ddp_status ddpi_cuda_from_bf16(ddp_stream *stream, float *dst, const uint16_t *src,
                                         size_t count, double scale);
DDP_INNER ddp_status ddpi_cuda_to_f16(ddp_stream *stream, uint16_t *dst, const float *src,
                                      size_t count, double scale);
DDP_INNER ddp_status ddpi_cuda_from_f16(ddp_stream *stream, float *dst, const uint16_t *src,
                                        size_t count, double scale);
DDP_INNER ddp_status ddpi_cuda_sum_squares(ddp_stream *stream, const float *src, size_t count,
                                           double scale, double *sum_out);
DDP_INNER ddp_status ddpi_cuda_label_rank(ddp_stream *stream, const float *logits,
                                          const int32_t *labels, int64_t n, int64_t classes,
                                          int32_t *rank_out);

#endif
