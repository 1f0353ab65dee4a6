/* test_config.c - option rules, and the values that follow from several options. */
#include "harness.h"

#include "ddp/config.h"
#include "ddp/memory.h"

enum { MAX_ARGS = 16 };

/* Parses a command line, separated by single blanks. */
static ddp_status parse(ddp_config **config_out, const char *line)
{
    char text[512];
    char *argv[MAX_ARGS] = {"ddp_train"}, *rest = text, *envp[] = {NULL};
    int argc = 1;
    ddp_options_verdict verdict;

    CHECK_OK(ddp_config_create("test", config_out));
    snprintf(text, sizeof text, "%s", line);
    for (char *word; (word = strsep(&rest, " ")) != NULL && argc < MAX_ARGS;)
        if (word[0] != 0)
            argv[argc++] = word;
    return ddp_config_parse(*config_out, argc, argv, envp, &verdict);
}

static void refused(const char *line, const char *text)
{
    ddp_config *config;

    CHECK_FAILS(parse(&config, line), DDP_ERR_USAGE, text);
    ddp_config_destroy(config);
}

static ddp_config *parsed(const char *line)
{
    ddp_config *config;

    CHECK_OK(parse(&config, line));
    return config;
}

static void the_defaults_are_the_seeds_run(void **state)
{
    (void)state;
    ddp_config *c = parsed("");
    CHECK_OK(ddp_config_resolve(c, 8));
    assert_string_equal(c->run.model, "lenet");
    assert_string_equal(c->data.dataset, "fashion-mnist");
    assert_string_equal(c->data.data_dir, "/usr/share/datasets/fashion-mnist");
    assert_string_equal(c->model.mlp_widths, "2048,2048");
    assert_int_equal(c->trainer.epochs, 10);
    assert_int_equal(c->trainer.eval_every, 1);
    assert_int_equal(c->global_batch, 256);
    assert_int_equal(c->shards, 8);
    assert_int_equal(c->reducer.shards, 1);
    assert_true(c->lr == 0.2);
    assert_true(c->reducer.first_bucket_mb == 1 && c->reducer.bucket_cap_mb == 25);
    assert_int_equal(c->comm.timeout_ms, 60000);
    assert_true(c->comm.shared_memory);
    assert_null(c->transform.augment);
    assert_int_equal(c->transform.input_size + c->transform.eval_resize + c->transform.eval_crop,
                     0);
    assert_int_equal(c->transform.seed, 3);
    assert_int_equal(c->run.comm, DDP_COMM_AUTO);
    assert_int_equal(c->data.input_shape.dims[2], 28);
    ddp_config_destroy(c);
}

static void choices_match_their_enums(void **state)
{
    (void)state;
    ddp_config *c = parsed("--device cuda --comm loopback --strategy naive --allreduce rhd "
                           "--conv-algo gemm --lr-scale sqrt --log-level debug");
    assert_int_equal(c->run.device, DDP_DEVICE_CUDA);
    assert_int_equal(c->run.comm, DDP_COMM_LOOPBACK);
    assert_int_equal(c->run.strategy, DDP_STRATEGY_NAIVE);
    assert_int_equal(c->comm.allreduce, DDP_ALLREDUCE_RHD);
    assert_int_equal(c->device.conv_algo, DDP_CONV_GEMM);
    assert_int_equal(c->run.lr_scale, DDP_LR_SCALE_SQRT);
    assert_int_equal(c->run.log_level, DDP_LOG_DEBUG);
    ddp_config_destroy(c);
    c = parsed("--bind none --comm nccl --share-device=no");
    assert_int_equal(c->run.bind, DDP_BIND_NONE);
    assert_int_equal(c->run.comm, DDP_COMM_NCCL);
    assert_false(c->run.share_device);
    assert_false(c->device.tf32 || c->device.tune);
    ddp_config_destroy(c);
    c = parsed("--tf32");
    assert_true(c->device.tf32 && !c->device.tune);
    assert_int_equal(c->run.cuda_graph, DDP_GRAPH_AUTO);
    ddp_config_destroy(c);
    c = parsed("--cuda-graph off");
    assert_int_equal(c->run.cuda_graph, DDP_GRAPH_OFF);
    ddp_config_destroy(c);
    c = parsed("--tune-kernels");
    assert_true(c->device.tune && !c->device.tf32);
    ddp_config_destroy(c);
}

