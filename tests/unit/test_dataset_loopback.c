/* test_dataset_loopback.c - opening data sets with several ranks: one decoded copy, one verdict.
 *
 * Ranks are threads. With shared memory they are one node; without, each is a node of its own that
 * reads its own files. Threads only note what they saw; the main thread checks. */
#include "harness.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "ddp/dataset.h"
#include "ddp/thread.h"

enum { MAX_WORLD = 4, COUNT = 23, HEIGHT = 4, WIDTH = 6, PIXELS = HEIGHT * WIDTH };

/* ---- files ---- */

/* What to do wrong when writing a folder of files. */
typedef enum damage {
    GOOD,
    OTHER_PIXELS,
    OTHER_COUNT,
    OTHER_SIZE,
    NO_LABELS,
    LABEL_RANGE,
    FEWER_LABELS,
    CUT_IMAGES
} damage;

static unsigned char pixel(int64_t sample, int64_t p)
{
    return (unsigned char)(sample * 37 + p * 11);
}

static void put_u32(unsigned char *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (unsigned char)(value >> (24 - 8 * i));
}

static void write_gzip(const char *dir, const char *name, const unsigned char *data, size_t bytes,
                       size_t cut)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    gzFile file = gzopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(gzwrite(file, data, (unsigned)bytes), (int)bytes);
    assert_int_equal(gzclose(file), Z_OK);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(truncate(path, info.st_size - (off_t)cut), 0);
}

static void write_plain(const char *dir, const char *name, const unsigned char *data, size_t bytes)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

/* A folder with packed images and plain labels of the training split. */
static void write_dir(char *dir, damage wrong)
{
    unsigned char images[16 + (COUNT + 1) * PIXELS], labels[8 + COUNT + 1];
    uint32_t count = wrong == OTHER_COUNT ? COUNT + 1 : COUNT;
    uint32_t named = wrong == FEWER_LABELS ? COUNT - 1 : count;
    strcpy(dir, "/tmp/ddp_test_data_XXXXXX");
    assert_non_null(mkdtemp(dir));
    put_u32(images, 0x803);
    put_u32(images + 4, count);
    put_u32(images + 8, wrong == OTHER_SIZE ? WIDTH : HEIGHT);
    put_u32(images + 12, wrong == OTHER_SIZE ? HEIGHT : WIDTH);
    for (int64_t i = 0; i < count; i++)
        for (int64_t p = 0; p < PIXELS; p++)
            images[16 + i * PIXELS + p] = pixel(i, p);
    if (wrong == OTHER_PIXELS)
        images[16 + COUNT * PIXELS - 1] ^= 1;
    put_u32(labels, 0x801);
    put_u32(labels + 4, named);
    for (uint32_t i = 0; i < named; i++)
        labels[8 + i] = (unsigned char)(i % 10);
    if (wrong == LABEL_RANGE)
        labels[8 + 5] = 10;
    write_gzip(dir, "train-images-idx3-ubyte.gz", images, 16 + (size_t)count * PIXELS,
               wrong == CUT_IMAGES ? 12 : 0);
    if (wrong != NO_LABELS)
        write_plain(dir, "train-labels-idx1-ubyte", labels, 8 + (size_t)named);
}

static void remove_dir(const char *dir)
{
    static const char *const names[] = {"train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte"};
    for (size_t i = 0; i < 2; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        (void)unlink(path);
    }
    assert_int_equal(rmdir(dir), 0);
}

/* ---- ranks ---- */

typedef struct rank {
    ddp_comm *comm;
    ddp_rank_ctx ctx;
    const ddp_dataset_ops *ops;
    ddp_data_opts opts;
    ddp_status opened;
    char message[1024];
    ddp_dataset_info info;
    ddp_status fetched;
    float pixels[COUNT * PIXELS];
    int32_t labels[COUNT];
    char class_name[32]; /* of class 9 */
    ddp_status lent;
    bool lent_right; /* every image lent is, as bytes, what was fetched */
} rank;

static bool same_image(const ddp_image *image, const float *pixels, int32_t label)
{
    if (!image->bytes || image->channels != 1 || image->height != HEIGHT || image->width != WIDTH ||
        image->label != label)
        return false;
    const uint8_t *bytes = image->pixels;
    for (int64_t y = 0; y < HEIGHT; y++)
        for (int64_t x = 0; x < WIDTH; x++)
            if ((float)bytes[y * image->stride_y + x * image->stride_x] / 255.0f !=
                pixels[y * WIDTH + x])
                return false;
    return true;
}

