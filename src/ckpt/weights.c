/* weights.c - parameters and running statistics to and from a safetensors file.
 *
 * Saving lays all tensors out in one block of memory and writes it atomically. Loading parses and
 * matches the whole file and imports into second buffers, so that a file that does not fit, or
 * memory that is not to be had, changes nothing. One thread. */
#include "ddp/weights.h"

#include <string.h>

#include "ckpt/weights_impl.h"
#include "ddp/fs.h"
#include "ddp/memory.h"

/* A file of a larger model still gets a message that lists the names, but memory has a limit. */
static const size_t FILE_SLACK_BYTES = (size_t)1 << 30;
/* Counts of steps that can be added to without care; doubles hold them too. */
static const int64_t COUNTER_LIMIT = INT64_C(1) << 53;

/* ---- the model's tensors ---- */

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

/* "bn1" of "bn1.weight" */
static size_t layer_bytes(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot != NULL ? (size_t)(dot - name) : strlen(name);
}

static bool same_layer(const char *a, const char *b)
{
    const size_t bytes = layer_bytes(a);
    return bytes == layer_bytes(b) && memcmp(a, b, bytes) == 0;
}

/* Adds the buffers of the layer of `name`; NULL: all that are not in the list yet. */
static void add_buffers(const ddp_buffer_table *buffers, const char *name, ddpi_weight_list *list)
{
    for (int i = 0; buffers != NULL && i < ddp_buffer_table_count(buffers); i++) {
        const ddp_buffer *buffer = ddp_buffer_table_at(buffers, i);
        bool listed = name != NULL && !same_layer(buffer->name, name);
        for (size_t k = 0; !listed && k < list->count; k++)
            listed = list->items[k].buffer == buffer;
        if (listed)
            continue;
        ddpi_weight *weight = &list->items[list->count++];
        *weight = (ddpi_weight){.name = buffer->name, .buffer = buffer, .counter = buffer->counter};
        if (!buffer->counter)
            weight->shape = (ddp_shape){1, {buffer->count}};
    }
}

ddp_status ddpi_weights_list(const ddp_param_table *table, const ddp_buffer_table *buffers,
                             ddpi_weight_list *list_out)
{
    const int count =
        ddp_param_table_count(table) + (buffers != NULL ? ddp_buffer_table_count(buffers) : 0);
    ddpi_weight_list list = {0};
    const ddp_param *param = next_param(table, 0), *next;
    DDP_TRY(DDP_ALLOC(list.items, (size_t)count));
    for (; param != NULL; param = next) {
        list.items[list.count++] =
            (ddpi_weight){.name = param->name, .shape = param->shape, .param = param};
        next = next_param(table, (int64_t)param->init_number + 1);
        if (next == NULL || !same_layer(next->name, param->name))
            add_buffers(buffers, param->name, &list);
    }
    add_buffers(buffers, NULL, &list);
    *list_out = list;
    return DDP_OK;
}

/* ---- saving ---- */

static ddp_status export_one(const ddp_weights *weights, const ddpi_weight *weight, char *dst)
{
    ddp_stream *stream = ddp_device_main_stream(weights->device);
    if (weight->param != NULL)
        return ddp_param_export(weights->device, weight->param, weights->params,
                                (float *)(void *)dst);
    if (weight->counter) {
        memcpy(dst, &weights->counter, sizeof weights->counter);
        return DDP_OK;
    }
    DDP_TRY(ddp_device_copy(weights->device, stream, dst, weights->running + weight->buffer->offset,
                            (size_t)weight->buffer->count * sizeof(float), DDP_COPY_TO_HOST));
    return ddp_stream_sync(stream);
}

