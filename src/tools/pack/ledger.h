/* ledger.h - what has been packed so far: kept in a journal from shard to shard, so that a run can
 * go on where another was killed, and written as the manifest in the end. One thread.
 *
 * The journal is OUTPUT/packing.jsonl, locked while a run has it open. Its first line says which
 * input is packed with which options; each further one describes a shard that is complete, in
 * order, and the damaged files before its end. */
#ifndef DDPI_TOOLS_LEDGER_H
#define DDPI_TOOLS_LEDGER_H

#include "ddp/json.h"
#include "tools/pack/inputs.h"
#include "tools/pack/pack.h"

typedef struct ddpi_ledger {
    const ddpi_pack_opts *opts;
    const ddpi_inputs *inputs;
    int journal;   /* file descriptor; -1: none */
    bool finished; /* there is a manifest of just this input */
    int next;      /* the first input that no complete shard covers */
    int64_t images, shard_count, damaged_count;
    uint64_t bytes;
    uint32_t min_height, max_height, min_width, max_width;
    int64_t *class_images;
    ddp_json *shards, *damaged; /* lists as the manifest has them */
    ddp_json *new_damaged;      /* since the last shard */
} ddpi_ledger;

/* A complete shard. */
typedef struct ddpi_shard_facts {
    uint64_t bytes, xxh3;
    int next; /* the first input behind it */
} ddpi_shard_facts;

/* Local. Makes the output folder, or reads what is in it. The caller closes the ledger, also after
 * a failure. DDP_ERR_MISMATCH: the folder holds something else. */
DDP_INNER ddp_status ddpi_ledger_open(const ddpi_pack_opts *opts, const ddpi_inputs *inputs,
                                      ddpi_ledger *ledger);
void ddpi_ledger_close(ddpi_ledger *ledger);
/* Path of the shard that comes next. */
DDP_INNER ddp_status ddpi_ledger_shard_path(const ddpi_ledger *ledger, char *path,
                                            size_t path_bytes);
/* A file that is skipped. */
DDP_INNER ddp_status ddpi_ledger_damaged(ddpi_ledger *ledger, const char *path, const char *reason);
/* The shard at ddpi_ledger_shard_path() has been written. */
DDP_INNER ddp_status ddpi_ledger_shard(ddpi_ledger *ledger, const ddpi_shard_facts *facts);
/* Writes the manifest and removes the journal. */
DDP_INNER ddp_status ddpi_ledger_finish(ddpi_ledger *ledger);

#endif
