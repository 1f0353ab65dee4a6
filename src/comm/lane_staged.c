/* lane_staged.c - collectives on any device's memory, by way of host memory and the engine.
 *
 * A work goes to the engine, where it waits for its turn. There it is cut into chunks, and three
 * buffers of pinned memory take turns: while a chunk goes through the ranks, by the same algorithms
 * as host memory, the next one is copied down and the one before is copied up, each on a stream of
 * its own. A work is done when its last copy is, so to join it is to wait for it.
 *
 * Threads: submit records an event of the work's stream in the rank's thread, and takes one of a
 * fixed number of them; the engine's thread does all else and gives the event back by counting
 * `finished`, an atomic. It polls the device's events, and between looks for failures and deadlines
 * as it does while it waits for messages.
 *
 * The direct lane is the same but for the buffers: messages are given device memory itself
 * (lane_direct.c). */
#include "comm/lane_staged.h"

#include <stdio.h>

#include "comm/comm_impl.h"
#include "comm/lane_direct.h"
#include "ddp/memory.h"
#include "ddp/thread.h"

#define CHUNK_BYTES ((size_t)4 << 20)
#define NS_PER_MS   ((int64_t)1000000)
/* For copies that are under way when their work fails. */
#define DRAIN_NS (500 * NS_PER_MS)
#define LOOK_NS  (NS_PER_MS / 20)

enum { BUFFERS = 3, AHEAD = BUFFERS - 1, WORKS = 64 };

typedef struct buffer {
    char *memory;
    ddp_event *down, *up; /* its last copies from and to the device */
} buffer;

typedef struct staged_lane {
    ddpi_lane base;
    ddp_stream *down, *up;
    buffer buffers[BUFFERS];
    ddpi_direct *direct;     /* NULL: works go through the buffers */
    ddp_event *ready[WORKS]; /* of the work's stream, from submit to the end of the work */
    uint64_t submitted;
    uint64_t finished; /* __atomic */
} staged_lane;

/* A work on its way through the buffers. */
typedef struct passage {
    staged_lane *lane;
    ddpi_algo *algo;
    ddp_work *work;
    bool loads, stores; /* what this rank has, or gets */
    size_t item_bytes;
    size_t chunk, count; /* elements of a chunk; chunks */
} passage;

static staged_lane *staged_of(ddpi_lane *lane)
{
    return (staged_lane *)lane;
}

/* ---- in the engine's thread ---- */

static ddp_range chunk_range(const passage *p, size_t index)
{
    const size_t lo = index * p->chunk, left = p->work->coll.count - lo;

    return (ddp_range){lo, lo + (left < p->chunk ? left : p->chunk)};
}

static char *device_at(const passage *p, size_t element)
{
    return (char *)p->work->coll.buf + element * p->item_bytes;
}

/* Starts to copy a chunk to its buffer, whose last contents must have left before. */
static ddp_status load(const passage *p, size_t index)
{
    staged_lane *lane = p->lane;
    const buffer *b = &lane->buffers[index % BUFFERS];

    if (!p->loads || index >= p->count)
        return DDP_OK;
    const ddp_range range = chunk_range(p, index);
    DDP_TRY(ddp_stream_wait_event(lane->down, b->up));
    DDP_TRY(ddp_device_copy(lane->base.device, lane->down, b->memory, device_at(p, range.lo),
                            (range.hi - range.lo) * p->item_bytes, DDP_COPY_TO_HOST));
    return ddp_event_record(b->down, lane->down);
}

static ddp_status store(const passage *p, size_t index)
{
    staged_lane *lane = p->lane;
    const buffer *b = &lane->buffers[index % BUFFERS];

    if (!p->stores)
        return DDP_OK;
    const ddp_range range = chunk_range(p, index);
    DDP_TRY(ddp_device_copy(lane->base.device, lane->up, device_at(p, range.lo), b->memory,
                            (range.hi - range.lo) * p->item_bytes, DDP_COPY_TO_DEVICE));
    return ddp_event_record(b->up, lane->up);
}

