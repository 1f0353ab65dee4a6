/* dataset.c - the public face of data sets: checks what goes in and what an implementation gives,
 * and dispatches.
 *
 * A data set does not change after it was opened, so fetching needs no lock. */
#include "ddp/dataset.h"

#include <limits.h>

#include "data/dataset_impl.h"
#include "ddp/memory.h"

static bool shape_fits(const ddp_dataset_info *info)
{
    const ddp_shape *shape = &info->shape;
    if (info->variable)
        return shape->ndim == 3 && shape->dims[0] >= 1 && shape->dims[1] == 0 &&
               shape->dims[2] == 0;
    return shape->ndim >= 1 && shape->ndim <= DDP_MAX_DIMS && ddp_shape_count(shape) >= 1;
}

static ddp_status check_info(const ddp_dataset_ops *ops, const ddp_dataset_info *info)
{
    char shape[64];
    bool fits = shape_fits(info);
    if (!fits || info->count < 1 || info->classes < 1 || info->classes > INT32_MAX)
        return DDP_FAIL(DDP_ERR_USAGE,
                        "data set %s: %lld samples of shape %s in %lld classes, expected at least "
                        "one of each",
                        ops->name, (long long)info->count,
                        fits ? ddp_shape_format(&info->shape, shape, sizeof shape) : "(none)",
                        (long long)info->classes);
    if (ops->image == NULL && (ops->fetch == NULL || info->variable))
        return DDP_FAIL(DDP_ERR_USAGE, "data set %s has no image(), expected one from a set %s",
                        ops->name,
                        info->variable ? "whose images differ in size" : "without fetch()");
    return DDP_OK;
}

ddp_status ddp_dataset_open(const ddp_dataset_ops *ops, const ddp_data_opts *opts, ddp_split split,
                            ddp_comm *comm, ddp_dataset **dataset_out)
{
    ddp_dataset *dataset = NULL;
    ddp_status st = DDP_ALLOC(dataset, 1);
    /* Other ranks are about to enter open(), which is collective: one that has no memory tells
     * them. */
    DDP_TRY_GOTO(st, ddp_comm_agree(comm, st, "opening the data set"), err_free);
    dataset->ops = ops;
    dataset->comm = comm;
    DDP_TRY_GOTO(st, ops->open(opts, split, comm, &dataset->info, &dataset->self), err_free);
    st = ddp_comm_agree(comm, check_info(ops, &dataset->info), "checking the data set");
    if (st != DDP_OK)
        goto err_close;
    *dataset_out = dataset;
    return DDP_OK;
err_close:
    ops->close(dataset->self, comm);
err_free:
    ddp_free(dataset);
    return st;
}

void ddp_dataset_close(ddp_dataset *dataset)
{
    if (dataset == NULL)
        return;
    dataset->ops->close(dataset->self, dataset->comm);
    ddp_free(dataset);
}

const ddp_dataset_info *ddp_dataset_get_info(const ddp_dataset *dataset)
{
    return &dataset->info;
}

static ddp_status check_index(const ddp_dataset *dataset, int64_t index)
{
    if (index >= 0 && index < dataset->info.count)
        return DDP_OK;
    return DDP_FAIL(DDP_ERR_INTERNAL, "data set %s: sample %lld asked for, it has %lld",
                    dataset->ops->name, (long long)index, (long long)dataset->info.count);
}

/* For sets without fetch(). */
static ddp_status copy_image(ddp_dataset *dataset, int64_t index, float *dst, int32_t *label)
{
    const int64_t *want = dataset->info.shape.dims;
    ddp_image image;
    DDP_TRY(ddp_dataset_image(dataset, index, &image));
    if (image.channels != want[0] || image.height != want[1] || image.width != want[2])
        return DDP_FAIL(DDP_ERR_SHAPE,
                        "data set %s: sample %lld is %lld x %lld x %lld, expected %lld x %lld x "
                        "%lld",
                        dataset->ops->name, (long long)index, (long long)image.channels,
                        (long long)image.height, (long long)image.width, (long long)want[0],
                        (long long)want[1], (long long)want[2]);
    const uint8_t *bytes = image.pixels;
    const float *floats = image.pixels;
    for (int64_t c = 0; c < image.channels; c++)
        for (int64_t y = 0; y < image.height; y++)
            for (int64_t x = 0; x < image.width; x++) {
                int64_t at = c * image.stride_c + y * image.stride_y + x * image.stride_x;
                *dst++ = image.bytes ? (float)bytes[at] / 255.0f : floats[at];
            }
    *label = image.label;
    return DDP_OK;
}

ddp_status ddp_dataset_fetch(ddp_dataset *dataset, const int64_t *indices, int64_t n, float *dst,
                             int32_t *labels)
{
    for (int64_t i = 0; i < n; i++)
        DDP_TRY(check_index(dataset, indices[i]));
    if (n <= 0)
        return DDP_OK;
    if (dataset->info.variable)
        return DDP_FAIL(DDP_ERR_UNSUPPORTED,
                        "data set %s: its images differ in size, so they cannot be fetched as "
                        "arrays of one shape",
                        dataset->ops->name);
    if (dataset->ops->fetch != NULL)
        return dataset->ops->fetch(dataset->self, indices, n, dst, labels);
    int64_t pixels = ddp_shape_count(&dataset->info.shape);
    for (int64_t i = 0; i < n; i++)
        DDP_TRY(copy_image(dataset, indices[i], dst + i * pixels, &labels[i]));
    return DDP_OK;
}

bool ddp_dataset_has_image(const ddp_dataset *dataset)
{
    return dataset->ops->image != NULL;
}

ddp_status ddp_dataset_image(ddp_dataset *dataset, int64_t index, ddp_image *image_out)
{
    DDP_TRY(check_index(dataset, index));
    if (dataset->ops->image == NULL)
        return DDP_FAIL(DDP_ERR_UNSUPPORTED,
                        "data set %s lends no images; it only writes them as arrays",
                        dataset->ops->name);
    return dataset->ops->image(dataset->self, index, image_out);
}
