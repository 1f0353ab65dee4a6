/* thin.c - products of a weight with thin matrices, in pieces of 16 columns.
 *
 * These loops are bound by memory: each passes once over the weight's gradient or its rest. The
 * compiler makes vector code of the inner ones, a clone for each instruction set; nothing is
 * contracted or put in another order, so that all clones give the same bits. */
#include <math.h>
#include <string.h>

#include "sync/matrix.h"

enum { ROWS = DDPI_MATRIX_ROWS, LANES = DDPI_MATRIX_LANES, CHUNK = 256 };

/* The sanitizers' run-time libraries are not ready when the clone is chosen. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define VECTOR_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define VECTOR_CLONES
#endif

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- right = rest^T left ---- */

/* A chunk of columns of one row: rest += grads, and its part of the product. */
VECTOR_CLONES static void add_row(float *restrict rest, const float *restrict grads,
                                  const float *restrict left, float *restrict sums, size_t rank,
                                  size_t width)
{
    for (size_t c = 0; c < width; c++)
        rest[c] += grads[c];
    for (size_t k = 0; k < rank; k++)
        for (size_t c = 0; c < width; c++)
            sums[k * CHUNK + c] += left[k] * rest[c];
}

void ddpi_matrix_right(const ddpi_matrix *m, const ddpi_thin *thin, const float *grads, float *rest)
{
    enum { MOST = 32 }; /* columns of the thin matrices at a time */
    float sums[MOST * CHUNK];
    for (size_t run = 0; run < m->run_count; run++)
        for (size_t from = 0; from < m->runs[run].count; from += CHUNK) {
            const size_t width = smaller(m->runs[run].count - from, CHUNK);
            const size_t at = m->runs[run].at + from, col = m->runs[run].first + from;
            for (size_t k = 0; k < thin->rank; k += MOST) {
                const size_t some = smaller(thin->rank - k, MOST);
                memset(sums, 0, some * CHUNK * sizeof *sums);
                for (size_t r = 0; r < m->rows; r++) {
                    static const float none[CHUNK]; /* the gradient is added once */
                    const size_t place = at + m->row_at[r];
                    add_row(rest + place, k == 0 ? grads + place : none,
                            thin->left + r * thin->rank + k, sums, some, width);
                }
                for (size_t i = 0; i < some; i++)
                    memcpy(thin->right + (k + i) * m->cols + col, sums + i * CHUNK,
                           width * sizeof *sums);
            }
        }
}

/* ---- left = rest right^T ---- */

/* Lane sums of one row and one run, in pieces of LANES columns. */
VECTOR_CLONES static void dot_row(const float *restrict rest, const float *restrict right,
                                  size_t cols, float *restrict lanes, size_t rank, size_t width)
{
    for (size_t k = 0; k < rank; k++) {
        float sum[LANES];
        memcpy(sum, lanes + k * LANES, sizeof sum);
        size_t from = 0;
        for (; from + LANES <= width; from += LANES)
            for (size_t i = 0; i < LANES; i++)
                sum[i] += rest[from + i] * right[k * cols + from + i];
        for (size_t i = 0; from + i < width; i++)
            sum[i] += rest[from + i] * right[k * cols + from + i];
        memcpy(lanes + k * LANES, sum, sizeof sum);
    }
}

static float sum_lanes(const float *lanes)
{
    float sum[LANES];
    memcpy(sum, lanes, sizeof sum);
    for (size_t half = LANES / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++)
            sum[i] += sum[i + half];
    return sum[0];
}

void ddpi_matrix_left(const ddpi_matrix *m, const ddpi_thin *thin, const float *rest,
                      float *scratch)
{
    const size_t rank = thin->rank;
    for (size_t first = 0; first < m->rows; first += ROWS) {
        const size_t rows = smaller(m->rows - first, ROWS);
        memset(scratch, 0, rows * rank * LANES * sizeof *scratch);
        for (size_t run = 0; run < m->run_count; run++)
            for (size_t r = 0; r < rows; r++)
                dot_row(rest + m->runs[run].at + m->row_at[first + r],
                        thin->right + m->runs[run].first, m->cols, scratch + r * rank * LANES, rank,
                        m->runs[run].count);
        for (size_t i = 0; i < rows * rank; i++)
            thin->left[first * rank + i] = sum_lanes(scratch + i * LANES);
    }
}

