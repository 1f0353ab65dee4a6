/* records.c - what a run says about itself: at its start (the run record, environment.json, the
 * model's table) and at its end (the summary record and the last lines on the console). */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "app/run.h"
#include "ddp/memory.h"

/* ---- the start ---- */

static void add_option(void *arg, const char *name, const char *value)
{
    ddp_json_set_string(arg, name, value);
}

static ddp_status add_options(const ddpi_run *run, ddp_json *record)
{
    ddp_json *options;

    DDP_TRY(ddp_json_object(&options));
    ddp_options_visit(run->app->config->options, add_option, options);
    ddp_json_set(record, "options", options);
    return DDP_OK;
}

static bool seen_before(const ddpi_run *run, int rank)
{
    for (int r = 0; r < rank; r++)
        if (strcmp(run->ranks[r].host, run->ranks[rank].host) == 0)
            return true;
    return false;
}

static ddp_status add_hosts(const ddpi_run *run, ddp_json *record)
{
    ddp_json *hosts;

    DDP_TRY(ddp_json_array(&hosts));
    for (int r = 0; r < run->world; r++)
        if (!seen_before(run, r))
            ddp_json_append_string(hosts, run->ranks[r].host);
    ddp_json_set(record, "hosts", hosts);
    return DDP_OK;
}

static int64_t sample_count(const ddp_dataset *dataset)
{
    return dataset != NULL ? ddp_dataset_get_info(dataset)->count : 0;
}

static ddp_status add_dataset(const ddpi_run *run, ddp_json *record)
{
    ddp_json *dataset;

    DDP_TRY(ddp_json_object(&dataset));
    ddp_json_set_string(dataset, "name", run->config.data.dataset);
    ddp_json_set_int(dataset, "train", sample_count(run->data.train));
    ddp_json_set_int(dataset, "val", sample_count(run->data.val));
    ddp_json_set_int(dataset, "test", sample_count(run->data.test));
    ddp_json_set(record, "dataset", dataset);
    return DDP_OK;
}

static ddp_status fill_run(const ddpi_run *run, ddp_json *record)
{
    ddp_json_set_string(record, "kind", "run");
    ddp_json_set_string(record, "version", DDP_VERSION);
    DDP_TRY(add_options(run, record));
    ddp_json_set_int(record, "world_size", run->world);
    ddp_json_set_int(record, "logical_ranks", run->config.shards);
    DDP_TRY(ddpi_run_add_shares(run, record));
    DDP_TRY(ddpi_run_add_buckets(run, record));
    DDP_TRY(add_hosts(run, record));
    ddp_json_set_string(record, "device", ddp_device_describe(run->net.device));
    DDP_TRY(add_dataset(run, record));
    ddp_json_set_int(record, "parameters",
                     ddp_param_table_elements(ddp_model_params(run->net.model)));
    ddp_json_set_number(record, "peak_flops", run->net.peak_flops);
    return DDP_OK;
}

static ddp_status write_run(const ddpi_run *run)
{
    ddp_json *record;

    DDP_TRY(ddp_json_object(&record));
    ddp_status st = fill_run(run, record);
    if (st != DDP_OK) {
        ddp_json_destroy(record);
        return st;
    }
    return ddp_metrics_write(run->metrics, record);
}

/* Line by line: a message has a limit that a table of many layers passes. */
static void print_lines(char *text)
{
    char *rest = text;

    for (char *line; (line = strsep(&rest, "\n")) != NULL;)
        if (line[0] != 0)
            ddp_log_print("%s", line);
}

static void print_transform(const char *images, const ddp_transform *transform)
{
    char text[160];

    if (ddp_transform_describe(transform, text, sizeof text)[0] != 0)
        ddp_log_print("%s images: %s", images, text);
}

static void print_lr(const ddp_config *config)
{
    if (config->run.lr_scale == DDP_LR_SCALE_NONE)
        return;
    ddp_log_print("learning rate %.6g: --lr %.6g scaled %s by batch %" PRId64 " over %.6g",
                  config->lr, config->optim.lr,
                  config->run.lr_scale == DDP_LR_SCALE_SQRT ? "by the root," : "linearly,",
                  config->global_batch, config->run.lr_base_batch);
}

