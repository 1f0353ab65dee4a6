/* elements.h - activations as the loops of the CPU device see them: f32, or bf16 (the upper half of
 * an f32), which is widened when loaded and rounded to the nearest, ties to even, when stored.
 *
 * `bf16` is a constant where these are used, so that each loop exists once in the source and twice
 * in the program, and is vectorised for both. Pure functions. */
#ifndef DDP_DEVICE_CPU_ELEMENTS_H
#define DDP_DEVICE_CPU_ELEMENTS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define DDPI_INLINE static inline __attribute__((always_inline))

DDPI_INLINE float ddpi_from_bf16(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* A NaN stays one, whatever its payload is. */
DDPI_INLINE uint16_t ddpi_to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    const uint32_t nan = (bits | 0x400000u) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded >> 16);
}

DDPI_INLINE float ddpi_load(const void *elements, int64_t at, const bool bf16)
{
    return bf16 ? ddpi_from_bf16(((const uint16_t *)elements)[at]) : ((const float *)elements)[at];
}

DDPI_INLINE void ddpi_store(void *elements, int64_t at, float value, const bool bf16)
{
    if (bf16)
        ((uint16_t *)elements)[at] = ddpi_to_bf16(value);
    else
        ((float *)elements)[at] = value;
}

/* Where element `at` lies. */
DDPI_INLINE void *ddpi_element(const void *elements, int64_t at, const bool bf16)
{
    return (char *)(uintptr_t)elements + (size_t)at * (bf16 ? sizeof(uint16_t) : sizeof(float));
}

#endif
