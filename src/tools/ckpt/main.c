/* main.c - the program ddp_ckpt: verify, show, diff. */
#include <argp.h>
#include <stdio.h>
#include <string.h>

#include "ddp/status.h"
#include "tools/ckpt/ckpt.h"

static const char doc[] =
    "Look at checkpoints of ddp_train.\n\n"
    "  verify PATH...   whether checkpoints are complete and undamaged; a run's directory stands "
    "for all of its checkpoints\n"
    "  show PATH        where the run stood, and what its tensors hold\n"
    "  diff A B         which tensors, options and numbers differ; also of two safetensors "
    "files\v"
    "Exit status: 0 if all is good or equal, 1 if something is damaged or differs, 2 for trouble.";

typedef struct job {
    const char *command;
    char **paths;
    int count;
} job;

static error_t parse(int key, char *arg, struct argp_state *state)
{
    job *j = state->input;

    if (key == ARGP_KEY_ARG && j->command == NULL) {
        j->command = arg;
        j->paths = state->argv + state->next;
        j->count = state->argc - state->next;
        state->next = state->argc;
        return 0;
    }
    if (key == ARGP_KEY_END && j->command == NULL)
        argp_usage(state);
    return key == ARGP_KEY_END ? 0 : ARGP_ERR_UNKNOWN;
}

static int run(const job *j)
{
    int worst = DDPI_CKPT_GOOD;

    if (strcmp(j->command, "verify") == 0 && j->count > 0) {
        for (int i = 0; i < j->count; i++) {
            int code = ddpi_ckpt_verify(j->paths[i]);
            worst = code > worst ? code : worst;
        }
        return worst;
    }
    if (strcmp(j->command, "show") == 0 && j->count == 1)
        return ddpi_ckpt_show(j->paths[0]);
    if (strcmp(j->command, "diff") == 0 && j->count == 2)
        return ddpi_ckpt_diff(j->paths[0], j->paths[1]);
    fprintf(stderr,
            "ddp_ckpt: found \"%s\" with %d paths, expected verify PATH..., show PATH or "
            "diff A B\n",
            j->command, j->count);
    return DDPI_CKPT_TROUBLE;
}

int ddpi_ckpt_trouble(void)
{
    fprintf(stderr, "ddp_ckpt: %s\n", ddp_status_message());
    return DDPI_CKPT_TROUBLE;
}

int main(int argc, char **argv)
{
    const struct argp argp = {.parser = parse, .args_doc = "verify|show|diff PATH...", .doc = doc};
    job j = {0};

    argp_program_version = "ddp_ckpt " DDP_VERSION;
    argp_err_exit_status = DDPI_CKPT_TROUBLE;
    argp_parse(&argp, argc, argv, 0, NULL, &j);
    int code = run(&j);
    if (fflush(stdout) != 0)
        code = DDPI_CKPT_TROUBLE;
    return code;
}
