/* cpu_compress.c - flat ranges to bf16 and back, for gradients that travel in half their size. */
#include "device/cpu/bf16.h"
#include "device/cpu/cpu_impl.h"

enum { PART = 1 << 16 };

typedef struct compress_task {
    const void *src;
    void *dst;
    size_t count;
    float scale;
    int threads;
} compress_task;

static size_t part_end(const compress_task *task, size_t from)
{
    return task->count - from < PART ? task->count : from + PART;
}

DDPI_SIMD static void narrow(uint16_t *dst, const float *src, size_t count, float scale)
{
    for (size_t i = 0; i < count; i++)
        dst[i] = ddp_bf16_of_f32(scale * src[i]);
}

DDPI_SIMD static void widen(float *dst, const uint16_t *src, size_t count, float scale)
{
    for (size_t i = 0; i < count; i++)
        dst[i] = scale * ddp_f32_of_bf16(src[i]);
}

static void narrow_part(void *arg, int64_t part)
{
    const compress_task *task = arg;
    const size_t from = (size_t)part * PART;
    narrow((uint16_t *)task->dst + from, (const float *)task->src + from,
           part_end(task, from) - from, task->scale);
}

static void widen_part(void *arg, int64_t part)
{
    const compress_task *task = arg;
    const size_t from = (size_t)part * PART;
    widen((float *)task->dst + from, (const uint16_t *)task->src + from,
          part_end(task, from) - from, task->scale);
}

static ddp_status run_narrow(const void *payload)
{
    compress_task task = *(const compress_task *)payload;
    ddpi_parallel(task.threads, ddpi_ceil_div((int64_t)task.count, PART), narrow_part, &task);
    return DDP_OK;
}

static ddp_status run_widen(const void *payload)
{
    compress_task task = *(const compress_task *)payload;
    ddpi_parallel(task.threads, ddpi_ceil_div((int64_t)task.count, PART), widen_part, &task);
    return DDP_OK;
}

ddp_status ddpi_cpu_to_bf16(ddp_stream *stream, uint16_t *dst, const float *src, size_t count,
                            double scale)
{
    const compress_task task = {src, dst, count, (float)scale, stream->device->opts.threads};
    return ddpi_cpu_submit(stream, run_narrow, &task, sizeof task);
}

ddp_status ddpi_cpu_from_bf16(ddp_stream *stream, float *dst, const uint16_t *src, size_t count,
                              double scale)
{
    const compress_task task = {src, dst, count, (float)scale, stream->device->opts.threads};
    return ddpi_cpu_submit(stream, run_widen, &task, sizeof task);
}
