/* weights_impl.h - what a file of weights is about: the model's tensors in forward order, matched
 * with a file's, and conversion of the types that other writers use.
 *
 * Nothing here touches device memory, so that the fuzzer reaches all of it. One thread. */
#ifndef DDP_CKPT_WEIGHTS_IMPL_H
#define DDP_CKPT_WEIGHTS_IMPL_H

#include "ckpt/safetensors.h"
#include "ddp/weights.h"

/* A tensor of the model: one of param and buffer is set. */
typedef struct ddpi_weight {
    const char *name;
    ddp_shape shape;
    const ddp_param *param;
    const ddp_buffer *buffer;
    bool counter;
    const ddpi_safetensor *tensor; /* of the file, once matched; NULL: keeps its value */
} ddpi_weight;

typedef struct ddpi_weight_list {
    ddpi_weight *items; /* in forward order */
    size_t count;
} ddpi_weight_list;

/* All tensors of a model, in forward order; the caller frees the items. */
DDP_INNER ddp_status ddpi_weights_list(const ddp_param_table *table,
                                       const ddp_buffer_table *buffers, ddpi_weight_list *list_out);

/* Sets the items' tensors. DDP_ERR_SHAPE lists what does not fit; with `partial` the log does, and
 * only types are refused, and files of which nothing fits. `what` names the file. */
DDP_INNER ddp_status ddpi_weights_match(const ddpi_safetensors *file, const char *what,
                                        bool partial, ddpi_weight_list *list);

/* Whether ddpi_weights_convert() reads it. */
bool ddpi_weights_is_float(ddpi_st_dtype dtype);
/* To f32, rounding to nearest; src need not be aligned. false: a finite value is too large. */
bool ddpi_weights_convert(ddpi_st_dtype dtype, const char *src, size_t count, float *dst);

#endif
