/* gpu_fixture.h - the CUDA device in tests, and one operation on it beside the same on the CPU.
 *
 * The tests are linked with the device's host code and with the kernels as an ordinary compiler
 * builds them, over the simulator of CUDA; device memory is not the host's, so everything goes in
 * and out by copies. */
#ifndef DDP_TESTS_GPU_FIXTURE_H
#define DDP_TESTS_GPU_FIXTURE_H

#include <math.h>
#include <stdlib.h>

#include "ddp/bf16.h"
#include "ddp/f16.h"
#include "ddp/memory.h"
#include "ddp/op.h"
#include "device/cuda/cuda_impl.h"
#include "harness.h"

static inline ddp_device *gpu_open_with(const ddp_device_opts *opts)
{
    ddp_device *device;
    CHECK_OK(ddp_device_open(&ddpi_device_cuda, opts, &device));
    return device;
}

static inline ddp_device *gpu_open(void)
{
    const ddp_device_opts opts = DDP_DEVICE_OPTS_DEFAULTS;
    return gpu_open_with(&opts);
}

static inline ddp_device *cpu_open(void)
{
    ddp_device_opts opts = DDP_DEVICE_OPTS_DEFAULTS;
    ddp_device *device;
    opts.emulate_bf16 = true;
    CHECK_OK(ddp_device_open(ddp_device_cpu(), &opts, &device));
    return device;
}

/* ---- memory; all of it waits ---- */

static inline void device_put(ddp_device *device, void *to, const void *from, size_t bytes)
{
    ddp_stream *stream = ddp_device_main_stream(device);
    CHECK_OK(ddp_device_copy(device, stream, to, from, bytes, DDP_COPY_TO_DEVICE));
    CHECK_OK(ddp_stream_sync(stream));
}

static inline void device_get(ddp_device *device, void *to, const void *from, size_t bytes)
{
    ddp_stream *stream = ddp_device_main_stream(device);
    CHECK_OK(ddp_device_copy(device, stream, to, from, bytes, DDP_COPY_TO_HOST));
    CHECK_OK(ddp_stream_sync(stream));
}

/* Filled with numbers that are not any: what must be written may not rely on zeros. */
static inline void *device_room(ddp_device *device, size_t bytes)
{
    void *memory, *garbage;
    CHECK_OK(ddp_device_alloc(device, bytes, &memory));
    CHECK_OK(ddp_alloc_bytes(bytes, 1, &garbage));
    memset(garbage, 0xff, bytes);
    device_put(device, memory, garbage, bytes);
    ddp_free(garbage);
    return memory;
}

static inline void *device_copy_of(ddp_device *device, const void *from, size_t bytes)
{
    void *memory;
    CHECK_OK(ddp_device_alloc(device, bytes, &memory));
    device_put(device, memory, from, bytes);
    return memory;
}

/* ---- numbers ---- */

/* f32 and the narrow types. */
static const ddp_dtype float_types[] = {DDP_F32, DDP_BF16, DDP_F16};
enum { FLOAT_TYPES = 3 };

/* What one rounding changes a number by at most, as a share of its size; f32: 0. */
static inline double rounding_of(ddp_dtype dtype)
{
    return dtype == DDP_BF16 ? 1.0 / 256 : dtype == DDP_F16 ? 1.0 / 2048 : 0;
}

static inline uint16_t narrowed(float value, ddp_dtype dtype)
{
    return dtype == DDP_F16 ? ddp_f16_of_f32(value) : ddp_bf16_of_f32(value);
}

static inline float widened(uint16_t bits, ddp_dtype dtype)
{
    return dtype == DDP_F16 ? ddp_f32_of_f16(bits) : ddp_f32_of_bf16(bits);
}

/* What the type keeps of it. */
static inline float rounded_to(float value, ddp_dtype dtype)
{
    return dtype == DDP_F32 ? value : widened(narrowed(value, dtype), dtype);
}

/* Repeatable numbers in [-1, 1). */
static inline float next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(*state >> 32) / 2147483648.0f;
}

/* rounded: to numbers that all types can hold. */
static inline float *random_floats(size_t count, uint64_t seed, bool rounded)
{
    float *values = calloc(count + 1, sizeof *values);
    uint64_t state = seed;
    assert_non_null(values);
    for (size_t i = 0; i < count; i++) {
        values[i] = next_random(&state);
        if (rounded)
            values[i] = rounded_to(rounded_to(values[i], DDP_BF16), DDP_F16);
    }
    return values;
}

