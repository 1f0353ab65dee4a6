/* cuda_conv_choose.c - which of cuDNN's algorithms a convolution's passes take.
 *
 * The library lists candidates, the best first: by its heuristics or, where the device's options
 * ask for it, by measuring each on real memory. The first one is taken that fits the workspace
 * limit and, if asked for, gives the same bits each time. What was measured may come out
 * differently elsewhere, so rank 0's verdict is taken by all; and in another run, so a
 * deterministic device goes by heuristics, which know the shape, the library and the GPU only. */
#include "device/cuda/cuda_conv.h"

enum { MOST_CANDIDATES = 10 };

/* What the three passes' own structs have in common. */
typedef struct candidate {
    int algo;
    size_t work_bytes;
    bool usable;
    cudnnMathType_t math;
} candidate;

typedef struct candidates {
    const ddpi_cuda_device *device;
    const ddpi_cuda_conv *plan;
    int pass, count;
    candidate all[MOST_CANDIDATES];
} candidates;

/* Memory that measuring works on. */
typedef struct bench {
    void *src, *weights, *dst, *work;
    size_t work_bytes;
} bench;

static const char *pass_name(int pass)
{
    static const char *const names[DDPI_CONV_PASSES] = {"forward", "backward data",
                                                        "backward weights"};
    return names[pass];
}

static void add(candidates *c, const candidate *next, cudnnStatus_t status,
                cudnnDeterminism_t determinism)
{
    candidate *to = &c->all[c->count++];
    *to = *next;
    to->usable = status == CUDNN_STATUS_SUCCESS && next->work_bytes <= DDPI_CUDA_WORKSPACE_LIMIT &&
                 (!c->device->base.opts.deterministic || determinism == CUDNN_DETERMINISTIC);
}

/* The same loop over three types of struct. */
#define ADD_ALL(c, results, count)                                                                 \
    for (int i_ = 0; i_ < (count); i_++) {                                                         \
        const candidate next_ = {(int)(results)[i_].algo, (results)[i_].memory, false,             \
                                 (results)[i_].mathType};                                          \
        add((c), &next_, (results)[i_].status, (results)[i_].determinism);                         \
    }

/* bench NULL: by heuristics. */
static ddp_status list_forward(candidates *c, cudnnHandle_t handle, const bench *b)
{
    const ddpi_cuda_conv *p = c->plan;
    cudnnConvolutionFwdAlgoPerf_t results[MOST_CANDIDATES];
    int count = 0;
    if (b == NULL)
        DDPI_CUDNN_TRY(cudnnGetConvolutionForwardAlgorithm_v7(handle, p->src, p->weights,
                                                              p->conv[c->pass], p->dst,
                                                              MOST_CANDIDATES, &count, results));
    else
        DDPI_CUDNN_TRY(cudnnFindConvolutionForwardAlgorithmEx(
            handle, p->src, b->src, p->weights, b->weights, p->conv[c->pass], p->dst, b->dst,
            MOST_CANDIDATES, &count, results, b->work, b->work_bytes));
    ADD_ALL(c, results, count)
    return DDP_OK;
}

static ddp_status list_data(candidates *c, cudnnHandle_t handle, const bench *b)
{
    const ddpi_cuda_conv *p = c->plan;
    cudnnConvolutionBwdDataAlgoPerf_t results[MOST_CANDIDATES];
    int count = 0;
    if (b == NULL)
        DDPI_CUDNN_TRY(cudnnGetConvolutionBackwardDataAlgorithm_v7(
            handle, p->weights, p->dst, p->conv[c->pass], p->src, MOST_CANDIDATES, &count,
            results));
    else
        DDPI_CUDNN_TRY(cudnnFindConvolutionBackwardDataAlgorithmEx(
            handle, p->weights, b->weights, p->dst, b->dst, p->conv[c->pass], p->src, b->src,
            MOST_CANDIDATES, &count, results, b->work, b->work_bytes));
    ADD_ALL(c, results, count)
    return DDP_OK;
}

static ddp_status list_weights(candidates *c, cudnnHandle_t handle, const bench *b)
{
    const ddpi_cuda_conv *p = c->plan;
    cudnnConvolutionBwdFilterAlgoPerf_t results[MOST_CANDIDATES];
    int count = 0;
    if (b == NULL)
        DDPI_CUDNN_TRY(cudnnGetConvolutionBackwardFilterAlgorithm_v7(
            handle, p->src, p->dst, p->conv[c->pass], p->weights, MOST_CANDIDATES, &count,
            results));
    else
        DDPI_CUDNN_TRY(cudnnFindConvolutionBackwardFilterAlgorithmEx(
            handle, p->src, b->src, p->dst, b->dst, p->conv[c->pass], p->weights, b->weights,
            MOST_CANDIDATES, &count, results, b->work, b->work_bytes));
    ADD_ALL(c, results, count)
    return DDP_OK;
}

