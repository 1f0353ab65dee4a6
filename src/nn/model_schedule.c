/* model_schedule.c - the steps of a pass, and how long each buffer is needed.
 *
 * Forward runs the nodes in order. Backward runs them from last to first; where a node's backward
 * reads an output that was dropped, the step before makes it again, and what that needs in turn. A
 * node whose output several others read gets one gradient from each of them; its backward takes two
 * if it can, the rest is added up before. Buffers get their places from these lifetimes
 * (model_place.c), so whatever is dead gives its memory to what comes. Set-up only. One thread. */
#include <string.h>

#include "ddp/memory.h"
#include "nn/model_impl.h"

/* Gradients that a node's output has got so far. */
typedef struct gradients {
    int count, capacity;
    int *buffers;
} gradients;

typedef struct builder {
    const ddp_model *model;
    const ddpi_plan_set *set;
    ddpi_schedule *out;
    const bool *drop;     /* per node: not kept from forward to backward */
    int *current;         /* per node: the buffer that holds its output now */
    int *workspace;       /* per node */
    gradients *gradients; /* per node */
} builder;

/* ---- buffers ---- */

/* A buffer that the step which is being made is the first to use. Nothing is needed for 0 bytes. */
static ddp_status new_buffer(builder *b, size_t bytes, int *buffer_out)
{
    ddpi_schedule *s = b->out;
    if (bytes == 0) {
        *buffer_out = DDPI_NO_BUFFER;
        return DDP_OK;
    }
    DDP_TRY(DDP_GROW(s->buffers, s->buffer_capacity, s->buffer_count));
    s->buffers[s->buffer_count] =
        (ddpi_buffer){.bytes = bytes, .from = s->step_count, .to = s->step_count};
    *buffer_out = s->buffer_count++;
    return DDP_OK;
}

/* The step which is being made uses it. */
static int use(builder *b, int buffer)
{
    if (buffer >= 0)
        b->out->buffers[buffer].to = b->out->step_count;
    return buffer;
}

static size_t output_bytes(const builder *b, int node)
{
    return ddp_layout_bytes(b->set->plans[node]->dst);
}

/* ---- steps ---- */

static ddpi_step blank(ddpi_step_kind kind, int node)
{
    const int none = DDPI_NO_BUFFER;
    return (ddpi_step){.kind = kind,
                       .node = node,
                       .src = {none, none},
                       .diff_src = {none, none},
                       .dst = none,
                       .diff_dst = none,
                       .diff_dst2 = none,
                       .workspace = none,
                       .scratch = none};
}

static ddp_status push(builder *b, const ddpi_step *step)
{
    ddpi_schedule *s = b->out;
    DDP_TRY(DDP_GROW(s->steps, s->step_capacity, s->step_count));
    s->steps[s->step_count++] = *step;
    return DDP_OK;
}

static int source_buffer(const builder *b, int source)
{
    return source == DDPI_MODEL_INPUT ? DDPI_SAMPLES : b->current[source];
}

static ddp_status push_forward(builder *b, ddpi_step_kind kind, int node)
{
    const ddpi_node *n = &b->model->nodes[node];
    const ddpi_layer_plan *plan = b->set->plans[node];
    ddpi_step step = blank(kind, node);
    for (int i = 0; i < n->sources; i++)
        step.src[i] = use(b, source_buffer(b, n->source[i]));
    DDP_TRY(new_buffer(b, output_bytes(b, node), &step.dst));
    if (kind == DDPI_STEP_FORWARD)
        DDP_TRY(new_buffer(b, plan->workspace_bytes, &b->workspace[node]));
    step.workspace = use(b, b->workspace[node]);
    DDP_TRY(new_buffer(b, plan->scratch_bytes, &step.scratch));
    b->current[node] = step.dst;
    return push(b, &step);
}

static ddp_status add_gradient(builder *b, int node, int buffer)
{
    gradients *g = &b->gradients[node];
    DDP_TRY(DDP_GROW(g->buffers, g->capacity, g->count));
    g->buffers[g->count++] = buffer;
    return DDP_OK;
}

static ddp_status push_loss(builder *b)
{
    const int last = ddpi_model_last(b->model);
    ddpi_step step = blank(DDPI_STEP_LOSS, last);
    step.src[0] = use(b, b->current[last]);
    DDP_TRY(new_buffer(b, output_bytes(b, last), &step.diff_dst));
    DDP_TRY(new_buffer(b, ddp_op_plan_workspace_bytes(b->set->loss), &step.workspace));
    DDP_TRY(new_buffer(b, ddp_op_plan_scratch_bytes(b->set->loss), &step.scratch));
    DDP_TRY(add_gradient(b, last, step.diff_dst));
    b->out->loss = b->out->step_count;
    return push(b, &step);
}

