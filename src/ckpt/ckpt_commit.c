/* ckpt_commit.c - the folder of checkpoints: names, the manifest, the rename that makes a save
 * count, and the removal of what is too old or was left half done.
 *
 * A folder that is to go gets a temporary name first, so that what has a checkpoint's name is never
 * on its way out. Called by one thread at a time. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/ckpt_impl.h"
#include "ddp/fs.h"
#include "ddp/log.h"
#include "ddp/memory.h"

#define PREFIX    "step-"
#define TEMPORARY ".tmp-"

enum { DIGITS = 10, NAME_BYTES = 64 };

void ddpi_ckpt_format_name(int64_t step, char *name, size_t bytes)
{
    snprintf(name, bytes, PREFIX "%0*" PRId64, DIGITS, step);
}

bool ddpi_ckpt_parse_name(const char *name, int64_t *step_out)
{
    const size_t prefix = strlen(PREFIX);
    if (strncmp(name, PREFIX, prefix) != 0)
        return false;
    const char *digits = name + prefix;
    const size_t count = strspn(digits, "0123456789");
    if (count < DIGITS || count > 18 || digits[count] != 0)
        return false;
    *step_out = strtoll(digits, NULL, 10);
    return true;
}

/* ---- the manifest ---- */

static ddp_status add_file(const char *dir, const char *name, ddp_json *files)
{
    char path[PATH_MAX], text[20];
    uint64_t hash;
    size_t bytes;
    ddp_json *entry;
    DDP_TRY(ddp_fs_join(path, sizeof path, dir, name));
    DDP_TRY(ddp_fs_hash(path, &hash, &bytes));
    DDP_TRY(ddp_json_object(&entry));
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    ddp_json_set_int(entry, "bytes", (int64_t)bytes);
    ddp_json_set_string(entry, "xxh3", text);
    ddp_json_set(files, name, entry);
    return DDP_OK;
}

static ddp_status manifest_text(const ddpi_ckpt_commit *c, char **text_out)
{
    ddp_json *manifest, *files;
    ddp_status st = ddp_json_object(&manifest);
    DDP_TRY(st);
    ddp_json_set_int(manifest, "format", 1);
    ddp_json_set_int(manifest, "step", c->step);
    DDP_TRY_GOTO(st, ddp_json_object(&files), done);
    ddp_json_set(manifest, "files", files);
    for (int i = 0; i < DDPI_CKPT_FILES; i++)
        DDP_TRY_GOTO(st, add_file(c->temporary, ddpi_ckpt_file_names[i], files), done);
    DDP_TRY_GOTO(st, add_file(c->temporary, DDPI_CKPT_STATE, files), done);
    st = ddp_json_text(manifest, 2, text_out);
done:
    ddp_json_destroy(manifest);
    return st;
}

static ddp_status write_texts(const ddpi_ckpt_commit *c)
{
    char path[PATH_MAX];
    char *text;
    DDP_TRY(ddp_fs_join(path, sizeof path, c->temporary, DDPI_CKPT_STATE));
    DDP_TRY(ddp_fs_write_atomic(path, c->state, strlen(c->state)));
    DDP_TRY(manifest_text(c, &text));
    ddp_status st = ddp_fs_join(path, sizeof path, c->temporary, DDPI_CKPT_MANIFEST);
    if (st == DDP_OK)
        st = ddp_fs_write_atomic(path, text, strlen(text)); /* syncs the folder, too */
    ddp_free(text);
    return st;
}

/* ---- removal ---- */

static ddp_status remove_checkpoint(const char *dir, const char *name, const char *token)
{
    char path[PATH_MAX], aside[PATH_MAX], other[NAME_BYTES + 64];
    snprintf(other, sizeof other, "%.*s" TEMPORARY "old-%.32s", NAME_BYTES - 1, name, token);
    DDP_TRY(ddp_fs_join(path, sizeof path, dir, name));
    DDP_TRY(ddp_fs_join(aside, sizeof aside, dir, other));
    DDP_TRY(ddp_fs_rename(path, aside));
    return ddp_fs_remove_tree(aside);
}

/* Names are sorted, and their numbers have leading zeros: the newest come last. */
static ddp_status remove_old(const ddpi_ckpt_commit *c)
{
    ddp_fs_names names;
    int64_t step, newer = 0;
    DDP_TRY(ddp_fs_list(c->dir, &names));
    ddp_status st = DDP_OK;
    for (size_t i = names.count; i-- > 0 && st == DDP_OK;) {
        if (!ddpi_ckpt_parse_name(names.names[i], &step) || step > c->step)
            continue;
        if (newer++ >= c->keep && step != c->best)
            st = remove_checkpoint(c->dir, names.names[i], c->token);
    }
    ddp_fs_names_free(&names);
    return st;
}

ddp_status ddpi_ckpt_sweep(const char *dir)
{
    ddp_fs_names names;
    char path[PATH_MAX];
    DDP_TRY(ddp_fs_list(dir, &names));
    ddp_status st = DDP_OK;
    for (size_t i = 0; i < names.count && st == DDP_OK; i++) {
        if (strstr(names.names[i], TEMPORARY) == NULL)
            continue;
        st = ddp_fs_join(path, sizeof path, dir, names.names[i]);
        if (st == DDP_OK)
            st = ddp_fs_remove_tree(path);
        if (st == DDP_OK)
            ddp_info("removed %s, which a run left half done", path);
    }
    ddp_fs_names_free(&names);
    return st;
}

static ddp_status leave(const char *dir, const char *name)
{
    char path[PATH_MAX], aside[PATH_MAX], other[NAME_BYTES + 64];
    for (int i = 1;; i++) {
        snprintf(other, sizeof other, "%.*s.left-%d", NAME_BYTES - 1, name, i);
        DDP_TRY(ddp_fs_join(aside, sizeof aside, dir, other));
        if (!ddp_fs_exists(aside))
            break;
    }
    DDP_TRY(ddp_fs_join(path, sizeof path, dir, name));
    DDP_TRY(ddp_fs_rename(path, aside));
    ddp_warn("%s is newer than where this run goes on; it is called %s now", path, other);
    return DDP_OK;
}

ddp_status ddp_ckpt_leave_newer(const char *dir, int64_t step)
{
    ddp_fs_names names;
    int64_t found;
    DDP_TRY(ddp_fs_list(dir, &names));
    ddp_status st = DDP_OK;
    for (size_t i = 0; i < names.count && st == DDP_OK; i++)
        if (ddpi_ckpt_parse_name(names.names[i], &found) && found > step)
            st = leave(dir, names.names[i]);
    ddp_fs_names_free(&names);
    return st;
}

/* ---- the commit ---- */

ddp_status ddpi_ckpt_commit_run(const ddpi_ckpt_commit *c)
{
    char name[NAME_BYTES], path[PATH_MAX];
    ddpi_ckpt_format_name(c->step, name, sizeof name);
    DDP_TRY(ddp_fs_join(path, sizeof path, c->dir, name));
    DDP_TRY(write_texts(c));
    /* Only one that a resumed run did not want, being damaged, can be there. */
    if (ddp_fs_exists(path))
        DDP_TRY(remove_checkpoint(c->dir, name, c->token));
    DDP_TRY(ddp_fs_rename(c->temporary, path));
    if (remove_old(c) != DDP_OK)
        ddp_warn("an old checkpoint stays: %s", ddp_status_message());
    return DDP_OK;
}
