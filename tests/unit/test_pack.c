/* test_pack.c - whole runs of ddp_pack: what lies in the shards, that neither workers nor a kill
 * change a byte, and what is said of files that cannot be packed. */
#include "harness.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "ddp/dataset.h"
#include "ddp/json.h"
#include "ddp/memory.h"
#include "image_files.h"
#include "tools/pack/pack.h"

enum { SIDE = 96, IMAGE_BYTES = SIDE * SIDE * 3, MANY = 100, SHARDS = 3 };

/* A folder of the test's own, with in/ for images. */
typedef struct place {
    char dir[64], in[80], out[80], other[80];
} place;

static place make_place(void)
{
    place p = {"/tmp/ddp_test_pack_XXXXXX", "", "", ""};
    assert_non_null(mkdtemp(p.dir));
    snprintf(p.in, sizeof p.in, "%s/in", p.dir);
    snprintf(p.out, sizeof p.out, "%s/out", p.dir);
    snprintf(p.other, sizeof p.other, "%s/other", p.dir);
    assert_int_equal(mkdir(p.in, 0777), 0);
    return p;
}

static uint8_t value_of(int image, int i)
{
    return (uint8_t)(image * 97 + i * 3 + (i >> 7) * image);
}

/* A PNG of SIDE x SIDE. */
static void write_image(const place *p, const char *name, int image)
{
    static uint8_t pixels[IMAGE_BYTES];
    size_t bytes;
    for (int i = 0; i < IMAGE_BYTES; i++)
        pixels[i] = value_of(image, i);
    uint8_t *png = make_png(pixels, SIDE, SIDE, PNG_FORMAT_RGB, NULL, 0, &bytes);
    write_bytes(p->in, name, png, bytes);
    free(png);
}

static void make_class(const place *p, const char *name)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", p->in, name);
    assert_int_equal(mkdir(path, 0777), 0);
}

/* MANY images in two classes, and a few files that are none. */
static void write_many(const place *p)
{
    make_class(p, "ant");
    make_class(p, "wasp");
    for (int i = 0; i < MANY; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s/%03d.png", i % 3 == 0 ? "wasp" : "ant", i);
        write_image(p, name, i);
    }
    write_bytes(p->in, "ant/010.txt", "no image", 8);
    write_bytes(p->in, "wasp/000.jpg", "no image either", 15);
    write_bytes(p->in, "wasp/zzz.png", "", 0);
}

static ddpi_pack_opts options(const place *p, const char *out)
{
    ddpi_pack_opts opts = DDPI_PACK_OPTS_DEFAULTS;
    opts.input = p->in;
    opts.output = out;
    opts.shard_mb = 1;
    opts.workers = 2;
    opts.quiet = true;
    return opts;
}

/* ---- folders ---- */

/* Sum of a hash of each file's name and contents; *count_out files. */
static uint64_t hash_folder(const char *dir, int *count_out)
{
    uint64_t sum = 0;
    DIR *open_dir = opendir(dir);
    assert_non_null(open_dir);
    *count_out = 0;
    for (struct dirent *entry; (entry = readdir(open_dir)) != NULL;) {
        char path[512], *data;
        size_t bytes;
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        CHECK_OK(ddp_fs_read(path, SIZE_MAX, &data, &bytes));
        sum += ddp_hash64(data, bytes) * 31 ^ ddp_hash64(entry->d_name, strlen(entry->d_name));
        ddp_free(data);
        ++*count_out;
    }
    closedir(open_dir);
    return sum;
}

static void same_folders(const char *a, const char *b)
{
    int count_a, count_b;
    assert_true(hash_folder(a, &count_a) == hash_folder(b, &count_b));
    assert_int_equal(count_a, count_b);
}

static bool there(const char *dir, const char *name)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return ddp_fs_exists(path);
}

static void remove_file(const char *dir, const char *name)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(unlink(path), 0);
}

/* ---- what lies in the shards ---- */

