/* test_weights.c - weights files: round trip, strictness, and files that lie. */
#include "harness.h"

#include <stdlib.h>
#include <unistd.h>

#include "ckpt/safetensors.h"
#include "ddp/fs.h"
#include "ddp/weights.h"
#include "model_fixture.h"

typedef struct files {
    char dir[64], path[128];
    model_fixture f; /* a small mlp: fc1 [3][4], fc2 [2][3] */
    float *other;    /* another flat buffer */
} files;

static void open_files(files *t, const char *widths)
{
    const ddp_model_opts opts = {.input_shape = {3, {1, 2, 2}}, .classes = 2, .mlp_widths = widths};
    snprintf(t->dir, sizeof t->dir, "/tmp/ddp_weights_XXXXXX");
    assert_non_null(mkdtemp(t->dir));
    CHECK_OK(ddp_fs_join(t->path, sizeof t->path, t->dir, "w.safetensors"));
    fixture_open(&t->f, ddp_model_mlp(), &opts, DDP_CONV_AUTO, 1);
    CHECK_OK(ddp_param_table_init(t->f.device, t->f.table, 5, t->f.params));
    CHECK_OK(ddp_alloc_bytes(t->f.bytes, 1, (void **)(void *)&t->other));
}

static void close_files(files *t)
{
    fixture_close(&t->f);
    ddp_free(t->other);
    unlink(t->path);
    assert_int_equal(rmdir(t->dir), 0); /* nothing is left behind */
}

static ddp_weights weights_of(const model_fixture *f, float *params)
{
    return (ddp_weights){.device = f->device, .table = f->table, .params = params};
}

static ddp_status save(const char *path, const model_fixture *f)
{
    const ddp_weights weights = weights_of(f, f->params);
    return ddp_weights_save(path, &weights);
}

static ddp_status load(const files *t)
{
    ddp_weights weights = weights_of(&t->f, t->other);
    return ddp_weights_load(t->path, false, &weights);
}

/* Loading fails and changes nothing. */
#define CHECK_REFUSED(t, status, text)                                                             \
    do {                                                                                           \
        memset((t)->other, 0x55, (t)->f.bytes);                                                    \
        CHECK_FAILS(load(t), (status), (text));                                                    \
        assert_non_null(strstr(ddp_status_message(), (t)->path));                                  \
        for (size_t i_ = 0; i_ < (t)->f.bytes; i_++)                                               \
            assert_int_equal(((unsigned char *)(t)->other)[i_], 0x55);                             \
    } while (0)

/* A file of this header and so many bytes of data; length -1 means the header's. */
static void write_file(files *t, const char *header, int64_t length, size_t data_bytes)
{
    const size_t header_bytes = strlen(header);
    const uint64_t claimed = length == -1 ? header_bytes : (uint64_t)length;
    char *text;
    CHECK_OK(DDP_ALLOC(text, 8 + header_bytes + data_bytes));
    memcpy(text, &claimed, 8);
    memcpy(text + 8, header, header_bytes);
    for (size_t i = 0; i < data_bytes / 4; i++) {
        const float value = (float)i;
        memcpy(text + 8 + header_bytes + 4 * i, &value, 4);
    }
    CHECK_OK(ddp_fs_write_atomic(t->path, text, 8 + header_bytes + data_bytes));
    ddp_free(text);
}

static void what_is_saved_is_loaded(void **state)
{
    (void)state;
    const ddp_model_opts opts = {.input_shape = {3, {1, 28, 28}}, .classes = 10};
    files t;
    model_fixture lenet;
    float *other;
    uint64_t hash, again;
    open_files(&t, "3");
    fixture_open(&lenet, ddp_model_lenet(), &opts, DDP_CONV_AUTO, 2);
    CHECK_OK(ddp_param_table_init(lenet.device, lenet.table, 5, lenet.params));
    CHECK_OK(ddp_alloc_bytes(lenet.bytes, 1, (void **)(void *)&other));
    ddp_weights weights = weights_of(&lenet, other);
    CHECK_OK(save(t.path, &lenet));
    CHECK_OK(ddp_weights_load(t.path, false, &weights));
    assert_memory_equal(other, lenet.params, lenet.bytes);
    CHECK_OK(ddp_param_table_hash(lenet.device, lenet.table, lenet.params, &hash));
    CHECK_OK(ddp_param_table_hash(lenet.device, lenet.table, other, &again));
    assert_true(hash == again);
    CHECK_REFUSED(&t, DDP_ERR_SHAPE, "not in the model: conv1.weight, conv1.bias");
    ddp_free(other);
    fixture_close(&lenet);
    close_files(&t);
}

