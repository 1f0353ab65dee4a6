/* sleepstep.c - ddp_bench sleepstep: steps of ranks that sleep instead of computing, between real
 * sums, beside what the model of a step predicts.
 *
 * More hosts than there are processors cannot compute side by side, but they can sleep. A rank
 * sleeps until each gradient would be complete and hands it to a real reducer on a real
 * communicator. Buckets are cut by size, and then as --bucket-cap-mb auto would cut them. */
#include <math.h>
#include <string.h>

#include "ddp/memory.h"
#include "ddp/reducer.h"
#include "ddp/thread.h"
#include "tools/bench/predict.h"

enum { MAX_STEPS = 1000 };

typedef struct sleep_opts {
    const char *layers, *curve;
    int64_t steps, warmup;
    int allreduce;
    bool shared_memory;
    double first_mb, cap_mb, speed;
    ddpi_bench_out out;
} sleep_opts;

#define AT(field) offsetof(sleep_opts, field)
static const ddp_option sleep_options[] = {
    {"layers", DDP_OPT_STRING, AT(layers), 0, 0, NULL, "FILE",
     "When gradients are complete: layers.json of ddp_train --bucket-cap-mb auto"},
    {"speed", DDP_OPT_DOUBLE, AT(speed), 1e-6, 1e6, NULL, "X",
     "Ranks that compute X times as fast"},
    {"steps", DDP_OPT_INT, AT(steps), 1, MAX_STEPS, NULL, "N", "Steps that count"},
    {"warmup", DDP_OPT_INT, AT(warmup), 0, MAX_STEPS, NULL, "N", "Steps before them"},
    {"first-bucket-mb", DDP_OPT_DOUBLE, AT(first_mb), 1e-3, 65536, NULL, "MIB",
     "As ddp_train's option"},
    {"bucket-cap-mb", DDP_OPT_DOUBLE, AT(cap_mb), 1e-3, 65536, NULL, "MIB",
     "As ddp_train's option, for the cut by size"},
    {"allreduce", DDP_OPT_CHOICE, AT(allreduce), 0, 0, "auto|shm|mpi|root|ring|tree|rhd|hier", NULL,
     "As ddp_train's option"},
    {"shared-memory", DDP_OPT_BOOL, AT(shared_memory), 0, 0, NULL, NULL,
     "Ranks of a host share memory; --no-shared-memory: each as if alone"},
    {"curve", DDP_OPT_STRING, AT(curve), 0, 0, NULL, "FILE",
     "Predict from this file's times of sums, instead of from sums measured first"},
    {0},
};

static const char doc[] =
    "Makes steps whose ranks sleep for the layers' times, and says what they took beside what was "
    "predicted.\v"
    "Example: mpirun --hostfile hosts -np 8 ddp_bench sleepstep --layers one/layers.json\n\n"
    "Times are of the slowest rank, medians over steps. Forward and backward are as in the file, "
    "the update is left out; what is beyond them is communication that nothing hid.\n\n"
    "--out DIR writes sleepstep.txt and sleepstep.json.";

/* A cut, and what it came to; seconds. */
typedef struct trial {
    const char *name;
    int *ends;
    int count;
    ddp_cost_open predicted;
    double step, exposed; /* measured */
} trial;

typedef struct sleeper {
    const sleep_opts *opts;
    ddpi_profile profile;
    ddp_device *device;
    ddp_comm *comm;
    ddp_param_table *table;
    ddp_cost_curve curve, publish;
    bool hidden;
    trial trials[2];
    double steps[MAX_STEPS], exposed[MAX_STEPS];
} sleeper;

/* ---- a model that sleeps ---- */

static ddp_status add_layer(sleeper *s, int index)
{
    ddp_param param = {.use_count = 1, .init_number = (uint32_t)index};
    const double elements = s->profile.bytes[index] / sizeof(float);
    int at;

    snprintf(param.name, sizeof param.name, "layer%d", index);
    param.shape = (ddp_shape){1, {elements >= 1 ? (int64_t)elements : 1}};
    DDP_TRY(ddp_layout_plain(s->device, &param.shape, &param.layout));
    const ddp_status st = ddp_param_table_add(s->table, &param, &at);
    ddp_layout_unref(param.layout);
    return st;
}