static ddp_dataset *open_packed(const place *p, ddp_comm **comm_out)
{
    ddp_comm_opts comm_opts = DDP_COMM_OPTS_DEFAULTS;
    ddp_data_opts opts = {.data_dir = p->dir, .verify_data = true};
    ddp_dataset *dataset = NULL;
    CHECK_OK(ddp_comm_loopback_open(&comm_opts, 1, NULL, comm_out));
    CHECK_OK(ddp_dataset_open(ddp_dataset_shards(), &opts, DDP_SPLIT_TRAIN, *comm_out, &dataset));
    return dataset;
}

static void images_are_found_in_the_order_of_their_paths(void **state)
{
    (void)state;
    place p = make_place();
    char train[80];
    ddp_comm *comm;
    snprintf(train, sizeof train, "%s/train", p.dir);
    write_many(&p);
    ddpi_pack_opts opts = options(&p, train);
    CHECK_OK(ddpi_pack_run(&opts));
    ddp_dataset *dataset = open_packed(&p, &comm);
    const ddp_dataset_info *info = ddp_dataset_get_info(dataset);
    assert_int_equal(info->count, MANY);
    assert_int_equal(info->classes, 2);
    assert_string_equal(info->class_names[0], "ant");
    assert_string_equal(info->class_names[1], "wasp");
    assert_false(info->variable);
    int64_t at = 0;
    for (int label = 0; label < 2; label++)
        for (int i = 0; i < MANY; i++) {
            ddp_image image;
            if ((i % 3 == 0) != (label == 1))
                continue;
            CHECK_OK(ddp_dataset_image(dataset, at++, &image));
            assert_int_equal(image.label, label);
            assert_int_equal(image.height, SIDE);
            const uint8_t *pixels = image.pixels;
            for (int j = 0; j < IMAGE_BYTES; j++)
                if (pixels[j] != value_of(i, j))
                    fail_msg("image %d, byte %d", i, j);
        }
    assert_true(there(train, "shard-00002.ddp"));
    assert_false(there(train, "shard-00003.ddp"));
    assert_false(there(train, "packing.jsonl"));
    ddp_dataset_close(dataset);
    ddp_comm_close(comm);
    remove_tree(p.dir);
}

static void images_may_differ_in_size_or_be_scaled(void **state)
{
    (void)state;
    place p = make_place();
    char train[80];
    ddp_comm *comm;
    uint8_t pixels[20 * 10 * 3] = {0};
    size_t bytes;
    ddp_image image;
    snprintf(train, sizeof train, "%s/train", p.dir);
    make_class(&p, "a");
    make_class(&p, "a/deeper");
    write_image(&p, "a/0.png", 1);
    uint8_t *jpeg = make_jpeg(pixels, 10, 20, TJPF_RGB, TJSAMP_444, &bytes);
    write_bytes(p.in, "a/deeper/1.jpg", jpeg, bytes);
    write_bytes(p.in, "a/.hidden", jpeg, bytes);
    free(jpeg);
    ddpi_pack_opts opts = options(&p, train);
    CHECK_OK(ddpi_pack_run(&opts));
    ddp_dataset *dataset = open_packed(&p, &comm);
    assert_int_equal(ddp_dataset_get_info(dataset)->count, 2);
    assert_true(ddp_dataset_get_info(dataset)->variable);
    CHECK_OK(ddp_dataset_image(dataset, 1, &image));
    assert_int_equal(image.height, 10);
    assert_int_equal(image.width, 20);
    ddp_dataset_close(dataset);
    ddp_comm_close(comm);
    remove_tree(train);

    opts.size = 8;
    opts.channels = 1;
    CHECK_OK(ddpi_pack_run(&opts));
    dataset = open_packed(&p, &comm);
    CHECK_OK(ddp_dataset_image(dataset, 0, &image));
    assert_int_equal(image.channels, 1);
    assert_int_equal(image.height, 8);
    assert_int_equal(image.width, 8);
    CHECK_OK(ddp_dataset_image(dataset, 1, &image));
    assert_int_equal(image.height, 8);
    assert_int_equal(image.width, 16);
    ddp_dataset_close(dataset);
    ddp_comm_close(comm);
    remove_tree(p.dir);
}

