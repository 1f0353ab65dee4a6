/* idx_reader.h - strict reader of IDX files of unsigned bytes (labels: 1 dimension, images: 3),
 * plain or gzip.
 *
 * Input comes from a file or from memory (tests, fuzzing). Every error names the input, what was
 * found and what was expected. One thread per reader. */
#ifndef DDPI_DATA_IDX_READER_H
#define DDPI_DATA_IDX_READER_H

#include "ddp/status.h"

#define DDPI_IDX_MAX_COUNT (INT64_C(1) << 31)
#define DDPI_IDX_MAX_SIDE  4096
#define DDPI_IDX_MAX_BYTES (INT64_C(1) << 40)

/* The value is the number of dimensions. */
typedef enum ddpi_idx_kind { DDPI_IDX_LABELS = 1, DDPI_IDX_IMAGES = 3 } ddpi_idx_kind;

typedef struct ddpi_idx_header {
    int64_t count, height, width; /* of labels: height and width are 1 */
    int64_t data_bytes;           /* their product */
} ddpi_idx_header;

typedef struct ddpi_idx_reader ddpi_idx_reader;

/* Local. The caller closes *reader_out; path, name and data are borrowed until then. */
DDP_INNER ddp_status ddpi_idx_open_file(const char *path, ddpi_idx_reader **reader_out);
DDP_INNER ddp_status ddpi_idx_open_memory(const char *name, const void *data, size_t bytes,
                                          ddpi_idx_reader **reader_out);
/* NULL is fine. */
void ddpi_idx_close(ddpi_idx_reader *reader);
/* Local. The first call on a reader: the header, with its dimensions within the limits above. The
 * length of a plain file is checked here; a gzip file is refused here if it is too short for what
 * its header promises. */
DDP_INNER ddp_status ddpi_idx_read_header(ddpi_idx_reader *reader, ddpi_idx_kind kind,
                                          ddpi_idx_header *header_out);
/* Local. The second and last call: writes header.data_bytes to dst, straight from the file or the
 * decoder, and checks that the input ends there (and a gzip file's checksum). */
DDP_INNER ddp_status ddpi_idx_read_data(ddpi_idx_reader *reader, void *dst);

/* Local. The labels belong to the images: as many of them, each below classes. */
DDP_INNER ddp_status ddpi_idx_check_counts(const char *images_name, const ddpi_idx_header *images,
                                           const char *labels_name, const ddpi_idx_header *labels);
DDP_INNER ddp_status ddpi_idx_check_labels(const char *labels_name, const uint8_t *labels,
                                           int64_t count, int64_t classes);

#endif
