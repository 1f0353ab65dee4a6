/* patience.c - asking what may never answer: a dead file server, a name server that is not there.
 *
 * Such calls cannot be interrupted, so they run in a thread that is left behind when it takes too
 * long. Small reads of /proc and /sys, which answer always, are here too. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "ddp/memory.h"
#include "ddp/thread.h"
#include "doctor/doctor.h"

typedef struct question {
    ddp_monitor monitor;
    void (*fn)(void *arg);
    void *arg;
    bool done;
} question;

static void *ask(void *arg)
{
    question *q = arg;

    q->fn(q->arg);
    ddp_monitor_lock(&q->monitor);
    q->done = true;
    ddp_monitor_wake_all(&q->monitor);
    ddp_monitor_unlock(&q->monitor);
    return NULL;
}

static bool wait_for(question *q)
{
    const int64_t until_ns = ddp_deadline_after_ms((int64_t)(DDPI_DOCTOR_PATIENCE_S * 1000));

    ddp_monitor_lock(&q->monitor);
    while (!q->done && ddp_monitor_wait(&q->monitor, until_ns)) {
    }
    const bool done = q->done;
    ddp_monitor_unlock(&q->monitor);
    return done;
}

bool ddpi_doctor_patient(void (*fn)(void *arg), void *arg)
{
    ddp_thread thread = {.running = false};
    question *q;

    if (DDP_ALLOC(q, 1) != DDP_OK)
        return false;
    q->fn = fn;
    q->arg = arg;
    if (ddp_monitor_init(&q->monitor) != DDP_OK ||
        ddp_thread_start(&thread, "ddp-ask", ask, q) != DDP_OK) {
        ddp_free(q);
        return false;
    }
    if (!wait_for(q))
        return false;
    ddp_thread_join(&thread);
    ddp_monitor_destroy(&q->monitor);
    ddp_free(q);
    return true;
}

char *ddpi_doctor_read(const char *path, char *text, size_t text_bytes)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t got = fd >= 0 ? read(fd, text, text_bytes - 1) : -1;

    text[got > 0 ? got : 0] = '\0';
    if (fd >= 0)
        close(fd);
    const size_t bytes = strlen(text);
    if (bytes > 0 && text[bytes - 1] == '\n')
        text[bytes - 1] = '\0';
    return text;
}
