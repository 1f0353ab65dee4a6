/* buckets_measure.c - the times that buckets are chosen by: of the gradients' completion, and of
 * the update.
 *
 * All is done by the parts that training will use: the model's passes, a reducer, an optimizer.
 * Zeros stand in for samples and parameters: no kernel's time depends on values. Nothing of it is
 * left behind. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "app/buckets.h"
#include "ddp/marks.h"
#include "ddp/memory.h"
#include "ddp/thread.h"

enum { MAX_PASSES = 8 };

/* ---- statistics ---- */

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, ascending);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

static double seconds_since(int64_t start_ns)
{
    return (double)(ddp_now_ns() - start_ns) * 1e-9;
}

/* ---- passes ---- */

/* What a pass is measured by: the parameters' times, then these. */
enum { FORWARD, TAIL, COMM, EXPOSED, SECONDS, MORE };
/* Intervals of the main stream; parameters come behind. */
enum { MARK_OTHER, MARK_FORWARD, MARK_TAIL, MARK_PARAMS };

struct ddpi_passes {
    ddpi_run *run;
    ddp_param_table *table;
    int params;
    char *memory; /* of the device: what the input points to */
    size_t bytes;
    ddp_model_input input;
    double *loss; /* pinned */
    ddp_marks *marks;
    int64_t *ns; /* [MARK_PARAMS + params] */
    int *order;  /* [params]: as gradients were completed */
    int seen;
    bool watching;
    ddp_param_ready_fn next; /* who else wants to know */
    void *next_arg;
    double *samples; /* [params + MORE][MAX_PASSES] */
    double *columns; /* [params + MORE] */
};

static size_t padded(size_t bytes)
{
    return (bytes + DDP_ALIGN_BYTES - 1) / DDP_ALIGN_BYTES * DDP_ALIGN_BYTES;
}

static ddp_status open_input(ddpi_passes *p)
{
    ddpi_run *run = p->run;
    const size_t sample = (size_t)ddp_shape_count(&run->config.model.input_shape) * sizeof(float);
    int64_t first;
    void *memory;

    p->input.count = ddp_sampler_shard(&run->data.sampler, 0, 0, &first);
    const size_t inputs = padded((size_t)p->input.count * sample);
    const size_t labels = padded((size_t)p->input.count * sizeof(int32_t));
    const size_t ids = padded((size_t)p->input.count * sizeof(int64_t)); /* for dropout */
    DDP_TRY(ddp_device_host_alloc(run->net.device, sizeof *p->loss, &memory));
    p->loss = memory;
    p->bytes = inputs + labels + ids;
    DDP_TRY(ddp_device_alloc(run->net.device, p->bytes, &memory));
    p->memory = memory;
    p->input.inputs = (const float *)(const void *)p->memory;
    p->input.labels = (const int32_t *)(const void *)(p->memory + inputs);
    p->input.sample_ids = (const int64_t *)(const void *)(p->memory + inputs + labels);
    return DDP_OK;
}

static ddp_status open_all(ddpi_passes *p)
{
    const size_t columns = (size_t)p->params + MORE;

    DDP_TRY(DDP_ALLOC(p->ns, MARK_PARAMS + (size_t)p->params));
    DDP_TRY(DDP_ALLOC(p->order, (size_t)p->params));
    DDP_TRY(DDP_ALLOC(p->samples, columns * MAX_PASSES));
    DDP_TRY(DDP_ALLOC(p->columns, columns));
    DDP_TRY(ddp_marks_create(p->run->net.device, MARK_PARAMS + p->params, &p->marks));
    return open_input(p);
}

ddp_status ddpi_passes_create(ddpi_run *run, ddpi_passes **passes_out)
{
    ddpi_passes *p;

    DDP_TRY(DDP_ALLOC(p, 1));
    p->run = run;
    p->table = ddp_model_params(run->net.model);
    p->params = ddp_param_table_count(p->table);
    const ddp_status st = open_all(p);
    if (st != DDP_OK) {
        ddpi_passes_destroy(p);
        return st;
    }
    *passes_out = p;
    return DDP_OK;
}

