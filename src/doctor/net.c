/* net.c - the host's interfaces and their addresses. Asks the kernel only, never the network. */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/if_link.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "doctor/doctor.h"

static bool starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

/* Interfaces that lead to containers and virtual machines of the same host. */
static bool is_bridge(const char *name)
{
    static const char *const starts[] = {"docker", "br-", "virbr",  "lxcbr",
                                         "lxdbr",  "cni", "podman", "flannel"};
    char path[64];

    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++)
        if (starts_with(name, starts[i]))
            return true;
    snprintf(path, sizeof path, "/sys/class/net/%.15s/bridge", name);
    return access(path, F_OK) == 0;
}

static int count_bits(const uint8_t *bytes, size_t count)
{
    int bits = 0;

    for (size_t i = 0; i < count; i++)
        bits += __builtin_popcount(bytes[i]);
    return bits;
}

/* false: an address that is of no use between hosts. */
static bool take_address(const struct ifaddrs *at, ddpi_doctor_iface *iface)
{
    if (at->ifa_addr->sa_family == AF_INET) {
        const struct sockaddr_in *address = (const void *)at->ifa_addr,
                                 *mask = (const void *)at->ifa_netmask;
        iface->family = 4;
        memcpy(iface->bytes, &address->sin_addr, 4);
        iface->prefix = mask != NULL ? count_bits((const void *)&mask->sin_addr, 4) : 32;
        return inet_ntop(AF_INET, iface->bytes, iface->address, sizeof iface->address) != NULL;
    }
    const struct sockaddr_in6 *address = (const void *)at->ifa_addr,
                              *mask = (const void *)at->ifa_netmask;
    iface->family = 6;
    memcpy(iface->bytes, &address->sin6_addr, 16);
    iface->prefix = mask != NULL ? count_bits((const void *)&mask->sin6_addr, 16) : 128;
    return !IN6_IS_ADDR_LINKLOCAL(&address->sin6_addr) &&
           inet_ntop(AF_INET6, iface->bytes, iface->address, sizeof iface->address) != NULL;
}

static void ask_driver(int fd, ddpi_doctor_iface *iface)
{
    struct ethtool_cmd command = {.cmd = ETHTOOL_GSET};
    struct ifreq request = {.ifr_flags = 0};

    memcpy(request.ifr_name, iface->name, sizeof iface->name);
    if (ioctl(fd, SIOCGIFMTU, &request) == 0)
        iface->mtu = request.ifr_mtu;
    request.ifr_data = (void *)&command;
    if (!iface->loopback && ioctl(fd, SIOCETHTOOL, &request) == 0) {
        /* ethtool_cmd_speed() shifts an int too far. */
        const uint32_t speed = (uint32_t)command.speed_hi << 16 | command.speed;
        iface->speed_mbit = speed == (uint32_t)SPEED_UNKNOWN ? 0 : (int32_t)speed;
    }
}

void ddpi_doctor_look_at_net(ddpi_doctor_net *net)
{
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifaddrs *list;

    if (getifaddrs(&list) != 0)
        list = NULL;
    for (const struct ifaddrs *at = list; at != NULL && net->count < DDPI_DOCTOR_IFACES;
         at = at->ifa_next) {
        ddpi_doctor_iface iface = {.up = (at->ifa_flags & IFF_UP) != 0,
                                   .loopback = (at->ifa_flags & IFF_LOOPBACK) != 0};
        if (at->ifa_addr == NULL ||
            (at->ifa_addr->sa_family != AF_INET && at->ifa_addr->sa_family != AF_INET6) ||
            !take_address(at, &iface))
            continue;
        snprintf(iface.name, sizeof iface.name, "%.15s", at->ifa_name);
        iface.bridge = is_bridge(iface.name);
        ask_driver(fd, &iface);
        net->list[net->count++] = iface;
    }
    if (list != NULL)
        freeifaddrs(list);
    if (fd >= 0)
        close(fd);
}

int ddpi_doctor_traffic_read(ddpi_doctor_traffic traffic_out[DDPI_DOCTOR_IFACES])
{
    struct ifaddrs *list;
    int count = 0;

    if (getifaddrs(&list) != 0)
        return 0;
    for (const struct ifaddrs *at = list; at != NULL && count < DDPI_DOCTOR_IFACES;
         at = at->ifa_next) {
        const struct rtnl_link_stats *stats = at->ifa_data;
        if (at->ifa_addr == NULL || at->ifa_addr->sa_family != AF_PACKET || stats == NULL)
            continue;
        snprintf(traffic_out[count].name, sizeof traffic_out[count].name, "%.15s", at->ifa_name);
        traffic_out[count++].sent = stats->tx_bytes;
    }
    freeifaddrs(list);
    return count;
}
