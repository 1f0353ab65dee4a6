/* cpu_dnnl.c - oneDNN's engine and memory descriptors, in its versions 2 and 3.
 *
 * Version 3 made memory descriptors opaque; the difference stays in this file's first section. The
 * library's primitives are in cpu_dnnl_prim.c and cpu_dnnl_conv.c. An engine is shared by a
 * device's primitives. No global state of ours; the library locks its own. */
#include <dnnl_debug.h>
#include <stdio.h>
#include <string.h>

#include "ddp/memory.h"
#include "device/cpu/cpu_dnnl_impl.h"

ddp_status ddpi_dnnl_check(dnnl_status_t status, const char *what)
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

typedef struct md_blocking {
    int ndims, inner_count;
    const dnnl_dim_t *dims, *padded, *strides, *inner_sizes, *inner_dims;
} md_blocking;

#if DNNL_VERSION_MAJOR >= 3

static dnnl_status_t desc_init(ddpi_md *md, int ndims, const dnnl_dims_t dims,
                               const dnnl_dim_t *strides, dnnl_data_type_t type)
{
    return dnnl_memory_desc_create_with_strides(&md->desc, ndims, dims, type, strides);
}

static dnnl_status_t desc_init_tag(ddpi_md *md, int ndims, const dnnl_dims_t dims,
                                   dnnl_format_tag_t tag, dnnl_data_type_t type)
{
    return dnnl_memory_desc_create_with_tag(&md->desc, ndims, dims, type, tag);
}

static dnnl_data_type_t data_type_of(const ddpi_md *md)
{
    dnnl_data_type_t type = dnnl_data_type_undef;
    (void)dnnl_memory_desc_query(md->desc, dnnl_query_data_type, &type);
    return type;
}

