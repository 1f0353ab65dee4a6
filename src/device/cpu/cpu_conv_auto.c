/* cpu_conv_auto.c - which kind of convolution plan a layer gets.
 *
 * The first plan of a layer decides by the option or, for "auto", by timing the kinds, pass by
 * pass, on some of the images, and agreeing with the other ranks. What was timed is kept by the
 * device, so layers of equal shape are timed once; the ranks are asked for each all the same, so
 * that they stay in step. Later plans follow the layout of the weights: plain ones mean blocks of
 * images where the batch fills them, else matrix products; others oneDNN, with what was agreed on
 * for that shape. So a rank with an odd batch size needs no choice of its own.
 *
 * A device that must give the same bits each time measures nothing: there a rule decides, by the
 * layer's shape and by what the processor can do. */
#include "ddp/log.h"
#include "ddp/memory.h"
#include "ddp/thread.h"
#include "device/cpu/batch_kernels.h"
#include "device/cpu/cpu_impl.h"

/* What is agreed on is one number: a kind, or from CHOICE_WINOGRAD on the direct kind with a set of
 * passes that use Winograd's algorithm. */
enum {
    KIND_DIRECT,
    KIND_GEMM,
    KIND_BATCH,
    KIND_COUNT,
    CHOICE_WINOGRAD = KIND_COUNT - 1, /* plus a set of passes, 1 to 7 */
    CHOICE_COUNT = CHOICE_WINOGRAD + 8
};

#define PASSES      3
#define ALL_PASSES  7u
#define TIMED_RUNS  2 /* the first one warms up; the better one counts */
#define FEW_IMAGES  DDPI_BATCH_LANES
#define TIMED_FLOPS 0.8e9 /* of a forward pass; fewer images have to do beyond it */
/* Winograd transforms the weights once for a batch: where it loses on few images, more decide. */
#define MANY_IMAGES 32
/* A kind that takes this much longer than the best one so far needs no further run. */
#define HOPELESS 1.7
/* What no pass takes. */
#define NEVER_NS (INT64_MAX / 8)

/* Blocks of images leave the layers around without padded channels and take 2x2 pooling at full
 * width, which a layer's own time does not show: they win unless another kind is clearly faster. */
#define BATCH_BONUS 0.8
/* Plain images, which matrix products leave behind, don't suit the layers around: they lose unless
 * they are clearly faster. */
#define GEMM_MALUS 1.15

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

/* ---- timing one plan ---- */

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

static bool has_pass(const ddp_op_desc *desc, int pass)
{
    return pass == DDP_PASS_FORWARD ||
           (desc->training && (pass == DDP_PASS_BACKWARD_WEIGHTS || desc->need_diff_src));
}

static int64_t sum_of(const int64_t ns[PASSES])
{
    return ns[0] + ns[1] + ns[2];
}

/* The best time of each pass; those that a hopeless plan did not get to stay at NEVER_NS. */
static ddp_status time_passes(const trial *t, int64_t best_ns, int64_t ns[PASSES])
{
    static const ddp_op_pass order[PASSES] = {DDP_PASS_FORWARD, DDP_PASS_BACKWARD_WEIGHTS,
                                              DDP_PASS_BACKWARD_DATA};
    int64_t spent = 0;
    for (int pass = 0; pass < PASSES; pass++)
        ns[pass] = has_pass(&t->plan->base.desc, pass) ? NEVER_NS : 0;
    for (int run = 0; run < TIMED_RUNS; run++)
        for (int i = 0; i < PASSES; i++) {
            const ddp_op_pass pass = order[i];
            if (!has_pass(&t->plan->base.desc, pass))
                continue;
            const int64_t start = ddp_now_ns();
            DDP_TRY(t->plan->op->run(t->plan, pass, &t->args));
            const int64_t took = ddp_now_ns() - start;
            ns[pass] = ddpi_min(ns[pass], took);
            spent += took;
            if ((double)spent > HOPELESS * (double)(run + 1) * (double)best_ns)
                return DDP_OK;
        }
    return DDP_OK;
}