void ddpi_passes_destroy(ddpi_passes *p)
{
    if (p == NULL)
        return;
    if (p->memory != NULL)
        ddp_device_free(p->run->net.device, p->memory, p->bytes);
    if (p->loss != NULL)
        ddp_device_host_free(p->run->net.device, p->loss, sizeof *p->loss);
    ddp_marks_destroy(p->marks);
    ddp_free(p->ns);
    ddp_free(p->order);
    ddp_free(p->samples);
    ddp_free(p->columns);
    ddp_free(p);
}

static ddp_status on_ready(void *arg, int index)
{
    ddpi_passes *p = arg;

    if (p->watching) {
        p->order[p->seen++] = index;
        DDP_TRY(ddp_marks_set(p->marks, ddp_device_main_stream(p->run->net.device),
                              MARK_PARAMS + index));
    }
    return p->next != NULL ? p->next(p->next_arg, index) : DDP_OK;
}

/* Forward and backward of a shard; only the last one's times count. */
static ddp_status compute(ddpi_passes *p, ddp_reducer *reducer, bool last)
{
    ddp_model *model = p->run->net.model;
    ddp_stream *stream = ddp_device_main_stream(p->run->net.device);

    ddp_model_bind(model, ddp_reducer_params(reducer), ddp_reducer_grads(reducer));
    ddp_model_bind_running(model, NULL);
    p->watching = last;
    p->seen = 0;
    ddp_marks_clear(p->marks);
    if (last)
        DDP_TRY(ddp_marks_set(p->marks, stream, MARK_OTHER));
    DDP_TRY(ddp_model_forward(model, &p->input, p->loss));
    if (last)
        DDP_TRY(ddp_marks_set(p->marks, stream, MARK_FORWARD));
    DDP_TRY(ddp_model_backward(model));
    return last ? ddp_marks_set(p->marks, stream, MARK_TAIL) : DDP_OK;
}

static ddp_status with_sums(ddpi_passes *p, ddp_reducer *reducer)
{
    const int64_t shards = p->run->config.reducer.shards;
    ddp_reducer_times waited, behind;

    for (int64_t i = 0; i < shards; i++) {
        DDP_TRY(ddp_reducer_begin(reducer, i));
        DDP_TRY(compute(p, reducer, i + 1 == shards));
    }
    DDP_TRY(ddp_reducer_gather(reducer, &waited));
    DDP_TRY(ddp_reducer_collect(reducer, &behind));
    p->columns[COMM] = (double)(waited.comm_ns + behind.comm_ns) * 1e-9;
    p->columns[EXPOSED] = (double)(waited.exposed_ns + behind.exposed_ns) * 1e-9;
    return DDP_OK;
}

static ddp_status without_sums(ddpi_passes *p, ddp_reducer *reducer)
{
    ddp_param_table_begin(p->table);
    DDP_TRY(compute(p, reducer, true));
    return ddp_stream_sync(ddp_device_main_stream(p->run->net.device));
}

/* Into the columns. */
static ddp_status read_marks(ddpi_passes *p)
{
    double *ready = p->columns + MORE, clock = 0;

    memset(p->ns, 0, (MARK_PARAMS + (size_t)p->params) * sizeof *p->ns);
    DDP_TRY(ddp_marks_add(p->marks, p->ns, MARK_PARAMS + p->params));
    for (int i = 0; i < p->seen; i++) {
        clock += (double)p->ns[MARK_PARAMS + p->order[i]] * 1e-9;
        ready[p->order[i]] = clock;
    }
    p->columns[FORWARD] = (double)p->ns[MARK_FORWARD] * 1e-9;
    p->columns[TAIL] = (double)p->ns[MARK_TAIL] * 1e-9;
    return DDP_OK;
}

static ddp_status measure(ddpi_passes *p, ddp_reducer *reducer, bool sums, int count)
{
    const size_t columns = (size_t)p->params + MORE;

    for (int pass = -1; pass < count; pass++) {
        memset(p->columns, 0, columns * sizeof *p->columns);
        DDP_TRY(ddp_comm_barrier(p->run->comm));
        const int64_t start = ddp_now_ns();
        DDP_TRY(sums ? with_sums(p, reducer) : without_sums(p, reducer));
        p->columns[SECONDS] = seconds_since(start);
        DDP_TRY(read_marks(p));
        for (size_t c = 0; c < columns && pass >= 0; c++)
            p->samples[c * MAX_PASSES + (size_t)pass] = p->columns[c];
    }
    for (size_t c = 0; c < columns; c++)
        p->columns[c] = median(p->samples + c * MAX_PASSES, count);
    /* Whole steps are compared with each other: without what other programs have added. */
    p->columns[SECONDS] = p->samples[SECONDS * MAX_PASSES];
    return DDP_OK;
}

