/* run_dir.c - the run directory: its name, its files, and the word that says how the run ended.
 *
 * Rank 0 makes the directory and tells the others its name. Hosts that do not share a file system
 * get a directory of that name each, with their ranks' logs. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "app/run.h"
#include "ddp/fs.h"
#include "ddp/memory.h"
#include "ddp/thread.h"

enum { NAME_BYTES = 32 };

/* A run that was killed may take a moment to be gone. */
#define LOCK_WAIT_NS  INT64_C(5000000000)
#define LOCK_PAUSE_NS INT64_C(50000000)

ddp_status ddpi_run_path(const ddpi_run *run, const char *name, char path[PATH_MAX])
{
    return ddp_fs_join(path, PATH_MAX, run->dir, name);
}

/* runs/20260131-123456-lenet, with -2, -3 ... behind it for runs that start in the same second. */
static ddp_status default_name(const ddpi_run *run, char path[PATH_MAX])
{
    char stamp[NAME_BYTES];
    time_t now = time(NULL);
    struct tm utc;

    gmtime_r(&now, &utc);
    strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &utc);
    int n = snprintf(path, PATH_MAX, "runs/%s-%.200s", stamp, run->config.run.model);
    for (int i = 2; ddp_fs_exists(path); i++)
        snprintf(path + n, PATH_MAX - (size_t)n, "-%d", i);
    return DDP_OK;
}

/* Better now than after hours of training. */
static ddp_status check_save_path(const char *path)
{
    char dir[PATH_MAX];
    struct stat info;

    if (path == NULL)
        return DDP_OK;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return DDP_FAIL(DDP_ERR_IO, "option --save-weights %s: is a directory, expected a file",
                        path);
    const char *slash = strrchr(path, '/');
    size_t bytes = slash == NULL ? 0 : (size_t)(slash - path);
    if (bytes >= sizeof dir)
        return DDP_FAIL(DDP_ERR_USAGE, "option --save-weights: the path is too long");
    snprintf(dir, sizeof dir, "%.*s", slash == path ? 1 : (int)bytes, slash == NULL ? "." : path);
    if (slash == NULL)
        snprintf(dir, sizeof dir, ".");
    if (access(dir, W_OK) != 0)
        return DDP_FAIL(DDP_ERR_IO, "option --save-weights %s: cannot write into %s: %s", path, dir,
                        strerror(errno));
    return DDP_OK;
}

static ddp_status write_config(const ddpi_run *run)
{
    char path[PATH_MAX];
    char *text;

    DDP_TRY(ddpi_run_path(run, "config.ini", path));
    DDP_TRY(ddp_options_ini(run->app->config->options, &text));
    ddp_status st = ddp_fs_write_atomic(path, text, strlen(text));
    ddp_free(text);
    return st;
}

/* Whether the checkpoint to go on from lies in this directory. */
static bool goes_on_here(const ddpi_run *run, const char *dir)
{
    const char *resume = run->config.run.resume;
    const size_t bytes = strlen(dir);

    if (resume == NULL || strcmp(resume, "none") == 0)
        return false;
    if (strcmp(resume, "auto") == 0)
        return true;
    return strncmp(resume, dir, bytes) == 0 && (resume[bytes] == 0 || resume[bytes] == '/');
}

/* A directory that holds a run is that run's: a new one would mix its records with the old ones. */
static ddp_status check_unused(const ddpi_run *run, const char *dir)
{
    static const char *const names[] = {"status", "metrics.jsonl", "config.ini", DDPI_CHECKPOINTS};

    for (size_t i = 0; i < sizeof names / sizeof names[0] && !goes_on_here(run, dir); i++) {
        char path[PATH_MAX];
        DDP_TRY(ddp_fs_join(path, sizeof path, dir, names[i]));
        if (ddp_fs_exists(path))
            return DDP_FAIL(DDP_ERR_USAGE,
                            "option --run-dir: %s holds a run already (%s), expected a new "
                            "directory, or --resume auto to go on with that run",
                            dir, names[i]);
    }
    return DDP_OK;
}

/* Two runs in one directory would take each other's records and half-written checkpoints away. The
 * lock goes with the process, however that ends. File systems without locks are used without. */
