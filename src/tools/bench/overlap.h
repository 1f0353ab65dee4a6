/* overlap.h - the parts of ddp_bench overlap: whose runs it looks at (overlap.c), their spans
 * (overlap_read.c), what they say (overlap_measure.c), and how it is told (overlap_report.c).
 *
 * All of it is measured by the training itself: its spans (ddp/spans.h) say when a bucket was
 * complete on a rank, when all ranks had come to it, when its sum was there, and when the main
 * thread did nothing but wait for communication or carry it out. */
#ifndef DDP_TOOLS_BENCH_OVERLAP_H
#define DDP_TOOLS_BENCH_OVERLAP_H

#include "ddp/spans.h"
#include "tools/bench/bench_util.h"

/* A span of a rank's. Times in seconds, on one clock for all ranks. */
typedef struct ddpi_overlap_span {
    int rank;
    bool main; /* on the thread that computes */
    ddp_span_kind kind;
    int id;
    int64_t step;
    double begin, end, bytes;
} ddpi_overlap_span;

typedef struct ddpi_overlap_trace {
    ddpi_overlap_span *spans; /* owned; sorted by ddpi_overlap_measure() */
    int count, capacity;
} ddpi_overlap_trace;

/* Medians over steps and ranks. Times in seconds, counted from the beginning of backward. */
typedef struct ddpi_overlap_bucket {
    double bytes;
    double ready;      /* its last gradient is complete; as start where nothing tells */
    double start, end; /* of the communication */
    double took;       /* from start to end */
    double hidden;     /* of that, while the main thread computed */
    double waited;     /* by the main thread, for this bucket */
} ddpi_overlap_bucket;

/* Medians over steps. */
typedef struct ddpi_overlap {
    int ranks, steps, bucket_count;
    ddpi_overlap_bucket *buckets; /* owned */
    double step, backward;        /* mean over ranks */
    double comm;                  /* buckets one after the other, mean over ranks */
    double exposed_mean;          /* the main thread waits, mean over ranks */
    double exposed;               /* of the rank that waits least, so for no other rank */
    int64_t median_step;          /* a step that took the median time, for the picture */
} ddpi_overlap;

/* Local. Reads a trace.json of ddp_train's (--trace-steps). The caller frees the spans. */
DDP_INNER ddp_status ddpi_overlap_read(const char *path, ddpi_overlap_trace *trace_out);
/* Local. Steps before `from` do not count. DDP_ERR_FORMAT if no step is complete. The caller calls
 * ddpi_overlap_free(). */
DDP_INNER ddp_status ddpi_overlap_measure(ddpi_overlap_trace *trace, int64_t from,
                                          ddpi_overlap *overlap_out);
void ddpi_overlap_free(ddpi_overlap *overlap);
/* The rule: what backward could not hide, and a tenth of the communication, may be exposed. */
double ddpi_overlap_allowed(const ddpi_overlap *overlap);
/* Of the communication that fits behind backward, the share that was hidden; 1 if there is none. */
double ddpi_overlap_share(const ddpi_overlap *overlap);

/* sync: of the same training without overlap; NULL: not measured. */
DDP_INNER ddp_status ddpi_overlap_report(const ddpi_overlap *overlap, const ddpi_overlap *sync,
                                         const ddpi_overlap_trace *trace, ddpi_bench_out *out);

#endif
