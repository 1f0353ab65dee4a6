/* norm_kernels.h - the loops of batch normalisation over rows of 16 elements.
 *
 * What they share is a lane's meaning: lane l of every row belongs to one channel (in blocked
 * layouts each lane to another one, else all to the same), so all factors are vectors of 16 and all
 * sums are kept per lane. The caller folds lanes to channels, leaves out lanes that are padding,
 * and calls a sum for few enough elements (DDPI_NORM_ROWS rows) that float carries it. */
#ifndef DDP_DEVICE_CPU_NORM_KERNELS_H
#define DDP_DEVICE_CPU_NORM_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#define DDPI_NORM_LANES 16
#define DDPI_NORM_ROWS  256

/* Which elements: in each of `segments`, `rows` rows whose starts are `stride` apart, with `lanes`
 * elements each, and then a row of `tail` elements (none if 0). */
typedef struct ddpi_norm_rows {
    int64_t segments, segment_step, rows, stride; /* in elements */
    int lanes, tail;
    bool bf16;
} ddpi_norm_rows;

typedef struct ddpi_norm_lanes {
    float v[DDPI_NORM_LANES];
} ddpi_norm_lanes;

/* sum += x. */
void ddpi_norm_sum(const ddpi_norm_rows *r, const void *x, ddpi_norm_lanes *sum);
/* sum += x - shift; squares += (x - shift)^2. */
void ddpi_norm_deviations(const ddpi_norm_rows *r, const void *x, const ddpi_norm_lanes *shift,
                          ddpi_norm_lanes *sum, ddpi_norm_lanes *squares);

/* y = (x - shift) * scale + offset [+ z]. */
typedef struct ddpi_norm_forward {
    const void *x, *z; /* z may be NULL */
    void *y;
    ddpi_norm_lanes shift, scale, offset;
    bool relu;
} ddpi_norm_forward;

void ddpi_norm_apply(const ddpi_norm_rows *r, const ddpi_norm_forward *f);

/* dy = [where value > 0] dy [+ dy2]; sum_dy += dy; sum_dy_x += dy * (x - shift). */
typedef struct ddpi_norm_reduce {
    const void *x, *value, *dy2; /* value and dy2 may be NULL */
    void *dy;
    ddpi_norm_lanes shift, sum_dy, sum_dy_x;
} ddpi_norm_reduce;

void ddpi_norm_reduce_gradient(const ddpi_norm_rows *r, ddpi_norm_reduce *b);

/* dx = dy * of_dy + (x - shift) * of_x + offset. */
typedef struct ddpi_norm_backward {
    const void *x, *dy;
    void *dx;
    ddpi_norm_lanes shift, of_dy, of_x, offset;
} ddpi_norm_backward;

void ddpi_norm_spread_gradient(const ddpi_norm_rows *r, const ddpi_norm_backward *b);

#endif