static ddp_status make_model(sleeper *s)
{
    ddp_device_opts opts = DDP_DEVICE_OPTS_DEFAULTS;

    DDP_TRY(ddp_device_open(ddp_device_cpu(), &opts, &s->device));
    DDP_TRY(ddp_param_table_create(&s->table));
    for (int i = 0; i < s->profile.count; i++)
        DDP_TRY(add_layer(s, i));
    return DDP_OK;
}

static void sleep_until(int64_t ns)
{
    for (int64_t now; (now = ddp_now_ns()) < ns;)
        ddp_sleep_ns(ns - now);
}

static ddp_status step(sleeper *s, ddp_reducer *reducer, double *seconds_out, double *exposed_out)
{
    const ddpi_profile *p = &s->profile;
    ddp_reducer_times times;

    DDP_TRY(ddp_comm_barrier(s->comm));
    const int64_t start = ddp_now_ns(), backward = start + (int64_t)(p->forward * 1e9);
    sleep_until(backward);
    DDP_TRY(ddp_reducer_begin(reducer, 0));
    for (int i = 0; i < p->count; i++) {
        sleep_until(backward + (int64_t)(p->ready[i] * 1e9));
        DDP_TRY(ddp_param_grad_done(s->table, i));
    }
    sleep_until(backward + (int64_t)(p->backward * 1e9));
    DDP_TRY(ddp_reducer_gather(reducer, &times));
    *seconds_out = (double)(ddp_now_ns() - start) * 1e-9;
    *exposed_out = (double)times.exposed_ns * 1e-9;
    return DDP_OK;
}

/* ---- trials ---- */

static ddp_reducer_opts reducer_opts(const trial *t)
{
    ddp_reducer_opts opts = DDP_REDUCER_OPTS_DEFAULTS;

    if (t != NULL) {
        opts.cuts = t->ends;
        opts.cut_count = t->count;
    }
    return opts;
}

static ddp_status measure(sleeper *s, ddp_reducer *reducer, trial *t)
{
    const int steps = (int)s->opts->steps, warmup = (int)s->opts->warmup;
    double ignored;

    for (int i = 0; i < warmup; i++)
        DDP_TRY(step(s, reducer, &ignored, &ignored));
    for (int i = 0; i < steps; i++)
        DDP_TRY(step(s, reducer, &s->steps[i], &s->exposed[i]));
    DDP_TRY(ddp_comm_allreduce(s->comm, s->steps, (size_t)steps, DDP_F64, DDP_REDUCE_MAX,
                               "times of steps"));
    DDP_TRY(ddp_comm_allreduce(s->comm, s->exposed, (size_t)steps, DDP_F64, DDP_REDUCE_MAX,
                               "times of steps"));
    t->step = ddpi_bench_measure(s->steps, steps).median;
    t->exposed = ddpi_bench_measure(s->exposed, steps).median;
    return DDP_OK;
}

static ddp_status run_trial(sleeper *s, trial *t)
{
    const ddp_reducer_opts opts = reducer_opts(t);
    ddp_reducer *reducer;

    DDP_TRY(ddp_reducer_create(&opts, s->table, s->device, s->comm, &reducer));
    const ddp_status st = measure(s, reducer, t);
    ddp_reducer_destroy(reducer);
    return st;
}

/* Where sums are carried out by the ranks that wait for them, nothing hides them. */
static ddp_status find_route(sleeper *s)
{
    const ddp_reducer_opts opts = reducer_opts(NULL);
    ddp_reducer *reducer;

    DDP_TRY(ddp_reducer_create(&opts, s->table, s->device, s->comm, &reducer));
    s->hidden = ddp_comm_works_aside(s->comm, ddp_reducer_grads(reducer),
                                     ddp_param_table_length(s->table) * sizeof(float));
    ddp_reducer_destroy(reducer);
    return DDP_OK;
}

static ddp_status cut(sleeper *s)
{
    trial *size = &s->trials[0], *best = &s->trials[1];
    const ddp_cost_step step = {.count = s->profile.count,
                                .bytes = s->profile.bytes,
                                .ready = s->profile.ready,
                                .backward = s->profile.backward,
                                .curve = &s->curve,
                                .publish = s->publish.count > 0 ? &s->publish : NULL,
                                .hidden = s->hidden};

    size->name = "by size";
    best->name = "auto";
    for (int i = 0; i < 2; i++)
        DDP_TRY(DDP_ALLOC(s->trials[i].ends, (size_t)s->profile.count));
    size->count = ddp_cost_cut_by_size(&step, s->opts->first_mb * (1 << 20),
                                       s->opts->cap_mb * (1 << 20), size->ends);
    DDP_TRY(ddp_cost_choose_cut(&step, size->ends, size->count, best->ends, &best->count));
    for (int i = 0; i < 2; i++)
        s->trials[i].predicted = ddp_cost_cut(&step, s->trials[i].ends, s->trials[i].count);
    return DDP_OK;
}

