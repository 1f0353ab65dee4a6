/* weights.h - a model's parameters and running statistics in a safetensors file, under their names
 * and in plain layouts: what PyTorch calls a state dict.
 *
 * The format: 8 bytes little-endian header length, a JSON header {name: {dtype, shape,
 * data_offsets}}, then the tensors' bytes (https://huggingface.co/docs/safetensors). The reader is
 * strict: lengths, names, types, shapes, overlaps and gaps are checked before anything is copied.
 * Local. */
#ifndef DDP_WEIGHTS_H
#define DDP_WEIGHTS_H

#include "ddp/buffer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What goes into a file or comes out of it; all borrowed. */
typedef struct ddp_weights {
    ddp_device *device;
    const ddp_param_table *table;
    float *params;                   /* flat, device memory */
    const ddp_buffer_table *buffers; /* NULL: none */
    float *running;                  /* flat, device memory; NULL if the buffers' length is 0 */
    int64_t counter;                 /* the value of every counter */
} ddp_weights;

/* Writes everything, complete or absent: f32, and I64 scalars for the counters. The header is in
 * forward order, a layer's parameters before its buffers. */
DDP_CALL ddp_status ddp_weights_save(const char *path, const ddp_weights *weights);

/* Reads everything. Names and shapes must be the model's, except that counters may be missing; the
 * message lists what is missing, surplus, of another shape or of a type that does not fit. F64, F16
 * and BF16 are converted. A "module." before all names is taken off. With `partial` the file may
 * miss tensors, and those that are surplus or of another shape are ignored; the log says which.
 * weights->counter becomes the file's largest counter, if it has any. On failure nothing is
 * changed. */
DDP_CALL ddp_status ddp_weights_load(const char *path, bool partial, ddp_weights *weights);

/* Writes "logits" [count][classes] (F32) and "labels" [count] (I64), complete or absent. Host
 * memory. */
DDP_CALL ddp_status ddp_logits_save(const char *path, const float *logits, const int64_t *labels,
                                    int64_t count, int64_t classes);

/* ---- any file of tensors ---- */

typedef struct ddp_tensors ddp_tensors;

typedef struct ddp_tensor {
    const char *name;
    const char *dtype; /* as files name it: "F32" */
    ddp_shape shape;
    const void *data; /* aligned to its elements if the file's writer took care */
    size_t bytes;
} ddp_tensor;

/* Writes such a file, complete or absent. DDP_ERR_UNSUPPORTED for a dtype that is none; bytes must
 * be the shape's. */
DDP_CALL ddp_status ddp_tensors_save(const char *path, const ddp_tensor *tensors, size_t count);
/* Reads a whole file, in the order of its data. The caller closes *tensors_out. */
DDP_CALL ddp_status ddp_tensors_open(const char *path, ddp_tensors **tensors_out);
DDP_API void ddp_tensors_close(ddp_tensors *tensors);
DDP_API size_t ddp_tensors_count(const ddp_tensors *tensors);
DDP_API ddp_tensor ddp_tensors_at(const ddp_tensors *tensors, size_t index);
/* Values as doubles from F32, F64, F16, BF16 and I64; false for other types. */
DDP_API bool ddp_tensor_values(const ddp_tensor *tensor, double *values);

#ifdef __cplusplus
}
#endif
#endif
