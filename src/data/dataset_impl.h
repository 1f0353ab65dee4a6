/* dataset_impl.h - what a data set consists of. Immutable once open; any thread. */
#ifndef DDPI_DATA_DATASET_IMPL_H
#define DDPI_DATA_DATASET_IMPL_H

#include "ddp/dataset.h"

struct ddp_dataset {
    const ddp_dataset_ops *ops;
    void *self;
    ddp_comm *comm; /* borrowed; NULL for a subset */
    ddp_dataset_info info;
};

#endif
