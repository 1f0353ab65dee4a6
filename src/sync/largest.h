/* largest.h - the places of the largest magnitudes of an array. */
#ifndef DDP_SYNC_LARGEST_H
#define DDP_SYNC_LARGEST_H

#include "ddp/status.h"

typedef struct ddpi_largest ddpi_largest;

/* For arrays of at most `longest` elements. */
DDP_INNER ddp_status ddpi_largest_create(size_t longest, ddpi_largest **largest_out);
void ddpi_largest_destroy(ddpi_largest *largest);
/* The places of the `count` largest |values[i]|, in rising order; of equal ones the first. What is
 * infinite or no number counts as larger than all that is. Valid until the next call. */
const uint32_t *ddpi_largest_find(ddpi_largest *largest, const float *values, size_t length,
                                  size_t count);

#endif
