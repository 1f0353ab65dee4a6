/* permutation.c - a balanced Feistel network with cycle walking.
 *
 * The network permutes [0, 2^b) for the smallest even b with 2^b >= size, whatever its round
 * function is. A result outside [0, size) is fed in again until one lies inside; that walks along a
 * cycle of the big permutation, so it ends, and leaves a permutation of [0, size) (Black and
 * Rogaway, CT-RSA 2002). 2^b is below 4 * size, so a position needs less than four walks on
 * average.
 *
 * Philox draws the round keys; the round itself only mixes, since a full Philox block in each of
 * eight rounds would cost more than fetching a small sample. This is no cipher: the order has to
 * look random, not to be secret.
 *
 * No state; any thread. */
#include "data/permutation.h"

#include "ddp/status.h"

/* The finalizer of MurmurHash3: every input bit reaches every output bit with probability near 1/2.
 */
static inline uint32_t mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x85ebca6bu;
    x ^= x >> 13;
    x *= 0xc2b2ae35u;
    x ^= x >> 16;
    return x;
}

void ddpi_permutation_init(ddpi_permutation *perm, int64_t size, uint64_t seed,
                           ddp_rng_purpose purpose, int64_t number)
{
    DDP_ASSERT(size >= 1 && number >= 0);
    perm->size = (uint64_t)size;
    /* 64 bits hold every size; a shift by 64 would be undefined. */
    perm->half_bits = 0;
    while (perm->half_bits < 32 && (uint64_t)(size - 1) >> (2 * perm->half_bits) != 0)
        perm->half_bits++;
    perm->half_mask = (uint32_t)((UINT64_C(1) << perm->half_bits) - 1);

    /* A block has the keys of two rounds. The upper half of a long number goes into the block
     * index. */
    ddp_rng rng = ddp_rng_make(seed, purpose, (uint32_t)number);
    uint64_t first_block = ((uint64_t)number >> 32) * (DDPI_PERMUTATION_ROUNDS / 2);
    for (int round = 0; round < DDPI_PERMUTATION_ROUNDS; round += 2) {
        uint32_t words[4];
        ddp_rng_block(&rng, first_block + (uint64_t)(round / 2), words);
        perm->key[round][0] = words[0];
        perm->key[round][1] = words[1] | 1u;
        perm->key[round + 1][0] = words[2];
        perm->key[round + 1][1] = words[3] | 1u;
    }
}

int64_t ddpi_permutation_at(const ddpi_permutation *perm, int64_t position)
{
    uint64_t value = (uint64_t)position;
    if (perm->half_bits == 0)
        return 0;
    do {
        uint32_t left = (uint32_t)(value >> perm->half_bits);
        uint32_t right = (uint32_t)value & perm->half_mask;
        for (int round = 0; round < DDPI_PERMUTATION_ROUNDS; round++) {
            uint32_t drawn = mix((right + perm->key[round][0]) * perm->key[round][1]);
            uint32_t next = left ^ (drawn & perm->half_mask);
            left = right;
            right = next;
        }
        value = ((uint64_t)left << perm->half_bits) | right;
    } while (value >= perm->size);
    return (int64_t)value;
}
