/* op_fixture.h - runs one operation plan on the CPU device against references in double.
 *
 * A case is a descriptor and a source shape. The fixture makes the plan and random operands, runs
 * the passes with buffers in the plan's layouts, and gives plain results back. References work on
 * plain arrays of double and are written for clearness only. */
#ifndef DDP_TESTS_OP_FIXTURE_H
#define DDP_TESTS_OP_FIXTURE_H

#include <math.h>
#include <stdlib.h>

#include "ddp/memory.h"
#include "ddp/op.h"
#include "harness.h"

/* A plain tensor, as the operation sees it and as the reference does. */
typedef struct tensor {
    ddp_shape shape;
    size_t count;
    float *f;
    double *d;
} tensor;

typedef struct op_case {
    ddp_device *device;
    ddp_op_desc desc;
    ddp_op_plan *plan;
    bool bias, relu; /* of the descriptor */
    tensor src, weights, bias_values, dst;
    tensor diff_dst, diff_src, diff_weights, diff_bias;
    /* Device buffers in the plan's layouts. */
    ddp_op_args args;
} op_case;

/* A choice that the test forces on "auto"; DDP_TEST_OWN keeps the device's. */
#define DDP_TEST_OWN (-1)

static inline int forced_choice(void *arg, int mine, int count)
{
    const int forced = *(const int *)arg;
    assert_true(mine >= 0 && mine < count);
    return forced == DDP_TEST_OWN ? mine : forced;
}

static inline ddp_device *open_cpu_bf16(void)
{
    const ddp_device_opts opts = {.threads = 1, .emulate_bf16 = true};
    ddp_device *device;
    CHECK_OK(ddp_device_open(ddp_device_cpu(), &opts, &device));
    return device;
}

static inline ddp_device *open_cpu(ddp_conv_algo algo, const int *forced, int threads)
{
    const ddp_device_opts opts = {.threads = threads,
                                  .conv_algo = algo,
                                  .choose = forced != NULL ? forced_choice : NULL,
                                  .choose_arg = (void *)forced};
    ddp_device *device;
    CHECK_OK(ddp_device_open(ddp_device_cpu(), &opts, &device));
    return device;
}

/* Repeatable numbers in [-1, 1). */
static inline float random_value(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(*state >> 32) / 2147483648.0f;
}

static inline void tensor_init(tensor *t, const ddp_shape *shape, uint64_t seed)
{
    uint64_t state = seed;
    t->shape = *shape;
    t->count = (size_t)ddp_shape_count(shape);
    t->f = calloc(t->count + 1, sizeof *t->f);
    t->d = calloc(t->count + 1, sizeof *t->d);
    assert_non_null(t->f);
    assert_non_null(t->d);
    for (size_t i = 0; seed != 0 && i < t->count; i++)
        t->d[i] = (double)(t->f[i] = random_value(&state));
}

static inline void tensor_free(tensor *t)
{
    free(t->f);
    free(t->d);
    *t = (tensor){0};
}

/* |f - d| / |d| in the L2 norm; infinite if anything is not finite. */
static inline double tensor_error(const tensor *t)
{
    double diff = 0, norm = 0;
    for (size_t i = 0; i < t->count; i++) {
        const double e = (double)t->f[i] - t->d[i];
        diff += e * e;
        norm += t->d[i] * t->d[i];
    }
    if (!isfinite(diff))
        return INFINITY;
    return norm > 0 ? sqrt(diff / norm) : sqrt(diff);
}

