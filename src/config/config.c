/* config.c - joins the option tables, and what a configuration is as a whole: defaults, sources,
 * fingerprint. */
#include <stdio.h>
#include <string.h>

#include "config/config_impl.h"
#include "ddp/memory.h"

/* What adamw and lamb are used with where nothing else is known; sgd's rate is far too high. */
#define ADAPTIVE_LR 0.001

static const ddp_config defaults = {
    .run =
        {
            .model = "lenet",
            .seed = 3, /* leaves lenet's first plateau early, for every number of ranks */
            .input_shape = "1x28x28",
            .batch_size = 256,
            .bucket_cap = "25",
            .accumulate = 1,
            .workers = -1,
            .lr_base_batch = 256,
            .comm_timeout = 60,
            .log_level = DDP_LOG_INFO,
            .tensorboard = true,
            .checkpoint_epochs = 1,
            .checkpoint_at_end = true,
            .keep = 2,
        },
    .model = {.mlp_widths = "2048,2048"},
    .data =
        {
            .dataset = "fashion-mnist",
            .data_dir = "/usr/share/datasets/fashion-mnist",
            .synthetic_train = 60000,
            .synthetic_test = 10000,
            .synthetic_classes = 10,
        },
    .device = DDP_DEVICE_OPTS_DEFAULTS,
    .comm = DDP_COMM_OPTS_DEFAULTS,
    .reducer = DDP_REDUCER_OPTS_DEFAULTS,
    .optim = DDP_OPTIM_OPTS_DEFAULTS,
    .schedule = DDP_SCHEDULE_OPTS_DEFAULTS,
    .timeline = DDP_TIMELINE_OPTS_DEFAULTS,
    .trainer = {.epochs = 10, .eval_every = 1},
};

ddp_status ddp_config_create(const char *doc, ddp_config **config_out)
{
    ddp_option_group groups[DDPI_CONFIG_GROUPS];
    ddp_config *config;

    DDP_TRY(DDP_ALLOC(config, 1));
    *config = defaults;
    ddpi_config_groups(config, groups);
    ddp_status st =
        ddp_options_create("ddp_train", doc, groups, DDPI_CONFIG_GROUPS, &config->options);
    if (st != DDP_OK) {
        ddp_free(config);
        return st;
    }
    *config_out = config;
    return DDP_OK;
}

void ddp_config_destroy(ddp_config *config)
{
    if (config == NULL)
        return;
    ddp_options_destroy(config->options);
    ddp_free(config);
}

/* A micro-batch is computed again by one rank, whatever the run's config.ini says of its world. */
static void leave_alone(ddp_run_opts *run)
{
    run->loopback_ranks = run->loopback_ranks > 0;
    run->logical_ranks = 0;
    run->rank_weights = run->resume = run->inject = NULL;
}

ddp_status ddp_config_parse(ddp_config *config, int argc, char **argv, char **envp,
                            ddp_options_verdict *verdict_out)
{
    ddp_options_verdict verdict;

    DDP_TRY(ddp_options_parse(config->options, argc, argv, envp, &verdict));
    /* These two answer whatever the values are. */
    if (verdict == DDP_OPTIONS_HELP || verdict == DDP_OPTIONS_VERSION) {
        *verdict_out = verdict;
        return DDP_OK;
    }
    if (config->run.replay != NULL)
        leave_alone(&config->run);
    DDP_TRY(ddpi_config_parse_shape(config->run.input_shape, &config->data.input_shape));
    if (config->run.normalize != NULL && config->run.normalize[0] != 0)
        DDP_TRY(ddpi_config_parse_normalize(config->run.normalize, &config->normalize));
    if (config->run.time_limit != NULL)
        DDP_TRY(ddpi_config_parse_duration(config->run.time_limit, &config->time_limit));
    config->trainer.limits.least = config->run.comm_timeout;
    if (config->run.inject != NULL)
        DDP_TRY(ddp_inject_parse(config->run.inject, &config->trainer.inject));
    bool adaptive = config->optim.kind == DDP_OPTIM_ADAMW || config->optim.kind == DDP_OPTIM_LAMB;
    if (adaptive && !ddp_options_was_set(config->options, "lr"))
        config->optim.lr = ADAPTIVE_LR;
    config->optim.skip_nonfinite = config->trainer.on_nonfinite == DDP_NONFINITE_SKIP;
    DDP_TRY(ddpi_config_check(config));
    config->data.seed = (uint64_t)config->run.seed;
    config->transform.seed = config->data.seed;
    if (config->run.exact && config->run.device == DDP_DEVICE_AUTO)
        config->run.device = DDP_DEVICE_CPU;
    config->comm.timeout_ms = (int64_t)(config->run.comm_timeout * 1000);
    *verdict_out = verdict;
    return DDP_OK;
}

/* Options that hosts may differ in without changing what is computed. */
static bool is_local(const char *name)
{
    static const char *const local[] = {"threads", "workers",     "log-level",
                                        "quiet",   "tensorboard", "run-dir"};

    for (size_t i = 0; i < sizeof local / sizeof local[0]; i++)
        if (strcmp(name, local[i]) == 0)
            return true;
    return false;
}

static void add_line(void *arg, const char *name, const char *value)
{
    FILE *stream = arg;

    if (!is_local(name))
        fprintf(stream, "%s=%s\n", name, value);
}

ddp_status ddp_config_fingerprint(const ddp_config *config, char **text_out)
{
    char text[8192] = "";
    FILE *stream = fmemopen(text, sizeof text - 1, "w");

    if (stream == NULL)
        return DDP_FAIL(DDP_ERR_NOMEM, "no memory for the text of the options");
    fprintf(stream, "version=%s\n", DDP_VERSION);
    ddp_options_visit(config->options, add_line, stream);
    if (config->run.exact)
        fprintf(stream, "threads=%d\n", config->run.threads > 0 ? (int)config->run.threads : 1);
    if (fclose(stream) != 0)
        return DDP_FAIL(DDP_ERR_USAGE, "the options' texts are longer than %zu bytes together",
                        sizeof text);
    return ddp_strdup(text, text_out);
}
