/*
 * nccl_comm.cc - communicators: their beginning (on a thread of its own, which the caller waits for
 * unless the communicator does not block), split, state, end. A communicator that was aborted or
 * destroyed keeps its memory, so that later use is recognised. Threads: a communicator is used by
 * one at a time, abort and GetAsyncError by any.
 */
#include "nccl_impl.h"

#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <unistd.h>

namespace simnccl
{
static int machine_device(int visible)
{
    char text[32] = "";
    int bus = 0;
    if (!cudaDeviceGetPCIBusId(text, sizeof text, visible) && strlen(text) > 6)
        bus = (int)strtol(text + 5, nullptr, 16);
    return bus;
}

static ncclResult_t check_ranks(Comm *comm)
{
    const Shared *shared = comm->shared;
    if (shared->ranks.load() != comm->ranks)
        return fail(ncclInvalidUsage, "rank %d says %d ranks, another one %d", comm->rank,
                    comm->ranks, shared->ranks.load());
    for (int i = 0; i < comm->ranks; i++)
        for (int j = 0; j < i; j++)
            if (shared->slot[i].device == shared->slot[j].device)
                return fail(ncclInvalidUsage,
                            "Duplicate GPU detected: rank %d and rank %d both on CUDA "
                            "device %x",
                            j, i, (unsigned)shared->slot[i].device);
    return ncclSuccess;
}

static ncclResult_t begin(Comm *comm)
{
    comm->shared = map_shared(comm->id);
    if (!comm->shared)
        return fail(ncclSystemError, "rank %d cannot reach the process that made the unique id",
                    comm->rank);
    int32_t none = 0;
    comm->shared->ranks.compare_exchange_strong(none, comm->ranks);
    comm->shared->slot[comm->rank].device = machine_device(comm->device);
    if (comm->shared->ranks.load() == comm->ranks &&
        !meet(comm, &comm->shared->host, "ncclCommInitRank"))
        return comm->aborted.load() ? ncclInternalError : ncclRemoteError;
    ncclResult_t result = check_ranks(comm);
    if (!result && !meet(comm, &comm->shared->host, "ncclCommInitRank"))
        return ncclRemoteError;
    return result;
}

static void *start_thread(void *argument)
{
    Comm *comm = static_cast<Comm *>(argument);
    ncclResult_t result = begin(comm);
    comm->state = result;
    comm->starting = false;
    drop(comm);
    return nullptr;
}

static ncclResult_t start(Comm *comm)
{
    pthread_t thread;
    comm->state = ncclInProgress;
    comm->starting = true;
    hold(comm);
    if (pthread_create(&thread, nullptr, start_thread, comm)) {
        comm->starting = false;
        drop(comm);
        return fail(ncclSystemError, "no thread");
    }
    pthread_detach(thread);
    if (in_group())
        return wait_in_group(comm);
    if (!comm->blocking)
        return ncclInProgress;
    while (comm->state.load() == ncclInProgress)
        usleep(200);
    return (ncclResult_t)comm->state.load();
}

static ncclResult_t new_comm(ncclComm_t *out, int ranks, const Id &id, int rank,
                             const ncclConfig_t *config)
{
    if (!out || ranks < 1 || ranks > RANKS || rank < 0 || rank >= ranks)
        return fail(ncclInvalidArgument, "rank %d of %d", rank, ranks);
    Comm *comm = new Comm();
    comm->id = id;
    comm->rank = rank;
    comm->ranks = ranks;
    comm->device = cusim_current_device();
    comm->blocking = !config || config->blocking != 0; /* undefined counts as blocking */
    *out = (ncclComm_t)comm;
    return start(comm);
}

ncclResult_t check_comm(Comm *comm, const char *call)
{
    (void)cudaPeekAtLastError(); /* ends the process if a report is due */
    if (!comm)
        return fail(ncclInvalidArgument, "%s without a communicator", call);
    if (comm->destroyed.load()) {
        cusim_report("%s with a communicator that was destroyed or aborted", call);
        return fail(ncclInvalidArgument, "%s with a dead communicator", call);
    }
    int state = comm->state.load();
    if (state == ncclInProgress || comm->polls.load() > 0) {
        cusim_report("%s while the communicator says ncclInProgress", call);
        return fail(ncclInvalidArgument, "%s before the operation in progress has ended", call);
    }
    return (ncclResult_t)state;
}

/* Which child this rank belongs to; the first of each color makes its file. */
static ncclResult_t split(Comm *comm, int color, int key, Id *id, int *rank, int *ranks)
{
    Slot *slots = comm->shared->slot;
    Slot *own = &slots[comm->rank];
    Barrier *barrier = &comm->shared->host;
    own->color = color;
    own->key = key;
    if (!meet(comm, barrier, "ncclCommSplit"))
        return ncclRemoteError;
    int leader = comm->rank;
    *rank = *ranks = 0;
    for (int i = 0; i < comm->ranks; i++) {
        if (slots[i].color != color)
            continue;
        ++*ranks;
        bool before = slots[i].key < key || (slots[i].key == key && i < comm->rank);
        *rank += before;
        if (i < leader)
            leader = i;
    }
    if (leader == comm->rank && color >= 0) {
        if (!make_id(id))
            return fail(ncclSystemError, "no memory file");
        own->child_pid = id->pid;
        own->child_file = id->file;
    }
    if (!meet(comm, barrier, "ncclCommSplit"))
        return ncclRemoteError;
    *id = comm->id;
    id->random[0] = comm->id.random[0] * 31 + (uint64_t)slots[leader].child_file;
    id->random[1] = (uint64_t)leader;
    id->pid = slots[leader].child_pid;
    id->file = slots[leader].child_file;
    return ncclSuccess;
}
} // namespace simnccl

