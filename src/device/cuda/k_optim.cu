/* k_optim.cu - what optimizers do to flat ranges of f32, each as one pass over memory.
 *
 * The rules' arithmetic is in f32, sums are in double: each thread adds what it has seen, blocks
 * leave a partial sum each, and one block adds these. The number of blocks depends on the count
 * alone. */
#include "device/cuda/elements.cuh"

enum { PACK = 4, MOST_BLOCKS = DDPI_K_SUM_BLOCKS, KINDS = DDPI_K_SUM_KINDS };

static unsigned grid_for(const sweep &s)
{
    return blocks_for(ceil_div(s.count, PACK), MOST_BLOCKS);
}

/* Leaves the block's sums in partials[kind][block]. */
template <int K> INNER void leave(const double (&sums)[K], double *partials)
{
    __shared__ double room[K][BLOCK];
    UNROLL
    for (int k = 0; k < K; k++) {
        const double sum = block_sum(sums[k], room[k]);
        if (threadIdx.x == 0)
            partials[k * MOST_BLOCKS + (int)blockIdx.x] = sum;
    }
}

struct scales {
    double by[KINDS];
};

/* to[kind] += scale * the sum of a kind's partials; a block for each kind. live, if not NULL, has
 * the first kind's scale. */
__global__ void add_partials(const double *partials, int blocks, double *to, scales scale,
                             const double *live)
{
    __shared__ double room[BLOCK];
    const int kind = (int)blockIdx.x;
    double sum = 0;
    for (int i = (int)threadIdx.x; i < blocks; i += BLOCK)
        sum += partials[kind * MOST_BLOCKS + i];
    sum = block_sum(sum, room);
    if (threadIdx.x == 0)
        to[kind] += sum * (live != NULL && kind == 0 ? *live : scale.by[kind]);
}

/* Where the kernel finds a live step's scale. */
template <class S> static const double *live_scale(const S *live)
{
    return live == NULL ? NULL : &live->sum_scale;
}

INNER double square(float value)
{
    return (double)value * (double)value;
}

/* ---- SGD ---- */

struct sgd_step {
    ddpi_k_sgd_args a;
    double sums[1];

    template <int V> __device__ __forceinline__ void at(int64_t i)
    {
        float w[V], g[V], buf[V];
        load<float>(a.w, i, w);
        load<float>(a.grad, i, g);
        UNROLL
        for (int v = 0; v < V; v++) {
            sums[0] += square(g[v]);
            g[v] = g[v] * a.step.inv_count + a.step.weight_decay * w[v];
        }
        if (a.buf != NULL)
            carry<V>(i, g, buf);
        UNROLL
        for (int v = 0; v < V; v++)
            w[v] -= a.step.lr * g[v];
        store<float>(a.w, i, w);
    }

    /* Moves the buffer; g becomes the step. At the first step buf may hold anything. */
    template <int V>
    __device__ __forceinline__ void carry(int64_t i, float (&g)[V], float (&buf)[V])
    {
        const ddpi_k_sgd_step &s = a.step;
        if (!s.first)
            load<float>(a.buf, i, buf);
        UNROLL
        for (int v = 0; v < V; v++) {
            buf[v] = s.first ? s.take * g[v] : s.keep * buf[v] + s.take * g[v];
            g[v] = s.direct * g[v] + s.carry * buf[v];
        }
        store<float>(a.buf, i, buf);
    }
};

__global__ void sgd(sweep s, ddpi_k_sgd_args a)
{
    if (a.live != NULL)
        a.step = *a.live;
    sgd_step step = {a, {0}};
    sweep_range<PACK>(s, step);
    if (a.grad_sq != NULL)
        leave(step.sums, a.partials);
}

cudaError_t ddpi_k_sgd(cudaStream_t stream, const ddpi_k_sgd_args *args)
{
    if (args->count == 0)
        return cudaSuccess;
    const void *const buffers[] = {args->w, args->grad, args->buf};
    const sweep s = sweep_of(args->count, sizeof(float), buffers, 3);
    const unsigned blocks = grid_for(s);
    const cudaError_t error = GPU_LAUNCH(sgd, blocks, BLOCK, 0, stream, s, *args);
    if (error != cudaSuccess || args->grad_sq == NULL)
        return error;
    const scales scale = {{args->step.sum_scale}};
    return GPU_LAUNCH(add_partials, 1, BLOCK, 0, stream, args->partials, (int)blocks, args->grad_sq,
                      scale, live_scale(args->live));
}

/* ---- AdamW and LAMB ---- */

