/* mpi_device.c - whether the MPI library takes device memory. Only Open MPI has a question for it,
 * in a header of its extensions. No state. */
#include "comm/mpi/mpi_device.h"

#include <mpi.h>
#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

bool ddpi_mpi_may_be_device_aware(void)
{
#if defined(MPIX_CUDA_AWARE_SUPPORT) && MPIX_CUDA_AWARE_SUPPORT
    return true;
#else
    return false;
#endif
}

bool ddpi_mpi_device_aware(void)
{
#ifdef MPIX_CUDA_AWARE_SUPPORT
    return MPIX_Query_cuda_support() == 1;
#else
    return false;
#endif
}
