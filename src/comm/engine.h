/* engine.h - the communication thread of a rank, and the messages that it sends.
 *
 * One thread takes works from a first-in first-out list and runs each as an algorithm (algo.h) over
 * a transport: a table of started and tested sends and receives that mpi and loopback provide. All
 * calls of the table come from this thread, except wake. Nothing in it blocks; who waits, waits in
 * a loop that looks for failures and deadlines. */
#ifndef DDPI_ENGINE_H
#define DDPI_ENGINE_H

#include "ddp/work.h"

/* Tags of works are below; the transport may use those above for itself. */
#define DDPI_TAG_COUNT 32000

typedef struct ddpi_engine ddpi_engine;

/* A message on its way. */
typedef struct ddpi_request {
    void *handle[2]; /* the transport's own */
    void *buf;
    size_t bytes;
    int peer, tag;
    bool active, receives;
} ddpi_request;

/* Who keeps a work waiting, in words; empty if nobody is known to. */
typedef struct ddpi_missing {
    char names[192]; /* "rank 1 on hostA, rank 2 on hostB" */
    char seen[96];   /* "; last seen at step 87 in forward", of the first */
} ddpi_missing;

typedef struct ddpi_transport {
    /* These fill the request (buf, bytes, peer and tag are set) and start the message. A send's
     * buffer must not change, nor a receive's be read, until test says done. */
    ddp_status (*send_start)(void *self, ddpi_request *request);
    ddp_status (*recv_start)(void *self, ddpi_request *request);
    ddp_status (*test)(void *self, ddpi_request *request, bool *done_out);
    /* The library's own allreduce of coll->buf, in place. NULL: there is none. */
    ddp_status (*allreduce_start)(void *self, const ddp_coll *coll, ddpi_request *request);
    /* What leaves for another node without asking its receiver first, in bytes: a multiple of
     * DDP_ALIGN_BYTES, 65536 at most. 0: long messages are as good. */
    size_t eager_bytes;
    /* Waits politely after round tests in vain; round 0 is the first. aside: the rank computes
     * meanwhile, and its threads need the processors. */
    void (*idle)(void *self, unsigned round, bool aside);
    /* Another thread wants the engine's attention. NULL: not needed. */
    void (*wake)(void *self);
    /* Where a side channel does not reach all ranks; else all four are NULL. Hears and answers what
     * others say, tells them the cause of a failure, asks all how far they are. */
    void (*listen)(void *self);
    void (*tell_cause)(void *self, ddp_status status, const char *cause);
    void (*ask)(void *self);
    /* Who has not entered the work, by the answers so far. */
    void (*missing)(void *self, uint64_t seq, ddpi_missing *missing_out);
} ddpi_transport;

DDP_INNER ddp_status ddpi_engine_start(ddp_comm *comm, const ddpi_transport *transport, void *self,
                                       ddpi_engine **engine_out);
/* Works still listed fail with the communicator's cause. NULL is fine. */
void ddpi_engine_stop(ddpi_engine *engine);
void ddpi_engine_submit(ddpi_engine *engine, ddp_work *work);
/* Sleeps until the work may be done, at most that long. */
void ddpi_engine_sleep(ddpi_engine *engine, const ddp_work *work, int64_t ns);
/* Marks a work of this engine as done, and wakes who sleeps. The work is not touched afterwards. */
void ddpi_engine_finish(ddpi_engine *engine, ddp_work *work);
/* Any thread. The communicator has failed: the engine drops what it does. If other ranks must be
 * told by message, waits for that, but not long. */
void ddpi_engine_abort(ddpi_engine *engine);
/* The communicator has failed: waits until the engine is through with the work that it is at, and
 * looks at no other but to drop it. NULL is fine. */
void ddpi_engine_settle(ddpi_engine *engine);
/* Whether the transport's library has an allreduce of its own. */
bool ddpi_engine_has_allreduce(const ddpi_engine *engine);
uint64_t ddpi_engine_bytes_sent(const ddpi_engine *engine);
uint64_t ddpi_engine_bytes_across(const ddpi_engine *engine);

#endif
