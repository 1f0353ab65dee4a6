/* no_mpi.c - what stands in for src/comm/mpi where the library is built with -DDDP_MPI=off.
 *
 * Ranks are then threads of one process (loopback), most often one of them. No state, no locks. */
#include "ddp/comm.h"

bool ddp_comm_has_mpi(void)
{
    return false;
}

ddp_status ddp_comm_mpi_open(const ddp_comm_opts *opts, int *argc, char ***argv,
                             ddp_comm **comm_out)
{
    (void)opts;
    (void)argc;
    (void)argv;
    (void)comm_out;
    return DDP_FAIL(DDP_ERR_UNSUPPORTED,
                    "option --comm: found mpi in a program that was built without MPI "
                    "(-DDDP_MPI=off), expected loopback");
}
