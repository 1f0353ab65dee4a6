/* metrics.c - one JSON object a line, appended with one write each.
 *
 * Step records are formatted straight into a buffer on the stack: the step must not allocate, and
 * jansson would. A run that was killed can leave half a line at the end of the file; opening it
 * again removes that, since it is no record. One thread. */
#include "ddp/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ddp/fs.h"
#include "ddp/memory.h"

#define LINE_BYTES 1024
#define TAIL_BYTES 4096

struct ddp_metrics {
    int fd;
    char *path;
};

/* A record's text while it grows; the keys are few and the numbers bounded, so it always fits. */
typedef struct line {
    char text[LINE_BYTES];
    size_t used;
} line;

/* Cuts the file behind its last newline. */
static ddp_status drop_half_line(int fd, const char *path)
{
    char tail[TAIL_BYTES];
    struct stat info;

    if (fstat(fd, &info) != 0)
        return DDP_FAIL(DDP_ERR_IO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return DDP_OK;
    off_t keep = info.st_size;
    while (keep > 0) {
        size_t want = keep < TAIL_BYTES ? (size_t)keep : TAIL_BYTES;
        ssize_t got = pread(fd, tail, want, keep - (off_t)want);
        if (got != (ssize_t)want)
            return DDP_FAIL(DDP_ERR_IO, "read %s: %s", path,
                            got < 0 ? strerror(errno) : "it shrank meanwhile");
        const char *newline = memrchr(tail, '\n', want);
        if (newline != NULL) {
            keep = keep - (off_t)want + (newline - tail) + 1;
            break;
        }
        keep -= (off_t)want;
    }
    if (keep < info.st_size && ftruncate(fd, keep) != 0)
        return DDP_FAIL(DDP_ERR_IO, "cut half a line off %s: %s", path, strerror(errno));
    return DDP_OK;
}

ddp_status ddp_metrics_open(const char *path, ddp_metrics **metrics_out)
{
    ddp_metrics *metrics;
    ddp_status st;

    DDP_TRY(DDP_ALLOC(metrics, 1));
    DDP_TRY_GOTO(st, ddp_strdup(path, &metrics->path), err_free);
    metrics->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (metrics->fd < 0) {
        st = DDP_FAIL(DDP_ERR_IO, "open %s: %s", path, strerror(errno));
        goto err_path;
    }
    DDP_TRY_GOTO(st, drop_half_line(metrics->fd, path), err_close);
    *metrics_out = metrics;
    return DDP_OK;

err_close:
    close(metrics->fd);
err_path:
    ddp_free(metrics->path);
err_free:
    ddp_free(metrics);
    return st;
}

ddp_status ddp_metrics_write(ddp_metrics *metrics, ddp_json *record)
{
    char *text;
    ddp_status st = ddp_json_text(record, 0, &text);

    ddp_json_destroy(record);
    DDP_TRY(st);
    size_t bytes = strlen(text);
    text[bytes] = '\n'; /* the 0 is not needed any more */
    st = ddp_fs_write_all(metrics->fd, text, bytes + 1, metrics->path);
    ddp_free(text);
    return st;
}

static void add_text(line *to, const char *text)
{
    int n = snprintf(to->text + to->used, sizeof to->text - to->used, "%s", text);
    DDP_ASSERT(n >= 0 && (size_t)n < sizeof to->text - to->used);
    to->used += (size_t)n;
}

static void add_int(line *to, const char *key, int64_t value)
{
    char text[96];

    snprintf(text, sizeof text, "\"%s\":%" PRId64 ",", key, value);
    add_text(to, text);
}

static void add_number(line *to, const char *key, double value)
{
    char text[96];

    if (isfinite(value))
        snprintf(text, sizeof text, "\"%s\":%.9g,", key, value);
    else
        snprintf(text, sizeof text, "\"%s\":null,", key);
    add_text(to, text);
}

ddp_status ddp_metrics_step(ddp_metrics *metrics, const ddp_step_record *record)
{
    line to = {.used = 0};

    add_text(&to, "{\"kind\":\"step\",");
    add_int(&to, "epoch", record->epoch);
    add_int(&to, "step", record->step);
    add_int(&to, "samples", record->samples);
    add_number(&to, "loss", record->loss);
    add_number(&to, "lr", record->lr);
    add_number(&to, "images_per_s", record->images_per_s);
    add_number(&to, "grad_norm", record->grad_norm);
    if (record->loss_scale > 0)
        add_number(&to, "loss_scale", record->loss_scale);
    add_number(&to, "peak_share", record->peak_share);
    if (record->comm_bytes > 0)
        add_int(&to, "comm_bytes", record->comm_bytes);
    add_text(&to, "\"ms\":{");
    add_number(&to, "data", record->ms_data);
    add_number(&to, "forward", record->ms_forward);
    add_number(&to, "backward", record->ms_backward);
    add_number(&to, "comm", record->ms_comm);
    add_number(&to, "comm_exposed", record->ms_comm_exposed);
    add_number(&to, "optim", record->ms_optim);
    add_number(&to, "step", record->ms_step);
    add_number(&to, "compute", record->ms_compute);
    if (record->ms_wall > 0)
        add_number(&to, "wall", record->ms_wall);
    to.used--; /* the last comma */
    add_text(&to, "},\"ms_mean\":{");
    add_number(&to, "data", record->mean_data);
    add_number(&to, "comm_exposed", record->mean_comm_exposed);
    add_number(&to, "compute", record->mean_compute);
    to.used--;
    add_text(&to, "},\"ms_least\":{");
    add_number(&to, "comm_exposed", record->least_comm_exposed);
    to.used--;
    add_text(&to, "}}\n");
    return ddp_fs_write_all(metrics->fd, to.text, to.used, metrics->path);
}

ddp_status ddp_metrics_flush(ddp_metrics *metrics)
{
    /* EINVAL, ENOTSUP: a pipe or device, which has nothing to sync. */
    if (fdatasync(metrics->fd) != 0 && errno != EINVAL && errno != ENOTSUP)
        return DDP_FAIL(DDP_ERR_IO, "sync %s: %s", metrics->path, strerror(errno));
    return DDP_OK;
}

void ddp_metrics_close(ddp_metrics *metrics)
{
    if (metrics == NULL)
        return;
    close(metrics->fd);
    ddp_free(metrics->path);
    ddp_free(metrics);
}
