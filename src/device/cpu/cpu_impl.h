/* cpu_impl.h - what the files of the CPU device share: its objects, layouts, converters and plans.
 *
 * A layout is plain, one of oneDNN's, or blocks of 16 images ([n/16][c][h][w][16],
 * batch_kernels.h). A plan is made by one of the create functions below and run through its
 * ddpi_cpu_op. */
#ifndef DDP_DEVICE_CPU_CPU_IMPL_H
#define DDP_DEVICE_CPU_CPU_IMPL_H

#include "device/cpu/cpu_dnnl.h"
#include "device/device_impl.h"

/* Loops that the compiler shall vectorise for the processor at hand, whatever the build's target
 * is. Sanitized builds do without: their runtime is not up yet when the choice is made. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define DDPI_SIMD __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define DDPI_SIMD
#endif

typedef struct ddpi_cpu_stream ddpi_cpu_stream;

typedef struct ddpi_cpu_device {
    ddp_device base;
    ddpi_dnnl *dnnl;
    ddpi_cpu_stream *main;
    struct ddpi_conv_verdict *verdicts; /* cpu_conv_auto.c */
    char description[192];
} ddpi_cpu_device;

static inline ddpi_cpu_device *ddpi_cpu_of(ddp_device *device)
{
    return (ddpi_cpu_device *)device;
}

static inline int64_t ddpi_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t ddpi_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t ddpi_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* ---- threads (cpu_device.c) ---- */

/* Runs fn(arg, part) for all parts on up to `threads` threads; which thread gets which part does
 * not influence results. */
void ddpi_parallel(int threads, int64_t parts, void (*fn)(void *arg, int64_t part), void *arg);
/* The calling thread's operations use this many threads from now on. */
void ddpi_set_threads(int threads);

/* ---- streams and events (cpu_stream.c) ---- */

/* A piece of work with its arguments, which are copied. */
#define DDPI_TASK_BYTES 256
typedef ddp_status (*ddpi_task_fn)(const void *payload);
DDP_INNER ddp_status ddpi_cpu_submit(ddp_stream *stream, ddpi_task_fn fn, const void *payload,
                                     size_t payload_bytes);
/* name NULL: the main stream, which runs in its caller. */
DDP_INNER ddp_status ddpi_cpu_stream_create(ddp_device *device, const char *name,
                                            ddp_stream **stream_out);
void ddpi_cpu_stream_destroy(ddp_stream *stream);
DDP_INNER ddp_status ddpi_cpu_stream_call(ddp_stream *stream, void (*fn)(void *arg), void *arg);
DDP_INNER ddp_status ddpi_cpu_stream_sync(ddp_stream *stream);
DDP_INNER ddp_status ddpi_cpu_stream_wait_event(ddp_stream *stream, ddp_event *event);
DDP_INNER ddp_status ddpi_cpu_event_create(ddp_device *device, ddp_event **event_out);
void ddpi_cpu_event_destroy(ddp_event *event);
DDP_INNER ddp_status ddpi_cpu_event_record(ddp_event *event, ddp_stream *stream);
DDP_INNER ddp_status ddpi_cpu_event_query(ddp_event *event, bool *done_out);
DDP_INNER ddp_status ddpi_cpu_event_sync(ddp_event *event, int64_t deadline_ns);
DDP_INNER ddp_status ddpi_cpu_event_elapsed(const ddp_event *from, const ddp_event *to,
                                            int64_t *ns_out);

/* ---- layouts (cpu_layout.c) ---- */

typedef struct ddpi_cpu_layout {
    ddp_layout base;
    bool batch;  /* blocks of 16 images */
    ddpi_md *md; /* NULL if batch */
    /* The view [planes][h][w][inner] of 4-d data; inner is 0 where there is none. */
    int64_t planes, inner;
} ddpi_cpu_layout;

static inline const ddpi_cpu_layout *ddpi_cpu_layout_of(const ddp_layout *layout)
{
    return (const ddpi_cpu_layout *)layout;
}

/* Elements in memory, padding included. */
size_t ddpi_layout_elements(const ddp_layout *layout);
DDP_INNER ddp_status ddpi_layout_plain(ddp_device *device, const ddp_shape *shape,
                                       ddp_layout **layout_out);
/* Row-major, of any element type. */
DDP_INNER ddp_status ddpi_layout_rows(ddp_device *device, const ddp_shape *shape, ddp_dtype dtype,
                                      ddp_layout **layout_out);
