/*
 * stream.cc - streams: a queue and a thread each.
 *
 * Work is given to a queue and run by the stream's thread in order. The host orders itself before
 * each piece of work (the Op's token) and behind nothing; only a Record that was waited for orders
 * the host, or another stream, behind a stream. The legacy stream (NULL) is a stream like the
 * others, which waits for what the device's blocking streams were given, and they for it. Destroyed
 * streams finish their work; their structs stay, so that a dead handle is recognised. Once the
 * device is in error, work is skipped, but records still fire, so that nobody hangs.
 */
#include "sim.h"

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <pthread.h>
#include <unistd.h>

namespace sim
{
void release_fibers(Fibers *fibers);

static List<Stream *> *streams;
static Stream *legacy[64];
static std::atomic<uint64_t> stream_numbers{0};
static __thread Stream *own __attribute__((tls_model("initial-exec")));

void Closure::drop()
{
    if (--references > 0)
        return;
    if (del)
        del(arg);
    delete this;
}

void Record::fire()
{
    ns = now_ns();
    edge_release(&edge);
    done.store(1);
    futex_wake(&done);
}

void Record::wait()
{
    while (!done.load())
        futex_wait(&done, 0, -1);
    edge_acquire(&edge);
}

bool Record::ready()
{
    if (!done.load())
        return false;
    edge_acquire(&edge);
    return true;
}

Stream *running_stream()
{
    return own;
}

static void delay(uint64_t *random)
{
    static const long most = setting("CUSIM_DELAY_US", 0);
    if (most <= 0)
        return;
    *random = *random * 6364136223846793005ULL + 1442695040888963407ULL;
    long us = (long)((*random >> 33) % (uint64_t)(most + 1));
    timespec time = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&time, nullptr);
}

static Op *take(Stream *stream)
{
    for (;;) {
        uint32_t seen = stream->signal.load();
        {
            Guard guard(stream->lock);
            if (Op *op = stream->first) {
                stream->first = op->next;
                if (!stream->first)
                    stream->last = nullptr;
                return op;
            }
            if (stream->ending)
                return nullptr;
        }
        futex_wait(&stream->signal, seen, -1);
    }
}

static void run_op(Stream *stream, Op *op)
{
    static const bool trace = setting("CUSIM_TRACE", 0) != 0;
    if (trace)
        note("%s on stream %p", op->closure->name, (void *)stream);
    edge_acquire(&op->edge);
    if (op->always || !sticky.load())
        op->closure->run(op->closure->arg);
    op->closure->drop();
    delete op;
}

static void *stream_thread(void *argument)
{
    Stream *stream = static_cast<Stream *>(argument);
    own = stream;
    uint64_t random = (uint64_t)setting("CUSIM_SEED", 0) * 7919 + stream->number * 104729;
    while (Op *op = take(stream)) {
        if (!op->always)
            delay(&random);
        run_op(stream, op);
    }
    release_fibers(stream->fibers);
    stream->fibers = nullptr;
    quiet_free(stream->arguments);
    stream->arguments = nullptr;
    return nullptr;
}

static Stream *make_stream(int device, unsigned flags, int priority)
{
    Stream *stream = new Stream();
    stream->device = device;
    stream->flags = flags;
    stream->priority = priority;
    stream->number = ++stream_numbers;
    stream->arguments = quiet_alloc(4096 + 64);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_t thread;
    if (pthread_create(&thread, &attributes, stream_thread, stream)) {
        note("no thread for a stream");
        abort();
    }
    pthread_attr_destroy(&attributes);
    return stream;
}

/* With `api` held. */
static void list_stream(Stream *stream)
{
    if (!streams)
        streams = new (quiet_alloc(sizeof *streams)) List<Stream *>();
    streams->push_back(stream);
}

Stream *new_stream(int device, unsigned flags, int priority)
{
    Stream *stream = make_stream(device, flags, priority);
    Guard guard(api);
    list_stream(stream);
    return stream;
}

