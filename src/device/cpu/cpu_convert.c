/* cpu_convert.c - copies of tensors from one layout and element type to another.
 *
 * Layouts of oneDNN's are reordered by the library, which rounds to bf16 on the way where it can;
 * blocks of 16 images are packed from and to plain by our own loops, and so are elements widened
 * and rounded that keep their places. A copy that nothing does at once is a chain of these. */
#include <string.h>

#include "ddp/memory.h"
#include "device/cpu/batch_kernels.h"
#include "device/cpu/bf16.h"
#include "device/cpu/cpu_impl.h"

size_t ddpi_take(size_t *bytes, size_t want)
{
    const size_t offset = *bytes;
    *bytes += (want + DDP_ALIGN_BYTES - 1) / DDP_ALIGN_BYTES * DDP_ALIGN_BYTES;
    return offset;
}

/* ---- chains ---- */

static bool is_batch(const ddp_layout *layout)
{
    return ddpi_cpu_layout_of(layout)->batch;
}

/* The next step of the chain, to this layout. */
static ddpi_step *next_step(ddpi_converter *converter, ddpi_step_kind kind, ddp_layout *to)
{
    DDP_ASSERT(converter->step_count < DDPI_MAX_STEPS);
    ddpi_step *step = &converter->steps[converter->step_count++];
    step->kind = kind;
    step->to = ddp_layout_ref(to);
    return step;
}

static ddp_status add_reorder(ddpi_converter *converter, ddp_layout *from, ddp_layout *to)
{
    ddpi_prim *prim;
    DDP_TRY(ddpi_prim_reorder(ddpi_cpu_of(from->device)->dnnl, ddpi_cpu_layout_of(from)->md,
                              ddpi_cpu_layout_of(to)->md, &prim));
    next_step(converter, DDPI_STEP_REORDER, to)->prim = prim;
    return DDP_OK;
}

/* A bf16 layout's elements as f32 in the same places; DDP_ERR_UNSUPPORTED if that has no name. */
static ddp_status retype_exactly(ddp_layout *layout, ddp_layout **layout_out)
{
    ddpi_md *md;
    DDP_TRY(ddpi_md_retype(ddpi_cpu_layout_of(layout)->md, DDP_F32, &md));
    return ddpi_layout_of_md(layout->device, &layout->shape, md, layout_out);
}

/* From or to bf16: in place if that is all, else by the library, else by our own loop before or
 * after a reorder of f32. */
static ddp_status add_typed(ddpi_converter *converter, ddp_layout *from, ddp_layout *to)
{
    const bool widen = from->dtype == DDP_BF16;
    const ddpi_step_kind kind = widen ? DDPI_STEP_WIDEN : DDPI_STEP_NARROW;
    ddp_layout *f32;
    ddp_status st = retype_exactly(widen ? from : to, &f32);
    if (st == DDP_ERR_UNSUPPORTED)
        return add_reorder(converter, from, to);
    DDP_TRY(st);
    if (ddp_layout_equal(f32, widen ? to : from)) {
        next_step(converter, kind, to);
    } else {
        st = add_reorder(converter, from, to);
        if (st == DDP_ERR_UNSUPPORTED) {
            if (widen)
                next_step(converter, kind, f32);
            st = add_reorder(converter, widen ? f32 : from, widen ? to : f32);
            if (!widen && st == DDP_OK)
                next_step(converter, kind, to);
        }
    }
    ddp_layout_unref(f32);
    return st;
}

/* Between layouts of oneDNN. */
static ddp_status add_library(ddpi_converter *converter, ddp_layout *from, ddp_layout *to)
{
    if (ddp_layout_equal(from, to))
        return DDP_OK;
    if (from->dtype == DDP_BF16 && to->dtype == DDP_BF16) {
        const ddp_status st = add_reorder(converter, from, to);
        if (st != DDP_ERR_UNSUPPORTED)
            return st;
        ddp_layout *f32;
        DDP_TRY(retype_exactly(from, &f32));
        next_step(converter, DDPI_STEP_WIDEN, f32);
        ddp_layout_unref(f32);
        return add_typed(converter, f32, to);
    }
    return from->dtype == to->dtype ? add_reorder(converter, from, to)
                                    : add_typed(converter, from, to);
}

static ddp_status add_steps(ddpi_converter *converter, ddp_layout *from, ddp_layout *to)
{
    if (is_batch(from) == is_batch(to))
        return is_batch(from) ? DDP_OK : add_library(converter, from, to);
    ddp_layout *plain;
    ddp_status st = DDP_OK;
    DDP_TRY(ddpi_layout_plain(from->device, &from->shape, &plain));
    if (is_batch(from)) {
        next_step(converter, DDPI_STEP_UNPACK, plain);
        st = add_library(converter, plain, to);
    } else {
        st = add_library(converter, from, plain);
        if (st == DDP_OK)
            next_step(converter, DDPI_STEP_PACK, to);
    }
    ddp_layout_unref(plain);
    return st;
}