/* How sums are made over several nodes, where that was measured. */
static void print_choices(const ddp_comm *comm)
{
    char text[256] = "";
    ddp_sum_trial c;

    for (int i = 0; ddp_comm_tuned(comm, i, &c); i++) {
        const size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s%zu KiB %s %.3g ms (%.3g)", i > 0 ? ", " : "",
                 c.bytes / 1024, c.two_level ? "two levels" : "flat",
                 1e3 * (c.two_level ? c.two_level_seconds : c.flat_seconds),
                 1e3 * (c.two_level ? c.flat_seconds : c.two_level_seconds));
    }
    if (text[0] != '\0')
        ddp_log_print("sums over nodes (and the other way): %s", text);
}

static ddp_status print_start(const ddpi_run *run)
{
    const ddp_config *config = &run->config;
    char *text;

    if (config->run.quiet)
        return DDP_OK;
    DDP_TRY(ddp_model_summary(run->net.model, &text));
    print_lines(text);
    ddp_free(text);
    size_t flat = ddp_param_table_length(ddp_model_params(run->net.model)) * sizeof(float);
    ddp_log_print("memory of a rank: %.1f MiB parameters, as much for gradients, %.1f MiB "
                  "activations and scratch",
                  (double)flat / (1 << 20),
                  (double)ddp_model_activation_bytes(run->net.model) / (1 << 20));
    const bool lane = ddp_comm_has_lane(run->comm);
    ddp_log_print("ranks: %d over %s%s%s on %d node(s), %d thread(s) each; %s", run->world,
                  ddp_comm_backend_name(run->comm), lane ? ", gradients over " : "",
                  lane ? ddpi_run_lane_name(run) : "", ddp_comm_node_count(run->comm),
                  config->device.threads, ddp_device_describe(run->net.device));
    print_choices(run->comm);
    print_transform("test", run->data.eval_transform);
    if (config->run.eval_only)
        return DDP_OK;
    print_transform("training", run->data.train_transform);
    ddp_log_print("%" PRId64 " training samples, batch %" PRId64 " in %" PRId64 " shards, %" PRId64
                  " steps an epoch",
                  run->data.sampler.size, config->global_batch, config->shards,
                  ddp_sampler_steps(&run->data.sampler));
    ddpi_run_print_shares(run);
    ddpi_run_print_buckets(run);
    print_lr(config);
    return DDP_OK;
}

ddp_status ddpi_run_describe(ddpi_run *run)
{
    if (run->rank != 0)
        return DDP_OK;
    if (run->config.trainer.inject.count > 0)
        ddp_warn("this run rehearses mishaps: --inject %s", run->config.run.inject);
    DDP_TRY(ddpi_environment_write(run));
    DDP_TRY(write_run(run));
    DDP_TRY(ddpi_run_write_layers(run));
    return print_start(run);
}

/* ---- the end ---- */

static ddp_status peak_rss(const ddpi_run *run, int64_t *bytes_out)
{
    struct rusage usage = {0};

    /* Linux counts in KiB. It cannot fail with these arguments. */
    getrusage(RUSAGE_SELF, &usage);
    *bytes_out = (int64_t)usage.ru_maxrss * 1024;
    return ddp_comm_allreduce(run->comm, bytes_out, 1, DDP_I64, DDP_REDUCE_MAX, "peak memory");
}

static double share(int64_t hits, int64_t count)
{
    return count > 0 ? (double)hits / (double)count : 0;
}

const char *ddpi_run_status_word(const ddpi_run *run)
{
    if (run->summary.stopped != DDP_SAVER_GO_ON)
        return "stopped";
    return run->config.run.eval_only ? "evaluated" : "trained";
}

