/* fs_steps.c - the single steps of writing what must survive a crash: create, reserve, write at a
 * place, sync, rename; lists and removal of folders.
 *
 * Each step can be made to fail by a hook, so that tests reach every one of them. The hook is the
 * only state: set while nobody writes, read by any thread. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs_impl.h"
#include "ddp/memory.h"

enum { HASH_BLOCK_BYTES = 1 << 20, MAX_DEPTH = 32 };

/* ---- faults ---- */

static _Atomic(ddp_fs_fault_fn) fault_fn;
static _Atomic(void *) fault_arg;

void ddp_fs_on_fault(ddp_fs_fault_fn fn, void *arg)
{
    atomic_store(&fault_arg, arg);
    atomic_store(&fault_fn, fn);
}

ddp_status ddpi_fs_fault(const char *what, const char *path)
{
    ddp_fs_fault_fn fn = atomic_load(&fault_fn);
    int error = fn != NULL ? fn(atomic_load(&fault_arg), what, path) : 0;

    if (error == 0)
        return DDP_OK;
    return DDP_FAIL(DDP_ERR_IO, "%s %s: %s", what, path, strerror(error));
}

static ddp_status refused(const char *what, const char *path)
{
    return DDP_FAIL(DDP_ERR_IO, "%s %s: %s", what, path, strerror(errno));
}

/* ---- files ---- */

ddp_status ddp_fs_create(const char *path, int *fd_out)
{
    DDP_TRY(ddpi_fs_fault("create", path));
    *fd_out = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return *fd_out < 0 ? refused("create", path) : DDP_OK;
}

ddp_status ddp_fs_open_write(const char *path, int *fd_out)
{
    *fd_out = open(path, O_WRONLY | O_CLOEXEC);
    return *fd_out < 0 ? refused("open", path) : DDP_OK;
}

ddp_status ddp_fs_write_at(int fd, const void *data, size_t bytes, size_t offset, const char *path)
{
    const char *at = data;

    while (bytes > 0) {
        DDP_TRY(ddpi_fs_fault("write", path));
        ssize_t wrote = pwrite(fd, at, bytes, (off_t)offset);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0)
            return refused("write", path);
        if (wrote == 0)
            return DDP_FAIL(DDP_ERR_IO, "write %s: nothing more is accepted", path);
        at += wrote;
        offset += (size_t)wrote;
        bytes -= (size_t)wrote;
    }
    return DDP_OK;
}

ddp_status ddp_fs_reserve(int fd, size_t bytes, const char *path)
{
    DDP_TRY(ddpi_fs_fault("reserve", path));
    /* posix_fallocate() would write every block where the file system has no such promise. */
    if (bytes > 0 && fallocate(fd, 0, 0, (off_t)bytes) == 0)
        return DDP_OK;
    if (bytes > 0 && errno != EOPNOTSUPP && errno != ENOSYS)
        return refused("reserve room for", path);
    return ftruncate(fd, (off_t)bytes) == 0 ? DDP_OK : refused("set the length of", path);
}

ddp_status ddp_fs_sync(int fd, const char *path)
{
    DDP_TRY(ddpi_fs_fault("sync", path));
    return fsync(fd) == 0 ? DDP_OK : refused("sync", path);
}

ddp_status ddp_fs_hash(const char *path, uint64_t *hash_out, size_t *bytes_out)
{
    ddp_hasher *hasher = NULL;
    char *block = NULL;
    ssize_t got = 1;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return refused("open", path);
    ddp_status st = DDP_ALLOC(block, HASH_BLOCK_BYTES);
    if (st == DDP_OK)
        st = ddp_hasher_create(&hasher);
    *bytes_out = 0;
    while (st == DDP_OK && got != 0) {
        got = read(fd, block, HASH_BLOCK_BYTES);
        if (got < 0 && errno != EINTR)
            st = refused("read", path);
        if (got > 0) {
            ddp_hasher_update(hasher, block, (size_t)got);
            *bytes_out += (size_t)got;
        }
    }
    if (st == DDP_OK)
        *hash_out = ddp_hasher_digest(hasher);
    ddp_hasher_destroy(hasher);
    ddp_free(block);
    close(fd);
    return st;
}

