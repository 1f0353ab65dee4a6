/* lane_staged.h - the engine's side of the lane that goes through host memory. */
#ifndef DDPI_COMM_LANE_STAGED_H
#define DDPI_COMM_LANE_STAGED_H

#include "comm/algo.h"
#include "comm/lane.h"

/* Carries out the engine's work, which is one of this lane's. Engine's thread. */
DDP_INNER ddp_status ddpi_lane_staged_run(ddpi_lane *lane, ddpi_algo *algo);

#endif
