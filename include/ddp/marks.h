/* marks.h - how the time of a stream divides: events between intervals, each of a kind that the
 * caller numbers, whose times are added up when the stream has got there. One thread. */
#ifndef DDP_MARKS_H
#define DDP_MARKS_H

#include "ddp/device.h"
#include "ddp/spans.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ddp_marks ddp_marks;

/* Room for so many marks between two calls of clear. The caller owns *marks_out, and destroys it
 * before the device is closed. */
DDP_CALL ddp_status ddp_marks_create(ddp_device *device, int capacity, ddp_marks **marks_out);
/* NULL is fine. */
DDP_API void ddp_marks_destroy(ddp_marks *marks);
DDP_API void ddp_marks_clear(ddp_marks *marks);
/* What the stream was given since the mark before is of this kind; what came before the first mark
 * is of none. */
DDP_CALL ddp_status ddp_marks_set(ddp_marks *marks, ddp_stream *stream, int kind);
/* When the stream has passed all marks: adds each interval to the time of its kind, of which there
 * are `kinds`. */
DDP_CALL ddp_status ddp_marks_add(const ddp_marks *marks, int64_t *ns, int kinds);
/* The same as spans on the stream: an interval of kind k is one of kind span_kinds[k], unless that
 * is below 0. end's last mark, on the same stream, was passed at end_ns; without marks there,
 * nothing is kept. */
DDP_CALL ddp_status ddp_marks_spans(const ddp_marks *marks, const ddp_marks *end, int64_t end_ns,
                                    const int *span_kinds);

#ifdef __cplusplus
}
#endif
#endif
