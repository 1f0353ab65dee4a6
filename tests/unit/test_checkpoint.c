/* test_checkpoint.c - what any number of ranks saves any other loads; a checkpoint is complete or
 * absent whatever fails and whenever a process dies; damage is found and the one before is taken.
 */
#include "harness.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ddp/checkpoint.h"
#include "ddp/fs.h"
#include "loopback_ranks.h"

enum { SHARDS = 4, PARAMS = 3, PATH_BYTES = 256 };

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/ddp_ckpt.XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    return ddp_fs_remove_tree(folder) != DDP_OK;
}

/* ---- what is saved ---- */

typedef struct rig {
    ddp_device *device;
    ddp_param_table *table;
    ddp_buffer_table *buffers;
    size_t length, running_length;
    float *params, *momentum, *average, *combined, *running;
    double seen[SHARDS];
    ddp_ckpt_parts parts;
} rig;

static ddp_status add_param(rig *g, const char *name, ddp_shape shape, uint32_t number)
{
    ddp_param param = {.shape = shape, .init_number = number, .use_count = 1};
    int index;
    snprintf(param.name, sizeof param.name, "%s", name);
    DDP_TRY(ddp_layout_plain(g->device, &shape, &param.layout));
    const ddp_status st = ddp_param_table_add(g->table, &param, &index);
    ddp_layout_unref(param.layout);
    return st;
}

static ddp_status add_buffer(rig *g, const char *name, int64_t count, bool counter)
{
    ddp_buffer buffer = {.count = count, .counter = counter};
    int index;
    snprintf(buffer.name, sizeof buffer.name, "%s", name);
    return ddp_buffer_table_add(g->buffers, &buffer, &index);
}

/* The file's order is the other way round than the flat buffer's; sizes are odd, so that ranks'
 * shares are cut within tensors. */
static ddp_status open_tables(rig *g)
{
    const ddp_device_opts opts = DDP_DEVICE_OPTS_DEFAULTS;
    DDP_TRY(ddp_device_open(ddp_device_cpu(), &opts, &g->device));
    DDP_TRY(ddp_param_table_create(&g->table));
    DDP_TRY(add_param(g, "fc.weight", (ddp_shape){2, {7, 9}}, 2));
    DDP_TRY(add_param(g, "bn.bias", (ddp_shape){1, {5}}, 1));
    DDP_TRY(add_param(g, "bn.weight", (ddp_shape){1, {5}}, 0));
    DDP_TRY(ddp_buffer_table_create(&g->buffers));
    DDP_TRY(add_buffer(g, "bn.running_mean", 5, false));
    DDP_TRY(add_buffer(g, "bn.running_var", 5, false));
    return add_buffer(g, "bn.num_batches_tracked", 0, true);
}

static ddp_status open_rig(rig *g, int rank, int world)
{
    *g = (rig){0};
    DDP_TRY(open_tables(g));
    g->length = ddp_param_table_length(g->table);
    g->running_length = ddp_buffer_table_length(g->buffers);
    DDP_TRY(DDP_ALLOC(g->params, g->length));
    DDP_TRY(DDP_ALLOC(g->momentum, g->length));
    DDP_TRY(DDP_ALLOC(g->average, g->length));
    DDP_TRY(DDP_ALLOC(g->combined, g->running_length));
    DDP_TRY(DDP_ALLOC(g->running, g->running_length * SHARDS));
    const int64_t own = SHARDS / world;
    g->parts = (ddp_ckpt_parts){.device = g->device,
                                .table = g->table,
                                .params = g->params,
                                .flats = {{"momentum", g->momentum}, {"ema", g->average}},
                                .flat_count = 2,
                                .buffers = g->buffers,
                                .combined = g->combined,
                                .shards = SHARDS,
                                .first = own * rank,
                                .own = own,
                                .running = g->running,
                                .seen = g->seen};
    return DDP_OK;
}

static void close_rig(rig *g)
{
    ddp_free(g->params);
    ddp_free(g->momentum);
    ddp_free(g->average);
    ddp_free(g->combined);
    ddp_free(g->running);
    ddp_buffer_table_destroy(g->buffers);
    ddp_param_table_destroy(g->table);
    ddp_device_close(g->device);
}

