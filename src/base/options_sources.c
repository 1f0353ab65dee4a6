/* options_sources.c - options from an INI file, through inih, and from variables.
 *
 * inih has a fixed line length and cuts what is longer without a word. Its reader callback is
 * therefore ours: it hands a long line over in pieces that inih takes for continuation lines, and
 * the handler joins them. It also takes leading blanks away, so that an indented key is a key and
 * not the continuation of the one before. One thread. */
#include <ctype.h>
#include <ini.h>
#include <limits.h>
#include <string.h>

#include "base/options_impl.h"
#include "ddp/fs.h"
#include "ddp/json.h"
#include "ddp/memory.h"

#define INI_LIMIT_BYTES ((size_t)1 << 20)

typedef struct ini_source {
    ddp_options *options;
    const char *path;
    const char *text;         /* the whole file */
    const char *at;           /* start of the next line, or of the next piece of this one */
    const char *end;          /* of the text */
    int line;                 /* of the piece that inih has now; from 1 */
    int calls;                /* pieces handed over; inih takes each for a line */
    bool inside;              /* `at` is inside a line */
    bool continued;           /* inih now has a piece that is not the first of its line */
    int piece_bytes;          /* what inih asks for */
    ddpi_option_entry *entry; /* whose value is being joined */
    char *value;
    size_t value_bytes;
    ddp_status status;
} ini_source;

static bool blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static bool comment_mark(char c)
{
    return c == ';' || c == '#';
}

/* Where a line's content ends: before its comment and the blanks in front of that. */
static const char *content_end(const char *start, const char *newline)
{
    const char *end = newline;

    for (const char *at = start; at < newline; at++) {
        if (comment_mark(*at) && (at == start || (*at == ';' && blank(at[-1])))) {
            end = at;
            break;
        }
    }
    while (end > start && blank(end[-1]))
        end--;
    return end;
}

/* inih strips blanks at both ends of a piece and takes some first characters for a comment's, so a
 * cut stands between two characters that it leaves alone. NULL if there is none. */
static const char *cut(const char *start, size_t most)
{
    for (const char *at = start + most; at > start; at--)
        if (!blank(at[0]) && !blank(at[-1]) && !comment_mark(at[0]))
            return at;
    return NULL;
}

/* inih's reader: the next piece as a line of at most `bytes`, NULL at the end. */
static char *next_piece(char *text, int bytes, void *source_arg)
{
    ini_source *source = source_arg;
    size_t room = (size_t)bytes - 3; /* a leading blank, the line's end and the 0 */
    char *to = text;

    if (source->at >= source->end || source->status != DDP_OK)
        return NULL;
    const char *newline = memchr(source->at, '\n', (size_t)(source->end - source->at));
    if (newline == NULL)
        newline = source->end;
    source->piece_bytes = bytes;
    source->continued = source->inside;
    if (source->continued) {
        *to++ = ' '; /* makes it a continuation */
    } else {
        source->line++;
        while (source->at < newline && blank(*source->at))
            source->at++;
    }
    const char *start = source->at;
    const char *stop = content_end(start, newline);
    source->inside = (size_t)(stop - start) > room;
    if (source->inside) {
        stop = cut(start, room);
        if (stop == NULL) {
            source->status = DDP_FAIL(DDP_ERR_USAGE, "%s:%d: more than %zu blanks in a row",
                                      source->path, source->line, room);
            return NULL;
        }
    }
    source->at = source->inside ? stop : newline + 1;
    memcpy(to, start, (size_t)(stop - start));
    to += stop - start;
    memcpy(to, "\n", 2);
    source->calls++;
    return text;
}

/* A value in double quotes is a JSON string; any other stands for itself. */
static ddp_status set_joined(ini_source *source)
{
    char origin[PATH_MAX + 32];
    ddp_json *json = NULL;
    const char *text = source->value;
    ddp_status st;

    snprintf(origin, sizeof origin, "%s:%d", source->path, source->line);
    if (source->value[0] == '"') {
        st = ddp_json_load(source->value, source->value_bytes, origin, &json);
        if (st != DDP_OK || !ddp_json_as_string(json, &text)) {
            ddp_json_destroy(json);
            return DDP_FAIL(
                DDP_ERR_USAGE,
                "option --%s (%s): found %.200s, expected a text in double quotes as in "
                "JSON",
                source->entry->option->name, origin, source->value);
        }
    }
    st = ddpi_option_set(source->entry, text, origin);
    ddp_json_destroy(json);
    return st;
}

static ddp_status start_key(ini_source *source, const char *name)
{
    ddpi_option_entry *entry = ddpi_option_find(source->options, name, strlen(name));

    if (entry == NULL)
        return DDP_FAIL(DDP_ERR_USAGE, "unknown key %.200s (%s:%d); the nearest is %s", name,
                        source->path, source->line,
                        ddpi_option_nearest(source->options, name, strlen(name)));
    if (entry->group == 0)
        return DDP_FAIL(DDP_ERR_USAGE, "key %s (%s:%d): a file cannot set this", name, source->path,
                        source->line);
    if (entry->in_file)
        return DDP_FAIL(DDP_ERR_USAGE, "key %s (%s:%d): stands twice in this file", name,
                        source->path, source->line);
    entry->in_file = true;
    source->entry = entry;
    source->value_bytes = 0;
    return DDP_OK;
}

