/* cpu_layout.c - layouts, and copies between them.
 *
 * Tensors of oneDNN's layouts are reordered by the library; blocks of 16 images are packed from and
 * to plain by our own loops; what is left goes through plain in two steps. Layouts don't change
 * once made. */
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
    return DDP_OK;
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
    layout->base.plain = ddpi_md_is_plain(md);
    layout->base.bytes = ddpi_md_bytes(md);
    if (layout->base.plain)
        strcpy(layout->base.name, "plain");
    else
        ddpi_md_name(md, layout->base.name, sizeof layout->base.name);
    if (shape->ndim == 4) {
        layout->inner = layout->base.plain ? 1 : ddpi_md_inner(md);
        const int64_t pixels = shape->dims[2] * shape->dims[3] * ddpi_max(layout->inner, 1);
        layout->planes = (int64_t)(layout->base.bytes / sizeof(float)) / pixels;
    }
    *layout_out = &layout->base;
    return DDP_OK;
}

ddp_status ddpi_layout_plain(ddp_device *device, const ddp_shape *shape, ddp_layout **layout_out)
{
    ddpi_md *md;
    DDP_TRY(ddpi_md_create(shape, false, &md));
    return ddpi_layout_of_md(device, shape, md, layout_out);
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
    if (layout->plain || like->inner == 0)
        return ddpi_layout_plain(layout->device, shape, layout_out);
    DDP_TRY(ddpi_md_like(like->md, shape, &md));
    return ddpi_layout_of_md(layout->device, shape, md, layout_out);
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
    const ddp_status st = convert_once(from, (ddp_layout *)layout, plain, dst);
    ddp_layout_unref(from);
    return st;
}

ddp_status ddpi_layout_export(ddp_device *device, const ddp_layout *layout, const void *src,
                              float *plain)
{
    ddp_layout *to;
    DDP_TRY(ddpi_layout_plain(device, &layout->shape, &to));
    const ddp_status st = convert_once((ddp_layout *)layout, to, src, plain);
    ddp_layout_unref(to);
    return st;
}

/* ---- converters ---- */

size_t ddpi_take(size_t *bytes, size_t want)
{
    const size_t offset = *bytes;
    *bytes += (want + DDP_ALIGN_BYTES - 1) / DDP_ALIGN_BYTES * DDP_ALIGN_BYTES;
    return offset;
}

/* Prepares the reorder between a layout of oneDNN and plain, or another of them. */
static ddp_status add_reorder(ddpi_converter *converter, const ddpi_md *from, const ddpi_md *to)
{
    ddp_device *device = converter->from->device;
    DDP_TRY(ddpi_prim_reorder(ddpi_cpu_of(device)->dnnl, from, to, &converter->reorder));
    (void)ddpi_take(&converter->scratch_bytes, ddpi_prim_scratch_bytes(converter->reorder));
    return DDP_OK;
}

static ddp_status prepare(ddpi_converter *converter)
{
    const ddpi_cpu_layout *from = ddpi_cpu_layout_of(converter->from);
    const ddpi_cpu_layout *to = ddpi_cpu_layout_of(converter->to);
    if (ddp_layout_equal(&from->base, &to->base))
        return DDP_OK;
    if (!from->batch && !to->batch)
        return add_reorder(converter, from->md, to->md);
    const ddpi_cpu_layout *other = from->batch ? to : from;
    if (other->base.plain)
        return DDP_OK;
    converter->two_steps = true;
    ddpi_md *plain;
    DDP_TRY(ddpi_md_create(&from->base.shape, false, &plain));
    (void)ddpi_take(&converter->scratch_bytes, ddpi_md_bytes(plain));
    const ddp_status st = from->batch ? add_reorder(converter, plain, to->md)
                                      : add_reorder(converter, from->md, plain);
    ddpi_md_destroy(plain);
    return st;
}

ddp_status ddpi_converter_create(ddp_layout *from, ddp_layout *to, ddpi_converter **converter_out)
{
    ddpi_converter *converter;
    DDP_TRY(DDP_ALLOC(converter, 1));
    converter->from = ddp_layout_ref(from);
    converter->to = ddp_layout_ref(to);
    const ddp_status st = prepare(converter);
    if (st != DDP_OK)
        ddpi_converter_destroy(converter);
    else
        *converter_out = converter;
    return st;
}