/* Rank 0's numbers are everybody's. */
static ddp_status share_curve(sleeper *s)
{
    const ddp_reducer_opts opts = reducer_opts(NULL);
    double most = 0;
    ddp_status st = DDP_OK;

    for (int i = 0; i < s->profile.count; i++)
        most += s->profile.bytes[i];
    if (s->opts->curve != NULL)
        st = ddp_cost_curve_load(s->opts->curve, &s->curve);
    DDP_TRY(ddp_comm_agree(s->comm, st, "read the curve"));
    if (s->opts->curve == NULL)
        DDP_TRY(ddp_reducer_time_sums(&opts, s->device, s->comm, most, &s->curve, &s->publish));
    DDP_TRY(ddp_comm_broadcast(s->comm, 0, &s->publish, sizeof s->publish));
    return ddp_comm_broadcast(s->comm, 0, &s->curve, sizeof s->curve);
}

static ddp_status run(sleeper *s)
{
    ddp_status st = ddpi_profile_load(s->opts->layers, &s->profile);

    if (st == DDP_OK) {
        ddpi_profile_speed_up(&s->profile, s->opts->speed);
        st = make_model(s);
    }
    DDP_TRY(ddp_comm_agree(s->comm, st, "make a model that sleeps"));
    DDP_TRY(share_curve(s));
    DDP_TRY(find_route(s));
    DDP_TRY(ddp_comm_agree(s->comm, cut(s), "cut buckets"));
    for (int i = 0; i < 2; i++)
        DDP_TRY(run_trial(s, &s->trials[i]));
    return DDP_OK;
}

/* ---- reports ---- */

static double predicted_step(const sleeper *s, const trial *t)
{
    return s->profile.forward + t->predicted.end;
}

static double error_of(const sleeper *s, const trial *t)
{
    return predicted_step(s, t) / t->step - 1;
}

/* Of sums that take no time, all; ranks that wake up late do not make it less than nothing. */
static double hidden_share(const trial *t)
{
    return t->predicted.comm > 0 ? fmax(0, 1 - t->exposed / t->predicted.comm) : 1;
}

static ddp_status print(const sleeper *s, ddpi_bench_out *out)
{
    static const char *const heads[] = {"buckets",           "number",           "step ms",
                                        "predicted step ms", "error %",          "exposed ms",
                                        "predicted exposed", "hidden of sums %", NULL};
    ddpi_bench_table *table;

    DDP_TRY(ddpi_bench_table_create(heads, &table));
    for (int i = 0; i < 2; i++) {
        const trial *t = &s->trials[i];
        ddpi_bench_table_add(table, "%s", t->name);
        ddpi_bench_table_add(table, "%d", t->count);
        ddpi_bench_table_add(table, "%.2f", t->step * 1e3);
        ddpi_bench_table_add(table, "%.2f", predicted_step(s, t) * 1e3);
        ddpi_bench_table_add(table, "%+.1f", error_of(s, t) * 1e2);
        ddpi_bench_table_add(table, "%.2f", t->exposed * 1e3);
        ddpi_bench_table_add(table, "%.2f", t->predicted.exposed * 1e3);
        ddpi_bench_table_add(table, "%.1f", hidden_share(t) * 1e2);
    }
    ddpi_bench_say(
        out,
        "%s, %d ranks on %d host%s, sleeping: forward %.2f ms, backward %.2f ms; sums of "
        "%.2f ms in all, by size.\n\n",
        s->profile.model, ddp_comm_world(s->comm), ddp_comm_node_count(s->comm),
        ddp_comm_node_count(s->comm) == 1 ? "" : "s", s->profile.forward * 1e3,
        s->profile.backward * 1e3, s->trials[0].predicted.comm * 1e3);
    const ddp_status st = ddpi_bench_table_print(table, out);
    ddpi_bench_table_destroy(table);
    return st;
}

