/* cuda_stream.c - streams, events and copies of the CUDA device.
 *
 * Streams do not wait for CUDA's default stream, which nothing here uses. Those whose name begins
 * with "comm" have the highest priority, so that what other ranks wait for is not queued behind
 * computing. Waiting with a deadline polls: CUDA has no wait that ends by itself. Streams and
 * events are safe to use from several threads as long as each has one user at a time. */
#include <sched.h>
#include <string.h>

#include "ddp/memory.h"
#include "ddp/thread.h"
#include "device/cuda/cuda_impl.h"

/* How long a wait polls without a pause, and the pause after that. */
#define SPIN_NS  INT64_C(50000)
#define PAUSE_NS INT64_C(20000)

typedef struct cuda_event {
    ddp_event base;
    cudaEvent_t handle;
    bool recorded; /* CUDA calls an event that never was complete, too */
} cuda_event;

static ddpi_cuda_stream_obj *stream_of(ddp_stream *stream)
{
    return (ddpi_cuda_stream_obj *)stream;
}

static cuda_event *event_of(ddp_event *event)
{
    return (cuda_event *)event;
}

cudaStream_t ddpi_cuda_stream(ddp_stream *stream)
{
    /* If it fails, so does whatever the caller does next on the stream, and says so. */
    (void)cudaSetDevice(ddpi_cuda_index(stream->device));
    return stream_of(stream)->handle;
}

/* ---- streams ---- */

ddp_stream *ddpi_cuda_main_stream(ddp_device *device)
{
    return &ddpi_cuda_of(device)->main->base;
}

static ddp_status open_stream(ddpi_cuda_stream_obj *stream, const char *name)
{
    int lowest, highest;
    void *sums;
    DDP_TRY(ddpi_cuda_enter(stream->base.device));
    DDPI_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    DDPI_CUDA_TRY(cudaStreamCreateWithPriority(&stream->handle, cudaStreamNonBlocking,
                                               strncmp(name, "comm", 4) == 0 ? highest : lowest));
    DDPI_CUDA_TRY(cudaMalloc(&sums, DDPI_CUDA_SUM_BYTES));
    stream->sums = sums;
    return DDP_OK;
}

ddp_status ddpi_cuda_stream_create(ddp_device *device, const char *name, ddp_stream **stream_out)
{
    ddpi_cuda_stream_obj *stream;
    DDP_TRY(DDP_ALLOC(stream, 1));
    stream->base.device = device;
    const ddp_status st = open_stream(stream, name);
    if (st != DDP_OK) {
        ddpi_cuda_stream_destroy(&stream->base);
        return st;
    }
    *stream_out = &stream->base;
    return DDP_OK;
}

void ddpi_cuda_stream_destroy(ddp_stream *base)
{
    ddpi_cuda_stream_obj *stream = stream_of(base);
    if (ddpi_cuda_enter(base->device) == DDP_OK && stream->handle != NULL) {
        (void)cudaStreamSynchronize(stream->handle); /* work may still use what dies next */
        (void)cudaStreamDestroy(stream->handle);
        if (stream->sums != NULL)
            (void)cudaFree(stream->sums);
    }
    ddp_free(stream);
}

ddp_status ddpi_cuda_stream_call(ddp_stream *stream, void (*fn)(void *arg), void *arg)
{
    return DDPI_CUDA_CHECK(cudaLaunchHostFunc(ddpi_cuda_stream(stream), fn, arg));
}

ddp_status ddpi_cuda_stream_sync(ddp_stream *stream)
{
    return DDPI_CUDA_CHECK(cudaStreamSynchronize(ddpi_cuda_stream(stream)));
}

ddp_status ddpi_cuda_stream_wait_event(ddp_stream *stream, ddp_event *base)
{
    const cuda_event *event = event_of(base);
    if (!event->recorded)
        return DDP_OK;
    return DDPI_CUDA_CHECK(cudaStreamWaitEvent(ddpi_cuda_stream(stream), event->handle, 0));
}

/* ---- copies ---- */

