/* replay.c - a micro-batch as a file: samples and parameters under their names, and a text (JSON,
 * as a tensor of bytes) that says where they come from. See replay.h. */
#include "ddp/replay.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ddp/json.h"
#include "ddp/memory.h"
#include "ddp/weights.h"

#define TEXT "replay.json"

/* ---- writing ---- */

typedef struct writer {
    const ddp_replay_parts *parts;
    ddp_tensor *tensors; /* their data is owned */
    int count, capacity;
} writer;

/* Takes over data. */
static ddp_status add(writer *w, const char *name, const char *dtype, ddp_shape shape, void *data,
                      size_t bytes)
{
    ddp_status st = DDP_GROW(w->tensors, w->capacity, w->count);

    if (st != DDP_OK) {
        ddp_free(data);
        return st;
    }
    w->tensors[w->count++] =
        (ddp_tensor){.name = name, .dtype = dtype, .shape = shape, .data = data, .bytes = bytes};
    return DDP_OK;
}

static ddp_status fetch(const writer *w, void *host, const void *device, size_t bytes)
{
    ddp_stream *stream = ddp_device_main_stream(w->parts->device);

    DDP_TRY(ddp_device_copy(w->parts->device, stream, host, device, bytes, DDP_COPY_TO_HOST));
    return ddp_stream_sync(stream);
}

static ddp_status add_floats(writer *w, const char *name, ddp_shape shape, const float *device)
{
    const size_t count = (size_t)ddp_shape_count(&shape);
    float *host;

    DDP_TRY(DDP_ALLOC(host, count));
    const ddp_status st = fetch(w, host, device, count * sizeof *host);
    if (st != DDP_OK) {
        ddp_free(host);
        return st;
    }
    return add(w, name, "F32", shape, host, count * sizeof *host);
}

static ddp_status add_labels(writer *w, const char *name, const int32_t *device)
{
    const size_t count = (size_t)w->parts->input.count;
    int32_t *host;

    DDP_TRY(DDP_ALLOC(host, count));
    const ddp_status st = fetch(w, host, device, count * sizeof *host);
    if (st != DDP_OK) {
        ddp_free(host);
        return st;
    }
    return add(w, name, "I32", (ddp_shape){1, {(int64_t)count}}, host, count * sizeof *host);
}

static ddp_status add_samples(writer *w, const int64_t *indices)
{
    const ddp_model_input *input = &w->parts->input;
    const ddp_shape sample = ddp_model_input_shape(w->parts->model), list = {1, {input->count}};
    const size_t bytes = (size_t)input->count * sizeof *indices;
    const ddp_shape all = {4, {input->count, sample.dims[0], sample.dims[1], sample.dims[2]}};
    void *copy;

    DDP_TRY(add_floats(w, "inputs", all, input->inputs));
    DDP_TRY(add_labels(w, "labels", input->labels));
    DDP_TRY(ddp_alloc_bytes(bytes, 1, &copy));
    memcpy(copy, indices, bytes);
    DDP_TRY(add(w, "indices", "I64", list, copy, bytes));
    if (input->labels2 == NULL || input->mix == NULL)
        return DDP_OK;
    DDP_TRY(add_labels(w, "labels2", input->labels2));
    return add_floats(w, "mix", list, input->mix);
}

static ddp_status add_params(writer *w)
{
    const ddp_param_table *table = ddp_model_params(w->parts->model);

    for (int i = 0; i < ddp_param_table_count(table); i++) {
        const ddp_param *p = ddp_param_table_at(table, i);
        const size_t count = (size_t)ddp_shape_count(&p->shape);
        float *plain;
        DDP_TRY(DDP_ALLOC(plain, count));
        const ddp_status st = ddp_param_export(w->parts->device, p, w->parts->params, plain);
        if (st != DDP_OK) {
            ddp_free(plain);
            return st;
        }
        DDP_TRY(add(w, p->name, "F32", p->shape, plain, count * sizeof *plain));
    }
    return DDP_OK;
}

static ddp_status add_running(writer *w, const float *running)
{
    const ddp_buffer_table *table = ddp_model_buffers(w->parts->model);

    for (int i = 0; i < ddp_buffer_table_count(table) && running != NULL; i++) {
        const ddp_buffer *b = ddp_buffer_table_at(table, i);
        if (!b->counter)
            DDP_TRY(add_floats(w, b->name, (ddp_shape){1, {b->count}}, running + b->offset));
    }
    return DDP_OK;
}