/* ---- always the same bytes ---- */

static void workers_do_not_change_a_byte(void **state)
{
    (void)state;
    place p = make_place();
    write_many(&p);
    ddpi_pack_opts one = options(&p, p.out), four = options(&p, p.other);
    one.workers = 1;
    four.workers = 4;
    CHECK_OK(ddpi_pack_run(&one));
    CHECK_OK(ddpi_pack_run(&four));
    same_folders(p.out, p.other);
    int count;
    (void)hash_folder(p.out, &count);
    assert_int_equal(count, SHARDS + 1);
    remove_tree(p.dir);
}

/* Complete lines of the journal; 0: there is none. */
static int journal_lines(const char *dir)
{
    char path[200];
    int lines = 0;
    snprintf(path, sizeof path, "%s/packing.jsonl", dir);
    FILE *file = fopen(path, "rb");
    for (int c; file != NULL && (c = fgetc(file)) != EOF;)
        lines += c == '\n';
    if (file != NULL)
        (void)fclose(file);
    return lines;
}

/* Packs in a process that is killed once it has noted a shard; false if it was too fast. */
static bool pack_and_kill(const ddpi_pack_opts *opts)
{
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(ddpi_pack_run(opts) != DDP_OK);
    for (int i = 0;
         i < 200000 && journal_lines(opts->output) < 2 && !there(opts->output, "MANIFEST.json");
         i++)
        usleep(250);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    return !there(opts->output, "MANIFEST.json");
}

static void kill_in_the_middle(const ddpi_pack_opts *opts)
{
    int tries = 0;
    while (!pack_and_kill(opts)) {
        assert_true(++tries < 50); /* on a busy machine it may be done first, often */
        remove_tree(opts->output);
    }
    assert_in_range(journal_lines(opts->output), 2, SHARDS + 1);
}

static void a_killed_run_is_continued(void **state)
{
    (void)state;
    place p = make_place();
    struct stat before, after;
    char path[120];
    write_many(&p);
    ddpi_pack_opts whole = options(&p, p.out), killed = options(&p, p.other);
    CHECK_OK(ddpi_pack_run(&whole));
    kill_in_the_middle(&killed);
    /* What a kill in the middle of writing leaves, on top of it. */
    write_bytes(p.other, "shard-00001.ddp.tmp-77-1234", "half", 4);
    snprintf(path, sizeof path, "%s/packing.jsonl", p.other);
    FILE *journal = fopen(path, "ab");
    assert_non_null(journal);
    fputs("{\"next\": 9", journal);
    assert_int_equal(fclose(journal), 0);
    snprintf(path, sizeof path, "%s/shard-00000.ddp", p.other);
    assert_int_equal(stat(path, &before), 0);
    killed.workers = 3;
    CHECK_OK(ddpi_pack_run(&killed));
    same_folders(p.out, p.other);
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino); /* kept, not written again */
    CHECK_OK(ddpi_pack_run(&killed));              /* complete: nothing to do */
    same_folders(p.out, p.other);
    remove_tree(p.dir);
}

