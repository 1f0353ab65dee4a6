/* pack.h - ddp_pack: a folder of class folders of JPEG and PNG files becomes one split of packed
 * shards (shards.h). */
#ifndef DDPI_TOOLS_PACK_H
#define DDPI_TOOLS_PACK_H

#include "ddp/status.h"

typedef enum ddpi_on_damaged { DDPI_DAMAGED_SKIP, DDPI_DAMAGED_STOP } ddpi_on_damaged;

typedef struct ddpi_pack_opts {
    const char *input, *output; /* folders */
    int64_t size;               /* length of the shorter side; 0: as it is */
    int64_t channels;           /* 1 or 3 */
    int64_t shard_mb;           /* a shard's pixels, at most, unless it has one image only */
    int64_t workers;            /* 0: one for each processor */
    int on_damaged;
    bool quiet;
} ddpi_pack_opts;

#define DDPI_PACK_OPTS_DEFAULTS                                                                    \
    {                                                                                              \
        .channels = 3, .shard_mb = 64                                                              \
    }

/* Local. Packs, or goes on where a run that was killed left off. The files written are a function
 * of the input's files and of the options other than workers and quiet. Progress goes to stdout,
 * the files skipped to stderr. */
DDP_INNER ddp_status ddpi_pack_run(const ddpi_pack_opts *opts);

/* The program: 0 packed, 1 failed, 2 wrong options. */
int ddpi_pack_main(int argc, char **argv, char **envp);

#endif
