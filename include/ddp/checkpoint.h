/* checkpoint.h - a run between two steps as a folder: complete or absent, written while training
 * goes on, read by any number of ranks.
 *
 * A checkpoint is RUN/checkpoints/step-0000001234/ with model.safetensors (plain layouts, as
 * weights.h), optimizer.safetensors (optimizer state by parameter, running statistics by logical
 * shard), state.json (the caller's text) and MANIFEST.json (sizes and XXH3 of the others). It is
 * made beside, as step-0000001234.tmp-TOKEN; every rank writes its part of the bytes, and after all
 * have synced them rank 0 adds the manifest and renames. Nothing in it depends on the number of
 * ranks.
 *
 * Saving: begin() copies this rank's part, of what it owns, into memory that was made at the start;
 * a thread writes it. Between steps the ranks exchange flags() by whatever means they have, and
 * advance() moves all of them alike. All functions are called by one thread a rank. */
#ifndef DDP_CHECKPOINT_H
#define DDP_CHECKPOINT_H

#include "ddp/buffer.h"
#include "ddp/comm.h"
#include "ddp/json.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DDP_CKPT_MAX_FLATS = 4, DDP_CKPT_NOTE_BYTES = 2048 };

/* What is saved and loaded; all borrowed. Flat buffers are laid out as the parameters. */
typedef struct ddp_ckpt_parts {
    ddp_device *device;
    const ddp_param_table *table;
    float *params;
    struct {
        const char *name; /* in files, before ".PARAMETER" */
        float *values;
    } flats[DDP_CKPT_MAX_FLATS];
    int flat_count;
    /* Elements of the flats, ascending: this rank has them right there alone. Equally many on all
     * ranks, which cover everything together. NULL: everywhere. Only saved by. */
    const ddp_range *owned;
    int owned_count;
    const ddp_buffer_table *buffers;
    const float *combined; /* running statistics of all shards; only saved */
    int64_t counter;       /* value of every counter */
    int64_t shards;        /* logical shards of all ranks */
    int64_t first, own;    /* this rank's run of them */
    float *running;        /* [own][length of the buffer table] */
    double *seen;          /* [own] */
} ddp_ckpt_parts;

typedef struct ddp_ckpt_opts {
    const char *dir; /* RUN/checkpoints; made if absent */
    int64_t keep;    /* the newest ones that stay */
} ddp_ckpt_opts;

typedef struct ddp_ckpt ddp_ckpt;

/* Collective. Only shapes and names of parts are looked at. Checks that all ranks see one folder,
 * and removes what a killed run left half done (with a note in the log). The caller owns *ckpt_out;
 * comm is borrowed. */
DDP_CALL ddp_status ddp_ckpt_create(const ddp_ckpt_opts *opts, const ddp_ckpt_parts *parts,
                                    ddp_comm *comm, ddp_ckpt **ckpt_out);
/* Gives up a save that is under way. */
DDP_API void ddp_ckpt_destroy(ddp_ckpt *ckpt);

typedef struct ddp_ckpt_save {
    int64_t step;
    int64_t best;       /* this step's checkpoint stays, too; below 0: none */
    const char *state;  /* text of state.json; rank 0's counts */
    int64_t stopped_ns; /* since when training stands still (ddp_now_ns); 0: since begin() */
} ddp_ckpt_save;
/* Collective, while not busy. parts are as at the creation but for what is owned, which may differ
 * from save to save (see ddp_strategy_get_shares()). A folder that cannot be made fails on all
 * ranks alike. */
DDP_CALL ddp_status ddp_ckpt_begin(ddp_ckpt *ckpt, const ddp_ckpt_parts *parts,
                                   const ddp_ckpt_save *save);
DDP_API bool ddp_ckpt_busy(const ddp_ckpt *ckpt);

/* Flags below 1 << DDP_CKPT_FLAG_BITS. */
enum { DDP_CKPT_FLAG_BITS = 3 };
DDP_API uint32_t ddp_ckpt_flags(ddp_ckpt *ckpt);
/* any and all are the disjunction and conjunction of all ranks' flags since the last advance. A
 * save that has failed is said by the ranks that know why, and is over. */
DDP_API void ddp_ckpt_advance(ddp_ckpt *ckpt, uint32_t any, uint32_t all);
/* Collective. Waits until a save that is under way has ended. All ranks return how the last one
 * ended. */
DDP_CALL ddp_status ddp_ckpt_finish(ddp_ckpt *ckpt);

/* The last save that has ended. */
typedef struct ddp_ckpt_report {
    int64_t saves; /* ended so far, well or not */
    int64_t step;
    bool good;
    int64_t stall_ns; /* how long training stood still, to the end of begin() */
    int64_t write_ns; /* of this rank's thread */
    size_t bytes;     /* of both safetensors files */
} ddp_ckpt_report;
DDP_API ddp_ckpt_report ddp_ckpt_last(const ddp_ckpt *ckpt);

/* ---- reading; local ---- */

/* Whether the folder is a complete checkpoint: all files there, with the manifest's sizes and
 * checksums. The caller destroys *state_out, state.json's contents. */
DDP_CALL ddp_status ddp_ckpt_check(const char *path, ddp_json **state_out);
/* The newest complete one in dir, by looking. path_out: "" if there is none. notes says which were
 * skipped and why, a line each. */
DDP_CALL ddp_status ddp_ckpt_find(const char *dir, char *path_out, size_t path_bytes,
                                  ddp_json **state_out, char notes[DDP_CKPT_NOTE_BYTES]);
/* Gives all in dir that are newer than this step names by which they are not found again: they are
 * of a run that went on another way, or damaged. One process. */
DDP_CALL ddp_status ddp_ckpt_leave_newer(const char *dir, int64_t step);
/* Fills parameters, flats, counter, this rank's running statistics and `seen`. Where another number
 * of shards has saved, each begins with their combined statistics and an equal part of what they
 * have seen. DDP_ERR_SHAPE names what does not fit. */
DDP_CALL ddp_status ddp_ckpt_load(const char *path, ddp_ckpt_parts *parts);

#ifdef __cplusplus
}
#endif
#endif
