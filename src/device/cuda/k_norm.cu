/* k_norm.cu - batch normalisation over rows of channels.
 *
 * A thread reads up to RUN rows into registers and takes their mean and the deviations from it in
 * f32; runs, threads and slices are then combined in double, by the formula of Chan, Golub and
 * LeVeque. So a mean far from 0 costs no digits and each element is read once.
 *
 * Where a mean is subtracted this is done in two steps, its f32 first and the rest within the
 * offset. The gradients' sums are of what is stored, so that the gradient of src sums to 0 in bf16
 * too. */
#include "device/cuda/channels.cuh"

enum { SUM_BLOCKS = 1024, MOVE_BLOCKS = 4096 };

static tiling sums_tiling(const ddpi_k_norm_view &view)
{
    return tiling_of(view.rows, view.channels, RUN, SUM_BLOCKS);
}

static tiling moves_tiling(const ddpi_k_norm_view &view)
{
    return tiling_of(view.rows, view.channels, RUN, MOVE_BLOCKS);
}

size_t ddpi_k_norm_bytes(const ddpi_k_norm_view *view)
{
    return partial_bytes(sums_tiling(*view));
}

/* ---- statistics ---- */

struct moments {
    double count, mean, m2;
};

INNER void combine(moments *to, double count, double mean, double m2)
{
    if (count == 0)
        return;
    const double all = to->count + count, part = count / all, delta = mean - to->mean;
    to->m2 += m2 + delta * delta * to->count * part;
    to->mean += delta * part;
    to->count = all;
}

/* Mean and m2 of up to RUN rows from `row` on. */
template <class E, int V>
INNER int run_moments(const tiling &t, const share &s, const void *src, int64_t row,
                      double (&mean)[V], double (&m2)[V])
{
    float x[RUN][V];
    int count = 0;
    UNROLL
    for (int j = 0; j < RUN; j++) {
        const int64_t r = row + (int64_t)j * t.depth;
        if (r < s.hi) {
            load<E>(src, r * t.channels + s.channel, x[j]);
            count++;
        }
    }
    const float one = 1.0f / (float)count;
    UNROLL
    for (int v = 0; v < V; v++) {
        float sum = 0, rest = 0, squares = 0;
        UNROLL
        for (int j = 0; j < RUN; j++)
            sum += j < count ? x[j][v] : 0;
        const float shift = sum * one;
        UNROLL
        for (int j = 0; j < RUN; j++) {
            const float d = j < count ? x[j][v] - shift : 0;
            rest += d;
            squares += d * d;
        }
        mean[v] = (double)shift + (double)(rest * one);
        m2[v] = (double)fmaxf(squares - rest * (rest * one), 0);
    }
    return count;
}

/* As leave_sums(), for moments: partials[slices][2][channels]. */
template <int V>
INNER void leave_moments(const tiling &t, const share &s, const moments (&own)[V], double *partials)
{
    __shared__ double means[V * BLOCK], m2s[V * BLOCK], counts[BLOCK];
    const int width = t.lanes * V, at = (int)threadIdx.y * width + (int)threadIdx.x * V;
    for (int v = 0; v < V; v++) {
        means[at + v] = own[v].mean;
        m2s[at + v] = own[v].m2;
    }
    counts[s.self] = own[0].count;
    __syncthreads();
    int64_t c;
    if (!own_channel<V>(t, s.self, &c))
        return;
    moments all = {0, 0, 0};
    for (int y = 0; y < t.depth; y++)
        combine(&all, counts[y * t.lanes + s.self / V], means[y * width + s.self],
                m2s[y * width + s.self]);
    double *to = partials + (int64_t)blockIdx.x * 2 * t.channels + c;
    to[0] = all.mean;
    to[t.channels] = all.m2;
}

