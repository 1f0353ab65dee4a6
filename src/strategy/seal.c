/* seal.c - hashes of the optimizer's state by range and parameter. See seal.h. One thread.
 *
 * Ranges are kept in the order of their first update, which later steps repeat: the next one is
 * looked for behind the last. */
#include "strategy/seal.h"

#include <stdio.h>

#include "ddp/fs.h"
#include "ddp/memory.h"

enum { NAME_BYTES = DDP_PARAM_NAME_BYTES + 32 };

/* A parameter's part of a range, in one of the state's buffers. */
typedef struct piece {
    int flat, param;
    ddp_range range;
    uint64_t hash;
} piece;

typedef struct sealed_range {
    ddp_range range;
    int first, end; /* its pieces */
    bool sealed;
} sealed_range;

struct ddpi_seal {
    ddp_optim *optim;
    ddp_device *device;
    const ddp_param_table *table;
    sealed_range *ranges;
    int count, capacity, next;
    piece *pieces;
    int piece_count, piece_capacity;
    float *host; /* for devices whose memory the host cannot read: the largest piece */
    size_t host_count;
    char damage[NAME_BYTES]; /* "": none */
};

ddp_status ddpi_seal_create(ddp_optim *optim, ddp_device *device, const ddp_param_table *table,
                            ddpi_seal **seal_out)
{
    ddpi_seal *seal;
    DDP_TRY(DDP_ALLOC(seal, 1));
    seal->optim = optim;
    seal->device = device;
    seal->table = table;
    *seal_out = seal;
    return DDP_OK;
}

void ddpi_seal_destroy(ddpi_seal *seal)
{
    if (seal == NULL)
        return;
    ddp_free(seal->ranges);
    ddp_free(seal->pieces);
    ddp_free(seal->host);
    ddp_free(seal);
}

/* ---- ranges ---- */

static sealed_range *find(ddpi_seal *seal, ddp_range range)
{
    for (int i = 0; i < seal->count; i++) {
        const int at = (seal->next + i) % seal->count;
        sealed_range *r = &seal->ranges[at];
        if (r->range.lo != range.lo || r->range.hi != range.hi)
            continue;
        seal->next = at + 1;
        return r;
    }
    return NULL;
}

static ddp_status make_room(ddpi_seal *seal, size_t count)
{
    if (ddp_device_is_host(seal->device) || count <= seal->host_count)
        return DDP_OK;
    ddp_free(seal->host);
    seal->host = NULL;
    seal->host_count = count;
    return DDP_ALLOC(seal->host, count);
}

static ddp_status add_pieces(ddpi_seal *seal, ddp_range range)
{
    const int flats = ddp_optim_get_state(seal->optim).count;
    for (int i = 0; i < ddp_param_table_count(seal->table); i++) {
        const ddp_param *p = ddp_param_table_at(seal->table, i);
        const size_t end = p->offset + p->count;
        const ddp_range part = {p->offset > range.lo ? p->offset : range.lo,
                                end < range.hi ? end : range.hi};
        if (part.lo >= part.hi)
            continue;
        DDP_TRY(make_room(seal, part.hi - part.lo));
        for (int f = 0; f < flats; f++) {
            DDP_TRY(DDP_GROW(seal->pieces, seal->piece_capacity, seal->piece_count));
            seal->pieces[seal->piece_count++] = (piece){.flat = f, .param = i, .range = part};
        }
    }
    return DDP_OK;
}

ddp_status ddpi_seal_note(ddpi_seal *seal, ddp_range range)
{
    if (range.lo == range.hi || find(seal, range) != NULL)
        return DDP_OK;
    DDP_TRY(DDP_GROW(seal->ranges, seal->capacity, seal->count));
    const int first = seal->piece_count;
    DDP_TRY(add_pieces(seal, range));
    seal->ranges[seal->count++] =
        (sealed_range){.range = range, .first = first, .end = seal->piece_count};
    return DDP_OK;
}

/* ---- hashes ---- */

static ddp_status hash_piece(const ddpi_seal *seal, const ddp_optim_state *state, const piece *p,
                             uint64_t *hash_out)
{
    const float *values = state->flats[p->flat].values + p->range.lo;
    const size_t bytes = (p->range.hi - p->range.lo) * sizeof(float);
    if (seal->host != NULL) {
        ddp_stream *stream = ddp_device_main_stream(seal->device);
        DDP_TRY(ddp_device_copy(seal->device, stream, seal->host, values, bytes, DDP_COPY_TO_HOST));
        DDP_TRY(ddp_stream_sync(stream));
        values = seal->host;
    }
    *hash_out = ddp_hash64(values, bytes);
    return DDP_OK;
}

ddp_status ddpi_seal_take(ddpi_seal *seal)
{
    const ddp_optim_state state = ddp_optim_get_state(seal->optim);
    for (int i = 0; i < seal->piece_count; i++)
        DDP_TRY(hash_piece(seal, &state, &seal->pieces[i], &seal->pieces[i].hash));
    for (int i = 0; i < seal->count; i++)
        seal->ranges[i].sealed = true;
    return DDP_OK;
}

static ddp_status verify(ddpi_seal *seal, sealed_range *range)
{
    const ddp_optim_state state = ddp_optim_get_state(seal->optim);
    if (!range->sealed)
        return DDP_OK;
    range->sealed = false;
    for (int i = range->first; i < range->end; i++) {
        const piece *p = &seal->pieces[i];
        uint64_t hash;
        DDP_TRY(hash_piece(seal, &state, p, &hash));
        if (hash != p->hash && seal->damage[0] == 0)
            snprintf(seal->damage, sizeof seal->damage, "%s.%s", state.flats[p->flat].name,
                     ddp_param_table_at(seal->table, p->param)->name);
    }
    return DDP_OK;
}

ddp_status ddpi_seal_verify(ddpi_seal *seal, ddp_range range)
{
    sealed_range *found = find(seal, range);
    return found != NULL ? verify(seal, found) : DDP_OK;
}

ddp_status ddpi_seal_verify_all(ddpi_seal *seal)
{
    for (int i = 0; i < seal->count; i++)
        DDP_TRY(verify(seal, &seal->ranges[i]));
    return DDP_OK;
}

const char *ddpi_seal_damage(const ddpi_seal *seal)
{
    return seal->damage[0] != 0 ? seal->damage : NULL;
}
