/* loader.c - batches prepared ahead of the step, in an order that the number of workers does not
 * change.
 *
 * Batches are numbered by tickets from the start given by seek: ticket t is (epoch, step, shard)
 * number start + t. Workers take tickets in order and may finish them in any; ticket t goes to slot
 * t % ring, and the consumer takes the slots in ticket order. A ticket may be taken once the batch
 * that had its slot before was given back, which the consumer's next call does. All memory comes
 * from create: seek and next allocate nothing.
 *
 * A batch that fails keeps its status and message in its slot; the consumer gets them in place of
 * that batch, also when it asks again, until it seeks.
 *
 * Threads: one consumer (create, seek, next, destroy) and the workers. The monitor guards all
 * members under "guarded"; a slot's contents belong to the worker that took the ticket until
 * `ready` says so, then to the consumer. Workers sleep until the first seek or next, so that
 * nothing is prepared for a place where the run does not start. */
#include "ddp/loader.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ddp/memory.h"
#include "ddp/thread.h"

#define NO_TICKET     (-1)
#define MAX_WORKERS   256
#define MAX_RING      4096
#define MESSAGE_BYTES 1024

typedef struct slot {
    ddp_batch batch;
    float *inputs;
    int32_t *labels;
    int64_t *indices;
    ddp_status status;
    int64_t ready; /* guarded: the ticket whose batch this is; NO_TICKET: none */
    char message[MESSAGE_BYTES];
} slot;

struct ddp_loader {
    ddp_loader_opts opts;
    ddp_dataset *dataset;
    ddp_device *device;
    int64_t steps, sample_count; /* steps of an epoch, elements of a sample */
    float *mean, *deviation;     /* NULL: none */
    slot *slots;
    char *memory; /* the slots' inputs and labels */
    size_t memory_bytes;
    int64_t *indices;
    ddp_thread *threads;
    ddp_monitor monitor;
    bool monitor_made;

    /* guarded */
    bool started, stop;
    int busy;         /* workers within prepare() */
    int64_t start;    /* number of the batch with ticket 0 */
    int64_t next;     /* ticket that the next free worker takes */
    int64_t released; /* tickets below it, plus the ring's length, may be taken */

    int64_t consumer; /* the consumer's own: ticket that it gets next */
};

/* ---- one batch ---- */

static void normalize(const ddp_loader *loader, float *inputs, int64_t count)
{
    int64_t channels = loader->opts.channels, pixels = loader->sample_count / channels;
    for (int64_t i = 0; i < count * channels; i++) {
        float mean = loader->mean[i % channels], deviation = loader->deviation[i % channels];
        float *plane = inputs + i * pixels;
        for (int64_t p = 0; p < pixels; p++)
            plane[p] = (plane[p] - mean) / deviation;
    }
}

static void prepare(ddp_loader *loader, int64_t number, slot *dst)
{
    const ddp_loader_opts *opts = &loader->opts;
    int64_t step = number / opts->shard_count, first;
    ddp_batch *batch = &dst->batch;
    batch->epoch = step / loader->steps;
    batch->step = step % loader->steps;
    batch->shard = opts->first_shard + number % opts->shard_count;
    batch->count = ddp_sampler_shard(&opts->sampler, batch->step, batch->shard, &first);
    ddp_sampler_indices(&opts->sampler, batch->epoch, first, batch->count, dst->indices);
    dst->status =
        ddp_dataset_fetch(loader->dataset, dst->indices, batch->count, dst->inputs, dst->labels);
    if (dst->status != DDP_OK) {
        snprintf(dst->message, sizeof dst->message, "%s", ddp_status_message());
        return;
    }
    if (loader->mean != NULL)
        normalize(loader, dst->inputs, batch->count);
}

static slot *slot_of(const ddp_loader *loader, int64_t ticket)
{
    return &loader->slots[ticket % loader->opts.ring];
}

static void *work(void *arg)
{
    ddp_loader *loader = arg;
    ddp_monitor_lock(&loader->monitor);
    for (;;) {
        while (!loader->stop &&
               !(loader->started && loader->next < loader->released + loader->opts.ring))
            (void)ddp_monitor_wait(&loader->monitor, DDP_NO_DEADLINE);
        if (loader->stop)
            break;
        int64_t ticket = loader->next++, number = loader->start + ticket;
        slot *dst = slot_of(loader, ticket);
        loader->busy++;
        ddp_monitor_unlock(&loader->monitor);
        prepare(loader, number, dst);
        ddp_monitor_lock(&loader->monitor);
        loader->busy--;
        dst->ready = ticket;
        ddp_monitor_wake_all(&loader->monitor);
    }
    ddp_monitor_unlock(&loader->monitor);
    return NULL;
}

/* ---- life ---- */

