/* shares.h - how many logical shards of a step each rank computes.
 *
 * Ranks of different speed get whole shards in proportion to their weights: what a shard is does
 * not change, and reductions carry sums and counts, so the gradient stays that of the global batch.
 * A rank owns a contiguous run of shards, in rank order. Pure functions; any thread. Local. */
#ifndef DDP_SHARES_H
#define DDP_SHARES_H

#include "ddp/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Deals `shards` shards to `world` ranks by largest remainder, one at least to each; equal
 * remainders favour lower ranks. weights: [world], finite and above 0; NULL: equal ones.
 * counts_out: [world]. DDP_ERR_USAGE with fewer shards than ranks. */
DDP_CALL ddp_status ddp_shares_deal(const double *weights, int world, int64_t shards,
                                    int64_t *counts_out);
/* The largest relative difference between a rank's part of the shards and its part of the weights.
 */
DDP_API double ddp_shares_error(const double *weights, int world, const int64_t *counts);
/* The smallest number of shards from world to max_shards that deals the weights within `tolerance`
 * (an error as above); where there is none, the one with the smallest error. */
DDP_CALL ddp_status ddp_shares_choose(const double *weights, int world, int64_t max_shards,
                                      double tolerance, int64_t *shards_out);

#ifdef __cplusplus
}
#endif
#endif
