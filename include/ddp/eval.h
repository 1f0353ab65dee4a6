/* eval.h - exact distributed evaluation: every sample once, equal for every world size.
 *
 * The data set is cut into fixed blocks of 256 samples in index order; block b belongs to rank b
 * mod world. Hits are integers; losses are summed per block in double, and the blocks' sums in
 * block order. */
#ifndef DDP_EVAL_H
#define DDP_EVAL_H

#include "ddp/comm.h"
#include "ddp/model.h"
#include "ddp/transform.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DDP_EVAL_BLOCK = 256 };

typedef struct ddp_eval_result {
    int64_t count, top1, top5;
    double loss; /* mean */
    double seconds;
} ddp_eval_result;

typedef struct ddp_eval ddp_eval;

typedef struct ddp_eval_opts {
    const ddp_transform *transform; /* borrowed; NULL: samples as the data set fetches them */
    float *logits;   /* [count][classes], host memory, borrowed: a run fills it on every rank; NULL:
                        nobody wants them */
    int64_t *labels; /* [count], with logits */
} ddp_eval_opts;

/* Local, but plans the model for the block sizes. All pointers are borrowed. */
DDP_CALL ddp_status ddp_eval_create(const ddp_eval_opts *opts, ddp_model *model, ddp_device *device,
                                    ddp_dataset *dataset, ddp_comm *comm, ddp_eval **eval_out);
DDP_API void ddp_eval_destroy(ddp_eval *eval);
/* Collective. */
DDP_CALL ddp_status ddp_eval_run(ddp_eval *eval, ddp_eval_result *result_out);

#ifdef __cplusplus
}
#endif
#endif
