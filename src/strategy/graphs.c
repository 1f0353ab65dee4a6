/* graphs.c - whole steps as graphs of the device.
 *
 * A graph holds all that a step gives to the main stream and to the lane: forward, backward, the
 * buckets' reductions and the updates. It is captured when a global batch of that size comes for
 * the second time, so that what is only made at a first use has been made, and launched then and
 * from then on. Where everything lies is fixed, so batches are first copied to places of their own.
 * Which sizes have come is the same on all ranks, and so are all decisions here.
 *
 * What changes from step to step lies in a block of device memory, which one copy brings up to date
 * before each launch: the seed of the epoch's generators, then the optimizer's numbers. The host
 * writes its own block for the next step after it has waited for the end of the one before.
 *
 * One thread, the rank's. */
#include "strategy/graphs.h"

#include <stdio.h>

#include "ddp/log.h"
#include "ddp/memory.h"

/* Sizes that get a graph; an epoch has two. Steps of others are given to the stream as before. */
enum { MAX_SIZES = 4 };

/* Of the live block: the seed, before the optimizer's numbers. */
enum { SEED_BYTES = DDP_OP_LIVE_BYTES };

enum { MESSAGE_BYTES = 1024 };

typedef struct step_graph {
    int64_t count;       /* the global batch */
    const float *inputs; /* where its first batch was; another loader has other places */
    ddp_graph *graph;    /* NULL: not captured yet */
    ddp_recording *recording;
} step_graph;

struct ddpi_graphs {
    ddp_strategy *s;
    step_graph sizes[MAX_SIZES];
    int size_count;
    ddp_batch *held; /* [shards] */
    char *live_host, *live_device;
    size_t live_bytes;
    const step_graph *replayed;
    ddp_work work; /* its last launch */
};

/* ---- whether ---- */

/* NULL: nothing is in the way. */
static const char *obstacle(const ddp_strategy *s)
{
    if (!ddp_device_has_graphs(s->device))
        return "the device has no graphs";
    if (!s->ops->in_stream)
        return "this --strategy waits for ranks in the middle of a step";
    if (s->opts.sync_norms)
        return "--sync-bn talks to other ranks in the middle of a step";
    if (ddp_optim_measures(s->optim))
        return "--clip-grad-norm, --on-nonfinite skip, fp16, lars and lamb compare all ranks' "
               "numbers in the middle of a step";
    if (s->exact != NULL)
        return "--exact adds losses and norms on the host";
    if (!ddp_comm_can_record(s->comm))
        return "gradients travel by way of the host";
    return NULL;
}

static ddp_status make(ddp_strategy *s)
{
    ddpi_graphs *g;
    void *memory;
    DDP_TRY(DDP_ALLOC(g, 1));
    s->graphs = g;
    g->s = s;
    DDP_TRY(DDP_ALLOC(g->held, (size_t)s->opts.reducer.shards));
    g->live_bytes =
        SEED_BYTES + ddp_optim_live_bytes(s->optim, ddp_reducer_bucket_count(s->reducer));
    DDP_TRY(ddp_device_host_alloc(s->device, g->live_bytes, &memory));
    g->live_host = memory;
    DDP_TRY(ddp_device_alloc(s->device, g->live_bytes, &memory));
    g->live_device = memory;
    return DDP_OK;
}

ddp_status ddpi_graphs_create(ddp_strategy *s)
{
    const char *why = obstacle(s);
    if (s->opts.graph == DDP_GRAPH_OFF)
        return DDP_OK;
    if (why == NULL)
        return make(s);
    if (s->opts.graph == DDP_GRAPH_ON)
        return DDP_FAIL(DDP_ERR_USAGE, "option --cuda-graph on: %s", why);
    if (ddp_device_has_graphs(s->device) && ddp_comm_rank(s->comm) == 0)
        ddp_info("steps are not replayed as graphs: %s", why);
    return DDP_OK;
}

static void drop(step_graph *size)
{
    ddp_graph_destroy(size->graph);
    ddp_recording_destroy(size->recording);
    size->graph = NULL;
    size->recording = NULL;
}

void ddpi_graphs_destroy(ddpi_graphs *g)
{
    if (g == NULL)
        return;
    for (int i = 0; i < g->size_count; i++)
        drop(&g->sizes[i]);
    if (g->live_device != NULL)
        ddp_device_free(g->s->device, g->live_device, g->live_bytes);
    if (g->live_host != NULL)
        ddp_device_host_free(g->s->device, g->live_host, g->live_bytes);
    ddp_free(g->held);
    ddp_free(g);
}

/* ---- a step, captured or not ---- */

