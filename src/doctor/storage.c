/* storage.c - whether every rank can read the data and write where the run will, and whether the
 * hosts mean the same file system by it.
 *
 * The run directory need not exist yet, and is not made: what counts is the deepest folder on its
 * way that exists. Rank 0 leaves a file there, the others look for it; none stays behind. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "ddp/memory.h"
#include "ddp/thread.h"
#include "doctor/doctor.h"

enum { MARK_BYTES = 48 };
/* File servers show what another host has made a moment later. */
#define LOOK_AGAIN_NS INT64_C(100000000)
#define LOOKS         20

/* One rank's questions; lives on where they are not answered. */
typedef struct questions {
    char run_dir[PATH_MAX], data_dir[PATH_MAX];
    char folder[PATH_MAX]; /* on the way to run_dir */
    char mark[MARK_BYTES]; /* rank 0's file; "": it could not make one */
    bool makes;            /* this is rank 0, which makes it */
    int rank;
    ddpi_doctor_storage answer;
} questions;

/* The deepest folder on the way to path that is there; "." of a relative one. */
static void find_folder(const char *path, char folder[PATH_MAX])
{
    struct stat info;

    snprintf(folder, PATH_MAX, "%s", path);
    while (stat(folder, &info) != 0) {
        char *slash = strrchr(folder, '/');
        if (slash == NULL)
            snprintf(folder, PATH_MAX, ".");
        else if (slash == folder)
            folder[1] = '\0';
        else
            *slash = '\0';
        if (slash == NULL || slash == folder)
            return;
    }
}

static bool in_folder(char path[PATH_MAX], const char *folder, const char *name)
{
    const int n = snprintf(path, PATH_MAX, "%s/%s", folder, name);

    return n > 0 && n < PATH_MAX;
}

/* False: *answer has the cause. */
static bool make_file(const char *folder, const char *name, ddpi_doctor_storage *answer)
{
    char path[PATH_MAX];
    const bool fits = in_folder(path, folder, name);
    const int fd = fits ? open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666) : -1;

    if (fd < 0)
        snprintf(answer->run_error, sizeof answer->run_error, "create a file in %.90s: %s", folder,
                 fits ? strerror(errno) : "the path is too long");
    else
        close(fd);
    return fd >= 0;
}

static void ask_first(void *arg)
{
    questions *q = arg;

    find_folder(q->run_dir, q->folder);
    if (!make_file(q->folder, q->mark, &q->answer))
        q->mark[0] = '\0';
}

static void look_for_mark(questions *q)
{
    char path[PATH_MAX];

    for (int i = 0; i < LOOKS && q->mark[0] != '\0' && !q->answer.run_shared; i++) {
        if (i > 0)
            ddp_sleep_ns(LOOK_AGAIN_NS);
        q->answer.run_shared = in_folder(path, q->folder, q->mark) && access(path, F_OK) == 0;
    }
}

static void look_at_data(questions *q)
{
    char *cause = q->answer.data_error;

    if (q->data_dir[0] != '\0' && access(q->data_dir, R_OK | X_OK) != 0)
        snprintf(cause, sizeof q->answer.data_error, "%.110s: %s", q->data_dir, strerror(errno));
}

static void ask(void *arg)
{
    questions *q = arg;
    char own[MARK_BYTES + 16], path[PATH_MAX];
    struct statvfs fs;

    look_at_data(q);
    if (!q->makes) {
        find_folder(q->run_dir, q->folder);
        look_for_mark(q);
        snprintf(own, sizeof own, "%s-%d", q->mark, q->rank);
        if (q->mark[0] != '\0' && make_file(q->folder, own, &q->answer) &&
            in_folder(path, q->folder, own))
            (void)unlink(path);
    }
    if (statvfs(q->folder, &fs) == 0)
        q->answer.run_free = (int64_t)(fs.f_bavail * fs.f_frsize);
}

static void remove_mark(void *arg)
{
    const questions *q = arg;
    char path[PATH_MAX];

    if (in_folder(path, q->folder, q->mark))
        (void)unlink(path);
}

static void name_mark(char mark[MARK_BYTES])
{
    uint64_t token = 0;

    (void)!getrandom(&token, sizeof token, 0);
    snprintf(mark, MARK_BYTES, ".ddp-doctor-%016llx", (unsigned long long)token);
}

static void not_answered(ddpi_doctor_storage *answer)
{
    snprintf(answer->run_error, sizeof answer->run_error,
             "the file system does not answer within %.0f s", DDPI_DOCTOR_PATIENCE_S);
}

/* What a question left behind still holds must not be touched: copies are used from then on. */
static ddp_status ask_all(ddp_comm *comm, questions *q, ddpi_doctor_storage *storage, bool *lost)
{
    char mark[MARK_BYTES] = "";

    if (q->makes && ddpi_doctor_patient(ask_first, q))
        memcpy(mark, q->mark, sizeof mark);
    else if (q->makes)
        *lost = true;
    DDP_TRY(ddp_comm_broadcast(comm, 0, mark, sizeof mark));
    if (!*lost) {
        memcpy(q->mark, mark, sizeof mark);
        *lost = !ddpi_doctor_patient(ask, q);
    }
    if (*lost)
        not_answered(storage);
    else
        *storage = q->answer;
    storage->run_shared = storage->run_shared || q->makes;
    DDP_TRY(ddp_comm_barrier(comm)); /* all have looked */
    if (q->makes && !*lost && mark[0] != '\0')
        *lost = !ddpi_doctor_patient(remove_mark, q);
    return DDP_OK;
}

ddp_status ddpi_doctor_look_at_storage(ddp_comm *comm, const ddpi_doctor_needs *needs,
                                       ddpi_doctor_storage *storage)
{
    questions *q;
    bool lost = false;

    ddp_status st = DDP_ALLOC(q, 1);
    DDP_TRY(ddp_comm_agree(comm, st, "ask for directories"));
    snprintf(q->run_dir, sizeof q->run_dir, "%s", needs->run_dir);
    snprintf(q->data_dir, sizeof q->data_dir, "%s", needs->data_dir ? needs->data_dir : "");
    q->rank = ddp_comm_rank(comm);
    q->makes = q->rank == 0;
    name_mark(q->mark);
    st = ask_all(comm, q, storage, &lost);
    if (!lost)
        ddp_free(q);
    return st;
}