/* Makes an output again if it is not there. Sources lie before their nodes, so this ends. */
static ddp_status ensure(builder *b, int node)
{
    if (node == DDPI_MODEL_INPUT || b->current[node] != DDPI_NO_BUFFER)
        return DDP_OK;
    const ddpi_node *n = &b->model->nodes[node];
    for (int i = 0; i < n->sources; i++)
        DDP_TRY(ensure(b, n->source[i]));
    return push_forward(b, DDPI_STEP_REPLAY, node);
}

static ddp_status push_accumulate(builder *b, int node, int into, int from)
{
    ddpi_step step = blank(DDPI_STEP_ACCUMULATE, node);
    step.diff_dst = use(b, into);
    step.diff_dst2 = use(b, from);
    return push(b, &step);
}

static ddp_status push_gradients_of_sources(builder *b, ddpi_step *step)
{
    const ddpi_node *n = &b->model->nodes[step->node];
    const ddpi_layer_plan *plan = b->set->plans[step->node];
    for (int i = 0; i < n->sources; i++) {
        if (!n->need_diff_src[i])
            continue;
        int buffer = step->diff_dst;
        if (plan->diff_dst_becomes != i) {
            DDP_TRY(new_buffer(b, output_bytes(b, n->source[i]), &buffer));
            step->diff_src[i] = buffer;
        }
        DDP_TRY(add_gradient(b, n->source[i], buffer));
    }
    return DDP_OK;
}

static ddp_status push_backward(builder *b, int node)
{
    const ddpi_node *n = &b->model->nodes[node];
    const ddpi_layer_plan *plan = b->set->plans[node];
    const gradients *g = &b->gradients[node];
    for (int i = 0; i < n->sources; i++)
        if (plan->reads_src[i])
            DDP_TRY(ensure(b, n->source[i]));
    if (plan->reads_dst)
        DDP_TRY(ensure(b, node));
    DDP_ASSERT(g->count > 0); /* model.c refuses outputs that nobody reads */
    const int taken = plan->sums_diff_dst && g->count > 1 ? 2 : 1;
    for (int i = taken; i < g->count; i++)
        DDP_TRY(push_accumulate(b, node, g->buffers[0], g->buffers[i]));

    ddpi_step step = blank(DDPI_STEP_BACKWARD, node);
    for (int i = 0; i < n->sources; i++)
        if (plan->reads_src[i])
            step.src[i] = use(b, source_buffer(b, n->source[i]));
    if (plan->reads_dst)
        step.dst = use(b, b->current[node]);
    step.diff_dst = use(b, g->buffers[0]);
    if (taken == 2)
        step.diff_dst2 = use(b, g->buffers[1]);
    step.workspace = use(b, b->workspace[node]);
    DDP_TRY(new_buffer(b, plan->scratch_bytes, &step.scratch));
    DDP_TRY(push_gradients_of_sources(b, &step));
    return push(b, &step);
}

/* ---- a whole pass ---- */

static ddp_status build_steps(builder *b)
{
    const ddp_model *model = b->model;
    for (int i = 0; i < model->node_count; i++)
        if (b->set->plans[i] != NULL)
            DDP_TRY(push_forward(b, DDPI_STEP_FORWARD, i));
    memcpy(b->out->output, b->current, (size_t)model->node_count * sizeof(int));
    b->out->loss = b->out->step_count;
    if (!b->set->training) {
        (void)use(b, b->current[ddpi_model_last(model)]); /* the loss comes behind, where wanted */
        return DDP_OK;
    }
    DDP_TRY(push_loss(b));
    for (int i = 0; i < model->node_count; i++)
        if (b->drop[i])
            b->current[i] = DDPI_NO_BUFFER;
    for (int i = model->node_count - 1; i >= 0; i--)
        if (b->set->plans[i] != NULL && model->nodes[i].backward)
            DDP_TRY(push_backward(b, i));
    if (model->opts.keep_outputs)
        for (int i = 0; i < b->out->buffer_count; i++)
            b->out->buffers[i].to = b->out->step_count;
    return DDP_OK;
}

