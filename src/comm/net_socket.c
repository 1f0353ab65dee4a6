/* net_socket.c - sockets of the side channel between nodes.
 *
 * One listener takes both families where the host has IPv6, else IPv4 alone. A host's addresses are
 * all those of interfaces that are up, loopback last: another node may be a process on this host.
 * No state. */
#include "comm/net_socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SOCKET_FLAGS (SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC)

/* ---- listening ---- */

static void add_address(const struct sockaddr *from, ddpi_net_address *to)
{
    if (to->count == DDPI_NET_ADDRESSES)
        return;
    if (from->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, from, sizeof in);
        memcpy(to->list[to->count].bytes, &in.sin_addr, sizeof in.sin_addr);
    } else {
        struct sockaddr_in6 in6;
        memcpy(&in6, from, sizeof in6);
        /* Its scope is a number that only this host knows. */
        if (IN6_IS_ADDR_LINKLOCAL(&in6.sin6_addr))
            return;
        memcpy(to->list[to->count].bytes, &in6.sin6_addr, sizeof in6.sin6_addr);
    }
    to->list[to->count++].family = from->sa_family;
}

static void add_interfaces(const struct ifaddrs *list, bool loopback, bool ipv6,
                           ddpi_net_address *to)
{
    for (const struct ifaddrs *at = list; at != NULL; at = at->ifa_next) {
        if (at->ifa_addr == NULL || (at->ifa_flags & IFF_UP) == 0 ||
            ((at->ifa_flags & IFF_LOOPBACK) != 0) != loopback)
            continue;
        if (at->ifa_addr->sa_family == AF_INET || (at->ifa_addr->sa_family == AF_INET6 && ipv6))
            add_address(at->ifa_addr, to);
    }
}

static ddp_status find_addresses(bool ipv6, ddpi_net_address *to)
{
    struct ifaddrs *list;

    if (getifaddrs(&list) != 0)
        return DDP_FAIL(DDP_ERR_IO, "list the host's addresses: %m");
    add_interfaces(list, false, ipv6, to);
    add_interfaces(list, true, ipv6, to);
    freeifaddrs(list);
    return to->count > 0 ? DDP_OK : DDP_FAIL(DDP_ERR_IO, "the host has no address");
}

/* On any port; false leaves no socket. */
static bool bind_any(int family, int *fd_out)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_addr = in6addr_any};
    bool ipv6 = family == AF_INET6;
    int off = 0, fd = socket(family, SOCKET_FLAGS, 0);

    if (fd < 0)
        return false;
    if ((ipv6 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) != 0) ||
        bind(fd, ipv6 ? (struct sockaddr *)&in6 : (struct sockaddr *)&in,
             ipv6 ? sizeof in6 : sizeof in) != 0) {
        close(fd);
        return false;
    }
    *fd_out = fd;
    return true;
}

static int port_of(int fd)
{
    struct sockaddr_in6 name = {0}; /* its port lies where that of IPv4 does */
    socklen_t bytes = sizeof name;

    return getsockname(fd, (struct sockaddr *)&name, &bytes) == 0 ? ntohs(name.sin6_port) : 0;
}

ddp_status ddpi_socket_listen(int backlog, ddpi_net_address *address_out, int *fd_out)
{
    bool ipv6 = bind_any(AF_INET6, fd_out);

    address_out->count = 0;
    if (!ipv6 && !bind_any(AF_INET, fd_out))
        return DDP_FAIL(DDP_ERR_IO, "open a socket to listen: %m");
    address_out->port = port_of(*fd_out);
    ddp_status st = listen(*fd_out, backlog) == 0 && address_out->port > 0
                        ? find_addresses(ipv6, address_out)
                        : DDP_FAIL(DDP_ERR_IO, "listen: %m");
    if (st != DDP_OK)
        close(*fd_out);
    return st;
}

/* ---- connections ---- */

static void tune(int fd)
{
    int on = 1;

    (void)!setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

int ddpi_socket_accept(int listener)
{
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (fd >= 0)
        tune(fd);
    return fd;
}

int ddpi_socket_connect(const ddpi_net_address *address, int i)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons((uint16_t)address->port)};
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_port = in.sin_port};
    bool ipv6 = address->list[i].family == AF_INET6;
    int fd = socket(ipv6 ? AF_INET6 : AF_INET, SOCKET_FLAGS, 0);

    if (fd < 0)
        return -1;
    memcpy(&in.sin_addr, address->list[i].bytes, sizeof in.sin_addr);
    memcpy(&in6.sin6_addr, address->list[i].bytes, sizeof in6.sin6_addr);
    tune(fd);
    if (connect(fd, ipv6 ? (struct sockaddr *)&in6 : (struct sockaddr *)&in,
                ipv6 ? sizeof in6 : sizeof in) == 0 ||
        errno == EINPROGRESS)
        return fd;
    close(fd);
    return -1;
}

ddpi_socket_state ddpi_socket_connected(int fd)
{
    struct pollfd entry = {.fd = fd, .events = POLLOUT};
    int error = 0;
    socklen_t bytes = sizeof error;

    if (poll(&entry, 1, 0) <= 0)
        return DDPI_SOCKET_WAITS;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0 || error != 0)
        return DDPI_SOCKET_DEAD;
    return DDPI_SOCKET_READY;
}

static int64_t moved(ssize_t bytes)
{
    if (bytes > 0)
        return bytes;
    if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return 0;
    return -1;
}

int64_t ddpi_socket_send(int fd, const void *data, size_t bytes)
{
    return moved(send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT));
}

int64_t ddpi_socket_receive(int fd, void *data, size_t bytes)
{
    return moved(recv(fd, data, bytes, MSG_DONTWAIT));
}

void ddpi_socket_own_address(int fd, char *text, size_t text_bytes)
{
    struct sockaddr_storage own = {.ss_family = AF_UNSPEC};
    socklen_t bytes = sizeof own;

    text[0] = '\0';
    if (getsockname(fd, (struct sockaddr *)&own, &bytes) != 0)
        return;
    const void *address = own.ss_family == AF_INET6
                              ? (const void *)&((struct sockaddr_in6 *)&own)->sin6_addr
                              : (const void *)&((struct sockaddr_in *)&own)->sin_addr;
    if (inet_ntop(own.ss_family, address, text, (socklen_t)text_bytes) == NULL)
        text[0] = '\0';
}
