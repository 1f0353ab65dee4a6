/*
 * gpu.h - what a kernel file includes when an ordinary C++ compiler builds it for the simulated
 * CUDA runtime.
 *
 * A launch copies the arguments, checks every pointer among them and moves device pointers to where
 * the simulator keeps the memory; members of structs are looked at word by word. The stream's
 * thread then calls the kernel once for every CUDA thread; built-in variables are one thread-local
 * struct that the engine sets. Shared memory is thread-local as well, since a stream's thread runs
 * one block at a time.
 *
 * There: __syncthreads, __syncwarp, shuffles and votes (full mask), __shared__ (static),
 * GPU_DYN_SHARED, atomics on int, unsigned and unsigned long long, vector types, bit casts, the f32
 * intrinsics below. Not there: pointers kept in device memory, cooperative groups, textures, masks
 * that name some lanes only.
 */
#ifndef DDP_TESTS_SIMCUDA_GPU_H
#define DDP_TESTS_SIMCUDA_GPU_H

#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <cuda_runtime_api.h>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector_functions.h>
#include <vector_types.h>

struct cusim_context {
    uint3 thread, block, block_dim, grid_dim;
    void *shared;
};

extern "C" {
extern __attribute__((tls_model("initial-exec"))) __thread cusim_context cusim_current;
bool cusim_argument_pointer(const void **pointer);
bool cusim_argument_words(void *object, size_t bytes);
cudaError_t cusim_refuse(const char *kernel);
/* Copies the arguments; call() gets them at a place of the stream's own. */
cudaError_t cusim_launch(const char *kernel, const void *function, dim3 grid, dim3 block,
                         size_t shared_bytes, cudaStream_t stream,
                         void (*call)(const void *arguments), const void *arguments, size_t bytes);
void cusim_barrier(void);
void cusim_warp_barrier(void);
int cusim_block_count(int predicate); /* barrier; how many gave non-zero */
/* Gives `value` to the warp and takes what lane `source` gave; lanes that are not there: the own
 * value. */
void cusim_shuffle(const void *value, void *result, size_t bytes, int source);
unsigned cusim_ballot(int predicate);
}

#undef __shared__
#define __shared__ static thread_local
#undef __launch_bounds__
#define __launch_bounds__(...)
#define threadIdx (cusim_current.thread)
#define blockIdx  (cusim_current.block)
#define blockDim  (cusim_current.block_dim)
#define gridDim   (cusim_current.grid_dim)
#define warpSize  32

#define GPU_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                 \
    cusim::launch(#kernel, &kernel, dim3(grid), dim3(block), (shared_bytes), (stream), __VA_ARGS__)
#define GPU_DYN_SHARED(type, name) type *name = static_cast<type *>(cusim_current.shared)

namespace cusim
{
/* What lies between the members of a struct is left over from anything, also from pointers. */
template <class T> void clear_padding(T &argument)
{
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding(&argument);
#endif
#endif
    (void)argument;
}

template <class T> bool admit(T &argument)
{
    if constexpr (std::is_pointer_v<T>)
        return cusim_argument_pointer((const void **)&argument);
    else if constexpr (sizeof(T) >= sizeof(void *) && std::is_class_v<T>)
        return clear_padding(argument), cusim_argument_words(&argument, sizeof argument);
    else
        return true;
}

template <class... P, class... A>
cudaError_t launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                   size_t shared_bytes, cudaStream_t stream, A &&...arguments)
{
    struct call {
        void (*kernel)(P...);
        std::tuple<std::remove_cv_t<P>...> arguments;
    };
    static_assert((std::is_trivially_copyable_v<P> && ...), "kernels take plain values");
    call made{kernel, {static_cast<std::remove_cv_t<P>>(arguments)...}};
    bool good = true;
    std::apply([&](auto &...argument) { ((good = admit(argument) && good), ...); }, made.arguments);
    if (!good)
        return cusim_refuse(name);
    return cusim_launch(
        name, (const void *)kernel, grid, block, shared_bytes, stream,
        [](const void *copy) {
            const call *c = static_cast<const call *>(copy);
            std::apply(c->kernel, c->arguments);
        },
        &made, sizeof made);
}

template <class T> T shuffle(T value, int source, int width)
{
    static_assert(sizeof(T) <= 16 && std::is_trivially_copyable_v<T>, "small plain values");
    (void)width;
    T result;
    cusim_shuffle(&value, &result, sizeof value, source);
    return result;
}

inline int lane()
{
    const cusim_context &c = cusim_current;
    return (int)((c.thread.x + c.block_dim.x * (c.thread.y + c.block_dim.y * c.thread.z)) % 32);
}

/* Source lane `wanted`, if it lies in the caller's group of `width` lanes. */
inline int within(int wanted, int width)
{
    int own = lane();
    return wanted / width == own / width && wanted >= 0 ? wanted : own;
}

template <class To, class From> To cast(From value)
{
    static_assert(sizeof(To) == sizeof(From), "same size");
    To result;
    memcpy(&result, &value, sizeof result);
    return result;
}
} // namespace cusim

