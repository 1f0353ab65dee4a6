/* memory.h - checked allocation, large buffers in huge pages, and the count that proves that a
 * training step allocates nothing.
 *
 * All of libddp allocates through here. ddp_mem_freeze() marks the end of set-up for the calling
 * rank's process: ddp_mem_allocs_since_freeze() then says how many allocations came after. */
#ifndef DDP_MEMORY_H
#define DDP_MEMORY_H

#include "ddp/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Any thread. Zeroed memory, aligned to DDP_ALIGN_BYTES. count * item_bytes is checked against
 * overflow. Free with ddp_free(). A count of 0 gives a valid pointer. */
DDP_CALL ddp_status ddp_alloc_bytes(size_t count, size_t item_bytes, void **memory_out);
DDP_API void ddp_free(void *memory);
/* ptr is a pointer variable; allocates count items of what it points to. */
#define DDP_ALLOC(ptr, count) ddp_alloc_bytes((count), sizeof *(ptr), (void **)(void *)&(ptr))
/* Any thread. Room for one more item in a growing array of `count` items: twice as much memory
 * where *capacity is reached. On failure nothing changes. */
DDP_CALL ddp_status ddp_grow_bytes(void **items, int *capacity, int count, size_t item_bytes);
#define DDP_GROW(items, capacity, count)                                                           \
    ddp_grow_bytes((void **)(void *)&(items), &(capacity), (count), sizeof *(items))
/* Any thread. A copy of text that ddp_free() frees. */
DDP_CALL ddp_status ddp_strdup(const char *text, char **copy_out);

/* Any thread. A large private buffer: mapped, advised to be in huge pages, and touched, so that the
 * first step meets no page fault. Zeroed. Free with ddp_large_free() and the same size. */
DDP_CALL ddp_status ddp_large_alloc(size_t bytes, void **memory_out);
DDP_API void ddp_large_free(void *memory, size_t bytes);

DDP_API void ddp_mem_freeze(void);
DDP_API void ddp_mem_thaw(void);
DDP_API uint64_t ddp_mem_allocs_since_freeze(void);
/* Highest number of bytes that were allocated at once through this header. */
DDP_API uint64_t ddp_mem_peak_bytes(void);

#ifdef __cplusplus
}
#endif
#endif
