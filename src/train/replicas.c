/* replicas.c - are the ranks' parameters still the same? One hash per parameter, gathered. */
#include <inttypes.h>

#include "ddp/fs.h"
#include "ddp/memory.h"
#include "ddp/trainer.h"

static ddp_status hash_params(ddp_device *device, const ddp_param_table *table, const float *params,
                              uint64_t *hashes)
{
    for (int i = 0; i < ddp_param_table_count(table); i++) {
        const ddp_param *p = ddp_param_table_at(table, i);
        size_t elements = (size_t)ddp_shape_count(&p->shape);
        float *plain;
        DDP_TRY(DDP_ALLOC(plain, elements));
        ddp_status st = ddp_param_export(device, p, params, plain);
        if (st == DDP_OK)
            hashes[i] = ddp_hash64(plain, elements * sizeof(float));
        ddp_free(plain);
        DDP_TRY(st);
    }
    return DDP_OK;
}

static ddp_status compare(const ddp_param_table *table, const uint64_t *all, int world,
                          int64_t step)
{
    int n = ddp_param_table_count(table);
    for (int r = 1; r < world; r++)
        for (int i = 0; i < n; i++)
            if (all[(size_t)r * n + i] != all[i])
                return DDP_FAIL(DDP_ERR_MISMATCH,
                                "step %lld: parameter %s differs between rank 0 and rank %d "
                                "(hash %016" PRIx64 " and %016" PRIx64 ")",
                                (long long)step, ddp_param_table_at(table, i)->name, r, all[i],
                                all[(size_t)r * n + i]);
    return DDP_OK;
}

ddp_status ddp_check_replicas(ddp_comm *comm, ddp_device *device, const ddp_param_table *table,
                              const float *params, int64_t step)
{
    size_t n = (size_t)ddp_param_table_count(table);
    int world = ddp_comm_world(comm);
    uint64_t *mine = NULL, *all = NULL;
    ddp_status st = DDP_ALLOC(mine, n);
    if (st == DDP_OK)
        st = DDP_ALLOC(all, n * (size_t)world);
    if (st == DDP_OK)
        st = hash_params(device, table, params, mine);
    st = ddp_comm_agree(comm, st, "hash parameters");
    if (st == DDP_OK)
        st = ddp_comm_allgather(comm, mine, n * sizeof *mine, all);
    if (st == DDP_OK)
        st = compare(table, all, world, step);
    ddp_free(mine);
    ddp_free(all);
    return st;
}
