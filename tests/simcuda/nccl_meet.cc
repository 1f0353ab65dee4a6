/*
 * nccl_meet.cc - where ranks meet: the shared file, barriers with a limit, last error. Threads:
 * any; one lock around the list of mappings.
 */
#include "nccl_impl.h"

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace simnccl
{
struct Mapping {
    Id id;
    Shared *shared;
    int users;
};
static Mapping mappings[256];
static std::atomic<uint32_t> mapping_lock{0};
static const uint64_t MAGIC = 0x53494d4e43434c31;
static __thread char last_error[512] __attribute__((tls_model("initial-exec")));
static char any_last_error[512];

const char *const kind_names[] = {"ncclAllReduce", "ncclReduce",        "ncclBroadcast",
                                  "ncclAllGather", "ncclReduceScatter", "ncclSend",
                                  "ncclRecv"};

static void lock()
{
    while (mapping_lock.exchange(1))
        sched_yield();
}

static void unlock()
{
    mapping_lock.store(0);
}

long setting(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtol(text, nullptr, 10) : otherwise;
}

/* Says it and remembers it for ncclGetLastError. */
ncclResult_t fail(ncclResult_t result, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(last_error, sizeof last_error, format, list);
    va_end(list);
    memcpy(any_last_error, last_error, sizeof last_error);
    dprintf(STDERR_FILENO, "simcuda: nccl: %s\n", last_error);
    return result;
}

bool make_id(Id *id)
{
    memset(id, 0, sizeof *id);
    int file = memfd_create("cusim-nccl", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, sizeof(Shared)))
        return false;
    id->magic = MAGIC;
    id->pid = (int32_t)getpid();
    id->file = file;
    return getrandom(id->random, sizeof id->random, 0) == (ssize_t)sizeof id->random;
}

static Shared *open_shared(const Id &id)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", id.pid, id.file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return nullptr;
    void *place =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    close(file);
    return place == MAP_FAILED ? nullptr : static_cast<Shared *>(place);
}

Shared *map_shared(const Id &id)
{
    if (id.magic != MAGIC)
        return nullptr;
    lock();
    Shared *shared = nullptr;
    Mapping *unused = nullptr;
    for (Mapping &one : mappings) {
        if (one.users > 0 && !memcmp(&one.id, &id, sizeof id)) {
            one.users++;
            shared = one.shared;
        } else if (one.users == 0) {
            unused = &one;
        }
    }
    if (!shared && unused && (shared = open_shared(id)) != nullptr)
        *unused = Mapping{id, shared, 1};
    unlock();
    return shared;
}

void unmap_shared(const Id &id)
{
    lock();
    for (Mapping &one : mappings)
        if (one.users > 0 && !memcmp(&one.id, &id, sizeof id) && --one.users == 0) {
            munmap(one.shared, sizeof(Shared));
            if (id.pid == (int32_t)getpid())
                close(id.file);
        }
    unlock();
}

void hold(Comm *comm)
{
    comm->references++;
}

/* The struct stays: see bury(). */
void drop(Comm *comm)
{
    if (--comm->references > 0)
        return;
    if (comm->shared)
        unmap_shared(comm->id);
}

void bury(Comm *comm)
{
    static Comm *dead;
    lock();
    comm->next = dead;
    dead = comm;
    unlock();
    drop(comm);
}

static int64_t now_ms()
{
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

/* Who has begun how many collectives. */
static void give_up(Comm *comm, const char *what)
{
    char text[RANKS * 12] = "";
    size_t used = 0;
    for (int i = 0; i < comm->ranks; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, " %d:%llu", i,
                                 (unsigned long long)comm->shared->slot[i].begun.load());
    comm->state = fail(ncclRemoteError, "rank %d waits in vain in %s; collectives begun by rank:%s",
                       comm->rank, what, text);
}

bool meet(Comm *comm, Barrier *barrier, const char *what)
{
    static const long limit_ms = setting("CUSIM_NCCL_TIMEOUT_MS", 10000);
    int64_t end = now_ms() + limit_ms;
    uint32_t generation = barrier->generation.load();
    if (++barrier->arrived == (uint32_t)comm->ranks) {
        barrier->arrived = 0;
        barrier->generation++;
        syscall(SYS_futex, &barrier->generation, FUTEX_WAKE, 1 << 30, nullptr, nullptr, 0);
        return true;
    }
    while (barrier->generation.load() == generation) {
        timespec slice = {0, 20 * 1000000};
        if (comm->aborted.load())
            return false;
        if (now_ms() > end) {
            give_up(comm, what);
            return false;
        }
        syscall(SYS_futex, &barrier->generation, FUTEX_WAIT, generation, &slice, nullptr, 0);
    }
    return true;
}

void stay_until_abort(Comm *comm)
{
    while (!comm->aborted.load())
        usleep(5000);
}
} // namespace simnccl

using namespace simnccl;

extern "C" {
const char *ncclGetLastError(ncclComm_t)
{
    return last_error[0] ? last_error : any_last_error;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return result >= 0 && result < ncclNumResults ? texts[result] : "unknown result code";
}

ncclResult_t ncclGetVersion(int *version)
{
    if (!version)
        return fail(ncclInvalidArgument, "ncclGetVersion without a place for the version");
    *version = (int)setting("CUSIM_NCCL_VERSION", NCCL_VERSION_CODE);
    return ncclSuccess;
}
}
