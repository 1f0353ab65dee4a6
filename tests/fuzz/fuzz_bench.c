/* fuzz_bench.c - libFuzzer target: any bytes, read as the files that ddp_bench looks at: layers'
 * times, a curve of sums, a timeline, and the records of a run.
 *
 * Beyond the sanitizers' findings: what is made of a file that is accepted must be finite and fit
 * together. The file lies in the working directory, as the readers take paths. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ddp/memory.h"
#include "tools/bench/overlap.h"
#include "tools/bench/predict.h"
#include "tools/bench/runs.h"

#define PATH "metrics.jsonl"
/* A layer's square is what the best cut takes. */
enum { MOST_LAYERS = 200 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void require(bool truth, const char *what)
{
    if (truth)
        return;
    fprintf(stderr, "fuzz_bench: %s\n", what);
    abort();
}

static void foresee(const ddpi_profile *profile, const ddpi_sum_net *net)
{
    for (int64_t ranks = 1; ranks <= 65536; ranks *= 256)
        for (int best = 0; best < 2; best++) {
            const ddpi_scene scene = {.profile = profile,
                                      .net = net,
                                      .algo = DDPI_SUM_BEST,
                                      .two_levels = best != 0,
                                      .ranks = ranks,
                                      .first_bytes = 1 << 20,
                                      .cap_bytes = best != 0 ? 0 : 25 << 20,
                                      .accumulate = 1,
                                      .shrink = 0.5,
                                      .spread = 0.02,
                                      .seed = 1};
            ddpi_outlook o;
            if (ddpi_foresee(&scene, &o) != DDP_OK)
                return;
            require(isfinite(o.step) && isfinite(o.comm) && o.alone > 0, "times");
            require(o.exposed >= 0 && o.exposed <= o.comm * (1 + 1e-9) + 1e-9 * o.alone, "exposed");
            require(o.efficiency >= 0 && o.efficiency <= 1, "efficiency");
            require(o.buckets >= 1 && o.buckets <= profile->count, "buckets");
            require(ranks > 1 || o.efficiency > 1 - 1e-9, "one rank");
        }
}

static void read_layers(void)
{
    ddpi_profile profile;
    ddpi_sum_net net = ddpi_sum_net_line(1e-5, 1e9);

    net.per_host = 8;
    if (ddpi_profile_load(PATH, &profile) != DDP_OK)
        return;
    require(profile.count >= 1 && strlen(profile.model) < sizeof profile.model, "profile");
    for (int i = 0; i < profile.count; i++)
        require(profile.ready[i] >= 0 && profile.ready[i] <= profile.backward, "ready");
    if (profile.count <= MOST_LAYERS)
        foresee(&profile, &net);
    ddpi_profile_free(&profile);
}

static void read_curve(void)
{
    static double layer_bytes[] = {100, 1 << 20, 1 << 28}, ready[] = {0.01, 0.02, 0.02};
    const ddpi_profile profile = {.count = 3,
                                  .bytes = layer_bytes,
                                  .ready = ready,
                                  .forward = 0.01,
                                  .backward = 0.02,
                                  .update = 0.001};
    ddpi_sum_net net = ddpi_sum_net_line(1e-5, 1e9);
    double last = 0;

    if (ddp_cost_curve_load(PATH, &net.link) != DDP_OK)
        return;
    require(net.link.count >= 1 && net.link.count <= DDP_COST_MAX_POINTS, "points");
    for (double bytes = 0; bytes < 1e13; bytes = bytes * 3 + 1) {
        const double seconds = ddp_cost_seconds(&net.link, bytes);
        require(isfinite(seconds) && seconds >= last * (1 - 1e-9), "seconds");
        last = seconds;
    }
    if (net.link.ranks < 2)
        return;
    net.reference = ddpi_sum_shape_of(DDPI_SUM_RHD, net.link.ranks);
    foresee(&profile, &net);
}

static void check_overlap(const ddpi_overlap *o)
{
    const double rounding = 1e-3; /* of times up to 1e9 s, in sums of many */

    require(o->ranks >= 1 && o->steps >= 1 && o->bucket_count >= 1, "counts");
    require(isfinite(o->step) && isfinite(o->comm) && isfinite(o->backward), "totals");
    require(o->exposed >= -rounding && o->exposed <= o->exposed_mean + rounding, "waits");
    require(ddpi_overlap_share(o) >= 0 && ddpi_overlap_share(o) <= 1, "share");
    for (int i = 0; i < o->bucket_count; i++) {
        const ddpi_overlap_bucket *b = &o->buckets[i];
        require(isfinite(b->ready) && isfinite(b->start) && isfinite(b->end), "bucket");
        require(b->hidden >= -rounding && b->waited >= -rounding && b->took >= 0, "hidden");
    }
}

static void read_trace(void)
{
    ddpi_overlap_trace trace;
    ddpi_overlap overlap;

    if (ddpi_overlap_read(PATH, &trace) != DDP_OK)
        return;
    if (ddpi_overlap_measure(&trace, 1, &overlap) == DDP_OK) {
        check_overlap(&overlap);
        ddpi_overlap_free(&overlap);
    }
    ddp_free(trace.spans);
}

static void read_run(void)
{
    ddpi_run_times times;

    if (ddpi_run_read(".", 1, &times) == DDP_OK)
        require(times.steps >= 1 && times.hosts >= 0, "run");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    FILE *file = fopen(PATH, "w");

    if (file == NULL)
        return 0;
    const bool good = fwrite(data, 1, bytes, file) == bytes;
    if (fclose(file) != 0 || !good)
        return 0;
    read_layers();
    read_curve();
    read_trace();
    read_run();
    return 0;
}
