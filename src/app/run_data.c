/* run_data.c - the data sets of a run, the part held out, and the sampler's arithmetic. */
#include <inttypes.h>
#include <string.h>

#include "app/run.h"

/* The held-out part is the last one of the permuted training set. */
static ddp_status split(ddpi_run *run)
{
    ddpi_run_data *data = &run->data;
    int64_t count = ddp_dataset_get_info(data->whole)->count;
    int64_t held_out = (int64_t)((double)count * run->config.run.val_split);

    data->train = data->whole;
    if (run->config.run.val_split == 0)
        return DDP_OK;
    if (held_out < 1)
        return DDP_FAIL(DDP_ERR_USAGE,
                        "option --val-split: found %g of %" PRId64
                        " samples, expected enough for one sample",
                        run->config.run.val_split, count);
    DDP_TRY(
        ddp_dataset_subset(data->whole, run->config.data.seed, 0, count - held_out, &data->train));
    return ddp_dataset_subset(data->whole, run->config.data.seed, count - held_out, held_out,
                              &data->val);
}

/* A label must mean the same in both splits, where they say what it means. */
static ddp_status compare_classes(const ddpi_run *run, const ddp_dataset_info *train,
                                  const ddp_dataset_info *test)
{
    for (int64_t i = 0; train->class_names && test->class_names && i < train->classes; i++)
        if (strcmp(train->class_names[i], test->class_names[i]) != 0)
            return DDP_FAIL(DDP_ERR_FORMAT,
                            "data set %s: class %" PRId64 " of the test samples is \"%.80s\", "
                            "expected \"%.80s\" as in training",
                            run->config.data.dataset, i, test->class_names[i],
                            train->class_names[i]);
    return DDP_OK;
}

/* Images that differ in size within a split may do so between splits: transforms give them one. */
static bool shapes_fit(const ddp_dataset_info *train, const ddp_dataset_info *test)
{
    if (train->variable || test->variable)
        return train->shape.ndim == 3 && test->shape.ndim == 3 &&
               train->shape.dims[0] == test->shape.dims[0];
    return ddp_shape_equal(&train->shape, &test->shape);
}

static ddp_status compare_splits(const ddpi_run *run)
{
    const ddp_dataset_info *train = ddp_dataset_get_info(run->data.train);
    const ddp_dataset_info *test = ddp_dataset_get_info(run->data.test);
    char a[64], b[64];

    if (shapes_fit(train, test) && train->classes == test->classes)
        return compare_classes(run, train, test);
    return DDP_FAIL(DDP_ERR_SHAPE,
                    "data set %s: test samples are %s of %" PRId64
                    " classes, expected the training set's %s of %" PRId64,
                    run->config.data.dataset, ddp_shape_format(&test->shape, a, sizeof a),
                    test->classes, ddp_shape_format(&train->shape, b, sizeof b), train->classes);
}

/* A rank without samples would not be there when the others gather. */
static ddp_status check_sync_bn(const ddpi_run *run)
{
    const ddp_sampler *sampler = &run->data.sampler;
    int64_t last = ddp_sampler_step_count(sampler, ddp_sampler_steps(sampler) - 1);

    if (!run->config.run.sync_bn || last >= sampler->shards)
        return DDP_OK;
    return DDP_FAIL(DDP_ERR_USAGE,
                    "option --sync-bn: found with a last batch of %" PRId64 " samples on %d ranks, "
                    "expected one for each rank: another --batch-size, or --drop-last",
                    last, run->world);
}

static ddp_status check_sampler(ddpi_run *run)
{
    run->data.sampler = (ddp_sampler){.size = ddp_dataset_get_info(run->data.train)->count,
                                      .batch = run->config.global_batch,
                                      .shards = run->config.shards,
                                      .seed = run->config.data.seed,
                                      .drop_last = run->config.run.drop_last,
                                      .shuffle = true};
    DDP_TRY(ddp_sampler_check(&run->data.sampler));
    return check_sync_bn(run);
}

static ddp_status open_train(ddpi_run *run, const ddp_dataset_ops *ops)
{
    DDP_TRY(ddp_dataset_open(ops, &run->config.data, DDP_SPLIT_TRAIN, run->comm, &run->data.whole));
    DDP_TRY(split(run));
    DDP_TRY(compare_splits(run));
    DDP_TRY(check_sampler(run));
    return ddp_config_resolve_schedule(&run->config, ddp_sampler_steps(&run->data.sampler));
}

static ddp_status make_transforms(ddpi_run *run, const ddp_dataset_info *info)
{
    const ddp_normalize *n = &run->config.normalize;
    ddp_transform_opts opts = run->config.transform;

    opts.mean = n->count > 0 ? n->mean : NULL;
    opts.deviation = n->count > 0 ? n->deviation : NULL;
    opts.channels = n->count;
    DDP_TRY(ddp_transform_create(&opts, info, false, &run->data.eval_transform));
    if (run->config.run.eval_only)
        return DDP_OK;
    return ddp_transform_create(&opts, info, true, &run->data.train_transform);
}

ddp_status ddpi_run_open_data(ddpi_run *run)
{
    const ddp_dataset_ops *ops;
    const ddp_dataset_info *info;

    /* Every rank has the same options here, so all fail together or none does. */
    DDP_TRY(ddpi_registry_dataset(run->app->registry, run->config.data.dataset, &ops));
    DDP_TRY(ddp_dataset_open(ops, &run->config.data, DDP_SPLIT_TEST, run->comm, &run->data.test));
    if (!run->config.run.eval_only)
        DDP_TRY(open_train(run, ops));
    info = ddp_dataset_get_info(run->config.run.eval_only ? run->data.test : run->data.train);
    DDP_TRY(ddp_config_check_data(&run->config, run->world, info->count, info->shape.dims[0]));
    DDP_TRY(make_transforms(run, info));
    run->config.model.input_shape = *ddp_transform_shape(run->data.eval_transform);
    run->config.model.classes = info->classes;
    return DDP_OK;
}

void ddpi_run_close_data(ddpi_run *run)
{
    ddpi_run_data *data = &run->data;

    ddp_transform_destroy(data->train_transform);
    ddp_transform_destroy(data->eval_transform);
    ddp_dataset_close(data->val);
    if (data->train != data->whole)
        ddp_dataset_close(data->train);
    ddp_dataset_close(data->whole);
    ddp_dataset_close(data->test);
}
