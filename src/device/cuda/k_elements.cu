/* k_elements.cu - kernels that treat each element alone, and conversions of type. */
#include "device/cuda/elements.cuh"

enum { MOST_BLOCKS = 4096 };

/* ---- sums, relu and its mask ---- */

template <class E> struct combine_step {
    ddpi_k_combine_args c;

    template <int V> __device__ __forceinline__ void at(int64_t i)
    {
        float x[V], y[V];
        load<E>(c.a, i, x);
        if (c.b != NULL) {
            load<E>(c.b, i, y);
            for (int v = 0; v < V; v++)
                x[v] += y[v];
        }
        for (int v = 0; v < V && c.relu; v++)
            x[v] = x[v] < 0 ? 0 : x[v];
        if (c.value != NULL) {
            load<E>(c.value, i, y);
            for (int v = 0; v < V; v++)
                x[v] = y[v] > 0 ? x[v] : 0;
        }
        store<E>(c.dst, i, x);
        if (c.copies[0] != NULL)
            store<E>(c.copies[0], i, x);
        if (c.copies[1] != NULL)
            store<E>(c.copies[1], i, x);
    }
};

template <class E> __global__ void combine(sweep s, ddpi_k_combine_args c)
{
    combine_step<E> step = {c};
    sweep_range<16 / sizeof(E)>(s, step);
}

template <class E> static cudaError_t launch_combine(cudaStream_t stream, ddpi_k_combine_args c)
{
    const void *const buffers[] = {c.dst, c.copies[0], c.copies[1], c.a, c.b, c.value};
    const sweep s = sweep_of(c.count, sizeof(E), buffers, 6);
    const int64_t threads = s.packs ? c.count / (16 / (int)sizeof(E)) : c.count;
    return GPU_LAUNCH(combine<E>, blocks_for(threads, MOST_BLOCKS), BLOCK, 0, stream, s, c);
}

cudaError_t ddpi_k_combine(cudaStream_t stream, const ddpi_k_combine_args *args)
{
    if (args->count == 0)
        return cudaSuccess;
    return OF_TYPE(args->dtype, launch_combine, stream, *args);
}

cudaError_t ddpi_k_relu_mask(cudaStream_t stream, const ddpi_k_relu_mask_args *args)
{
    ddpi_k_combine_args c = {};
    c.dst = args->diff;
    c.a = args->diff;
    c.value = args->value;
    c.count = args->count;
    c.dtype = args->dtype;
    return ddpi_k_combine(stream, &c);
}

/* ---- types ---- */

/* Packs of four: 16 bytes of f32. */
template <class S, class D> struct cast_step {
    const void *src;
    void *dst;
    float scale;

    template <int V> __device__ __forceinline__ void at(int64_t i)
    {
        float x[V];
        load<S>(src, i, x);
        for (int v = 0; v < V; v++)
            x[v] *= scale;
        store<D>(dst, i, x);
    }
};

template <class S, class D> __global__ void cast(sweep s, const void *src, void *dst, float scale)
{
    cast_step<S, D> step = {src, dst, scale};
    sweep_range<4>(s, step);
}

template <class E> static cudaError_t launch_cast(cudaStream_t stream, const ddpi_k_cast_args &a)
{
    const sweep s = {a.count, 0, (uintptr_t)a.src % 16 == 0 && (uintptr_t)a.dst % 16 == 0};
    const unsigned blocks = blocks_for(s.packs ? a.count / 4 : a.count, MOST_BLOCKS);
    if (a.widen)
        return GPU_LAUNCH((cast<E, float>), blocks, BLOCK, 0, stream, s, a.src, a.dst, a.scale);
    return GPU_LAUNCH((cast<float, E>), blocks, BLOCK, 0, stream, s, a.src, a.dst, a.scale);
}

cudaError_t ddpi_k_cast(cudaStream_t stream, const ddpi_k_cast_args *args)
{
    return args->count > 0 ? OF_TYPE(args->dtype, launch_cast, stream, *args) : cudaSuccess;
}