ddp_status ddpi_cuda_copy(ddp_stream *stream, void *dst, const void *src, size_t bytes,
                          ddp_copy_kind kind)
{
    static const enum cudaMemcpyKind kinds[] = {
        [DDP_COPY_TO_DEVICE] = cudaMemcpyHostToDevice,
        [DDP_COPY_TO_HOST] = cudaMemcpyDeviceToHost,
        [DDP_COPY_ON_DEVICE] = cudaMemcpyDeviceToDevice,
    };
    if (dst == src)
        return DDP_OK;
    return DDPI_CUDA_CHECK(cudaMemcpyAsync(dst, src, bytes, kinds[kind], ddpi_cuda_stream(stream)));
}

ddp_status ddpi_cuda_zero(ddp_stream *stream, void *dst, size_t bytes)
{
    return DDPI_CUDA_CHECK(cudaMemsetAsync(dst, 0, bytes, ddpi_cuda_stream(stream)));
}

/* ---- events ---- */

ddp_status ddpi_cuda_event_create(ddp_device *device, ddp_event **event_out)
{
    cuda_event *event;
    DDP_TRY(ddpi_cuda_enter(device));
    DDP_TRY(DDP_ALLOC(event, 1));
    event->base.device = device;
    const ddp_status st =
        DDPI_CUDA_CHECK(cudaEventCreateWithFlags(&event->handle, cudaEventDefault));
    if (st != DDP_OK) {
        ddp_free(event);
        return st;
    }
    *event_out = &event->base;
    return DDP_OK;
}

void ddpi_cuda_event_destroy(ddp_event *event)
{
    if (ddpi_cuda_enter(event->device) == DDP_OK)
        (void)cudaEventDestroy(event_of(event)->handle);
    ddp_free(event);
}

ddp_status ddpi_cuda_event_record(ddp_event *event, ddp_stream *stream)
{
    DDPI_CUDA_TRY(cudaEventRecord(event_of(event)->handle, ddpi_cuda_stream(stream)));
    event_of(event)->recorded = true;
    return DDP_OK;
}

ddp_status ddpi_cuda_event_stamp(ddp_event *event, ddp_stream *stream)
{
    const cudaStream_t handle = ddpi_cuda_stream(stream);
    enum cudaStreamCaptureStatus status;
    DDPI_CUDA_TRY(cudaStreamIsCapturing(handle, &status));
    DDPI_CUDA_TRY(cudaEventRecordWithFlags(
        event_of(event)->handle, handle,
        status == cudaStreamCaptureStatusNone ? cudaEventRecordDefault : cudaEventRecordExternal));
    event_of(event)->recorded = true;
    return DDP_OK;
}

ddp_status ddpi_cuda_event_query(ddp_event *event, bool *done_out)
{
    const cudaError_t error =
        event_of(event)->recorded ? cudaEventQuery(event_of(event)->handle) : cudaSuccess;
    *done_out = error == cudaSuccess;
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* or the next kernel's launch would report it */
        return DDP_OK;
    }
    return ddpi_cuda_check(error, "cudaEventQuery", __FILE__, __LINE__);
}

ddp_status ddpi_cuda_event_sync(ddp_event *event, int64_t deadline_ns)
{
    const int64_t start = ddp_now_ns();
    bool done;
    for (;;) {
        DDP_TRY(ddpi_cuda_event_query(event, &done));
        if (done)
            return DDP_OK;
        const int64_t now = ddp_now_ns();
        if (now >= deadline_ns)
            return DDP_FAIL(DDP_ERR_TIMEOUT, "an event of the GPU was not complete after %.1f s",
                            (double)(now - start) * 1e-9);
        if (now - start < SPIN_NS)
            sched_yield();
        else
            ddp_sleep_ns(PAUSE_NS);
    }
}

ddp_status ddpi_cuda_event_elapsed(const ddp_event *from, const ddp_event *to, int64_t *ns_out)
{
    float ms;
    DDPI_CUDA_TRY(cudaEventElapsedTime(&ms, ((const cuda_event *)from)->handle,
                                       ((const cuda_event *)to)->handle));
    *ns_out = (int64_t)((double)ms * 1e6);
    return DDP_OK;
}
