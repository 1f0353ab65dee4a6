/* log.c - messages to the console and to each rank's file.
 *
 * A message is formatted on the caller's stack, so that logging allocates nothing, and each line
 * goes out with one write. Until the file is opened (its folder is known late) lines wait in a
 * bounded buffer. The log's mutex guards the file and the buffer; the console has its own, and the
 * two are never held together. */
#include "ddp/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ddp/fs.h"
#include "ddp/memory.h"
#include "obs/console.h"

#define MESSAGE_BYTES 4096
#define PREFIX_BYTES  512
#define EARLY_BYTES   ((size_t)64 << 10)

struct ddp_log {
    ddp_log_opts opts;
    pthread_mutex_t mutex; /* guards all below */
    int fd;                /* -1: no file yet */
    bool write_failed;     /* said once */
    char *early;
    size_t early_bytes;
    uint64_t early_dropped; /* lines that the buffer had no room for */
};

static const char *const level_names[] = {
    [DDP_LOG_ERROR] = "error",
    [DDP_LOG_WARN] = "warning",
    [DDP_LOG_INFO] = "info",
    [DDP_LOG_DEBUG] = "debug",
};

ddp_status ddp_log_create(const ddp_log_opts *opts, ddp_log **log_out)
{
    ddp_log *log;
    ddp_status st;

    DDP_TRY(DDP_ALLOC(log, 1));
    log->opts = *opts;
    log->fd = -1;
    DDP_TRY_GOTO(st, DDP_ALLOC(log->early, EARLY_BYTES), err_free);
    int error = pthread_mutex_init(&log->mutex, NULL);
    if (error != 0) {
        st = DDP_FAIL(DDP_ERR_NOMEM, "make a mutex: %s", strerror(error));
        goto err_early;
    }
    *log_out = log;
    return DDP_OK;

err_early:
    ddp_free(log->early);
err_free:
    ddp_free(log);
    return st;
}

void ddp_log_destroy(ddp_log *log)
{
    if (log == NULL)
        return;
    if (log->fd >= 0)
        close(log->fd);
    DDP_ASSERT(pthread_mutex_destroy(&log->mutex) == 0);
    ddp_free(log->early);
    ddp_free(log);
}

static void lock_log(ddp_log *log)
{
    DDP_ASSERT(pthread_mutex_lock(&log->mutex) == 0);
}

static void unlock_log(ddp_log *log)
{
    DDP_ASSERT(pthread_mutex_unlock(&log->mutex) == 0);
}

/* Texts of files and of the system end up in messages; they must not steer the terminal. */
static void tame(char *text)
{
    for (; *text != 0; text++)
        if (((unsigned char)*text < ' ' && *text != '\n' && *text != '\t') || *text == 0x7f)
            *text = '?';
}

/* "2026-01-31T12:34:56.789Z level rank R: ". UTC, so that the files of several hosts compare. */
static size_t file_prefix(const ddp_log *log, const char *level, char *text)
{
    struct timespec now;
    struct tm utc;
    char stamp[32];

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &utc);
    int n = snprintf(text, PREFIX_BYTES, "%s.%03ldZ %s rank %d: ", stamp, now.tv_nsec / 1000000,
                     level, log->opts.rank);
    return (size_t)n;
}

/* Caller holds the lock. False if writing failed for the first time. */
static bool put_line(ddp_log *log, const char *line, size_t bytes)
{
    if (log->fd < 0) {
        if (bytes <= EARLY_BYTES - log->early_bytes) {
            memcpy(log->early + log->early_bytes, line, bytes);
            log->early_bytes += bytes;
        } else {
            log->early_dropped++;
        }
        return true;
    }
    if (ddp_fs_write_all(log->fd, line, bytes, "the log") == DDP_OK || log->write_failed)
        return true;
    log->write_failed = true;
    return false;
}

