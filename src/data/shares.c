/* shares.c - dealing by largest remainder (Hamilton's method), with one shard at least for each
 * rank. Sums run in rank order, so that every rank finds the same. No state. */
#include "ddp/shares.h"

#include <math.h>
#include <stdlib.h>

#include "ddp/memory.h"

/* What a rank should have, beside what it has got so far. */
typedef struct claim {
    double quota;
    int64_t count;
    int rank;
} claim;

static double weight_of(const double *weights, int rank)
{
    return weights != NULL ? weights[rank] : 1.0;
}

static double sum_of(const double *weights, int world)
{
    double sum = 0;
    for (int r = 0; r < world; r++)
        sum += weight_of(weights, r);
    return sum;
}

static double unmet(const claim *c)
{
    return c->quota - (double)c->count;
}

static int by_unmet(const void *a, const void *b)
{
    const claim *x = a, *y = b;
    if (unmet(x) != unmet(y))
        return unmet(x) > unmet(y) ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* The lower bound of one has given out too much: ranks with the most above their quota give back.
 */
static void take_back(claim *claims, int world, int64_t excess)
{
    for (; excess > 0; excess--) {
        claim *most = NULL;
        for (int r = 0; r < world; r++)
            if (claims[r].count > 1 && (most == NULL || unmet(&claims[r]) < unmet(most)))
                most = &claims[r];
        DDP_ASSERT(most != NULL);
        most->count--;
    }
}

static void deal(claim *claims, const double *weights, int world, int64_t shards)
{
    const double sum = sum_of(weights, world);
    int64_t left = shards;
    for (int r = 0; r < world; r++) {
        const double quota = weight_of(weights, r) * (double)shards / sum;
        const int64_t whole = (int64_t)floor(quota);
        claims[r] = (claim){quota, whole > 1 ? whole : 1, r};
        left -= claims[r].count;
    }
    take_back(claims, world, -left);
    if (left <= 0)
        return;
    qsort(claims, (size_t)world, sizeof *claims, by_unmet);
    for (int r = 0; left > 0; r = (r + 1) % world, left--)
        claims[r].count++;
}

ddp_status ddp_shares_deal(const double *weights, int world, int64_t shards, int64_t *counts_out)
{
    claim *claims;
    for (int r = 0; r < world; r++)
        DDP_ASSERT(weight_of(weights, r) > 0 && isfinite(weight_of(weights, r)));
    if (shards < world)
        return DDP_FAIL(DDP_ERR_USAGE,
                        "%lld logical shards for %d ranks, expected one for each at least",
                        (long long)shards, world);
    DDP_TRY(DDP_ALLOC(claims, (size_t)world));
    deal(claims, weights, world, shards);
    for (int r = 0; r < world; r++)
        counts_out[claims[r].rank] = claims[r].count;
    ddp_free(claims);
    return DDP_OK;
}

double ddp_shares_error(const double *weights, int world, const int64_t *counts)
{
    const double sum = sum_of(weights, world);
    double shards = 0, error = 0;
    for (int r = 0; r < world; r++)
        shards += (double)counts[r];
    for (int r = 0; r < world; r++) {
        const double wanted = weight_of(weights, r) / sum;
        error = fmax(error, fabs((double)counts[r] / shards - wanted) / wanted);
    }
    return error;
}

ddp_status ddp_shares_choose(const double *weights, int world, int64_t max_shards, double tolerance,
                             int64_t *shards_out)
{
    double best = INFINITY;
    int64_t *counts;
    ddp_status st = DDP_OK;
    DDP_TRY(DDP_ALLOC(counts, (size_t)world));
    *shards_out = world;
    for (int64_t shards = world; shards <= max_shards && best > tolerance; shards++) {
        DDP_TRY_GOTO(st, ddp_shares_deal(weights, world, shards, counts), out);
        const double error = ddp_shares_error(weights, world, counts);
        if (error >= best)
            continue;
        best = error;
        *shards_out = shards;
    }
out:
    ddp_free(counts);
    return st;
}
