/* norm_kernels.c - chooses the loops of norm_rows.h by instruction set. No state; any thread. */
#include "device/cpu/norm_kernels.h"

#include <string.h>

#define LANES  DDPI_NORM_LANES
#define UNROLL 4 /* rows */

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef uint32_t uvec __attribute__((vector_size(4 * LANES)));
typedef uint16_t hvec __attribute__((vector_size(2 * LANES)));

typedef struct pair {
    vec first, second;
} pair;

typedef struct factors {
    vec shift, scale, offset, of_dy;
} factors;

/* What a loop is made for; RELU: also its mask. */
enum { BF16 = 1, TWO = 2, RELU = 4 };

/* Calls BODY(a, b, choice) with choice a constant. */
#define FOR_CHOICES(choice, BODY, a, b)                                                            \
    switch (choice) {                                                                              \
    case 0:                                                                                        \
        BODY(a, b, 0);                                                                             \
        break;                                                                                     \
    case BF16:                                                                                     \
        BODY(a, b, BF16);                                                                          \
        break;                                                                                     \
    case TWO:                                                                                      \
        BODY(a, b, TWO);                                                                           \
        break;                                                                                     \
    case TWO | BF16:                                                                               \
        BODY(a, b, TWO | BF16);                                                                    \
        break;                                                                                     \
    case RELU:                                                                                     \
        BODY(a, b, RELU);                                                                          \
        break;                                                                                     \
    case RELU | BF16:                                                                              \
        BODY(a, b, RELU | BF16);                                                                   \
        break;                                                                                     \
    case RELU | TWO:                                                                               \
        BODY(a, b, RELU | TWO);                                                                    \
        break;                                                                                     \
    default:                                                                                       \
        BODY(a, b, RELU | TWO | BF16);                                                             \
        break;                                                                                     \
    }

#define APART   __attribute__((noinline))
#define INLINED inline __attribute__((always_inline))

#define ISA base
#define TARGET
#define ROUND APART
#include "device/cpu/norm_rows.h"

#if defined(__x86_64__)
#define ISA    avx2
#define TARGET __attribute__((target("avx2")))
#define ROUND  APART
#include "device/cpu/norm_rows.h"
#define ISA    avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define ROUND  INLINED
#include "device/cpu/norm_rows.h"

static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

#define DISPATCH(name, ...)                                                                        \
    if (has_avx512())                                                                              \
        name##_avx512(__VA_ARGS__);                                                                \
    else if (__builtin_cpu_supports("avx2"))                                                       \
        name##_avx2(__VA_ARGS__);                                                                  \
    else                                                                                           \
        name##_base(__VA_ARGS__)
#else
#define DISPATCH(name, ...) name##_base(__VA_ARGS__)
#endif

void ddpi_norm_sum(const ddpi_norm_rows *r, const void *x, ddpi_norm_lanes *sum)
{
    DISPATCH(sum, r, x, sum);
}

void ddpi_norm_deviations(const ddpi_norm_rows *r, const void *x, const ddpi_norm_lanes *shift,
                          ddpi_norm_lanes *sum, ddpi_norm_lanes *squares)
{
    DISPATCH(deviations, r, x, shift, sum, squares);
}

void ddpi_norm_apply(const ddpi_norm_rows *r, const ddpi_norm_forward *f)
{
    DISPATCH(apply, r, f);
}

void ddpi_norm_reduce_gradient(const ddpi_norm_rows *r, ddpi_norm_reduce *b)
{
    DISPATCH(reduce, r, b);
}

void ddpi_norm_spread_gradient(const ddpi_norm_rows *r, const ddpi_norm_backward *b)
{
    DISPATCH(spread, r, b);
}
