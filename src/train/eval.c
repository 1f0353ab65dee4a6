/* eval.c - fixed blocks dealt round, integer hits, block losses added in block order. See eval.h.
 */
#include "ddp/eval.h"

#include <string.h>

#include "ddp/memory.h"
#include "ddp/thread.h"

/* Lie behind one another. */
typedef struct eval_block {
    float *inputs;
    int32_t *labels, *ranks;
} eval_block;

struct ddp_eval {
    ddp_model *model;
    ddp_device *device;
    ddp_dataset *dataset;
    ddp_comm *comm;
    const ddp_transform *transform;
    float *logits; /* the program's, like kept_labels; NULL: not kept */
    int64_t *kept_labels;
    int64_t sample_count; /* elements of a transformed sample */
    int64_t count, blocks;
    eval_block host;         /* one block */
    eval_block device_block; /* on the device; the same where its memory is the host's */
    float *scratch;          /* of the transform */
    int64_t *indices;
    double *block_loss; /* [blocks] */
};

static int64_t block_size(const ddp_eval *e, int64_t block)
{
    int64_t left = e->count - block * DDP_EVAL_BLOCK;
    return left < DDP_EVAL_BLOCK ? left : DDP_EVAL_BLOCK;
}

static size_t block_bytes(const ddp_eval *e)
{
    const size_t labels = DDP_EVAL_BLOCK * sizeof(int32_t);
    return (size_t)(DDP_EVAL_BLOCK * e->sample_count) * sizeof(float) + 2 * labels;
}

static eval_block divide(const ddp_eval *e, void *memory)
{
    eval_block block = {.inputs = memory};
    block.labels = (int32_t *)(void *)(block.inputs + DDP_EVAL_BLOCK * e->sample_count);
    block.ranks = block.labels + DDP_EVAL_BLOCK;
    return block;
}

static ddp_status allocate_blocks(ddp_eval *e)
{
    void *memory;
    DDP_TRY(ddp_device_host_alloc(e->device, block_bytes(e), &memory));
    e->host = e->device_block = divide(e, memory);
    if (ddp_device_is_host(e->device))
        return DDP_OK;
    e->device_block.inputs = NULL;
    DDP_TRY(ddp_device_alloc(e->device, block_bytes(e), &memory));
    e->device_block = divide(e, memory);
    return DDP_OK;
}

static ddp_status allocate(ddp_eval *e)
{
    size_t scratch = ddp_transform_scratch_count(e->transform, e->dataset);
    DDP_TRY(allocate_blocks(e));
    if (scratch > 0)
        DDP_TRY(DDP_ALLOC(e->scratch, scratch));
    DDP_TRY(DDP_ALLOC(e->indices, DDP_EVAL_BLOCK));
    DDP_TRY(DDP_ALLOC(e->block_loss, (size_t)e->blocks));
    /* Every rank plans both sizes, whether or not it gets the last block: planning may be
     * collective. */
    if (e->count >= DDP_EVAL_BLOCK)
        DDP_TRY(ddp_model_plan(e->model, DDP_EVAL_BLOCK, false));
    return ddp_model_plan(e->model, block_size(e, e->blocks - 1), false);
}

ddp_status ddp_eval_create(const ddp_eval_opts *opts, ddp_model *model, ddp_device *device,
                           ddp_dataset *dataset, ddp_comm *comm, ddp_eval **eval_out)
{
    const ddp_dataset_info *info = ddp_dataset_get_info(dataset);
    ddp_eval *e;
    DDP_TRY(DDP_ALLOC(e, 1));
    e->model = model;
    e->device = device;
    e->dataset = dataset;
    e->comm = comm;
    e->transform = opts->transform;
    e->logits = opts->logits;
    e->kept_labels = opts->labels;
    e->sample_count = ddp_shape_count(opts->transform != NULL ? ddp_transform_shape(opts->transform)
                                                              : &info->shape);
    e->count = info->count;
    e->blocks = (info->count + DDP_EVAL_BLOCK - 1) / DDP_EVAL_BLOCK;
    ddp_status st = allocate(e);
    if (st != DDP_OK) {
        ddp_eval_destroy(e);
        return st;
    }
    *eval_out = e;
    return DDP_OK;
}

void ddp_eval_destroy(ddp_eval *e)
{
    if (e == NULL)
        return;
    if (e->device_block.inputs != NULL && e->device_block.inputs != e->host.inputs)
        ddp_device_free(e->device, e->device_block.inputs, block_bytes(e));
    if (e->host.inputs != NULL)
        ddp_device_host_free(e->device, e->host.inputs, block_bytes(e));
    ddp_free(e->scratch);
    ddp_free(e->indices);
    ddp_free(e->block_loss);
    ddp_free(e);
}

static ddp_status keep_logits(ddp_eval *e, int64_t block, const float *logits)
{
    const int64_t n = block_size(e, block), first = block * DDP_EVAL_BLOCK;
    const int64_t classes = ddp_model_classes(e->model);
    if (e->logits == NULL)
        return DDP_OK;
    for (int64_t i = 0; i < n; i++)
        e->kept_labels[first + i] = e->host.labels[i];
    return ddp_device_copy(e->device, ddp_device_main_stream(e->device),
                           e->logits + first * classes, logits,
                           (size_t)(n * classes) * sizeof *logits, DDP_COPY_TO_HOST);
}

