/* workers.c - decoding ahead.
 *
 * Input i has the slot i modulo the number of slots; a worker takes the lowest input that nobody
 * has taken and whose slot is free, that is, whose predecessor there was handed over. The taker
 * waits for the next slot in order. One monitor guards the counters and the slots' states; a slot's
 * result belongs to its worker until it is ready, then to the taker. */
#include "tools/pack/workers.h"

#include <sched.h>
#include <stdio.h>

#include "ddp/memory.h"
#include "ddp/thread.h"

enum { MAX_WORKERS = 256, SLOTS_EACH = 2 };

typedef struct slot {
    bool ready;
    ddpi_result result;
} slot;

struct ddpi_workers {
    const ddpi_inputs *inputs;
    const ddpi_pack_opts *opts;
    ddp_thread threads[MAX_WORKERS];
    int thread_count, slot_count;
    ddp_monitor monitor;
    slot *slots;
    int taken;   /* inputs below it are decoded or being decoded */
    int emptied; /* inputs below it were handed over */
    bool stop;
};

static ddp_status decode(const ddpi_workers *w, int index, ddpi_picture *picture)
{
    const ddpi_input *file = &w->inputs->files[index];
    char *data;
    size_t bytes;
    if (file->problem != NULL)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s", file->problem);
    DDP_TRY(ddpi_input_read(w->inputs, index, &data, &bytes));
    ddp_status st = ddpi_picture_decode((const uint8_t *)data, bytes, picture);
    ddp_free(data);
    DDP_TRY(st);
    if (w->opts->size > 0)
        st = ddpi_picture_scale(picture, w->opts->size);
    if (st == DDP_OK && w->opts->channels == 1)
        ddpi_picture_to_grey(picture);
    if (st != DDP_OK)
        ddpi_picture_free(picture);
    return st;
}

/* The next input to decode; -1 when there is none any more. */
static int take(ddpi_workers *w)
{
    int index = -1;
    ddp_monitor_lock(&w->monitor);
    while (!w->stop && w->taken < w->inputs->count && w->taken >= w->emptied + w->slot_count)
        (void)ddp_monitor_wait(&w->monitor, DDP_NO_DEADLINE);
    if (!w->stop && w->taken < w->inputs->count)
        index = w->taken++;
    ddp_monitor_unlock(&w->monitor);
    return index;
}

static void *work(void *arg)
{
    ddpi_workers *w = arg;
    for (int index; (index = take(w)) >= 0;) {
        slot *s = &w->slots[index % w->slot_count];
        s->result = (ddpi_result){.status = DDP_OK};
        s->result.status = decode(w, index, &s->result.picture);
        if (s->result.status != DDP_OK)
            snprintf(s->result.reason, sizeof s->result.reason, "%s", ddp_status_message());
        ddp_monitor_lock(&w->monitor);
        s->ready = true;
        ddp_monitor_wake_all(&w->monitor);
        ddp_monitor_unlock(&w->monitor);
    }
    return NULL;
}

static int processors(void)
{
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return count > MAX_WORKERS ? MAX_WORKERS : count;
}

static ddp_status start_threads(ddpi_workers *w, int count)
{
    for (int i = 0; i < count; i++) {
        char name[16];
        snprintf(name, sizeof name, "decode-%d", i);
        DDP_TRY(ddp_thread_start(&w->threads[i], name, work, w));
        w->thread_count = i + 1;
    }
    return DDP_OK;
}

ddp_status ddpi_workers_start(const ddpi_inputs *inputs, const ddpi_pack_opts *opts, int first,
                              ddpi_workers **workers_out)
{
    ddpi_workers *w;
    ddp_status st;
    int count = opts->workers > 0 ? (int)opts->workers : processors();
    DDP_ASSERT(count >= 1 && count <= MAX_WORKERS);
    DDP_TRY(DDP_ALLOC(w, 1));
    w->inputs = inputs;
    w->opts = opts;
    w->taken = w->emptied = first;
    w->slot_count = count * SLOTS_EACH + 1;
    DDP_TRY_GOTO(st, DDP_ALLOC(w->slots, (size_t)w->slot_count), err_free);
    DDP_TRY_GOTO(st, ddp_monitor_init(&w->monitor), err_free);
    st = start_threads(w, count);
    if (st != DDP_OK) {
        ddpi_workers_stop(w);
        return st;
    }
    *workers_out = w;
    return DDP_OK;
err_free:
    ddp_free(w->slots);
    ddp_free(w);
    return st;
}

void ddpi_workers_next(ddpi_workers *workers, ddpi_result *result_out)
{
    slot *s = &workers->slots[workers->emptied % workers->slot_count];
    DDP_ASSERT(workers->emptied < workers->inputs->count);
    ddp_monitor_lock(&workers->monitor);
    while (!s->ready)
        (void)ddp_monitor_wait(&workers->monitor, DDP_NO_DEADLINE);
    *result_out = s->result;
    s->result.picture = (ddpi_picture){0};
    s->ready = false;
    workers->emptied++;
    ddp_monitor_wake_all(&workers->monitor);
    ddp_monitor_unlock(&workers->monitor);
}

void ddpi_workers_stop(ddpi_workers *workers)
{
    if (workers == NULL)
        return;
    ddp_monitor_lock(&workers->monitor);
    workers->stop = true;
    ddp_monitor_wake_all(&workers->monitor);
    ddp_monitor_unlock(&workers->monitor);
    for (int i = 0; i < workers->thread_count; i++)
        ddp_thread_join(&workers->threads[i]);
    for (int i = 0; i < workers->slot_count; i++)
        ddpi_picture_free(&workers->slots[i].result.picture);
    ddp_monitor_destroy(&workers->monitor);
    ddp_free(workers->slots);
    ddp_free(workers);
}