static void values_that_do_not_fit_together_are_refused(void **state)
{
    (void)state;
    refused("--nesterov", "expected a momentum above 0");
    refused("--momentum 0.9 --nesterov --dampening 0.1", "--dampening");
    refused("--dampening 0.1", "without --momentum");
    refused("--momentum 1", "less than 1");
    refused("--optimizer adamw --momentum 0.9", "--beta1");
    refused("--optimizer lamb --beta2 1", "--beta2");
    refused("--optimizer lars --momentum 0.9 --nesterov", "nesterov");
    refused("--param-group fc.*", "PATTERN:lr=X,wd=X");
    refused("--ema 1", "less than 1");
    refused("--label-smoothing 1", "less than 1");
    refused("--inject kill@1", "WHAT@RANK:STEP");
    refused("--inject nan@1:3,kill@1:3 --comm loopback", "ranks are threads");
    refused("--augment flip,turn", "found \"turn\"");
    refused("--augment crop,rrc", "crop beside rrc");
    refused("--target-accuracy 1.5", "target-accuracy");
    refused("--target-accuracy 0.5 --eval-only --init-weights w", "expected training");
    refused("--input-size -1", "input-size");
    refused("--batch-size 8 --batch-per-rank 2", "one of the two");
    refused("--comm mpi --loopback-ranks 2", "--comm loopback");
    refused("--comm nccl --mpi-device-buffers on", "expected --comm mpi");
    refused("--comm nccl --device cpu", "expected --device cuda");
    refused("--comm nccl --share-device", "a GPU for each rank");
    refused("--allreduce shm --no-shared-memory", "found shm");
    refused("--allreduce hier --no-shared-memory", "found hier");
    refused("--on-mismatch heal", "without --check-replicas");
    refused("--verify-world 2", "without --exact");
    refused("--verify-resume 2 --resume here", "a run of its own");
    refused("--verify-resume 2 --verify-grad", "one of them");
    refused("--replay file --verify-grad", "one of them");
    refused("--verify-world 2 --exact --sync-bn", "expected statistics");
    refused("--verify-grad --precision bf16", "expected fp32");
    refused("--precision fp16 --device cpu", "expected bf16, or --device cuda");
    refused("--loss-scale 1024", "without --precision fp16");
    refused("--precision fp16 --loss-scale much", "expected dynamic or a number");
    refused("--precision fp16 --loss-scale 1e-5", "from 2^-14");
    refused("--bucket-cap-mb 1x", "expected auto or a number from 0.001");
    refused("--bucket-cap-mb 0", "expected auto or a number from 0.001");
    refused("--bucket-cap-mb auto --exact", "with --exact, expected a number");
    refused("--bucket-cap-mb auto --strategy naive", "expected ddp or sync");
    refused("--bucket-cap-mb auto --compress topk", "with --compress, expected a number");
    refused("--verify-grad --sync-bn", "statistics of each shard");
    refused("--verify-grad --eval-only --init-weights w", "one of them");
    refused("--verify-grad --verify-world 1 --exact", "one of them");
    refused("--exact --allreduce ring", "expected auto, shm, tree, rhd or hier");
    refused("--exact --strategy naive", "expected ddp or sync");
    refused("--exact --grad-dtype bf16", "expected fp32");
    refused("--exact --compress topk", "found with --exact");
    refused("--compress topk --grad-dtype fp16", "expected one of them");
    refused("--compress powersgd --strategy naive", "expected ddp or sync");
    refused("--compress powersgd --device cuda", "expected --device cpu");
    refused("--compress topk --verify-resume 2", "expected none");
    refused("--grad-dtype fp16 --device cuda", "expected bf16");
    refused("--compress topk --topk 0", "--topk");
    refused("--compress gzip", "none|powersgd|topk");
    refused("--exact --rank-weights 1,2", "expected equal shares");
    refused("--exact --tune-kernels", "follow from the shapes");
    refused("--eval-only", "--init-weights");
    refused("--init-partial", "without --init-weights");
    refused("--dump-logits f", "without --eval-only");
    refused("--run-dir=", "expected a path");
    refused("--epochs 0", "from 1 to");
    refused("--val-split 1", "0.99");
    refused("--lr-schedule step", "--lr-step-every");
    refused("--lr-step-every 2", "without --lr-schedule step");
    refused("--lr-schedule step --lr-step-at 3,2", "\"3,2\"");
    refused("--warmup-steps 2 --warmup-epochs 1", "one of the two");
}

