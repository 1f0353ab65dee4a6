/* overlap.c - ddp_bench overlap: trains with spans written out, with overlap and without, or looks
 * at a file that a run has left. */
#include "tools/bench/overlap.h"

#include <stdlib.h>

#include "ddp/fs.h"
#include "ddp/memory.h"
#include "tools/bench/runs.h"

enum { WORDS_BYTES = 2 * DDPI_RUN_PATH };

typedef struct overlap_opts {
    const char *trace, *launcher, *program, *train, *dataset, *work_dir;
    int64_t ranks, steps, warmup, threads;
    bool sync;
    ddpi_bench_out out;
} overlap_opts;

#define AT(field) offsetof(overlap_opts, field)
static const ddp_option overlap_options[] = {
    {"trace", DDP_OPT_STRING, AT(trace), 0, 0, NULL, "FILE",
     "Look at this trace.json of a run with --trace-steps, and run nothing"},
    {"ranks", DDP_OPT_INT, AT(ranks), 2, 65536, NULL, "N", "Ranks"},
    {"train", DDP_OPT_STRING, AT(train), 0, 0, NULL, "WORDS",
     "More options of ddp_train, for the model, the batch, the buckets and so on"},
    {"dataset", DDP_OPT_STRING, AT(dataset), 0, 0, NULL, "NAME", "ddp_train's --dataset"},
    {"threads", DDP_OPT_INT, AT(threads), 1, 1024, NULL, "N", "Threads of a rank"},
    {"launcher", DDP_OPT_STRING, AT(launcher), 0, 0, NULL, "WORDS",
     "What starts ranks; -n and their number come behind it"},
    {"steps", DDP_OPT_INT, AT(steps), 1, 100, NULL, "N", "Steps that count"},
    {"warmup", DDP_OPT_INT, AT(warmup), 0, 100000, NULL, "N", "Steps before them"},
    {"sync", DDP_OPT_BOOL, AT(sync), 0, 0, NULL, NULL,
     "Measure the same training without overlap (--strategy sync), too"},
    {"program", DDP_OPT_STRING, AT(program), 0, 0, NULL, "FILE",
     "ddp_train; the one beside ddp_bench unless given"},
    {"work-dir", DDP_OPT_STRING, AT(work_dir), 0, 0, NULL, "DIR",
     "Folder for the runs' directories, which are removed when they are read; where the first rank "
     "is on another host, on a disk that both share"},
    {0},
};

static const char doc[] =
    "Trains for a few steps and says for every gradient bucket when it was ready, when its sum "
    "started and ended, how much of that was hidden behind computing, and how long the main thread "
    "waited for it.\v"
    "Example: ddp_bench overlap --launcher 'mpirun --hostfile FILE' --train '--model "
    "resnet18-small --batch-per-rank 64 --bucket-cap-mb 10' --out report\n\n"
    "All times are the training's own spans; nothing else is measured. Communication counts as "
    "hidden if no more of it is exposed than what backward is too short for, and a tenth of it. On "
    "GPUs the main thread's spans say when the host gave the work, not when it was done.\n\n"
    "--out DIR writes overlap.txt, overlap.json and overlap.svg.";

typedef struct bench {
    overlap_opts opts;
    char program[DDPI_RUN_PATH], work[DDPI_RUN_PATH];
} bench;

/* The trace of a run; the caller frees its spans. */
static ddp_status run_training(bench *b, const char *strategy, ddpi_overlap_trace *trace_out)
{
    const overlap_opts *o = &b->opts;
    char dir[DDPI_RUN_PATH], log[DDPI_RUN_PATH], path[DDPI_RUN_PATH], words[WORDS_BYTES], name[64];
    pid_t pid;

    DDP_TRY(ddp_fs_join(dir, sizeof dir, b->work, strategy));
    snprintf(name, sizeof name, "%s.log", strategy);
    DDP_TRY(ddp_fs_join(log, sizeof log, b->work, name));
    snprintf(
        words, sizeof words,
        "--quiet --dataset %s --strategy %s --threads %lld --max-steps %lld --trace-steps %lld "
        "--eval-every -1 --epochs 1000000",
        o->dataset, strategy, (long long)o->threads, (long long)(o->steps + o->warmup),
        (long long)o->steps);
    const ddpi_run_plan plan = {.launcher = o->launcher,
                                .ranks = (int)o->ranks,
                                .program = b->program,
                                .args = o->train,
                                .more = words,
                                .dir_option = "--run-dir",
                                .dir = dir,
                                .log = log,
                                .core = -1};
    DDP_TRY(ddpi_run_start(&plan, &pid));
    DDP_TRY(ddpi_run_wait(&plan, pid));
    DDP_TRY(ddp_fs_join(path, sizeof path, dir, "trace.json"));
    DDP_TRY(ddpi_overlap_read(path, trace_out));
    return ddp_fs_remove_tree(dir);
}