static ddp_status build(const ddp_model *model, const ddpi_plan_set *set, const bool *drop,
                        ddpi_schedule *out)
{
    const size_t nodes = (size_t)model->node_count;
    builder b = {.model = model, .set = set, .out = out, .drop = drop};
    ddp_status st;
    *out = (ddpi_schedule){0};
    DDP_TRY_GOTO(st, DDP_ALLOC(out->output, nodes), done);
    DDP_TRY_GOTO(st, DDP_ALLOC(b.current, nodes), done);
    DDP_TRY_GOTO(st, DDP_ALLOC(b.workspace, nodes), done);
    DDP_TRY_GOTO(st, DDP_ALLOC(b.gradients, nodes), done);
    for (size_t i = 0; i < nodes; i++)
        b.current[i] = b.workspace[i] = DDPI_NO_BUFFER;
    DDP_TRY_GOTO(st, build_steps(&b), done);
    st = ddpi_schedule_place(out);
done:
    for (size_t i = 0; b.gradients != NULL && i < nodes; i++)
        ddp_free(b.gradients[i].buffers);
    ddp_free(b.gradients);
    ddp_free(b.workspace);
    ddp_free(b.current);
    if (st != DDP_OK)
        ddpi_schedule_free(out);
    return st;
}

void ddpi_schedule_free(ddpi_schedule *schedule)
{
    ddp_free(schedule->steps);
    ddp_free(schedule->buffers);
    ddp_free(schedule->output);
    *schedule = (ddpi_schedule){0};
}

/* ---- what is dropped ---- */

/* Outputs of layers with one source that cost little. Behind two sources, making one again would
 * want the other, which may have been dropped too: a chain through the whole network. */
static void drop_cheap(const ddp_model *model, const ddpi_plan_set *set, bool *drop)
{
    const int last = ddpi_model_last(model);
    for (int i = 0; i < model->node_count; i++)
        drop[i] = set->plans[i] != NULL && i != last && set->plans[i]->cheap &&
                  model->nodes[i].sources == 1;
}

/* Whether all that later nodes read of nodes up to `node` is this node's output. */
static bool is_narrow(const ddp_model *model, const ddpi_plan_set *set, int node)
{
    for (int i = node + 1; i < model->node_count; i++) {
        if (set->plans[i] == NULL)
            continue;
        for (int k = 0; k < model->nodes[i].sources; k++)
            if (model->nodes[i].source[k] >= 0 && model->nodes[i].source[k] < node)
                return false;
    }
    return set->plans[node] != NULL;
}

/* Keeps narrow outputs so that about `segments` parts of equal memory lie between them. */
static void drop_segments(const ddp_model *model, const ddpi_plan_set *set, int segments,
                          bool *drop)
{
    const int last = ddpi_model_last(model);
    double total = 0, sum = 0;
    int made = 1;
    for (int i = 0; i < model->node_count; i++)
        total += set->plans[i] != NULL ? (double)ddp_layout_bytes(set->plans[i]->dst) : 0;
    for (int i = 0; i < model->node_count; i++) {
        sum += set->plans[i] != NULL ? (double)ddp_layout_bytes(set->plans[i]->dst) : 0;
        drop[i] = set->plans[i] != NULL && i < last;
        if (drop[i] && made < segments && sum >= total * made / segments &&
            is_narrow(model, set, i)) {
            drop[i] = false;
            made = (int)(sum / total * segments) + 1;
        }
    }
}

/* More segments keep more between them and less within; the best number is found by trying. */
static ddp_status make_segments(const ddp_model *model, ddpi_plan_set *set, bool *drop)
{
    static const int tries[] = {2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64};
    for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
        ddpi_schedule schedule;
        drop_segments(model, set, tries[i], drop);
        DDP_TRY(build(model, set, drop, &schedule));
        if (set->segments != 0 && schedule.bytes >= set->schedule.bytes) {
            ddpi_schedule_free(&schedule);
            continue;
        }
        ddpi_schedule_free(&set->schedule);
        set->schedule = schedule;
        set->segments = tries[i];
    }
    return DDP_OK;
}

ddp_status ddpi_schedule_make(const ddp_model *model, ddpi_plan_set *set)
{
    bool *drop;
    ddp_status st;
    DDP_TRY(DDP_ALLOC(drop, (size_t)model->node_count));
    if (set->training && model->opts.recompute == DDP_RECOMPUTE_SEGMENTS) {
        st = make_segments(model, set, drop);
    } else {
        if (set->training && model->opts.recompute == DDP_RECOMPUTE_CHEAP)
            drop_cheap(model, set, drop);
        st = build(model, set, drop, &set->schedule);
    }
    ddp_free(drop);
    return st;
}
