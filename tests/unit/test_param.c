/* test_param.c - the parameter table: offsets, completion, first values and hash. */
#include "harness.h"

#include <math.h>

#include "ddp/memory.h"
#include "ddp/param.h"
#include "ddp/rng.h"

static ddp_device *open_device(void)
{
    ddp_device_opts opts = DDP_DEVICE_OPTS_DEFAULTS;
    ddp_device *device;
    CHECK_OK(ddp_device_open(ddp_device_cpu(), &opts, &device));
    return device;
}

static ddp_status add(ddp_device *device, ddp_param_table *table, const char *name, ddp_shape shape,
                      uint32_t init_number, ddp_param_init init, int use_count)
{
    ddp_param param = {
        .shape = shape, .init_number = init_number, .init = init, .use_count = use_count};
    int index;
    snprintf(param.name, sizeof param.name, "%s", name);
    DDP_TRY(ddp_layout_plain(device, &shape, &param.layout));
    const ddp_status st = ddp_param_table_add(table, &param, &index);
    ddp_layout_unref(param.layout);
    if (st == DDP_OK)
        assert_int_equal(index, ddp_param_table_count(table) - 1);
    return st;
}

static const ddp_param_init zero = {DDP_INIT_ZERO, 0};

static float *alloc_flat(const ddp_param_table *table)
{
    float *flat;
    CHECK_OK(DDP_ALLOC(flat, ddp_param_table_length(table)));
    return flat;
}

static void parameters_start_on_borders_and_do_not_overlap(void **state)
{
    (void)state;
    ddp_device *device = open_device();
    ddp_param_table *table;
    const size_t border = DDP_ALIGN_BYTES / sizeof(float);
    int64_t elements = 0;
    CHECK_OK(ddp_param_table_create(&table));
    assert_int_equal(ddp_param_table_length(table), 0);
    for (uint32_t i = 0; i < 40; i++) { /* more than the table holds at first */
        char name[16];
        snprintf(name, sizeof name, "p%u", i);
        CHECK_OK(add(device, table, name, (ddp_shape){1, {1 + 7 * i}}, i, zero, 1));
        elements += 1 + 7 * i;
    }
    size_t end = 0;
    for (int i = 0; i < 40; i++) {
        const ddp_param *param = ddp_param_table_at(table, i);
        assert_int_equal(param->offset % border, 0);
        assert_true(param->offset >= end && param->offset < end + border);
        assert_int_equal(param->count, 1 + 7 * i);
        end = param->offset + param->count;
        assert_int_equal(ddp_param_table_find(table, param->name), i);
    }
    assert_true(ddp_param_table_length(table) >= end &&
                ddp_param_table_length(table) < end + border);
    assert_int_equal(ddp_param_table_length(table) % border, 0);
    assert_int_equal(ddp_param_table_elements(table), elements);
    assert_int_equal(ddp_param_table_find(table, "p"), -1);
    ddp_param_table_destroy(table);
    ddp_device_close(device);
}

static void a_bad_parameter_is_refused_by_name(void **state)
{
    (void)state;
    ddp_device *device = open_device();
    ddp_param_table *table;
    const ddp_shape shape = {1, {3}};
    CHECK_OK(ddp_param_table_create(&table));
    CHECK_OK(add(device, table, "a.weight", shape, 0, zero, 1));
    CHECK_FAILS(add(device, table, "a.weight", shape, 1, zero, 1), DDP_ERR_SHAPE,
                "a.weight exists already");
    CHECK_FAILS(add(device, table, "", shape, 1, zero, 1), DDP_ERR_SHAPE, "name");
    CHECK_FAILS(add(device, table, "b", shape, 1, zero, 0), DDP_ERR_INTERNAL, "use count of 0");
    CHECK_FAILS(add(device, table, "b", shape, 0, zero, 1), DDP_ERR_INTERNAL,
                "a.weight and b have the same init number 0");
    assert_int_equal(ddp_param_table_count(table), 1);
    ddp_param_table_destroy(table);
    ddp_device_close(device);
}

/* ---- completion ---- */

typedef struct calls {
    int order[8], count;
    int fail_at; /* index of a parameter, or -1 */
} calls;

static ddp_status record(void *arg, int index)
{
    calls *c = arg;
    c->order[c->count++] = index;
    return index == c->fail_at ? DDP_FAIL(DDP_ERR_COMM, "no reduction today") : DDP_OK;
}

static ddp_param_table *open_counted(ddp_device *device)
{
    ddp_param_table *table;
    const ddp_shape shape = {1, {3}};
    CHECK_OK(ddp_param_table_create(&table));
    CHECK_OK(add(device, table, "last", shape, 2, zero, 1));
    CHECK_OK(add(device, table, "shared", shape, 1, zero, 3));
    CHECK_OK(add(device, table, "first", shape, 0, zero, 1));
    return table;
}

