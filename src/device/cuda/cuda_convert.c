/* cuda_convert.c - copies of a tensor in another order or type, as plans need them of their source.
 *
 * The kernels permute between channels last in either type and rows of f32. Other rows therefore
 * take a step through f32 in scratch memory; they only come up where a network's images turn into
 * features. Pure functions but for what is enqueued. */
#include "device/cuda/cuda_impl.h"
#include "device/cuda/kernels.h"

ddpi_cuda_conversion ddpi_cuda_conversion_of(const ddp_layout *from, bool nhwc, ddp_dtype dtype)
{
    const ddp_shape *shape = &from->shape;
    ddpi_cuda_conversion conversion = {.n = shape->dims[0]};
    if (shape->ndim == 4) {
        conversion.channels = shape->dims[1];
        conversion.pixels = shape->dims[2] * shape->dims[3];
    } else {
        DDP_ASSERT(!nhwc);
        conversion.channels = ddp_shape_count(shape) / shape->dims[0];
        conversion.pixels = 1;
    }
    conversion.from = (ddpi_cuda_form){!ddpi_cuda_is_rows(from), from->dtype};
    /* Where both orders are the same, the layout's counts. */
    const bool either = ddpi_cuda_is_rows(from) && (shape->ndim != 4 || ddpi_cuda_is_nhwc(from));
    conversion.to = (ddpi_cuda_form){either ? conversion.from.nhwc : nhwc, dtype};
    conversion.same = conversion.from.nhwc == conversion.to.nhwc && conversion.from.dtype == dtype;
    return conversion;
}

ddpi_cuda_conversion ddpi_cuda_reversed(const ddpi_cuda_conversion *conversion)
{
    ddpi_cuda_conversion reversed = *conversion;
    reversed.from = conversion->to;
    reversed.to = conversion->from;
    return reversed;
}

static int64_t count_of(const ddpi_cuda_conversion *conversion)
{
    return conversion->n * conversion->channels * conversion->pixels;
}

size_t ddpi_cuda_converted_bytes(const ddpi_cuda_conversion *conversion)
{
    return (size_t)count_of(conversion) * ddp_dtype_bytes(conversion->to.dtype);
}

/* Whether the side whose elements lie in rows is of bf16 or f16, and the other side is not in rows.
 */
static bool through_f32(const ddpi_cuda_conversion *conversion)
{
    const ddpi_cuda_form *rows = conversion->from.nhwc ? &conversion->to : &conversion->from;
    return conversion->from.nhwc != conversion->to.nhwc && rows->dtype != DDP_F32;
}

size_t ddpi_cuda_conversion_bytes(const ddpi_cuda_conversion *conversion)
{
    return through_f32(conversion) ? (size_t)count_of(conversion) * sizeof(float) : 0;
}

static ddp_status cast(const ddpi_cuda_conversion *conversion, cudaStream_t stream, const void *src,
                       void *dst, bool widen)
{
    const ddp_dtype from = conversion->from.dtype;
    const ddp_dtype narrow = from != DDP_F32 ? from : conversion->to.dtype;
    const ddpi_k_cast_args args = {src, dst, count_of(conversion), 1.0f, narrow, widen};
    return DDPI_CUDA_CHECK(ddpi_k_cast(stream, &args));
}

ddp_status ddpi_cuda_convert(const ddpi_cuda_conversion *conversion, ddp_stream *stream,
                             const void *src, void *dst, void *scratch)
{
    const ddpi_cuda_form from = conversion->from, to = conversion->to;
    const bool through = through_f32(conversion);
    if (conversion->same)
        return ddpi_cuda_copy(stream, dst, src, ddpi_cuda_converted_bytes(conversion),
                              DDP_COPY_ON_DEVICE);
    const cudaStream_t handle = ddpi_cuda_stream(stream);
    if (from.nhwc == to.nhwc)
        return cast(conversion, handle, src, dst, to.dtype == DDP_F32);
    const ddpi_k_images images = {from.nhwc || !through ? src : scratch,
                                  to.nhwc || !through ? dst : scratch,
                                  conversion->n,
                                  conversion->channels,
                                  conversion->pixels,
                                  from.nhwc ? from.dtype : to.dtype};
    if (to.nhwc) {
        if (through)
            DDP_TRY(cast(conversion, handle, src, scratch, true));
        return DDPI_CUDA_CHECK(ddpi_k_nchw_to_nhwc(handle, &images));
    }
    DDPI_CUDA_TRY(ddpi_k_nhwc_to_nchw(handle, &images));
    return through ? cast(conversion, handle, scratch, dst, false) : DDP_OK;
}
