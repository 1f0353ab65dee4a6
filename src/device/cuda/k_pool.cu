/* k_pool.cu - pooling over windows of channels-last images.
 *
 * A thread makes one pixel's pack of neighbouring channels: of the result going forward, of the
 * source going backward, where it gathers from the windows that cover it. So nothing is added to
 * twice, and sums have one order. The maximum keeps its position inside the window. */
#include "device/cuda/elements.cuh"

enum { MOST_POOL_BLOCKS = 8192 };

/* ---- windows ---- */

/* First and last but one pixel of a window that lie inside the image, along one side. */
INNER void window_span(int window, int stride, int pad, int kernel, int size, int *lo, int *hi)
{
    const int begin = window * stride - pad, end = begin + kernel;
    *lo = begin < 0 ? 0 : begin;
    *hi = end < size ? end : size;
}

/* The windows that cover a pixel, along one side. */
INNER void covering_span(int pixel, int stride, int pad, int kernel, int windows, int *lo, int *hi)
{
    const int last = (pixel + pad) / stride, before = pixel + pad - kernel;
    *lo = before < 0 ? 0 : before / stride + 1;
    *hi = last + 1 < windows ? last + 1 : windows;
}

/* Which pack of which pixel of which image a thread works on. */
struct place {
    int64_t image;
    int h, w, channel;
};

INNER place place_of(int64_t i, int h, int w, int packs, int v)
{
    place p;
    p.channel = (int)(i % packs) * v;
    i /= packs;
    p.w = (int)(i % w);
    i /= w;
    p.h = (int)(i % h);
    p.image = i / h;
    return p;
}

INNER int64_t pixel_at(int64_t image, int h, int w, int height, int width, int channels)
{
    return ((image * height + h) * width + w) * channels;
}

/* ---- average ---- */

template <class E, int V> __global__ void average_forward(ddpi_k_pool_args a, int64_t count)
{
    const int64_t all = (int64_t)gridDim.x * blockDim.x;
    const int packs = a.channels / V;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += all) {
        const place p = place_of(i, a.out_h, a.out_w, packs, V);
        int h0, h1, w0, w1;
        float sum[V], x[V];
        window_span(p.h, a.stride_h, a.pad_h, a.kernel_h, a.in_h, &h0, &h1);
        window_span(p.w, a.stride_w, a.pad_w, a.kernel_w, a.in_w, &w0, &w1);
        for (int v = 0; v < V; v++)
            sum[v] = 0;
        for (int h = h0; h < h1; h++)
            for (int w = w0; w < w1; w++) {
                load<E>(a.src, pixel_at(p.image, h, w, a.in_h, a.in_w, a.channels) + p.channel, x);
                for (int v = 0; v < V; v++)
                    sum[v] += x[v];
            }
        const float scale = 1.0f / (float)((h1 - h0) * (w1 - w0));
        for (int v = 0; v < V; v++)
            sum[v] *= scale;
        store<E>(a.dst, i * V, sum);
    }
}

template <class E, int V> __global__ void average_backward(ddpi_k_pool_args a, int64_t count)
{
    const int64_t all = (int64_t)gridDim.x * blockDim.x;
    const int packs = a.channels / V;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += all) {
        const place p = place_of(i, a.in_h, a.in_w, packs, V);
        int y0, y1, x0, x1;
        float sum[V], d[V];
        covering_span(p.h, a.stride_h, a.pad_h, a.kernel_h, a.out_h, &y0, &y1);
        covering_span(p.w, a.stride_w, a.pad_w, a.kernel_w, a.out_w, &x0, &x1);
        for (int v = 0; v < V; v++)
            sum[v] = 0;
        for (int y = y0; y < y1; y++)
            for (int x = x0; x < x1; x++) {
                int h0, h1, w0, w1;
                window_span(y, a.stride_h, a.pad_h, a.kernel_h, a.in_h, &h0, &h1);
                window_span(x, a.stride_w, a.pad_w, a.kernel_w, a.in_w, &w0, &w1);
                const float scale = 1.0f / (float)((h1 - h0) * (w1 - w0));
                load<E>(a.src, pixel_at(p.image, y, x, a.out_h, a.out_w, a.channels) + p.channel,
                        d);
                for (int v = 0; v < V; v++)
                    sum[v] += d[v] * scale;
            }
        store<E>(a.dst, i * V, sum);
    }
}

/* ---- maximum ---- */

template <int V> struct alignas(sizeof(uint16_t) * V) positions {
    uint16_t v[V];
};

