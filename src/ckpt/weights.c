/* weights.c - the parameter table to and from a safetensors file.
 *
 * Saving lays all tensors out in one block of memory and writes it atomically. Loading parses and
 * matches the whole file before the first value is imported, so a file that does not fit changes
 * nothing. Names of a model that was saved from inside PyTorch's DistributedDataParallel start with
 * "module."; that is taken off. One thread. */
#include "ddp/weights.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/safetensors.h"
#include "ddp/fs.h"
#include "ddp/log.h"
#include "ddp/memory.h"

enum { LIST_BYTES = 700, SHAPE_BYTES = 64 };

/* A file of a larger model still gets a message that lists the names, but memory has a limit. */
static const size_t FILE_SLACK_BYTES = (size_t)1 << 30;
static const char PREFIX[] = "module.";

/* ---- saving ---- */

/* The parameter with the lowest init number not below `from`; NULL at the end. */
static const ddp_param *next_param(const ddp_param_table *table, int64_t from)
{
    const ddp_param *next = NULL;
    for (int i = 0; i < ddp_param_table_count(table); i++) {
        const ddp_param *param = ddp_param_table_at(table, i);
        if ((int64_t)param->init_number >= from &&
            (next == NULL || param->init_number < next->init_number))
            next = param;
    }
    return next;
}

static ddp_status build_file(ddp_device *device, const ddp_param_table *table, const float *flat,
                             ddpi_safetensor *tensors, char **file_out, size_t *bytes_out)
{
    size_t count = 0, head_bytes;
    char *head, *file;
    ddp_status st;
    const ddp_param *param = NULL;
    for (int64_t from = 0; (param = next_param(table, from)) != NULL;
         from = (int64_t)param->init_number + 1)
        tensors[count++] = (ddpi_safetensor){.name = param->name, .shape = param->shape};
    DDP_TRY(ddpi_safetensors_head(tensors, count, &head, &head_bytes));
    const size_t bytes = head_bytes + (count == 0 ? 0 : tensors[count - 1].end);
    DDP_TRY_GOTO(st, DDP_ALLOC(file, bytes), done);
    memcpy(file, head, head_bytes);
    for (size_t i = 0; st == DDP_OK && i < count; i++) {
        param = ddp_param_table_at(table, ddp_param_table_find(table, tensors[i].name));
        st = ddp_param_export(device, param, flat,
                              (float *)(void *)(file + head_bytes + tensors[i].begin));
    }
    if (st != DDP_OK) {
        ddp_free(file);
        goto done;
    }
    *file_out = file;
    *bytes_out = bytes;
done:
    ddp_free(head);
    return st;
}

ddp_status ddp_weights_save(const char *path, ddp_device *device, const ddp_param_table *table,
                            const float *flat)
{
    ddpi_safetensor *tensors;
    char *file;
    size_t bytes;
    DDP_TRY(DDP_ALLOC(tensors, (size_t)ddp_param_table_count(table)));
    ddp_status st = build_file(device, table, flat, tensors, &file, &bytes);
    if (st == DDP_OK) {
        st = ddp_fs_write_atomic(path, file, bytes);
        ddp_free(file);
    }
    ddp_free(tensors);
    return st;
}

/* ---- loading ---- */

/* A list in a message; what does not fit is counted. */
typedef struct list {
    char text[LIST_BYTES];
    size_t used;
    int count, hidden;
} list;

