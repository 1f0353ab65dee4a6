/* ckpt_read.c - finds, checks and loads checkpoints. Nothing is trusted but what the manifest's
 * checksums confirm. One thread. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/ckpt_impl.h"
#include "ddp/fs.h"
#include "ddp/memory.h"

static const size_t TEXT_LIMIT_BYTES = (size_t)16 << 20;
static const size_t FILE_SLACK_BYTES = (size_t)64 << 20;

enum { TENSOR_NAME_BYTES = 2 * DDP_PARAM_NAME_BYTES };

/* ---- checking ---- */

static ddp_status read_json(const char *dir, const char *name, ddp_json **json_out)
{
    char path[PATH_MAX];
    char *text;
    size_t bytes;
    DDP_TRY(ddp_fs_join(path, sizeof path, dir, name));
    DDP_TRY(ddp_fs_read(path, TEXT_LIMIT_BYTES, &text, &bytes));
    ddp_status st = ddp_json_load(text, bytes, path, json_out);
    ddp_free(text);
    if (st == DDP_OK && !ddp_json_is_object(*json_out)) {
        ddp_json_destroy(*json_out);
        st = DDP_FAIL(DDP_ERR_FORMAT, "%s: is not an object", path);
    }
    return st;
}

static ddp_status check_file(const char *dir, const char *name, const ddp_json *files)
{
    const ddp_json *entry = ddp_json_get(files, name);
    char path[PATH_MAX], found[20];
    const char *want;
    int64_t want_bytes;
    uint64_t hash;
    size_t bytes;
    if (entry == NULL || !ddp_json_as_int(ddp_json_get(entry, "bytes"), &want_bytes) ||
        !ddp_json_as_string(ddp_json_get(entry, "xxh3"), &want))
        return DDP_FAIL(DDP_ERR_FORMAT, "%s/%s: has no size and checksum of %s", dir,
                        DDPI_CKPT_MANIFEST, name);
    DDP_TRY(ddp_fs_join(path, sizeof path, dir, name));
    DDP_TRY(ddp_fs_hash(path, &hash, &bytes));
    if ((int64_t)bytes != want_bytes)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: has %zu bytes, expected %" PRId64, path, bytes,
                        want_bytes);
    snprintf(found, sizeof found, "%016" PRIx64, hash);
    if (strcmp(found, want) != 0)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: has checksum %s, expected %.20s", path, found, want);
    return DDP_OK;
}

static ddp_status check_manifest(const char *dir, const ddp_json *manifest)
{
    const ddp_json *files = ddp_json_get(manifest, "files");
    int64_t format;
    if (!ddp_json_as_int(ddp_json_get(manifest, "format"), &format) || format != 1)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s/%s: is not of format 1", dir, DDPI_CKPT_MANIFEST);
    if (files == NULL || !ddp_json_is_object(files))
        return DDP_FAIL(DDP_ERR_FORMAT, "%s/%s: lists no files", dir, DDPI_CKPT_MANIFEST);
    DDP_TRY(check_file(dir, DDPI_CKPT_STATE, files));
    for (int i = 0; i < DDPI_CKPT_FILES; i++)
        DDP_TRY(check_file(dir, ddpi_ckpt_file_names[i], files));
    return DDP_OK;
}

ddp_status ddp_ckpt_check(const char *path, ddp_json **state_out)
{
    ddp_json *manifest;
    DDP_TRY(read_json(path, DDPI_CKPT_MANIFEST, &manifest));
    ddp_status st = check_manifest(path, manifest);
    ddp_json_destroy(manifest);
    DDP_TRY(st);
    return read_json(path, DDPI_CKPT_STATE, state_out);
}

/* ---- finding ---- */

static void add_note(char notes[DDP_CKPT_NOTE_BYTES], const char *name)
{
    const size_t used = strlen(notes);
    snprintf(notes + used, DDP_CKPT_NOTE_BYTES - used, "checkpoint %s is skipped: %s\n", name,
             ddp_status_message());
}

static ddp_status check_named(const char *dir, const char *name, char *path_out, size_t path_bytes,
                              ddp_json **state_out)
{
    DDP_TRY(ddp_fs_join(path_out, path_bytes, dir, name));
    return ddp_ckpt_check(path_out, state_out);
}

