/* device.h - memory, streams and events of one compute device.
 *
 * A backend is a table (src/device/device_impl.h); these functions check their arguments and
 * dispatch. The CPU device's memory is the host's, and its main stream runs its work inline, in the
 * calling thread; with other devices only copies bring memory to the host, and what a stream was
 * given is done once the stream, or an event behind it, says so. Events work across threads. One
 * rank owns a device object; streams are used by one thread at a time. */
#ifndef DDP_DEVICE_H
#define DDP_DEVICE_H

#include "ddp/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ddp_device ddp_device;
typedef struct ddp_stream ddp_stream;
typedef struct ddp_event ddp_event;
typedef struct ddp_graph ddp_graph;
typedef struct ddp_device_ops ddp_device_ops; /* a backend, e.g. ddp_device_cpu() */

typedef enum ddp_conv_algo {
    DDP_CONV_AUTO,
    DDP_CONV_DIRECT,
    DDP_CONV_GEMM,
    DDP_CONV_WINOGRAD, /* where it can be used, else direct; opening fails without the library's */
    DDP_CONV_BATCH,    /* blocks of 16 images where they can be used, else gemm */
    DDP_CONV_ALGO_COUNT
} ddp_conv_algo;

/* Where candidates are timed, rank 0's verdict must be everybody's: the device calls this with the
 * index it would choose (and the number of candidates) and takes the index it gets back. */
typedef int (*ddp_choose_fn)(void *arg, int mine, int count);

typedef struct ddp_device_opts {
    int threads; /* per operation; at least 1 */
    ddp_conv_algo conv_algo;
    ddp_choose_fn choose; /* NULL: keep one's own choice */
    void *choose_arg;
    bool emulate_bf16;  /* allow bf16 plans on a device without bf16 arithmetic, slowly */
    int index;          /* which of several devices; -1: the backend's choice */
    bool tf32;          /* f32 products may round their operands to tf32 */
    bool deterministic; /* only implementations that give the same bits each time */
    bool tune;          /* time the candidates for an operation instead of asking the library */
} ddp_device_opts;

#define DDP_DEVICE_OPTS_DEFAULTS                                                                   \
    {                                                                                              \
        1, DDP_CONV_AUTO, NULL, NULL, false, -1, false, false, false                               \
    }

/* The CPU backend, over oneDNN. */
DDP_API const ddp_device_ops *ddp_device_cpu(void);

/* Local. The caller owns *device_out; plans, layouts, streams and events die before it. Sets the
 * number of threads of the calling thread's operations, so the rank's compute thread calls it. */
DDP_CALL ddp_status ddp_device_open(const ddp_device_ops *ops, const ddp_device_opts *opts,
                                    ddp_device **device_out);
DDP_API void ddp_device_close(ddp_device *device);
DDP_API const char *ddp_device_name(const ddp_device *device);
/* For people and environment.json: processor, library and instruction set; owned by the device. */
DDP_API const char *ddp_device_describe(const ddp_device *device);
/* Device memory is ordinary host memory, and the main stream runs inline. */
DDP_API bool ddp_device_is_host(const ddp_device *device);
/* Whether it computes in DDP_F32, DDP_BF16 or DDP_F16 by itself (a CPU: bf16 with AVX512-BF16 or
 * AMX, f16 never). */
DDP_API bool ddp_device_computes(const ddp_device *device, ddp_dtype dtype);
/* Local. Measures the rate of large f32 matrix products on this device, in floating-point
 * operations a second; takes about 10 ms. */
DDP_CALL ddp_status ddp_device_measure_peak(ddp_device *device, double *flops_out);

/* Device memory, zeroed, aligned to DDP_ALIGN_BYTES, for large buffers (huge pages, touched). */
DDP_CALL ddp_status ddp_device_alloc(ddp_device *device, size_t bytes, void **memory_out);
DDP_API void ddp_device_free(ddp_device *device, void *memory, size_t bytes);
/* Host memory that the device can copy from and to asynchronously. */
DDP_CALL ddp_status ddp_device_host_alloc(ddp_device *device, size_t bytes, void **memory_out);
DDP_API void ddp_device_host_free(ddp_device *device, void *memory, size_t bytes);

