/* k_rows.cu - softmax cross-entropy with its gradient, and the ranks of labels: row by row of
 * logits, in double.
 *
 * A row belongs to a warp, or to a block where it is long. The largest logit is subtracted before
 * exponentials are taken, so nothing overflows. A label that is none of the classes makes the loss
 * NaN, which the step's check of the loss then reports. */
#include "device/cuda/elements.cuh"

enum { WARP = 32, LONG = 512, MOST_BLOCKS = 65535 };

/* ---- reductions over the threads of a row ---- */

struct add_up {
    static __device__ __forceinline__ double of(double a, double b)
    {
        return a + b;
    }
};

/* NaN loses, but the sum of exponentials will have it. */
struct larger {
    static __device__ __forceinline__ double of(double a, double b)
    {
        return b > a || a != a ? b : a;
    }
};

/* For all threads of the block, one warp or several; room: a value per warp. */
template <class F> INNER double over_block(double value, double *room)
{
    for (int half = WARP / 2; half > 0; half /= 2)
        value = F::of(value, __shfl_xor_sync(0xffffffffu, value, half));
    if (blockDim.x == WARP)
        return value;
    if (threadIdx.x % WARP == 0)
        room[threadIdx.x / WARP] = value;
    __syncthreads();
    value = room[0];
    for (unsigned i = 1; i < blockDim.x / WARP; i++)
        value = F::of(value, room[i]);
    __syncthreads();
    return value;
}

static unsigned rows_grid(int64_t rows)
{
    return rows < MOST_BLOCKS ? (unsigned)rows : (unsigned)MOST_BLOCKS;
}

static unsigned threads_for(int64_t classes)
{
    return (unsigned)(classes > LONG ? (int)BLOCK : (int)WARP);
}

/* ---- softmax cross-entropy ---- */

/* What a row is compared with. */
struct target {
    int32_t label, label2;
    double hot, hot2, even;
};

INNER target target_of(const ddpi_k_softmax_args &a, int64_t row)
{
    target t;
    t.label = a.labels[row];
    t.label2 = a.labels2 != NULL ? a.labels2[row] : t.label;
    const double share = a.labels2 != NULL ? (double)a.mix[row] : 1;
    t.hot = (1 - a.smoothing) * share;
    t.hot2 = (1 - a.smoothing) * (1 - share);
    t.even = a.smoothing / (double)a.classes;
    return t;
}

template <class E> INNER double logit(const ddpi_k_softmax_args &a, int64_t at)
{
    return (double)widen(((const E *)a.logits)[at]);
}

template <class E>
INNER double row_loss(const ddpi_k_softmax_args &a, int64_t first, const target &t, double most,
                      double sum, double shifted)
{
    const bool good = t.label >= 0 && t.label < a.classes && t.label2 >= 0 && t.label2 < a.classes;
    if (!good)
        return (double)NAN;
    return log(sum) - t.hot * (logit<E>(a, first + t.label) - most) -
           t.hot2 * (logit<E>(a, first + t.label2) - most) - t.even * shifted;
}

template <class E> INNER void softmax_row(const ddpi_k_softmax_args &a, int64_t row, double *room)
{
    const target t = target_of(a, row);
    const int64_t first = row * a.classes;
    double most = -INFINITY, sum = 0, shifted = 0;
    for (int64_t c = threadIdx.x; c < a.classes; c += blockDim.x)
        most = larger::of(most, logit<E>(a, first + c));
    most = over_block<larger>(most, room);
    for (int64_t c = threadIdx.x; c < a.classes; c += blockDim.x) {
        const double own = logit<E>(a, first + c) - most;
        sum += exp(own);
        shifted += own;
    }
    sum = over_block<add_up>(sum, room);
    shifted = over_block<add_up>(shifted, room);
    const double scale = a.diff_scale != NULL ? (double)*a.diff_scale : 1;
    if (threadIdx.x == 0)
        a.partials[row] = row_loss<E>(a, first, t, most, sum, shifted);
    for (int64_t c = threadIdx.x; a.diff != NULL && c < a.classes; c += blockDim.x) {
        const double g = exp(logit<E>(a, first + c) - most) / sum - t.even -
                         (c == t.label ? t.hot : 0) - (c == t.label2 ? t.hot2 : 0);
        narrow((float)(scale * g), (E *)a.diff + first + c);
    }
}

template <class E> __global__ void softmax(ddpi_k_softmax_args a)
{
    __shared__ double room[BLOCK / WARP];
    for (int64_t row = blockIdx.x; row < a.n; row += gridDim.x)
        softmax_row<E>(a, row, room);
}

__global__ void add_losses(const double *losses, int64_t n, double *loss)
{
    __shared__ double room[BLOCK];
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n; i += BLOCK)
        sum += losses[i];
    sum = block_sum(sum, room);
    if (threadIdx.x == 0)
        *loss += sum;
}

size_t ddpi_k_softmax_bytes(int64_t n)
{
    return (size_t)n * sizeof(double);
}

template <class E>
static cudaError_t launch_softmax(cudaStream_t stream, const ddpi_k_softmax_args &a)
{
    return GPU_LAUNCH(softmax<E>, rows_grid(a.n), threads_for(a.classes), 0, stream, a);
}

cudaError_t ddpi_k_softmax(cudaStream_t stream, const ddpi_k_softmax_args *args)
{
    const cudaError_t error = OF_TYPE(args->dtype, launch_softmax, stream, *args);
    if (error != cudaSuccess)
        return error;
    return GPU_LAUNCH(add_losses, 1, BLOCK, 0, stream, args->partials, args->n, args->loss);
}

/* ---- ranks ---- */

/* Ranks are counted in double, which is exact; a NaN anywhere makes the count NaN. */
INNER double ahead(const float *logits, int64_t c, int32_t label)
{
    const float x = logits[c], own = logits[label];
    if (x != x)
        return (double)NAN;
    return x > own || (x == own && c < label) ? 1 : 0;
}

__global__ void label_rank(ddpi_k_label_rank_args a)
{
    __shared__ double room[BLOCK / WARP];
    for (int64_t row = blockIdx.x; row < a.n; row += gridDim.x) {
        const float *logits = a.logits + row * a.classes;
        const int32_t label = a.labels[row];
        const bool good = label >= 0 && label < a.classes;
        double rank = good ? 0 : (double)NAN;
        for (int64_t c = threadIdx.x; good && c < a.classes; c += blockDim.x)
            rank += ahead(logits, c, label);
        rank = over_block<add_up>(rank, room);
        if (threadIdx.x == 0)
            a.rank_out[row] = rank == rank ? (int32_t)rank : (int32_t)a.classes;
    }
}

cudaError_t ddpi_k_label_rank(cudaStream_t stream, const ddpi_k_label_rank_args *args)
{
    if (args->n == 0)
        return cudaSuccess;
    const unsigned blocks = rows_grid(args->n);
    return GPU_LAUNCH(label_rank, blocks, threads_for(args->classes), 0, stream, *args);
}