ddp_status ddp_ckpt_find(const char *dir, char *path_out, size_t path_bytes, ddp_json **state_out,
                         char notes[DDP_CKPT_NOTE_BYTES])
{
    ddp_fs_names names;
    int64_t step;
    bool found = false;
    notes[0] = 0;
    *state_out = NULL;
    DDP_TRY(ddp_fs_list(dir, &names));
    for (size_t i = names.count; i-- > 0 && !found;) {
        if (!ddpi_ckpt_parse_name(names.names[i], &step))
            continue;
        found = check_named(dir, names.names[i], path_out, path_bytes, state_out) == DDP_OK;
        if (!found)
            add_note(notes, names.names[i]);
    }
    ddp_fs_names_free(&names);
    if (!found)
        path_out[0] = 0;
    return DDP_OK;
}

/* ---- loading ---- */

typedef struct source {
    const ddpi_safetensors *file;
    const char *path;
} source;

static ddp_status find_tensor(const source *src, const char *group, const char *member,
                              ddpi_st_dtype dtype, const ddp_shape *shape, const char **data_out)
{
    char name[TENSOR_NAME_BYTES], have[64], want[64];
    ddpi_ckpt_name(name, sizeof name, group, member);
    for (size_t i = 0; i < src->file->count; i++) {
        const ddpi_safetensor *t = &src->file->tensors[i];
        if (strcmp(t->name, name) != 0)
            continue;
        if (t->dtype != dtype || !ddp_shape_equal(&t->shape, shape))
            return DDP_FAIL(DDP_ERR_SHAPE, "%s: %s is %s %s, this run needs %s %s", src->path, name,
                            ddpi_st_dtype_name(t->dtype),
                            ddp_shape_format(&t->shape, have, sizeof have),
                            ddpi_st_dtype_name(dtype), ddp_shape_format(shape, want, sizeof want));
        *data_out = src->file->data + t->begin;
        return DDP_OK;
    }
    return DDP_FAIL(DDP_ERR_SHAPE, "%s: has no %s, which this run's optimizer or model needs",
                    src->path, name);
}

static ddp_status load_flat(const source *src, const char *name, const ddp_ckpt_parts *parts,
                            float *values)
{
    for (int i = 0; i < ddp_param_table_count(parts->table); i++) {
        const ddp_param *param = ddp_param_table_at(parts->table, i);
        const char *data;
        DDP_TRY(find_tensor(src, name, param->name, DDPI_ST_F32, &param->shape, &data));
        DDP_TRY(ddp_param_import(parts->device, param, (const float *)(const void *)data, values));
    }
    return DDP_OK;
}

static ddp_status load_rows(const source *src, const ddp_buffer *buffer,
                            const ddp_ckpt_parts *parts)
{
    const ddp_shape shape = {2, {parts->shards, buffer->count}};
    const size_t bytes = (size_t)buffer->count * sizeof(float);
    const size_t length = ddp_buffer_table_length(parts->buffers);
    const char *data;
    DDP_TRY(find_tensor(src, "running", buffer->name, DDPI_ST_F32, &shape, &data));
    for (int64_t row = 0; row < parts->own; row++)
        DDP_TRY(ddp_device_copy(parts->device, ddp_device_main_stream(parts->device),
                                parts->running + (size_t)row * length + buffer->offset,
                                data + (size_t)(parts->first + row) * bytes, bytes,
                                DDP_COPY_TO_DEVICE));
    return DDP_OK;
}

/* The number of shards that have saved statistics. */
static ddp_status stored_shards(const source *src, int64_t *count_out)
{
    char name[TENSOR_NAME_BYTES];

    ddpi_ckpt_name(name, sizeof name, "running", "seen");
    for (size_t i = 0; i < src->file->count; i++) {
        const ddpi_safetensor *t = &src->file->tensors[i];
        if (strcmp(t->name, name) == 0 && t->shape.ndim == 1) {
            *count_out = t->shape.dims[0];
            return DDP_OK;
        }
    }
    return DDP_FAIL(DDP_ERR_SHAPE, "%s: has no vector %s, which this run's model needs", src->path,
                    name);
}

