/* test_buffer.c - names, places and first values of running statistics. */
#include "harness.h"

#include "ddp/buffer.h"

static void add(ddp_buffer_table *table, const char *name, int64_t count, float init, bool counter)
{
    ddp_buffer buffer = {.count = count, .init = init, .counter = counter};
    int index = -1;
    snprintf(buffer.name, sizeof buffer.name, "%s", name);
    CHECK_OK(ddp_buffer_table_add(table, &buffer, &index));
    assert_int_equal(index, ddp_buffer_table_count(table) - 1);
}

static void buffers_lie_behind_each_other_on_borders(void **state)
{
    (void)state;
    ddp_buffer_table *table;
    float flat[64];
    CHECK_OK(ddp_buffer_table_create(&table));
    assert_int_equal(ddp_buffer_table_length(table), 0);
    for (int i = 0; i < 20; i++) { /* more than fit at first */
        char name[16];
        snprintf(name, sizeof name, "counter%d", i);
        add(table, name, 0, 0, true);
    }
    add(table, "bn.running_mean", 17, 0.0f, false);
    add(table, "bn.num_batches_tracked", 0, 0, true);
    add(table, "bn.running_var", 3, 1.0f, false);
    assert_int_equal(ddp_buffer_table_at(table, 20)->offset, 0);
    assert_int_equal(ddp_buffer_table_at(table, 22)->offset, 32);
    assert_int_equal(ddp_buffer_table_length(table), 48);
    memset(flat, 0x7f, sizeof flat);
    ddp_buffer_table_init(table, flat);
    for (int i = 0; i < 48; i++)
        assert_true(flat[i] == (i >= 32 && i < 35 ? 1.0f : 0.0f));
    assert_true(flat[48] != 0.0f);
    ddp_buffer_table_destroy(table);
}

static void bad_buffers_are_refused(void **state)
{
    (void)state;
    ddp_buffer_table *table;
    int index;
    ddp_buffer buffer = {.name = "a", .count = 2};
    CHECK_OK(ddp_buffer_table_create(&table));
    CHECK_OK(ddp_buffer_table_add(table, &buffer, &index));
    CHECK_FAILS(ddp_buffer_table_add(table, &buffer, &index), DDP_ERR_SHAPE, "a exists already");
    buffer = (ddp_buffer){.name = "b", .count = 0};
    CHECK_FAILS(ddp_buffer_table_add(table, &buffer, &index), DDP_ERR_SHAPE, "b has 0 values");
    buffer.name[0] = '\0';
    CHECK_FAILS(ddp_buffer_table_add(table, &buffer, &index), DDP_ERR_SHAPE, "name");
    assert_int_equal(ddp_buffer_table_count(table), 1);
    ddp_buffer_table_destroy(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_lie_behind_each_other_on_borders),
        cmocka_unit_test(bad_buffers_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
