/* allreduce_rank.c - the measuring of ddp_bench allreduce, on each rank. See allreduce.h. */
#include <math.h>
#include <string.h>

#include "ddp/bf16.h"
#include "ddp/memory.h"
#include "ddp/thread.h"
#include "tools/bench/allreduce.h"

enum { WARMUPS = 2, COPY_ROUNDS = 5, PATTERN = 1021, PATTERN_BF16 = 3 };
#define COPY_BYTES ((size_t)32 << 20)

typedef struct rank {
    ddp_comm *comm;
    ddpi_reduce_sweep *sweep;
    int number, world;
    void *buf;
    ddp_device *device; /* buf is its memory; NULL: buf is the host's */
    void *host;      /* what is written to buf, and read from it: buf itself, or as much memory */
    double *seconds; /* DDPI_REDUCE_MAX_SAMPLES */
} rank;

/* ---- elements ---- */

static void put(void *buf, ddp_dtype type, size_t i, double value)
{
    if (type == DDP_F32)
        ((float *)buf)[i] = (float)value;
    else if (type == DDP_F64)
        ((double *)buf)[i] = value;
    else if (type == DDP_I32)
        ((int32_t *)buf)[i] = (int32_t)value;
    else if (type == DDP_I64)
        ((int64_t *)buf)[i] = (int64_t)value;
    else
        ((uint16_t *)buf)[i] = ddp_bf16_of_f32((float)value);
}

static double get(const void *buf, ddp_dtype type, size_t i)
{
    if (type == DDP_F32)
        return (double)((const float *)buf)[i];
    if (type == DDP_F64)
        return ((const double *)buf)[i];
    if (type == DDP_I32)
        return ((const int32_t *)buf)[i];
    if (type == DDP_I64)
        return (double)((const int64_t *)buf)[i];
    return (double)ddp_f32_of_bf16(((const uint16_t *)buf)[i]);
}

/* Small whole numbers, whose sums are exact in any order: in bf16 up to 256, which worlds of 85
 * ranks stay below; beyond that a sum may be rounded. PATTERN is odd, so that no two pieces of a
 * buffer look alike. */
static double pattern(ddp_dtype type, size_t index, int number)
{
    if (type == DDP_BF16)
        return (double)((index % PATTERN + (size_t)number) % PATTERN_BF16 + 1);
    return (double)(index % PATTERN + (size_t)number);
}

static double expected(ddp_dtype type, size_t index, int world)
{
    double sum = 0;

    if (type != DDP_BF16)
        return (double)(index % PATTERN) * world + (double)world * (world - 1) / 2;
    for (int r = 0; r < world; r++)
        sum += pattern(type, index, r);
    return sum;
}

static bool right(ddp_dtype type, double found, double want)
{
    double slack = type == DDP_BF16 && want > 256 ? want / 32 : 0;

    return fabs(found - want) <= slack;
}

/* ---- one case ---- */

static ddp_status sum(rank *r, const ddpi_reduce_row *row)
{
    const ddp_coll coll = {.kind = DDP_COLL_ALLREDUCE,
                           .dtype = row->type,
                           .op = DDP_REDUCE_SUM,
                           .buf = r->buf,
                           .count = row->bytes / ddp_dtype_bytes(row->type),
                           .stream = r->device != NULL ? ddp_device_main_stream(r->device) : NULL,
                           .bucket = -1,
                           .what = "benchmark"};
    ddp_work work;

    DDP_TRY(ddp_comm_submit(r->comm, &coll, &work));
    return ddp_work_wait(&work);
}

/* Between the host's memory and the buffer, where they are two; done when it returns. */
static ddp_status copy(rank *r, size_t bytes, ddp_copy_kind kind)
{
    if (r->device == NULL)
        return DDP_OK;
    ddp_stream *stream = ddp_device_main_stream(r->device);
    const bool there = kind == DDP_COPY_TO_DEVICE;
    DDP_TRY(ddp_device_copy(r->device, stream, there ? r->buf : r->host, there ? r->host : r->buf,
                            bytes, kind));
    return ddp_stream_sync(stream);
}

