/* doctor.h - the doctor: every rank says where it is, messages are timed, and rank 0 tells what
 * will make a run fail or slow.
 *
 * The caller (app/run_doctor.c) knows the run: it says what that needs, and which device and lane
 * it has got. Collective functions are called by all ranks; nothing in them waits for files or
 * names longer than DDPI_DOCTOR_PATIENCE_S, and for ranks as long as the communicator's works do.
 */
#ifndef DDP_DOCTOR_DOCTOR_H
#define DDP_DOCTOR_DOCTOR_H

#include "ddp/comm.h"
#include "doctor/findings.h"

#define DDPI_DOCTOR_PATIENCE_S 4.0

/* What a collector is told. */
typedef struct ddpi_doctor_input {
    ddp_comm *comm;
    ddp_stream *stream; /* of the device, where gradients are there; NULL: host memory */
    char *const *envp;
    int threads;
    int cores_at_start;
    double start_s;
    const char *device; /* NULL: none was opened */
    const char *cuda;   /* "": on CPUs */
    ddpi_doctor_gpu gpu;
    ddpi_doctor_needs needs;
} ddpi_doctor_input;

/* Collective. Collects, gathers, measures, applies the rules and prints the report on rank 0,
 * behind what findings has already. *fails_out, the same on all ranks: how many things will make
 * the run fail. */
DDP_INNER ddp_status ddpi_doctor_run(const ddpi_doctor_input *input, ddpi_findings *findings,
                                     int *fails_out);

typedef struct ddpi_doctor_watch ddpi_doctor_watch;
/* Local. From before MPI is started until ddpi_doctor_watch_stop(): if that takes longer than
 * limit_s, says so, with the interfaces of this host where speaks, and ends the process with status
 * 1 (watch.c). The caller owns *watch_out. */
DDP_INNER ddp_status ddpi_doctor_watch_start(double limit_s, bool speaks,
                                             ddpi_doctor_watch **watch_out);
/* NULL is fine. */
void ddpi_doctor_watch_stop(ddpi_doctor_watch *watch);

/* ---- collectors: local, fill their part of a record, and cannot fail ---- */
void ddpi_doctor_look_at_host(ddpi_doctor_record *record);                 /* host.c */
void ddpi_doctor_look_at_limits(ddpi_doctor_limits *limits);               /* limits.c */
void ddpi_doctor_look_at_net(ddpi_doctor_net *net);                        /* net.c */
void ddpi_doctor_look_at_names(ddpi_doctor_net *net);                      /* names.c */
void ddpi_doctor_look_at_env(char *const *envp, char *text, size_t bytes); /* env.c */
/* A variable's number; 0: it is not set. */
int ddpi_doctor_number(char *const *envp, const char *name);
/* Collective. */
DDP_INNER ddp_status ddpi_doctor_look_at_storage(ddp_comm *comm, const ddpi_doctor_needs *needs,
                                                 ddpi_doctor_storage *storage); /* storage.c */
/* "0.1.0", and the hash that the linker gave this build (version.c). */
void ddpi_doctor_build(char *text, size_t bytes);

/* Collective. Times messages, sums and clocks (links.c). stream: as in the input. */
DDP_INNER ddp_status ddpi_doctor_measure(ddp_comm *comm, ddp_stream *stream, size_t values,
                                         ddpi_doctor_links *links_out);
/* Bytes that each interface has sent so far, by name; returns how many there are. */
typedef struct ddpi_doctor_traffic {
    char name[DDPI_DOCTOR_NAME_BYTES];
    uint32_t sent; /* modulo 2^32 */
} ddpi_doctor_traffic;
int ddpi_doctor_traffic_read(ddpi_doctor_traffic traffic_out[DDPI_DOCTOR_IFACES]);

/* Runs fn(arg) in a thread of its own; false if it has not come back within the patience: then the
 * thread stays behind with arg, which nobody may free (patience.c). */
bool ddpi_doctor_patient(void (*fn)(void *arg), void *arg);
/* A file's text from /proc or /sys, without its last newline; "" where there is none. */
char *ddpi_doctor_read(const char *path, char *text, size_t text_bytes);

/* The report as text (report.c); the caller frees it. */
DDP_INNER ddp_status ddpi_doctor_report(const ddpi_doctor_case *c, const ddpi_findings *findings,
                                        char **text_out);

#endif