/* parts->winograd is left with the passes that are Winograd's indeed. */
static ddp_status time_kind(int kind, ddpi_plan_parts *parts, int64_t best_ns, int64_t ns[PASSES])
{
    trial t = {0};
    ddp_status st;
    DDP_TRY(creators[kind](parts, &t.plan));
    unsigned winograd = 0;
    for (int pass = 0; kind == KIND_DIRECT && pass < PASSES; pass++)
        winograd |= ddpi_conv_direct_is_winograd(t.plan, (ddp_op_pass)pass) ? 1u << pass : 0;
    const bool in_vain = parts->winograd != 0 && winograd == 0;
    parts->winograd = winograd;
    DDP_TRY_GOTO(st, in_vain ? DDP_OK : trial_buffers(&t), out_plan);
    if (!in_vain)
        st = time_passes(&t, best_ns, ns);
    ddp_free(t.memory);
out_plan:
    ddpi_plan_free(t.plan);
    return st;
}

/* ---- timing the kinds ---- */

/* The parts of a plan for fewer images, whose source lies as the real one does where that can be
 * had for another batch size. The caller releases few_out->src. */
static ddp_status cut_batch(const ddpi_plan_parts *parts, int64_t images, ddpi_plan_parts *few_out)
{
    ddp_shape src = parts->src->shape;
    *few_out = *parts;
    few_out->weights = NULL;
    few_out->winograd = 0;
    src.dims[0] = few_out->dst_shape.dims[0] = ddpi_min(src.dims[0], images);
    return ddpi_layout_like(parts->src, &src, &few_out->src);
}

/* Both algorithms of oneDNN on so many images: the times of the better one of each pass, which
 * passes Winograd's wins, and which it could do at all. */
typedef struct contest {
    int64_t ns[PASSES];
    unsigned able, faster;
} contest;

static ddp_status compare_library(const ddpi_plan_parts *parts, int64_t images, contest *out)
{
    ddpi_plan_parts few;
    int64_t winograd_ns[PASSES];
    DDP_TRY(cut_batch(parts, images, &few));
    ddp_status st = time_kind(KIND_DIRECT, &few, NEVER_NS, out->ns);
    few.winograd = ALL_PASSES;
    if (st == DDP_OK)
        st = time_kind(KIND_DIRECT, &few, sum_of(out->ns), winograd_ns);
    ddp_layout_unref(few.src);
    DDP_TRY(st);
    out->able = few.winograd;
    out->faster = 0;
    for (int pass = 0; pass < PASSES; pass++)
        if ((out->able >> pass & 1) != 0 && winograd_ns[pass] < out->ns[pass]) {
            out->ns[pass] = winograd_ns[pass];
            out->faster |= 1u << pass;
        }
    return DDP_OK;
}

static ddp_status time_library(const ddpi_plan_parts *parts, int64_t images, int64_t *ns_out,
                               unsigned *winograd_out)
{
    contest few;
    DDP_TRY(compare_library(parts, images, &few));
    *ns_out = sum_of(few.ns);
    *winograd_out = few.faster;
    if (few.faster != few.able && parts->src->shape.dims[0] > images) {
        contest many;
        DDP_TRY(compare_library(parts, MANY_IMAGES, &many));
        *winograd_out = many.faster;
    }
    return DDP_OK;
}

/* One of our own kinds; its time is scaled to as many images. Blocks of images want to be full. */
static ddp_status time_own(int kind, const ddpi_plan_parts *parts, int64_t images, int64_t best_ns,
                           int64_t *ns_out)
{
    ddpi_plan_parts few;
    int64_t ns[PASSES];
    DDP_TRY(cut_batch(parts, kind == KIND_BATCH ? FEW_IMAGES : images, &few));
    const double scale = (double)few.src->shape.dims[0] / (double)images;
    ddp_status st = DDP_OK;
    *ns_out = NEVER_NS;
    if (kind != KIND_BATCH || ddpi_conv_batch_fits(&few)) {
        st = time_kind(kind, &few, (int64_t)((double)best_ns * scale), ns);
        if (st == DDP_OK && sum_of(ns) < NEVER_NS)
            *ns_out = (int64_t)((double)sum_of(ns) / scale);
    }
    ddp_layout_unref(few.src);
    return st;
}

/* So many that the work is worth timing, and no more. */
static ddp_status images_to_time(const ddpi_plan_parts *parts, int64_t *images_out)
{
    const int64_t n = parts->src->shape.dims[0];
    double flops;
    DDP_TRY(ddp_op_flops(parts->desc, &parts->src->shape, &flops));
    const int64_t images = (int64_t)(TIMED_FLOPS * (double)n / flops) + 1;
    *images_out = ddpi_min(ddpi_min(images, FEW_IMAGES), n);
    return DDP_OK;
}

