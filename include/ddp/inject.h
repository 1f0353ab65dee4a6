/* inject.h - mishaps on purpose, for tests and for users who want to see what happens then: a rank
 * that dies, hangs or computes nonsense at a step that is known beforehand. */
#ifndef DDP_INJECT_H
#define DDP_INJECT_H

#include "ddp/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ddp_inject_kind {
    DDP_INJECT_KILL,    /* SIGKILL to itself */
    DDP_INJECT_STOP,    /* SIGSTOP to itself */
    DDP_INJECT_DELAY,   /* sleeps */
    DDP_INJECT_EXIT,    /* leaves with exit status 0, without telling anybody */
    DDP_INJECT_ENOSPC,  /* from now on checkpoints find no space on the disk */
    DDP_INJECT_NAN,     /* a parameter is not a number during the step */
    DDP_INJECT_BITFLIP, /* a bit of a parameter changes after the step */
    DDP_INJECT_COUNT
} ddp_inject_kind;

typedef struct ddp_injection {
    ddp_inject_kind kind;
    int rank;
    int64_t step; /* of the run, from 1 */
    double seconds;
} ddp_injection;

enum { DDP_INJECT_MAX = 16 };

typedef struct ddp_inject {
    int count;
    ddp_injection list[DDP_INJECT_MAX];
} ddp_inject;

/* "kill@1:20,delay@0:5:2.5"; seconds are delay's alone, 10 unless given. DDP_ERR_USAGE. */
DDP_CALL ddp_status ddp_inject_parse(const char *text, ddp_inject *inject_out);
/* "kill", "stop", ... */
DDP_API const char *ddp_inject_name(ddp_inject_kind kind);
/* Whether the mishap is one of the whole process, not of a rank that may be a thread. */
DDP_API bool ddp_inject_ends(ddp_inject_kind kind);

#ifdef __cplusplus
}
#endif
#endif