/* Takes a chunk in its buffer through the ranks. */
static ddp_status exchange(const passage *p, size_t index)
{
    const buffer *b = &p->lane->buffers[index % BUFFERS];
    const ddp_range range = chunk_range(p, index);
    ddp_work piece = *p->work;

    /* Who does not load must not write into what is still on its way up. */
    DDP_TRY(ddpi_algo_await(p->algo, p->loads ? b->down : b->up));
    if (piece.coll.kind == DDP_COLL_REDUCE_OWNED) /* all of it is copied up */
        piece.coll.kind = DDP_COLL_ALLREDUCE;
    piece.coll.buf = b->memory;
    piece.coll.count = range.hi - range.lo;
    p->algo->work = &piece;
    const ddp_status status = ddpi_algo_run(p->algo, p->lane->base.comm->opts.allreduce);
    p->algo->work = p->work;
    p->work->start_ns = piece.start_ns;
    return status;
}

static ddp_status run_chunks(const passage *p, ddp_event *ready)
{
    /* Both directions: what the stream was given before may still read or write the buffer. */
    DDP_TRY(ddp_stream_wait_event(p->lane->down, ready));
    DDP_TRY(ddp_stream_wait_event(p->lane->up, ready));
    for (size_t i = 0; i < AHEAD; i++)
        DDP_TRY(load(p, i));
    for (size_t i = 0; i < p->count; i++) {
        DDP_TRY(exchange(p, i));
        DDP_TRY(store(p, i));
        DDP_TRY(load(p, i + AHEAD));
    }
    for (size_t i = 0; i < BUFFERS; i++)
        DDP_TRY(ddpi_algo_await(p->algo, p->lane->buffers[i].up));
    return ddpi_algo_await(p->algo, ready);
}

static ddp_status run_direct(const passage *p, ddp_event *ready)
{
    DDP_TRY(ddpi_algo_await(p->algo, ready));
    return ddpi_direct_run(p->lane->direct, p->algo, p->lane->base.comm->opts.allreduce);
}

/* The caller may free its buffers once a work has failed, so copies must have come to an end. */
static void drain(const staged_lane *lane)
{
    const int64_t until_ns = ddp_now_ns() + DRAIN_NS;

    for (int i = 0; i < BUFFERS; i++) {
        (void)!ddp_event_sync(lane->buffers[i].down, until_ns);
        (void)!ddp_event_sync(lane->buffers[i].up, until_ns);
    }
}

ddp_status ddpi_lane_staged_run(ddpi_lane *base, ddpi_algo *algo)
{
    staged_lane *lane = staged_of(base);
    ddp_work *work = algo->work;
    const ddp_coll *coll = &work->coll;
    const bool is_root = algo->rank == coll->root;
    passage p = {.lane = lane,
                 .algo = algo,
                 .work = work,
                 .loads = coll->kind != DDP_COLL_BROADCAST || is_root,
                 .stores = coll->kind == DDP_COLL_REDUCE      ? is_root
                           : coll->kind == DDP_COLL_BROADCAST ? !is_root
                                                              : true,
                 .item_bytes = ddp_dtype_bytes(coll->dtype)};

    p.chunk = CHUNK_BYTES / p.item_bytes;
    p.count = (coll->count + p.chunk - 1) / p.chunk;
    const ddp_status status = lane->direct != NULL ? run_direct(&p, lane->ready[work->lane_slot])
                                                   : run_chunks(&p, lane->ready[work->lane_slot]);
    if (status != DDP_OK) {
        /* The message of the first failure is the one to keep. */
        char message[sizeof work->message];
        snprintf(message, sizeof message, "%s", ddp_status_message());
        drain(lane);
        (void)!ddp_status_set(status, NULL, 0, "%s", message);
    }
    __atomic_fetch_add(&lane->finished, 1, __ATOMIC_RELEASE);
    return status;
}

/* ---- in the rank's thread ---- */

/* While the engine has as many works as there are events, the caller waits for the oldest. */
static ddp_status wait_for_slot(staged_lane *lane)
{
    while (lane->submitted - __atomic_load_n(&lane->finished, __ATOMIC_ACQUIRE) == WORKS) {
        if (ddpi_comm_failed(lane->base.comm))
            return ddpi_comm_cause(lane->base.comm);
        ddp_sleep_ns(LOOK_NS);
    }
    return DDP_OK;
}

static ddp_status submit(ddpi_lane *base, ddp_work *work)
{
    staged_lane *lane = staged_of(base);

    DDP_TRY(wait_for_slot(lane));
    work->lane_slot = (int)(lane->submitted % WORKS);
    DDP_TRY(ddp_event_record(lane->ready[work->lane_slot], work->coll.stream));
    lane->submitted++;
    work->stage = DDPI_ROUTE_ENGINE;
    ddpi_engine_submit(base->comm->engine, work);
    return DDP_OK;
}