#define CHECK_CLOSE(t, limit)                                                                      \
    do {                                                                                           \
        const double error_ = tensor_error(t);                                                     \
        if (!(error_ <= (limit)))                                                                  \
            fail_msg("%s: relative error %g, at most %g is fine", #t, error_, (double)(limit));    \
    } while (0)

static inline void *buffer(size_t bytes)
{
    void *memory;
    CHECK_OK(ddp_alloc_bytes(bytes, 1, &memory));
    /* What an operation must write, padding included, may not rely on zeroed memory. */
    memset(memory, 0x7f, bytes);
    return memory;
}

static inline void *imported(ddp_device *device, const ddp_layout *layout, const float *plain)
{
    void *memory = buffer(ddp_layout_bytes(layout));
    CHECK_OK(ddp_layout_import(device, layout, plain, memory));
    return memory;
}

/* The operand as the layout holds it: rounded, if its elements are bf16. */
static inline void *imported_rounded(ddp_device *device, const ddp_layout *layout, tensor *t)
{
    void *memory = imported(device, layout, t->f);
    CHECK_OK(ddp_layout_export(device, layout, memory, t->f));
    for (size_t i = 0; i < t->count; i++)
        t->d[i] = (double)t->f[i];
    return memory;
}

/* Rounds the tensor as that layout does. */
static inline void round_as(ddp_device *device, const ddp_layout *layout, tensor *t)
{
    ddp_free(imported_rounded(device, layout, t));
}

static inline bool is_zero(const ddp_layout *layout, const void *memory, size_t i)
{
    return ddp_layout_dtype(layout) == DDP_BF16 ? (((const uint16_t *)memory)[i] & 0x7fff) == 0
                                                : ((const float *)memory)[i] == 0;
}

/* Padding is 0: in memory there are as many elements that are not as in the plain tensor. */
static inline void check_padding(ddp_device *device, const ddp_layout *layout, const void *memory)
{
    const size_t count = (size_t)ddp_shape_count(ddp_layout_shape(layout));
    float *plain = calloc(count, sizeof *plain);
    size_t nonzero[2] = {0, 0};
    assert_non_null(plain);
    CHECK_OK(ddp_layout_export(device, layout, memory, plain));
    size_t elements = ddp_layout_bytes(layout) / ddp_dtype_bytes(ddp_layout_dtype(layout));
    if (ddp_layout_dtype(layout) == DDP_BF16 && elements == count + 1)
        elements--; /* a filler */
    for (size_t i = 0; i < elements; i++)
        nonzero[0] += !is_zero(layout, memory, i);
    for (size_t i = 0; i < count; i++)
        nonzero[1] += plain[i] != 0;
    assert_int_equal(nonzero[0], nonzero[1]);
    free(plain);
}

/* A plan whose dst has the layout that a convolution of this kind leaves; the caller owns it. */
static inline ddp_op_plan *layout_maker(ddp_device *device, const ddp_shape *want, bool bf16)
{
    const ddp_shape src = {4, {want->dims[0], 2, want->dims[2] + 2, want->dims[3] + 2}};
    const ddp_op_desc conv = {.kind = DDP_OP_CONV2D,
                              .compute = bf16 ? DDP_BF16 : DDP_F32,
                              .u.conv2d = {want->dims[1], 3, 3, 1, 1, 0, 0, false, false}};
    ddp_layout *plain;
    ddp_op_plan *plan;
    CHECK_OK(ddp_layout_plain(device, &src, &plain));
    CHECK_OK(ddp_op_plan_create(device, &conv, plain, NULL, &plan));
    ddp_layout_unref(plain);
    return plan;
}

/* Rounding to bf16 changes a number by at most 2^-8 of its size. */
#define BF16_ROUNDING (1.0 / 256)

/* Where a test's tensors lie: as convolutions of several kinds leave them, plain, or in bf16. */
enum { PLACE_PLAIN = 3, PLACE_BF16 = 4, F32_PLACES = 4, PLACES = 5 };

typedef struct place {
    ddp_device *device;
    ddp_op_plan *maker; /* NULL if plain */
    ddp_layout *plain, *layout;
    int choice;
} place;

static inline void place_open(place *p, const ddp_shape *shape, int kind, int threads)
{
    *p = (place){.choice = kind < PLACE_PLAIN ? kind : DDP_TEST_OWN};
    const ddp_device_opts opts = {.threads = threads,
                                  .choose = forced_choice,
                                  .choose_arg = &p->choice,
                                  .emulate_bf16 = true};
    CHECK_OK(ddp_device_open(ddp_device_cpu(), &opts, &p->device));
    CHECK_OK(ddp_layout_plain(p->device, shape, &p->plain));
    p->layout = p->plain;
    if (kind == PLACE_PLAIN)
        return;
    p->maker = layout_maker(p->device, shape, kind == PLACE_BF16);
    p->layout = ddp_op_plan_dst(p->maker);
}

static inline void place_close(place *p)
{
    ddp_op_plan_destroy(p->maker);
    ddp_layout_unref(p->plain);
    ddp_device_close(p->device);
}

static inline void case_set_flags(op_case *c)
{
    if (c->desc.kind == DDP_OP_CONV2D) {
        c->bias = c->desc.u.conv2d.bias;
        c->relu = c->desc.u.conv2d.relu;
    } else if (c->desc.kind == DDP_OP_LINEAR) {
        c->bias = c->desc.u.linear.bias;
        c->relu = c->desc.u.linear.relu;
    }
}

/* src_layout NULL: plain. weights NULL: the plan chooses. */
static inline void case_open(op_case *c, ddp_device *device, const ddp_op_desc *desc,
                             const ddp_shape *src, ddp_layout *src_layout, ddp_layout *weights)
{
    ddp_shape dst_shape, weight_shape;
    ddp_layout *plain;
    *c = (op_case){.device = device, .desc = *desc};
    case_set_flags(c);
    CHECK_OK(ddp_op_infer(desc, src, &dst_shape, &weight_shape));
    CHECK_OK(ddp_layout_plain(device, src, &plain));
    CHECK_OK(ddp_op_plan_create(device, desc, src_layout != NULL ? src_layout : plain, weights,
                                &c->plan));
    ddp_layout *in = src_layout != NULL ? src_layout : plain;
    tensor_init(&c->src, src, 11);
    tensor_init(&c->diff_src, src, 0);
    c->args.src = imported_rounded(device, in, &c->src);
    c->args.diff_src = buffer(ddp_layout_bytes(in));
    c->args.workspace = buffer(ddp_op_plan_workspace_bytes(c->plan));
    c->args.scratch = buffer(ddp_op_plan_scratch_bytes(c->plan));
    ddp_layout_unref(plain);
    if (ddp_op_plan_dst(c->plan) != NULL) {
        ddp_layout *out = ddp_op_plan_dst(c->plan);
        assert_true(ddp_shape_equal(&dst_shape, ddp_layout_shape(out)));
        tensor_init(&c->dst, &dst_shape, 0);
        tensor_init(&c->diff_dst, &dst_shape, 22);
        c->args.dst = buffer(ddp_layout_bytes(out));
        c->args.diff_dst = imported_rounded(device, out, &c->diff_dst);
    }
    if (weight_shape.ndim == 0)
        return;
    const ddp_shape bias_shape = {1, {weight_shape.dims[0]}};
    tensor_init(&c->weights, &weight_shape, 33);
    tensor_init(&c->diff_weights, &weight_shape, 0);
    tensor_init(&c->bias_values, &bias_shape, 44);
    tensor_init(&c->diff_bias, &bias_shape, 0);
    c->args.weights = imported(device, ddp_op_plan_weights(c->plan), c->weights.f);
    c->args.diff_weights = buffer(ddp_layout_bytes(ddp_op_plan_weights(c->plan)));
    if (c->bias) {
        c->args.bias = buffer(c->bias_values.count * sizeof(float));
        memcpy((void *)c->args.bias, c->bias_values.f, c->bias_values.count * sizeof(float));
        c->args.diff_bias = buffer(c->diff_bias.count * sizeof(float));
    }
}

static inline void case_run(op_case *c, ddp_op_pass pass)
{
    CHECK_OK(ddp_op_run(c->plan, pass, ddp_device_main_stream(c->device), &c->args));
}

/* Runs all passes that the descriptor allows, in the order of a backward, and reads the results. */
static inline void case_run_all(op_case *c, const ddp_layout *src_layout)
{
    case_run(c, DDP_PASS_FORWARD);
    CHECK_OK(ddp_layout_export(c->device, ddp_op_plan_dst(c->plan), c->args.dst, c->dst.f));
    check_padding(c->device, ddp_op_plan_dst(c->plan), c->args.dst);
    if (c->desc.training && ddp_op_plan_weights(c->plan) != NULL) {
        case_run(c, DDP_PASS_BACKWARD_WEIGHTS);
        CHECK_OK(ddp_layout_export(c->device, ddp_op_plan_weights(c->plan), c->args.diff_weights,
                                   c->diff_weights.f));
        check_padding(c->device, ddp_op_plan_weights(c->plan), c->args.diff_weights);
        if (c->bias)
            memcpy(c->diff_bias.f, c->args.diff_bias, c->diff_bias.count * sizeof(float));
    }
    if (c->desc.training && c->desc.need_diff_src) {
        case_run(c, DDP_PASS_BACKWARD_DATA);
        ddp_layout *plain = NULL;
        if (src_layout == NULL)
            CHECK_OK(ddp_layout_plain(c->device, &c->src.shape, &plain));
        const ddp_layout *in = src_layout != NULL ? src_layout : plain;
        CHECK_OK(ddp_layout_export(c->device, in, c->args.diff_src, c->diff_src.f));
        check_padding(c->device, in, c->args.diff_src);
        ddp_layout_unref(plain);
    }
}

static inline void case_close(op_case *c)
{
    void *const buffers[] = {(void *)c->args.src,  c->args.dst,       (void *)c->args.weights,
                             (void *)c->args.bias, c->args.diff_src,  c->args.diff_dst,
                             c->args.diff_weights, c->args.diff_bias, c->args.workspace,
                             c->args.scratch};
    tensor *const tensors[] = {&c->src,      &c->weights,  &c->bias_values,  &c->dst,
                               &c->diff_dst, &c->diff_src, &c->diff_weights, &c->diff_bias};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        ddp_free(buffers[i]);
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++)
        tensor_free(tensors[i]);
    ddp_op_plan_destroy(c->plan);
}

