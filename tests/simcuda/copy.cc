/*
 * copy.cc - cudaMemcpy and cudaMemset. Copies between device and pinned memory are work of the
 * stream. Pageable sources are staged at the call, pageable destinations are waited for, as the
 * documentation has it; both are refused while the stream is captured. Threads and locks: those of
 * the streams.
 */
#include "sim.h"

namespace sim
{
struct Move : Quiet {
    void *dst;
    const void *src;
    size_t bytes;
    void *staged;
};

static void *reach(const void *p)
{
    void *place = cusim_host(p);
    return place ? place : const_cast<void *>(p);
}

static void run_copy(void *arg)
{
    Move *move = static_cast<Move *>(arg);
    if (!lies_within(move->src, move->bytes) || !lies_within(move->dst, move->bytes)) {
        cusim_report("a copy of %zu bytes runs after its memory was freed", move->bytes);
        return;
    }
    if (!move->staged)
        cusim_reads(move->src, move->bytes);
    cusim_writes(move->dst, move->bytes);
    cusim_copy(reach(move->dst), move->staged ? move->staged : reach(move->src), move->bytes);
}

static void delete_move(void *arg)
{
    Move *move = static_cast<Move *>(arg);
    quiet_free(move->staged);
    delete move;
}

static bool fits(const void *p, bool device_side, enum cudaMemcpyKind kind, const char *what)
{
    if (kind == cudaMemcpyDefault || (kind_of(p) == DEVICE) == device_side)
        return true;
    cusim_report("cudaMemcpy: the %s %p is not %s memory, as the direction says", what, p,
                 device_side ? "device" : "host");
    return false;
}

static cudaError_t check(const void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault)
        return cudaErrorInvalidMemcpyDirection;
    if (!fits(dst, to_device, kind, "destination") || !fits(src, from_device, kind, "source"))
        return cudaErrorInvalidValue;
    for (const void *p : {dst, src})
        if (!lies_within(p, bytes)) {
            cusim_report("cudaMemcpy: %zu bytes at %p do not lie in one live allocation", bytes, p);
            return cudaErrorInvalidValue;
        }
    return cudaSuccess;
}

/* With api not held. Waits if the destination is pageable or `blocking`. */
static cudaError_t give(Stream *stream, Move *move, bool blocking)
{
    Record *made = nullptr;
    bool pageable = kind_of(move->dst) == HOST || kind_of(move->src) == HOST;
    bool wait = blocking || kind_of(move->dst) == HOST;
    {
        Guard guard(api);
        if (stream->capture && pageable) {
            delete_move(move);
            return invalidate(stream->capture, "a copy of pageable memory");
        }
        if (kind_of(move->src) == HOST) {
            move->staged = quiet_alloc(move->bytes);
            read_range(move->src, move->bytes);
            cusim_copy(move->staged, move->src, move->bytes);
        }
        enqueue(stream, new Closure("cudaMemcpy", run_copy, delete_move, move));
        if (wait)
            made = record(stream);
    }
    if (made) {
        made->wait();
        made->drop();
    }
    return (cudaError_t)sticky.load();
}

static cudaError_t copy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                        cudaStream_t handle, bool blocking)
{
    if (bytes == 0)
        return cudaSuccess;
    if (cudaError_t error = check(dst, src, bytes, kind))
        return error;
    Stream *stream = find_stream(handle);
    if (!stream)
        return cudaErrorInvalidResourceHandle;
    Move *move = new Move();
    move->dst = dst;
    move->src = src;
    move->bytes = bytes;
    move->staged = nullptr;
    return give(stream, move, blocking);
}

struct Set : Quiet {
    void *dst;
    size_t bytes;
    unsigned char value;
};

static void run_set(void *arg)
{
    Set *set = static_cast<Set *>(arg);
    if (!lies_within(set->dst, set->bytes)) {
        cusim_report("cudaMemset of %zu bytes runs after its memory was freed", set->bytes);
        return;
    }
    cusim_writes(set->dst, set->bytes);
    unsigned char chunk[1024];
    __builtin_memset(chunk, set->value, sizeof chunk);
    char *place = (char *)reach(set->dst);
    for (size_t at = 0; at < set->bytes; at += sizeof chunk)
        cusim_copy(place + at, chunk,
                   set->bytes - at < sizeof chunk ? set->bytes - at : sizeof chunk);
}

static cudaError_t fill(void *dst, int value, size_t bytes, cudaStream_t handle)
{
    if (bytes == 0)
        return cudaSuccess;
    if (!cusim_valid(dst, bytes)) {
        cusim_report("cudaMemset: %zu bytes at %p do not lie in one live allocation", bytes, dst);
        return cudaErrorInvalidValue;
    }
    if (!find_stream(handle))
        return cudaErrorInvalidResourceHandle;
    Set *set = new Set();
    set->dst = dst;
    set->bytes = bytes;
    set->value = (unsigned char)value;
    cusim_enqueue(
        handle, "cudaMemset", run_set, [](void *arg) { delete static_cast<Set *>(arg); }, set);
    return cudaSuccess;
}

static cudaError_t blocking_allowed(const char *call)
{
    Guard guard(api);
    return forbidden_by_capture(call);
}
} // namespace sim

using namespace sim;

extern "C" {
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    CUSIM_ENTER("cudaMemcpyAsync");
    return result(copy(dst, src, bytes, kind, stream, false));
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
    CUSIM_ENTER("cudaMemcpy");
    if (cudaError_t error = blocking_allowed("cudaMemcpy"))
        return result(error);
    return result(copy(dst, src, bytes, kind, nullptr, true));
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream)
{
    CUSIM_ENTER("cudaMemsetAsync");
    return result(fill(dst, value, bytes, stream));
}

cudaError_t cudaMemset(void *dst, int value, size_t bytes)
{
    CUSIM_ENTER("cudaMemset");
    if (cudaError_t error = blocking_allowed("cudaMemset"))
        return result(error);
    return result(fill(dst, value, bytes, nullptr));
}
}
