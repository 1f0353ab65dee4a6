/* shm_reduce.c - element-wise reduction over plain pointers.
 *
 * The buffers are walked in blocks that stay in the caches of one core: every source is read from
 * memory once, partial results of the tree live in small buffers on the stack, and the last join
 * writes into the first destination, from where the other destinations are copied while the block
 * is still in the cache. Writing all destinations in the loop of the join instead is up to four
 * times slower: buffers of different ranks lie at equal offsets within a page, and the processor
 * then takes a load of one for the store to another. Destinations are usually sources as well, so
 * their lines are cached when they are written, and stores that bypass the cache gain nothing.
 * Joins of four sources are one loop, which keeps partial results of common worlds in registers. */
#include "comm/shm_reduce.h"

#include <string.h>

#include "ddp/bf16.h"
#include "ddp/f16.h"
#include "ddp/sum_tree.h"

#define BLOCK_BYTES ((size_t)16384)
/* Distance of the lines that are asked for ahead of the next block. */
#define PREFETCH_BYTES ((size_t)1024)
/* One for each time that the tree can turn right: log2(DDPI_REDUCE_MAX_SOURCES) and some. */
#define MAX_LEVELS 12

/* A clone for each instruction set, chosen when the program is loaded. The sanitizers' run-time
 * libraries are not ready yet at that time. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define VECTOR_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define VECTOR_CLONES
#endif

#define ADD(a, b) ((a) + (b))
/* A NaN is unequal to itself, and wins. */
#define LARGER(a, b)  ((a) > (b) || (a) != (a) ? (a) : (b))
#define SMALLER(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))

typedef void join_fn(void *dst, const void *const *src, size_t count);

/* dst may be one of the sources: each element is read before it is written, and no other element
 * depends on it, which is what ivdep says. */
#define DEFINE_JOINS(name, type, op)                                                               \
    VECTOR_CLONES static void join2_##name(void *dst, const void *const *src, size_t count)        \
    {                                                                                              \
        const type *a = src[0], *b = src[1];                                                       \
        type *out = dst;                                                                           \
        _Pragma("GCC ivdep") for (size_t i = 0; i < count; i++) out[i] = op(a[i], b[i]);           \
    }                                                                                              \
    VECTOR_CLONES static void join4_##name(void *dst, const void *const *src, size_t count)        \
    {                                                                                              \
        const type *a = src[0], *b = src[1], *c = src[2], *d = src[3];                             \
        type *out = dst;                                                                           \
        _Pragma("GCC ivdep") for (size_t i = 0; i < count; i++)                                    \
        {                                                                                          \
            type left = op(a[i], b[i]), right = op(c[i], d[i]);                                    \
            out[i] = op(left, right);                                                              \
        }                                                                                          \
    }

DEFINE_JOINS(sum_f32, float, ADD)
DEFINE_JOINS(max_f32, float, LARGER)
DEFINE_JOINS(min_f32, float, SMALLER)
DEFINE_JOINS(sum_f64, double, ADD)
DEFINE_JOINS(max_f64, double, LARGER)
DEFINE_JOINS(min_f64, double, SMALLER)
/* Integer sums wrap around, whatever their sign. */
DEFINE_JOINS(sum_u32, uint32_t, ADD)
DEFINE_JOINS(max_i32, int32_t, LARGER)
DEFINE_JOINS(min_i32, int32_t, SMALLER)
DEFINE_JOINS(sum_u64, uint64_t, ADD)
DEFINE_JOINS(max_i64, int64_t, LARGER)
DEFINE_JOINS(min_i64, int64_t, SMALLER)
DEFINE_JOINS(max_u64, uint64_t, LARGER)
DEFINE_JOINS(min_u64, uint64_t, SMALLER)

/* ---- bf16 and f16: each join adds in float and rounds once ---- */

#define DEFINE_NARROW_JOINS(name, widen, narrow)                                                   \
    VECTOR_CLONES static void join2_##name(void *dst, const void *const *src, size_t count)        \
    {                                                                                              \
        const uint16_t *a = src[0], *b = src[1];                                                   \
        uint16_t *out = dst;                                                                       \
        _Pragma("GCC ivdep") for (size_t i = 0; i < count; i++) out[i] =                           \
            narrow(widen(a[i]) + widen(b[i]));                                                     \
    }                                                                                              \
    VECTOR_CLONES static void join4_##name(void *dst, const void *const *src, size_t count)        \
    {                                                                                              \
        const uint16_t *a = src[0], *b = src[1], *c = src[2], *d = src[3];                         \
        uint16_t *out = dst;                                                                       \
        _Pragma("GCC ivdep") for (size_t i = 0; i < count; i++) out[i] =                           \
            narrow((widen(a[i]) + widen(b[i])) + (widen(c[i]) + widen(d[i])));                     \
    }

DEFINE_NARROW_JOINS(sum_bf16, ddp_f32_of_bf16, ddp_bf16_of_f32)
DEFINE_NARROW_JOINS(sum_f16, ddp_f32_of_f16, ddp_f16_of_f32)

typedef struct kernel {
    join_fn *join2, *join4;
} kernel;

#define KERNEL(name)                                                                               \
    {                                                                                              \
        join2_##name, join4_##name                                                                 \
    }

static const kernel kernels[DDP_F16 + 1][DDP_REDUCE_MIN + 1] = {
    [DDP_F32] = {KERNEL(sum_f32), KERNEL(max_f32), KERNEL(min_f32)},
    [DDP_F64] = {KERNEL(sum_f64), KERNEL(max_f64), KERNEL(min_f64)},
    [DDP_I32] = {KERNEL(sum_u32), KERNEL(max_i32), KERNEL(min_i32)},
    [DDP_I64] = {KERNEL(sum_u64), KERNEL(max_i64), KERNEL(min_i64)},
    [DDP_U64] = {KERNEL(sum_u64), KERNEL(max_u64), KERNEL(min_u64)},
    [DDP_BF16] = {KERNEL(sum_bf16)},
    [DDP_F16] = {KERNEL(sum_f16)},
};