static long long shown(int64_t ns)
{
    return ns < NEVER_NS ? (long long)ns / 1000 : -1;
}

static ddp_status time_kinds(const ddpi_plan_parts *parts, int *choice_out)
{
    int64_t ns[KIND_COUNT];
    unsigned winograd;
    int64_t images;
    DDP_TRY(images_to_time(parts, &images));
    DDP_TRY(time_library(parts, images, &ns[KIND_DIRECT], &winograd));
    DDP_TRY(time_own(KIND_BATCH, parts, images, ns[KIND_DIRECT], &ns[KIND_BATCH]));
    const int64_t best_ns = ddpi_min(ns[KIND_BATCH], ns[KIND_DIRECT]);
    DDP_TRY(time_own(KIND_GEMM, parts, images, best_ns, &ns[KIND_GEMM]));
    ddp_debug("convolution timed, in us (-1: given up): oneDNN %lld (Winograd in passes 0x%x), "
              "gemm %lld, batch %lld",
              shown(ns[KIND_DIRECT]), winograd, shown(ns[KIND_GEMM]), shown(ns[KIND_BATCH]));
    if (ns[KIND_BATCH] < NEVER_NS)
        ns[KIND_BATCH] = (int64_t)((double)ns[KIND_BATCH] * BATCH_BONUS);
    if (ns[KIND_GEMM] < NEVER_NS)
        ns[KIND_GEMM] = (int64_t)((double)ns[KIND_GEMM] * GEMM_MALUS);
    int best = KIND_DIRECT;
    for (int kind = 0; kind < KIND_COUNT; kind++)
        if (ns[kind] < ns[best])
            best = kind;
    *choice_out = best == KIND_DIRECT && winograd != 0 ? CHOICE_WINOGRAD + (int)winograd : best;
    return DDP_OK;
}

/* ---- verdicts ---- */

typedef struct conv_key {
    int64_t images, channels, height, width; /* of the source; as many images as are looked at */
    ddp_conv2d_desc conv;
    bool training, need_diff_src, batch;
} conv_key;

struct ddpi_conv_verdict {
    struct ddpi_conv_verdict *next;
    conv_key key;
    int mine, agreed;
};

static conv_key key_of(const ddpi_plan_parts *parts)
{
    const int64_t *src = parts->src->shape.dims;
    return (conv_key){.images = ddpi_min(src[0], MANY_IMAGES),
                      .channels = src[1],
                      .height = src[2],
                      .width = src[3],
                      .conv = parts->desc->u.conv2d,
                      .training = parts->desc->training,
                      .need_diff_src = parts->desc->need_diff_src,
                      .batch = ddpi_cpu_layout_of(parts->src)->batch};
}

static bool same_layer(const conv_key *a, const conv_key *b)
{
    const ddp_conv2d_desc *x = &a->conv, *y = &b->conv;
    return a->channels == b->channels && a->height == b->height && a->width == b->width &&
           x->out_channels == y->out_channels && x->kernel_h == y->kernel_h &&
           x->kernel_w == y->kernel_w && x->stride_h == y->stride_h && x->stride_w == y->stride_w &&
           x->pad_h == y->pad_h && x->pad_w == y->pad_w && x->bias == y->bias && x->relu == y->relu;
}

static bool same_question(const conv_key *a, const conv_key *b)
{
    return same_layer(a, b) && a->images == b->images && a->training == b->training &&
           a->need_diff_src == b->need_diff_src && a->batch == b->batch;
}

/* The newest verdict on such a layer, or on just this question. */
static struct ddpi_conv_verdict *find_verdict(const ddpi_plan_parts *parts, bool exactly)
{
    const conv_key key = key_of(parts);
    struct ddpi_conv_verdict *v = ddpi_cpu_of(parts->device)->verdicts;
    while (v != NULL && !(exactly ? same_question(&v->key, &key) : same_layer(&v->key, &key)))
        v = v->next;
    return v;
}

void ddpi_conv_forget(ddp_device *device)
{
    struct ddpi_conv_verdict *v = ddpi_cpu_of(device)->verdicts;
    while (v != NULL) {
        struct ddpi_conv_verdict *next = v->next;
        ddp_free(v);
        v = next;
    }
    ddpi_cpu_of(device)->verdicts = NULL;
}

/* Layers below so many channels do better in blocks of images; 3x3 ones above, with Winograd. */
#define RULE_CHANNELS 64