/* Inputs and labels of n samples to the device, or their ranks to the host. */
static ddp_status copy_block(ddp_eval *e, int64_t n, ddp_copy_kind kind)
{
    ddp_stream *stream = ddp_device_main_stream(e->device);
    const eval_block *host = &e->host, *device = &e->device_block;
    const size_t labels = (size_t)n * sizeof(int32_t);
    if (host->inputs == device->inputs)
        return DDP_OK;
    if (kind == DDP_COPY_TO_HOST)
        return ddp_device_copy(e->device, stream, host->ranks, device->ranks, labels, kind);
    DDP_TRY(ddp_device_copy(e->device, stream, device->inputs, host->inputs,
                            (size_t)(n * e->sample_count) * sizeof(float), kind));
    return ddp_device_copy(e->device, stream, device->labels, host->labels, labels, kind);
}

/* Adds a block's hits to top[0] (first) and top[1] (first five). */
static ddp_status run_block(ddp_eval *e, int64_t block, int64_t top[2])
{
    int64_t n = block_size(e, block);
    for (int64_t i = 0; i < n; i++)
        e->indices[i] = block * DDP_EVAL_BLOCK + i;
    const eval_block *at = &e->device_block;
    const ddp_transform_dst samples = {e->host.inputs, e->host.labels, e->scratch};
    DDP_TRY(ddp_transform_fetch(e->transform, e->dataset, 0, e->indices, n, &samples));
    DDP_TRY(copy_block(e, n, DDP_COPY_TO_DEVICE));
    const ddp_model_input input = {.inputs = at->inputs, .labels = at->labels, .count = n};
    const float *logits;
    DDP_TRY(ddp_model_infer(e->model, &input, &logits, &e->block_loss[block]));
    ddp_stream *stream = ddp_device_main_stream(e->device);
    DDP_TRY(ddp_op_label_rank(e->device, stream, logits, at->labels, n, ddp_model_classes(e->model),
                              at->ranks));
    DDP_TRY(copy_block(e, n, DDP_COPY_TO_HOST));
    DDP_TRY(keep_logits(e, block, logits));
    DDP_TRY(ddp_stream_sync(stream));
    for (int64_t i = 0; i < n; i++) {
        top[0] += e->host.ranks[i] < 1;
        top[1] += e->host.ranks[i] < 5;
    }
    return DDP_OK;
}

static void clear_kept(ddp_eval *e)
{
    const size_t count = (size_t)e->count;
    if (e->logits == NULL)
        return;
    memset(e->logits, 0, count * (size_t)ddp_model_classes(e->model) * sizeof *e->logits);
    memset(e->kept_labels, 0, count * sizeof *e->kept_labels);
}

/* As with losses: each value is one rank's, and the others add 0. */
static ddp_status share_kept(ddp_eval *e)
{
    const size_t count = (size_t)e->count;
    if (e->logits == NULL)
        return DDP_OK;
    DDP_TRY(ddp_comm_allreduce(e->comm, e->logits, count * (size_t)ddp_model_classes(e->model),
                               DDP_F32, DDP_REDUCE_SUM, "evaluation logits"));
    return ddp_comm_allreduce(e->comm, e->kept_labels, count, DDP_I64, DDP_REDUCE_SUM,
                              "evaluation labels");
}

ddp_status ddp_eval_run(ddp_eval *e, ddp_eval_result *result_out)
{
    int world = ddp_comm_world(e->comm);
    int64_t sums[3] = {0}; /* hits, hits of five, samples */
    int64_t start = ddp_now_ns();
    ddp_status st = DDP_OK;
    for (int64_t b = 0; b < e->blocks; b++)
        e->block_loss[b] = 0;
    clear_kept(e);
    for (int64_t b = ddp_comm_rank(e->comm); b < e->blocks && st == DDP_OK; b += world) {
        st = run_block(e, b, sums);
        sums[2] += block_size(e, b);
    }
    DDP_TRY(ddp_comm_agree(e->comm, st, "evaluate"));
    DDP_TRY(ddp_comm_allreduce(e->comm, sums, 3, DDP_I64, DDP_REDUCE_SUM, "evaluation counts"));
    /* Each block has one rank's loss and zeros from the others: exact, whatever the order of the
     * sum. */
    DDP_TRY(ddp_comm_allreduce(e->comm, e->block_loss, (size_t)e->blocks, DDP_F64, DDP_REDUCE_SUM,
                               "evaluation losses"));
    DDP_TRY(share_kept(e));
    if (sums[2] != e->count)
        return DDP_FAIL(DDP_ERR_INTERNAL, "evaluation saw %lld of %lld samples", (long long)sums[2],
                        (long long)e->count);
    double loss = 0;
    for (int64_t b = 0; b < e->blocks; b++)
        loss += e->block_loss[b];
    *result_out = (ddp_eval_result){.count = e->count,
                                    .top1 = sums[0],
                                    .top5 = sums[1],
                                    .loss = loss / (double)e->count,
                                    .seconds = (double)(ddp_now_ns() - start) * 1e-9};
    return DDP_OK;
}
