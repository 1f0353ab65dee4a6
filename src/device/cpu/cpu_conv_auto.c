/* cpu_conv_auto.c - which kind of convolution plan a layer gets.
 *
 * The first plan of a layer decides by the option or, for "auto", by timing the kinds on a few
 * images and agreeing with the other ranks. Later plans follow the layout of the weights: plain
 * ones mean blocks of images where the batch fills them, else matrix products; others oneDNN. So a
 * rank with an odd batch size needs no choice of its own. */
#include "ddp/log.h"
#include "ddp/memory.h"
#include "ddp/thread.h"
#include "device/cpu/batch_kernels.h"
#include "device/cpu/cpu_impl.h"

enum { KIND_DIRECT, KIND_GEMM, KIND_BATCH, KIND_COUNT };

#define TIMED_IMAGES DDPI_BATCH_LANES
#define TIMED_RUNS   2 /* the first one warms up; the better one counts */
/* A first run that takes this much longer than the best kind so far needs no second one. */
#define HOPELESS 1.7

/* Blocks of images leave the layers around without padded channels and take 2x2 pooling at full
 * width, which a layer's own time does not show: they win unless another kind is clearly faster. */
#define BATCH_BONUS 0.8

static ddp_status create_batch_or_gemm(const ddpi_plan_parts *parts, ddpi_cpu_plan **plan_out)
{
    return ddpi_conv_batch_fits(parts) ? ddpi_conv_batch_create(parts, plan_out)
                                       : ddpi_conv_gemm_create(parts, plan_out);
}

static const ddpi_plan_creator creators[KIND_COUNT] = {
    [KIND_DIRECT] = ddpi_conv_direct_create,
    [KIND_GEMM] = ddpi_conv_gemm_create,
    [KIND_BATCH] = create_batch_or_gemm,
};

/* ---- timing ---- */

typedef struct trial {
    ddpi_cpu_plan *plan;
    char *memory;
    ddp_op_args args;
} trial;

static ddp_status trial_buffers(trial *t)
{
    ddp_op_plan *plan = &t->plan->base;
    const size_t src = plan->src->bytes, dst = plan->dst->bytes, weights = plan->weights->bytes;
    const size_t bias = (size_t)plan->weights->shape.dims[0] * sizeof(float);
    size_t bytes = 0;
    size_t at[9];
    const size_t want[9] = {src, weights, bias, dst, src, dst, weights, bias, plan->scratch_bytes};
    for (int i = 0; i < 9; i++)
        at[i] = ddpi_take(&bytes, want[i]);
    DDP_TRY(DDP_ALLOC(t->memory, bytes));
    /* Ordinary numbers, since the smallest ones may take longer. */
    float *numbers = (float *)(void *)t->memory;
    for (size_t i = 0; i < at[3] / sizeof *numbers; i++)
        numbers[i] = 0.5f;
    t->args = (ddp_op_args){
        .src = t->memory + at[0],
        .weights = t->memory + at[1],
        .bias = t->memory + at[2],
        .dst = t->memory + at[3],
        .diff_src = t->memory + at[4],
        .diff_dst = t->memory + at[5],
        .diff_weights = t->memory + at[6],
        .diff_bias = t->memory + at[7],
        .scratch = t->memory + at[8],
    };
    return DDP_OK;
}

static ddp_status run_all_passes(const trial *t)
{
    const ddp_op_desc *desc = &t->plan->base.desc;
    DDP_TRY(t->plan->op->run(t->plan, DDP_PASS_FORWARD, &t->args));
    if (desc->training)
        DDP_TRY(t->plan->op->run(t->plan, DDP_PASS_BACKWARD_WEIGHTS, &t->args));
    if (desc->training && desc->need_diff_src)
        DDP_TRY(t->plan->op->run(t->plan, DDP_PASS_BACKWARD_DATA, &t->args));
    return DDP_OK;
}