static int choice_by_rule(const ddpi_plan_parts *parts)
{
    const ddp_conv2d_desc *conv = &parts->desc->u.conv2d;
    const int64_t in = parts->src->shape.dims[1], out = conv->out_channels;
    const bool wide = in >= RULE_CHANNELS && out >= RULE_CHANNELS;
    const bool plain3 =
        conv->kernel_h == 3 && conv->kernel_w == 3 && conv->stride_h == 1 && conv->stride_w == 1;
    if (in < RULE_CHANNELS && out < RULE_CHANNELS && ddpi_conv_batch_fits(parts))
        return KIND_BATCH;
    if (wide && plain3 && ddpi_dnnl_winograd(ddpi_cpu_of(parts->device)->dnnl))
        return CHOICE_WINOGRAD + (int)ALL_PASSES;
    return KIND_DIRECT;
}

static ddp_status own_verdict(const ddpi_plan_parts *parts, struct ddpi_conv_verdict **verdict_out)
{
    struct ddpi_conv_verdict *v = find_verdict(parts, true);
    if (v == NULL) {
        int mine = KIND_GEMM;
        if (parts->device->opts.deterministic)
            mine = choice_by_rule(parts);
        else
            DDP_TRY(time_kinds(parts, &mine));
        DDP_TRY(DDP_ALLOC(v, 1));
        v->key = key_of(parts);
        v->mine = mine;
        v->next = ddpi_cpu_of(parts->device)->verdicts;
        ddpi_cpu_of(parts->device)->verdicts = v;
    }
    *verdict_out = v;
    return DDP_OK;
}

/* ---- choice ---- */

static int choice_of_weights(const ddpi_plan_parts *parts)
{
    if (parts->weights->plain)
        return KIND_BATCH;
    const struct ddpi_conv_verdict *v = find_verdict(parts, false);
    return v != NULL && v->agreed > CHOICE_WINOGRAD ? v->agreed : KIND_DIRECT;
}

static ddp_status choose(const ddpi_plan_parts *parts, int *choice_out)
{
    static const int fixed[DDP_CONV_ALGO_COUNT] = {
        [DDP_CONV_DIRECT] = KIND_DIRECT,
        [DDP_CONV_GEMM] = KIND_GEMM,
        [DDP_CONV_WINOGRAD] = CHOICE_WINOGRAD + (int)ALL_PASSES,
        [DDP_CONV_BATCH] = KIND_BATCH,
    };
    const ddp_device_opts *opts = &parts->device->opts;
    struct ddpi_conv_verdict *verdict;
    if (opts->conv_algo != DDP_CONV_AUTO) {
        *choice_out = fixed[opts->conv_algo];
        return DDP_OK;
    }
    if (parts->weights != NULL) {
        *choice_out = choice_of_weights(parts);
        return DDP_OK;
    }
    DDP_TRY(own_verdict(parts, &verdict));
    verdict->agreed = opts->choose != NULL && !opts->deterministic
                          ? opts->choose(opts->choose_arg, verdict->mine, CHOICE_COUNT)
                          : verdict->mine;
    if (verdict->agreed < 0 || verdict->agreed >= CHOICE_COUNT)
        return DDP_FAIL(DDP_ERR_INTERNAL, "convolution kind %d was chosen of %d", verdict->agreed,
                        (int)CHOICE_COUNT);
    *choice_out = verdict->agreed;
    return DDP_OK;
}

/* In bf16 the library's direct kernels are the only ones; without one for each pass, an f32 plan
 * computes. */
static ddp_status create_bf16(const ddpi_plan_parts *parts, ddpi_cpu_plan **plan_out)
{
    const ddp_status st = ddpi_conv_direct_create(parts, plan_out);
    return st == DDP_ERR_UNSUPPORTED ? ddpi_widened_create(parts, ddpi_conv_create, plan_out) : st;
}

ddp_status ddpi_conv_create(const ddpi_plan_parts *parts, ddpi_cpu_plan **plan_out)
{
    ddpi_plan_parts chosen = *parts;
    int choice = KIND_GEMM;
    if (parts->desc->compute == DDP_BF16)
        return create_bf16(parts, plan_out);
    DDP_TRY(choose(parts, &choice));
    chosen.winograd = choice > CHOICE_WINOGRAD ? (unsigned)(choice - CHOICE_WINOGRAD) : 0;
    return creators[choice > CHOICE_WINOGRAD ? KIND_DIRECT : choice](&chosen, plan_out);
}