static ddp_status fill(const sleeper *s, ddp_json *record)
{
    ddp_json *rows, *row;

    ddp_json_set_string(record, "model", s->profile.model);
    ddp_json_set_number(record, "forward", s->profile.forward);
    ddp_json_set_number(record, "backward", s->profile.backward);
    DDP_TRY(ddp_cost_curve_write(&s->curve, record));
    ddp_json_set_int(record, "ranks", ddp_comm_world(s->comm));
    ddp_json_set_int(record, "hosts", ddp_comm_node_count(s->comm));
    DDP_TRY(ddp_json_array(&rows));
    ddp_json_set(record, "rows", rows);
    for (int i = 0; i < 2; i++) {
        const trial *t = &s->trials[i];
        DDP_TRY(ddp_json_object(&row));
        ddp_json_set_string(row, "cut", t->name);
        ddp_json_set_int(row, "buckets", t->count);
        ddp_json_set_number(row, "step", t->step);
        ddp_json_set_number(row, "predicted_step", predicted_step(s, t));
        ddp_json_set_number(row, "error", error_of(s, t));
        ddp_json_set_number(row, "exposed", t->exposed);
        ddp_json_set_number(row, "predicted_exposed", t->predicted.exposed);
        ddp_json_append(rows, row);
    }
    return DDP_OK;
}

static ddp_status report(const sleeper *s, ddpi_bench_out *out)
{
    ddp_json *record;

    DDP_TRY(print(s, out));
    DDP_TRY(ddp_json_object(&record));
    ddp_status st = fill(s, record);
    if (st == DDP_OK)
        st = ddpi_bench_out_json(out, record);
    ddp_json_destroy(record);
    return st;
}

static ddp_status conclude(const sleeper *s, ddpi_bench_out *out)
{
    ddp_status st = ddpi_bench_out_open(out, "sleepstep");

    if (st == DDP_OK)
        st = report(s, out);
    const ddp_status closed = ddpi_bench_out_close(out);
    return st != DDP_OK ? st : closed;
}

static ddp_status run_ranks(sleep_opts *opts)
{
    ddp_comm_opts comm_opts = DDP_COMM_OPTS_DEFAULTS;
    sleeper *s;

    if (opts->layers == NULL)
        return DDP_FAIL(DDP_ERR_USAGE, "option --layers: expected a file of layers' times");
    DDP_TRY(DDP_ALLOC(s, 1));
    s->opts = opts;
    comm_opts.allreduce = (ddp_allreduce_algo)opts->allreduce;
    comm_opts.shared_memory = opts->shared_memory;
    ddp_status st = ddp_comm_mpi_open(&comm_opts, NULL, NULL, &s->comm);
    if (st == DDP_OK)
        st = ddp_comm_agree(s->comm,
                            ddp_comm_rank(s->comm) == 0 ? ddpi_bench_out_check(&opts->out) : DDP_OK,
                            "prepare --out");
    if (st == DDP_OK) /* as training does */
        st = ddp_comm_tune(s->comm);
    if (st == DDP_OK)
        st = run(s);
    if (st == DDP_OK && ddp_comm_rank(s->comm) == 0)
        st = conclude(s, &opts->out);
    ddp_param_table_destroy(s->table);
    ddp_comm_close(s->comm);
    ddp_device_close(s->device);
    ddpi_profile_free(&s->profile);
    ddp_free(s->trials[0].ends);
    ddp_free(s->trials[1].ends);
    ddp_free(s);
    return st;
}

ddp_status ddpi_bench_sleepstep(const ddpi_bench_call *call)
{
    sleep_opts opts = {.steps = 20,
                       .warmup = 3,
                       .shared_memory = true,
                       .first_mb = 1,
                       .cap_mb = 25,
                       .speed = 1,
                       .out = DDPI_BENCH_OUT_DEFAULTS};
    const ddp_option_group groups[] = {{"What is slept", sleep_options, &opts},
                                       {"Results", ddpi_bench_out_options, &opts.out}};
    const ddpi_bench_form form = {"ddp_bench sleepstep", doc, groups, 2};
    ddp_options *options;
    bool run_it = false;

    ddp_status st = ddpi_bench_parse(call, &form, &options, &run_it);
    if (st == DDP_OK && run_it)
        st = run_ranks(&opts);
    ddp_options_destroy(options);
    return st;
}