DDP_INNER ddp_status ddpi_layout_batch(ddp_device *device, const ddp_shape *shape,
                                       ddp_layout **layout_out);
/* Takes over md, also on failure. */
DDP_INNER ddp_status ddpi_layout_of_md(ddp_device *device, const ddp_shape *shape, ddpi_md *md,
                                       ddp_layout **layout_out);
/* The same arrangement for another 4-d shape of as many channels and images; plain where the
 * arrangement is not [planes][h][w][inner]. */
DDP_INNER ddp_status ddpi_layout_like(const ddp_layout *layout, const ddp_shape *shape,
                                      ddp_layout **layout_out);
/* The same arrangement for elements of another type; row-major where that cannot be. */
DDP_INNER ddp_status ddpi_layout_retype(ddp_layout *layout, ddp_dtype dtype,
                                        ddp_layout **layout_out);
void ddpi_layout_destroy(ddp_layout *layout);
bool ddpi_layout_equal(const ddp_layout *a, const ddp_layout *b);
DDP_INNER ddp_status ddpi_layout_import(ddp_device *device, const ddp_layout *layout,
                                        const float *plain, void *dst);
DDP_INNER ddp_status ddpi_layout_unpack(const ddp_layout *layout, const void *copy, float *plain);

/* ---- copies between layouts (cpu_convert.c) ---- */

typedef enum ddpi_step_kind {
    DDPI_STEP_COPY,
    DDPI_STEP_REORDER, /* between layouts of oneDNN */
    DDPI_STEP_PACK,    /* plain to blocks of images */
    DDPI_STEP_UNPACK,
    DDPI_STEP_WIDEN, /* bf16 to f32 in the same places */
    DDPI_STEP_NARROW
} ddpi_step_kind;

typedef struct ddpi_step {
    ddpi_step_kind kind;
    ddp_layout *to;  /* referenced */
    ddpi_prim *prim; /* of a reorder */
    size_t offset;   /* of the result in scratch memory; the last step's is the caller's */
} ddpi_step;

/* Copies a tensor from one layout to another. */
#define DDPI_MAX_STEPS 4
typedef struct ddpi_converter {
    ddp_layout *from; /* referenced */
    ddpi_step steps[DDPI_MAX_STEPS];
    int step_count;
    size_t library; /* the reorders' own scratch memory */
    size_t scratch_bytes;
} ddpi_converter;

DDP_INNER ddp_status ddpi_converter_create(ddp_layout *from, ddp_layout *to,
                                           ddpi_converter **converter_out);
void ddpi_converter_destroy(ddpi_converter *converter);
DDP_INNER ddp_status ddpi_converter_run(const ddpi_converter *converter, const void *src, void *dst,
                                        void *scratch);

/* An operand that a kernel wants in another layout than its user has: converted in scratch memory
 * where the two differ, used in place where they don't. */
typedef struct ddpi_operand {
    ddpi_converter *in, *out; /* user to kernel, kernel to user; NULL: in place */
    size_t offset;            /* of the kernel's copy in scratch memory */
} ddpi_operand;

/* Where scratch memory is dealt out. */
size_t ddpi_take(size_t *bytes, size_t want);
/* Prepares an operand; *bytes grows by its copy. */
DDP_INNER ddp_status ddpi_operand_create(ddp_layout *user, ddp_layout *kernel, bool writes,
                                         size_t *bytes, ddpi_operand *operand_out);
void ddpi_operand_destroy(ddpi_operand *operand);
size_t ddpi_operand_scratch_bytes(const ddpi_operand *operand);
/* Room for the converters of operands that are not converted at the same time. */
size_t ddpi_take_converter(size_t *bytes, const ddpi_operand *a, const ddpi_operand *b);
/* Kernel-side pointer; a read operand is converted. */
DDP_INNER ddp_status ddpi_operand_begin(const ddpi_operand *operand, const void *user,
                                        char *scratch, char *converter_scratch, void **kernel_out);
/* Converts a written operand back. */
DDP_INNER ddp_status ddpi_operand_end(const ddpi_operand *operand, void *user, char *scratch,
                                      char *converter_scratch);

/* ---- plans ---- */

typedef struct ddpi_cpu_plan ddpi_cpu_plan;

