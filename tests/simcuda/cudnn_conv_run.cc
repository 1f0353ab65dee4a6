/* cudnn_conv_run.cc - the loops of the simulated convolutions, on a stream's thread.
 *
 * An image is loaded as plain f32 NHWC and its windows are laid out as rows of a matrix, so that
 * all three directions are products: y = windows w', dwindows = dy w, dw = dy' windows, group by
 * group. Sums run in f32 over ascending indices, or in an order drawn anew for every run where the
 * algorithm promises none.
 */
#include <algorithm>
#include <vector>

#include "cudnn_conv.h"

namespace
{

// One image of a tensor as f32, (h, w, c).
void load_image(const sim_conv_shape &s, const sim_tensor &t, const void *at, int64_t n,
                float *image)
{
    for (int64_t h = 0; h < t.dims[2]; h++)
        for (int64_t w = 0; w < t.dims[3]; w++) {
            int64_t first = n * t.strides[0] + h * t.strides[2] + w * t.strides[3];
            sim_load_row(s.type, at, first, t.strides[1], t.dims[1],
                         image + (h * t.dims[3] + w) * t.dims[1]);
        }
    if (s.tf32)
        sim_round_tf32(image, t.dims[1] * t.dims[2] * t.dims[3]);
}

// The filter as f32, (k, h, w, c).
void load_filter(const sim_conv_shape &s, const void *at, float *filter)
{
    const sim_filter &w = s.w;
    int64_t taps = w.h * w.w, depth = taps * w.c;
    for (int64_t k = 0; k < w.k; k++)
        for (int64_t tap = 0; tap < taps; tap++) {
            int64_t first = k * depth + (w.nhwc ? tap * w.c : tap);
            sim_load_row(s.type, at, first, w.nhwc ? 1 : taps, w.c, filter + k * depth + tap * w.c);
        }
    if (s.tf32)
        sim_round_tf32(filter, w.k * depth);
}

// Calls visit(row of the matrix, first column, place in the image or -1) for every tap of every
// window.
template <class F> void each_tap(const sim_conv_shape &s, F visit)
{
    int64_t in_h = s.x.dims[2], in_w = s.x.dims[3];
    for (int64_t oh = 0; oh < s.out_h; oh++)
        for (int64_t ow = 0; ow < s.out_w; ow++)
            for (int64_t r = 0; r < s.w.h; r++)
                for (int64_t q = 0; q < s.w.w; q++) {
                    int64_t h = oh * s.conv.stride[0] - s.conv.pad[0] + r * s.conv.dilation[0];
                    int64_t w = ow * s.conv.stride[1] - s.conv.pad[1] + q * s.conv.dilation[1];
                    bool inside = h >= 0 && h < in_h && w >= 0 && w < in_w;
                    visit(oh * s.out_w + ow, (r * s.w.w + q) * s.c_group,
                          inside ? h * in_w + w : -1);
                }
}

void lay_out_windows(const sim_conv_shape &s, const float *image, int64_t group, float *windows)
{
    int64_t c = s.x.dims[1];
    each_tap(s, [&](int64_t row, int64_t column, int64_t place) {
        float *to = windows + row * s.depth + column;
        const float *from = image + place * c + group * s.c_group;
        for (int64_t i = 0; i < s.c_group; i++)
            to[i] = place < 0 ? 0.0f : from[i];
    });
}

void add_windows(const sim_conv_shape &s, const float *windows, int64_t group, float *image)
{
    int64_t c = s.x.dims[1];
    each_tap(s, [&](int64_t row, int64_t column, int64_t place) {
        if (place < 0)
            return;
        const float *from = windows + row * s.depth + column;
        float *to = image + place * c + group * s.c_group;
        for (int64_t i = 0; i < s.c_group; i++)
            to[i] += from[i];
    });
}

int64_t pixels(const sim_conv_shape &s)
{
    return s.out_h * s.out_w;
}

// value + bias + alpha_z z, cut off below 0: what cudnnConvolutionBiasActivationForward() adds.
float finish(const sim_conv_shape &s, const sim_conv_run &run, float value, const int64_t at[4],
             const void *bias, const void *z)
{
    if (bias)
        value += sim_load(s.type, bias, at[1] * run.bias_desc.strides[1]);
    if (z) {
        int64_t index = 0;
        for (int i = 0; i < 4; i++)
            index += at[i] * run.z_desc.strides[i];
        value += run.alpha_z * sim_load(s.type, z, index);
    }
    return run.relu && !(value > 0.0f) ? 0.0f : value; // NaN is not propagated
}

// One pixel's channels of the result, scaled and added to what is there; more than that: finish().
void store_pixel(const sim_conv_shape &s, const sim_conv_run &run, const sim_tensor &t, void *at,
                 int64_t first, const float *values)
{
    float *scaled = sim_scratch(5, (size_t)t.dims[1]);
    for (int64_t c = 0; c < t.dims[1]; c++)
        scaled[c] = run.alpha * values[c];
    if (run.beta == 0.0f)
        sim_store_row(s.type, at, first, t.strides[1], t.dims[1], scaled);
    else
        for (int64_t c = 0; c < t.dims[1]; c++)
            sim_blend(s.type, at, first + c * t.strides[1], scaled[c], run.beta);
}

void store_image(const sim_conv_shape &s, const sim_conv_run &run, const sim_tensor &t, void *at,
                 int64_t n, const float *image)
{
    const void *bias = run.bias ? cusim_host(run.bias) : nullptr,
               *z = run.z ? cusim_host(run.z) : nullptr;
    int64_t channels = t.dims[1];
    for (int64_t h = 0; h < t.dims[2]; h++)
        for (int64_t w = 0; w < t.dims[3]; w++) {
            int64_t first = n * t.strides[0] + h * t.strides[2] + w * t.strides[3];
            const float *values = image + (h * t.dims[3] + w) * channels;
            if (!bias && !z && !run.relu) {
                store_pixel(s, run, t, at, first, values);
                continue;
            }
            for (int64_t k = 0; k < channels; k++) {
                int64_t place[4] = {n, k, h, w};
                float value = finish(s, run, run.alpha * values[k], place, bias, z);
                sim_blend(s.type, at, first + k * t.strides[1], value, run.beta);
            }
        }
}

void state_operands(const sim_conv_shape &s, const sim_conv_run &run, sim_direction direction)
{
    struct {
        const void *at;
        size_t bytes;
        bool written;
    } operands[] = {{run.x, sim_tensor_bytes(s.x), direction == SIM_BACKWARD_DATA},
                    {run.w, sim_filter_bytes(s.w), direction == SIM_BACKWARD_FILTER},
                    {run.y, sim_tensor_bytes(s.y), direction == SIM_FORWARD}};
    for (auto &operand : operands)
        if (operand.written)
            cusim_writes(const_cast<void *>(operand.at), operand.bytes);
        else
            cusim_reads(operand.at, operand.bytes);
    if (run.bias)
        cusim_reads(run.bias, sim_tensor_bytes(run.bias_desc));
    if (run.z && run.z != run.y)
        cusim_reads(run.z, sim_tensor_bytes(run.z_desc));
}

// The columns of a matrix in the order that the sum over them shall take.
void permute_columns(const int64_t *order, int64_t rows, int64_t columns, float *matrix)
{
    float *row = sim_scratch(5, (size_t)columns);
    for (int64_t i = 0; i < rows; i++, matrix += columns) {
        std::copy_n(matrix, columns, row);
        for (int64_t j = 0; j < columns; j++)
            matrix[j] = row[order[j]];
    }
}

// Small images go through a product together, so that the filter is packed less often.
int64_t images_at_once(const sim_conv_shape &s)
{
    return std::min(s.x.dims[0], std::max<int64_t>(1, 512 / pixels(s)));
}

int64_t image_size(const sim_tensor &t)
{
    return t.dims[1] * t.dims[2] * t.dims[3];
}

} // namespace

