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
 * Where device memory is not the host's, each slot has its like there, and who has prepared a batch
 * also sends it up, on a stream for that. The device orders what follows: the copy waits for the
 * slot's `used`, which the consumer records behind the work on the batch before, and the main
 * stream for `uploaded`; the host slot is filled again once that is complete.
 *
 * Threads: one consumer (create, seek, next, destroy) and the workers. The monitor guards all
 * members under "guarded"; a slot's contents belong to the worker that took the ticket until
 * `ready` says so, then to the consumer. The upload stream has a lock of its own. Workers sleep
 * until the first seek or next, so that nothing is prepared for a place where the run does not
 * start. */
#include "ddp/loader.h"

#include <stdio.h>

#include "ddp/memory.h"
#include "ddp/spans.h"
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
    /* NULL without mixup, but for scratch, which some data sets need. */
    int32_t *labels2;
    float *mix;
    float *partner; /* one sample */
    float *scratch;
    ddp_batch given;            /* what the consumer sees: the same on the device */
    ddp_event *uploaded, *used; /* NULL where device memory is the host's */
    ddp_status status;
    int64_t ready; /* guarded: the ticket whose batch this is; NO_TICKET: none */
    char message[MESSAGE_BYTES];
} slot;

struct ddp_loader {
    ddp_loader_opts opts;
    ddp_dataset *dataset;
    ddp_device *device;
    int64_t steps, sample_count; /* steps of an epoch, elements of a sample */
    slot *slots;
    char *memory; /* the slots' inputs, labels, indices and mixup's, slot_bytes each */
    size_t memory_bytes, slot_bytes;
    char *device_memory; /* the same on the device; NULL where it is the host's */
    ddp_stream *upload;
    char *held; /* on the device: a slot's memory for each of a step's batches; NULL: not yet */
    ddp_monitor upload_lock; /* of the stream */
    bool upload_lock_made;
    float *images; /* the slots' partner and scratch */
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

/* Adds the samples' partners. first: position of the batch in the epoch. */
static ddp_status mix(const ddp_loader *loader, slot *dst, int64_t first)
{
    const ddp_sampler *sampler = &loader->opts.sampler;
    const ddp_batch *batch = &dst->batch;
    int64_t begin = batch->step * sampler->batch;
    int64_t count = ddp_sampler_step_count(sampler, batch->step);
    int64_t shift = ddp_mixup_shift(sampler->seed, batch->epoch, batch->step, count);
    for (int64_t i = 0; i < batch->count; i++) {
        int64_t index =
            ddp_sampler_index(sampler, batch->epoch, begin + (first - begin + i + shift) % count);
        ddp_transform_key key = {batch->epoch, dst->indices[i]};
        ddp_transform_dst partner = {dst->partner, &dst->labels2[i], dst->scratch};
        DDP_TRY(ddp_transform_fetch(loader->opts.transform, loader->dataset, batch->epoch, &index,
                                    1, &partner));
        float share = ddp_mixup_weight(sampler->seed, loader->opts.mixup, key);
        float *restrict x = dst->inputs + i * loader->sample_count;
        const float *restrict y = dst->partner;
        for (int64_t k = 0; k < loader->sample_count; k++)
            x[k] = share * x[k] + (1 - share) * y[k];
        dst->mix[i] = share;
    }
    return DDP_OK;
}

static ddp_status fill(const ddp_loader *loader, slot *dst, int64_t first)
{
    const ddp_batch *batch = &dst->batch;
    const ddp_transform_dst samples = {dst->inputs, dst->labels, dst->scratch};
    DDP_TRY(ddp_transform_fetch(loader->opts.transform, loader->dataset, batch->epoch, dst->indices,
                                batch->count, &samples));
    return loader->opts.mixup > 0 ? mix(loader, dst, first) : DDP_OK;
}

/* The device's pointer for one into the slots. */
static const void *on_device(const ddp_loader *loader, const void *host)
{
    return host == NULL ? NULL : loader->device_memory + ((const char *)host - loader->memory);
}

static ddp_status send_up(ddp_loader *loader, slot *src)
{
    void *dst = (void *)(uintptr_t)on_device(loader, src->inputs);
    ddp_monitor_lock(&loader->upload_lock);
    ddp_status st = ddp_stream_wait_event(loader->upload, src->used);
    if (st == DDP_OK)
        st = ddp_device_copy(loader->device, loader->upload, dst, src->inputs, loader->slot_bytes,
                             DDP_COPY_TO_DEVICE);
    if (st == DDP_OK)
        st = ddp_event_record(src->uploaded, loader->upload);
    ddp_monitor_unlock(&loader->upload_lock);
    return st;
}

static ddp_status upload(ddp_loader *loader, slot *src)
{
    const ddp_batch *batch = &src->batch;
    src->given = *batch;
    if (loader->device_memory == NULL)
        return DDP_OK;
    src->given.inputs = on_device(loader, batch->inputs);
    src->given.labels = on_device(loader, batch->labels);
    src->given.sample_ids = on_device(loader, batch->indices);
    src->given.labels2 = on_device(loader, batch->labels2);
    src->given.mix = on_device(loader, batch->mix);
    return send_up(loader, src);
}

/* The slot's last batch may still be on its way up. */
static ddp_status await_slot(const slot *dst)
{
    return dst->uploaded != NULL ? ddp_event_sync(dst->uploaded, DDP_NO_DEADLINE) : DDP_OK;
}

static void prepare(ddp_loader *loader, int64_t number, slot *dst)
{
    const ddp_loader_opts *opts = &loader->opts;
    int64_t step = number / opts->shard_count, first;
    const int64_t begin_ns = ddp_now_ns();
    ddp_batch *batch = &dst->batch;
    batch->epoch = step / loader->steps;
    batch->step = step % loader->steps;
    batch->shard = opts->first_shard + number % opts->shard_count;
    batch->count = ddp_sampler_shard(&opts->sampler, batch->step, batch->shard, &first);
    dst->status = await_slot(dst);
    ddp_sampler_indices(&opts->sampler, batch->epoch, first, batch->count, dst->indices);
    if (dst->status == DDP_OK)
        dst->status = fill(loader, dst, first);
    if (dst->status == DDP_OK)
        dst->status = upload(loader, dst);
    if (dst->status != DDP_OK)
        snprintf(dst->message, sizeof dst->message, "%s", ddp_status_message());
    ddp_spans_add(DDP_SPAN_LOAD, (int32_t)(number % opts->shard_count), step + 1, begin_ns,
                  ddp_now_ns(), batch->count * loader->sample_count * (int64_t)sizeof(float));
}

static slot *slot_of(const ddp_loader *loader, int64_t ticket)
{
    return &loader->slots[ticket % loader->opts.ring];
}

static void *work(void *arg)
{
    ddp_loader *loader = arg;
    ddp_spans_join("loader", DDP_SPANS_WORKER);
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
    ddp_spans_leave();
    return NULL;
}

/* ---- life ---- */

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
    if (!(opts->mixup >= 0))
        return DDP_FAIL(DDP_ERR_USAGE, "mixup with alpha %g, expected 0 or more", opts->mixup);
    if (opts->transform == NULL && info->variable)
        return DDP_FAIL(DDP_ERR_INTERNAL, "a data set whose images differ in size needs a "
                                          "transform");
    return DDP_OK;
}

