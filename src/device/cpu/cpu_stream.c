/* cpu_stream.c - streams and events of the CPU device.
 *
 * The main stream runs everything in its caller. Another stream is a thread that takes tasks from a
 * ring of fixed slots, so that giving it work allocates nothing; a full ring makes the caller wait.
 * A task's failure is kept and returned by the next sync of the stream, and later tasks are
 * skipped.
 *
 * An event counts how often it was recorded and how many of those records are done; it is complete
 * when the two agree, and keeps the time when the last of them was done. Each stream and each event
 * has one monitor; no two are held at once. */
#include <string.h>

#include "ddp/memory.h"
#include "ddp/thread.h"
#include "device/cpu/cpu_impl.h"

#define RING_SLOTS 256

typedef struct task {
    ddpi_task_fn fn;
    _Alignas(max_align_t) char payload[DDPI_TASK_BYTES];
} task;

struct ddpi_cpu_stream {
    ddp_stream base;
    bool main; /* none of what follows is used then */
    ddp_thread thread;
    ddp_monitor monitor; /* guards all below */
    task *ring;
    uint64_t given, done; /* tasks; slot = number % RING_SLOTS */
    bool stop;
    ddp_status status; /* of the first task that failed */
    char message[256];
};

typedef struct cpu_event {
    ddp_event base;
    ddp_monitor monitor; /* guards all below */
    uint64_t recorded, reached;
    int64_t reached_ns;
} cpu_event;

/* ---- streams ---- */

static void run_task(ddpi_cpu_stream *stream, const task *next)
{
    const ddp_status st = next->fn(next->payload);
    if (st == DDP_OK)
        return;
    ddp_monitor_lock(&stream->monitor);
    stream->status = st;
    strncpy(stream->message, ddp_status_message(), sizeof stream->message - 1);
    ddp_monitor_unlock(&stream->monitor);
}

static ddp_status reach_event(const void *payload);

static void *stream_main(void *arg)
{
    ddpi_cpu_stream *stream = arg;
    ddpi_set_threads(stream->base.device->opts.threads);
    ddp_monitor_lock(&stream->monitor);
    for (;;) {
        while (stream->done == stream->given && !stream->stop)
            (void)ddp_monitor_wait(&stream->monitor, DDP_NO_DEADLINE);
        if (stream->done == stream->given)
            break;
        const task *next = &stream->ring[stream->done % RING_SLOTS];
        /* Events are reached even after a failure: others wait for them. */
        const bool skip = stream->status != DDP_OK && next->fn != reach_event;
        ddp_monitor_unlock(&stream->monitor);
        if (!skip)
            run_task(stream, next);
        ddp_monitor_lock(&stream->monitor);
        stream->done++;
        ddp_monitor_wake_all(&stream->monitor);
    }
    ddp_monitor_unlock(&stream->monitor);
    return NULL;
}

ddp_status ddpi_cpu_stream_create(ddp_device *device, const char *name, ddp_stream **stream_out)
{
    ddpi_cpu_stream *stream;
    ddp_status st;
    DDP_TRY(DDP_ALLOC(stream, 1));
    stream->base.device = device;
    stream->main = name == NULL;
    if (!stream->main) {
        DDP_TRY_GOTO(st, DDP_ALLOC(stream->ring, RING_SLOTS), err_free);
        DDP_TRY_GOTO(st, ddp_monitor_init(&stream->monitor), err_ring);
        DDP_TRY_GOTO(st, ddp_thread_start(&stream->thread, name, stream_main, stream), err_monitor);
    }
    *stream_out = &stream->base;
    return DDP_OK;
err_monitor:
    ddp_monitor_destroy(&stream->monitor);
err_ring:
    ddp_free(stream->ring);
err_free:
    ddp_free(stream);
    return st;
}

void ddpi_cpu_stream_destroy(ddp_stream *base)
{
    ddpi_cpu_stream *stream = (ddpi_cpu_stream *)base;
    if (!stream->main) {
        ddp_monitor_lock(&stream->monitor);
        stream->stop = true;
        ddp_monitor_wake_all(&stream->monitor);
        ddp_monitor_unlock(&stream->monitor);
        ddp_thread_join(&stream->thread);
        ddp_monitor_destroy(&stream->monitor);
        ddp_free(stream->ring);
    }
    ddp_free(stream);
}

ddp_status ddpi_cpu_submit(ddp_stream *base, ddpi_task_fn fn, const void *payload,
                           size_t payload_bytes)
{
    ddpi_cpu_stream *stream = (ddpi_cpu_stream *)base;
    if (stream->main)
        return fn(payload);
    DDP_ASSERT(payload_bytes <= DDPI_TASK_BYTES);
    ddp_monitor_lock(&stream->monitor);
    while (stream->given - stream->done == RING_SLOTS)
        (void)ddp_monitor_wait(&stream->monitor, DDP_NO_DEADLINE);
    task *slot = &stream->ring[stream->given % RING_SLOTS];
    slot->fn = fn;
    memcpy(slot->payload, payload, payload_bytes);
    stream->given++;
    ddp_monitor_wake_all(&stream->monitor);
    ddp_monitor_unlock(&stream->monitor);
    return DDP_OK;
}

