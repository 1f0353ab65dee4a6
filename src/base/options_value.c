/* options_value.c - the values of options from text and back. No state of its own. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/options_impl.h"
#include "ddp/json.h"
#include "ddp/memory.h"

#define EXPECTED_BYTES 512
/* Limits beyond these are there because a field must be filled, and say nothing to the user. */
#define INT_LIMIT_SHOWN    1e15
#define DOUBLE_LIMIT_SHOWN 1e30

static bool has_limits(const ddp_option *option)
{
    return option->min < option->max;
}

static void describe_number(const ddp_option *option, char *text)
{
    const char *kind = option->type == DDP_OPT_INT ? "a whole number" : "a number";
    double shown = option->type == DDP_OPT_INT ? INT_LIMIT_SHOWN : DOUBLE_LIMIT_SHOWN;
    bool low = has_limits(option) && option->min > -shown;
    bool high = has_limits(option) && option->max <= shown;

    if (low && high)
        snprintf(text, EXPECTED_BYTES, "%s from %.15g to %.15g", kind, option->min, option->max);
    else if (low)
        snprintf(text, EXPECTED_BYTES, "%s of at least %.15g", kind, option->min);
    else if (high)
        snprintf(text, EXPECTED_BYTES, "%s of at most %.15g", kind, option->max);
    else
        snprintf(text, EXPECTED_BYTES, "%s", kind);
}

static ddp_status unexpected(const ddpi_option_entry *entry, const char *text, const char *origin)
{
    const ddp_option *option = entry->option;
    char expected[EXPECTED_BYTES];

    switch (option->type) {
    case DDP_OPT_BOOL:
        snprintf(expected, sizeof expected, "yes or no");
        break;
    case DDP_OPT_INT:
    case DDP_OPT_DOUBLE:
        describe_number(option, expected);
        break;
    case DDP_OPT_CHOICE:
        snprintf(expected, sizeof expected, "one of %s", option->choices);
        break;
    case DDP_OPT_STRING:
        snprintf(expected, sizeof expected, "a text");
        break;
    }
    return DDP_FAIL(DDP_ERR_USAGE, "option --%s (%s): found \"%.200s\", expected %s", option->name,
                    origin, text, expected);
}

static bool parse_bool(const char *text, bool *value_out)
{
    static const struct {
        const char *word;
        bool value;
    } words[] = {{"yes", true}, {"no", false},  {"true", true}, {"false", false},
                 {"on", true},  {"off", false}, {"1", true},    {"0", false}};

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(text, words[i].word) == 0) {
            *value_out = words[i].value;
            return true;
        }
    }
    return false;
}

/* strtoll and strtod skip leading blanks, which a value does not have. */
static bool starts_number(const char *text)
{
    return isdigit((unsigned char)text[0]) || (text[0] != 0 && strchr("+-.", text[0]) != NULL);
}

static bool parse_int(const ddp_option *option, const char *text, int64_t *value_out)
{
    char *end;

    if (!starts_number(text))
        return false;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end != 0 || errno != 0)
        return false;
    if (has_limits(option) && ((double)value < option->min || (double)value > option->max))
        return false;
    *value_out = value;
    return true;
}

static bool parse_double(const ddp_option *option, const char *text, double *value_out)
{
    char *end;

    if (!starts_number(text))
        return false;
    double value = strtod(text, &end);
    if (end == text || *end != 0 || !isfinite(value))
        return false;
    if (has_limits(option) && (value < option->min || value > option->max))
        return false;
    *value_out = value;
    return true;
}

/* The choice at *cursor, which moves behind it; NULL after the last. */
static const char *next_choice(const char **cursor, size_t *bytes_out)
{
    const char *choice = *cursor;

    if (choice == NULL)
        return NULL;
    *bytes_out = strcspn(choice, "|");
    *cursor = choice[*bytes_out] == '|' ? choice + *bytes_out + 1 : NULL;
    return choice;
}

static bool parse_choice(const ddp_option *option, const char *text, int *value_out)
{
    const char *cursor = option->choices;
    const char *choice;
    size_t bytes;

    for (int i = 0; (choice = next_choice(&cursor, &bytes)) != NULL; i++) {
        if (strlen(text) == bytes && memcmp(text, choice, bytes) == 0) {
            *value_out = i;
            return true;
        }
    }
    return false;
}

static ddp_status set_string(ddpi_option_entry *entry, const char *text)
{
    char *copy;

    DDP_TRY(ddp_strdup(text, &copy));
    ddp_free(entry->string);
    entry->string = copy;
    *(const char **)entry->target = copy;
    return DDP_OK;
}

