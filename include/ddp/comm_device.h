/* comm_device.h - a communicator's works on device memory, and in graphs.
 *
 * A lane is attached to a communicator (comm.h) for one device, and carries the works that name one
 * of its streams. Rank's thread only. */
#ifndef DDP_COMM_DEVICE_H
#define DDP_COMM_DEVICE_H

#include "ddp/work.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- device memory ---- */

/* What carries works on device memory; e.g. ddp_lane_staged(), by way of host memory and messages.
 */
typedef struct ddp_lane_ops ddp_lane_ops;
typedef struct ddp_lane_opts {
    bool deterministic; /* only algorithms that give the same bits each time */
} ddp_lane_opts;
DDP_API const ddp_lane_ops *ddp_lane_staged(void);
/* By messages from and into device memory; only where ddp_comm_device_aware(). Sums over shards in
 * order are none of its works. */
DDP_API const ddp_lane_ops *ddp_lane_direct(void);
/* Whether the library behind the communicator says that it takes device memory. */
DDP_API bool ddp_comm_device_aware(const ddp_comm *comm);

/* Collective. From now on ddp_comm_mem_alloc() gives memory of the device, and works that name a
 * stream are carried by the lane: sums (in any order), and broadcasts, of f32 and bf16. Device and
 * communicator have one rank's thread in common. Before the first ddp_comm_mem_alloc(). */
DDP_CALL ddp_status ddp_comm_attach(ddp_comm *comm, ddp_device *device, const ddp_lane_ops *ops,
                                    const ddp_lane_opts *opts);
/* Collective. Sends a pattern through the lane and back to host memory; DDP_ERR_COMM if other bytes
 * arrive on any rank. */
DDP_CALL ddp_status ddp_comm_probe_lane(ddp_comm *comm);
/* Local. When all works are done and before the device is closed. Frees what is left of the
 * device memory that ddp_comm_mem_alloc() gave. */
DDP_API void ddp_comm_detach(ddp_comm *comm);
DDP_API bool ddp_comm_has_lane(const ddp_comm *comm);
/* "nccl", "staged"; NULL: there is no lane. */
DDP_API const char *ddp_comm_lane_name(const ddp_comm *comm);
/* Local. What the stream is given later waits for the work, which for works on host memory, and
 * where the lane cannot do better, means to wait here. ddp_work_wait() comes later all the same. */
DDP_CALL ddp_status ddp_work_join(ddp_work *work, ddp_stream *stream);
/* Local. Waits for an event as for a work: at most the time that works have, and not after a
 * failure of the communicator. what: for the message. */
DDP_CALL ddp_status ddp_comm_sync_event(ddp_comm *comm, ddp_event *event, const char *what);

/* ---- works in graphs ---- */

/* Works on device memory that are submitted while a stream's work goes into a graph. */
typedef struct ddp_recording ddp_recording;

/* Whether the lane's works can be part of a graph; without a lane, whether there is nobody to talk
 * to. */
DDP_API bool ddp_comm_can_record(const ddp_comm *comm);
/* Local, after ddp_graph_begin(): works that are submitted before ddp_comm_record_end() get no
 * number and are not done; they may be joined, and be waited for, which returns at once. The caller
 * owns *recording_out, and destroys it before ddp_comm_detach(). */
DDP_CALL ddp_status ddp_comm_record_begin(ddp_comm *comm, ddp_recording **recording_out);
DDP_API void ddp_comm_record_end(ddp_comm *comm);
/* Local. Launches the graph behind what the stream was given so far, as one work that covers the
 * numbers of all that were recorded in it. Every rank replays its recording of the same works. */
DDP_CALL ddp_status ddp_comm_replay(const ddp_recording *recording, ddp_graph *graph,
                                    ddp_stream *stream, ddp_work *work);
/* When a replay is done: the time that its works took, added up. */
DDP_CALL ddp_status ddp_recording_ns(const ddp_recording *recording, int64_t *ns_out);
DDP_API void ddp_recording_destroy(ddp_recording *recording);

#ifdef __cplusplus
}
#endif
#endif