/* |a - b| / |b| in the L2 norm; infinite if anything is not finite. */
static inline double relative_error(const float *a, const float *b, size_t count)
{
    double diff = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        const double e = (double)a[i] - (double)b[i];
        diff += e * e;
        norm += (double)b[i] * (double)b[i];
    }
    if (!isfinite(diff))
        return INFINITY;
    return norm > 0 ? sqrt(diff / norm) : sqrt(diff);
}

/* ---- one operation on both devices ---- */

typedef struct op_check {
    ddp_op_desc desc;
    ddp_shape src;
    bool src_nhwc; /* how the source lies on the GPU, and its type; on the CPU always plain f32 */
    ddp_dtype src_dtype;
    double limit; /* of relative_error() */
} op_check;

typedef struct op_side {
    ddp_device *device;
    ddp_layout *src_layout;
    ddp_op_plan *plan;
    ddp_op_args args;
    float *dst, *diff_src, *diff_weights, *diff_bias; /* results, plain; NULL where there is none */
    size_t bias_count;
} op_side;

static inline void *side_import(const op_side *s, const ddp_layout *layout, uint64_t seed,
                                bool rounded)
{
    float *values = random_floats((size_t)ddp_shape_count(ddp_layout_shape(layout)), seed, rounded);
    void *memory = device_room(s->device, ddp_layout_bytes(layout));
    CHECK_OK(ddp_layout_import(s->device, layout, values, memory));
    free(values);
    return memory;
}

static inline float *side_export(const op_side *s, const ddp_layout *layout, const void *from)
{
    float *values = calloc((size_t)ddp_shape_count(ddp_layout_shape(layout)) + 1, sizeof *values);
    assert_non_null(values);
    CHECK_OK(ddp_layout_export(s->device, layout, from, values));
    return values;
}

static inline bool has_bias(const ddp_op_desc *desc)
{
    return (desc->kind == DDP_OP_CONV2D && desc->u.conv2d.bias) ||
           (desc->kind == DDP_OP_LINEAR && desc->u.linear.bias);
}

static inline void side_open(op_side *s, const op_check *check)
{
    const bool gpu = !ddp_device_is_host(s->device);
    /* The CPU has no f16: it computes in f32, with operands that f16 can hold. */
    const bool f16 = check->desc.compute == DDP_F16;
    const bool rounded = check->src_dtype != DDP_F32 || f16;
    ddp_op_desc desc = check->desc;
    if (gpu)
        CHECK_OK(ddpi_cuda_layout_create(s->device, &check->src, check->src_nhwc, check->src_dtype,
                                         &s->src_layout));
    else
        CHECK_OK(ddp_layout_plain(s->device, &check->src, &s->src_layout));
    if (!gpu && f16)
        desc.compute = DDP_F32;
    CHECK_OK(ddp_op_plan_create(s->device, &desc, s->src_layout, NULL, &s->plan));
    ddp_layout *dst = ddp_op_plan_dst(s->plan), *weights = ddp_op_plan_weights(s->plan);
    /* Random gradients that all types can hold. */
    s->args.src = side_import(s, s->src_layout, 11, rounded);
    if (check->desc.kind == DDP_OP_ADD)
        s->args.src2 = side_import(s, s->src_layout, 12, rounded);
    s->args.diff_src = device_room(s->device, ddp_layout_bytes(s->src_layout));
    s->args.dst = device_room(s->device, ddp_layout_bytes(dst));
    s->args.diff_dst = side_import(s, dst, 22, true);
    s->args.workspace = device_room(s->device, ddp_op_plan_workspace_bytes(s->plan) + 1);
    /* Aligned as all buffers are, and no better. */
    s->args.scratch =
        (char *)device_room(s->device, ddp_op_plan_scratch_bytes(s->plan) + DDP_ALIGN_BYTES) +
        DDP_ALIGN_BYTES;
    if (weights == NULL)
        return;
    s->args.weights = side_import(s, weights, 33, f16);
    s->args.diff_weights = device_room(s->device, ddp_layout_bytes(weights));
    if (!has_bias(&check->desc))
        return;
    s->bias_count = (size_t)ddp_layout_shape(weights)->dims[0];
    float *bias = random_floats(s->bias_count, 44, f16);
    s->args.bias = device_copy_of(s->device, bias, s->bias_count * sizeof *bias);
    s->args.diff_bias = device_room(s->device, s->bias_count * sizeof *bias);
    free(bias);
}

