/* cpu_dnnl_conv.c - oneDNN's primitives of convolutions and inner products, in its versions 2 and
 * 3, which merged operation descriptors into primitive descriptors. Plans for inference use the
 * primitives of training too, so that layouts are the same. */
#include <string.h>

#include "ddp/memory.h"
#include "device/cpu/cpu_dnnl_impl.h"

/* ---- descriptors of convolutions, by version ---- */

typedef struct conv_parts {
    ddpi_md_view src, weights, bias, dst; /* bias may be NULL */
    dnnl_dims_t strides, pads, dilates;
} conv_parts;

static dnnl_alg_kind_t algorithm(const ddpi_conv_request *request)
{
    return request->winograd ? dnnl_convolution_winograd : dnnl_convolution_direct;
}

#if DNNL_VERSION_MAJOR >= 3

static dnnl_status_t conv_desc_create(dnnl_engine_t engine, const ddpi_conv_request *request,
                                      const conv_parts *p, dnnl_primitive_attr_t attr,
                                      dnnl_primitive_desc_t *desc_out)
{
    switch (request->pass) {
    case DDP_PASS_FORWARD:
        return dnnl_convolution_forward_primitive_desc_create(
            desc_out, engine, dnnl_forward_training, algorithm(request), p->src, p->weights,
            p->bias, p->dst, p->strides, p->dilates, p->pads, p->pads, attr);
    case DDP_PASS_BACKWARD_DATA:
        return dnnl_convolution_backward_data_primitive_desc_create(
            desc_out, engine, algorithm(request), p->src, p->weights, p->dst, p->strides,
            p->dilates, p->pads, p->pads, request->forward->desc, attr);
    default:
        return dnnl_convolution_backward_weights_primitive_desc_create(
            desc_out, engine, algorithm(request), p->src, p->weights, p->bias, p->dst, p->strides,
            p->dilates, p->pads, p->pads, request->forward->desc, attr);
    }
}

static dnnl_status_t inner_desc_create(dnnl_engine_t engine, const ddpi_conv_request *request,
                                       const conv_parts *p, dnnl_primitive_attr_t attr,
                                       dnnl_primitive_desc_t *desc_out)
{
    switch (request->pass) {
    case DDP_PASS_FORWARD:
        return dnnl_inner_product_forward_primitive_desc_create(
            desc_out, engine, dnnl_forward_training, p->src, p->weights, p->bias, p->dst, attr);
    case DDP_PASS_BACKWARD_DATA:
        return dnnl_inner_product_backward_data_primitive_desc_create(
            desc_out, engine, p->src, p->weights, p->dst, request->forward->desc, attr);
    default:
        return dnnl_inner_product_backward_weights_primitive_desc_create(
            desc_out, engine, p->src, p->weights, p->bias, p->dst, request->forward->desc, attr);
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
        status = dnnl_convolution_forward_desc_init(&conv, dnnl_forward_training,
                                                    algorithm(request), p->src, p->weights, p->bias,
                                                    p->dst, p->strides, p->pads, p->pads);
        break;
    case DDP_PASS_BACKWARD_DATA:
        status = dnnl_convolution_backward_data_desc_init(
            &conv, algorithm(request), p->src, p->weights, p->dst, p->strides, p->pads, p->pads);
        break;
    default:
        status = dnnl_convolution_backward_weights_desc_init(&conv, algorithm(request), p->src,
                                                             p->weights, p->bias, p->dst,
                                                             p->strides, p->pads, p->pads);
        break;
    }
    if (status != dnnl_success)
        return status;
    return dnnl_primitive_desc_create(desc_out, &conv, attr, engine,
                                      request->forward != NULL ? request->forward->desc : NULL);
}

static dnnl_status_t inner_desc_create(dnnl_engine_t engine, const ddpi_conv_request *request,
                                       const conv_parts *p, dnnl_primitive_attr_t attr,
                                       dnnl_primitive_desc_t *desc_out)
{
    dnnl_inner_product_desc_t inner;
    dnnl_status_t status;
    switch (request->pass) {
    case DDP_PASS_FORWARD:
        status = dnnl_inner_product_forward_desc_init(&inner, dnnl_forward_training, p->src,
                                                      p->weights, p->bias, p->dst);
        break;
    case DDP_PASS_BACKWARD_DATA:
        status = dnnl_inner_product_backward_data_desc_init(&inner, p->src, p->weights, p->dst);
        break;
    default:
        status = dnnl_inner_product_backward_weights_desc_init(&inner, p->src, p->weights, p->bias,
                                                               p->dst);
        break;
    }
    if (status != dnnl_success)
        return status;
    return dnnl_primitive_desc_create(desc_out, &inner, attr, engine,
                                      request->forward != NULL ? request->forward->desc : NULL);
}