static size_t padded(size_t bytes)
{
    return (bytes + DDP_ALIGN_BYTES - 1) / DDP_ALIGN_BYTES * DDP_ALIGN_BYTES;
}

/* Bytes of the parts of a slot that the device's host memory holds. */
typedef struct slot_bytes {
    size_t inputs, labels, indices, mix;
} slot_bytes;

static ddp_status size_slots(ddp_loader *loader, size_t largest, slot_bytes *bytes)
{
    size_t ring = (size_t)loader->opts.ring;
    if (__builtin_mul_overflow(largest, (size_t)loader->sample_count * sizeof(float),
                               &bytes->inputs) ||
        bytes->inputs > SIZE_MAX / 4 / ring)
        return DDP_FAIL(DDP_ERR_NOMEM, "%d batches of %zu samples are more than memory can hold",
                        loader->opts.ring, largest);
    bytes->inputs = padded(bytes->inputs);
    bytes->labels = padded(largest * sizeof(int32_t));
    bytes->indices = padded(largest * sizeof(int64_t));
    bytes->mix = loader->opts.mixup > 0 ? padded(largest * sizeof(float)) : 0;
    size_t label_arrays = loader->opts.mixup > 0 ? 2 : 1;
    loader->slot_bytes = bytes->inputs + label_arrays * bytes->labels + bytes->indices + bytes->mix;
    loader->memory_bytes = ring * loader->slot_bytes;
    return DDP_OK;
}

