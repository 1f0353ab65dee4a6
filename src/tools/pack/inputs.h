/* inputs.h - the files below the input folder, in the order in which they are packed.
 * Immutable once listed; any thread. */
#ifndef DDPI_TOOLS_INPUTS_H
#define DDPI_TOOLS_INPUTS_H

#include "ddp/status.h"

typedef struct ddpi_input {
    char *path;    /* below the folder */
    int64_t label; /* -1: in no class folder */
    int64_t bytes, mtime_ns;
    const char *problem; /* a literal; NULL: a file to decode */
} ddpi_input;

typedef struct ddpi_inputs {
    const char *folder; /* borrowed */
    ddpi_input *files;  /* sorted by path, byte by byte */
    int count, capacity;
    char **classes; /* sorted likewise */
    int class_count, class_capacity;
    int64_t bytes; /* of all files */
    uint64_t xxh3; /* of all that is said here: another value is another input */
} ddpi_inputs;

/* Local. The caller closes *inputs_out. */
DDP_INNER ddp_status ddpi_inputs_list(const char *folder, ddpi_inputs *inputs_out);
void ddpi_inputs_close(ddpi_inputs *inputs);
/* Local. Reads a file, which must still be as it was listed. The caller frees *data_out.
 * DDP_ERR_MISMATCH where it is not. */
DDP_INNER ddp_status ddpi_input_read(const ddpi_inputs *inputs, int index, char **data_out,
                                     size_t *bytes_out);

#endif
