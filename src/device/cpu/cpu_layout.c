/* cpu_layout.c - layouts. They don't change once made; cpu_convert.c copies between them.
 *
 * A layout of bf16 elements is always one of oneDNN's, also where its elements lie row by row:
 * "plain" means f32. */
#include <string.h>

#include "ddp/memory.h"
#include "device/cpu/batch_kernels.h"
#include "device/cpu/cpu_impl.h"

/* ---- layouts ---- */

static ddp_status layout_alloc(ddp_device *device, const ddp_shape *shape,
                               ddpi_cpu_layout **layout_out)
{
    DDP_TRY(DDP_ALLOC(*layout_out, 1));
    (*layout_out)->base.device = device;
    (*layout_out)->base.refs = 1;
    (*layout_out)->base.shape = *shape;
    (*layout_out)->base.dtype = DDP_F32;
    return DDP_OK;
}

static void set_name(ddpi_cpu_layout *layout)
{
    char *name = layout->base.name;
    if (ddpi_md_is_rows(layout->md))
        strcpy(name, "plain");
    else
        ddpi_md_name(layout->md, name, sizeof layout->base.name);
    if (layout->base.dtype == DDP_BF16)
        strncat(name, ":bf16", sizeof layout->base.name - strlen(name) - 1);
}

ddp_status ddpi_layout_of_md(ddp_device *device, const ddp_shape *shape, ddpi_md *md,
                             ddp_layout **layout_out)
{
    ddpi_cpu_layout *layout;
    const ddp_status st = layout_alloc(device, shape, &layout);
    if (st != DDP_OK) {
        ddpi_md_destroy(md);
        return st;
    }
    layout->md = md;
    layout->base.dtype = ddpi_md_dtype(md);
    layout->base.plain = layout->base.dtype == DDP_F32 && ddpi_md_is_rows(md);
    layout->base.bytes = (ddpi_md_bytes(md) + 3) / 4 * 4;
    set_name(layout);
    if (shape->ndim == 4) {
        layout->inner = ddpi_md_is_rows(md) ? 1 : ddpi_md_inner(md);
        const int64_t pixels = shape->dims[2] * shape->dims[3] * ddpi_max(layout->inner, 1);
        layout->planes = (int64_t)ddpi_layout_elements(&layout->base) / pixels;
    }
    *layout_out = &layout->base;
    return DDP_OK;
}

ddp_status ddpi_layout_rows(ddp_device *device, const ddp_shape *shape, ddp_dtype dtype,
                            ddp_layout **layout_out)
{
    ddpi_md *md;
    DDP_TRY(ddpi_md_create(shape, dtype, false, &md));
    return ddpi_layout_of_md(device, shape, md, layout_out);
}

ddp_status ddpi_layout_plain(ddp_device *device, const ddp_shape *shape, ddp_layout **layout_out)
{
    return ddpi_layout_rows(device, shape, DDP_F32, layout_out);
}

ddp_status ddpi_layout_batch(ddp_device *device, const ddp_shape *shape, ddp_layout **layout_out)
{
    ddpi_cpu_layout *layout;
    DDP_ASSERT(shape->ndim == 4);
    DDP_TRY(layout_alloc(device, shape, &layout));
    const int64_t blocks = ddpi_ceil_div(shape->dims[0], DDPI_BATCH_LANES);
    layout->batch = true;
    layout->planes = blocks * shape->dims[1];
    layout->inner = DDPI_BATCH_LANES;
    layout->base.bytes = (size_t)(layout->planes * shape->dims[2] * shape->dims[3]) *
                         DDPI_BATCH_LANES * sizeof(float);
    strcpy(layout->base.name, "Abcd16a");
    *layout_out = &layout->base;
    return DDP_OK;
}

ddp_status ddpi_layout_like(const ddp_layout *layout, const ddp_shape *shape,
                            ddp_layout **layout_out)
{
    const ddpi_cpu_layout *like = ddpi_cpu_layout_of(layout);
    ddpi_md *md;
    if (like->batch)
        return ddpi_layout_batch(layout->device, shape, layout_out);
    if (ddpi_md_is_rows(like->md) || like->inner == 0)
        return ddpi_layout_rows(layout->device, shape, layout->dtype, layout_out);
    DDP_TRY(ddpi_md_like(like->md, shape, &md));
    return ddpi_layout_of_md(layout->device, shape, md, layout_out);
}

ddp_status ddpi_layout_retype(ddp_layout *layout, ddp_dtype dtype, ddp_layout **layout_out)
{
    const ddpi_cpu_layout *like = ddpi_cpu_layout_of(layout);
    ddpi_md *md;
    if (layout->dtype == dtype) {
        *layout_out = ddp_layout_ref(layout);
        return DDP_OK;
    }
    if (like->batch)
        return ddpi_layout_rows(layout->device, &layout->shape, dtype, layout_out);
    const ddp_status st = ddpi_md_retype(like->md, dtype, &md);
    if (st == DDP_ERR_UNSUPPORTED)
        return ddpi_layout_rows(layout->device, &layout->shape, dtype, layout_out);
    DDP_TRY(st);
    return ddpi_layout_of_md(layout->device, &layout->shape, md, layout_out);
}

size_t ddpi_layout_elements(const ddp_layout *base)
{
    const ddpi_cpu_layout *layout = ddpi_cpu_layout_of(base);
    return (layout->batch ? base->bytes : ddpi_md_bytes(layout->md)) / ddp_dtype_bytes(base->dtype);
}

void ddpi_layout_destroy(ddp_layout *base)
{
    ddpi_cpu_layout *layout = (ddpi_cpu_layout *)base;
    ddpi_md_destroy(layout->md);
    ddp_free(layout);
}

bool ddpi_layout_equal(const ddp_layout *a, const ddp_layout *b)
{
    const ddpi_cpu_layout *x = ddpi_cpu_layout_of(a), *y = ddpi_cpu_layout_of(b);
    if (x->batch || y->batch)
        return x->batch == y->batch;
    return (a->plain && b->plain) || ddpi_md_equal(x->md, y->md);
}

static ddp_status convert_once(ddp_layout *from, ddp_layout *to, const void *src, void *dst)
{
    ddpi_converter *converter;
    char *scratch;
    DDP_TRY(ddpi_converter_create(from, to, &converter));
    ddp_status st = DDP_ALLOC(scratch, converter->scratch_bytes);
    if (st == DDP_OK) {
        st = ddpi_converter_run(converter, src, dst, scratch);
        ddp_free(scratch);
    }
    ddpi_converter_destroy(converter);
    return st;
}

ddp_status ddpi_layout_import(ddp_device *device, const ddp_layout *layout, const float *plain,
                              void *dst)
{
    ddp_layout *from;
    DDP_TRY(ddpi_layout_plain(device, &layout->shape, &from));
    /* What fills up an odd number of bf16 belongs to no element. */
    memset((char *)dst + layout->bytes - 4, 0, 4);
    const ddp_status st = convert_once(from, (ddp_layout *)layout, plain, dst);
    ddp_layout_unref(from);
    return st;
}

ddp_status ddpi_layout_unpack(const ddp_layout *layout, const void *copy, float *plain)
{
    ddp_layout *to;
    DDP_TRY(ddpi_layout_plain(layout->device, &layout->shape, &to));
    /* The caller need not be the rank's thread, which has its number of threads already. */
    ddpi_set_threads(layout->device->opts.threads);
    const ddp_status st = convert_once((ddp_layout *)layout, to, copy, plain);
    ddp_layout_unref(to);
    return st;
}
