/* fuzz_safetensors.c - libFuzzer target: any bytes, parsed as a safetensors file.
 *
 * Beyond the sanitizers' findings: what is accepted must cover the data exactly, and writing a head
 * for its tensors must give a file with the same tensors, aligned. Then the file is matched with a
 * small model, whole and in part, and what matches is converted. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/weights_impl.h"
#include "ddp/memory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void require(bool truth, const char *what)
{
    if (truth)
        return;
    fprintf(stderr, "fuzz_safetensors: %s\n", what);
    abort();
}

static void check_cover(const ddpi_safetensors *file, const char *end)
{
    size_t at = 0;
    for (size_t i = 0; i < file->count; i++) {
        const ddpi_safetensor *tensor = &file->tensors[i];
        require(tensor->begin == at && tensor->end >= at, "begin");
        require(tensor->end - tensor->begin ==
                    (size_t)ddp_shape_count(&tensor->shape) * ddpi_st_dtype_bytes(tensor->dtype),
                "size");
        at = tensor->end;
    }
    require(file->data + at == end, "end");
}

static const ddpi_safetensor *find(const ddpi_safetensors *file, const char *name)
{
    for (size_t i = 0; i < file->count; i++)
        if (strcmp(file->tensors[i].name, name) == 0)
            return &file->tensors[i];
    return NULL;
}

static void write_again(const ddpi_safetensors *file, size_t data_bytes)
{
    char *head, *copy;
    size_t head_bytes, placed_bytes;
    ddpi_safetensors again;
    ddpi_safetensor *tensors;
    require(DDP_ALLOC(tensors, file->count) == DDP_OK, "memory");
    if (file->count > 0)
        memcpy(tensors, file->tensors, file->count * sizeof *tensors);
    require(ddpi_safetensors_head(tensors, file->count, &head, &head_bytes, &placed_bytes) ==
                DDP_OK,
            "head");
    require(placed_bytes == data_bytes, "bytes of data");
    require(DDP_ALLOC(copy, head_bytes + data_bytes) == DDP_OK, "memory");
    memcpy(copy, head, head_bytes);
    require(ddpi_safetensors_parse(copy, head_bytes + data_bytes, "again", &again) == DDP_OK,
            ddp_status_message());
    require(again.count == file->count, "count");
    for (size_t i = 0; i < again.count; i++) {
        const ddpi_safetensor *mine = &tensors[i], *other = find(&again, mine->name);
        require(other != NULL, "name");
        require(ddp_shape_equal(&other->shape, &mine->shape), "shape");
        require(other->dtype == mine->dtype, "dtype");
        require(other->begin == mine->begin, "place");
        require((head_bytes + mine->begin) % ddpi_st_dtype_bytes(mine->dtype) == 0, "alignment");
    }
    ddpi_safetensors_close(&again);
    ddp_free(copy);
    ddp_free(head);
    ddp_free(tensors);
}

static void convert(const ddpi_safetensors *file, const ddpi_weight *weight)
{
    const size_t count = (size_t)ddp_shape_count(&weight->shape);
    float *plain;
    require(DDP_ALLOC(plain, count) == DDP_OK, "memory");
    (void)ddpi_weights_convert(weight->tensor->dtype, file->data + weight->tensor->begin, count,
                               plain);
    ddp_free(plain);
}

static void match(const ddpi_safetensors *file, bool partial)
{
    ddpi_weight items[] = {
        {.name = "a", .shape = {1, {2}}},
        {.name = "b", .shape = {2, {2, 1}}},
        {.name = "n", .shape = {0}, .counter = true},
        {.name = "s", .shape = {0}},
    };
    ddpi_weight_list list = {items, sizeof items / sizeof items[0]};
    size_t matched = 0;
    if (ddpi_weights_match(file, "input", partial, &list) != DDP_OK)
        return;
    for (size_t i = 0; i < list.count; i++) {
        const ddpi_weight *weight = &items[i];
        require(partial || weight->counter || weight->tensor != NULL, "missing");
        if (weight->tensor == NULL)
            continue;
        matched++;
        require(ddp_shape_equal(&weight->tensor->shape, &weight->shape), "matched shape");
        if (weight->counter)
            require(weight->tensor->dtype == DDPI_ST_I64, "matched type");
        else
            convert(file, weight);
    }
    require(matched > 0 && (partial || matched == file->count), "matched");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *text = (const char *)data;
    ddpi_safetensors file;
    if (ddpi_safetensors_parse(text, bytes, "input", &file) != DDP_OK)
        return 0;
    check_cover(&file, text + bytes);
    write_again(&file, bytes - (size_t)(file.data - text));
    match(&file, false);
    match(&file, true);
    ddpi_safetensors_close(&file);
    return 0;
}
