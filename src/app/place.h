/* place.h - which GPU a rank computes on, and what follows from it: who shares one, which
 * communicator carries gradients, which cores are near.
 *
 * The choices are functions of what the ranks have told each other (ddpi_rank_info), so that all
 * ranks come to the same. Looking at the machine is bind.c's. One thread: the rank's main one. */
#ifndef DDP_APP_PLACE_H
#define DDP_APP_PLACE_H

#include "app/run.h"

/* The GPU of a rank, by its number on its machine, of so many that its process sees (at least 1).
 */
int ddpi_place_index(int local_rank, int visible);

/* Two ranks on one GPU; false if there are none. */
bool ddpi_place_find_shared(const ddpi_rank_info *ranks, int world, int *first_out,
                            int *second_out);
/* DDP_ERR_USAGE names two ranks that share a GPU unless that is allowed. */
DDP_INNER ddp_status ddpi_place_check(const ddpi_rank_info *ranks, int world, bool may_share);

/* What decides over the lane. */
typedef struct ddpi_lane_wish {
    bool cuda;   /* what the ranks compute on */
    int comm;    /* --comm: ddp_comm_choice */
    bool shared; /* two ranks on one GPU */
    bool nccl;   /* the module has it */
    int buffers; /* --mpi-device-buffers: ddp_device_buffers */
    bool aware;  /* the MPI library of every rank takes device memory */
    bool exact;  /* sums have an order */
    int parts;   /* then: partial sums of the rank that has most */
} ddpi_lane_wish;

/* DDP_ERR_USAGE or DDP_ERR_UNSUPPORTED say why --comm nccl or --mpi-device-buffers on cannot be
 * had.
 */
DDP_INNER ddp_status ddpi_place_lane(const ddpi_lane_wish *wish, ddpi_lane_choice *choice_out);

/* The table of all ranks for the log: host, rank, GPU, cores, interface. The caller frees it. */
DDP_INNER ddp_status ddpi_place_table(const ddpi_rank_info *ranks, int world, char **text_out);

/* The environment's variables of NCCL that must be the same on all ranks, as sorted lines
 * (run_device.c). The caller frees the text. */
DDP_INNER ddp_status ddpi_nccl_variables(char *const *envp, char **text_out);

/* ---- bind.c ---- */

/* Keeps of `cores` those that are also in `near`; false, and cores unchanged, if there are none. */
bool ddpi_cores_narrow(cpu_set_t *cores, const cpu_set_t *near_cores);
/* The cores nearest to a PCI device; false if the machine does not say. */
bool ddpi_near_cores(const char *pci, cpu_set_t *cores_out);
/* Binds all threads of this process, or, if ranks are threads, the calling one. */
DDP_INNER ddp_status ddpi_bind_threads(const cpu_set_t *cores, bool only_caller);
/* The first interface that is up and no loopback; "-" if there is none. */
void ddpi_find_network(char name[DDPI_NETWORK_BYTES]);

#endif
