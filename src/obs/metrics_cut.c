/* metrics_cut.c - takes the records that come again out of metrics.jsonl. One thread. */
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "ddp/fs.h"
#include "ddp/memory.h"
#include "ddp/metrics.h"

static const size_t FILE_LIMIT_BYTES = (size_t)8 << 30;

static int64_t int_of(const ddp_json *record, const char *key)
{
    int64_t value;

    return ddp_json_as_int(ddp_json_get(record, key), &value) ? value : 0;
}

static bool is_kind(const char *kind, const char *want)
{
    return strcmp(kind, want) == 0;
}

static bool stays(const ddp_json *record, int64_t steps, int64_t epochs)
{
    const char *kind;

    if (!ddp_json_is_object(record) || !ddp_json_as_string(ddp_json_get(record, "kind"), &kind))
        return true; /* somebody else's */
    if (is_kind(kind, "step") || is_kind(kind, "checkpoint"))
        return int_of(record, "step") <= steps;
    if (is_kind(kind, "epoch"))
        return int_of(record, "epoch") <= epochs;
    return !is_kind(kind, "summary");
}

/* A line that is no JSON is what a crash left. */
static bool line_stays(const char *line, size_t bytes, const char *path, int64_t steps,
                       int64_t epochs)
{
    ddp_json *record;

    if (ddp_json_load(line, bytes, path, &record) != DDP_OK)
        return false;
    const bool good = stays(record, steps, epochs);
    ddp_json_destroy(record);
    return good;
}

ddp_status ddp_metrics_cut(const char *path, int64_t steps, int64_t epochs)
{
    struct stat info;
    char *text;
    size_t bytes, kept = 0;

    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode))
        return DDP_OK; /* a pipe or a device has nothing to take out */
    DDP_TRY(ddp_fs_read(path, FILE_LIMIT_BYTES, &text, &bytes));
    for (size_t at = 0; at < bytes;) {
        const char *newline = memchr(text + at, '\n', bytes - at);
        if (newline == NULL)
            break;
        const size_t length = (size_t)(newline - (text + at)) + 1;
        if (line_stays(text + at, length, path, steps, epochs)) {
            memmove(text + kept, text + at, length);
            kept += length;
        }
        at += length;
    }
    ddp_status st = kept < bytes ? ddp_fs_write_atomic(path, text, kept) : DDP_OK;
    ddp_free(text);
    return st;
}
