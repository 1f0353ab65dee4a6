/* channels.cuh - how rows of channels are spread over threads, for kernels that work per channel.
 *
 * A block covers a tile of neighbouring channels and a slice of the rows. Its threads lie in
 * `depth` rows of `lanes`; each thread keeps to V neighbouring channels and takes every depth-th
 * row of the slice, so that a row of threads reads one run of memory. The cut is a function of rows
 * and channels alone, and with it the order of all sums. */
#ifndef DDP_DEVICE_CUDA_CHANNELS_CUH
#define DDP_DEVICE_CUDA_CHANNELS_CUH

#include "device/cuda/elements.cuh"

enum {
    MOST_LANES = 32,
    WIDE = 4,                      /* channels of a thread, where all threads can have as many */
    MOST_TILE = MOST_LANES * WIDE, /* channels of a block */
    RUN = 8                        /* rows that a thread has in registers */
};

struct tiling {
    int64_t rows, channels, slices;
    int wide; /* WIDE or 1 */
    int lanes, depth;
    int tiles;
};

/* Slices of at least `run` rows a thread, and about `blocks` blocks at most. */
static inline tiling tiling_of(int64_t rows, int64_t channels, int64_t run, int64_t blocks)
{
    tiling t = {rows, channels, 1, channels % WIDE == 0 ? WIDE : 1, 1, 1, 1};
    while (t.lanes < MOST_LANES && t.lanes * t.wide < channels)
        t.lanes *= 2;
    t.depth = BLOCK / t.lanes;
    t.tiles = (int)ceil_div(channels, (int64_t)t.lanes * t.wide);
    const int64_t most = blocks / t.tiles > 1 ? blocks / t.tiles : 1;
    t.slices = ceil_div(rows, t.depth * run);
    t.slices = t.slices < 1 ? 1 : t.slices < most ? t.slices : most;
    return t;
}

static inline dim3 grid_of(const tiling &t)
{
    return dim3((unsigned)t.slices, (unsigned)t.tiles);
}

static inline dim3 block_of(const tiling &t)
{
    return dim3((unsigned)t.lanes, (unsigned)t.depth);
}

/* Rows [lo, hi) of a slice. */
INNER int64_t slice_at(const tiling &t, int64_t slice)
{
    return slice * t.rows / t.slices;
}

/* What one thread does. */
struct share {
    int64_t lo, hi;  /* rows, every depth-th of them */
    int64_t channel; /* the first; beyond the last one in threads that have none */
    int self;        /* in the block */
};

template <int V> INNER share share_of(const tiling &t)
{
    share s;
    s.lo = slice_at(t, blockIdx.x) + threadIdx.y;
    s.hi = slice_at(t, (int64_t)blockIdx.x + 1);
    s.channel = ((int64_t)blockIdx.y * t.lanes + threadIdx.x) * V;
    if (s.channel >= t.channels)
        s.hi = s.lo;
    s.self = (int)(threadIdx.y * (unsigned)t.lanes + threadIdx.x);
    return s;
}

/* The channel that a thread of the block looks after where there is one thread for each of the
 * tile's channels; false if it has none. */
template <int V> INNER bool own_channel(const tiling &t, int self, int64_t *channel_out)
{
    *channel_out = (int64_t)blockIdx.y * t.lanes * V + self;
    return self < t.lanes * V && *channel_out < t.channels;
}

/* ---- sums of two values per channel ---- */

/* Leaves the block's sums as the slice's row of partials[slices][2][channels]. */
template <int V>
INNER void leave_sums(const tiling &t, const share &s, const double (&first)[V],
                      const double (&second)[V], double *partials)
{
    __shared__ double firsts[V * BLOCK], seconds[V * BLOCK];
    const int width = t.lanes * V, at = (int)threadIdx.y * width + (int)threadIdx.x * V;
    for (int v = 0; v < V; v++) {
        firsts[at + v] = first[v];
        seconds[at + v] = second[v];
    }
    __syncthreads();
    int64_t c;
    if (!own_channel<V>(t, s.self, &c))
        return;
    double a = 0, b = 0;
    for (int i = s.self; i < t.depth * width; i += width) {
        a += firsts[i];
        b += seconds[i];
    }
    double *own = partials + (int64_t)blockIdx.x * 2 * t.channels + c;
    own[0] = a;
    own[t.channels] = b;
}

/* Threads that add up partials: GATHER_LANES channels by GATHER_PARTS parts of the slices. */
enum { GATHER_LANES = 32, GATHER_PARTS = BLOCK / GATHER_LANES };

static inline unsigned gather_blocks(const tiling &t)
{
    return (unsigned)ceil_div(t.channels, GATHER_LANES);
}

static inline dim3 gather_block(void)
{
    return dim3(GATHER_LANES, GATHER_PARTS);
}

INNER int64_t gather_channel(void)
{
    return (int64_t)blockIdx.x * GATHER_LANES + threadIdx.x;
}

/* Slices [lo, hi) of a part. */
INNER int64_t part_at(const tiling &t, unsigned part)
{
    return (int64_t)part * t.slices / GATHER_PARTS;
}

/* The sums over all slices; true in the one thread of a channel that has them. */
INNER bool gather_sums(const tiling &t, const double *partials, double *first_out,
                       double *second_out)
{
    __shared__ double firsts[BLOCK], seconds[BLOCK];
    const int64_t c = gather_channel();
    const int self = (int)(threadIdx.y * GATHER_LANES + threadIdx.x);
    double a = 0, b = 0;
    for (int64_t i = part_at(t, threadIdx.y); c < t.channels && i < part_at(t, threadIdx.y + 1);
         i++) {
        a += partials[2 * i * t.channels + c];
        b += partials[(2 * i + 1) * t.channels + c];
    }
    firsts[self] = a;
    seconds[self] = b;
    __syncthreads();
    if (threadIdx.y != 0 || c >= t.channels)
        return false;
    for (int i = 1; i < GATHER_PARTS; i++) {
        a += firsts[i * GATHER_LANES + self];
        b += seconds[i * GATHER_LANES + self];
    }
    *first_out = a;
    *second_out = b;
    return true;
}

/* What partials take. */
static inline size_t partial_bytes(const tiling &t)
{
    return (size_t)t.slices * 2 * (size_t)t.channels * sizeof(double);
}

#endif
