/* batch_kernels.h - convolution passes over blocks of 16 images that lie side by side.
 *
 * A block is [channel][row][column][16 images], so one vector is one pixel of 16 images, every pass
 * is a sum of scalar weight times vector, and neither channels nor pixels are padded. Weights are
 * plain. Stride 1 and no padding: the caller puts a border around the source where there is one.
 * Needs AVX-512. Pure functions; any thread. */
#ifndef DDP_DEVICE_CPU_BATCH_KERNELS_H
#define DDP_DEVICE_CPU_BATCH_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DDPI_BATCH_LANES 16

typedef struct ddpi_batch_conv {
    int64_t in_c, in_h, in_w, out_c, out_h, out_w, kernel_h, kernel_w;
    bool relu;
} ddpi_batch_conv;

/* Whether this processor and this build have the kernels. */
bool ddpi_batch_available(void);
/* Kernel widths that the passes are written for. */
bool ddpi_batch_conv_supports(const ddpi_batch_conv *shape);

/* dst = [relu](conv(src) + bias), lanes from `lanes` on are 0. bias may be NULL. */
void ddpi_batch_conv_forward(const ddpi_batch_conv *shape, const float *src, const float *weights,
                             const float *bias, float *dst, int lanes);
/* Writes diff_src. */
void ddpi_batch_conv_backward_data(const ddpi_batch_conv *shape, const float *diff_dst,
                                   const float *weights, float *diff_src);
/* Adds to diff_weights, and to diff_bias if not NULL. With relu, diff_dst is masked by dst first.
 */
void ddpi_batch_conv_backward_weights(const ddpi_batch_conv *shape, const float *src,
                                      const float *dst, float *diff_dst, float *diff_weights,
                                      float *diff_bias);

/* block [elements][16] from the first `lanes` of 16 rows of plain [lanes][elements]; the other
 * lanes become 0. And back. */
void ddpi_batch_pack(const float *plain, int64_t elements, int lanes, float *block);
void ddpi_batch_unpack(const float *block, int64_t elements, int lanes, float *plain);

#endif
