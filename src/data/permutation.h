/* permutation.h - a keyed bijection of [0, size), without a table: what shuffles epochs and holds
 * out samples. Plain data and pure functions. Any thread. Its values decide what a resumed run
 * draws, so they never change. */
#ifndef DDPI_DATA_PERMUTATION_H
#define DDPI_DATA_PERMUTATION_H

#include "ddp/rng.h"

#define DDPI_PERMUTATION_ROUNDS 8

typedef struct ddpi_permutation {
    uint64_t size;
    int half_bits; /* width of each half of the Feistel network; 0: size is 1 */
    uint32_t half_mask;
    uint32_t key[DDPI_PERMUTATION_ROUNDS][2];
} ddpi_permutation;

/* Local. size is at least 1. number keeps permutations of one purpose apart, e.g. the epoch. */
void ddpi_permutation_init(ddpi_permutation *perm, int64_t size, uint64_t seed,
                           ddp_rng_purpose purpose, int64_t number);
/* Any thread. position is within [0, size), and so is the result. */
int64_t ddpi_permutation_at(const ddpi_permutation *perm, int64_t position);

#endif
