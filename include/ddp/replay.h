/* replay.h - the micro-batch whose numbers are not finite: what is wrong first, and a file that
 * lets one rank compute it again.
 *
 * Local; one thread. */
#ifndef DDP_REPLAY_H
#define DDP_REPLAY_H

#include "ddp/model.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DDP_FAULT_SAMPLES = 8, DDP_FAULT_BYTES = 160 };

/* The first thing that is not finite: the inputs, a parameter, a layer's output, the loss, a
 * gradient, in the order in which a step makes them. */
typedef struct ddp_fault {
    char what[DDP_FAULT_BYTES]; /* "the output of layer conv2"; "": all is finite */
    size_t bad, count;          /* values that are not finite, of so many */
    int samples;                /* places in the micro-batch that they belong to; 0: to no one's */
    int64_t places[DDP_FAULT_SAMPLES]; /* the first of them */
} ddp_fault;

/* What a micro-batch is computed with; borrowed. */
typedef struct ddp_replay_parts {
    ddp_device *device;
    ddp_model *model; /* planned for training on the input, bound to params and to gradients, which
                         are written */
    const float *params;
    ddp_model_input input;
} ddp_replay_parts;

/* Computes forward and backward; nobody hears of complete gradients, and running statistics stay as
 * they are. Afterwards the model is bound to none. `also` sees everything, too; NULL: nobody. */
DDP_CALL ddp_status ddp_find_fault(const ddp_replay_parts *parts, ddp_model_watch_fn also,
                                   void *arg, double *loss_out, ddp_fault *fault_out);

/* Where the micro-batch comes from, counted as in messages: from 1. */
typedef struct ddp_replay_info {
    int64_t epoch, step, shard, classes;
    int rank;
    uint64_t seed; /* input.seed */
} ddp_replay_info;

/* Writes inputs, labels, indices (of the samples; host memory) and parameters under their names,
 * and running statistics (device memory; NULL: none): safetensors, complete or absent. */
DDP_CALL ddp_status ddp_replay_save(const char *path, const ddp_replay_parts *parts,
                                    const int64_t *indices, const float *running,
                                    const ddp_replay_info *info);

typedef struct ddp_replay ddp_replay;
/* Reads such a file. The caller closes *replay_out before the device. */
DDP_CALL ddp_status ddp_replay_open(const char *path, ddp_replay **replay_out);
DDP_API void ddp_replay_close(ddp_replay *replay);
DDP_API const ddp_replay_info *ddp_replay_get_info(const ddp_replay *replay);
DDP_API int64_t ddp_replay_count(const ddp_replay *replay); /* samples */
DDP_API ddp_shape ddp_replay_sample(const ddp_replay *replay);
DDP_API const int64_t *ddp_replay_indices(const ddp_replay *replay);
/* Puts the parameters into a flat buffer (device memory) and the samples into device memory of the
 * replay's own. DDP_ERR_SHAPE names a parameter that the file has not, or otherwise. */
DDP_CALL ddp_status ddp_replay_load(ddp_replay *replay, ddp_device *device,
                                    const ddp_param_table *table, float *params,
                                    ddp_model_input *input_out);

#ifdef __cplusplus
}
#endif
#endif
