/* Whole files, atomic replacement, directories, checksums. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ddp/fs.h"
#include "ddp/memory.h"
#include "harness.h"

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/ddp_test_fs.XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static const char *in_folder(const char *name)
{
    static char path[256];

    CHECK_OK(ddp_fs_join(path, sizeof path, folder, name));
    return path;
}

static void assert_contents(const char *path, const char *want)
{
    char *data;
    size_t bytes;

    CHECK_OK(ddp_fs_read(path, 1 << 20, &data, &bytes));
    assert_int_equal(bytes, strlen(want));
    assert_string_equal(data, want);
    ddp_free(data);
}

static int files_in_folder(void)
{
    DIR *dir = opendir(folder);
    int count = 0;

    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

static void write_and_read(void **state)
{
    const char *path = in_folder("file");

    (void)state;
    CHECK_OK(ddp_fs_write_atomic(path, "one", 3));
    assert_contents(path, "one");
    CHECK_OK(ddp_fs_write_atomic(path, "other", 5));
    assert_contents(path, "other");
    CHECK_OK(ddp_fs_write_atomic(path, "", 0));
    assert_contents(path, "");
    assert_int_equal(files_in_folder(), 1);
    assert_true(ddp_fs_exists(path));
    assert_int_equal(unlink(path), 0);
    assert_false(ddp_fs_exists(path));
}

static void limits_and_errors_name_the_path(void **state)
{
    char *data = NULL;
    size_t bytes;

    (void)state;
    CHECK_OK(ddp_fs_write_atomic(in_folder("ten"), "0123456789", 10));
    CHECK_FAILS(ddp_fs_read(in_folder("ten"), 9, &data, &bytes), DDP_ERR_FORMAT, "/ten: has 10");
    CHECK_OK(ddp_fs_read(in_folder("ten"), 10, &data, &bytes));
    ddp_free(data);
    CHECK_FAILS(ddp_fs_read(in_folder("none"), 9, &data, &bytes), DDP_ERR_IO, "/none: No such");
    CHECK_FAILS(ddp_fs_read(folder, 9, &data, &bytes), DDP_ERR_IO, "is a directory");
    /* A file that does not tell its size. */
    CHECK_FAILS(ddp_fs_read("/dev/zero", 200000, &data, &bytes), DDP_ERR_FORMAT, "more than");
    CHECK_OK(ddp_fs_read("/proc/self/status", 200000, &data, &bytes));
    assert_true(bytes > 0 && strstr(data, "Pid:") != NULL);
    ddp_free(data);
    unlink(in_folder("ten"));
}

static void failed_write_leaves_the_old_file(void **state)
{
    static char large[100000];
    const char *path = in_folder("kept");
    struct rlimit before;

    (void)state;
    CHECK_OK(ddp_fs_write_atomic(path, "old", 3));
    /* A full disk, as far as this process can see: writes beyond 4 kB fail. */
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){4096, before.rlim_max});
    ddp_status st = ddp_fs_write_atomic(path, large, sizeof large);
    setrlimit(RLIMIT_FSIZE, &before);
    CHECK_FAILS(st, DDP_ERR_IO, "write ");
    CHECK_FAILS(st, DDP_ERR_IO, path);
    assert_contents(path, "old");
    assert_int_equal(files_in_folder(), 1);
    CHECK_FAILS(ddp_fs_write_atomic(in_folder("no/such"), "x", 1), DDP_ERR_IO, "no/such");
    /* A folder cannot be replaced by a file; what was written beside goes away. */
    CHECK_OK(ddp_fs_make_dirs(in_folder("dir/full")));
    CHECK_FAILS(ddp_fs_write_atomic(in_folder("dir"), "x", 1), DDP_ERR_IO, "replace");
    assert_int_equal(files_in_folder(), 2);
    rmdir(in_folder("dir/full"));
    rmdir(in_folder("dir"));
    unlink(in_folder("kept"));
}

static void directories(void **state)
{
    (void)state;
    CHECK_OK(ddp_fs_make_dirs(in_folder("a/b//c/")));
    assert_true(ddp_fs_exists(in_folder("a/b/c")));
    CHECK_OK(ddp_fs_make_dirs(in_folder("a/b/c")));
    CHECK_OK(ddp_fs_make_dirs("/"));
    CHECK_OK(ddp_fs_write_atomic(in_folder("a/file"), "x", 1));
    CHECK_FAILS(ddp_fs_make_dirs(in_folder("a/file")), DDP_ERR_IO, "a file has this name");
    CHECK_FAILS(ddp_fs_make_dirs(in_folder("a/file/below")), DDP_ERR_IO, "a file has this name");
    CHECK_FAILS(ddp_fs_make_dirs(""), DDP_ERR_IO, "empty");
}

static void paths_are_joined(void **state)
{
    char text[8];

    (void)state;
    CHECK_OK(ddp_fs_join(text, sizeof text, "ab", "cd"));
    assert_string_equal(text, "ab/cd");
    CHECK_OK(ddp_fs_join(text, sizeof text, "ab/", "cd"));
    assert_string_equal(text, "ab/cd");
    CHECK_OK(ddp_fs_join(text, sizeof text, "", "cd"));
    assert_string_equal(text, "cd");
    CHECK_OK(ddp_fs_join(text, sizeof text, "abc", "def"));
    CHECK_FAILS(ddp_fs_join(text, sizeof text, "abcd", "efg"), DDP_ERR_USAGE, "longer than 7");
}

