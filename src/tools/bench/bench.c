/* bench.c - finds the subcommand and says how it ended.
 *
 * Under a launcher every process reads the same command line, so only the first says what is wrong
 * with it. */
#include "tools/bench/bench.h"

#include <stdlib.h>
#include <string.h>

#include "tools/bench/bench_util.h"

typedef struct command {
    const char *name, *text;
    ddp_status (*run)(const ddpi_bench_call *call);
} command;

/* Ends with an empty one. */
static const command commands[] = {
    {"allreduce", "time of an allreduce by size, algorithm and type; started by mpirun",
     ddpi_bench_allreduce},
    {"overlap", "how much of each gradient bucket's sum hides behind computing",
     ddpi_bench_overlap},
    {"scaling", "efficiency of training on more and more ranks, and where the rest goes",
     ddpi_bench_scaling},
    {"predict", "efficiency on up to 65536 ranks, from the times of one", ddpi_bench_predict},
    {"sleepstep", "steps that sleep instead of computing, beside their prediction; by mpirun",
     ddpi_bench_sleepstep},
    {0},
};

static void print_help(FILE *to)
{
    fprintf(to, "Usage: ddp_bench COMMAND [OPTION...]\n\n"
                "Measures what data-parallel training on these machines can do, and what ddp_train "
                "makes of it.\n\n");
    for (const command *c = commands; c->name != NULL; c++)
        fprintf(to, "  %-10s  %s\n", c->name, c->text);
    fprintf(to, "\nddp_bench COMMAND --help lists a command's options. Every command takes --out "
                "DIR, for its\ntext, JSON and SVG files.\n\n"
                "Exit status: 0 measured, 1 failed, 2 wrong options.\n");
}

/* The launcher's word for this process's rank, 0 without a launcher. */
static int launcher_rank(char **envp)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK=", "PMIX_RANK=", "PMI_RANK="};

    for (size_t n = 0; n < sizeof names / sizeof names[0]; n++)
        for (char **at = envp; *at != NULL; at++)
            if (strncmp(*at, names[n], strlen(names[n])) == 0)
                return (int)strtol(*at + strlen(names[n]), NULL, 10);
    return 0;
}

static ddp_status run_command(const ddpi_bench_call *call)
{
    for (const command *c = commands; c->name != NULL; c++)
        if (strcmp(c->name, call->argv[0]) == 0)
            return c->run(call);
    return DDP_FAIL(DDP_ERR_USAGE,
                    "found the command \"%s\", expected one of those that "
                    "ddp_bench --help lists",
                    call->argv[0]);
}

int ddpi_bench_main(int argc, char **argv, char **envp)
{
    ddpi_bench_call call = {
        .argc = argc - 1, .argv = argv + 1, .envp = envp, .launcher_rank = launcher_rank(envp)};
    ddp_status st = DDP_OK;

    if (argc < 2)
        st = DDP_FAIL(DDP_ERR_USAGE, "a command is missing; ddp_bench --help lists them");
    else if (strcmp(argv[1], "--help") == 0)
        print_help(stdout);
    else if (strcmp(argv[1], "--version") == 0)
        fputs("ddp_bench " DDP_VERSION "\n", stdout);
    else
        st = run_command(&call);
    if (st == DDP_OK && fflush(stdout) != 0)
        st = DDP_FAIL(DDP_ERR_IO, "standard output takes no text");
    if (st != DDP_OK && (st != DDP_ERR_USAGE || call.launcher_rank == 0))
        fprintf(stderr, "ddp_bench: %s\n", ddp_status_message());
    return ddp_status_exit_code(st);
}