typedef enum ddp_copy_kind {
    DDP_COPY_TO_DEVICE,
    DDP_COPY_TO_HOST,
    DDP_COPY_ON_DEVICE
} ddp_copy_kind;
/* TO_HOST into other memory than host_alloc's may block; in any case the host reads the copy only
 * after a sync. */
DDP_CALL ddp_status ddp_device_copy(ddp_device *device, ddp_stream *stream, void *dst,
                                    const void *src, size_t bytes, ddp_copy_kind kind);
DDP_CALL ddp_status ddp_device_zero(ddp_device *device, ddp_stream *stream, void *dst,
                                    size_t bytes);

/* The stream that computes; borrowed, lives as long as the device. */
DDP_API ddp_stream *ddp_device_main_stream(ddp_device *device);
/* Another stream: work given to it runs in order, at the same time as the main stream's. */
DDP_CALL ddp_status ddp_stream_create(ddp_device *device, const char *name,
                                      ddp_stream **stream_out);
DDP_API void ddp_stream_destroy(ddp_stream *stream);
/* Runs fn(arg) on the stream, after what was given to it before. */
DDP_CALL ddp_status ddp_stream_call(ddp_stream *stream, void (*fn)(void *arg), void *arg);
/* Blocks the caller until everything given to the stream so far is done. */
DDP_CALL ddp_status ddp_stream_sync(ddp_stream *stream);

DDP_CALL ddp_status ddp_event_create(ddp_device *device, ddp_event **event_out);
DDP_API void ddp_event_destroy(ddp_event *event);
/* The event is complete when what the stream was given so far is done. Recorded again, it
 * is the new record's; who waited for the old one still does. */
DDP_CALL ddp_status ddp_event_record(ddp_event *event, ddp_stream *stream);
DDP_CALL ddp_status ddp_event_query(ddp_event *event, bool *done_out);
/* What the stream is given later waits for the event. An event that was never recorded is complete.
 */
DDP_CALL ddp_status ddp_stream_wait_event(ddp_stream *stream, ddp_event *event);
/* Blocks the caller; DDP_ERR_TIMEOUT after the deadline. */
DDP_CALL ddp_status ddp_event_sync(ddp_event *event, int64_t deadline_ns);
/* The time between two complete events, which were both recorded. */
DDP_CALL ddp_status ddp_event_elapsed(const ddp_event *from, const ddp_event *to, int64_t *ns_out);
/* As ddp_event_record(), to read times: in a graph, each launch records the event anew, and nothing
 * in that graph may wait for it. */
DDP_CALL ddp_status ddp_event_stamp(ddp_event *event, ddp_stream *stream);

/* ---- graphs: work that is given to a stream once and done many times ---- */

/* Without graphs the functions below fail with DDP_ERR_UNSUPPORTED. */
DDP_API bool ddp_device_has_graphs(const ddp_device *device);
/* From now on until ddp_graph_end(), by the same thread, what the stream is given is not done but
 * kept, and so is the work of streams that wait for events recorded since; these must have been
 * waited for in turn before the end. No memory may be allocated and nothing be waited for on the
 * host in between. Pointers and arguments are kept as they are. */
DDP_CALL ddp_status ddp_graph_begin(ddp_stream *stream);
/* The caller owns *graph_out. Comes after every begin that succeeded, also when what was in between
 * has failed: then it may fail as well. */
DDP_CALL ddp_status ddp_graph_end(ddp_stream *stream, ddp_graph **graph_out);
/* Gives the stream all of the graph's work, behind what it was given so far. */
DDP_CALL ddp_status ddp_graph_launch(ddp_graph *graph, ddp_stream *stream);
/* When its launches are done. NULL is fine. */
DDP_API void ddp_graph_destroy(ddp_graph *graph);

#ifdef __cplusplus
}
#endif
#endif