bool ddpi_reduce_supports(ddp_dtype dtype, ddp_reduce_op op)
{
    return (unsigned)dtype <= DDP_F16 && (unsigned)op <= DDP_REDUCE_MIN &&
           kernels[dtype][op].join2 != NULL;
}

/* Gradients that are reduced in bf16 or f16 and parameters that are published in f32 have the same
 * owner, so both are cut at the same elements. */
static size_t slice_item_bytes(ddp_dtype dtype)
{
    return dtype == DDP_F32 ? ddp_dtype_bytes(DDP_BF16) : ddp_dtype_bytes(dtype);
}

ddp_range ddpi_reduce_slice(size_t count, ddp_dtype dtype, size_t unit, int n, int rank)
{
    if (unit == 0)
        unit = DDP_ALIGN_BYTES / slice_item_bytes(dtype);
    size_t units = count / unit + (count % unit != 0);
    size_t share = units / (size_t)n, extra = units % (size_t)n, r = (size_t)rank;
    size_t lo = r * share + (r < extra ? r : extra);
    size_t hi = lo + share + (r < extra ? 1 : 0);

    lo *= unit;
    hi *= unit;
    return (ddp_range){lo < count ? lo : count, hi < count ? hi : count};
}

/* One block of a reduction on its way through the tree. */
typedef struct block {
    const kernel *kernel;
    const void *const *src;
    const int64_t *leaves;
    size_t offset_bytes, count;
    char (*scratch)[BLOCK_BYTES]; /* one per level of the tree */
} block;

static const void *source_at(const block *b, int index)
{
    return (const char *)b->src[index] + b->offset_bytes;
}

/* How many of the n sources from first on lie left of the split. */
static int split_of(const block *b, int first, int n)
{
    int64_t total = 0, left;
    int count = 0;

    if (b->leaves == NULL)
        return (int)ddp_sum_split(n);
    for (int i = 0; i < n; i++)
        total += b->leaves[first + i];
    for (left = ddp_sum_split(total); left > 0; count++)
        left -= b->leaves[first + count];
    DDP_ASSERT(left == 0 && count < n);
    return count;
}

/* Reduces sources [first, first + n) and says where the result is: in dst, or, for a single source,
 * in that source. The buffers from scratch[level] on are free; dst may be the first of them, since
 * it is written by the last join only, element by element after that join's operands. */
static const void *reduce_tree(const block *b, int first, int n, int level, void *dst)
{
    if (n == 1)
        return source_at(b, first);
    DDP_ASSERT(level + 1 < MAX_LEVELS);
    if (n == 4 && b->leaves == NULL) {
        const void *four[4] = {source_at(b, first), source_at(b, first + 1),
                               source_at(b, first + 2), source_at(b, first + 3)};
        b->kernel->join4(dst, four, b->count);
        return dst;
    }
    int left = split_of(b, first, n);
    const void *two[2];
    two[0] = reduce_tree(b, first, left, level, b->scratch[level]);
    two[1] = reduce_tree(b, first + left, n - left, level + 1, b->scratch[level + 1]);
    b->kernel->join2(dst, two, b->count);
    return dst;
}

static void reduce_block(const ddpi_reduction *reduction, const block *b, size_t item_bytes)
{
    char *first = (char *)reduction->dst[0] + b->offset_bytes;
    const void *result = reduce_tree(b, 0, reduction->n, 0, first);

    for (int i = 0; i < reduction->dst_count; i++) {
        char *dst = (char *)reduction->dst[i] + b->offset_bytes;
        if (dst != result)
            memcpy(dst, result, b->count * item_bytes);
    }
}

/* The processor's own prefetching stops at page borders. Asking for a few lines of each page of the
 * next block, into the second-level cache, has addresses translated and streams started in time:
 * 5 to 9 % faster. Asking for all lines, or into the first level, is slower than not asking. */
static void prefetch_block(const ddpi_reduction *reduction, size_t offset_bytes)
{
    for (int i = 0; i < reduction->n; i++) {
        const char *at = (const char *)reduction->src[i] + offset_bytes;
        for (size_t ahead = 0; ahead < BLOCK_BYTES; ahead += PREFETCH_BYTES)
            __builtin_prefetch(at + ahead, 1, 2);
    }
}

void ddpi_reduce(const ddpi_reduction *reduction)
{
    _Alignas(DDP_ALIGN_BYTES) char scratch[MAX_LEVELS][BLOCK_BYTES];
    size_t item_bytes = ddp_dtype_bytes(reduction->dtype);
    size_t block_count = BLOCK_BYTES / item_bytes;

    DDP_ASSERT(ddpi_reduce_supports(reduction->dtype, reduction->op));
    DDP_ASSERT(reduction->n >= 1 && reduction->n <= DDPI_REDUCE_MAX_SOURCES);
    DDP_ASSERT(reduction->dst_count >= 1);
    for (size_t at = 0; at < reduction->count; at += block_count) {
        size_t left = reduction->count - at;
        block b = {
            .kernel = &kernels[reduction->dtype][reduction->op],
            .src = reduction->src,
            .leaves = reduction->leaves,
            .offset_bytes = at * item_bytes,
            .count = left < block_count ? left : block_count,
            .scratch = scratch,
        };
        if (left >= 2 * block_count)
            prefetch_block(reduction, (at + block_count) * item_bytes);
        reduce_block(reduction, &b, item_bytes);
    }
}