void ddpi_converter_destroy(ddpi_converter *converter)
{
    if (converter == NULL)
        return;
    ddp_layout_unref(converter->from);
    ddp_layout_unref(converter->to);
    ddpi_prim_destroy(converter->reorder);
    ddp_free(converter);
}

typedef struct pack_args {
    const ddp_shape *shape;
    float *plain, *blocks;
    bool pack;
} pack_args;

static void pack_part(void *arg, int64_t block)
{
    const pack_args *args = arg;
    const ddp_shape *shape = args->shape;
    const int64_t elements = ddp_shape_count(shape) / shape->dims[0];
    const int64_t first = block * DDPI_BATCH_LANES;
    const int lanes = (int)ddpi_min(shape->dims[0] - first, DDPI_BATCH_LANES);
    if (args->pack)
        ddpi_batch_pack(args->plain + first * elements, elements, lanes,
                        args->blocks + first * elements);
    else
        ddpi_batch_unpack(args->blocks + first * elements, elements, lanes,
                          args->plain + first * elements);
}

static void pack(const ddpi_converter *converter, float *plain, float *blocks, bool to_blocks)
{
    const ddp_shape *shape = &converter->from->shape;
    pack_args args = {shape, plain, blocks, to_blocks};
    ddpi_parallel(converter->from->device->opts.threads,
                  ddpi_ceil_div(shape->dims[0], DDPI_BATCH_LANES), pack_part, &args);
}

ddp_status ddpi_converter_run(const ddpi_converter *converter, const void *src, void *dst,
                              void *scratch)
{
    const ddpi_cpu_layout *from = ddpi_cpu_layout_of(converter->from);
    const ddpi_cpu_layout *to = ddpi_cpu_layout_of(converter->to);
    if (from->batch == to->batch && converter->reorder == NULL) {
        memcpy(dst, src, converter->from->bytes);
        return DDP_OK;
    }
    if (converter->reorder == NULL) {
        pack(converter, from->batch ? dst : (void *)src, from->batch ? (void *)src : dst,
             to->batch);
        return DDP_OK;
    }
    if (!converter->two_steps)
        return ddpi_prim_run(converter->reorder, (void *[]){(void *)src, dst}, scratch);
    float *plain = scratch;
    size_t used = 0;
    (void)ddpi_take(&used, (size_t)ddp_shape_count(&from->base.shape) * sizeof *plain);
    char *reorder_scratch = (char *)scratch + used;
    if (from->batch) {
        pack(converter, plain, (void *)src, false);
        return ddpi_prim_run(converter->reorder, (void *[]){plain, dst}, reorder_scratch);
    }
    DDP_TRY(ddpi_prim_run(converter->reorder, (void *[]){(void *)src, plain}, reorder_scratch));
    pack(converter, plain, dst, true);
    return DDP_OK;
}

/* ---- operands ---- */

ddp_status ddpi_operand_create(ddp_layout *user, ddp_layout *kernel, bool writes, size_t *bytes,
                               ddpi_operand *operand_out)
{
    if (ddp_layout_equal(user, kernel))
        return DDP_OK;
    operand_out->offset = ddpi_take(bytes, kernel->bytes);
    return writes ? ddpi_converter_create(kernel, user, &operand_out->out)
                  : ddpi_converter_create(user, kernel, &operand_out->in);
}

void ddpi_operand_destroy(ddpi_operand *operand)
{
    ddpi_converter_destroy(operand->in);
    ddpi_converter_destroy(operand->out);
}

size_t ddpi_operand_scratch_bytes(const ddpi_operand *operand)
{
    return operand->in != NULL    ? operand->in->scratch_bytes
           : operand->out != NULL ? operand->out->scratch_bytes
                                  : 0;
}

ddp_status ddpi_operand_begin(const ddpi_operand *operand, const void *user, char *scratch,
                              char *converter_scratch, void **kernel_out)
{
    if (operand->in == NULL && operand->out == NULL) {
        *kernel_out = (void *)user;
        return DDP_OK;
    }
    *kernel_out = scratch + operand->offset;
    return operand->in != NULL
               ? ddpi_converter_run(operand->in, user, *kernel_out, converter_scratch)
               : DDP_OK;
}

ddp_status ddpi_operand_end(const ddpi_operand *operand, void *user, char *scratch,
                            char *converter_scratch)
{
    return operand->out != NULL ? ddpi_converter_run(operand->out, scratch + operand->offset, user,
                                                     converter_scratch)
                                : DDP_OK;
}
