/* hook.h - how the gradients of a bucket travel: as they are, narrower, or compressed.
 *
 * A hook is a table in src/sync, and sees one bucket at a time. The reducer hands it what this rank
 * has summed, and gets back the sums over all ranks, or something near them.
 *
 * bf16 and fp16 send a share of the mean gradient in two bytes a number. powersgd and topk send far
 * less and keep what they left out: this rank's error memory, as long as the gradients, is added to
 * its next gradients. It is not part of checkpoints: after a restart it is empty. These two work in
 * host memory, and every rank owns all of the sums. Each rank has the same bits of them. */
#ifndef DDP_HOOK_H
#define DDP_HOOK_H

#include "ddp/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ddp_hook_ops ddp_hook_ops;

/* f32, as they are. */
DDP_API const ddp_hook_ops *ddp_hook_plain(void);
/* Half the bytes. Numbers are scaled by 1 / the global batch before they are rounded (to 8 or 11
 * bits), and each addition rounds again. In fp16, means above 65504 become infinite and those below
 * 3e-8 become 0. */
DDP_API const ddp_hook_ops *ddp_hook_bf16(void);
DDP_API const ddp_hook_ops *ddp_hook_fp16(void);
/* Weights as products of two thin matrices (Vogels, Karimireddy, Jaggi: "PowerSGD", 2019): one step
 * of subspace iteration, which starts from the last one's result. Two sums a bucket. Parameters of
 * one dimension, and those that would not shrink, travel as they are. */
DDP_API const ddp_hook_ops *ddp_hook_powersgd(void);
/* The largest elements of a bucket only, with their places. Added in the order of the ranks. */
DDP_API const ddp_hook_ops *ddp_hook_topk(void);

/* "plain", "bf16", ... */
DDP_API const char *ddp_hook_name(const ddp_hook_ops *ops);

typedef struct ddp_hook_opts {
    int64_t after;    /* powersgd, topk: the run's first steps, in which nothing is compressed */
    int64_t rank;     /* powersgd: columns of the thin matrices, at least 1 */
    double min_ratio; /* powersgd: elements of a weight over those that are sent for it, at least */
    double share;     /* topk: of a bucket's elements, above 0 and at most 1 */
} ddp_hook_opts;

#define DDP_HOOK_OPTS_DEFAULTS                                                                     \
    {                                                                                              \
        0, 4, 2.0, 0.01                                                                            \
    }

#ifdef __cplusplus
}
#endif
#endif
