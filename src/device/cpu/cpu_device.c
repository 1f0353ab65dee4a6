/* cpu_device.c - the CPU device's table, its memory, and its threads.
 *
 * Device memory is host memory in huge pages. Operations run on the calling thread's OpenMP team,
 * whose size belongs to the thread, so several ranks in one process don't share it. */
#include <omp.h>
#include <stdio.h>
#include <string.h>
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#include "ddp/memory.h"
#include "ddp/thread.h"
#include "device/cpu/cpu_impl.h"

/* ---- threads ---- */

void ddpi_set_threads(int threads)
{
    omp_set_num_threads(threads);
}

/* The thread sanitizer does not see how OpenMP starts and joins its team, so it is told: what came
 * before the loop is visible in it, and what the parts did is visible after. */
#if defined(__SANITIZE_THREAD__)
#define TELL_RELEASE(mark) __tsan_release(mark)
#define TELL_ACQUIRE(mark) __tsan_acquire(mark)
#define NOT_SANITIZED      __attribute__((no_sanitize("thread")))
#else
#define TELL_RELEASE(mark) ((void)(mark))
#define TELL_ACQUIRE(mark) ((void)(mark))
#define NOT_SANITIZED
#endif

NOT_SANITIZED static void run_team(int threads, int64_t parts, void (*fn)(void *arg, int64_t part),
                                   void *arg)
{
    char begin, end;
    TELL_RELEASE(&begin);
#pragma omp parallel for num_threads(threads) schedule(static) shared(begin, end)
    for (int64_t part = 0; part < parts; part++) {
        TELL_ACQUIRE(&begin);
        fn(arg, part);
        TELL_RELEASE(&end);
    }
    TELL_ACQUIRE(&end);
}

void ddpi_parallel(int threads, int64_t parts, void (*fn)(void *arg, int64_t part), void *arg)
{
    if (threads > 1 && parts > 1) {
        run_team(threads, parts, fn, arg);
        return;
    }
    for (int64_t part = 0; part < parts; part++)
        fn(arg, part);
}

/* ---- device ---- */

static void read_processor_name(char *text, size_t text_bytes)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    snprintf(text, text_bytes, "unknown processor");
    if (file == NULL)
        return;
    while (fgets(line, sizeof line, file) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", strlen("model name")) != 0 || colon == NULL)
            continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(text, text_bytes, "%.127s", colon + 1 + strspn(colon + 1, " "));
        break;
    }
    fclose(file);
}

static void device_close(ddp_device *base)
{
    ddpi_cpu_device *device = ddpi_cpu_of(base);
    if (device->main != NULL)
        ddpi_cpu_stream_destroy((ddp_stream *)device->main);
    ddpi_conv_forget(base);
    ddpi_dnnl_close(device->dnnl);
    ddp_free(device);
}

static ddp_status device_open(const ddp_device_opts *opts, ddp_device **device_out)
{
    ddpi_cpu_device *device;
    ddp_stream *main_stream;
    char processor[128], library[48];
    ddp_status st;
    DDP_TRY(DDP_ALLOC(device, 1));
    device->base.ops = ddp_device_cpu();
    device->base.opts = *opts;
    DDP_TRY_GOTO(st, ddpi_dnnl_open(&device->dnnl), err_device);
    DDP_TRY_GOTO(st, ddpi_cpu_stream_create(&device->base, NULL, &main_stream), err_device);
    device->main = (ddpi_cpu_stream *)main_stream;
    if (opts->conv_algo == DDP_CONV_WINOGRAD && !ddpi_dnnl_winograd(device->dnnl))
        DDP_TRY_GOTO(st,
                     DDP_FAIL(DDP_ERR_UNSUPPORTED,
                              "convolution algorithm winograd: oneDNN has none on this processor"),
                     err_device);
    read_processor_name(processor, sizeof processor);
    ddpi_dnnl_describe(library, sizeof library);
    snprintf(device->description, sizeof device->description, "%s, %s", processor, library);
    ddpi_set_threads(opts->threads);
    *device_out = &device->base;
    return DDP_OK;
err_device:
    device_close(&device->base);
    return st;
}

static const char *device_describe(const ddp_device *device)
{
    return ((const ddpi_cpu_device *)device)->description;
}

static bool device_is_host(const ddp_device *device)
{
    (void)device;
    return true;
}

static bool device_computes(const ddp_device *device, ddp_dtype dtype)
{
    (void)device;
    return dtype == DDP_F32 || (dtype == DDP_BF16 && ddpi_dnnl_bf16());
}