inline void __syncthreads()
{
    cusim_barrier();
}
inline void __syncwarp(unsigned = ~0u)
{
    cusim_warp_barrier();
}
inline int __syncthreads_or(int predicate)
{
    return cusim_block_count(predicate) > 0;
}
inline int __syncthreads_count(int predicate)
{
    return cusim_block_count(predicate);
}
inline void __threadfence()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void __threadfence_block()
{
}

template <class T> T __shfl_sync(unsigned, T value, int source, int width = 32)
{
    return cusim::shuffle(value, cusim::lane() / width * width + source % width, width);
}
template <class T> T __shfl_xor_sync(unsigned, T value, int mask, int width = 32)
{
    return cusim::shuffle(value, cusim::within(cusim::lane() ^ mask, width), width);
}
template <class T> T __shfl_down_sync(unsigned, T value, unsigned delta, int width = 32)
{
    return cusim::shuffle(value, cusim::within(cusim::lane() + (int)delta, width), width);
}
template <class T> T __shfl_up_sync(unsigned, T value, unsigned delta, int width = 32)
{
    return cusim::shuffle(value, cusim::within(cusim::lane() - (int)delta, width), width);
}
inline unsigned __ballot_sync(unsigned, int predicate)
{
    return cusim_ballot(predicate);
}
inline int __any_sync(unsigned, int predicate)
{
    return cusim_ballot(predicate) != 0;
}
inline int __all_sync(unsigned, int predicate)
{
    return cusim_ballot(!predicate) == 0;
}

template <class T> T __ldg(const T *place)
{
    return *place;
}
#define CUSIM_ATOMIC(type)                                                                         \
    inline type atomicAdd(type *place, type value)                                                 \
    {                                                                                              \
        return __atomic_fetch_add(place, value, __ATOMIC_RELAXED);                                 \
    }                                                                                              \
    inline type atomicOr(type *place, type value)                                                  \
    {                                                                                              \
        return __atomic_fetch_or(place, value, __ATOMIC_RELAXED);                                  \
    }                                                                                              \
    inline type atomicExch(type *place, type value)                                                \
    {                                                                                              \
        return __atomic_exchange_n(place, value, __ATOMIC_RELAXED);                                \
    }                                                                                              \
    inline type atomicCAS(type *place, type expected, type value)                                  \
    {                                                                                              \
        __atomic_compare_exchange_n(place, &expected, value, false, __ATOMIC_RELAXED,              \
                                    __ATOMIC_RELAXED);                                             \
        return expected;                                                                           \
    }                                                                                              \
    inline type atomicMax(type *place, type value)                                                 \
    {                                                                                              \
        type seen = __atomic_load_n(place, __ATOMIC_RELAXED);                                      \
        while (seen < value && !__atomic_compare_exchange_n(place, &seen, value, false,            \
                                                            __ATOMIC_RELAXED, __ATOMIC_RELAXED)) { \
        }                                                                                          \
        return seen;                                                                               \
    }
CUSIM_ATOMIC(int)
CUSIM_ATOMIC(unsigned)
CUSIM_ATOMIC(unsigned long long)
#undef CUSIM_ATOMIC

inline float __uint_as_float(unsigned bits)
{
    return cusim::cast<float>(bits);
}
inline unsigned __float_as_uint(float value)
{
    return cusim::cast<unsigned>(value);
}
inline float __int_as_float(int bits)
{
    return cusim::cast<float>(bits);
}
inline int __float_as_int(float value)
{
    return cusim::cast<int>(value);
}
inline double __longlong_as_double(long long bits)
{
    return cusim::cast<double>(bits);
}
inline long long __double_as_longlong(double value)
{
    return cusim::cast<long long>(value);
}
inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
inline double rsqrt(double x)
{
    return 1.0 / sqrt(x);
}
inline float __expf(float x)
{
    return expf(x);
}
inline float __logf(float x)
{
    return logf(x);
}
inline float __fdividef(float x, float y)
{
    return x / y;
}
/* Rounded once each: never contracted by the compiler, as on the device. */
inline float __fadd_rn(float x, float y)
{
    return x + y;
}
inline float __fmul_rn(float x, float y)
{
    return x * y;
}
inline float __fdiv_rn(float x, float y)
{
    return x / y;
}
inline float __fsqrt_rn(float x)
{
    return sqrtf(x);
}
inline float __fmaf_rn(float x, float y, float z)
{
    return fmaf(x, y, z);
}
inline double __dadd_rn(double x, double y)
{
    return x + y;
}
inline double __dmul_rn(double x, double y)
{
    return x * y;
}
inline unsigned __umulhi(unsigned x, unsigned y)
{
    return (unsigned)(((unsigned long long)x * y) >> 32);
}
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y)
{
    return (unsigned long long)(((unsigned __int128)x * y) >> 64);
}
inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

/* As in device code: without std::, for the arithmetic types. */
template <class T> constexpr std::enable_if_t<std::is_arithmetic_v<T>, T> min(T x, T y)
{
    return y < x ? y : x;
}
template <class T> constexpr std::enable_if_t<std::is_arithmetic_v<T>, T> max(T x, T y)
{
    return x < y ? y : x;
}

#endif