static ddp_status check_normalization(const ddp_loader_opts *opts, const ddp_dataset_info *info)
{
    if (opts->mean == NULL && opts->deviation == NULL)
        return DDP_OK;
    if (opts->mean == NULL || opts->deviation == NULL || opts->channels != info->shape.dims[0])
        return DDP_FAIL(DDP_ERR_USAGE,
                        "normalization needs a mean and a deviation for each channel: given for %d "
                        "channels, the data set has %lld",
                        opts->channels, (long long)info->shape.dims[0]);
    for (int c = 0; c < opts->channels; c++)
        if (!isfinite(opts->mean[c]) || !isfinite(opts->deviation[c]) || opts->deviation[c] <= 0)
            return DDP_FAIL(DDP_ERR_USAGE,
                            "normalization of channel %d: mean %g, deviation %g; expected finite "
                            "numbers and a deviation above 0",
                            c, (double)opts->mean[c], (double)opts->deviation[c]);
    return DDP_OK;
}

static ddp_status check_opts(const ddp_loader_opts *opts, const ddp_dataset_info *info)
{
    DDP_TRY(ddp_sampler_check(&opts->sampler));
    if (opts->sampler.size != info->count)
        return DDP_FAIL(DDP_ERR_INTERNAL, "the sampler is for %lld samples, the data set has %lld",
                        (long long)opts->sampler.size, (long long)info->count);
    if (opts->shard_count < 1 || opts->first_shard < 0 ||
        opts->shard_count > opts->sampler.shards - opts->first_shard)
        return DDP_FAIL(DDP_ERR_INTERNAL, "logical shards %lld to %lld asked for, a step has %lld",
                        (long long)opts->first_shard,
                        (long long)(opts->first_shard + opts->shard_count - 1),
                        (long long)opts->sampler.shards);
    if (opts->workers < 0 || opts->workers > MAX_WORKERS)
        return DDP_FAIL(DDP_ERR_USAGE, "%d loader workers, expected 0 to %d", opts->workers,
                        MAX_WORKERS);
    if (opts->ring < 2 || opts->ring > MAX_RING)
        return DDP_FAIL(DDP_ERR_USAGE, "%d batches to keep ready, expected 2 to %d", opts->ring,
                        MAX_RING);
    return check_normalization(opts, info);
}

static size_t padded(size_t bytes)
{
    return (bytes + DDP_ALIGN_BYTES - 1) / DDP_ALIGN_BYTES * DDP_ALIGN_BYTES;
}

static ddp_status make_slots(ddp_loader *loader)
{
    const ddp_loader_opts *opts = &loader->opts;
    int64_t first;
    /* No shard is larger than the first of the first step. */
    size_t largest = (size_t)ddp_sampler_shard(&opts->sampler, 0, 0, &first);
    size_t ring = (size_t)opts->ring, input_bytes, label_bytes;
    if (__builtin_mul_overflow(largest, (size_t)loader->sample_count * sizeof(float),
                               &input_bytes) ||
        input_bytes > SIZE_MAX / 4 / ring)
        return DDP_FAIL(DDP_ERR_NOMEM, "%d batches of %zu samples are more than memory can hold",
                        opts->ring, largest);
    input_bytes = padded(input_bytes);
    label_bytes = padded(largest * sizeof(int32_t));
    loader->memory_bytes = ring * (input_bytes + label_bytes);
    void *memory;
    DDP_TRY(ddp_device_host_alloc(loader->device, loader->memory_bytes, &memory));
    loader->memory = memory;
    DDP_TRY(DDP_ALLOC(loader->indices, ring * largest));
    DDP_TRY(DDP_ALLOC(loader->slots, ring));
    for (size_t i = 0; i < ring; i++) {
        slot *dst = &loader->slots[i];
        dst->inputs = (float *)(void *)(loader->memory + i * (input_bytes + label_bytes));
        dst->labels = (int32_t *)(void *)((char *)dst->inputs + input_bytes);
        dst->indices = loader->indices + i * largest;
        dst->batch.inputs = dst->inputs;
        dst->batch.labels = dst->labels;
        dst->batch.indices = dst->indices;
        dst->ready = NO_TICKET;
    }
    return DDP_OK;
}

static ddp_status copy_normalization(ddp_loader *loader)
{
    size_t channels = (size_t)loader->opts.channels;
    if (loader->opts.mean == NULL)
        return DDP_OK;
    DDP_TRY(DDP_ALLOC(loader->mean, channels));
    DDP_TRY(DDP_ALLOC(loader->deviation, channels));
    memcpy(loader->mean, loader->opts.mean, channels * sizeof(float));
    memcpy(loader->deviation, loader->opts.deviation, channels * sizeof(float));
    return DDP_OK;
}