static float value(int kind, int64_t step, size_t i)
{
    return (float)(kind * 1000 + (int)step) + (float)i * 0.001f;
}

static void fill_flat(const rig *g, float *flat, int kind, int64_t step)
{
    for (int p = 0; p < PARAMS; p++) {
        const ddp_param *param = ddp_param_table_at(g->table, p);
        for (size_t i = 0; i < (size_t)ddp_shape_count(&param->shape); i++)
            flat[param->offset + i] = value(kind, step, param->offset + i);
    }
}

static void fill(rig *g, int64_t step)
{
    fill_flat(g, g->params, 1, step);
    fill_flat(g, g->momentum, 2, step);
    fill_flat(g, g->average, 3, step);
    for (size_t i = 0; i < g->running_length; i++)
        g->combined[i] = value(4, step, i);
    for (int64_t s = 0; s < g->parts.own; s++) {
        g->seen[s] = (double)(step * 100 + g->parts.first + s);
        for (size_t i = 0; i < g->running_length; i++)
            g->running[(size_t)s * g->running_length + i] =
                value(5 + (int)(g->parts.first + s), step, i);
    }
    g->parts.counter = step;
}

static bool same_flat(const rig *a, const float *x, const float *y)
{
    return memcmp(x, y, a->length * sizeof *x) == 0;
}

/* A rank's rig holds what was saved at this step. */
static bool holds(const rig *g, int64_t step, int rank, int world)
{
    rig want;
    bool same = open_rig(&want, rank, world) == DDP_OK;
    fill(&want, step);
    same = same && same_flat(g, g->params, want.params) &&
           same_flat(g, g->momentum, want.momentum) && same_flat(g, g->average, want.average) &&
           g->parts.counter == step &&
           memcmp(g->seen, want.seen, (size_t)g->parts.own * sizeof *g->seen) == 0;
    for (int i = 0; i < 2; i++) { /* the third has no values */
        const ddp_buffer *b = ddp_buffer_table_at(g->buffers, i);
        for (int64_t s = 0; s < g->parts.own; s++) {
            const size_t at = (size_t)s * g->running_length + b->offset;
            same = same && memcmp(g->running + at, want.running + at,
                                  (size_t)b->count * sizeof(float)) == 0;
        }
    }
    close_rig(&want);
    return same;
}

/* ---- jobs of a world ---- */

typedef struct job {
    char dir[PATH_BYTES], path[PATH_BYTES]; /* of all; of the one to load */
    int64_t first, steps, best, keep;       /* saves at first, first + 1, ... */
    bool through_flags;                     /* ranks move by flags, as in training */
} job;

typedef struct rank_flags {
    uint32_t all[16];
} rank_flags;

static ddp_status settle_by_flags(ddp_comm *comm, ddp_ckpt *ckpt)
{
    while (ddp_ckpt_busy(ckpt)) {
        rank_flags words;
        const uint32_t mine = ddp_ckpt_flags(ckpt);
        uint32_t any = 0, all = UINT32_MAX;
        DDP_TRY(ddp_comm_allgather(comm, &mine, sizeof mine, words.all));
        for (int r = 0; r < ddp_comm_world(comm); r++) {
            any |= words.all[r];
            all &= words.all[r];
        }
        ddp_ckpt_advance(ckpt, any, all);
        ddp_sleep_ns(1000000);
    }
    return ddp_ckpt_finish(ckpt);
}

static ddp_status save_one(ddp_comm *comm, ddp_ckpt *ckpt, rig *g, const job *j, int64_t step)
{
    char state[64];
    snprintf(state, sizeof state, "{\"step\": %d}\n", (int)step);
    const ddp_ckpt_save save = {.step = step, .best = j->best, .state = state};
    fill(g, step);
    DDP_TRY(ddp_ckpt_begin(ckpt, &g->parts, &save));
    fill(g, step + 77); /* training goes on: the snapshot is what counts */
    return j->through_flags ? settle_by_flags(comm, ckpt) : ddp_ckpt_finish(ckpt);
}

