/* subset.c - a view of some samples of another data set: the two sides of --val-split.
 *
 * A keyed permutation of the whole decides, so a sample's side depends on the seed and its index
 * only. The view has no memory but the permutation's keys; fetch translates indices in pieces on
 * its stack. Any thread. */
#include "data/dataset_impl.h"
#include "data/permutation.h"
#include "ddp/memory.h"

#define PIECE 256

typedef struct subset {
    ddp_dataset *whole;
    ddpi_permutation permutation;
    int64_t first;
    int64_t sample_count; /* elements of one sample */
} subset;

static ddp_status subset_fetch(void *self, const int64_t *indices, int64_t n, float *dst,
                               int32_t *labels)
{
    const subset *view = self;
    int64_t translated[PIECE];
    for (int64_t done = 0; done < n; done += PIECE) {
        int64_t piece = n - done < PIECE ? n - done : PIECE;
        for (int64_t i = 0; i < piece; i++)
            translated[i] =
                ddpi_permutation_at(&view->permutation, view->first + indices[done + i]);
        DDP_TRY(ddp_dataset_fetch(view->whole, translated, piece, dst + done * view->sample_count,
                                  labels + done));
    }
    return DDP_OK;
}

static ddp_status subset_image(void *self, int64_t index, ddp_image *image_out)
{
    const subset *view = self;
    return ddp_dataset_image(
        view->whole, ddpi_permutation_at(&view->permutation, view->first + index), image_out);
}

static void subset_close(void *self, ddp_comm *comm)
{
    (void)comm;
    ddp_free(self);
}

/* open is never called: ddp_dataset_subset() takes its place. A view has what the whole has. */
static const ddp_dataset_ops fetched_ops = {
    .name = "subset", .fetch = subset_fetch, .close = subset_close};
static const ddp_dataset_ops lent_ops = {
    .name = "subset", .close = subset_close, .image = subset_image};
static const ddp_dataset_ops both_ops = {
    .name = "subset", .fetch = subset_fetch, .close = subset_close, .image = subset_image};

static const ddp_dataset_ops *ops_like(const ddp_dataset_ops *whole)
{
    if (whole->image == NULL)
        return &fetched_ops;
    return whole->fetch == NULL ? &lent_ops : &both_ops;
}

ddp_status ddp_dataset_subset(ddp_dataset *whole, uint64_t seed, int64_t first, int64_t count,
                              ddp_dataset **subset_out)
{
    const ddp_dataset_info *info = ddp_dataset_get_info(whole);
    if (first < 0 || first >= info->count || count < 1 || count > info->count - first)
        return DDP_FAIL(DDP_ERR_USAGE,
                        "a part of %lld samples from %lld on does not fit a data set of %lld",
                        (long long)count, (long long)first, (long long)info->count);
    ddp_dataset *dataset;
    subset *view;
    DDP_TRY(DDP_ALLOC(dataset, 1));
    ddp_status st = DDP_ALLOC(view, 1);
    if (st != DDP_OK) {
        ddp_free(dataset);
        return st;
    }
    view->whole = whole;
    view->first = first;
    view->sample_count = ddp_shape_count(&info->shape);
    ddpi_permutation_init(&view->permutation, info->count, seed, DDP_RNG_SPLIT, 0);
    *dataset = (ddp_dataset){ops_like(whole->ops), view, NULL, *info};
    dataset->info.count = count;
    *subset_out = dataset;
    return DDP_OK;
}
