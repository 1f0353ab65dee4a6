/* inputs.c - walks the input folder.
 *
 * Links are followed, and a loop of them is refused. Files in no class folder, and what is no file,
 * are listed too, with the reason why they cannot be packed: nothing is left out in silence but
 * names that begin with a dot. */
#include "tools/pack/inputs.h"

#include <errno.h>
#include <fts.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ddp/fs.h"
#include "ddp/memory.h"

enum { PATH_BYTES = 4096, FILE_LIMIT_BYTES = 1 << 30 };

static int64_t mtime_of(const struct stat *info)
{
    return (int64_t)info->st_mtim.tv_sec * 1000000000 + info->st_mtim.tv_nsec;
}

static ddp_status add_file(ddpi_inputs *in, const FTSENT *entry, const char *path,
                           const char *problem)
{
    DDP_TRY(DDP_GROW(in->files, in->capacity, in->count));
    ddpi_input *file = &in->files[in->count];
    *file = (ddpi_input){.label = -1, .problem = problem};
    DDP_TRY(ddp_strdup(path, &file->path));
    in->count++;
    if (problem == NULL) {
        file->bytes = entry->fts_statp->st_size;
        file->mtime_ns = mtime_of(entry->fts_statp);
    }
    return DDP_OK;
}

static ddp_status add_class(ddpi_inputs *in, const char *name)
{
    DDP_TRY(DDP_GROW(in->classes, in->class_capacity, in->class_count));
    DDP_TRY(ddp_strdup(name, &in->classes[in->class_count]));
    in->class_count++;
    return DDP_OK;
}

static ddp_status visit(ddpi_inputs *in, FTS *walk, FTSENT *entry, size_t prefix)
{
    const char *path = entry->fts_path + prefix;
    if (entry->fts_level > 0 && entry->fts_name[0] == '.') {
        (void)fts_set(walk, entry, FTS_SKIP);
        return DDP_OK;
    }
    while (*path == '/')
        path++;
    switch (entry->fts_info) {
    case FTS_D:
        return entry->fts_level == 1 ? add_class(in, entry->fts_name) : DDP_OK;
    case FTS_DP:
        return DDP_OK;
    case FTS_F:
        return add_file(in, entry, path,
                        entry->fts_level == 1 ? "the file is in no class folder" : NULL);
    case FTS_SL:
    case FTS_SLNONE:
        return add_file(in, entry, path, "the link leads nowhere");
    case FTS_DEFAULT:
        return add_file(in, entry, path, "the file is not a regular one");
    case FTS_DC:
        return DDP_FAIL(DDP_ERR_IO, "%s: links make a loop", entry->fts_path);
    default:
        return DDP_FAIL(DDP_ERR_IO, "%s: %s", entry->fts_path, strerror(entry->fts_errno));
    }
}

static ddp_status walk_folder(ddpi_inputs *in)
{
    char *const roots[] = {(char *)(uintptr_t)in->folder, NULL};
    FTS *walk = fts_open(roots, FTS_LOGICAL | FTS_NOCHDIR, NULL);
    ddp_status st = DDP_OK;
    if (walk == NULL)
        return DDP_FAIL(DDP_ERR_IO, "open %s: %s", in->folder, strerror(errno));
    while (st == DDP_OK) {
        errno = 0;
        FTSENT *entry = fts_read(walk);
        if (entry == NULL && errno != 0)
            st = DDP_FAIL(DDP_ERR_IO, "read folder %s: %s", in->folder, strerror(errno));
        if (entry == NULL)
            break;
        st = visit(in, walk, entry, strlen(in->folder));
    }
    (void)fts_close(walk);
    return st;
}

static int by_path(const void *left, const void *right)
{
    const ddpi_input *a = left, *b = right;
    return strcmp(a->path, b->path);
}

static int by_name(const void *left, const void *right)
{
    const char *const *a = left, *const *b = right;
    return strcmp(*a, *b);
}