static ddp_status add_text(writer *w, const ddp_replay_info *info)
{
    char seed[24], *text;
    ddp_json *object;

    DDP_TRY(ddp_json_object(&object));
    ddp_json_set_string(object, "version", DDP_VERSION);
    ddp_json_set_string(object, "model", ddp_model_name(w->parts->model));
    ddp_json_set_int(object, "classes", info->classes);
    ddp_json_set_int(object, "epoch", info->epoch);
    ddp_json_set_int(object, "step", info->step);
    ddp_json_set_int(object, "rank", info->rank);
    ddp_json_set_int(object, "shard", info->shard);
    snprintf(seed, sizeof seed, "%" PRIu64, info->seed);
    ddp_json_set_string(object, "seed", seed);
    const ddp_status st = ddp_json_text(object, 0, &text);
    ddp_json_destroy(object);
    DDP_TRY(st);
    const size_t bytes = strlen(text);
    return add(w, TEXT, "U8", (ddp_shape){1, {(int64_t)bytes}}, text, bytes);
}

ddp_status ddp_replay_save(const char *path, const ddp_replay_parts *parts, const int64_t *indices,
                           const float *running, const ddp_replay_info *info)
{
    writer w = {.parts = parts};
    ddp_status st = add_samples(&w, indices);

    if (st == DDP_OK)
        st = add_params(&w);
    if (st == DDP_OK)
        st = add_running(&w, running);
    if (st == DDP_OK)
        st = add_text(&w, info);
    if (st == DDP_OK)
        st = ddp_tensors_save(path, w.tensors, (size_t)w.count);
    for (int i = 0; i < w.count; i++)
        ddp_free((void *)w.tensors[i].data);
    ddp_free(w.tensors);
    return st;
}

/* ---- reading ---- */

enum { MAX_BLOCKS = 5 };

struct ddp_replay {
    ddp_tensors *file;
    const char *path; /* the caller's, while it opens */
    ddp_replay_info info;
    ddp_tensor inputs, labels, indices, labels2, mix; /* the last two: bytes 0, or there */
    ddp_device *device;
    struct {
        void *memory;
        size_t bytes;
    } blocks[MAX_BLOCKS]; /* of the device */
    int block_count;
};

static bool find(const ddp_replay *r, const char *name, ddp_tensor *tensor_out)
{
    for (size_t i = 0; i < ddp_tensors_count(r->file); i++) {
        *tensor_out = ddp_tensors_at(r->file, i);
        if (strcmp(tensor_out->name, name) == 0)
            return true;
    }
    *tensor_out = (ddp_tensor){0};
    return false;
}

static bool is_list(const ddp_tensor *tensor, const char *dtype, int64_t count)
{
    return strcmp(tensor->dtype, dtype) == 0 && tensor->shape.ndim == 1 &&
           tensor->shape.dims[0] == count;
}

static bool find_samples(ddp_replay *r)
{
    if (!find(r, "inputs", &r->inputs) || strcmp(r->inputs.dtype, "F32") != 0 ||
        r->inputs.shape.ndim != 4)
        return false;
    const int64_t count = r->inputs.shape.dims[0];
    if (!find(r, "labels", &r->labels) || !is_list(&r->labels, "I32", count) ||
        !find(r, "indices", &r->indices) || !is_list(&r->indices, "I64", count))
        return false;
    if (!find(r, "labels2", &r->labels2))
        return true;
    return is_list(&r->labels2, "I32", count) && find(r, "mix", &r->mix) &&
           is_list(&r->mix, "F32", count);
}

static bool labels_fit(const ddp_replay *r, const ddp_tensor *labels)
{
    const int32_t *values = labels->data;

    for (size_t i = 0; i < labels->bytes / sizeof *values; i++)
        if (values[i] < 0 || values[i] >= r->info.classes)
            return false;
    return true;
}

static bool read_info(const ddp_json *object, ddp_replay_info *info)
{
    const char *seed;
    int64_t rank;
    char *end;

    if (!ddp_json_as_int(ddp_json_get(object, "classes"), &info->classes) || info->classes < 1 ||
        !ddp_json_as_int(ddp_json_get(object, "epoch"), &info->epoch) ||
        !ddp_json_as_int(ddp_json_get(object, "step"), &info->step) ||
        !ddp_json_as_int(ddp_json_get(object, "shard"), &info->shard) ||
        !ddp_json_as_int(ddp_json_get(object, "rank"), &rank) || rank < 0 || rank > INT32_MAX ||
        !ddp_json_as_string(ddp_json_get(object, "seed"), &seed))
        return false;
    info->rank = (int)rank;
    info->seed = strtoull(seed, &end, 10);
    return *end == 0;
}

