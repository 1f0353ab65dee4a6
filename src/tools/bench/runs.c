/* runs.c - processes for runs of ddp_train: their command lines, where their output goes, and which
 * core they get. */
#include "tools/bench/runs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ddp/fs.h"
#include "ddp/memory.h"

enum { MAX_WORDS = 256, TEXT_BYTES = 16384, TAIL_BYTES = 1500 };

/* A command line, with the words one after the other in text. */
typedef struct command {
    char text[TEXT_BYTES];
    size_t used;
    char *argv[MAX_WORDS + 1];
    int argc;
} command;

static ddp_status take(const char *chosen, char path[DDPI_RUN_PATH])
{
    if (strlen(chosen) >= DDPI_RUN_PATH)
        return DDP_FAIL(DDP_ERR_USAGE, "a path is too long: %.60s...", chosen);
    strcpy(path, chosen);
    return DDP_OK;
}

ddp_status ddpi_run_folder(const char *chosen, char path[DDPI_RUN_PATH])
{
    DDP_TRY(take(chosen != NULL ? chosen : "/tmp/ddp_bench_XXXXXX", path));
    if (chosen != NULL)
        return ddp_fs_make_dirs(path);
    if (mkdtemp(path) == NULL)
        return DDP_FAIL(DDP_ERR_IO, "make a folder in /tmp: %s", strerror(errno));
    return DDP_OK;
}

ddp_status ddpi_run_program(const char *name, const char *chosen, char path[DDPI_RUN_PATH])
{
    char self[PATH_MAX];

    if (chosen != NULL)
        return take(chosen, path);
    ssize_t bytes = readlink("/proc/self/exe", self, sizeof self - 1);

    if (bytes <= 0)
        return DDP_FAIL(DDP_ERR_IO, "read /proc/self/exe: %s", strerror(errno));
    self[bytes] = 0;
    *strrchr(self, '/') = 0;
    return ddp_fs_join(path, DDPI_RUN_PATH, self, name);
}

/* ---- command lines ---- */

static ddp_status add_words(command *c, const char *words)
{
    for (const char *at = words != NULL ? words : ""; *at != 0;) {
        size_t bytes = strcspn(at, " ");
        if (bytes > 0) {
            if (c->argc == MAX_WORDS || c->used + bytes + 1 > TEXT_BYTES)
                return DDP_FAIL(DDP_ERR_USAGE, "a command line is too long: %.60s...", words);
            c->argv[c->argc++] = memcpy(c->text + c->used, at, bytes);
            c->used += bytes;
            c->text[c->used++] = 0;
        }
        at += bytes;
        at += strspn(at, " ");
    }
    c->argv[c->argc] = NULL;
    return DDP_OK;
}

static ddp_status make_command(const ddpi_run_plan *plan, command *c)
{
    char count[32];

    c->used = 0;
    c->argc = 0;
    if (plan->launcher != NULL) {
        snprintf(count, sizeof count, "-n %d", plan->ranks);
        DDP_TRY(add_words(c, plan->launcher));
        DDP_TRY(add_words(c, count));
    }
    DDP_TRY(add_words(c, plan->program));
    DDP_TRY(add_words(c, plan->args));
    return add_words(c, plan->more);
}

/* ---- cores ---- */

/* The n-th of the set, going round. */
static cpu_set_t nth_core(const cpu_set_t *set, int n)
{
    cpu_set_t one;

    CPU_ZERO(&one);
    n %= CPU_COUNT(set);
    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, set) && n-- == 0)
            CPU_SET(core, &one);
    return one;
}

/* ---- processes ---- */

