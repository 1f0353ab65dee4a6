/*
 * event.cc - events: a handle for the last record. Waiting takes the record that there is at the
 * call. An event recorded in a capturing stream names nodes of that capture and can be waited for
 * within it only; as an external event it becomes a node that records it at each launch. Structs of
 * destroyed events stay, so that a dead handle is recognised. Locks: `api`.
 */
#include "sim.h"

#include <unistd.h>

namespace sim
{
static const uint32_t ALIVE = 0x45564e54, DEAD = 0x44454144;

struct Event : Quiet {
    uint32_t mark = ALIVE;
    unsigned flags = 0;
    int device = 0;
    Record *last = nullptr;
    const Stream *stream = nullptr; /* that recorded it last */
    const Record *asked = nullptr;  /* the record that seems_ready() was asked for last */
    bool lies = false;              /* what it said */
    uint64_t capture = 0;           /* number of the capture that recorded it last */
    List<int> nodes;
    Event *previous = nullptr;
};
static Event *all_events;

Capture *find_capture(uint64_t id);

static Event *find_event(cudaEvent_t handle)
{
    Event *event = (Event *)handle;
    if (event && event->mark == ALIVE)
        return event;
    cusim_report("%p is no live event", (void *)handle);
    return nullptr;
}

void stamp_event(Event *event, Stream *stream)
{
    if (event->mark != ALIVE) {
        cusim_report("a graph records event %p, which was destroyed", (void *)event);
        return;
    }
    if (event->last)
        event->last->drop();
    event->last = record(stream);
    event->capture = 0;
}

/* With `api` held. */
static cudaError_t capture_stamp(Event *event, Stream *stream)
{
    Capture *capture = stream->capture;
    if (capture->invalid)
        return cudaErrorStreamCaptureInvalidated;
    enqueue(stream, new Closure(
                        "cudaEventRecordWithFlags", [](void *) {}, nullptr, nullptr));
    capture->graph->nodes.back().stamp = event;
    return cudaSuccess;
}

static cudaError_t record_event(cudaEvent_t handle, cudaStream_t stream_handle,
                                bool external = false)
{
    Event *event = find_event(handle);
    Stream *stream = find_stream(stream_handle);
    if (!event || !stream)
        return cudaErrorInvalidResourceHandle;
    if (event->device != stream->device) {
        cusim_report("an event of device %d is recorded in a stream of device %d", event->device,
                     stream->device);
        return cudaErrorInvalidResourceHandle;
    }
    Guard guard(api);
    if (external && stream->capture)
        return capture_stamp(event, stream);
    if (event->last)
        event->last->drop();
    event->last = nullptr;
    event->capture = 0;
    event->stream = stream;
    event->asked = nullptr;
    if (stream->capture) {
        event->capture = stream->capture->id;
        event->nodes = stream->tail;
        return stream->capture->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
    }
    if (stream->legacy)
        enqueue(stream, new Closure(
                            "order", [](void *) {}, nullptr, nullptr));
    event->last = record(stream);
    return cudaSuccess;
}

/* With `api` held: the stream takes part in the event's capture. */
static cudaError_t join_capture(Stream *stream, Event *event)
{
    Capture *capture = find_capture(event->capture);
    if (!capture)
        return cudaErrorCapturedEvent;
    if (capture->invalid)
        return cudaErrorStreamCaptureInvalidated;
    if (stream->legacy)
        return invalidate(capture, "cudaStreamWaitEvent of the legacy stream");
    if (stream->capture && stream->capture != capture)
        return cudaErrorStreamCaptureMerge;
    if (!stream->capture) {
        stream->capture = capture;
        stream->tail.clear();
        capture->streams.push_back(stream);
    }
    for (int node : event->nodes) {
        bool known = false;
        for (int there : stream->tail)
            known = known || there == node;
        if (!known)
            stream->tail.push_back(node);
    }
    return cudaSuccess;
}

/* CUSIM_BUG=sync: a record counts once, however often the host asks for it. */
static bool seems_ready(Event *event)
{
    if (event->asked != event->last) {
        event->asked = event->last;
        event->lies = sync_is_left_out(event->stream);
    }
    return event->lies;
}

static cudaError_t usable(Event *event, const char *call)
{
    if (!event->capture)
        return forbidden_by_capture(call);
    if (Capture *capture = find_capture(event->capture))
        invalidate(capture, call);
    return cudaErrorCapturedEvent;
}
} // namespace sim

