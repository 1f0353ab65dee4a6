/* rng.c - Philox4x32-10 and what is derived from it. Pure functions, any thread.
 *
 * The counter is (index low, index high, purpose, number); the key is the seed. Constants and
 * rounds are those of the paper named in rng.h. */
#include "ddp/rng.h"

#include <math.h>

#define PHILOX_ROUNDS 10
#define PHILOX_MUL_0  0xD2511F53u
#define PHILOX_MUL_1  0xCD9E8D57u
#define PHILOX_WEYL_0 0x9E3779B9u
#define PHILOX_WEYL_1 0xBB67AE85u

#define TWO_PI 6.283185307179586476925286766559

void ddp_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0];
    uint32_t c1 = counter[1];
    uint32_t c2 = counter[2];
    uint32_t c3 = counter[3];
    uint32_t k0 = key[0];
    uint32_t k1 = key[1];

    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)PHILOX_MUL_0 * c0;
        uint64_t p1 = (uint64_t)PHILOX_MUL_1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += PHILOX_WEYL_0;
        k1 += PHILOX_WEYL_1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

ddp_rng ddp_rng_make(uint64_t seed, ddp_rng_purpose purpose, uint32_t number)
{
    return (ddp_rng){
        .key = {(uint32_t)seed, (uint32_t)(seed >> 32)},
        .stream = {(uint32_t)purpose, number},
    };
}

void ddp_rng_block(const ddp_rng *rng, uint64_t index, uint32_t out[4])
{
    uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), rng->stream[0],
                           rng->stream[1]};

    ddp_philox4x32(counter, rng->key, out);
}

uint32_t ddp_rng_u32(const ddp_rng *rng, uint64_t index)
{
    uint32_t words[4];

    ddp_rng_block(rng, index / 4, words);
    return words[index % 4];
}

float ddp_rng_uniform(const ddp_rng *rng, uint64_t index)
{
    return (float)(ddp_rng_u32(rng, index) >> 8) * 0x1p-24f;
}

/* Two independent normals from two words. The radius' uniform lies in (0, 1], so that its logarithm
 * is finite. */
static void box_muller(const uint32_t words[2], float pair[2])
{
    double radius = sqrt(-2.0 * log(((double)words[0] + 1.0) * 0x1p-32));
    double angle = TWO_PI * ((double)words[1] * 0x1p-32);

    pair[0] = (float)(radius * cos(angle));
    pair[1] = (float)(radius * sin(angle));
}

/* Elements 4b .. 4b+3 are the two pairs of block b. */
void ddp_rng_normal_fill(const ddp_rng *rng, uint64_t first, size_t count, float *dst)
{
    size_t done = 0;

    while (done < count) {
        uint64_t element = first + done;
        uint32_t words[4];
        float normals[4];

        ddp_rng_block(rng, element / 4, words);
        box_muller(words, normals);
        box_muller(words + 2, normals + 2);
        for (size_t i = element % 4; i < 4 && done < count; i++)
            dst[done++] = normals[i];
    }
}