/* Takes the slot's part of *memory. */
static void place_slot(const ddp_loader *loader, const slot_bytes *bytes, char **memory, slot *dst)
{
    dst->inputs = (float *)(void *)*memory;
    *memory += bytes->inputs;
    dst->labels = (int32_t *)(void *)*memory;
    *memory += bytes->labels;
    dst->indices = (int64_t *)(void *)*memory;
    *memory += bytes->indices;
    if (loader->opts.mixup > 0) {
        dst->labels2 = (int32_t *)(void *)*memory;
        *memory += bytes->labels;
        dst->mix = (float *)(void *)*memory;
        *memory += bytes->mix;
    }
    dst->batch.inputs = dst->inputs;
    dst->batch.labels = dst->labels;
    dst->batch.indices = dst->batch.sample_ids = dst->indices;
    dst->batch.labels2 = dst->labels2;
    dst->batch.mix = dst->mix;
    dst->ready = NO_TICKET;
}

/* One image each for what some data sets and mixup need. */
static ddp_status make_images(ddp_loader *loader)
{
    size_t ring = (size_t)loader->opts.ring;
    size_t scratch = ddp_transform_scratch_count(loader->opts.transform, loader->dataset);
    size_t partner = loader->opts.mixup > 0 ? (size_t)loader->sample_count : 0;
    if (scratch + partner == 0)
        return DDP_OK;
    DDP_TRY(DDP_ALLOC(loader->images, ring * (scratch + partner)));
    for (size_t i = 0; i < ring; i++) {
        loader->slots[i].scratch = loader->images + i * (scratch + partner);
        loader->slots[i].partner = loader->slots[i].scratch + scratch;
    }
    return DDP_OK;
}

static ddp_status make_upload(ddp_loader *loader)
{
    void *memory;
    DDP_TRY(ddp_monitor_init(&loader->upload_lock));
    loader->upload_lock_made = true;
    DDP_TRY(ddp_device_alloc(loader->device, loader->memory_bytes, &memory));
    loader->device_memory = memory;
    DDP_TRY(ddp_stream_create(loader->device, "ddp-upload", &loader->upload));
    for (int i = 0; i < loader->opts.ring; i++) {
        DDP_TRY(ddp_event_create(loader->device, &loader->slots[i].uploaded));
        DDP_TRY(ddp_event_create(loader->device, &loader->slots[i].used));
    }
    return DDP_OK;
}

static ddp_status make_slots(ddp_loader *loader)
{
    const ddp_loader_opts *opts = &loader->opts;
    int64_t first;
    /* No shard is larger than the first of the first step. */
    size_t largest = (size_t)ddp_sampler_shard(&opts->sampler, 0, 0, &first);
    size_t ring = (size_t)opts->ring;
    slot_bytes bytes = {0};
    DDP_TRY(size_slots(loader, largest, &bytes));
    void *memory;
    DDP_TRY(ddp_device_host_alloc(loader->device, loader->memory_bytes, &memory));
    loader->memory = memory;
    DDP_TRY(DDP_ALLOC(loader->slots, ring));
    char *at = loader->memory;
    for (size_t i = 0; i < ring; i++)
        place_slot(loader, &bytes, &at, &loader->slots[i]);
    DDP_TRY(make_images(loader));
    return ddp_device_is_host(loader->device) ? DDP_OK : make_upload(loader);
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
    loader->sample_count = ddp_shape_count(
        opts->transform != NULL ? ddp_transform_shape(opts->transform) : &info->shape);

    ddp_status st;
    DDP_TRY_GOTO(st, make_slots(loader), err_destroy);
    DDP_TRY_GOTO(st, start_workers(loader), err_destroy);
    *loader_out = loader;
    return DDP_OK;
err_destroy:
    ddp_loader_destroy(loader);
    return st;
}

