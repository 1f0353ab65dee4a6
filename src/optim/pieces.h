/* pieces.h - sums over the flat buffers that do not depend on who takes them.
 *
 * Blocks (what is updated in one go, whoever owns it) and segments (parameters with equal settings)
 * cut the buffers into pieces. Each piece has places for its own sums, which one rank fills while
 * the others leave them at 0; added up over the ranks they are everybody's, and are then added in
 * the order of the pieces. One thread. */
#ifndef DDP_OPTIM_PIECES_H
#define DDP_OPTIM_PIECES_H

#include "optim/segments.h"

enum { DDPI_PIECE_SUMS = 3 };

typedef struct ddpi_pieces {
    int count;
    size_t *offsets; /* [count]: where each starts, ascending */
    int *norms;      /* [count]: number of the adaptive parameter that it belongs to; -1: none */
    double *sums;    /* [1 + count * DDPI_PIECE_SUMS]; the first is the owner's */
} ddpi_pieces;

DDP_INNER ddp_status ddpi_pieces_make(const ddpi_segments *segments, const ddp_range *blocks,
                                      int block_count, ddpi_pieces *pieces_out);
void ddpi_pieces_free(ddpi_pieces *pieces);
size_t ddpi_pieces_sum_count(const ddpi_pieces *pieces);
void ddpi_pieces_clear(ddpi_pieces *pieces);
/* The number of the piece that starts there. */
int ddpi_pieces_index(const ddpi_pieces *pieces, size_t offset);
/* The sum over all pieces of sum number `which`. */
double ddpi_pieces_total(const ddpi_pieces *pieces, int which);
/* Adds each adaptive parameter's sum number `which` to out[2 * norm]. */
void ddpi_pieces_add_norms(const ddpi_pieces *pieces, int which, double *out);

#endif
