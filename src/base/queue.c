/* queue.c - the bounded queue of thread.h: a ring under one monitor.
 * Producers and consumers share the condition; each change of state wakes all, and all check again.
 */
#include "ddp/memory.h"
#include "ddp/thread.h"

struct ddp_queue {
    ddp_monitor monitor; /* guards all below */
    void **ring;
    size_t capacity;
    size_t first;
    size_t length;
    bool closed;
};

ddp_status ddp_queue_create(size_t capacity, ddp_queue **queue_out)
{
    ddp_queue *queue;
    ddp_status st;

    DDP_ASSERT(capacity > 0);
    DDP_TRY(DDP_ALLOC(queue, 1));
    queue->capacity = capacity;
    DDP_TRY_GOTO(st, DDP_ALLOC(queue->ring, capacity), err_free);
    DDP_TRY_GOTO(st, ddp_monitor_init(&queue->monitor), err_ring);
    *queue_out = queue;
    return DDP_OK;

err_ring:
    ddp_free(queue->ring);
err_free:
    ddp_free(queue);
    return st;
}

void ddp_queue_destroy(ddp_queue *queue)
{
    if (queue == NULL)
        return;
    ddp_monitor_destroy(&queue->monitor);
    ddp_free(queue->ring);
    ddp_free(queue);
}

ddp_queue_result ddp_queue_push(ddp_queue *queue, void *item, int64_t deadline_ns)
{
    ddp_queue_result result = DDP_QUEUE_OK;

    ddp_monitor_lock(&queue->monitor);
    while (!queue->closed && queue->length == queue->capacity)
        if (!ddp_monitor_wait(&queue->monitor, deadline_ns))
            break;
    if (queue->closed) {
        result = DDP_QUEUE_CLOSED;
    } else if (queue->length == queue->capacity) {
        result = DDP_QUEUE_TIMEOUT;
    } else {
        queue->ring[(queue->first + queue->length) % queue->capacity] = item;
        queue->length++;
        ddp_monitor_wake_all(&queue->monitor);
    }
    ddp_monitor_unlock(&queue->monitor);
    return result;
}

ddp_queue_result ddp_queue_pop(ddp_queue *queue, void **item_out, int64_t deadline_ns)
{
    ddp_queue_result result = DDP_QUEUE_OK;

    ddp_monitor_lock(&queue->monitor);
    while (!queue->closed && queue->length == 0)
        if (!ddp_monitor_wait(&queue->monitor, deadline_ns))
            break;
    if (queue->length > 0) {
        *item_out = queue->ring[queue->first];
        queue->first = (queue->first + 1) % queue->capacity;
        queue->length--;
        ddp_monitor_wake_all(&queue->monitor);
    } else {
        result = queue->closed ? DDP_QUEUE_CLOSED : DDP_QUEUE_TIMEOUT;
    }
    ddp_monitor_unlock(&queue->monitor);
    return result;
}

void ddp_queue_close(ddp_queue *queue)
{
    ddp_monitor_lock(&queue->monitor);
    queue->closed = true;
    ddp_monitor_wake_all(&queue->monitor);
    ddp_monitor_unlock(&queue->monitor);
}

size_t ddp_queue_length(ddp_queue *queue)
{
    ddp_monitor_lock(&queue->monitor);
    size_t length = queue->length;
    ddp_monitor_unlock(&queue->monitor);
    return length;
}
