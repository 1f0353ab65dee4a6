/* matrix.c - finding the matrix in a parameter's layout. See matrix.h; products are in thin.c. */
#include "sync/matrix.h"

#include <stdlib.h>

#include "ddp/memory.h"

/* Floats count so far exactly. */
#define EXACT_FLOATS ((size_t)1 << 24)

/* Where the elements of a plain [outer][inner] weight lie. */
typedef struct places {
    size_t outer, inner;
    size_t *at; /* [outer * inner], in memory from the parameter's first float */
} places;

/* Has the device say it: what lies at each place becomes its number, in two parts, as floats hold
 * no more than 24 bits exactly. */
static ddp_status find_places(ddp_device *device, const ddp_param *param, places *p)
{
    const size_t count = p->outer * p->inner;
    float *flat, *plain = NULL;
    ddp_status st = DDP_ALLOC(flat, param->count);
    if (st == DDP_OK)
        st = DDP_ALLOC(plain, count);
    for (int part = 0; part < 2 && st == DDP_OK; part++) {
        for (size_t i = 0; i < param->count; i++)
            flat[i] = (float)(part == 0 ? i % EXACT_FLOATS : i / EXACT_FLOATS);
        st = ddp_layout_export(device, param->layout, flat, plain);
        for (size_t i = 0; i < count && st == DDP_OK; i++)
            p->at[i] += (size_t)plain[i] * (part == 0 ? 1 : EXACT_FLOATS);
    }
    ddp_free(plain);
    ddp_free(flat);
    return st;
}

/* Whether a place is the sum of one number for each dimension. */
static bool is_matrix(const places *p)
{
    for (size_t o = 0; o < p->outer; o++)
        for (size_t i = 0; i < p->inner; i++)
            if (p->at[o * p->inner + i] + p->at[0] != p->at[o * p->inner] + p->at[i])
                return false;
    return true;
}

static int compare_places(const void *a, const void *b)
{
    const size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return x < y ? -1 : x > y;
}

static size_t count_runs(const size_t *sorted, size_t count)
{
    size_t runs = 1;
    for (size_t i = 1; i < count; i++)
        runs += sorted[i] != sorted[i - 1] + 1;
    return runs;
}

static void make_runs(const size_t *sorted, size_t count, ddpi_run *runs)
{
    runs[0] = (ddpi_run){.at = sorted[0], .count = 1};
    for (size_t i = 1; i < count; i++) {
        if (sorted[i] == sorted[i - 1] + 1)
            runs->count++;
        else
            *++runs = (ddpi_run){.at = sorted[i], .first = i, .count = 1};
    }
}

/* In the order of memory, which all ranks share. */
static ddp_status arrange(const places *p, size_t offset, ddpi_matrix *m)
{
    size_t *outer_at, *inner_at;
    DDP_TRY(DDP_ALLOC(outer_at, p->outer));
    ddp_status st = DDP_ALLOC(inner_at, p->inner);
    if (st != DDP_OK) {
        ddp_free(outer_at);
        return st;
    }
    for (size_t o = 0; o < p->outer; o++)
        outer_at[o] = offset + p->at[o * p->inner];
    for (size_t i = 0; i < p->inner; i++)
        inner_at[i] = p->at[i] - p->at[0];
    qsort(outer_at, p->outer, sizeof *outer_at, compare_places);
    qsort(inner_at, p->inner, sizeof *inner_at, compare_places);
    const size_t outer_runs = count_runs(outer_at, p->outer);
    const size_t inner_runs = count_runs(inner_at, p->inner);
    /* Longer runs are the better columns. */
    const bool by_inner = p->inner * outer_runs >= p->outer * inner_runs;
    const size_t *cols = by_inner ? inner_at : outer_at;
    m->rows = by_inner ? p->outer : p->inner;
    m->cols = by_inner ? p->inner : p->outer;
    m->row_at = by_inner ? outer_at : inner_at;
    m->run_count = by_inner ? inner_runs : outer_runs;
    st = DDP_ALLOC(m->runs, m->run_count);
    if (st == DDP_OK)
        make_runs(cols, m->cols, m->runs);
    ddp_free(by_inner ? inner_at : outer_at);
    m->found = st == DDP_OK;
    return st;
}

ddp_status ddpi_matrix_make(ddp_device *device, const ddp_param *param, ddpi_matrix *matrix_out)
{
    *matrix_out = (ddpi_matrix){0};
    if (param->shape.ndim < 2)
        return DDP_OK;
    places p = {.outer = (size_t)param->shape.dims[0]};
    p.inner = (size_t)ddp_shape_count(&param->shape) / p.outer;
    DDP_TRY(DDP_ALLOC(p.at, p.outer * p.inner));
    ddp_status st = find_places(device, param, &p);
    if (st == DDP_OK && is_matrix(&p))
        st = arrange(&p, param->offset, matrix_out);
    ddp_free(p.at);
    if (st != DDP_OK)
        ddpi_matrix_free(matrix_out);
    return st;
}

void ddpi_matrix_free(ddpi_matrix *matrix)
{
    ddp_free(matrix->row_at);
    ddp_free(matrix->runs);
    *matrix = (ddpi_matrix){0};
}
