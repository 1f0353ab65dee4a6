/* bench_out.c - the files that a subcommand leaves in --out. */
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "ddp/fs.h"
#include "ddp/memory.h"
#include "tools/bench/bench_util.h"

static ddp_status path_of(const ddpi_bench_out *out, const char *suffix, char path[PATH_MAX])
{
    char file[NAME_MAX];

    snprintf(file, sizeof file, "%s.%s", out->name, suffix);
    return ddp_fs_join(path, PATH_MAX, out->dir, file);
}

ddp_status ddpi_bench_out_check(const ddpi_bench_out *out)
{
    if (out->dir == NULL)
        return DDP_OK;
    DDP_TRY(ddp_fs_make_dirs(out->dir));
    if (access(out->dir, W_OK | X_OK) != 0)
        return DDP_FAIL(DDP_ERR_IO, "write into %s: %s", out->dir, strerror(errno));
    return DDP_OK;
}

ddp_status ddpi_bench_out_open(ddpi_bench_out *out, const char *name)
{
    char path[PATH_MAX];

    out->name = name;
    out->text = NULL;
    if (out->dir == NULL)
        return DDP_OK;
    DDP_TRY(ddp_fs_make_dirs(out->dir));
    DDP_TRY(path_of(out, "txt", path));
    out->text = fopen(path, "w");
    if (out->text == NULL)
        return DDP_FAIL(DDP_ERR_IO, "write %s: %s", path, strerror(errno));
    return DDP_OK;
}

void ddpi_bench_say(ddpi_bench_out *out, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    if (out->text == NULL)
        return;
    va_start(args, fmt);
    vfprintf(out->text, fmt, args);
    va_end(args);
}

ddp_status ddpi_bench_out_json(const ddpi_bench_out *out, const ddp_json *value)
{
    char path[PATH_MAX], *text;

    if (out->dir == NULL)
        return DDP_OK;
    DDP_TRY(path_of(out, "json", path));
    DDP_TRY(ddp_json_text(value, 1, &text));
    size_t bytes = strlen(text);
    text[bytes] = '\n'; /* the 0 is not needed any more */
    ddp_status st = ddp_fs_write_atomic(path, text, bytes + 1);
    ddp_free(text);
    return st;
}

ddp_status ddpi_bench_out_close(ddpi_bench_out *out)
{
    FILE *text = out->text;

    out->text = NULL;
    if (text == NULL)
        return DDP_OK;
    int bad = ferror(text);
    if ((fclose(text) != 0) | bad)
        return DDP_FAIL(DDP_ERR_IO, "write %s/%s.txt: %s", out->dir, out->name, strerror(errno));
    return DDP_OK;
}
