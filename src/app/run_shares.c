/* run_shares.c - which logical shards each rank computes; with --rank-weights auto from the time
 * that a shard takes it.
 *
 * A rank is measured with what it will do: forward and backward of the model, at the size of the
 * first shard, while the other ranks do the same, since they share memory and cores. Zeros stand in
 * for samples and parameters: no kernel's time depends on values. The ranks start each round
 * together and share its times, so that all of them stop after the same round and deal alike. */
#include <inttypes.h>
#include <stdio.h>

#include "app/run.h"
#include "ddp/memory.h"
#include "ddp/shares.h"
#include "ddp/thread.h"

enum { MAX_ROUNDS = 6, LIST_BYTES = 256 };
static const double ENOUGH_SECONDS = 0.8; /* of rounds, by the slowest rank */

/* ---- the time of a shard ---- */

typedef struct probe {
    char *memory; /* of the device: what follows */
    size_t bytes;
    float *params, *grads;
    ddp_model_input input;
} probe;

static size_t padded(size_t bytes)
{
    return (bytes + DDP_ALIGN_BYTES - 1) / DDP_ALIGN_BYTES * DDP_ALIGN_BYTES;
}

static ddp_status open_probe(ddpi_run *run, probe *p)
{
    ddp_device *device = run->net.device;
    const size_t flat =
        padded(ddp_param_table_length(ddp_model_params(run->net.model)) * sizeof(float));
    const size_t sample = (size_t)ddp_shape_count(&run->config.model.input_shape) * sizeof(float);
    int64_t first;
    p->input.count = ddp_sampler_shard(&run->data.sampler, 0, 0, &first);
    const size_t inputs = padded((size_t)p->input.count * sample);
    const size_t labels = padded((size_t)p->input.count * sizeof(int32_t));
    const size_t ids = padded((size_t)p->input.count * sizeof(int64_t)); /* for dropout */
    void *memory;

    p->bytes = 2 * flat + inputs + labels + ids;
    DDP_TRY(ddp_device_alloc(device, p->bytes, &memory));
    p->memory = memory;
    p->params = (float *)(void *)p->memory;
    p->grads = (float *)(void *)(p->memory + flat);
    p->input.inputs = (const float *)(const void *)(p->memory + 2 * flat);
    p->input.labels = (const int32_t *)(const void *)(p->memory + 2 * flat + inputs);
    p->input.sample_ids = (const int64_t *)(const void *)(p->memory + 2 * flat + inputs + labels);
    ddp_model_bind(run->net.model, p->params, p->grads);
    return ddp_device_zero(device, ddp_device_main_stream(device), p->memory, p->bytes);
}

static void close_probe(ddpi_run *run, probe *p)
{
    if (p->memory == NULL)
        return;
    ddp_model_bind(run->net.model, NULL, NULL);
    ddp_device_free(run->net.device, p->memory, p->bytes);
}

static ddp_status time_shard(ddpi_run *run, const probe *p, double *seconds_out)
{
    double loss;
    int64_t start = ddp_now_ns();

    ddp_param_table_begin(ddp_model_params(run->net.model));
    DDP_TRY(ddp_model_forward(run->net.model, &p->input, &loss));
    DDP_TRY(ddp_model_backward(run->net.model));
    DDP_TRY(ddp_stream_sync(ddp_device_main_stream(run->net.device)));
    *seconds_out = (double)(ddp_now_ns() - start) * 1e-9;
    return DDP_OK;
}

/* The best round of each rank. */
static ddp_status measure_rounds(ddpi_run *run, const probe *p, double *times)
{
    double *best = run->shares.seconds, spent = 0;

    for (int round = 0; round < MAX_ROUNDS && spent < ENOUGH_SECONDS; round++) {
        double mine = 0, slowest = 0;
        DDP_TRY(ddpi_run_agree(run, time_shard(run, p, &mine), "time a shard"));
        DDP_TRY(ddp_comm_allgather(run->comm, &mine, sizeof mine, times));
        for (int r = 0; r < run->world; r++) {
            if (round == 0 || times[r] < best[r])
                best[r] = times[r];
            if (times[r] > slowest)
                slowest = times[r];
        }
        spent += slowest;
    }
    return DDP_OK;
}

static ddp_status measure(ddpi_run *run)
{
    probe p = {0};
    double *times = NULL;
    ddp_status st = DDP_ALLOC(run->shares.seconds, (size_t)run->world);

    if (st == DDP_OK)
        st = DDP_ALLOC(times, (size_t)run->world);
    if (st == DDP_OK)
        st = open_probe(run, &p);
    st = ddpi_run_agree(run, st, "prepare to time a shard");
    if (st == DDP_OK)
        st = measure_rounds(run, &p, times);
    close_probe(run, &p);
    ddp_free(times);
    for (int r = 0; st == DDP_OK && r < run->world; r++)
        run->shares.weights[r] = 1 / run->shares.seconds[r];
    return st;
}