static ddp_status device_measure_peak(ddp_device *device, double *flops_out)
{
    enum { SIZE = 512, MIN_RUNS = 3, MAX_RUNS = 64 };
    const int64_t limit_ns = 8000000;
    const ddpi_gemm gemm = {.m = SIZE, .n = SIZE, .k = SIZE, .lda = SIZE, .ldb = SIZE, .ldc = SIZE};
    const size_t count = (size_t)SIZE * SIZE;
    float *memory;
    ddp_status st = DDP_OK;
    DDP_TRY(DDP_ALLOC(memory, 3 * count));
    for (size_t i = 0; i < 2 * count; i++)
        memory[i] = (float)(i % 13) * 0.125f;
    ddpi_set_threads(device->opts.threads);
    int64_t best_ns = INT64_MAX;
    const int64_t start = ddp_now_ns();
    for (int run = 0; run < MAX_RUNS; run++) {
        const int64_t begin = ddp_now_ns();
        if (run >= MIN_RUNS && begin - start > limit_ns)
            break;
        st = ddpi_sgemm(&gemm, memory, memory + count, memory + 2 * count);
        if (st != DDP_OK)
            break;
        best_ns = ddpi_min(best_ns, ddpi_max(ddp_now_ns() - begin, 1));
    }
    ddp_free(memory);
    if (st == DDP_OK)
        *flops_out = 2.0 * SIZE * SIZE * SIZE / ((double)best_ns * 1e-9);
    return st;
}

static ddp_stream *device_main_stream(ddp_device *device)
{
    return (ddp_stream *)ddpi_cpu_of(device)->main;
}

/* ---- memory ---- */

static ddp_status memory_alloc(ddp_device *device, size_t bytes, void **memory_out)
{
    (void)device;
    return ddp_large_alloc(bytes, memory_out);
}

static void memory_free(ddp_device *device, void *memory, size_t bytes)
{
    (void)device;
    ddp_large_free(memory, bytes);
}

typedef struct copy_payload {
    void *dst;
    const void *src; /* NULL: zero */
    size_t bytes;
} copy_payload;

static ddp_status run_copy(const void *payload)
{
    const copy_payload *copy = payload;
    if (copy->src == NULL)
        memset(copy->dst, 0, copy->bytes);
    else if (copy->src != copy->dst)
        memcpy(copy->dst, copy->src, copy->bytes);
    return DDP_OK;
}

static ddp_status device_copy(ddp_stream *stream, void *dst, const void *src, size_t bytes,
                              ddp_copy_kind kind)
{
    const copy_payload copy = {dst, src, bytes};
    (void)kind;
    DDP_ASSERT(src != NULL);
    return ddpi_cpu_submit(stream, run_copy, &copy, sizeof copy);
}

static ddp_status device_zero(ddp_stream *stream, void *dst, size_t bytes)
{
    const copy_payload copy = {dst, NULL, bytes};
    return ddpi_cpu_submit(stream, run_copy, &copy, sizeof copy);
}

/* ---- table ---- */

static const ddpi_op_ops cpu_op_ops = {
    .layout_plain = ddpi_layout_plain,
    .layout_destroy = ddpi_layout_destroy,
    .layout_equal = ddpi_layout_equal,
    .layout_import = ddpi_layout_import,
    .layout_unpack = ddpi_layout_unpack,
    .plan_create = ddpi_plan_create,
    .plan_destroy = ddpi_plan_destroy,
    .plan_run = ddpi_plan_run,
    .sgd = ddpi_cpu_sgd,
    .adam = ddpi_cpu_adam,
    .average = ddpi_cpu_average,
    .add = ddpi_cpu_add,
    .accumulate = ddpi_cpu_accumulate,
    .sum_squares = ddpi_cpu_sum_squares,
    .norm_running = ddpi_cpu_norm_running,
    .to_bf16 = ddpi_cpu_to_bf16,
    .from_bf16 = ddpi_cpu_from_bf16,
    .to_f16 = ddpi_cpu_to_f16,
    .from_f16 = ddpi_cpu_from_f16,
    .label_rank = ddpi_cpu_label_rank,
};

const ddp_device_ops *ddp_device_cpu(void)
{
    static const ddp_device_ops ops = {
        .name = "cpu",
        .op = &cpu_op_ops,
        .open = device_open,
        .close = device_close,
        .describe = device_describe,
        .is_host = device_is_host,
        .computes = device_computes,
        .measure_peak = device_measure_peak,
        .alloc = memory_alloc,
        .free = memory_free,
        .host_alloc = memory_alloc,
        .host_free = memory_free,
        .copy = device_copy,
        .zero = device_zero,
        .main_stream = device_main_stream,
        .stream_create = ddpi_cpu_stream_create,
        .stream_destroy = ddpi_cpu_stream_destroy,
        .stream_call = ddpi_cpu_stream_call,
        .stream_sync = ddpi_cpu_stream_sync,
        .stream_wait_event = ddpi_cpu_stream_wait_event,
        .event_create = ddpi_cpu_event_create,
        .event_destroy = ddpi_cpu_event_destroy,
        .event_record = ddpi_cpu_event_record,
        .event_query = ddpi_cpu_event_query,
        .event_sync = ddpi_cpu_event_sync,
        .event_elapsed = ddpi_cpu_event_elapsed,
    };
    return &ops;
}