static size_t held_bytes(const ddp_loader *loader)
{
    return (size_t)loader->opts.shard_count * loader->slot_bytes;
}

static void destroy_upload(ddp_loader *loader)
{
    /* Copies end before what they read and write. */
    ddp_stream_destroy(loader->upload);
    for (int i = 0; loader->slots != NULL && i < loader->opts.ring; i++) {
        ddp_event_destroy(loader->slots[i].uploaded);
        ddp_event_destroy(loader->slots[i].used);
    }
    if (loader->device_memory != NULL)
        ddp_device_free(loader->device, loader->device_memory, loader->memory_bytes);
    if (loader->held != NULL)
        ddp_device_free(loader->device, loader->held, held_bytes(loader));
    if (loader->upload_lock_made)
        ddp_monitor_destroy(&loader->upload_lock);
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
    destroy_upload(loader);
    if (loader->memory != NULL)
        ddp_device_host_free(loader->device, loader->memory, loader->memory_bytes);
    ddp_free(loader->threads);
    ddp_free(loader->slots);
    ddp_free(loader->images);
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
    /* The batch that the consumer has may be at work. */
    if (loader->device_memory != NULL)
        DDP_TRY(ddp_stream_sync(ddp_device_main_stream(loader->device)));
    ddp_monitor_lock(&loader->monitor);
    restart(loader, start);
    ddp_monitor_unlock(&loader->monitor);
    return DDP_OK;
}

/* What the main stream was given so far works on the batch before, which now goes back. */
static ddp_status give_back(ddp_loader *loader)
{
    if (loader->device_memory == NULL || loader->consumer == 0)
        return DDP_OK;
    return ddp_event_record(slot_of(loader, loader->consumer - 1)->used,
                            ddp_device_main_stream(loader->device));
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
    DDP_TRY(give_back(loader));
    slot *src = wait_for_slot(loader);
    if (loader->opts.workers == 0)
        prepare(loader, loader->start + loader->consumer, src);
    if (src->status != DDP_OK)
        return ddp_status_set(src->status, NULL, 0, "%s", src->message);
    if (src->uploaded != NULL)
        DDP_TRY(ddp_stream_wait_event(ddp_device_main_stream(loader->device), src->uploaded));
    src->given.wait_ns = ddp_now_ns() - begin_ns;
    loader->consumer++;
    *batch_out = &src->given;
    return DDP_OK;
}

static const void *in_held(const char *held, const char *slot_memory, const void *device)
{
    return device == NULL ? NULL : held + ((const char *)device - slot_memory);
}

ddp_status ddp_loader_hold(ddp_loader *loader, int64_t shard, ddp_batch *held_out)
{
    DDP_ASSERT(loader->device_memory != NULL && loader->consumer > 0);
    DDP_ASSERT(shard >= 0 && shard < loader->opts.shard_count);
    void *memory;
    if (loader->held == NULL) {
        DDP_TRY(ddp_device_alloc(loader->device, held_bytes(loader), &memory));
        loader->held = memory;
    }
    const ddp_batch *given = &slot_of(loader, loader->consumer - 1)->given;
    const char *from = (const char *)given->inputs;
    char *to = loader->held + (size_t)shard * loader->slot_bytes;
    *held_out = *given;
    held_out->inputs = in_held(to, from, given->inputs);
    held_out->labels = in_held(to, from, given->labels);
    held_out->sample_ids = in_held(to, from, given->sample_ids);
    held_out->labels2 = in_held(to, from, given->labels2);
    held_out->mix = in_held(to, from, given->mix);
    return ddp_device_copy(loader->device, ddp_device_main_stream(loader->device), to, from,
                           loader->slot_bytes, DDP_COPY_ON_DEVICE);
}
