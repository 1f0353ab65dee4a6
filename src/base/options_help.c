/* options_help.c - the text of --help: groups and options in the order of their tables, wrapped.
 *
 * Not argp_help(): it sorts a group by name, and where its buffer wraps it loses the column. Reads
 * only; any thread, as long as nobody parses. */
#include <stdlib.h>
#include <string.h>

#include "base/options_impl.h"
#include "ddp/memory.h"

#define LINE_COLUMNS 80
#define NAME_COLUMN  2
#define HELP_COLUMN  28

static const char *argument_name(const ddp_option *option)
{
    if (option->type == DDP_OPT_BOOL)
        return "yes|no";
    if (option->arg != NULL)
        return option->arg;
    return option->type == DDP_OPT_CHOICE ? option->choices : "VALUE";
}

/* Prints one line's words from `column` on; further lines begin at `indent`. */
static void print_words(FILE *to, const char *text, size_t bytes, size_t column, size_t indent)
{
    bool first = true;

    for (size_t at = 0; at < bytes;) {
        size_t word = 0;
        while (at + word < bytes && text[at + word] != ' ')
            word++;
        if (!first && column + 1 + word >= LINE_COLUMNS) {
            fprintf(to, "\n%*s", (int)indent, "");
            column = indent;
        } else if (!first) {
            fputc(' ', to);
            column++;
        }
        fwrite(text + at, 1, word, to);
        column += word;
        first = false;
        for (at += word; at < bytes && text[at] == ' ';)
            at++;
    }
    fputc('\n', to);
}

/* Where the text of a "  NAME   text" begins, or a line's first word. */
static size_t text_column(const char *line, size_t bytes)
{
    size_t start = strspn(line, " ");

    for (size_t i = start; start > 0 && i + 2 < bytes; i++)
        if (line[i] == ' ' && line[i + 1] == ' ')
            return i + strspn(line + i, " ");
    return start;
}

/* The lines of a text, each wrapped; what stands in a list stays in its column. */
static void print_lines(FILE *to, const char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        const char *line = text + at;
        const char *end = memchr(line, '\n', bytes - at);
        size_t length = end != NULL ? (size_t)(end - line) : bytes - at;
        size_t column = text_column(line, length);
        fwrite(line, 1, column, to);
        print_words(to, line + column, length - column, column, column);
        at += length + 1;
    }
}

/* Help, the choices unless they stand in the argument's place, and the default, which the target
 * still holds. */
static void print_text(FILE *to, const ddp_options *options, const ddpi_option_entry *entry,
                       size_t column)
{
    char buffer[DDPI_VALUE_BYTES];
    const ddp_option *option = entry->option;
    const char *value = ddpi_option_text(entry, buffer);
    char *text = NULL;
    size_t bytes;
    FILE *stream = open_memstream(&text, &bytes);

    if (stream == NULL)
        return;
    fputs(option->help != NULL ? option->help : "", stream);
    if (entry->target == &options->own.config)
        fprintf(stream, " (%sNAME, in capitals and with _ for -) and the command line are stronger",
                options->prefix);
    if (option->type == DDP_OPT_CHOICE && option->arg != NULL)
        fprintf(stream, ": %s", option->choices);
    if (entry->group > 0 && value[0] != 0)
        fprintf(stream, " (default %s)", value);
    if (fclose(stream) == 0)
        print_words(to, text, bytes, column, HELP_COLUMN);
    free(text);
}

static void print_option(FILE *to, const ddp_options *options, const ddpi_option_entry *entry)
{
    const ddp_option *option = entry->option;
    bool is_switch = option->type == DDP_OPT_BOOL;
    int width = fprintf(to, "%*s--%s", NAME_COLUMN, "", option->name);

    if (is_switch && entry->group > 0)
        width += fprintf(to, "[=%s]", argument_name(option));
    else if (!is_switch)
        width += fprintf(to, "=%s", argument_name(option));
    if (width < HELP_COLUMN)
        fprintf(to, "%*s", HELP_COLUMN - width, "");
    else
        fprintf(to, "\n%*s", HELP_COLUMN, "");
    print_text(to, options, entry, HELP_COLUMN);
}

static void print_all(FILE *to, const ddp_options *options)
{
    const char *doc = options->doc != NULL ? options->doc : "";
    const char *after = strchr(doc, '\v');

    fprintf(to, "Usage: %s [OPTION...]\n", options->program);
    print_lines(to, doc, after != NULL ? (size_t)(after - doc) : strlen(doc));
    for (size_t group = 0; group < options->group_count; group++) {
        fprintf(to, "\n%s\n",
                options->groups[group].title != NULL ? options->groups[group].title : "");
        for (size_t i = 0; i < options->entry_count; i++)
            if (options->entries[i].group == group)
                print_option(to, options, &options->entries[i]);
    }
    if (after != NULL) {
        fputc('\n', to);
        print_lines(to, after + 1, strlen(after + 1));
    }
}

ddp_status ddp_options_help(const ddp_options *options, char **text_out)
{
    char *written = NULL;
    size_t bytes;
    FILE *stream = open_memstream(&written, &bytes);

    if (stream == NULL)
        return DDP_FAIL(DDP_ERR_NOMEM, "no memory for the help text");
    print_all(stream, options);
    ddp_status st = fclose(stream) == 0 ? ddp_strdup(written, text_out)
                                        : DDP_FAIL(DDP_ERR_NOMEM, "no memory for the help text");
    free(written);
    return st;
}
