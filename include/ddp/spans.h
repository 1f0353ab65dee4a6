/* spans.h - what each thread of a rank did and when: a ring of intervals per thread, always on.
 *
 * A thread joins the spans of its rank context (status.h) and has a track from then on. It alone
 * writes there, without locks, and the oldest spans make room for new ones. Anybody may read. Spans
 * of a track nest: a layer's backward lies within BACKWARD, and an update that it set off within
 * the layer's; the time of its own is what is left when those within are taken away. BUCKET is the
 * exception: buckets travel beside whatever their thread does. Times as ddp_now_ns(). */
#ifndef DDP_SPANS_H
#define DDP_SPANS_H

#include "ddp/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ddp_span_kind {
    DDP_SPAN_STEP,          /* a training step, with what is around it */
    DDP_SPAN_DATA,          /* the main thread takes a batch; id: shard of the rank, from 0 */
    DDP_SPAN_FORWARD,       /* of a shard; id as of DATA */
    DDP_SPAN_BACKWARD,      /* the same */
    DDP_SPAN_LAYER_FORWARD, /* id: the layer's number in the model */
    DDP_SPAN_LAYER_BACKWARD,
    DDP_SPAN_BUCKET,  /* a bucket's sum: from when all ranks had come, as far as this rank knows,
                         to its end; id: bucket, -1: all at once */
    DDP_SPAN_PUBLISH, /* owned slices of a bucket go to everybody, like BUCKET */
    DDP_SPAN_WAIT,    /* the main thread waits for communication, or carries it out; id: bucket */
    DDP_SPAN_OPTIM,   /* an update; id: bucket */
    DDP_SPAN_CONTROL, /* the ranks exchange what they have computed */
    DDP_SPAN_EVAL,    /* an evaluation */
    DDP_SPAN_CHECKPOINT, /* the training waits for a checkpoint's snapshot */
    DDP_SPAN_WRITE,      /* a checkpoint's writer at work */
    DDP_SPAN_LOAD,       /* a loader's thread prepares a batch; id as of DATA */
    DDP_SPAN_KINDS
} ddp_span_kind;

/* Added to a kind: what a device's main stream did then, while the thread that tells it did
 * something else. */
enum { DDP_SPAN_ON_STREAM = 1 << 8 };

typedef struct ddp_span {
    int64_t begin_ns, end_ns;
    int32_t kind, id;
    int64_t step;  /* of the run, from 1; 0: before the first */
    int64_t bytes; /* that it moved; 0: not known, or none */
} ddp_span;

/* typedef struct ddp_spans ddp_spans; (status.h) */
enum { DDP_SPANS_MAIN = 1 << 15, DDP_SPANS_WORKER = 1 << 10 }; /* usual sizes of rings */

/* A rank's. The caller owns *spans_out, puts it into the rank's context, and destroys it when all
 * threads have left. */
DDP_CALL ddp_status ddp_spans_create(ddp_spans **spans_out);
DDP_API void ddp_spans_destroy(ddp_spans *spans);

/* The calling thread gets a track of that name (copied) for `capacity` spans: one that a thread of
 * the same name has left, or a new one. Allocates. Without spans in its context, or where there is
 * no memory or room for it, it goes without a track. */
DDP_API void ddp_spans_join(const char *name, size_t capacity);
/* Before the thread ends, and before its rank's spans are destroyed. What it wrote stays. */
DDP_API void ddp_spans_leave(void);
/* Whether the calling thread has a track: else there is no need to look at the clock. */
DDP_API bool ddp_spans_joined(void);

/* The calling thread's. Takes some tens of nanoseconds; without a track it does nothing. A step
 * below 0 is the rank's current one. */
DDP_API void ddp_spans_add(ddp_span_kind kind, int32_t id, int64_t step, int64_t begin_ns,
                           int64_t end_ns, int64_t bytes);
/* The same for one that ends now, in the current step; returns how long it was. */
DDP_API int64_t ddp_spans_end(ddp_span_kind kind, int32_t id, int64_t begin_ns);
/* Of the rank of the calling thread: the step that begins. */
DDP_API void ddp_spans_set_step(int64_t step);

/* Any thread. Tracks are numbered from 0, which is the one that joined first. */
DDP_API int ddp_spans_tracks(ddp_spans *spans);
DDP_API const char *ddp_spans_track_name(ddp_spans *spans, int track);
/* Any thread. The track's spans that end after from_ns, in the order in which they were added, at
 * most the last `capacity` of them; returns how many. */
DDP_API size_t ddp_spans_read(ddp_spans *spans, int track, int64_t from_ns, ddp_span *spans_out,
                              size_t capacity);
/* "forward", "bucket", ...; the same on a stream. */
DDP_API const char *ddp_span_kind_name(ddp_span_kind kind);

#ifdef __cplusplus
}
#endif
#endif
