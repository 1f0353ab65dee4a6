/* test_inject.c - the list of mishaps as text. */
#include "harness.h"

#include "ddp/inject.h"

static void lists_are_read(void **state)
{
    (void)state;
    ddp_inject inject;

    CHECK_OK(ddp_inject_parse("kill@1:20,delay@0:5:2.5,nan@12:1", &inject));
    assert_int_equal(inject.count, 3);
    assert_int_equal(inject.list[0].kind, DDP_INJECT_KILL);
    assert_int_equal(inject.list[0].rank, 1);
    assert_int_equal(inject.list[0].step, 20);
    assert_int_equal(inject.list[1].kind, DDP_INJECT_DELAY);
    assert_true(inject.list[1].seconds == 2.5);
    assert_int_equal(inject.list[2].kind, DDP_INJECT_NAN);
    assert_int_equal(inject.list[2].rank, 12);
    CHECK_OK(ddp_inject_parse("delay@0:5", &inject));
    assert_int_equal(inject.count, 1);
    assert_true(inject.list[0].seconds == 10);
}

static void every_kind_has_a_name(void **state)
{
    (void)state;
    for (int kind = 0; kind < DDP_INJECT_COUNT; kind++) {
        ddp_inject inject;
        char text[64];
        snprintf(text, sizeof text, "%s@3:4", ddp_inject_name((ddp_inject_kind)kind));
        CHECK_OK(ddp_inject_parse(text, &inject));
        assert_int_equal(inject.list[0].kind, kind);
    }
    assert_true(ddp_inject_ends(DDP_INJECT_EXIT));
    assert_false(ddp_inject_ends(DDP_INJECT_BITFLIP));
}

static void what_is_spelt_wrong_is_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {"",
                                        "kill",
                                        "kill@1",
                                        "kill@1:",
                                        "kill@:3",
                                        "kill@-1:3",
                                        "kill@1:0",
                                        "kill@1:3x",
                                        "kill@1:3:2",
                                        "delay@1:3:",
                                        "delay@1:3:x",
                                        "delay@1:3:-1",
                                        "Kill@1:3",
                                        "kill@1:3,",
                                        ",kill@1:3",
                                        "kill@ 1:3",
                                        "kill@1.5:3",
                                        "delay@1:3:nan",
                                        "kill@99999999999:3"};

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        ddp_inject inject = {.count = -1};
        CHECK_FAILS(ddp_inject_parse(wrong[i], &inject), DDP_ERR_USAGE, "WHAT@RANK:STEP");
        assert_int_equal(inject.count, -1);
    }
    ddp_inject inject;
    char many[512] = "nan@0:1";
    for (int i = 0; i < DDP_INJECT_MAX; i++)
        strcat(many, ",nan@0:1");
    CHECK_FAILS(ddp_inject_parse(many, &inject), DDP_ERR_USAGE, "more than 16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_read),
        cmocka_unit_test(every_kind_has_a_name),
        cmocka_unit_test(what_is_spelt_wrong_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
