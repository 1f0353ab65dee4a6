/* lane.h - collectives on device memory: what a lane supplies, beside the host's communicator.
 *
 * A lane is attached to a communicator for one device. Works whose descriptor names a stream go
 * through it; everything else stays with the communicator, which also numbers, watches and checks
 * the lane's works. A lane must sum and broadcast f32 and bf16 (ddpi_lane_takes); every rank owns
 * all of a result. A slot is called by the rank's thread unless it says otherwise.
 *
 * Private to comm and to the module with the device's libraries. */
#ifndef DDPI_COMM_LANE_H
#define DDPI_COMM_LANE_H

#include "ddp/comm.h"

typedef struct ddpi_lane {
    const ddp_lane_ops *ops;
    ddp_comm *comm;
    ddp_device *device;
} ddpi_lane; /* first member of the lane's own */

struct ddp_lane_ops {
    const char *name; /* "nccl", "staged" */
    /* Partial sums of a rank that it adds in the order of all ranks' shards (parts.h); 0: it keeps
     * no order. */
    int max_parts;
    /* Collective. May fail on one rank alone: ddp_comm_attach() agrees, and closes the others'. */
    ddp_status (*open)(ddp_comm *comm, ddp_device *device, const ddp_lane_opts *opts,
                       ddpi_lane **lane_out);
    /* Collective. Zeroed device memory, registered where the library can do that; agreed as open
     * is. */
    ddp_status (*mem_alloc)(ddpi_lane *lane, size_t bytes, void **memory_out);
    void (*mem_free)(ddpi_lane *lane, void *memory, size_t bytes);
    /* Starts the work behind what its stream was given so far. Does not wait for the device.
     * work->lane_slot is the lane's own. */
    ddp_status (*submit)(ddpi_lane *lane, ddp_work *work);
    /* Does not wait. Also finds the library's asynchronous errors. Sets the work's start_ns and
     * end_ns, when it is done. */
    ddp_status (*poll)(ddpi_lane *lane, ddp_work *work, bool *done_out);
    /* What the stream is given later waits for the work. */
    ddp_status (*join)(ddpi_lane *lane, ddp_work *work, ddp_stream *stream);
    /* Works in graphs; all NULL: it cannot. submit() with work->recorded keeps its slot until
     * forget(); replay() launches work->graph on the work's stream, and poll() knows when that is
     * done; recorded_ns() is the time that a slot's work took in the last launch. */
    ddp_status (*replay)(ddpi_lane *lane, ddp_work *work);
    ddp_status (*recorded_ns)(ddpi_lane *lane, int slot, int64_t *ns_out);
    void (*forget)(ddpi_lane *lane, int slot);
    /* The communicator has failed: nothing of the lane may keep the device or close() waiting.
     * Never waits itself; may be called again. */
    void (*abort)(ddpi_lane *lane);
    void (*close)(ddpi_lane *lane);
};

/* Is this a collective for a lane? */
bool ddpi_lane_takes(const ddp_coll *coll);
/* Looks at a work of the lane; completes it when it is done, or cannot be any more. */
void ddpi_lane_poll(ddp_comm *comm, ddp_work *work);

#endif
