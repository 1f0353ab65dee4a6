/* allreduce.h - the parts of ddp_bench allreduce: what is measured (allreduce.c), on each rank
 * (allreduce_rank.c), and how it is told (allreduce_report.c).
 *
 * All sums are in place, as gradients are. A sample: clear the buffer, barrier, take the time,
 * reduce, take the time; the slowest rank's time counts. Every case is checked element by element,
 * with values that differ by rank and place, before and after its samples.
 *
 * Algorithm bandwidth is bytes / median time. Bus bandwidth is that times 2 (n-1)/n: in a ring, or
 * in any other way that sends the least possible, each rank sends 2 (n-1)/n of the buffer, so this
 * is what a link carries, and what can be compared for different numbers of ranks. Both are in GB/s
 * (10^9).
 *
 * bound: an allreduce in memory reads and writes every rank's buffer once, 2 * n * bytes. It is the
 * share of the median time that this takes at the bandwidth of all ranks copying private memory
 * with memcpy at the same time. For ranks of one host; caches may make it pass 1. */
#ifndef DDP_TOOLS_BENCH_ALLREDUCE_H
#define DDP_TOOLS_BENCH_ALLREDUCE_H

#include "ddp/comm.h"
#include "tools/bench/bench_util.h"

enum { DDPI_REDUCE_MAX_SIZES = 64, DDPI_REDUCE_MAX_SAMPLES = 10000, DDPI_REDUCE_MIN_SAMPLES = 5 };

typedef struct ddpi_reduce_opts {
    int comm; /* enum ddpi_reduce_comm */
    int64_t loopback_ranks;
    const char *algorithms, *types, *sizes;
    int memory; /* enum ddpi_reduce_memory */
    double min_time_s;
    ddpi_bench_out out;
} ddpi_reduce_opts;
enum ddpi_reduce_comm { DDPI_REDUCE_MPI, DDPI_REDUCE_LOOPBACK, DDPI_REDUCE_NCCL };
enum ddpi_reduce_memory { DDPI_REDUCE_WINDOW, DDPI_REDUCE_PRIVATE };

/* One line of the sweep. */
typedef struct ddpi_reduce_row {
    ddp_allreduce_algo algorithm;
    ddp_dtype type;
    size_t bytes;
    ddpi_bench_stats seconds;
    int64_t wrong; /* elements, over all ranks and both checks */
} ddpi_reduce_row;

typedef struct ddpi_reduce_sweep {
    const ddpi_reduce_opts *opts;
    int ranks, hosts;
    double copy_bytes_per_s; /* of all ranks together, read and written */
    ddpi_reduce_row *rows;   /* by algorithm, then type, then size */
    int row_count;
} ddpi_reduce_sweep;

const char *ddpi_reduce_algorithm_name(ddp_allreduce_algo algorithm);

/* Collective. This rank's GPU, with NCCL for it (allreduce_gpu.c). The caller detaches the
 * communicator, and closes the device, when it has freed its buffers. */
DDP_INNER ddp_status ddpi_reduce_attach(ddp_comm *comm, ddp_device **device_out);

/* Collective. Fills in what is measured; every rank gets the same. */
DDP_INNER ddp_status ddpi_reduce_measure(ddp_comm *comm, ddpi_reduce_sweep *sweep);
/* Local. Table, JSON and picture. */
DDP_INNER ddp_status ddpi_reduce_report(const ddpi_reduce_sweep *sweep, ddpi_bench_out *out);

#endif
