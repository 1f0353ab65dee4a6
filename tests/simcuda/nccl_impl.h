/*
 * nccl_impl.h - inside the simulated NCCL.
 *
 * Ranks meet in a memory file without a name, which the process that made the unique id holds open:
 * the others find it under /proc, and nothing is left behind when all are killed. Each process maps
 * it once per id, so that ranks that are threads share addresses. A collective is work of a CUDA
 * stream; when it runs, the ranks publish what they are about to do, meet, compare, and exchange
 * chunks. After an asynchronous error it stays there until the communicator is aborted, as the
 * kernels of the real library do.
 *
 * A Comm is shared by its owner and the calls that were given to streams (references); its fields
 * are atomic or set before the first call. No locks but the one around the mappings.
 */
#ifndef DDP_TESTS_SIMCUDA_NCCL_IMPL_H
#define DDP_TESTS_SIMCUDA_NCCL_IMPL_H

#include "core.h"

#include <atomic>
#include <nccl.h>

namespace simnccl
{
const int RANKS = 64;
const size_t CHUNK = 256 << 10;
const size_t MAIL = 64 << 10;

enum Kind { ALLREDUCE, REDUCE, BROADCAST, ALLGATHER, REDUCE_SCATTER, SEND, RECV };
extern const char *const kind_names[];

/* What a rank says before a collective. */
struct Description {
    int32_t kind, type, op, root;
    uint64_t sequence, count;
    uint64_t buffer, offset; /* if buffers are compared: allocation and place of the result */
};
struct Barrier {
    std::atomic<uint32_t> arrived, generation;
};
struct Slot {
    std::atomic<uint64_t> begun; /* collectives */
    Description description;
    int32_t device; /* of the machine */
    int32_t color, key, child_pid, child_file;
    std::atomic<uint32_t> bell; /* rings when a message was put or taken */
    alignas(64) unsigned char chunk[CHUNK];
};
struct Mailbox {
    std::atomic<uint32_t> full;
    uint32_t bytes, type;
    uint64_t count;
    alignas(64) unsigned char data[MAIL];
};
struct Shared {
    std::atomic<int32_t> ranks; /* as the first one said */
    Barrier collective, host;
    Slot slot[RANKS];
    Mailbox mail[RANKS * RANKS]; /* [src * RANKS + dst] */
};
/* In a ncclUniqueId. */
struct Id {
    uint64_t magic, random[2];
    int32_t pid, file;
};

struct Comm {
    std::atomic<int> references{1};
    Id id = {};
    Shared *shared = nullptr;
    int rank = 0, ranks = 0, device = 0;
    bool blocking = true;
    std::atomic<int> state{ncclSuccess}; /* what ncclCommGetAsyncError gives */
    std::atomic<int> polls{0};           /* so often it says ncclInProgress first */
    std::atomic<bool> aborted{false}, destroyed{false}, first{true}, starting{false};
    std::atomic<int> running{0};
    uint64_t sequence = 0; /* of the stream's side */
    Comm *next = nullptr;  /* among the dead */
};

struct Call {
    Comm *comm;
    Kind kind;
    const void *src;
    void *dst;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int root; /* or peer */
    size_t moved;
};

size_t type_bytes(ncclDataType_t type);
/* dst = dst op src, element by element, rounded each time. */
void reduce(void *dst, const void *src, size_t count, ncclDataType_t type, ncclRedOp_t op);
void divide(void *dst, size_t count, ncclDataType_t type, int ranks);

bool make_id(Id *id);
Shared *map_shared(const Id &id);
void unmap_shared(const Id &id);
/* False: aborted, or an error that the communicator now has. */
bool meet(Comm *comm, Barrier *barrier, const char *what);
void hold(Comm *comm);
void drop(Comm *comm);
void bury(
    Comm *comm); /* the owner's reference; the struct stays, so that later use is recognised */

/* On the stream's thread. */
void run_collective(Call *call);
void run_messages(Call *calls, int count);
void stay_until_abort(Comm *comm);

ncclResult_t fail(ncclResult_t result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
long setting(const char *name, long otherwise);
/* May the program use the communicator now? */
ncclResult_t check_comm(Comm *comm, const char *call);
bool in_group();
ncclResult_t wait_in_group(Comm *comm);
} // namespace simnccl

#endif
