/* fuzz_idx.c - libFuzzer target: any bytes, read as labels and as images, through the reader that
 * ds_idx uses.
 *
 * Beyond the sanitizers' findings: a header that is accepted must be within its limits, and what a
 * plain file gives must be the file's own bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/idx_reader.h"

/* Reading is worth it up to here; a longer promise is only a long wait. */
#define DATA_LIMIT (INT64_C(1) << 22)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void require(bool truth, const char *what)
{
    if (truth)
        return;
    fprintf(stderr, "fuzz_idx: %s\n", what);
    abort();
}

static void read_as(ddpi_idx_kind kind, const uint8_t *data, size_t bytes)
{
    ddpi_idx_reader *reader;
    ddpi_idx_header header;
    uint8_t *dst;
    if (ddpi_idx_open_memory("input", data, bytes, &reader) != DDP_OK)
        return;
    if (ddpi_idx_read_header(reader, kind, &header) == DDP_OK) {
        require(header.count >= 1 && header.count <= DDPI_IDX_MAX_COUNT, "count");
        require(header.height >= 1 && header.height <= DDPI_IDX_MAX_SIDE, "height");
        require(header.width >= 1 && header.width <= DDPI_IDX_MAX_SIDE, "width");
        require(header.data_bytes == header.count * header.height * header.width, "data_bytes");
        /* From malloc, which unlike our own allocator has no padding in which an overrun could
         * hide. */
        if (header.data_bytes <= DATA_LIMIT && (dst = malloc((size_t)header.data_bytes)) != NULL) {
            bool plain = data[0] == 0;
            if (ddpi_idx_read_data(reader, dst) == DDP_OK) {
                size_t offset = 4 + 4 * (size_t)kind;
                require(!plain || bytes == offset + (size_t)header.data_bytes, "length");
                require(!plain || memcmp(dst, data + offset, bytes - offset) == 0, "contents");
                if (kind == DDPI_IDX_LABELS)
                    (void)!ddpi_idx_check_labels("input", dst, header.count, 10);
            }
            free(dst);
        }
    }
    ddpi_idx_close(reader);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    read_as(DDPI_IDX_LABELS, data, bytes);
    read_as(DDPI_IDX_IMAGES, data, bytes);
    return 0;
}