typedef struct call_payload {
    void (*fn)(void *arg);
    void *arg;
} call_payload;

static ddp_status run_call(const void *payload)
{
    const call_payload *call = payload;
    call->fn(call->arg);
    return DDP_OK;
}

ddp_status ddpi_cpu_stream_call(ddp_stream *stream, void (*fn)(void *arg), void *arg)
{
    const call_payload call = {fn, arg};
    return ddpi_cpu_submit(stream, run_call, &call, sizeof call);
}

ddp_status ddpi_cpu_stream_sync(ddp_stream *base)
{
    ddpi_cpu_stream *stream = (ddpi_cpu_stream *)base;
    if (stream->main)
        return DDP_OK;
    ddp_monitor_lock(&stream->monitor);
    const uint64_t until = stream->given;
    while (stream->done < until)
        (void)ddp_monitor_wait(&stream->monitor, DDP_NO_DEADLINE);
    const ddp_status st = stream->status;
    if (st != DDP_OK)
        (void)ddp_status_set(st, NULL, 0, "%s", stream->message);
    stream->status = DDP_OK;
    ddp_monitor_unlock(&stream->monitor);
    return st;
}

/* ---- events ---- */

typedef struct event_payload {
    cpu_event *event;
    uint64_t number;
} event_payload;

static ddp_status reach_event(const void *payload)
{
    const event_payload *mark = payload;
    ddp_monitor_lock(&mark->event->monitor);
    if (mark->event->reached < mark->number) {
        mark->event->reached = mark->number;
        mark->event->reached_ns = ddp_now_ns();
    }
    ddp_monitor_wake_all(&mark->event->monitor);
    ddp_monitor_unlock(&mark->event->monitor);
    return DDP_OK;
}

static ddp_status await_number(cpu_event *event, uint64_t number, int64_t deadline_ns)
{
    bool in_time = true;
    ddp_monitor_lock(&event->monitor);
    while (event->reached < number && in_time)
        in_time = ddp_monitor_wait(&event->monitor, deadline_ns);
    const bool reached = event->reached >= number;
    ddp_monitor_unlock(&event->monitor);
    return reached ? DDP_OK
                   : DDP_FAIL(DDP_ERR_TIMEOUT, "an event was not complete at its deadline");
}

static ddp_status wait_for_event(const void *payload)
{
    const event_payload *mark = payload;
    return await_number(mark->event, mark->number, DDP_NO_DEADLINE);
}

static uint64_t last_record(cpu_event *event)
{
    ddp_monitor_lock(&event->monitor);
    const uint64_t number = event->recorded;
    ddp_monitor_unlock(&event->monitor);
    return number;
}

ddp_status ddpi_cpu_stream_wait_event(ddp_stream *stream, ddp_event *base)
{
    const event_payload mark = {(cpu_event *)base, last_record((cpu_event *)base)};
    return ddpi_cpu_submit(stream, wait_for_event, &mark, sizeof mark);
}

ddp_status ddpi_cpu_event_create(ddp_device *device, ddp_event **event_out)
{
    cpu_event *event;
    DDP_TRY(DDP_ALLOC(event, 1));
    event->base.device = device;
    const ddp_status st = ddp_monitor_init(&event->monitor);
    if (st != DDP_OK)
        ddp_free(event);
    else
        *event_out = &event->base;
    return st;
}

void ddpi_cpu_event_destroy(ddp_event *base)
{
    cpu_event *event = (cpu_event *)base;
    /* The thread that reached it may still be leaving the lock. */
    (void)last_record(event);
    ddp_monitor_destroy(&event->monitor);
    ddp_free(event);
}

ddp_status ddpi_cpu_event_record(ddp_event *base, ddp_stream *stream)
{
    cpu_event *event = (cpu_event *)base;
    ddp_monitor_lock(&event->monitor);
    const event_payload mark = {event, ++event->recorded};
    ddp_monitor_unlock(&event->monitor);
    return ddpi_cpu_submit(stream, reach_event, &mark, sizeof mark);
}

ddp_status ddpi_cpu_event_query(ddp_event *base, bool *done_out)
{
    cpu_event *event = (cpu_event *)base;
    ddp_monitor_lock(&event->monitor);
    *done_out = event->reached == event->recorded;
    ddp_monitor_unlock(&event->monitor);
    return DDP_OK;
}

ddp_status ddpi_cpu_event_sync(ddp_event *base, int64_t deadline_ns)
{
    cpu_event *event = (cpu_event *)base;
    return await_number(event, last_record(event), deadline_ns);
}

static int64_t time_of(const ddp_event *base)
{
    cpu_event *event = (cpu_event *)(uintptr_t)base; /* the lock is not part of what is promised */
    ddp_monitor_lock(&event->monitor);
    DDP_ASSERT(event->recorded > 0 && event->reached == event->recorded);
    const int64_t ns = event->reached_ns;
    ddp_monitor_unlock(&event->monitor);
    return ns;
}

ddp_status ddpi_cpu_event_elapsed(const ddp_event *from, const ddp_event *to, int64_t *ns_out)
{
    *ns_out = time_of(to) - time_of(from);
    return DDP_OK;
}
