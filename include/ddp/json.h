/* json.h - JSON objects on one line, and strict loading with limits, over jansson.
 * A ddp_json is built by one thread. Numbers that are not finite are written as null, since JSON
 * has no others. */
#ifndef DDP_JSON_H
#define DDP_JSON_H

#include "ddp/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ddp_json ddp_json; /* a value: object, array, string, number */

/* An empty object. The caller destroys it, unless it is put into another. */
DDP_CALL ddp_status ddp_json_object(ddp_json **object_out);
DDP_CALL ddp_status ddp_json_array(ddp_json **array_out);
DDP_API void ddp_json_destroy(ddp_json *value);

/* Setters add or replace a key of an object. Failure (memory, bad UTF-8) is remembered in the
 * object and reported by ddp_json_line(), so that building needs no check at each line. */
DDP_API void ddp_json_set_string(ddp_json *object, const char *key, const char *value);
DDP_API void ddp_json_set_int(ddp_json *object, const char *key, int64_t value);
DDP_API void ddp_json_set_number(ddp_json *object, const char *key, double value);
DDP_API void ddp_json_set_bool(ddp_json *object, const char *key, bool value);
/* Takes over `value`, also on failure. */
DDP_API void ddp_json_set(ddp_json *object, const char *key, ddp_json *value);
DDP_API void ddp_json_append_string(ddp_json *array, const char *value);
DDP_API void ddp_json_append_int(ddp_json *array, int64_t value);
DDP_API void ddp_json_append_number(ddp_json *array, double value);
DDP_API void ddp_json_append(ddp_json *array, ddp_json *value);

/* The value on one line (indent 0) or indented, without a trailing newline; keys in order of
 * insertion. The caller frees *text_out with ddp_free(). */
DDP_CALL ddp_status ddp_json_text(const ddp_json *value, int indent, char **text_out);

/* Loads text[0, bytes): one value, nothing behind it, no duplicate keys. `what` names it in
 * messages, with the line and what was wrong. */
DDP_CALL ddp_status ddp_json_load(const char *text, size_t bytes, const char *what,
                                  ddp_json **value_out);
/* Borrowed member of an object, NULL if absent. */
DDP_API const ddp_json *ddp_json_get(const ddp_json *object, const char *key);
/* Iterates over an object: *iter starts as NULL; false at the end. Key and value are borrowed. */
DDP_API bool ddp_json_next(const ddp_json *object, void **iter, const char **key_out,
                           const ddp_json **value_out);
DDP_API size_t ddp_json_length(const ddp_json *array);
DDP_API const ddp_json *ddp_json_at(const ddp_json *array, size_t index);
/* false if the value is of another type. */
DDP_API bool ddp_json_as_string(const ddp_json *value, const char **string_out);
DDP_API bool ddp_json_as_int(const ddp_json *value, int64_t *int_out);
DDP_API bool ddp_json_as_number(const ddp_json *value, double *number_out);
DDP_API bool ddp_json_is_object(const ddp_json *value);
DDP_API bool ddp_json_is_array(const ddp_json *value);

#ifdef __cplusplus
}
#endif
#endif
