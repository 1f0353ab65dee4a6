/* ckpt_write.c - saves: the snapshot, the thread that writes it, and the phases that all ranks go
 * through together.
 *
 * WRITING ends when every rank's thread has written and synced its pieces, or one has failed;
 * COMMITTING is rank 0's thread alone, with the manifest and the rename. Ranks move from phase to
 * phase only in advance() and finish(), on numbers that are the same on all of them, so none is
 * ahead of the others. The snapshot has parameters as they lie in memory, since training stands
 * still for it; the thread brings them to plain order. The thread and its owner share `job` and
 * `outcome` under the monitor; everything else is the owner's, and what the thread reads of it does
 * not change while it works.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/ckpt_impl.h"
#include "ddp/fs.h"
#include "ddp/log.h"
#include "ddp/memory.h"
#include "ddp/spans.h"
#include "ddp/thread.h"

#define POLL_NS INT64_C(5000000)

enum { NAME_BYTES = 64, TOKEN_BYTES = 24 };

enum { FLAG_FINISHED = 1, FLAG_FAILED = 2, FLAG_COMMITTED = 4 };

typedef enum save_phase { PHASE_IDLE, PHASE_WRITING, PHASE_COMMITTING } save_phase;
typedef enum job_kind { JOB_NONE, JOB_WRITE, JOB_COMMIT, JOB_LEAVE } job_kind;

struct ddp_ckpt {
    char dir[PATH_MAX], temporary[PATH_MAX], token[TOKEN_BYTES];
    int64_t keep;
    ddp_comm *comm;
    ddpi_ckpt_layout layout;
    ddp_range *owned; /* [world][owned_count]: what the layout is cut by */
    int owned_count;
    bool cut;     /* is it? */
    char *memory; /* the snapshot */
    size_t memory_bytes;
    ddpi_ckpt_scratch scratch; /* the thread's */
    char *state;               /* text of the save under way */
    int64_t step, best;
    save_phase phase;
    ddp_thread thread;
    ddp_monitor monitor;
    bool monitor_made;
    job_kind job;       /* for the thread; NONE: it has done the last one */
    ddp_status outcome; /* of that */
    char message[512];
    int64_t begin_ns, write_ns; /* of the save under way */
    ddp_ckpt_report report;
    ddp_status last; /* how the last save ended on this rank */
};

static bool is_root(const ddp_ckpt *c)
{
    return ddp_comm_rank(c->comm) == 0;
}

/* ---- the thread ---- */

static ddp_status write_pieces(const ddp_ckpt *c, int file, int fd, const char *path)
{
    for (int i = 0; i < c->layout.count; i++) {
        const ddpi_ckpt_piece *piece = &c->layout.pieces[i];
        if (piece->file == file)
            DDP_TRY(ddpi_ckpt_piece_write(piece, c->memory, &c->scratch, fd, path));
    }
    return ddp_fs_sync(fd, path);
}

static ddp_status write_files(const ddp_ckpt *c)
{
    for (int file = 0; file < DDPI_CKPT_FILES; file++) {
        char path[PATH_MAX];
        int fd;
        DDP_TRY(ddp_fs_join(path, sizeof path, c->temporary, ddpi_ckpt_file_names[file]));
        DDP_TRY(ddp_fs_open_write(path, &fd));
        ddp_status st = write_pieces(c, file, fd, path);
        if (close(fd) != 0 && st == DDP_OK)
            st = DDP_FAIL(DDP_ERR_IO, "close %s failed", path);
        DDP_TRY(st);
    }
    return DDP_OK;
}

static ddp_status commit(const ddp_ckpt *c)
{
    const ddpi_ckpt_commit commit = {.dir = c->dir,
                                     .temporary = c->temporary,
                                     .token = c->token,
                                     .state = c->state,
                                     .step = c->step,
                                     .best = c->best,
                                     .keep = c->keep};
    return ddpi_ckpt_commit_run(&commit);
}

static void *thread_main(void *arg)
{
    ddp_ckpt *c = arg;
    ddp_spans_join("checkpoint", DDP_SPANS_WORKER);
    ddp_monitor_lock(&c->monitor);
    while (c->job != JOB_LEAVE) {
        const job_kind job = c->job;
        if (job == JOB_NONE) {
            (void)ddp_monitor_wait(&c->monitor, DDP_NO_DEADLINE);
            continue;
        }
        ddp_monitor_unlock(&c->monitor);
        const int64_t start = ddp_now_ns();
        const ddp_status st = job == JOB_WRITE ? write_files(c) : commit(c);
        const int64_t taken = ddp_now_ns() - start;
        ddp_spans_add(DDP_SPAN_WRITE, 0, c->step, start, start + taken, 0);
        ddp_monitor_lock(&c->monitor);
        c->write_ns += taken;
        c->outcome = st;
        if (st != DDP_OK)
            snprintf(c->message, sizeof c->message, "%s", ddp_status_message());
        if (c->job != JOB_LEAVE)
            c->job = JOB_NONE;
        ddp_monitor_wake_all(&c->monitor);
    }
    ddp_monitor_unlock(&c->monitor);
    ddp_spans_leave();
    return NULL;
}

