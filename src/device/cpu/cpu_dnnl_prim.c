/* cpu_dnnl_prim.c - oneDNN's primitives: what all have in common, reorders, matrix products.
 *
 * Primitives take their scratch memory from the caller, so that running one allocates nothing. Each
 * has a stream of its own, since streams of the CPU hold no thread and cost nothing. */
#include "ddp/memory.h"
#include "device/cpu/cpu_dnnl_impl.h"

#if DNNL_VERSION_MAJOR >= 3

static ddp_status append_relu(dnnl_post_ops_t ops)
{
    return ddpi_dnnl_check(dnnl_post_ops_append_eltwise(ops, dnnl_eltwise_relu, 0, 0),
                           "append relu");
}

#else

static ddp_status append_relu(dnnl_post_ops_t ops)
{
    return ddpi_dnnl_check(dnnl_post_ops_append_eltwise(ops, 1, dnnl_eltwise_relu, 0, 0),
                           "append relu");
}

#endif

/* ---- primitives ---- */

ddp_status ddpi_prim_attr(bool relu, dnnl_primitive_attr_t *attr_out)
{
    dnnl_primitive_attr_t attr;
    dnnl_post_ops_t ops;
    ddp_status st;
    DDP_TRY(ddpi_dnnl_check(dnnl_primitive_attr_create(&attr), "create attributes"));
    DDP_TRY_GOTO(
        st,
        ddpi_dnnl_check(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user),
                        "set the scratch memory"),
        err_attr);
    if (relu) {
        DDP_TRY_GOTO(st, ddpi_dnnl_check(dnnl_post_ops_create(&ops), "create operations"),
                     err_attr);
        st = append_relu(ops);
        if (st == DDP_OK)
            st = ddpi_dnnl_check(dnnl_primitive_attr_set_post_ops(attr, ops), "set operations");
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

ddp_status ddpi_prim_operand(ddpi_dnnl *dnnl, ddpi_prim *prim, int arg, ddpi_md_view desc)
{
    dnnl_exec_arg_t *operand = &prim->args[prim->operand_count++];
    operand->arg = arg;
    return ddpi_dnnl_check(
        dnnl_memory_create(&operand->memory, desc, dnnl->engine, DNNL_MEMORY_NONE),
        "create a memory object");
}

ddp_status ddpi_prim_finish(ddpi_dnnl *dnnl, ddpi_prim *prim)
{
    ddpi_md_view scratch = ddpi_prim_query(prim, dnnl_query_scratchpad_md);
    prim->scratch_bytes = dnnl_memory_desc_get_size(scratch);
    DDP_TRY(ddpi_prim_operand(dnnl, prim, DNNL_ARG_SCRATCHPAD, scratch));
    DDP_TRY(
        ddpi_dnnl_check(dnnl_primitive_create(&prim->primitive, prim->desc), "create a primitive"));
    return ddpi_dnnl_check(
        dnnl_stream_create(&prim->stream, dnnl->engine, dnnl_stream_default_flags),
        "create a stream");
}

ddp_status ddpi_prim_reorder(ddpi_dnnl *dnnl, const ddpi_md *from, const ddpi_md *to,
                             ddpi_prim **prim_out)
{
    dnnl_primitive_attr_t attr;
    ddpi_prim *prim;
    ddp_status st;
    DDP_TRY(DDP_ALLOC(prim, 1));
    DDP_TRY_GOTO(st, ddpi_prim_attr(false, &attr), err_prim);
    const dnnl_status_t status = dnnl_reorder_primitive_desc_create(
        &prim->desc, ddpi_md_view_of(from), dnnl->engine, ddpi_md_view_of(to), dnnl->engine, attr);
    dnnl_primitive_attr_destroy(attr);
    DDP_TRY_GOTO(st, ddpi_dnnl_check(status, "describe a reorder"), err_prim);
    DDP_TRY_GOTO(st, ddpi_prim_operand(dnnl, prim, DNNL_ARG_FROM, ddpi_md_view_of(from)), err_prim);
    DDP_TRY_GOTO(st, ddpi_prim_operand(dnnl, prim, DNNL_ARG_TO, ddpi_md_view_of(to)), err_prim);
    DDP_TRY_GOTO(st, ddpi_prim_finish(dnnl, prim), err_prim);
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
    for (int i = 0; i < DDPI_MAX_OPERANDS; i++)
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
    return ddpi_md_clone(ddpi_prim_query(prim, prim->queries[index]), md_out);
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
    const int last = prim->operand_count - 1;
    for (int i = 0; i <= last; i++)
        DDP_TRY(ddpi_dnnl_check(
            dnnl_memory_set_data_handle(prim->args[i].memory, i < last ? pointers[i] : scratch),
            "set an operand"));
    DDP_TRY(ddpi_dnnl_check(
        dnnl_primitive_execute(prim->primitive, prim->stream, prim->operand_count, prim->args),
        "run a primitive"));
    return ddpi_dnnl_check(dnnl_stream_wait(prim->stream), "wait for a primitive");
}

ddp_status ddpi_sgemm(const ddpi_gemm *gemm, const float *a, const float *b, float *c)
{
    return ddpi_dnnl_check(dnnl_sgemm(gemm->trans_a ? 'T' : 'N', gemm->trans_b ? 'T' : 'N', gemm->m,
                                      gemm->n, gemm->k, 1.0f, a, gemm->lda, b, gemm->ldb,
                                      gemm->beta, c, gemm->ldc),
                           "matrix product");
}
