/* transform_impl.h - what a transform consists of. Immutable once made; any thread. */
#ifndef DDPI_DATA_TRANSFORM_IMPL_H
#define DDPI_DATA_TRANSFORM_IMPL_H

#include "ddp/transform.h"

struct ddp_transform {
    bool training;
    ddp_augment augment;
    ddp_shape src, dst; /* src: the data set's */
    bool variable;
    int64_t resize; /* length of the shorter side; 0: as it is */
    bool pointwise; /* only normalizes */
    uint64_t seed;
    float *mean, *deviation; /* NULL: none */
};

#endif