/* inih's handler; false ends in an error. */
static int on_pair(void *source_arg, const char *section, const char *name, const char *value)
{
    ini_source *source = source_arg;
    size_t bytes = strlen(value);

    (void)section; /* sections only comment */
    /* The rest of a line that had no key is no continuation of the key before it. */
    if (source->status != DDP_OK || (source->continued && source->entry == NULL))
        return 0;
    if (source->entry == NULL)
        source->status = start_key(source, name);
    if (source->status != DDP_OK)
        return 0;
    memcpy(source->value + source->value_bytes, value, bytes + 1);
    source->value_bytes += bytes;
    if (!source->inside) {
        source->status = set_joined(source);
        source->entry = NULL;
    }
    return source->status == DDP_OK;
}

/* The status of a file in which inih found an error in the piece with this number. */
static ddp_status syntax_error(ini_source *source, int piece)
{
    source->at = source->text;
    source->line = 0;
    source->calls = 0;
    source->inside = false;
    while (source->calls < piece &&
           next_piece(source->value, source->piece_bytes, source) != NULL) {
    }
    return DDP_FAIL(DDP_ERR_USAGE, "%s:%d: expected \"name = value\", \"[section]\" or a comment",
                    source->path, source->line);
}

ddp_status ddpi_options_read_ini(ddp_options *options, const char *path)
{
    ini_source source = {.options = options, .path = path, .status = DDP_OK};
    char *text;
    size_t bytes;
    ddp_status st;

    DDP_TRY(ddp_fs_read(path, INI_LIMIT_BYTES, &text, &bytes));
    source.text = source.at = text;
    source.end = text + bytes;
    for (size_t i = 0; i < options->entry_count; i++)
        options->entries[i].in_file = false;
    if (memchr(text, 0, bytes) != NULL) {
        st = DDP_FAIL(DDP_ERR_FORMAT, "%s: has a byte 0, a text was expected", path);
        goto free_text;
    }
    DDP_TRY_GOTO(st, DDP_ALLOC(source.value, bytes + 4), free_text);
    int error = ini_parse_stream(next_piece, &source, on_pair, &source);
    st = source.status;
    if (st == DDP_OK && error != 0)
        st = error > 0 ? syntax_error(&source, error)
                       : DDP_FAIL(DDP_ERR_NOMEM, "%s: no memory to read it", path);
    ddp_free(source.value);
free_text:
    ddp_free(text);
    return st;
}

/* "BATCH_SIZE" to "batch-size", cut to name_bytes. */
static void name_of_variable(const char *variable, size_t bytes, char *name, size_t name_bytes)
{
    size_t used = 0;

    for (; used < bytes && used + 1 < name_bytes; used++) {
        char c = variable[used];
        name[used] = (char)(c == '_' ? '-' : tolower((unsigned char)c));
    }
    name[used] = 0;
}

static ddp_status unknown_variable(const ddp_options *options, const char *variable, size_t bytes,
                                   const char *name)
{
    char nearest[128];
    size_t i = 0;

    for (const char *from = ddpi_option_nearest(options, name, strlen(name));
         from[i] != 0 && i + 1 < sizeof nearest; i++)
        nearest[i] = (char)(from[i] == '-' ? '_' : toupper((unsigned char)from[i]));
    nearest[i] = 0;
    return DDP_FAIL(DDP_ERR_USAGE, "unknown variable %.*s (environment); the nearest is %s%s",
                    (int)(bytes < 200 ? bytes : 200), variable, options->prefix, nearest);
}

static ddp_status read_variable(ddp_options *options, const char *variable)
{
    const size_t prefix = strlen(options->prefix);
    size_t bytes = strcspn(variable, "=");
    char name[128];
    char origin[160];

    name_of_variable(variable + prefix, bytes - prefix, name, sizeof name);
    ddpi_option_entry *entry = ddpi_option_find(options, name, strlen(name));
    /* The name must be the one that ours gives, not one that only folds to it. */
    for (size_t i = prefix; i < bytes && entry != NULL; i++)
        if (islower((unsigned char)variable[i]) || variable[i] == '-')
            entry = NULL;
    if (entry == NULL || bytes - prefix >= sizeof name)
        return unknown_variable(options, variable, bytes, name);
    snprintf(origin, sizeof origin, "%.*s", (int)bytes, variable);
    if (ddpi_option_cmdline_only(options, entry))
        return DDP_FAIL(DDP_ERR_USAGE, "variable %s: --%s works on the command line only", origin,
                        entry->option->name);
    if (entry->group == 0) /* --config: read first of all, by ddpi_options_config_variable() */
        return DDP_OK;
    return ddpi_option_set(entry, variable[bytes] == '=' ? variable + bytes + 1 : "", origin);
}

const char *ddpi_options_config_variable(const ddp_options *options, char **envp)
{
    static const char config[] = "CONFIG=";
    const size_t prefix = strlen(options->prefix);

    for (; envp != NULL && *envp != NULL; envp++)
        if (strncmp(*envp, options->prefix, prefix) == 0 &&
            strncmp(*envp + prefix, config, sizeof config - 1) == 0)
            return *envp + prefix + sizeof config - 1;
    return NULL;
}

ddp_status ddpi_options_read_variables(ddp_options *options, char **envp)
{
    for (; envp != NULL && *envp != NULL; envp++)
        if (strncmp(*envp, options->prefix, strlen(options->prefix)) == 0)
            DDP_TRY(read_variable(options, *envp));
    return DDP_OK;
}
