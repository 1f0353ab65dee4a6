/* roofline.c - a training pass beside what the machine's limits allow (ddp_model_cost), one thread.
 *
 *   bench_roofline MODEL CxHxW CLASSES BATCH [fp32|bf16 [none|cheap|segments]]
 *
 * Limits are measured in the same run: the rate of large f32 matrix products, and of copies through
 * memory (bytes read plus bytes written). Prints one line: images/s measured and at the limits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ddp/memory.h"
#include "ddp/model.h"
#include "ddp/rng.h"
#include "ddp/thread.h"

enum { PASSES = 4, COPIES = 5, COPY_BYTES = 1 << 28 };

typedef struct bench {
    ddp_device *device;
    ddp_model *model;
    ddp_model_opts opts;
    int64_t batch;
    float *params, *grads, *inputs;
    int32_t *labels;
} bench;

static ddp_status measure_copy(ddp_device *device, double *bytes_out)
{
    void *a, *b;
    DDP_TRY(ddp_device_alloc(device, COPY_BYTES, &a));
    DDP_TRY(ddp_device_alloc(device, COPY_BYTES, &b));
    double best = 0;
    for (int i = 0; i < COPIES; i++) {
        const int64_t start = ddp_now_ns();
        DDP_TRY(ddp_device_copy(device, ddp_device_main_stream(device), a, b, COPY_BYTES,
                                DDP_COPY_ON_DEVICE));
        DDP_TRY(ddp_stream_sync(ddp_device_main_stream(device)));
        const double rate = 2.0 * COPY_BYTES / ((double)(ddp_now_ns() - start) * 1e-9);
        best = rate > best ? rate : best;
    }
    ddp_device_free(device, a, COPY_BYTES);
    ddp_device_free(device, b, COPY_BYTES);
    *bytes_out = best;
    return DDP_OK;
}

static ddp_status alloc_floats(ddp_device *device, size_t count, float **memory_out)
{
    void *memory;
    DDP_TRY(ddp_device_alloc(device, count * sizeof(float), &memory));
    *memory_out = memory;
    return DDP_OK;
}

static ddp_status prepare(bench *b)
{
    DDP_TRY(ddp_model_plan(b->model, b->batch, true));
    ddp_param_table *table = ddp_model_params(b->model);
    const size_t length = ddp_param_table_length(table);
    const size_t values = (size_t)(b->batch * ddp_shape_count(&b->opts.input_shape));
    DDP_TRY(alloc_floats(b->device, length, &b->params));
    DDP_TRY(alloc_floats(b->device, length, &b->grads));
    DDP_TRY(alloc_floats(b->device, values, &b->inputs));
    DDP_TRY(DDP_ALLOC(b->labels, (size_t)b->batch));
    const ddp_rng rng = ddp_rng_make(1, DDP_RNG_SYNTH, 0);
    for (size_t i = 0; i < values; i++)
        b->inputs[i] = ddp_rng_uniform(&rng, i);
    DDP_TRY(ddp_param_table_init(b->device, table, 1, b->params));
    ddp_model_bind(b->model, b->params, b->grads);
    return DDP_OK;
}

/* The best of a few passes, in seconds. */
static ddp_status measure_pass(bench *b, double *seconds_out)
{
    const ddp_model_input input = {.inputs = b->inputs, .labels = b->labels, .count = b->batch};
    *seconds_out = 1e30;
    for (int i = 0; i < PASSES; i++) {
        double loss;
        const int64_t start = ddp_now_ns();
        DDP_TRY(ddp_model_forward(b->model, &input, &loss));
        DDP_TRY(ddp_model_backward(b->model));
        const double seconds = (double)(ddp_now_ns() - start) * 1e-9;
        *seconds_out = seconds < *seconds_out ? seconds : *seconds_out;
    }
    return DDP_OK;
}

static ddp_status run(const ddp_model_def *def, bench *b)
{
    ddp_device_opts device_opts = DDP_DEVICE_OPTS_DEFAULTS;
    ddp_model_limits limits;
    ddp_model_bound bound;
    double seconds;
    DDP_TRY(ddp_device_open(ddp_device_cpu(), &device_opts, &b->device));
    DDP_TRY(ddp_device_measure_peak(b->device, &limits.flops));
    DDP_TRY(measure_copy(b->device, &limits.bytes));
    DDP_TRY(ddp_model_create(def, &b->opts, b->device, &b->model));
    DDP_TRY(prepare(b));
    DDP_TRY(measure_pass(b, &seconds));
    DDP_TRY(ddp_model_cost(b->model, b->batch, &limits, &bound));
    printf("%s batch %lld: %.1f images/s; limits %.0f GFLOP/s and %.1f GB/s allow %.1f (ratio "
           "%.2f); %.2f GFLOP and %.1f MB an image, activations %.0f MiB\n",
           def->name, (long long)b->batch, (double)b->batch / seconds, limits.flops * 1e-9,
           limits.bytes * 1e-9, (double)b->batch / bound.seconds, bound.seconds / seconds,
           bound.flops * 1e-9 / (double)b->batch, bound.bytes * 1e-6 / (double)b->batch,
           (double)ddp_model_activation_bytes(b->model) / (1 << 20));
    return DDP_OK;
}

static const ddp_model_def *find_model(const char *name)
{
    const ddp_model_def *const models[] = {
        ddp_model_lenet(),     ddp_model_mlp(),      ddp_model_resnet18_small(),
        ddp_model_resnet18(),  ddp_model_resnet34(), ddp_model_resnet50(),
        ddp_model_resnet101(),
    };
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        if (strcmp(models[i]->name, name) == 0)
            return models[i];
    return NULL;
}

static bool parse(int argc, char **argv, bench *b)
{
    static const char *const recompute[] = {"none", "cheap", "segments"};
    long c, h, w;
    if (argc < 5 || sscanf(argv[2], "%ldx%ldx%ld", &c, &h, &w) != 3)
        return false;
    b->opts.input_shape = (ddp_shape){3, {c, h, w}};
    b->opts.classes = strtol(argv[3], NULL, 10);
    b->batch = strtol(argv[4], NULL, 10);
    b->opts.compute = argc > 5 && strcmp(argv[5], "bf16") == 0 ? DDP_BF16 : DDP_F32;
    for (int i = 0; argc > 6 && i < 3; i++)
        if (strcmp(argv[6], recompute[i]) == 0)
            b->opts.recompute = i;
    return b->batch > 0 && b->opts.classes > 0;
}

int main(int argc, char **argv)
{
    bench b = {0};
    const ddp_model_def *def = argc > 1 ? find_model(argv[1]) : NULL;
    if (def == NULL || !parse(argc, argv, &b)) {
        fprintf(stderr, "usage: bench_roofline MODEL CxHxW CLASSES BATCH [fp32|bf16 "
                        "[none|cheap|segments]]\n");
        return 2;
    }
    const ddp_status st = run(def, &b);
    if (st != DDP_OK)
        fprintf(stderr, "bench_roofline: %s\n", ddp_status_message());
    return st == DDP_OK ? 0 : 1;
}
