/* options_print.c - the options' values as text: with their origins, as INI, and one by one.
 * Reads only; any thread, as long as nobody parses. */
#include <stdlib.h>
#include <string.h>

#include "base/options_impl.h"
#include "ddp/memory.h"

typedef enum print_form { PRINT_ORIGINS, PRINT_INI } print_form;

static size_t widest_value(const ddp_options *options)
{
    char buffer[DDPI_VALUE_BYTES];
    size_t widest = 0;

    for (size_t i = 0; i < options->entry_count; i++) {
        const ddpi_option_entry *entry = &options->entries[i];
        size_t width = strlen(entry->option->name) + strlen(ddpi_option_text(entry, buffer));
        /* One long path must not push everything else to the right. */
        if (entry->group > 0 && width > widest && width <= 50)
            widest = width;
    }
    return widest;
}

static ddp_status print_entry(const ddpi_option_entry *entry, print_form form, size_t widest,
                              FILE *stream)
{
    const char *name = entry->option->name;
    char *value;

    DDP_TRY(ddpi_option_ini_text(entry, &value));
    /* A text that is not set has no value that a file could give it. */
    if (form == PRINT_INI && entry->option->type == DDP_OPT_STRING &&
        *(const char *const *)entry->target == NULL) {
        fprintf(stream, "; %s is not set\n", name);
    } else if (form == PRINT_INI) {
        fprintf(stream, "%s = %s\n", name, value);
    } else {
        size_t width = strlen(name) + strlen(value);
        fprintf(stream, "%s = %s%*s ; %s\n", name, value,
                width < widest ? (int)(widest - width) + 2 : 2, "",
                entry->origin != NULL ? entry->origin : "default");
    }
    ddp_free(value);
    return DDP_OK;
}

static ddp_status print_all(const ddp_options *options, print_form form, FILE *stream)
{
    size_t widest = widest_value(options);

    for (size_t group = 1; group < options->group_count; group++) {
        if (options->groups[group].title != NULL)
            fprintf(stream, "%s# %s\n", group > 1 ? "\n" : "", options->groups[group].title);
        for (size_t i = 0; i < options->entry_count; i++)
            if (options->entries[i].group == group)
                DDP_TRY(print_entry(&options->entries[i], form, widest, stream));
    }
    return DDP_OK;
}

static ddp_status print_text(const ddp_options *options, print_form form, char **text_out)
{
    char *written = NULL;
    size_t bytes;
    FILE *stream = open_memstream(&written, &bytes);

    if (stream == NULL)
        return DDP_FAIL(DDP_ERR_NOMEM, "no memory for the text of the options");
    ddp_status st = print_all(options, form, stream);
    if (fclose(stream) != 0 && st == DDP_OK)
        st = DDP_FAIL(DDP_ERR_NOMEM, "no memory for the text of the options");
    if (st == DDP_OK)
        st = ddp_strdup(written, text_out);
    free(written);
    return st;
}

ddp_status ddp_options_print(const ddp_options *options, char **text_out)
{
    return print_text(options, PRINT_ORIGINS, text_out);
}

ddp_status ddp_options_ini(const ddp_options *options, char **text_out)
{
    return print_text(options, PRINT_INI, text_out);
}

void ddp_options_visit(const ddp_options *options,
                       void (*fn)(void *arg, const char *name, const char *value), void *arg)
{
    char buffer[DDPI_VALUE_BYTES];

    for (size_t i = 0; i < options->entry_count; i++) {
        const ddpi_option_entry *entry = &options->entries[i];
        if (entry->group > 0)
            fn(arg, entry->option->name, ddpi_option_text(entry, buffer));
    }
}
