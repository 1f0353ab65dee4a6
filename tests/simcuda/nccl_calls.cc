/*
 * nccl_calls.cc - the calls that give work to streams, and groups. Arguments are checked at the
 * call, work is given when the outermost group ends; the messages of a group that share a stream
 * make progress together. A communicator that does not block says ncclInProgress for its first
 * collective, as the real one may. Threads: groups are a thread's own.
 */
#include "nccl_impl.h"

#include <cstdlib>
#include <cstring>
#include <unistd.h>

namespace simnccl
{
struct Given {
    Call call;
    cudaStream_t stream;
};
struct Batch {
    int count;
    Call calls[1];
};
struct Group {
    int depth, given, comms;
    Given *list;
    Comm *starting[RANKS];
};
static const int GIVEN = 4096;
static __thread Group group __attribute__((tls_model("initial-exec")));

bool in_group()
{
    return group.depth > 0;
}

ncclResult_t wait_in_group(Comm *comm)
{
    if (group.comms == RANKS)
        return fail(ncclInvalidUsage, "too many communicators in a group");
    group.starting[group.comms++] = comm;
    return ncclSuccess;
}

static void run_batch(void *arg)
{
    Batch *batch = static_cast<Batch *>(arg);
    if (batch->calls[0].kind == SEND || batch->calls[0].kind == RECV)
        run_messages(batch->calls, batch->count);
    else
        run_collective(batch->calls);
}

static void delete_batch(void *arg)
{
    Batch *batch = static_cast<Batch *>(arg);
    for (int i = 0; i < batch->count; i++)
        drop(batch->calls[i].comm);
    free(batch);
}

static void give(const Given *first, const Given *end)
{
    Batch *batch =
        static_cast<Batch *>(malloc(sizeof(Batch) + (size_t)(end - first) * sizeof(Call)));
    if (!batch)
        abort();
    batch->count = 0;
    for (const Given *one = first; one < end; one++) {
        bool message = one->call.kind == SEND || one->call.kind == RECV;
        if (one != first &&
            !(message && one->call.comm == first->call.comm && one->stream == first->stream))
            continue;
        hold(one->call.comm);
        batch->calls[batch->count++] = one->call;
    }
    cusim_enqueue(first->stream, kind_names[first->call.kind], run_batch, delete_batch, batch);
}

/* Was an earlier message of the group given together with this one? */
static bool given_before(const Given *first, const Given *one)
{
    for (const Given *earlier = first; earlier < one; earlier++)
        if ((earlier->call.kind == SEND || earlier->call.kind == RECV) &&
            earlier->call.comm == one->call.comm && earlier->stream == one->stream)
            return true;
    return false;
}

static ncclResult_t begun(Comm *comm)
{
    if (comm->blocking || !comm->first.exchange(false))
        return ncclSuccess;
    comm->polls = 2;
    return ncclInProgress;
}

static bool reads(const Call &call)
{
    return call.kind != RECV && (call.kind != BROADCAST || call.comm->rank == call.root);
}

static bool writes(const Call &call)
{
    return call.kind != SEND && (call.kind != REDUCE || call.comm->rank == call.root);
}

static ncclResult_t check_call(const Call &call, cudaStream_t stream)
{
    Comm *comm = call.comm;
    const char *name = kind_names[call.kind];
    if (ncclResult_t result = check_comm(comm, name))
        return result;
    if (int injected = cusim_inject_error(name, ncclInternalError))
        return fail((ncclResult_t)injected, "%s: injected", name);
    size_t size = type_bytes(call.type), ranks = (size_t)comm->ranks;
    if (size == 0 || (unsigned)call.op > (unsigned)ncclAvg || call.root < 0 ||
        call.root >= comm->ranks)
        return fail(ncclInvalidArgument, "%s: type %d, op %d or rank %d", name, (int)call.type,
                    (int)call.op, call.root);
    size_t read = call.count * size * (call.kind == REDUCE_SCATTER ? ranks : 1);
    size_t written = call.count * size * (call.kind == ALLGATHER ? ranks : 1);
    if ((reads(call) && call.count && !cusim_valid(call.src, read)) ||
        (writes(call) && call.count && !cusim_valid(call.dst, written))) {
        cusim_report("%s: %zu elements do not lie in live device memory", name, call.count);
        return fail(ncclInvalidArgument, "%s: a buffer is not device memory or too short", name);
    }
    if (cusim_stream_device(stream) != comm->device) {
        cusim_report("%s: the stream is not of the communicator's device", name);
        return fail(ncclInvalidUsage, "%s: stream of another device", name);
    }
    return ncclSuccess;
}

/* CUSIM_BUG=swap: true keeps the call back, until the next one has been given before it. */
static bool change_places(Given *given)
{
    static __thread Given kept __attribute__((tls_model("initial-exec")));
    static __thread bool is_kept __attribute__((tls_model("initial-exec")));
    if (is_kept) {
        Given first = *given;
        give(&first, &first + 1);
        *given = kept;
        is_kept = false;
        return false;
    }
    is_kept = cusim_mistake("swap", kind_names[given->call.kind]);
    if (is_kept)
        kept = *given;
    return is_kept;
}

static ncclResult_t add(Call call, cudaStream_t stream)
{
    if (ncclResult_t result = check_call(call, stream))
        return result;
    if (call.count == 0 || cusim_mistake("skip", kind_names[call.kind]))
        return ncclSuccess;
    Given given = {call, stream};
    if (change_places(&given))
        return ncclSuccess;
    if (!in_group()) {
        give(&given, &given + 1);
        return begun(call.comm);
    }
    if (!group.list)
        group.list = static_cast<Given *>(malloc(GIVEN * sizeof(Given)));
    if (!group.list || group.given == GIVEN)
        return fail(ncclInvalidUsage, "too many calls in a group");
    group.list[group.given++] = given;
    return ncclSuccess;
}

static ncclResult_t end_group()
{
    ncclResult_t result = ncclSuccess;
    for (int i = 0; i < group.comms; i++) {
        Comm *comm = group.starting[i];
        while (comm->blocking && comm->state.load() == ncclInProgress)
            usleep(200);
        if (comm->state.load() != ncclSuccess)
            result = (ncclResult_t)comm->state.load();
    }
    for (int i = 0; i < group.given; i++) {
        const Given *one = &group.list[i];
        bool message = one->call.kind == SEND || one->call.kind == RECV;
        if (!message || !given_before(group.list, one))
            give(one, message ? group.list + group.given : one + 1);
        if (begun(one->call.comm) == ncclInProgress)
            result = ncclInProgress;
    }
    free(group.list);
    group.list = nullptr;
    group.given = group.comms = 0;
    return result;
}
} // namespace simnccl

