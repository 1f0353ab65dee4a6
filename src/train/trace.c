/* trace.c - finds what was not finite in a step, by computing it again. See trace_impl.h.
 *
 * Batches are functions of epoch and step, so the loader goes back for them. Where the update was
 * left out, parameters are as they were before the step. */
#include "train/trace_impl.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "ddp/fs.h"
#include "ddp/memory.h"
#include "ddp/replay.h"

typedef struct tracer {
    const ddp_trainer_parts *parts;
    const ddp_run_state *at; /* before the step was counted */
    ddp_strategy_state state;
    int64_t shard; /* of this rank's, the first that has a fault; below 0: none */
    ddp_fault fault;
} tracer;

/* "12, 40, 7, ..." */
static void list_samples(const ddp_fault *fault, const ddp_batch *batch, char *text, size_t bytes)
{
    const int64_t all = fault->samples > 0 ? fault->samples : batch->count;
    const int64_t shown = all < DDP_FAULT_SAMPLES ? all : DDP_FAULT_SAMPLES;
    size_t used = 0;

    text[0] = 0;
    for (int64_t i = 0; i < shown && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%" PRId64, i > 0 ? ", " : "",
                                 batch->indices[fault->samples > 0 ? fault->places[i] : i]);
    if ((fault->samples == DDP_FAULT_SAMPLES || shown < all) && used < bytes)
        snprintf(text + used, bytes - used, ", ...");
}

static ddp_status save(const tracer *t, const ddp_replay_parts *replay, const ddp_batch *batch,
                       char path[PATH_MAX])
{
    const ddp_trainer_parts *p = t->parts;
    const size_t length = ddp_buffer_table_length(ddp_model_buffers(p->model));
    const ddp_replay_info info = {.epoch = t->at->epoch + 1,
                                  .step = t->at->steps + 1,
                                  .shard = batch->shard,
                                  .classes = ddp_model_classes(p->model),
                                  .rank = ddp_comm_rank(p->comm),
                                  .seed = replay->input.seed};
    char name[64];

    snprintf(name, sizeof name, "nonfinite-step-%" PRId64 "-rank-%d.safetensors", info.step,
             info.rank);
    DDP_TRY(ddp_fs_join(path, PATH_MAX, p->dir, name));
    return ddp_replay_save(
        path, replay, batch->indices,
        t->state.running != NULL ? t->state.running + (size_t)t->shard * length : NULL, &info);
}

static ddp_replay_parts parts_of(const tracer *t, const ddp_batch *batch)
{
    const ddp_trainer_parts *p = t->parts;

    return (ddp_replay_parts){.device = p->device,
                              .model = p->model,
                              .params = ddp_strategy_params(p->strategy),
                              .input = {.inputs = batch->inputs,
                                        .labels = batch->labels,
                                        .count = batch->count,
                                        .labels2 = batch->labels2,
                                        .mix = batch->mix,
                                        .sample_ids = batch->sample_ids,
                                        .seed = ddp_strategy_seed(p->strategy, batch->epoch)}};
}

/* All of this rank's shards, whatever is found: norms over all ranks talk on the way. */
static ddp_status search(tracer *t)
{
    DDP_TRY(ddp_loader_seek(t->parts->loader, t->at->epoch, t->at->step_in_epoch));
    for (int64_t shard = 0; shard < t->state.shards; shard++) {
        const ddp_batch *batch;
        ddp_fault fault;
        double loss;
        DDP_TRY(ddp_loader_next(t->parts->loader, &batch));
        if (batch->count == 0)
            continue;
        const ddp_replay_parts replay = parts_of(t, batch);
        DDP_TRY(ddp_find_fault(&replay, NULL, NULL, &loss, &fault));
        if (t->shard >= 0 || fault.what[0] == 0)
            continue;
        t->shard = shard;
        t->fault = fault;
    }
    return DDP_OK;
}

/* Takes the shard's samples once more, for the file and for their numbers. */
static ddp_status describe(const tracer *t, char text_out[DDPI_TRACE_BYTES])
{
    enum { LIST_BYTES = 192, FILE_BYTES = 448 };
    char samples[LIST_BYTES], path[PATH_MAX], kept[FILE_BYTES] = "";
    const ddp_batch *batch = NULL;

    DDP_TRY(ddp_loader_seek(t->parts->loader, t->at->epoch, t->at->step_in_epoch));
    for (int64_t shard = 0; shard <= t->shard; shard++)
        DDP_TRY(ddp_loader_next(t->parts->loader, &batch));
    const ddp_replay_parts replay = parts_of(t, batch);
    if (t->parts->dir != NULL) {
        DDP_TRY(save(t, &replay, batch, path));
        snprintf(kept, sizeof kept,
                 "; ddp_train --config %.150s/config.ini --replay %.200s computes it again",
                 t->parts->dir, path);
    }
    list_samples(&t->fault, batch, samples, sizeof samples);
    snprintf(text_out, DDPI_TRACE_BYTES,
             "rank %d, shard %" PRId64 ": first the %s (%zu of %zu values), sample%s %s%s",
             ddp_comm_rank(t->parts->comm), batch->shard, t->fault.what, t->fault.bad,
             t->fault.count, t->fault.samples == 1 ? "" : "s", samples, kept);
    return DDP_OK;
}

/* The lowest rank that has found something speaks. */
static ddp_status tell(const tracer *t, char text_out[DDPI_TRACE_BYTES])
{
    ddp_comm *comm = t->parts->comm;
    int64_t speaker = t->shard >= 0 ? ddp_comm_rank(comm) : INT64_MAX;

    DDP_TRY(ddp_comm_allreduce(comm, &speaker, 1, DDP_I64, DDP_REDUCE_MIN, "who has a fault"));
    if (speaker == INT64_MAX) {
        snprintf(
            text_out, DDPI_TRACE_BYTES,
            "computed again every rank's part is finite: either the sum over ranks was not, or "
            "memory was damaged for a while");
        return DDP_OK;
    }
    if (speaker == ddp_comm_rank(comm) && describe(t, text_out) != DDP_OK)
        snprintf(text_out, DDPI_TRACE_BYTES, "rank %d: first the %s; nothing is kept of it: %.500s",
                 ddp_comm_rank(comm), t->fault.what, ddp_status_message());
    return ddp_comm_broadcast(comm, (int)speaker, text_out, DDPI_TRACE_BYTES);
}

ddp_status ddpi_trace(const ddp_trainer_parts *parts, const ddp_run_state *at,
                      char text_out[DDPI_TRACE_BYTES])
{
    tracer t = {.parts = parts, .at = at, .shard = -1};
    ddp_status st = ddp_strategy_get_state(parts->strategy, false, &t.state);

    if (st == DDP_OK)
        st = search(&t);
    DDP_TRY(ddp_comm_agree(parts->comm, st, "look for what is not finite"));
    return tell(&t, text_out);
}
