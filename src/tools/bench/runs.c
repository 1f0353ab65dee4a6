/* runs.c - processes for runs of ddp_train: their command lines, where their output goes, and which
 * core they get. */
#include "tools/bench/runs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ddp/fs.h"
#include "ddp/memory.h"
#include "ddp/thread.h"

enum { MAX_WORDS = 256, TEXT_BYTES = 16384, TAIL_BYTES = 1500, REMOVALS = 20 };
#define LOOK_NS     INT64_C(20000000)
#define PATIENCE_NS INT64_C(10000000000) /* with a run that was told to end */

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

/* ---- signals ----
 *
 * They are blocked, and whether one waits is looked up now and then: so there is no handler, and
 * letting them through ends the process as the signal would have, for whoever waits for it. */

static const int enders[] = {SIGTERM, SIGINT, SIGHUP};
#define ENDERS (sizeof enders / sizeof enders[0])

/* Who started this process may want it to ignore some. */
static void hold_signals(void)
{
    struct sigaction now;
    sigset_t set;

    sigemptyset(&set);
    for (size_t i = 0; i < ENDERS; i++)
        if (sigaction(enders[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            sigaddset(&set, enders[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
}

static sigset_t without_enders(void)
{
    sigset_t mask;

    sigprocmask(SIG_BLOCK, NULL, &mask);
    for (size_t i = 0; i < ENDERS; i++)
        sigdelset(&mask, enders[i]);
    return mask;
}

static bool is_stopped(void)
{
    sigset_t waiting;
    bool found = false;

    if (sigpending(&waiting) == 0)
        for (size_t i = 0; i < ENDERS; i++)
            found = found || sigismember(&waiting, enders[i]) == 1;
    return found;
}

static ddp_status stopped(void)
{
    return DDP_FAIL(DDP_ERR_IO, "stopped by a signal");
}

/* ---- folders ---- */

ddp_status ddpi_run_folder(const char *chosen, char path[DDPI_RUN_PATH])
{
    DDP_TRY(take(chosen != NULL ? chosen : "/tmp/ddp_bench_XXXXXX", path));
    hold_signals();
    if (chosen != NULL)
        return ddp_fs_make_dirs(path);
    if (mkdtemp(path) == NULL)
        return DDP_FAIL(DDP_ERR_IO, "make a folder in /tmp: %s", strerror(errno));
    return DDP_OK;
}

/* Ranks may outlive their launcher by a moment, and write meanwhile. */
static ddp_status remove_surely(const char *path)
{
    ddp_status st;

    for (int i = 0; (st = ddp_fs_remove_tree(path)) != DDP_OK && i < REMOVALS; i++)
        ddp_sleep_ns(10 * LOOK_NS);
    return st;
}

ddp_status ddpi_run_folder_close(const char *chosen, const char *path, ddp_status st)
{
    const bool failed = st != DDP_OK && !is_stopped();
    const sigset_t mask = without_enders();

    if (chosen == NULL && failed && rmdir(path) != 0) {
        fprintf(stderr, "ddp_bench: logs of the runs are in %s\n", path);
    } else if (chosen == NULL && !failed) {
        const ddp_status removed = remove_surely(path);
        st = st == DDP_OK ? removed : st;
    }
    if (is_stopped())
        fprintf(stderr, "ddp_bench: stopped by a signal\n");
    sigprocmask(SIG_SETMASK, &mask, NULL); /* the signal's effect */
    return st;
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

static ddp_status add_word(command *c, const char *word, size_t bytes)
{
    if (c->argc == MAX_WORDS || c->used + bytes + 1 > TEXT_BYTES)
        return DDP_FAIL(DDP_ERR_USAGE, "a command line is too long: %.60s...", word);
    c->argv[c->argc++] = memcpy(c->text + c->used, word, bytes);
    c->used += bytes;
    c->text[c->used++] = 0;
    c->argv[c->argc] = NULL;
    return DDP_OK;
}

static ddp_status add_words(command *c, const char *words)
{
    for (const char *at = words != NULL ? words : ""; *at != 0;) {
        size_t bytes = strcspn(at, " ");
        if (bytes > 0)
            DDP_TRY(add_word(c, at, bytes));
        at += bytes;
        at += strspn(at, " ");
    }
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
    DDP_TRY(add_word(c, plan->program, strlen(plan->program)));
    DDP_TRY(add_words(c, plan->args));
    DDP_TRY(add_words(c, plan->more));
    DDP_TRY(add_word(c, plan->dir_option, strlen(plan->dir_option)));
    return add_word(c, plan->dir, strlen(plan->dir));
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

/* In a group of its own: a terminal's signals then reach it through this process, once. */
static int spawn_attributes(posix_spawnattr_t *attributes)
{
    const sigset_t mask = without_enders();
    int code = posix_spawnattr_init(attributes);

    if (code != 0)
        return code;
    code = posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
    if (code == 0)
        code = posix_spawnattr_setpgroup(attributes, 0);
    if (code == 0)
        code = posix_spawnattr_setsigmask(attributes, &mask);
    if (code != 0)
        posix_spawnattr_destroy(attributes);
    return code;
}

/* A child has the cores of its maker. */
static int spawn(const ddpi_run_plan *plan, command *c, posix_spawn_file_actions_t *actions,
                 char **variables, pid_t *pid_out)
{
    cpu_set_t all, one;
    posix_spawnattr_t attributes;
    int code = spawn_attributes(&attributes);
    if (code != 0)
        return code;
    bool narrow = plan->core >= 0 && sched_getaffinity(0, sizeof all, &all) == 0;

    if (narrow) {
        one = nth_core(&all, plan->core);
        (void)sched_setaffinity(0, sizeof one, &one);
    }
    code = posix_spawnp(pid_out, c->argv[0], actions, &attributes, c->argv, variables);
    posix_spawnattr_destroy(&attributes);
    if (narrow)
        (void)sched_setaffinity(0, sizeof all, &all);
    return code;
}

ddp_status ddpi_run_start(const ddpi_run_plan *plan, pid_t *pid_out)
{
    posix_spawn_file_actions_t actions;
    char **own = NULL;
    command *c;

    if (is_stopped())
        return stopped();
    /* It is removed when the run has been read, with all that is in it. */
    if (rmdir(plan->dir) != 0 && errno != ENOENT)
        return DDP_FAIL(DDP_ERR_IO, "%s is for a run, and there already: %s", plan->dir,
                        strerror(errno));
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
    ddp_status st =
        DDP_FAIL(DDP_ERR_IO, "%s%s%s %s %s %s %s ended with %s %d:\n%s",
                 plan->launcher ? plan->launcher : "", plan->launcher ? " " : "", plan->program,
                 plan->args ? plan->args : "", plan->more ? plan->more : "", plan->dir_option,
                 plan->dir, WIFEXITED(state) ? "status" : "signal",
                 WIFEXITED(state) ? WEXITSTATUS(state) : WTERMSIG(state),
                 read == DDP_OK && bytes > 0 ? tail_of(text, bytes) : "(without a word)");
    ddp_free(text);
    return st;
}

/* Once a signal waits for this process, the run is told to end; later, it is made to. */
static pid_t wait_for(pid_t pid, int *state_out)
{
    int64_t told_ns = 0;
    bool forced = false;

    for (;;) {
        const pid_t ended = waitpid(pid, state_out, WNOHANG);
        if (ended != 0 && !(ended < 0 && errno == EINTR))
            return ended;
        if (told_ns == 0 && is_stopped()) {
            told_ns = ddp_now_ns();
            (void)kill(-pid, SIGTERM);
        } else if (told_ns != 0 && !forced && ddp_now_ns() - told_ns > PATIENCE_NS) {
            forced = true;
            (void)kill(-pid, SIGKILL);
        }
        ddp_sleep_ns(LOOK_NS);
    }
}

ddp_status ddpi_run_wait(const ddpi_run_plan *plan, pid_t pid)
{
    int state;

    if (wait_for(pid, &state) < 0)
        return DDP_FAIL(DDP_ERR_IO, "wait for %s: %s", plan->program, strerror(errno));
    if (is_stopped()) {
        DDP_TRY(remove_surely(plan->dir));
        (void)unlink(plan->log);
        return stopped();
    }
    if (!WIFEXITED(state) || WEXITSTATUS(state) != 0)
        return tell_failure(plan, state);
    return DDP_OK;
}
