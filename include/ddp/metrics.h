/* metrics.h - metrics.jsonl: one JSON object a line. The kinds and keys are listed in README.
 * One writer per run (rank 0); one thread. */
#ifndef DDP_METRICS_H
#define DDP_METRICS_H

#include "ddp/json.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ddp_metrics ddp_metrics;

/* Opens path for appending. The caller owns *metrics_out. */
DDP_CALL ddp_status ddp_metrics_open(const char *path, ddp_metrics **metrics_out);
/* Takes out of a file what a run writes again that goes on after these steps and finished epochs:
 * records of later steps, epochs and checkpoints, summaries, and half a line at the end. Complete
 * or as before. */
DDP_CALL ddp_status ddp_metrics_cut(const char *path, int64_t steps, int64_t epochs);
/* Writes a built record as one line; takes over `record`, also on failure. For rare records. */
DDP_CALL ddp_status ddp_metrics_write(ddp_metrics *metrics, ddp_json *record);

/* A step record, written without allocating. Times are milliseconds of the slowest rank. */
typedef struct ddp_step_record {
    int64_t epoch, step, samples; /* step counts from 1 over the whole run; samples of this step */
    double loss, lr, images_per_s;
    double grad_norm;  /* L2 norm of the mean gradient */
    double loss_scale; /* 0: none, and not in the record */
    double peak_share; /* floating-point rate over the machine's measured matrix-product peak */
    double ms_data, ms_forward, ms_backward, ms_comm, ms_comm_exposed, ms_optim, ms_step;
    double ms_compute; /* of ms_step, neither data nor exposed communication */
    double ms_wall;    /* rank 0: since the end of the step before; 0: there was none */
    /* The mean over ranks instead of the slowest. */
    double mean_data, mean_comm_exposed, mean_compute;
    double least_comm_exposed; /* of the rank that others wait for, so of communication alone */
    int64_t comm_bytes; /* that a rank gave to collectives for gradients; 0: not in the record */
} ddp_step_record;
DDP_CALL ddp_status ddp_metrics_step(ddp_metrics *metrics, const ddp_step_record *record);
DDP_CALL ddp_status ddp_metrics_flush(ddp_metrics *metrics);
DDP_API void ddp_metrics_close(ddp_metrics *metrics);

#ifdef __cplusplus
}
#endif
#endif