static ddp_status list(candidates *c, cudnnHandle_t handle, const bench *b)
{
    c->count = 0;
    if (c->pass == DDPI_CONV_FORWARD)
        return list_forward(c, handle, b);
    return c->pass == DDPI_CONV_DATA ? list_data(c, handle, b) : list_weights(c, handle, b);
}

static const candidate *first_usable(const candidates *c)
{
    for (int i = 0; i < c->count; i++)
        if (c->all[i].usable)
            return &c->all[i];
    return NULL;
}

/* ---- measuring ---- */

static size_t tensor_bytes(const ddpi_cuda_conv *plan, int64_t count)
{
    return (size_t)count * ddp_dtype_bytes(plan->dtype);
}

static void close_bench(ddp_device *device, bench *b)
{
    void *const all[] = {b->src, b->weights, b->dst, b->work};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i] != NULL)
            ddpi_cuda_free(device, all[i], 0);
}

/* Room for the hungriest of the candidates that the heuristics know. */
static ddp_status open_bench(ddp_device *device, const candidates *c, bench *b)
{
    const ddpi_cuda_conv *plan = c->plan;
    ddp_status st;
    for (int i = 0; i < c->count; i++)
        if (c->all[i].usable && c->all[i].work_bytes > b->work_bytes)
            b->work_bytes = c->all[i].work_bytes;
    DDP_TRY_GOTO(
        st,
        ddpi_cuda_alloc(device, tensor_bytes(plan, ddpi_cuda_count(plan->base.base.src)), &b->src),
        err_close);
    DDP_TRY_GOTO(st, ddpi_cuda_alloc(device, tensor_bytes(plan, plan->weight_count), &b->weights),
                 err_close);
    DDP_TRY_GOTO(st,
                 ddpi_cuda_alloc(device, tensor_bytes(plan, plan->rows * plan->channels), &b->dst),
                 err_close);
    DDP_TRY_GOTO(st, ddpi_cuda_alloc(device, b->work_bytes, &b->work), err_close);
    return DDP_OK;
err_close:
    close_bench(device, b);
    *b = (bench){0};
    return st;
}

/* All ranks take rank 0's algorithm, those that do not have it among theirs their own. */
static const candidate *agreed(const candidates *c, const candidate *mine)
{
    const ddp_device_opts *opts = &c->device->base.opts;
    if (opts->choose == NULL)
        return mine;
    const int algo = opts->choose(opts->choose_arg, mine->algo, MOST_CANDIDATES);
    for (int i = 0; i < c->count; i++)
        if (c->all[i].usable && c->all[i].algo == algo)
            return &c->all[i];
    return mine;
}

static ddp_status measure(ddpi_cuda_device *device, candidates *c, cudnnHandle_t handle)
{
    bench b = {0};
    DDP_TRY(open_bench(&device->base, c, &b));
    const ddp_status st = list(c, handle, &b);
    close_bench(&device->base, &b);
    return st;
}

/* ---- the choice ---- */

static ddp_status choose_pass(ddpi_cuda_device *device, ddpi_cuda_conv *plan, int pass)
{
    candidates c = {.device = device, .plan = plan, .pass = pass};
    cudnnHandle_t handle;
    DDP_TRY(ddpi_cuda_cudnn(ddpi_cuda_main_stream(&device->base), &handle));
    const bool tune = device->base.opts.tune && !device->base.opts.deterministic;
    DDP_TRY(list(&c, handle, NULL));
    if (tune)
        DDP_TRY(measure(device, &c, handle));
    const candidate *best = first_usable(&c);
    if (best == NULL)
        return DDP_FAIL(DDP_ERR_UNSUPPORTED, "cuDNN has no%s algorithm for a convolution's %s",
                        device->base.opts.deterministic ? " deterministic" : "", pass_name(pass));
    if (tune)
        best = agreed(&c, best);
    plan->algo[pass] = best->algo;
    plan->work_bytes[pass] = best->work_bytes;
    /* Strict f32 keeps the arithmetic that the list was asked for. */
    if (plan->dtype != DDP_F32 || device->base.opts.tf32)
        DDPI_CUDNN_TRY(cudnnSetConvolutionMathType(plan->conv[pass], best->math));
    return DDP_OK;
}

ddp_status ddpi_cuda_conv_choose(ddpi_cuda_device *device, ddpi_cuda_conv *plan)
{
    const ddp_op_desc *desc = &plan->base.base.desc;
    DDP_TRY(choose_pass(device, plan, DDPI_CONV_FORWARD));
    if (!desc->training)
        return DDP_OK;
    DDP_TRY(choose_pass(device, plan, DDPI_CONV_WEIGHTS));
    return desc->need_diff_src ? choose_pass(device, plan, DDPI_CONV_DATA) : DDP_OK;
}
