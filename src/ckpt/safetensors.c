/* safetensors.c - reads and writes the head of a safetensors file.
 *
 * Reading goes from the outside in: length, JSON (which ddp_json_load checks for depth and
 * duplicate keys), each tensor on its own, then all together. Sorted by their start, tensors must
 * touch each other, begin at 0 and end where the data end; that leaves no room for gaps, overlaps
 * or ranges outside. */
#include "ckpt/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ddp/memory.h"

enum { LENGTH_BYTES = 8, HEAD_ALIGN = 8, LARGEST_ELEMENT = 8 };

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers in the files are little-endian");
static const char METADATA[] = "__metadata__";

static const struct {
    const char *name;
    size_t bytes;
} dtypes[DDPI_ST_COUNT] = {
    [DDPI_ST_F32] = {"F32", 4},   [DDPI_ST_F64] = {"F64", 8}, [DDPI_ST_F16] = {"F16", 2},
    [DDPI_ST_BF16] = {"BF16", 2}, [DDPI_ST_I64] = {"I64", 8}, [DDPI_ST_I32] = {"I32", 4},
    [DDPI_ST_I16] = {"I16", 2},   [DDPI_ST_I8] = {"I8", 1},   [DDPI_ST_U64] = {"U64", 8},
    [DDPI_ST_U32] = {"U32", 4},   [DDPI_ST_U16] = {"U16", 2}, [DDPI_ST_U8] = {"U8", 1},
    [DDPI_ST_BOOL] = {"BOOL", 1},
};

size_t ddpi_st_dtype_bytes(ddpi_st_dtype dtype)
{
    return dtypes[dtype].bytes;
}

const char *ddpi_st_dtype_name(ddpi_st_dtype dtype)
{
    return dtypes[dtype].name;
}

/* ---- reading ---- */

static ddp_status read_header(const char *text, size_t bytes, const char *what,
                              ddpi_safetensors *file)
{
    if (bytes < LENGTH_BYTES)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: %zu bytes are too few for a safetensors file", what,
                        bytes);
    uint64_t length;
    memcpy(&length, text, sizeof length);
    if (length > DDPI_SAFETENSORS_HEADER_LIMIT)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: claims a header of %llu bytes, the limit is %d", what,
                        (unsigned long long)length, DDPI_SAFETENSORS_HEADER_LIMIT);
    if (length > bytes - LENGTH_BYTES)
        return DDP_FAIL(
            DDP_ERR_FORMAT,
            "%s: claims a header of %llu bytes, but has only %zu bytes behind the length", what,
            (unsigned long long)length, bytes - LENGTH_BYTES);
    if (length == 0 || text[LENGTH_BYTES] != '{')
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: the header does not start with '{'", what);
    DDP_TRY(ddp_json_load(text + LENGTH_BYTES, (size_t)length, what, &file->header));
    file->data = text + LENGTH_BYTES + length;
    return DDP_OK;
}

static ddp_status check_metadata(const ddp_json *metadata, const char *what)
{
    if (!ddp_json_is_object(metadata))
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: %s is not an object", what, METADATA);
    void *iter = NULL;
    const char *key, *value;
    const ddp_json *member;
    while (ddp_json_next(metadata, &iter, &key, &member))
        if (!ddp_json_as_string(member, &value))
            return DDP_FAIL(DDP_ERR_FORMAT, "%s: %s.%.80s is not a string", what, METADATA, key);
    return DDP_OK;
}

static ddp_status read_dtype(const ddp_json *json, const char *what, ddpi_safetensor *tensor)
{
    const char *name;
    if (json == NULL || !ddp_json_as_string(json, &name))
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: tensor %.80s: dtype must be a string", what,
                        tensor->name);
    for (int i = 0; i < DDPI_ST_COUNT; i++) {
        if (strcmp(name, dtypes[i].name) != 0)
            continue;
        tensor->dtype = (ddpi_st_dtype)i;
        return DDP_OK;
    }
    return DDP_FAIL(DDP_ERR_FORMAT, "%s: tensor %.80s: dtype is %.20s, which is not known", what,
                    tensor->name, name);
}