static ddp_status save_tensors(const char *path, const ddp_weights *weights,
                               const ddpi_weight_list *list, ddpi_safetensor *tensors)
{
    char *head, *file = NULL;
    size_t head_bytes, data_bytes;
    ddp_status st;
    for (size_t i = 0; i < list->count; i++)
        tensors[i] = (ddpi_safetensor){.name = list->items[i].name,
                                       .dtype = list->items[i].counter ? DDPI_ST_I64 : DDPI_ST_F32,
                                       .shape = list->items[i].shape};
    DDP_TRY(ddpi_safetensors_head(tensors, list->count, &head, &head_bytes, &data_bytes));
    DDP_TRY_GOTO(st, DDP_ALLOC(file, head_bytes + data_bytes), done);
    memcpy(file, head, head_bytes);
    for (size_t i = 0; i < list->count; i++)
        DDP_TRY_GOTO(st, export_one(weights, &list->items[i], file + head_bytes + tensors[i].begin),
                     done);
    st = ddp_fs_write_atomic(path, file, head_bytes + data_bytes);
done:
    ddp_free(file);
    ddp_free(head);
    return st;
}

ddp_status ddp_weights_save(const char *path, const ddp_weights *weights)
{
    ddpi_weight_list list;
    ddpi_safetensor *tensors;
    DDP_TRY(ddpi_weights_list(weights->table, weights->buffers, &list));
    ddp_status st = DDP_ALLOC(tensors, list.count);
    if (st == DDP_OK) {
        st = save_tensors(path, weights, &list, tensors);
        ddp_free(tensors);
    }
    ddp_free(list.items);
    return st;
}

ddp_status ddp_logits_save(const char *path, const float *logits, const int64_t *labels,
                           int64_t count, int64_t classes)
{
    ddpi_safetensor tensors[] = {
        {.name = "logits", .dtype = DDPI_ST_F32, .shape = {2, {count, classes}}},
        {.name = "labels", .dtype = DDPI_ST_I64, .shape = {1, {count}}},
    };
    const void *const values[] = {logits, labels};
    char *head, *file;
    size_t head_bytes, data_bytes;
    DDP_TRY(ddpi_safetensors_head(tensors, 2, &head, &head_bytes, &data_bytes));
    ddp_status st = DDP_ALLOC(file, head_bytes + data_bytes);
    if (st == DDP_OK) {
        memcpy(file, head, head_bytes);
        for (int i = 0; i < 2; i++)
            memcpy(file + head_bytes + tensors[i].begin, values[i],
                   tensors[i].end - tensors[i].begin);
        st = ddp_fs_write_atomic(path, file, head_bytes + data_bytes);
        ddp_free(file);
    }
    ddp_free(head);
    return st;
}

/* ---- loading ---- */

typedef struct load {
    const ddpi_safetensors *file;
    const char *path;
    const ddpi_weight_list *list;
    float *plain;            /* one tensor */
    float *params, *running; /* device memory, what the model's will be; NULL if the length is 0 */
} load;

static ddp_status import_counter(const load *l, const ddpi_weight *weight, int64_t *counter)
{
    int64_t value;
    memcpy(&value, l->file->data + weight->tensor->begin, sizeof value);
    if (value < 0 || value > COUNTER_LIMIT)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: %s is %lld, which is no count of batches", l->path,
                        weight->name, (long long)value);
    *counter = value > *counter ? value : *counter;
    return DDP_OK;
}

static ddp_status import_one(const load *l, const ddp_weights *weights, const ddpi_weight *weight)
{
    ddp_stream *stream = ddp_device_main_stream(weights->device);
    const size_t count = (size_t)ddp_shape_count(&weight->shape);
    if (!ddpi_weights_convert(weight->tensor->dtype, l->file->data + weight->tensor->begin, count,
                              l->plain))
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: %s has values that are too large for f32", l->path,
                        weight->name);
    if (weight->param != NULL)
        return ddp_param_import(weights->device, weight->param, l->plain, l->params);
    DDP_TRY(ddp_device_copy(weights->device, stream, l->running + weight->buffer->offset, l->plain,
                            count * sizeof *l->plain, DDP_COPY_TO_DEVICE));
    return ddp_stream_sync(stream);
}

