/* cpu_compress.c - flat ranges to bf16 or f16 and back, for gradients that travel in half their
 * size. */
#include "ddp/f16.h"
#include "device/cpu/bf16.h"
#include "device/cpu/cpu_impl.h"

enum { PART = 1 << 16 };

typedef void convert_fn(void *dst, const void *src, size_t count, float scale);

typedef struct compress_task {
    convert_fn *convert;
    const void *src;
    void *dst;
    size_t src_bytes, dst_bytes; /* of an element */
    size_t count;
    float scale;
    int threads;
} compress_task;

#define DEFINE_CONVERSIONS(type)                                                                   \
    DDPI_SIMD static void to_##type(void *dst, const void *src, size_t count, float scale)         \
    {                                                                                              \
        uint16_t *restrict narrow = dst;                                                           \
        const float *wide = src;                                                                   \
        for (size_t i = 0; i < count; i++)                                                         \
            narrow[i] = ddp_##type##_of_f32(scale * wide[i]);                                      \
    }                                                                                              \
    DDPI_SIMD static void from_##type(void *dst, const void *src, size_t count, float scale)       \
    {                                                                                              \
        float *restrict wide = dst;                                                                \
        const uint16_t *narrow = src;                                                              \
        for (size_t i = 0; i < count; i++)                                                         \
            wide[i] = scale * ddp_f32_of_##type(narrow[i]);                                        \
    }

DEFINE_CONVERSIONS(bf16)
DEFINE_CONVERSIONS(f16)

static void run_part(void *arg, int64_t part)
{
    const compress_task *task = arg;
    const size_t from = (size_t)part * PART, left = task->count - from;
    task->convert((char *)task->dst + from * task->dst_bytes,
                  (const char *)task->src + from * task->src_bytes, left < PART ? left : PART,
                  task->scale);
}

static ddp_status run_parts(const void *payload)
{
    compress_task task = *(const compress_task *)payload;
    ddpi_parallel(task.threads, ddpi_ceil_div((int64_t)task.count, PART), run_part, &task);
    return DDP_OK;
}

static ddp_status submit(ddp_stream *stream, compress_task task)
{
    task.threads = stream->device->opts.threads;
    return ddpi_cpu_submit(stream, run_parts, &task, sizeof task);
}

static ddp_status narrow(ddp_stream *stream, convert_fn *convert, uint16_t *dst, const float *src,
                         size_t count, double scale)
{
    return submit(stream, (compress_task){.convert = convert,
                                          .src = src,
                                          .dst = dst,
                                          .src_bytes = sizeof *src,
                                          .dst_bytes = sizeof *dst,
                                          .count = count,
                                          .scale = (float)scale});
}

static ddp_status widen(ddp_stream *stream, convert_fn *convert, float *dst, const uint16_t *src,
                        size_t count, double scale)
{
    return submit(stream, (compress_task){.convert = convert,
                                          .src = src,
                                          .dst = dst,
                                          .src_bytes = sizeof *src,
                                          .dst_bytes = sizeof *dst,
                                          .count = count,
                                          .scale = (float)scale});
}

ddp_status ddpi_cpu_to_bf16(ddp_stream *stream, uint16_t *dst, const float *src, size_t count,
                            double scale)
{
    return narrow(stream, to_bf16, dst, src, count, scale);
}

ddp_status ddpi_cpu_from_bf16(ddp_stream *stream, float *dst, const uint16_t *src, size_t count,
                              double scale)
{
    return widen(stream, from_bf16, dst, src, count, scale);
}

ddp_status ddpi_cpu_to_f16(ddp_stream *stream, uint16_t *dst, const float *src, size_t count,
                           double scale)
{
    return narrow(stream, to_f16, dst, src, count, scale);
}

ddp_status ddpi_cpu_from_f16(ddp_stream *stream, float *dst, const uint16_t *src, size_t count,
                             double scale)
{
    return widen(stream, from_f16, dst, src, count, scale);
}