static void a_parameter_is_ready_with_its_last_contribution(void **state)
{
    (void)state;
    ddp_device *device = open_device();
    ddp_param_table *table = open_counted(device);
    calls c = {.fail_at = -1};
    ddp_param_table_on_ready(table, record, &c);
    for (int backward = 1; backward <= 2; backward++) {
        ddp_param_table_begin(table);
        CHECK_OK(ddp_param_grad_done(table, 1));
        CHECK_OK(ddp_param_grad_done(table, 0));
        CHECK_OK(ddp_param_grad_done(table, 1));
        assert_int_equal(c.count, 3 * backward - 2);
        CHECK_OK(ddp_param_grad_done(table, 1));
        CHECK_OK(ddp_param_grad_done(table, 2));
        CHECK_OK(ddp_param_table_end(table));
    }
    const int want[] = {0, 1, 2, 0, 1, 2};
    assert_int_equal(c.count, 6);
    assert_memory_equal(c.order, want, sizeof want);
    c.fail_at = 0;
    ddp_param_table_begin(table);
    CHECK_FAILS(ddp_param_grad_done(table, 0), DDP_ERR_COMM, "no reduction today");
    ddp_param_table_on_ready(table, NULL, NULL);
    CHECK_OK(ddp_param_grad_done(table, 2));
    assert_int_equal(c.count, 7);
    ddp_param_table_destroy(table);
    ddp_device_close(device);
}

static void too_many_and_too_few_contributions_name_the_parameter(void **state)
{
    (void)state;
    ddp_device *device = open_device();
    ddp_param_table *table = open_counted(device);
    CHECK_FAILS(ddp_param_grad_done(table, 0), DDP_ERR_INTERNAL, "gradient of last");
    ddp_param_table_begin(table);
    CHECK_OK(ddp_param_grad_done(table, 2));
    CHECK_FAILS(ddp_param_grad_done(table, 2), DDP_ERR_INTERNAL,
                "gradient of first got more than its 1 contribution");
    CHECK_OK(ddp_param_grad_done(table, 1));
    CHECK_OK(ddp_param_grad_done(table, 1));
    CHECK_FAILS(ddp_param_table_end(table), DDP_ERR_INTERNAL,
                "2 gradients did not complete in this backward: last, shared");
    CHECK_OK(ddp_param_grad_done(table, 1));
    CHECK_FAILS(ddp_param_grad_done(table, 1), DDP_ERR_INTERNAL,
                "gradient of shared got more than its 3 contributions");
    CHECK_OK(ddp_param_grad_done(table, 0));
    CHECK_OK(ddp_param_table_end(table));
    ddp_param_table_destroy(table);
    ddp_device_close(device);
}

/* ---- values ---- */

static const ddp_param_init normal = {DDP_INIT_NORMAL, 0.5};
static const ddp_param_init uniform = {DDP_INIT_UNIFORM, 0.25};
static const ddp_shape normal_shape = {2, {50, 41}}, uniform_shape = {2, {30, 71}};

/* The same two parameters and a bias, in one flat order or the other. */
static ddp_param_table *open_values(ddp_device *device, bool reversed, const char *first_name)
{
    ddp_param_table *table;
    CHECK_OK(ddp_param_table_create(&table));
    for (int k = 0; k < 3; k++) {
        const int which = reversed ? 2 - k : k;
        if (which == 0)
            CHECK_OK(add(device, table, first_name, normal_shape, 0, normal, 1));
        else if (which == 1)
            CHECK_OK(add(device, table, "bias", (ddp_shape){1, {50}}, 1, zero, 1));
        else
            CHECK_OK(add(device, table, "uniform", uniform_shape, 2, uniform, 1));
    }
    return table;
}

static float *values_of(ddp_device *device, const ddp_param_table *table, const char *name,
                        const float *flat)
{
    const ddp_param *param = ddp_param_table_at(table, ddp_param_table_find(table, name));
    float *plain;
    CHECK_OK(DDP_ALLOC(plain, (size_t)ddp_shape_count(&param->shape)));
    CHECK_OK(ddp_param_export(device, param, flat, plain));
    return plain;
}

static void first_values_do_not_depend_on_the_flat_order(void **state)
{
    (void)state;
    ddp_device *device = open_device();
    ddp_param_table *a = open_values(device, false, "normal");
    ddp_param_table *b = open_values(device, true, "normal");
    float *flat_a = alloc_flat(a), *flat_b = alloc_flat(b);
    uint64_t hash_a, hash_b, other;
    CHECK_OK(ddp_param_table_init(device, a, 42, flat_a));
    CHECK_OK(ddp_param_table_init(device, b, 42, flat_b));
    for (int i = 0; i < 3; i++) {
        const char *name = ddp_param_table_at(a, i)->name;
        float *x = values_of(device, a, name, flat_a), *y = values_of(device, b, name, flat_b);
        assert_memory_equal(x, y, ddp_param_table_at(a, i)->count * sizeof *x);
        ddp_free(x);
        ddp_free(y);
    }
    CHECK_OK(ddp_param_table_hash(device, a, flat_a, &hash_a));
    CHECK_OK(ddp_param_table_hash(device, b, flat_b, &hash_b));
    assert_true(hash_a == hash_b);
    CHECK_OK(ddp_param_table_init(device, b, 43, flat_b));
    CHECK_OK(ddp_param_table_hash(device, b, flat_b, &other));
    assert_true(other != hash_a);
    ddp_free(flat_a);
    ddp_free(flat_b);
    ddp_param_table_destroy(a);
    ddp_param_table_destroy(b);
    ddp_device_close(device);
}