/* Each line of a message gets a prefix of its own, so that the file can be searched by line. */
static void to_file(ddp_log *log, const char *level, const char *message)
{
    char line[PREFIX_BYTES + MESSAGE_BYTES + 1];
    size_t prefix = file_prefix(log, level, line);
    bool failed = false;

    lock_log(log);
    for (const char *at = message; at != NULL;) {
        size_t bytes = strcspn(at, "\n");
        memcpy(line + prefix, at, bytes);
        line[prefix + bytes] = '\n';
        failed |= !put_line(log, line, prefix + bytes + 1);
        at = at[bytes] == '\n' && at[bytes + 1] != 0 ? at + bytes + 1 : NULL;
    }
    unlock_log(log);
    if (failed) {
        static const char lost[] = "ddp_train: warning: the log file takes no more lines\n";
        ddpi_console_write(STDERR_FILENO, lost, sizeof lost - 1);
    }
}

ddp_status ddp_log_open_file(ddp_log *log, const char *path)
{
    char line[PREFIX_BYTES + 128];
    ddp_status st;
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);

    if (fd < 0)
        return DDP_FAIL(DDP_ERR_IO, "open log %s: %s", path, strerror(errno));
    lock_log(log);
    DDP_ASSERT(log->fd < 0);
    DDP_TRY_GOTO(st, ddp_fs_write_all(fd, log->early, log->early_bytes, path), err_close);
    if (log->early_dropped > 0) {
        size_t prefix = file_prefix(log, level_names[DDP_LOG_WARN], line);
        int n = snprintf(line + prefix, sizeof line - prefix,
                         "%llu lines before this one were dropped\n",
                         (unsigned long long)log->early_dropped);
        DDP_TRY_GOTO(st, ddp_fs_write_all(fd, line, prefix + (size_t)n, path), err_close);
    }
    log->fd = fd;
    log->early_bytes = 0;
    unlock_log(log);
    return DDP_OK;

err_close:
    unlock_log(log);
    close(fd);
    return st;
}

static void to_console(ddp_log_level level, const char *message)
{
    const ddp_rank_ctx *ctx = ddp_rank_ctx_get();
    char line[PREFIX_BYTES + MESSAGE_BYTES + 1];
    char host[256] = "";
    char stamp[16];
    int n;

    if (level == DDP_LOG_ERROR) {
        if (ctx->host == NULL && gethostname(host, sizeof host - 1) != 0)
            snprintf(host, sizeof host, "unknown host");
        n = snprintf(line, sizeof line, "ddp_train: rank %d on %s: %s\n", ctx->rank,
                     ctx->host != NULL ? ctx->host : host, message);
    } else {
        time_t now = time(NULL);
        struct tm local;
        localtime_r(&now, &local);
        strftime(stamp, sizeof stamp, "%H:%M:%S", &local);
        n = snprintf(line, sizeof line, "[%s] %s%s%s\n", stamp,
                     level == DDP_LOG_INFO ? "" : level_names[level],
                     level == DDP_LOG_INFO ? "" : ": ", message);
    }
    size_t bytes = (size_t)n < sizeof line ? (size_t)n : sizeof line - 1;
    line[bytes - 1] = '\n';
    ddpi_console_write(STDERR_FILENO, line, bytes);
}

static bool shows_on_console(const ddp_log *log, ddp_log_level level)
{
    if (log == NULL)
        return level <= DDP_LOG_WARN;
    return level == DDP_LOG_ERROR || (log->opts.rank == 0 && level <= log->opts.console_level);
}

void ddp_log_write(ddp_log_level level, const char *fmt, ...)
{
    ddp_log *log = ddp_rank_ctx_get()->log;
    bool console = shows_on_console(log, level);
    bool file = log != NULL && level <= log->opts.file_level;
    char message[MESSAGE_BYTES];
    va_list args;

    if (!console && !file)
        return;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    tame(message);
    if (console)
        to_console(level, message);
    if (file)
        to_file(log, level_names[level], message);
}

void ddp_log_print(const char *fmt, ...)
{
    ddp_log *log = ddp_rank_ctx_get()->log;
    char message[MESSAGE_BYTES];
    va_list args;

    va_start(args, fmt);
    /* One byte less, for the newline. */
    int n = vsnprintf(message, sizeof message - 1, fmt, args);
    va_end(args);
    tame(message);
    if (log != NULL)
        to_file(log, "output", message);
    if (ddp_rank_ctx_get()->rank != 0)
        return;
    size_t bytes = n < 0 ? 0 : (size_t)n < sizeof message - 2 ? (size_t)n : sizeof message - 2;
    message[bytes] = '\n';
    ddpi_console_write(STDOUT_FILENO, message, bytes + 1);
}
