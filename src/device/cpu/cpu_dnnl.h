/* cpu_dnnl.h - the part of oneDNN that the CPU device uses, the same for its versions 2 and 3.
 *
 * Only the files cpu_dnnl*.c see the library's own types. Memory descriptors are owned objects; a
 * primitive carries its memory objects, so that running it only sets pointers. */
#ifndef DDP_DEVICE_CPU_CPU_DNNL_H
#define DDP_DEVICE_CPU_CPU_DNNL_H

#include "ddp/op.h"

typedef struct ddpi_dnnl ddpi_dnnl; /* engine; one per device */
typedef struct ddpi_md ddpi_md;     /* memory descriptor of f32 or bf16 data */
typedef struct ddpi_prim ddpi_prim; /* a primitive; used by one thread at a time */

DDP_INNER ddp_status ddpi_dnnl_open(ddpi_dnnl **dnnl_out);
void ddpi_dnnl_close(ddpi_dnnl *dnnl);
/* Version and instruction set. */
void ddpi_dnnl_describe(char *text, size_t text_bytes);

/* Whether the processor has instructions for bf16. */
bool ddpi_dnnl_bf16(void);

/* ---- memory descriptors ---- */

/* Row-major, or, with any, of a layout that a primitive may choose. */
DDP_INNER ddp_status ddpi_md_create(const ddp_shape *shape, ddp_dtype dtype, bool any,
                                    ddpi_md **md_out);
/* The same arrangement of elements of another type; DDP_ERR_UNSUPPORTED if there is none. */
DDP_INNER ddp_status ddpi_md_retype(const ddpi_md *md, ddp_dtype dtype, ddpi_md **md_out);
void ddpi_md_destroy(ddpi_md *md);
bool ddpi_md_equal(const ddpi_md *a, const ddpi_md *b);
ddp_dtype ddpi_md_dtype(const ddpi_md *md);
/* Row-major without padding. */
bool ddpi_md_is_rows(const ddpi_md *md);
size_t ddpi_md_bytes(const ddpi_md *md);
/* "aBcd16b" and the like: dimensions in memory order, large where an inner block splits them. */
void ddpi_md_name(const ddpi_md *md, char *text, size_t text_bytes);
/* For 4-d data that lies as [planes][h][w][inner]: inner; else 0. */
int64_t ddpi_md_inner(const ddpi_md *md);
/* The layout of such data for another shape of as many images and channels. */
DDP_INNER ddp_status ddpi_md_like(const ddpi_md *md, const ddp_shape *shape, ddpi_md **md_out);

/* ---- primitives ---- */

/* The operands of a convolution pass in the order of ddpi_prim_run(); bias and its gradient come
 * last and only where there is one. */
enum { DDPI_CONV_SRC, DDPI_CONV_WEIGHTS, DDPI_CONV_DST, DDPI_CONV_BIAS, DDPI_CONV_OPERANDS };

typedef struct ddpi_conv_request {
    ddp_op_pass pass;
    const ddp_conv2d_desc *conv;   /* or NULL: an inner product of rows */
    const ddp_linear_desc *linear; /* then */
    bool winograd;
    const ddpi_md *md[3];     /* src, weights, dst, or their gradients; may be "any" */
    const ddpi_prim *forward; /* for the backward passes */
} ddpi_conv_request;

/* DDP_ERR_UNSUPPORTED if the library has no implementation for these layouts. */
DDP_INNER ddp_status ddpi_prim_conv(ddpi_dnnl *dnnl, const ddpi_conv_request *request,
                                    ddpi_prim **prim_out);
/* Whether the library has Winograd convolutions (version 2, f32, AVX-512). */
bool ddpi_dnnl_winograd(ddpi_dnnl *dnnl);
DDP_INNER ddp_status ddpi_prim_reorder(ddpi_dnnl *dnnl, const ddpi_md *from, const ddpi_md *to,
                                       ddpi_prim **prim_out);
void ddpi_prim_destroy(ddpi_prim *prim);
/* A copy of the descriptor that operand `index` (0 to 2) was created with. */
DDP_INNER ddp_status ddpi_prim_md(const ddpi_prim *prim, int index, ddpi_md **md_out);
size_t ddpi_prim_scratch_bytes(const ddpi_prim *prim);
/* The library's name of the implementation. */
const char *ddpi_prim_impl(const ddpi_prim *prim);
/* pointers: one per operand (reorder: from, to). Blocks until done. */
DDP_INNER ddp_status ddpi_prim_run(ddpi_prim *prim, void *const *pointers, void *scratch);

/* Row-major c[m][n] = op(a) op(b) + beta c, over rows of lda, ldb, ldc elements. Uses the calling
 * thread's number of threads. */
typedef struct ddpi_gemm {
    bool trans_a, trans_b;
    int64_t m, n, k, lda, ldb, ldc;
    float beta;
} ddpi_gemm;
DDP_INNER ddp_status ddpi_sgemm(const ddpi_gemm *gemm, const float *a, const float *b, float *c);

#endif
