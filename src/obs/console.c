/* console.c - the terminal shared by the ranks of a process.
 *
 * One mutex guards the flag that says whether a progress line is shown, and the writes that depend
 * on it. Failed writes are dropped: there is no better place to report them. */
#include "obs/console.h"

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "ddp/status.h"

/* Back to the line's start and clear to its end. */
#define CLEAR_LINE "\r\x1b[K"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool progress_shown; /* guarded by lock */

static void put(int fd, const char *text, size_t bytes)
{
    while (bytes > 0) {
        ssize_t wrote = write(fd, text, bytes);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return;
        text += wrote;
        bytes -= (size_t)wrote;
    }
}

static void enter(void)
{
    DDP_ASSERT(pthread_mutex_lock(&lock) == 0);
}

static void leave(void)
{
    DDP_ASSERT(pthread_mutex_unlock(&lock) == 0);
}

void ddpi_console_write(int fd, const char *text, size_t bytes)
{
    enter();
    if (progress_shown)
        put(STDERR_FILENO, CLEAR_LINE, sizeof CLEAR_LINE - 1);
    progress_shown = false;
    put(fd, text, bytes);
    leave();
}

void ddpi_console_progress(const char *text, size_t bytes)
{
    enter();
    put(STDERR_FILENO, CLEAR_LINE, sizeof CLEAR_LINE - 1);
    put(STDERR_FILENO, text, bytes);
    progress_shown = true;
    leave();
}

void ddpi_console_progress_end(void)
{
    enter();
    if (progress_shown)
        put(STDERR_FILENO, "\n", 1);
    progress_shown = false;
    leave();
}
