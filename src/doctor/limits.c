/* limits.c - what the system lets this process have of files, locked memory and threads. */
#include <dirent.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "doctor/doctor.h"

static int64_t as_number(rlim_t limit)
{
    return limit == RLIM_INFINITY || limit > (rlim_t)INT64_MAX ? INT64_MAX : (int64_t)limit;
}

static int count_entries(const char *path)
{
    DIR *folder = opendir(path);
    int count = 0;

    if (folder == NULL)
        return 0;
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count > 2 ? count - 2 : 0; /* "." and ".." */
}

static int64_t number_in(const char *path)
{
    char text[64], *end;
    const long long value = strtoll(ddpi_doctor_read(path, text, sizeof text), &end, 10);

    return end == text ? -1 : value;
}

/* Where a container has a group of its own, that is the root it sees. */
static int64_t threads_left(void)
{
    static const char *const folders[][2] = {
        {"/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids.current"},
        {"/sys/fs/cgroup/pids/pids.max", "/sys/fs/cgroup/pids/pids.current"}};
    int64_t left = INT64_MAX;
    struct rlimit limit;

    /* The user's processes elsewhere count as well, but are not seen from here. */
    if (geteuid() != 0 && getrlimit(RLIMIT_NPROC, &limit) == 0)
        left = as_number(limit.rlim_cur);
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        const int64_t most = number_in(folders[i][0]), now = number_in(folders[i][1]);
        if (most > 0 && now >= 0 && most - now < left)
            left = most > now ? most - now : 0;
    }
    return left;
}

void ddpi_doctor_look_at_limits(ddpi_doctor_limits *limits)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limits->files_soft = as_number(limit.rlim_cur);
        limits->files_hard = as_number(limit.rlim_max);
    }
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0)
        limits->memlock = as_number(limit.rlim_cur);
    limits->files_open = count_entries("/proc/self/fd");
    limits->processes = threads_left();
    limits->infiniband = count_entries("/sys/class/infiniband") > 0;
}
