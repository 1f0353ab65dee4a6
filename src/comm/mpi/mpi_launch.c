/* mpi_launch.c - what the launcher's environment says, before and after MPI starts.
 *
 * Reads and sets environment variables, so it runs before any thread exists. On a single node, Open
 * MPI 4 needs only its transports over shared memory; looking for network ones takes half of its
 * start-up time. */
#include "comm/mpi/mpi_launch.h"

#include <stdlib.h>
#include <string.h>

#include "comm/mpi/mpi_device.h"

/* 0: not set, or not a number. */
static long number_of(const char *variable)
{
    const char *text = getenv(variable);

    return text != NULL ? strtol(text, NULL, 10) : 0;
}

void ddpi_mpi_tune(void)
{
    const char *local = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    const char *world = getenv("OMPI_COMM_WORLD_SIZE");

    if (local == NULL || world == NULL || strcmp(local, world) != 0)
        return;
    /* That of shared memory knows no GPU. */
    if (ddpi_mpi_may_be_device_aware())
        return;
    if (getenv("OMPI_MCA_pml") != NULL || getenv("OMPI_MCA_btl") != NULL)
        return;
    /* Only advice: without it MPI starts as well. */
    (void)setenv("OMPI_MCA_pml", "ob1", 0);
    (void)setenv("OMPI_MCA_btl", "self,vader", 0);
}

ddp_status ddpi_mpi_check_launch(int world)
{
    long tasks = number_of("SLURM_NTASKS");
    bool is_task = getenv("SLURM_PROCID") != NULL || getenv("SLURM_STEP_ID") != NULL;
    /* A launcher inside of the job has started one rank on purpose. */
    bool by_mpirun = getenv("OMPI_COMM_WORLD_SIZE") != NULL || getenv("HYDI_CONTROL_FD") != NULL ||
                     getenv("MPI_LOCALNRANKS") != NULL;

    if (world > 1 || tasks <= 1 || !is_task || by_mpirun)
        return DDP_OK;
    return DDP_FAIL(DDP_ERR_USAGE,
                    "Slurm started %ld tasks, but MPI sees a world of one rank: start them with "
                    "srun --mpi=pmix",
                    tasks);
}
