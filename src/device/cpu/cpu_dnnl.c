/* cpu_dnnl.c - everything that knows oneDNN's C API, in its versions 2 and 3.
 *
 * Version 3 made memory descriptors opaque and merged operation descriptors into primitive
 * descriptors; the differences stay in the functions of the first two sections. Primitives take
 * their scratch memory from the caller, so that running one allocates nothing. An engine is shared
 * by a device's primitives; each primitive has a stream of its own, since streams of the CPU hold
 * no thread and cost nothing. No global state of ours; the library locks its own. */
#include "device/cpu/cpu_dnnl.h"

#include <dnnl.h>
#include <stdio.h>
#include <string.h>

#include "ddp/memory.h"

#define MAX_OPERANDS 5 /* of a convolution, with scratch memory */

struct ddpi_dnnl {
    dnnl_engine_t engine;
};

struct ddpi_prim {
    dnnl_stream_t stream;
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t primitive;
    int operand_count; /* without scratch memory */
    dnnl_exec_arg_t args[MAX_OPERANDS];
    int queries[3]; /* what asks for the operands' descriptors; reorders need none */
    size_t scratch_bytes;
};

static ddp_status check(dnnl_status_t status, const char *what)
{
    if (status == dnnl_success)
        return DDP_OK;
    if (status == dnnl_out_of_memory)
        return DDP_FAIL(DDP_ERR_NOMEM, "oneDNN: %s: out of memory", what);
    if (status == dnnl_unimplemented)
        return DDP_FAIL(DDP_ERR_UNSUPPORTED, "oneDNN: %s: not implemented", what);
    return DDP_FAIL(DDP_ERR_INTERNAL, "oneDNN: %s: status %d", what, (int)status);
}

/* ---- descriptors of memory, by version ---- */

struct ddpi_md {
    dnnl_memory_desc_t desc;
};

typedef struct md_blocking {
    int ndims, inner_count;
    const dnnl_dim_t *dims, *padded, *strides, *inner_sizes, *inner_dims;
} md_blocking;

#if DNNL_VERSION_MAJOR >= 3

typedef const_dnnl_memory_desc_t md_view;

static md_view view_of(const ddpi_md *md)
{
    return md->desc;
}

static dnnl_status_t desc_init(ddpi_md *md, int ndims, const dnnl_dims_t dims,
                               const dnnl_dim_t *strides)
{
    return dnnl_memory_desc_create_with_strides(&md->desc, ndims, dims, dnnl_f32, strides);
}

static dnnl_status_t desc_init_tag(ddpi_md *md, int ndims, const dnnl_dims_t dims,
                                   dnnl_format_tag_t tag)
{
    return dnnl_memory_desc_create_with_tag(&md->desc, ndims, dims, dnnl_f32, tag);
}

static ddp_status desc_copy(ddpi_md *md, md_view from)
{
    return check(dnnl_memory_desc_clone(&md->desc, from), "copy a memory description");
}

static void desc_release(ddpi_md *md)
{
    if (md->desc != NULL)
        dnnl_memory_desc_destroy(md->desc);
}

/* False for layouts that are not blocked. */
static bool blocking_of(const ddpi_md *md, md_blocking *out)
{
    dnnl_format_kind_t kind;
    dnnl_dims_t *dims, *padded, *strides, *sizes, *inner;
    if (dnnl_memory_desc_query(md->desc, dnnl_query_format_kind, &kind) != dnnl_success ||
        kind != dnnl_blocked)
        return false;
    if (dnnl_memory_desc_query(md->desc, dnnl_query_ndims_s32, &out->ndims) != dnnl_success ||
        dnnl_memory_desc_query(md->desc, dnnl_query_dims, &dims) != dnnl_success ||
        dnnl_memory_desc_query(md->desc, dnnl_query_padded_dims, &padded) != dnnl_success ||
        dnnl_memory_desc_query(md->desc, dnnl_query_strides, &strides) != dnnl_success ||
        dnnl_memory_desc_query(md->desc, dnnl_query_inner_nblks_s32, &out->inner_count) !=
            dnnl_success)
        return false;
    if (dnnl_memory_desc_query(md->desc, dnnl_query_inner_blks, &sizes) != dnnl_success ||
        dnnl_memory_desc_query(md->desc, dnnl_query_inner_idxs, &inner) != dnnl_success)
        return false;
    out->dims = *dims;
    out->padded = *padded;
    out->strides = *strides;
    out->inner_sizes = *sizes;
    out->inner_dims = *inner;
    return true;
}

