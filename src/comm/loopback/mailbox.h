/* mailbox.h - messages between the threads of a loopback world, with injected faults.
 *
 * Each rank has one mailbox, which others put copies of messages into and its engine takes them out
 * of. A message becomes visible at its delivery time. Messages of one sender keep their order, or,
 * with reordering, those of one sender and tag do. Any thread; each mailbox has a lock. */
#ifndef DDPI_LOOPBACK_MAILBOX_H
#define DDPI_LOOPBACK_MAILBOX_H

#include "comm/engine.h"
#include "ddp/comm.h"

typedef struct ddpi_post ddpi_post; /* the mailboxes of a world */

DDP_INNER ddp_status ddpi_post_create(int world, const ddp_loopback_faults *faults,
                                      ddpi_post **post_out);
void ddpi_post_destroy(ddpi_post *post);

/* One rank's view, and the transport's self. */
typedef struct ddpi_post_rank {
    ddpi_post *post;
    int rank;
    uint64_t sent; /* messages */
    uint64_t seen; /* arrivals, as of the last test */
} ddpi_post_rank;

extern const ddpi_transport ddpi_loopback_transport;

#endif