/* d(sum of dst * diff_dst) / d(operand[i]) of a reference, by central differences. */
static inline double finite_difference(op_case *c, double *operand, void (*reference)(op_case *c))
{
    const double step = 1e-5, before = *operand;
    double sums[2];
    for (int side = 0; side < 2; side++) {
        *operand = before + (side == 0 ? step : -step);
        reference(c);
        sums[side] = 0;
        for (size_t i = 0; i < c->dst.count; i++)
            sums[side] += c->dst.d[i] * (double)c->diff_dst.f[i];
    }
    *operand = before;
    reference(c);
    return (sums[0] - sums[1]) / (2 * step);
}

/* Some entries of a gradient against finite differences of the forward reference. */
static inline void check_differences(op_case *c, const tensor *gradient, double *operand,
                                     void (*reference)(op_case *c))
{
    double norm = 0;
    for (size_t i = 0; i < gradient->count; i++)
        norm += (double)gradient->f[i] * (double)gradient->f[i];
    norm = sqrt(norm / (double)gradient->count);
    for (size_t i = 0; i < gradient->count; i += gradient->count / 5 + 1) {
        const double want = finite_difference(c, &operand[i], reference);
        if (fabs(want - (double)gradient->f[i]) > 1e-4 * (norm + fabs(want)))
            fail_msg("entry %zu: %g, by differences %g", i, (double)gradient->f[i], want);
    }
}

#endif
