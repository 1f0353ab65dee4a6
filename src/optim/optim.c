/* optim.c - what all optimizers share: checking, state buffers, the step's scalars.
 *
 * State buffers are as long as the flat parameter buffer on every rank, although a rank that owns a
 * slice touches only that slice of them: pages that are never touched cost nothing, and any change
 * of ownership needs no reallocation. One thread. */
#include "optim/optim_impl.h"

#include "ddp/memory.h"

static const ddpi_optim_ops *const optimizers[] = {[DDP_OPTIM_SGD] = &ddpi_optim_sgd};

ddp_status ddp_optim_create(const ddp_optim_opts *opts, ddp_device *device,
                            const ddp_param_table *table, ddp_optim **optim_out)
{
    if (opts->kind < 0 || (size_t)opts->kind >= sizeof optimizers / sizeof *optimizers)
        return DDP_FAIL(DDP_ERR_USAGE, "optimizer number %d is not known", opts->kind);
    const ddpi_optim_ops *ops = optimizers[opts->kind];
    DDP_TRY(ops->check(opts));
    ddp_optim *optim;
    DDP_TRY(DDP_ALLOC(optim, 1));
    optim->ops = ops;
    optim->opts = *opts;
    optim->device = device;
    optim->length = ddp_param_table_length(table);
    int want = ops->slots(opts);
    DDP_ASSERT(want <= DDPI_OPTIM_MAX_SLOTS);
    ddp_status st = DDP_OK;
    for (int i = 0; i < want; i++) {
        void *slot;
        DDP_TRY_GOTO(st, ddp_device_alloc(device, optim->length * sizeof(float), &slot), err);
        optim->slots[optim->slot_count++] = slot;
    }
    *optim_out = optim;
    return DDP_OK;
err:
    ddp_optim_destroy(optim);
    return st;
}

void ddp_optim_destroy(ddp_optim *optim)
{
    if (optim == NULL)
        return;
    for (int i = 0; i < optim->slot_count; i++)
        ddp_device_free(optim->device, optim->slots[i], optim->length * sizeof(float));
    ddp_free(optim);
}

void ddp_optim_begin(ddp_optim *optim, double lr, double inv_count)
{
    optim->lr = lr;
    optim->inv_count = inv_count;
}

ddp_status ddp_optim_update(ddp_optim *optim, ddp_stream *stream, float *params, const float *grads,
                            ddp_range range, double *grad_sq)
{
    DDP_ASSERT(range.lo <= range.hi && range.hi <= optim->length);
    if (range.lo == range.hi)
        return DDP_OK;
    return optim->ops->update(optim, stream, params, grads, range, grad_sq);
}

void ddp_optim_end(ddp_optim *optim)
{
    optim->steps++;
}
