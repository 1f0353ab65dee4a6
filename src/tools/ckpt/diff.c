/* diff.c - two checkpoints, or two safetensors files: by name, each tensor's bytes and, where they
 * differ, by how much; then what the states say. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ddp/checkpoint.h"
#include "ddp/fs.h"
#include "ddp/memory.h"
#include "ddp/weights.h"
#include "tools/ckpt/ckpt.h"

typedef struct diff {
    const char *a, *b; /* paths of files */
    int differences;
} diff;

/* ---- tensors ---- */

static bool find(const ddp_tensors *tensors, const char *name, ddp_tensor *tensor_out)
{
    for (size_t i = 0; i < ddp_tensors_count(tensors); i++) {
        *tensor_out = ddp_tensors_at(tensors, i);
        if (strcmp(tensor_out->name, name) == 0)
            return true;
    }
    return false;
}

static ddp_status compare_values(const ddp_tensor *x, const ddp_tensor *y)
{
    const size_t count = (size_t)ddp_shape_count(&x->shape);
    double *a = NULL, *b = NULL, largest = 0, squares = 0, norm = 0;
    size_t differ = 0;

    ddp_status st = DDP_ALLOC(a, count);
    if (st == DDP_OK)
        st = DDP_ALLOC(b, count);
    const bool known = st == DDP_OK && ddp_tensor_values(x, a) && ddp_tensor_values(y, b);
    for (size_t i = 0; known && i < count; i++) {
        const double d = fabs(a[i] - b[i]);
        differ += a[i] != b[i];
        largest = fmax(largest, d);
        squares += d * d;
        norm += a[i] * a[i];
    }
    if (known)
        printf("%s: %zu of %zu values differ, by %.3g at most, %.3g of the norm\n", x->name, differ,
               count, largest, norm > 0 ? sqrt(squares / norm) : sqrt(squares));
    else if (st == DDP_OK)
        printf("%s: differs\n", x->name);
    ddp_free(a);
    ddp_free(b);
    return st;
}

static ddp_status compare_tensor(diff *d, const ddp_tensor *x, const ddp_tensor *y)
{
    char shape_x[64], shape_y[64];

    if (strcmp(x->dtype, y->dtype) != 0 || !ddp_shape_equal(&x->shape, &y->shape)) {
        printf("%s: %s %s and %s %s\n", x->name, x->dtype,
               ddp_shape_format(&x->shape, shape_x, sizeof shape_x), y->dtype,
               ddp_shape_format(&y->shape, shape_y, sizeof shape_y));
        d->differences++;
        return DDP_OK;
    }
    if (x->bytes == 0 || memcmp(x->data, y->data, x->bytes) == 0)
        return DDP_OK;
    d->differences++;
    return compare_values(x, y);
}

static void say_only(diff *d, const char *name, const char *path)
{
    printf("%s: only in %s\n", name, path);
    d->differences++;
}

static ddp_status compare_all(diff *d, const ddp_tensors *a, const ddp_tensors *b)
{
    ddp_tensor x, y;

    for (size_t i = 0; i < ddp_tensors_count(a); i++) {
        x = ddp_tensors_at(a, i);
        if (find(b, x.name, &y))
            DDP_TRY(compare_tensor(d, &x, &y));
        else
            say_only(d, x.name, d->a);
    }
    for (size_t i = 0; i < ddp_tensors_count(b); i++) {
        y = ddp_tensors_at(b, i);
        if (!find(a, y.name, &x))
            say_only(d, y.name, d->b);
    }
    return DDP_OK;
}

static ddp_status compare_files(diff *d)
{
    ddp_tensors *a = NULL, *b = NULL;

    ddp_status st = ddp_tensors_open(d->a, &a);
    if (st == DDP_OK)
        st = ddp_tensors_open(d->b, &b);
    if (st == DDP_OK)
        st = compare_all(d, a, b);
    ddp_tensors_close(a);
    ddp_tensors_close(b);
    return st;
}

static ddp_status compare_named(diff *d, const char *dir_a, const char *dir_b, const char *name)
{
    char a[PATH_MAX], b[PATH_MAX];

    DDP_TRY(ddp_fs_join(a, sizeof a, dir_a, name));
    DDP_TRY(ddp_fs_join(b, sizeof b, dir_b, name));
    d->a = a;
    d->b = b;
    return compare_files(d);
}

/* ---- states ---- */

static ddp_status compare_values_of(diff *d, const char *place, const ddp_json *x,
                                    const ddp_json *y)
{
    char *text_x = NULL, *text_y = NULL;

    ddp_status st = x != NULL ? ddp_json_text(x, 0, &text_x) : ddp_strdup("absent", &text_x);
    if (st == DDP_OK)
        st = y != NULL ? ddp_json_text(y, 0, &text_y) : ddp_strdup("absent", &text_y);
    if (st == DDP_OK && strcmp(text_x, text_y) != 0) {
        printf("state %s: %s and %s\n", place, text_x, text_y);
        d->differences++;
    }
    ddp_free(text_x);
    ddp_free(text_y);
    return st;
}

/* What both have under the same key, with what lies inside, and what only one has; `where` is their
 * place. */
static ddp_status compare_objects(diff *d, const char *where, const ddp_json *a, const ddp_json *b)
{
    const char *dot = where[0] != 0 ? "." : "";
    void *iter = NULL;
    const char *key;
    const ddp_json *x;
    char place[256];

    while (ddp_json_next(a, &iter, &key, &x)) {
        const ddp_json *y = ddp_json_get(b, key);
        snprintf(place, sizeof place, "%s%s%s", where, dot, key);
        if (y != NULL && ddp_json_is_object(x) && ddp_json_is_object(y))
            DDP_TRY(compare_objects(d, place, x, y));
        else
            DDP_TRY(compare_values_of(d, place, x, y));
    }
    iter = NULL;
    while (ddp_json_next(b, &iter, &key, &x)) {
        snprintf(place, sizeof place, "%s%s%s", where, dot, key);
        if (ddp_json_get(a, key) == NULL)
            DDP_TRY(compare_values_of(d, place, NULL, x));
    }
    return DDP_OK;
}

static ddp_status compare_checkpoints(diff *d, const char *a, const char *b)
{
    ddp_json *x = NULL, *y = NULL;

    ddp_status st = ddp_ckpt_check(a, &x);
    if (st == DDP_OK)
        st = ddp_ckpt_check(b, &y);
    if (st == DDP_OK)
        st = compare_objects(d, "", x, y);
    if (st == DDP_OK)
        st = compare_named(d, a, b, "model.safetensors");
    if (st == DDP_OK)
        st = compare_named(d, a, b, "optimizer.safetensors");
    ddp_json_destroy(x);
    ddp_json_destroy(y);
    return st;
}

/* ---- both ---- */

static bool is_file(const char *path)
{
    char inside[PATH_MAX];

    return ddp_fs_join(inside, sizeof inside, path, ".") == DDP_OK && !ddp_fs_exists(inside);
}

int ddpi_ckpt_diff(const char *a, const char *b)
{
    diff d = {.a = a, .b = b};

    ddp_status st = is_file(a) && is_file(b) ? compare_files(&d) : compare_checkpoints(&d, a, b);
    if (st != DDP_OK)
        return ddpi_ckpt_trouble();
    return d.differences > 0 ? DDPI_CKPT_BAD : DDPI_CKPT_GOOD;
}
