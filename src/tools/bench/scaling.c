/* scaling.c - ddp_bench scaling: runs ddp_train on more and more ranks, beside one. */
#include "tools/bench/scaling.h"

#include <sched.h>
#include <string.h>

#include "ddp/fs.h"
#include "ddp/memory.h"

enum { MAX_COPIES = 256, MAX_REPEATS = 99, MAX_CASES = 128, WORDS_BYTES = 1024 };

typedef struct scaling_opts {
    const char *launcher, *program, *train, *ranks, *datasets, *work_dir;
    int mode; /* enum mode_choice */
    int base; /* enum base_choice */
    int64_t rank_batch, batch, steps, warmup, repeats, threads, copies;
    double curve_time_s;
    ddpi_bench_out out;
} scaling_opts;
enum mode_choice { MODE_WEAK, MODE_STRONG, MODE_BOTH };
enum base_choice { BASE_BUSY, BASE_ALONE };

#define AT(field) offsetof(scaling_opts, field)
static const ddp_option scaling_options[] = {
    {"ranks", DDP_OPT_STRING, AT(ranks), 0, 0, NULL, "LIST", "Numbers of ranks"},
    {"mode", DDP_OPT_CHOICE, AT(mode), 0, 0, "weak|strong|both", NULL,
     "The batch of a rank stays the same, or that of all ranks"},
    {"batch-per-rank", DDP_OPT_INT, AT(rank_batch), 1, 1 << 20, NULL, "N", "Weak: a rank's batch"},
    {"batch-size", DDP_OPT_INT, AT(batch), 1, 1 << 20, NULL, "N",
     "Strong: the global batch; every number of ranks divides it"},
    {"datasets", DDP_OPT_STRING, AT(datasets), 0, 0, NULL, "LIST",
     "Values of ddp_train's --dataset: synthetic needs no reading, others show what that costs"},
    {"train", DDP_OPT_STRING, AT(train), 0, 0, NULL, "WORDS",
     "More options of ddp_train, for the model and so on"},
    {"threads", DDP_OPT_INT, AT(threads), 1, 1024, NULL, "N", "Threads of a rank, everywhere"},
    {"launcher", DDP_OPT_STRING, AT(launcher), 0, 0, NULL, "WORDS",
     "What starts ranks; -n and their number come behind it: 'mpirun --hostfile FILE', or "
     "'srun --mpi=pmix'"},
    {"base", DDP_OPT_CHOICE, AT(base), 0, 0, "busy|alone", NULL,
     "What efficiency refers to: one rank while copies of it keep the other cores as busy as the "
     "ranks do, or one rank alone (for GPUs, since copies would all take the first)"},
    {"copies", DDP_OPT_INT, AT(copies), 0, MAX_COPIES, NULL, "N",
     "At most so many copies; 0: the cores of this host divided by --threads"},
    {"steps", DDP_OPT_INT, AT(steps), 1, 100000, NULL, "N", "Steps of a run that count"},
    {"warmup", DDP_OPT_INT, AT(warmup), 1, 100000, NULL, "N", "Steps before them"},
    {"repeats", DDP_OPT_INT, AT(repeats), 1, MAX_REPEATS, NULL, "N", "Rounds over all runs"},
    {"curve-time", DDP_OPT_DOUBLE, AT(curve_time_s), 0.0001, 60, NULL, "SECONDS",
     "Measure an allreduce of each size for about so long"},
    {"program", DDP_OPT_STRING, AT(program), 0, 0, NULL, "FILE",
     "ddp_train; the one beside ddp_bench unless given"},
    {"work-dir", DDP_OPT_STRING, AT(work_dir), 0, 0, NULL, "DIR",
     "Folder for the runs' directories, which are removed when they are read; where the first rank "
     "is on another host, on a disk that both share"},
    {0},
};

static const char doc[] =
    "Trains with more and more ranks, and says which share of the time is lost, and where.\v"
    "Example: ddp_bench scaling --ranks 2 --train '--model resnet18-small' --out report\n\n"
    "For every number of ranks, one rank is measured right beside it, alone and with copies on the "
    "other cores. Times are medians over steps, and over rounds. Lost time is divided into "
    "communication that nothing hid (latency and bandwidth, by the measured curve of an allreduce "
    "between the same ranks), waiting for the slowest rank, waiting for data, a smaller batch per "
    "rank (strong), slower computing, and the rest. The ceiling is the efficiency that the "
    "measured link would allow if all else were ideal.\n\n"
    "--out DIR writes scaling.txt, scaling.json, scaling.svg and scaling-loss.svg.";