static void the_file_is_what_other_readers_expect(void **state)
{
    (void)state;
    files t;
    char *text;
    size_t bytes;
    uint64_t length;
    open_files(&t, "3");
    CHECK_OK(save(t.path, &t.f));
    CHECK_OK(ddp_fs_read(t.path, 1 << 20, &text, &bytes));
    memcpy(&length, text, 8);
    assert_int_equal(length % 8, 0);
    /* The layers in forward order, without gaps: 3*4 + 3 + 2*3 + 2 numbers. */
    assert_int_equal(bytes, 8 + length + 4 * (12 + 3 + 6 + 2));
    static const char want[] =
        "{\"__metadata__\": {\"format\": \"pt\"}, "
        "\"fc1.weight\": {\"dtype\": \"F32\", \"shape\": [3, 4], \"data_offsets\": [0, 48]}, "
        "\"fc1.bias\": {\"dtype\": \"F32\", \"shape\": [3], \"data_offsets\": [48, 60]}, "
        "\"fc2.weight\": {\"dtype\": \"F32\", \"shape\": [2, 3], \"data_offsets\": [60, 84]}, "
        "\"fc2.bias\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [84, 92]}}";
    /* Blanks are the JSON library's choice. */
    size_t k = 0;
    for (size_t i = 8; i < 8 + length; i++) {
        if (text[i] == ' ')
            continue;
        while (want[k] == ' ')
            k++;
        assert_int_equal(text[i], want[k]);
        k++;
    }
    assert_int_equal(k, sizeof want - 1);
    const ddp_param *fc1 =
        ddp_param_table_at(t.f.table, ddp_param_table_find(t.f.table, "fc1.weight"));
    float plain[12];
    CHECK_OK(ddp_param_export(t.f.device, fc1, t.f.params, plain));
    assert_memory_equal(text + 8 + length, plain, sizeof plain);
    ddp_free(text);
    close_files(&t);
}

static const char fitting[] =
    "{\"module.fc2.bias\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
    "\"module.fc1.weight\":{\"dtype\":\"F32\",\"shape\":[3,4],\"data_offsets\":[20,68]},"
    "\"module.fc1.bias\":{\"data_offsets\":[8,20],\"dtype\":\"F32\",\"shape\":[3]},"
    "\"module.fc2.weight\":{\"shape\":[2,3],\"dtype\":\"F32\",\"data_offsets\":[68,92]}}";

/* Another order, a prefix, and data that do not start on a border of 4 bytes. */
static void files_of_other_writers_are_read(void **state)
{
    (void)state;
    files t;
    open_files(&t, "3");
    for (int pad = 0; pad < 4; pad++) {
        char header[sizeof fitting + 4];
        snprintf(header, sizeof header, "%s%.*s", fitting, pad, "   ");
        write_file(&t, header, -1, 92);
        CHECK_OK(load(&t));
        const ddp_param *fc1 =
            ddp_param_table_at(t.f.table, ddp_param_table_find(t.f.table, "fc1.weight"));
        float plain[12];
        CHECK_OK(ddp_param_export(t.f.device, fc1, t.other, plain));
        for (int i = 0; i < 12; i++)
            assert_true(plain[i] == (float)(5 + i));
    }
    close_files(&t);
}

static void all_that_does_not_fit_is_listed_at_once(void **state)
{
    (void)state;
    files t;
    open_files(&t, "3");
    write_file(&t,
               "{\"fc1.weight\":{\"dtype\":\"F32\",\"shape\":[4,3],\"data_offsets\":[0,48]},"
               "\"fc3.weight\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[48,56]},"
               "\"fc2.bias\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[56,64]}}",
               -1, 64);
    CHECK_REFUSED(&t, DDP_ERR_SHAPE, "missing: fc1.bias, fc2.weight;");
    assert_non_null(strstr(ddp_status_message(), "not in the model: fc3.weight;"));
    assert_non_null(strstr(ddp_status_message(), "of another shape: fc1.weight (4x3, not 3x4)"));
    assert_null(strstr(ddp_status_message(), "fc2.bias"));
    write_file(&t, "{}", -1, 0);
    CHECK_REFUSED(&t, DDP_ERR_SHAPE, "missing: fc1.weight, fc1.bias, fc2.weight, fc2.bias");
    close_files(&t);
}