/* ---- dealing ---- */

static ddp_status allocate(ddpi_run *run)
{
    DDP_TRY(DDP_ALLOC(run->shares.counts, (size_t)run->world));
    DDP_TRY(DDP_ALLOC(run->shares.weights, (size_t)run->world));
    return ddp_config_rank_weights(&run->config, run->world, run->shares.weights);
}

ddp_status ddpi_run_deal(ddpi_run *run)
{
    ddpi_run_shares *shares = &run->shares;

    if (run->config.run.eval_only)
        return DDP_OK;
    DDP_TRY(ddpi_run_agree(run, allocate(run), "list the ranks' weights"));
    if (ddp_config_measures_weights(&run->config))
        DDP_TRY(measure(run));
    DDP_TRY(ddp_shares_deal(shares->weights, run->world, run->config.shards, shares->counts));
    run->config.reducer.shards = shares->counts[run->rank];
    return DDP_OK;
}

int64_t ddpi_run_first_shard(const ddpi_run *run)
{
    int64_t first = 0;

    for (int r = 0; r < run->rank; r++)
        first += run->shares.counts[r];
    return first;
}

void ddpi_run_close_shares(ddpi_run *run)
{
    ddp_free(run->shares.counts);
    ddp_free(run->shares.weights);
    ddp_free(run->shares.seconds);
}

/* ---- telling ---- */

/* "3, 1"; a long list ends with dots. */
static const char *list(const ddpi_run *run, double (*value)(const ddpi_run_shares *, int),
                        char text[LIST_BYTES])
{
    size_t used = 0;

    text[0] = 0;
    for (int r = 0; r < run->world; r++) {
        if (used > LIST_BYTES - 32) {
            snprintf(text + used, LIST_BYTES - used, ", ...");
            break;
        }
        used += (size_t)snprintf(text + used, LIST_BYTES - used, "%s%.4g", r > 0 ? ", " : "",
                                 value(&run->shares, r));
    }
    return text;
}

static double count_of(const ddpi_run_shares *shares, int rank)
{
    return (double)shares->counts[rank];
}

static double weight_of(const ddpi_run_shares *shares, int rank)
{
    return shares->weights[rank];
}

static double milliseconds_of(const ddpi_run_shares *shares, int rank)
{
    return shares->seconds[rank] * 1e3;
}

void ddpi_run_print_shares(const ddpi_run *run)
{
    const ddpi_run_shares *shares = &run->shares;
    char counts[LIST_BYTES], why[LIST_BYTES];

    if (run->config.run.rank_weights == NULL)
        return;
    list(run, count_of, counts);
    if (shares->seconds != NULL) {
        ddp_log_print("shards of the ranks: %s (forward and backward of one take %s ms)", counts,
                      list(run, milliseconds_of, why));
        return;
    }
    ddp_log_print("shards of the ranks: %s (for weights %s)", counts, list(run, weight_of, why));
    const double error = ddp_shares_error(shares->weights, run->world, shares->counts);
    if (error > DDP_CONFIG_SHARE_TOLERANCE)
        ddp_log_print("note: whole shards do not give these weights: the largest difference is "
                      "%.0f%% of a rank's part (--logical-ranks chooses another number of shards)",
                      error * 100);
}

static ddp_status add_list(const ddpi_run *run, const char *key,
                           double (*value)(const ddpi_run_shares *, int), ddp_json *record)
{
    ddp_json *values;

    DDP_TRY(ddp_json_array(&values));
    for (int r = 0; r < run->world; r++)
        ddp_json_append_number(values, value(&run->shares, r));
    ddp_json_set(record, key, values);
    return DDP_OK;
}

ddp_status ddpi_run_add_shares(const ddpi_run *run, ddp_json *record)
{
    ddp_json *counts;

    if (run->config.run.rank_weights == NULL || run->shares.counts == NULL)
        return DDP_OK;
    DDP_TRY(ddp_json_array(&counts));
    for (int r = 0; r < run->world; r++)
        ddp_json_append_int(counts, run->shares.counts[r]);
    ddp_json_set(record, "rank_shards", counts);
    DDP_TRY(add_list(run, "rank_weights", weight_of, record));
    if (run->shares.seconds == NULL)
        return DDP_OK;
    return add_list(run, "shard_ms", milliseconds_of, record);
}
