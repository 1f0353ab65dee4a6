/* net_socket.h - sockets of the side channel between nodes: none of these calls blocks. */
#ifndef DDPI_NET_SOCKET_H
#define DDPI_NET_SOCKET_H

#include "comm/net.h"

/* Listens on a free port of all interfaces; fills the address but for the tokens. */
DDP_INNER ddp_status ddpi_socket_listen(int backlog, ddpi_net_address *address_out, int *fd_out);
/* The next connection that waits; -1: none. */
int ddpi_socket_accept(int listener);
/* Starts a connection to the address's entry number i; -1: cannot. */
int ddpi_socket_connect(const ddpi_net_address *address, int i);
typedef enum ddpi_socket_state {
    DDPI_SOCKET_WAITS,
    DDPI_SOCKET_READY,
    DDPI_SOCKET_DEAD
} ddpi_socket_state;
/* What has become of a connection that was started. */
ddpi_socket_state ddpi_socket_connected(int fd);
/* The address of this end; "" if the system does not say. */
void ddpi_socket_own_address(int fd, char *text, size_t text_bytes);
/* Bytes moved; 0: none now; -1: the connection has ended. */
int64_t ddpi_socket_send(int fd, const void *data, size_t bytes);
int64_t ddpi_socket_receive(int fd, void *data, size_t bytes);

#endif