typedef struct bench {
    scaling_opts opts;
    char program[DDPI_RUN_PATH], self[DDPI_RUN_PATH], work[DDPI_RUN_PATH];
    int64_t ranks[DDPI_SCALING_MAX_RANKS];
    int rank_count;
    char data_text[256];
    const char *data[DDPI_SCALING_MAX_DATA];
    int data_count;
    ddpi_scaling_case *cases;
    int case_count;
    int run_number;
} bench;

/* What one round has measured of a case. */
typedef struct round_times {
    ddpi_run_times run, base, alone, full;
} round_times;

/* ---- one run ---- */

static ddp_status run_dir(bench *b, char dir[DDPI_RUN_PATH], char log[DDPI_RUN_PATH])
{
    char name[64];

    snprintf(name, sizeof name, "run-%d", b->run_number);
    DDP_TRY(ddp_fs_join(dir, DDPI_RUN_PATH, b->work, name));
    snprintf(name, sizeof name, "run-%d.log", b->run_number++);
    return ddp_fs_join(log, DDPI_RUN_PATH, b->work, name);
}

typedef struct process {
    char dir[DDPI_RUN_PATH], log[DDPI_RUN_PATH], words[WORDS_BYTES + DDPI_RUN_PATH];
    ddpi_run_plan plan;
    pid_t pid;
} process;

static ddp_status start(bench *b, const ddpi_scaling_case *c, int ranks, int64_t rank_batch,
                        process *p)
{
    const scaling_opts *o = &b->opts;

    DDP_TRY(run_dir(b, p->dir, p->log));
    snprintf(p->words, sizeof p->words,
             "--quiet --dataset %s --batch-per-rank %lld --threads %lld --max-steps %lld "
             "--eval-every -1 --epochs 1000000",
             c->data, (long long)rank_batch, (long long)o->threads,
             (long long)(o->steps + o->warmup));
    p->plan.ranks = ranks;
    p->plan.program = b->program;
    p->plan.args = o->train;
    p->plan.more = p->words;
    p->plan.dir_option = "--run-dir";
    p->plan.dir = p->dir;
    p->plan.log = p->log;
    return ddpi_run_start(&p->plan, &p->pid);
}

static ddp_status finish(bench *b, process *p, ddpi_run_times *times_out)
{
    DDP_TRY(ddpi_run_wait(&p->plan, p->pid));
    DDP_TRY(ddpi_run_read(p->dir, (int)b->opts.warmup, times_out));
    return ddp_fs_remove_tree(p->dir);
}

static ddp_status measure_ranks(bench *b, const ddpi_scaling_case *c, ddpi_run_times *times_out)
{
    process p = {.plan = {.launcher = b->opts.launcher, .core = -1}};

    DDP_TRY(start(b, c, c->ranks, c->rank_batch, &p));
    DDP_TRY(finish(b, &p, times_out));
    if (times_out->ranks != c->ranks)
        return DDP_FAIL(DDP_ERR_USAGE,
                        "option --launcher: \"%s -n %d\" made a world of %d ranks, expected %d",
                        b->opts.launcher, c->ranks, times_out->ranks, c->ranks);
    return DDP_OK;
}

/* Over the copies, each of which has a core of its own. */
static ddpi_run_times mean_times(ddpi_run_times *copies, int count)
{
    ddpi_run_times mean = copies[0];

    for (int f = 0; f < DDPI_RUN_FIELDS; f++) {
        double sum = 0;
        for (int i = 0; i < count; i++)
            sum += *ddpi_run_field(&copies[i], f);
        *ddpi_run_field(&mean, f) = sum / count;
    }
    return mean;
}

static ddp_status measure_copies(bench *b, const ddpi_scaling_case *c, int copies, int64_t batch,
                                 ddpi_run_times *times_out)
{
    process *processes = NULL;
    ddpi_run_times *times = NULL;
    int started = 0;
    ddp_status st = DDP_ALLOC(processes, (size_t)copies);

    if (st == DDP_OK)
        st = DDP_ALLOC(times, (size_t)copies);
    for (; started < copies && st == DDP_OK; started += st == DDP_OK) {
        const bool pinned = b->opts.threads == 1;
        processes[started].plan.core = pinned ? started : -1;
        st = start(b, c, 1, batch, &processes[started]);
    }
    for (int i = 0; i < started; i++) {
        ddp_status one = finish(b, &processes[i], &times[i]);
        st = st == DDP_OK ? one : st;
    }
    if (st == DDP_OK)
        *times_out = mean_times(times, copies);
    ddp_free(times);
    ddp_free(processes);
    return st;
}

/* ---- a case ---- */