static void give_job(ddp_ckpt *c, job_kind job)
{
    ddp_monitor_lock(&c->monitor);
    c->job = job;
    ddp_monitor_wake_all(&c->monitor);
    ddp_monitor_unlock(&c->monitor);
}

/* ---- phases ---- */

bool ddp_ckpt_busy(const ddp_ckpt *c)
{
    return c->phase != PHASE_IDLE;
}

uint32_t ddp_ckpt_flags(ddp_ckpt *c)
{
    if (c->phase == PHASE_IDLE || (c->phase == PHASE_COMMITTING && !is_root(c)))
        return 0;
    ddp_monitor_lock(&c->monitor);
    const bool done = c->job == JOB_NONE;
    const uint32_t failed = c->outcome != DDP_OK ? FLAG_FAILED : 0;
    ddp_monitor_unlock(&c->monitor);
    if (!done)
        return 0;
    if (c->phase == PHASE_WRITING)
        return FLAG_FINISHED | failed;
    return failed != 0 ? failed : FLAG_COMMITTED;
}

/* The save is over, well or not; its folder goes if it is of no use. */
static void end_save(ddp_ckpt *c, bool good)
{
    c->phase = PHASE_IDLE;
    c->last = good ? DDP_OK : c->outcome;
    c->report.saves++;
    c->report.step = c->step;
    c->report.good = good;
    c->report.write_ns = c->write_ns;
    if (good)
        return;
    if (c->outcome != DDP_OK)
        ddp_error("the checkpoint of step %" PRId64 " is not written: %s", c->step, c->message);
    if (is_root(c) && ddp_fs_remove_tree(c->temporary) != DDP_OK)
        ddp_warn("%s", ddp_status_message());
}

void ddp_ckpt_advance(ddp_ckpt *c, uint32_t any, uint32_t all)
{
    if (c->phase == PHASE_WRITING && (all & FLAG_FINISHED) != 0) {
        if ((any & FLAG_FAILED) != 0) {
            end_save(c, false);
            return;
        }
        c->phase = PHASE_COMMITTING;
        if (is_root(c))
            give_job(c, JOB_COMMIT);
    } else if (c->phase == PHASE_COMMITTING && (any & (FLAG_COMMITTED | FLAG_FAILED)) != 0) {
        end_save(c, (any & FLAG_FAILED) == 0);
    }
}

/* A collective a time, so that no deadline of the communicator meets a slow disk. */
static ddp_status exchange(ddp_ckpt *c)
{
    /* The conjunction is the complement of the others' disjunction. */
    const uint32_t mine = ddp_ckpt_flags(c);
    int32_t words[2 * DDP_CKPT_FLAG_BITS];
    uint32_t any = 0, none = 0;
    for (int i = 0; i < DDP_CKPT_FLAG_BITS; i++) {
        words[2 * i] = (int32_t)(mine >> i & 1);
        words[2 * i + 1] = (int32_t)(~mine >> i & 1);
    }
    DDP_TRY(ddp_comm_allreduce(c->comm, words, 2 * DDP_CKPT_FLAG_BITS, DDP_I32, DDP_REDUCE_MAX,
                               "checkpoint"));
    for (int i = 0; i < DDP_CKPT_FLAG_BITS; i++) {
        any |= (uint32_t)words[2 * i] << i;
        none |= (uint32_t)words[2 * i + 1] << i;
    }
    ddp_ckpt_advance(c, any, ~none);
    return DDP_OK;
}

ddp_status ddp_ckpt_finish(ddp_ckpt *c)
{
    while (c->phase != PHASE_IDLE) {
        ddp_monitor_lock(&c->monitor);
        if (c->job != JOB_NONE)
            (void)ddp_monitor_wait(&c->monitor, ddp_now_ns() + POLL_NS);
        ddp_monitor_unlock(&c->monitor);
        DDP_TRY(exchange(c));
        if (!is_root(c) && c->phase == PHASE_COMMITTING)
            ddp_sleep_ns(POLL_NS);
    }
    const ddp_status mine =
        c->last == DDP_OK ? DDP_OK : ddp_status_set(c->last, NULL, 0, "%s", c->message);
    return ddp_comm_agree(c->comm, mine, "write a checkpoint");
}

ddp_ckpt_report ddp_ckpt_last(const ddp_ckpt *c)
{
    return c->report;
}

/* ---- what this rank writes ---- */

