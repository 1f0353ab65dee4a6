/* weights.h - parameters in a safetensors file: plain layouts, under their names.
 *
 * The format: 8 bytes little-endian header length, a JSON header {name: {dtype, shape,
 * data_offsets}}, then the tensors' bytes (https://huggingface.co/docs/safetensors). The reader is
 * strict: lengths, names, types, shapes, overlaps and gaps are checked before anything is copied.
 * Local. */
#ifndef DDP_WEIGHTS_H
#define DDP_WEIGHTS_H

#include "ddp/param.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes all parameters of the flat buffer, complete or absent. */
DDP_CALL ddp_status ddp_weights_save(const char *path, ddp_device *device,
                                     const ddp_param_table *table, const float *flat);
/* Reads all parameters into the flat buffer. Names and shapes must be the table's; the message
 * lists what is missing, surplus or of another shape. On failure flat is unchanged. */
DDP_CALL ddp_status ddp_weights_load(const char *path, ddp_device *device,
                                     const ddp_param_table *table, float *flat);

#ifdef __cplusplus
}
#endif
#endif