/* Variables by which a launcher tells a process that it is one of several ranks. */
static bool is_launchers(const char *variable)
{
    static const char *const prefixes[] = {"SLURM_", "PMI", "OMPI_COMM_WORLD_"};

    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (strncmp(variable, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

/* What a process gets that is one rank by itself, though within a scheduler's job. */
static ddp_status own_environment(char ***list_out)
{
    size_t count = 0;
    char **list;

    while (environ[count] != NULL)
        count++;
    DDP_TRY(DDP_ALLOC(list, count + 1));
    count = 0;
    for (char **at = environ; *at != NULL; at++)
        if (!is_launchers(*at))
            list[count++] = *at;
    *list_out = list;
    return DDP_OK;
}

/* A child has the cores of its maker. */
static int spawn(const ddpi_run_plan *plan, command *c, posix_spawn_file_actions_t *actions,
                 char **variables, pid_t *pid_out)
{
    cpu_set_t all, one;
    bool narrow = plan->core >= 0 && sched_getaffinity(0, sizeof all, &all) == 0;

    if (narrow) {
        one = nth_core(&all, plan->core);
        (void)sched_setaffinity(0, sizeof one, &one);
    }
    int code = posix_spawnp(pid_out, c->argv[0], actions, NULL, c->argv, variables);
    if (narrow)
        (void)sched_setaffinity(0, sizeof all, &all);
    return code;
}

ddp_status ddpi_run_start(const ddpi_run_plan *plan, pid_t *pid_out)
{
    posix_spawn_file_actions_t actions;
    char **own = NULL;
    command *c;

    DDP_TRY(DDP_ALLOC(c, 1));
    ddp_status st = make_command(plan, c);
    if (st == DDP_OK && plan->launcher == NULL)
        st = own_environment(&own);
    if (st == DDP_OK && posix_spawn_file_actions_init(&actions) != 0)
        st = DDP_FAIL(DDP_ERR_NOMEM, "no memory for a process");
    if (st == DDP_OK) {
        int code = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
        if (code == 0)
            code = posix_spawn_file_actions_addopen(&actions, 1, plan->log,
                                                    O_WRONLY | O_CREAT | O_TRUNC, 0666);
        if (code == 0)
            code = posix_spawn_file_actions_adddup2(&actions, 1, 2);
        if (code == 0)
            code = spawn(plan, c, &actions, own != NULL ? own : environ, pid_out);
        posix_spawn_file_actions_destroy(&actions);
        if (code != 0)
            st = DDP_FAIL(DDP_ERR_IO, "start %s: %s", c->argv[0], strerror(code));
    }
    ddp_free(own);
    ddp_free(c);
    return st;
}

/* ---- the end ---- */

static const char *tail_of(const char *text, size_t bytes)
{
    const char *from = bytes > TAIL_BYTES ? text + bytes - TAIL_BYTES : text;
    const char *line = from == text ? text : strchr(from, '\n');

    return line != NULL ? line : from;
}

static ddp_status tell_failure(const ddpi_run_plan *plan, int state)
{
    char *text = NULL;
    size_t bytes = 0;
    ddp_status read = ddp_fs_read(plan->log, 1 << 24, &text, &bytes);
    ddp_status st = DDP_FAIL(
        DDP_ERR_IO, "%s%s%s %s %s ended with %s %d:\n%s", plan->launcher ? plan->launcher : "",
        plan->launcher ? " " : "", plan->program, plan->args ? plan->args : "",
        plan->more ? plan->more : "", WIFEXITED(state) ? "status" : "signal",
        WIFEXITED(state) ? WEXITSTATUS(state) : WTERMSIG(state),
        read == DDP_OK && bytes > 0 ? tail_of(text, bytes) : "(without a word)");
    ddp_free(text);
    return st;
}

ddp_status ddpi_run_wait(const ddpi_run_plan *plan, pid_t pid)
{
    int state;

    while (waitpid(pid, &state, 0) < 0)
        if (errno != EINTR)
            return DDP_FAIL(DDP_ERR_IO, "wait for %s: %s", plan->program, strerror(errno));
    if (!WIFEXITED(state) || WEXITSTATUS(state) != 0)
        return tell_failure(plan, state);
    return DDP_OK;
}
