/* running.h - running statistics of a rank's logical shards, and their combination.
 *
 * A norm without synchronisation sees one shard at a time, so each logical shard keeps statistics
 * of its own: what they are depends on the shards alone, not on the ranks that hold them. */
#ifndef DDP_STRATEGY_RUNNING_H
#define DDP_STRATEGY_RUNNING_H

#include "ddp/comm.h"
#include "ddp/model.h"

typedef struct ddpi_running ddpi_running;

/* Local. All start from the table's first values. Works for models without any, too. */
DDP_INNER ddp_status ddpi_running_create(ddp_model *model, ddp_device *device, int64_t shards,
                                         ddpi_running **running_out);
void ddpi_running_destroy(ddpi_running *running);
/* This rank's shard number `shard` is about to see so many samples. */
void ddpi_running_count(ddpi_running *running, int64_t shard, int64_t count);
/* Before a training forward of that shard. */
void ddpi_running_select(ddpi_running *running, int64_t shard);
/* Collective. Means weighted by the samples that each shard has seen, over the logical shards of
 * all ranks in shard order; binds the result to the model, for inference. The shards' own are left
 * as they are. *combined_out: device memory, valid until the next call. */
DDP_INNER ddp_status ddpi_running_combine(ddpi_running *running, ddp_comm *comm,
                                          const float **combined_out);
/* Every shard goes on from these (device memory), as if it had seen nothing yet. */
DDP_INNER ddp_status ddpi_running_set(ddpi_running *running, const float *values);
/* This rank's shards' arrays, one behind the other, and the samples that each has seen; both NULL
 * for models without statistics. To be read and written between steps. */
void ddpi_running_rows(ddpi_running *running, float **rows_out, double **seen_out);

#endif
