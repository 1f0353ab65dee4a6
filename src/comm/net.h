/* net.h - the side channel between nodes: what ranks are doing, the first cause of a failure, and
 * the end of a process, over TCP beside the messages that may hang.
 *
 * A star: the first rank of each node is connected to rank 0, which knows the records of all ranks;
 * a cause goes to rank 0 and from there to all. Every connection must show a random token, which
 * ranks got over MPI, and is shown another in return; what does not is dropped. Frames have one
 * size and this machine's layout. Nothing here blocks. One thread polls, views and closes (the
 * watchdog's); any thread may tell. */
#ifndef DDPI_NET_H
#define DDPI_NET_H

#include "comm/side.h"

enum { DDPI_NET_ADDRESSES = 16, DDPI_NET_TOKEN_BYTES = 16 };

typedef struct ddpi_net ddpi_net;

/* Where rank 0 listens; plain bytes, for a broadcast. port 0: nowhere. */
typedef struct ddpi_net_address {
    uint8_t hello[DDPI_NET_TOKEN_BYTES], welcome[DDPI_NET_TOKEN_BYTES];
    int32_t node_count, port, count;
    struct {
        int32_t family;
        uint8_t bytes[16];
    } list[DDPI_NET_ADDRESSES];
} ddpi_net_address;

typedef struct ddpi_net_cause {
    int from; /* rank that has told it */
    ddp_status status;
    char text[DDPI_SIDE_CAUSE_BYTES];
} ddpi_net_cause;

/* Rank 0: listens on all interfaces. The caller owns *net_out. */
DDP_INNER ddp_status ddpi_net_listen(int node_count, int world, ddpi_net_address *address_out,
                                     ddpi_net **net_out);
/* The first rank of another node: is going to connect. */
DDP_INNER ddp_status ddpi_net_join(const ddpi_net_address *address, int node, ddpi_net **net_out);
/* Before all that follows. side: of this rank's node, borrowed. */
DDP_INNER ddp_status ddpi_net_attach(ddpi_net *net, const ddpi_side *side);
/* With `left`, says that the ranks that have left did so in order. NULL is fine. */
void ddpi_net_close(ddpi_net *net, bool left);

/* Connects, hears, says what is new. True: *cause_out is the cause that another node tells. */
bool ddpi_net_poll(ddpi_net *net, ddpi_net_cause *cause_out);
/* Any thread. This node has failed. */
void ddpi_net_tell(ddpi_net *net, int from, ddp_status status, const char *cause);

/* Rank 0 knows something of ranks of other nodes: their number is the world's, most are absent at
 * first, and those of its own node stay so. Elsewhere there are none. */
int ddpi_net_count(const ddpi_net *net);
void ddpi_net_view_get(const ddpi_net *net, int rank, ddpi_side_view *view_out);
/* For how long nothing was heard of a rank. */
int64_t ddpi_net_silence_ns(const ddpi_net *net, int rank);
/* Any thread, elsewhere than at rank 0: this end's address of the connection to it; false: there is
 * none (yet). */
bool ddpi_net_way(ddpi_net *net, char *text, size_t text_bytes);
/* Rank 0 hears all nodes. */
bool ddpi_net_hears_all(const ddpi_net *net);
/* A connection has ended, and its rank had not left in order: the first such rank. */
bool ddpi_net_lost(const ddpi_net *net, ddpi_side_view *view_out);

#endif
