/* memory.c - counted allocation.
 *
 * Each block has a header of one alignment unit in front, which holds its size, so that the bytes
 * in use and their peak are known. A mark in the header finds frees of what was not allocated here.
 * Counters are relaxed atomics: they are statistics and order nothing. Any thread. */
#include "ddp/memory.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HEADER_BYTES DDP_ALIGN_BYTES
#define HUGE_BYTES   ((size_t)2 << 20)
#define MARK_LIVE    0x6464702d6c697665ull
#define MARK_FREED   0x6464702d66726565ull

enum { FIRST_CAPACITY = 16 };

typedef struct block_header {
    uint64_t mark;
    size_t bytes; /* of the block behind it */
} block_header;

_Static_assert(sizeof(block_header) <= HEADER_BYTES, "the header keeps the alignment");

static _Atomic uint64_t used_bytes;
static _Atomic uint64_t peak_bytes;
static _Atomic uint64_t allocs_since_freeze;
static atomic_bool frozen;

static void count_alloc(size_t bytes)
{
    uint64_t used = atomic_fetch_add_explicit(&used_bytes, bytes, memory_order_relaxed) + bytes;
    uint64_t peak = atomic_load_explicit(&peak_bytes, memory_order_relaxed);

    while (used > peak &&
           !atomic_compare_exchange_weak_explicit(&peak_bytes, &peak, used, memory_order_relaxed,
                                                  memory_order_relaxed)) {
    }
    if (atomic_load_explicit(&frozen, memory_order_relaxed))
        atomic_fetch_add_explicit(&allocs_since_freeze, 1, memory_order_relaxed);
}

static void count_free(size_t bytes)
{
    atomic_fetch_sub_explicit(&used_bytes, bytes, memory_order_relaxed);
}

ddp_status ddp_alloc_bytes(size_t count, size_t item_bytes, void **memory_out)
{
    size_t bytes;
    size_t total;

    if (__builtin_mul_overflow(count, item_bytes, &bytes) ||
        __builtin_add_overflow(bytes, (size_t)2 * HEADER_BYTES, &total))
        return DDP_FAIL(DDP_ERR_NOMEM, "%zu items of %zu bytes are more than memory can hold",
                        count, item_bytes);
    /* aligned_alloc wants a multiple of the alignment. */
    total -= total % HEADER_BYTES;
    char *base = aligned_alloc(DDP_ALIGN_BYTES, total);
    if (base == NULL)
        return DDP_FAIL(DDP_ERR_NOMEM, "out of memory: %zu bytes were refused", bytes);
    memset(base, 0, total);
    block_header *header = (block_header *)(void *)base;
    header->mark = MARK_LIVE;
    header->bytes = bytes;
    count_alloc(bytes);
    *memory_out = base + HEADER_BYTES;
    return DDP_OK;
}

void ddp_free(void *memory)
{
    if (memory == NULL)
        return;
    block_header *header = (block_header *)(void *)((char *)memory - HEADER_BYTES);
    DDP_ASSERT(header->mark == MARK_LIVE);
    header->mark = MARK_FREED;
    count_free(header->bytes);
    free(header);
}

ddp_status ddp_grow_bytes(void **items, int *capacity, int count, size_t item_bytes)
{
    if (count < *capacity)
        return DDP_OK;
    const int larger = *capacity == 0 ? FIRST_CAPACITY : 2 * *capacity;
    void *memory;
    DDP_TRY(ddp_alloc_bytes((size_t)larger, item_bytes, &memory));
    if (count > 0)
        memcpy(memory, *items, (size_t)count * item_bytes);
    ddp_free(*items);
    *items = memory;
    *capacity = larger;
    return DDP_OK;
}

ddp_status ddp_strdup(const char *text, char **copy_out)
{
    size_t bytes = strlen(text) + 1;
    char *copy;

    DDP_TRY(DDP_ALLOC(copy, bytes));
    memcpy(copy, text, bytes);
    *copy_out = copy;
    return DDP_OK;
}

/* Whole pages that hold `bytes`; at least one. 0 if that overflows. */
static size_t mapped_bytes(size_t bytes, size_t page_bytes)
{
    if (bytes == 0)
        bytes = 1;
    return bytes > SIZE_MAX - HUGE_BYTES - page_bytes
               ? 0
               : (bytes + page_bytes - 1) / page_bytes * page_bytes;
}

ddp_status ddp_large_alloc(size_t bytes, void **memory_out)
{
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    size_t length = mapped_bytes(bytes, page_bytes);

    if (length == 0)
        return DDP_FAIL(DDP_ERR_NOMEM, "%zu bytes are more than memory can hold", bytes);
    /* One huge page more than needed, so that an aligned start lies inside; the rest is given back.
     */
    char *base =
        mmap(NULL, length + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return DDP_FAIL(DDP_ERR_NOMEM, "map %zu bytes: %s", bytes, strerror(errno));
    size_t skip = (HUGE_BYTES - (uintptr_t)base % HUGE_BYTES) % HUGE_BYTES;
    char *start = base + skip;
    if (skip > 0)
        munmap(base, skip);
    if (skip < HUGE_BYTES)
        munmap(start + length, HUGE_BYTES - skip);
    /* Only advice: without huge pages the buffer works as well, just slower. */
    (void)madvise(start, length, MADV_HUGEPAGE);
    for (size_t at = 0; at < length; at += page_bytes)
        *(volatile char *)(start + at) = 0;
    count_alloc(bytes);
    *memory_out = start;
    return DDP_OK;
}

void ddp_large_free(void *memory, size_t bytes)
{
    if (memory == NULL)
        return;
    size_t length = mapped_bytes(bytes, (size_t)sysconf(_SC_PAGESIZE));
    DDP_ASSERT(munmap(memory, length) == 0);
    count_free(bytes);
}

void ddp_mem_freeze(void)
{
    atomic_store(&allocs_since_freeze, 0);
    atomic_store(&frozen, true);
}

void ddp_mem_thaw(void)
{
    atomic_store(&frozen, false);
}

uint64_t ddp_mem_allocs_since_freeze(void)
{
    return atomic_load(&allocs_since_freeze);
}

uint64_t ddp_mem_peak_bytes(void)
{
    return atomic_load(&peak_bytes);
}
