/* test_kernels.c - kernels that other operations use, each by its launcher, against plain loops:
 * orders of images, gradients of biases, biases, averages of all pixels, masks. */
#include "both.h"
#include "device/cuda/kernels.h"

static ddp_device *device;

static cudaStream_t stream(void)
{
    return ddpi_cuda_stream(ddp_device_main_stream(device));
}

#define CHECK_CUDA(call) assert_int_equal((call), cudaSuccess)

/* Elements in device memory, of a type, and what they are. */
typedef struct elements {
    size_t count;
    ddp_dtype dtype;
    float *host;
    void *on;
} elements;

static size_t bytes_of(const elements *e)
{
    return e->count * (ddp_dtype_bytes(e->dtype));
}

static elements elements_of(size_t count, uint64_t seed, ddp_dtype dtype)
{
    elements e = {count, dtype, random_floats(count, seed, true), NULL};
    uint16_t *narrow = calloc(count, sizeof *narrow);
    assert_non_null(narrow);
    for (size_t i = 0; i < count; i++)
        narrow[i] = narrowed(e.host[i], dtype);
    e.on = device_copy_of(device, dtype != DDP_F32 ? (void *)narrow : (void *)e.host, bytes_of(&e));
    free(narrow);
    return e;
}

static void elements_read(elements *e)
{
    uint16_t *narrow = calloc(e->count, sizeof *narrow);
    assert_non_null(narrow);
    device_get(device, e->dtype != DDP_F32 ? (void *)narrow : (void *)e->host, e->on, bytes_of(e));
    for (size_t i = 0; e->dtype != DDP_F32 && i < e->count; i++)
        e->host[i] = widened(narrow[i], e->dtype);
    free(narrow);
}

static void elements_free(elements *e)
{
    ddp_device_free(device, e->on, bytes_of(e));
    free(e->host);
}

static void check_near(float value, double want, double limit)
{
    if (!(fabs((double)value - want) <= limit))
        fail_msg("%.9g, want %.9g within %g", (double)value, want, limit);
}

/* ---- orders of images ---- */

static const int64_t images[][3] = {{2, 3, 35}, {3, 8, 64}, {2, 9, 33}, {1, 70, 100}, {2, 33, 1}};
enum { IMAGES = sizeof images / sizeof images[0] };

static void images_change_their_order_and_back(void **state)
{
    (void)state;
    for (int i = 0; i < FLOAT_TYPES * IMAGES; i++) {
        const int64_t n = images[i / FLOAT_TYPES][0], c = images[i / FLOAT_TYPES][1],
                      p = images[i / FLOAT_TYPES][2];
        const ddp_dtype dtype = float_types[i % FLOAT_TYPES];
        elements first = elements_of((size_t)(n * c * p), 1, DDP_F32);
        elements last = elements_of((size_t)(n * c * p), 2, dtype);
        elements back = elements_of((size_t)(n * c * p), 3, false);
        const ddpi_k_images to = {first.on, last.on, n, c, p, dtype};
        const ddpi_k_images from = {last.on, back.on, n, c, p, dtype};
        CHECK_CUDA(ddpi_k_nchw_to_nhwc(stream(), &to));
        CHECK_CUDA(ddpi_k_nhwc_to_nchw(stream(), &from));
        elements_read(&last);
        elements_read(&back);
        for (int64_t at = 0; at < n * c * p; at++) {
            const int64_t image = at / (c * p), channel = at / p % c, pixel = at % p;
            assert_true(last.host[(image * p + pixel) * c + channel] == first.host[at]);
            assert_true(back.host[at] == first.host[at]);
        }
        elements_free(&first);
        elements_free(&last);
        elements_free(&back);
    }
}

/* ---- rows of channels ---- */

static const int64_t rows_of[][2] = {{1, 1},    {7, 3},    {300, 64}, {1000, 10},
                                     {33, 130}, {5, 1000}, {4000, 4}};
enum { ROWS = sizeof rows_of / sizeof rows_of[0] };

/* Sums of RUN rows are in f32, of numbers up to 1: 2^-24 of up to 8 each, and rather less. */
static void biases_get_the_sum_of_masked_gradients(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * FLOAT_TYPES * ROWS; i++) {
        const int64_t rows = rows_of[i / (2 * FLOAT_TYPES)][0],
                      c = rows_of[i / (2 * FLOAT_TYPES)][1];
        const ddp_dtype dtype = float_types[i / 2 % FLOAT_TYPES];
        const bool masked = i % 2 != 0;
        elements diff = elements_of((size_t)(rows * c), 4, dtype);
        elements value = elements_of((size_t)(rows * c), 5, dtype);
        elements sums = elements_of((size_t)c, 6, DDP_F32);
        const size_t bytes = ddpi_k_bias_grad_bytes(rows, c);
        double *want = calloc((size_t)c, sizeof *want);
        float *given = calloc((size_t)(rows * c), sizeof *given);
        void *partials = device_room(device, bytes);
        assert_non_null(want);
        assert_non_null(given);
        for (int64_t at = 0; at < rows * c; at++) {
            given[at] = masked && !(value.host[at] > 0) ? 0 : diff.host[at];
            want[at % c] += (double)given[at];
        }
        const ddpi_k_bias_grad_args args = {
            diff.on, masked ? value.on : NULL, sums.on, partials, rows, c, dtype};
        CHECK_CUDA(ddpi_k_bias_grad(stream(), &args));
        elements_read(&diff);
        elements_read(&sums);
        for (int64_t at = 0; at < c; at++)
            check_near(sums.host[at], want[at], 1e-6 * sqrt((double)rows) + 1e-6);
        for (int64_t at = 0; at < rows * c; at++)
            assert_true(diff.host[at] == given[at]);
        free(want);
        free(given);
        ddp_device_free(device, partials, bytes);
        elements_free(&diff);
        elements_free(&value);
        elements_free(&sums);
    }
}

