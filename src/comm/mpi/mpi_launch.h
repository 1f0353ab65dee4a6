/* mpi_launch.h - what the launcher's environment says, before and after MPI starts. The only place
 * where it is read. */
#ifndef DDPI_MPI_LAUNCH_H
#define DDPI_MPI_LAUNCH_H

#include "ddp/status.h"

/* Local. Before MPI_Init: settings that make it faster, unless the user has chosen some. */
void ddpi_mpi_tune(void);
/* Local. After it: DDP_ERR_USAGE if the scheduler started several tasks, but each is a world of its
 * own. */
DDP_INNER ddp_status ddpi_mpi_check_launch(int world);

#endif