static ddp_status import_all(const load *l, const ddp_weights *weights, int64_t *counter_out)
{
    int64_t counter = -1;
    for (size_t i = 0; i < l->list->count; i++) {
        const ddpi_weight *weight = &l->list->items[i];
        if (weight->tensor == NULL)
            continue;
        if (weight->counter)
            DDP_TRY(import_counter(l, weight, &counter));
        else
            DDP_TRY(import_one(l, weights, weight));
    }
    if (counter >= 0)
        *counter_out = counter;
    return DDP_OK;
}

static ddp_status copy_on_device(ddp_device *device, float *dst, const float *src, size_t bytes)
{
    ddp_stream *stream = ddp_device_main_stream(device);
    if (bytes == 0)
        return DDP_OK;
    DDP_TRY(ddp_device_copy(device, stream, dst, src, bytes, DDP_COPY_ON_DEVICE));
    return ddp_stream_sync(stream);
}

static ddp_status duplicate(ddp_device *device, const float *src, size_t bytes, float **copy_out)
{
    void *memory;
    if (bytes == 0)
        return DDP_OK;
    DDP_TRY(ddp_device_alloc(device, bytes, &memory));
    *copy_out = memory;
    return copy_on_device(device, *copy_out, src, bytes);
}

static ddp_status replace_all(load *l, ddp_weights *weights)
{
    ddp_device *device = weights->device;
    const size_t param_bytes = ddp_param_table_length(weights->table) * sizeof(float);
    const size_t running_bytes =
        weights->buffers != NULL ? ddp_buffer_table_length(weights->buffers) * sizeof(float) : 0;
    int64_t largest = 1, counter = weights->counter;
    ddp_status st;
    for (size_t i = 0; i < l->list->count; i++) {
        const int64_t count = ddp_shape_count(&l->list->items[i].shape);
        largest = count > largest ? count : largest;
    }
    DDP_TRY(DDP_ALLOC(l->plain, (size_t)largest));
    DDP_TRY_GOTO(st, duplicate(device, weights->params, param_bytes, &l->params), done);
    DDP_TRY_GOTO(st, duplicate(device, weights->running, running_bytes, &l->running), done);
    DDP_TRY_GOTO(st, import_all(l, weights, &counter), done);
    DDP_TRY_GOTO(st, copy_on_device(device, weights->params, l->params, param_bytes), done);
    DDP_TRY_GOTO(st, copy_on_device(device, weights->running, l->running, running_bytes), done);
    weights->counter = counter;
done:
    if (l->params != NULL)
        ddp_device_free(device, l->params, param_bytes);
    if (l->running != NULL)
        ddp_device_free(device, l->running, running_bytes);
    ddp_free(l->plain);
    return st;
}

static ddp_status load_parsed(const ddpi_safetensors *file, const char *path, bool partial,
                              ddp_weights *weights)
{
    ddpi_weight_list list;
    DDP_TRY(ddpi_weights_list(weights->table, weights->buffers, &list));
    ddp_status st = ddpi_weights_match(file, path, partial, &list);
    if (st == DDP_OK) {
        load l = {.file = file, .path = path, .list = &list};
        st = replace_all(&l, weights);
    }
    ddp_free(list.items);
    return st;
}

ddp_status ddp_weights_load(const char *path, bool partial, ddp_weights *weights)
{
    const size_t limit =
        FILE_SLACK_BYTES + 2 * (size_t)ddp_param_table_elements(weights->table) * sizeof(float);
    char *text;
    size_t bytes;
    ddpi_safetensors file;
    DDP_TRY(ddp_fs_read(path, limit, &text, &bytes));
    ddp_status st = ddpi_safetensors_parse(text, bytes, path, &file);
    if (st == DDP_OK) {
        st = load_parsed(&file, path, partial, weights);
        ddpi_safetensors_close(&file);
    }
    ddp_free(text);
    return st;
}
