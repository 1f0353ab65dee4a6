/* safetensors.h - the safetensors format alone: header and ranges, without parameters.
 *
 * https://huggingface.co/docs/safetensors. Files may come from anywhere: the reader trusts nothing
 * and has limits. One thread per object. */
#ifndef DDP_CKPT_SAFETENSORS_H
#define DDP_CKPT_SAFETENSORS_H

#include "ddp/json.h"

enum { DDPI_SAFETENSORS_HEADER_LIMIT = 16 << 20 };

/* Element types that can be told apart; F32 and I64 are what we write. */
typedef enum ddpi_st_dtype {
    DDPI_ST_F32,
    DDPI_ST_F64,
    DDPI_ST_F16,
    DDPI_ST_BF16,
    DDPI_ST_I64,
    DDPI_ST_I32,
    DDPI_ST_I16,
    DDPI_ST_I8,
    DDPI_ST_U64,
    DDPI_ST_U32,
    DDPI_ST_U16,
    DDPI_ST_U8,
    DDPI_ST_BOOL,
    DDPI_ST_COUNT
} ddpi_st_dtype;

size_t ddpi_st_dtype_bytes(ddpi_st_dtype dtype);
/* As files name it: "F32". */
const char *ddpi_st_dtype_name(ddpi_st_dtype dtype);

typedef struct ddpi_safetensor {
    const char *name;
    ddpi_st_dtype dtype;
    ddp_shape shape;
    size_t begin, end; /* bytes from the start of the data */
} ddpi_safetensor;

typedef struct ddpi_safetensors {
    ddp_json *header;
    ddpi_safetensor *tensors; /* in the order of their data */
    size_t count;
    const char *data; /* in the parsed text */
} ddpi_safetensors;

/* Checks everything: the tensors have types that are known and cover the data from its start to its
 * end without gap or overlap. *file_out borrows text. `what` names it in messages. */
DDP_INNER ddp_status ddpi_safetensors_parse(const char *text, size_t bytes, const char *what,
                                            ddpi_safetensors *file_out);
void ddpi_safetensors_close(ddpi_safetensors *file);

/* Builds a file's head: the length, and the header padded to 8 bytes, which names the tensors in
 * this order. begin and end are filled in: types of larger elements lie before those of smaller
 * ones, otherwise in this order, so that every tensor is aligned to its elements. The caller frees
 * *head_out with ddp_free(). *data_bytes_out are to follow it. */
DDP_INNER ddp_status ddpi_safetensors_head(ddpi_safetensor *tensors, size_t count, char **head_out,
                                           size_t *bytes_out, size_t *data_bytes_out);

#endif