template <class E, int V> __global__ void statistics(tiling t, const void *src, double *partials)
{
    const share s = share_of<V>(t);
    moments own[V] = {};
    for (int64_t row = s.lo; row < s.hi; row += (int64_t)RUN * t.depth) {
        double mean[V], m2[V];
        const double count = run_moments<E, V>(t, s, src, row, mean, m2);
        const double part = count / (own[0].count + count), weight = own[0].count * part;
        UNROLL
        for (int v = 0; v < V; v++) {
            const double delta = mean[v] - own[v].mean;
            own[v].mean += delta * part;
            own[v].m2 += m2[v] + delta * delta * weight;
            own[v].count += count;
        }
    }
    leave_moments<V>(t, s, own, partials);
}

__global__ void gather_moments(tiling t, const double *partials, double *mean, double *m2)
{
    __shared__ double counts[BLOCK], means[BLOCK], m2s[BLOCK];
    const int64_t c = gather_channel();
    const int self = (int)(threadIdx.y * GATHER_LANES + threadIdx.x);
    moments all = {0, 0, 0};
    for (int64_t i = part_at(t, threadIdx.y); c < t.channels && i < part_at(t, threadIdx.y + 1);
         i++)
        combine(&all, (double)(slice_at(t, i + 1) - slice_at(t, i)),
                partials[2 * i * t.channels + c], partials[(2 * i + 1) * t.channels + c]);
    counts[self] = all.count;
    means[self] = all.mean;
    m2s[self] = all.m2;
    __syncthreads();
    if (threadIdx.y != 0 || c >= t.channels)
        return;
    for (int i = self + GATHER_LANES; i < BLOCK; i += GATHER_LANES)
        combine(&all, counts[i], means[i], m2s[i]);
    mean[c] = all.mean;
    m2[c] = all.m2;
}

template <class E>
static cudaError_t launch_statistics(cudaStream_t stream, const ddpi_k_norm_statistics_args &a)
{
    const tiling t = sums_tiling(a.view);
    const cudaError_t error = t.wide == WIDE
                                  ? GPU_LAUNCH((statistics<E, WIDE>), grid_of(t), block_of(t), 0,
                                               stream, t, a.src, a.partials)
                                  : GPU_LAUNCH((statistics<E, 1>), grid_of(t), block_of(t), 0,
                                               stream, t, a.src, a.partials);
    if (error != cudaSuccess)
        return error;
    return GPU_LAUNCH(gather_moments, gather_blocks(t), gather_block(), 0, stream, t, a.partials,
                      a.mean, a.m2);
}

cudaError_t ddpi_k_norm_statistics(cudaStream_t stream, const ddpi_k_norm_statistics_args *args)
{
    return OF_TYPE(args->view.dtype, launch_statistics, stream, *args);
}

/* ---- factors of a channel ---- */

/* Its mean as f32 and what that leaves, and 1 / sqrt(var + eps). */
struct factors {
    float shift;
    double rest, inv;
};

INNER factors factors_of(const ddpi_k_norm_by &by, int64_t c)
{
    const double mean = by.mean != NULL ? by.mean[c] : (double)by.running_mean[c];
    const double var = by.mean != NULL ? by.m2[c] / by.count : (double)by.running_var[c];
    factors f;
    f.shift = (float)mean;
    f.rest = mean - (double)f.shift;
    f.inv = 1 / sqrt(var + by.eps);
    return f;
}

/* y = (x - shift) * scale + offset [+ of_dy * dy], for the channels of a tile. */
struct lines {
    float shift[MOST_TILE], scale[MOST_TILE], offset[MOST_TILE], of_dy[MOST_TILE];
};

template <int V> struct own_lines {
    float shift[V], scale[V], offset[V], of_dy[V];
};

template <int V> INNER void take_lines(const lines &all, own_lines<V> *own)
{
    const int at = (int)threadIdx.x * V;
    for (int v = 0; v < V; v++) {
        own->shift[v] = all.shift[at + v];
        own->scale[v] = all.scale[at + v];
        own->offset[v] = all.offset[at + v];
        own->of_dy[v] = all.of_dy[at + v];
    }
}

/* ---- forward ---- */

