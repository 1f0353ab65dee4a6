/* test_weights_state.c - whole state dicts: running statistics, counters, prefixes, parts of files,
 * and the types that other writers use. */
#include "harness.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "ckpt/weights_impl.h"
#include "ddp/fs.h"
#include "ddp/log.h"
#include "model_fixture.h"

enum { CHANNELS = 3 };

/* A small mlp, fc1 [3][4] and fc2 [2][3], with the statistics of a norm beside fc1's parameters and
 * one more layer that has nothing but a buffer. */
typedef struct state {
    char dir[64], path[128], log_path[128];
    model_fixture f;
    ddp_buffer_table *buffers;
    size_t running_bytes;
    ddp_weights weights;
} state_dict;

static void add_buffer(ddp_buffer_table *table, const char *name, float init)
{
    ddp_buffer buffer = {.count = CHANNELS, .init = init, .counter = init < 0};
    int index;
    snprintf(buffer.name, sizeof buffer.name, "%s", name);
    CHECK_OK(ddp_buffer_table_add(table, &buffer, &index));
}

static void open_state(state_dict *t)
{
    const ddp_model_opts opts = {.input_shape = {3, {1, 2, 2}}, .classes = 2, .mlp_widths = "3"};
    snprintf(t->dir, sizeof t->dir, "/tmp/ddp_state_XXXXXX");
    assert_non_null(mkdtemp(t->dir));
    CHECK_OK(ddp_fs_join(t->path, sizeof t->path, t->dir, "w.safetensors"));
    CHECK_OK(ddp_fs_join(t->log_path, sizeof t->log_path, t->dir, "log"));
    fixture_open(&t->f, ddp_model_mlp(), &opts, DDP_CONV_AUTO, 1);
    CHECK_OK(ddp_param_table_init(t->f.device, t->f.table, 5, t->f.params));
    CHECK_OK(ddp_buffer_table_create(&t->buffers));
    add_buffer(t->buffers, "tail.seen", 0.5f);
    add_buffer(t->buffers, "fc1.running_mean", 0);
    add_buffer(t->buffers, "fc1.running_var", 1);
    add_buffer(t->buffers, "fc1.num_batches_tracked", -1);
    t->running_bytes = ddp_buffer_table_length(t->buffers) * sizeof(float);
    t->weights = (ddp_weights){.device = t->f.device,
                               .table = t->f.table,
                               .params = t->f.params,
                               .buffers = t->buffers,
                               .counter = 41};
    CHECK_OK(ddp_device_alloc(t->f.device, t->running_bytes, (void **)(void *)&t->weights.running));
    ddp_buffer_table_init(t->buffers, t->weights.running);
}

static void close_state(state_dict *t)
{
    ddp_device_free(t->f.device, t->weights.running, t->running_bytes);
    ddp_buffer_table_destroy(t->buffers);
    fixture_close(&t->f);
    unlink(t->path);
    unlink(t->log_path);
    assert_int_equal(rmdir(t->dir), 0);
}

/* ---- files ---- */

/* A tensor of a file; element i has the value first + i. */
typedef struct spec {
    const char *name;
    ddpi_st_dtype dtype;
    ddp_shape shape;
    double first;
} spec;

#define S0                                                                                         \
    {                                                                                              \
        0                                                                                          \
    }
#define S1(a)                                                                                      \
    {                                                                                              \
        1,                                                                                         \
        {                                                                                          \
            a                                                                                      \
        }                                                                                          \
    }
#define S2(a, b)                                                                                   \
    {                                                                                              \
        2,                                                                                         \
        {                                                                                          \
            a, b                                                                                   \
        }                                                                                          \
    }