#endif

/* ---- making ---- */

static ddp_status finish_conv(ddpi_dnnl *dnnl, const ddpi_conv_request *request, ddpi_prim *prim,
                              ddpi_md_view bias)
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
        DDP_TRY(ddpi_prim_operand(dnnl, prim, args[request->pass][i],
                                  ddpi_prim_query(prim, prim->queries[i])));
    if (bias != NULL)
        DDP_TRY(ddpi_prim_operand(dnnl, prim, args[request->pass][DDPI_CONV_BIAS], bias));
    return ddpi_prim_finish(dnnl, prim);
}

static ddp_status create_conv(ddpi_dnnl *dnnl, const ddpi_conv_request *request,
                              const ddpi_md *bias, ddpi_prim *prim)
{
    const ddp_conv2d_desc *conv = request->conv;
    const bool relu = conv != NULL ? conv->relu : request->linear->relu;
    conv_parts parts = {
        .src = ddpi_md_view_of(request->md[DDPI_CONV_SRC]),
        .weights = ddpi_md_view_of(request->md[DDPI_CONV_WEIGHTS]),
        .dst = ddpi_md_view_of(request->md[DDPI_CONV_DST]),
        .bias = bias != NULL ? ddpi_md_view_of(bias) : NULL,
    };
    dnnl_primitive_attr_t attr;
    dnnl_status_t status;
    DDP_TRY(ddpi_prim_attr(relu && request->pass == DDP_PASS_FORWARD, &attr));
    if (conv != NULL) {
        parts.strides[0] = conv->stride_h;
        parts.strides[1] = conv->stride_w;
        parts.pads[0] = conv->pad_h;
        parts.pads[1] = conv->pad_w;
        status = conv_desc_create(dnnl->engine, request, &parts, attr, &prim->desc);
    } else {
        status = inner_desc_create(dnnl->engine, request, &parts, attr, &prim->desc);
    }
    dnnl_primitive_attr_destroy(attr);
    DDP_TRY(ddpi_dnnl_check(status,
                            conv != NULL ? "describe a convolution" : "describe an inner product"));
    return finish_conv(dnnl, request, prim, parts.bias);
}

ddp_status ddpi_prim_conv(ddpi_dnnl *dnnl, const ddpi_conv_request *request, ddpi_prim **prim_out)
{
    const ddp_conv2d_desc *conv = request->conv;
    const ddp_linear_desc *linear = request->linear;
    const ddp_shape bias_shape = {1, {conv != NULL ? conv->out_channels : linear->out_features}};
    const bool has_bias = conv != NULL ? conv->bias : linear->bias;
    ddpi_md *bias = NULL;
    ddpi_prim *prim;
    ddp_status st;
    DDP_TRY(DDP_ALLOC(prim, 1));
    if (has_bias && request->pass != DDP_PASS_BACKWARD_DATA)
        DDP_TRY_GOTO(st, ddpi_md_create(&bias_shape, DDP_F32, false, &bias), err_prim);
    DDP_TRY_GOTO(st, create_conv(dnnl, request, bias, prim), err_prim);
    ddpi_md_destroy(bias);
    *prim_out = prim;
    return DDP_OK;
err_prim:
    ddpi_md_destroy(bias);
    ddpi_prim_destroy(prim);
    return st;
}

bool ddpi_dnnl_winograd(ddpi_dnnl *dnnl)
{
    const ddp_shape image = {4, {1, 16, 12, 12}}, kernel = {4, {16, 16, 3, 3}};
    const ddp_conv2d_desc conv = {16, 3, 3, 1, 1, 1, 1, false, false};
    ddpi_md *images = NULL, *weights = NULL;
    ddpi_prim *prim = NULL;
    ddp_status st = ddpi_md_create(&image, DDP_F32, true, &images);
    if (st == DDP_OK)
        st = ddpi_md_create(&kernel, DDP_F32, true, &weights);
    if (st == DDP_OK) {
        const ddpi_conv_request request = {.pass = DDP_PASS_FORWARD,
                                           .conv = &conv,
                                           .winograd = true,
                                           .md = {images, weights, images}};
        st = ddpi_prim_conv(dnnl, &request, &prim);
    }
    ddpi_prim_destroy(prim);
    ddpi_md_destroy(images);
    ddpi_md_destroy(weights);
    return st == DDP_OK;
}
