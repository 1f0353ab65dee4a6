/* mpi_impl.h - what the files of the MPI backend share. */
#ifndef DDPI_MPI_IMPL_H
#define DDPI_MPI_IMPL_H

#include <mpi.h>

#include "comm/comm_impl.h"
#include "comm/shm_region.h"

typedef struct ddpi_mpi_talk ddpi_mpi_talk;

typedef struct ddpi_mpi_comm {
    ddp_comm base;
    ddpi_shm_region control; /* of a node with several ranks */
    void *own_control;       /* of a rank that is alone on its node */
    ddpi_transport transport;
    ddpi_mpi_talk *talk; /* NULL where the side channel reaches all ranks */
} ddpi_mpi_comm;

/* Any thread that may call MPI. An MPI error as a failure that names the call. */
DDP_INNER ddp_status ddpi_mpi_error(int code, const char *call);

/* Messages of works (mpi_transport.c); self is the ddpi_mpi_comm. */
extern const ddpi_transport ddpi_mpi_transport;

/* ---- talk between nodes (mpi_talk.c); the slots' self is the ddpi_mpi_comm ---- */

/* Main thread, before the engine starts. Collective. */
DDP_INNER ddp_status ddpi_mpi_talk_create(ddpi_mpi_comm *comm, ddpi_mpi_talk **talk_out);
void ddpi_mpi_talk_destroy(ddpi_mpi_talk *talk);
void ddpi_mpi_talk_listen(void *self);
void ddpi_mpi_talk_cause(void *self, ddp_status status, const char *cause);
void ddpi_mpi_talk_ask(void *self);
void ddpi_mpi_talk_missing(void *self, uint64_t seq, ddpi_missing *missing_out);

#endif
