/* golden.h - the golden files' weights, made by their own number generator (see "generator" in the
 * files). */
#ifndef DDP_TESTS_GOLDEN_H
#define DDP_TESTS_GOLDEN_H

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ddp/fs.h"
#include "ddp/json.h"
#include "ddp/memory.h"
#include "ddp/param.h"
#include "harness.h"

static inline uint32_t golden_next(uint32_t *s)
{
    return *s = *s * 1664525u + 1013904223u;
}

/* In [-2^e, 2^e), exact in float. */
static inline float golden_sym(uint32_t *s, int exponent)
{
    return (float)ldexp((double)((int32_t)(golden_next(s) >> 8) - 8388608), exponent - 23);
}

/* In [0.875, 1.125), exact in float. */
static inline float golden_gamma(uint32_t *s)
{
    return (float)(1.0 + ldexp((double)((int32_t)(golden_next(s) >> 16) - 32768), -18));
}

/* In [0, 1). */
static inline float golden_unit(uint32_t *s)
{
    return (float)ldexp((double)(golden_next(s) >> 8), -24);
}

/* What the file must have. */
static inline double golden_number(const ddp_json *object, const char *key)
{
    double value = NAN;
    assert_true(ddp_json_as_number(ddp_json_get(object, key), &value));
    return value;
}

static inline double golden_element(const ddp_json *array, size_t index)
{
    double value = NAN;
    assert_true(ddp_json_as_number(ddp_json_at(array, index), &value));
    return value;
}

static inline ddp_status golden_load(const char *name, ddp_json **golden_out)
{
    char path[512], *text;
    size_t bytes;
    snprintf(path, sizeof path, "%s/golden/%s", DDP_TEST_DATA, name);
    DDP_TRY(ddp_fs_read(path, 1 << 24, &text, &bytes));
    ddp_status st = ddp_json_load(text, bytes, path, golden_out);
    ddp_free(text);
    return st;
}

static inline ddp_status golden_set_one(const ddp_json *entry, uint32_t *s, ddp_device *device,
                                        const ddp_param_table *table, float *flat)
{
    const char *name, *kind;
    int64_t exponent = 0;
    if (!ddp_json_as_string(ddp_json_get(entry, "name"), &name) ||
        !ddp_json_as_string(ddp_json_get(entry, "kind"), &kind))
        return DDP_FAIL(DDP_ERR_FORMAT, "golden parameter without name or kind");
    const bool gamma = strcmp(kind, "gamma") == 0;
    if (!gamma && !ddp_json_as_int(ddp_json_get(entry, "exponent"), &exponent))
        return DDP_FAIL(DDP_ERR_FORMAT, "golden parameter %s without exponent", name);
    int index = ddp_param_table_find(table, name);
    if (index < 0)
        return DDP_FAIL(DDP_ERR_FORMAT, "the model has no parameter %s", name);
    const ddp_param *p = ddp_param_table_at(table, index);
    size_t count = (size_t)ddp_shape_count(&p->shape);
    float *plain;
    DDP_TRY(DDP_ALLOC(plain, count));
    for (size_t i = 0; i < count; i++)
        plain[i] = gamma ? golden_gamma(s) : golden_sym(s, (int)exponent);
    ddp_status st = ddp_param_import(device, p, plain, flat);
    ddp_free(plain);
    return st;
}

/* Sets all parameters to the file's start weights. Afterwards *s continues with the inputs. */
static inline ddp_status golden_set_params_from(const ddp_json *golden, uint32_t *s,
                                                ddp_device *device, const ddp_param_table *table,
                                                float *flat)
{
    int64_t seed;
    const ddp_json *params = ddp_json_get(golden, "params");
    if (!ddp_json_as_int(ddp_json_get(golden, "seed"), &seed) || params == NULL)
        return DDP_FAIL(DDP_ERR_FORMAT, "golden file without seed or params");
    *s = (uint32_t)seed;
    for (size_t i = 0; i < ddp_json_length(params); i++)
        DDP_TRY(golden_set_one(ddp_json_at(params, i), s, device, table, flat));
    return DDP_OK;
}

static inline ddp_status golden_set_params(const char *name, ddp_device *device,
                                           const ddp_param_table *table, float *flat)
{
    ddp_json *golden;
    uint32_t s;
    DDP_TRY(golden_load(name, &golden));
    ddp_status st = golden_set_params_from(golden, &s, device, table, flat);
    ddp_json_destroy(golden);
    return st;
}

#endif