static ddp_status clear(rank *r, size_t bytes)
{
    if (r->device == NULL) {
        memset(r->buf, 0, bytes);
        return DDP_OK;
    }
    ddp_stream *stream = ddp_device_main_stream(r->device);
    DDP_TRY(ddp_device_zero(r->device, stream, r->buf, bytes));
    return ddp_stream_sync(stream);
}

static ddp_status check(rank *r, ddpi_reduce_row *row)
{
    size_t count = row->bytes / ddp_dtype_bytes(row->type);
    int64_t bad = 0;

    for (size_t i = 0; i < count; i++)
        put(r->host, row->type, i, pattern(row->type, i, r->number));
    DDP_TRY(copy(r, row->bytes, DDP_COPY_TO_DEVICE));
    DDP_TRY(sum(r, row));
    DDP_TRY(copy(r, row->bytes, DDP_COPY_TO_HOST));
    /* What is expected repeats itself. */
    double want[PATTERN * PATTERN_BF16];
    for (size_t i = 0; i < PATTERN * PATTERN_BF16; i++)
        want[i] = expected(row->type, i, r->world);
    for (size_t i = 0, at = 0; i < count; i++, at = at + 1 < PATTERN * PATTERN_BF16 ? at + 1 : 0)
        bad += !right(row->type, get(r->host, row->type, i), want[at]);
    DDP_TRY(ddp_comm_allreduce(r->comm, &bad, 1, DDP_I64, DDP_REDUCE_SUM, "errors"));
    row->wrong += bad;
    return DDP_OK;
}

static ddp_status sample(rank *r, const ddpi_reduce_row *row, double *seconds_out)
{
    DDP_TRY(clear(r, row->bytes));
    DDP_TRY(ddp_comm_barrier(r->comm));
    int64_t begin_ns = ddp_now_ns();
    DDP_TRY(sum(r, row));
    *seconds_out = (double)(ddp_now_ns() - begin_ns) / 1e9;
    return DDP_OK;
}

static ddp_status slowest(rank *r, double *seconds, int count)
{
    return ddp_comm_allreduce(r->comm, seconds, (size_t)count, DDP_F64, DDP_REDUCE_MAX, "times");
}

static int samples_for(double seconds, double one_s)
{
    double wanted = seconds / fmax(one_s, 1e-9);

    return (int)fmin(fmax(wanted, DDPI_REDUCE_MIN_SAMPLES), DDPI_REDUCE_MAX_SAMPLES);
}

static ddp_status measure_row(rank *r, ddpi_reduce_row *row)
{
    double warm = 0;

    DDP_TRY(ddp_comm_set_allreduce(r->comm, row->algorithm));
    DDP_TRY(check(r, row));
    for (int i = 0; i < WARMUPS; i++)
        DDP_TRY(sample(r, row, &warm));
    DDP_TRY(slowest(r, &warm, 1));
    int count = samples_for(r->sweep->opts->min_time_s, warm);
    for (int i = 0; i < count; i++)
        DDP_TRY(sample(r, row, &r->seconds[i]));
    DDP_TRY(slowest(r, r->seconds, count));
    row->seconds = ddpi_bench_measure(r->seconds, count);
    return check(r, row);
}

/* ---- all of them ---- */

static ddp_status copy_at_once(rank *r, void *dst, const void *src)
{
    double best = 1e30;

    for (int i = 0; i < COPY_ROUNDS; i++) {
        DDP_TRY(ddp_comm_barrier(r->comm));
        int64_t begin_ns = ddp_now_ns();
        memcpy(dst, src, COPY_BYTES);
        /* The copy must not be left out because nobody reads it. */
        __asm__ volatile("" : : "r"(dst) : "memory");
        double seconds = (double)(ddp_now_ns() - begin_ns) / 1e9;
        DDP_TRY(slowest(r, &seconds, 1));
        best = fmin(best, seconds);
    }
    r->sweep->copy_bytes_per_s = 2.0 * (double)COPY_BYTES * r->world / best;
    return DDP_OK;
}

