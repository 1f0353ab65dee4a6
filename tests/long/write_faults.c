/* write_faults.c - preloaded into a training program, makes one step of writing a checkpoint fail.
 *
 * Steps are numbered from 0 over all threads: creations, writes, reservations, syncs and renames of
 * what lies in a folder "checkpoints". FAULT_AT says which, FAULT_ERROR is its errno, or 0: the
 * process is killed there. The file FAULT_MARK is made before, so that the caller knows that there
 * was such a step. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_int steps;

/* The next definition behind this one: the C library's. ISO C has no cast for it. */
static void find(void *function_out, const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    memcpy(function_out, &found, sizeof found);
}

static int strikes(const char *path)
{
    const char *at = getenv("FAULT_AT"), *error = getenv("FAULT_ERROR");
    const char *mark = getenv("FAULT_MARK");

    if (strstr(path, "/checkpoints/") == NULL || at == NULL || error == NULL || mark == NULL ||
        atomic_fetch_add(&steps, 1) != atoi(at))
        return 0;
    syscall(SYS_openat, AT_FDCWD, mark, O_WRONLY | O_CREAT, 0666);
    if (atoi(error) == 0)
        raise(SIGKILL);
    errno = atoi(error);
    return 1;
}

static int strikes_fd(int fd)
{
    char link[64], path[4096];

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t bytes = readlink(link, path, sizeof path - 2);
    if (bytes <= 0)
        return 0;
    path[bytes] = '/'; /* so that the folder itself counts, too */
    path[bytes + 1] = 0;
    return strikes(path);
}

int open(const char *path, int flags, ...)
{
    int (*real)(const char *, int, ...);
    va_list list;

    va_start(list, flags);
    const unsigned mode = (flags & O_CREAT) != 0 ? va_arg(list, unsigned) : 0;
    va_end(list);
    find(&real, "open");
    return (flags & O_CREAT) != 0 && strikes(path) ? -1 : real(path, flags, mode);
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    ssize_t (*real)(int, const void *, size_t);

    find(&real, "write");
    return strikes_fd(fd) ? -1 : real(fd, data, bytes);
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    ssize_t (*real)(int, const void *, size_t, off_t);

    find(&real, "pwrite");
    return strikes_fd(fd) ? -1 : real(fd, data, bytes, offset);
}

int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    int (*real)(int, int, off_t, off_t);

    find(&real, "fallocate");
    return strikes_fd(fd) ? -1 : real(fd, mode, offset, bytes);
}

int fsync(int fd)
{
    int (*real)(int);

    find(&real, "fsync");
    return strikes_fd(fd) ? -1 : real(fd);
}

int rename(const char *from, const char *to)
{
    int (*real)(const char *, const char *);

    find(&real, "rename");
    return strikes(to) ? -1 : real(from, to);
}
