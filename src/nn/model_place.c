/* model_place.c - places for buffers whose lifetimes are known: larger ones first, each at the
 * lowest offset where nothing lies that lives at the same time.
 *
 * First fit by decreasing size, as planners of inference run-times do (Pisarchyk and Lee,
 * "Efficient Memory Management for Deep Neural Net Inference", MLSys 2020 workshop). Set-up only.
 */
#include <stdlib.h>

#include "ddp/memory.h"
#include "nn/model_impl.h"

static size_t aligned(size_t bytes)
{
    return (bytes + DDP_ALIGN_BYTES - 1) / DDP_ALIGN_BYTES * DDP_ALIGN_BYTES;
}

/* Equal sizes in order of life, so that the result is a function of the model alone. */
static int by_size(const void *a, const void *b)
{
    const ddpi_buffer *x = *(const ddpi_buffer *const *)a, *y = *(const ddpi_buffer *const *)b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    if (x->from != y->from)
        return x->from < y->from ? -1 : 1;
    return (x > y) - (x < y);
}

static bool live_together(const ddpi_buffer *a, const ddpi_buffer *b)
{
    return a->from <= b->to && b->from <= a->to;
}

/* Inserts into a list that is sorted by offset. */
static void insert(ddpi_buffer **placed, int count, ddpi_buffer *buffer)
{
    int at = count;
    while (at > 0 && placed[at - 1]->offset > buffer->offset) {
        placed[at] = placed[at - 1];
        at--;
    }
    placed[at] = buffer;
}

static size_t lowest_gap(ddpi_buffer *const *placed, int count, const ddpi_buffer *buffer)
{
    size_t offset = 0, want = aligned(buffer->bytes);
    for (int i = 0; i < count; i++) {
        if (!live_together(placed[i], buffer))
            continue;
        if (placed[i]->offset >= offset + want)
            break;
        const size_t end = placed[i]->offset + aligned(placed[i]->bytes);
        offset = end > offset ? end : offset;
    }
    return offset;
}

ddp_status ddpi_schedule_place(ddpi_schedule *schedule)
{
    const int count = schedule->buffer_count;
    ddpi_buffer **order, **placed;
    schedule->bytes = 0;
    if (count == 0)
        return DDP_OK;
    DDP_TRY(DDP_ALLOC(order, 2 * (size_t)count));
    placed = order + count;
    for (int i = 0; i < count; i++)
        order[i] = &schedule->buffers[i];
    qsort(order, (size_t)count, sizeof(ddpi_buffer *), by_size);
    for (int i = 0; i < count; i++) {
        order[i]->offset = lowest_gap(placed, i, order[i]);
        insert(placed, i, order[i]);
        const size_t end = order[i]->offset + aligned(order[i]->bytes);
        schedule->bytes = end > schedule->bytes ? end : schedule->bytes;
    }
    ddp_free(order);
    return DDP_OK;
}
