/* clocks.h - how far the ranks' monotonic clocks are ahead of rank 0's.
 *
 * Ranks of a node share a clock. Between nodes, rank 0 sends messages to each node's first rank and
 * back: the other's clock was read somewhere in between, so the middle is its best guess, and half
 * of the way that of the quickest message bounds the error. Two looks at different times also tell
 * how fast a clock runs away. */
#ifndef DDP_CLOCKS_H
#define DDP_CLOCKS_H

#include "ddp/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ddp_clock_look {
    int64_t at_ns;    /* this rank's clock */
    int64_t ahead_ns; /* of rank 0's */
    int64_t error_ns; /* at most; 0: the clock is rank 0's */
} ddp_clock_look;

/* Collective. */
DDP_CALL ddp_status ddp_clocks_look(ddp_comm *comm, ddp_clock_look *look_out);
/* What messages there and back say of the other's clock; count >= 1. */
DDP_API ddp_clock_look ddp_clocks_compare(const ddp_ping *pings, int count);
/* A time of this rank as rank 0's clock would have shown it: on the line through two looks, the
 * earlier one first, unless they lie too close together for their errors. */
DDP_API int64_t ddp_clocks_translate(const ddp_clock_look looks[2], int64_t own_ns);

#ifdef __cplusplus
}
#endif
#endif
