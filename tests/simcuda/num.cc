/* num.cc - element types, scratch, orders and the blocked product of the simulated libraries.
 *
 * The product packs blocks of A into columns of 6 and of B into rows of 16, so that the innermost
 * loop reads both in order; 6 by 16 sums stay in registers. Packing reads any strides, so
 * transposed operands cost nothing more. No locks: everything here belongs to the calling thread.
 */
#include "num.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

namespace
{

constexpr int64_t MR = 6, NR = 16, MC = 96, KC = 256, NC = 1024;

float bits_float(uint32_t bits)
{
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

uint32_t float_bits(float value)
{
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

float bf16_load(uint16_t bits)
{
    return bits_float((uint32_t)bits << 16);
}

uint16_t bf16_round(float value)
{
    uint32_t bits = float_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u); // a NaN stays one
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float f16_load(uint16_t bits)
{
    int exponent = (bits >> 10) & 31, fraction = bits & 1023;
    float value;
    if (exponent == 31)
        value = fraction ? NAN : INFINITY;
    else if (exponent == 0)
        value = std::ldexp((float)fraction, -24);
    else
        value = std::ldexp((float)(fraction + 1024), exponent - 25);
    return bits & 0x8000u ? -value : value;
}

uint16_t f16_round(float value)
{
    uint32_t sign = (float_bits(value) >> 16) & 0x8000u;
    float magnitude = std::fabs(value);
    if (std::isnan(value))
        return (uint16_t)(sign | 0x7e00u);
    if (magnitude >= 65520.0f)
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 6.103515625e-05f) // 2^-14: below, steps are 2^-24 wide
        return (uint16_t)(sign | (uint32_t)std::nearbyint(std::ldexp(magnitude, 24)));
    int exponent;
    float fraction = std::frexp(magnitude, &exponent); // 0.5 <= fraction < 1
    uint32_t steps = (uint32_t)std::nearbyint(std::ldexp(fraction, 11));
    return (uint16_t)(sign |
                      (((uint32_t)(exponent + 13) << 10) + steps)); // a carry moves the exponent up
}

typedef float lanes __attribute__((vector_size(64), aligned(4), may_alias));

// a: k columns of MR; b: k rows of NR; c: MR rows of NR, c_row apart, added to.
inline __attribute__((always_inline)) void tile_body(int64_t k, const float *a, const float *b,
                                                     float *c, int64_t c_row)
{
    lanes sum[MR] = {};
    for (int64_t p = 0; p < k; p++) {
        lanes row = *(const lanes *)(b + p * NR);
        for (int i = 0; i < MR; i++)
            sum[i] += a[p * MR + i] * row;
    }
    for (int i = 0; i < MR; i++)
        *(lanes *)(c + i * c_row) += sum[i];
}

__attribute__((target("avx512f"))) void tile_avx512(int64_t k, const float *a, const float *b,
                                                    float *c, int64_t c_row)
{
    tile_body(k, a, b, c, c_row);
}

__attribute__((target("avx2,fma"))) void tile_avx2(int64_t k, const float *a, const float *b,
                                                   float *c, int64_t c_row)
{
    tile_body(k, a, b, c, c_row);
}

void tile_plain(int64_t k, const float *a, const float *b, float *c, int64_t c_row)
{
    tile_body(k, a, b, c, c_row);
}

typedef void (*tile_function)(int64_t k, const float *a, const float *b, float *c, int64_t c_row);

tile_function pick_tile(void)
{
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f"))
        return tile_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return tile_avx2;
    return tile_plain;
}

// Panels of width rows (or columns): element (p, i) of a panel is source(first + i, p), zero past
// count.
void pack(sim_matrix source, int64_t count, int64_t k, int64_t width, float *packed)
{
    for (int64_t first = 0; first < count; first += width, packed += width * k)
        for (int64_t i = 0; i < width; i++) {
            bool filled = first + i < count;
            const float *from = source.data + (filled ? first + i : 0) * source.row;
            for (int64_t p = 0; p < k; p++)
                packed[p * width + i] = filled ? from[p * source.col] : 0.0f;
        }
}

// As pack(), for a source whose rows lie side by side: reads and writes in order.
void pack_side_by_side(sim_matrix source, int64_t count, int64_t k, int64_t width, float *packed)
{
    for (int64_t first = 0; first < count; first += width, packed += width * k) {
        int64_t filled = std::min(width, count - first);
        for (int64_t p = 0; p < k; p++) {
            const float *from = source.data + first + p * source.col;
            for (int64_t i = 0; i < filled; i++)
                packed[p * width + i] = from[i];
            for (int64_t i = filled; i < width; i++)
                packed[p * width + i] = 0.0f;
        }
    }
}

void pack_any(sim_matrix source, int64_t count, int64_t k, int64_t width, float *packed)
{
    if (source.row == 1)
        pack_side_by_side(source, count, k, width, packed);
    else
        pack(source, count, k, width, packed);
}

// One packed block of A times one of B.
void block_product(tile_function tile, int64_t m, int64_t n, int64_t k, const float *a,
                   const float *b, float *c, int64_t c_row)
{
    for (int64_t j = 0; j < n; j += NR)
        for (int64_t i = 0; i < m; i += MR) {
            const float *a_panel = a + i * k, *b_panel = b + j * k;
            if (i + MR <= m && j + NR <= n) {
                tile(k, a_panel, b_panel, c + i * c_row + j, c_row);
                continue;
            }
            float edge[MR * NR] = {};
            tile(k, a_panel, b_panel, edge, NR);
            for (int64_t y = 0; y < std::min(MR, m - i); y++)
                for (int64_t x = 0; x < std::min(NR, n - j); x++)
                    c[(i + y) * c_row + j + x] += edge[y * NR + x];
        }
}

uint64_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    return x ^ (x >> 33);
}

unsigned char garbage(uint64_t seed, size_t i)
{
    return (unsigned char)(0x7f ^ (seed >> (8 * (i & 7))));
}

} // namespace

