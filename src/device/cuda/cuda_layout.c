/* cuda_layout.c - where the elements of a tensor lie on the GPU: row by row, or channels last.
 *
 * There are only these two, each in f32, bf16 or f16, and no padding but the two bytes that fill
 * up an odd number of the latter. Import and export permute on the host, since they serve files and
 * tests, and wait for the main stream. Layouts do not change once made; any thread. */
#include <string.h>

#include "ddp/bf16.h"
#include "ddp/f16.h"
#include "ddp/memory.h"
#include "device/cuda/cuda_impl.h"

typedef struct cuda_layout {
    ddp_layout base;
    bool nhwc; /* and that differs from rows */
} cuda_layout;

/* One channel, or one pixel: channels last is the order of rows. */
static bool same_order(const ddp_shape *shape)
{
    return shape->ndim != 4 || shape->dims[1] == 1 || shape->dims[2] * shape->dims[3] == 1;
}

ddp_status ddpi_cuda_layout_create(ddp_device *device, const ddp_shape *shape, bool nhwc,
                                   ddp_dtype dtype, ddp_layout **layout_out)
{
    cuda_layout *layout;
    DDP_ASSERT(dtype == DDP_F32 || dtype == DDP_BF16 || dtype == DDP_F16);
    DDP_TRY(DDP_ALLOC(layout, 1));
    layout->nhwc = nhwc && !same_order(shape);
    layout->base.device = device;
    layout->base.refs = 1;
    layout->base.shape = *shape;
    layout->base.dtype = dtype;
    layout->base.bytes = ((size_t)ddp_shape_count(shape) * ddp_dtype_bytes(dtype) + 3) /
                         sizeof(float) * sizeof(float);
    layout->base.plain = !layout->nhwc && dtype == DDP_F32;
    strcpy(layout->base.name, layout->nhwc ? "nhwc" : "plain");
    strcat(layout->base.name, ddpi_cuda_type_mark(dtype));
    *layout_out = &layout->base;
    return DDP_OK;
}

const char *ddpi_cuda_type_mark(ddp_dtype dtype)
{
    return dtype == DDP_BF16 ? ":bf16" : dtype == DDP_F16 ? ":f16" : "";
}

bool ddpi_cuda_is_nhwc(const ddp_layout *layout)
{
    return layout->shape.ndim == 4 &&
           (((const cuda_layout *)layout)->nhwc || same_order(&layout->shape));
}

bool ddpi_cuda_is_rows(const ddp_layout *layout)
{
    return !((const cuda_layout *)layout)->nhwc;
}

ddp_status ddpi_cuda_layout_plain(ddp_device *device, const ddp_shape *shape,
                                  ddp_layout **layout_out)
{
    return ddpi_cuda_layout_create(device, shape, false, DDP_F32, layout_out);
}

void ddpi_cuda_layout_destroy(ddp_layout *layout)
{
    ddp_free(layout);
}

bool ddpi_cuda_layout_equal(const ddp_layout *a, const ddp_layout *b)
{
    return a->dtype == b->dtype && ((const cuda_layout *)a)->nhwc == ((const cuda_layout *)b)->nhwc;
}

/* ---- to and from the host ---- */

static void put(const ddp_layout *layout, void *memory, size_t at, float value)
{
    if (layout->dtype == DDP_BF16)
        ((uint16_t *)memory)[at] = ddp_bf16_of_f32(value);
    else if (layout->dtype == DDP_F16)
        ((uint16_t *)memory)[at] = ddp_f16_of_f32(value);
    else
        ((float *)memory)[at] = value;
}

static float get(const ddp_layout *layout, const void *memory, size_t at)
{
    if (layout->dtype == DDP_F32)
        return ((const float *)memory)[at];
    const uint16_t bits = ((const uint16_t *)memory)[at];
    return layout->dtype == DDP_BF16 ? ddp_f32_of_bf16(bits) : ddp_f32_of_f16(bits);
}

/* Moves every element between plain order and its place in `memory`, which is the layout's. */
static void permute(const ddp_layout *layout, void *memory, float *plain, bool to_memory)
{
    const bool nhwc = ((const cuda_layout *)layout)->nhwc;
    const size_t count = (size_t)ddp_shape_count(&layout->shape);
    const size_t channels = nhwc ? (size_t)layout->shape.dims[1] : 1;
    const size_t pixels = nhwc ? (size_t)(layout->shape.dims[2] * layout->shape.dims[3]) : count;
    for (size_t i = 0; i < count; i++) {
        const size_t image = i / (channels * pixels), channel = i / pixels % channels;
        const size_t at = (image * pixels + i % pixels) * channels + channel;
        if (to_memory)
            put(layout, memory, at, plain[i]);
        else
            plain[i] = get(layout, memory, at);
    }
}

static ddp_status move(ddp_device *device, void *dst, const void *src, size_t bytes,
                       ddp_copy_kind kind)
{
    ddp_stream *stream = ddpi_cuda_main_stream(device);
    DDP_TRY(ddpi_cuda_copy(stream, dst, src, bytes, kind));
    return ddpi_cuda_stream_sync(stream);
}

ddp_status ddpi_cuda_layout_import(ddp_device *device, const ddp_layout *layout, const float *plain,
                                   void *dst)
{
    void *staging;
    if (layout->plain)
        return move(device, dst, plain, layout->bytes, DDP_COPY_TO_DEVICE);
    DDP_TRY(ddp_alloc_bytes(layout->bytes, 1, &staging));
    permute(layout, staging, (float *)plain, true);
    const ddp_status st = move(device, dst, staging, layout->bytes, DDP_COPY_TO_DEVICE);
    ddp_free(staging);
    return st;
}

ddp_status ddpi_cuda_layout_unpack(const ddp_layout *layout, const void *copy, float *plain)
{
    if (layout->plain)
        memcpy(plain, copy, (size_t)ddp_shape_count(&layout->shape) * sizeof *plain);
    else
        permute(layout, (void *)copy, plain, false);
    return DDP_OK;
}