static ddp_status write_summary(const ddpi_run *run, int64_t rss)
{
    const ddp_run_summary *s = &run->summary;
    char hash[20];
    ddp_json *record;

    DDP_TRY(ddp_json_object(&record));
    ddp_json_set_string(record, "kind", "summary");
    ddp_json_set_string(record, "status", ddpi_run_status_word(run));
    ddp_json_set_int(record, "epochs", s->epochs);
    ddp_json_set_int(record, "steps", s->steps);
    ddp_json_set_int(record, "skipped_steps", s->skipped_steps);
    if (s->test.count > 0) {
        ddp_json_set_number(record, "test_accuracy", share(s->test.top1, s->test.count));
        ddp_json_set_number(record, "test_top5", share(s->test.top5, s->test.count));
        ddp_json_set_number(record, "test_loss", s->test.loss);
        ddp_json_set_int(record, "test_correct", s->test.top1);
        ddp_json_set_int(record, "test_samples", s->test.count);
    }
    if (run->net.val != NULL && run->val.count > 0)
        ddp_json_set_number(record, "val_accuracy", share(run->val.top1, run->val.count));
    ddp_json_set_number(record, "images_per_s", s->images_per_s);
    ddp_json_set_number(record, "comm_bytes_per_step", s->comm_bytes_per_step);
    ddp_json_set_number(record, "seconds", s->seconds);
    if (run->config.trainer.target_accuracy > 0) {
        ddp_json_set_number(record, "target_accuracy", run->config.trainer.target_accuracy);
        /* Not reached: null, as a number that is none. */
        ddp_json_set_number(record, "seconds_to_target",
                            s->seconds_to_target >= 0 ? s->seconds_to_target : NAN);
    }
    ddp_json_set_int(record, "peak_rss_bytes", rss);
    snprintf(hash, sizeof hash, "%016" PRIx64, s->weights_hash);
    ddp_json_set_string(record, "weights_xxh3", hash);
    DDP_TRY(ddp_metrics_write(run->metrics, record));
    return ddp_metrics_flush(run->metrics);
}

static void print_target(const ddpi_run *run)
{
    double target = run->config.trainer.target_accuracy;
    const ddp_run_summary *s = &run->summary;

    if (target > 0 && s->seconds_to_target >= 0)
        ddp_log_print("target accuracy %g reached after %" PRId64 " epochs, %" PRId64
                      " steps, %.1f s",
                      target, s->epochs, s->steps, s->seconds_to_target);
    else if (target > 0)
        ddp_log_print("target accuracy %g not reached", target);
}

static void print_stop(const ddpi_run *run)
{
    const bool saved = run->config.run.checkpoint_at_end;

    ddp_log_print("stopped after step %" PRId64 ": %s", run->summary.steps,
                  run->summary.stopped == DDP_SAVER_TIME ? "the time is up"
                                                         : "a signal asked for it");
    ddp_log_print("run directory %s%s", run->dir, saved ? "; --resume auto goes on from here" : "");
}

static void print_end(const ddpi_run *run, int64_t rss)
{
    const ddp_run_summary *s = &run->summary;
    int digits = s->images_per_s < 100 ? 2 : 0;

    if (run->net.val != NULL && run->val.count > 0)
        ddp_log_print("validation accuracy %.4f (%" PRId64 " of %" PRId64 ")",
                      share(run->val.top1, run->val.count), run->val.top1, run->val.count);
    if (s->test.count > 0)
        ddp_log_print("test accuracy %.4f (%" PRId64 " of %" PRId64 ")",
                      share(s->test.top1, s->test.count), s->test.top1, s->test.count);
    if (run->config.run.eval_only)
        ddp_log_print("%.*f images/s, %.1f s", digits, s->images_per_s, s->seconds);
    else if (isnan(s->images_per_s)) /* a resumed run that had nothing left to do */
        ddp_log_print("no step was left to do, %" PRId64 " steps", s->steps);
    else
        ddp_log_print("%.*f images/s (median step), %" PRId64 " steps, %.1f s", digits,
                      s->images_per_s, s->steps, s->seconds);
    ddp_log_print("peak memory of a rank: %.0f MiB", (double)rss / (1 << 20));
    print_target(run);
    if (run->config.run.exact)
        ddp_log_print("weights %016" PRIx64, s->weights_hash);
    ddp_log_print("run directory %s", run->dir);
}

ddp_status ddpi_run_finish(ddpi_run *run)
{
    int64_t rss;

    DDP_TRY(peak_rss(run, &rss));
    if (run->rank != 0)
        return DDP_OK;
    DDP_TRY(write_summary(run, rss));
    if (run->summary.stopped != DDP_SAVER_GO_ON)
        print_stop(run);
    else
        print_end(run, rss);
    return DDP_OK;
}
