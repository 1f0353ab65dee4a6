/*
 * memory.cc - device and pinned memory.
 *
 * Device memory is two address ranges at a constant distance. The program gets addresses of the
 * first, which stays inaccessible: host code that follows a device pointer faults. The simulator
 * works in the second. Pinned memory is one range. Allocations end at a guard page (rounded up to
 * 256 bytes), begin as 0xFF (NaN for every floating type) and are never reused, so that overruns
 * and uses after free fault, and the handler says which allocation it was. The bytes between the
 * pages' start and the allocation are looked at when it is freed. Locks: one for the tables;
 * entries are only added, in order of address.
 */
#include "sim.h"

#include "gpu.h"
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace sim
{
static const size_t PAGE = 4096;
static const size_t ROUND = 256;
static const int BLOCKS = 1 << 20;

struct Registered {
    uintptr_t base;
    size_t bytes;
};
struct Arena {
    uintptr_t low = 0, high = 0, next = 0;
    Block *blocks = nullptr; /* by address */
    std::atomic<int> count{0};
};
static Arena device, pinned;
static uintptr_t delta; /* from a device pointer to where the memory is */
static List<Registered> *registered;
static size_t used_bytes[64];
static int ordinals[64];
static Lock tables;
static struct sigaction previous;
__thread const char *running_kernel __attribute__((tls_model("initial-exec")));

/* Without the sanitizers' interceptors: they would mark the whole range. */
static uintptr_t reserve(size_t bytes, int protection)
{
    long place = syscall(SYS_mmap, nullptr, bytes, protection,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0L);
    if (place < 0 && place > -4096)
        abort();
    return (uintptr_t)place;
}

static void open_arena(Arena *arena, size_t bytes)
{
    arena->low = reserve(bytes, PROT_NONE);
    arena->high = arena->low + bytes;
    arena->next = arena->low + PAGE;
    arena->blocks = (Block *)reserve(BLOCKS * sizeof(Block), PROT_READ | PROT_WRITE);
}

static bool open_arenas()
{
    static const bool once = [] {
        size_t bytes = (size_t)128 << 30;
        open_arena(&device, bytes);
        delta = reserve(bytes, PROT_NONE) - device.low;
        open_arena(&pinned, (size_t)32 << 30);
        registered = new (quiet_alloc(sizeof *registered)) List<Registered>();
        return true;
    }();
    return once;
}

static bool in(const Arena &arena, uintptr_t address)
{
    return address >= arena.low && address < arena.high;
}

/* The last block whose pages start at or before the address (its guard page counts as its own). */
static Block *block_at(const Arena &arena, uintptr_t address)
{
    int low = 0, high = arena.count.load();
    while (low < high) {
        int middle = (low + high) / 2;
        if (arena.blocks[middle].start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? &arena.blocks[low - 1] : nullptr;
}

static bool inside(const Block *block, uintptr_t address, size_t bytes)
{
    return block && block->live && address >= block->base && bytes <= block->bytes &&
           address - block->base <= block->bytes - bytes;
}

static bool registered_range(uintptr_t address, size_t bytes)
{
    Guard guard(tables);
    if (registered)
        for (const Registered &one : *registered)
            if (address >= one.base && address - one.base + bytes <= one.bytes)
                return true;
    return false;
}

Kind kind_of(const void *p)
{
    uintptr_t address = (uintptr_t)p;
    if (in(device, address))
        return DEVICE;
    return in(pinned, address) || registered_range(address, 1) ? PINNED : HOST;
}

bool lies_within(const void *p, size_t bytes)
{
    uintptr_t address = (uintptr_t)p;
    if (in(device, address))
        return inside(block_at(device, address), address, bytes);
    return !in(pinned, address) || inside(block_at(pinned, address), address, bytes);
}

static void fill(void *place, size_t bytes)
{
#if defined(__x86_64__)
    __asm__ volatile("rep stosb" : "+D"(place), "+c"(bytes) : "a"(0xff) : "memory");
#else
    for (size_t i = 0; i < bytes; i++)
        ((volatile unsigned char *)place)[i] = 0xff;
#endif
}

/* With `tables` held. NULL: the range is used up. */
static Block *add_block(Arena *arena, size_t bytes, uintptr_t shift)
{
    size_t rounded = (bytes + ROUND - 1) / ROUND * ROUND;
    size_t pages = (rounded + PAGE - 1) / PAGE * PAGE;
    int count = arena->count.load();
    if (count == BLOCKS || pages > arena->high - arena->next - PAGE)
        return nullptr;
    Block *block = &arena->blocks[count];
    *block = Block{arena->next + pages - rounded, bytes, arena->next, pages, 0, 0, 0, true};
    if (mprotect((void *)(block->start + shift), pages, PROT_READ | PROT_WRITE))
        return nullptr;
    fill((void *)(block->start + shift), pages);
    arena->next += pages + PAGE;
    arena->count.store(count + 1);
    return block;
}

/* Nothing outside the allocation has changed? */
static void check_slack(const Block *block, uintptr_t shift, const char *what)
{
    const unsigned char *first = (const unsigned char *)(block->start + shift);
    const unsigned char *begin = (const unsigned char *)(block->base + shift);
    for (const unsigned char *p = first; p < first + block->pages; p++) {
        if (p == begin)
            p += block->bytes;
        if (p < first + block->pages && *p != 0xff) {
            cusim_report("%s allocation #%d (%zu bytes) was written outside, at %+td", what,
                         block->ordinal, block->bytes, p - begin);
            return;
        }
    }
}

static void close_block(Block *block, uintptr_t shift, const char *what)
{
    check_slack(block, shift, what);
    block->live = false;
    madvise((void *)(block->start + shift), block->pages, MADV_DONTNEED);
    mprotect((void *)(block->start + shift), block->pages, PROT_NONE);
}

static size_t capacity()
{
    static const size_t bytes = (size_t)setting("CUSIM_MEMORY_MB", 4096) << 20;
    return bytes;
}

cudaError_t device_alloc(void **out, size_t bytes)
{
    if (!out)
        return cudaErrorInvalidValue;
    *out = nullptr;
    if (bytes == 0)
        return cudaSuccess;
    open_arenas();
    Guard guard(tables);
    int number = current_device();
    if (bytes > capacity() || used_bytes[number] + bytes > capacity())
        return cudaErrorMemoryAllocation;
    Block *block = add_block(&device, bytes, delta);
    if (!block)
        return cudaErrorMemoryAllocation;
    block->device = number;
    block->ordinal = ++ordinals[number];
    used_bytes[number] += bytes;
    *out = (void *)block->base;
    return cudaSuccess;
}

static void name_place(const Arena &arena, const char *what, uintptr_t address, char *text,
                       size_t size)
{
    Block *block = block_at(arena, address);
    if (!block)
        snprintf(text, size, "%s memory that was never allocated", what);
    else
        snprintf(text, size, "%s allocation #%d %+td of %zu bytes%s", what, block->ordinal,
                 (ptrdiff_t)(address - block->base), block->bytes,
                 block->live ? "" : ", which was freed");
}

void explain_fault(uintptr_t address, char *text, size_t size)
{
    if (in(device, address))
        name_place(device, "device", address, text, size);
    else if (in(device, address - delta))
        name_place(device, "device", address - delta, text, size);
    else if (in(pinned, address))
        name_place(pinned, "pinned", address, text, size);
    else
        text[0] = 0;
}

static void on_fault(int signal_number, siginfo_t *info, void *)
{
    char place[160];
    uintptr_t address = (uintptr_t)info->si_addr;
    explain_fault(address, place, sizeof place);
    if (running_kernel) {
        const cusim_context &at = cusim_current;
        note("kernel %s, block (%u,%u,%u), thread (%u,%u,%u): illegal access to %s", running_kernel,
             at.block.x, at.block.y, at.block.z, at.thread.x, at.thread.y, at.thread.z,
             place[0] ? place : "memory that is neither device nor pinned");
    } else if (place[0]) {
        note("%s %s",
             in(device, address) ? "host code dereferences a device pointer:" : "illegal access to",
             place);
    } else {
        sigaction(signal_number, &previous, nullptr);
        return;
    }
    _exit(99);
}

void install_fault_handler()
{
    static const bool once = [] {
        struct sigaction action = {};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO | SA_NODEFER;
        sigaction(SIGSEGV, &action, &previous);
        return true;
    }();
    (void)once;
}

/* A word of a struct that is an address of ordinary memory, most likely. */
static bool looks_like_host_pointer(uintptr_t word)
{
    unsigned char resident;
    if (word < 0x500000000000 || word >= 0x800000000000 || word % 4)
        return false;
    return mincore((void *)(word / PAGE * PAGE), 1, &resident) == 0;
}

static bool admit(uintptr_t *word)
{
    uintptr_t address = *word;
    const Arena &arena = in(device, address) ? device : pinned;
    const char *what = in(device, address) ? "device" : "pinned";
    Block *block = block_at(arena, address);
    if (!block || !block->live || address > block->base + block->bytes) {
        char place[160];
        explain_fault(address, place, sizeof place);
        cusim_report("kernel argument points to %s", block ? place : what);
        return false;
    }
    if (&arena == &device && block->device != current_device()) {
        cusim_report("kernel argument is memory of device %d; the current device is %d",
                     block->device, current_device());
        return false;
    }
    if (&arena == &device)
        *word += delta;
    return true;
}
} // namespace sim

using namespace sim;

extern "C" {
bool cusim_argument_pointer(const void **pointer)
{
    uintptr_t address = (uintptr_t)*pointer;
    if (address == 0 || registered_range(address, 1))
        return true;
    if (!in(device, address) && !in(pinned, address)) {
        cusim_report("kernel argument %p is neither device nor pinned memory", *pointer);
        return false;
    }
    return admit((uintptr_t *)pointer);
}

bool cusim_argument_words(void *object, size_t bytes)
{
    for (size_t at = 0; at + sizeof(uintptr_t) <= bytes; at += sizeof(uintptr_t)) {
        uintptr_t word;
        __builtin_memcpy(&word, (char *)object + at, sizeof word);
        if (in(device, word) || in(pinned, word)) {
            if (!admit(&word))
                return false;
            __builtin_memcpy((char *)object + at, &word, sizeof word);
        } else if (looks_like_host_pointer(word) && !registered_range(word, 1)) {
            cusim_report(
                "kernel argument %p, %zu bytes into a struct, is neither device nor pinned "
                "memory",
                (void *)word, at);
            return false;
        }
    }
    return true;
}

void *cusim_host(const void *p)
{
    uintptr_t address = (uintptr_t)p;
    if (in(device, address))
        return (void *)(address + delta);
    return kind_of(p) == PINNED ? const_cast<void *>(p) : nullptr;
}

bool cusim_valid(const void *p, size_t bytes)
{
    uintptr_t address = (uintptr_t)p;
    if (in(device, address) || in(pinned, address))
        return lies_within(p, bytes);
    return registered_range(address, bytes);
}

int cusim_allocation(const void *p, size_t *offset_out)
{
    uintptr_t address = (uintptr_t)p;
    Block *block = in(device, address) ? block_at(device, address) : nullptr;
    if (!inside(block, address, 0))
        return 0;
    *offset_out = address - block->base;
    return block->ordinal;
}

void cusim_reads(const void *p, size_t bytes)
{
    void *place = cusim_host(p);
    read_range(place ? place : p, bytes);
}

void cusim_writes(void *p, size_t bytes)
{
    void *place = cusim_host(p);
    write_range(place ? place : p, bytes);
}

static cudaError_t may_allocate(const char *call)
{
    Guard guard(api);
    return forbidden_by_capture(call);
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    CUSIM_ENTER("cudaMalloc");
    if (device_count() == 0)
        return result(cudaErrorNoDevice);
    if (cudaError_t error = may_allocate("cudaMalloc"))
        return result(error);
    return result(device_alloc(out, bytes));
}

cudaError_t cudaFree(void *p)
{
    CUSIM_ENTER("cudaFree");
    if (!p)
        return cudaSuccess;
    if (cudaError_t error = may_allocate("cudaFree"))
        return result(error);
    Block *block = in(device, (uintptr_t)p) ? block_at(device, (uintptr_t)p) : nullptr;
    if (!block || block->base != (uintptr_t)p || !block->live) {
        char place[160];
        explain_fault((uintptr_t)p, place, sizeof place);
        cusim_report("cudaFree of %p: %s", p, place[0] ? place : "not device memory");
        return result(cudaErrorInvalidValue);
    }
    drain(block->device);
    Guard guard(tables);
    close_block(block, delta, "device");
    used_bytes[block->device] -= block->bytes;
    return result((cudaError_t)sticky.load());
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    CUSIM_ENTER("cudaHostAlloc");
    if (!out || (flags & ~7u))
        return result(cudaErrorInvalidValue);
    *out = nullptr;
    if (bytes == 0)
        return cudaSuccess;
    if (cudaError_t error = may_allocate("cudaHostAlloc"))
        return result(error);
    open_arenas();
    Guard guard(tables);
    Block *block = add_block(&pinned, bytes, 0);
    if (!block)
        return result(cudaErrorMemoryAllocation);
    block->ordinal = pinned.count.load();
    block->device = current_device();
    block->flags = flags;
    *out = (void *)block->base;
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **out, size_t bytes)
{
    return cudaHostAlloc(out, bytes, 0);
}

cudaError_t cudaFreeHost(void *p)
{
    CUSIM_ENTER("cudaFreeHost");
    if (!p)
        return cudaSuccess;
    if (cudaError_t error = may_allocate("cudaFreeHost"))
        return result(error);
    Block *block = in(pinned, (uintptr_t)p) ? block_at(pinned, (uintptr_t)p) : nullptr;
    if (!block || block->base != (uintptr_t)p || !block->live) {
        cusim_report("cudaFreeHost of %p, which is not live pinned memory", p);
        return result(cudaErrorInvalidValue);
    }
    drain(-1);
    Guard guard(tables);
    close_block(block, 0, "pinned");
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags)
{
    CUSIM_ENTER("cudaHostRegister");
    if (!p || bytes == 0 || (flags & ~15u) || kind_of(p) == DEVICE)
        return result(cudaErrorInvalidValue);
    if (kind_of(p) == PINNED)
        return result(cudaErrorHostMemoryAlreadyRegistered);
    open_arenas();
    Guard guard(tables);
    registered->push_back(Registered{(uintptr_t)p, bytes});
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *p)
{
    CUSIM_ENTER("cudaHostUnregister");
    drain(-1);
    Guard guard(tables);
    if (registered)
        for (size_t i = 0; i < registered->size(); i++)
            if ((*registered)[i].base == (uintptr_t)p) {
                registered->erase(registered->begin() + (ptrdiff_t)i);
                return cudaSuccess;
            }
    return result(cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaHostGetDevicePointer(void **out, void *p, unsigned)
{
    CUSIM_ENTER("cudaHostGetDevicePointer");
    if (!out || kind_of(p) != PINNED)
        return result(cudaErrorInvalidValue);
    *out = p;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *unused, size_t *total)
{
    CUSIM_ENTER("cudaMemGetInfo");
    if (device_count() == 0)
        return result(cudaErrorNoDevice);
    Guard guard(tables);
    *total = capacity();
    *unused = capacity() - used_bytes[current_device()];
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *p)
{
    CUSIM_ENTER("cudaPointerGetAttributes");
    memset(attributes, 0, sizeof *attributes);
    attributes->device = -2;
    uintptr_t address = (uintptr_t)p;
    Kind kind = kind_of(p);
    if (kind == DEVICE) {
        Block *block = block_at(device, address);
        if (!inside(block, address, 1))
            return result(cudaErrorInvalidValue);
        attributes->type = cudaMemoryTypeDevice;
        attributes->device = block->device;
        attributes->devicePointer = const_cast<void *>(p);
    } else if (kind == PINNED) {
        attributes->type = cudaMemoryTypeHost;
        attributes->device = current_device();
        attributes->devicePointer = attributes->hostPointer = const_cast<void *>(p);
    }
    return cudaSuccess;
}
}