static void list_add(list *items, const char *fmt, ...) DDP_PRINTF(2, 3);
static void list_add(list *items, const char *fmt, ...)
{
    char item[2 * DDP_PARAM_NAME_BYTES + 2 * SHAPE_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(item, sizeof item, fmt, args);
    va_end(args);
    const size_t needed = strlen(item) + 2;
    if (items->hidden > 0 || items->used + needed >= sizeof items->text) {
        items->hidden++;
    } else {
        items->used += (size_t)snprintf(items->text + items->used, sizeof items->text - items->used,
                                        "%s%s", items->count ? "; " : "", item);
    }
    items->count++;
}

static const char *plain_name(const char *name)
{
    return strncmp(name, PREFIX, strlen(PREFIX)) == 0 ? name + strlen(PREFIX) : name;
}

/* Fills in tensor_of[parameter], and says in one message all that does not fit. */
static ddp_status match(const ddpi_safetensors *file, const char *path,
                        const ddp_param_table *table, const ddpi_safetensor **tensor_of)
{
    list wrong = {0};
    int stripped = 0;
    char have[SHAPE_BYTES], want[SHAPE_BYTES];
    for (size_t i = 0; i < file->count; i++) {
        const ddpi_safetensor *tensor = &file->tensors[i];
        const char *name = plain_name(tensor->name);
        const int index = ddp_param_table_find(table, name);
        stripped += name != tensor->name;
        if (index < 0) {
            list_add(&wrong, "%.80s is not a parameter", tensor->name);
            continue;
        }
        const ddp_param *param = ddp_param_table_at(table, index);
        if (tensor_of[index] != NULL)
            list_add(&wrong, "%s is there with and without '%s'", name, PREFIX);
        else if (!ddp_shape_equal(&tensor->shape, &param->shape))
            list_add(&wrong, "%s is %s, must be %s", name,
                     ddp_shape_format(&tensor->shape, have, sizeof have),
                     ddp_shape_format(&param->shape, want, sizeof want));
        tensor_of[index] = tensor;
    }
    for (int i = 0; i < ddp_param_table_count(table); i++)
        if (tensor_of[i] == NULL)
            list_add(&wrong, "%s is missing", ddp_param_table_at(table, i)->name);
    if (wrong.hidden > 0)
        return DDP_FAIL(DDP_ERR_SHAPE, "%s does not fit the model: %s; and %d more", path,
                        wrong.text, wrong.hidden);
    if (wrong.count > 0)
        return DDP_FAIL(DDP_ERR_SHAPE, "%s does not fit the model: %s", path, wrong.text);
    if (stripped > 0)
        ddp_info("%s: took the prefix '%s' off %d name%s", path, PREFIX, stripped,
                 stripped == 1 ? "" : "s");
    return DDP_OK;
}

static ddp_status import_all(const ddpi_safetensors *file, ddp_device *device,
                             const ddp_param_table *table, const ddpi_safetensor **tensor_of,
                             float *flat)
{
    const int count = ddp_param_table_count(table);
    size_t largest = 0;
    for (int i = 0; i < count; i++) {
        const size_t bytes = tensor_of[i]->end - tensor_of[i]->begin;
        largest = bytes > largest ? bytes : largest;
    }
    float *plain; /* data in a file need not be aligned */
    DDP_TRY(DDP_ALLOC(plain, largest / sizeof *plain));
    ddp_status st = DDP_OK;
    for (int i = 0; st == DDP_OK && i < count; i++) {
        memcpy(plain, file->data + tensor_of[i]->begin, tensor_of[i]->end - tensor_of[i]->begin);
        st = ddp_param_import(device, ddp_param_table_at(table, i), plain, flat);
    }
    ddp_free(plain);
    return st;
}

/* Imports into a second buffer first, because an import may fail for want of memory. */
static ddp_status replace_all(const ddpi_safetensors *file, ddp_device *device,
                              const ddp_param_table *table, const ddpi_safetensor **tensor_of,
                              float *flat)
{
    ddp_stream *stream = ddp_device_main_stream(device);
    const size_t bytes = ddp_param_table_length(table) * sizeof *flat;
    void *staging;
    if (bytes == 0)
        return DDP_OK;
    DDP_TRY(ddp_device_alloc(device, bytes, &staging));
    ddp_status st = import_all(file, device, table, tensor_of, staging);
    if (st == DDP_OK)
        st = ddp_device_copy(device, stream, flat, staging, bytes, DDP_COPY_ON_DEVICE);
    if (st == DDP_OK)
        st = ddp_stream_sync(stream);
    ddp_device_free(device, staging, bytes);
    return st;
}

static ddp_status load_parsed(const ddpi_safetensors *file, const char *path, ddp_device *device,
                              const ddp_param_table *table, float *flat)
{
    const ddpi_safetensor **tensor_of;
    DDP_TRY(DDP_ALLOC(tensor_of, (size_t)ddp_param_table_count(table)));
    ddp_status st = match(file, path, table, tensor_of);
    if (st == DDP_OK)
        st = replace_all(file, device, table, tensor_of, flat);
    ddp_free(tensor_of);
    return st;
}

ddp_status ddp_weights_load(const char *path, ddp_device *device, const ddp_param_table *table,
                            float *flat)
{
    const size_t limit =
        FILE_SLACK_BYTES + 2 * (size_t)ddp_param_table_elements(table) * sizeof(float);
    char *text;
    size_t bytes;
    ddpi_safetensors file;
    DDP_TRY(ddp_fs_read(path, limit, &text, &bytes));
    ddp_status st = ddpi_safetensors_parse(text, bytes, path, &file);
    if (st == DDP_OK) {
        st = load_parsed(&file, path, device, table, flat);
        ddpi_safetensors_close(&file);
    }
    ddp_free(text);
    return st;
}
