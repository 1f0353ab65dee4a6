/* dataset.c - the public face of data sets: checks what goes in and what an implementation gives,
 * and dispatches.
 *
 * A data set does not change after it was opened, so fetching needs no lock. */
#include "ddp/dataset.h"

#include <limits.h>

#include "data/dataset_impl.h"
#include "ddp/memory.h"

static ddp_status check_info(const char *name, const ddp_dataset_info *info)
{
    char shape[64];
    bool fits = info->shape.ndim >= 1 && info->shape.ndim <= DDP_MAX_DIMS &&
                ddp_shape_count(&info->shape) >= 1;
    if (!fits || info->count < 1 || info->classes < 1 || info->classes > INT32_MAX)
        return DDP_FAIL(DDP_ERR_USAGE,
                        "data set %s: %lld samples of shape %s in %lld classes, expected at least "
                        "one of each",
                        name, (long long)info->count,
                        fits ? ddp_shape_format(&info->shape, shape, sizeof shape) : "(none)",
                        (long long)info->classes);
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
    st = ddp_comm_agree(comm, check_info(ops->name, &dataset->info), "checking the data set");
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

ddp_status ddp_dataset_fetch(ddp_dataset *dataset, const int64_t *indices, int64_t n, float *dst,
                             int32_t *labels)
{
    for (int64_t i = 0; i < n; i++)
        if (indices[i] < 0 || indices[i] >= dataset->info.count)
            return DDP_FAIL(DDP_ERR_INTERNAL, "data set %s: sample %lld asked for, it has %lld",
                            dataset->ops->name, (long long)indices[i],
                            (long long)dataset->info.count);
    if (n <= 0)
        return DDP_OK;
    return dataset->ops->fetch(dataset->self, indices, n, dst, labels);
}