static ddp_status parse(ddp_replay *r)
{
    ddp_tensor text;
    ddp_json *object;

    if (!find(r, TEXT, &text) || !find_samples(r))
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: is no file of a micro-batch", r->path);
    DDP_TRY(ddp_json_load(text.data, text.bytes, r->path, &object));
    const bool good = read_info(object, &r->info) && labels_fit(r, &r->labels) &&
                      (r->labels2.bytes == 0 || labels_fit(r, &r->labels2));
    ddp_json_destroy(object);
    if (!good)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: what it says of its micro-batch is not whole",
                        r->path);
    return DDP_OK;
}

ddp_status ddp_replay_open(const char *path, ddp_replay **replay_out)
{
    ddp_replay *r;

    DDP_TRY(DDP_ALLOC(r, 1));
    r->path = path;
    ddp_status st = ddp_tensors_open(path, &r->file);
    if (st == DDP_OK)
        st = parse(r);
    if (st != DDP_OK) {
        ddp_replay_close(r);
        return st;
    }
    *replay_out = r;
    return DDP_OK;
}

void ddp_replay_close(ddp_replay *r)
{
    if (r == NULL)
        return;
    for (int i = 0; i < r->block_count; i++)
        ddp_device_free(r->device, r->blocks[i].memory, r->blocks[i].bytes);
    ddp_tensors_close(r->file);
    ddp_free(r);
}

const ddp_replay_info *ddp_replay_get_info(const ddp_replay *r)
{
    return &r->info;
}

int64_t ddp_replay_count(const ddp_replay *r)
{
    return r->inputs.shape.dims[0];
}

ddp_shape ddp_replay_sample(const ddp_replay *r)
{
    const int64_t *dims = r->inputs.shape.dims;

    return (ddp_shape){3, {dims[1], dims[2], dims[3]}};
}

const int64_t *ddp_replay_indices(const ddp_replay *r)
{
    return r->indices.data;
}

/* To device memory that lives as long as the replay. */
static ddp_status upload(ddp_replay *r, const ddp_tensor *tensor, const void **memory_out)
{
    ddp_stream *stream = ddp_device_main_stream(r->device);
    void *memory;

    *memory_out = NULL;
    if (tensor->bytes == 0)
        return DDP_OK;
    DDP_ASSERT(r->block_count < MAX_BLOCKS);
    DDP_TRY(ddp_device_alloc(r->device, tensor->bytes, &memory));
    r->blocks[r->block_count].memory = memory;
    r->blocks[r->block_count++].bytes = tensor->bytes;
    DDP_TRY(ddp_device_copy(r->device, stream, memory, tensor->data, tensor->bytes,
                            DDP_COPY_TO_DEVICE));
    *memory_out = memory;
    return ddp_stream_sync(stream);
}

static ddp_status load_params(const ddp_replay *r, const ddp_param_table *table, float *params)
{
    for (int i = 0; i < ddp_param_table_count(table); i++) {
        const ddp_param *p = ddp_param_table_at(table, i);
        ddp_tensor tensor;
        if (!find(r, p->name, &tensor) || strcmp(tensor.dtype, "F32") != 0 ||
            !ddp_shape_equal(&tensor.shape, &p->shape))
            return DDP_FAIL(DDP_ERR_SHAPE,
                            "the file of the micro-batch has no parameter %s of this model's "
                            "shape: --config with the run's config.ini makes the same model",
                            p->name);
        DDP_TRY(ddp_param_import(r->device, p, tensor.data, params));
    }
    return DDP_OK;
}

ddp_status ddp_replay_load(ddp_replay *r, ddp_device *device, const ddp_param_table *table,
                           float *params, ddp_model_input *input_out)
{
    const void *inputs, *labels, *indices, *labels2, *mix;

    DDP_ASSERT(r->device == NULL);
    r->device = device;
    DDP_TRY(load_params(r, table, params));
    DDP_TRY(upload(r, &r->inputs, &inputs));
    DDP_TRY(upload(r, &r->labels, &labels));
    DDP_TRY(upload(r, &r->indices, &indices));
    DDP_TRY(upload(r, &r->labels2, &labels2));
    DDP_TRY(upload(r, &r->mix, &mix));
    *input_out = (ddp_model_input){.inputs = inputs,
                                   .labels = labels,
                                   .count = ddp_replay_count(r),
                                   .labels2 = labels2,
                                   .mix = mix,
                                   .sample_ids = indices,
                                   .seed = r->info.seed};
    return DDP_OK;
}
