/* base.h - version, symbol visibility and the element types that every layer shares.
 * Plain declarations: no state, nothing to create, any thread. */
#ifndef DDP_BASE_H
#define DDP_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DDP_VERSION_MAJOR 0
#define DDP_VERSION_MINOR 1
#define DDP_VERSION_PATCH 0
#define DDP_VERSION       "0.1.0"

#define DDP_API __attribute__((visibility("default")))
/* A function whose ddp_status may not be ignored. */
#define DDP_CALL DDP_API __attribute__((warn_unused_result))
/* The same for functions that stay inside the library. */
#define DDP_INNER __attribute__((warn_unused_result))
/* Not for users, but the CUDA module, a library of its own, needs it. */
#define DDP_MODULE_API                    DDP_API
#define DDP_PRINTF(fmt_index, args_index) __attribute__((format(printf, fmt_index, args_index)))

/* Every buffer that holds numbers starts on this border (one AVX-512 register, one cache line). */
#define DDP_ALIGN_BYTES 64

typedef enum ddp_dtype {
    DDP_F32,
    DDP_F64,
    DDP_I32,
    DDP_I64,
    DDP_U64,
    DDP_U8,
    DDP_BF16, /* the upper half of an f32 */
    DDP_F16   /* IEEE 754 binary16 */
} ddp_dtype;

#define DDP_MAX_DIMS 6

/* A plain row-major shape; dims[0] varies slowest. ndim 0 is a scalar with one element. */
typedef struct ddp_shape {
    int ndim;
    int64_t dims[DDP_MAX_DIMS];
} ddp_shape;

/* Elements [lo, hi) of a flat buffer. */
typedef struct ddp_range {
    size_t lo, hi;
} ddp_range;

/* Local. Bytes of one element. */
DDP_API size_t ddp_dtype_bytes(ddp_dtype dtype);
/* Local. "f32", "i64", ... */
DDP_API const char *ddp_dtype_name(ddp_dtype dtype);
/* Local. Product of the dimensions. */
DDP_API int64_t ddp_shape_count(const ddp_shape *shape);
DDP_API bool ddp_shape_equal(const ddp_shape *a, const ddp_shape *b);
/* Local. Writes "20x1x3x3" into text (cut to text_bytes, always terminated) and returns text. */
DDP_API char *ddp_shape_format(const ddp_shape *shape, char *text, size_t text_bytes);

#ifdef __cplusplus
}
#endif
#endif