static ddp_status make_room(ddp_ckpt *c)
{
    /* What ranks own differs by little from equal shares, which the first room is for. */
    const size_t slack = c->layout.memory_bytes / 64 + 65536;
    void *memory;
    if (c->layout.memory_bytes <= c->memory_bytes)
        return DDP_OK;
    ddp_large_free(c->memory, c->memory_bytes);
    c->memory = NULL;
    c->memory_bytes = 0;
    DDP_TRY(ddp_large_alloc(c->layout.memory_bytes + slack, &memory));
    c->memory = memory;
    c->memory_bytes = c->layout.memory_bytes + slack;
    return DDP_OK;
}

static ddp_status cut(ddp_ckpt *c, const ddp_ckpt_parts *parts)
{
    const ddpi_ckpt_owners owners = {.rank = ddp_comm_rank(c->comm),
                                     .world = ddp_comm_world(c->comm),
                                     .ranges = c->owned,
                                     .count = c->owned_count};
    DDP_TRY(ddpi_ckpt_cut(&c->layout, parts, &owners));
    return make_room(c);
}

static ddp_status gather_owned(ddp_ckpt *c, const ddp_ckpt_parts *parts, ddp_range **all_out)
{
    const size_t bytes = (size_t)parts->owned_count * sizeof **all_out;
    ddp_range *all = NULL;
    ddp_status st = DDP_ALLOC(all, (size_t)ddp_comm_world(c->comm) * (size_t)parts->owned_count);
    st = ddp_comm_agree(c->comm, st, "begin a checkpoint");
    if (st == DDP_OK)
        st = ddp_comm_allgather(c->comm, parts->owned, bytes, all);
    if (st != DDP_OK)
        ddp_free(all);
    else
        *all_out = all;
    return st;
}

/* Collective. The ranks' shares follow what they own now. *cut_out: this rank's alone. */
static ddp_status follow_owners(ddp_ckpt *c, const ddp_ckpt_parts *parts, ddp_status *cut_out)
{
    const int count = parts->owned != NULL ? parts->owned_count : 0;
    ddp_range *all = NULL;
    if (count > 0)
        DDP_TRY(gather_owned(c, parts, &all));
    const size_t bytes = (size_t)ddp_comm_world(c->comm) * (size_t)count * sizeof *all;
    *cut_out = DDP_OK;
    if (c->cut && count == c->owned_count && (count == 0 || memcmp(all, c->owned, bytes) == 0)) {
        ddp_free(all);
        return DDP_OK;
    }
    ddp_free(c->owned);
    c->owned = all;
    c->owned_count = count;
    *cut_out = cut(c, parts);
    c->cut = *cut_out == DDP_OK;
    return DDP_OK;
}

/* ---- beginning ---- */

static ddp_status make_file(const ddp_ckpt *c, int file)
{
    const ddpi_ckpt_layout *layout = &c->layout;
    char path[PATH_MAX];
    int fd;
    DDP_TRY(ddp_fs_join(path, sizeof path, c->temporary, ddpi_ckpt_file_names[file]));
    DDP_TRY(ddp_fs_create(path, &fd));
    ddp_status st = ddp_fs_reserve(fd, layout->file_bytes[file], path);
    if (st == DDP_OK)
        st = ddp_fs_write_at(fd, layout->heads[file], layout->head_bytes[file], 0, path);
    close(fd);
    return st;
}

/* Rank 0. */
static ddp_status make_files(ddp_ckpt *c, const char *state)
{
    ddp_free(c->state);
    c->state = NULL;
    DDP_TRY(ddp_strdup(state, &c->state));
    DDP_TRY(ddp_fs_make_dirs(c->temporary));
    for (int file = 0; file < DDPI_CKPT_FILES; file++)
        DDP_TRY(make_file(c, file));
    return DDP_OK;
}

static ddp_status name_temporary(ddp_ckpt *c)
{
    char name[NAME_BYTES], full[NAME_BYTES + TOKEN_BYTES + 8];
    ddpi_ckpt_format_name(c->step, name, sizeof name);
    snprintf(full, sizeof full, "%s.tmp-%s", name, c->token);
    return ddp_fs_join(c->temporary, sizeof c->temporary, c->dir, full);
}

