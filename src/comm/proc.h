/* proc.h - is a process of this node still alive? Answered from /proc, which does not need to be
 * its parent, and which tells a zombie from a process. Any thread; nothing blocks. */
#ifndef DDPI_PROC_H
#define DDPI_PROC_H

#include "ddp/status.h"

typedef enum ddpi_proc_state {
    DDPI_PROC_ALIVE,
    DDPI_PROC_DEAD,   /* no such process, or a zombie */
    DDPI_PROC_UNKNOWN /* /proc does not say */
} ddpi_proc_state;

typedef struct ddpi_proc_info {
    uint64_t start_time; /* clock ticks since boot: with the pid, names a process for good */
    bool stopped;        /* by a signal or a debugger */
} ddpi_proc_info;

ddpi_proc_state ddpi_proc_read(int64_t pid, ddpi_proc_info *info_out);
/* Identifies the name space in which this process's pids count, among all hosts; 0: unknown. */
uint64_t ddpi_proc_space(void);

#endif
