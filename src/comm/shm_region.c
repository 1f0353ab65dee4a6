/* shm_region.c - POSIX shared memory with an unguessable, short-lived name.
 *
 * posix_fallocate() reserves the pages at once, so that a shared memory file system that is too
 * small (64 MB in many containers) is an error here and not a bus error later. Local; no locks. */
#include "comm/shm_region.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define SHM_FOLDER "/dev/shm"
#define MIB        ((uint64_t)1 << 20)

size_t ddpi_shm_page_round(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    return (bytes + page - 1) / page * page;
}

static ddp_status random_name(char name[DDPI_SHM_NAME_BYTES])
{
    uint64_t token[2];

    if (getrandom(token, sizeof token, 0) != (ssize_t)sizeof token)
        return DDP_FAIL(DDP_ERR_IO, "no random bytes for a shared memory name: %s",
                        strerror(errno));
    snprintf(name, DDPI_SHM_NAME_BYTES, "/ddp-%016llx%016llx", (unsigned long long)token[0],
             (unsigned long long)token[1]);
    return DDP_OK;
}

static ddp_status too_small(size_t bytes, int error)
{
    struct statvfs fs;

    if (statvfs(SHM_FOLDER, &fs) != 0)
        return DDP_FAIL(DDP_ERR_NOMEM, "%llu MiB of shared memory were refused: %s",
                        (unsigned long long)(bytes / MIB), strerror(error));
    return DDP_FAIL(DDP_ERR_NOMEM,
                    "%llu MiB of shared memory were refused: %s (" SHM_FOLDER
                    " has %llu of %llu MiB free)",
                    (unsigned long long)(bytes / MIB), strerror(error),
                    (unsigned long long)((uint64_t)fs.f_bavail * fs.f_frsize / MIB),
                    (unsigned long long)((uint64_t)fs.f_blocks * fs.f_frsize / MIB));
}

/* A request that cannot fit is refused before pages are taken for it: taking all that there are
 * would starve the machine until the refusal. */
static ddp_status reserve(int fd, size_t bytes)
{
    struct statvfs fs;
    int error;

    if (bytes > (size_t)INT64_MAX ||
        (fstatvfs(fd, &fs) == 0 && fs.f_blocks > 0 && bytes / fs.f_frsize > fs.f_bavail))
        return too_small(bytes, ENOSPC);
    do {
        error = posix_fallocate(fd, 0, (off_t)bytes);
    } while (error == EINTR);
    return error == 0 ? DDP_OK : too_small(bytes, error);
}

static ddp_status map(int fd, size_t bytes, void **base_out)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (base == MAP_FAILED)
        return DDP_FAIL(DDP_ERR_NOMEM, "map %zu bytes of shared memory: %s", bytes,
                        strerror(errno));
    /* A hint; by default the kernel gives shared memory small pages. */
    (void)madvise(base, bytes, MADV_HUGEPAGE);
    *base_out = base;
    return DDP_OK;
}

ddp_status ddpi_shm_create(size_t bytes, ddpi_shm_region *region_out)
{
    ddpi_shm_region region = {.bytes = bytes};
    ddp_status st;

    if (bytes == 0)
        return DDP_FAIL(DDP_ERR_USAGE, "a shared memory region must not be empty");
    DDP_TRY(random_name(region.name));
    int fd = shm_open(region.name, O_RDWR | O_CREAT | O_EXCL, S_IRUSR | S_IWUSR);
    if (fd < 0)
        return DDP_FAIL(DDP_ERR_NOMEM, "create shared memory: %s", strerror(errno));
    DDP_TRY_GOTO(st, reserve(fd, bytes), err_unlink);
    DDP_TRY_GOTO(st, map(fd, bytes, &region.base), err_unlink);
    close(fd);
    *region_out = region;
    return DDP_OK;
err_unlink:
    shm_unlink(region.name);
    close(fd);
    return st;
}

ddp_status ddpi_shm_attach(const char *name, size_t bytes, ddpi_shm_region *region_out)
{
    ddpi_shm_region region = {.bytes = bytes};
    struct stat info;
    ddp_status st;

    int fd = shm_open(name, O_RDWR, 0);
    if (fd < 0)
        return DDP_FAIL(DDP_ERR_IO, "attach to shared memory: %s", strerror(errno));
    /* Access beyond the end would be a bus error. */
    if (fstat(fd, &info) != 0 || info.st_size != (off_t)bytes) {
        st =
            DDP_FAIL(DDP_ERR_MISMATCH, "shared memory does not have the expected %zu bytes", bytes);
        goto close;
    }
    st = map(fd, bytes, &region.base);
    if (st == DDP_OK)
        *region_out = region;
close:
    close(fd);
    return st;
}

void ddpi_shm_unlink(ddpi_shm_region *region)
{
    if (region->name[0] != '\0')
        shm_unlink(region->name);
    region->name[0] = '\0';
}

void ddpi_shm_detach(ddpi_shm_region *region)
{
    ddpi_shm_unlink(region);
    if (region->base != NULL)
        munmap(region->base, region->bytes);
    *region = (ddpi_shm_region){.base = NULL};
}

void ddpi_shm_touch(const ddpi_shm_region *region, size_t offset, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t end = offset + bytes;

    DDP_ASSERT(end >= offset && end <= region->bytes);
    /* An atomic addition of nothing takes the page for writing and is harmless to others. */
    for (size_t at = offset; at < end; at += page - at % page)
        atomic_fetch_add_explicit((_Atomic unsigned char *)region->base + at, 0,
                                  memory_order_relaxed);
}