using namespace simnccl;

extern "C" {
ncclResult_t ncclGetUniqueId(ncclUniqueId *out)
{
    if (!out)
        return fail(ncclInvalidArgument, "ncclGetUniqueId without a place for it");
    if (int injected = cusim_inject_error("ncclGetUniqueId", ncclSystemError))
        return fail((ncclResult_t)injected, "ncclGetUniqueId: injected");
    Id id;
    if (!make_id(&id))
        return fail(ncclSystemError, "no memory file");
    memset(out, 0, sizeof *out);
    memcpy(out, &id, sizeof id);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId unique, int rank,
                                    ncclConfig_t *config)
{
    Id id;
    memcpy(&id, &unique, sizeof id);
    if (int injected = cusim_inject_error("ncclCommInitRankConfig", ncclSystemError))
        return fail((ncclResult_t)injected, "ncclCommInitRankConfig: injected");
    if (config && (config->size != sizeof *config || config->magic != 0xcafebeef))
        return fail(ncclInvalidArgument, "the configuration was not initialised");
    return new_comm(comm, ranks, id, rank, config);
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId unique, int rank)
{
    return ncclCommInitRankConfig(comm, ranks, unique, rank, nullptr);
}

ncclResult_t ncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t *out,
                           ncclConfig_t *config)
{
    Comm *comm = (Comm *)handle;
    if (ncclResult_t result = check_comm(comm, "ncclCommSplit"))
        return result;
    if (!out || in_group())
        return fail(ncclInvalidUsage, "ncclCommSplit: no place for it, or within a group");
    Id id;
    int rank, ranks;
    *out = nullptr;
    if (ncclResult_t result = split(comm, color, key, &id, &rank, &ranks))
        return result;
    return color < 0 ? ncclSuccess : new_comm(out, ranks, id, rank, config);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t *out)
{
    Comm *comm = (Comm *)handle;
    if (!comm || !out)
        return fail(ncclInvalidArgument, "ncclCommGetAsyncError without a communicator");
    if (comm->destroyed.load()) {
        cusim_report("ncclCommGetAsyncError with a communicator that was destroyed or aborted");
        return ncclInvalidArgument;
    }
    *out = (ncclResult_t)comm->state.load();
    if (*out == ncclSuccess && comm->polls.load() > 0) {
        comm->polls--;
        *out = ncclInProgress;
    }
    return ncclSuccess;
}

static ncclResult_t end(Comm *comm, const char *call)
{
    if (!comm)
        return ncclSuccess;
    if (comm->destroyed.exchange(true)) {
        cusim_report("%s of a communicator that is gone", call);
        return fail(ncclInvalidArgument, "%s of a dead communicator", call);
    }
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t handle)
{
    Comm *comm = (Comm *)handle;
    if (ncclResult_t result = end(comm, "ncclCommAbort"))
        return result;
    if (!comm)
        return ncclSuccess;
    comm->aborted = true;
    for (int i = 0; i < 2000 && (comm->running.load() > 0 || comm->starting.load()); i++)
        usleep(1000);
    bury(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t handle)
{
    Comm *comm = (Comm *)handle;
    if (ncclResult_t result = check_comm(comm, "ncclCommFinalize"))
        return result;
    if (comm->blocking)
        return ncclSuccess;
    comm->polls = 2;
    return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t handle)
{
    if (ncclResult_t result = end((Comm *)handle, "ncclCommDestroy"))
        return result;
    if (handle)
        bury((Comm *)handle);
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    if (ncclResult_t result = check_comm((Comm *)comm, "ncclCommCount"))
        return result;
    *count = ((Comm *)comm)->ranks;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    if (ncclResult_t result = check_comm((Comm *)comm, "ncclCommUserRank"))
        return result;
    *rank = ((Comm *)comm)->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    if (ncclResult_t result = check_comm((Comm *)comm, "ncclCommCuDevice"))
        return result;
    *device = ((Comm *)comm)->device;
    return ncclSuccess;
}
}
