/* test_shm_region.c - shared regions between forked processes: contents are shared, a request that
 * is too large fails cleanly, and no name stays behind. */
#include "harness.h"

#include <dirent.h>
#include <signal.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/shm_group.h"
#include "comm/shm_region.h"
#include "ddp/thread.h"

#define REGION_BYTES ((size_t)1 << 20)
#define RANKS        4
#define COUNT        30000

/* Does a region of this name exist? */
static bool name_exists(const char *name)
{
    char path[128];

    snprintf(path, sizeof path, "/dev/shm%s", name);
    return access(path, F_OK) == 0;
}

static int regions_left(void)
{
    int count = 0;
    DIR *folder = opendir("/dev/shm");

    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
        count += strncmp(entry->d_name, "ddp-", 4) == 0;
    closedir(folder);
    return count;
}

/* Other programs' regions have names for a moment, too; what is left behind would stay. */
static bool goes_back_to(int count)
{
    int64_t end = ddp_deadline_after_ms(10000);

    while (regions_left() > count && ddp_now_ns() < end)
        ddp_sleep_ns(5000000);
    return regions_left() <= count;
}

static int exit_status(pid_t child)
{
    int status;

    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void test_share(void **state)
{
    (void)state;
    ddpi_shm_region region;
    int before = regions_left();

    CHECK_OK(ddpi_shm_create(REGION_BYTES, &region));
    assert_true(name_exists(region.name));
    ddpi_shm_touch(&region, 100, REGION_BYTES - 100);
    for (size_t i = 0; i < REGION_BYTES; i += 4096)
        assert_int_equal(((char *)region.base)[i], 0);
    pid_t child = fork();
    if (child == 0) {
        ddpi_shm_region mine;
        if (ddpi_shm_attach(region.name, REGION_BYTES, &mine) != DDP_OK)
            _exit(1);
        ((char *)mine.base)[REGION_BYTES - 1] = 42;
        ddpi_shm_detach(&mine);
        /* Who only attached must not take the name away. */
        _exit(mine.base == NULL && name_exists(region.name) ? 0 : 2);
    }
    assert_int_equal(exit_status(child), 0);
    assert_int_equal(((char *)region.base)[REGION_BYTES - 1], 42);
    char name[DDPI_SHM_NAME_BYTES];
    memcpy(name, region.name, sizeof name);
    ddpi_shm_unlink(&region);
    assert_false(name_exists(name));
    assert_int_equal(((char *)region.base)[REGION_BYTES - 1], 42);
    ddpi_shm_region late;
    CHECK_FAILS(ddpi_shm_attach(name, REGION_BYTES, &late), DDP_ERR_IO, "attach");
    ddpi_shm_detach(&region);
    ddpi_shm_detach(&region);
    assert_true(goes_back_to(before));
}

static void test_wrong_size(void **state)
{
    (void)state;
    ddpi_shm_region region, other;

    CHECK_OK(ddpi_shm_create(4096, &region));
    CHECK_FAILS(ddpi_shm_attach(region.name, 8192, &other), DDP_ERR_MISMATCH, "8192");
    ddpi_shm_detach(&region);
    CHECK_FAILS(ddpi_shm_create(0, &region), DDP_ERR_USAGE, "empty");
}

static void test_too_large(void **state)
{
    (void)state;
    struct statvfs fs;
    ddpi_shm_region region = {.name = "untouched"};
    int before = regions_left();

    assert_int_equal(statvfs("/dev/shm", &fs), 0);
    if (fs.f_blocks == 0)
        skip(); /* without a limit */
    size_t all = (size_t)fs.f_blocks * fs.f_frsize;
    CHECK_FAILS(ddpi_shm_create(all + (1 << 20), &region), DDP_ERR_NOMEM, "/dev/shm has");
    CHECK_FAILS(ddpi_shm_create(SIZE_MAX, &region), DDP_ERR_NOMEM, "refused");
    assert_string_equal(region.name, "untouched");
    assert_true(goes_back_to(before));
}

/* The name is gone as soon as all have attached, so that a killed job leaves nothing. */
static void test_kill(void **state)
{
    (void)state;
    int ready[2];
    char byte;
    int before = regions_left();

    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        ddpi_shm_region region;
        if (ddpi_shm_create(REGION_BYTES, &region) != DDP_OK)
            _exit(1);
        ddpi_shm_unlink(&region);
        if (write(ready[1], "x", 1) == 1)
            pause();
        _exit(1);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    kill(child, SIGKILL);
    assert_int_equal(exit_status(child), 128 + SIGKILL);
    assert_true(goes_back_to(before));
    close(ready[0]);
    close(ready[1]);
}

static void on_complete(void *arg, ddp_work *work, ddp_status status)
{
    (void)arg;
    work->status = status;
}

/* One rank as a process of its own: each maps the regions at addresses of its own. */
static int reduce_as(int rank, const char *control_name, const char *window_name)
{
    ddpi_shm_region control, window;
    ddpi_shm_group *group;
    void *bases[RANKS];
    size_t part = ddpi_shm_page_round(COUNT * sizeof(float));

    if (ddpi_shm_attach(window_name, RANKS * part, &window) != DDP_OK ||
        ddpi_shm_attach(control_name, ddpi_shm_control_bytes(RANKS), &control) != DDP_OK)
        return 1;
    ddpi_shm_touch(&window, (size_t)rank * part, part);
    for (int r = 0; r < RANKS; r++)
        bases[r] = (char *)window.base + (size_t)r * part;
    ddpi_shm_group_opts opts = {
        .n = RANKS, .rank = rank, .control = control.base, .complete = on_complete};
    if (ddpi_shm_group_create(&opts, &group) != DDP_OK ||
        ddpi_shm_window_add(group, bases, part) != DDP_OK)
        return 2;
    float *values = bases[rank];
    for (int round = 0; round < 50; round++) {
        for (size_t i = 0; i < COUNT; i++)
            values[i] = (float)((rank + 1) * (int)(i % 100 + 1) + round);
        ddp_work work = {.coll = {.kind = DDP_COLL_ALLREDUCE,
                                  .dtype = DDP_F32,
                                  .buf = values,
                                  .count = COUNT,
                                  .what = "values"}};
        if (ddpi_shm_start(group, &work) != DDP_OK ||
            ddpi_shm_wait(group, &work, ddp_deadline_after_ms(30000), NULL, NULL) != DDP_OK)
            return 3;
        for (size_t i = 0; i < COUNT; i++) {
            if (values[i] != (float)(10 * (int)(i % 100 + 1) + RANKS * round))
                return 4;
        }
    }
    ddpi_shm_group_destroy(group);
    ddpi_shm_detach(&window);
    ddpi_shm_detach(&control);
    return 0;
}

static void test_group_of_processes(void **state)
{
    (void)state;
    ddpi_shm_region control, window;
    pid_t children[RANKS];

    CHECK_OK(ddpi_shm_create(ddpi_shm_control_bytes(RANKS), &control));
    CHECK_OK(ddpi_shm_create(RANKS * ddpi_shm_page_round(COUNT * sizeof(float)), &window));
    for (int r = 0; r < RANKS; r++) {
        children[r] = fork();
        if (children[r] == 0)
            _exit(reduce_as(r, control.name, window.name));
    }
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(exit_status(children[r]), 0);
    ddpi_shm_detach(&control);
    ddpi_shm_detach(&window);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_share),
        cmocka_unit_test(test_wrong_size),
        cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_kill),
        cmocka_unit_test(test_group_of_processes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