static ddp_status append_relu(dnnl_post_ops_t ops)
{
    return check(dnnl_post_ops_append_eltwise(ops, dnnl_eltwise_relu, 0, 0), "append relu");
}

#else

typedef const dnnl_memory_desc_t *md_view;

static md_view view_of(const ddpi_md *md)
{
    return &md->desc;
}

static dnnl_status_t desc_init(ddpi_md *md, int ndims, const dnnl_dims_t dims,
                               const dnnl_dim_t *strides)
{
    return dnnl_memory_desc_init_by_strides(&md->desc, ndims, dims, dnnl_f32, strides);
}

static dnnl_status_t desc_init_tag(ddpi_md *md, int ndims, const dnnl_dims_t dims,
                                   dnnl_format_tag_t tag)
{
    return dnnl_memory_desc_init_by_tag(&md->desc, ndims, dims, dnnl_f32, tag);
}

static ddp_status desc_copy(ddpi_md *md, md_view from)
{
    md->desc = *from;
    return DDP_OK;
}

static void desc_release(ddpi_md *md)
{
    (void)md;
}

/* False for layouts that are not blocked. */
static bool blocking_of(const ddpi_md *md, md_blocking *out)
{
    const dnnl_blocking_desc_t *blocking = &md->desc.format_desc.blocking;
    if (md->desc.format_kind != dnnl_blocked)
        return false;
    *out = (md_blocking){md->desc.ndims,       blocking->inner_nblks, md->desc.dims,
                         md->desc.padded_dims, blocking->strides,     blocking->inner_blks,
                         blocking->inner_idxs};
    return true;
}

static ddp_status append_relu(dnnl_post_ops_t ops)
{
    return check(dnnl_post_ops_append_eltwise(ops, 1, dnnl_eltwise_relu, 0, 0), "append relu");
}

#endif

static md_view queried_md(const_dnnl_primitive_desc_t desc, int query)
{
    return dnnl_primitive_desc_query_md(desc, (dnnl_query_t)query, 0);
}

/* ---- descriptors of convolutions, by version ---- */

typedef struct conv_parts {
    md_view src, weights, bias, dst; /* bias may be NULL */
    dnnl_dims_t strides, pads, dilates;
} conv_parts;

static dnnl_prop_kind_t forward_kind(const ddpi_conv_request *request)
{
    return request->training ? dnnl_forward_training : dnnl_forward_inference;
}

#if DNNL_VERSION_MAJOR >= 3

static dnnl_status_t conv_desc_create(dnnl_engine_t engine, const ddpi_conv_request *request,
                                      const conv_parts *p, dnnl_primitive_attr_t attr,
                                      dnnl_primitive_desc_t *desc_out)
{
    switch (request->pass) {
    case DDP_PASS_FORWARD:
        return dnnl_convolution_forward_primitive_desc_create(
            desc_out, engine, forward_kind(request), dnnl_convolution_direct, p->src, p->weights,
            p->bias, p->dst, p->strides, p->dilates, p->pads, p->pads, attr);
    case DDP_PASS_BACKWARD_DATA:
        return dnnl_convolution_backward_data_primitive_desc_create(
            desc_out, engine, dnnl_convolution_direct, p->src, p->weights, p->dst, p->strides,
            p->dilates, p->pads, p->pads, request->forward->desc, attr);
    default:
        return dnnl_convolution_backward_weights_primitive_desc_create(
            desc_out, engine, dnnl_convolution_direct, p->src, p->weights, p->bias, p->dst,
            p->strides, p->dilates, p->pads, p->pads, request->forward->desc, attr);
    }
}

#else