/* The caller frees both. */
static ddp_status look_at_run(bench *b, const char *strategy, ddpi_overlap_trace *trace,
                              ddpi_overlap *overlap)
{
    int ranks = 0;

    DDP_TRY(run_training(b, strategy, trace));
    for (int i = 0; i < trace->count; i++)
        ranks = trace->spans[i].rank >= ranks ? trace->spans[i].rank + 1 : ranks;
    if (ranks != b->opts.ranks)
        return DDP_FAIL(DDP_ERR_USAGE,
                        "option --launcher: \"%s -n %lld\" made a world of %d ranks, expected %lld",
                        b->opts.launcher, (long long)b->opts.ranks, ranks,
                        (long long)b->opts.ranks);
    return ddpi_overlap_measure(trace, b->opts.warmup + 1, overlap);
}

static ddp_status tell(bench *b, const ddpi_overlap *overlap, const ddpi_overlap *sync,
                       const ddpi_overlap_trace *trace)
{
    DDP_TRY(ddpi_bench_out_open(&b->opts.out, "overlap"));
    ddp_status st = ddpi_overlap_report(overlap, sync, trace, &b->opts.out);
    ddp_status closed = ddpi_bench_out_close(&b->opts.out);

    return st == DDP_OK ? closed : st;
}

static ddp_status run_all(bench *b)
{
    ddpi_overlap_trace trace = {0}, other = {0};
    ddpi_overlap overlap = {0}, sync = {0};
    ddp_status st;

    DDP_TRY(ddpi_bench_out_check(&b->opts.out));
    DDP_TRY(ddpi_run_folder(b->opts.work_dir, b->work));
    st = look_at_run(b, "ddp", &trace, &overlap);
    if (st == DDP_OK && b->opts.sync)
        st = look_at_run(b, "sync", &other, &sync);
    st = ddpi_run_folder_close(b->opts.work_dir, b->work, st);
    if (st == DDP_OK)
        st = tell(b, &overlap, b->opts.sync ? &sync : NULL, &trace);
    ddpi_overlap_free(&overlap);
    ddpi_overlap_free(&sync);
    ddp_free(trace.spans);
    ddp_free(other.spans);
    return st;
}

static ddp_status look_at_file(bench *b)
{
    ddpi_overlap_trace trace;
    ddpi_overlap overlap = {0};

    DDP_TRY(ddpi_overlap_read(b->opts.trace, &trace));
    ddp_status st = ddpi_overlap_measure(&trace, 1, &overlap);
    if (st == DDP_OK)
        st = tell(b, &overlap, NULL, &trace);
    ddpi_overlap_free(&overlap);
    ddp_free(trace.spans);
    return st;
}

ddp_status ddpi_bench_overlap(const ddpi_bench_call *call)
{
    bench b = {.opts = {.launcher = "mpirun",
                        .dataset = "synthetic",
                        .ranks = 2,
                        .steps = 20,
                        .warmup = 5,
                        .threads = 1,
                        .sync = true,
                        .out = DDPI_BENCH_OUT_DEFAULTS}};
    const ddp_option_group groups[] = {{"What is looked at", overlap_options, &b.opts},
                                       {"Results", ddpi_bench_out_options, &b.opts.out}};
    const ddpi_bench_form form = {"ddp_bench overlap", doc, groups, 2};
    ddp_options *options;
    bool run = false;

    ddp_status st = ddpi_bench_parse(call, &form, &options, &run);
    if (st == DDP_OK && run && b.opts.trace != NULL)
        st = look_at_file(&b);
    else if (st == DDP_OK && run)
        st = ddpi_run_program("ddp_train", b.opts.program, b.program);
    if (st == DDP_OK && run && b.opts.trace == NULL)
        st = run_all(&b);
    ddp_options_destroy(options);
    return st;
}