static void hashes(void **state)
{
    static unsigned char data[5000];
    ddp_hasher *hasher;

    (void)state;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 31);
    /* XXH3's published value of nothing with seed 0. */
    assert_true(ddp_hash64(data, 0) == UINT64_C(0x2D06800538D394C2));
    CHECK_OK(ddp_hasher_create(&hasher));
    assert_true(ddp_hasher_digest(hasher) == ddp_hash64(data, 0));
    for (size_t at = 0; at < sizeof data; at += 617)
        ddp_hasher_update(hasher, data + at, sizeof data - at < 617 ? sizeof data - at : 617);
    assert_true(ddp_hasher_digest(hasher) == ddp_hash64(data, sizeof data));
    data[4000] ^= 1;
    assert_false(ddp_hasher_digest(hasher) == ddp_hash64(data, sizeof data));
    ddp_hasher_destroy(hasher);
    ddp_hasher_destroy(NULL);
}

/* ---- single steps ---- */

typedef struct fault {
    int fail_at, calls; /* calls count from 0; fail_at < 0: never */
} fault;

static int on_step(void *arg, const char *what, const char *path)
{
    fault *f = arg;

    (void)what;
    (void)path;
    return f->calls++ == f->fail_at ? ENOSPC : 0;
}

/* create, write, sync, rename, sync of the folder: whichever fails, the old file or the new one is
 * there, and nothing else. */
static void every_step_of_a_replacement_may_fail(void **state)
{
    fault f = {.fail_at = -1};

    (void)state;
    CHECK_OK(ddp_fs_write_atomic(in_folder("stepwise"), "old", 3));
    int files = files_in_folder();
    ddp_fs_on_fault(on_step, &f);
    CHECK_OK(ddp_fs_write_atomic(in_folder("stepwise"), "old", 3));
    const int steps = f.calls;
    assert_int_equal(steps, 5);
    for (int i = 0; i < steps; i++) {
        f = (fault){.fail_at = i};
        CHECK_FAILS(ddp_fs_write_atomic(in_folder("stepwise"), "new", 3), DDP_ERR_IO,
                    "No space left");
        /* Only the last step comes after the rename. */
        assert_contents(in_folder("stepwise"), i < steps - 1 ? "old" : "new");
        assert_int_equal(files_in_folder(), files);
    }
    ddp_fs_on_fault(NULL, NULL);
}

static void a_file_is_filled_in_any_order(void **state)
{
    uint64_t hash;
    size_t bytes;
    int fd;

    (void)state;
    CHECK_OK(ddp_fs_create(in_folder("parts"), &fd));
    CHECK_OK(ddp_fs_reserve(fd, 6, in_folder("parts")));
    CHECK_OK(ddp_fs_write_at(fd, "def", 3, 3, in_folder("parts")));
    close(fd);
    CHECK_OK(ddp_fs_open_write(in_folder("parts"), &fd));
    CHECK_OK(ddp_fs_write_at(fd, "abc", 3, 0, in_folder("parts")));
    CHECK_OK(ddp_fs_sync(fd, in_folder("parts")));
    close(fd);
    assert_contents(in_folder("parts"), "abcdef");
    CHECK_OK(ddp_fs_hash(in_folder("parts"), &hash, &bytes));
    assert_int_equal(bytes, 6);
    assert_int_equal(hash, ddp_hash64("abcdef", 6));
    CHECK_FAILS(ddp_fs_create(in_folder("parts"), &fd), DDP_ERR_IO, "File exists");
    CHECK_FAILS(ddp_fs_open_write(in_folder("absent"), &fd), DDP_ERR_IO, "No such file");
    CHECK_FAILS(ddp_fs_hash(in_folder("absent"), &hash, &bytes), DDP_ERR_IO, "No such file");
}

static void folders_are_listed_and_removed(void **state)
{
    char tree[256];
    ddp_fs_names names;

    (void)state;
    CHECK_OK(ddp_fs_join(tree, sizeof tree, folder, "tree"));
    CHECK_OK(ddp_fs_make_dirs(in_folder("tree/c/deep")));
    for (const char *const *name = (const char *const[]){"b", "a", "c/deep/x", NULL}; *name;
         name++) {
        char path[512];
        CHECK_OK(ddp_fs_join(path, sizeof path, tree, *name));
        CHECK_OK(ddp_fs_write_atomic(path, "x", 1));
    }
    CHECK_OK(ddp_fs_list(tree, &names));
    assert_int_equal(names.count, 3);
    assert_string_equal(names.names[0], "a");
    assert_string_equal(names.names[2], "c");
    ddp_fs_names_free(&names);
    CHECK_OK(ddp_fs_remove_tree(tree));
    assert_false(ddp_fs_exists(tree));
    CHECK_OK(ddp_fs_remove_tree(tree)); /* absent */
    CHECK_OK(ddp_fs_list(tree, &names));
    assert_int_equal(names.count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(write_and_read),
        cmocka_unit_test(limits_and_errors_name_the_path),
        cmocka_unit_test(failed_write_leaves_the_old_file),
        cmocka_unit_test(directories),
        cmocka_unit_test(paths_are_joined),
        cmocka_unit_test(hashes),
        cmocka_unit_test(every_step_of_a_replacement_may_fail),
        cmocka_unit_test(a_file_is_filled_in_any_order),
        cmocka_unit_test(folders_are_listed_and_removed),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
