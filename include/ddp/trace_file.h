/* trace_file.h - spans of many ranks as a file that Perfetto and chrome://tracing open: Trace Event
 * Format, one JSON object. A process is a rank, a thread a track; times are microseconds from the
 * file's beginning. One thread. */
#ifndef DDP_TRACE_FILE_H
#define DDP_TRACE_FILE_H

#include "ddp/spans.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ddp_trace_file ddp_trace_file;

typedef struct ddp_trace_opts {
    int64_t origin_ns;         /* what the times count from: no span begins earlier */
    const char *const *layers; /* names, borrowed; others than these are numbered */
    int layer_count;
} ddp_trace_opts;

/* Written beside `path` until it is closed. The caller owns *file_out. */
DDP_CALL ddp_status ddp_trace_open(const ddp_trace_opts *opts, const char *path,
                                   ddp_trace_file **file_out);
/* The rank that the tracks behind it belong to. */
DDP_API void ddp_trace_rank(ddp_trace_file *file, int rank, const char *host);
/* A track, numbered within its rank below 999. Sorts the spans. Those that travel beside what the
 * track does go to tracks of their own, so many that none has two at a time. */
DDP_API void ddp_trace_track(ddp_trace_file *file, int track, const char *name, ddp_span *spans,
                             size_t count);
/* Completes the file under its name, or says why it could not be written; frees `file`. */
DDP_CALL ddp_status ddp_trace_close(ddp_trace_file *file);
/* Leaves nothing behind. NULL is fine. */
DDP_API void ddp_trace_abandon(ddp_trace_file *file);

#ifdef __cplusplus
}
#endif
#endif
