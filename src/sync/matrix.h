/* matrix.h - a weight as a matrix in the flat buffers, and products with thin matrices.
 *
 * Weights lie as their backend likes best. What counts here is that an element's place is the sum
 * of one number for its output channel and one for all other dimensions: then, in any order of
 * both, the weight is a matrix. The dimension whose elements lie next to each other (in blocks of
 * 16 output channels, or whole rows) becomes the columns, in runs; the other one the rows. Nothing
 * is copied, and padding between the runs is never touched.
 *
 * With X this matrix, the thin ones are left [rows][rank] (a row's numbers together) and right
 * [rank][cols]. Every function gives the same bits on every processor: sums have a fixed order. */
#ifndef DDP_SYNC_MATRIX_H
#define DDP_SYNC_MATRIX_H

#include "ddp/param.h"

typedef struct ddpi_run {
    size_t at;    /* in the flat buffers, for a row that starts at 0 */
    size_t first; /* column */
    size_t count;
} ddpi_run;

typedef struct ddpi_matrix {
    size_t rows, cols;
    size_t *row_at; /* [rows]: added to a run's place */
    ddpi_run *runs; /* [run_count]: cover the columns in order */
    size_t run_count;
    bool found; /* false: this parameter is no matrix, and all else is 0 */
} ddpi_matrix;

/* Local. For host memory. */
DDP_INNER ddp_status ddpi_matrix_make(ddp_device *device, const ddp_param *param,
                                      ddpi_matrix *matrix_out);
void ddpi_matrix_free(ddpi_matrix *matrix);

/* A rank's thin matrices of one weight. */
typedef struct ddpi_thin {
    size_t rank;
    float *left, *right;
} ddpi_thin;

/* rest += grads, over the matrix; right = rest^T left. */
void ddpi_matrix_right(const ddpi_matrix *m, const ddpi_thin *thin, const float *grads,
                       float *rest);
/* left = rest right^T. scratch: DDPI_MATRIX_SCRATCH(rank) floats. */
#define DDPI_MATRIX_ROWS          64
#define DDPI_MATRIX_LANES         16
#define DDPI_MATRIX_SCRATCH(rank) ((size_t)DDPI_MATRIX_ROWS * DDPI_MATRIX_LANES * (rank))
void ddpi_matrix_left(const ddpi_matrix *m, const ddpi_thin *thin, const float *rest,
                      float *scratch);
/* rest -= left right. */
void ddpi_matrix_subtract(const ddpi_matrix *m, const ddpi_thin *thin, float *rest);
/* grads = left right. */
void ddpi_matrix_expand(const ddpi_matrix *m, const ddpi_thin *thin, float *grads);
/* All of the matrix in a flat buffer. */
void ddpi_matrix_fill(const ddpi_matrix *m, float value, float *flat);

/* Makes the rows of right [rank][cols] orthogonal and of length 1, by Gram and Schmidt. What is, to
 * rounding, a combination of rows before it becomes 0. */
void ddpi_orthonormalise(float *right, size_t rank, size_t cols);
bool ddpi_all_finite(const float *values, size_t count);

#endif
