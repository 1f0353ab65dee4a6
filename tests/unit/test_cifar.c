/* test_cifar.c - CIFAR-10 and CIFAR-100: every record is found, lent and fetched, by every rank of
 * every kind of world; files that are not what they claim to be are refused by all ranks alike. */
#include "harness.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ddp/dataset.h"
#include "loopback_ranks.h"

enum { SIDE = 32, PIXELS = 3 * SIDE * SIDE, RECORDS = 3, MAX_WORLD = 3 };

/* ---- files ---- */

typedef struct kind {
    const ddp_dataset_ops *(*ops)(void);
    int classes, label_bytes, train_files;
    const char *train[5], *test, *names;
} kind;

static const kind cifar10 = {ddp_dataset_cifar10,
                             10,
                             1,
                             5,
                             {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                              "data_batch_4.bin", "data_batch_5.bin"},
                             "test_batch.bin",
                             "batches.meta.txt"};
static const kind cifar100 = {ddp_dataset_cifar100,  100, 2, 1, {"train.bin"}, "test.bin",
                              "fine_label_names.txt"};

static int label_of(const kind *k, int64_t sample)
{
    return (int)((sample * 7 + 3) % k->classes);
}

static uint8_t pixel(int64_t sample, int64_t p)
{
    return (uint8_t)(sample * 37 + p * 11 + p / 256);
}

