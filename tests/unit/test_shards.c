/* test_shards.c - packed shards: what is accepted is exactly what shards.h describes; a data set of
 * them gives every rank every image, and all ranks the same verdict on a damaged one. */
#include "harness.h"

#include "ddp/dataset.h"
#include "loopback_ranks.h"
#include "shard_files.h"

enum { CLASSES = 3, CHANNELS = 3 };

static const test_size mixed[] = {{5, 7}, {1, 1}, {8, 8}, {3, 64}};
static const test_size equal_sizes[] = {{28, 28}, {28, 28}, {28, 28}, {28, 28}, {28, 28}};

/* ---- one shard ---- */

static ddp_status parse(uint8_t *shard, size_t bytes)
{
    ddp_shard parsed;
    ddp_status st = ddp_shard_parse(shard, bytes, "it", &parsed);
    free(shard);
    return st;
}

static void a_good_shard_is_used_where_it_lies(void **state)
{
    (void)state;
    size_t bytes;
    ddp_shard parsed;
    uint8_t *shard = make_shard(0, mixed, 4, CLASSES, CHANNELS, &bytes);
    assert_int_equal(bytes, 64 + 128 + 128 + 64 + 192 + 576);
    CHECK_OK(ddp_shard_parse(shard, bytes, "it", &parsed));
    assert_int_equal(parsed.header->count, 4);
    assert_int_equal(parsed.header->data_offset, 192);
    for (uint32_t i = 0; i < 4; i++) {
        const ddp_shard_entry *e = &parsed.entries[i];
        assert_int_equal(e->height, mixed[i].height);
        assert_int_equal(e->width, mixed[i].width);
        assert_int_equal(e->label, i % CLASSES);
        assert_int_equal(e->offset % 64, 0);
        assert_ptr_equal(parsed.bytes, shard);
        assert_int_equal(parsed.bytes[e->offset], shard_pixel(i, 0));
    }
    free(shard);
}

