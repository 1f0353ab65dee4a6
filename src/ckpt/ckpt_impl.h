/* ckpt_impl.h - the parts of a checkpoint's bytes, and which of them a rank writes.
 *
 * Parameters are the same on every rank when they are saved, so each takes an equal share of them;
 * the elements of an optimizer's flat are shared out among the ranks that own them; a tensor of
 * combined statistics is written by one rank, and shards' statistics by the rank that has the
 * shard. Shares are ranges of the flat buffers, as they lie in memory: of a parameter that is cut
 * in two and not plain, a rank's elements are scattered in the file. */
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

/* What a rank writes of a tensor: elements of a parameter or flat, or bytes of another. */
typedef struct ddpi_ckpt_piece {
    ddpi_piece_kind kind;
    int file;
    int flat; /* -1: the parameters */
    const ddp_param *param;
    const ddp_buffer *buffer;
    ddp_range part;     /* of the flat buffer: the parameter or some of it */
    int64_t row;        /* of this rank's shards */
    size_t from, bytes; /* of the tensor; of a parameter, all */
    size_t offset;      /* of these bytes in the file */
    size_t memory;      /* in the snapshot */
} ddpi_ckpt_piece;

/* Adjacent elements of the parameters or a flat, which the snapshot has in one. */
typedef struct ddpi_ckpt_span {
    int flat;
    ddp_range range;
    size_t memory;
} ddpi_ckpt_span;

typedef struct ddpi_ckpt_layout {
    char *heads[DDPI_CKPT_FILES];
    size_t head_bytes[DDPI_CKPT_FILES], file_bytes[DDPI_CKPT_FILES];
    ddpi_ckpt_piece *tensors; /* all, whole */
    int tensor_count, tensor_capacity;
    /* This rank's: */
    ddpi_ckpt_piece *pieces;
    int count, capacity;
    ddpi_ckpt_span *spans;
    int span_count, span_capacity;
    size_t memory_bytes; /* of all pieces */
} ddpi_ckpt_layout;

/* Who writes what. */
typedef struct ddpi_ckpt_owners {
    int rank, world;
    const ddp_range *ranges; /* [world][count]: ddp_ckpt_parts.owned of all ranks */
    int count;               /* 0: all own all */
} ddpi_ckpt_owners;

/* A tensor of the optimizer's file; names are "FLAT.PARAMETER", "running.BUFFER" and
 * "running.seen". */
void ddpi_ckpt_name(char *name, size_t bytes, const char *group, const char *member);

/* Lists the tensors; no rank has pieces yet. */
DDP_INNER ddp_status ddpi_ckpt_layout_make(const ddp_ckpt_parts *parts,
                                           ddpi_ckpt_layout *layout_out);
void ddpi_ckpt_layout_free(ddpi_ckpt_layout *layout);
/* This rank's pieces in place of those before. */
DDP_INNER ddp_status ddpi_ckpt_cut(ddpi_ckpt_layout *layout, const ddp_ckpt_parts *parts,
                                   const ddpi_ckpt_owners *owners);
/* Copies all pieces to memory. */
DDP_INNER ddp_status ddpi_ckpt_snapshot(const ddpi_ckpt_layout *layout, const ddp_ckpt_parts *parts,
                                        char *memory);

/* For bringing a parameter to plain order: the largest one's elements. */
typedef struct ddpi_ckpt_scratch {
    float *packed, *plain, *mask;
} ddpi_ckpt_scratch;
DDP_INNER ddp_status ddpi_ckpt_scratch_open(const ddp_param_table *table,
                                            ddpi_ckpt_scratch *scratch_out);
void ddpi_ckpt_scratch_close(ddpi_ckpt_scratch *scratch);
/* Any thread. Writes a piece of the snapshot to its place in the file. */
DDP_INNER ddp_status ddpi_ckpt_piece_write(const ddpi_ckpt_piece *piece, const char *memory,
                                           const ddpi_ckpt_scratch *scratch, int fd,
                                           const char *path);

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