static char *path_of(const char *dir, const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void write_bytes(const char *dir, const char *name, const void *data, size_t bytes)
{
    FILE *file = fopen(path_of(dir, name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

/* RECORDS records, numbered from `first` on. */
static void write_records(const kind *k, const char *dir, const char *name, int64_t first)
{
    uint8_t data[RECORDS * (2 + PIXELS)], *at = data;
    for (int64_t i = first; i < first + RECORDS; i++) {
        if (k->label_bytes == 2)
            *at++ = 255; /* the coarse class is not looked at */
        *at++ = (uint8_t)label_of(k, i);
        for (int64_t p = 0; p < PIXELS; p++)
            *at++ = pixel(i, p);
    }
    write_bytes(dir, name, data, (size_t)(at - data));
}

static void write_names(const kind *k, const char *dir, int count)
{
    char text[4096];
    size_t used = 0;
    for (int i = 0; i < count; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "name %d\n", i);
    used += (size_t)snprintf(text + used, sizeof text - used, "\n");
    write_bytes(dir, k->names, text, used);
}

static void write_dir(const kind *k, char dir[64])
{
    strcpy(dir, "/tmp/ddp_test_cifar_XXXXXX");
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < k->train_files; i++)
        write_records(k, dir, k->train[i], i * RECORDS);
    write_records(k, dir, k->test, 1000);
    write_names(k, dir, k->classes);
}

static void remove_dir(const kind *k, const char *dir)
{
    for (int i = 0; i < k->train_files; i++)
        (void)unlink(path_of(dir, k->train[i]));
    (void)unlink(path_of(dir, k->test));
    (void)unlink(path_of(dir, k->names));
    assert_int_equal(rmdir(dir), 0);
}

/* ---- ranks: threads, which report by status ---- */

typedef struct world_case {
    const kind *k;
    const char *dir[MAX_WORLD]; /* of each rank */
    ddp_split split;
} world_case;

#define REQUIRE(truth)                                                                             \
    do {                                                                                           \
        if (!(truth))                                                                              \
            return DDP_FAIL(DDP_ERR_INTERNAL, "%d: %s", __LINE__, #truth);                         \
    } while (0)

static ddp_status check_sample(const kind *k, ddp_dataset *dataset, int64_t i, int64_t sample)
{
    float fetched[PIXELS];
    int32_t label;
    ddp_image image;
    DDP_TRY(ddp_dataset_fetch(dataset, &i, 1, fetched, &label));
    DDP_TRY(ddp_dataset_image(dataset, i, &image));
    REQUIRE(label == label_of(k, sample) && image.label == label);
    REQUIRE(image.bytes && image.channels == 3 && image.height == SIDE && image.width == SIDE);
    const uint8_t *lent = image.pixels;
    for (int64_t c = 0; c < 3; c++)
        for (int64_t y = 0; y < SIDE; y++)
            for (int64_t x = 0; x < SIDE; x++) {
                int64_t p = (c * SIDE + y) * SIDE + x;
                REQUIRE(lent[c * image.stride_c + y * image.stride_y + x * image.stride_x] ==
                        pixel(sample, p));
                REQUIRE(fetched[p] == (float)(pixel(sample, p) / 255.0));
            }
    return DDP_OK;
}

static ddp_status check_set(const world_case *w, ddp_dataset *dataset)
{
    const ddp_dataset_info *info = ddp_dataset_get_info(dataset);
    bool train = w->split == DDP_SPLIT_TRAIN;
    char name[32];
    REQUIRE(info->count == (train ? w->k->train_files * RECORDS : RECORDS));
    REQUIRE(info->classes == w->k->classes && !info->variable);
    REQUIRE(ddp_shape_equal(&info->shape, &(ddp_shape){3, {3, SIDE, SIDE}}));
    for (int i = 0; i < w->k->classes; i++) {
        snprintf(name, sizeof name, "name %d", i);
        REQUIRE(strcmp(info->class_names[i], name) == 0);
    }
    for (int64_t i = 0; i < info->count; i++)
        DDP_TRY(check_sample(w->k, dataset, i, train ? i : 1000 + i));
    return DDP_OK;
}

static ddp_status open_and_check(ddp_comm *comm, void *arg)
{
    const world_case *w = arg;
    ddp_data_opts opts = {.data_dir = w->dir[ddp_comm_rank(comm)]};
    ddp_dataset *dataset;
    DDP_TRY(ddp_dataset_open(w->k->ops(), &opts, w->split, comm, &dataset));
    ddp_status st = ddp_comm_agree(comm, check_set(w, dataset), "checking samples");
    ddp_dataset_close(dataset);
    return st;
}

/* What rank 0 says; all ranks have the same status. */
static ddp_status open_world(const world_case *w, int world, bool one_node)
{
    ddp_comm_opts opts = DDP_COMM_OPTS_DEFAULTS;
    opts.exit_on_failure = false;
    opts.shared_memory = one_node;
    opts.timeout_ms = 20000;
    return run_ranks(&opts, world, open_and_check, (void *)(uintptr_t)w);
}

static void check_kind(const kind *k)
{
    char dir[64];
    write_dir(k, dir);
    for (int world = 1; world <= MAX_WORLD; world++)
        for (int one_node = 0; one_node < 2; one_node++) {
            world_case w = {k, {dir, dir, dir}, world % 2 ? DDP_SPLIT_TRAIN : DDP_SPLIT_TEST};
            CHECK_OK(open_world(&w, world, one_node));
        }
    remove_dir(k, dir);
}

static void cifar10_has_every_record(void **state)
{
    (void)state;
    check_kind(&cifar10);
}

static void cifar100_takes_the_fine_label(void **state)
{
    (void)state;
    check_kind(&cifar100);
}

static void refused(const kind *k, const char *dir, ddp_status status, const char *text)
{
    world_case w = {k, {dir, dir}, DDP_SPLIT_TRAIN};
    CHECK_FAILS(open_world(&w, 1, true), status, text);
    CHECK_FAILS(open_world(&w, 2, true), status, text);
    CHECK_FAILS(open_world(&w, 2, false), status, text);
}

static void damaged_files_are_refused(void **state)
{
    (void)state;
    char dir[64];
    uint8_t record[2 + PIXELS] = {0};
    write_dir(&cifar10, dir);
    assert_int_equal(truncate(path_of(dir, "data_batch_3.bin"), RECORDS * (1 + PIXELS) - 1), 0);
    refused(&cifar10, dir, DDP_ERR_FORMAT, "data_batch_3.bin: the file has 9218 bytes, expected");
    write_bytes(dir, "data_batch_3.bin", record, 1 + PIXELS);
    refused(&cifar10, dir, DDP_ERR_FORMAT, "data_batch_3.bin: has 1 records, expected 3 as ");
    write_bytes(dir, "data_batch_3.bin", record, 0);
    refused(&cifar10, dir, DDP_ERR_FORMAT, "data_batch_3.bin: the file has 0 bytes");
    assert_int_equal(unlink(path_of(dir, "data_batch_3.bin")), 0);
    refused(&cifar10, dir, DDP_ERR_IO, "data_batch_3.bin: No such file");
    assert_int_equal(mkdir(path_of(dir, "data_batch_3.bin"), 0777), 0);
    refused(&cifar10, dir, DDP_ERR_IO, "data_batch_3.bin is not a regular file");
    assert_int_equal(rmdir(path_of(dir, "data_batch_3.bin")), 0);
    remove_dir(&cifar10, dir);

    write_dir(&cifar100, dir);
    record[1] = 100;
    write_bytes(dir, "train.bin", record, 2 + PIXELS);
    refused(&cifar100, dir, DDP_ERR_FORMAT, "train.bin: the label of record 0 is 100, expected 0");
    record[0] = 200;
    record[1] = 99;
    write_bytes(dir, "train.bin", record, 1 + PIXELS); /* CIFAR-10's record */
    refused(&cifar100, dir, DDP_ERR_FORMAT, "train.bin: the file has 3073 bytes, expected");
    remove_dir(&cifar100, dir);
}

static void class_names_are_checked(void **state)
{
    (void)state;
    char dir[64];
    static const char crlf[] = "name 0\r\nname 1\r\nname 2\r\nname 3\r\nname 4\r\nname 5\r\nname 6"
                               "\r\nname 7\r\nname 8\r\nname 9\r\n";
    static const char hidden[] = "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\0k\n";
    write_dir(&cifar10, dir);
    world_case w = {&cifar10, {dir}, DDP_SPLIT_TEST};
    write_bytes(dir, "batches.meta.txt", crlf, sizeof crlf - 1);
    CHECK_OK(open_world(&w, 1, true));
    write_names(&cifar10, dir, 9);
    refused(&cifar10, dir, DDP_ERR_FORMAT, "batches.meta.txt: has 9 names, expected 10");
    write_names(&cifar10, dir, 11);
    refused(&cifar10, dir, DDP_ERR_FORMAT, "found \"name 10\" as name 11, expected 10 names");
    write_bytes(dir, "batches.meta.txt", "a name of more than thirty-one bytes\n", 37);
    refused(&cifar10, dir, DDP_ERR_FORMAT, "as name 1, expected 10 names of at most 31");
    write_bytes(dir, "batches.meta.txt", hidden, sizeof hidden - 1);
    refused(&cifar10, dir, DDP_ERR_FORMAT, "batches.meta.txt: has a byte 0");
    assert_int_equal(unlink(path_of(dir, "batches.meta.txt")), 0);
    refused(&cifar10, dir, DDP_ERR_IO, "batches.meta.txt");
    remove_dir(&cifar10, dir);
    w.dir[0] = "";
    CHECK_FAILS(open_world(&w, 1, true), DDP_ERR_USAGE, "--data-dir is empty");
}

static void nodes_with_other_files_are_refused(void **state)
{
    (void)state;
    char a[64], b[64];
    uint8_t record[1 + PIXELS] = {0};
    write_dir(&cifar10, a);
    write_dir(&cifar10, b);
    world_case w = {&cifar10, {a, b}, DDP_SPLIT_TRAIN};
    CHECK_OK(open_world(&w, 2, false));
    write_records(&cifar10, b, "data_batch_5.bin", 13);
    CHECK_FAILS(open_world(&w, 2, false), DDP_ERR_MISMATCH, "differ from rank 0's");
    for (int i = 0; i < 5; i++)
        write_bytes(b, cifar10.train[i], record, sizeof record);
    CHECK_FAILS(open_world(&w, 2, false), DDP_ERR_MISMATCH, "expected 15 as on rank 0");
    write_names(&cifar10, b, 9);
    FILE *names = fopen(path_of(b, "batches.meta.txt"), "ab");
    assert_non_null(names);
    fputs("another\n", names);
    assert_int_equal(fclose(names), 0);
    for (int i = 0; i < 5; i++)
        write_records(&cifar10, b, cifar10.train[i], i * RECORDS);
    CHECK_FAILS(open_world(&w, 2, false), DDP_ERR_MISMATCH,
                "class 9 is \"another\", expected \"name 9\"");
    remove_dir(&cifar10, a);
    remove_dir(&cifar10, b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cifar10_has_every_record),
        cmocka_unit_test(cifar100_takes_the_fine_label),
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(class_names_are_checked),
        cmocka_unit_test(nodes_with_other_files_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