static void every_field_of_the_header_is_checked(void **state)
{
    (void)state;
    static const struct {
        size_t at, width;
        uint64_t value;
        const char *text;
    } cases[] = {
        {0, 1, 'd', "it: does not begin with DDPSHARD"},
        {8, 4, 2, "it: has format version 2, expected 1"},
        {12, 4, 0, "count = 0, expected 1 to"},
        {12, 4, 3, "checksum"},
        {12, 4, 40, "pixels start at byte 192 of 1152, expected 1024 for 40"},
        {12, 4, 0xffffffff, "count = 4294967295, expected 1 to"},
        {16, 4, 0, "classes = 0"},
        {16, 4, 2, "the label of image 2 is 2, expected 0 to 1"},
        {20, 4, 0, "channels = 0"},
        {20, 4, 5, "channels = 5"},
        {20, 4, 1, "image 0 has 3 channels, expected 1"},
        {24, 8, 128, "pixels start at byte 128"},
        {24, 8, UINT64_MAX, "pixels start at byte 18446744073709551615"},
        {32, 8, 1151, "the file has 1152 bytes, its header says 1151"},
        {40, 8, 77, "the index has the checksum"},
        {48, 8, 1, "last 16 bytes are not 0"},
        {56, 8, 1, "last 16 bytes are not 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t bytes;
        uint8_t *shard = make_shard(0, mixed, 4, CLASSES, CHANNELS, &bytes);
        memcpy(shard + cases[i].at, &cases[i].value, cases[i].width);
        CHECK_FAILS(parse(shard, bytes), DDP_ERR_FORMAT, cases[i].text);
    }
}

static void every_field_of_an_entry_is_checked(void **state)
{
    (void)state;
    static const struct {
        size_t at, width; /* within entry 2, of 8 x 8 at byte 384 */
        uint64_t value;
        const char *text;
    } cases[] = {
        {0, 8, 320, "image 2 starts at byte 320, expected 384 (overlap)"},
        {0, 8, 385, "image 2 starts at byte 385, expected 384 (gap)"},
        {0, 8, UINT64_MAX - 63, "image 2 starts at byte 18446744073709551552, expected 384 (gap)"},
        {8, 4, 0, "image 2 is 0 x 8"},
        {12, 4, 0, "image 2 is 8 x 0"},
        {8, 4, 0xffffffff, "image 2 is 4294967295 x 8"},
        {12, 4, 65536, "image 2 is 8 x 65536"},
        {8, 8, UINT64_C(65535) << 32 | 65535, "image 2 is 65535 x 65535"},
        {8, 4, 65535, "image 2 ends at byte 1573248, the file has 1152"},
        {8, 4, 7, "image 3 starts at byte 576, expected 576"},
        {8, 4, 1, "image 3 starts at byte 576, expected 448 (gap)"},
        {8, 4, 24, "image 3 starts at byte 576, expected 960 (overlap)"},
        {16, 4, 4, "image 2 has 4 channels, expected 3"},
        {20, 4, 3, "the label of image 2 is 3, expected 0 to 2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t bytes;
        uint8_t *shard = make_shard(0, mixed, 4, CLASSES, CHANNELS, &bytes);
        memcpy(shard + 64 + 2 * 24 + cases[i].at, &cases[i].value, cases[i].width);
        seal_shard(shard);
        if (cases[i].value == 7) { /* seven rows take as many borders as eight */
            CHECK_OK(parse(shard, bytes));
            continue;
        }
        CHECK_FAILS(parse(shard, bytes), DDP_ERR_FORMAT, cases[i].text);
    }
}

static void no_length_but_the_right_one_is_accepted(void **state)
{
    (void)state;
    size_t bytes;
    for (size_t cut = 0;; cut += 8) {
        ddp_shard parsed;
        uint8_t *shard = make_shard(0, mixed, 4, CLASSES, CHANNELS, &bytes);
        if (cut >= bytes) {
            free(shard);
            break;
        }
        uint8_t *copy = malloc(cut + 1); /* so that reading on is found */
        assert_non_null(copy);
        memcpy(copy, shard, cut);
        if (cut >= 40)
            memcpy(copy + 32, &(uint64_t){cut}, 8); /* the header goes along with it */
        assert_int_equal(ddp_shard_parse(copy, cut, "it", &parsed), DDP_ERR_FORMAT);
        free(copy);
        free(shard);
    }
    uint8_t *shard = make_shard(0, mixed, 4, CLASSES, CHANNELS, &bytes);
    shard = realloc(shard, bytes + 64);
    assert_non_null(shard);
    memcpy(shard + 32, &(uint64_t){bytes + 64}, 8);
    CHECK_FAILS(parse(shard, bytes + 64), DDP_ERR_FORMAT,
                "the images end at byte 1152, the file has 1216");
}

/* ---- data sets ---- */

typedef struct split_spec {
    const test_size *sizes;
    uint32_t count;
    int shards;
} split_spec;

static const split_spec mixed_split = {mixed, 4, 3}, equal_split = {equal_sizes, 5, 2};

/* Sizes of the whole split. */
static void range_of(const split_spec *s, uint32_t min[2], uint32_t max[2])
{
    min[0] = min[1] = UINT32_MAX;
    max[0] = max[1] = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        const uint32_t sides[2] = {s->sizes[i].height, s->sizes[i].width};
        for (int d = 0; d < 2; d++) {
            min[d] = sides[d] < min[d] ? sides[d] : min[d];
            max[d] = sides[d] > max[d] ? sides[d] : max[d];
        }
    }
}

static void write_manifest(const char *dir, const split_spec *s, const char *shards)
{
    char text[2048];
    uint32_t min[2], max[2];
    int64_t of_class[CLASSES] = {0}, images = (int64_t)s->count * s->shards;
    range_of(s, min, max);
    for (int64_t i = 0; i < images; i++)
        of_class[i % CLASSES]++;
    int used =
        snprintf(text, sizeof text,
                 "{\"format\": \"ddp-shards\", \"version\": 1, \"images\": %d, \"channels\": 3,\n"
                 "\"min_height\": %u, \"max_height\": %u, \"min_width\": %u, \"max_width\": %u,\n"
                 "\"classes\": [\"ape\", \"bee\", \"cat\"], \"class_images\": [%d, %d, %d],\n"
                 "\"shards\": [%s], \"damaged\": []}\n",
                 (int)images, min[0], max[0], min[1], max[1], (int)of_class[0], (int)of_class[1],
                 (int)of_class[2], shards);
    assert_true(used < (int)sizeof text);
    write_bytes(dir, "MANIFEST.json", text, (size_t)used);
}

static void write_split(const char *dir, const split_spec *s)
{
    char list[1024] = "";
    assert_int_equal(mkdir(dir, 0777), 0);
    for (int i = 0; i < s->shards; i++) {
        char name[32];
        size_t bytes, used = strlen(list);
        uint8_t *shard =
            make_shard((int64_t)i * s->count, s->sizes, s->count, CLASSES, CHANNELS, &bytes);
        snprintf(name, sizeof name, "shard-%05d.ddp", i);
        write_bytes(dir, name, shard, bytes);
        snprintf(list + used, sizeof list - used,
                 "%s{\"file\": \"%s\", \"images\": %u, \"bytes\": %zu, \"xxh3\": \"%016llx\"}",
                 i > 0 ? ", " : "", name, s->count, bytes,
                 (unsigned long long)ddp_hash64(shard, bytes));
        free(shard);
    }
    write_manifest(dir, s, list);
}

static void write_set(char dir[64], const split_spec *s)
{
    char split[128];
    strcpy(dir, "/tmp/ddp_test_shards_XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(split, sizeof split, "%s/train", dir);
    write_split(split, s);
}

typedef struct world_case {
    const split_spec *spec;
    const char *dir[3]; /* of each rank */
    bool verify;
} world_case;

#define REQUIRE(truth)                                                                             \
    do {                                                                                           \
        if (!(truth))                                                                              \
            return DDP_FAIL(DDP_ERR_INTERNAL, "%d: %s", __LINE__, #truth);                         \
    } while (0)

static ddp_status check_image(const split_spec *s, ddp_dataset *dataset, int64_t i)
{
    const test_size *size = &s->sizes[i % s->count];
    ddp_image image;
    DDP_TRY(ddp_dataset_image(dataset, i, &image));
    REQUIRE(image.bytes && image.channels == CHANNELS && image.label == i % CLASSES);
    REQUIRE(image.height == size->height && image.width == size->width);
    REQUIRE((uintptr_t)image.pixels % 64 == 0);
    const uint8_t *pixels = image.pixels;
    for (int64_t y = 0; y < image.height; y++)
        for (int64_t x = 0; x < image.width; x++)
            for (int64_t c = 0; c < CHANNELS; c++)
                REQUIRE(pixels[c * image.stride_c + y * image.stride_y + x * image.stride_x] ==
                        shard_pixel(i, (y * image.width + x) * CHANNELS + c));
    return DDP_OK;
}

static ddp_status check_set(const world_case *w, ddp_dataset *dataset)
{
    const ddp_dataset_info *info = ddp_dataset_get_info(dataset);
    bool variable = w->spec == &mixed_split;
    REQUIRE(info->count == w->spec->count * w->spec->shards && info->classes == CLASSES);
    REQUIRE(info->variable == variable);
    REQUIRE(ddp_shape_equal(&info->shape,
                            &(ddp_shape){3, {CHANNELS, variable ? 0 : 28, variable ? 0 : 28}}));
    REQUIRE(strcmp(info->class_names[2], "cat") == 0);
    for (int64_t i = 0; i < info->count; i++)
        DDP_TRY(check_image(w->spec, dataset, i));
    if (variable)
        return DDP_OK;
    float pixels[CHANNELS * 28 * 28];
    int32_t label;
    DDP_TRY(ddp_dataset_fetch(dataset, &(int64_t){7}, 1, pixels, &label));
    REQUIRE(label == 7 % CLASSES);
    REQUIRE(pixels[784 + 28 + 1] == (float)(shard_pixel(7, (28 + 1) * 3 + 1) / 255.0));
    return DDP_OK;
}

static ddp_status open_and_check(ddp_comm *comm, void *arg)
{
    const world_case *w = arg;
    ddp_data_opts opts = {.data_dir = w->dir[ddp_comm_rank(comm)], .verify_data = w->verify};
    ddp_dataset *dataset;
    DDP_TRY(ddp_dataset_open(ddp_dataset_shards(), &opts, DDP_SPLIT_TRAIN, comm, &dataset));
    ddp_status st = ddp_comm_agree(comm, check_set(w, dataset), "checking images");
    ddp_dataset_close(dataset);
    return st;
}

static ddp_status open_world(const world_case *w, int world, bool one_node)
{
    ddp_comm_opts opts = DDP_COMM_OPTS_DEFAULTS;
    opts.exit_on_failure = false;
    opts.shared_memory = one_node;
    opts.timeout_ms = 20000;
    return run_ranks(&opts, world, open_and_check, (void *)(uintptr_t)w);
}

static void every_rank_sees_every_image(void **state)
{
    static const split_spec *const specs[] = {&mixed_split, &equal_split};
    (void)state;
    for (int i = 0; i < 2; i++) {
        char dir[64];
        write_set(dir, specs[i]);
        for (int world = 1; world <= 3; world++)
            for (int one_node = 0; one_node < 2; one_node++)
                CHECK_OK(open_world(&(world_case){specs[i], {dir, dir, dir}, world > 1}, world,
                                    one_node));
        remove_tree(dir);
    }
}

static void refused(const char *dir, bool verify, ddp_status status, const char *text)
{
    world_case w = {&mixed_split, {dir, dir}, verify};
    CHECK_FAILS(open_world(&w, 1, true), status, text);
    CHECK_FAILS(open_world(&w, 2, true), status, text);
    CHECK_FAILS(open_world(&w, 2, false), status, text);
}

static void flip_byte(const char *dir, const char *name, long at)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, at, SEEK_SET), 0);
    int byte = fgetc(file);
    assert_int_equal(fseek(file, at, SEEK_SET), 0);
    assert_true(fputc(byte ^ 1, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void damage_is_named_on_all_ranks(void **state)
{
    (void)state;
    char dir[64], path[128];
    write_set(dir, &mixed_split);
    flip_byte(dir, "train/shard-00001.ddp", 400); /* a pixel: only the checksum knows */
    CHECK_FAILS(open_world(&(world_case){&mixed_split, {dir}, false}, 1, true), DDP_ERR_INTERNAL,
                "pixels[");
    refused(dir, true, DDP_ERR_FORMAT, "train/shard-00001.ddp: has the checksum");
    flip_byte(dir, "train/shard-00001.ddp", 400);
    flip_byte(dir, "train/shard-00002.ddp", 64 + 20);
    refused(dir, false, DDP_ERR_FORMAT, "train/shard-00002.ddp: the index has the checksum");
    flip_byte(dir, "train/shard-00002.ddp", 64 + 20);
    CHECK_OK(open_world(&(world_case){&mixed_split, {dir}, true}, 1, true));
    snprintf(path, sizeof path, "%s/train/shard-00002.ddp", dir);
    assert_int_equal(truncate(path, 1000), 0);
    refused(dir, false, DDP_ERR_FORMAT, "the file has 1000 bytes, its header says 1152");
    assert_int_equal(truncate(path, 0), 0);
    refused(dir, false, DDP_ERR_FORMAT, "shard-00002.ddp is empty");
    assert_int_equal(unlink(path), 0);
    refused(dir, false, DDP_ERR_IO, "shard-00002.ddp: No such file");
    snprintf(path, sizeof path, "%s/train/MANIFEST.json", dir);
    assert_int_equal(unlink(path), 0);
    refused(dir, false, DDP_ERR_IO, "packed by ddp_pack to its end");
    remove_tree(dir);
    refused("", false, DDP_ERR_USAGE, "--data-dir is empty");
}

static void ranks_with_other_data_are_refused(void **state)
{
    (void)state;
    char a[64], b[64];
    write_set(a, &mixed_split);
    write_set(b, &equal_split);
    CHECK_FAILS(open_world(&(world_case){&mixed_split, {a, b}, false}, 2, false), DDP_ERR_MISMATCH,
                "the packed data set differs");
    remove_tree(a);
    remove_tree(b);
}

/* Replaces the first `from` in the manifest, opens the set, and puts it back. */
static void edited(const char *dir, const char *from, const char *to, const char *text)
{
    char path[128], *manifest, *at;
    char changed[4096];
    size_t bytes;
    snprintf(path, sizeof path, "%s/train/MANIFEST.json", dir);
    CHECK_OK(ddp_fs_read(path, 100000, &manifest, &bytes));
    at = strstr(manifest, from);
    assert_non_null(at);
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - manifest), manifest, to,
             at + strlen(from));
    CHECK_OK(ddp_fs_write_atomic(path, changed, strlen(changed)));
    CHECK_FAILS(open_world(&(world_case){&mixed_split, {dir}, false}, 1, true), DDP_ERR_FORMAT,
                text);
    CHECK_OK(ddp_fs_write_atomic(path, manifest, bytes));
    ddp_free(manifest);
}

static void the_manifest_is_checked(void **state)
{
    (void)state;
    char dir[64];
    write_set(dir, &mixed_split);
    CHECK_OK(open_world(&(world_case){&mixed_split, {dir}, false}, 1, true));
    edited(dir, "ddp-shards", "shards", "is no object with \"format\": \"ddp-shards\"");
    edited(dir, "\"version\": 1", "\"version\": 2", "\"version\" is missing or no whole number");
    edited(dir, "\"images\": 12", "\"images\": 13", "the classes have 12 images, expected 13");
    edited(dir, "\"images\": 12", "\"images\": 0", "\"images\" is missing or no whole number");
    edited(dir, "[4, 4, 4]", "[5, 4, 3]", "class \"ape\" has 4 images, the manifest says 5");
    edited(dir, "[4, 4, 4]", "[4, 4, 5]", "over all 12 images");
    edited(dir, "[4, 4, 4]", "[4, 4]", "\"class_images\" has 2 numbers for 3 classes");
    edited(dir, "[4, 4, 4]", "[4, 4, -4]", "the images of class 2 are no whole number");
    edited(dir, "\"bee\"", "7", "class 1 has no string as name");
    edited(dir, "[\"ape\", ", "[", "\"class_images\" has 3 numbers for 2 classes");
    edited(dir, "\"channels\": 3", "\"channels\": 1", "has 4 images of 3 channels and 3 classes");
    edited(dir, "\"min_height\": 1", "\"min_height\": 2", "images are 1 to 8 high");
    edited(dir, "\"max_width\": 64", "\"max_width\": 65", "1 to 64 wide");
    edited(dir, "\"max_width\": 64", "\"max_width\": 0", "\"max_width\" is missing or no");
    edited(dir, "\"min_width\": 1", "\"min_width\": 65", "a smallest size is over the largest");
    edited(dir, "shard-00001", "../train/shard-00001", "shard 1 has no \"file\" with the name");
    edited(dir, "shard-00001", "shard-00000", "class \"ape\"");
    edited(dir, "\"xxh3\": \"", "\"xxh3\": \"x", "\"xxh3\" is missing or no 16 hex digits");
    edited(dir, "\"images\": 4,", "\"images\": 3,", "the shards have 11 images, expected 12");
    edited(dir, "\"bytes\": 1152", "\"bytes\": 1151", "in 1152 bytes, the manifest says 4");
    edited(dir, "\"damaged\": []}", "\"damaged\": []", "MANIFEST.json");
    remove_tree(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_shard_is_used_where_it_lies),
        cmocka_unit_test(every_field_of_the_header_is_checked),
        cmocka_unit_test(every_field_of_an_entry_is_checked),
        cmocka_unit_test(no_length_but_the_right_one_is_accepted),
        cmocka_unit_test(every_rank_sees_every_image),
        cmocka_unit_test(damage_is_named_on_all_ranks),
        cmocka_unit_test(ranks_with_other_data_are_refused),
        cmocka_unit_test(the_manifest_is_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