void sim_conv_forward(const sim_conv_shape &s, const sim_conv_run &run)
{
    state_operands(s, run, SIM_FORWARD);
    uint64_t seed = sim_spoil(run.workspace, run.workspace_bytes);
    int64_t k = s.w.k, rows = pixels(s), at_once = images_at_once(s), size = image_size(s.x);
    float *filter = sim_scratch(0, (size_t)(k * s.depth)),
          *images = sim_scratch(1, (size_t)(at_once * size));
    float *windows = sim_scratch(2, (size_t)(at_once * rows * s.depth));
    float *out = sim_scratch(3, (size_t)(at_once * rows * k));
    load_filter(s, cusim_host(run.w), filter);
    for (int64_t n = 0; n < s.x.dims[0]; n += at_once) {
        int64_t count = std::min(at_once, s.x.dims[0] - n);
        for (int64_t i = 0; i < count; i++)
            load_image(s, s.x, cusim_host(run.x), n + i, images + i * size);
        std::fill_n(out, count * rows * k, 0.0f);
        for (int64_t g = 0; g < s.conv.groups; g++) {
            for (int64_t i = 0; i < count; i++)
                lay_out_windows(s, images + i * size, g, windows + i * rows * s.depth);
            sim_product(count * rows, s.k_group, s.depth, {windows, s.depth, 1},
                        {filter + g * s.k_group * s.depth, 1, s.depth}, out + g * s.k_group, k);
        }
        for (int64_t i = 0; i < count; i++)
            store_image(s, run, s.y, cusim_host(run.y), n + i, out + i * rows * k);
    }
    sim_unspoiled(run.name, run.workspace, run.workspace_bytes, seed);
}

