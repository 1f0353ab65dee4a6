/* Collectives over MPI messages, by every algorithm, as if each rank were on a node of its own. */
#include <stdio.h>

#include "comm/comm_impl.h"
#include "comm_checks.h"

static ddp_status check_algorithm(ddp_comm *comm, ddp_allreduce_algo algo)
{
    static const size_t lengths[] = {0, 1, 7, 1000, 100003};
    /* MPI can be opened only once; the engine reads the option at each work. */
    DDP_TRY(ddp_comm_barrier(comm));
    comm->opts.allreduce = algo;
    DDP_TRY(ddp_comm_barrier(comm));
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        void *memory;
        DDP_TRY(ddp_alloc_bytes((lengths[i] * 8 + 64) * (size_t)ddp_comm_world(comm), 1, &memory));
        ddp_status st = check_all(comm, memory, lengths[i]);
        if (st == DDP_OK)
            st = check_many(comm, memory, lengths[i]);
        if (st == DDP_OK && lengths[i] == 1000)
            st = check_types(comm, memory, lengths[i]);
        ddp_free(memory);
        DDP_TRY(st);
    }
    return DDP_OK;
}

int main(int argc, char **argv)
{
    static const ddp_allreduce_algo algos[] = {DDP_ALLREDUCE_AUTO, DDP_ALLREDUCE_MPI,
                                               DDP_ALLREDUCE_ROOT, DDP_ALLREDUCE_RING,
                                               DDP_ALLREDUCE_TREE, DDP_ALLREDUCE_RHD};
    ddp_comm_opts opts = DDP_COMM_OPTS_DEFAULTS;
    ddp_comm *comm;
    opts.timeout_ms = 30000;
    opts.shared_memory = false;
    ddp_status st = ddp_comm_mpi_open(&opts, &argc, &argv, &comm);
    if (st != DDP_OK) {
        fprintf(stderr, "open: %s: %s\n", ddp_status_name(st), ddp_status_message());
        return 1;
    }
    for (size_t i = 0; i < sizeof algos / sizeof *algos; i++)
        if (check_algorithm(comm, algos[i]) != DDP_OK)
            ddp_fatal("algorithm %d: %s", (int)algos[i], ddp_status_message());
    if (ddp_comm_world(comm) > 1 && ddp_comm_bytes_sent(comm) == 0)
        ddp_fatal("no bytes were sent");
    ddp_comm_close(comm);
    return 0;
}