static void moments(const float *values, size_t count, double *mean_out, double *deviation_out)
{
    double sum = 0, squares = 0;
    for (size_t i = 0; i < count; i++) {
        sum += values[i];
        squares += (double)values[i] * values[i];
    }
    *mean_out = sum / (double)count;
    *deviation_out = sqrt(squares / (double)count - *mean_out * *mean_out);
}

/* Limits are five standard errors of the estimates for the counts above; the draws are fixed by the
 * seed. */
static void first_values_have_the_distribution_asked_for(void **state)
{
    (void)state;
    ddp_device *device = open_device();
    ddp_param_table *table = open_values(device, true, "normal");
    float *flat = alloc_flat(table), expected[3];
    double mean, deviation;
    memset(flat, 0x7f, ddp_param_table_length(table) * sizeof *flat);
    CHECK_OK(ddp_param_table_init(device, table, 1, flat));

    float *plain = values_of(device, table, "normal", flat);
    moments(plain, 50 * 41, &mean, &deviation);
    assert_true(fabs(mean) < 5 * 0.5 / sqrt(50 * 41));
    assert_true(fabs(deviation - 0.5) < 5 * 0.5 / sqrt(2 * 50 * 41));
    const ddp_rng rng = ddp_rng_make(1, DDP_RNG_INIT, 0);
    ddp_rng_normal_fill(&rng, 0, 3, expected);
    for (int i = 0; i < 3; i++)
        assert_true(plain[i] == expected[i] * 0.5f);
    ddp_free(plain);

    plain = values_of(device, table, "uniform", flat);
    moments(plain, 30 * 71, &mean, &deviation);
    assert_true(fabs(mean) < 5 * 0.25 / sqrt(3 * 30 * 71));
    assert_true(fabs(deviation - 0.25 / sqrt(3)) < 5 * 0.25 / sqrt(3) / sqrt(30 * 71));
    for (int i = 0; i < 30 * 71; i++)
        assert_true(fabsf(plain[i]) <= 0.25f);
    ddp_free(plain);

    plain = values_of(device, table, "bias", flat);
    for (int i = 0; i < 50; i++)
        assert_true(plain[i] == 0);
    ddp_free(plain);
    ddp_free(flat);
    ddp_param_table_destroy(table);
    ddp_device_close(device);
}

static void the_hash_sees_every_value_and_name_but_no_padding(void **state)
{
    (void)state;
    ddp_device *device = open_device();
    ddp_param_table *table = open_values(device, false, "normal");
    ddp_param_table *renamed = open_values(device, false, "normbl");
    float *flat = alloc_flat(table);
    uint64_t hash, other;
    CHECK_OK(ddp_param_table_init(device, table, 42, flat));
    CHECK_OK(ddp_param_table_hash(device, table, flat, &hash));
    CHECK_OK(ddp_param_table_hash(device, renamed, flat, &other));
    assert_true(other != hash);
    for (int i = 0; i < 3; i++) {
        const ddp_param *param = ddp_param_table_at(table, i);
        const size_t places[] = {param->offset, param->offset + param->count - 1};
        for (int k = 0; k < 2; k++) {
            const float old = flat[places[k]];
            flat[places[k]] = old + 1e-3f;
            CHECK_OK(ddp_param_table_hash(device, table, flat, &other));
            assert_true(other != hash);
            flat[places[k]] = old;
        }
    }
    const ddp_param *bias = ddp_param_table_at(table, 1);
    flat[bias->offset + bias->count] = 1; /* between two parameters */
    CHECK_OK(ddp_param_table_hash(device, table, flat, &other));
    assert_true(other == hash);
    ddp_free(flat);
    ddp_param_table_destroy(table);
    ddp_param_table_destroy(renamed);
    ddp_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_start_on_borders_and_do_not_overlap),
        cmocka_unit_test(a_bad_parameter_is_refused_by_name),
        cmocka_unit_test(a_parameter_is_ready_with_its_last_contribution),
        cmocka_unit_test(too_many_and_too_few_contributions_name_the_parameter),
        cmocka_unit_test(first_values_do_not_depend_on_the_flat_order),
        cmocka_unit_test(first_values_have_the_distribution_asked_for),
        cmocka_unit_test(the_hash_sees_every_value_and_name_but_no_padding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