using namespace simnccl;

extern "C" {
ncclResult_t ncclGroupStart()
{
    group.depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd()
{
    if (group.depth == 0)
        return fail(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    return --group.depth ? ncclSuccess : end_group();
}

ncclResult_t ncclAllReduce(const void *src, void *dst, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return add({(Comm *)comm, ALLREDUCE, src, dst, count, type, op, 0, 0}, stream);
}

ncclResult_t ncclReduce(const void *src, void *dst, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
    return add({(Comm *)comm, REDUCE, src, dst, count, type, op, root, 0}, stream);
}

ncclResult_t ncclBroadcast(const void *src, void *dst, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
    return add({(Comm *)comm, BROADCAST, src, dst, count, type, ncclSum, root, 0}, stream);
}

ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream)
{
    return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

ncclResult_t ncclAllGather(const void *src, void *dst, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    return add({(Comm *)comm, ALLGATHER, src, dst, count, type, ncclSum, 0, 0}, stream);
}

ncclResult_t ncclReduceScatter(const void *src, void *dst, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return add({(Comm *)comm, REDUCE_SCATTER, src, dst, count, type, op, 0, 0}, stream);
}

ncclResult_t ncclSend(const void *src, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return add({(Comm *)comm, SEND, src, nullptr, count, type, ncclSum, peer, 0}, stream);
}

ncclResult_t ncclRecv(void *dst, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return add({(Comm *)comm, RECV, nullptr, dst, count, type, ncclSum, peer, 0}, stream);
}

ncclResult_t ncclMemAlloc(void **out, size_t bytes)
{
    if (int injected = cusim_inject_error("ncclMemAlloc", ncclUnhandledCudaError))
        return fail((ncclResult_t)injected, "ncclMemAlloc: injected");
    return cudaMalloc(out, bytes) ? fail(ncclUnhandledCudaError, "ncclMemAlloc of %zu bytes", bytes)
                                  : ncclSuccess;
}

ncclResult_t ncclMemFree(void *memory)
{
    return cudaFree(memory) ? fail(ncclUnhandledCudaError, "ncclMemFree of %p", memory)
                            : ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buffer, size_t bytes, void **handle)
{
    if (ncclResult_t result = check_comm((Comm *)comm, "ncclCommRegister"))
        return result;
    if (!cusim_valid(buffer, bytes) || !handle)
        return fail(ncclInvalidArgument, "ncclCommRegister: not device memory");
    *handle = buffer;
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t, void *handle)
{
    return handle ? ncclSuccess : fail(ncclInvalidArgument, "ncclCommDeregister without a handle");
}
}
