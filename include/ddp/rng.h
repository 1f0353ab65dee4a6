/* rng.h - counter-based random numbers: a value is a function of (seed, purpose, index), nothing
 * else.
 *
 * The generator is Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as
 * 1, 2, 3", SC 2011). There is no state to save, and rank, thread and order of the draws do not
 * enter: every rank that asks for the same index gets the same bits. Any thread. */
#ifndef DDP_RNG_H
#define DDP_RNG_H

#include "ddp/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a draw is for; keeps the streams of one seed apart. Values are part of the file format of
 * checkpoints (they decide what a resumed run draws), so they never change. */
typedef enum ddp_rng_purpose {
    DDP_RNG_INIT = 1,    /* initial weights: index = (parameter number, element) */
    DDP_RNG_SHUFFLE = 2, /* order of an epoch */
    DDP_RNG_SYNTH = 3,   /* synthetic data */
    DDP_RNG_DROPOUT = 4,
    DDP_RNG_AUGMENT = 5,
    DDP_RNG_SPLIT = 6, /* which samples are held out for validation */
    DDP_RNG_TEST = 7,
    DDP_RNG_MIXUP = 8,   /* weights and partners */
    DDP_RNG_COMPRESS = 9 /* what thin matrices start from */
} ddp_rng_purpose;

typedef struct ddp_rng {
    uint32_t key[2];
    uint32_t
        stream[2]; /* upper half of the counter: purpose and a number such as epoch or parameter */
} ddp_rng;

/* The bare block function: ten rounds over the counter with the key, as in the paper's test
 * vectors. */
DDP_API void ddp_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* A stream of 2^64 blocks for (seed, purpose, number). */
DDP_API ddp_rng ddp_rng_make(uint64_t seed, ddp_rng_purpose purpose, uint32_t number);
/* Block number `index` of the stream: four independent 32-bit words. */
DDP_API void ddp_rng_block(const ddp_rng *rng, uint64_t index, uint32_t out[4]);
/* Uniform 32 bits at element `index` (block index/4, word index%4). */
DDP_API uint32_t ddp_rng_u32(const ddp_rng *rng, uint64_t index);
/* Uniform in [0, 1), a multiple of 2^-24. */
DDP_API float ddp_rng_uniform(const ddp_rng *rng, uint64_t index);
/* Fills dst with N(0, 1) draws of elements [first, first + count), by Box-Muller in double
 * precision on word pairs, so that any cut of the range gives the same values. first and count may
 * be odd. */
DDP_API void ddp_rng_normal_fill(const ddp_rng *rng, uint64_t first, size_t count, float *dst);

#ifdef __cplusplus
}
#endif
#endif