typedef struct ddpi_cpu_op {
    ddp_status (*run)(ddpi_cpu_plan *plan, ddp_op_pass pass, const ddp_op_args *args);
    void (*destroy)(ddpi_cpu_plan *plan); /* what the kind owns; base and memory are freed after */
} ddpi_cpu_op;

/* A plan's creator fills in base.dst, base.weights (references it hands over), sizes and name; on
 * failure what it has set so far is released by the caller through destroy. */
struct ddpi_cpu_plan {
    ddp_op_plan base;
    const ddpi_cpu_op *op;
    /* The gradient that this backward's weights pass has masked for a fused relu already. */
    const void *masked;
};

/* What a plan is made from. */
typedef struct ddpi_plan_parts {
    ddp_device *device;
    const ddp_op_desc *desc;
    ddp_layout *src, *weights; /* weights may be NULL */
    unsigned winograd;         /* bit p: pass p of a direct convolution shall be one if it can */
    ddp_shape dst_shape, weight_shape;
} ddpi_plan_parts;

/* Allocates a plan of a kind's own struct and sets what all have. */
DDP_INNER ddp_status ddpi_plan_alloc(const ddpi_plan_parts *parts, const ddpi_cpu_op *op,
                                     size_t struct_bytes, ddpi_cpu_plan **plan_out);
void ddpi_plan_free(ddpi_cpu_plan *plan);
ddp_status ddpi_plan_create(ddp_device *device, const ddp_op_desc *desc, ddp_layout *src,
                            ddp_layout *weights, ddp_op_plan **plan_out);
void ddpi_plan_destroy(ddp_op_plan *plan);
ddp_status ddpi_plan_run(ddp_op_plan *plan, ddp_op_pass pass, ddp_stream *stream,
                         const ddp_op_args *args);

/* The operands of a kernel that reads its source, and writes the source's gradient, row by row. */
DDP_INNER ddp_status ddpi_source_operands(const ddpi_plan_parts *parts, ddp_dtype dtype,
                                          size_t *bytes, ddpi_operand *src, ddpi_operand *diff_src);

typedef ddp_status (*ddpi_plan_creator)(const ddpi_plan_parts *parts, ddpi_cpu_plan **plan_out);
DDP_INNER ddp_status ddpi_conv_direct_create(const ddpi_plan_parts *parts,
                                             ddpi_cpu_plan **plan_out);
bool ddpi_conv_direct_is_winograd(const ddpi_cpu_plan *plan, ddp_op_pass pass);
DDP_INNER ddp_status ddpi_conv_gemm_create(const ddpi_plan_parts *parts, ddpi_cpu_plan **plan_out);
DDP_INNER ddp_status ddpi_conv_batch_create(const ddpi_plan_parts *parts, ddpi_cpu_plan **plan_out);
/* Whether blocks of images are possible and not mostly empty. */
bool ddpi_conv_batch_fits(const ddpi_plan_parts *parts);
/* Frees what the device has learnt about convolutions. */
void ddpi_conv_forget(ddp_device *device);
DDP_INNER ddp_status ddpi_conv_create(const ddpi_plan_parts *parts, ddpi_cpu_plan **plan_out);
/* DDP_ERR_UNSUPPORTED where the library has no bf16. */
DDP_INNER ddp_status ddpi_linear_bf16_create(const ddpi_plan_parts *parts,
                                             ddpi_cpu_plan **plan_out);
DDP_INNER ddp_status ddpi_linear_create(const ddpi_plan_parts *parts, ddpi_cpu_plan **plan_out);
DDP_INNER ddp_status ddpi_pool_create(const ddpi_plan_parts *parts, ddpi_cpu_plan **plan_out);
DDP_INNER ddp_status ddpi_relu_create(const ddpi_plan_parts *parts, ddpi_cpu_plan **plan_out);
DDP_INNER ddp_status ddpi_reshape_create(const ddpi_plan_parts *parts, ddpi_cpu_plan **plan_out);
DDP_INNER ddp_status ddpi_softmax_create(const ddpi_plan_parts *parts, ddpi_cpu_plan **plan_out);
DDP_INNER ddp_status ddpi_norm_create(const ddpi_plan_parts *parts, ddpi_cpu_plan **plan_out);
DDP_INNER ddp_status ddpi_add_create(const ddpi_plan_parts *parts, ddpi_cpu_plan **plan_out);
DDP_INNER ddp_status ddpi_dropout_create(const ddpi_plan_parts *parts, ddpi_cpu_plan **plan_out);
DDP_INNER ddp_status ddpi_global_pool_create(const ddpi_plan_parts *parts,
                                             ddpi_cpu_plan **plan_out);

