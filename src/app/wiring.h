/* wiring.h - everything that is compiled in, by the names that options use. */
#ifndef DDP_APP_WIRING_H
#define DDP_APP_WIRING_H

#include "ddp/app.h"
#include "ddp/config.h"
#include "device/cuda_module.h"

typedef struct ddpi_registry ddpi_registry;

/* The built-in models and data sets and those of extras (borrowed, may be NULL). DDP_ERR_USAGE if a
 * name stands twice. */
DDP_INNER ddp_status ddpi_registry_create(const ddp_app_extras *extras, ddpi_registry **out);
void ddpi_registry_destroy(ddpi_registry *registry);
/* What --help says before and, behind a \v, after the options. Owned by the registry. */
const char *ddpi_registry_doc(const ddpi_registry *registry);

/* DDP_ERR_USAGE names the known ones. */
DDP_INNER ddp_status ddpi_registry_model(const ddpi_registry *registry, const char *name,
                                         const ddp_model_def **model_out);
DDP_INNER ddp_status ddpi_registry_dataset(const ddpi_registry *registry, const char *name,
                                           const ddp_dataset_ops **dataset_out);

/* The communicator that the ranks meet in; NCCL needs one to start with. */
ddp_comm_choice ddpi_wiring_comm(const ddp_run_opts *run);
/* How gradients travel. */
const ddp_hook_ops *ddpi_wiring_hook(const ddp_run_opts *run);
const ddp_strategy_ops *ddpi_wiring_strategy(int choice);

#endif
