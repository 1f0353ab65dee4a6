/* k_channels.cu - biases and their gradients, and averages of all pixels. */
#include "device/cuda/channels.cuh"

enum { SUM_BLOCKS = 1024, MOVE_BLOCKS = 8192, MOVE_RUN = 4 };

/* ---- gradient of a bias ---- */

/* Sums of a few rows are made in f32, and added in double. */
template <class E, int V>
__global__ void bias_sums(tiling t, void *diff_dst, const void *value, double *partials)
{
    const share s = share_of<V>(t);
    double sum[V] = {}, none[V] = {};
    for (int64_t row = s.lo; row < s.hi; row += (int64_t)RUN * t.depth) {
        float some[V] = {};
        UNROLL
        for (int j = 0; j < RUN; j++) {
            const int64_t at = (row + (int64_t)j * t.depth) * t.channels + s.channel;
            if (row + (int64_t)j * t.depth >= s.hi)
                continue;
            float g[V], y[V];
            load<E>(diff_dst, at, g);
            if (value != NULL) {
                load<E>(value, at, y);
                for (int v = 0; v < V; v++)
                    g[v] = y[v] > 0 ? g[v] : 0;
                store<E>(diff_dst, at, g);
            }
            for (int v = 0; v < V; v++)
                some[v] += g[v];
        }
        for (int v = 0; v < V; v++)
            sum[v] += (double)some[v];
    }
    leave_sums<V>(t, s, sum, none, partials);
}

__global__ void bias_gather(tiling t, const double *partials, float *diff_bias)
{
    double sum, none;
    if (gather_sums(t, partials, &sum, &none))
        diff_bias[gather_channel()] = (float)sum;
}

size_t ddpi_k_bias_grad_bytes(int64_t rows, int64_t channels)
{
    return partial_bytes(tiling_of(rows, channels, RUN, SUM_BLOCKS));
}

template <class E> static cudaError_t bias_grad(cudaStream_t stream, const ddpi_k_bias_grad_args &a)
{
    const tiling t = tiling_of(a.rows, a.channels, RUN, SUM_BLOCKS);
    const cudaError_t error = t.wide == WIDE
                                  ? GPU_LAUNCH((bias_sums<E, WIDE>), grid_of(t), block_of(t), 0,
                                               stream, t, a.diff_dst, a.value, a.partials)
                                  : GPU_LAUNCH((bias_sums<E, 1>), grid_of(t), block_of(t), 0,
                                               stream, t, a.diff_dst, a.value, a.partials);
    if (error != cudaSuccess)
        return error;
    return GPU_LAUNCH(bias_gather, gather_blocks(t), gather_block(), 0, stream, t, a.partials,
                      a.diff_bias);
}

cudaError_t ddpi_k_bias_grad(cudaStream_t stream, const ddpi_k_bias_grad_args *args)
{
    return OF_TYPE(args->dtype, bias_grad, stream, *args);
}

/* ---- bias and relu ---- */

template <class E, int V>
__global__ void bias_relu(tiling t, void *dst, const float *bias, bool relu)
{
    const share s = share_of<V>(t);
    float b[V] = {};
    for (int v = 0; v < V && bias != NULL && s.lo < s.hi; v++)
        b[v] = bias[s.channel + v];
    for (int64_t row = s.lo; row < s.hi; row += t.depth) {
        float x[V];
        load<E>(dst, row * t.channels + s.channel, x);
        for (int v = 0; v < V; v++) {
            x[v] += b[v];
            x[v] = relu && x[v] < 0 ? 0 : x[v];
        }
        store<E>(dst, row * t.channels + s.channel, x);
    }
}

template <class E>
static cudaError_t launch_bias_relu(cudaStream_t stream, const ddpi_k_bias_relu_args &a)
{
    const tiling t = tiling_of(a.rows, a.channels, MOVE_RUN, MOVE_BLOCKS);
    if (t.wide == WIDE)
        return GPU_LAUNCH((bias_relu<E, WIDE>), grid_of(t), block_of(t), 0, stream, t, a.dst,
                          a.bias, a.relu);
    return GPU_LAUNCH((bias_relu<E, 1>), grid_of(t), block_of(t), 0, stream, t, a.dst, a.bias,
                      a.relu);
}

cudaError_t ddpi_k_bias_relu(cudaStream_t stream, const ddpi_k_bias_relu_args *args)
{
    return OF_TYPE(args->dtype, launch_bias_relu, stream, *args);
}

/* ---- averages of all pixels ---- */

/* An image is a slice. */
static tiling images_tiling(const ddpi_k_global_avg_args &a)
{
    tiling t = tiling_of(a.n * a.pixels, a.channels, 1, 1);
    t.slices = a.n;
    return t;
}

template <class E, int V> __global__ void average(tiling t, const void *from, void *to)
{
    __shared__ double sums[V * BLOCK];
    const share s = share_of<V>(t);
    const int width = t.lanes * V, at = (int)threadIdx.y * width + (int)threadIdx.x * V;
    double sum[V] = {};
    for (int64_t row = s.lo; row < s.hi; row += t.depth) {
        float x[V];
        load<E>(from, row * t.channels + s.channel, x);
        for (int v = 0; v < V; v++)
            sum[v] += (double)x[v];
    }
    for (int v = 0; v < V; v++)
        sums[at + v] = sum[v];
    __syncthreads();
    int64_t c;
    if (!own_channel<V>(t, s.self, &c))
        return;
    double all = 0;
    for (int i = s.self; i < t.depth * width; i += width)
        all += sums[i];
    const float mean[1] = {(float)(all / (double)(t.rows / t.slices))};
    store<E>(to, (int64_t)blockIdx.x * t.channels + c, mean);
}

template <class E, int V> __global__ void spread(tiling t, const void *from, void *to, float scale)
{
    const share s = share_of<V>(t);
    float x[V];
    if (s.lo < s.hi)
        load<E>(from, (int64_t)blockIdx.x * t.channels + s.channel, x);
    for (int v = 0; v < V; v++)
        x[v] *= scale;
    for (int64_t row = s.lo; row < s.hi; row += t.depth)
        store<E>(to, row * t.channels + s.channel, x);
}

template <class E>
static cudaError_t global_avg(cudaStream_t stream, const ddpi_k_global_avg_args &a, bool forward)
{
    const tiling t = images_tiling(a);
    const dim3 grid = grid_of(t), block = block_of(t);
    const float scale = 1.0f / (float)a.pixels;
    if (forward && t.wide == WIDE)
        return GPU_LAUNCH((average<E, WIDE>), grid, block, 0, stream, t, a.from, a.to);
    if (forward)
        return GPU_LAUNCH((average<E, 1>), grid, block, 0, stream, t, a.from, a.to);
    if (t.wide == WIDE)
        return GPU_LAUNCH((spread<E, WIDE>), grid, block, 0, stream, t, a.from, a.to, scale);
    return GPU_LAUNCH((spread<E, 1>), grid, block, 0, stream, t, a.from, a.to, scale);
}

cudaError_t ddpi_k_global_avg_forward(cudaStream_t stream, const ddpi_k_global_avg_args *args)
{
    return OF_TYPE(args->dtype, global_avg, stream, *args, true);
}

cudaError_t ddpi_k_global_avg_backward(cudaStream_t stream, const ddpi_k_global_avg_args *args)
{
    return OF_TYPE(args->dtype, global_avg, stream, *args, false);
}