template <int PASS> struct adam_step {
    ddpi_k_adam_args a;
    double sums[KINDS];

    /* Moves the moments, except where they are only applied. */
    template <int V>
    __device__ __forceinline__ void moments(int64_t i, float (&m)[V], float (&v2)[V])
    {
        const ddpi_k_adam_step &s = a.step;
        float g[V];
        load<float>(a.m, i, m);
        load<float>(a.v, i, v2);
        if (PASS == DDPI_K_LAMB_APPLY)
            return;
        load<float>(a.grad, i, g);
        UNROLL
        for (int v = 0; v < V; v++) {
            sums[0] += square(g[v]);
            g[v] *= s.inv_count;
            m[v] = s.keep1 * m[v] + s.take1 * g[v];
            v2[v] = s.keep2 * v2[v] + s.take2 * g[v] * g[v];
        }
        store<float>(a.m, i, m);
        store<float>(a.v, i, v2);
    }

    template <int V> __device__ __forceinline__ void at(int64_t i)
    {
        const ddpi_k_adam_step &s = a.step;
        float w[V], m[V], v2[V];
        load<float>(a.w, i, w);
        moments<V>(i, m, v2);
        UNROLL
        for (int v = 0; v < V; v++) {
            const float r = m[v] * s.mean / (sqrtf(v2[v]) * s.root + s.eps);
            const float step = r + s.decay * w[v];
            if (PASS == DDPI_K_ADAMW)
                w[v] = w[v] * s.shrink - s.lr * r;
            else if (PASS == DDPI_K_LAMB_APPLY)
                w[v] -= s.lr * step;
            else {
                sums[1] += square(w[v]);
                sums[2] += square(step);
            }
        }
        if (PASS != DDPI_K_LAMB_MOMENTS)
            store<float>(a.w, i, w);
    }
};

template <int PASS> __global__ void adam(sweep s, ddpi_k_adam_args a)
{
    if (a.live != NULL)
        a.step = *a.live;
    adam_step<PASS> step = {a, {0, 0, 0}};
    sweep_range<PACK>(s, step);
    if (a.sums == NULL || PASS == DDPI_K_LAMB_APPLY)
        return;
    if (PASS == DDPI_K_LAMB_MOMENTS) {
        leave(step.sums, a.partials);
    } else {
        const double first[1] = {step.sums[0]};
        leave(first, a.partials);
    }
}

cudaError_t ddpi_k_adam(cudaStream_t stream, const ddpi_k_adam_args *args)
{
    if (args->count == 0)
        return cudaSuccess;
    const bool apply = args->pass == DDPI_K_LAMB_APPLY;
    const void *const buffers[] = {args->w, args->m, args->v, apply ? NULL : args->grad};
    const sweep s = sweep_of(args->count, sizeof(float), buffers, 4);
    const unsigned blocks = grid_for(s);
    if (apply)
        return GPU_LAUNCH(adam<DDPI_K_LAMB_APPLY>, blocks, BLOCK, 0, stream, s, *args);
    const bool lamb = args->pass == DDPI_K_LAMB_MOMENTS;
    const cudaError_t error =
        lamb ? GPU_LAUNCH(adam<DDPI_K_LAMB_MOMENTS>, blocks, BLOCK, 0, stream, s, *args)
             : GPU_LAUNCH(adam<DDPI_K_ADAMW>, blocks, BLOCK, 0, stream, s, *args);
    if (error != cudaSuccess || args->sums == NULL)
        return error;
    const scales scale = {{args->step.sum_scale, 1, 1}};
    return GPU_LAUNCH(add_partials, lamb ? KINDS : 1, BLOCK, 0, stream, args->partials, (int)blocks,
                      args->sums, scale, live_scale(args->live));
}

/* ---- moving average ---- */

struct average_step {
    ddpi_k_average_args a;

    template <int V> __device__ __forceinline__ void at(int64_t i)
    {
        float to[V], from[V];
        load<float>(a.dst, i, to);
        load<float>(a.src, i, from);
        UNROLL
        for (int v = 0; v < V; v++)
            to[v] += a.weight * (from[v] - to[v]);
        store<float>(a.dst, i, to);
    }
};

__global__ void average(sweep s, ddpi_k_average_args a)
{
    average_step step = {a};
    sweep_range<PACK>(s, step);
}

cudaError_t ddpi_k_average(cudaStream_t stream, const ddpi_k_average_args *args)
{
    if (args->count == 0)
        return cudaSuccess;
    const void *const buffers[] = {args->dst, args->src};
    const sweep s = sweep_of(args->count, sizeof(float), buffers, 2);
    return GPU_LAUNCH(average, grid_for(s), BLOCK, 0, stream, s, *args);
}

/* ---- sum of squares ---- */

struct squares_step {
    const float *src;
    double sums[1];

    template <int V> __device__ __forceinline__ void at(int64_t i)
    {
        float x[V];
        load<float>(src, i, x);
        UNROLL
        for (int v = 0; v < V; v++)
            sums[0] += square(x[v]);
    }
};

__global__ void sum_squares(sweep s, const float *src, double *partials)
{
    squares_step step = {src, {0}};
    sweep_range<PACK>(s, step);
    leave(step.sums, partials);
}

cudaError_t ddpi_k_sum_squares(cudaStream_t stream, const ddpi_k_sum_squares_args *args)
{
    if (args->count == 0)
        return cudaSuccess;
    const void *const buffers[] = {args->src};
    const sweep s = sweep_of(args->count, sizeof(float), buffers, 1);
    const unsigned blocks = grid_for(s);
    const cudaError_t error =
        GPU_LAUNCH(sum_squares, blocks, BLOCK, 0, stream, s, args->src, args->partials);
    if (error != cudaSuccess)
        return error;
    const scales scale = {{args->scale * args->scale}};
    return GPU_LAUNCH(add_partials, 1, BLOCK, 0, stream, args->partials, (int)blocks, args->sum_out,
                      scale, static_cast<const double *>(NULL));
}