static void texts_of_several_numbers_are_read_strictly(void **state)
{
    (void)state;
    ddp_config *c = parsed("--input-shape 3x8x16 --normalize 0.5,0.25,1/0.5,2,4");
    assert_int_equal(c->data.input_shape.ndim, 3);
    assert_int_equal(c->data.input_shape.dims[0], 3);
    assert_int_equal(c->data.input_shape.dims[1], 8);
    assert_int_equal(c->data.input_shape.dims[2], 16);
    assert_int_equal(c->normalize.count, 3);
    assert_true(c->normalize.mean[1] == 0.25f && c->normalize.deviation[2] == 4.0f);
    ddp_config_destroy(c);
    const char *shapes[] = {"28",     "1x28",   "1x28x28x1", "0x28x28",
                            "1x-1x1", "1x2x3a", "x1x1",      "1x1x"};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        char line[64];
        snprintf(line, sizeof line, "--input-shape %s", shapes[i]);
        refused(line, shapes[i]);
    }
    const char *bad[] = {"0.5",    "0.5/0", "0.5/-1", "0.5,0.5/1", "a/1",
                         "0.5/1,", "nan/1", "/1",     "0.5/"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char line[64];
        snprintf(line, sizeof line, "--normalize %s", bad[i]);
        refused(line, "--normalize");
    }
}

static void a_time_limit_has_many_forms(void **state)
{
    static const struct {
        const char *text;
        double seconds;
    } good[] = {{"90", 90},      {"90s", 90},     {"0.5", 0.5},           {"15m", 900},
                {"1h30m", 5400}, {"1.5h", 5400},  {"2d", 172800},         {"1d1h1m1s", 90061},
                {"1:30", 5400},  {"0:00:10", 10}, {"1-12:00:00", 129600}, {"2-0", 172800}};
    static const char *const bad[] = {"0",    "-5",    "5x",      "1m1h",  "1h1h",       "h",
                                      "1:",   ":30",   "1:2:3:4", "1-2-3", "1h:30",      "inf",
                                      "0:00", "1e99d", "",        "1 h",   "99999999:00"};
    char line[64];

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        snprintf(line, sizeof line, "--time-limit=%s", good[i].text);
        ddp_config *c = parsed(line);
        if (c->time_limit != good[i].seconds)
            fail_msg("%s is %g seconds", good[i].text, c->time_limit);
        ddp_config_destroy(c);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(line, sizeof line, "--time-limit=%s", bad[i]);
        if (strchr(bad[i], ' ') == NULL)
            refused(line, "option --time-limit: found");
    }
}

static void a_resumed_run_may_deal_unequally(void **state)
{
    (void)state;
    ddp_config *c = parsed("--logical-ranks 4");
    CHECK_FAILS(ddp_config_resolve(c, 3), DDP_ERR_USAGE, "found 4 with 3 ranks");
    c->uneven_shards = true;
    CHECK_OK(ddp_config_resolve(c, 3));
    assert_int_equal(c->shards, 4);
    assert_int_equal(c->reducer.shards, 0); /* dealt later */
    CHECK_OK(ddp_config_resolve(c, 5));
    assert_int_equal(c->shards, 5);
    ddp_config_destroy(c);
    c = parsed("--logical-ranks 4 --sync-bn");
    c->uneven_shards = true;
    CHECK_OK(ddp_config_resolve(c, 2));
    assert_int_equal(c->shards, 2);
    ddp_config_destroy(c);
    c = parsed("");
    assert_int_equal(c->run.checkpoint_epochs, 1);
    assert_int_equal(c->run.keep, 2);
    assert_true(c->run.checkpoint_at_end && !c->run.keep_best && c->time_limit == 0);
    ddp_config_destroy(c);
    refused("--resume auto", "found auto without --run-dir");
    refused("--resume=", "option --resume: found an empty text");
    refused("--resume auto --run-dir d --eval-only --init-weights w", "found with --eval-only");
    refused("--resume d --init-weights w", "found beside --init-weights");
    ddp_config_destroy(parsed("--resume auto --run-dir d --init-weights w"));
    ddp_config_destroy(parsed("--resume none"));
    refused("--keep 0", "--keep");
}