Stream *legacy_stream(int device)
{
    Guard guard(api);
    if (!legacy[device]) {
        legacy[device] = make_stream(device, 0, 0);
        legacy[device]->legacy = true;
        list_stream(legacy[device]);
    }
    return legacy[device];
}

bool stream_lives(const Stream *stream)
{
    if (streams)
        for (const Stream *one : *streams)
            if (one == stream)
                return !one->ending;
    return false;
}

Stream *find_stream(cudaStream_t handle)
{
    if (handle == nullptr || handle == cudaStreamLegacy)
        return device_count() ? legacy_stream(current_device()) : nullptr;
    Stream *stream = (Stream *)handle;
    Guard guard(api);
    if (handle == cudaStreamPerThread || !stream_lives(stream)) {
        cusim_report("%p is no live stream", (void *)handle);
        return nullptr;
    }
    return stream;
}

void push(Stream *stream, Closure *closure, bool always)
{
    Op *op = new Op(closure, always);
    edge_release(&op->edge);
    {
        Guard guard(stream->lock);
        (stream->last ? stream->last->next : stream->first) = op;
        stream->last = op;
    }
    stream->given++;
    stream->signal++;
    futex_wake(&stream->signal);
}

static void fire_record(void *arg)
{
    static_cast<Record *>(arg)->fire();
}

static void drop_record(void *arg)
{
    static_cast<Record *>(arg)->drop();
}

static void await_record(void *arg)
{
    static_cast<Record *>(arg)->wait();
}

Record *record(Stream *stream)
{
    Record *made = new Record();
    push(stream, new Closure("record", fire_record, drop_record, made->hold()), true);
    return made;
}

void wait_in_stream(Stream *stream, Record *waited)
{
    push(stream, new Closure("wait", await_record, drop_record, waited->hold()), true);
}

static void order_legacy(Stream *stream)
{
    if (stream->legacy) {
        for (Stream *other : *streams)
            if (other->device == stream->device && !other->legacy && !other->ending &&
                !(other->flags & cudaStreamNonBlocking)) {
                Record *made = record(other);
                wait_in_stream(stream, made);
                made->drop();
            }
    } else if (Stream *first = legacy[stream->device]) {
        if ((stream->flags & cudaStreamNonBlocking) || first->given == stream->legacy_seen)
            return;
        Record *made = record(first);
        stream->legacy_seen = first->given;
        wait_in_stream(stream, made);
        made->drop();
    }
}

void enqueue(Stream *stream, Closure *closure)
{
    Capture *capture = stream->capture;
    if (!capture) {
        order_legacy(stream);
        push(stream, closure, false);
        return;
    }
    if (capture->invalid) {
        closure->drop();
        return;
    }
    capture->graph->nodes.push_back(Node{closure, stream->tail, nullptr});
    stream->tail.assign(1, (int)capture->graph->nodes.size() - 1);
}

void end_stream(Stream *stream)
{
    {
        Guard guard(stream->lock);
        stream->ending = true;
    }
    stream->signal++;
    futex_wake(&stream->signal);
}

/* The record of what the stream was given so far, in the legacy stream's order. */
static cudaError_t await(Stream *stream)
{
    Record *made;
    {
        Guard guard(api);
        if (stream->legacy)
            order_legacy(stream);
        made = record(stream);
    }
    made->wait();
    made->drop();
    return (cudaError_t)sticky.load();
}

void drain(int device)
{
    List<Record *> records;
    {
        Guard guard(api);
        if (streams)
            for (Stream *stream : *streams)
                if (!stream->ending && (device < 0 || stream->device == device))
                    records.push_back(record(stream));
    }
    for (Record *made : records) {
        made->wait();
        made->drop();
    }
}
} // namespace sim

using namespace sim;

