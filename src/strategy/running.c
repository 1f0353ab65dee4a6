/* running.c - running statistics per logical shard, combined for evaluation and files.
 *
 * The combination adds in shard order over all ranks, in double, so it is a function of the shards
 * alone. It is gathered piece by piece: memory for it does not grow with the number of ranks times
 * the size of the model. Ranks may have different numbers of shards: every rank sends as many rows
 * as the largest has. One thread. */
#include "strategy/running.h"

#include <string.h>

#include "ddp/memory.h"

enum { PIECE_VALUES = 1 << 16 }; /* gathered at a time, over all ranks */

struct ddpi_running {
    ddp_model *model;
    ddp_device *device;
    int64_t shards;
    size_t length;        /* of one shard's array */
    float *values;        /* device: [shards][length], behind them the combination */
    double *seen;         /* samples, per shard of this rank */
    float *combined_host; /* [length] */
    /* From the first combination on: */
    int64_t *counts;     /* shards of each rank */
    size_t rows;         /* the largest of them */
    float *mine, *all;   /* host: a piece of this rank's rows, and of all ranks' */
    double *seen_row;    /* [rows]: this rank's `seen` */
    double *seen_by_all; /* [world][rows] */
    size_t piece;        /* values of a shard that are gathered at a time; 0: not known yet */
};

static float *array_of(const ddpi_running *r, int64_t shard)
{
    return r->values + (size_t)shard * r->length;
}

static size_t device_bytes(const ddpi_running *r)
{
    return ((size_t)r->shards + 1) * r->length * sizeof(float);
}

static ddp_status allocate(ddpi_running *r)
{
    const ddp_buffer_table *table = ddp_model_buffers(r->model);
    r->length = ddp_buffer_table_length(table);
    if (r->length == 0)
        return DDP_OK;
    void *memory;
    DDP_TRY(ddp_device_alloc(r->device, device_bytes(r), &memory));
    r->values = memory;
    DDP_TRY(DDP_ALLOC(r->seen, (size_t)r->shards));
    DDP_TRY(DDP_ALLOC(r->combined_host, r->length));
    ddp_buffer_table_init(table, r->combined_host);
    ddp_stream *stream = ddp_device_main_stream(r->device);
    for (int64_t s = 0; s <= r->shards; s++)
        DDP_TRY(ddp_device_copy(r->device, stream, array_of(r, s), r->combined_host,
                                r->length * sizeof(float), DDP_COPY_TO_DEVICE));
    DDP_TRY(ddp_stream_sync(stream));
    ddp_model_bind_running(r->model, array_of(r, r->shards));
    return DDP_OK;
}

ddp_status ddpi_running_create(ddp_model *model, ddp_device *device, int64_t shards,
                               ddpi_running **running_out)
{
    ddpi_running *r;
    DDP_TRY(DDP_ALLOC(r, 1));
    r->model = model;
    r->device = device;
    r->shards = shards;
    const ddp_status st = allocate(r);
    if (st != DDP_OK) {
        ddpi_running_destroy(r);
        return st;
    }
    *running_out = r;
    return DDP_OK;
}

void ddpi_running_destroy(ddpi_running *r)
{
    if (r == NULL)
        return;
    if (r->values != NULL) {
        ddp_model_bind_running(r->model, NULL);
        ddp_device_free(r->device, r->values, device_bytes(r));
    }
    ddp_free(r->seen);
    ddp_free(r->combined_host);
    ddp_free(r->counts);
    ddp_free(r->mine);
    ddp_free(r->all);
    ddp_free(r->seen_row);
    ddp_free(r->seen_by_all);
    ddp_free(r);
}

void ddpi_running_count(ddpi_running *r, int64_t shard, int64_t count)
{
    DDP_ASSERT(shard >= 0 && shard < r->shards);
    if (r->length > 0)
        r->seen[shard] += (double)count;
}

void ddpi_running_select(ddpi_running *r, int64_t shard)
{
    DDP_ASSERT(shard >= 0 && shard < r->shards);
    if (r->length > 0)
        ddp_model_bind_running(r->model, array_of(r, shard));
}

/* ---- combining ---- */

static ddp_status allocate_rows(ddpi_running *r, int world)
{
    const size_t total = r->rows * (size_t)world;
    size_t piece = PIECE_VALUES / total;
    piece = piece < 1 ? 1 : piece > r->length ? r->length : piece;
    DDP_TRY(DDP_ALLOC(r->mine, r->rows * piece));
    DDP_TRY(DDP_ALLOC(r->all, total * piece));
    DDP_TRY(DDP_ALLOC(r->seen_row, r->rows));
    DDP_TRY(DDP_ALLOC(r->seen_by_all, total));
    r->piece = piece;
    return DDP_OK;
}

