/* Building with remembered failures, strict loading. */
#include <math.h>

#include "ddp/json.h"
#include "ddp/memory.h"
#include "harness.h"

static ddp_json *new_object(void)
{
    ddp_json *object;

    CHECK_OK(ddp_json_object(&object));
    return object;
}

static void assert_text(const ddp_json *value, const char *want)
{
    char *text;

    CHECK_OK(ddp_json_text(value, 0, &text));
    assert_string_equal(text, want);
    ddp_free(text);
}

static void order_and_types(void **state)
{
    ddp_json *object = new_object();
    ddp_json *array;
    char *text;

    (void)state;
    CHECK_OK(ddp_json_array(&array));
    ddp_json_append_int(array, INT64_MIN);
    ddp_json_append_number(array, -INFINITY);
    ddp_json_append_string(array, "a\"b\n");
    ddp_json_append(array, new_object());
    ddp_json_set_string(object, "z", "last name first");
    ddp_json_set_int(object, "a", 3);
    ddp_json_set_number(object, "half", 0.5);
    ddp_json_set_number(object, "nan", NAN);
    ddp_json_set_bool(object, "yes", true);
    ddp_json_set(object, "list", array);
    ddp_json_set_int(object, "z", 1); /* replaces, keeps the place */
    assert_text(object, "{\"z\":1,\"a\":3,\"half\":0.5,\"nan\":null,\"yes\":true,"
                        "\"list\":[-9223372036854775808,null,\"a\\\"b\\n\",{}]}");
    CHECK_OK(ddp_json_text(object, 2, &text));
    assert_non_null(strstr(text, "{\n  \"z\": 1,\n"));
    ddp_free(text);
    ddp_json_destroy(object);
    ddp_json_destroy(NULL);
}

static void numbers_read_back(void **state)
{
    static const double values[] = {0.1, 1e-300, 123456789.123456789, 1.0 / 3};

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        ddp_json *object = new_object();
        ddp_json *loaded;
        char *text;
        double value = 0;
        ddp_json_set_number(object, "x", values[i]);
        CHECK_OK(ddp_json_text(object, 0, &text));
        CHECK_OK(ddp_json_load(text, strlen(text), "test", &loaded));
        assert_true(ddp_json_as_number(ddp_json_get(loaded, "x"), &value));
        assert_true(value == values[i]);
        ddp_free(text);
        ddp_json_destroy(loaded);
        ddp_json_destroy(object);
    }
}

static void failures_are_remembered(void **state)
{
    ddp_json *object = new_object();
    ddp_json *inside = new_object();
    ddp_json *array;
    char *text;

    (void)state;
    CHECK_OK(ddp_json_array(&array));
    ddp_json_append_string(array, "\xff\xfe");
    ddp_json_set(inside, "deep", array);
    ddp_json_set_int(object, "fine", 1);
    CHECK_OK(ddp_json_text(object, 0, &text));
    ddp_free(text);
    ddp_json_set(object, "inside", inside);
    CHECK_FAILS(ddp_json_text(object, 0, &text), DDP_ERR_FORMAT, "UTF-8");
    ddp_json_destroy(object);
    object = new_object();
    ddp_json_set_string(object, "name", "\xc3");
    CHECK_FAILS(ddp_json_text(object, 0, &text), DDP_ERR_FORMAT, "UTF-8");
    ddp_json_destroy(object);
}

static void check_refused(const char *text, const char *cause)
{
    ddp_json *value = NULL;

    CHECK_FAILS(ddp_json_load(text, strlen(text), "state.json", &value), DDP_ERR_FORMAT, cause);
    CHECK_FAILS(ddp_json_load(text, strlen(text), "state.json", &value), DDP_ERR_FORMAT,
                "state.json: ");
    assert_null(value);
}