template <class E, int V> __global__ void forward(tiling t, ddpi_k_norm_forward_args a)
{
    __shared__ lines all;
    const share s = share_of<V>(t);
    int64_t c;
    if (own_channel<V>(t, s.self, &c)) {
        const factors f = factors_of(a.by, c);
        const double scale = (double)a.weights[c] * f.inv;
        all.shift[s.self] = f.shift;
        all.scale[s.self] = (float)scale;
        all.offset[s.self] = (float)((double)a.bias[c] - f.rest * scale);
    }
    __syncthreads();
    own_lines<V> own;
    take_lines<V>(all, &own);
    for (int64_t row = s.lo; row < s.hi; row += t.depth) {
        const int64_t at = row * t.channels + s.channel;
        float x[V], z[V];
        load<E>(a.src, at, x);
        for (int v = 0; v < V; v++)
            x[v] = (x[v] - own.shift[v]) * own.scale[v] + own.offset[v];
        if (a.src2 != NULL) {
            load<E>(a.src2, at, z);
            for (int v = 0; v < V; v++)
                x[v] += z[v];
        }
        for (int v = 0; v < V && a.relu; v++)
            x[v] = x[v] < 0 ? 0 : x[v];
        store<E>(a.dst, at, x);
    }
}

template <class E>
static cudaError_t launch_forward(cudaStream_t stream, const ddpi_k_norm_forward_args &a)
{
    const tiling t = moves_tiling(a.view);
    if (t.wide == WIDE)
        return GPU_LAUNCH((forward<E, WIDE>), grid_of(t), block_of(t), 0, stream, t, a);
    return GPU_LAUNCH((forward<E, 1>), grid_of(t), block_of(t), 0, stream, t, a);
}

cudaError_t ddpi_k_norm_forward(cudaStream_t stream, const ddpi_k_norm_forward_args *args)
{
    return OF_TYPE(args->view.dtype, launch_forward, stream, *args);
}

/* ---- backward: sums ---- */

/* The gradient before the relu, stored where it is new. */
template <class E, int V>
INNER void own_gradient(const ddpi_k_norm_reduce_args &a, int64_t at, float (&g)[V])
{
    float y[V];
    load<E>(a.diff_dst, at, g);
    if (a.diff_dst2 != NULL) {
        load<E>(a.diff_dst2, at, y);
        for (int v = 0; v < V; v++)
            g[v] = stored<E>(g[v] + y[v]);
    }
    if (a.value != NULL) {
        load<E>(a.value, at, y);
        for (int v = 0; v < V; v++)
            g[v] = y[v] > 0 ? g[v] : 0;
    }
    if (a.diff_dst2 != NULL || a.value != NULL)
        store<E>(a.diff_dst, at, g);
    if (a.copy != NULL)
        store<E>(a.copy, at, g);
}

template <class E, int V> __global__ void reduce(tiling t, ddpi_k_norm_reduce_args a)
{
    const share s = share_of<V>(t);
    double dy[V] = {}, dy_x[V] = {};
    float shift[V] = {};
    for (int v = 0; v < V && s.lo < s.hi; v++)
        shift[v] = (float)a.by.mean[s.channel + v];
    for (int64_t row = s.lo; row < s.hi; row += (int64_t)RUN * t.depth) {
        float some[V] = {}, some_x[V] = {};
        UNROLL
        for (int j = 0; j < RUN; j++) {
            const int64_t r = row + (int64_t)j * t.depth;
            if (r >= s.hi)
                continue;
            float g[V], x[V];
            own_gradient<E, V>(a, r * t.channels + s.channel, g);
            load<E>(a.src, r * t.channels + s.channel, x);
            for (int v = 0; v < V; v++) {
                some[v] += g[v];
                some_x[v] += g[v] * (x[v] - shift[v]);
            }
        }
        for (int v = 0; v < V; v++) {
            dy[v] += (double)some[v];
            dy_x[v] += (double)some_x[v];
        }
    }
    leave_sums<V>(t, s, dy, dy_x, a.partials);
}