static dnnl_status_t conv_desc_create(dnnl_engine_t engine, const ddpi_conv_request *request,
                                      const conv_parts *p, dnnl_primitive_attr_t attr,
                                      dnnl_primitive_desc_t *desc_out)
{
    dnnl_convolution_desc_t conv;
    dnnl_status_t status;
    switch (request->pass) {
    case DDP_PASS_FORWARD:
        status = dnnl_convolution_forward_desc_init(&conv, forward_kind(request),
                                                    dnnl_convolution_direct, p->src, p->weights,
                                                    p->bias, p->dst, p->strides, p->pads, p->pads);
        break;
    case DDP_PASS_BACKWARD_DATA:
        status = dnnl_convolution_backward_data_desc_init(&conv, dnnl_convolution_direct, p->src,
                                                          p->weights, p->dst, p->strides, p->pads,
                                                          p->pads);
        break;
    default:
        status = dnnl_convolution_backward_weights_desc_init(&conv, dnnl_convolution_direct, p->src,
                                                             p->weights, p->bias, p->dst,
                                                             p->strides, p->pads, p->pads);
        break;
    }
    if (status != dnnl_success)
        return status;
    return dnnl_primitive_desc_create(desc_out, &conv, attr, engine,
                                      request->forward != NULL ? request->forward->desc : NULL);
}

#endif

/* ---- engine ---- */

ddp_status ddpi_dnnl_open(ddpi_dnnl **dnnl_out)
{
    ddpi_dnnl *dnnl;
    ddp_status st;
    DDP_TRY(DDP_ALLOC(dnnl, 1));
    DDP_TRY_GOTO(st, check(dnnl_engine_create(&dnnl->engine, dnnl_cpu, 0), "open the CPU"),
                 err_free);
    *dnnl_out = dnnl;
    return DDP_OK;
err_free:
    ddp_free(dnnl);
    return st;
}

void ddpi_dnnl_close(ddpi_dnnl *dnnl)
{
    if (dnnl == NULL)
        return;
    dnnl_engine_destroy(dnnl->engine);
    ddp_free(dnnl);
}

void ddpi_dnnl_describe(char *text, size_t text_bytes)
{
    const dnnl_version_t *version = dnnl_version();
    snprintf(text, text_bytes, "oneDNN %d.%d.%d (isa 0x%x)", version->major, version->minor,
             version->patch, (unsigned)dnnl_get_effective_cpu_isa());
}

/* ---- memory descriptors ---- */

ddp_status ddpi_md_create(const ddp_shape *shape, bool any, ddpi_md **md_out)
{
    dnnl_dims_t dims = {0}, strides = {0};
    ddpi_md *md;
    int64_t step = 1;
    for (int i = shape->ndim - 1; i >= 0; i--) {
        dims[i] = shape->dims[i];
        strides[i] = step;
        step *= shape->dims[i];
    }
    DDP_TRY(DDP_ALLOC(md, 1));
    const ddp_status st = check(any ? desc_init_tag(md, shape->ndim, dims, dnnl_format_tag_any)
                                    : desc_init(md, shape->ndim, dims, strides),
                                "describe memory");
    if (st != DDP_OK)
        ddp_free(md);
    else
        *md_out = md;
    return st;
}

static ddp_status md_clone(md_view from, ddpi_md **md_out)
{
    ddpi_md *md;
    DDP_TRY(DDP_ALLOC(md, 1));
    const ddp_status st = desc_copy(md, from);
    if (st != DDP_OK)
        ddp_free(md);
    else
        *md_out = md;
    return st;
}

void ddpi_md_destroy(ddpi_md *md)
{
    if (md == NULL)
        return;
    desc_release(md);
    ddp_free(md);
}

bool ddpi_md_equal(const ddpi_md *a, const ddpi_md *b)
{
    return dnnl_memory_desc_equal(view_of(a), view_of(b)) != 0;
}

