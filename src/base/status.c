/* status.c - failure messages, rank contexts and the fatal path.
 *
 * Message and rank context are thread-local. The fatal path takes no lock that another thread could
 * hold: it formats into the stack, writes with write(2) and leaves with _exit(2). The first thread
 * that enters it owns the exit; later ones wait for it, so that only one cause is printed. */
#include "ddp/status.h"

#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MESSAGE_BYTES 2048
/* How long the owner of the exit may take in its hook: a file system may be gone with the network.
 */
#define FATAL_WAIT_S 5

static _Thread_local char message[MESSAGE_BYTES];
static _Thread_local ddp_rank_ctx rank_ctx = {.world = 1};
static _Thread_local bool leaving;
static atomic_flag fatal_taken = ATOMIC_FLAG_INIT;

static const char *const names[DDP_STATUS_COUNT] = {
    [DDP_OK] = "ok",
    [DDP_ERR_USAGE] = "usage",
    [DDP_ERR_IO] = "io",
    [DDP_ERR_FORMAT] = "format",
    [DDP_ERR_NOMEM] = "nomem",
    [DDP_ERR_UNSUPPORTED] = "unsupported",
    [DDP_ERR_SHAPE] = "shape",
    [DDP_ERR_MISMATCH] = "mismatch",
    [DDP_ERR_COMM] = "comm",
    [DDP_ERR_TIMEOUT] = "timeout",
    [DDP_ERR_PEER] = "peer",
    [DDP_ERR_NONFINITE] = "nonfinite",
    [DDP_ERR_INTERNAL] = "internal",
    [DDP_STOPPED] = "stopped",
};

const char *ddp_status_name(ddp_status status)
{
    return (unsigned)status < DDP_STATUS_COUNT ? names[status] : "unknown";
}

const char *ddp_status_message(void)
{
    return message;
}

/* Build systems hand over absolute source paths; users need no more than the file's name. */
static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL ? slash + 1 : path;
}

ddp_status ddp_status_set(ddp_status status, const char *file, int line, const char *fmt, ...)
{
    /* The arguments may point into the current message, so it is replaced only at the end. */
    char text[MESSAGE_BYTES];
    size_t used = 0;
    va_list args;

    /* Where in the source a failure arose matters only if the source is at fault. */
    if (status == DDP_ERR_INTERNAL && file != NULL)
        used = (size_t)snprintf(text, sizeof text, "%.100s:%d: ", base_name(file), line);
    va_start(args, fmt);
    vsnprintf(text + used, sizeof text - used, fmt, args);
    va_end(args);
    memcpy(message, text, sizeof message);
    return status;
}

ddp_status ddp_status_prefix(ddp_status status, const char *fmt, ...)
{
    char prefix[MESSAGE_BYTES];
    char text[MESSAGE_BYTES];
    va_list args;

    va_start(args, fmt);
    vsnprintf(prefix, sizeof prefix, fmt, args);
    va_end(args);
    size_t used = strnlen(prefix, sizeof text - 3);
    memcpy(text, prefix, used);
    snprintf(text + used, sizeof text - used, ": %s", message);
    memcpy(message, text, sizeof message);
    return status;
}

int ddp_status_exit_code(ddp_status status)
{
    if (status == DDP_OK)
        return 0;
    if (status == DDP_STOPPED)
        return 3;
    return status == DDP_ERR_USAGE ? 2 : 1;
}

void ddp_rank_ctx_set(const ddp_rank_ctx *ctx)
{
    rank_ctx = ctx != NULL ? *ctx : (ddp_rank_ctx){.world = 1};
}

const ddp_rank_ctx *ddp_rank_ctx_get(void)
{
    return &rank_ctx;
}

static void end_late(int number)
{
    (void)number;
    _exit(1);
}

/* The hook writes files, which may block for good; the exit then comes from a signal. */
static void limit_exit(void)
{
    struct sigaction action = {.sa_handler = end_late, .sa_flags = SA_ONSTACK};
    sigset_t late;

    sigemptyset(&action.sa_mask);
    sigemptyset(&late);
    sigaddset(&late, SIGALRM);
    (void)!sigaction(SIGALRM, &action, NULL);
    (void)!pthread_sigmask(SIG_UNBLOCK, &late, NULL);
    alarm(FATAL_WAIT_S);
}

/* Gives the calling thread the exit, or waits for the thread that has it. A hook that itself ends
 * up on the fatal path must not wait for itself. */
static void own_exit(void)
{
    if (leaving)
        _exit(1);
    leaving = true;
    if (atomic_flag_test_and_set(&fatal_taken)) {
        struct timespec left = {.tv_sec = FATAL_WAIT_S};
        while (nanosleep(&left, &left) != 0) {
        }
        _exit(1);
    }
    limit_exit();
}

static void print_cause(const char *cause)
{
    char line[MESSAGE_BYTES + 512];
    char host[256] = "";

    if (rank_ctx.host != NULL)
        snprintf(host, sizeof host, "%s", rank_ctx.host);
    else if (gethostname(host, sizeof host - 1) != 0)
        snprintf(host, sizeof host, "unknown host");
    /* A terminal may show a progress line, which is no longer true. */
    int n = snprintf(line, sizeof line, "%sddp_train: rank %d on %s: %s\n",
                     isatty(STDERR_FILENO) == 1 ? "\r\x1b[K" : "", rank_ctx.rank, host, cause);
    size_t left = (size_t)n < sizeof line ? (size_t)n : sizeof line - 1;
    for (const char *at = line; left > 0;) {
        ssize_t wrote = write(STDERR_FILENO, at, left);
        if (wrote <= 0)
            break;
        at += wrote;
        left -= (size_t)wrote;
    }
}

void ddp_fatal(const char *fmt, ...)
{
    char cause[MESSAGE_BYTES];
    va_list args;

    va_start(args, fmt);
    vsnprintf(cause, sizeof cause, fmt, args);
    va_end(args);
    own_exit();
    print_cause(cause);
    if (rank_ctx.on_fatal != NULL)
        rank_ctx.on_fatal(rank_ctx.on_fatal_arg, cause);
    _exit(1);
}

void ddp_fatal_quiet(void)
{
    own_exit();
    if (rank_ctx.on_fatal != NULL)
        rank_ctx.on_fatal(rank_ctx.on_fatal_arg, message);
    _exit(1);
}

bool ddp_is_leaving(void)
{
    return leaving;
}

void ddp_vanish(int code)
{
    _exit(code);
}

void ddp_assert_failed(const char *file, int line, const char *expr)
{
    ddp_fatal("internal error: %s:%d: %s does not hold", base_name(file), line, expr);
}
