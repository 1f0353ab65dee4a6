/* wiring.c - the one place that names models, data sets, devices, communicators and strategies.
 *
 * A program's own models and data sets come behind the built-in ones and are equal to them from
 * then on. The registry is made once, before any rank runs, and only read afterwards. */
#include "app/wiring.h"

#include <stdio.h>
#include <string.h>

#include "ddp/memory.h"

enum { LINE_BYTES = 256, INTRO_BYTES = 1024, BUILT_IN_MODELS = 7, BUILT_IN_DATASETS = 6 };

struct ddpi_registry {
    const ddp_model_def **models;
    const ddp_dataset_ops **datasets;
    size_t model_count, dataset_count;
    char *doc;
};

static ddp_status taken(const char *what, const char *name)
{
    return DDP_FAIL(DDP_ERR_USAGE, "%s \"%s\" is registered twice, expected a name of its own",
                    what, name);
}

static ddp_status add_model(ddpi_registry *r, const ddp_model_def *model)
{
    for (size_t i = 0; i < r->model_count; i++)
        if (strcmp(r->models[i]->name, model->name) == 0)
            return taken("model", model->name);
    r->models[r->model_count++] = model;
    return DDP_OK;
}

static ddp_status add_dataset(ddpi_registry *r, const ddp_dataset_ops *dataset)
{
    for (size_t i = 0; i < r->dataset_count; i++)
        if (strcmp(r->datasets[i]->name, dataset->name) == 0)
            return taken("data set", dataset->name);
    r->datasets[r->dataset_count++] = dataset;
    return DDP_OK;
}

static ddp_status fill(ddpi_registry *r, const ddp_app_extras *extras)
{
    DDP_TRY(add_model(r, ddp_model_lenet()));
    DDP_TRY(add_model(r, ddp_model_mlp()));
    DDP_TRY(add_model(r, ddp_model_resnet18_small()));
    DDP_TRY(add_model(r, ddp_model_resnet18()));
    DDP_TRY(add_model(r, ddp_model_resnet34()));
    DDP_TRY(add_model(r, ddp_model_resnet50()));
    DDP_TRY(add_model(r, ddp_model_resnet101()));
    DDP_TRY(add_dataset(r, ddp_dataset_fashion_mnist()));
    DDP_TRY(add_dataset(r, ddp_dataset_mnist()));
    DDP_TRY(add_dataset(r, ddp_dataset_cifar10()));
    DDP_TRY(add_dataset(r, ddp_dataset_cifar100()));
    DDP_TRY(add_dataset(r, ddp_dataset_shards()));
    DDP_TRY(add_dataset(r, ddp_dataset_synthetic()));
    for (size_t i = 0; extras != NULL && i < extras->model_count; i++)
        DDP_TRY(add_model(r, extras->models[i]));
    for (size_t i = 0; extras != NULL && i < extras->dataset_count; i++)
        DDP_TRY(add_dataset(r, extras->datasets[i]));
    return DDP_OK;
}

static ddp_status write_doc(ddpi_registry *r)
{
    size_t bytes = INTRO_BYTES + (r->model_count + r->dataset_count) * LINE_BYTES, used;

    DDP_TRY(DDP_ALLOC(r->doc, bytes));
    used = (size_t)snprintf(r->doc, bytes,
                            "Trains neural networks by synchronous data parallelism, one rank for "
                            "each process that mpirun or srun starts.\vModels:\n");
    for (size_t i = 0; i < r->model_count && used < bytes; i++)
        used += (size_t)snprintf(r->doc + used, bytes - used, "  %-15.40s %.180s\n",
                                 r->models[i]->name, r->models[i]->doc);
    if (used < bytes)
        used += (size_t)snprintf(r->doc + used, bytes - used, "\nData sets:\n");
    for (size_t i = 0; i < r->dataset_count && used < bytes; i++)
        used += (size_t)snprintf(r->doc + used, bytes - used, "  %.40s\n", r->datasets[i]->name);
    if (used < bytes)
        snprintf(r->doc + used, bytes - used,
                 "\nExamples:\n"
                 "  mpirun -np 8 ddp_train --model resnet18-small --run-dir runs/mine\n"
                 "  mpirun -np 8 ddp_train --run-dir runs/mine --resume auto\n"
                 "  srun --mpi=pmix ddp_train --model resnet50 --device cuda\n"
                 "\nExit status: 0 trained (evaluated, verified), 1 failed, 2 wrong options, 3 "
                 "stopped on request with everything saved.");
    return DDP_OK;
}

