/*
 * nccl_run.cc - collectives and messages, on the stream's thread. Every rank adds in the order of
 * the ranks, so that all get the same bits. Edges: everything that a rank did before the call comes
 * before what any rank does after it; a message orders its receiver behind its sender.
 */
#include "nccl_impl.h"

#include <cstdio>
#include <cstring>
#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace simnccl
{
static bool same(const Description &a, const Description &b)
{
    return a.kind == b.kind && a.type == b.type && a.op == b.op && a.root == b.root &&
           a.sequence == b.sequence && a.count == b.count && a.buffer == b.buffer &&
           a.offset == b.offset;
}

static void describe(const Description &d, int rank, char *text, size_t size)
{
    snprintf(text, size,
             "rank %d: collective %llu is %s of %llu elements, type %d, op %d, root %d, "
             "buffer #%llu+%llu",
             rank, (unsigned long long)d.sequence, kind_names[d.kind], (unsigned long long)d.count,
             d.type, d.op, d.root, (unsigned long long)d.buffer, (unsigned long long)d.offset);
}

/* All ranks are in the same collective? Each looks at all, so that all come to the same verdict. */
static bool agree(Comm *comm)
{
    const Slot *slots = comm->shared->slot;
    for (int i = 1; i < comm->ranks; i++) {
        if (same(slots[0].description, slots[i].description))
            continue;
        char first[256], other[256];
        describe(slots[0].description, 0, first, sizeof first);
        describe(slots[i].description, i, other, sizeof other);
        comm->state = fail(ncclInvalidUsage, "calls do not match: %s; %s", first, other);
        cusim_report("rank %d is in a collective that does not match", comm->rank);
        return false;
    }
    return true;
}

static bool publish(Call *call)
{
    static const bool buffers = setting("CUSIM_NCCL_BUFFERS", 0) != 0;
    Comm *comm = call->comm;
    Slot *own = &comm->shared->slot[comm->rank];
    Description d = {call->kind,       call->type,  call->op, call->root,
                     ++comm->sequence, call->count, 0,        0};
    if (buffers) {
        size_t offset = 0;
        d.buffer = (uint64_t)cusim_allocation(call->dst, &offset);
        d.offset = offset;
    }
    own->description = d;
    own->begun = d.sequence;
    cusim_edge_release(&comm->shared->collective);
    if (!meet(comm, &comm->shared->collective, kind_names[call->kind]))
        return false;
    cusim_edge_acquire(&comm->shared->collective);
    return agree(comm) && meet(comm, &comm->shared->collective, kind_names[call->kind]);
}

static unsigned char *place(const void *p)
{
    return static_cast<unsigned char *>(cusim_host(p));
}

/* One chunk of every rank's source, added up into dst where this rank wants it. */
static bool reduce_chunk(Call *call, const unsigned char *src, unsigned char *dst, size_t count)
{
    Comm *comm = call->comm;
    Slot *slots = comm->shared->slot;
    Barrier *barrier = &comm->shared->collective;
    size_t bytes = count * type_bytes(call->type);
    cusim_copy(slots[comm->rank].chunk, src, bytes);
    if (!meet(comm, barrier, kind_names[call->kind]))
        return false;
    if (dst) {
        cusim_copy(dst, slots[0].chunk, bytes);
        for (int i = 1; i < comm->ranks; i++)
            reduce(dst, slots[i].chunk, count, call->type, call->op);
        if (call->op == ncclAvg)
            divide(dst, count, call->type, comm->ranks);
    }
    return meet(comm, barrier, kind_names[call->kind]);
}

static bool run_reduction(Call *call)
{
    Comm *comm = call->comm;
    size_t size = type_bytes(call->type), most = CHUNK / size;
    int parts = call->kind == REDUCE_SCATTER ? comm->ranks : 1;
    for (int part = 0; part < parts; part++) {
        bool wants = call->kind == ALLREDUCE ||
                     (call->kind == REDUCE && comm->rank == call->root) ||
                     (call->kind == REDUCE_SCATTER && comm->rank == part);
        const unsigned char *src = place(call->src) + (size_t)part * call->count * size;
        for (size_t at = 0; at < call->count; at += most) {
            size_t count = call->count - at < most ? call->count - at : most;
            if (!reduce_chunk(call, src + at * size, wants ? place(call->dst) + at * size : nullptr,
                              count))
                return false;
        }
    }
    return true;
}

/* Broadcast, allgather: sources go to everybody. */
static bool run_spread(Call *call)
{
    Comm *comm = call->comm;
    Slot *slots = comm->shared->slot;
    Barrier *barrier = &comm->shared->collective;
    bool gather = call->kind == ALLGATHER;
    size_t bytes = call->count * type_bytes(call->type);
    for (size_t at = 0; at < bytes; at += CHUNK) {
        size_t part = bytes - at < CHUNK ? bytes - at : CHUNK;
        if (gather || comm->rank == call->root)
            cusim_copy(slots[comm->rank].chunk, place(call->src) + at, part);
        if (!meet(comm, barrier, kind_names[call->kind]))
            return false;
        for (int i = gather ? 0 : call->root; i < (gather ? comm->ranks : call->root + 1); i++)
            cusim_copy(place(call->dst) + (gather ? (size_t)i * bytes : 0) + at, slots[i].chunk,
                       part);
        if (!meet(comm, barrier, kind_names[call->kind]))
            return false;
    }
    return true;
}

static void state_operands(const Call *call)
{
    size_t bytes = call->count * type_bytes(call->type);
    size_t ranks = (size_t)call->comm->ranks;
    bool root = call->comm->rank == call->root;
    if (call->kind != BROADCAST || root)
        cusim_reads(call->src, call->kind == REDUCE_SCATTER ? bytes * ranks : bytes);
    if (call->kind != REDUCE || root)
        cusim_writes(call->dst, call->kind == ALLGATHER ? bytes * ranks : bytes);
}

static bool may_run(Comm *comm)
{
    if (comm->aborted.load())
        return false;
    if (comm->state.load() == ncclSuccess)
        return true;
    stay_until_abort(comm);
    return false;
}

void run_collective(Call *call)
{
    Comm *comm = call->comm;
    if (!may_run(comm))
        return;
    comm->running++;
    int injected = cusim_inject_error("ncclAsync", ncclRemoteError);
    bool good = false;
    if (injected) {
        comm->state =
            fail((ncclResult_t)injected, "rank %d: an error of the network, injected in %s",
                 comm->rank, kind_names[call->kind]);
    } else if ((good = publish(call))) {
        state_operands(call);
        good = call->kind == BROADCAST || call->kind == ALLGATHER ? run_spread(call)
                                                                  : run_reduction(call);
    }
    int state = comm->state.load();
    if (!good && state != ncclInvalidUsage)
        stay_until_abort(comm);
    comm->running--;
}

static void ring(Comm *comm, int rank)
{
    std::atomic<uint32_t> *bell = &comm->shared->slot[rank].bell;
    ++*bell;
    syscall(SYS_futex, bell, FUTEX_WAKE, 1 << 30, nullptr, nullptr, 0);
}

static bool move_out(Call *call, Mailbox *mail, size_t bytes)
{
    if (mail->full.load())
        return false;
    size_t part = bytes - call->moved < MAIL ? bytes - call->moved : MAIL;
    mail->bytes = (uint32_t)part;
    mail->type = (uint32_t)call->type;
    mail->count = call->count;
    cusim_copy(mail->data, place(call->src) + call->moved, part);
    call->moved += part;
    cusim_edge_release(mail);
    mail->full = 1;
    return true;
}

static bool move_in(Call *call, Mailbox *mail)
{
    if (!mail->full.load())
        return false;
    cusim_edge_acquire(mail);
    if (mail->count != call->count || mail->type != (uint32_t)call->type) {
        call->comm->state = fail(ncclInvalidUsage,
                                 "rank %d sends %llu elements of type %u, rank %d receives %zu of "
                                 "type %d",
                                 call->root, (unsigned long long)mail->count, mail->type,
                                 call->comm->rank, call->count, (int)call->type);
        cusim_report("a message of rank %d does not match", call->root);
        return false;
    }
    cusim_copy(place(call->dst) + call->moved, mail->data, mail->bytes);
    call->moved += mail->bytes;
    mail->full = 0;
    return true;
}

/* Moves what can be moved now. Messages between the same two ranks keep their order. */
static bool progress(Call *calls, int count, bool *finished)
{
    bool moved = false;
    uint64_t busy[2] = {0, 0};
    *finished = true;
    for (int i = 0; i < count; i++) {
        Call *call = &calls[i];
        Comm *comm = call->comm;
        size_t bytes = call->count * type_bytes(call->type);
        bool send = call->kind == SEND;
        if (call->moved == bytes)
            continue;
        *finished = false;
        if (busy[send] >> call->root & 1)
            continue;
        busy[send] |= 1ull << call->root;
        int src = send ? comm->rank : call->root, dst = send ? call->root : comm->rank;
        Mailbox *mail = &comm->shared->mail[src * RANKS + dst];
        if (send ? move_out(call, mail, bytes) : move_in(call, mail)) {
            moved = true;
            ring(comm, call->root);
        }
    }
    return moved;
}

static int64_t now_ms()
{
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static void exchange(Comm *comm, Call *calls, int count)
{
    static const long limit_ms = setting("CUSIM_NCCL_TIMEOUT_MS", 10000);
    int64_t end = now_ms() + limit_ms;
    for (bool finished = false; !finished;) {
        uint32_t seen = comm->shared->slot[comm->rank].bell.load();
        if (progress(calls, count, &finished)) {
            end = now_ms() + limit_ms;
            continue;
        }
        if (finished || comm->aborted.load() || comm->state.load() != ncclSuccess)
            return;
        if (now_ms() > end) {
            comm->state = fail(ncclRemoteError, "rank %d waits in vain for messages", comm->rank);
            return;
        }
        timespec slice = {0, 20 * 1000000};
        syscall(SYS_futex, &comm->shared->slot[comm->rank].bell, FUTEX_WAIT, seen, &slice, nullptr,
                0);
    }
}

void run_messages(Call *calls, int count)
{
    Comm *comm = calls[0].comm;
    if (!may_run(comm))
        return;
    comm->running++;
    for (int i = 0; i < count; i++) {
        size_t bytes = calls[i].count * type_bytes(calls[i].type);
        calls[i].moved = 0;
        if (calls[i].kind == SEND)
            cusim_reads(calls[i].src, bytes);
        else
            cusim_writes(calls[i].dst, bytes);
    }
    int injected = cusim_inject_error("ncclAsync", ncclRemoteError);
    if (injected)
        comm->state =
            fail((ncclResult_t)injected, "rank %d: an error of the network, injected", comm->rank);
    else
        exchange(comm, calls, count);
    if (comm->state.load() != ncclSuccess && comm->state.load() != ncclInvalidUsage)
        stay_until_abort(comm);
    comm->running--;
}
} // namespace simnccl
