/* param_init.c - plain views of parameters: import, export, first values and the hash.
 *
 * Everything here works on plain values in forward order, so that first values and hash are
 * functions of the model alone: layouts, flat order, ranks and threads do not enter. Set-up and
 * tests only, so it may allocate. One thread. */
#include <string.h>

#include "ddp/fs.h"
#include "ddp/memory.h"
#include "ddp/param.h"
#include "ddp/rng.h"
#include "tensor/param_impl.h"

ddp_status ddp_param_export(ddp_device *device, const ddp_param *param, const float *flat,
                            float *plain)
{
    return ddp_layout_export(device, param->layout, flat + param->offset, plain);
}

ddp_status ddp_param_import(ddp_device *device, const ddp_param *param, const float *plain,
                            float *flat)
{
    return ddp_layout_import(device, param->layout, plain, flat + param->offset);
}

static void draw(const ddp_param *param, uint64_t seed, float *plain)
{
    const size_t count = (size_t)ddp_shape_count(&param->shape);
    const ddp_rng rng = ddp_rng_make(seed, DDP_RNG_INIT, param->init_number);
    const float scale = (float)param->init.scale;
    switch (param->init.kind) {
    case DDP_INIT_ZERO:
        memset(plain, 0, count * sizeof *plain);
        return;
    case DDP_INIT_NORMAL:
        ddp_rng_normal_fill(&rng, 0, count, plain);
        for (size_t i = 0; i < count; i++)
            plain[i] *= scale;
        return;
    case DDP_INIT_UNIFORM:
        for (size_t i = 0; i < count; i++)
            plain[i] = (2.0f * ddp_rng_uniform(&rng, i) - 1.0f) * scale;
        return;
    case DDP_INIT_CONSTANT:
        for (size_t i = 0; i < count; i++)
            plain[i] = scale;
        return;
    }
    DDP_ASSERT(!"a kind of ddp_param_init");
}

static ddp_status alloc_plain(const ddp_param_table *table, float **plain_out)
{
    int64_t largest = 1;
    for (int i = 0; i < ddp_param_table_count(table); i++) {
        const int64_t count = ddp_shape_count(&ddp_param_table_at(table, i)->shape);
        largest = count > largest ? count : largest;
    }
    return ddp_alloc_bytes((size_t)largest, sizeof(float), (void **)(void *)plain_out);
}

ddp_status ddp_param_table_init(ddp_device *device, const ddp_param_table *table, uint64_t seed,
                                float *flat)
{
    float *plain;
    DDP_TRY(alloc_plain(table, &plain));
    ddp_status st = DDP_OK;
    for (int i = 0; st == DDP_OK && i < ddp_param_table_count(table); i++) {
        const ddp_param *param = ddp_param_table_at(table, i);
        draw(param, seed, plain);
        st = ddp_param_import(device, param, plain, flat);
    }
    ddp_free(plain);
    return st;
}

static void hash_param(ddp_hasher *hasher, const ddp_param *param, const float *plain)
{
    const int64_t ndim = param->shape.ndim;
    /* The end of the name is hashed too, so that no two lists of names run together. */
    ddp_hasher_update(hasher, param->name, strlen(param->name) + 1);
    ddp_hasher_update(hasher, &ndim, sizeof ndim);
    ddp_hasher_update(hasher, param->shape.dims, (size_t)ndim * sizeof param->shape.dims[0]);
    ddp_hasher_update(hasher, plain, (size_t)ddp_shape_count(&param->shape) * sizeof *plain);
}

ddp_status ddp_param_table_hash(ddp_device *device, const ddp_param_table *table, const float *flat,
                                uint64_t *hash_out)
{
    float *plain;
    ddp_hasher *hasher;
    ddp_status st;
    DDP_TRY(alloc_plain(table, &plain));
    DDP_TRY_GOTO(st, ddp_hasher_create(&hasher), err_free);
    const ddp_param *param = NULL;
    while ((param = ddpi_param_next_by_init(table, param)) != NULL) {
        DDP_TRY_GOTO(st, ddp_param_export(device, param, flat, plain), err_hasher);
        hash_param(hasher, param, plain);
    }
    *hash_out = ddp_hasher_digest(hasher);
err_hasher:
    ddp_hasher_destroy(hasher);
err_free:
    ddp_free(plain);
    return st;
}
