/* run_failure.c - what a failed run leaves behind: every rank's last works, and one page that puts
 * the first cause first.
 *
 * RUN_DIR/failure/rank-N.json is written by each rank that fails or hears of the failure;
 * summary.txt by the one that prints the cause, after the others have had a moment to write. A rank
 * that has written nothing (its process is dead, or stopped) gets a line from what its node knows
 * of it. Called in any thread of a process that is about to end. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "app/run.h"
#include "ddp/fs.h"
#include "ddp/memory.h"
#include "ddp/thread.h"

enum { LINE_BYTES = 512, CAUSE_BYTES = 512, FILE_LIMIT = 1 << 20 };

/* Not worth a sync: what is lost with the host was of this host. */
static ddp_status write_plain(const char *path, const char *text)
{
    int fd;

    DDP_TRY(ddp_fs_create(path, &fd));
    ddp_status st = ddp_fs_write_all(fd, text, strlen(text), path);
    close(fd);
    return st;
}

static ddp_status failure_path(const ddpi_run *run, const char *name, char path[PATH_MAX])
{
    char dir[PATH_MAX];

    DDP_TRY(ddpi_run_path(run, "failure", dir));
    return ddp_fs_join(path, PATH_MAX, dir, name);
}

static ddp_status rank_path(const ddpi_run *run, int rank, char path[PATH_MAX])
{
    char name[32];

    snprintf(name, sizeof name, "rank-%d.json", rank);
    return failure_path(run, name, path);
}

ddp_status ddpi_run_put_failure_aside(const ddpi_run *run)
{
    char path[PATH_MAX], old[PATH_MAX];

    DDP_TRY(ddpi_run_path(run, "failure", path));
    for (int i = 1; ddp_fs_exists(path); i++) {
        char name[32];
        snprintf(name, sizeof name, "failure-%d", i);
        DDP_TRY(ddpi_run_path(run, name, old));
        if (!ddp_fs_exists(old))
            return ddp_fs_rename(path, old);
    }
    return DDP_OK;
}

/* ---- a rank's own file ---- */

/* Times are seconds before now; what has not happened yet has none. */
static void set_age(ddp_json *object, const char *key, int64_t then_ns, int64_t now_ns)
{
    if (then_ns > 0)
        ddp_json_set_number(object, key, (double)(now_ns - then_ns) * 1e-9);
}

static ddp_status add_works(const ddpi_run *run, ddp_json *object)
{
    const int64_t now_ns = ddp_now_ns();
    ddp_work_record *records;
    ddp_json *list;

    DDP_TRY(DDP_ALLOC(records, DDP_WORK_RECORDS));
    const int count = ddp_comm_records(run->comm, records);
    ddp_status st = ddp_json_array(&list);
    for (int i = 0; st == DDP_OK && i < count; i++) {
        const ddp_work_record *r = &records[i];
        ddp_json *work;
        st = ddp_json_object(&work);
        if (st != DDP_OK)
            break;
        ddp_json_set_int(work, "seq", (int64_t)r->seq);
        ddp_json_set_string(work, "kind", r->kind);
        ddp_json_set_string(work, "what", r->what);
        ddp_json_set_int(work, "bytes", r->bytes);
        ddp_json_set_int(work, "bucket", r->bucket);
        ddp_json_set_int(work, "step", r->step);
        set_age(work, "submitted", r->submit_ns, now_ns);
        set_age(work, "started", r->start_ns, now_ns);
        set_age(work, "ended", r->end_ns, now_ns);
        ddp_json_append(list, work);
    }
    if (list != NULL)
        ddp_json_set(object, "works", list);
    ddp_free(records);
    return st;
}

static ddp_status write_own(const ddpi_run *run)
{
    char path[PATH_MAX], line[LINE_BYTES] = "", cause[CAUSE_BYTES];
    char *text = NULL;
    ddp_json *object;

    DDP_TRY(rank_path(run, run->rank, path));
    DDP_TRY(ddp_json_object(&object));
    (void)ddp_comm_cause(run->comm, cause, sizeof cause);
    (void)ddp_comm_describe(run->comm, run->rank, line, sizeof line);
    ddp_json_set_int(object, "rank", run->rank);
    ddp_json_set_string(object, "line", line);
    ddp_json_set_string(object, "cause", cause);
    ddp_status st = add_works(run, object);
    if (st == DDP_OK)
        st = ddp_json_text(object, 0, &text);
    if (st == DDP_OK)
        st = write_plain(path, text);
    ddp_free(text);
    ddp_json_destroy(object);
    return st;
}

void ddpi_run_write_failure(const ddpi_run *run)
{
    char dir[PATH_MAX];

    if (run->dir[0] == 0 || run->world == 1)
        return;
    if (ddpi_run_path(run, "failure", dir) != DDP_OK || ddp_fs_make_dirs(dir) != DDP_OK ||
        write_own(run) != DDP_OK)
        ddp_warn("%s", ddp_status_message());
}

/* ---- the page ---- */

/* The line that a rank has written of itself. */
static bool read_line(const ddpi_run *run, int rank, char line[LINE_BYTES])
{
    char path[PATH_MAX];
    char *data = NULL;
    size_t bytes;
    ddp_json *object = NULL;
    const char *found = NULL;

    if (rank_path(run, rank, path) != DDP_OK || !ddp_fs_exists(path) ||
        ddp_fs_read(path, FILE_LIMIT, &data, &bytes) != DDP_OK)
        return false;
    if (ddp_json_load(data, bytes, path, &object) == DDP_OK &&
        ddp_json_as_string(ddp_json_get(object, "line"), &found) && found[0] != '\0')
        snprintf(line, LINE_BYTES, "%s", found);
    bool good = found != NULL && found[0] != '\0';
    ddp_json_destroy(object);
    ddp_free(data);
    return good;
}

static void add_rank(const ddpi_run *run, int rank, int page)
{
    char line[LINE_BYTES];

    if (read_line(run, rank, line))
        dprintf(page, "%s\n", line);
    else if (ddp_comm_describe(run->comm, rank, line, sizeof line))
        dprintf(page, "%s; has written nothing\n", line);
    else
        dprintf(page, "rank %d: has written nothing here\n", rank);
}

void ddpi_run_merge_failure(const ddpi_run *run)
{
    char path[PATH_MAX], cause[CAUSE_BYTES];
    int page;

    if (run->dir[0] == 0 || run->world == 1 || !ddp_comm_cause(run->comm, cause, sizeof cause) ||
        failure_path(run, "summary.txt", path) != DDP_OK || ddp_fs_create(path, &page) != DDP_OK)
        return;
    dprintf(page, "first cause, from rank %d on %s: %s\n", run->rank, ddp_comm_host(run->comm),
            cause);
    for (int r = 0; r < run->world; r++)
        add_rank(run, r, page);
    close(page);
}