static int copies_for(const bench *b, int ranks)
{
    int64_t most = b->opts.copies;
    cpu_set_t cores;

    if (most == 0 && sched_getaffinity(0, sizeof cores, &cores) == 0)
        most = CPU_COUNT(&cores) / b->opts.threads;
    most = most < 1 ? 1 : most > MAX_COPIES ? MAX_COPIES : most;
    return ranks < most ? ranks : (int)most;
}

static ddp_status measure_round(bench *b, const ddpi_scaling_case *c, round_times *t)
{
    const int copies = b->opts.base == BASE_BUSY ? copies_for(b, c->ranks) : 1;

    DDP_TRY(measure_copies(b, c, 1, c->rank_batch, &t->alone));
    t->base = t->alone;
    if (copies > 1)
        DDP_TRY(measure_copies(b, c, copies, c->rank_batch, &t->base));
    DDP_TRY(measure_ranks(b, c, &t->run));
    t->full = t->base;
    if (c->mode == DDPI_SCALING_STRONG && c->ranks > 1)
        DDP_TRY(measure_copies(b, c, copies, c->rank_batch * c->ranks, &t->full));
    return DDP_OK;
}

/* Field by field; which is the offset of the times within a round. */
static ddpi_run_times median_times(round_times *rounds, int count, size_t which)
{
    ddpi_run_times median = *(ddpi_run_times *)(void *)((char *)rounds + which);
    double values[MAX_REPEATS];

    for (int f = 0; f < DDPI_RUN_FIELDS; f++) {
        for (int i = 0; i < count; i++)
            values[i] = *ddpi_run_field((ddpi_run_times *)(void *)((char *)&rounds[i] + which), f);
        *ddpi_run_field(&median, f) = ddpi_bench_measure(values, count).median;
    }
    return median;
}

static void conclude_case(ddpi_scaling_case *c, round_times *rounds, int count)
{
    double efficiency[MAX_REPEATS];

    for (int i = 0; i < count; i++)
        efficiency[i] = ddpi_scaling_ideal(c->mode, c->ranks, &rounds[i].base, &rounds[i].full) /
                        rounds[i].run.wall;
    ddpi_bench_stats stats = ddpi_bench_measure(efficiency, count);
    c->efficiency_min = stats.min;
    c->efficiency_max = stats.max;
    c->run = median_times(rounds, count, offsetof(round_times, run));
    c->base = median_times(rounds, count, offsetof(round_times, base));
    c->alone = median_times(rounds, count, offsetof(round_times, alone));
    c->full = median_times(rounds, count, offsetof(round_times, full));
    c->efficiency_alone = c->alone.wall / c->run.wall;
    ddpi_scaling_divide(c);
}

static ddp_status measure_curve(bench *b, ddpi_scaling_case *c)
{
    char dir[DDPI_RUN_PATH], log[DDPI_RUN_PATH], words[WORDS_BYTES + DDPI_RUN_PATH];
    pid_t pid;

    if (c->ranks == 1)
        return DDP_OK;
    DDP_TRY(run_dir(b, dir, log));
    snprintf(words, sizeof words,
             "allreduce --sizes 8,4K,32K,256K,1M,4M,16M,64M --min-time %g --gnuplot true",
             b->opts.curve_time_s);
    const ddpi_run_plan plan = {.launcher = b->opts.launcher,
                                .ranks = c->ranks,
                                .program = b->self,
                                .args = words,
                                .dir_option = "--out",
                                .dir = dir,
                                .log = log,
                                .core = -1};
    DDP_TRY(ddpi_run_start(&plan, &pid));
    DDP_TRY(ddpi_run_wait(&plan, pid));
    DDP_TRY(ddp_fs_join(words, sizeof words, dir, "allreduce.json"));
    DDP_TRY(ddp_cost_curve_load(words, &c->curve));
    return ddp_fs_remove_tree(dir);
}

/* ---- all of them ---- */

static ddp_status measure_all(bench *b)
{
    const int repeats = (int)b->opts.repeats;
    round_times *rounds;
    ddp_status st = DDP_ALLOC(rounds, (size_t)(b->case_count * repeats));

    for (int c = 0; c < b->case_count && st == DDP_OK; c++)
        st = measure_curve(b, &b->cases[c]);
    for (int r = 0; r < repeats && st == DDP_OK; r++)
        for (int c = 0; c < b->case_count && st == DDP_OK; c++) {
            const ddpi_scaling_case *one = &b->cases[c];
            fprintf(stderr, "round %d of %d: %s, %s, %d rank%s\n", r + 1, repeats, one->data,
                    one->mode == DDPI_SCALING_WEAK ? "weak" : "strong", one->ranks,
                    one->ranks == 1 ? "" : "s");
            st = measure_round(b, one, &rounds[c * repeats + r]);
        }
    for (int c = 0; c < b->case_count && st == DDP_OK; c++)
        conclude_case(&b->cases[c], &rounds[c * repeats], repeats);
    ddp_free(rounds);
    return st;
}

