/* hook.h - the table behind a hook, and what the reducer calls.
 *
 * A bucket's way: encode(0), the collective that it asks for, then encode(1) and that collective
 * where the hook has two rounds, then decode. Buckets come in order in every round. The reducer
 * starts a bucket's first round when its gradients are complete, which is during backward; second
 * rounds start after backward, in order, since they wait for the first one's result and their place
 * among the works must not depend on timing. */
#ifndef DDP_SYNC_HOOK_H
#define DDP_SYNC_HOOK_H

#include "ddp/comm.h"
#include "ddp/hook.h"
#include "sync/bucket.h"

enum { DDPI_HOOK_ROUNDS = 2, DDPI_HOOK_SHARED = 2 };

/* What a hook works on. Borrowed, for the hook's life. */
typedef struct ddpi_hook_env {
    ddp_device *device;
    ddp_comm *comm;
    const ddp_param_table *table;
    const ddpi_bucket_plan *plan;
    float *grads; /* flat; before encode this rank's sums, after decode all ranks' */
    ddp_hook_opts opts;
} ddpi_hook_env;

/* The first member of every hook's own struct. */
typedef struct ddpi_hook {
    const ddp_hook_ops *ops;
    ddpi_hook_env env;
    double count;       /* samples of the step's global batch */
    int64_t steps;      /* of the run, that have begun */
    size_t state_bytes; /* what create has allocated */
    float *rest;        /* flat: what this rank has kept back; NULL: nothing is */
    /* Memory for collectives: create says how much, and has it from then on. */
    size_t shared_bytes[DDPI_HOOK_SHARED];
    void *shared[DDPI_HOOK_SHARED];
} ddpi_hook;

struct ddp_hook_ops {
    const char *name;
    int rounds;
    bool owns_all; /* decode gives all ranks everything; else the collective says who owns what */
    bool stateful; /* keeps an error memory, in host memory */
    /* Local. */
    ddp_status (*create)(const ddpi_hook_env *env, ddpi_hook **hook_out);
    void (*destroy)(ddpi_hook *hook);
    /* *coll is a sum of the bucket's gradients as they are; the hook says what it wants instead. A
     * second round may leave count at 0: there is none for this bucket, on no rank. */
    ddp_status (*encode)(ddpi_hook *hook, int bucket, int round, ddp_coll *coll);
    /* Work of this rank while the last round is under way. May be NULL. */
    void (*meanwhile)(ddpi_hook *hook, int bucket);
    /* owned: this rank's range of the flat buffers. */
    ddp_status (*decode)(ddpi_hook *hook, int bucket, ddp_range owned);
};

/* Collective. The caller owns *hook_out. */
DDP_INNER ddp_status ddpi_hook_open(const ddp_hook_ops *ops, const ddpi_hook_env *env,
                                    ddpi_hook **hook_out);
/* Collective. NULL is fine. */
void ddpi_hook_close(ddpi_hook *hook);

/* The run has made so many steps. */
void ddpi_hook_set_steps(ddpi_hook *hook, int64_t steps);
/* Another step begins. */
void ddpi_hook_begin(ddpi_hook *hook);
/* What this step's buckets go through. */
int ddpi_hook_rounds(const ddpi_hook *hook);
bool ddpi_hook_owns_all(const ddpi_hook *hook);
DDP_INNER ddp_status ddpi_hook_encode(ddpi_hook *hook, int bucket, int round, ddp_coll *coll);
void ddpi_hook_meanwhile(ddpi_hook *hook, int bucket);
DDP_INNER ddp_status ddpi_hook_decode(ddpi_hook *hook, int bucket, ddp_range owned);

#endif
