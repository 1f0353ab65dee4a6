/* shards.c - into how many logical shards a batch is cut, and which weights the ranks have in
 * dealing them.
 *
 * Without --rank-weights every rank has the same number. With it the shards are the unit of what
 * ranks can be given, so that their number follows from the weights unless it is given too. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/config_impl.h"
#include "ddp/memory.h"
#include "ddp/shares.h"

#define USAGE(...) DDP_FAIL(DDP_ERR_USAGE, __VA_ARGS__)

/* Shards for each rank, on average: at most, where weights are given, and what measured weights are
 * dealt with. More would deal more exactly and make shards that are too small to compute well. */
enum { GIVEN_SHARDS_PER_RANK = 8, MEASURED_SHARDS_PER_RANK = 4 };

enum { MAX_EXACT_SHARDS = 1024 };

/* ---- weights ---- */

bool ddp_config_measures_weights(const ddp_config *config)
{
    const char *text = config->run.rank_weights;

    return text != NULL && strcmp(text, "auto") == 0;
}

static ddp_status bad_weight(const char *text, int rank, double weight)
{
    if (weight == 0)
        return USAGE("option --rank-weights: found weight 0 for rank %d, expected more than 0: a "
                     "rank without samples would only make the others wait for it; start fewer "
                     "ranks instead",
                     rank);
    return USAGE("option --rank-weights: found \"%.100s\", expected auto, or a number above 0 for "
                 "each rank with commas between, such as 2,1",
                 text);
}

/* Gives the number of weights; writes at most `limit` of them. */
static ddp_status parse_weights(const char *text, int limit, double *weights, int *count_out)
{
    const char *at = text;
    int count = 0;

    for (;; at++) {
        char *end = NULL;
        /* strtod() would take blanks and names as well. */
        bool number = *at != 0 && strchr("0123456789.", *at) != NULL;
        double weight = number ? strtod(at, &end) : NAN;
        if (!number || end == at || (*end != ',' && *end != 0))
            return bad_weight(text, count, NAN);
        if (!(weight > 0) || !isfinite(weight))
            return bad_weight(text, count, weight);
        if (count < limit)
            weights[count] = weight;
        count++;
        at = end;
        if (*at == 0)
            break;
    }
    *count_out = count;
    return DDP_OK;
}

ddp_status ddpi_config_check_weights(const char *text)
{
    int count;

    if (text == NULL || strcmp(text, "auto") == 0)
        return DDP_OK;
    return parse_weights(text, 0, NULL, &count);
}

ddp_status ddp_config_rank_weights(const ddp_config *config, int world, double *weights_out)
{
    const char *text = config->run.rank_weights;
    int count = world;

    for (int r = 0; r < world; r++)
        weights_out[r] = 1;
    if (text != NULL && !ddp_config_measures_weights(config))
        DDP_TRY(parse_weights(text, world, weights_out, &count));
    if (count != world)
        return USAGE("option --rank-weights: found %d weights with %d ranks, expected one for each "
                     "rank",
                     count, world);
    return DDP_OK;
}

/* ---- shards ---- */

/* "1, 2, 3, 6": the numbers of ranks that divide the shards. */
static void list_worlds(int64_t shards, char *text, size_t text_bytes)
{
    size_t used = 0;

    text[0] = 0;
    for (int64_t w = 1; w <= shards && used + 1 < text_bytes; w++)
        if (shards % w == 0)
            used +=
                (size_t)snprintf(text + used, text_bytes - used, "%s%" PRId64, used ? ", " : "", w);
}

/* --micro-batch in terms of --accumulate. */
static ddp_status resolve_micro_batch(ddp_config *config, int world)
{
    ddp_run_opts *run = &config->run;
    int64_t per_rank = (config->global_batch + world - 1) / world;

    if (run->micro_batch == 0)
        return DDP_OK;
    if (run->accumulate > 1 || run->logical_ranks > 0)
        return USAGE("option --micro-batch: found %" PRId64
                     " beside --accumulate or --logical-ranks, expected one of them",
                     run->micro_batch);
    run->accumulate = (per_rank + run->micro_batch - 1) / run->micro_batch;
    run->micro_batch = 0;
    return DDP_OK;
}