/* Scratch memory: what lies between the steps, and the library's own. */
static void deal_scratch(ddpi_converter *converter)
{
    size_t library = 0;
    for (int i = 0; i < converter->step_count; i++) {
        ddpi_step *step = &converter->steps[i];
        if (i + 1 < converter->step_count)
            step->offset = ddpi_take(&converter->scratch_bytes, step->to->bytes);
        if (step->prim != NULL && ddpi_prim_scratch_bytes(step->prim) > library)
            library = ddpi_prim_scratch_bytes(step->prim);
    }
    converter->library = ddpi_take(&converter->scratch_bytes, library);
}

ddp_status ddpi_converter_create(ddp_layout *from, ddp_layout *to, ddpi_converter **converter_out)
{
    ddpi_converter *converter;
    DDP_TRY(DDP_ALLOC(converter, 1));
    converter->from = ddp_layout_ref(from);
    const ddp_status st = add_steps(converter, from, to);
    if (st != DDP_OK) {
        ddpi_converter_destroy(converter);
        return st;
    }
    if (converter->step_count == 0)
        next_step(converter, DDPI_STEP_COPY, to);
    deal_scratch(converter);
    *converter_out = converter;
    return DDP_OK;
}

void ddpi_converter_destroy(ddpi_converter *converter)
{
    if (converter == NULL)
        return;
    for (int i = 0; i < converter->step_count; i++) {
        ddp_layout_unref(converter->steps[i].to);
        ddpi_prim_destroy(converter->steps[i].prim);
    }
    ddp_layout_unref(converter->from);
    ddp_free(converter);
}

/* ---- steps ---- */

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

static void pack(const ddp_layout *layout, float *plain, float *blocks, bool to_blocks)
{
    const ddp_shape *shape = &layout->shape;
    pack_args args = {shape, plain, blocks, to_blocks};
    ddpi_parallel(layout->device->opts.threads, ddpi_ceil_div(shape->dims[0], DDPI_BATCH_LANES),
                  pack_part, &args);
}

static ddp_status run_step(const ddpi_step *step, void *src, void *dst, void *library)
{
    const ddp_layout *to = step->to;
    const int threads = to->device->opts.threads;
    switch (step->kind) {
    case DDPI_STEP_REORDER:
        return ddpi_prim_run(step->prim, (void *[]){src, dst}, library);
    case DDPI_STEP_PACK:
        pack(to, src, dst, true);
        return DDP_OK;
    case DDPI_STEP_UNPACK:
        pack(to, dst, src, false);
        return DDP_OK;
    case DDPI_STEP_WIDEN:
        ddpi_bf16_widen(threads, dst, src, to->bytes / sizeof(float));
        return DDP_OK;
    case DDPI_STEP_NARROW:
        ddpi_bf16_narrow(threads, dst, src, ddpi_layout_elements(to));
        return DDP_OK;
    default:
        memcpy(dst, src, to->bytes);
        return DDP_OK;
    }
}

ddp_status ddpi_converter_run(const ddpi_converter *converter, const void *src, void *dst,
                              void *scratch)
{
    char *memory = scratch;
    void *from = (void *)src;
    for (int i = 0; i < converter->step_count; i++) {
        const ddpi_step *step = &converter->steps[i];
        void *to = i + 1 < converter->step_count ? memory + step->offset : dst;
        DDP_TRY(run_step(step, from, to, memory + converter->library));
        from = to;
    }
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

ddp_status ddpi_source_operands(const ddpi_plan_parts *parts, ddp_dtype dtype, size_t *bytes,
                                ddpi_operand *src, ddpi_operand *diff_src)
{
    ddp_layout *rows;
    DDP_TRY(ddpi_layout_rows(parts->device, &parts->src->shape, dtype, &rows));
    ddp_status st = ddpi_operand_create(parts->src, rows, false, bytes, src);
    if (st == DDP_OK && parts->desc->need_diff_src)
        st = ddpi_operand_create(parts->src, rows, true, bytes, diff_src);
    ddp_layout_unref(rows);
    return st;
}

size_t ddpi_take_converter(size_t *bytes, const ddpi_operand *a, const ddpi_operand *b)
{
    const size_t x = ddpi_operand_scratch_bytes(a), y = ddpi_operand_scratch_bytes(b);
    return ddpi_take(bytes, x > y ? x : y);
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