static ddp_status save_rank(ddp_comm *comm, void *arg)
{
    const job *j = arg;
    const ddp_ckpt_opts opts = {.dir = j->dir, .keep = j->keep > 0 ? j->keep : 100};
    ddp_ckpt *ckpt = NULL;
    rig g;
    ddp_status st = open_rig(&g, ddp_comm_rank(comm), ddp_comm_world(comm));
    if (st == DDP_OK)
        st = ddp_ckpt_create(&opts, &g.parts, comm, &ckpt);
    for (int64_t step = j->first; step < j->first + j->steps && st == DDP_OK; step++)
        st = save_one(comm, ckpt, &g, j, step);
    if (st == DDP_OK && !ddp_ckpt_last(ckpt).good)
        st = DDP_FAIL(DDP_ERR_INTERNAL, "the report says that the save failed");
    ddp_ckpt_destroy(ckpt);
    close_rig(&g);
    return st;
}

static ddp_status load_rank(ddp_comm *comm, void *arg)
{
    const job *j = arg;
    const int rank = ddp_comm_rank(comm), world = ddp_comm_world(comm);
    rig g;
    ddp_status st = open_rig(&g, rank, world);
    if (st == DDP_OK)
        st = ddp_ckpt_load(j->path, &g.parts);
    if (st == DDP_OK && !holds(&g, j->first, rank, world))
        st = DDP_FAIL(DDP_ERR_INTERNAL, "rank %d of %d has read something else", rank, world);
    close_rig(&g);
    return st;
}

static ddp_status in_world(int world, rank_fn fn, job *j)
{
    ddp_comm_opts comm = DDP_COMM_OPTS_DEFAULTS;
    comm.exit_on_failure = false;
    return run_ranks(&comm, world, fn, j);
}

static job make_job(const char *name, int64_t first, int64_t steps)
{
    job j = {.first = first, .steps = steps, .best = -1};
    CHECK_OK(ddp_fs_join(j.dir, sizeof j.dir, folder, name));
    return j;
}

/* The newest complete one; -1: none. Loads it, too. */
static int64_t newest(job *j, char notes[DDP_CKPT_NOTE_BYTES])
{
    ddp_json *state;
    int64_t step = -1;
    CHECK_OK(ddp_ckpt_find(j->dir, j->path, sizeof j->path, &state, notes));
    if (j->path[0] == 0)
        return -1;
    assert_true(ddp_json_as_int(ddp_json_get(state, "step"), &step));
    ddp_json_destroy(state);
    job load = *j;
    load.first = step;
    CHECK_OK(in_world(1, load_rank, &load));
    return step;
}

static int count_names(const char *dir, const char *part)
{
    ddp_fs_names names;
    int count = 0;
    CHECK_OK(ddp_fs_list(dir, &names));
    for (size_t i = 0; i < names.count; i++)
        count += strstr(names.names[i], part) != NULL;
    ddp_fs_names_free(&names);
    return count;
}

/* ---- tests ---- */

static void any_world_reads_what_any_world_wrote(void **state)
{
    static const int worlds[] = {1, 2, 4};
    char notes[DDP_CKPT_NOTE_BYTES];
    char *texts[3];
    (void)state;
    for (int i = 0; i < 3; i++) {
        char name[16], path[PATH_BYTES + 32];
        size_t bytes;
        snprintf(name, sizeof name, "world%d", worlds[i]);
        job j = make_job(name, 12, 1);
        j.through_flags = i > 0;
        CHECK_OK(in_world(worlds[i], save_rank, &j));
        assert_int_equal(newest(&j, notes), 12);
        assert_string_equal(notes, "");
        for (int k = 0; k < 3; k++)
            CHECK_OK(in_world(worlds[k], load_rank, &j));
        CHECK_OK(ddp_fs_join(path, sizeof path, j.path, "MANIFEST.json"));
        CHECK_OK(ddp_fs_read(path, 1 << 20, &texts[i], &bytes));
    }
    /* Sizes and checksums: nothing depends on the number of ranks. */
    assert_string_equal(texts[0], texts[1]);
    assert_string_equal(texts[0], texts[2]);
    for (int i = 0; i < 3; i++)
        ddp_free(texts[i]);
}