/* Every shard begins with what all of another number of shards have gathered. */
static ddp_status spread_running(const ddp_ckpt_parts *parts, const float *combined,
                                 const char *seen, int64_t stored)
{
    const size_t length = ddp_buffer_table_length(parts->buffers);
    double samples = 0, one;

    for (int64_t i = 0; i < stored; i++) {
        memcpy(&one, seen + (size_t)i * sizeof one, sizeof one);
        samples += one;
    }
    for (int64_t row = 0; row < parts->own; row++) {
        DDP_TRY(ddp_device_copy(parts->device, ddp_device_main_stream(parts->device),
                                parts->running + (size_t)row * length, combined,
                                length * sizeof(float), DDP_COPY_ON_DEVICE));
        parts->seen[row] = samples / (double)parts->shards;
    }
    return ddp_stream_sync(ddp_device_main_stream(parts->device));
}

static ddp_status load_running(const source *src, const ddp_ckpt_parts *parts,
                               const float *combined)
{
    int64_t stored = 0;
    const char *data;
    if (ddp_buffer_table_length(parts->buffers) == 0)
        return DDP_OK;
    DDP_TRY(stored_shards(src, &stored));
    const ddp_shape shape = {1, {stored}};
    DDP_TRY(find_tensor(src, "running", "seen", DDPI_ST_F64, &shape, &data));
    if (stored != parts->shards)
        return spread_running(parts, combined, data, stored);
    memcpy(parts->seen, data + (size_t)parts->first * sizeof(double),
           (size_t)parts->own * sizeof(double));
    for (int i = 0; i < ddp_buffer_table_count(parts->buffers); i++)
        if (!ddp_buffer_table_at(parts->buffers, i)->counter)
            DDP_TRY(load_rows(src, ddp_buffer_table_at(parts->buffers, i), parts));
    return ddp_stream_sync(ddp_device_main_stream(parts->device));
}

static ddp_status load_optimizer(const char *dir, const ddp_ckpt_parts *parts,
                                 const float *combined)
{
    const size_t elements = (size_t)ddp_param_table_elements(parts->table) * DDP_CKPT_MAX_FLATS +
                            (size_t)parts->shards * ddp_buffer_table_length(parts->buffers);
    char path[PATH_MAX];
    char *text;
    size_t bytes;
    ddpi_safetensors file;
    DDP_TRY(ddp_fs_join(path, sizeof path, dir, ddpi_ckpt_file_names[DDPI_CKPT_OPTIMIZER]));
    DDP_TRY(ddp_fs_read(path, FILE_SLACK_BYTES + elements * sizeof(float), &text, &bytes));
    ddp_status st = ddpi_safetensors_parse(text, bytes, path, &file);
    if (st == DDP_OK) {
        const source src = {&file, path};
        for (int i = 0; i < parts->flat_count && st == DDP_OK; i++)
            st = load_flat(&src, parts->flats[i].name, parts, parts->flats[i].values);
        if (st == DDP_OK)
            st = load_running(&src, parts, combined);
        ddpi_safetensors_close(&file);
    }
    ddp_free(text);
    return st;
}

static ddp_status load_model(const char *dir, ddp_ckpt_parts *parts, float *combined)
{
    ddp_weights weights = {.device = parts->device,
                           .table = parts->table,
                           .params = parts->params,
                           .buffers = parts->buffers,
                           .running = combined};
    char path[PATH_MAX];
    DDP_TRY(ddp_fs_join(path, sizeof path, dir, ddpi_ckpt_file_names[DDPI_CKPT_MODEL]));
    DDP_TRY(ddp_weights_load(path, false, &weights));
    parts->counter = weights.counter;
    return DDP_OK;
}

ddp_status ddp_ckpt_load(const char *path, ddp_ckpt_parts *parts)
{
    const size_t bytes = ddp_buffer_table_length(parts->buffers) * sizeof(float);
    void *combined = NULL; /* the model's statistics; the shards' own stand beside them */
    if (bytes > 0)
        DDP_TRY(ddp_device_alloc(parts->device, bytes, &combined));
    ddp_status st = load_model(path, parts, combined);
    if (st == DDP_OK)
        st = load_optimizer(path, parts, combined);
    if (combined != NULL)
        ddp_device_free(parts->device, combined, bytes);
    return st;
}
