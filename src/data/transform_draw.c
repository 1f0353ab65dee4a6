/* transform_draw.c - which box, window, flip and cutout an image gets.
 *
 * A sample has BLOCKS blocks of four words in the stream of its epoch: one for the window and the
 * flip, one for the cutout, and one for each attempt at a random box. Each draw has its own word
 * whatever else is asked for, so that adding a flip does not move the crops. No state. */
#include <math.h>

#include "data/transform_impl.h"
#include "ddp/rng.h"

enum { BLOCK_WINDOW = 0, BLOCK_CUTOUT = 1, BLOCK_BOX = 2, BLOCKS = 16 };
/* RandomResizedCrop's: attempts, least share of the area, largest ratio of the sides. */
enum { ATTEMPTS = 10 };
#define LEAST_AREA    0.08
#define LARGEST_RATIO (4.0 / 3.0)

static void draw(const ddp_transform *t, ddp_transform_key key, uint64_t block, uint32_t words[4])
{
    ddp_rng rng = ddp_rng_make(t->seed, DDP_RNG_AUGMENT, (uint32_t)key.epoch);
    ddp_rng_block(&rng, (uint64_t)key.sample * BLOCKS + block, words);
}

/* From 0 to count - 1. No value is likelier than another by more than count / 2^32 of it. */
static int64_t below(uint32_t word, int64_t count)
{
    return (int64_t)(((uint64_t)word * (uint64_t)count) >> 32);
}

static double between(uint32_t word, double low, double high)
{
    return low + (high - low) * ((double)word * 0x1p-32);
}

/* Python's round(), which torchvision uses: a half goes to the even neighbour. */
static int64_t half_to_even(int64_t twice)
{
    int64_t down = twice / 2;
    return twice % 2 != 0 && down % 2 != 0 ? down + 1 : down;
}

/* ---- the random box ---- */

/* As RandomResizedCrop.get_params(): area uniform, logarithm of the ratio uniform, place uniform.
 */
static bool try_box(const uint32_t words[4], int64_t height, int64_t width, ddp_transform_params *p)
{
    double area = (double)height * (double)width * between(words[0], LEAST_AREA, 1);
    double limit = log(LARGEST_RATIO), ratio = exp(between(words[1], -limit, limit));
    int64_t w = (int64_t)rint(sqrt(area * ratio)), h = (int64_t)rint(sqrt(area / ratio));
    if (w < 1 || w > width || h < 1 || h > height)
        return false;
    p->box_height = h;
    p->box_width = w;
    p->box_top = below(words[2], height - h + 1);
    p->box_left = below(words[3], width - w + 1);
    return true;
}

/* Where no attempt fits: the middle, with as little cut off as the ratio allows. */
static void middle_box(int64_t height, int64_t width, ddp_transform_params *p)
{
    double ratio = (double)width / (double)height;
    p->box_height = height;
    p->box_width = width;
    if (ratio < 1 / LARGEST_RATIO)
        p->box_height = (int64_t)rint((double)width * LARGEST_RATIO);
    else if (ratio > LARGEST_RATIO)
        p->box_width = (int64_t)rint((double)height * LARGEST_RATIO);
    p->box_top = (height - p->box_height) / 2;
    p->box_left = (width - p->box_width) / 2;
}

static void draw_box(const ddp_transform *t, ddp_transform_key key, int64_t height, int64_t width,
                     ddp_transform_params *p)
{
    uint32_t words[4];
    p->resized_height = t->dst.dims[1];
    p->resized_width = t->dst.dims[2];
    for (uint64_t attempt = 0; attempt < ATTEMPTS; attempt++) {
        draw(t, key, BLOCK_BOX + attempt, words);
        if (try_box(words, height, width, p))
            return;
    }
    middle_box(height, width, p);
}

/* ---- the window ---- */

/* As Resize(int): the longer side is cut off to whole pixels. */
static void resize(const ddp_transform *t, int64_t height, int64_t width, ddp_transform_params *p)
{
    p->box_height = p->resized_height = height;
    p->box_width = p->resized_width = width;
    if (t->resize == 0)
        return;
    if (height < width) {
        p->resized_height = t->resize;
        p->resized_width = t->resize * width / height;
    } else {
        p->resized_width = t->resize;
        p->resized_height = t->resize * height / width;
    }
}

static void place_window(const ddp_transform *t, const uint32_t words[4], ddp_transform_params *p)
{
    int64_t spare_y = p->resized_height - t->dst.dims[1];
    int64_t spare_x = p->resized_width - t->dst.dims[2];
    int64_t padding = t->augment.padding;
    if (t->training && t->augment.crop) {
        p->top = below(words[0], spare_y + 2 * padding + 1) - padding;
        p->left = below(words[1], spare_x + 2 * padding + 1) - padding;
    } else {
        p->top = half_to_even(spare_y);
        p->left = half_to_even(spare_x);
    }
}

static int64_t clamp(int64_t value, int64_t limit)
{
    return value < 0 ? 0 : value > limit ? limit : value;
}

/* The square's centre is any pixel; what is outside is lost. */
static void draw_cutout(const ddp_transform *t, ddp_transform_key key, ddp_transform_params *p)
{
    uint32_t words[4];
    int64_t side = t->augment.cutout, height = t->dst.dims[1], width = t->dst.dims[2];
    draw(t, key, BLOCK_CUTOUT, words);
    int64_t top = below(words[0], height) - side / 2, left = below(words[1], width) - side / 2;
    p->cut_top = clamp(top, height);
    p->cut_bottom = clamp(top + side, height);
    p->cut_left = clamp(left, width);
    p->cut_right = clamp(left + side, width);
}

void ddp_transform_draw(const ddp_transform *transform, ddp_transform_key key, int64_t height,
                        int64_t width, ddp_transform_params *params_out)
{
    const ddp_augment *a = &transform->augment;
    ddp_transform_params p = {0};
    uint32_t words[4] = {0};
    if (transform->training && (a->crop || a->flip))
        draw(transform, key, BLOCK_WINDOW, words);
    if (transform->training && a->resized_crop) {
        draw_box(transform, key, height, width, &p);
    } else {
        resize(transform, height, width, &p);
        place_window(transform, words, &p);
    }
    p.flip = transform->training && a->flip && words[2] >> 31 != 0;
    if (transform->training && a->cutout > 0)
        draw_cutout(transform, key, &p);
    *params_out = p;
}
