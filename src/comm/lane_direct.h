/* lane_direct.h - what the lane by messages needs for handing device memory to the transport. */
#ifndef DDPI_COMM_LANE_DIRECT_H
#define DDPI_COMM_LANE_DIRECT_H

#include "comm/algo.h"

typedef struct ddpi_direct ddpi_direct;

DDP_INNER ddp_status ddpi_direct_create(ddp_device *device, ddpi_direct **direct_out);
/* NULL is fine. */
void ddpi_direct_destroy(ddpi_direct *direct);
/* Carries out the engine's work on device memory. Its buffer may be read. Engine's thread. */
DDP_INNER ddp_status ddpi_direct_run(ddpi_direct *direct, ddpi_algo *algo,
                                     ddp_allreduce_algo choice);

#endif
