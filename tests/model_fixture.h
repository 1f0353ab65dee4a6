/* model_fixture.h - a model with flat buffers of its own, inputs and labels; on a CPU device, in
 * programs that are compiled with DDP_TEST_CUDA on a CUDA device. */
#ifndef DDP_TESTS_MODEL_FIXTURE_H
#define DDP_TESTS_MODEL_FIXTURE_H

#include "harness.h"

#include <math.h>

#include "ddp/memory.h"
#include "ddp/model.h"
#include "ddp/rng.h"
#ifdef DDP_TEST_CUDA
#include "device/cuda/cuda_impl.h"
#endif

typedef struct model_fixture {
    ddp_device *device;
    ddp_model *model;
    ddp_param_table *table;
    float *params, *grads;
    size_t bytes; /* of each flat buffer */
} model_fixture;

static inline void fixture_close(model_fixture *f)
{
    if (f->params != NULL)
        ddp_device_free(f->device, f->params, f->bytes);
    if (f->grads != NULL)
        ddp_device_free(f->device, f->grads, f->bytes);
    ddp_model_destroy(f->model);
    ddp_device_close(f->device);
}

static inline const ddp_device_ops *fixture_backend(void)
{
#ifdef DDP_TEST_CUDA
    return &ddpi_device_cuda;
#else
    return ddp_device_cpu();
#endif
}

/* Planned for training on `batch` samples and bound; all parameters are 0. */
static inline void fixture_open(model_fixture *f, const ddp_model_def *def,
                                const ddp_model_opts *opts, ddp_conv_algo algo, int64_t batch)
{
    ddp_device_opts device_opts = DDP_DEVICE_OPTS_DEFAULTS;
    device_opts.conv_algo = algo;
    device_opts.emulate_bf16 = true; /* matters to models that ask for bf16 */
#ifdef DDP_TEST_CUDA
    device_opts.deterministic = true; /* bits are compared */
#endif
    *f = (model_fixture){0};
    CHECK_OK(ddp_device_open(fixture_backend(), &device_opts, &f->device));
    CHECK_OK(ddp_model_create(def, opts, f->device, &f->model));
    CHECK_OK(ddp_model_plan(f->model, batch, true));
    f->table = ddp_model_params(f->model);
    f->bytes = ddp_param_table_length(f->table) * sizeof(float);
    CHECK_OK(ddp_device_alloc(f->device, f->bytes, (void **)(void *)&f->params));
    CHECK_OK(ddp_device_alloc(f->device, f->bytes, (void **)(void *)&f->grads));
    ddp_model_bind(f->model, f->params, f->grads);
}

static inline double fixture_loss(model_fixture *f, const ddp_model_input *input)
{
    double loss = NAN;
    CHECK_OK(ddp_model_forward(f->model, input, &loss));
    CHECK_OK(ddp_stream_sync(ddp_device_main_stream(f->device)));
    return loss;
}

/* Between the test's memory and the device's, which need not be the same. Free with
 * ddp_device_free(). */
static inline void *fixture_upload(const model_fixture *f, const void *from, size_t bytes)
{
    ddp_stream *stream = ddp_device_main_stream(f->device);
    void *to;
    CHECK_OK(ddp_device_alloc(f->device, bytes, &to));
    CHECK_OK(ddp_device_copy(f->device, stream, to, from, bytes, DDP_COPY_TO_DEVICE));
    CHECK_OK(ddp_stream_sync(stream));
    return to;
}

static inline void fixture_download(const model_fixture *f, const void *from, void *to,
                                    size_t bytes)
{
    ddp_stream *stream = ddp_device_main_stream(f->device);
    CHECK_OK(ddp_device_copy(f->device, stream, to, from, bytes, DDP_COPY_TO_HOST));
    CHECK_OK(ddp_stream_sync(stream));
}

/* Uniform in [-1, 1), and labels; a function of the seed. The caller frees both with ddp_free(). */
static inline void fixture_samples(uint64_t seed, size_t values, int64_t count, int64_t classes,
                                   float **inputs_out, int32_t **labels_out)
{
    const ddp_rng rng = ddp_rng_make(seed, DDP_RNG_TEST, 0);
    const ddp_rng label_rng = ddp_rng_make(seed, DDP_RNG_TEST, 1);
    CHECK_OK(ddp_alloc_bytes(values * (size_t)count, sizeof(float), (void **)(void *)inputs_out));
    CHECK_OK(ddp_alloc_bytes((size_t)count, sizeof(int32_t), (void **)(void *)labels_out));
    for (size_t i = 0; i < values * (size_t)count; i++)
        (*inputs_out)[i] = 2.0f * ddp_rng_uniform(&rng, i) - 1.0f;
    for (size_t i = 0; i < (size_t)count; i++)
        (*labels_out)[i] = (int32_t)(ddp_rng_u32(&label_rng, i) % (uint32_t)classes);
}

#endif