/* *bytes_out comes in as the bytes of an element. */
static ddp_status read_shape(const ddp_json *json, const char *what, const char *name,
                             ddp_shape *shape_out, uint64_t *bytes_out)
{
    const size_t ndim = json == NULL ? 0 : ddp_json_length(json);
    if (json == NULL || !ddp_json_is_array(json) || ndim > DDP_MAX_DIMS)
        return DDP_FAIL(DDP_ERR_FORMAT,
                        "%s: tensor %.80s: shape must be a list of at most %d numbers", what, name,
                        DDP_MAX_DIMS);
    ddp_shape shape = {.ndim = (int)ndim};
    uint64_t bytes = *bytes_out;
    for (size_t i = 0; i < ndim; i++) {
        int64_t dim;
        if (!ddp_json_as_int(ddp_json_at(json, i), &dim) || dim < 0)
            return DDP_FAIL(DDP_ERR_FORMAT, "%s: tensor %.80s: dimension %zu is not a whole number",
                            what, name, i);
        if (__builtin_mul_overflow(bytes, (uint64_t)dim, &bytes) || bytes > INT64_MAX)
            return DDP_FAIL(DDP_ERR_FORMAT, "%s: tensor %.80s: the shape's size overflows", what,
                            name);
        shape.dims[i] = dim;
    }
    *shape_out = shape;
    *bytes_out = bytes;
    return DDP_OK;
}

static ddp_status read_range(const ddp_json *json, const char *what, size_t data_bytes,
                             ddpi_safetensor *tensor)
{
    int64_t begin, end;
    if (json == NULL || !ddp_json_is_array(json) || ddp_json_length(json) != 2 ||
        !ddp_json_as_int(ddp_json_at(json, 0), &begin) ||
        !ddp_json_as_int(ddp_json_at(json, 1), &end))
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: tensor %.80s: data_offsets must be two whole numbers",
                        what, tensor->name);
    if (begin < 0 || end < begin || (uint64_t)end > data_bytes)
        return DDP_FAIL(
            DDP_ERR_FORMAT,
            "%s: tensor %.80s: data_offsets [%lld, %lld] do not lie in the %zu bytes of "
            "data",
            what, tensor->name, (long long)begin, (long long)end, data_bytes);
    tensor->begin = (size_t)begin;
    tensor->end = (size_t)end;
    return DDP_OK;
}

static ddp_status read_tensor(const ddp_json *json, const char *what, size_t data_bytes,
                              ddpi_safetensor *tensor)
{
    if (!ddp_json_is_object(json))
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: tensor %.80s is not an object", what, tensor->name);
    void *iter = NULL;
    const char *key;
    const ddp_json *member;
    while (ddp_json_next(json, &iter, &key, &member))
        if (strcmp(key, "dtype") != 0 && strcmp(key, "shape") != 0 &&
            strcmp(key, "data_offsets") != 0)
            return DDP_FAIL(DDP_ERR_FORMAT, "%s: tensor %.80s: unknown key '%.80s'", what,
                            tensor->name, key);
    DDP_TRY(read_dtype(ddp_json_get(json, "dtype"), what, tensor));
    uint64_t bytes = ddpi_st_dtype_bytes(tensor->dtype);
    DDP_TRY(read_shape(ddp_json_get(json, "shape"), what, tensor->name, &tensor->shape, &bytes));
    DDP_TRY(read_range(ddp_json_get(json, "data_offsets"), what, data_bytes, tensor));
    if (bytes != tensor->end - tensor->begin)
        return DDP_FAIL(DDP_ERR_FORMAT,
                        "%s: tensor %.80s: its shape takes %llu bytes, data_offsets %zu", what,
                        tensor->name, (unsigned long long)bytes, tensor->end - tensor->begin);
    return DDP_OK;
}

static int by_begin(const void *left, const void *right)
{
    const ddpi_safetensor *a = left, *b = right;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    return a->end < b->end ? -1 : a->end > b->end; /* empty ones first */
}

static ddp_status check_cover(const ddpi_safetensors *file, const char *what, size_t data_bytes)
{
    size_t end = 0;
    for (size_t i = 0; i < file->count; i++) {
        const ddpi_safetensor *tensor = &file->tensors[i];
        if (tensor->begin != end)
            return DDP_FAIL(
                DDP_ERR_FORMAT, "%s: tensor %.80s begins at %zu, the one before ends at %zu (%s)",
                what, tensor->name, tensor->begin, end, tensor->begin < end ? "overlap" : "gap");
        end = tensor->end;
    }
    if (end != data_bytes)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: %zu bytes of data, but the tensors take %zu", what,
                        data_bytes, end);
    return DDP_OK;
}

