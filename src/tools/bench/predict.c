/* predict.c - ddp_bench predict: efficiency over ranks for several links, and what would help. */
#include "tools/bench/predict.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ddp/fs.h"
#include "ddp/memory.h"

enum { METRICS_BYTES = 64 << 20 };
#define MAX_SPREAD 100.0 /* of a measured one */

#define AT(field) offsetof(ddpi_predict_opts, field)
static const ddp_option scene_options[] = {
    {"layers", DDP_OPT_STRING, AT(layers), 0, 0, NULL, "FILE",
     "When a rank's gradients are complete: layers.json, which ddp_train --bucket-cap-mb auto "
     "writes "
     "into its run directory"},
    {"speed", DDP_OPT_DOUBLE, AT(speed), 1e-6, 1e6, NULL, "X",
     "Ranks that compute X times as fast"},
    {"spread", DDP_OPT_STRING, AT(spread), 0, 0, NULL, "X|FILE",
     "Deviation of a rank's computing from step to step over its mean, or metrics.jsonl of a run "
     "of "
     "one rank, where it is measured"},
    {"ranks", DDP_OPT_STRING, AT(ranks), 0, 0, NULL, "LIST", "Numbers of ranks, up to 65536"},
    {"ranks-per-host", DDP_OPT_INT, AT(per_host), 1, 1024, NULL, "N", "They share a link"},
    {"first-bucket-mb", DDP_OPT_DOUBLE, AT(first_mb), 1e-3, 65536, NULL, "MIB",
     "As ddp_train's option"},
    {"bucket-cap-mb", DDP_OPT_STRING, AT(cap), 0, 0, NULL, "auto|MIB",
     "As ddp_train's option; auto: the best cut for each link and number of ranks"},
    {"accumulate", DDP_OPT_INT, AT(accumulate), 1, 1 << 20, NULL, "N",
     "Micro-batches between two sums, each as large as that of the layers' times"},
    {"bf16", DDP_OPT_BOOL, AT(bf16), 0, 0, NULL, NULL, "Gradients travel in two bytes a number"},
    {"seed", DDP_OPT_INT, AT(seed), 0, 1e15, NULL, "N", "Of the stragglers' draws"},
    {0},
};
static const ddp_option net_options[] = {
    {"algorithm", DDP_OPT_CHOICE, AT(algo), 0, 0, "ring|tree|rhd|best", NULL,
     "Of sums between hosts; best: the fastest for each size"},
    {"two-levels", DDP_OPT_BOOL, AT(two_levels), 0, 0, NULL, NULL,
     "Sums inside hosts first, then between them"},
    {"links", DDP_OPT_STRING, AT(links), 0, 0, NULL, "LIST", "Rates of a host's link, in Gbit/s"},
    {"link-share", DDP_OPT_DOUBLE, AT(link_share), 0.01, 1, NULL, "X",
     "Share of a link's rate that sums come to"},
    {"latency-us", DDP_OPT_DOUBLE, AT(latency_us), 0, 1e6, NULL, "US",
     "Of a message between hosts"},
    {"local-gbs", DDP_OPT_DOUBLE, AT(local_gbs), 1e-3, 1e5, NULL, "GB/S",
     "Rate between ranks of a host, in 10^9 bytes a second"},
    {"local-latency-us", DDP_OPT_DOUBLE, AT(local_latency_us), 0, 1e6, NULL, "US",
     "Of a message inside a host"},
    {"curve", DDP_OPT_STRING, AT(curve), 0, 0, NULL, "FILE",
     "In place of --links and --latency-us: allreduce.json of ddp_bench allreduce --out, measured "
     "between hosts of one rank each"},
    {"curve-algorithm", DDP_OPT_CHOICE, AT(curve_algo), 0, 0, "ring|tree|rhd", NULL,
     "How those sums were made"},
    {0},
};

static const char doc[] =
    "Predicts the efficiency of training on many ranks from the times of one rank's layers and the "
    "time of sums.\v"
    "Example: ddp_train --model resnet50 ... --bucket-cap-mb auto --max-steps 1 --run-dir one\n"
    "         ddp_bench predict --layers one/layers.json --ranks-per-host 8 --out report\n\n"
    "A step takes the slowest rank's forward and backward, what is left of the sums when backward "
    "is over, and the update. Efficiency is the time of one rank alone over that, for as many "
    "samples a rank. The last table changes one thing at a time, for the most ranks.\n\n"
    "--out DIR writes predict.txt, predict.json and predict.svg.";

