/* sampler.c - the arithmetic of epochs, global steps and logical shards.
 *
 * Everything follows from position ranges: a step is a range of the epoch, a shard is a range of
 * the step. The permutation turns positions into sample indices. No state; any thread. */
#include "ddp/sampler.h"

#include "data/permutation.h"

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

ddp_status ddp_sampler_check(const ddp_sampler *sampler)
{
    if (sampler->size < 1)
        return DDP_FAIL(DDP_ERR_USAGE, "the data set has %lld samples, at least 1 is needed",
                        (long long)sampler->size);
    if (sampler->batch < 1)
        return DDP_FAIL(DDP_ERR_USAGE, "the global batch is %lld samples, at least 1 is needed",
                        (long long)sampler->batch);
    if (sampler->shards < 1)
        return DDP_FAIL(DDP_ERR_USAGE, "a step has %lld logical shards, at least 1 is needed",
                        (long long)sampler->shards);
    if (ddp_sampler_steps(sampler) < 1)
        return DDP_FAIL(DDP_ERR_USAGE,
                        "dropping the incomplete last batch leaves no batch: the global batch is "
                        "%lld samples, the data set has %lld",
                        (long long)sampler->batch, (long long)sampler->size);
    return DDP_OK;
}

int64_t ddp_sampler_steps(const ddp_sampler *sampler)
{
    int64_t full = sampler->size / sampler->batch;
    bool rest = sampler->size % sampler->batch != 0;
    return full + (rest && !sampler->drop_last ? 1 : 0);
}

int64_t ddp_sampler_step_count(const ddp_sampler *sampler, int64_t step)
{
    if (step < 0 || step >= ddp_sampler_steps(sampler))
        return 0;
    return min64(sampler->batch, sampler->size - step * sampler->batch);
}

int64_t ddp_sampler_shard(const ddp_sampler *sampler, int64_t step, int64_t shard,
                          int64_t *first_out)
{
    int64_t count = ddp_sampler_step_count(sampler, step);
    DDP_ASSERT(shard >= 0 && shard < sampler->shards);
    if (count == 0) {
        *first_out = 0;
        return 0;
    }
    int64_t part = count / sampler->shards, longer = count % sampler->shards;
    *first_out = step * sampler->batch + shard * part + min64(shard, longer);
    return part + (shard < longer ? 1 : 0);
}

int64_t ddp_sampler_index(const ddp_sampler *sampler, int64_t epoch, int64_t position)
{
    int64_t index;
    ddp_sampler_indices(sampler, epoch, position, 1, &index);
    return index;
}

void ddp_sampler_indices(const ddp_sampler *sampler, int64_t epoch, int64_t first, int64_t count,
                         int64_t *indices)
{
    DDP_ASSERT(first >= 0 && count >= 0 && count <= sampler->size - first);
    if (!sampler->shuffle) {
        for (int64_t i = 0; i < count; i++)
            indices[i] = first + i;
        return;
    }
    ddpi_permutation perm;
    ddpi_permutation_init(&perm, sampler->size, sampler->seed, DDP_RNG_SHUFFLE, epoch);
    for (int64_t i = 0; i < count; i++)
        indices[i] = ddpi_permutation_at(&perm, first + i);
}