/* ---- sources of kernels that want one layout (cpu_add.c) ---- */

/* The source and its gradient, for a kernel that wants them in the layout `kernel`. */
typedef struct ddpi_source {
    ddpi_operand src, diff_src;
    size_t converter; /* their scratch memory */
} ddpi_source;

DDP_INNER ddp_status ddpi_source_create(const ddpi_plan_parts *parts, ddp_layout *kernel,
                                        size_t *bytes, ddpi_source *source_out);
void ddpi_source_destroy(ddpi_source *source);
DDP_INNER ddp_status ddpi_source_begin(const ddpi_source *source, const ddp_op_args *args,
                                       const void **src_out);
/* What end() makes args->diff_src of. */
DDP_INNER ddp_status ddpi_source_begin_gradient(const ddpi_source *source, const ddp_op_args *args,
                                                void **diff_src_out);
DDP_INNER ddp_status ddpi_source_end_gradient(const ddpi_source *source, const ddp_op_args *args);

/* A second source, for a kernel that wants it as its dst lies. */
typedef struct ddpi_second {
    ddpi_operand in;
    ddpi_converter *out; /* of its gradient, for training */
    size_t converter;    /* their scratch memory */
} ddpi_second;

DDP_INNER ddp_status ddpi_second_create(const ddpi_plan_parts *parts, ddp_layout *kernel,
                                        size_t *bytes, ddpi_second *second_out);
void ddpi_second_destroy(ddpi_second *second);
DDP_INNER ddp_status ddpi_second_begin(const ddpi_second *second, const ddp_op_args *args,
                                       const void **src2_out);
/* Copies diff_dst to diff_src2 if the caller wants it there. */
DDP_INNER ddp_status ddpi_second_gradient(const ddpi_second *second, const ddp_op_args *args);

/* Bf16 arithmetic as an f32 plan of create between conversions. */
DDP_INNER ddp_status ddpi_widened_create(const ddpi_plan_parts *parts, ddpi_plan_creator create,
                                         ddpi_cpu_plan **plan_out);

/* ---- pointwise (cpu_pointwise.c) ---- */

/* diff[i] = 0 where value[i] <= 0. */
void ddpi_relu_mask(int threads, float *diff, const float *value, size_t count);
ddp_status ddpi_cpu_add(ddp_stream *stream, float *dst, const float *src, size_t count);
ddp_status ddpi_cpu_accumulate(ddp_stream *stream, const ddp_layout *layout, void *dst,
                               const void *src);
ddp_status ddpi_cpu_norm_running(ddp_stream *stream, const ddp_norm_running_args *args);
ddp_status ddpi_cpu_to_bf16(ddp_stream *stream, uint16_t *dst, const float *src, size_t count,
                            double scale);
ddp_status ddpi_cpu_from_bf16(ddp_stream *stream, float *dst, const uint16_t *src, size_t count,
                              double scale);
ddp_status ddpi_cpu_to_f16(ddp_stream *stream, uint16_t *dst, const float *src, size_t count,
                           double scale);
ddp_status ddpi_cpu_from_f16(ddp_stream *stream, float *dst, const uint16_t *src, size_t count,
                             double scale);
ddp_status ddpi_cpu_label_rank(ddp_stream *stream, const float *logits, const int32_t *labels,
                               int64_t n, int64_t classes, int32_t *rank_out);

/* ---- optimizers (cpu_optim.c) ---- */

ddp_status ddpi_cpu_sgd(ddp_stream *stream, const ddp_sgd_args *args, float *w, const float *grad,
                        float *buf, size_t count, double *grad_sq);
ddp_status ddpi_cpu_adam(ddp_stream *stream, ddp_adam_pass pass, const ddp_adam_args *args,
                         const ddp_adam_span *span, double *sums);
ddp_status ddpi_cpu_average(ddp_stream *stream, float *dst, const float *src, double weight,
                            size_t count);
ddp_status ddpi_cpu_sum_squares(ddp_stream *stream, const float *src, size_t count, double scale,
                                double *sum_out);

#endif