static void loading_is_strict(void **state)
{
    (void)state;
    check_refused("{\"a\": 1, \"a\": 2}", "duplicate");
    check_refused("{\"a\": 1} x", "end of file expected");
    check_refused("{\"a\": 1}{}", "end of file expected");
    check_refused("{\n\n\"a\" 1}", "line 3");
    check_refused("{\"a\": 01}", "line 1");
    check_refused("{\"a\": NaN}", "line 1");
    check_refused("{'a': 1}", "line 1");
    check_refused("[1,]", "line 1");
    check_refused("", "line");
    check_refused("{\"a\": 1", "line 1");
    check_refused("{\"a\": 99999999999999999999}", "too big");
    check_refused("{\"a\": 1e999}", "overflow");
    check_refused("\"\\u0000\"", "line 1");
    check_refused("\"\xff\"", "unable to decode byte 0xff");
}

static void bytes_bound_the_text(void **state)
{
    ddp_json *value;

    (void)state;
    CHECK_OK(ddp_json_load("[1]garbage", 3, "test", &value));
    assert_int_equal(ddp_json_length(value), 1);
    ddp_json_destroy(value);
}

static void nest(char *text, int depth)
{
    memset(text, '[', (size_t)depth);
    memset(text + depth, ']', (size_t)depth);
    text[2 * depth] = 0;
}

static void depth_is_limited(void **state)
{
    static char text[200001];
    ddp_json *value;

    (void)state;
    nest(text, 64);
    CHECK_OK(ddp_json_load(text, strlen(text), "test", &value));
    ddp_json_destroy(value);
    nest(text, 65);
    check_refused(text, "at most 64");
    nest(text, 100000); /* would end a parser that recurses without limit */
    check_refused(text, "depth");
}

static void reading_checks_types(void **state)
{
    static const char text[] = "{\"s\": \"x\", \"i\": 7, \"d\": 1.5, \"o\": {}, \"l\": [1, \"b\"]}";
    static const char keys[] = "sidol";
    ddp_json *value;
    const char *string = NULL;
    int64_t integer = 0;
    double number = 0;
    void *iter = NULL;
    const char *key;
    const ddp_json *member;
    size_t count = 0;

    (void)state;
    CHECK_OK(ddp_json_load(text, strlen(text), "test", &value));
    assert_true(ddp_json_as_string(ddp_json_get(value, "s"), &string));
    assert_string_equal(string, "x");
    assert_true(ddp_json_as_int(ddp_json_get(value, "i"), &integer));
    assert_int_equal(integer, 7);
    assert_true(ddp_json_as_number(ddp_json_get(value, "i"), &number));
    assert_true(number == 7);
    assert_false(ddp_json_as_int(ddp_json_get(value, "d"), &integer));
    assert_false(ddp_json_as_string(ddp_json_get(value, "i"), &string));
    assert_false(ddp_json_as_number(ddp_json_get(value, "s"), &number));
    assert_true(ddp_json_is_object(ddp_json_get(value, "o")));
    assert_false(ddp_json_is_array(ddp_json_get(value, "o")));
    assert_null(ddp_json_get(value, "absent"));
    assert_false(ddp_json_as_int(NULL, &integer));
    assert_false(ddp_json_is_object(NULL));
    while (ddp_json_next(value, &iter, &key, &member)) {
        assert_int_equal(key[0], keys[count]);
        assert_ptr_equal(member, ddp_json_get(value, key));
        count++;
    }
    assert_int_equal(count, 5);
    const ddp_json *list = ddp_json_get(value, "l");
    assert_true(ddp_json_is_array(list));
    assert_int_equal(ddp_json_length(list), 2);
    assert_true(ddp_json_as_string(ddp_json_at(list, 1), &string));
    assert_null(ddp_json_at(list, 2));
    ddp_json_destroy(value);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_and_types),         cmocka_unit_test(numbers_read_back),
        cmocka_unit_test(failures_are_remembered), cmocka_unit_test(loading_is_strict),
        cmocka_unit_test(bytes_bound_the_text),    cmocka_unit_test(depth_is_limited),
        cmocka_unit_test(reading_checks_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
