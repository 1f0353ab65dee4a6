/* fuzz_safetensors.c - libFuzzer target: any bytes, parsed as a safetensors file.
 *
 * Beyond the sanitizers' findings: what is accepted must cover the data exactly, and writing a head
 * for its tensors in the order of their data must give a file with the same tensors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/safetensors.h"
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
        require(tensor->end - tensor->begin == (size_t)ddp_shape_count(&tensor->shape) * 4, "size");
        at = tensor->end;
    }
    require(file->data + at == end, "end");
}

/* The writer cannot know where empty tensors lay, so two files of them may differ in order. */
static bool has_empty(const ddpi_safetensors *file)
{
    for (size_t i = 0; i < file->count; i++)
        if (file->tensors[i].begin == file->tensors[i].end)
            return true;
    return false;
}

static void write_again(const ddpi_safetensors *file, size_t data_bytes)
{
    char *head, *copy;
    size_t head_bytes;
    ddpi_safetensors again;
    require(ddpi_safetensors_head(file->tensors, file->count, &head, &head_bytes) == DDP_OK,
            "head");
    require(DDP_ALLOC(copy, head_bytes + data_bytes) == DDP_OK, "memory");
    memcpy(copy, head, head_bytes);
    require(ddpi_safetensors_parse(copy, head_bytes + data_bytes, "again", &again) == DDP_OK,
            ddp_status_message());
    require(again.count == file->count, "count");
    for (size_t i = 0; i < again.count; i++) {
        require(strcmp(again.tensors[i].name, file->tensors[i].name) == 0, "name");
        require(ddp_shape_equal(&again.tensors[i].shape, &file->tensors[i].shape), "shape");
    }
    ddpi_safetensors_close(&again);
    ddp_free(copy);
    ddp_free(head);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *text = (const char *)data;
    ddpi_safetensors file;
    if (ddpi_safetensors_parse(text, bytes, "input", &file) != DDP_OK)
        return 0;
    check_cover(&file, text + bytes);
    if (!has_empty(&file))
        write_again(&file, bytes - (size_t)(file.data - text));
    ddpi_safetensors_close(&file);
    return 0;
}
