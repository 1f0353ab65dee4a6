/* json.c - JSON values over jansson.
 *
 * A ddp_json is jansson's own value under another name: borrowed members then need no objects of
 * their own. A failed setter leaves a mark in the value that it should have changed, as a member
 * that no writer would choose; ddp_json_text() looks for marks and refuses the whole. One thread
 * per value. */
#include "ddp/json.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "ddp/memory.h"

#define FAILED_KEY "\x01 failed"
/* Deeper than any file of ours; shallow enough for everything that walks a value by recursion. */
#define DEPTH_LIMIT 64

static json_t *inner(const ddp_json *value)
{
    return (json_t *)(void *)value;
}

static ddp_json *outer(const json_t *value)
{
    return (ddp_json *)(void *)value;
}

static void mark_failed(ddp_json *value)
{
    int error;

    if (json_is_object(inner(value))) {
        error = json_object_set_new(inner(value), FAILED_KEY, json_null());
    } else {
        json_t *mark = json_object();
        error = mark == NULL || json_object_set_new(mark, FAILED_KEY, json_null()) != 0 ||
                json_array_append_new(inner(value), mark) != 0;
    }
    if (error != 0)
        ddp_fatal("no memory left for a JSON record");
}

static bool has_failed(const json_t *value)
{
    size_t index;
    json_t *member;
    const char *key;

    if (json_object_get(value, FAILED_KEY) != NULL)
        return true;
    json_object_foreach((json_t *)(void *)value, key, member) if (has_failed(member)) return true;
    json_array_foreach(value, index, member) if (has_failed(member)) return true;
    return false;
}

static int depth_of(const json_t *value)
{
    size_t index;
    json_t *member;
    const char *key;
    int deepest = 0;

    json_object_foreach((json_t *)(void *)value, key, member)
    {
        int depth = depth_of(member);
        deepest = depth > deepest ? depth : deepest;
    }
    json_array_foreach(value, index, member)
    {
        int depth = depth_of(member);
        deepest = depth > deepest ? depth : deepest;
    }
    return deepest + 1;
}

static ddp_status created(json_t *value, ddp_json **value_out)
{
    if (value == NULL)
        return DDP_FAIL(DDP_ERR_NOMEM, "no memory for a JSON value");
    *value_out = outer(value);
    return DDP_OK;
}

ddp_status ddp_json_object(ddp_json **object_out)
{
    return created(json_object(), object_out);
}

ddp_status ddp_json_array(ddp_json **array_out)
{
    return created(json_array(), array_out);
}

void ddp_json_destroy(ddp_json *value)
{
    json_decref(inner(value));
}

void ddp_json_set(ddp_json *object, const char *key, ddp_json *value)
{
    DDP_ASSERT(json_is_object(inner(object)));
    if (json_object_set_new(inner(object), key, inner(value)) != 0)
        mark_failed(object);
}

void ddp_json_append(ddp_json *array, ddp_json *value)
{
    DDP_ASSERT(json_is_array(inner(array)));
    if (json_array_append_new(inner(array), inner(value)) != 0)
        mark_failed(array);
}

static ddp_json *number_value(double value)
{
    return outer(isfinite(value) ? json_real(value) : json_null());
}

void ddp_json_set_string(ddp_json *object, const char *key, const char *value)
{
    ddp_json_set(object, key, outer(json_string(value)));
}

void ddp_json_set_int(ddp_json *object, const char *key, int64_t value)
{
    ddp_json_set(object, key, outer(json_integer(value)));
}

void ddp_json_set_number(ddp_json *object, const char *key, double value)
{
    ddp_json_set(object, key, number_value(value));
}

void ddp_json_set_bool(ddp_json *object, const char *key, bool value)
{
    ddp_json_set(object, key, outer(json_boolean(value)));
}

void ddp_json_append_string(ddp_json *array, const char *value)
{
    ddp_json_append(array, outer(json_string(value)));
}

void ddp_json_append_int(ddp_json *array, int64_t value)
{
    ddp_json_append(array, outer(json_integer(value)));
}

void ddp_json_append_number(ddp_json *array, double value)
{
    ddp_json_append(array, number_value(value));
}

ddp_status ddp_json_text(const ddp_json *value, int indent, char **text_out)
{
    size_t flags = JSON_ENCODE_ANY | (indent > 0 ? JSON_INDENT((size_t)indent) : JSON_COMPACT);

    if (has_failed(inner(value)))
        return DDP_FAIL(DDP_ERR_FORMAT, "a JSON record has a text that is not UTF-8");
    char *dumped = json_dumps(inner(value), flags);
    if (dumped == NULL)
        return DDP_FAIL(DDP_ERR_NOMEM, "no memory for the text of a JSON value");
    ddp_status st = ddp_strdup(dumped, text_out);
    free(dumped);
    return st;
}

ddp_status ddp_json_load(const char *text, size_t bytes, const char *what, ddp_json **value_out)
{
    json_error_t error;
    json_t *value = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);

    if (value == NULL)
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: line %d, column %d: %s", what, error.line,
                        error.column, error.text);
    int depth = depth_of(value);
    if (depth > DEPTH_LIMIT) {
        json_decref(value);
        return DDP_FAIL(DDP_ERR_FORMAT, "%s: values are nested %d deep, at most %d are accepted",
                        what, depth, DEPTH_LIMIT);
    }
    *value_out = outer(value);
    return DDP_OK;
}

const ddp_json *ddp_json_get(const ddp_json *object, const char *key)
{
    return outer(json_object_get(inner(object), key));
}

bool ddp_json_next(const ddp_json *object, void **iter, const char **key_out,
                   const ddp_json **value_out)
{
    *iter = *iter == NULL ? json_object_iter(inner(object))
                          : json_object_iter_next(inner(object), *iter);
    if (*iter == NULL)
        return false;
    *key_out = json_object_iter_key(*iter);
    *value_out = outer(json_object_iter_value(*iter));
    return true;
}

size_t ddp_json_length(const ddp_json *array)
{
    return json_array_size(inner(array));
}

const ddp_json *ddp_json_at(const ddp_json *array, size_t index)
{
    return outer(json_array_get(inner(array), index));
}

bool ddp_json_as_string(const ddp_json *value, const char **string_out)
{
    if (!json_is_string(inner(value)))
        return false;
    *string_out = json_string_value(inner(value));
    return true;
}

bool ddp_json_as_int(const ddp_json *value, int64_t *int_out)
{
    if (!json_is_integer(inner(value)))
        return false;
    *int_out = json_integer_value(inner(value));
    return true;
}

bool ddp_json_as_number(const ddp_json *value, double *number_out)
{
    if (!json_is_number(inner(value)))
        return false;
    *number_out = json_number_value(inner(value));
    return true;
}

bool ddp_json_is_object(const ddp_json *value)
{
    return json_is_object(inner(value));
}

bool ddp_json_is_array(const ddp_json *value)
{
    return json_is_array(inner(value));
}
