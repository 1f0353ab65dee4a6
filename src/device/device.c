/* device.c - the public functions of device.h: check arguments, then dispatch to the backend.
 * No state; threads as the header says. */
#include "device/device_impl.h"

ddp_status ddp_device_open(const ddp_device_ops *ops, const ddp_device_opts *opts,
                           ddp_device **device_out)
{
    if (opts->threads < 1)
        return DDP_FAIL(DDP_ERR_USAGE, "threads per operation: %d given, at least 1 is needed",
                        opts->threads);
    if ((unsigned)opts->conv_algo >= DDP_CONV_ALGO_COUNT)
        return DDP_FAIL(DDP_ERR_USAGE, "unknown convolution algorithm number %d",
                        (int)opts->conv_algo);
    return ops->open(opts, device_out);
}

void ddp_device_close(ddp_device *device)
{
    if (device != NULL)
        device->ops->close(device);
}

const char *ddp_device_name(const ddp_device *device)
{
    return device->ops->name;
}

const char *ddp_device_describe(const ddp_device *device)
{
    return device->ops->describe(device);
}

bool ddp_device_is_host(const ddp_device *device)
{
    return device->ops->is_host(device);
}

bool ddp_device_computes(const ddp_device *device, ddp_dtype dtype)
{
    return device->ops->computes(device, dtype);
}

ddp_status ddp_device_measure_peak(ddp_device *device, double *flops_out)
{
    return device->ops->measure_peak(device, flops_out);
}

ddp_status ddp_device_alloc(ddp_device *device, size_t bytes, void **memory_out)
{
    return device->ops->alloc(device, bytes, memory_out);
}

void ddp_device_free(ddp_device *device, void *memory, size_t bytes)
{
    if (memory != NULL)
        device->ops->free(device, memory, bytes);
}

ddp_status ddp_device_host_alloc(ddp_device *device, size_t bytes, void **memory_out)
{
    return device->ops->host_alloc(device, bytes, memory_out);
}

void ddp_device_host_free(ddp_device *device, void *memory, size_t bytes)
{
    if (memory != NULL)
        device->ops->host_free(device, memory, bytes);
}

ddp_status ddp_device_copy(ddp_device *device, ddp_stream *stream, void *dst, const void *src,
                           size_t bytes, ddp_copy_kind kind)
{
    DDP_ASSERT(stream->device == device);
    return bytes == 0 ? DDP_OK : device->ops->copy(stream, dst, src, bytes, kind);
}

ddp_status ddp_device_zero(ddp_device *device, ddp_stream *stream, void *dst, size_t bytes)
{
    DDP_ASSERT(stream->device == device);
    return bytes == 0 ? DDP_OK : device->ops->zero(stream, dst, bytes);
}

ddp_stream *ddp_device_main_stream(ddp_device *device)
{
    return device->ops->main_stream(device);
}

ddp_status ddp_stream_create(ddp_device *device, const char *name, ddp_stream **stream_out)
{
    return device->ops->stream_create(device, name, stream_out);
}

void ddp_stream_destroy(ddp_stream *stream)
{
    if (stream == NULL)
        return;
    DDP_ASSERT(stream != ddp_device_main_stream(stream->device));
    stream->device->ops->stream_destroy(stream);
}

ddp_status ddp_stream_call(ddp_stream *stream, void (*fn)(void *arg), void *arg)
{
    return stream->device->ops->stream_call(stream, fn, arg);
}

ddp_status ddp_stream_sync(ddp_stream *stream)
{
    return stream->device->ops->stream_sync(stream);
}

ddp_status ddp_event_create(ddp_device *device, ddp_event **event_out)
{
    return device->ops->event_create(device, event_out);
}

void ddp_event_destroy(ddp_event *event)
{
    if (event != NULL)
        event->device->ops->event_destroy(event);
}

ddp_status ddp_event_record(ddp_event *event, ddp_stream *stream)
{
    DDP_ASSERT(event->device == stream->device);
    return event->device->ops->event_record(event, stream);
}

ddp_status ddp_event_query(ddp_event *event, bool *done_out)
{
    return event->device->ops->event_query(event, done_out);
}

ddp_status ddp_stream_wait_event(ddp_stream *stream, ddp_event *event)
{
    DDP_ASSERT(event->device == stream->device);
    return stream->device->ops->stream_wait_event(stream, event);
}

ddp_status ddp_event_sync(ddp_event *event, int64_t deadline_ns)
{
    return event->device->ops->event_sync(event, deadline_ns);
}

ddp_status ddp_event_elapsed(const ddp_event *from, const ddp_event *to, int64_t *ns_out)
{
    DDP_ASSERT(from->device == to->device);
    return from->device->ops->event_elapsed(from, to, ns_out);
}

ddp_status ddp_event_stamp(ddp_event *event, ddp_stream *stream)
{
    const ddpi_graph_ops *graph = stream->device->ops->graph;
    DDP_ASSERT(event->device == stream->device);
    return graph != NULL ? graph->stamp(event, stream) : ddp_event_record(event, stream);
}

/* ---- graphs ---- */

bool ddp_device_has_graphs(const ddp_device *device)
{
    return device->ops->graph != NULL;
}

ddp_status ddp_graph_begin(ddp_stream *stream)
{
    const ddp_device_ops *ops = stream->device->ops;
    if (ops->graph == NULL)
        return DDP_FAIL(DDP_ERR_UNSUPPORTED, "device %s has no graphs", ops->name);
    return ops->graph->begin(stream);
}

ddp_status ddp_graph_end(ddp_stream *stream, ddp_graph **graph_out)
{
    const ddp_device_ops *ops = stream->device->ops;
    if (ops->graph == NULL)
        return DDP_FAIL(DDP_ERR_UNSUPPORTED, "device %s has no graphs", ops->name);
    return ops->graph->end(stream, graph_out);
}

ddp_status ddp_graph_launch(ddp_graph *graph, ddp_stream *stream)
{
    DDP_ASSERT(graph->device == stream->device);
    return graph->device->ops->graph->launch(graph, stream);
}

void ddp_graph_destroy(ddp_graph *graph)
{
    if (graph != NULL)
        graph->device->ops->graph->destroy(graph);
}