size_t sim_type_bytes(sim_type type)
{
    return type == SIM_F32 ? 4 : 2;
}

float sim_load(sim_type type, const void *array, int64_t index)
{
    switch (type) {
    case SIM_F32:
        return static_cast<const float *>(array)[index];
    case SIM_BF16:
        return bf16_load(static_cast<const uint16_t *>(array)[index]);
    case SIM_F16:
        break;
    }
    return f16_load(static_cast<const uint16_t *>(array)[index]);
}

void sim_store(sim_type type, void *array, int64_t index, float value)
{
    switch (type) {
    case SIM_F32:
        static_cast<float *>(array)[index] = value;
        return;
    case SIM_BF16:
        static_cast<uint16_t *>(array)[index] = bf16_round(value);
        return;
    case SIM_F16:
        break;
    }
    static_cast<uint16_t *>(array)[index] = f16_round(value);
}

void sim_load_row(sim_type type, const void *array, int64_t first, int64_t stride, int64_t count,
                  float *dst)
{
    if (type == SIM_F32) {
        const float *from = static_cast<const float *>(array) + first;
        for (int64_t i = 0; i < count; i++)
            dst[i] = from[i * stride];
    } else if (type == SIM_BF16) {
        const uint16_t *from = static_cast<const uint16_t *>(array) + first;
        for (int64_t i = 0; i < count; i++)
            dst[i] = bf16_load(from[i * stride]);
    } else {
        for (int64_t i = 0; i < count; i++)
            dst[i] = sim_load(type, array, first + i * stride);
    }
}

void sim_store_row(sim_type type, void *array, int64_t first, int64_t stride, int64_t count,
                   const float *src)
{
    if (type == SIM_F32) {
        float *to = static_cast<float *>(array) + first;
        for (int64_t i = 0; i < count; i++)
            to[i * stride] = src[i];
    } else if (type == SIM_BF16) {
        uint16_t *to = static_cast<uint16_t *>(array) + first;
        for (int64_t i = 0; i < count; i++)
            to[i * stride] = bf16_round(src[i]);
    } else {
        for (int64_t i = 0; i < count; i++)
            sim_store(type, array, first + i * stride, src[i]);
    }
}

void sim_round_tf32(float *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = float_bits(values[i]);
        bool finite = (bits & 0x7f800000u) != 0x7f800000u;
        values[i] =
            finite ? bits_float((bits + 0xfffu + ((bits >> 13) & 1u)) & ~0x1fffu) : values[i];
    }
}

void sim_product(int64_t m, int64_t n, int64_t k, sim_matrix a, sim_matrix b, float *c,
                 int64_t c_row)
{
    static const tile_function tile = pick_tile();
    float *packed_a = sim_scratch(6, (size_t)(MC * KC)),
          *packed_b = sim_scratch(7, (size_t)(KC * NC));
    for (int64_t j = 0; j < n; j += NC) {
        int64_t columns = std::min(NC, n - j);
        for (int64_t p = 0; p < k; p += KC) {
            int64_t depth = std::min(KC, k - p);
            sim_matrix b_part = {b.data + p * b.row + j * b.col, b.col, b.row};
            pack_any(b_part, columns, depth, NR, packed_b);
            for (int64_t i = 0; i < m; i += MC) {
                int64_t rows = std::min(MC, m - i);
                pack_any({a.data + i * a.row + p * a.col, a.row, a.col}, rows, depth, MR, packed_a);
                block_product(tile, rows, columns, depth, packed_a, packed_b, c + i * c_row + j,
                              c_row);
            }
        }
    }
}

float *sim_scratch(int slot, size_t count)
{
    static thread_local std::vector<float> slots[8];
    std::vector<float> &memory = slots[slot];
    if (memory.size() < count)
        memory.resize(count);
    return memory.data();
}

uint64_t sim_changing(void)
{
    static std::atomic<uint64_t> calls{0};
    return mix(calls.fetch_add(1, std::memory_order_relaxed) + 1) | 1u;
}

void sim_order(uint64_t seed, int64_t count, int64_t *order)
{
    for (int64_t i = 0; i < count; i++)
        order[i] = i;
    if (!seed)
        return;
    for (int64_t i = count - 1; i > 0; i--)
        std::swap(order[i], order[mix(seed + (uint64_t)i) % (uint64_t)(i + 1)]);
}

uint64_t sim_spoil(void *workspace, size_t bytes)
{
    uint64_t seed = sim_changing();
    if (!bytes)
        return seed;
    volatile unsigned char *to = static_cast<unsigned char *>(cusim_host(workspace));
    cusim_writes(workspace, bytes);
    for (size_t i = 0; i < bytes; i++)
        to[i] = garbage(seed, i);
    return seed;
}

void sim_unspoiled(const char *name, const void *workspace, size_t bytes, uint64_t seed)
{
    if (!bytes)
        return;
    const volatile unsigned char *at = static_cast<const unsigned char *>(cusim_host(workspace));
    cusim_reads(workspace, bytes);
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != garbage(seed, i)) {
            cusim_report("%s: its workspace was overwritten while it ran (byte %zu)", name, i);
            return;
        }
}
