/* app.h - the whole program as a function, for a main() of your own with your own models and data
 * sets. */
#ifndef DDP_APP_H
#define DDP_APP_H

#include "ddp/dataset.h"
#include "ddp/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a program adds to the built-in models and data sets. Borrowed. A name that is built in
 * already is refused. */
typedef struct ddp_app_extras {
    const ddp_model_def *const *models;
    size_t model_count;
    const ddp_dataset_ops *const *datasets;
    size_t dataset_count;
} ddp_app_extras;

/* Runs the command line to its end, MPI_Init and MPI_Finalize included, and returns the exit
 * status: 0 trained, 1 failed, 2 usage. extras may be NULL. Call once, from main(). */
DDP_API int ddp_app_main(int argc, char **argv, const ddp_app_extras *extras);

#ifdef __cplusplus
}
#endif
#endif
