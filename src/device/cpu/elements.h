/* elements.h - activations as the loops of the CPU device see them: f32, or bf16, which is widened
 * when loaded and rounded when stored.
 *
 * `bf16` is a constant where these are used, so that each loop exists once in the source and twice
 * in the program, and is vectorised for both. Pure functions. */
#ifndef DDP_DEVICE_CPU_ELEMENTS_H
#define DDP_DEVICE_CPU_ELEMENTS_H

#include "device/cpu/bf16.h"

#define DDPI_INLINE static inline __attribute__((always_inline))

DDPI_INLINE float ddpi_load(const void *elements, int64_t at, const bool bf16)
{
    return bf16 ? ddp_f32_of_bf16(((const uint16_t *)elements)[at]) : ((const float *)elements)[at];
}

DDPI_INLINE void ddpi_store(void *elements, int64_t at, float value, const bool bf16)
{
    if (bf16)
        ((uint16_t *)elements)[at] = ddp_bf16_of_f32(value);
    else
        ((float *)elements)[at] = value;
}

/* Where element `at` lies. */
DDPI_INLINE void *ddpi_element(const void *elements, int64_t at, const bool bf16)
{
    return (char *)(uintptr_t)elements + (size_t)at * (bf16 ? sizeof(uint16_t) : sizeof(float));
}

#endif
