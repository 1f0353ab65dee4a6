/* buffer.h - the buffer table: what a model keeps beside its parameters, such as running
 * statistics.
 *
 * Nothing here has a gradient or is reduced. All values lie in one flat f32 array, plain, in
 * forward order, each on a DDP_ALIGN_BYTES border (padding is 0). A counter (num_batches_tracked)
 * has a name for files but no place in the array: its value is the run's number of steps. One
 * thread. */
#ifndef DDP_BUFFER_H
#define DDP_BUFFER_H

#include "ddp/param.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ddp_buffer {
    char name[DDP_PARAM_NAME_BYTES]; /* e.g. "bn1.running_mean" */
    int64_t count;                   /* values of [count]; a counter is a scalar */
    size_t offset;                   /* in the flat array; set by the table */
    float init;
    bool counter;
} ddp_buffer;

typedef struct ddp_buffer_table ddp_buffer_table;

DDP_CALL ddp_status ddp_buffer_table_create(ddp_buffer_table **table_out);
DDP_API void ddp_buffer_table_destroy(ddp_buffer_table *table);
/* Adds a copy of `buffer` behind the others and gives it its offset. DDP_ERR_SHAPE if the name
 * exists. */
DDP_CALL ddp_status ddp_buffer_table_add(ddp_buffer_table *table, const ddp_buffer *buffer,
                                         int *index_out);
DDP_API int ddp_buffer_table_count(const ddp_buffer_table *table);
DDP_API const ddp_buffer *ddp_buffer_table_at(const ddp_buffer_table *table, int index);
/* Length of the flat array in f32 values; 0: nothing but counters, or nothing at all. */
DDP_API size_t ddp_buffer_table_length(const ddp_buffer_table *table);
/* Writes every value's first state into host memory. */
DDP_API void ddp_buffer_table_init(const ddp_buffer_table *table, float *flat);

#ifdef __cplusplus
}
#endif
#endif