ddp_status ddpi_option_set(ddpi_option_entry *entry, const char *text, const char *origin)
{
    const ddp_option *option = entry->option;
    bool valid = true;
    char *origin_copy;

    switch (option->type) {
    case DDP_OPT_BOOL:
        valid = parse_bool(text != NULL ? text : "yes", entry->target);
        break;
    case DDP_OPT_INT:
        valid = parse_int(option, text, entry->target);
        break;
    case DDP_OPT_DOUBLE:
        valid = parse_double(option, text, entry->target);
        break;
    case DDP_OPT_CHOICE:
        valid = parse_choice(option, text, entry->target);
        break;
    case DDP_OPT_STRING:
        DDP_TRY(set_string(entry, text));
        break;
    }
    if (!valid)
        return unexpected(entry, text, origin);
    DDP_TRY(ddp_strdup(origin, &origin_copy));
    ddp_free(entry->origin);
    entry->origin = origin_copy;
    return DDP_OK;
}

/* The fewest digits that read back to the same double; whole numbers as people write them. */
static void format_double(double value, char buffer[DDPI_VALUE_BYTES])
{
    if (fabs(value) < 1e6 && value == floor(value)) {
        snprintf(buffer, DDPI_VALUE_BYTES, "%.0f", value);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(buffer, DDPI_VALUE_BYTES, "%.*g", digits, value);
        if (strtod(buffer, NULL) == value)
            return;
    }
}

static void format_choice(const ddp_option *option, int value, char buffer[DDPI_VALUE_BYTES])
{
    const char *cursor = option->choices;
    const char *choice;
    size_t bytes;

    for (int i = 0; (choice = next_choice(&cursor, &bytes)) != NULL; i++) {
        if (i == value) {
            snprintf(buffer, DDPI_VALUE_BYTES, "%.*s", (int)bytes, choice);
            return;
        }
    }
    ddp_fatal("internal error: option --%s has no choice number %d", option->name, value);
}

const char *ddpi_option_text(const ddpi_option_entry *entry, char buffer[DDPI_VALUE_BYTES])
{
    const char *string;

    switch (entry->option->type) {
    case DDP_OPT_BOOL:
        return *(const bool *)entry->target ? "yes" : "no";
    case DDP_OPT_INT:
        snprintf(buffer, DDPI_VALUE_BYTES, "%" PRId64, *(const int64_t *)entry->target);
        return buffer;
    case DDP_OPT_DOUBLE:
        format_double(*(const double *)entry->target, buffer);
        return buffer;
    case DDP_OPT_CHOICE:
        format_choice(entry->option, *(const int *)entry->target, buffer);
        return buffer;
    case DDP_OPT_STRING:
        string = *(const char *const *)entry->target;
        return string != NULL ? string : "";
    }
    return "";
}

/* INI strips blanks at the ends, cuts comments off and has no way to write a line break. */
static bool ini_would_change(const char *text)
{
    size_t bytes = strlen(text);

    if (bytes == 0)
        return false;
    if (text[0] == '"' || text[0] == ' ' || text[bytes - 1] == ' ')
        return true;
    for (const char *at = text; *at != 0; at++)
        if ((unsigned char)*at < ' ' || *at == ';' || *at == '#')
            return true;
    return false;
}

/* Replaces the marks of comments inside a JSON string by their escapes. */
static ddp_status escape_comments(const char *json, char **text_out)
{
    size_t marks = 0;
    size_t bytes = strlen(json);
    char *text;

    for (const char *at = json; *at != 0; at++)
        marks += *at == ';' || *at == '#';
    DDP_TRY(DDP_ALLOC(text, bytes + marks * strlen("\\u0000") + 1));
    char *to = text;
    for (const char *at = json; *at != 0; at++) {
        if (*at == ';' || *at == '#')
            to += sprintf(to, "\\u%04x", (unsigned)*at);
        else
            *to++ = *at;
    }
    *text_out = text;
    return DDP_OK;
}

ddp_status ddpi_option_ini_text(const ddpi_option_entry *entry, char **text_out)
{
    char buffer[DDPI_VALUE_BYTES];
    const char *text = ddpi_option_text(entry, buffer);
    ddp_json *array;
    char *json;

    if (!ini_would_change(text))
        return ddp_strdup(text, text_out);
    DDP_TRY(ddp_json_array(&array));
    ddp_json_append_string(array, text);
    ddp_status st = ddp_json_text(array, 0, &json);
    ddp_json_destroy(array);
    if (st != DDP_OK)
        return ddp_status_prefix(st, "option --%s", entry->option->name);
    json[strlen(json) - 1] = 0; /* the array's brackets */
    st = escape_comments(json + 1, text_out);
    ddp_free(json);
    return st;
}