static void another_input_is_not_mixed_in(void **state)
{
    (void)state;
    place p = make_place();
    char path[200];
    write_many(&p);
    ddpi_pack_opts opts = options(&p, p.out);
    kill_in_the_middle(&opts);
    opts.size = 50;
    CHECK_FAILS(ddpi_pack_run(&opts), DDP_ERR_MISMATCH, "begun with another input or other");
    opts.size = 0;
    write_image(&p, "ant/new.png", 3);
    CHECK_FAILS(ddpi_pack_run(&opts), DDP_ERR_MISMATCH, "remove the folder to pack anew");
    remove_file(p.in, "ant/new.png");
    snprintf(path, sizeof path, "%s/shard-00000.ddp", p.out);
    assert_int_equal(truncate(path, 100000), 0);
    CHECK_FAILS(ddpi_pack_run(&opts), DDP_ERR_FORMAT, "shard-00000.ddp: the file has 100000");
    remove_tree(p.out);
    CHECK_OK(ddpi_pack_run(&opts));
    const struct timespec times[2] = {{0, UTIME_OMIT}, {1000000, 0}};
    snprintf(path, sizeof path, "%s/ant/001.png", p.in);
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    CHECK_FAILS(ddpi_pack_run(&opts), DDP_ERR_MISMATCH, "begun with another input or other");
    remove_file(p.out, "MANIFEST.json");
    CHECK_FAILS(ddpi_pack_run(&opts), DDP_ERR_MISMATCH, "expected an empty folder");
    remove_tree(p.dir);
}

/* ---- damaged files ---- */

static void write_damaged(const place *p)
{
    uint8_t pixels[64 * 64 * 3] = {0};
    char path[200];
    size_t bytes;
    for (int i = 0; i < 64 * 64 * 3; i++)
        pixels[i] = value_of(5, i);
    make_class(p, "a");
    make_class(p, "b");
    write_image(p, "b/good.png", 1);
    uint8_t *file = make_png(pixels, 64, 64, PNG_FORMAT_RGB, NULL, 0, &bytes);
    write_bytes(p->in, "a/cut.png", file, bytes / 2);
    write_bytes(p->in, "stray.png", file, bytes);
    set_png_size(file, 60000, 60000);
    write_bytes(p->in, "a/huge.png", file, bytes);
    free(file);
    file = make_jpeg(pixels, 64, 64, TJPF_RGB, TJSAMP_420, &bytes);
    write_bytes(p->in, "a/cut.jpg", file, bytes / 2);
    set_jpeg_size(file, bytes, 0, 0);
    write_bytes(p->in, "a/none.jpg", file, bytes);
    free(file);
    write_bytes(p->in, "a/empty.jpg", "", 0);
    write_bytes(p->in, "a/text.jpg", "hello", 5);
    write_bytes(p->in, "a/odd\xff\"name.jpg", "hello", 5);
    snprintf(path, sizeof path, "%s/a/link.png", p->in);
    assert_int_equal(symlink("nowhere.png", path), 0);
}

/* The manifest's list, in order. */
static void check_list(const place *p)
{
    static const char *const want[][2] = {
        {"a/cut.jpg", "damaged JPEG: "},
        {"a/cut.png", "damaged PNG: the file is cut off"},
        {"a/empty.jpg", "the file is empty"},
        {"a/huge.png", "the image is 60000 x 60000, expected sides of at most"},
        {"a/link.png", "the link leads nowhere"},
        {"a/none.jpg", "damaged JPEG: "},
        {"a/odd\\xff\"name.jpg", "neither JPEG nor PNG"},
        {"a/text.jpg", "neither JPEG nor PNG"},
        {"stray.png", "the file is in no class folder"},
    };
    char path[200], *text;
    size_t bytes, count = sizeof want / sizeof *want;
    ddp_json *manifest;
    snprintf(path, sizeof path, "%s/MANIFEST.json", p->out);
    CHECK_OK(ddp_fs_read(path, 1 << 20, &text, &bytes));
    CHECK_OK(ddp_json_load(text, bytes, path, &manifest));
    const ddp_json *list = ddp_json_get(manifest, "damaged");
    assert_int_equal(ddp_json_length(list), count);
    for (size_t i = 0; i < count; i++) {
        const char *file, *reason;
        assert_true(ddp_json_as_string(ddp_json_get(ddp_json_at(list, i), "file"), &file));
        assert_true(ddp_json_as_string(ddp_json_get(ddp_json_at(list, i), "reason"), &reason));
        assert_string_equal(file, want[i][0]);
        if (strstr(reason, want[i][1]) == NULL)
            fail_msg("%s: %s", file, reason);
    }
    ddp_json_destroy(manifest);
    ddp_free(text);
}

