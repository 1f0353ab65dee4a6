/* resume.h - the checkpoint that a run goes on from. Made before there are ranks; read only then.
 */
#ifndef DDP_APP_RESUME_H
#define DDP_APP_RESUME_H

#include "ddp/config.h"

/* The folder of checkpoints within a run's directory. */
#define DDPI_CHECKPOINTS "checkpoints"

typedef struct ddpi_resume ddpi_resume;

/* For --resume: finds the checkpoint, compares its options, and puts its global batch and number of
 * logical shards into config, which is not resolved yet. Prints nothing. *resume_out: NULL without
 * the option; the caller frees it. */
DDP_INNER ddp_status ddpi_resume_find(ddp_config *config, ddpi_resume **resume_out);
void ddpi_resume_free(ddpi_resume *resume);

/* Where it lies; NULL: nothing to go on from. */
const char *ddpi_resume_path(const ddpi_resume *resume);
/* What its state.json has; there is a path. */
const ddp_json *ddpi_resume_state(const ddpi_resume *resume);
/* Checkpoints that were skipped, and options that have changed: lines for the console. */
const char *ddpi_resume_notes(const ddpi_resume *resume);
const char *ddpi_resume_changes(const ddpi_resume *resume);

/* Whether an option is part of a run's state: not what only says where, how fast and how long. */
bool ddpi_resume_stores(const char *name);

#endif
