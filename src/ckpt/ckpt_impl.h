/* ckpt_impl.h - the parts of a checkpoint's bytes, and which of them a rank writes.
 *
 * Parameters, optimizer state and combined statistics are the same on every rank when they are
 * saved, so each takes an equal share of their bytes; shards' statistics are written by the rank
 * that has the shard. */
#ifndef DDP_CKPT_CKPT_IMPL_H
#define DDP_CKPT_CKPT_IMPL_H

#include "ckpt/weights_impl.h"
#include "ddp/checkpoint.h"

enum { DDPI_CKPT_MODEL, DDPI_CKPT_OPTIMIZER, DDPI_CKPT_FILES };

#define DDPI_CKPT_STATE    "state.json"
#define DDPI_CKPT_MANIFEST "MANIFEST.json"

extern const char *const ddpi_ckpt_file_names[DDPI_CKPT_FILES];

typedef enum ddpi_piece_kind {
    DDPI_CKPT_PARAM,    /* of the parameters or a flat */
    DDPI_CKPT_COMBINED, /* statistics */
    DDPI_CKPT_COUNTER,
    DDPI_CKPT_ROW, /* statistics of a shard */
    DDPI_CKPT_SEEN
} ddpi_piece_kind;

/* Bytes [from, from + bytes) of a tensor. */
typedef struct ddpi_ckpt_piece {
    ddpi_piece_kind kind;
    int file;
    int flat; /* -1: the parameters */
    const ddp_param *param;
    const ddp_buffer *buffer;
    int64_t row;        /* of this rank's shards */
    size_t from, bytes; /* of the tensor */
    size_t offset;      /* in the file */
    size_t memory;      /* in the snapshot; there a parameter is whole, as it lies in the flats */
} ddpi_ckpt_piece;

typedef struct ddpi_ckpt_layout {
    char *heads[DDPI_CKPT_FILES];
    size_t head_bytes[DDPI_CKPT_FILES], file_bytes[DDPI_CKPT_FILES];
    ddpi_ckpt_piece *pieces;
    int count, capacity;
    size_t memory_bytes;  /* of all pieces */
    size_t largest_param; /* elements */
} ddpi_ckpt_layout;

/* A tensor of the optimizer's file; names are "FLAT.PARAMETER", "running.BUFFER" and
 * "running.seen". */
void ddpi_ckpt_name(char *name, size_t bytes, const char *group, const char *member);

DDP_INNER ddp_status ddpi_ckpt_layout_make(const ddp_ckpt_parts *parts, int rank, int world,
                                           ddpi_ckpt_layout *layout_out);
void ddpi_ckpt_layout_free(ddpi_ckpt_layout *layout);
/* Copies all pieces to memory. */
DDP_INNER ddp_status ddpi_ckpt_snapshot(const ddpi_ckpt_layout *layout, const ddp_ckpt_parts *parts,
                                        char *memory);
/* Any thread. The piece's bytes as files have them, from the snapshot; in there, or in scratch
 * (largest_param elements). */
DDP_INNER ddp_status ddpi_ckpt_piece_bytes(const ddpi_ckpt_piece *piece, const char *memory,
                                           float *scratch, const char **bytes_out);

/* What a finished save does to the folder; rank 0's thread. */
typedef struct ddpi_ckpt_commit {
    const char *dir, *temporary; /* paths */
    const char *token;
    const char *state;
    int64_t step, best, keep;
} ddpi_ckpt_commit;
/* Writes state and manifest, renames, and removes what is too old. */
DDP_INNER ddp_status ddpi_ckpt_commit_run(const ddpi_ckpt_commit *commit);
/* Removes what killed runs left; says so. */
DDP_INNER ddp_status ddpi_ckpt_sweep(const char *dir);
/* Whether name is that of a checkpoint's folder. */
bool ddpi_ckpt_parse_name(const char *name, int64_t *step_out);
/* "step-0000001234" */
void ddpi_ckpt_format_name(int64_t step, char *name, size_t bytes);

#endif
