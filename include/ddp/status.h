/* status.h - how functions fail, and how a rank ends the job when it cannot go on.
 *
 * A function that the world can make fail (file, option, network, memory) returns a ddp_status. The
 * first function that knows the cause writes the message with DDP_FAIL; its callers only pass the
 * status up (DDP_TRY). The message belongs to the thread and lasts until that thread's next
 * failure. DDP_ASSERT is for our own bugs, stays in release builds, and takes the fatal path.
 *
 * The rank context says which rank a thread works for. Loopback runs many ranks in one process, so
 * it is per thread, and threads made by ddp_thread_start() inherit their maker's. */
#ifndef DDP_STATUS_H
#define DDP_STATUS_H

#include "ddp/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ddp_status {
    DDP_OK = 0,
    DDP_ERR_USAGE,       /* an option or argument is wrong: exit status 2 */
    DDP_ERR_IO,          /* the system refused: file, directory, socket */
    DDP_ERR_FORMAT,      /* a file's contents are not what they claim to be */
    DDP_ERR_NOMEM,       /* memory (of host or device) is not to be had */
    DDP_ERR_UNSUPPORTED, /* this backend or build cannot do it */
    DDP_ERR_SHAPE,       /* shapes do not fit; the message names the layer */
    DDP_ERR_MISMATCH,    /* ranks differ in something that must be equal */
    DDP_ERR_COMM,        /* the communicator failed */
    DDP_ERR_TIMEOUT,     /* a deadline passed */
    DDP_ERR_PEER,        /* another rank failed or died; the message carries its cause */
    DDP_ERR_NONFINITE,   /* a loss or gradient is NaN or infinite */
    DDP_ERR_INTERNAL,    /* a bug of ours that was caught in time */
    DDP_STOPPED,         /* not a failure: asked to stop, and everything is saved: exit status 3 */
    DDP_STATUS_COUNT
} ddp_status;

typedef struct ddp_log ddp_log;     /* obs: log.h */
typedef struct ddp_spans ddp_spans; /* obs: spans.h */

/* Which rank this thread works for. All pointers are borrowed and outlive the thread's use. */
typedef struct ddp_rank_ctx {
    int rank;
    int world;
    const char *host;
    ddp_log *log;     /* NULL: messages go to stderr */
    ddp_spans *spans; /* NULL: nobody keeps what the thread does */
    /* Called once, on the fatal path, with the cause: record it where the other ranks find it. */
    void (*on_fatal)(void *arg, const char *cause);
    void *on_fatal_arg;
} ddp_rank_ctx;

/* Local. "io", "usage", ... */
DDP_API const char *ddp_status_name(ddp_status status);
/* Local. The calling thread's last failure message; "" if there was none. */
DDP_API const char *ddp_status_message(void);
/* Local. Writes the calling thread's message and returns status. file may be NULL. Used by the
 * macros below, and to carry a message from one thread or rank to another. */
DDP_API ddp_status ddp_status_set(ddp_status status, const char *file, int line, const char *fmt,
                                  ...) DDP_PRINTF(4, 5);
/* Local. Puts "prefix: " before the current message and returns status. */
DDP_API ddp_status ddp_status_prefix(ddp_status status, const char *fmt, ...) DDP_PRINTF(2, 3);
/* Local. The process exit status for a run that ended so: 0 trained, 2 usage, 3 stopped, else 1. */
DDP_API int ddp_status_exit_code(ddp_status status);

/* Local. Sets the calling thread's rank context; NULL goes back to the default (rank 0 of 1). */
DDP_API void ddp_rank_ctx_set(const ddp_rank_ctx *ctx);
/* Local. Never NULL. */
DDP_API const ddp_rank_ctx *ddp_rank_ctx_get(void);

/* Any thread. The job cannot go on: says so once (rank, host, cause), calls on_fatal, and leaves by
 * _exit(1) without running exit handlers, since the other threads may hold any lock. */
DDP_API __attribute__((noreturn)) void ddp_fatal(const char *fmt, ...) DDP_PRINTF(1, 2);
/* Any thread. As ddp_fatal, but prints nothing: somebody else has said the cause already. */
DDP_API __attribute__((noreturn)) void ddp_fatal_quiet(void);
/* Local. Whether the calling thread is on the fatal path, in its hook. */
DDP_API bool ddp_is_leaving(void);
/* Any thread. Leaves at once with this exit status, without a word: a rank that goes without
 * telling anybody, for rehearsals. */
DDP_API __attribute__((noreturn)) void ddp_vanish(int code);
DDP_API __attribute__((noreturn)) void ddp_assert_failed(const char *file, int line,
                                                         const char *expr);

#define DDP_FAIL(status, ...) ddp_status_set((status), __FILE__, __LINE__, __VA_ARGS__)

#define DDP_TRY(expr)                                                                              \
    do {                                                                                           \
        ddp_status ddp_try_status_ = (expr);                                                       \
        if (ddp_try_status_ != DDP_OK)                                                             \
            return ddp_try_status_;                                                                \
    } while (0)

#define DDP_TRY_GOTO(st, expr, label)                                                              \
    do {                                                                                           \
        (st) = (expr);                                                                             \
        if ((st) != DDP_OK)                                                                        \
            goto label;                                                                            \
    } while (0)

#define DDP_ASSERT(expr) ((expr) ? (void)0 : ddp_assert_failed(__FILE__, __LINE__, #expr))

#ifdef __cplusplus
}
#endif
#endif
