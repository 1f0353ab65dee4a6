/* watchdog.h - the thread that notices that a communicator will not get on.
 *
 * One per communicator. It looks every few tens of milliseconds, at the side records and at the
 * works that this rank has pending, and calls its owner once, when
 * - a rank has recorded a cause of failure,
 * - the process of another rank is dead, or it has left while it is still needed,
 * - a pending work is past its deadline: the cause names the ranks that keep it waiting.
 * It uses neither MPI nor anything else that may block. */
#ifndef DDPI_WATCHDOG_H
#define DDPI_WATCHDOG_H

#include "comm/net.h"
#include "comm/side.h"

typedef struct ddpi_watchdog ddpi_watchdog;

typedef struct ddpi_watchdog_opts {
    ddpi_side *side;      /* borrowed; outlives the watchdog */
    int64_t interval_ms;  /* 0: 50 */
    bool watch_processes; /* false where all ranks are threads of one process */
    /* Called at most once, from the watchdog's thread. status: DDP_ERR_PEER or DDP_ERR_TIMEOUT.
     * first: this rank has recorded the cause and is the one to print it. May not return. */
    void (*fail)(void *arg, ddp_status status, const char *cause, bool first);
    void *fail_arg;
    ddpi_net *net; /* NULL: none; borrowed */
    /* Another node tells a cause. As fail. */
    void (*hear)(void *arg, const ddpi_net_cause *cause);
} ddpi_watchdog_opts;

/* Starts the thread "ddp-watch". */
DDP_INNER ddp_status ddpi_watchdog_start(const ddpi_watchdog_opts *opts,
                                         ddpi_watchdog **watchdog_out);
/* Stops and joins; must not be called from fail. NULL is fine. */
void ddpi_watchdog_stop(ddpi_watchdog *watchdog);

/* Any thread. A work is pending from begin (once it has seq, submit_ns and deadline_ns; 0 or
 * DDP_NO_DEADLINE: none) to end. These also call ddpi_side_entered() and ddpi_side_finished(). If
 * more than 64 works are pending, the youngest are not watched. */
void ddpi_watchdog_begin(ddpi_watchdog *watchdog, const ddp_work *work);
void ddpi_watchdog_end(ddpi_watchdog *watchdog, const ddp_work *work);

/* Any thread. Whether this watchdog knows what all of so many ranks are doing. */
bool ddpi_watchdog_sees(const ddpi_watchdog *watchdog, int world);

#endif
