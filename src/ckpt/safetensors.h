/* safetensors.h - the safetensors format alone: header and ranges, without parameters.
 *
 * https://huggingface.co/docs/safetensors. Files may come from anywhere: the reader trusts nothing
 * and has limits. One thread per object. */
#ifndef DDP_CKPT_SAFETENSORS_H
#define DDP_CKPT_SAFETENSORS_H

#include "ddp/json.h"

enum { DDPI_SAFETENSORS_HEADER_LIMIT = 16 << 20 };

typedef struct ddpi_safetensor {
    const char *name;
    ddp_shape shape;
    size_t begin, end; /* bytes from the start of the data */
} ddpi_safetensor;

typedef struct ddpi_safetensors {
    ddp_json *header;
    ddpi_safetensor *tensors; /* in the order of their data */
    size_t count;
    const char *data; /* in the parsed text */
} ddpi_safetensors;

/* Checks everything: the tensors are F32 and cover the data from its start to its end without gap
 * or overlap. *file_out borrows text. `what` names it in messages. */
DDP_INNER ddp_status ddpi_safetensors_parse(const char *text, size_t bytes, const char *what,
                                            ddpi_safetensors *file_out);
void ddpi_safetensors_close(ddpi_safetensors *file);

/* Builds a file's head for F32 tensors whose data follow in this order: the length, and the header
 * padded to 8 bytes. begin and end are filled in. The caller frees *head_out with ddp_free(). */
DDP_INNER ddp_status ddpi_safetensors_head(ddpi_safetensor *tensors, size_t count, char **head_out,
                                           size_t *bytes_out);

#endif
