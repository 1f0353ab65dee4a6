/* device_impl.h - what a device backend fills in, and the parts of its objects that all share.
 *
 * A backend is one ddp_device_ops table; its objects embed the structs below as first members. The
 * public functions (device.c, plan.c) check arguments and dispatch; a slot may rely on those
 * checks. Every slot is filled, except for what says otherwise. */
#ifndef DDP_DEVICE_DEVICE_IMPL_H
#define DDP_DEVICE_DEVICE_IMPL_H

#include "ddp/op.h"

struct ddp_device {
    const ddp_device_ops *ops;
    ddp_device_opts opts;
};

struct ddp_stream {
    ddp_device *device;
};

struct ddp_event {
    ddp_device *device;
};

struct ddp_graph {
    ddp_device *device;
};

#define DDPI_LAYOUT_NAME_BYTES 32
struct ddp_layout {
    ddp_device *device;
    int refs; /* through __atomic builtins: plans of several threads may share a layout */
    ddp_shape shape;
    ddp_dtype dtype;
    size_t bytes;
    bool plain;
    char name[DDPI_LAYOUT_NAME_BYTES];
};

#define DDPI_IMPL_NAME_BYTES 64
struct ddp_op_plan {
    ddp_device *device;
    ddp_op_desc desc;
    ddp_layout *src, *dst, *weights; /* referenced; NULL where the operation has none */
    size_t workspace_bytes, scratch_bytes;
    char impl[DDPI_IMPL_NAME_BYTES];
};

/* Operations: layouts, plans and pointwise work. */
typedef struct ddpi_op_ops {
    ddp_status (*layout_plain)(ddp_device *device, const ddp_shape *shape, ddp_layout **layout_out);
    void (*layout_destroy)(ddp_layout *layout);
    bool (*layout_equal)(const ddp_layout *a, const ddp_layout *b);
    ddp_status (*layout_import)(ddp_device *device, const ddp_layout *layout, const float *plain,
                                void *dst);
    ddp_status (*layout_unpack)(const ddp_layout *layout, const void *copy, float *plain);
    ddp_status (*plan_create)(ddp_device *device, const ddp_op_desc *desc, ddp_layout *src,
                              ddp_layout *weights, ddp_op_plan **plan_out);
    void (*plan_destroy)(ddp_op_plan *plan);
    ddp_status (*plan_run)(ddp_op_plan *plan, ddp_op_pass pass, ddp_stream *stream,
                           const ddp_op_args *args);
    ddp_status (*sgd)(ddp_stream *stream, const ddp_sgd_args *args, float *w, const float *grad,
                      float *buf, size_t count, double *grad_sq);
    ddp_status (*adam)(ddp_stream *stream, ddp_adam_pass pass, const ddp_adam_args *args,
                       const ddp_adam_span *span, double *sums);
    ddp_status (*average)(ddp_stream *stream, float *dst, const float *src, double weight,
                          size_t count);
    ddp_status (*add)(ddp_stream *stream, float *dst, const float *src, size_t count);
    ddp_status (*accumulate)(ddp_stream *stream, const ddp_layout *layout, void *dst,
                             const void *src);
    ddp_status (*norm_running)(ddp_stream *stream, const ddp_norm_running_args *args);
    ddp_status (*to_bf16)(ddp_stream *stream, uint16_t *dst, const float *src, size_t count,
                          double scale);
    ddp_status (*from_bf16)(ddp_stream *stream, float *dst, const uint16_t *src, size_t count,
                            double scale);
    ddp_status (*to_f16)(ddp_stream *stream, uint16_t *dst, const float *src, size_t count,
                         double scale);
    ddp_status (*from_f16)(ddp_stream *stream, float *dst, const uint16_t *src, size_t count,
                           double scale);
    ddp_status (*sum_squares)(ddp_stream *stream, const float *src, size_t count, double scale,
                              double *sum_out);
    ddp_status (*label_rank)(ddp_stream *stream, const float *logits, const int32_t *labels,
                             int64_t n, int64_t classes, int32_t *rank_out);
} ddpi_op_ops;

/* Graphs, and the values that an operation in one reads anew at each launch. */
typedef struct ddpi_graph_ops {
    ddp_status (*begin)(ddp_stream *stream);
    ddp_status (*end)(ddp_stream *stream, ddp_graph **graph_out);
    ddp_status (*launch)(ddp_graph *graph, ddp_stream *stream);
    void (*destroy)(ddp_graph *graph);
    ddp_status (*stamp)(ddp_event *event, ddp_stream *stream);
    void (*sgd_live)(const ddp_sgd_args *args, void *live_out);
    void (*adam_live)(const ddp_adam_args *args, void *live_out);
} ddpi_graph_ops;

struct ddp_device_ops {
    const char *name;
    const ddpi_op_ops *op;
    const ddpi_graph_ops *graph; /* NULL: the device has no graphs */
    ddp_status (*open)(const ddp_device_opts *opts, ddp_device **device_out);
    void (*close)(ddp_device *device);
    const char *(*describe)(const ddp_device *device);
    bool (*is_host)(const ddp_device *device);
    bool (*computes)(const ddp_device *device, ddp_dtype dtype);
    ddp_status (*measure_peak)(ddp_device *device, double *flops_out);
    ddp_status (*alloc)(ddp_device *device, size_t bytes, void **memory_out);
    void (*free)(ddp_device *device, void *memory, size_t bytes);
    ddp_status (*host_alloc)(ddp_device *device, size_t bytes, void **memory_out);
    void (*host_free)(ddp_device *device, void *memory, size_t bytes);
    ddp_status (*copy)(ddp_stream *stream, void *dst, const void *src, size_t bytes,
                       ddp_copy_kind kind);
    ddp_status (*zero)(ddp_stream *stream, void *dst, size_t bytes);
    ddp_stream *(*main_stream)(ddp_device *device);
    ddp_status (*stream_create)(ddp_device *device, const char *name, ddp_stream **stream_out);
    void (*stream_destroy)(ddp_stream *stream);
    ddp_status (*stream_call)(ddp_stream *stream, void (*fn)(void *arg), void *arg);
    ddp_status (*stream_sync)(ddp_stream *stream);
    ddp_status (*stream_wait_event)(ddp_stream *stream, ddp_event *event);
    ddp_status (*event_create)(ddp_device *device, ddp_event **event_out);
    void (*event_destroy)(ddp_event *event);
    ddp_status (*event_record)(ddp_event *event, ddp_stream *stream);
    ddp_status (*event_query)(ddp_event *event, bool *done_out);
    ddp_status (*event_sync)(ddp_event *event, int64_t deadline_ns);
    ddp_status (*event_elapsed)(const ddp_event *from, const ddp_event *to, int64_t *ns_out);
};

#endif