static ddp_status give_step(ddpi_graphs *g)
{
    ddp_step_stats unused = {0};
    DDP_TRY(ddpi_step_begin(g->s));
    for (int64_t i = 0; i < g->s->opts.reducer.shards; i++)
        DDP_TRY(ddpi_step_shard(g->s, &g->held[i]));
    return g->s->ops->exchange(g->s, &unused);
}

static ddp_status capture(ddpi_graphs *g, step_graph *size)
{
    ddp_strategy *s = g->s;
    ddp_stream *stream = ddp_device_main_stream(s->device);
    DDP_TRY(ddp_graph_begin(stream));
    ddp_optim_live_begin(s->optim, g->live_device + SEED_BYTES);
    s->live_seed = (const uint64_t *)(const void *)g->live_device;
    ddp_status st = ddp_comm_record_begin(s->comm, &size->recording);
    if (st == DDP_OK)
        st = give_step(g);
    ddp_comm_record_end(s->comm);
    s->live_seed = NULL;
    ddp_optim_live_end(s->optim);
    if (st == DDP_OK)
        return ddp_graph_end(stream, &size->graph);
    /* The first failure is the one to tell. */
    char message[MESSAGE_BYTES];
    snprintf(message, sizeof message, "%s", ddp_status_message());
    (void)!ddp_graph_end(stream, &size->graph);
    return ddp_status_set(st, NULL, 0, "%s", message);
}

static ddp_status launch(ddpi_graphs *g, const step_graph *size)
{
    ddp_strategy *s = g->s;
    ddp_stream *stream = ddp_device_main_stream(s->device);
    *(uint64_t *)(void *)g->live_host = ddp_strategy_seed(s, g->held[0].epoch);
    const size_t bytes = SEED_BYTES + ddp_optim_live_write(s->optim, g->live_host + SEED_BYTES);
    DDP_TRY(ddp_device_copy(s->device, stream, g->live_device, g->live_host, bytes,
                            DDP_COPY_TO_DEVICE));
    g->replayed = size;
    return ddp_comm_replay(size->recording, size->graph, stream, &g->work);
}

/* The capture has failed somewhere: unless graphs are asked for it goes on without, from the step
 * at hand on. */
static ddp_status give_up(ddpi_graphs *g, ddp_status why)
{
    ddp_strategy *s = g->s;
    if (s->opts.graph == DDP_GRAPH_ON)
        return why;
    if (ddp_comm_rank(s->comm) == 0)
        ddp_warn("steps are not replayed as graphs: %s", ddp_status_message());
    const ddp_status st = give_step(g);
    s->graphs = NULL;
    ddpi_graphs_destroy(g);
    return st;
}

/* ---- which ---- */

/* NULL: the size has not come before. */
static step_graph *find_size(ddpi_graphs *g, int64_t count)
{
    for (int i = 0; i < g->size_count; i++)
        if (g->sizes[i].count == count)
            return &g->sizes[i];
    if (g->size_count < MAX_SIZES)
        g->sizes[g->size_count++].count = count;
    return NULL;
}

static ddp_status take(ddpi_graphs *g, ddp_loader *loader, ddpi_control_word *word)
{
    for (int64_t i = 0; i < g->s->opts.reducer.shards; i++) {
        ddp_batch batch;
        DDP_TRY(ddpi_step_take(g->s, loader, i, word, &batch));
        DDP_TRY(ddp_loader_hold(loader, i, &g->held[i]));
        g->held[i].shard = i;
    }
    return DDP_OK;
}

ddp_status ddpi_graphs_step(ddp_strategy *s, ddp_loader *loader, int64_t count,
                            ddpi_control_word *word, ddpi_step_how *how_out)
{
    ddpi_graphs *g = s->graphs;
    step_graph *size = find_size(g, count);
    if (size == NULL || ddp_optim_get_state(s->optim).steps == 0)
        return DDP_OK;
    ddpi_step_reset(s);
    DDP_TRY(take(g, loader, word));
    if (size->inputs != g->held[0].inputs)
        drop(size);
    if (size->graph == NULL) {
        size->inputs = g->held[0].inputs;
        const ddp_status st = capture(g, size);
        const ddp_status all = ddp_comm_agree(s->comm, st, "capture a step as a graph");
        if (all != DDP_OK) {
            *how_out = DDPI_STEP_GIVEN;
            return give_up(g, all);
        }
    }
    *how_out = DDPI_STEP_REPLAYED;
    return launch(g, size);
}

ddp_status ddpi_graphs_collect(ddpi_graphs *g, ddp_reducer_times *times_out)
{
    int64_t comm_ns;
    DDP_TRY(ddp_work_wait(&g->work));
    DDP_TRY(ddp_recording_ns(g->replayed->recording, &comm_ns));
    return ddp_reducer_collect_replay(g->s->reducer, comm_ns, times_out);
}
