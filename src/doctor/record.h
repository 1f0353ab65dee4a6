/* record.h - what a rank knows about the place it runs in, before training.
 *
 * A record is plain bytes, gathered from every rank: collectors (host.c, limits.c, net.c, env.c,
 * storage.c, version.c) fill one part each, and rules (rules_*.c) are pure functions of all ranks'
 * records. What cannot be found out stays 0 or empty, and rules say nothing about it. */
#ifndef DDP_DOCTOR_RECORD_H
#define DDP_DOCTOR_RECORD_H

#include <sched.h>

#include "ddp/status.h"

enum {
    DDPI_DOCTOR_HOST_BYTES = 64,
    DDPI_DOCTOR_NAME_BYTES = 16,
    DDPI_DOCTOR_ADDRESS_BYTES = 48,
    DDPI_DOCTOR_CAUSE_BYTES = 160,
    DDPI_DOCTOR_IFACES = 16,
    DDPI_DOCTOR_ENV_BYTES = 6144,
    DDPI_DOCTOR_VERSION_BYTES = 160
};

typedef struct ddpi_doctor_cpu {
    cpu_set_t cores;               /* that the rank may run on */
    int32_t at_start;              /* how many it had before its libraries were started */
    int32_t online;                /* of the host */
    int32_t threads;               /* of the rank's operations */
    int32_t numa_total, numa_used; /* of the host; that the cores lie in */
    double quota;                  /* cores' worth of time that the control group allows; 0: all */
    char model[64];
} ddpi_doctor_cpu;

typedef struct ddpi_doctor_memory {
    int64_t total, available; /* of the host or of the control group, whichever is less */
    int64_t limit;            /* the control group's; 0: none */
    int64_t shm_total, shm_free;
    char huge[DDPI_DOCTOR_NAME_BYTES]; /* "always", "madvise", "never" */
} ddpi_doctor_memory;

typedef struct ddpi_doctor_limits {
    int64_t files_soft, files_hard, files_open; /* INT64_MAX: without limit, as all below */
    int64_t memlock;
    int64_t processes; /* threads that this user or control group may still start */
    bool infiniband;   /* there are adapters that need locked memory */
} ddpi_doctor_limits;

/* An address of an interface; an interface with several has several entries. */
typedef struct ddpi_doctor_iface {
    char name[DDPI_DOCTOR_NAME_BYTES];
    char address[DDPI_DOCTOR_ADDRESS_BYTES];
    uint8_t bytes[16];
    int32_t family; /* 4 or 6 */
    int32_t prefix; /* bits of the subnet */
    int32_t mtu, speed_mbit;
    bool up, loopback, bridge; /* bridge: of containers or virtual machines inside the host */
} ddpi_doctor_iface;

typedef struct ddpi_doctor_net {
    int32_t count;
    ddpi_doctor_iface list[DDPI_DOCTOR_IFACES];
    double localhost_s, own_name_s; /* to resolve these; the deadline where that was not enough */
    bool localhost_ok, own_name_ok;
    char side[DDPI_DOCTOR_ADDRESS_BYTES]; /* this node's end of the connection to rank 0 */
    bool side_missing;                    /* there should be one, and is not */
} ddpi_doctor_net;

typedef struct ddpi_doctor_storage {
    char data_error[DDPI_DOCTOR_CAUSE_BYTES]; /* "": the data directory can be read */
    char run_error[DDPI_DOCTOR_CAUSE_BYTES];  /* "": this rank can write beside the run directory */
    bool run_shared;                          /* it sees what rank 0 has written there */
    int64_t run_free;                         /* bytes of that file system */
} ddpi_doctor_storage;

typedef struct ddpi_doctor_gpu {
    int32_t visible; /* to this process */
    char uuid[40], pci[32], name[64];
} ddpi_doctor_gpu;

typedef struct ddpi_doctor_launch {
    int32_t slurm_nodes, slurm_tasks; /* 0: not under Slurm */
    double start_s;                   /* from the process's start until all ranks had met */
} ddpi_doctor_launch;

typedef struct ddpi_doctor_record {
    char host[DDPI_DOCTOR_HOST_BYTES];
    int32_t rank, node, pid;
    ddpi_doctor_cpu cpu;
    ddpi_doctor_memory memory;
    ddpi_doctor_limits limits;
    ddpi_doctor_net net;
    ddpi_doctor_storage storage;
    ddpi_doctor_gpu gpu;
    ddpi_doctor_launch launch;
    char mpi[DDPI_DOCTOR_VERSION_BYTES];
    char device[DDPI_DOCTOR_VERSION_BYTES]; /* processor or GPU, and the libraries for it */
    char cuda[DDPI_DOCTOR_VERSION_BYTES];   /* driver, runtime, NCCL; "" on CPUs */
    char env[DDPI_DOCTOR_ENV_BYTES];        /* NAME=value lines, sorted */
} ddpi_doctor_record;

/* What the run that is asked about needs; 0: unknown. The same on all ranks. */
typedef struct ddpi_doctor_needs {
    const char *model;
    size_t parameters;
    size_t gradient_values; /* with what lies between parameters in memory */
    size_t shared_bytes;    /* of /dev/shm, for each rank of a host */
    size_t memory_bytes;    /* of host memory, for each rank */
    const char *run_dir;    /* where it will be; may not exist yet */
    const char *data_dir;   /* NULL: no files are read */
    bool saves;             /* checkpoints */
    bool exact;
    bool cuda, nccl;
} ddpi_doctor_needs;

/* Two ranks and what messages between them take. */
typedef struct ddpi_doctor_link {
    int32_t from, to;
    bool inside;                        /* one host */
    double latency_s;                   /* one way, of 16 bytes */
    double rate;                        /* bytes/s one way, of the largest message that was sent */
    int64_t bytes;                      /* of that */
    int32_t ways;                       /* interfaces that carried a good part of them */
    char iface[DDPI_DOCTOR_NAME_BYTES]; /* that the bytes went through; "": none that counts */
} ddpi_doctor_link;

/* A host's clocks minus those of rank 0's host. */
typedef struct ddpi_doctor_clock {
    int32_t rank; /* that was asked */
    double real_s, monotonic_s, error_s;
} ddpi_doctor_clock;

enum { DDPI_DOCTOR_LINKS = 32, DDPI_DOCTOR_CLOCKS = 64, DDPI_DOCTOR_SUMS = 3 };
typedef struct ddpi_doctor_sum {
    int64_t bytes;
    double seconds; /* of the slowest rank */
} ddpi_doctor_sum;
typedef struct ddpi_doctor_links {
    int32_t link_count, pair_count; /* measured; that there are between hosts and within */
    int32_t clock_count, sum_count;
    ddpi_doctor_link links[DDPI_DOCTOR_LINKS];
    ddpi_doctor_clock clocks[DDPI_DOCTOR_CLOCKS];
    ddpi_doctor_sum sums[DDPI_DOCTOR_SUMS];
    char by[DDPI_DOCTOR_NAME_BYTES]; /* what carries gradients: "mpi", "nccl" */
} ddpi_doctor_links;

/* All that rules look at. */
typedef struct ddpi_doctor_case {
    int world;
    const ddpi_doctor_record *ranks;
    ddpi_doctor_needs needs;
    ddpi_doctor_links links;
} ddpi_doctor_case;

#endif
