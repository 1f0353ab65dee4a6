/* param_impl.h - what the files of src/tensor share. */
#ifndef DDP_TENSOR_PARAM_IMPL_H
#define DDP_TENSOR_PARAM_IMPL_H

#include "ddp/param.h"

/* Iterates in forward order, which does not depend on where parameters lie: the parameter with the
 * next higher init number, the first for NULL; NULL at the end. */
const ddp_param *ddpi_param_next_by_init(const ddp_param_table *table, const ddp_param *last);

#endif