static ddp_status measure_copy(rank *r)
{
    void *src = NULL, *dst = NULL;
    ddp_status st = ddp_large_alloc(COPY_BYTES, &src);

    if (st == DDP_OK)
        st = ddp_large_alloc(COPY_BYTES, &dst);
    st = ddp_comm_agree(r->comm, st, "allocate memory");
    if (st == DDP_OK)
        st = copy_at_once(r, dst, src);
    ddp_large_free(src, src != NULL ? COPY_BYTES : 0);
    ddp_large_free(dst, dst != NULL ? COPY_BYTES : 0);
    return st;
}

static size_t largest(const ddpi_reduce_sweep *sweep)
{
    size_t bytes = 0;

    for (int i = 0; i < sweep->row_count; i++)
        bytes = sweep->rows[i].bytes > bytes ? sweep->rows[i].bytes : bytes;
    return bytes;
}

/* The communicator has been opened for auto: it measures what that means, as training has it. */
static ddp_status tune(rank *r)
{
    for (int i = 0; i < r->sweep->row_count; i++)
        if (r->sweep->rows[i].algorithm == DDP_ALLREDUCE_AUTO)
            return ddp_comm_tune(r->comm);
    return DDP_OK;
}

static ddp_status measure_all(rank *r)
{
    DDP_TRY(measure_copy(r));
    DDP_TRY(tune(r));
    for (int i = 0; i < r->sweep->row_count; i++)
        DDP_TRY(measure_row(r, &r->sweep->rows[i]));
    return DDP_OK;
}

static bool uses_private_memory(const rank *r)
{
    return r->device == NULL && r->sweep->opts->memory == DDPI_REDUCE_PRIVATE;
}

static ddp_status allocate(rank *r, size_t bytes)
{
    ddp_status st = DDP_ALLOC(r->seconds, DDPI_REDUCE_MAX_SAMPLES);

    if (st == DDP_OK && r->device != NULL)
        st = ddp_device_host_alloc(r->device, bytes, &r->host);
    if (st == DDP_OK && uses_private_memory(r))
        st = ddp_large_alloc(bytes, &r->buf);
    DDP_TRY(ddp_comm_agree(r->comm, st, "allocate memory"));
    if (!uses_private_memory(r))
        DDP_TRY(ddp_comm_mem_alloc(r->comm, bytes, &r->buf));
    if (r->device == NULL)
        r->host = r->buf;
    return DDP_OK;
}

static void release(rank *r, size_t bytes)
{
    if (r->buf != NULL && uses_private_memory(r))
        ddp_large_free(r->buf, bytes);
    else
        ddp_comm_mem_free(r->comm, r->buf);
    if (r->device != NULL) {
        ddp_device_host_free(r->device, r->host, bytes);
        ddp_comm_detach(r->comm);
        ddp_device_close(r->device);
    }
    ddp_free(r->seconds);
}

ddp_status ddpi_reduce_measure(ddp_comm *comm, ddpi_reduce_sweep *sweep)
{
    rank r = {
        .comm = comm, .sweep = sweep, .number = ddp_comm_rank(comm), .world = ddp_comm_world(comm)};
    const size_t bytes = largest(sweep);

    sweep->ranks = r.world;
    sweep->hosts = ddp_comm_node_count(comm);
    if (sweep->opts->comm == DDPI_REDUCE_NCCL)
        DDP_TRY(ddpi_reduce_attach(comm, &r.device));
    ddp_status st = allocate(&r, bytes);
    if (st == DDP_OK)
        st = measure_all(&r);
    release(&r, bytes);
    return st;
}