static void damaged_files_are_listed_or_fatal(void **state)
{
    (void)state;
    place p = make_place();
    write_damaged(&p);
    ddpi_pack_opts opts = options(&p, p.out), stop = options(&p, p.other);
    stop.on_damaged = DDPI_DAMAGED_STOP;
    stop.workers = 4;
    for (int i = 0; i < 3; i++) /* always the first one in order */
        CHECK_FAILS(ddpi_pack_run(&stop), DDP_ERR_FORMAT, "in/a/cut.jpg: damaged JPEG: ");
    assert_false(there(p.other, "MANIFEST.json"));
    CHECK_OK(ddpi_pack_run(&opts));
    check_list(&p);
    remove_tree(p.out);
    remove_file(p.in, "b/good.png");
    CHECK_FAILS(ddpi_pack_run(&opts), DDP_ERR_FORMAT, "has no image that can be packed");
    assert_false(there(p.out, "MANIFEST.json"));
    remove_tree(p.dir);
}

static void class_names_must_be_texts(void **state)
{
    (void)state;
    place p = make_place();
    ddpi_pack_opts opts = options(&p, p.out);
    CHECK_FAILS(ddpi_pack_run(&opts), DDP_ERR_FORMAT, "has no folders, expected one for each");
    make_class(&p, "gr\xfcn");
    CHECK_FAILS(ddpi_pack_run(&opts), DDP_ERR_FORMAT, "the name of this class is not UTF-8");
    remove_tree(p.dir);
}

/* ---- the program ---- */

static int program(const char *line)
{
    char text[512], *argv[16] = {"ddp_pack"}, *rest = text;
    char *envp[] = {"DDP_TRAIN_SIZE=x", "DDP_PACK_SHARD_MB=1", NULL};
    int argc = 1, saved = dup(2), null = open("/dev/null", O_WRONLY);
    snprintf(text, sizeof text, "%s", line);
    for (char *word; (word = strsep(&rest, " ")) != NULL;)
        argv[argc++] = word;
    assert_true(dup2(null, 2) == 2);
    int code = ddpi_pack_main(argc, argv, envp);
    assert_true(dup2(saved, 2) == 2);
    close(saved);
    close(null);
    return code;
}

static void the_exit_status_says_what_happened(void **state)
{
    (void)state;
    place p = make_place();
    char line[400];
    write_many(&p);
    assert_int_equal(program("--output x"), 2);
    assert_int_equal(program("--input x"), 2);
    assert_int_equal(program("--input x --output y --channels 2"), 2);
    assert_int_equal(program("--input x --output y --frob 2"), 2);
    assert_int_equal(program("--input /nowhere/at/all --output y"), 1);
    snprintf(line, sizeof line, "--quiet --input %s --output %s --on-damaged stop", p.in, p.out);
    assert_int_equal(program(line), 1);
    snprintf(line, sizeof line, "--quiet --input %s --output %s", p.in, p.other);
    assert_int_equal(program(line), 0);
    assert_true(there(p.other, "shard-00002.ddp")); /* its variable was heard */
    remove_tree(p.dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(images_are_found_in_the_order_of_their_paths),
        cmocka_unit_test(images_may_differ_in_size_or_be_scaled),
        cmocka_unit_test(workers_do_not_change_a_byte),
        cmocka_unit_test(a_killed_run_is_continued),
        cmocka_unit_test(another_input_is_not_mixed_in),
        cmocka_unit_test(damaged_files_are_listed_or_fatal),
        cmocka_unit_test(class_names_must_be_texts),
        cmocka_unit_test(the_exit_status_says_what_happened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