void sim_conv_backward_data(const sim_conv_shape &s, const sim_conv_run &run)
{
    state_operands(s, run, SIM_BACKWARD_DATA);
    uint64_t seed = sim_spoil(run.workspace, run.workspace_bytes);
    int64_t k = s.w.k, rows = pixels(s), at_once = images_at_once(s), size = image_size(s.x);
    std::vector<int64_t> order((size_t)k);
    for (int64_t g = 0; g < s.conv.groups; g++) {
        sim_order(run.changing ? seed : 0, s.k_group, order.data() + g * s.k_group);
        for (int64_t i = 0; i < s.k_group; i++)
            order[(size_t)(g * s.k_group + i)] += g * s.k_group;
    }
    float *plain = sim_scratch(0, (size_t)(k * s.depth)),
          *filter = sim_scratch(1, (size_t)(k * s.depth));
    float *images = sim_scratch(2, (size_t)(at_once * size)),
          *dy = sim_scratch(4, (size_t)(at_once * rows * k));
    float *windows = sim_scratch(3, (size_t)(at_once * rows * s.depth));
    load_filter(s, cusim_host(run.w), plain);
    for (int64_t i = 0; i < k; i++)
        std::copy_n(plain + order[(size_t)i] * s.depth, s.depth, filter + i * s.depth);
    for (int64_t n = 0; n < s.x.dims[0]; n += at_once) {
        int64_t count = std::min(at_once, s.x.dims[0] - n);
        for (int64_t i = 0; i < count; i++)
            load_image(s, s.y, cusim_host(run.y), n + i, dy + i * rows * k);
        if (run.changing)
            permute_columns(order.data(), count * rows, k, dy);
        std::fill_n(images, count * size, 0.0f);
        for (int64_t g = 0; g < s.conv.groups; g++) {
            std::fill_n(windows, count * rows * s.depth, 0.0f);
            sim_product(count * rows, s.depth, s.k_group, {dy + g * s.k_group, k, 1},
                        {filter + g * s.k_group * s.depth, s.depth, 1}, windows, s.depth);
            for (int64_t i = 0; i < count; i++)
                add_windows(s, windows + i * rows * s.depth, g, images + i * size);
        }
        for (int64_t i = 0; i < count; i++)
            store_image(s, run, s.x, cusim_host(run.x), n + i, images + i * size);
    }
    sim_unspoiled(run.name, run.workspace, run.workspace_bytes, seed);
}

void sim_conv_backward_filter(const sim_conv_shape &s, const sim_conv_run &run)
{
    state_operands(s, run, SIM_BACKWARD_FILTER);
    uint64_t seed = sim_spoil(run.workspace, run.workspace_bytes);
    int64_t k = s.w.k, rows = pixels(s), size = image_size(s.x);
    // A promised order adds the images together, ascending; the other one adds them one by one, as
    // they come, the rows of each in one of two orders, too.
    int64_t at_once = run.changing ? 1 : images_at_once(s), half = run.changing ? rows / 2 : 0;
    std::vector<int64_t> order((size_t)s.x.dims[0]);
    sim_order(run.changing ? seed : 0, s.x.dims[0], order.data());
    float *sums = sim_scratch(0, (size_t)(k * s.depth)),
          *images = sim_scratch(1, (size_t)(at_once * size));
    float *windows = sim_scratch(2, (size_t)(at_once * rows * s.depth));
    float *dy = sim_scratch(3, (size_t)(at_once * rows * k));
    std::fill_n(sums, k * s.depth, 0.0f);
    auto add_rows = [&](int64_t first, int64_t last, int64_t g) {
        sim_product(s.k_group, s.depth, last - first, {dy + first * k + g * s.k_group, 1, k},
                    {windows + first * s.depth, s.depth, 1}, sums + g * s.k_group * s.depth,
                    s.depth);
    };
    for (int64_t n = 0; n < s.x.dims[0]; n += at_once) {
        int64_t count = std::min(at_once, s.x.dims[0] - n);
        for (int64_t i = 0; i < count; i++) {
            load_image(s, s.x, cusim_host(run.x), order[(size_t)(n + i)], images + i * size);
            load_image(s, s.y, cusim_host(run.y), order[(size_t)(n + i)], dy + i * rows * k);
        }
        bool swapped = run.changing && (seed >> (n % 32 + 8) & 1);
        for (int64_t g = 0; g < s.conv.groups; g++) {
            for (int64_t i = 0; i < count; i++)
                lay_out_windows(s, images + i * size, g, windows + i * rows * s.depth);
            add_rows(swapped ? half : 0, swapped ? count * rows : half, g);
            add_rows(swapped ? 0 : half, swapped ? half : count * rows, g);
        }
    }
    void *dw = cusim_host(run.w);
    int64_t taps = s.w.h * s.w.w;
    for (int64_t row = 0; row < k; row++)
        for (int64_t tap = 0; tap < taps; tap++)
            for (int64_t c = 0; c < s.w.c; c++) {
                int64_t at = tap * s.w.c + c,
                        index = row * s.depth + (s.w.nhwc ? at : c * taps + tap);
                sim_blend(s.type, dw, index, run.alpha * sums[row * s.depth + at], run.beta);
            }
    sim_unspoiled(run.name, run.workspace, run.workspace_bytes, seed);
}
