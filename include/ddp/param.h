/* param.h - the parameter table: where each parameter lies in the flat buffers, and when its
 * gradient is complete.
 *
 * All parameters lie in one flat f32 buffer, all gradients in another of the same layout, in the
 * order in which backward completes them (the last layer first). Each starts on a DDP_ALIGN_BYTES
 * border; padding is 0 in both and stays 0. Offsets and counts are in f32 elements. One thread. */
#ifndef DDP_PARAM_H
#define DDP_PARAM_H

#include "ddp/op.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DDP_PARAM_NAME_BYTES = 64 };

typedef enum ddp_param_flags {
    DDP_PARAM_DECAY = 1, /* weight decay applies (weights, not biases) */
    DDP_PARAM_TRAINABLE = 2
} ddp_param_flags;

/* How a parameter is drawn at the start, in plain order, from (seed, DDP_RNG_INIT, its init
 * number). */
typedef struct ddp_param_init {
    enum { DDP_INIT_ZERO, DDP_INIT_NORMAL, DDP_INIT_UNIFORM, DDP_INIT_CONSTANT } kind;
    double scale; /* standard deviation, half width, or the value */
} ddp_param_init;

typedef struct ddp_param {
    char name[DDP_PARAM_NAME_BYTES]; /* e.g. "conv1.weight" */
    ddp_shape shape;                 /* plain */
    ddp_layout *layout;              /* in memory; referenced by the table */
    size_t offset, count;            /* in the flat buffers; count includes the layout's padding */
    unsigned flags;
    uint32_t init_number; /* position in forward order: independent of the flat order */
    ddp_param_init init;
    int use_count; /* contributions to its gradient in one backward */
} ddp_param;

typedef struct ddp_param_table ddp_param_table;

DDP_CALL ddp_status ddp_param_table_create(ddp_param_table **table_out);
DDP_API void ddp_param_table_destroy(ddp_param_table *table);
/* Adds a parameter behind the others (call in backward-completion order) and gives it its offset.
 * The table copies `param` and references its layout. DDP_ERR_SHAPE if the name exists. */
DDP_CALL ddp_status ddp_param_table_add(ddp_param_table *table, const ddp_param *param,
                                        int *index_out);
DDP_API int ddp_param_table_count(const ddp_param_table *table);
DDP_API const ddp_param *ddp_param_table_at(const ddp_param_table *table, int index);
/* Clears DDP_PARAM_TRAINABLE where a name matches one of the patterns (fnmatch, with commas
 * between). DDP_ERR_USAGE if a pattern matches nothing, or if nothing is left to train. Before
 * anybody reads the flags. */
DDP_CALL ddp_status ddp_param_table_freeze(ddp_param_table *table, const char *patterns);
/* -1 if there is none. */
DDP_API int ddp_param_table_find(const ddp_param_table *table, const char *name);
/* Length of the flat buffers in f32 elements. */
DDP_API size_t ddp_param_table_length(const ddp_param_table *table);
/* Number of parameters' elements as users count them, without padding. */
DDP_API int64_t ddp_param_table_elements(const ddp_param_table *table);

/* ---- completion of gradients ---- */
typedef ddp_status (*ddp_param_ready_fn)(void *arg, int index);
/* fn is called from ddp_param_grad_done() when a parameter's last contribution is in. NULL: nobody.
 */
DDP_API void ddp_param_table_on_ready(ddp_param_table *table, ddp_param_ready_fn fn, void *arg);
/* Who that is, to be put back. */
DDP_API void ddp_param_table_get_ready(const ddp_param_table *table, ddp_param_ready_fn *fn_out,
                                       void **arg_out);
/* Starts a backward: every parameter awaits use_count contributions. */
DDP_API void ddp_param_table_begin(ddp_param_table *table);
/* A layer's backward has added its contribution. Too many is DDP_ERR_INTERNAL and names the
 * parameter. */
DDP_CALL ddp_status ddp_param_grad_done(ddp_param_table *table, int index);
/* After a backward: DDP_ERR_INTERNAL names the parameters that never completed. */
DDP_CALL ddp_status ddp_param_table_end(ddp_param_table *table);

/* ---- plain views, for files, hashes and tests; `flat` is device memory ---- */
DDP_CALL ddp_status ddp_param_export(ddp_device *device, const ddp_param *param, const float *flat,
                                     float *plain);
DDP_CALL ddp_status ddp_param_import(ddp_device *device, const ddp_param *param, const float *plain,
                                     float *flat);
/* Draws every parameter: a function of (seed, init_number, element), equal on every rank. */
DDP_CALL ddp_status ddp_param_table_init(ddp_device *device, const ddp_param_table *table,
                                         uint64_t seed, float *flat);
/* XXH3 over names, shapes and plain values, in forward order. */
DDP_CALL ddp_status ddp_param_table_hash(ddp_device *device, const ddp_param_table *table,
                                         const float *flat, uint64_t *hash_out);

#ifdef __cplusplus
}
#endif
#endif