/* ---- what is given ---- */

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static int fewer_first(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* The deviation of normal numbers with this median distance from the median; outliers, which are
 * other programs' doing, have no weight. */
static double deviation(double *values, int count)
{
    const double normal = 1.4826;

    qsort(values, (size_t)count, sizeof *values, ascending);
    const double median = values[count / 2];
    for (int i = 0; i < count; i++)
        values[i] = fabs(values[i] - median);
    qsort(values, (size_t)count, sizeof *values, ascending);
    return normal * values[count / 2] / median;
}

/* false: the line is no step. */
static bool computing_of(const char *line, size_t bytes, double *ms_out)
{
    ddp_json *record = NULL;
    const char *kind;
    double forward = 0, backward = 0;
    bool found = false;

    if (ddp_json_load(line, bytes, "a step", &record) == DDP_OK &&
        ddp_json_as_string(ddp_json_get(record, "kind"), &kind) && strcmp(kind, "step") == 0) {
        const ddp_json *ms = ddp_json_get(record, "ms");
        found = ms != NULL && ddp_json_as_number(ddp_json_get(ms, "forward"), &forward) &&
                ddp_json_as_number(ddp_json_get(ms, "backward"), &backward);
    }
    ddp_json_destroy(record);
    *ms_out = forward + backward;
    return found;
}

static ddp_status measure_spread(const char *path, double *spread_out)
{
    enum { WARM_UP = 3, LEAST = 8 };
    char *text;
    size_t bytes;
    double *values = NULL;
    int count = 0, capacity = 0, seen = 0;

    DDP_TRY(ddp_fs_read(path, METRICS_BYTES, &text, &bytes));
    ddp_status st = DDP_OK;
    for (char *line = text, *end; st == DDP_OK && *line != 0; line = end + (*end != 0)) {
        double ms;
        end = line + strcspn(line, "\n");
        if (!computing_of(line, (size_t)(end - line), &ms) || seen++ < WARM_UP)
            continue;
        st = DDP_GROW(values, capacity, count);
        if (st == DDP_OK)
            values[count++] = ms;
    }
    if (st == DDP_OK && count < LEAST)
        st = DDP_FAIL(DDP_ERR_FORMAT, "%s: found %d steps behind the first %d, expected %d", path,
                      count, WARM_UP, LEAST);
    if (st == DDP_OK)
        *spread_out = deviation(values, count);
    if (st == DDP_OK && !(*spread_out >= 0 && *spread_out <= MAX_SPREAD))
        st = DDP_FAIL(DDP_ERR_FORMAT, "%s: the times of its steps do not belong together", path);
    ddp_free(values);
    ddp_free(text);
    return st;
}

static ddp_status read_spread(ddpi_prediction *p)
{
    char *end;

    p->spread = strtod(p->opts.spread, &end);
    if (end == p->opts.spread || *end != 0)
        return measure_spread(p->opts.spread, &p->spread);
    if (p->spread >= 0 && p->spread < 1)
        return DDP_OK;
    return DDP_FAIL(DDP_ERR_USAGE, "option --spread: found %s, expected 0 or more, less than 1",
                    p->opts.spread);
}

static ddp_status read_cap(ddpi_prediction *p)
{
    char *end;

    p->cap_bytes = 0;
    if (strcmp(p->opts.cap, "auto") == 0)
        return DDP_OK;
    p->cap_bytes = strtod(p->opts.cap, &end) * (1 << 20);
    if (end != p->opts.cap && *end == 0 && p->cap_bytes >= 1 && p->cap_bytes < 1e12)
        return DDP_OK;
    return DDP_FAIL(DDP_ERR_USAGE,
                    "option --bucket-cap-mb: found \"%s\", expected auto or a number of MiB",
                    p->opts.cap);
}

static void take_hosts(const ddpi_predict_opts *o, ddpi_sum_net *net)
{
    net->local_latency = o->local_latency_us * 1e-6;
    net->local_bytes_per_second = o->local_gbs * 1e9;
    net->per_host = o->per_host;
}

static ddp_status read_curve(ddpi_prediction *p)
{
    ddpi_predict_link *link = &p->links[0];

    DDP_TRY(ddp_cost_curve_load(p->opts.curve, &link->net.link));
    const int ranks = link->net.link.hosts > 1 ? link->net.link.hosts : link->net.link.ranks;
    if (ranks < 2)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: expected \"ranks\" of 2 or more", p->opts.curve);
    link->net.reference = ddpi_sum_shape_of((ddpi_sum_algo)p->opts.curve_algo, ranks);
    snprintf(link->name, sizeof link->name, "measured");
    take_hosts(&p->opts, &link->net);
    p->link_count = 1;
    return DDP_OK;
}

