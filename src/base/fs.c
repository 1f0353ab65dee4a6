/* fs.c - whole files, atomic replacement and directories. No state, any thread. */
#include "ddp/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fs_impl.h"
#include "ddp/memory.h"
#include "ddp/thread.h"

#define FIRST_READ_BYTES 65536

/* What is wrong with the file before reading it, and a first guess of its size: pipes and /proc
 * files tell none. */
static ddp_status check_file(int fd, const char *path, size_t limit_bytes, size_t *guess_out)
{
    struct stat info;

    if (fstat(fd, &info) != 0)
        return DDP_FAIL(DDP_ERR_IO, "%s: %s", path, strerror(errno));
    if (S_ISDIR(info.st_mode))
        return DDP_FAIL(DDP_ERR_IO, "%s: is a directory, a file was expected", path);
    bool sized = S_ISREG(info.st_mode) && info.st_size > 0;
    if (sized && (uint64_t)info.st_size > limit_bytes)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: has %lld bytes, at most %zu are accepted", path,
                        (long long)info.st_size, limit_bytes);
    /* One more, to meet the end without growing. */
    *guess_out = sized ? (size_t)info.st_size + 1 : FIRST_READ_BYTES;
    return DDP_OK;
}

/* Doubles the buffer, which is freed in any case. */
static ddp_status grow(char **data, size_t *capacity)
{
    char *larger = NULL;
    ddp_status st = ddp_alloc_bytes(*capacity * 2 + 1, 1, (void **)&larger);

    if (st == DDP_OK)
        memcpy(larger, *data, *capacity);
    ddp_free(*data);
    *data = larger;
    *capacity *= 2;
    return st;
}

/* Reads fd to its end; the buffer has room for a 0 behind `capacity`. */
static ddp_status read_all(int fd, const char *path, size_t limit_bytes, char **data_out,
                           size_t *bytes_out)
{
    size_t capacity = 0;
    size_t used = 0;
    char *data;
    ddp_status st;

    DDP_TRY(check_file(fd, path, limit_bytes, &capacity));
    DDP_TRY(ddp_alloc_bytes(capacity + 1, 1, (void **)&data));
    for (;;) {
        ssize_t got = read(fd, data + used, capacity - used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            st = DDP_FAIL(DDP_ERR_IO, "read %s: %s", path, strerror(errno));
            goto err_free;
        }
        if (got == 0)
            break;
        used += (size_t)got;
        if (used > limit_bytes) {
            st = DDP_FAIL(DDP_ERR_FORMAT, "%s: has more than the accepted %zu bytes", path,
                          limit_bytes);
            goto err_free;
        }
        if (used == capacity)
            DDP_TRY(grow(&data, &capacity));
    }
    data[used] = 0;
    *data_out = data;
    *bytes_out = used;
    return DDP_OK;

err_free:
    ddp_free(data);
    return st;
}

ddp_status ddp_fs_read(const char *path, size_t limit_bytes, char **data_out, size_t *bytes_out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return DDP_FAIL(DDP_ERR_IO, "open %s: %s", path, strerror(errno));
    ddp_status st = read_all(fd, path, limit_bytes, data_out, bytes_out);
    close(fd);
    return st;
}

ddp_status ddp_fs_write_all(int fd, const void *data, size_t bytes, const char *path)
{
    const char *at = data;

    while (bytes > 0) {
        DDP_TRY(ddpi_fs_fault("write", path));
        ssize_t wrote = write(fd, at, bytes);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0)
            return DDP_FAIL(DDP_ERR_IO, "write %s: %s", path, strerror(errno));
        if (wrote == 0)
            return DDP_FAIL(DDP_ERR_IO, "write %s: nothing more is accepted", path);
        at += wrote;
        bytes -= (size_t)wrote;
    }
    return DDP_OK;
}

/* Creates and fills the file beside; the caller removes it if this fails. */
static ddp_status write_beside(int fd, const char *path, const void *data, size_t bytes)
{
    ddp_status st = ddp_fs_write_all(fd, data, bytes, path);

    if (st == DDP_OK)
        st = ddp_fs_sync(fd, path);
    if (close(fd) != 0 && st == DDP_OK)
        st = DDP_FAIL(DDP_ERR_IO, "close %s: %s", path, strerror(errno));
    return st;
}

ddp_status ddp_fs_write_atomic(const char *path, const void *data, size_t bytes)
{
    char beside[PATH_MAX];

    /* Process, thread and time keep writers of the same path out of each other's file. */
    int n = snprintf(beside, sizeof beside, "%s.tmp-%d-%llx", path, (int)gettid(),
                     (unsigned long long)ddp_now_ns());
    if (n < 0 || (size_t)n >= sizeof beside)
        return DDP_FAIL(DDP_ERR_IO, "%s: the path is too long", path);
    int fd;
    DDP_TRY(ddp_fs_create(beside, &fd));
    ddp_status st = write_beside(fd, path, data, bytes);
    if (st == DDP_OK)
        st = ddp_fs_rename(beside, path);
    if (st != DDP_OK)
        unlink(beside);
    return st;
}

ddp_status ddp_fs_make_dirs(const char *path)
{
    char part[PATH_MAX];
    size_t length = strlen(path);
    struct stat info;

    if (length == 0 || length >= sizeof part)
        return DDP_FAIL(DDP_ERR_IO, "make directory \"%.200s\": the path is %s", path,
                        length == 0 ? "empty" : "too long");
    memcpy(part, path, length + 1);
    for (size_t i = 1; i <= length; i++) {
        if (part[i] != '/' && part[i] != 0)
            continue;
        char kept = part[i];
        part[i] = 0;
        /* Not only EEXIST: a folder that exists on a read-only file system answers EROFS. */
        if (mkdir(part, 0777) != 0) {
            int error = errno;
            if (stat(part, &info) != 0)
                return DDP_FAIL(DDP_ERR_IO, "make directory %s: %s", part, strerror(error));
            if (!S_ISDIR(info.st_mode))
                return DDP_FAIL(DDP_ERR_IO, "make directory %s: a file has this name", part);
        }
        part[i] = kept;
    }
    return DDP_OK;
}

bool ddp_fs_exists(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0;
}

ddp_status ddp_fs_join(char *text, size_t text_bytes, const char *dir, const char *name)
{
    size_t length = strlen(dir);
    const char *separator = length == 0 || dir[length - 1] == '/' ? "" : "/";
    int n = snprintf(text, text_bytes, "%s%s%s", dir, separator, name);

    if (n < 0 || (size_t)n >= text_bytes)
        return DDP_FAIL(DDP_ERR_USAGE, "the path %.200s%s%.200s is longer than %zu bytes", dir,
                        separator, name, text_bytes - 1);
    return DDP_OK;
}