static void biases_are_added_before_the_relu(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * FLOAT_TYPES * ROWS; i++) {
        const int64_t rows = rows_of[i / (2 * FLOAT_TYPES)][0],
                      c = rows_of[i / (2 * FLOAT_TYPES)][1];
        const ddp_dtype dtype = float_types[i / 2 % FLOAT_TYPES];
        const bool relu = i % 2 != 0;
        elements dst = elements_of((size_t)(rows * c), 7, dtype);
        elements bias = elements_of((size_t)c, 8, DDP_F32);
        float *before = calloc(dst.count, sizeof *before);
        assert_non_null(before);
        memcpy(before, dst.host, dst.count * sizeof *before);
        const ddpi_k_bias_relu_args args = {dst.on, bias.on, rows, c, dtype, relu};
        CHECK_CUDA(ddpi_k_bias_relu(stream(), &args));
        elements_read(&dst);
        for (int64_t at = 0; at < rows * c; at++) {
            const float sum = before[at] + bias.host[at % c];
            assert_true(dst.host[at] == rounded_to(relu && sum < 0 ? 0 : sum, dtype));
        }
        free(before);
        elements_free(&dst);
        elements_free(&bias);
    }
}

static void masks_keep_what_was_positive(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * FLOAT_TYPES; i++) {
        const ddp_dtype dtype = float_types[i % FLOAT_TYPES];
        elements diff = elements_of(1013, 9, dtype), value = elements_of(1013, 10, dtype);
        float *want = calloc(diff.count, sizeof *want);
        assert_non_null(want);
        const size_t skip = (size_t)(i / FLOAT_TYPES), width = ddp_dtype_bytes(dtype);
        for (size_t at = 0; at < diff.count; at++)
            want[at] = at < skip || value.host[at] > 0 ? diff.host[at] : 0;
        const ddpi_k_relu_mask_args args = {(char *)diff.on + skip * width,
                                            (const char *)value.on + skip * width,
                                            (int64_t)(diff.count - skip), dtype};
        CHECK_CUDA(ddpi_k_relu_mask(stream(), &args));
        elements_read(&diff);
        for (size_t at = 0; at < diff.count; at++)
            assert_true(diff.host[at] == want[at]);
        free(want);
        elements_free(&diff);
        elements_free(&value);
    }
}

/* ---- averages of all pixels ---- */

static void averages_and_their_gradients_are_those_of_loops(void **state)
{
    (void)state;
    for (int i = 0; i < FLOAT_TYPES * IMAGES; i++) {
        const int64_t n = images[i / FLOAT_TYPES][0], c = images[i / FLOAT_TYPES][1],
                      p = images[i / FLOAT_TYPES][2];
        const ddp_dtype dtype = float_types[i % FLOAT_TYPES];
        elements src = elements_of((size_t)(n * c * p), 11, dtype);
        elements mean = elements_of((size_t)(n * c), 12, dtype);
        const ddpi_k_global_avg_args forward = {src.on, mean.on, n, p, c, dtype};
        const ddpi_k_global_avg_args backward = {mean.on, src.on, n, p, c, dtype};
        CHECK_CUDA(ddpi_k_global_avg_forward(stream(), &forward));
        elements_read(&mean);
        for (int64_t at = 0; at < n * c; at++) {
            double want = 0;
            for (int64_t pixel = 0; pixel < p; pixel++)
                want += (double)src.host[(at / c * p + pixel) * c + at % c];
            want /= (double)p;
            check_near(mean.host[at], want, fabs(want) * (rounding_of(dtype) + 1e-7));
        }
        CHECK_CUDA(ddpi_k_global_avg_backward(stream(), &backward));
        elements_read(&src);
        for (int64_t at = 0; at < n * c * p; at++) {
            const float share = mean.host[at / (c * p) * c + at % c] * (1.0f / (float)p);
            assert_true(src.host[at] == rounded_to(share, dtype));
        }
        elements_free(&src);
        elements_free(&mean);
    }
}

static int set_up(void **state)
{
    (void)state;
    device = gpu_open();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    ddp_device_close(device);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(images_change_their_order_and_back),
        cmocka_unit_test(biases_get_the_sum_of_masked_gradients),
        cmocka_unit_test(biases_are_added_before_the_relu),
        cmocka_unit_test(masks_keep_what_was_positive),
        cmocka_unit_test(averages_and_their_gradients_are_those_of_loops),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