static void borrow(rank *me, ddp_dataset *dataset)
{
    me->lent_right = true;
    for (int64_t i = 0; i < COUNT && me->lent == DDP_OK; i++) {
        int64_t at = COUNT - 1 - i; /* in the order of the fetch */
        ddp_image image;
        me->lent = ddp_dataset_image(dataset, i, &image);
        if (me->lent == DDP_OK)
            me->lent_right &= same_image(&image, me->pixels + at * PIXELS, me->labels[at]);
    }
    if (me->info.class_names != NULL)
        snprintf(me->class_name, sizeof me->class_name, "%s", me->info.class_names[9]);
}

static void *run_rank(void *arg)
{
    rank *me = arg;
    ddp_dataset *dataset = NULL;
    ddp_rank_ctx_set(&me->ctx);
    me->opened = ddp_dataset_open(me->ops, &me->opts, DDP_SPLIT_TRAIN, me->comm, &dataset);
    if (me->opened == DDP_OK) {
        int64_t indices[COUNT];
        for (int64_t i = 0; i < COUNT; i++)
            indices[i] = COUNT - 1 - i;
        me->info = *ddp_dataset_get_info(dataset);
        me->fetched = ddp_dataset_fetch(dataset, indices, COUNT, me->pixels, me->labels);
        borrow(me, dataset);
        ddp_dataset_close(dataset);
    } else {
        snprintf(me->message, sizeof me->message, "%s", ddp_status_message());
    }
    ddp_comm_close(me->comm);
    return NULL;
}

/* dirs: one for each rank, or one for all. */
static rank *run_world(int world, bool one_node, const ddp_dataset_ops *ops, char (*dirs)[64],
                       bool dir_each)
{
    ddp_comm_opts opts = DDP_COMM_OPTS_DEFAULTS;
    ddp_comm *comms[MAX_WORLD];
    ddp_thread threads[MAX_WORLD] = {0};
    rank *ranks = calloc(MAX_WORLD, sizeof *ranks);
    assert_non_null(ranks);
    opts.exit_on_failure = false;
    opts.shared_memory = one_node;
    opts.timeout_ms = 20000;
    CHECK_OK(ddp_comm_loopback_open(&opts, world, NULL, comms));
    for (int r = 0; r < world; r++) {
        ranks[r].comm = comms[r];
        ranks[r].ctx = (ddp_rank_ctx){.rank = r, .world = world};
        ranks[r].ops = ops;
        ranks[r].opts = (ddp_data_opts){.dataset = ops->name,
                                        .data_dir = dirs ? dirs[dir_each ? r : 0] : NULL,
                                        .input_shape = {3, {1, HEIGHT, WIDTH}},
                                        .synthetic_train = COUNT,
                                        .synthetic_test = COUNT,
                                        .synthetic_classes = 10,
                                        .seed = 3};
        CHECK_OK(ddp_thread_start(&threads[r], "rank", run_rank, &ranks[r]));
    }
    for (int r = 0; r < world; r++)
        ddp_thread_join(&threads[r]);
    return ranks;
}

/* Every rank has the same verdict, and a message that names the cause. */
static void check_verdict(rank *ranks, int world, ddp_status status, const char *text)
{
    for (int r = 0; r < world; r++) {
        if (ranks[r].opened != status)
            fail_msg("rank %d: %s (%s)", r, ddp_status_name(ranks[r].opened), ranks[r].message);
        if (strstr(ranks[r].message, text) == NULL)
            fail_msg("rank %d: \"%s\" does not contain \"%s\"", r, ranks[r].message, text);
    }
    free(ranks);
}

static const int worlds[] = {1, 2, 4};

static void test_good(void **state)
{
    (void)state;
    char dir[1][64];
    write_dir(dir[0], GOOD);
    for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++)
        for (int one_node = 0; one_node < 2; one_node++) {
            rank *ranks = run_world(worlds[w], one_node, ddp_dataset_fashion_mnist(), dir, false);
            for (int r = 0; r < worlds[w]; r++) {
                const rank *me = &ranks[r];
                if (me->opened != DDP_OK || me->fetched != DDP_OK)
                    fail_msg("rank %d: %s", r, me->message);
                assert_int_equal(me->info.count, COUNT);
                assert_int_equal(me->info.classes, 10);
                assert_int_equal(me->lent, DDP_OK);
                assert_true(me->lent_right);
                assert_string_equal(me->class_name, "Ankle boot");
                assert_int_equal(me->info.shape.dims[0], 1);
                assert_int_equal(me->info.shape.dims[1], HEIGHT);
                assert_int_equal(me->info.shape.dims[2], WIDTH);
                for (int64_t i = 0; i < COUNT; i++) {
                    int64_t sample = COUNT - 1 - i;
                    assert_int_equal(me->labels[i], sample % 10);
                    for (int64_t p = 0; p < PIXELS; p++) {
                        double exact = pixel(sample, p) / 255.0;
                        assert_true(me->pixels[i * PIXELS + p] == (float)exact);
                    }
                }
            }
            free(ranks);
        }
    remove_dir(dir[0]);
}