static void put(char *at, ddpi_st_dtype dtype, double value)
{
    const float f32 = (float)value;
    const int64_t i64 = (int64_t)value;
    const _Float16 f16 = (_Float16)value;
    uint32_t bits;
    memcpy(&bits, &f32, sizeof bits);
    const uint16_t bf16 = (uint16_t)(bits >> 16); /* exact for the values used here */
    const void *const from[DDPI_ST_COUNT] = {
        [DDPI_ST_F32] = &f32,   [DDPI_ST_F64] = &value, [DDPI_ST_F16] = &f16,
        [DDPI_ST_BF16] = &bf16, [DDPI_ST_I64] = &i64,   [DDPI_ST_I32] = &i64};
    memcpy(at, from[dtype], ddpi_st_dtype_bytes(dtype));
}

static void write_file(const state_dict *t, const spec *specs, size_t count)
{
    ddpi_safetensor tensors[16];
    char *head, *file;
    size_t head_bytes, data_bytes;
    assert_true(count <= 16);
    for (size_t i = 0; i < count; i++)
        tensors[i] = (ddpi_safetensor){
            .name = specs[i].name, .dtype = specs[i].dtype, .shape = specs[i].shape};
    CHECK_OK(ddpi_safetensors_head(tensors, count, &head, &head_bytes, &data_bytes));
    CHECK_OK(DDP_ALLOC(file, head_bytes + data_bytes));
    memcpy(file, head, head_bytes);
    for (size_t i = 0; i < count; i++)
        for (int64_t k = 0; k < ddp_shape_count(&specs[i].shape); k++)
            put(file + head_bytes + tensors[i].begin +
                    (size_t)k * ddpi_st_dtype_bytes(specs[i].dtype),
                specs[i].dtype, specs[i].first + (double)k);
    CHECK_OK(ddp_fs_write_atomic(t->path, file, head_bytes + data_bytes));
    ddp_free(file);
    ddp_free(head);
}

#define WRITE(t, specs) write_file((t), (specs), sizeof(specs) / sizeof *(specs))

/* As a file that fits everywhere; tests change one entry. */
#define FITTING                                                                                    \
    {                                                                                              \
        {"fc1.weight", DDPI_ST_F32, S2(3, 4), 10}, {"fc1.bias", DDPI_ST_F32, S1(3), 30},           \
            {"fc1.running_mean", DDPI_ST_F32, S1(3), 40},                                          \
            {"fc1.running_var", DDPI_ST_F32, S1(3), 50},                                           \
            {"fc1.num_batches_tracked", DDPI_ST_I64, S0, 60},                                      \
            {"fc2.weight", DDPI_ST_F32, S2(2, 3), 70}, {"fc2.bias", DDPI_ST_F32, S1(2), 80},       \
            {"tail.seen", DDPI_ST_F32, S1(3), 90},                                                 \
    }
enum { FC1_WEIGHT, FC1_BIAS, MEAN, VAR, TRACKED, FC2_WEIGHT, FC2_BIAS, SEEN };

static void plain_value(const state_dict *t, const char *name, float *plain)
{
    const ddp_weights *w = &t->weights;
    const int index = ddp_param_table_find(w->table, name);
    if (index >= 0) {
        CHECK_OK(
            ddp_param_export(w->device, ddp_param_table_at(w->table, index), w->params, plain));
        return;
    }
    for (int i = 0; i < ddp_buffer_table_count(w->buffers); i++) {
        const ddp_buffer *buffer = ddp_buffer_table_at(w->buffers, i);
        if (strcmp(buffer->name, name) == 0)
            memcpy(plain, w->running + buffer->offset, CHANNELS * sizeof *plain);
    }
}

static void check_value(const state_dict *t, const char *name, int count, double first)
{
    float plain[12];
    plain_value(t, name, plain);
    for (int i = 0; i < count; i++)
        if (plain[i] != (float)(first + i))
            fail_msg("%s[%d] is %g, expected %g", name, i, (double)plain[i], first + i);
}