bool ddpi_md_is_plain(const ddpi_md *md)
{
    md_blocking blocking;
    int64_t step = 1;
    if (!blocking_of(md, &blocking) || blocking.inner_count != 0)
        return false;
    for (int i = blocking.ndims - 1; i >= 0; i--) {
        if (blocking.dims[i] != blocking.padded[i])
            return false;
        if (blocking.dims[i] > 1 && blocking.strides[i] != step)
            return false;
        step *= blocking.dims[i];
    }
    return true;
}

size_t ddpi_md_bytes(const ddpi_md *md)
{
    return dnnl_memory_desc_get_size(view_of(md));
}

/* Dimensions from the slowest in memory to the fastest. */
static void memory_order(const md_blocking *blocking, int *order)
{
    for (int i = 0; i < blocking->ndims; i++) {
        int at = i;
        for (; at > 0 && blocking->strides[order[at - 1]] < blocking->strides[i]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
}

void ddpi_md_name(const ddpi_md *md, char *text, size_t text_bytes)
{
    md_blocking blocking;
    int order[DNNL_MAX_NDIMS];
    size_t length = 0;
    if (!blocking_of(md, &blocking)) {
        snprintf(text, text_bytes, "opaque");
        return;
    }
    memory_order(&blocking, order);
    for (int i = 0; i < blocking.ndims && length + 1 < text_bytes; i++) {
        bool split = false;
        for (int j = 0; j < blocking.inner_count; j++)
            split = split || blocking.inner_dims[j] == order[i];
        text[length++] = (char)((split ? 'A' : 'a') + order[i]);
    }
    text[length] = '\0';
    for (int j = 0; j < blocking.inner_count && length < text_bytes; j++)
        length += (size_t)snprintf(text + length, text_bytes - length, "%d%c",
                                   (int)blocking.inner_sizes[j],
                                   (char)('a' + (int)blocking.inner_dims[j]));
}

int64_t ddpi_md_inner(const ddpi_md *md)
{
    md_blocking b;
    if (!blocking_of(md, &b) || b.ndims != 4 || b.inner_count > 1)
        return 0;
    if (b.inner_count == 1 && b.inner_dims[0] != 1)
        return 0;
    int64_t inner = 1;
    if (b.inner_count == 1 && b.inner_sizes[0] != 4 && b.inner_sizes[0] != 8 &&
        b.inner_sizes[0] != 16)
        return 0;
    if (b.inner_count == 1)
        inner = b.inner_sizes[0];
    else if (b.strides[1] == 1)
        inner = b.dims[1];
    const bool rows = b.strides[3] == inner && b.strides[2] == inner * b.dims[3];
    return rows && b.dims[2] == b.padded[2] && b.dims[3] == b.padded[3] ? inner : 0;
}

ddp_status ddpi_md_like(const ddpi_md *md, const ddp_shape *shape, ddpi_md **md_out)
{
    md_blocking b;
    ddpi_md *like;
    dnnl_dims_t dims = {0};
    dnnl_format_tag_t tag = dnnl_nhwc;
    if (!blocking_of(md, &b))
        return DDP_FAIL(DDP_ERR_UNSUPPORTED, "a layout that is not blocked cannot be repeated");
    if (b.inner_count == 1)
        tag = b.inner_sizes[0] == 16  ? dnnl_nChw16c
              : b.inner_sizes[0] == 8 ? dnnl_nChw8c
                                      : dnnl_nChw4c;
    for (int i = 0; i < shape->ndim; i++)
        dims[i] = shape->dims[i];
    DDP_TRY(DDP_ALLOC(like, 1));
    const ddp_status st = check(desc_init_tag(like, shape->ndim, dims, tag), "describe images");
    if (st != DDP_OK)
        ddp_free(like);
    else
        *md_out = like;
    return st;
}

/* ---- primitives ---- */

static ddp_status attr_create(bool relu, dnnl_primitive_attr_t *attr_out)
{
    dnnl_primitive_attr_t attr;
    dnnl_post_ops_t ops;
    ddp_status st;
    DDP_TRY(check(dnnl_primitive_attr_create(&attr), "create attributes"));
    DDP_TRY_GOTO(st,
                 check(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user),
                       "set the scratch memory"),
                 err_attr);
    if (relu) {
        DDP_TRY_GOTO(st, check(dnnl_post_ops_create(&ops), "create operations"), err_attr);
        st = append_relu(ops);
        if (st == DDP_OK)
            st = check(dnnl_primitive_attr_set_post_ops(attr, ops), "set operations");
        dnnl_post_ops_destroy(ops);
        if (st != DDP_OK)
            goto err_attr;
    }
    *attr_out = attr;
    return DDP_OK;
err_attr:
    dnnl_primitive_attr_destroy(attr);
    return st;
}

static ddp_status add_operand(ddpi_dnnl *dnnl, ddpi_prim *prim, int index, int arg, md_view desc)
{
    prim->args[index].arg = arg;
    return check(
        dnnl_memory_create(&prim->args[index].memory, desc, dnnl->engine, DNNL_MEMORY_NONE),
        "create a memory object");
}

/* Makes the primitive of prim->desc, its stream, and its scratch operand. */
static ddp_status finish(ddpi_dnnl *dnnl, ddpi_prim *prim)
{
    md_view scratch = queried_md(prim->desc, dnnl_query_scratchpad_md);
    prim->scratch_bytes = dnnl_memory_desc_get_size(scratch);
    DDP_TRY(add_operand(dnnl, prim, prim->operand_count, DNNL_ARG_SCRATCHPAD, scratch));
    DDP_TRY(check(dnnl_primitive_create(&prim->primitive, prim->desc), "create a primitive"));
    return check(dnnl_stream_create(&prim->stream, dnnl->engine, dnnl_stream_default_flags),
                 "create a stream");
}

static ddp_status finish_conv(ddpi_dnnl *dnnl, const ddpi_conv_request *request, ddpi_prim *prim,
                              md_view bias)
{
    static const int args[3][DDPI_CONV_OPERANDS] = {
        {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS},
        {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST, 0},
        {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_BIAS}};
    static const int queries[3][3] = {
        {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md},
        {dnnl_query_diff_src_md, dnnl_query_weights_md, dnnl_query_diff_dst_md},
        {dnnl_query_src_md, dnnl_query_diff_weights_md, dnnl_query_diff_dst_md}};
    memcpy(prim->queries, queries[request->pass], sizeof prim->queries);
    for (int i = 0; i < 3; i++)
        DDP_TRY(add_operand(dnnl, prim, prim->operand_count++, args[request->pass][i],
                            queried_md(prim->desc, prim->queries[i])));
    if (bias != NULL)
        DDP_TRY(add_operand(dnnl, prim, prim->operand_count++, args[request->pass][DDPI_CONV_BIAS],
                            bias));
    return finish(dnnl, prim);
}

static ddp_status create_conv(ddpi_dnnl *dnnl, const ddpi_conv_request *request,
                              const ddpi_md *bias, ddpi_prim *prim)
{
    const ddp_conv2d_desc *conv = request->conv;
    const conv_parts parts = {
        .src = view_of(request->md[DDPI_CONV_SRC]),
        .weights = view_of(request->md[DDPI_CONV_WEIGHTS]),
        .dst = view_of(request->md[DDPI_CONV_DST]),
        .bias = bias != NULL ? view_of(bias) : NULL,
        .strides = {conv->stride_h, conv->stride_w},
        .pads = {conv->pad_h, conv->pad_w},
    };
    dnnl_primitive_attr_t attr;
    DDP_TRY(attr_create(conv->relu && request->pass == DDP_PASS_FORWARD, &attr));
    const dnnl_status_t status = conv_desc_create(dnnl->engine, request, &parts, attr, &prim->desc);
    dnnl_primitive_attr_destroy(attr);
    DDP_TRY(check(status, "describe a convolution"));
    return finish_conv(dnnl, request, prim, parts.bias);
}

ddp_status ddpi_prim_conv(ddpi_dnnl *dnnl, const ddpi_conv_request *request, ddpi_prim **prim_out)
{
    const ddp_shape bias_shape = {1, {request->conv->out_channels}};
    ddpi_md *bias = NULL;
    ddpi_prim *prim;
    ddp_status st;
    DDP_TRY(DDP_ALLOC(prim, 1));
    if (request->conv->bias && request->pass != DDP_PASS_BACKWARD_DATA)
        DDP_TRY_GOTO(st, ddpi_md_create(&bias_shape, false, &bias), err_prim);
    DDP_TRY_GOTO(st, create_conv(dnnl, request, bias, prim), err_prim);
    ddpi_md_destroy(bias);
    *prim_out = prim;
    return DDP_OK;
err_prim:
    ddpi_md_destroy(bias);
    ddpi_prim_destroy(prim);
    return st;
}

ddp_status ddpi_prim_reorder(ddpi_dnnl *dnnl, const ddpi_md *from, const ddpi_md *to,
                             ddpi_prim **prim_out)
{
    dnnl_primitive_attr_t attr;
    ddpi_prim *prim;
    ddp_status st;
    DDP_TRY(DDP_ALLOC(prim, 1));
    DDP_TRY_GOTO(st, attr_create(false, &attr), err_prim);
    const dnnl_status_t status = dnnl_reorder_primitive_desc_create(
        &prim->desc, view_of(from), dnnl->engine, view_of(to), dnnl->engine, attr);
    dnnl_primitive_attr_destroy(attr);
    DDP_TRY_GOTO(st, check(status, "describe a reorder"), err_prim);
    DDP_TRY_GOTO(st, add_operand(dnnl, prim, 0, DNNL_ARG_FROM, view_of(from)), err_prim);
    DDP_TRY_GOTO(st, add_operand(dnnl, prim, 1, DNNL_ARG_TO, view_of(to)), err_prim);
    prim->operand_count = 2;
    DDP_TRY_GOTO(st, finish(dnnl, prim), err_prim);
    *prim_out = prim;
    return DDP_OK;
err_prim:
    ddpi_prim_destroy(prim);
    return st;
}

void ddpi_prim_destroy(ddpi_prim *prim)
{
    if (prim == NULL)
        return;
    for (int i = 0; i < MAX_OPERANDS; i++)
        if (prim->args[i].memory != NULL)
            dnnl_memory_destroy(prim->args[i].memory);
    if (prim->stream != NULL)
        dnnl_stream_destroy(prim->stream);
    if (prim->primitive != NULL)
        dnnl_primitive_destroy(prim->primitive);
    if (prim->desc != NULL)
        dnnl_primitive_desc_destroy(prim->desc);
    ddp_free(prim);
}

ddp_status ddpi_prim_md(const ddpi_prim *prim, int index, ddpi_md **md_out)
{
    return md_clone(queried_md(prim->desc, prim->queries[index]), md_out);
}

size_t ddpi_prim_scratch_bytes(const ddpi_prim *prim)
{
    return prim->scratch_bytes;
}

const char *ddpi_prim_impl(const ddpi_prim *prim)
{
    const char *name;
    return dnnl_primitive_desc_query(prim->desc, dnnl_query_impl_info_str, 0, &name) == dnnl_success
               ? name
               : "unknown";
}

ddp_status ddpi_prim_run(ddpi_prim *prim, void *const *pointers, void *scratch)
{
    for (int i = 0; i < prim->operand_count; i++)
        DDP_TRY(check(dnnl_memory_set_data_handle(prim->args[i].memory, pointers[i]),
                      "set an operand"));
    DDP_TRY(check(dnnl_memory_set_data_handle(prim->args[prim->operand_count].memory, scratch),
                  "set the scratch memory"));
    DDP_TRY(check(
        dnnl_primitive_execute(prim->primitive, prim->stream, prim->operand_count + 1, prim->args),
        "run a primitive"));
    return check(dnnl_stream_wait(prim->stream), "wait for a primitive");
}

ddp_status ddpi_sgemm(const ddpi_gemm *gemm, const float *a, const float *b, float *c)
{
    return check(dnnl_sgemm(gemm->trans_a ? 'T' : 'N', gemm->trans_b ? 'T' : 'N', gemm->m, gemm->n,
                            gemm->k, 1.0f, a, gemm->lda, b, gemm->ldb, gemm->beta, c, gemm->ldc),
                 "matrix product");
}