static void test_same_verdict(void **state)
{
    static const struct {
        damage wrong;
        ddp_status status;
        const char *text;
    } cases[] = {
        {NO_LABELS, DDP_ERR_IO, "no train-labels-idx1-ubyte and no train-labels-idx1-ubyte.gz in "},
        {FEWER_LABELS, DDP_ERR_FORMAT, "has 22 labels, expected 23"},
        {LABEL_RANGE, DDP_ERR_FORMAT, "label 5 is 10, expected 0 to 9"},
        {CUT_IMAGES, DDP_ERR_FORMAT, "train-images-idx3-ubyte.gz: the gzip data is cut off"},
    };
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        char dir[1][64];
        write_dir(dir[0], cases[c].wrong);
        for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++)
            for (int one_node = 0; one_node < 2; one_node++)
                check_verdict(run_world(worlds[w], one_node, ddp_dataset_mnist(), dir, false),
                              worlds[w], cases[c].status, cases[c].text);
        remove_dir(dir[0]);
    }
}

static void test_missing_folder(void **state)
{
    (void)state;
    char dir[1][64] = {"/nonexistent"};
    const ddp_dataset_ops *ops = ddp_dataset_fashion_mnist();
    check_verdict(run_world(3, true, ops, dir, false), 3, DDP_ERR_IO, "dataset-fashion-mnist");
    check_verdict(run_world(3, true, ops, dir, false), 3, DDP_ERR_IO, "--data-dir");
    check_verdict(run_world(3, true, ops, dir, false), 3, DDP_ERR_IO,
                  "no train-images-idx3-ubyte and no train-images-idx3-ubyte.gz in /nonexistent");
    check_verdict(run_world(2, true, ops, NULL, false), 2, DDP_ERR_USAGE, "--data-dir is empty");
}

/* One node of three has other files, or none. */
static void test_nodes_differ(void **state)
{
    static const struct {
        damage wrong;
        ddp_status status;
        const char *text;
    } cases[] = {
        {OTHER_PIXELS, DDP_ERR_MISMATCH, "differ from rank 0's"},
        {OTHER_COUNT, DDP_ERR_MISMATCH, "has 24 images of 4 x 6, expected 23 of 4 x 6"},
        {OTHER_SIZE, DDP_ERR_MISMATCH, "has 23 images of 6 x 4, expected 23 of 4 x 6"},
        {NO_LABELS, DDP_ERR_IO, "no train-labels-idx1-ubyte"},
        {CUT_IMAGES, DDP_ERR_FORMAT, "cut off"},
        {LABEL_RANGE, DDP_ERR_FORMAT, "label 5 is 10"},
    };
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int odd = 0; odd < 3; odd++) {
            char dirs[3][64];
            for (int r = 0; r < 3; r++)
                write_dir(dirs[r], r == odd ? cases[c].wrong : GOOD);
            /* If it is rank 0 that differs, the others are those that see it, in its terms. */
            bool turned = odd == 0 && cases[c].status == DDP_ERR_MISMATCH;
            check_verdict(run_world(3, false, ddp_dataset_mnist(), dirs, true), 3, cases[c].status,
                          turned ? "rank 0" : cases[c].text);
            for (int r = 0; r < 3; r++)
                remove_dir(dirs[r]);
        }
}

static void test_synthetic_is_equal_everywhere(void **state)
{
    (void)state;
    rank *ranks = run_world(4, true, ddp_dataset_synthetic(), NULL, false);
    for (int r = 0; r < 4; r++) {
        assert_int_equal(ranks[r].opened, DDP_OK);
        assert_int_equal(ranks[r].fetched, DDP_OK);
        assert_int_equal(ranks[r].lent, DDP_ERR_UNSUPPORTED);
        assert_memory_equal(ranks[r].pixels, ranks[0].pixels, sizeof ranks[0].pixels);
        assert_memory_equal(ranks[r].labels, ranks[0].labels, sizeof ranks[0].labels);
    }
    free(ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_same_verdict),
        cmocka_unit_test(test_missing_folder),
        cmocka_unit_test(test_nodes_differ),
        cmocka_unit_test(test_synthetic_is_equal_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