/* A NaN wins, so that it is not lost; of equal values the first. */
template <class E, int V> __global__ void maximum_forward(ddpi_k_pool_args a, int64_t count)
{
    const int64_t all = (int64_t)gridDim.x * blockDim.x;
    const int packs = a.channels / V;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += all) {
        const place p = place_of(i, a.out_h, a.out_w, packs, V);
        const int top = p.h * a.stride_h - a.pad_h, left = p.w * a.stride_w - a.pad_w;
        int h0, h1, w0, w1;
        float best[V], x[V];
        positions<V> where;
        for (int v = 0; v < V; v++)
            best[v] = where.v[v] = 0;
        window_span(p.h, a.stride_h, a.pad_h, a.kernel_h, a.in_h, &h0, &h1);
        window_span(p.w, a.stride_w, a.pad_w, a.kernel_w, a.in_w, &w0, &w1);
        for (int h = h0; h < h1; h++)
            for (int w = w0; w < w1; w++) {
                const uint16_t at = (uint16_t)((h - top) * a.kernel_w + w - left);
                const bool first = h == h0 && w == w0;
                load<E>(a.src, pixel_at(p.image, h, w, a.in_h, a.in_w, a.channels) + p.channel, x);
                for (int v = 0; v < V; v++) {
                    const bool better = first || !(x[v] <= best[v] || best[v] != best[v]);
                    best[v] = better ? x[v] : best[v];
                    where.v[v] = better ? at : where.v[v];
                }
            }
        store<E>(a.dst, i * V, best);
        if (a.where != NULL)
            *(positions<V> *)(a.where + i * V) = where;
    }
}

template <class E, int V> __global__ void maximum_backward(ddpi_k_pool_args a, int64_t count)
{
    const int64_t all = (int64_t)gridDim.x * blockDim.x;
    const int packs = a.channels / V;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += all) {
        const place p = place_of(i, a.in_h, a.in_w, packs, V);
        int y0, y1, x0, x1;
        float sum[V], d[V];
        covering_span(p.h, a.stride_h, a.pad_h, a.kernel_h, a.out_h, &y0, &y1);
        covering_span(p.w, a.stride_w, a.pad_w, a.kernel_w, a.out_w, &x0, &x1);
        for (int v = 0; v < V; v++)
            sum[v] = 0;
        for (int y = y0; y < y1; y++)
            for (int x = x0; x < x1; x++) {
                const int64_t from =
                    pixel_at(p.image, y, x, a.out_h, a.out_w, a.channels) + p.channel;
                const int h = p.h - (y * a.stride_h - a.pad_h);
                const int w = p.w - (x * a.stride_w - a.pad_w);
                const positions<V> where = *(const positions<V> *)(a.where + from);
                load<E>(a.src, from, d);
                for (int v = 0; v < V; v++)
                    sum[v] += where.v[v] == h * a.kernel_w + w ? d[v] : 0;
            }
        store<E>(a.dst, i * V, sum);
    }
}

/* ---- launchers ---- */

template <class E, int V>
static cudaError_t launch(cudaStream_t stream, const ddpi_k_pool_args &a, bool forward)
{
    const int64_t pixels = forward ? (int64_t)a.out_h * a.out_w : (int64_t)a.in_h * a.in_w;
    const int64_t count = a.n * pixels * (a.channels / V);
    const unsigned grid = blocks_for(count, MOST_POOL_BLOCKS);
    if (a.maximum && forward)
        return GPU_LAUNCH((maximum_forward<E, V>), grid, BLOCK, 0, stream, a, count);
    if (a.maximum)
        return GPU_LAUNCH((maximum_backward<E, V>), grid, BLOCK, 0, stream, a, count);
    if (forward)
        return GPU_LAUNCH((average_forward<E, V>), grid, BLOCK, 0, stream, a, count);
    return GPU_LAUNCH((average_backward<E, V>), grid, BLOCK, 0, stream, a, count);
}

template <class E>
static cudaError_t launch_any(cudaStream_t stream, const ddpi_k_pool_args &a, bool forward)
{
    constexpr int wide = 16 / sizeof(E);
    return a.channels % wide == 0 ? launch<E, wide>(stream, a, forward)
                                  : launch<E, 1>(stream, a, forward);
}

cudaError_t ddpi_k_pool_forward(cudaStream_t stream, const ddpi_k_pool_args *args)
{
    return OF_TYPE(args->dtype, launch_any, stream, *args, true);
}

cudaError_t ddpi_k_pool_backward(cudaStream_t stream, const ddpi_k_pool_args *args)
{
    return OF_TYPE(args->dtype, launch_any, stream, *args, false);
}
