/* proc.c - reads /proc/PID/stat; see proc(5) for its fields. */
#include "comm/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define STATE_FIELD 3
#define START_FIELD 22
#define FNV_BASE    UINT64_C(0xcbf29ce484222325)
#define FNV_PRIME   UINT64_C(0x100000001b3)

static ssize_t read_stat(int64_t pid, char *text, size_t text_bytes)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t got = read(fd, text, text_bytes - 1);
    int error = errno;
    close(fd);
    errno = error;
    if (got >= 0)
        text[got] = '\0';
    return got;
}

ddpi_proc_state ddpi_proc_read(int64_t pid, ddpi_proc_info *info_out)
{
    char text[1024];

    /* A process may end between open and read. Without /proc, only its absence can be seen. */
    if (read_stat(pid, text, sizeof text) <= 0)
        return kill((pid_t)pid, 0) != 0 && errno == ESRCH ? DDPI_PROC_DEAD : DDPI_PROC_UNKNOWN;
    /* The second field is the name in parentheses, and may contain anything. */
    const char *at = strrchr(text, ')');
    if (at == NULL || at[1] != ' ')
        return DDPI_PROC_UNKNOWN;
    at += 2;
    if (*at == 'Z' || *at == 'X')
        return DDPI_PROC_DEAD;
    info_out->stopped = *at == 'T' || *at == 't';
    for (int field = STATE_FIELD; field < START_FIELD; field++) {
        at = strchr(at, ' ');
        if (at == NULL)
            return DDPI_PROC_UNKNOWN;
        at++;
    }
    info_out->start_time = strtoull(at, NULL, 10);
    return DDPI_PROC_ALIVE;
}

/* Every host's first name space has the same number, but each start of a kernel an identity. */
static uint64_t boot_hash(void)
{
    char text[64];
    uint64_t hash = FNV_BASE;
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return 0;
    ssize_t got = read(fd, text, sizeof text);
    close(fd);
    for (ssize_t i = 0; i < got; i++)
        hash = (hash ^ (uint8_t)text[i]) * FNV_PRIME;
    return hash;
}

uint64_t ddpi_proc_space(void)
{
    struct stat info;

    return stat("/proc/self/ns/pid", &info) == 0 ? (uint64_t)info.st_ino ^ boot_hash() : 0;
}
