/* pieces.c - the cut by blocks and segments, and adding up in its order. See pieces.h. */
#include "optim/pieces.h"

#include <string.h>

#include "ddp/memory.h"

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Blocks and segments are both in order: one pass over both. */
static void cut(const ddpi_segments *segments, const ddp_range *blocks, int block_count,
                ddpi_pieces *pieces)
{
    int b = 0, s = 0;

    while (b < block_count && s < segments->count) {
        const ddpi_segment *segment = &segments->items[s];
        const size_t lo = larger(blocks[b].lo, segment->lo);
        const size_t hi = smaller(blocks[b].hi, segment->hi);
        if (lo < hi && !segment->frozen) {
            pieces->offsets[pieces->count] = lo;
            pieces->norms[pieces->count++] = segment->norm;
        }
        if (segment->hi <= blocks[b].hi)
            s++;
        else
            b++;
    }
}

ddp_status ddpi_pieces_make(const ddpi_segments *segments, const ddp_range *blocks, int block_count,
                            ddpi_pieces *pieces_out)
{
    /* Every step of the pass ends a block or a segment. */
    const size_t most = (size_t)block_count + (size_t)segments->count;
    ddpi_pieces pieces = {0};
    ddp_status st;

    DDP_TRY(DDP_ALLOC(pieces.offsets, most));
    DDP_TRY_GOTO(st, DDP_ALLOC(pieces.norms, most), err);
    cut(segments, blocks, block_count, &pieces);
    DDP_TRY_GOTO(st, DDP_ALLOC(pieces.sums, ddpi_pieces_sum_count(&pieces)), err);
    *pieces_out = pieces;
    return DDP_OK;
err:
    ddpi_pieces_free(&pieces);
    return st;
}

void ddpi_pieces_free(ddpi_pieces *pieces)
{
    ddp_free(pieces->offsets);
    ddp_free(pieces->norms);
    ddp_free(pieces->sums);
    *pieces = (ddpi_pieces){0};
}

size_t ddpi_pieces_sum_count(const ddpi_pieces *pieces)
{
    return 1 + (size_t)pieces->count * DDPI_PIECE_SUMS;
}

void ddpi_pieces_clear(ddpi_pieces *pieces)
{
    memset(pieces->sums, 0, ddpi_pieces_sum_count(pieces) * sizeof *pieces->sums);
}

static double *sums_of(const ddpi_pieces *pieces, int piece)
{
    return pieces->sums + 1 + (size_t)piece * DDPI_PIECE_SUMS;
}

int ddpi_pieces_index(const ddpi_pieces *pieces, size_t offset)
{
    int lo = 0, hi = pieces->count;

    while (hi - lo > 1) {
        const int middle = lo + (hi - lo) / 2;
        if (pieces->offsets[middle] <= offset)
            lo = middle;
        else
            hi = middle;
    }
    DDP_ASSERT(lo < pieces->count && pieces->offsets[lo] == offset);
    return lo;
}

double ddpi_pieces_total(const ddpi_pieces *pieces, int which)
{
    double total = 0;

    for (int i = 0; i < pieces->count; i++)
        total += sums_of(pieces, i)[which];
    return total;
}

void ddpi_pieces_add_norms(const ddpi_pieces *pieces, int which, double *out)
{
    for (int i = 0; i < pieces->count; i++)
        if (pieces->norms[i] >= 0)
            out[2 * pieces->norms[i]] += sums_of(pieces, i)[which];
}
