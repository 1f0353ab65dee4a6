/* log.h - messages by level: rank 0 on the console, every rank in a file of its own.
 *
 * A message goes to the log of the calling thread's rank context; without one, warnings and errors
 * go to stderr. Lines carry time, rank and level. The console shows rank 0's lines, and any rank's
 * errors. Any thread. */
#ifndef DDP_LOG_H
#define DDP_LOG_H

#include "ddp/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ddp_log_level {
    DDP_LOG_ERROR,
    DDP_LOG_WARN,
    DDP_LOG_INFO,
    DDP_LOG_DEBUG
} ddp_log_level;

typedef struct ddp_log_opts {
    int rank;
    ddp_log_level console_level; /* of rank 0's lines; errors of other ranks always show */
    ddp_log_level file_level;
} ddp_log_opts;

#define DDP_LOG_OPTS_DEFAULTS                                                                      \
    {                                                                                              \
        0, DDP_LOG_INFO, DDP_LOG_DEBUG                                                             \
    }

/* The caller owns *log_out. Lines are kept in memory (up to a limit) until a file is opened. */
DDP_CALL ddp_status ddp_log_create(const ddp_log_opts *opts, ddp_log **log_out);
/* Starts writing to a file (append); what was logged before is written first. */
DDP_CALL ddp_status ddp_log_open_file(ddp_log *log, const char *path);
DDP_API void ddp_log_destroy(ddp_log *log);

DDP_API void ddp_log_write(ddp_log_level level, const char *fmt, ...) DDP_PRINTF(2, 3);
#define ddp_error(...) ddp_log_write(DDP_LOG_ERROR, __VA_ARGS__)
#define ddp_warn(...)  ddp_log_write(DDP_LOG_WARN, __VA_ARGS__)
#define ddp_info(...)  ddp_log_write(DDP_LOG_INFO, __VA_ARGS__)
#define ddp_debug(...) ddp_log_write(DDP_LOG_DEBUG, __VA_ARGS__)

/* A line of the product itself (summary, results): on stdout of rank 0 without decoration, and in
 * the log file. */
DDP_API void ddp_log_print(const char *fmt, ...) DDP_PRINTF(1, 2);

/* The one-line progress display: redrawn in place on a terminal, a plain line every few seconds
 * elsewhere. Owned by rank 0; other ranks' calls do nothing. */
typedef struct ddp_progress {
    int epoch, epochs;
    int64_t step, steps; /* within the epoch */
    double loss, lr, images_per_s, seconds_left;
} ddp_progress;
DDP_API void ddp_log_progress(const ddp_progress *progress);
/* Ends the redrawn line, so that what follows starts on a line of its own. */
DDP_API void ddp_log_progress_end(void);

#ifdef __cplusplus
}
#endif
#endif