/* The first combination learns the ranks' numbers of shards and allocates what all later ones use.
 */
static ddp_status prepare(ddpi_running *r, ddp_comm *comm)
{
    const int world = ddp_comm_world(comm);
    if (r->piece > 0)
        return DDP_OK;
    const ddp_status st = DDP_ALLOC(r->counts, (size_t)world);
    DDP_TRY(ddp_comm_agree(comm, st, "list the ranks' shards"));
    DDP_TRY(ddp_comm_allgather(comm, &r->shards, sizeof r->shards, r->counts));
    for (int rank = 0; rank < world; rank++)
        if ((size_t)r->counts[rank] > r->rows)
            r->rows = (size_t)r->counts[rank];
    return ddp_comm_agree(comm, allocate_rows(r, world), "combine running statistics");
}

/* Copies values [from, from + count) of each shard to `mine`, row after row. */
static ddp_status fetch(ddpi_running *r, size_t from, size_t count)
{
    ddp_stream *stream = ddp_device_main_stream(r->device);
    for (int64_t s = 0; s < r->shards; s++)
        DDP_TRY(ddp_device_copy(r->device, stream, r->mine + (size_t)s * count,
                                array_of(r, s) + from, count * sizeof(float), DDP_COPY_TO_HOST));
    return ddp_stream_sync(stream);
}

/* A shard's part of the combination. Shards that have seen nothing count only while none has. */
static double share_of(const ddpi_running *r, size_t row, double total_seen, double shards)
{
    return total_seen > 0 ? r->seen_by_all[row] / total_seen : 1.0 / shards;
}

static void average(const ddpi_running *r, int world, size_t from, size_t count)
{
    double total_seen = 0, shards = 0;
    for (int rank = 0; rank < world; rank++) {
        shards += (double)r->counts[rank];
        for (size_t s = 0; s < (size_t)r->counts[rank]; s++)
            total_seen += r->seen_by_all[(size_t)rank * r->rows + s];
    }
    for (size_t i = 0; i < count; i++) {
        double sum = 0;
        for (int rank = 0; rank < world; rank++)
            for (size_t s = 0; s < (size_t)r->counts[rank]; s++) {
                const size_t row = (size_t)rank * r->rows + s;
                sum += share_of(r, row, total_seen, shards) * (double)r->all[row * count + i];
            }
        r->combined_host[from + i] = (float)sum;
    }
}

static ddp_status combine_pieces(ddpi_running *r, ddp_comm *comm)
{
    const int world = ddp_comm_world(comm);
    memcpy(r->seen_row, r->seen, (size_t)r->shards * sizeof *r->seen);
    DDP_TRY(ddp_comm_allgather(comm, r->seen_row, r->rows * sizeof(double), r->seen_by_all));
    for (size_t from = 0; from < r->length; from += r->piece) {
        const size_t left = r->length - from, count = left < r->piece ? left : r->piece;
        DDP_TRY(fetch(r, from, count));
        DDP_TRY(ddp_comm_allgather(comm, r->mine, r->rows * count * sizeof(float), r->all));
        average(r, world, from, count);
    }
    return DDP_OK;
}

ddp_status ddpi_running_combine(ddpi_running *r, ddp_comm *comm, const float **combined_out)
{
    *combined_out = NULL;
    if (r->length == 0)
        return DDP_OK;
    DDP_TRY(prepare(r, comm));
    DDP_TRY(combine_pieces(r, comm));
    float *combined = array_of(r, r->shards);
    ddp_stream *stream = ddp_device_main_stream(r->device);
    DDP_TRY(ddp_device_copy(r->device, stream, combined, r->combined_host,
                            r->length * sizeof(float), DDP_COPY_TO_DEVICE));
    DDP_TRY(ddp_stream_sync(stream));
    ddp_model_bind_running(r->model, combined);
    *combined_out = combined;
    return DDP_OK;
}

ddp_status ddpi_running_set(ddpi_running *r, const float *values)
{
    ddp_stream *stream = ddp_device_main_stream(r->device);
    if (r->length == 0)
        return DDP_OK;
    for (int64_t s = 0; s <= r->shards; s++)
        DDP_TRY(ddp_device_copy(r->device, stream, array_of(r, s), values,
                                r->length * sizeof(float), DDP_COPY_ON_DEVICE));
    memset(r->seen, 0, (size_t)r->shards * sizeof *r->seen);
    return ddp_stream_sync(stream);
}

void ddpi_running_rows(ddpi_running *r, float **rows_out, double **seen_out)
{
    *rows_out = r->values;
    *seen_out = r->seen;
}