extern "C" {
void cusim_enqueue(cudaStream_t handle, const char *name, void (*run)(void *), void (*del)(void *),
                   void *arg)
{
    Closure *closure = new Closure(name, run, del, arg);
    Stream *stream = find_stream(handle);
    if (!stream) {
        closure->drop();
        return;
    }
    Guard guard(api);
    enqueue(stream, closure);
}

int cusim_stream_device(cudaStream_t handle)
{
    Stream *stream = find_stream(handle);
    return stream ? stream->device : -1;
}

bool cusim_capturing(cudaStream_t handle)
{
    Stream *stream = find_stream(handle);
    Guard guard(api);
    return stream && stream->capture;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    CUSIM_ENTER("cudaStreamCreateWithPriority");
    if (!out || (flags & ~(unsigned)cudaStreamNonBlocking))
        return result(cudaErrorInvalidValue);
    if (device_count() == 0)
        return result(cudaErrorNoDevice);
    *out = (cudaStream_t)new_stream(current_device(), flags, priority);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *out)
{
    return cudaStreamCreateWithPriority(out, 0, 0);
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int *priority)
{
    CUSIM_ENTER("cudaStreamGetPriority");
    Stream *stream = find_stream(handle);
    if (!stream)
        return result(cudaErrorInvalidResourceHandle);
    *priority = stream->priority;
    return cudaSuccess;
}

cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned *flags)
{
    CUSIM_ENTER("cudaStreamGetFlags");
    Stream *stream = find_stream(handle);
    if (!stream)
        return result(cudaErrorInvalidResourceHandle);
    *flags = stream->flags;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
    CUSIM_ENTER("cudaStreamDestroy");
    Stream *stream = find_stream(handle);
    if (!stream || stream->legacy)
        return result(cudaErrorInvalidResourceHandle);
    Guard guard(api);
    if (stream->capture)
        return result(invalidate(stream->capture, "cudaStreamDestroy"));
    end_stream(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    CUSIM_ENTER("cudaStreamSynchronize");
    Stream *stream = find_stream(handle);
    if (!stream)
        return result(cudaErrorInvalidResourceHandle);
    {
        Guard guard(api);
        if (stream->capture)
            return result(invalidate(stream->capture, "cudaStreamSynchronize"));
        if (cudaError_t error = forbidden_by_capture("cudaStreamSynchronize"))
            return result(error);
    }
    if (sync_is_left_out(stream))
        return cudaSuccess;
    return result(await(stream));
}

cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    CUSIM_ENTER("cudaStreamQuery");
    Stream *stream = find_stream(handle);
    if (!stream)
        return result(cudaErrorInvalidResourceHandle);
    Record *made;
    {
        Guard guard(api);
        if (stream->capture)
            return result(invalidate(stream->capture, "cudaStreamQuery"));
        if (cudaError_t error = forbidden_by_capture("cudaStreamQuery"))
            return result(error);
        made = record(stream);
    }
    /* A stream that has nothing to do comes to the record at once. */
    for (int i = 0; i < 20 && !made->done.load(); i++)
        usleep(10);
    bool ready = made->ready();
    made->drop();
    return result(ready ? (cudaError_t)sticky.load() : cudaErrorNotReady);
}

cudaError_t cudaDeviceSynchronize(void)
{
    CUSIM_ENTER("cudaDeviceSynchronize");
    if (device_count() == 0)
        return result(cudaErrorNoDevice);
    {
        Guard guard(api);
        if (cudaError_t error = forbidden_by_capture("cudaDeviceSynchronize"))
            return result(error);
    }
    drain(current_device());
    return result((cudaError_t)sticky.load());
}

struct HostCall : Quiet {
    cudaHostFn_t function;
    void *data;
};

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void *data)
{
    CUSIM_ENTER("cudaLaunchHostFunc");
    if (!function)
        return result(cudaErrorInvalidValue);
    Stream *stream = find_stream(handle);
    if (!stream)
        return result(cudaErrorInvalidResourceHandle);
    HostCall *call = new HostCall();
    call->function = function;
    call->data = data;
    cusim_enqueue(
        handle, "cudaLaunchHostFunc",
        [](void *arg) {
            HostCall *made = static_cast<HostCall *>(arg);
            in_host_function = true;
            made->function(made->data);
            in_host_function = false;
        },
        [](void *arg) { delete static_cast<HostCall *>(arg); }, call);
    return cudaSuccess;
}
}
