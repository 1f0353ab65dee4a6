/* look.c - verify and show. */
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ddp/checkpoint.h"
#include "ddp/fs.h"
#include "ddp/memory.h"
#include "ddp/weights.h"
#include "tools/ckpt/ckpt.h"

enum { SHAPE_BYTES = 64 };

static int64_t int_of(const ddp_json *object, const char *key)
{
    int64_t value = 0;

    return ddp_json_as_int(ddp_json_get(object, key), &value) ? value : -1;
}

/* ---- verify ---- */

static int verify_one(const char *path)
{
    ddp_json *state;

    if (ddp_ckpt_check(path, &state) != DDP_OK) {
        printf("%s: damaged: %s\n", path, ddp_status_message());
        return DDPI_CKPT_BAD;
    }
    printf("%s: good, step %" PRId64 "\n", path, int_of(state, "step"));
    ddp_json_destroy(state);
    return DDPI_CKPT_GOOD;
}

/* Also one that no run would find, its number being too short; not what a run has set aside. */
static bool is_checkpoint_name(const char *name)
{
    return strncmp(name, "step-", 5) == 0 && strstr(name, ".tmp-") == NULL &&
           strstr(name, ".left-") == NULL;
}

/* *found_out counts checkpoints. */
static int verify_folder(const char *dir, int *found_out)
{
    ddp_fs_names names;
    int worst = DDPI_CKPT_GOOD;

    *found_out = 0;
    if (ddp_fs_list(dir, &names) != DDP_OK)
        return ddpi_ckpt_trouble();
    for (size_t i = 0; i < names.count; i++) {
        char path[PATH_MAX];
        if (!is_checkpoint_name(names.names[i]))
            continue;
        int code = DDPI_CKPT_TROUBLE;
        if (ddp_fs_join(path, sizeof path, dir, names.names[i]) == DDP_OK)
            code = verify_one(path);
        worst = code > worst ? code : worst;
        ++*found_out;
    }
    ddp_fs_names_free(&names);
    return worst;
}

static bool has_file(const char *dir, const char *name)
{
    char path[PATH_MAX];

    return ddp_fs_join(path, sizeof path, dir, name) == DDP_OK && ddp_fs_exists(path);
}

int ddpi_ckpt_verify(const char *path)
{
    char dir[PATH_MAX];
    int found, code;

    if (!ddp_fs_exists(path)) {
        fprintf(stderr, "ddp_ckpt: %s: No such file or directory\n", path);
        return DDPI_CKPT_TROUBLE;
    }
    snprintf(dir, sizeof dir, "%s", path);
    if (has_file(path, "checkpoints") &&
        ddp_fs_join(dir, sizeof dir, path, "checkpoints") != DDP_OK)
        return ddpi_ckpt_trouble();
    code = verify_folder(dir, &found);
    return found > 0 || code != DDPI_CKPT_GOOD ? code : verify_one(path);
}

/* ---- show ---- */

static void show_values(const ddp_tensor *tensor, const double *values, size_t count)
{
    char shape[SHAPE_BYTES];
    double lo = INFINITY, hi = -INFINITY, sum = 0, squares = 0;
    size_t odd = 0;

    for (size_t i = 0; i < count; i++) {
        odd += !isfinite(values[i]);
        lo = fmin(lo, values[i]);
        hi = fmax(hi, values[i]);
        sum += values[i];
        squares += values[i] * values[i];
    }
    printf("  %-40s %-4s %-14s", tensor->name, tensor->dtype,
           tensor->shape.ndim > 0 ? ddp_shape_format(&tensor->shape, shape, sizeof shape)
                                  : "scalar");
    if (count > 0)
        printf(" mean %.4g, from %.4g to %.4g, norm %.4g", sum / (double)count, lo, hi,
               sqrt(squares));
    printf(odd > 0 ? ", %zu not finite\n" : "\n", odd);
}

static ddp_status show_tensor(const ddp_tensor *tensor)
{
    const size_t count = (size_t)ddp_shape_count(&tensor->shape);
    double *values;

    DDP_TRY(DDP_ALLOC(values, count));
    show_values(tensor, values, ddp_tensor_values(tensor, values) ? count : 0);
    ddp_free(values);
    return DDP_OK;
}

static ddp_status show_file(const char *dir, const char *name)
{
    char path[PATH_MAX];
    ddp_tensors *tensors;

    DDP_TRY(ddp_fs_join(path, sizeof path, dir, name));
    DDP_TRY(ddp_tensors_open(path, &tensors));
    printf("%s: %zu tensors\n", name, ddp_tensors_count(tensors));
    ddp_status st = DDP_OK;
    for (size_t i = 0; i < ddp_tensors_count(tensors) && st == DDP_OK; i++) {
        const ddp_tensor tensor = ddp_tensors_at(tensors, i);
        st = show_tensor(&tensor);
    }
    ddp_tensors_close(tensors);
    return st;
}

/* One line of state.json each, with its nested parts as they are. */
static ddp_status show_state(const ddp_json *state)
{
    char *text;

    DDP_TRY(ddp_json_text(state, 2, &text));
    puts(text);
    ddp_free(text);
    return DDP_OK;
}

int ddpi_ckpt_show(const char *path)
{
    ddp_json *state;

    if (ddp_ckpt_check(path, &state) != DDP_OK)
        return ddpi_ckpt_trouble();
    ddp_status st = show_state(state);
    if (st == DDP_OK)
        st = show_file(path, "model.safetensors");
    if (st == DDP_OK)
        st = show_file(path, "optimizer.safetensors");
    ddp_json_destroy(state);
    return st == DDP_OK ? DDPI_CKPT_GOOD : ddpi_ckpt_trouble();
}
