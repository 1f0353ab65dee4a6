/* tensors.c - any safetensors file, for programs that look into files. One thread. */
#include <string.h>

#include "ckpt/weights_impl.h"
#include "ddp/fs.h"
#include "ddp/memory.h"

static const size_t LIMIT_BYTES = (size_t)1 << 40;

struct ddp_tensors {
    char *text;
    ddpi_safetensors file;
};

/* ---- writing ---- */

static ddp_status describe(const ddp_tensor *tensor, ddpi_safetensor *out)
{
    *out = (ddpi_safetensor){.name = tensor->name, .shape = tensor->shape};
    for (int d = 0; d < DDPI_ST_COUNT; d++) {
        if (strcmp(tensor->dtype, ddpi_st_dtype_name((ddpi_st_dtype)d)) != 0)
            continue;
        out->dtype = (ddpi_st_dtype)d;
        DDP_ASSERT(tensor->bytes ==
                   (size_t)ddp_shape_count(&tensor->shape) * ddpi_st_dtype_bytes(out->dtype));
        return DDP_OK;
    }
    return DDP_FAIL(DDP_ERR_UNSUPPORTED, "tensor %s: there is no type %s", tensor->name,
                    tensor->dtype);
}

static ddp_status write_file(const char *path, const ddp_tensor *tensors, size_t count,
                             ddpi_safetensor *described)
{
    char *head, *file;
    size_t head_bytes, data_bytes;
    for (size_t i = 0; i < count; i++)
        DDP_TRY(describe(&tensors[i], &described[i]));
    DDP_TRY(ddpi_safetensors_head(described, count, &head, &head_bytes, &data_bytes));
    ddp_status st = DDP_ALLOC(file, head_bytes + data_bytes);
    if (st == DDP_OK) {
        memcpy(file, head, head_bytes);
        for (size_t i = 0; i < count; i++)
            memcpy(file + head_bytes + described[i].begin, tensors[i].data, tensors[i].bytes);
        st = ddp_fs_write_atomic(path, file, head_bytes + data_bytes);
        ddp_free(file);
    }
    ddp_free(head);
    return st;
}

ddp_status ddp_tensors_save(const char *path, const ddp_tensor *tensors, size_t count)
{
    ddpi_safetensor *described;
    DDP_TRY(DDP_ALLOC(described, count));
    const ddp_status st = write_file(path, tensors, count, described);
    ddp_free(described);
    return st;
}

/* ---- reading ---- */

ddp_status ddp_tensors_open(const char *path, ddp_tensors **tensors_out)
{
    ddp_tensors *t;
    size_t bytes;
    DDP_TRY(DDP_ALLOC(t, 1));
    ddp_status st = ddp_fs_read(path, LIMIT_BYTES, &t->text, &bytes);
    if (st == DDP_OK)
        st = ddpi_safetensors_parse(t->text, bytes, path, &t->file);
    if (st != DDP_OK) {
        ddp_free(t->text);
        ddp_free(t);
        return st;
    }
    *tensors_out = t;
    return DDP_OK;
}

void ddp_tensors_close(ddp_tensors *t)
{
    if (t == NULL)
        return;
    ddpi_safetensors_close(&t->file);
    ddp_free(t->text);
    ddp_free(t);
}

size_t ddp_tensors_count(const ddp_tensors *t)
{
    return t->file.count;
}

ddp_tensor ddp_tensors_at(const ddp_tensors *t, size_t index)
{
    const ddpi_safetensor *tensor = &t->file.tensors[index];
    DDP_ASSERT(index < t->file.count);
    return (ddp_tensor){.name = tensor->name,
                        .dtype = ddpi_st_dtype_name(tensor->dtype),
                        .shape = tensor->shape,
                        .data = t->file.data + tensor->begin,
                        .bytes = tensor->end - tensor->begin};
}

static bool is(const ddp_tensor *tensor, ddpi_st_dtype dtype)
{
    return strcmp(tensor->dtype, ddpi_st_dtype_name(dtype)) == 0;
}

static double value_at(const ddp_tensor *tensor, ddpi_st_dtype dtype, size_t i)
{
    const char *at = (const char *)tensor->data + i * ddpi_st_dtype_bytes(dtype);
    double wide = 0;
    int64_t whole;
    float narrow = 0;
    if (dtype == DDPI_ST_F64) {
        memcpy(&wide, at, sizeof wide);
        return wide;
    }
    if (dtype == DDPI_ST_I64) {
        memcpy(&whole, at, sizeof whole);
        return (double)whole;
    }
    (void)ddpi_weights_convert(dtype, at, 1, &narrow);
    return (double)narrow;
}

bool ddp_tensor_values(const ddp_tensor *tensor, double *values)
{
    static const ddpi_st_dtype known[] = {DDPI_ST_F32, DDPI_ST_F64, DDPI_ST_F16, DDPI_ST_BF16,
                                          DDPI_ST_I64};
    const size_t count = (size_t)ddp_shape_count(&tensor->shape);
    for (size_t k = 0; k < sizeof known / sizeof known[0]; k++) {
        if (!is(tensor, known[k]))
            continue;
        for (size_t i = 0; i < count; i++)
            values[i] = value_at(tensor, known[k], i);
        return true;
    }
    return false;
}