static ddp_status read_tensors(ddpi_safetensors *file, const char *what, size_t data_bytes)
{
    void *iter = NULL;
    const char *key;
    const ddp_json *member;
    size_t members = 0;
    while (ddp_json_next(file->header, &iter, &key, &member))
        members++;
    DDP_TRY(DDP_ALLOC(file->tensors, members));
    iter = NULL;
    while (ddp_json_next(file->header, &iter, &key, &member)) {
        if (strcmp(key, METADATA) == 0) {
            DDP_TRY(check_metadata(member, what));
            continue;
        }
        ddpi_safetensor *tensor = &file->tensors[file->count++];
        tensor->name = key;
        DDP_TRY(read_tensor(member, what, data_bytes, tensor));
    }
    qsort(file->tensors, file->count, sizeof *file->tensors, by_begin);
    return check_cover(file, what, data_bytes);
}

ddp_status ddpi_safetensors_parse(const char *text, size_t bytes, const char *what,
                                  ddpi_safetensors *file_out)
{
    ddpi_safetensors file = {0};
    ddp_status st = read_header(text, bytes, what, &file);
    if (st == DDP_OK)
        st = read_tensors(&file, what, bytes - (size_t)(file.data - text));
    if (st != DDP_OK) {
        ddpi_safetensors_close(&file);
        return st;
    }
    *file_out = file;
    return DDP_OK;
}

void ddpi_safetensors_close(ddpi_safetensors *file)
{
    ddp_free(file->tensors);
    ddp_json_destroy(file->header);
    *file = (ddpi_safetensors){0};
}

/* ---- writing ---- */

static ddp_status add_tensor(ddp_json *header, const ddpi_safetensor *tensor)
{
    ddp_json *entry, *shape, *range;
    DDP_TRY(ddp_json_object(&entry));
    ddp_json_set_string(entry, "dtype", ddpi_st_dtype_name(tensor->dtype));
    ddp_status st = ddp_json_array(&shape);
    if (st == DDP_OK) {
        for (int i = 0; i < tensor->shape.ndim; i++)
            ddp_json_append_int(shape, tensor->shape.dims[i]);
        ddp_json_set(entry, "shape", shape);
        st = ddp_json_array(&range);
    }
    if (st != DDP_OK) {
        ddp_json_destroy(entry);
        return st;
    }
    ddp_json_append_int(range, (int64_t)tensor->begin);
    ddp_json_append_int(range, (int64_t)tensor->end);
    ddp_json_set(entry, "data_offsets", range);
    ddp_json_set(header, tensor->name, entry);
    return DDP_OK;
}

/* Places the tensors; returns the bytes of all. */
static size_t place(ddpi_safetensor *tensors, size_t count)
{
    size_t end = 0;
    for (size_t size = LARGEST_ELEMENT; size > 0; size /= 2)
        for (size_t i = 0; i < count; i++) {
            if (ddpi_st_dtype_bytes(tensors[i].dtype) != size)
                continue;
            tensors[i].begin = end;
            end += (size_t)ddp_shape_count(&tensors[i].shape) * size;
            tensors[i].end = end;
        }
    return end;
}

static ddp_status header_text(const ddpi_safetensor *tensors, size_t count, char **text_out)
{
    ddp_json *header, *metadata;
    ddp_status st;
    DDP_TRY(ddp_json_object(&header));
    DDP_TRY_GOTO(st, ddp_json_object(&metadata), done);
    ddp_json_set_string(metadata, "format", "pt");
    ddp_json_set(header, METADATA, metadata);
    for (size_t i = 0; i < count; i++)
        DDP_TRY_GOTO(st, add_tensor(header, &tensors[i]), done);
    st = ddp_json_text(header, 0, text_out);
done:
    ddp_json_destroy(header);
    return st;
}

ddp_status ddpi_safetensors_head(ddpi_safetensor *tensors, size_t count, char **head_out,
                                 size_t *bytes_out, size_t *data_bytes_out)
{
    char *text, *head;
    const size_t data_bytes = place(tensors, count);
    DDP_TRY(header_text(tensors, count, &text));
    const size_t length = strlen(text);
    const uint64_t padded = (length + HEAD_ALIGN - 1) / HEAD_ALIGN * HEAD_ALIGN;
    const ddp_status st = DDP_ALLOC(head, LENGTH_BYTES + padded);
    if (st == DDP_OK) {
        memset(head, ' ', LENGTH_BYTES + padded);
        memcpy(head, &padded, LENGTH_BYTES);
        memcpy(head + LENGTH_BYTES, text, length);
        *head_out = head;
        *bytes_out = LENGTH_BYTES + padded;
        *data_bytes_out = data_bytes;
    }
    ddp_free(text);
    return st;
}