static void check_fitting(const state_dict *t)
{
    check_value(t, "fc1.weight", 12, 10);
    check_value(t, "fc1.bias", 3, 30);
    check_value(t, "fc1.running_mean", 3, 40);
    check_value(t, "fc1.running_var", 3, 50);
    check_value(t, "fc2.weight", 6, 70);
    check_value(t, "fc2.bias", 2, 80);
    check_value(t, "tail.seen", 3, 90);
}

/* The load fails, says so, and changes nothing. */
static void check_refused(state_dict *t, bool partial, ddp_status want, const char *text)
{
    float *params, *running;
    CHECK_OK(ddp_alloc_bytes(t->f.bytes, 1, (void **)(void *)&params));
    CHECK_OK(ddp_alloc_bytes(t->running_bytes, 1, (void **)(void *)&running));
    memcpy(params, t->weights.params, t->f.bytes);
    memcpy(running, t->weights.running, t->running_bytes);
    const int64_t counter = t->weights.counter;
    CHECK_FAILS(ddp_weights_load(t->path, partial, &t->weights), want, text);
    assert_non_null(strstr(ddp_status_message(), t->path));
    assert_memory_equal(params, t->weights.params, t->f.bytes);
    assert_memory_equal(running, t->weights.running, t->running_bytes);
    assert_int_equal(counter, t->weights.counter);
    ddp_free(params);
    ddp_free(running);
}

/* Loads with a log of its own; the caller frees its text. */
static char *load_logged(state_dict *t, bool partial)
{
    const ddp_log_opts opts = {
        .rank = 1, .console_level = DDP_LOG_ERROR, .file_level = DDP_LOG_DEBUG};
    ddp_rank_ctx ctx = {.rank = 1, .world = 2, .host = "here"};
    char *text;
    size_t bytes;
    unlink(t->log_path);
    CHECK_OK(ddp_log_create(&opts, &ctx.log));
    CHECK_OK(ddp_log_open_file(ctx.log, t->log_path));
    ddp_rank_ctx_set(&ctx);
    const ddp_status st = ddp_weights_load(t->path, partial, &t->weights);
    ddp_rank_ctx_set(NULL);
    ddp_log_destroy(ctx.log);
    CHECK_OK(st);
    CHECK_OK(ddp_fs_read(t->log_path, 1 << 16, &text, &bytes));
    return text;
}

static void check_log(state_dict *t, bool partial, const char *const *lines, int count)
{
    char *text = load_logged(t, partial);
    for (int i = 0; i < count; i++)
        if (strstr(text, lines[i]) == NULL)
            fail_msg("the log lacks \"%s\":\n%s", lines[i], text);
    ddp_free(text);
}

/* ---- tests ---- */

static void a_state_dict_goes_out_and_comes_back(void **state)
{
    (void)state;
    state_dict t;
    const spec specs[] = FITTING;
    open_state(&t);
    WRITE(&t, specs);
    CHECK_OK(ddp_weights_load(t.path, false, &t.weights));
    check_fitting(&t);
    assert_int_equal(t.weights.counter, 60);
    t.weights.counter += 7;
    CHECK_OK(ddp_weights_save(t.path, &t.weights));
    memset(t.weights.running, 0, t.running_bytes);
    t.weights.counter = 0;
    CHECK_OK(ddp_param_table_init(t.f.device, t.f.table, 6, t.f.params));
    CHECK_OK(ddp_weights_load(t.path, false, &t.weights));
    check_fitting(&t);
    assert_int_equal(t.weights.counter, 67);
    close_state(&t);
}

