/* mixup.c - weights and partners of mixup. No state; any thread. */
#include <math.h>

#include "ddp/rng.h"
#include "ddp/transform.h"

/* A sample has GAMMA_BLOCKS blocks for each of its two gamma draws, in the epoch's stream; a step's
 * shift is in the upper half of the same stream. */
enum { GAMMA_BLOCKS = 32 };
#define SHIFT_BLOCK (UINT64_C(1) << 63)

/* Within (0, 1). */
static double open_unit(uint32_t word)
{
    return ((double)word + 0.5) * 0x1p-32;
}

/* Logarithm of a Gamma(alpha) draw: Marsaglia and Tsang, "A Simple Method for Generating Gamma
 * Variables", ACM TOMS 26 (2000). It is made for alpha of at least 1, so we draw for alpha + 1 and
 * multiply by U^(1/alpha), as they say; in logarithms, since a small alpha gives powers that a
 * double cannot hold. An attempt is refused about once in 20 times at most, so the bound on them
 * is never met. */
static double log_gamma_draw(const ddp_rng *rng, uint64_t first_block, double alpha)
{
    double d = alpha + 1 - 1.0 / 3.0, c = 1 / sqrt(9 * d), log_value = log(d), boost = 0;
    for (uint64_t k = 0; k < GAMMA_BLOCKS; k++) {
        uint32_t words[4];
        ddp_rng_block(rng, first_block + k, words);
        double x = sqrt(-2 * log(open_unit(words[0]))) * cos(2 * M_PI * open_unit(words[1]));
        double v = (1 + c * x) * (1 + c * x) * (1 + c * x);
        boost = log(open_unit(words[3])) / alpha;
        if (v > 0 && log(open_unit(words[2])) < 0.5 * x * x + d - d * v + d * log(v)) {
            log_value = log(d * v);
            break;
        }
    }
    return log_value + boost;
}

float ddp_mixup_weight(uint64_t seed, double alpha, ddp_transform_key key)
{
    ddp_rng rng = ddp_rng_make(seed, DDP_RNG_MIXUP, (uint32_t)key.epoch);
    uint64_t block = (uint64_t)key.sample * 2 * GAMMA_BLOCKS;
    double a = log_gamma_draw(&rng, block, alpha);
    double b = log_gamma_draw(&rng, block + GAMMA_BLOCKS, alpha);
    return (float)(1 / (1 + exp(b - a)));
}

int64_t ddp_mixup_shift(uint64_t seed, int64_t epoch, int64_t step, int64_t count)
{
    if (count < 2)
        return 0;
    ddp_rng rng = ddp_rng_make(seed, DDP_RNG_MIXUP, (uint32_t)epoch);
    uint32_t words[4];
    ddp_rng_block(&rng, SHIFT_BLOCK + (uint64_t)step, words);
    return 1 + (int64_t)(((uint64_t)words[0] * (uint64_t)(count - 1)) >> 32);
}