static inline void side_run(op_side *s, const op_check *check)
{
    ddp_stream *stream = ddp_device_main_stream(s->device);
    CHECK_OK(ddp_op_run(s->plan, DDP_PASS_FORWARD, stream, &s->args));
    s->dst = side_export(s, ddp_op_plan_dst(s->plan), s->args.dst);
    if (!check->desc.training)
        return;
    if (ddp_op_plan_weights(s->plan) != NULL) {
        CHECK_OK(ddp_op_run(s->plan, DDP_PASS_BACKWARD_WEIGHTS, stream, &s->args));
        s->diff_weights = side_export(s, ddp_op_plan_weights(s->plan), s->args.diff_weights);
        if (s->bias_count > 0) {
            s->diff_bias = calloc(s->bias_count, sizeof *s->diff_bias);
            assert_non_null(s->diff_bias);
            device_get(s->device, s->diff_bias, s->args.diff_bias,
                       s->bias_count * sizeof *s->diff_bias);
        }
    }
    if (check->desc.need_diff_src) {
        CHECK_OK(ddp_op_run(s->plan, DDP_PASS_BACKWARD_DATA, stream, &s->args));
        s->diff_src = side_export(s, s->src_layout, s->args.diff_src);
    }
}

static inline void side_close(op_side *s)
{
    void *const memory[] = {(void *)s->args.src,
                            (void *)s->args.src2,
                            s->args.dst,
                            s->args.diff_src,
                            s->args.diff_dst,
                            (void *)s->args.weights,
                            s->args.diff_weights,
                            (void *)s->args.bias,
                            s->args.diff_bias,
                            s->args.workspace,
                            (char *)s->args.scratch - DDP_ALIGN_BYTES};
    float *const results[] = {s->dst, s->diff_src, s->diff_weights, s->diff_bias};
    const size_t sizes[] = {
        ddp_layout_bytes(s->src_layout),
        ddp_layout_bytes(s->src_layout),
        ddp_layout_bytes(ddp_op_plan_dst(s->plan)),
        ddp_layout_bytes(s->src_layout),
        ddp_layout_bytes(ddp_op_plan_dst(s->plan)),
        s->args.weights != NULL ? ddp_layout_bytes(ddp_op_plan_weights(s->plan)) : 0,
        s->args.weights != NULL ? ddp_layout_bytes(ddp_op_plan_weights(s->plan)) : 0,
        s->bias_count * sizeof(float),
        s->bias_count * sizeof(float),
        ddp_op_plan_workspace_bytes(s->plan) + 1,
        ddp_op_plan_scratch_bytes(s->plan) + DDP_ALIGN_BYTES};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++)
        ddp_device_free(s->device, memory[i], sizes[i]);
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++)
        free(results[i]);
    ddp_op_plan_destroy(s->plan);
    ddp_layout_unref(s->src_layout);
}

static inline void compare_result(const char *what, const float *gpu, const float *cpu,
                                  size_t count, double limit)
{
    assert_true((gpu == NULL) == (cpu == NULL));
    if (gpu == NULL)
        return;
    const double error = relative_error(gpu, cpu, count);
    if (!(error <= limit))
        fail_msg("%s: relative error %g between GPU and CPU, at most %g is fine", what, error,
                 limit);
}

/* Runs all passes that the descriptor allows on both devices, on the same random operands. */
static inline void check_op(ddp_device *gpu, ddp_device *cpu, const op_check *check)
{
    op_side g = {.device = gpu}, c = {.device = cpu};
    side_open(&g, check);
    side_open(&c, check);
    side_run(&g, check);
    side_run(&c, check);
    const ddp_shape *dst = ddp_layout_shape(ddp_op_plan_dst(g.plan));
    const ddp_layout *weights = ddp_op_plan_weights(g.plan);
    compare_result("dst", g.dst, c.dst, (size_t)ddp_shape_count(dst), check->limit);
    compare_result("diff_src", g.diff_src, c.diff_src, (size_t)ddp_shape_count(&check->src),
                   check->limit);
    if (weights != NULL)
        compare_result("diff_weights", g.diff_weights, c.diff_weights,
                       (size_t)ddp_shape_count(ddp_layout_shape(weights)), check->limit);
    compare_result("diff_bias", g.diff_bias, c.diff_bias, g.bias_count, check->limit);
    side_close(&g);
    side_close(&c);
}

#endif