static ddp_status start_workers(ddp_loader *loader)
{
    int workers = loader->opts.workers;
    DDP_TRY(ddp_monitor_init(&loader->monitor));
    loader->monitor_made = true;
    DDP_TRY(DDP_ALLOC(loader->threads, (size_t)workers));
    for (int i = 0; i < workers; i++) {
        char name[16];
        snprintf(name, sizeof name, "loader%u", (unsigned)i % 1000u);
        DDP_TRY(ddp_thread_start(&loader->threads[i], name, work, loader));
    }
    return DDP_OK;
}

ddp_status ddp_loader_create(const ddp_loader_opts *opts, ddp_dataset *dataset, ddp_device *device,
                             ddp_loader **loader_out)
{
    const ddp_dataset_info *info = ddp_dataset_get_info(dataset);
    ddp_loader *loader;
    DDP_TRY(check_opts(opts, info));
    DDP_TRY(DDP_ALLOC(loader, 1));
    loader->opts = *opts;
    loader->dataset = dataset;
    loader->device = device;
    loader->steps = ddp_sampler_steps(&opts->sampler);
    loader->sample_count = ddp_shape_count(&info->shape);

    ddp_status st;
    DDP_TRY_GOTO(st, copy_normalization(loader), err_destroy);
    DDP_TRY_GOTO(st, make_slots(loader), err_destroy);
    DDP_TRY_GOTO(st, start_workers(loader), err_destroy);
    *loader_out = loader;
    return DDP_OK;
err_destroy:
    ddp_loader_destroy(loader);
    return st;
}

void ddp_loader_destroy(ddp_loader *loader)
{
    if (loader == NULL)
        return;
    if (loader->monitor_made) {
        ddp_monitor_lock(&loader->monitor);
        loader->stop = true;
        ddp_monitor_wake_all(&loader->monitor);
        ddp_monitor_unlock(&loader->monitor);
        for (int i = 0; loader->threads != NULL && i < loader->opts.workers; i++)
            ddp_thread_join(&loader->threads[i]);
        ddp_monitor_destroy(&loader->monitor);
    }
    if (loader->memory != NULL)
        ddp_device_host_free(loader->device, loader->memory, loader->memory_bytes);
    ddp_free(loader->threads);
    ddp_free(loader->slots);
    ddp_free(loader->indices);
    ddp_free(loader->mean);
    ddp_free(loader->deviation);
    ddp_free(loader);
}

/* ---- the consumer ---- */

/* Under the lock. Workers that are within a batch of the old walk finish it first: their slots are
 * still theirs. */
static void restart(ddp_loader *loader, int64_t start)
{
    loader->started = false;
    while (loader->busy > 0)
        (void)ddp_monitor_wait(&loader->monitor, DDP_NO_DEADLINE);
    for (int i = 0; i < loader->opts.ring; i++)
        loader->slots[i].ready = NO_TICKET;
    loader->start = start;
    loader->next = loader->consumer = loader->released = 0;
    loader->started = true;
    ddp_monitor_wake_all(&loader->monitor);
}

ddp_status ddp_loader_seek(ddp_loader *loader, int64_t epoch, int64_t step)
{
    int64_t shards = loader->opts.shard_count, start;
    /* The end of an epoch is the beginning of the next. */
    if (epoch < 0 || step < 0 || step > loader->steps ||
        __builtin_mul_overflow(epoch, loader->steps, &start) ||
        __builtin_add_overflow(start, step, &start) ||
        __builtin_mul_overflow(start, shards, &start))
        return DDP_FAIL(DDP_ERR_INTERNAL,
                        "the loader cannot start at epoch %lld, step %lld of %lld",
                        (long long)epoch, (long long)step, (long long)loader->steps);
    ddp_monitor_lock(&loader->monitor);
    restart(loader, start);
    ddp_monitor_unlock(&loader->monitor);
    return DDP_OK;
}

static slot *wait_for_slot(ddp_loader *loader)
{
    ddp_monitor_lock(&loader->monitor);
    if (!loader->started)
        restart(loader, 0);
    int64_t ticket = loader->consumer;
    slot *src = slot_of(loader, ticket);
    if (loader->released != ticket) {
        loader->released = ticket;
        ddp_monitor_wake_all(&loader->monitor);
    }
    while (loader->opts.workers > 0 && src->ready != ticket)
        (void)ddp_monitor_wait(&loader->monitor, DDP_NO_DEADLINE);
    ddp_monitor_unlock(&loader->monitor);
    return src;
}

ddp_status ddp_loader_next(ddp_loader *loader, const ddp_batch **batch_out)
{
    int64_t begin_ns = ddp_now_ns();
    slot *src = wait_for_slot(loader);
    if (loader->opts.workers == 0)
        prepare(loader, loader->start + loader->consumer, src);
    if (src->status != DDP_OK)
        return ddp_status_set(src->status, NULL, 0, "%s", src->message);
    src->batch.wait_ns = ddp_now_ns() - begin_ns;
    loader->consumer++;
    *batch_out = &src->batch;
    return DDP_OK;
}
