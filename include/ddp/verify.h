/* verify.h - what a run can be asked to prove about itself before it is trusted.
 *
 * One thread, local: what several ranks find is theirs to agree on. Failures are DDP_ERR_MISMATCH
 * and name the first parameter that is wrong. */
#ifndef DDP_VERIFY_H
#define DDP_VERIFY_H

#include "ddp/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Compares gradients with finite differences of the loss: of each trainable parameter the
 * derivative along its own gradient, which must be that gradient's length. f32 losses allow to see
 * differences of a few percent. */
typedef struct ddp_gradient_check {
    ddp_model *model; /* planned for training on input->count samples */
    ddp_device *device;
    const ddp_model_input *input;
    float *params;      /* flat, of the device; bound to the model; left as they were found */
    const float *grads; /* flat, on the host: gradients of the loss sum over the input */
} ddp_gradient_check;

typedef struct ddp_gradient_report {
    int params;   /* compared */
    double worst; /* largest difference, as a share of what it is measured against */
} ddp_gradient_report;

DDP_CALL ddp_status ddp_check_gradient(const ddp_gradient_check *check,
                                       ddp_gradient_report *report_out);

/* Compares two sets of flat parameters on the host bit by bit. `what` says whose they are, for the
 * message: "2 ranks and 1 rank". */
DDP_CALL ddp_status ddp_check_same_params(const ddp_param_table *table, const float *a,
                                          const float *b, const char *what);

#ifdef __cplusplus
}
#endif
#endif