static int64_t at_most(int64_t value, int64_t limit)
{
    return value < limit ? value : limit;
}

/* The number that the weights ask for; also checks how many there are. */
static ddp_status choose_shards(const ddp_config *config, int world, int64_t *shards_out)
{
    const int64_t batch = config->global_batch;
    double *weights;

    DDP_TRY(DDP_ALLOC(weights, (size_t)world));
    ddp_status st = ddp_config_rank_weights(config, world, weights);
    *shards_out = world;
    if (ddp_config_measures_weights(config) && batch > world)
        *shards_out = world * at_most(MEASURED_SHARDS_PER_RANK, batch / world);
    else if (st == DDP_OK && !ddp_config_measures_weights(config))
        st = ddp_shares_choose(weights, world, at_most(GIVEN_SHARDS_PER_RANK * world, batch),
                               DDP_CONFIG_SHARE_TOLERANCE, shards_out);
    ddp_free(weights);
    return st;
}

static ddp_status check_dealing(const ddp_config *config, int world)
{
    char worlds[128];

    const bool uneven = config->run.rank_weights != NULL || config->uneven_shards;

    if (uneven && config->shards < world)
        return USAGE("option --logical-ranks: found %" PRId64
                     " with %d ranks, expected one for each at least",
                     config->shards, world);
    if (uneven || config->shards % world == 0)
        return DDP_OK;
    list_worlds(config->shards, worlds, sizeof worlds);
    return USAGE("option --logical-ranks: found %" PRId64
                 " with %d ranks, expected a multiple of %d (or this many ranks: %s), or "
                 "--rank-weights to deal them unequally",
                 config->shards, world, world, worlds);
}

/* Partial sums that belong to different nodes of the tree travel one by one: not too many. */
static ddp_status check_exact_shards(const ddp_config *config, int world)
{
    const int64_t own = config->shards / world;

    if (!config->run.exact || (own & (own - 1)) == 0 || config->shards <= MAX_EXACT_SHARDS)
        return DDP_OK;
    return USAGE("option --exact: found %" PRId64 " shards on %d ranks, expected at most %d, or a "
                 "power of two for each rank",
                 config->shards, world, MAX_EXACT_SHARDS);
}

/* A run that goes on, not bit by bit, with other ranks than its shards can serve: every rank
 * computes one at least, and synchronised statistics have one for each rank. */
static bool has_outgrown(const ddp_config *config, int world)
{
    const ddp_run_opts *run = &config->run;

    return config->uneven_shards &&
           (run->logical_ranks < world || (run->sync_bn && run->logical_ranks != world));
}

ddp_status ddpi_config_resolve_shards(ddp_config *config, int world)
{
    const ddp_run_opts *run = &config->run;
    int64_t wanted = 0;

    DDP_TRY(resolve_micro_batch(config, world));
    if (run->rank_weights != NULL)
        DDP_TRY(choose_shards(config, world, &wanted));
    config->shards = has_outgrown(config, world)          ? world
                     : run->logical_ranks > 0             ? run->logical_ranks
                     : wanted > 0 && run->accumulate == 1 ? wanted
                                                          : world * run->accumulate;
    DDP_TRY(check_dealing(config, world));
    if (run->logical_ranks > 0 && run->accumulate > 1 && config->shards != world * run->accumulate)
        return USAGE("option --logical-ranks: found %" PRId64 " with --accumulate %" PRId64
                     " and %d ranks, expected %" PRId64 ", or one of the two options",
                     config->shards, run->accumulate, world, world * run->accumulate);
    DDP_TRY(check_exact_shards(config, world));
    bool equal = run->rank_weights == NULL && config->shards % world == 0;
    config->reducer.shards = equal ? config->shards / world : 0;
    if (run->sync_bn && config->shards != world)
        return USAGE("option --sync-bn: found with %" PRId64
                     " shards on %d ranks, expected one shard for each rank (no --accumulate, "
                     "--micro-batch, --logical-ranks or unequal --rank-weights): a rank computes "
                     "its shards one after the other, so they cannot share statistics",
                     config->shards, world);
    return DDP_OK;
}