static ddp_status time_kind(int kind, const ddpi_plan_parts *parts, int64_t best_ns,
                            int64_t *ns_out)
{
    trial t = {0};
    ddp_status st;
    DDP_TRY(creators[kind](parts, &t.plan));
    *ns_out = INT64_MAX;
    DDP_TRY_GOTO(st, trial_buffers(&t), out_plan);
    for (int run = 0; run < TIMED_RUNS && st == DDP_OK; run++) {
        const int64_t start = ddp_now_ns();
        st = run_all_passes(&t);
        *ns_out = ddpi_min(*ns_out, ddp_now_ns() - start);
        if ((double)*ns_out > HOPELESS * (double)best_ns)
            break;
    }
    ddp_free(t.memory);
out_plan:
    ddpi_plan_free(t.plan);
    return st;
}

/* The parts of a plan for a few images, whose source lies as the real one does where that can be
 * had for another batch size. */
static ddp_status time_kinds(const ddpi_plan_parts *parts, int *best_out)
{
    ddpi_plan_parts few = *parts;
    ddp_shape src = parts->src->shape;
    int64_t ns[KIND_COUNT];
    src.dims[0] = ddpi_min(src.dims[0], TIMED_IMAGES);
    DDP_TRY(ddpi_cpu_layout_of(parts->src)->batch
                ? ddpi_layout_batch(parts->device, &src, &few.src)
                : ddpi_layout_plain(parts->device, &src, &few.src));
    few.dst_shape.dims[0] = src.dims[0];
    ddp_status st = DDP_OK;
    int best = KIND_GEMM;
    int64_t best_ns = INT64_MAX;
    for (int kind = KIND_COUNT - 1; kind >= 0 && st == DDP_OK; kind--) {
        ns[kind] = INT64_MAX;
        if (kind != KIND_BATCH || ddpi_conv_batch_fits(&few))
            st = time_kind(kind, &few, best_ns, &ns[kind]);
        best_ns = ddpi_min(best_ns, ns[kind]);
    }
    ddp_layout_unref(few.src);
    DDP_TRY(st);
    ddp_debug("convolution timed: direct %lld us, gemm %lld us, batch %lld us",
              (long long)ns[KIND_DIRECT] / 1000, (long long)ns[KIND_GEMM] / 1000,
              (long long)(ns[KIND_BATCH] < INT64_MAX ? ns[KIND_BATCH] / 1000 : -1));
    if (ns[KIND_BATCH] < INT64_MAX)
        ns[KIND_BATCH] = (int64_t)((double)ns[KIND_BATCH] * BATCH_BONUS);
    for (int kind = 0; kind < KIND_COUNT; kind++)
        if (ns[kind] < ns[best])
            best = kind;
    *best_out = best;
    return DDP_OK;
}

/* ---- choice ---- */

static ddp_status choose_kind(const ddpi_plan_parts *parts, int *kind_out)
{
    const ddp_device_opts *opts = &parts->device->opts;
    if (opts->conv_algo != DDP_CONV_AUTO) {
        *kind_out = opts->conv_algo == DDP_CONV_DIRECT ? KIND_DIRECT : KIND_GEMM;
        return DDP_OK;
    }
    if (parts->weights != NULL) {
        *kind_out = parts->weights->plain ? KIND_BATCH : KIND_DIRECT;
        return DDP_OK;
    }
    int mine;
    DDP_TRY(time_kinds(parts, &mine));
    const int kind = opts->choose != NULL ? opts->choose(opts->choose_arg, mine, KIND_COUNT) : mine;
    if (kind < 0 || kind >= KIND_COUNT)
        return DDP_FAIL(DDP_ERR_INTERNAL, "convolution kind %d was chosen of %d", kind, KIND_COUNT);
    *kind_out = kind;
    return DDP_OK;
}

ddp_status ddpi_conv_create(const ddpi_plan_parts *parts, ddpi_cpu_plan **plan_out)
{
    int kind = KIND_GEMM;
    if (parts->desc->bf16)
        return ddpi_widened_create(parts, ddpi_conv_create, plan_out);
    DDP_TRY(choose_kind(parts, &kind));
    return creators[kind](parts, plan_out);
}