static void a_long_list_is_cut_and_counted(void **state)
{
    (void)state;
    files t;
    char header[16384] = "{";
    size_t used = 1;
    open_files(&t, "3");
    for (int i = 0; i < 100; i++)
        used += (size_t)snprintf(header + used, sizeof header - used,
                                 "%s\"layer%d\":{\"dtype\":\"F32\",\"shape\":[1],"
                                 "\"data_offsets\":[%d,%d]}",
                                 i ? "," : "", i, 4 * i, 4 * i + 4);
    snprintf(header + used, sizeof header - used, "}");
    write_file(&t, header, -1, 400);
    CHECK_REFUSED(&t, DDP_ERR_SHAPE, "not in the model: layer0, layer1,");
    const char *more = strstr(ddp_status_message(), " and ");
    assert_non_null(more);
    int listed = 0;
    for (const char *at = ddp_status_message(); (at = strstr(at, "layer")) != NULL; at++)
        listed++;
    assert_true(listed > 10);
    assert_int_equal(listed + atoi(more + 5), 100);
    assert_non_null(strstr(more, " more"));
    /* One long list leaves room for the others. */
    assert_non_null(strstr(ddp_status_message(), "missing: fc1.weight, fc1.bias,"));
    close_files(&t);
}

#define ONE(fields) "{\"a\":{" fields "}}"

static void files_that_lie_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        int64_t length; /* claimed; -1: true */
        size_t data_bytes;
        const char *message;
    } lies[] = {
        {"", -1, 0, "does not start with '{'"},
        {"", 0, 0, "does not start with '{'"},
        {"{}", 3, 0, "claims a header of 3 bytes, but has only 2"},
        {"{}", INT64_MAX, 0, "the limit is"},
        {"{}", -2, 0, "claims a header"},
        {"{}", (16 << 20) + 1, 0, "the limit is"},
        {"{", -1, 0, "line 1"},
        {"[]", -1, 0, "does not start with '{'"},
        {" {}", -1, 0, "does not start with '{'"},
        {"{}x", -1, 0, "line 1"},
        {"{}{}", -1, 0, "line 1"},
        {"{\"a\":1}", -1, 0, "tensor a is not an object"},
        {"{\"a\":{},\"a\":{}}", -1, 0, "duplicate"},
        {"{\"a\xff\":{}}", -1, 0, "line 1"},
        {"{\"a\\u0000b\":{}}", -1, 0, "line 1"},
        {"{\"__metadata__\":[]}", -1, 0, "__metadata__ is not an object"},
        {"{\"__metadata__\":{\"x\":1}}", -1, 0, "__metadata__.x is not a string"},
        {"{}", -1, 4, "4 bytes of data, but the tensors take 0"},
        {ONE("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1"), -1, 4,
         "unknown key 'x'"},
        {ONE("\"shape\":[1],\"data_offsets\":[0,4]"), -1, 4, "dtype must be a string"},
        {ONE("\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,4]"), -1, 4, "dtype must be a string"},
        {ONE("\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[0,4]"), -1, 4, "takes 2 bytes"},
        {ONE("\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,4]"), -1, 4, "takes 8 bytes"},
        {ONE("\"dtype\":\"U8\",\"shape\":[4611686018427387904,3,0],\"data_offsets\":[0,0]"), -1, 0,
         "overflows"},
        {ONE("\"dtype\":\"F8_E4M3\",\"shape\":[4],\"data_offsets\":[0,4]"), -1, 4, "is F8_E4M3"},
        {ONE("\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]"), -1, 4, "dtype is f32"},
        {ONE("\"dtype\":\"F32\",\"data_offsets\":[0,4]"), -1, 4, "shape must be a list"},
        {ONE("\"dtype\":\"F32\",\"shape\":{},\"data_offsets\":[0,4]"), -1, 4,
         "shape must be a list"},
        {ONE("\"dtype\":\"F32\",\"shape\":4,\"data_offsets\":[0,4]"), -1, 4,
         "shape must be a list"},
        {ONE("\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1],\"data_offsets\":[0,4]"), -1, 4,
         "shape must be a list of at most"},
        {ONE("\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]"), -1, 4, "dimension 0"},
        {ONE("\"dtype\":\"F32\",\"shape\":[1,1.0],\"data_offsets\":[0,4]"), -1, 4, "dimension 1"},
        {ONE("\"dtype\":\"F32\",\"shape\":[\"1\"],\"data_offsets\":[0,4]"), -1, 4, "dimension 0"},
        {ONE("\"dtype\":\"F32\",\"shape\":[4611686018427387905],\"data_offsets\":[0,4]"), -1, 4,
         "overflows"},
        {ONE("\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]"), -1, 0,
         "overflows"},
        {ONE("\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,4]"), -1, 4,
         "line 1"},
        {ONE("\"dtype\":\"F32\",\"shape\":[1]"), -1, 4, "data_offsets must be two"},
        {ONE("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]"), -1, 4,
         "data_offsets must be two"},
        {ONE("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]"), -1, 4,
         "data_offsets must be two"},
        {ONE("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,\"4\"]"), -1, 4,
         "data_offsets must be two"},
        {ONE("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]"), -1, 4, "do not lie in"},
        {ONE("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]"), -1, 4, "do not lie in"},
        {ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]"), -1, 4, "do not lie in"},
        {ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]"), -1, 4, "takes 8 bytes"},
        {ONE("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]"), -1, 8, "(gap)"},
        {ONE("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]"), -1, 8,
         "8 bytes of data, but the tensors take 4"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}",
         -1, 12, "(overlap)"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
         -1, 4, "(overlap)"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}",
         -1, 12, "(gap)"},
    };
    files t;
    open_files(&t, "3");
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        write_file(&t, lies[i].header, lies[i].length, lies[i].data_bytes);
        CHECK_REFUSED(&t, DDP_ERR_FORMAT, lies[i].message);
    }
    CHECK_OK(ddp_fs_write_atomic(t.path, "\x02\0\0\0\0\0\0", 7));
    CHECK_REFUSED(&t, DDP_ERR_FORMAT, "7 bytes are too few");
    CHECK_OK(ddp_fs_write_atomic(t.path, "", 0));
    CHECK_REFUSED(&t, DDP_ERR_FORMAT, "0 bytes are too few");
    CHECK_OK(ddp_fs_make_dirs(t.dir));
    unlink(t.path);
    CHECK_REFUSED(&t, DDP_ERR_IO, "No such file");
    close_files(&t);
}

