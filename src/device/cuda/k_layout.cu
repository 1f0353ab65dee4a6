/* k_layout.cu - images between channels first (f32) and channels last.
 *
 * Both are a transposition of [channels][pixels] for each image. A tile goes through shared memory,
 * so that both sides are read and written in runs; with few channels, which is what the model's
 * input has, a thread moves all of a pixel's. */
#include "device/cuda/elements.cuh"

enum { TILE = 32, TILE_ROWS = BLOCK / TILE, FEW = 8, MOST_BLOCKS = 8192 };

/* ---- few channels ---- */

template <class S, class D> INNER void move(const void *src, int64_t from, void *dst, int64_t to)
{
    float x[1];
    load<S>(src, from, x);
    store<D>(dst, to, x);
}

template <class S, class D> __global__ void few(ddpi_k_images a, bool to_last)
{
    const int64_t all = a.n * a.pixels, step = (int64_t)gridDim.x * BLOCK;
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < all; i += step) {
        const int64_t image = i / a.pixels, pixel = i - image * a.pixels;
        const int64_t first = image * a.channels * a.pixels + pixel, last = i * a.channels;
        for (int64_t c = 0; c < a.channels; c++)
            if (to_last)
                move<S, D>(a.src, first + c * a.pixels, a.dst, last + c);
            else
                move<S, D>(a.src, last + c, a.dst, first + c * a.pixels);
    }
}

/* ---- tiles ---- */

/* dst[columns][rows] = src[rows][columns], for each image. */
template <class S, class D>
__global__ void transpose(const void *src, void *dst, int64_t n, int64_t rows, int64_t columns)
{
    __shared__ float tile[TILE][TILE + 1];
    const int64_t row0 = (int64_t)blockIdx.y * TILE, column0 = (int64_t)blockIdx.x * TILE;
    const int x = (int)threadIdx.x;
    for (int64_t image = blockIdx.z; image < n; image += gridDim.z) {
        const int64_t base = image * rows * columns;
        for (int y = (int)threadIdx.y; y < TILE; y += TILE_ROWS) {
            float value[1];
            if (row0 + y >= rows || column0 + x >= columns)
                continue;
            load<S>(src, base + (row0 + y) * columns + column0 + x, value);
            tile[y][x] = value[0];
        }
        __syncthreads();
        for (int y = (int)threadIdx.y; y < TILE; y += TILE_ROWS) {
            if (column0 + y >= columns || row0 + x >= rows)
                continue;
            const float value[1] = {tile[x][y]};
            store<D>(dst, base + (column0 + y) * rows + row0 + x, value);
        }
        __syncthreads();
    }
}

/* A grid may have 65535 tiles of rows, which is 2 million pixels of an image. */
template <class S, class D>
static cudaError_t convert(cudaStream_t stream, const ddpi_k_images &a, bool to_last)
{
    if (a.channels <= FEW)
        return GPU_LAUNCH((few<S, D>), blocks_for(a.n * a.pixels, MOST_BLOCKS), BLOCK, 0, stream, a,
                          to_last);
    const int64_t rows = to_last ? a.channels : a.pixels;
    const int64_t columns = to_last ? a.pixels : a.channels;
    const int64_t images = a.n < 65535 ? a.n : 65535;
    const dim3 grid((unsigned)ceil_div(columns, TILE), (unsigned)ceil_div(rows, TILE),
                    (unsigned)images);
    return GPU_LAUNCH((transpose<S, D>), grid, dim3(TILE, TILE_ROWS), 0, stream, a.src, a.dst, a.n,
                      rows, columns);
}

template <class E> static cudaError_t to_last(cudaStream_t stream, const ddpi_k_images &a)
{
    return convert<float, E>(stream, a, true);
}

template <class E> static cudaError_t from_last(cudaStream_t stream, const ddpi_k_images &a)
{
    return convert<E, float>(stream, a, false);
}

cudaError_t ddpi_k_nchw_to_nhwc(cudaStream_t stream, const ddpi_k_images *args)
{
    return OF_TYPE(args->dtype, to_last, stream, *args);
}

cudaError_t ddpi_k_nhwc_to_nchw(cudaStream_t stream, const ddpi_k_images *args)
{
    return OF_TYPE(args->dtype, from_last, stream, *args);
}
