/* bind.c - what the machine says of a GPU's neighbourhood, and keeping a rank's threads there.
 *
 * A thread inherits the affinity of the one that makes it, but the communicator's threads exist
 * before a rank knows its GPU; so all threads that there are get it. */
#include <dirent.h>
#include <hwloc.h>
#include <hwloc/glibc-sched.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/place.h"

bool ddpi_cores_narrow(cpu_set_t *cores, const cpu_set_t *near_cores)
{
    cpu_set_t both;

    CPU_AND(&both, cores, near_cores);
    if (CPU_COUNT(&both) == 0)
        return false;
    *cores = both;
    return true;
}

/* ---- near a PCI device ---- */

static bool load_topology(hwloc_topology_t *topology_out)
{
    /* They ask display servers and drivers, for what is not needed here: that may take seconds. */
    static const char *const slow[] = {"gl", "opencl", "cuda", "nvml", "rsmi"};
    hwloc_topology_t topology;

    if (hwloc_topology_init(&topology) != 0)
        return false;
    for (size_t i = 0; i < sizeof slow / sizeof slow[0]; i++)
        (void)hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST,
                                            slow[i]);
    /* All, since a GPU that no driver of hwloc's knows is no "important" device. */
    if (hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_ALL) != 0 ||
        hwloc_topology_load(topology) != 0) {
        hwloc_topology_destroy(topology);
        return false;
    }
    *topology_out = topology;
    return true;
}

bool ddpi_near_cores(const char *pci, cpu_set_t *cores_out)
{
    hwloc_topology_t topology;
    bool found = false;

    if (pci[0] == '\0' || !load_topology(&topology))
        return false;
    hwloc_obj_t device = hwloc_get_pcidev_by_busidstring(topology, pci);
    hwloc_obj_t place = device != NULL ? hwloc_get_non_io_ancestor_obj(topology, device) : NULL;
    if (place != NULL && place->cpuset != NULL && hwloc_bitmap_iszero(place->cpuset) == 0)
        found = hwloc_cpuset_to_glibc_sched_affinity(topology, place->cpuset, cores_out,
                                                     sizeof *cores_out) == 0;
    hwloc_topology_destroy(topology);
    return found && CPU_COUNT(cores_out) > 0;
}

/* ---- binding ---- */

/* A thread may end while the list is read. */
static void bind_task(const char *name, const cpu_set_t *cores)
{
    char *end;
    long task = strtol(name, &end, 10);

    if (task > 0 && *end == '\0')
        (void)!sched_setaffinity((pid_t)task, sizeof *cores, cores);
}

ddp_status ddpi_bind_threads(const cpu_set_t *cores, bool only_caller)
{
    if (sched_setaffinity(0, sizeof *cores, cores) != 0)
        return DDP_FAIL(DDP_ERR_IO, "bind to the cores near the GPU: %m");
    if (only_caller)
        return DDP_OK;
    DIR *tasks = opendir("/proc/self/task");
    if (tasks == NULL)
        return DDP_FAIL(DDP_ERR_IO, "list /proc/self/task: %m");
    for (const struct dirent *entry; (entry = readdir(tasks)) != NULL;)
        bind_task(entry->d_name, cores);
    closedir(tasks);
    return DDP_OK;
}

/* ---- the network ---- */

void ddpi_find_network(char name[DDPI_NETWORK_BYTES])
{
    struct ifaddrs *list;

    snprintf(name, DDPI_NETWORK_BYTES, "-");
    if (getifaddrs(&list) != 0)
        return;
    for (const struct ifaddrs *at = list; at != NULL; at = at->ifa_next) {
        if (at->ifa_addr == NULL || (at->ifa_flags & IFF_LOOPBACK) != 0 ||
            (at->ifa_flags & IFF_UP) == 0 ||
            (at->ifa_addr->sa_family != AF_INET && at->ifa_addr->sa_family != AF_INET6))
            continue;
        snprintf(name, DDPI_NETWORK_BYTES, "%s", at->ifa_name);
        break;
    }
    freeifaddrs(list);
}
