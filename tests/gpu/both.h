/* both.h - the same tensors and arrays on the CPU device and on the CUDA device, for tests that
 * compare what operations make of them. Device 0 is the CPU. */
#ifndef DDP_TESTS_GPU_BOTH_H
#define DDP_TESTS_GPU_BOTH_H

#include "gpu_fixture.h"

enum { CPU, GPU, SIDES };

typedef struct both {
    ddp_device *device[SIDES];
} both;

static inline void both_open(both *b)
{
    b->device[CPU] = cpu_open();
    b->device[GPU] = gpu_open();
}

static inline void both_close(both *b)
{
    for (int side = 0; side < SIDES; side++)
        ddp_device_close(b->device[side]);
}

static inline ddp_stream *stream_of(const both *b, int side)
{
    return ddp_device_main_stream(b->device[side]);
}

/* ---- arrays ---- */

typedef struct array {
    void *on[SIDES];
    size_t bytes;
} array;

/* The same bytes on both; NULL: what is no number. */
static inline array array_of(const both *b, const void *from, size_t bytes)
{
    array a = {.bytes = bytes};
    for (int side = 0; side < SIDES; side++)
        a.on[side] = from != NULL ? device_copy_of(b->device[side], from, bytes)
                                  : device_room(b->device[side], bytes);
    return a;
}

/* count random numbers of [-1, 1), times scale, plus offset. */
static inline array array_random(const both *b, size_t count, uint64_t seed, float scale,
                                 float offset)
{
    float *values = random_floats(count, seed, false);
    for (size_t i = 0; i < count; i++)
        values[i] = values[i] * scale + offset;
    const array a = array_of(b, values, count * sizeof *values);
    free(values);
    return a;
}

/* The caller frees it. */
static inline void *array_get(const both *b, const array *a, int side)
{
    void *values = calloc(a->bytes + 1, 1);
    assert_non_null(values);
    device_get(b->device[side], values, a->on[side], a->bytes);
    return values;
}

static inline void array_free(const both *b, array *a)
{
    for (int side = 0; side < SIDES; side++)
        ddp_device_free(b->device[side], a->on[side], a->bytes);
    *a = (array){0};
}

/* In f32; limit of the relative error in the L2 norm. */
static inline void check_floats(const both *b, const char *what, const array *a, double limit)
{
    float *cpu = array_get(b, a, CPU), *gpu = array_get(b, a, GPU);
    compare_result(what, gpu, cpu, a->bytes / sizeof(float), limit);
    free(cpu);
    free(gpu);
}

/* In double; each value by itself. */
static inline void check_doubles(const both *b, const char *what, const array *a, double limit)
{
    double *cpu = array_get(b, a, CPU), *gpu = array_get(b, a, GPU);
    for (size_t i = 0; i < a->bytes / sizeof(double); i++)
        if (!(fabs(gpu[i] - cpu[i]) <= limit * (1 + fabs(cpu[i]))))
            fail_msg("%s[%zu] is %.17g, %.17g on the CPU", what, i, gpu[i], cpu[i]);
    free(cpu);
    free(gpu);
}

static inline void check_bytes(const both *b, const char *what, const array *a)
{
    void *cpu = array_get(b, a, CPU), *gpu = array_get(b, a, GPU);
    if (memcmp(cpu, gpu, a->bytes) != 0)
        fail_msg("%s: the bits are not the CPU's", what);
    free(cpu);
    free(gpu);
}

/* ---- tensors ---- */

/* How a tensor lies on the GPU; on the CPU it is plain, of values that all types can
 * hold. */
typedef struct form {
    bool nhwc;
    ddp_dtype dtype;
} form;

static inline void layout_open(const both *b, const ddp_shape *shape, form f,
                               ddp_layout *layout_out[SIDES])
{
    CHECK_OK(ddp_layout_plain(b->device[CPU], shape, &layout_out[CPU]));
    CHECK_OK(ddpi_cuda_layout_create(b->device[GPU], shape, f.nhwc, f.dtype, &layout_out[GPU]));
}

static inline void layout_close(ddp_layout *layout[SIDES])
{
    for (int side = 0; side < SIDES; side++)
        ddp_layout_unref(layout[side]);
}

typedef struct tensor {
    ddp_layout *layout[SIDES]; /* borrowed */
    void *on[SIDES];
} tensor;

/* seed 0: what is no number. Values that all types can hold. */
static inline tensor tensor_of(const both *b, ddp_layout *const layout[SIDES], uint64_t seed)
{
    const size_t count = (size_t)ddp_shape_count(ddp_layout_shape(layout[CPU]));
    float *values = random_floats(count, seed, true);
    tensor t = {{layout[CPU], layout[GPU]}, {NULL, NULL}};
    for (int side = 0; side < SIDES; side++) {
        t.on[side] = device_room(b->device[side], ddp_layout_bytes(layout[side]));
        if (seed != 0)
            CHECK_OK(ddp_layout_import(b->device[side], layout[side], values, t.on[side]));
    }
    free(values);
    return t;
}

/* Plain; the caller frees it. */
static inline float *tensor_get(const both *b, const tensor *t, int side)
{
    const size_t count = (size_t)ddp_shape_count(ddp_layout_shape(t->layout[side]));
    float *values = calloc(count, sizeof *values);
    assert_non_null(values);
    CHECK_OK(ddp_stream_sync(stream_of(b, side)));
    CHECK_OK(ddp_layout_export(b->device[side], t->layout[side], t->on[side], values));
    return values;
}

static inline void check_tensor(const both *b, const char *what, const tensor *t, double limit)
{
    float *cpu = tensor_get(b, t, CPU), *gpu = tensor_get(b, t, GPU);
    compare_result(what, gpu, cpu, (size_t)ddp_shape_count(ddp_layout_shape(t->layout[CPU])),
                   limit);
    free(cpu);
    free(gpu);
}

static inline void tensor_free(const both *b, tensor *t)
{
    for (int side = 0; side < SIDES; side++)
        if (t->on[side] != NULL)
            ddp_device_free(b->device[side], t->on[side], ddp_layout_bytes(t->layout[side]));
    *t = (tensor){0};
}

/* ---- plans ---- */

typedef struct plans {
    ddp_op_plan *on[SIDES];
    void *scratch[SIDES];
    ddp_layout *dst[SIDES]; /* borrowed */
} plans;

static inline void plans_open(const both *b, const ddp_op_desc *desc, ddp_layout *const src[SIDES],
                              ddp_layout *const src2[SIDES], plans *p)
{
    for (int side = 0; side < SIDES; side++) {
        ddp_op_desc own = *desc;
        own.src2 = src2 != NULL ? src2[side] : NULL;
        CHECK_OK(ddp_op_plan_create(b->device[side], &own, src[side], NULL, &p->on[side]));
        p->scratch[side] = device_room(b->device[side], ddp_op_plan_scratch_bytes(p->on[side]) + 1);
        p->dst[side] = ddp_op_plan_dst(p->on[side]);
    }
}

static inline void plans_close(const both *b, plans *p)
{
    for (int side = 0; side < SIDES; side++) {
        ddp_device_free(b->device[side], p->scratch[side],
                        ddp_op_plan_scratch_bytes(p->on[side]) + 1);
        ddp_op_plan_destroy(p->on[side]);
    }
}

#endif