static void the_newest_and_the_best_stay(void **state)
{
    job j = make_job("kept", 1, 6);
    char notes[DDP_CKPT_NOTE_BYTES];
    (void)state;
    j.best = 2;
    j.keep = 2;
    CHECK_OK(in_world(2, save_rank, &j));
    assert_int_equal(newest(&j, notes), 6);
    assert_int_equal(count_names(j.dir, ""), 3);
    assert_int_equal(count_names(j.dir, "step-0000000002"), 1);
    assert_int_equal(count_names(j.dir, "step-0000000005"), 1);
    /* Saving a step again, as after a resume from an older one, replaces it. */
    j.first = 6;
    j.steps = 1;
    CHECK_OK(in_world(1, save_rank, &j));
    assert_int_equal(newest(&j, notes), 6);
    assert_int_equal(count_names(j.dir, ""), 3);
}

static void half_done_folders_are_swept(void **state)
{
    job j = make_job("swept", 3, 1);
    char path[PATH_BYTES + 64], notes[DDP_CKPT_NOTE_BYTES];
    (void)state;
    CHECK_OK(ddp_fs_join(path, sizeof path, j.dir, "step-0000000009.tmp-1-2/inner"));
    CHECK_OK(ddp_fs_make_dirs(path));
    assert_int_equal(newest(&j, notes), -1);
    CHECK_OK(in_world(1, save_rank, &j));
    assert_int_equal(count_names(j.dir, ".tmp-"), 0);
    assert_int_equal(newest(&j, notes), 3);
}

/* ---- damage ---- */

typedef enum damage { MISSING, EMPTY, SHORT, LONG, FLIPPED_FIRST, FLIPPED_LAST, DAMAGES } damage;

static void damage_file(const char *path, damage how)
{
    char *data;
    size_t bytes;
    CHECK_OK(ddp_fs_read(path, 1 << 20, &data, &bytes));
    data[bytes] = 'x';
    data[0] ^= how == FLIPPED_FIRST;
    data[bytes / 2] ^= how == FLIPPED_LAST;
    const size_t keep = how == EMPTY ? 0 : how == SHORT ? bytes - 1 : bytes + (how == LONG);
    if (how == MISSING)
        assert_int_equal(unlink(path), 0);
    else
        CHECK_OK(ddp_fs_write_atomic(path, data, keep));
    ddp_free(data);
}

static void every_damage_is_found_and_the_one_before_is_taken(void **state)
{
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "state.json",
                                        "MANIFEST.json"};
    (void)state;
    for (int f = 0; f < 4; f++)
        for (int how = 0; how < DAMAGES; how++) {
            char notes[DDP_CKPT_NOTE_BYTES], path[PATH_BYTES + 32], name[32];
            snprintf(name, sizeof name, "damaged%d.%d", f, how);
            job j = make_job(name, 4, 2);
            CHECK_OK(in_world(1, save_rank, &j));
            assert_int_equal(newest(&j, notes), 5);
            CHECK_OK(ddp_fs_join(path, sizeof path, j.path, files[f]));
            damage_file(path, (damage)how);
            if (newest(&j, notes) != 4)
                fail_msg("%s, damage %d: the damaged one is taken", files[f], how);
            if (strstr(notes, "step-0000000005 is skipped") == NULL ||
                strstr(notes, files[f]) == NULL)
                fail_msg("%s, damage %d: the notes are \"%s\"", files[f], how, notes);
            CHECK_OK(ddp_fs_remove_tree(j.dir));
        }
}

static void what_does_not_fit_is_named(void **state)
{
    job j = make_job("misfit", 8, 1);
    char notes[DDP_CKPT_NOTE_BYTES];
    rig g;
    (void)state;
    CHECK_OK(in_world(1, save_rank, &j));
    assert_int_equal(newest(&j, notes), 8);
    CHECK_OK(open_rig(&g, 0, 1));
    g.parts.flats[1].name = "exp_avg";
    CHECK_FAILS(ddp_ckpt_load(j.path, &g.parts), DDP_ERR_SHAPE, "has no exp_avg.fc.weight");
    close_rig(&g);
}

/* Of four shards, for the middle two of six: what all had gathered, their samples in equal parts.
 */
