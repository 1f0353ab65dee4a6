/* marks.c - intervals of a stream between events that are made once. See marks.h. */
#include "ddp/marks.h"

#include "ddp/memory.h"

typedef struct mark {
    ddp_event *event;
    int kind;
} mark;

struct ddp_marks {
    int count, capacity;
    mark *items;
};

ddp_status ddp_marks_create(ddp_device *device, int capacity, ddp_marks **marks_out)
{
    ddp_marks *marks;
    ddp_status st;
    DDP_TRY(DDP_ALLOC(marks, 1));
    DDP_TRY_GOTO(st, DDP_ALLOC(marks->items, (size_t)capacity), err);
    for (; marks->capacity < capacity; marks->capacity++)
        DDP_TRY_GOTO(st, ddp_event_create(device, &marks->items[marks->capacity].event), err);
    *marks_out = marks;
    return DDP_OK;
err:
    ddp_marks_destroy(marks);
    return st;
}

void ddp_marks_destroy(ddp_marks *marks)
{
    if (marks == NULL)
        return;
    for (int i = 0; i < marks->capacity; i++)
        ddp_event_destroy(marks->items[i].event);
    ddp_free(marks->items);
    ddp_free(marks);
}

void ddp_marks_clear(ddp_marks *marks)
{
    marks->count = 0;
}

ddp_status ddp_marks_set(ddp_marks *marks, ddp_stream *stream, int kind)
{
    DDP_ASSERT(marks->count < marks->capacity);
    mark *next = &marks->items[marks->count++];
    next->kind = kind;
    return ddp_event_stamp(next->event, stream);
}

ddp_status ddp_marks_add(const ddp_marks *marks, int64_t *ns, int kinds)
{
    for (int i = 1; i < marks->count; i++) {
        const mark *from = &marks->items[i - 1], *to = &marks->items[i];
        int64_t elapsed_ns;
        DDP_ASSERT(to->kind >= 0 && to->kind < kinds);
        DDP_TRY(ddp_event_elapsed(from->event, to->event, &elapsed_ns));
        ns[to->kind] += elapsed_ns;
    }
    return DDP_OK;
}

ddp_status ddp_marks_spans(const ddp_marks *marks, const ddp_marks *end, int64_t end_ns,
                           const int *span_kinds)
{
    int64_t before_ns, after_ns;
    if (end->count == 0 || marks->count == 0 || !ddp_spans_joined())
        return DDP_OK;
    const ddp_event *last = end->items[end->count - 1].event;
    DDP_TRY(ddp_event_elapsed(marks->items[0].event, last, &before_ns));
    for (int i = 1; i < marks->count; i++, before_ns = after_ns) {
        const int kind = span_kinds[marks->items[i].kind];
        after_ns = 0;
        if (marks->items[i].event != last)
            DDP_TRY(ddp_event_elapsed(marks->items[i].event, last, &after_ns));
        if (kind >= 0)
            ddp_spans_add((ddp_span_kind)(kind | DDP_SPAN_ON_STREAM), -1, -1, end_ns - before_ns,
                          end_ns - after_ns, 0);
    }
    return DDP_OK;
}