__global__ void gather_gradients(tiling t, ddpi_k_norm_reduce_args a)
{
    double dy, dy_x;
    if (!gather_sums(t, a.partials, &dy, &dy_x))
        return;
    const int64_t c = gather_channel();
    const factors f = factors_of(a.by, c);
    const double dy_xhat = (dy_x - f.rest * dy) * f.inv;
    a.sum_dy[c] = dy;
    a.sum_dy_xhat[c] = dy_xhat;
    a.diff_bias[c] = (float)dy;
    a.diff_weights[c] = (float)dy_xhat;
}

template <class E>
static cudaError_t launch_reduce(cudaStream_t stream, const ddpi_k_norm_reduce_args &a)
{
    const tiling t = sums_tiling(a.view);
    const cudaError_t error =
        t.wide == WIDE ? GPU_LAUNCH((reduce<E, WIDE>), grid_of(t), block_of(t), 0, stream, t, a)
                       : GPU_LAUNCH((reduce<E, 1>), grid_of(t), block_of(t), 0, stream, t, a);
    if (error != cudaSuccess)
        return error;
    return GPU_LAUNCH(gather_gradients, gather_blocks(t), gather_block(), 0, stream, t, a);
}

cudaError_t ddpi_k_norm_reduce(cudaStream_t stream, const ddpi_k_norm_reduce_args *args)
{
    return OF_TYPE(args->view.dtype, launch_reduce, stream, *args);
}

/* ---- backward: gradient of src ---- */

template <class E, int V> __global__ void spread(tiling t, ddpi_k_norm_spread_args a)
{
    __shared__ lines all;
    const share s = share_of<V>(t);
    int64_t c;
    if (own_channel<V>(t, s.self, &c)) {
        const factors f = factors_of(a.by, c);
        const double scale = (double)a.weights[c] * f.inv;
        const double of_x = -scale * f.inv * a.sum_dy_xhat[c] / a.by.count;
        all.shift[s.self] = f.shift;
        all.of_dy[s.self] = (float)scale;
        all.scale[s.self] = (float)of_x;
        all.offset[s.self] = (float)(-scale * a.sum_dy[c] / a.by.count - of_x * f.rest);
    }
    __syncthreads();
    own_lines<V> own;
    take_lines<V>(all, &own);
    for (int64_t row = s.lo; row < s.hi; row += t.depth) {
        const int64_t at = row * t.channels + s.channel;
        float x[V], dy[V];
        load<E>(a.src, at, x);
        load<E>(a.diff_dst, at, dy);
        for (int v = 0; v < V; v++)
            dy[v] = dy[v] * own.of_dy[v] + (x[v] - own.shift[v]) * own.scale[v] + own.offset[v];
        store<E>(a.diff_src, at, dy);
    }
}

template <class E>
static cudaError_t launch_spread(cudaStream_t stream, const ddpi_k_norm_spread_args &a)
{
    const tiling t = moves_tiling(a.view);
    if (t.wide == WIDE)
        return GPU_LAUNCH((spread<E, WIDE>), grid_of(t), block_of(t), 0, stream, t, a);
    return GPU_LAUNCH((spread<E, 1>), grid_of(t), block_of(t), 0, stream, t, a);
}

cudaError_t ddpi_k_norm_spread(cudaStream_t stream, const ddpi_k_norm_spread_args *args)
{
    return OF_TYPE(args->view.dtype, launch_spread, stream, *args);
}

/* ---- running statistics ---- */

__global__ void running(ddpi_k_norm_running_args a)
{
    const int64_t c = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (c >= a.channels)
        return;
    const double unbiased = a.count > 1 ? a.count - 1 : 1; /* one value has no deviation */
    const double mean = (double)a.running_mean[c], var = (double)a.running_var[c];
    a.running_mean[c] = (float)(mean + a.momentum * (a.mean[c] - mean));
    a.running_var[c] = (float)(var + a.momentum * (a.m2[c] / unbiased - var));
}

cudaError_t ddpi_k_norm_running(cudaStream_t stream, const ddpi_k_norm_running_args *args)
{
    const int64_t blocks = ceil_div(args->channels, BLOCK);
    return GPU_LAUNCH(running, (unsigned)blocks, BLOCK, 0, stream, *args);
}