static ddp_status read_links(ddpi_prediction *p)
{
    const ddpi_bench_list list = {
        .option = "links", .min = 1, .max = 1000000, .limit = DDPI_PREDICT_LINKS};
    const ddpi_predict_opts *o = &p->opts;
    int64_t gbits[DDPI_PREDICT_LINKS];

    if (o->curve != NULL)
        return read_curve(p);
    DDP_TRY(ddpi_bench_numbers(&list, o->links, gbits, &p->link_count));
    for (int i = 0; i < p->link_count; i++) {
        ddpi_predict_link *link = &p->links[i];
        link->net =
            ddpi_sum_net_line(o->latency_us * 1e-6, (double)gbits[i] * 1e9 / 8 * o->link_share);
        snprintf(link->name, sizeof link->name, "%lld Gbit/s", (long long)gbits[i]);
        take_hosts(o, &link->net);
    }
    return DDP_OK;
}

static ddp_status read_all(ddpi_prediction *p)
{
    const ddpi_bench_list list = {
        .option = "ranks", .min = 1, .max = 65536, .limit = DDPI_PREDICT_RANKS};

    if (p->opts.layers == NULL)
        return DDP_FAIL(DDP_ERR_USAGE, "option --layers: expected a file of layers' times");
    DDP_TRY(ddpi_bench_numbers(&list, p->opts.ranks, p->ranks, &p->rank_count));
    qsort(p->ranks, (size_t)p->rank_count, sizeof *p->ranks, fewer_first);
    DDP_TRY(read_cap(p));
    DDP_TRY(read_spread(p));
    DDP_TRY(read_links(p));
    DDP_TRY(ddpi_profile_load(p->opts.layers, &p->profile));
    ddpi_profile_speed_up(&p->profile, p->opts.speed);
    return DDP_ALLOC(p->outlooks, (size_t)p->link_count * (size_t)p->rank_count);
}

/* ---- looking ahead ---- */

ddpi_scene ddpi_predict_scene(const ddpi_prediction *p, int link, int64_t ranks)
{
    const ddpi_predict_opts *o = &p->opts;

    return (ddpi_scene){.profile = &p->profile,
                        .net = &p->links[link].net,
                        .algo = (ddpi_sum_algo)o->algo,
                        .two_levels = o->two_levels,
                        .ranks = ranks,
                        .first_bytes = o->first_mb * (1 << 20),
                        .cap_bytes = p->cap_bytes,
                        .accumulate = o->accumulate,
                        .shrink = o->bf16 ? 0.5 : 1,
                        .spread = p->spread,
                        .seed = (uint64_t)o->seed};
}

static ddp_status foresee_all(ddpi_prediction *p)
{
    for (int l = 0; l < p->link_count; l++)
        for (int r = 0; r < p->rank_count; r++) {
            const ddpi_scene scene = ddpi_predict_scene(p, l, p->ranks[r]);
            DDP_TRY(ddpi_foresee(&scene, &p->outlooks[l * p->rank_count + r]));
        }
    return DDP_OK;
}

static ddp_status predict(ddpi_prediction *p)
{
    DDP_TRY(read_all(p));
    DDP_TRY(foresee_all(p));
    ddp_status st = ddpi_bench_out_open(&p->opts.out, "predict");
    if (st == DDP_OK)
        st = ddpi_predict_report(p, &p->opts.out);
    const ddp_status closed = ddpi_bench_out_close(&p->opts.out);
    return st != DDP_OK ? st : closed;
}

ddp_status ddpi_bench_predict(const ddpi_bench_call *call)
{
    ddpi_prediction p = {
        .opts = {.ranks = "1,2,4,8,16,32,64,128,256,512,1024,2048,4096,8192,16384,32768,"
                          "65536",
                 .links = "10,25,100,400",
                 .cap = "25",
                 .spread = "0.02",
                 .algo = DDPI_SUM_BEST,
                 .per_host = 1,
                 .accumulate = 1,
                 .seed = 1,
                 .latency_us = 10,
                 .local_latency_us = 2,
                 .local_gbs = 10,
                 .link_share = 0.9,
                 .first_mb = 1,
                 .speed = 1,
                 .out = DDPI_BENCH_OUT_DEFAULTS}};
    const ddp_option_group groups[] = {{"A rank, and how many", scene_options, &p.opts},
                                       {"What carries sums", net_options, &p.opts},
                                       {"Results", ddpi_bench_out_options, &p.opts.out}};
    const ddpi_bench_form form = {"ddp_bench predict", doc, groups, 3};
    ddp_options *options;
    bool run = false;

    ddp_status st = ddpi_bench_parse(call, &form, &options, &run);
    if (st == DDP_OK && run)
        st = predict(&p);
    ddpi_profile_free(&p.profile);
    ddp_free(p.outlooks);
    ddp_options_destroy(options);
    return st;
}
