/* workers.h - threads that decode the inputs ahead of the one thread that takes them in order. */
#ifndef DDPI_TOOLS_WORKERS_H
#define DDPI_TOOLS_WORKERS_H

#include "tools/pack/inputs.h"
#include "tools/pack/pack.h"
#include "tools/pack/picture.h"

enum { DDPI_REASON_BYTES = 512 };

/* What became of one input. */
typedef struct ddpi_result {
    ddp_status status; /* DDP_OK; DDP_ERR_FORMAT: damaged; else the run cannot go on */
    char reason[DDPI_REASON_BYTES];
    ddpi_picture picture; /* of DDP_OK */
} ddpi_result;

typedef struct ddpi_workers ddpi_workers;

/* Local. Starts to decode from input `first` on. inputs and opts are borrowed. */
DDP_INNER ddp_status ddpi_workers_start(const ddpi_inputs *inputs, const ddpi_pack_opts *opts,
                                        int first, ddpi_workers **workers_out);
/* One thread. Waits for the next input's result and hands it over: the caller frees its picture. */
void ddpi_workers_next(ddpi_workers *workers, ddpi_result *result_out);
/* Stops and joins the threads, wherever they are. NULL is fine. */
void ddpi_workers_stop(ddpi_workers *workers);

#endif