static ddp_status poll_work(ddpi_lane *base, ddp_work *work, bool *done_out)
{
    (void)base;
    *done_out = __atomic_load_n(&work->done, __ATOMIC_ACQUIRE) != 0;
    return DDP_OK;
}

static ddp_status join(ddpi_lane *base, ddp_work *work, ddp_stream *stream)
{
    (void)base;
    (void)stream;
    return ddp_work_wait(work);
}

static ddp_status mem_alloc(ddpi_lane *base, size_t bytes, void **memory_out)
{
    return ddp_device_alloc(base->device, bytes, memory_out);
}

/* Copies of a work that has failed may still be under way. */
static void mem_free(ddpi_lane *base, void *memory, size_t bytes)
{
    (void)!ddp_stream_sync(staged_of(base)->down);
    (void)!ddp_stream_sync(staged_of(base)->up);
    ddp_device_free(base->device, memory, bytes);
}

/* The engine drops its work by itself. */
static void abort_works(ddpi_lane *base)
{
    (void)base;
}

static void close_lane(ddpi_lane *base)
{
    staged_lane *lane = staged_of(base);

    ddpi_direct_destroy(lane->direct);
    ddp_stream_destroy(lane->down);
    ddp_stream_destroy(lane->up);
    for (int i = 0; i < WORKS; i++)
        ddp_event_destroy(lane->ready[i]);
    for (int i = 0; i < BUFFERS; i++) {
        ddp_event_destroy(lane->buffers[i].down);
        ddp_event_destroy(lane->buffers[i].up);
        ddp_device_host_free(base->device, lane->buffers[i].memory, CHUNK_BYTES);
    }
    ddp_free(lane);
}

static ddp_status open_parts(staged_lane *lane)
{
    ddp_device *device = lane->base.device;

    DDP_TRY(ddp_stream_create(device, "ddp-down", &lane->down));
    DDP_TRY(ddp_stream_create(device, "ddp-up", &lane->up));
    for (int i = 0; i < WORKS; i++)
        DDP_TRY(ddp_event_create(device, &lane->ready[i]));
    for (int i = 0; i < BUFFERS; i++) {
        void *memory;
        DDP_TRY(ddp_event_create(device, &lane->buffers[i].down));
        DDP_TRY(ddp_event_create(device, &lane->buffers[i].up));
        DDP_TRY(ddp_device_host_alloc(device, CHUNK_BYTES, &memory));
        lane->buffers[i].memory = memory;
    }
    return DDP_OK;
}

static ddp_status open_with(const ddp_lane_ops *ops, ddp_comm *comm, ddp_device *device,
                            ddpi_lane **lane_out)
{
    staged_lane *lane;

    DDP_TRY(DDP_ALLOC(lane, 1));
    lane->base = (ddpi_lane){.ops = ops, .comm = comm, .device = device};
    ddp_status status = open_parts(lane);
    if (status == DDP_OK && ops == ddp_lane_direct())
        status = ddpi_direct_create(device, &lane->direct);
    if (status != DDP_OK) {
        close_lane(&lane->base);
        return status;
    }
    *lane_out = &lane->base;
    return DDP_OK;
}

/* Of either lane the algorithms' order of additions is always the same. */
static ddp_status open_staged(ddp_comm *comm, ddp_device *device, const ddp_lane_opts *opts,
                              ddpi_lane **lane_out)
{
    (void)opts;
    return open_with(ddp_lane_staged(), comm, device, lane_out);
}

static ddp_status open_direct(ddp_comm *comm, ddp_device *device, const ddp_lane_opts *opts,
                              ddpi_lane **lane_out)
{
    (void)opts;
    return open_with(ddp_lane_direct(), comm, device, lane_out);
}

#define OPS(lane_name, parts, open_fn)                                                             \
    {                                                                                              \
        .name = (lane_name), .max_parts = (parts), .open = (open_fn), .mem_alloc = mem_alloc,      \
        .mem_free = mem_free, .submit = submit, .poll = poll_work, .join = join,                   \
        .abort = abort_works, .close = close_lane                                                  \
    }

const ddp_lane_ops *ddp_lane_staged(void)
{
    static const ddp_lane_ops ops = OPS("staged", 1, open_staged);
    return &ops;
}

const ddp_lane_ops *ddp_lane_direct(void)
{
    static const ddp_lane_ops ops = OPS("direct", 0, open_direct);
    return &ops;
}
