/* cpu_dnnl_impl.h - what the files that know oneDNN's C API share. */
#ifndef DDP_DEVICE_CPU_CPU_DNNL_IMPL_H
#define DDP_DEVICE_CPU_CPU_DNNL_IMPL_H

#include <dnnl.h>

#include "device/cpu/cpu_dnnl.h"

struct ddpi_dnnl {
    dnnl_engine_t engine;
};

struct ddpi_md {
    dnnl_memory_desc_t desc;
};

/* How the library takes a memory descriptor. */
#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t ddpi_md_view;

static inline ddpi_md_view ddpi_md_view_of(const ddpi_md *md)
{
    return md->desc;
}
#else
typedef const dnnl_memory_desc_t *ddpi_md_view;

static inline ddpi_md_view ddpi_md_view_of(const ddpi_md *md)
{
    return &md->desc;
}
#endif

/* The library's status as ours; what: the thing that was tried. */
DDP_INNER ddp_status ddpi_dnnl_check(dnnl_status_t status, const char *what);
/* A copy that its caller owns. */
DDP_INNER ddp_status ddpi_md_clone(ddpi_md_view from, ddpi_md **md_out);

#define DDPI_MAX_OPERANDS 5 /* of a convolution, with scratch memory */

struct ddpi_prim {
    dnnl_stream_t stream;
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t primitive;
    int operand_count; /* scratch memory is the last */
    dnnl_exec_arg_t args[DDPI_MAX_OPERANDS];
    int queries[3]; /* what asks for the operands' descriptors; reorders need none */
    size_t scratch_bytes;
};

static inline ddpi_md_view ddpi_prim_query(const ddpi_prim *prim, int query)
{
    return dnnl_primitive_desc_query_md(prim->desc, (dnnl_query_t)query, 0);
}

/* Primitives have their scratch memory from the caller; relu: applied to the result. */
DDP_INNER ddp_status ddpi_prim_attr(bool relu, dnnl_primitive_attr_t *attr_out);
DDP_INNER ddp_status ddpi_prim_operand(ddpi_dnnl *dnnl, ddpi_prim *prim, int arg,
                                       ddpi_md_view desc);
/* Makes the primitive of prim->desc, its stream, and its scratch operand. */
DDP_INNER ddp_status ddpi_prim_finish(ddpi_dnnl *dnnl, ddpi_prim *prim);

#endif