static ddp_status split_names(bench *b)
{
    char *rest = b->data_text;

    if (strlen(b->opts.datasets) >= sizeof b->data_text)
        return DDP_FAIL(DDP_ERR_USAGE,
                        "option --datasets: found \"%.40s...\", expected a short list",
                        b->opts.datasets);
    snprintf(b->data_text, sizeof b->data_text, "%s", b->opts.datasets);
    for (char *name; (name = strsep(&rest, ",")) != NULL;) {
        /* Quotes would mean something to gnuplot. */
        if (name[0] == 0 || strpbrk(name, " \"'`\\\n") != NULL ||
            b->data_count == DDPI_SCALING_MAX_DATA)
            return DDP_FAIL(DDP_ERR_USAGE,
                            "option --datasets: found \"%s\", expected 1 to %d names, with commas "
                            "between them",
                            b->opts.datasets, DDPI_SCALING_MAX_DATA);
        b->data[b->data_count++] = name;
    }
    return DDP_OK;
}

static ddp_status add_case(bench *b, const char *data, ddpi_scaling_mode mode, int64_t ranks)
{
    if (mode == DDPI_SCALING_STRONG && b->opts.batch % ranks != 0)
        return DDP_FAIL(DDP_ERR_USAGE,
                        "option --batch-size: found %lld, expected a multiple of %lld ranks",
                        (long long)b->opts.batch, (long long)ranks);
    b->cases[b->case_count++] = (ddpi_scaling_case){
        .data = data,
        .mode = mode,
        .ranks = (int)ranks,
        .rank_batch = mode == DDPI_SCALING_WEAK ? b->opts.rank_batch : b->opts.batch / ranks};
    return DDP_OK;
}

static ddp_status plan_cases(bench *b)
{
    const ddpi_bench_list ranks = {
        .option = "ranks", .min = 1, .max = 65536, .limit = DDPI_SCALING_MAX_RANKS};

    DDP_TRY(ddpi_bench_numbers(&ranks, b->opts.ranks, b->ranks, &b->rank_count));
    DDP_TRY(split_names(b));
    DDP_TRY(DDP_ALLOC(b->cases, MAX_CASES));
    for (int d = 0; d < b->data_count; d++)
        for (int mode = DDPI_SCALING_WEAK; mode <= (int)DDPI_SCALING_STRONG; mode++)
            for (int r = 0; r < b->rank_count; r++)
                if (b->opts.mode == MODE_BOTH || b->opts.mode == mode)
                    DDP_TRY(add_case(b, b->data[d], (ddpi_scaling_mode)mode, b->ranks[r]));
    return DDP_OK;
}

static ddp_status run_all(bench *b)
{
    DDP_TRY(plan_cases(b));
    DDP_TRY(ddpi_run_program("ddp_bench", NULL, b->self));
    DDP_TRY(ddpi_run_program("ddp_train", b->opts.program, b->program));
    DDP_TRY(ddpi_bench_out_check(&b->opts.out));
    DDP_TRY(ddpi_run_folder(b->opts.work_dir, b->work));
    ddp_status st = measure_all(b);
    DDP_TRY(ddpi_run_folder_close(b->opts.work_dir, b->work, st));
    DDP_TRY(ddpi_bench_out_open(&b->opts.out, "scaling"));
    st = ddpi_scaling_report(b->cases, b->case_count, b->opts.base == BASE_BUSY, &b->opts.out);
    ddp_status closed = ddpi_bench_out_close(&b->opts.out);
    return st == DDP_OK ? closed : st;
}

ddp_status ddpi_bench_scaling(const ddpi_bench_call *call)
{
    bench b = {.opts = {.launcher = "mpirun",
                        .ranks = "1,2",
                        .datasets = "synthetic",
                        .mode = MODE_WEAK,
                        .base = BASE_BUSY,
                        .rank_batch = 64,
                        .batch = 256,
                        .steps = 30,
                        .warmup = 5,
                        .repeats = 3,
                        .threads = 1,
                        .curve_time_s = 0.1,
                        .out = DDPI_BENCH_OUT_DEFAULTS}};
    const ddp_option_group groups[] = {{"What is run", scaling_options, &b.opts},
                                       {"Results", ddpi_bench_out_options, &b.opts.out}};
    const ddpi_bench_form form = {"ddp_bench scaling", doc, groups, 2};
    ddp_options *options;
    bool run = false;

    ddp_status st = ddpi_bench_parse(call, &form, &options, &run);
    if (st == DDP_OK && run)
        st = run_all(&b);
    ddp_free(b.cases);
    ddp_options_destroy(options);
    return st;
}