ddp_status ddpi_passes_run(ddpi_passes *p, ddp_reducer *reducer, bool sums, int count,
                           ddpi_pass_times *times)
{
    ddp_param_ready_fn fn;
    void *arg;

    DDP_ASSERT(count >= 1 && count <= MAX_PASSES);
    ddp_param_table_get_ready(p->table, &fn, &arg);
    p->next = sums ? fn : NULL;
    p->next_arg = arg;
    ddp_param_table_on_ready(p->table, on_ready, p);
    const ddp_status st = measure(p, reducer, sums, count);
    ddp_param_table_on_ready(p->table, fn, arg);
    DDP_TRY(st);
    DDP_TRY(ddp_comm_allreduce(p->run->comm, p->columns, (size_t)p->params + MORE, DDP_F64,
                               DDP_REDUCE_MAX, "times of passes"));
    memcpy(times->ready, p->columns + MORE, (size_t)p->params * sizeof *times->ready);
    times->forward = p->columns[FORWARD];
    times->backward = 0;
    /* Each column has a median and a rank of its own: the whole must fit its parts. */
    for (int i = 0; i < p->params; i++)
        times->backward = fmax(times->backward, times->ready[i] + p->columns[TAIL]);
    times->comm = p->columns[COMM];
    times->exposed = p->columns[EXPOSED];
    times->seconds = p->columns[SECONDS];
    return DDP_OK;
}

/* ---- updates ---- */

/* With a rate of 0; an optimizer of its own, so that no state is touched. */
static ddp_status update(ddpi_run *run, ddp_optim *optim, float *memory, size_t length,
                         double *seconds_out)
{
    enum { ROUNDS = 4 };
    ddp_stream *stream = ddp_device_main_stream(run->net.device);
    double *grad_sq = (double *)(void *)(memory + 2 * length);
    double best = INFINITY;

    ddp_optim_begin(optim, 0, 1);
    for (int i = 0; i < ROUNDS; i++) {
        const int64_t start = ddp_now_ns();
        DDP_TRY(ddp_optim_update(optim, stream, memory, memory + length, (ddp_range){0, length},
                                 grad_sq));
        DDP_TRY(ddp_stream_sync(stream));
        best = fmin(best, seconds_since(start));
    }
    *seconds_out = best / (double)(length * sizeof(float));
    return DDP_OK;
}

static ddp_status time_update(ddpi_run *run, double *seconds_out)
{
    const size_t flat = ddp_param_table_length(ddp_model_params(run->net.model)), most = 1 << 18;
    const size_t length = flat < most ? flat : most;
    const size_t bytes = 2 * length * sizeof(float) + DDP_ALIGN_BYTES;
    ddp_optim *optim = NULL;
    void *memory;

    DDP_TRY(ddp_device_alloc(run->net.device, bytes, &memory));
    ddp_status st = ddp_optim_create(&run->config.optim, run->net.device,
                                     ddp_model_params(run->net.model), &optim);
    *seconds_out = 0;
    /* One that measures first waits for all buckets. */
    if (st == DDP_OK && !ddp_optim_measures(optim))
        st = update(run, optim, memory, length, seconds_out);
    ddp_optim_destroy(optim);
    ddp_device_free(run->net.device, memory, bytes);
    return st;
}

ddp_status ddpi_buckets_time_update(ddpi_run *run, double *seconds_out)
{
    const bool waits = !run->config.reducer.update_early || run->config.loss_scale > 0;

    *seconds_out = 0;
    if (waits)
        return DDP_OK;
    DDP_TRY(ddpi_run_agree(run, time_update(run, seconds_out), "time the update"));
    return ddp_comm_allreduce(run->comm, seconds_out, 1, DDP_F64, DDP_REDUCE_MAX,
                              "time of an update");
}
