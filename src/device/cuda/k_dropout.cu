/* k_dropout.cu - dropout: the same draws as rng.h's generator (Philox4x32-10) makes on the host.
 *
 * A thread draws one block of the generator, which belongs to four neighbouring elements of a
 * sample in plain order. With channels last these lie `channels` apart, so neighbouring threads
 * take neighbouring channels where a block never crosses one. */
#include "device/cuda/elements.cuh"

enum { ROUNDS = 10, MOST_BLOCKS = 8192 };

/* ---- Philox ---- */

struct words {
    uint32_t w[4];
};

INNER words draw(const ddpi_k_dropout_draw &by, uint64_t index)
{
    words c = {{(uint32_t)index, (uint32_t)(index >> 32), by.stream[0], by.stream[1]}};
    uint32_t k0 = by.key[0], k1 = by.key[1];
    UNROLL
    for (int round = 0; round < ROUNDS; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c.w[0], p1 = (uint64_t)0xCD9E8D57u * c.w[2];
        c = {{(uint32_t)(p1 >> 32) ^ c.w[1] ^ k0, (uint32_t)p1, (uint32_t)(p0 >> 32) ^ c.w[3] ^ k1,
              (uint32_t)p0}};
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

/* ---- elements ---- */

/* Where an element of a sample lies, counted from the sample's first. */
INNER int64_t place_of(const ddpi_k_dropout_args &a, int64_t element)
{
    if (!a.channels_last)
        return element;
    const int64_t channel = element / a.pixels;
    return (element - channel * a.pixels) * a.channels + channel;
}

template <class E> INNER void drop(const ddpi_k_dropout_args &a, int64_t at, uint32_t word)
{
    float x[1];
    load<E>(a.src, at, x);
    x[0] = word >= a.threshold ? x[0] * a.scale : 0;
    store<E>(a.dst, at, x);
}

template <class E> __global__ void dropout(ddpi_k_dropout_args a)
{
    if (a.live_seed != NULL) {
        a.draw.key[0] = (uint32_t)*a.live_seed;
        a.draw.key[1] = (uint32_t)(*a.live_seed >> 32);
    }
    const int64_t elements = a.channels * a.pixels, quads = (elements + 3) / 4;
    const int64_t all = a.n * quads, step = (int64_t)gridDim.x * BLOCK;
    const bool by_channel = a.channels_last && a.pixels % 4 == 0;
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < all; i += step) {
        const int64_t sample = i / quads;
        int64_t quad = i - sample * quads;
        if (by_channel)
            quad = quad % a.channels * (a.pixels / 4) + quad / a.channels;
        const words w =
            draw(a.draw, (uint64_t)quads * (uint64_t)a.sample_ids[sample] + (uint64_t)quad);
        UNROLL
        for (int e = 0; e < 4; e++)
            if (4 * quad + e < elements)
                drop<E>(a, sample * elements + place_of(a, 4 * quad + e), w.w[e]);
    }
}

template <class E>
static cudaError_t launch_dropout(cudaStream_t stream, const ddpi_k_dropout_args &a)
{
    const unsigned blocks = blocks_for(a.n * ceil_div(a.channels * a.pixels, 4), MOST_BLOCKS);
    return GPU_LAUNCH(dropout<E>, blocks, BLOCK, 0, stream, a);
}

cudaError_t ddpi_k_dropout(cudaStream_t stream, const ddpi_k_dropout_args *args)
{
    return OF_TYPE(args->dtype, launch_dropout, stream, *args);
}
