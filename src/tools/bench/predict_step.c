/* predict_step.c - a rank's profile, and the step of many ranks that follows from it. */
#include <math.h>
#include <string.h>

#include "ddp/fs.h"
#include "ddp/memory.h"
#include "tools/bench/predict.h"

/* The best cut takes time and memory with the square of the layers. */
enum { PROFILE_BYTES = 16 << 20, MAX_LAYERS = 4096, DRAWS = 256 };
#define MAX_SECONDS 1e6
#define MAX_BYTES   1e15

/* ---- profiles ---- */

/* Sums of what is accepted are finite: 11 days for a layer, and a petabyte. */
static ddp_status number_of(const ddp_json *object, const char *key, double limit, const char *path,
                            double *value_out)
{
    if (ddp_json_as_number(ddp_json_get(object, key), value_out) && *value_out >= 0 &&
        *value_out <= limit)
        return DDP_OK;
    return DDP_FAIL(DDP_ERR_FORMAT, "%s: expected \"%s\", a number from 0 to %g", path, key, limit);
}

/* As much of a name as there is room for; a character of several bytes is not cut. */
static void copy_name(const char *name, char *copy, size_t room)
{
    size_t bytes = strlen(name);

    if (bytes >= room)
        for (bytes = room - 1; bytes > 0 && ((unsigned char)name[bytes] & 0xc0) == 0x80;)
            bytes--;
    for (size_t i = 0; i < bytes; i++)
        copy[i] = (unsigned char)name[i] < ' ' || name[i] == 0x7f ? '?' : name[i];
    copy[bytes] = 0;
}

static ddp_status read_layers(const ddp_json *layers, const char *path, ddpi_profile *profile)
{
    DDP_TRY(DDP_ALLOC(profile->bytes, (size_t)profile->count));
    DDP_TRY(DDP_ALLOC(profile->ready, (size_t)profile->count));
    for (int i = 0; i < profile->count; i++) {
        const ddp_json *layer = ddp_json_at(layers, (size_t)i);
        DDP_TRY(number_of(layer, "bytes", MAX_BYTES, path, &profile->bytes[i]));
        DDP_TRY(number_of(layer, "ready", MAX_SECONDS, path, &profile->ready[i]));
        if (profile->ready[i] > profile->backward)
            return DDP_FAIL(DDP_ERR_FORMAT, "%s: layer %d is ready at %g s, after backward's %g",
                            path, i, profile->ready[i], profile->backward);
    }
    return DDP_OK;
}

static ddp_status read_profile(const ddp_json *object, const char *path, ddpi_profile *profile)
{
    const ddp_json *layers = ddp_json_get(object, "layers");
    const size_t count = layers != NULL && ddp_json_is_array(layers) ? ddp_json_length(layers) : 0;
    const char *model = "";
    double per_byte, all = 0;

    if (count < 1 || count > MAX_LAYERS)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: expected \"layers\", a list of 1 to %d", path,
                        MAX_LAYERS);
    (void)ddp_json_as_string(ddp_json_get(object, "model"), &model);
    copy_name(model, profile->model, sizeof profile->model);
    profile->count = (int)count;
    DDP_TRY(number_of(object, "forward", MAX_SECONDS, path, &profile->forward));
    DDP_TRY(number_of(object, "backward", MAX_SECONDS, path, &profile->backward));
    DDP_TRY(number_of(object, "update_per_byte", 1, path, &per_byte));
    if (!(profile->forward + profile->backward > 0))
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: expected a forward or a backward that takes time",
                        path);
    DDP_TRY(read_layers(layers, path, profile));
    for (int i = 0; i < profile->count; i++)
        all += profile->bytes[i];
    profile->update = per_byte * all;
    return DDP_OK;
}

ddp_status ddpi_profile_load(const char *path, ddpi_profile *profile_out)
{
    char *text = NULL;
    size_t bytes;
    ddp_json *object = NULL;
    ddpi_profile profile = {0};

    DDP_TRY(ddp_fs_read(path, PROFILE_BYTES, &text, &bytes));
    ddp_status st = ddp_json_load(text, bytes, path, &object);
    if (st == DDP_OK)
        st = read_profile(object, path, &profile);
    ddp_json_destroy(object);
    ddp_free(text);
    if (st != DDP_OK) {
        ddpi_profile_free(&profile);
        return st;
    }
    *profile_out = profile;
    return DDP_OK;
}

void ddpi_profile_free(ddpi_profile *profile)
{
    ddp_free(profile->bytes);
    ddp_free(profile->ready);
    *profile = (ddpi_profile){0};
}

void ddpi_profile_speed_up(ddpi_profile *profile, double speed)
{
    profile->forward /= speed;
    profile->backward /= speed;
    profile->update /= speed;
    for (int i = 0; i < profile->count; i++)
        profile->ready[i] /= speed;
}

/* ---- a step ---- */

/* The rank that is slowest is so all through the step. */
static ddp_status fill(const ddpi_scene *scene, double slow, double *bytes, double *ready,
                       int *ends, ddpi_outlook *outlook)
{
    const ddpi_profile *p = scene->profile;
    const ddp_cost_curve curve =
        ddpi_sum_curve(scene->net, scene->algo, scene->two_levels, scene->ranks);
    const double before = (double)(scene->accumulate - 1) * (p->forward + p->backward) + p->forward;
    const ddp_cost_step step = {.count = p->count,
                                .bytes = bytes,
                                .ready = ready,
                                .backward = p->backward * slow,
                                .curve = &curve,
                                .hidden = true};

    for (int i = 0; i < p->count; i++) {
        bytes[i] = p->bytes[i] * scene->shrink;
        ready[i] = p->ready[i] * slow;
    }
    if (scene->cap_bytes > 0)
        outlook->buckets = ddp_cost_cut_by_size(&step, scene->first_bytes * scene->shrink,
                                                scene->cap_bytes * scene->shrink, ends);
    else
        DDP_TRY(ddp_cost_best_cut(&step, 20e-6, NULL, 0, ends, &outlook->buckets));
    const ddp_cost_open open = ddp_cost_cut(&step, ends, outlook->buckets);
    outlook->comm = scene->ranks > 1 ? open.comm : 0;
    outlook->exposed = scene->ranks > 1 ? open.exposed : 0;
    outlook->straggling = (before + p->backward) * (slow - 1);
    outlook->alone = before + p->backward + p->update;
    outlook->step = outlook->alone + outlook->straggling + outlook->exposed;
    outlook->efficiency = outlook->alone / outlook->step;
    return DDP_OK;
}

ddp_status ddpi_foresee(const ddpi_scene *scene, ddpi_outlook *outlook_out)
{
    const size_t count = (size_t)scene->profile->count;
    double *bytes = NULL, *ready = NULL;
    int *ends = NULL;
    /* Shards of a step are drawn one by one: their sum spreads less. */
    const double spread = scene->spread / sqrt((double)scene->accumulate);
    const double slow = 1 + spread * ddpi_slowest(scene->ranks, scene->seed, DRAWS);

    ddp_status st = DDP_ALLOC(bytes, count);
    if (st == DDP_OK)
        st = DDP_ALLOC(ready, count);
    if (st == DDP_OK)
        st = DDP_ALLOC(ends, count);
    if (st == DDP_OK)
        st = fill(scene, slow, bytes, ready, ends, outlook_out);
    ddp_free(bytes);
    ddp_free(ready);
    ddp_free(ends);
    return st;
}
