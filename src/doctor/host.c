/* host.c - processors and memory of the host, as far as this process may use them. */
#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "doctor/doctor.h"

enum { PATH_BYTES = 512, LINE_BYTES = 4096 };

/* ---- control groups ---- */

/* The group of this process in a hierarchy: "" of version 2, else the controller's name. */
static void own_group(const char *controller, char *path, size_t bytes)
{
    char text[LINE_BYTES], *save = NULL;

    snprintf(path, bytes, "/");
    ddpi_doctor_read("/proc/self/cgroup", text, sizeof text);
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *names = strchr(line, ':');
        char *group = names != NULL ? strchr(names + 1, ':') : NULL;
        if (group == NULL)
            continue;
        *group++ = '\0';
        if (strcmp(names + 1, controller) == 0)
            snprintf(path, bytes, "%s", group);
    }
}

/* Calls look() with each folder from the group's up to the root: limits add up on that way. */
static void climb(const char *mount, const char *controller,
                  void (*look)(const char *folder, void *arg), void *arg)
{
    char group[PATH_BYTES], folder[2 * PATH_BYTES];

    own_group(controller, group, sizeof group);
    for (;;) {
        snprintf(folder, sizeof folder, "%s%s", mount, strcmp(group, "/") == 0 ? "" : group);
        look(folder, arg);
        char *slash = strrchr(group, '/');
        if (slash == NULL || group[1] == '\0')
            return;
        slash[slash == group] = '\0';
    }
}

/* The number in a file of a folder; -1: there is none, or it says "max". */
static int64_t number_in(const char *folder, const char *name)
{
    char path[3 * PATH_BYTES], text[64], *end;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    ddpi_doctor_read(path, text, sizeof text);
    const long long value = strtoll(text, &end, 10);
    return end == text || value < 0 ? -1 : value;
}

static void lower(int64_t *limit, int64_t value)
{
    if (value > 0 && (*limit == 0 || value < *limit))
        *limit = value;
}

typedef struct group_memory {
    int64_t limit, left;
} group_memory;

static void look_at_memory(const char *folder, group_memory *m, int64_t limit, const char *used)
{
    const int64_t taken = number_in(folder, used);

    lower(&m->limit, limit);
    if (limit > 0 && taken >= 0)
        lower(&m->left, limit > taken ? limit - taken : 1);
}

static void look_at_memory2(const char *folder, void *arg)
{
    look_at_memory(folder, arg, number_in(folder, "memory.max"), "memory.current");
}

static void look_at_memory1(const char *folder, void *arg)
{
    look_at_memory(folder, arg, number_in(folder, "memory.limit_in_bytes"),
                   "memory.usage_in_bytes");
}

static void take_quota(double *quota, double share, double period)
{
    if (share > 0 && period > 0 && (*quota == 0 || share / period < *quota))
        *quota = share / period;
}

static void look_at_quota2(const char *folder, void *arg)
{
    char path[3 * PATH_BYTES], text[64], *end;

    snprintf(path, sizeof path, "%s/cpu.max", folder);
    ddpi_doctor_read(path, text, sizeof text);
    const double share = strtod(text, &end);
    if (end != text)
        take_quota(arg, share, strtod(end, NULL));
}

static void look_at_quota1(const char *folder, void *arg)
{
    take_quota(arg, (double)number_in(folder, "cpu.cfs_quota_us"),
               (double)number_in(folder, "cpu.cfs_period_us"));
}

/* ---- memory ---- */

/* A line of /proc/meminfo in bytes. */
static int64_t meminfo(const char *text, const char *key)
{
    const char *at = strstr(text, key);

    return at != NULL ? strtoll(at + strlen(key), NULL, 10) * 1024 : 0;
}

static void look_at_huge(char word[DDPI_DOCTOR_NAME_BYTES])
{
    char text[128];
    const char *open = strchr(
        ddpi_doctor_read("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text), '[');

    word[0] = '\0';
    if (open != NULL)
        snprintf(word, DDPI_DOCTOR_NAME_BYTES, "%.*s", (int)strcspn(open + 1, "]"), open + 1);
}

static void look_at_all_memory(ddpi_doctor_memory *m)
{
    group_memory group = {0};
    struct statvfs fs;
    char text[LINE_BYTES];

    ddpi_doctor_read("/proc/meminfo", text, sizeof text);
    m->total = meminfo(text, "MemTotal:");
    m->available = meminfo(text, "MemAvailable:");
    climb("/sys/fs/cgroup", "", look_at_memory2, &group);
    climb("/sys/fs/cgroup/memory", "memory", look_at_memory1, &group);
    if (group.limit > 0 && group.limit < m->total) {
        m->limit = m->total = group.limit;
        if (group.left < m->available)
            m->available = group.left;
    }
    if (statvfs("/dev/shm", &fs) == 0) {
        m->shm_total = (int64_t)(fs.f_blocks * fs.f_frsize);
        m->shm_free = (int64_t)(fs.f_bavail * fs.f_frsize);
    }
    look_at_huge(m->huge);
}

/* ---- processors ---- */

static void look_at_numa(ddpi_doctor_cpu *cpu)
{
    hwloc_topology_t topology;

    if (hwloc_topology_init(&topology) != 0)
        return;
    if (hwloc_topology_load(topology) == 0) {
        cpu->numa_total = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE);
        for (int i = 0; i < cpu->numa_total; i++) {
            const hwloc_obj_t node =
                hwloc_get_obj_by_type(topology, HWLOC_OBJ_NUMANODE, (unsigned)i);
            bool used = false;
            for (unsigned core = 0; core < CPU_SETSIZE && node->cpuset != NULL && !used; core++)
                used = CPU_ISSET(core, &cpu->cores) && hwloc_bitmap_isset(node->cpuset, core);
            cpu->numa_used += used;
        }
    }
    hwloc_topology_destroy(topology);
}

static void look_at_model(char *model, size_t bytes)
{
    char text[LINE_BYTES];
    char *line = strstr(ddpi_doctor_read("/proc/cpuinfo", text, sizeof text), "model name");
    char *value = line != NULL ? strchr(line, ':') : NULL;

    if (value == NULL)
        return;
    value += 1 + strspn(value + 1, " ");
    snprintf(model, bytes, "%.*s", (int)strcspn(value, "\n"), value);
}

void ddpi_doctor_look_at_host(ddpi_doctor_record *record)
{
    ddpi_doctor_cpu *cpu = &record->cpu;

    CPU_ZERO(&cpu->cores);
    (void)!sched_getaffinity(0, sizeof cpu->cores, &cpu->cores);
    cpu->online = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
    climb("/sys/fs/cgroup", "", look_at_quota2, &cpu->quota);
    climb("/sys/fs/cgroup/cpu", "cpu", look_at_quota1, &cpu->quota);
    look_at_model(cpu->model, sizeof cpu->model);
    look_at_numa(cpu);
    look_at_all_memory(&record->memory);
}