static void deep_nesting_is_refused(void **state)
{
    (void)state;
    enum { DEPTH = 100000 };
    files t;
    char *header;
    open_files(&t, "3");
    CHECK_OK(DDP_ALLOC(header, DEPTH + 8));
    memcpy(header, "{\"a\":", 5);
    memset(header + 5, '[', DEPTH);
    write_file(&t, header, -1, 0);
    CHECK_REFUSED(&t, DDP_ERR_FORMAT, "");
    memset(header + 5, 0, DEPTH);
    for (int i = 0; i < 200; i++) {
        header[5 + i] = '[';
        header[205 + i] = ']';
    }
    header[405] = '}';
    write_file(&t, header, -1, 0);
    CHECK_REFUSED(&t, DDP_ERR_FORMAT, "nested");
    ddp_free(header);
    close_files(&t);
}

/* Whatever is cut off or changed in a good file: refused, or read as some other good file. */
static void damage_never_gets_past_the_checks(void **state)
{
    (void)state;
    files t;
    char *text;
    size_t bytes;
    int refused = 0;
    open_files(&t, "3");
    CHECK_OK(save(t.path, &t.f));
    CHECK_OK(ddp_fs_read(t.path, 1 << 20, &text, &bytes));
    ddpi_safetensors file;
    for (size_t cut = 0; cut < bytes; cut++)
        assert_int_equal(ddpi_safetensors_parse(text, cut, "cut", &file), DDP_ERR_FORMAT);
    for (size_t at = 0; at < bytes - 92; at++) {
        const char old = text[at];
        for (int bit = 0; bit < 8; bit++) {
            text[at] = (char)(old ^ (1 << bit));
            if (ddpi_safetensors_parse(text, bytes, "flipped", &file) == DDP_OK)
                ddpi_safetensors_close(&file);
            else
                refused++;
        }
        text[at] = old;
    }
    assert_true(refused > 1000);
    ddp_free(text);
    close_files(&t);
}

static void a_failed_save_leaves_the_old_file(void **state)
{
    (void)state;
    files t;
    open_files(&t, "3");
    CHECK_FAILS(save("/nonexistent/w.safetensors", &t.f), DDP_ERR_IO, "/nonexistent/w.safetensors");
    CHECK_OK(save(t.path, &t.f));
    CHECK_OK(save(t.path, &t.f)); /* replaces */
    CHECK_OK(load(&t));
    assert_memory_equal(t.other, t.f.params, t.f.bytes);
    close_files(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_saved_is_loaded),
        cmocka_unit_test(the_file_is_what_other_readers_expect),
        cmocka_unit_test(files_of_other_writers_are_read),
        cmocka_unit_test(all_that_does_not_fit_is_listed_at_once),
        cmocka_unit_test(a_long_list_is_cut_and_counted),
        cmocka_unit_test(files_that_lie_are_refused),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(damage_never_gets_past_the_checks),
        cmocka_unit_test(a_failed_save_leaves_the_old_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