static void the_world_decides_batch_and_shards(void **state)
{
    (void)state;
    ddp_config *c = parsed("--batch-per-rank 10 --accumulate 2");
    CHECK_OK(ddp_config_resolve(c, 3));
    assert_int_equal(c->global_batch, 30);
    assert_int_equal(c->shards, 6);
    assert_int_equal(c->reducer.shards, 2);
    /* What config.ini will say gives the same batch. */
    assert_int_equal(c->run.batch_size, 30);
    assert_int_equal(c->run.batch_per_rank, 0);
    ddp_config_destroy(c);

    c = parsed("--batch-size 7");
    CHECK_FAILS(ddp_config_resolve(c, 8), DDP_ERR_USAGE, "found 7 with 8 ranks");
    CHECK_OK(ddp_config_resolve(c, 7));
    ddp_config_destroy(c);

    c = parsed("--batch-size 7 --accumulate 2");
    CHECK_FAILS(ddp_config_resolve(c, 4), DDP_ERR_USAGE, "8 shards");
    ddp_config_destroy(c);

    c = parsed("--logical-ranks 12");
    CHECK_FAILS(ddp_config_resolve(c, 5), DDP_ERR_USAGE, "this many ranks: 1, 2, 3, 4, 6, 12");
    CHECK_OK(ddp_config_resolve(c, 4));
    assert_int_equal(c->reducer.shards, 3);
    ddp_config_destroy(c);

    c = parsed("--exact --logical-ranks 6 --batch-size 4096");
    assert_int_equal(c->run.device, DDP_DEVICE_CPU);
    CHECK_FAILS(ddp_config_resolve(c, 4), DDP_ERR_USAGE, "this many ranks: 1, 2, 3, 6");
    CHECK_OK(ddp_config_resolve(c, 2));
    assert_true(c->reducer.exact && c->device.deterministic);
    assert_int_equal(c->reducer.shards, 3);
    ddp_config_destroy(c);
    c = parsed("--exact --device cuda --logical-ranks 8");
    assert_int_equal(c->run.device, DDP_DEVICE_CUDA);
    CHECK_OK(ddp_config_resolve(c, 4));
    assert_true(c->reducer.exact && c->device.deterministic);
    ddp_config_destroy(c);

    c = parsed("--exact --logical-ranks 1536 --batch-size 4096");
    CHECK_FAILS(ddp_config_resolve(c, 2), DDP_ERR_USAGE, "at most 1024");
    CHECK_OK(ddp_config_resolve(c, 3));
    ddp_config_destroy(c);

    c = parsed("--sync-bn --accumulate 2");
    CHECK_FAILS(ddp_config_resolve(c, 2), DDP_ERR_USAGE, "one shard for each rank");
    ddp_config_destroy(c);

    c = parsed("--logical-ranks 12 --accumulate 2");
    CHECK_FAILS(ddp_config_resolve(c, 4), DDP_ERR_USAGE, "expected 8");
    CHECK_OK(ddp_config_resolve(c, 6));
    ddp_config_destroy(c);
}

