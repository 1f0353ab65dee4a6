/* dataset.h - data sets: a number of images with a label each.
 *
 * A format is a table of functions; the built-in ones are idx ("fashion-mnist" and others in that
 * format), CIFAR-10 and -100 in binary, packed shards (shards.h), and synthetic. A program may
 * register its own (app.h). Decoded data lies once per node in shared memory.
 *
 * A set gives its samples in one or both of two ways: image() lends an image as it lies in memory,
 * of any size and order, and costs nothing; fetch() writes plain f32 of the set's one shape. Both
 * are thread-safe: loader workers call them. */
#ifndef DDP_DATASET_H
#define DDP_DATASET_H

#include "ddp/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ddp_split { DDP_SPLIT_TRAIN, DDP_SPLIT_TEST } ddp_split;

typedef struct ddp_data_opts {
    const char *dataset; /* name in the registry */
    const char *data_dir;
    ddp_shape input_shape; /* synthetic: shape of a sample, without batch */
    int64_t synthetic_train, synthetic_test, synthetic_classes;
    uint64_t seed;
    bool verify_data; /* read everything once for its checksums, where a format has them */
} ddp_data_opts;

typedef struct ddp_dataset ddp_dataset;

typedef struct ddp_dataset_info {
    ddp_shape shape; /* of one sample: [c][h][w] */
    int64_t count, classes;
    bool variable; /* images differ in height and width; shape then is [c][0][0] */
    /* One for each class, valid as long as the set is open; NULL: not known. */
    const char *const *class_names;
} ddp_dataset_info;

/* One image where it lies, and its label. Element (c, y, x) is at c * stride_c + y * stride_y + x *
 * stride_x, counted in elements, so [c][h][w] and [h][w][c] are both said without a copy. */
typedef struct ddp_image {
    const void *pixels;
    bool bytes; /* uint8_t that stand for value / 255; else float */
    int64_t channels, height, width;
    int64_t stride_c, stride_y, stride_x;
    int32_t label;
} ddp_image;

/* A data set's implementation; `self` is what open gave. */
typedef struct ddp_dataset_ops {
    const char *name;
    /* Collective over comm's ranks: opens one split. Returns the same verdict on all ranks (use
     * ddp_comm_agree). Fills info (shape, count, classes) and *self_out. */
    ddp_status (*open)(const ddp_data_opts *opts, ddp_split split, ddp_comm *comm,
                       ddp_dataset_info *info_out, void **self_out);
    /* Any thread. Writes n samples as f32 (raw values, e.g. 0..255 / 255 already applied: in [0,
     * 1]) of info.shape each, and their labels. NULL for a set that only has image(). */
    ddp_status (*fetch)(void *self, const int64_t *indices, int64_t n, float *dst, int32_t *labels);
    void (*close)(void *self, ddp_comm *comm);
    /* Optional. Any thread. Lends one image until the set is closed. */
    ddp_status (*image)(void *self, int64_t index, ddp_image *image_out);
} ddp_dataset_ops;

/* The built-in ones. "fashion-mnist" and "mnist" are idx with the usual file names. */
DDP_API const ddp_dataset_ops *ddp_dataset_fashion_mnist(void);
DDP_API const ddp_dataset_ops *ddp_dataset_mnist(void);
DDP_API const ddp_dataset_ops *ddp_dataset_cifar10(void);
DDP_API const ddp_dataset_ops *ddp_dataset_cifar100(void);
DDP_API const ddp_dataset_ops *ddp_dataset_shards(void);
DDP_API const ddp_dataset_ops *ddp_dataset_synthetic(void);

/* Collective. The caller owns *dataset_out; comm is borrowed and outlives it. */
DDP_CALL ddp_status ddp_dataset_open(const ddp_dataset_ops *ops, const ddp_data_opts *opts,
                                     ddp_split split, ddp_comm *comm, ddp_dataset **dataset_out);
/* Collective. */
DDP_API void ddp_dataset_close(ddp_dataset *dataset);
DDP_API const ddp_dataset_info *ddp_dataset_get_info(const ddp_dataset *dataset);
/* Any thread. Needs a set of one shape: of a variable one DDP_ERR_UNSUPPORTED. */
DDP_CALL ddp_status ddp_dataset_fetch(ddp_dataset *dataset, const int64_t *indices, int64_t n,
                                      float *dst, int32_t *labels);
/* Any thread. Whether ddp_dataset_image() works, for all samples alike. */
DDP_API bool ddp_dataset_has_image(const ddp_dataset *dataset);
/* Any thread. Valid until the set is closed. DDP_ERR_UNSUPPORTED where the set has only fetch. */
DDP_CALL ddp_status ddp_dataset_image(ddp_dataset *dataset, int64_t index, ddp_image *image_out);

/* Local. A view of some samples of another data set (borrowed): those whose place in a keyed
 * permutation of the whole is within [first, first + count). For --val-split. */
DDP_CALL ddp_status ddp_dataset_subset(ddp_dataset *whole, uint64_t seed, int64_t first,
                                       int64_t count, ddp_dataset **subset_out);

#ifdef __cplusplus
}
#endif
#endif