/* ---- folders ---- */

ddp_status ddp_fs_sync_dir(const char *path)
{
    DDP_TRY(ddpi_fs_fault("sync", path));
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return refused("open", path);
    ddp_status st = DDP_OK;
    /* EINVAL: this file system has no syncing of folders, so none is needed or possible. */
    if (fsync(fd) != 0 && errno != EINVAL)
        st = refused("sync", path);
    close(fd);
    return st;
}

/* Makes a rename in path's folder durable. */
static ddp_status sync_folder_of(const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t length = slash == NULL ? 0 : slash == path ? 1 : (size_t)(slash - path);

    if (length >= sizeof folder)
        return DDP_FAIL(DDP_ERR_IO, "%s: the path is too long", path);
    memcpy(folder, length > 0 ? path : ".", length > 0 ? length : 1);
    folder[length > 0 ? length : 1] = 0;
    return ddp_fs_sync_dir(folder);
}

ddp_status ddp_fs_rename(const char *from, const char *to)
{
    DDP_TRY(ddpi_fs_fault("rename", to));
    if (rename(from, to) != 0)
        return refused("replace", to);
    return sync_folder_of(to);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static ddp_status add_name(ddp_fs_names *names, int *capacity, const char *name)
{
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return DDP_OK;
    DDP_TRY(DDP_GROW(names->names, *capacity, (int)names->count));
    DDP_TRY(ddp_strdup(name, &names->names[names->count]));
    names->count++;
    return DDP_OK;
}

ddp_status ddp_fs_list(const char *path, ddp_fs_names *names_out)
{
    ddp_fs_names names = {0};
    int capacity = 0;
    DIR *dir = opendir(path);

    *names_out = names;
    if (dir == NULL && errno == ENOENT)
        return DDP_OK;
    if (dir == NULL)
        return refused("list", path);
    ddp_status st = DDP_OK;
    for (struct dirent *entry; st == DDP_OK && (entry = readdir(dir)) != NULL;)
        st = add_name(&names, &capacity, entry->d_name);
    closedir(dir);
    if (st != DDP_OK) {
        ddp_fs_names_free(&names);
        return st;
    }
    if (names.count > 0)
        qsort(names.names, names.count, sizeof *names.names, by_name);
    *names_out = names;
    return DDP_OK;
}

void ddp_fs_names_free(ddp_fs_names *names)
{
    for (size_t i = 0; i < names->count; i++)
        ddp_free(names->names[i]);
    ddp_free(names->names);
    *names = (ddp_fs_names){0};
}

static ddp_status remove_tree(const char *path, int depth)
{
    ddp_fs_names names;
    struct stat info;

    if (lstat(path, &info) != 0)
        return errno == ENOENT ? DDP_OK : refused("remove", path);
    if (!S_ISDIR(info.st_mode))
        return unlink(path) == 0 || errno == ENOENT ? DDP_OK : refused("remove", path);
    if (depth == 0)
        return DDP_FAIL(DDP_ERR_IO, "remove %s: folders are nested too deep", path);
    DDP_TRY(ddp_fs_list(path, &names));
    ddp_status st = DDP_OK;
    for (size_t i = 0; i < names.count && st == DDP_OK; i++) {
        char *inner;
        st = DDP_ALLOC(inner, PATH_MAX);
        if (st == DDP_OK)
            st = ddp_fs_join(inner, PATH_MAX, path, names.names[i]);
        if (st == DDP_OK)
            st = remove_tree(inner, depth - 1);
        ddp_free(inner);
    }
    ddp_fs_names_free(&names);
    DDP_TRY(st);
    return rmdir(path) == 0 || errno == ENOENT ? DDP_OK : refused("remove", path);
}

ddp_status ddp_fs_remove_tree(const char *path)
{
    return remove_tree(path, MAX_DEPTH);
}