/* The place of a path's first folder among the classes. */
static int64_t label_of(const ddpi_inputs *in, const char *path)
{
    size_t length = strcspn(path, "/");
    int low = 0, high = in->class_count;
    while (low < high) {
        int middle = (low + high) / 2;
        const char *name = in->classes[middle];
        int order = strncmp(name, path, length);
        if (order == 0 && name[length] == 0)
            return middle;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

/* Order, labels, and the hash of names, sizes and times. */
static ddp_status finish(ddpi_inputs *in)
{
    ddp_hasher *hasher;
    DDP_TRY(ddp_hasher_create(&hasher));
    if (in->class_count > 0)
        qsort(in->classes, (size_t)in->class_count, sizeof *in->classes, by_name);
    if (in->count > 0)
        qsort(in->files, (size_t)in->count, sizeof *in->files, by_path);
    for (int i = 0; i < in->class_count; i++)
        ddp_hasher_update(hasher, in->classes[i], strlen(in->classes[i]) + 1);
    for (int i = 0; i < in->count; i++) {
        ddpi_input *file = &in->files[i];
        int64_t facts[3] = {file->bytes, file->mtime_ns, file->problem != NULL};
        if (strchr(file->path, '/') != NULL)
            file->label = label_of(in, file->path);
        ddp_hasher_update(hasher, file->path, strlen(file->path) + 1);
        ddp_hasher_update(hasher, facts, sizeof facts);
        in->bytes += file->bytes;
    }
    in->xxh3 = ddp_hasher_digest(hasher);
    ddp_hasher_destroy(hasher);
    return DDP_OK;
}

ddp_status ddpi_inputs_list(const char *folder, ddpi_inputs *inputs_out)
{
    ddpi_inputs in = {.folder = folder};
    struct stat info;
    if (stat(folder, &info) != 0)
        return DDP_FAIL(DDP_ERR_IO, "option --input: %s: %s", folder, strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return DDP_FAIL(DDP_ERR_IO, "option --input: %s is not a folder", folder);
    ddp_status st = walk_folder(&in);
    if (st == DDP_OK)
        st = finish(&in);
    if (st == DDP_OK && in.class_count == 0)
        st = DDP_FAIL(DDP_ERR_FORMAT, "%s: has no folders, expected one for each class", folder);
    if (st != DDP_OK) {
        ddpi_inputs_close(&in);
        return st;
    }
    *inputs_out = in;
    return DDP_OK;
}

void ddpi_inputs_close(ddpi_inputs *inputs)
{
    for (int i = 0; i < inputs->count; i++)
        ddp_free(inputs->files[i].path);
    for (int i = 0; i < inputs->class_count; i++)
        ddp_free(inputs->classes[i]);
    ddp_free(inputs->files);
    ddp_free(inputs->classes);
    *inputs = (ddpi_inputs){0};
}

ddp_status ddpi_input_read(const ddpi_inputs *inputs, int index, char **data_out, size_t *bytes_out)
{
    const ddpi_input *file = &inputs->files[index];
    char path[PATH_BYTES], *data;
    struct stat info;
    size_t bytes;
    DDP_TRY(ddp_fs_join(path, sizeof path, inputs->folder, file->path));
    if (stat(path, &info) != 0)
        return DDP_FAIL(DDP_ERR_IO, "%s: %s", path, strerror(errno));
    if (file->bytes > FILE_LIMIT_BYTES)
        return DDP_FAIL(DDP_ERR_FORMAT, "the file has %lld bytes, expected at most %d",
                        (long long)file->bytes, FILE_LIMIT_BYTES);
    /* Not the limit itself: a file that has grown is named as such. */
    DDP_TRY(ddp_fs_read(path, SIZE_MAX, &data, &bytes));
    if ((int64_t)bytes != file->bytes || mtime_of(&info) != file->mtime_ns) {
        ddp_free(data);
        return DDP_FAIL(DDP_ERR_MISMATCH, "%s changed while it was packed; start again", path);
    }
    *data_out = data;
    *bytes_out = bytes;
    return DDP_OK;
}
