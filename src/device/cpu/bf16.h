/* bf16.h - the CPU device's loops over bf16 elements (ddp/bf16.h). */
#ifndef DDP_DEVICE_CPU_BF16_H
#define DDP_DEVICE_CPU_BF16_H

#include "ddp/bf16.h"

void ddpi_bf16_widen(int threads, float *dst, const uint16_t *src, size_t count);
void ddpi_bf16_narrow(int threads, uint16_t *dst, const float *src, size_t count);
/* diff[i] = 0 where value[i] <= 0. */
void ddpi_bf16_relu_mask(int threads, uint16_t *diff, const uint16_t *value, size_t count);

#endif