static ddp_status lock_dir(ddpi_run *run, const char *dir)
{
    const int64_t until = ddp_now_ns() + LOCK_WAIT_NS;
    char path[PATH_MAX];

    DDP_TRY(ddp_fs_join(path, sizeof path, dir, ".lock"));
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return DDP_FAIL(DDP_ERR_IO, "create %s: %s", path, strerror(errno));
    while (flock(fd, LOCK_EX | LOCK_NB) != 0 && (errno == EWOULDBLOCK || errno == EINTR)) {
        if (ddp_now_ns() >= until) {
            close(fd);
            return DDP_FAIL(DDP_ERR_IO, "option --run-dir: another run is at work in %s", dir);
        }
        ddp_sleep_ns(LOCK_PAUSE_NS);
    }
    run->lock = fd + 1;
    return DDP_OK;
}

void ddpi_run_unlock_dir(ddpi_run *run)
{
    if (run->lock > 0)
        close(run->lock - 1);
    run->lock = 0;
}

/* Records of steps that are made again would be there twice. */
static ddp_status open_metrics(ddpi_run *run)
{
    char file[PATH_MAX];

    DDP_TRY(ddpi_run_path(run, "metrics.jsonl", file));
    if (ddp_fs_exists(file))
        DDP_TRY(ddp_metrics_cut(file, run->start.steps, run->start.epoch));
    return ddp_metrics_open(file, &run->metrics);
}

ddp_status ddpi_run_check_dir(const ddpi_run *run)
{
    const char *given = run->config.run.run_dir;

    DDP_TRY(check_save_path(run->config.run.save_weights));
    return given != NULL ? check_unused(run, given) : DDP_OK;
}

/* Rank 0. */
static ddp_status make_dir(ddpi_run *run, char path[PATH_MAX])
{
    char file[PATH_MAX];
    const char *given = run->config.run.run_dir;

    DDP_TRY(check_save_path(run->config.run.save_weights));
    if (given == NULL)
        DDP_TRY(default_name(run, path));
    else if (strlen(given) >= PATH_MAX)
        return DDP_FAIL(DDP_ERR_USAGE, "option --run-dir: the path is too long");
    else
        snprintf(path, PATH_MAX, "%s", given);
    DDP_TRY(check_unused(run, path));
    DDP_TRY(ddp_fs_make_dirs(path));
    DDP_TRY(lock_dir(run, path));
    snprintf(run->dir, sizeof run->dir, "%s", path);
    DDP_TRY(ddpi_run_path(run, "status", file));
    DDP_TRY(ddp_fs_write_atomic(file, "running\n", strlen("running\n")));
    DDP_TRY(write_config(run));
    DDP_TRY(ddpi_run_put_failure_aside(run));
    return open_metrics(run);
}

static ddp_status open_log_file(ddpi_run *run)
{
    char name[NAME_BYTES], path[PATH_MAX];

    DDP_TRY(ddp_fs_make_dirs(run->dir));
    snprintf(name, sizeof name, "rank-%d.log", run->rank);
    DDP_TRY(ddpi_run_path(run, name, path));
    return ddp_log_open_file(run->log, path);
}

ddp_status ddpi_run_open_dir(ddpi_run *run)
{
    char path[PATH_MAX] = "";
    ddp_status st = run->rank == 0 ? make_dir(run, path) : DDP_OK;

    DDP_TRY(ddpi_run_agree(run, st, "make the run directory"));
    DDP_TRY(ddp_comm_broadcast(run->comm, 0, path, sizeof path));
    snprintf(run->dir, sizeof run->dir, "%.*s", PATH_MAX - 1, path);
    return open_log_file(run);
}

void ddpi_run_write_status(const ddpi_run *run, const char *word)
{
    char path[PATH_MAX], line[NAME_BYTES];

    if (run->dir[0] == 0)
        return;
    snprintf(line, sizeof line, "%s\n", word);
    if (ddpi_run_path(run, "status", path) != DDP_OK ||
        ddp_fs_write_atomic(path, line, strlen(line)) != DDP_OK)
        ddp_warn("%s", ddp_status_message());
}
