/* mpi_device.h - whether the MPI library takes device memory. */
#ifndef DDPI_MPI_DEVICE_H
#define DDPI_MPI_DEVICE_H

#include <stdbool.h>

/* Local. What the library's header said when this was built; before MPI_Init, too. */
bool ddpi_mpi_may_be_device_aware(void);
/* Local, after MPI_Init. What the library itself says. */
bool ddpi_mpi_device_aware(void);

#endif
