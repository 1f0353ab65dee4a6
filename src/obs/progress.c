/* progress.c - the one-line progress display of rank 0.
 *
 * On a terminal the line is redrawn in place, a few times a second at most; elsewhere a plain line
 * appears every few seconds, so that a batch job's output stays short. The pace is the process's:
 * only rank 0 shows anything, and it calls from one thread at a time; the atomic keeps that
 * harmless. */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "ddp/log.h"
#include "ddp/thread.h"
#include "obs/console.h"

#define REDRAW_NS  INT64_C(100000000)
#define LINE_NS    INT64_C(5000000000)
#define LINE_BYTES 256
/* Of a terminal that does not tell its width. */
#define COLUMNS_DEFAULT 80

/* When the last line was shown; 0 before the first. */
static _Atomic int64_t shown_ns;

static void format_left(double seconds, char *text, size_t text_bytes)
{
    if (!isfinite(seconds) || seconds < 0 || seconds > 1e7) {
        text[0] = 0;
        return;
    }
    int64_t left = (int64_t)(seconds + 0.5);
    if (left >= 3600)
        snprintf(text, text_bytes, "  %lldh%02lldm left", (long long)(left / 3600),
                 (long long)(left / 60 % 60));
    else if (left >= 60)
        snprintf(text, text_bytes, "  %lldm%02llds left", (long long)(left / 60),
                 (long long)(left % 60));
    else
        snprintf(text, text_bytes, "  %llds left", (long long)left);
}

static size_t format_line(const ddp_progress *progress, char text[LINE_BYTES])
{
    char left[48];

    format_left(progress->seconds_left, left, sizeof left);
    int n = snprintf(
        text, LINE_BYTES, "epoch %d/%d  step %lld/%lld  loss %.4f  lr %.4g  %.0f images/s%s",
        progress->epoch, progress->epochs, (long long)progress->step, (long long)progress->steps,
        progress->loss, progress->lr, progress->images_per_s, left);
    return n < LINE_BYTES ? (size_t)n : LINE_BYTES - 1;
}

/* A line that wraps cannot be redrawn, so it is cut to the terminal's width. */
static size_t terminal_columns(void)
{
    struct winsize size;

    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 2)
        return COLUMNS_DEFAULT;
    return size.ws_col;
}

void ddp_log_progress(const ddp_progress *progress)
{
    char text[LINE_BYTES];
    int64_t now = ddp_now_ns();
    int64_t before = atomic_load(&shown_ns);

    if (ddp_rank_ctx_get()->rank != 0 || (before != 0 && now - before < REDRAW_NS))
        return;
    bool terminal = isatty(STDERR_FILENO) == 1;
    if (!terminal && before != 0 && now - before < LINE_NS)
        return;
    atomic_store(&shown_ns, now);
    size_t bytes = format_line(progress, text);
    if (terminal) {
        size_t most = terminal_columns() - 1;
        ddpi_console_progress(text, bytes < most ? bytes : most);
    } else {
        text[bytes < LINE_BYTES - 1 ? bytes++ : bytes - 1] = '\n';
        ddpi_console_write(STDERR_FILENO, text, bytes);
    }
}

void ddp_log_progress_end(void)
{
    if (ddp_rank_ctx_get()->rank == 0)
        ddpi_console_progress_end();
}