static ddp_status desc_copy(ddpi_md *md, ddpi_md_view from)
{
    return ddpi_dnnl_check(dnnl_memory_desc_clone(&md->desc, from), "copy a memory description");
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

#else

static dnnl_status_t desc_init(ddpi_md *md, int ndims, const dnnl_dims_t dims,
                               const dnnl_dim_t *strides, dnnl_data_type_t type)
{
    return dnnl_memory_desc_init_by_strides(&md->desc, ndims, dims, type, strides);
}

static dnnl_status_t desc_init_tag(ddpi_md *md, int ndims, const dnnl_dims_t dims,
                                   dnnl_format_tag_t tag, dnnl_data_type_t type)
{
    return dnnl_memory_desc_init_by_tag(&md->desc, ndims, dims, type, tag);
}

static dnnl_data_type_t data_type_of(const ddpi_md *md)
{
    return md->desc.data_type;
}

static ddp_status desc_copy(ddpi_md *md, ddpi_md_view from)
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

#endif

/* ---- engine ---- */

ddp_status ddpi_dnnl_open(ddpi_dnnl **dnnl_out)
{
    ddpi_dnnl *dnnl;
    ddp_status st;
    DDP_TRY(DDP_ALLOC(dnnl, 1));
    DDP_TRY_GOTO(st,
                 ddpi_dnnl_check(dnnl_engine_create(&dnnl->engine, dnnl_cpu, 0), "open the CPU"),
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

bool ddpi_dnnl_bf16(void)
{
    const unsigned isa = (unsigned)dnnl_get_effective_cpu_isa();
    const unsigned bf16 = (unsigned)dnnl_cpu_isa_avx512_core_bf16;
    return (isa & bf16) == bf16;
}

void ddpi_dnnl_describe(char *text, size_t text_bytes)
{
    const dnnl_version_t *version = dnnl_version();
    snprintf(text, text_bytes, "oneDNN %d.%d.%d (isa 0x%x)", version->major, version->minor,
             version->patch, (unsigned)dnnl_get_effective_cpu_isa());
}
/* ---- memory descriptors ---- */

static dnnl_data_type_t type_of(ddp_dtype dtype)
{
    return dtype == DDP_BF16 ? dnnl_bf16 : dnnl_f32;
}

ddp_status ddpi_md_create(const ddp_shape *shape, ddp_dtype dtype, bool any, ddpi_md **md_out)
{
    const dnnl_data_type_t type = type_of(dtype);
    dnnl_dims_t dims = {0}, strides = {0};
    ddpi_md *md;
    int64_t step = 1;
    for (int i = shape->ndim - 1; i >= 0; i--) {
        dims[i] = shape->dims[i];
        strides[i] = step;
        step *= shape->dims[i];
    }
    DDP_TRY(DDP_ALLOC(md, 1));
    const ddp_status st =
        ddpi_dnnl_check(any ? desc_init_tag(md, shape->ndim, dims, dnnl_format_tag_any, type)
                            : desc_init(md, shape->ndim, dims, strides, type),
                        "describe memory");
    if (st != DDP_OK)
        ddp_free(md);
    else
        *md_out = md;
    return st;
}

ddp_status ddpi_md_clone(ddpi_md_view from, ddpi_md **md_out)
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
    return dnnl_memory_desc_equal(ddpi_md_view_of(a), ddpi_md_view_of(b)) != 0;
}

ddp_dtype ddpi_md_dtype(const ddpi_md *md)
{
    return data_type_of(md) == dnnl_bf16 ? DDP_BF16 : DDP_F32;
}

bool ddpi_md_is_rows(const ddpi_md *md)
{
    md_blocking b;
    int64_t step = 1;
    if (!blocking_of(md, &b) || b.inner_count != 0)
        return false;
    for (int i = b.ndims - 1; i >= 0; i--) {
        if (b.dims[i] != b.padded[i] || (b.dims[i] > 1 && b.strides[i] != step))
            return false;
        step *= b.dims[i];
    }
    return true;
}

size_t ddpi_md_bytes(const ddpi_md *md)
{
    return dnnl_memory_desc_get_size(ddpi_md_view_of(md));
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
    const ddp_status st = ddpi_dnnl_check(
        desc_init_tag(like, shape->ndim, dims, tag, data_type_of(md)), "describe images");
    if (st != DDP_OK)
        ddp_free(like);
    else
        *md_out = like;
    return st;
}

/* The library's tag of this arrangement; undef if it has none. */
static dnnl_format_tag_t tag_of(const ddpi_md *md)
{
    char name[64];
    ddpi_md_name(md, name, sizeof name);
    for (int tag = dnnl_format_tag_any + 1; tag < dnnl_format_tag_last; tag++)
        if (strcmp(dnnl_fmt_tag2str((dnnl_format_tag_t)tag), name) == 0)
            return (dnnl_format_tag_t)tag;
    return dnnl_format_tag_undef;
}

ddp_status ddpi_md_retype(const ddpi_md *md, ddp_dtype dtype, ddpi_md **md_out)
{
    md_blocking b;
    ddpi_md *other;
    ddp_shape shape = {0};
    dnnl_dims_t dims = {0};
    if (!blocking_of(md, &b))
        return DDP_FAIL(DDP_ERR_UNSUPPORTED, "a layout that is not blocked has no other types");
    shape.ndim = b.ndims;
    for (int i = 0; i < b.ndims; i++)
        dims[i] = shape.dims[i] = b.dims[i];
    if (ddpi_md_is_rows(md))
        return ddpi_md_create(&shape, dtype, false, md_out);
    const dnnl_format_tag_t tag = tag_of(md);
    if (tag == dnnl_format_tag_undef)
        return DDP_FAIL(DDP_ERR_UNSUPPORTED, "a layout without a name has no other types");
    DDP_TRY(DDP_ALLOC(other, 1));
    const ddp_status st = ddpi_dnnl_check(desc_init_tag(other, b.ndims, dims, tag, type_of(dtype)),
                                          "describe memory");
    if (st != DDP_OK)
        ddp_free(other);
    else
        *md_out = other;
    return st;
}