/* Names in forward order; counters lie first, so that everything is aligned to its elements. */
static void the_header_is_in_forward_order_and_data_are_aligned(void **state)
{
    (void)state;
    static const struct {
        const char *text;
    } wanted[] = {
        {"\"fc1.weight\":{\"dtype\":\"F32\",\"shape\":[3,4],\"data_offsets\":[8,56]}"},
        {"\"fc1.bias\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[56,68]}"},
        {"\"fc1.running_mean\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[68,80]}"},
        {"\"fc1.running_var\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[80,92]}"},
        {"\"fc1.num_batches_tracked\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]}"},
        {"\"fc2.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[92,116]}"},
        {"\"fc2.bias\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[116,124]}"},
        {"\"tail.seen\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[124,136]}"},
    };
    state_dict t;
    char *text, *packed;
    size_t bytes, used = 0;
    uint64_t length;
    int64_t counter;
    open_state(&t);
    CHECK_OK(ddp_weights_save(t.path, &t.weights));
    CHECK_OK(ddp_fs_read(t.path, 1 << 20, &text, &bytes));
    memcpy(&length, text, sizeof length);
    assert_int_equal(length % 8, 0);
    assert_int_equal(bytes, 8 + length + 136);
    CHECK_OK(DDP_ALLOC(packed, length + 1));
    for (size_t i = 0; i < length; i++)
        if (text[8 + i] != ' ')
            packed[used++] = text[8 + i];
    const char *at = packed;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        at = strstr(at, wanted[i].text);
        if (at == NULL)
            fail_msg("%s is not there, or not in its place: %s", wanted[i].text, packed);
    }
    memcpy(&counter, text + 8 + length, sizeof counter);
    assert_int_equal(counter, 41);
    ddp_free(packed);
    ddp_free(text);
    close_state(&t);
}

static void counters_may_be_missing_but_statistics_may_not(void **state)
{
    (void)state;
    state_dict t;
    open_state(&t);
    spec specs[] = FITTING;
    specs[TRACKED] = specs[SEEN];
    write_file(&t, specs, SEEN);
    CHECK_OK(ddp_weights_load(t.path, false, &t.weights));
    check_fitting(&t);
    assert_int_equal(t.weights.counter, 41);
    specs[VAR] = specs[FC2_BIAS];
    write_file(&t, specs, FC2_BIAS);
    check_refused(&t, false, DDP_ERR_SHAPE, "does not fit the model: missing: fc1.running_var");
    assert_null(strstr(ddp_status_message(), "num_batches_tracked"));
    close_state(&t);
}

static void counters_must_count(void **state)
{
    (void)state;
    static const struct {
        spec tracked;
        ddp_status status;
        const char *message;
    } cases[] = {
        {{"fc1.num_batches_tracked", DDPI_ST_F32, S0, 1},
         DDP_ERR_SHAPE,
         "of another type: fc1.num_batches_tracked (F32, not I64)"},
        {{"fc1.num_batches_tracked", DDPI_ST_I32, S0, 1}, DDP_ERR_SHAPE, "(I32, not I64)"},
        {{"fc1.num_batches_tracked", DDPI_ST_I64, S1(1), 1},
         DDP_ERR_SHAPE,
         "of another shape: fc1.num_batches_tracked (1, not scalar)"},
        {{"fc1.num_batches_tracked", DDPI_ST_I64, S0, -3}, DDP_ERR_FORMAT, "-3, which is no count"},
        {{"fc1.num_batches_tracked", DDPI_ST_I64, S0, 0x1p62}, DDP_ERR_FORMAT, "no count"},
    };
    state_dict t;
    open_state(&t);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        spec specs[] = FITTING;
        specs[TRACKED] = cases[i].tracked;
        WRITE(&t, specs);
        check_refused(&t, false, cases[i].status, cases[i].message);
    }
    close_state(&t);
}