ddp_status ddpi_registry_create(const ddp_app_extras *extras, ddpi_registry **out)
{
    size_t models = BUILT_IN_MODELS + (extras != NULL ? extras->model_count : 0);
    size_t datasets = BUILT_IN_DATASETS + (extras != NULL ? extras->dataset_count : 0);
    ddpi_registry *r;
    ddp_status st;

    DDP_TRY(DDP_ALLOC(r, 1));
    DDP_TRY_GOTO(st, DDP_ALLOC(r->models, models), err_destroy);
    DDP_TRY_GOTO(st, DDP_ALLOC(r->datasets, datasets), err_destroy);
    DDP_TRY_GOTO(st, fill(r, extras), err_destroy);
    DDP_TRY_GOTO(st, write_doc(r), err_destroy);
    *out = r;
    return DDP_OK;

err_destroy:
    ddpi_registry_destroy(r);
    return st;
}

void ddpi_registry_destroy(ddpi_registry *r)
{
    if (r == NULL)
        return;
    ddp_free(r->models);
    ddp_free(r->datasets);
    ddp_free(r->doc);
    ddp_free(r);
}

const char *ddpi_registry_doc(const ddpi_registry *r)
{
    return r->doc;
}

/* Appends ", name" to a list of at most LINE_BYTES. */
static void list_name(char list[LINE_BYTES], const char *name)
{
    size_t used = strlen(list);

    snprintf(list + used, LINE_BYTES - used, "%s%s", used > 0 ? ", " : "", name);
}

ddp_status ddpi_registry_model(const ddpi_registry *r, const char *name,
                               const ddp_model_def **model_out)
{
    char known[LINE_BYTES] = "";

    for (size_t i = 0; i < r->model_count; i++) {
        if (strcmp(r->models[i]->name, name) == 0) {
            *model_out = r->models[i];
            return DDP_OK;
        }
        list_name(known, r->models[i]->name);
    }
    return DDP_FAIL(DDP_ERR_USAGE, "option --model: found \"%.100s\", expected one of %s", name,
                    known);
}

ddp_status ddpi_registry_dataset(const ddpi_registry *r, const char *name,
                                 const ddp_dataset_ops **dataset_out)
{
    char known[LINE_BYTES] = "";

    for (size_t i = 0; i < r->dataset_count; i++) {
        if (strcmp(r->datasets[i]->name, name) == 0) {
            *dataset_out = r->datasets[i];
            return DDP_OK;
        }
        list_name(known, r->datasets[i]->name);
    }
    return DDP_FAIL(DDP_ERR_USAGE, "option --dataset: found \"%.100s\", expected one of %s", name,
                    known);
}

ddp_comm_choice ddpi_wiring_comm(const ddp_run_opts *run)
{
    if (run->comm == DDP_COMM_LOOPBACK || (run->comm == DDP_COMM_AUTO && run->loopback_ranks > 0))
        return DDP_COMM_LOOPBACK;
    /* Who asks for messages is told that there are none. */
    if (run->comm != DDP_COMM_MPI && !ddp_comm_has_mpi())
        return DDP_COMM_LOOPBACK;
    return DDP_COMM_MPI;
}

const ddp_hook_ops *ddpi_wiring_hook(const ddp_run_opts *run)
{
    if (run->compress != DDP_COMPRESS_NONE)
        return run->compress == DDP_COMPRESS_TOPK ? ddp_hook_topk() : ddp_hook_powersgd();
    switch ((ddp_precision)run->grad_dtype) {
    case DDP_PRECISION_BF16:
        return ddp_hook_bf16();
    case DDP_PRECISION_FP16:
        return ddp_hook_fp16();
    case DDP_PRECISION_FP32:
        break;
    }
    return ddp_hook_plain();
}

const ddp_strategy_ops *ddpi_wiring_strategy(int choice)
{
    switch ((ddp_strategy_choice)choice) {
    case DDP_STRATEGY_SYNC:
        return ddp_strategy_sync();
    case DDP_STRATEGY_NAIVE:
        return ddp_strategy_naive();
    case DDP_STRATEGY_DDP:
        break;
    }
    return ddp_strategy_ddp();
}
