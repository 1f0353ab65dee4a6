/* sampler.h - which samples form a logical shard of a global step.
 *
 * Pure arithmetic, no state, no memory: a function of (seed, epoch, step, global batch, logical
 * shards K, shard). Rank and world do not enter. The epoch's order is a keyed bijection of [0,
 * size): a balanced Feistel network over the next even power of two, its rounds keyed by Philox,
 * walked until it lands inside the range (cycle walking; Black and Rogaway, "Ciphers with Arbitrary
 * Finite Domains", CT-RSA 2002). Global step s takes positions [s*B, min((s+1)*B, size)); logical
 * shard v takes its contiguous part, and parts differ by at most one sample. Any thread. Local. */
#ifndef DDP_SAMPLER_H
#define DDP_SAMPLER_H

#include "ddp/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ddp_sampler {
    int64_t size;   /* samples in the data set */
    int64_t batch;  /* global batch B */
    int64_t shards; /* logical shards K per step */
    uint64_t seed;
    bool drop_last; /* drop an incomplete last batch */
    bool shuffle;   /* false: index order */
} ddp_sampler;

/* DDP_ERR_USAGE if size, batch or shards is below 1, or with drop_last no batch is left. */
DDP_CALL ddp_status ddp_sampler_check(const ddp_sampler *sampler);
DDP_API int64_t ddp_sampler_steps(const ddp_sampler *sampler);
/* Samples of a global step over all shards. */
DDP_API int64_t ddp_sampler_step_count(const ddp_sampler *sampler, int64_t step);
/* Position range [*first_out, *first_out + return value) of a shard within the epoch. May be empty.
 */
DDP_API int64_t ddp_sampler_shard(const ddp_sampler *sampler, int64_t step, int64_t shard,
                                  int64_t *first_out);
/* Sample index at a position of the epoch. */
DDP_API int64_t ddp_sampler_index(const ddp_sampler *sampler, int64_t epoch, int64_t position);
/* Fills indices for positions [first, first + count). */
DDP_API void ddp_sampler_indices(const ddp_sampler *sampler, int64_t epoch, int64_t first,
                                 int64_t count, int64_t *indices);

/* ---- the ledger: which samples were used ----
 * A checksum over a set of (epoch, sample) that does not depend on the order: sum and exclusive or
 * of a 64-bit mix of each. A sample that is missing, or used twice, shows in one of them. */
typedef struct ddp_ledger {
    uint64_t sum, parity;
    int64_t count;
} ddp_ledger;
DDP_API void ddp_ledger_add(ddp_ledger *ledger, int64_t epoch, const int64_t *indices,
                            int64_t count);
/* Adds what another ledger has. */
DDP_API void ddp_ledger_join(ddp_ledger *ledger, const ddp_ledger *other);
DDP_API bool ddp_ledger_equal(const ddp_ledger *a, const ddp_ledger *b);
/* What an epoch's steps [0, steps) come to. */
DDP_API ddp_ledger ddp_ledger_expect(const ddp_sampler *sampler, int64_t epoch, int64_t steps);

#ifdef __cplusplus
}
#endif
#endif