static void a_prefix_comes_off_all_names_or_none(void **state)
{
    (void)state;
    state_dict t;
    char names[SEEN + 1][64];
    spec specs[] = FITTING;
    const char *const note[] = {"took the prefix 'module.' off all names"};
    open_state(&t);
    for (int i = 0; i <= SEEN; i++) {
        snprintf(names[i], sizeof names[i], "module.%s", specs[i].name);
        specs[i].name = names[i];
    }
    WRITE(&t, specs);
    check_log(&t, false, note, 1);
    check_fitting(&t);
    for (int i = 0; i <= SEEN; i++) { /* once only */
        memmove(names[i] + 7, names[i], sizeof names[i] - 7);
        memcpy(names[i], "module.", 7);
    }
    WRITE(&t, specs);
    check_refused(&t, false, DDP_ERR_SHAPE,
                  "not in the model: module.fc1.num_batches_tracked, module.fc1.weight,");
    spec mixed[] = FITTING;
    mixed[FC2_BIAS].name = "module.fc2.bias";
    for (int partial = 0; partial < 2; partial++) {
        WRITE(&t, mixed);
        check_refused(&t, partial == 1, DDP_ERR_SHAPE, "the prefix 'module.' is before some names");
        assert_non_null(strstr(ddp_status_message(), "module.fc2.bias"));
    }
    close_state(&t);
}

static void all_classes_of_misfits_are_listed_together(void **state)
{
    (void)state;
    state_dict t;
    spec specs[] = FITTING;
    open_state(&t);
    specs[FC1_BIAS].name = "fc9.bias";
    specs[FC2_WEIGHT].shape = (ddp_shape)S2(3, 2);
    specs[MEAN].dtype = DDPI_ST_I64;
    WRITE(&t, specs);
    check_refused(&t, false, DDP_ERR_SHAPE,
                  "missing: fc1.bias; not in the model: fc9.bias; of another shape: fc2.weight "
                  "(3x2, not 2x3); of another type: fc1.running_mean (I64, not F32, F64, F16 or "
                  "BF16)");
    close_state(&t);
}

/* As for another number of classes. */
static void a_part_of_a_file_is_taken_and_the_rest_named(void **state)
{
    (void)state;
    state_dict t;
    spec specs[] = FITTING;
    const char *const lines[] = {
        "took 3 tensors, left as drawn what is missing: fc1.running_mean, tail.seen; of another "
        "shape: fc2.weight (9x3, not 2x3), fc2.bias (9, not 2)",
        "ignored what is not in the model: norm.mean, norm.seen",
    };
    float before[6], after[6];
    open_state(&t);
    specs[FC2_WEIGHT].shape = (ddp_shape)S2(9, 3);
    specs[FC2_BIAS].shape = (ddp_shape)S1(9);
    specs[MEAN].name = "norm.mean";
    specs[SEEN] = (spec){"norm.seen", DDPI_ST_I32, S1(2), 0};
    WRITE(&t, specs);
    check_refused(&t, false, DDP_ERR_SHAPE, "fc2.weight");
    plain_value(&t, "fc2.weight", before);
    check_log(&t, true, lines, 2);
    plain_value(&t, "fc2.weight", after);
    assert_memory_equal(before, after, sizeof before);
    check_value(&t, "fc1.weight", 12, 10);
    check_value(&t, "fc1.bias", 3, 30);
    check_value(&t, "fc1.running_var", 3, 50);
    plain_value(&t, "fc1.running_mean", after);
    assert_true(after[0] == 0 && after[2] == 0);
    plain_value(&t, "tail.seen", after);
    assert_true(after[0] == 0.5f && after[2] == 0.5f);
    assert_int_equal(t.weights.counter, 60);
    close_state(&t);
}

static void a_part_must_not_be_nothing_nor_of_integers(void **state)
{
    (void)state;
    state_dict t;
    open_state(&t);
    const spec strange[] = {{"conv1.weight", DDPI_ST_F32, S1(4), 0},
                            {"fc1.num_batches_tracked", DDPI_ST_I64, S0, 5}};
    WRITE(&t, strange);
    check_refused(
        &t, true, DDP_ERR_SHAPE,
        "has no tensor that fits the model, expected one for a partial start: missing: fc1.weight");
    spec specs[] = FITTING;
    specs[FC1_WEIGHT].dtype = DDPI_ST_I32;
    WRITE(&t, specs);
    check_refused(&t, true, DDP_ERR_SHAPE, "of another type: fc1.weight (I32, not F32");
    close_state(&t);
}

