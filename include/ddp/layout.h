/* layout.h - how a tensor's elements lie in memory: the backend's own business, and opaque here.
 *
 * Plans (op.h) choose layouts; whoever holds a tensor keeps a reference to its layout. Layouts do
 * not change once made; any thread. */
#ifndef DDP_LAYOUT_H
#define DDP_LAYOUT_H

#include "ddp/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ddp_layout ddp_layout; /* counted */

/* Row-major f32 of the given shape; a 4-d shape is [n][c][h][w], weights are [out][in][kh][kw] or
 * [out][in]. */
DDP_CALL ddp_status ddp_layout_plain(ddp_device *device, const ddp_shape *shape,
                                     ddp_layout **layout_out);
DDP_API ddp_layout *ddp_layout_ref(ddp_layout *layout);
DDP_API void ddp_layout_unref(ddp_layout *layout);
/* Bytes in memory, padding included; a multiple of 4. Padding elements are always 0. */
DDP_API size_t ddp_layout_bytes(const ddp_layout *layout);
DDP_API const ddp_shape *ddp_layout_shape(const ddp_layout *layout);
/* DDP_F32 or DDP_BF16. */
DDP_API ddp_dtype ddp_layout_dtype(const ddp_layout *layout);
/* Row-major f32. */
DDP_API bool ddp_layout_is_plain(const ddp_layout *layout);
DDP_API bool ddp_layout_equal(const ddp_layout *a, const ddp_layout *b);
/* A short name such as "plain", "aBcd16b" or "aBcd16b:bf16"; enters the start-up fingerprint. */
DDP_API const char *ddp_layout_name(const ddp_layout *layout);
/* Local, synchronous behind the main stream, for files, hashes and tests: plain host memory <->
 * device memory in `layout`.
 * Elements of bf16 are widened, and rounded to the nearest. May allocate. Padding is written as 0.
 */
DDP_CALL ddp_status ddp_layout_import(ddp_device *device, const ddp_layout *layout,
                                      const float *plain, void *dst);
DDP_CALL ddp_status ddp_layout_export(ddp_device *device, const ddp_layout *layout, const void *src,
                                      float *plain);
/* Any thread. The second half of an export: from a copy of the tensor's bytes in host memory. */
DDP_CALL ddp_status ddp_layout_unpack(const ddp_layout *layout, const void *copy, float *plain);

#ifdef __cplusplus
}
#endif
#endif