ddp_status ddp_ckpt_begin(ddp_ckpt *c, const ddp_ckpt_parts *parts, const ddp_ckpt_save *save)
{
    DDP_ASSERT(c->phase == PHASE_IDLE);
    const int64_t start = save->stopped_ns != 0 ? save->stopped_ns : ddp_now_ns();
    c->step = save->step;
    c->best = save->best;
    ddp_status st;
    DDP_TRY(follow_owners(c, parts, &st));
    if (st == DDP_OK)
        st = name_temporary(c);
    if (st == DDP_OK && is_root(c))
        st = make_files(c, save->state);
    if (st == DDP_OK)
        st = ddpi_ckpt_snapshot(&c->layout, parts, c->memory);
    st = ddp_comm_agree(c->comm, st, "begin a checkpoint");
    if (st != DDP_OK) {
        char message[sizeof c->message];
        snprintf(message, sizeof message, "%s", ddp_status_message());
        if (is_root(c) && ddp_fs_remove_tree(c->temporary) != DDP_OK)
            ddp_warn("%s", ddp_status_message());
        return ddp_status_set(st, NULL, 0, "%s", message);
    }
    c->write_ns = 0;
    c->outcome = DDP_OK;
    c->phase = PHASE_WRITING;
    give_job(c, JOB_WRITE);
    c->report.stall_ns = ddp_now_ns() - start;
    return DDP_OK;
}

/* ---- life ---- */

/* The name is new: only a rank that sees rank 0's file system finds it. */
static ddp_status check_shared(ddp_ckpt *c)
{
    char name[TOKEN_BYTES + 8], path[PATH_MAX];
    snprintf(name, sizeof name, ".seen-%s", c->token);
    ddp_status st = ddp_fs_join(path, sizeof path, c->dir, name);
    if (st == DDP_OK && is_root(c))
        st = ddp_fs_write_atomic(path, "", 0);
    DDP_TRY(ddp_comm_agree(c->comm, st, "open the folder of checkpoints"));
    if (!ddp_fs_exists(path))
        st = DDP_FAIL(DDP_ERR_IO,
                      "%s is not the folder that rank 0 sees under this name: checkpoints need a "
                      "run directory that all hosts share",
                      c->dir);
    st = ddp_comm_agree(c->comm, st, "look into the folder of checkpoints");
    if (is_root(c))
        (void)unlink(path);
    return st;
}

static ddp_status open_folder(ddp_ckpt *c)
{
    ddp_status st = DDP_OK;
    if (is_root(c)) {
        snprintf(c->token, sizeof c->token, "%x-%llx", (unsigned)getpid() & 0xffffffU,
                 (unsigned long long)ddp_now_ns() & 0xffffffffffULL);
        st = ddp_fs_make_dirs(c->dir);
        if (st == DDP_OK)
            st = ddpi_ckpt_sweep(c->dir);
    }
    DDP_TRY(ddp_comm_agree(c->comm, st, "open the folder of checkpoints"));
    DDP_TRY(ddp_comm_broadcast(c->comm, 0, c->token, sizeof c->token));
    return check_shared(c);
}

static ddp_status prepare(ddp_ckpt *c, const ddp_ckpt_opts *opts, const ddp_ckpt_parts *parts)
{
    if (strlen(opts->dir) >= sizeof c->dir)
        return DDP_FAIL(DDP_ERR_USAGE, "the path of the checkpoints is too long");
    snprintf(c->dir, sizeof c->dir, "%s", opts->dir);
    c->keep = opts->keep;
    DDP_TRY(ddpi_ckpt_layout_make(parts, &c->layout));
    DDP_TRY(cut(c, parts)); /* before the first step all ranks have the same */
    c->cut = true;
    for (int file = 0; file < DDPI_CKPT_FILES; file++)
        c->report.bytes += c->layout.file_bytes[file];
    DDP_TRY(ddpi_ckpt_scratch_open(parts->table, &c->scratch));
    DDP_TRY(ddp_monitor_init(&c->monitor));
    c->monitor_made = true;
    return ddp_thread_start(&c->thread, "checkpoint", thread_main, c);
}

ddp_status ddp_ckpt_create(const ddp_ckpt_opts *opts, const ddp_ckpt_parts *parts, ddp_comm *comm,
                           ddp_ckpt **ckpt_out)
{
    ddp_ckpt *c = NULL;
    ddp_status st = DDP_ALLOC(c, 1);
    if (st == DDP_OK) {
        c->comm = comm;
        st = prepare(c, opts, parts);
    }
    st = ddp_comm_agree(comm, st, "prepare checkpoints");
    if (st == DDP_OK)
        st = open_folder(c);
    if (st != DDP_OK) {
        ddp_ckpt_destroy(c);
        return st;
    }
    *ckpt_out = c;
    return DDP_OK;
}

void ddp_ckpt_destroy(ddp_ckpt *c)
{
    if (c == NULL)
        return;
    if (c->monitor_made) {
        give_job(c, JOB_LEAVE);
        ddp_thread_join(&c->thread);
        ddp_monitor_destroy(&c->monitor);
    }
    ddp_large_free(c->memory, c->memory_bytes);
    ddp_free(c->owned);
    ddpi_ckpt_scratch_close(&c->scratch);
    ddp_free(c->state);
    ddpi_ckpt_layout_free(&c->layout);
    ddp_free(c);
}