static void the_rate_follows_the_batch_if_asked(void **state)
{
    (void)state;
    const struct {
        const char *line;
        double want;
    } cases[] = {
        {"--lr 0.1 --batch-size 1024", 0.1},
        {"--lr 0.1 --batch-size 1024 --lr-scale linear", 0.4},
        {"--lr 0.1 --batch-size 1024 --lr-scale sqrt", 0.2},
        {"--lr 0.1 --batch-size 128 --lr-scale linear --lr-base-batch 64", 0.2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ddp_config *c = parsed(cases[i].line);
        CHECK_OK(ddp_config_resolve(c, 2));
        assert_true(c->lr > cases[i].want * (1 - 1e-12));
        assert_true(c->lr < cases[i].want * (1 + 1e-12));
        ddp_config_destroy(c);
    }
}

static void the_optimizer_has_a_rate_that_suits_it(void **state)
{
    (void)state;
    ddp_config *c = parsed("--optimizer adamw --on-nonfinite skip");
    assert_true(c->optim.lr == 0.001 && c->optim.skip_nonfinite);
    ddp_config_destroy(c);
    c = parsed("--optimizer lamb --lr 0.2");
    assert_true(c->optim.lr == 0.2 && !c->optim.skip_nonfinite);
    assert_int_equal(c->optim.kind, DDP_OPTIM_LAMB);
    ddp_config_destroy(c);
}

static void the_schedule_is_in_steps_of_the_run(void **state)
{
    (void)state;
    ddp_config *c = parsed("--lr 0.1 --batch-size 512 --lr-scale linear --epochs 4 --max-steps 7 "
                           "--lr-schedule poly --warmup-epochs 0.5");
    CHECK_OK(ddp_config_resolve(c, 2));
    CHECK_OK(ddp_config_resolve_schedule(c, 10));
    const ddp_schedule *s = &c->trainer.schedule;
    assert_true(s->base == 0.2 && s->kind == DDP_SCHEDULE_POLY);
    assert_int_equal(s->warmup, 5);
    assert_int_equal(s->total, 40);
    ddp_config_destroy(c);
    c = parsed("--epochs 1 --lr-schedule cosine --warmup-epochs 1");
    CHECK_OK(ddp_config_resolve(c, 1));
    CHECK_FAILS(ddp_config_resolve_schedule(c, 10), DDP_ERR_USAGE, "--warmup-epochs");
    ddp_config_destroy(c);
}

static void data_and_ranks_are_compared(void **state)
{
    (void)state;
    ddp_config *c = parsed("--normalize 0.5/0.25");
    CHECK_FAILS(ddp_config_check_data(c, 4, 3, 3), DDP_ERR_USAGE, "4 ranks for 3 samples");
    CHECK_OK(ddp_config_check_data(c, 4, 4, 3));
    assert_int_equal(c->normalize.count, 3);
    assert_true(c->normalize.mean[2] == 0.5f && c->normalize.deviation[2] == 0.25f);
    ddp_config_destroy(c);
    c = parsed("--normalize 1,2/1,2");
    CHECK_FAILS(ddp_config_check_data(c, 1, 10, 3), DDP_ERR_USAGE, "3 channels");
    ddp_config_destroy(c);
}

static void threads_and_workers_share_the_cores(void **state)
{
    (void)state;
    const struct {
        const char *line;
        ddp_config_cores cores;
        int threads, workers;
    } cases[] = {
        {"", {.own = 8, .node = 8, .node_ranks = 2}, 4, 1},
        {"", {.own = 1, .node = 8, .node_ranks = 2}, 1, 1},
        {"", {.own = 2, .node = 2, .node_ranks = 2}, 1, 0},
        {"", {.own = 2, .node = 2, .node_ranks = 8}, 1, 0},
        {"--threads 3 --workers 2", {.own = 1, .node = 1, .node_ranks = 1}, 3, 2},
        {"--workers 0", {.own = 8, .node = 8, .node_ranks = 1}, 8, 0},
        {"--exact", {.own = 8, .node = 8, .node_ranks = 2}, 1, 1},
        {"--exact --threads 2", {.own = 8, .node = 8, .node_ranks = 2}, 2, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ddp_config *c = parsed(cases[i].line);
        ddp_config_machine(c, &cases[i].cores);
        assert_int_equal(c->device.threads, cases[i].threads);
        assert_int_equal(c->workers, cases[i].workers);
        ddp_config_destroy(c);
    }
}

static void the_fingerprint_has_what_must_agree(void **state)
{
    (void)state;
    ddp_config *a = parsed("--threads 1 --run-dir a"), *b = parsed("--threads 2 --run-dir b");
    ddp_config *c = parsed("--lr 0.3");
    char *text_a, *text_b, *text_c;
    CHECK_OK(ddp_config_fingerprint(a, &text_a));
    CHECK_OK(ddp_config_fingerprint(b, &text_b));
    CHECK_OK(ddp_config_fingerprint(c, &text_c));
    assert_string_equal(text_a, text_b);
    assert_string_not_equal(text_a, text_c);
    assert_non_null(strstr(text_c, "\nlr=0.3\n"));
    ddp_free(text_a);
    ddp_free(text_b);
    ddp_free(text_c);
    /* With exact sums the threads matter. */
    a->run.exact = b->run.exact = true;
    CHECK_OK(ddp_config_fingerprint(a, &text_a));
    CHECK_OK(ddp_config_fingerprint(b, &text_b));
    assert_string_not_equal(text_a, text_b);
    ddp_free(text_a);
    ddp_free(text_b);
    ddp_config_destroy(a);
    ddp_config_destroy(b);
    ddp_config_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_defaults_are_the_seeds_run),
        cmocka_unit_test(choices_match_their_enums),
        cmocka_unit_test(values_that_do_not_fit_together_are_refused),
        cmocka_unit_test(texts_of_several_numbers_are_read_strictly),
        cmocka_unit_test(a_time_limit_has_many_forms),
        cmocka_unit_test(a_resumed_run_may_deal_unequally),
        cmocka_unit_test(the_world_decides_batch_and_shards),
        cmocka_unit_test(the_rate_follows_the_batch_if_asked),
        cmocka_unit_test(the_optimizer_has_a_rate_that_suits_it),
        cmocka_unit_test(the_schedule_is_in_steps_of_the_run),
        cmocka_unit_test(data_and_ranks_are_compared),
        cmocka_unit_test(threads_and_workers_share_the_cores),
        cmocka_unit_test(the_fingerprint_has_what_must_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
