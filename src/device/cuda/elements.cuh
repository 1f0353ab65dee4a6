/* elements.cuh - what the kernels share: elements in registers, sweeps over flat
 * ranges, sums of a block's threads.
 *
 * A pack is up to 16 bytes of neighbouring elements, which a thread moves at once. Everything is
 * computed in f32 or double; bf16 and f16 are only how elements are stored. Sums of a block are
 * made by a tree of fixed shape, so that they have the same bits every time. */
#ifndef DDP_DEVICE_CUDA_ELEMENTS_CUH
#define DDP_DEVICE_CUDA_ELEMENTS_CUH

#include <math.h>
#include <string.h>

#include "gpu.h"

#ifdef __CUDACC__
#include <cuda_fp16.h>
#else
#include "ddp/f16.h"
#endif

#include "device/cuda/kernels.h"

#define INNER static __device__ __forceinline__

/* Arrays that must lie in registers are indexed by constants only. */
#ifdef __CUDACC__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL
#endif

enum { BLOCK = 256 }; /* threads */

/* ---- elements ---- */

typedef uint16_t bf16;

INNER float widen(float value)
{
    return value;
}

INNER float widen(bf16 value)
{
    const uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

INNER void narrow(float value, float *to)
{
    *to = value;
}

/* To the nearest, ties to even; a NaN stays one. */
INNER void narrow(float value, bf16 *to)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const uint32_t quiet = bits >> 16 | 0x40;
    *to = (bf16)((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

/* IEEE's binary16, which nvcc converts by instructions. A type of its own, so that it is not taken
 * for the other 16 bits. */
struct f16 {
    uint16_t bits;
};

#ifdef __CUDACC__
INNER float widen(f16 value)
{
    return __half2float(__ushort_as_half(value.bits));
}

INNER void narrow(float value, f16 *to)
{
    to->bits = __half_as_ushort(__float2half_rn(value));
}
#else
INNER float widen(f16 value)
{
    return ddp_f32_of_f16(value.bits);
}

INNER void narrow(float value, f16 *to)
{
    to->bits = ddp_f16_of_f32(value);
}
#endif

/* launcher<the type of the elements>(...). */
#define OF_TYPE(dtype, launcher, ...)                                                              \
    ((dtype) == DDP_BF16  ? launcher<bf16>(__VA_ARGS__)                                            \
     : (dtype) == DDP_F16 ? launcher<f16>(__VA_ARGS__)                                             \
                          : launcher<float>(__VA_ARGS__))

template <class E, int V> struct alignas(sizeof(E) * V) pack {
    E v[V];
};

template <class E, int V> INNER void load(const void *from, int64_t at, float (&out)[V])
{
    const pack<E, V> p = *(const pack<E, V> *)((const E *)from + at);
    UNROLL
    for (int v = 0; v < V; v++)
        out[v] = widen(p.v[v]);
}

template <class E, int V> INNER void store(void *to, int64_t at, const float (&values)[V])
{
    pack<E, V> p;
    UNROLL
    for (int v = 0; v < V; v++)
        narrow(values[v], &p.v[v]);
    *(pack<E, V> *)((E *)to + at) = p;
}

/* As it will be read again. */
template <class E> INNER float stored(float value)
{
    E e;
    narrow(value, &e);
    return widen(e);
}

/* ---- flat ranges ---- */

static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline unsigned blocks_for(int64_t threads, int64_t most)
{
    const int64_t blocks = ceil_div(threads, BLOCK);
    return (unsigned)(blocks < 1 ? 1 : blocks < most ? blocks : most);
}

/* How a flat range is swept: `head` single elements, after which all buffers are aligned, then
 * packs, then what is left. */
struct sweep {
    int64_t count;
    int head;
    bool packs;
};

/* For elements of `size` bytes in those of the buffers that are not NULL. */
static inline sweep sweep_of(int64_t count, int size, const void *const *buffers, int n)
{
    sweep s = {count, 0, true};
    uintptr_t off = 0;
    bool first = true;
    for (int i = 0; i < n; i++) {
        if (buffers[i] == NULL)
            continue;
        const uintptr_t own = (uintptr_t)buffers[i] % 16;
        s.packs = s.packs && (first || own == off);
        off = own;
        first = false;
    }
    s.packs = s.packs && off % (uintptr_t)size == 0;
    s.head = s.packs && off != 0 ? (int)(16 - off) / size : 0;
    if (s.head > count)
        s.head = (int)count;
    return s;
}

/* Calls fn.template at<N>(i) for packs of N elements that begin at i; all blocks of the grid. */
template <int V, class F> INNER void sweep_range(const sweep &s, F &fn)
{
    const int64_t self = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int64_t all = (int64_t)gridDim.x * blockDim.x;
    if (!s.packs) {
        for (int64_t i = self; i < s.count; i += all)
            fn.template at<1>(i);
        return;
    }
    const int64_t packs = (s.count - s.head) / V, tail = s.head + packs * V;
    if (self < s.head)
        fn.template at<1>(self);
    for (int64_t i = self; i < packs; i += all)
        fn.template at<V>(s.head + i * V);
    if (self < s.count - tail)
        fn.template at<1>(tail + self);
}

/* ---- sums ---- */

/* The sum over a block of BLOCK threads, in thread 0. `room` is shared memory of BLOCK values, and
 * its own for each call. */
INNER double block_sum(double value, double *room)
{
    const int self = (int)threadIdx.x;
    room[self] = value;
    __syncthreads();
    double sum = 0;
    if (self < 32) {
        for (int i = self; i < BLOCK; i += 32)
            sum += room[i];
        for (int half = 16; half > 0; half /= 2)
            sum += __shfl_down_sync(0xffffffffu, sum, (unsigned)half);
    }
    return sum;
}

#endif