using namespace sim;

extern "C" {
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    CUSIM_ENTER("cudaEventCreateWithFlags");
    if (!out || (flags & ~3u))
        return result(cudaErrorInvalidValue);
    Event *event = new Event();
    event->flags = flags;
    event->device = current_device();
    Guard guard(api);
    event->previous = all_events;
    all_events = event;
    *out = (cudaEvent_t)event;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t handle)
{
    CUSIM_ENTER("cudaEventDestroy");
    Event *event = find_event(handle);
    if (!event)
        return result(cudaErrorInvalidResourceHandle);
    Guard guard(api);
    event->mark = DEAD;
    if (event->last)
        event->last->drop();
    event->last = nullptr;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    CUSIM_ENTER("cudaEventRecord");
    return result(record_event(event, stream));
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
    CUSIM_ENTER("cudaEventRecordWithFlags");
    if (flags & ~(unsigned)cudaEventRecordExternal)
        return result(cudaErrorInvalidValue);
    return result(record_event(event, stream, flags != 0));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream_handle, cudaEvent_t handle, unsigned flags)
{
    CUSIM_ENTER("cudaStreamWaitEvent");
    Event *event = find_event(handle);
    Stream *stream = find_stream(stream_handle);
    if (!event || !stream)
        return result(cudaErrorInvalidResourceHandle);
    if (flags) {
        cusim_report("cudaStreamWaitEvent: external events are not simulated");
        return result(cudaErrorNotSupported);
    }
    static const bool unrecorded_ok = environment_is("CUSIM_UNRECORDED", "ok");
    Guard guard(api);
    if (event->stream && wait_is_left_out(stream, event->stream))
        return cudaSuccess;
    if (event->capture)
        return result(join_capture(stream, event));
    if (stream->capture) {
        invalidate(stream->capture, "cudaStreamWaitEvent for an event outside the capture");
        return result(cudaErrorStreamCaptureIsolation);
    }
    if (event->last)
        wait_in_stream(stream, event->last);
    else if (!unrecorded_ok)
        cusim_report(
            "cudaStreamWaitEvent for event %p, which was never recorded: waits for nothing",
            (void *)handle);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t handle)
{
    CUSIM_ENTER("cudaEventQuery");
    Event *event = find_event(handle);
    if (!event)
        return result(cudaErrorInvalidResourceHandle);
    Guard guard(api);
    if (cudaError_t error = usable(event, "cudaEventQuery"))
        return result(error);
    if (event->last && seems_ready(event))
        return cudaSuccess;
    return result(!event->last || event->last->ready() ? (cudaError_t)sticky.load()
                                                       : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle)
{
    CUSIM_ENTER("cudaEventSynchronize");
    Event *event = find_event(handle);
    if (!event)
        return result(cudaErrorInvalidResourceHandle);
    Record *last = nullptr;
    {
        Guard guard(api);
        if (cudaError_t error = usable(event, "cudaEventSynchronize"))
            return result(error);
        if (event->last && !seems_ready(event))
            last = event->last->hold();
    }
    if (last) {
        last->wait();
        last->drop();
    }
    return result((cudaError_t)sticky.load());
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from_handle, cudaEvent_t to_handle)
{
    CUSIM_ENTER("cudaEventElapsedTime");
    Event *from = find_event(from_handle), *to = find_event(to_handle);
    if (!from || !to || !ms)
        return result(cudaErrorInvalidResourceHandle);
    Guard guard(api);
    if (((from->flags | to->flags) & cudaEventDisableTiming) || !from->last || !to->last)
        return result(cudaErrorInvalidResourceHandle);
    if (!from->last->done.load() || !to->last->done.load())
        return result(cudaErrorNotReady);
    *ms = (float)((double)(to->last->ns - from->last->ns) / 1e6);
    return cudaSuccess;
}
}