/* ---- left right ---- */

/* A chunk of one row of the product. */
VECTOR_CLONES static void expand_row(float *restrict row, const float *restrict left,
                                     const float *restrict right, size_t cols, size_t rank,
                                     size_t width)
{
    for (size_t c = 0; c < width; c++)
        row[c] = left[0] * right[c];
    for (size_t k = 1; k < rank; k++)
        for (size_t c = 0; c < width; c++)
            row[c] += left[k] * right[k * cols + c];
}

VECTOR_CLONES static void subtract_row(float *restrict rest, const float *restrict row,
                                       size_t width)
{
    for (size_t c = 0; c < width; c++)
        rest[c] -= row[c];
}

static void product(const ddpi_matrix *m, const ddpi_thin *thin, bool subtract, float *flat)
{
    for (size_t run = 0; run < m->run_count; run++)
        for (size_t from = 0; from < m->runs[run].count; from += CHUNK) {
            const size_t width = smaller(m->runs[run].count - from, CHUNK);
            const float *right = thin->right + m->runs[run].first + from;
            for (size_t r = 0; r < m->rows; r++) {
                float row[CHUNK];
                float *place = flat + m->runs[run].at + from + m->row_at[r];
                expand_row(subtract ? row : place, thin->left + r * thin->rank, right, m->cols,
                           thin->rank, width);
                if (subtract)
                    subtract_row(place, row, width);
            }
        }
}

void ddpi_matrix_subtract(const ddpi_matrix *m, const ddpi_thin *thin, float *rest)
{
    product(m, thin, true, rest);
}

void ddpi_matrix_expand(const ddpi_matrix *m, const ddpi_thin *thin, float *grads)
{
    product(m, thin, false, grads);
}

void ddpi_matrix_fill(const ddpi_matrix *m, float value, float *flat)
{
    for (size_t run = 0; run < m->run_count; run++)
        for (size_t r = 0; r < m->rows; r++)
            for (size_t c = 0; c < m->runs[run].count; c++)
                flat[m->runs[run].at + m->row_at[r] + c] = value;
}

/* ---- orthogonal rows ---- */

VECTOR_CLONES static void dot_lanes(const float *restrict a, const float *restrict b, size_t count,
                                    double *restrict lanes)
{
    size_t from = 0;
    for (; from + LANES <= count; from += LANES)
        for (size_t i = 0; i < LANES; i++)
            lanes[i] += (double)a[from + i] * (double)b[from + i];
    for (size_t i = 0; from + i < count; i++)
        lanes[i] += (double)a[from + i] * (double)b[from + i];
}

static double dot(const float *a, const float *b, size_t count)
{
    double lanes[LANES] = {0}, sum = 0;
    dot_lanes(a, b, count, lanes);
    for (size_t i = 0; i < LANES; i++)
        sum += lanes[i];
    return sum;
}

void ddpi_orthonormalise(float *right, size_t rank, size_t cols)
{
    const double rounding = 1e-6; /* of a row's length: what is left below that is noise */
    for (size_t k = 0; k < rank; k++) {
        float *row = right + k * cols;
        const double before = sqrt(dot(row, row, cols));
        /* Twice is enough: the second time takes what rounding has left of the first. */
        for (int pass = 0; pass < 2; pass++)
            for (size_t j = 0; j < k; j++) {
                const float *other = right + j * cols;
                const double share = dot(row, other, cols);
                for (size_t c = 0; c < cols; c++)
                    row[c] = (float)((double)row[c] - share * (double)other[c]);
            }
        const double length = sqrt(dot(row, row, cols));
        const double scale = length > rounding * before && length > 0 ? 1 / length : 0;
        for (size_t c = 0; c < cols; c++)
            row[c] = (float)((double)row[c] * scale);
    }
}

bool ddpi_all_finite(const float *values, size_t count)
{
    bool finite = true;
    for (size_t i = 0; i < count; i++)
        finite = finite && isfinite(values[i]);
    return finite;
}