static void other_floats_are_converted(void **state)
{
    (void)state;
    state_dict t;
    spec specs[] = FITTING;
    const char *const note[] = {"converted 4 tensors to F32 (fc1.weight was F16)"};
    open_state(&t);
    specs[FC1_WEIGHT].dtype = DDPI_ST_F16;
    specs[FC1_BIAS].dtype = DDPI_ST_F64;
    specs[MEAN].dtype = DDPI_ST_BF16;
    specs[FC2_BIAS].dtype = DDPI_ST_F16;
    WRITE(&t, specs);
    check_log(&t, false, note, 1);
    check_fitting(&t);
    specs[FC1_BIAS].first = 1e39;
    WRITE(&t, specs);
    check_refused(&t, false, DDP_ERR_FORMAT, "fc1.bias has values that are too large for f32");
    close_state(&t);
}

/* The compiler knows the formats as well. */
static void every_half_becomes_its_value(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits <= UINT16_MAX; bits++) {
        const uint16_t half = (uint16_t)bits;
        _Float16 value;
        float found, brain;
        memcpy(&value, &half, sizeof value);
        assert_true(ddpi_weights_convert(DDPI_ST_F16, (const char *)&half, 1, &found));
        assert_true(ddpi_weights_convert(DDPI_ST_BF16, (const char *)&half, 1, &brain));
        const float want = (float)value;
        assert_int_equal(isnan(found) != 0, isnan(want) != 0);
        if (!isnan(want))
            assert_memory_equal(&found, &want, sizeof want);
        uint32_t upper;
        memcpy(&upper, &brain, sizeof upper);
        assert_int_equal(upper, bits << 16);
    }
    const double doubles[] = {0.1, -1e-50, INFINITY, 3e38};
    float floats[4];
    assert_true(ddpi_weights_convert(DDPI_ST_F64, (const char *)doubles, 4, floats));
    for (int i = 0; i < 4; i++)
        assert_true(floats[i] == (float)doubles[i]);
}

static void logits_are_a_file_of_two_tensors(void **state)
{
    (void)state;
    const float logits[] = {1, 2, 3, 4, 5, 6};
    const int64_t labels[] = {2, 0, 1};
    state_dict t;
    char *text;
    size_t bytes;
    ddpi_safetensors file;
    open_state(&t);
    CHECK_OK(ddp_logits_save(t.path, logits, labels, 3, 2));
    CHECK_OK(ddp_fs_read(t.path, 1 << 20, &text, &bytes));
    CHECK_OK(ddpi_safetensors_parse(text, bytes, t.path, &file));
    assert_int_equal(file.count, 2);
    assert_string_equal(file.tensors[0].name, "labels");
    assert_string_equal(file.tensors[1].name, "logits");
    assert_int_equal(file.tensors[0].dtype, DDPI_ST_I64);
    assert_true(ddp_shape_equal(&file.tensors[1].shape, &(ddp_shape)S2(3, 2)));
    assert_memory_equal(file.data, labels, sizeof labels);
    assert_memory_equal(file.data + sizeof labels, logits, sizeof logits);
    ddpi_safetensors_close(&file);
    ddp_free(text);
    close_state(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_state_dict_goes_out_and_comes_back),
        cmocka_unit_test(the_header_is_in_forward_order_and_data_are_aligned),
        cmocka_unit_test(counters_may_be_missing_but_statistics_may_not),
        cmocka_unit_test(counters_must_count),
        cmocka_unit_test(a_prefix_comes_off_all_names_or_none),
        cmocka_unit_test(all_classes_of_misfits_are_listed_together),
        cmocka_unit_test(a_part_of_a_file_is_taken_and_the_rest_named),
        cmocka_unit_test(a_part_must_not_be_nothing_nor_of_integers),
        cmocka_unit_test(other_floats_are_converted),
        cmocka_unit_test(every_half_becomes_its_value),
        cmocka_unit_test(logits_are_a_file_of_two_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