static void other_shards_begin_with_all_statistics(void **state)
{
    job j = make_job("spread", 8, 1);
    char notes[DDP_CKPT_NOTE_BYTES];
    rig g, want;
    (void)state;
    CHECK_OK(in_world(1, save_rank, &j));
    assert_int_equal(newest(&j, notes), 8);
    CHECK_OK(open_rig(&g, 0, 2));
    CHECK_OK(open_rig(&want, 0, 1));
    fill(&want, 8);
    g.parts.shards = 6;
    g.parts.first = g.parts.own = 2;
    CHECK_OK(ddp_ckpt_load(j.path, &g.parts));
    assert_true(same_flat(&g, g.params, want.params) && same_flat(&g, g.momentum, want.momentum));
    for (size_t s = 0; s < 2; s++) {
        const double all = 800 + 801 + 802 + 803;
        assert_true(g.seen[s] == all / 6);
        for (int i = 0; i < 2; i++) {
            const ddp_buffer *b = ddp_buffer_table_at(g.buffers, i);
            assert_memory_equal(g.running + s * g.running_length + b->offset,
                                want.combined + b->offset, (size_t)b->count * sizeof(float));
        }
    }
    close_rig(&want);
    close_rig(&g);
}

/* ---- faults ---- */

typedef struct fault {
    atomic_int calls;
    int fail_at, error; /* error 0: the process is killed there */
} fault;

static int on_step(void *arg, const char *what, const char *path)
{
    fault *f = arg;
    (void)what;
    (void)path;
    if (atomic_fetch_add(&f->calls, 1) != f->fail_at)
        return 0;
    if (f->error == 0)
        (void)raise(SIGKILL);
    return f->error;
}

/* A save of one rank in a process of its own; true if it was good. */
static bool save_in_child(job *j, fault *f)
{
    int status;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const bool quiet = freopen("/dev/null", "w", stderr) != NULL;
        ddp_fs_on_fault(on_step, f);
        const bool good = quiet && in_world(1, save_rank, j) == DDP_OK;
        _exit(good ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static int steps_of_a_save(job *j)
{
    fault f = {.fail_at = -1};
    ddp_fs_on_fault(on_step, &f);
    CHECK_OK(in_world(1, save_rank, j));
    ddp_fs_on_fault(NULL, NULL);
    return atomic_load(&f.calls);
}

/* The save fails or, past the rename, succeeds: either way what is found is whole, the older one at
 * least, and the next save works. */
static void fail_at_every_step(const char *name, int error)
{
    char notes[DDP_CKPT_NOTE_BYTES];
    job first = make_job(name, 1, 1), second = make_job(name, 2, 1), third = make_job(name, 3, 1);
    CHECK_OK(in_world(1, save_rank, &first));
    const int steps = steps_of_a_save(&second);
    assert_true(steps > 20);
    int lost = 0;
    for (int i = 0; i < steps; i++) {
        fault f = {.fail_at = i, .error = error};
        CHECK_OK(ddp_fs_remove_tree(first.dir));
        CHECK_OK(in_world(1, save_rank, &first));
        const bool good = save_in_child(&second, &f);
        const int64_t found = newest(&second, notes);
        lost += found == 1;
        if (found != 2 && (found != 1 || good))
            fail_msg("step %d of %d: found %d after a save that was %s", i, steps, (int)found,
                     good ? "good" : "not good");
        if (error != 0 && count_names(first.dir, ".tmp-") != 0)
            fail_msg("step %d of %d: the failed save is still there", i, steps);
        CHECK_OK(in_world(1, save_rank, &third));
        assert_int_equal(newest(&third, notes), 3);
        assert_int_equal(count_names(first.dir, ".tmp-"), 0);
    }
    assert_true(lost > steps / 2);
}

static void a_full_disk_at_any_step(void **state)
{
    (void)state;
    fail_at_every_step("full", ENOSPC);
}

static void a_broken_disk_at_any_step(void **state)
{
    (void)state;
    fail_at_every_step("broken", EIO);
}

static void a_kill_at_any_step(void **state)
{
    (void)state;
    fail_at_every_step("killed", 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_world_reads_what_any_world_wrote),
        cmocka_unit_test(the_newest_and_the_best_stay),
        cmocka_unit_test(half_done_folders_are_swept),
        cmocka_unit_test(every_damage_is_found_and_the_one_before_is_taken),
        cmocka_unit_test(what_does_not_fit_is_named),
        cmocka_unit_test(other_shards_begin_with_all_statistics),
        cmocka_unit_test(a_full_disk_at_any_step),
        cmocka_unit_test(a_broken_disk_at_any_step),
        cmocka_unit_test(a_kill_at_any_step),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
