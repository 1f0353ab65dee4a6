/* options_cmdline.c - the command line, through argp.
 *
 * argp only lists what stands on the line; values are set later, when the weaker sources have been
 * read. It neither prints nor exits. getopt accepts a long name that is cut short; ddp_train does
 * not, since a script's "--batch" would change its meaning when an option is added. One thread. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/options_impl.h"
#include "ddp/memory.h"

#define ARGP_QUIET (ARGP_NO_EXIT | ARGP_NO_ERRS | ARGP_NO_HELP | ARGP_IN_ORDER)

/* State of one argp_parse. */
typedef struct cmdline {
    ddp_options *options;
    ddpi_assignment *list;
    size_t count;
    int next; /* index in argv of the first argument that argp has not dealt with */
    ddp_status status;
} cmdline;

/* An entry's key; the one behind it is its negation's. */
static int key_of(size_t entry)
{
    return DDPI_KEY_FIRST + 2 * (int)entry;
}

static size_t name_bytes(const char *argument)
{
    return strcspn(argument, "=");
}

static ddp_status unknown_option(const ddp_options *options, const char *argument)
{
    size_t bytes = name_bytes(argument);

    if (argument[0] != '-' || argument[1] != '-')
        return DDP_FAIL(DDP_ERR_USAGE,
                        "found \"%.200s\" (command line): there are no short options; see --help",
                        argument);
    return DDP_FAIL(DDP_ERR_USAGE, "unknown option %.*s (command line); the nearest is --%s",
                    (int)(bytes < 200 ? bytes : 200), argument,
                    ddpi_option_nearest(options, argument + 2, bytes - 2));
}

/* What getopt refused, in words: it says only that it did. */
static ddp_status refused(const ddp_options *options, const char *argument)
{
    size_t bytes = name_bytes(argument);

    if (argument[0] == '-' && argument[1] == '-') {
        bool negated = strncmp(argument, "--no-", 5) == 0;
        const char *name = argument + (negated ? 5 : 2);
        const ddpi_option_entry *entry =
            ddpi_option_find(options, name, bytes - (size_t)(name - argument));
        if (entry != NULL && argument[bytes] == '=')
            return DDP_FAIL(DDP_ERR_USAGE, "option %.*s (command line): takes no value", (int)bytes,
                            argument);
        if (entry != NULL && !negated)
            return DDP_FAIL(DDP_ERR_USAGE, "option --%s (command line): a value is missing",
                            entry->option->name);
    }
    return unknown_option(options, argument);
}

static error_t take_option(cmdline *line, int key, char *value, const struct argp_state *state)
{
    size_t index = (size_t)(key - DDPI_KEY_FIRST) / 2;
    bool negated = (key - DDPI_KEY_FIRST) % 2 != 0;
    const ddpi_option_entry *entry = &line->options->entries[index];
    const char *argument = state->argv[line->next];
    const char *name = negated ? entry->negation : entry->option->name;

    if (name_bytes(argument) != strlen(name) + 2) {
        line->status = unknown_option(line->options, argument);
        return EINVAL;
    }
    line->list[line->count++] = (ddpi_assignment){index, value, negated};
    line->next = state->next;
    return 0;
}

static error_t on_argp(int key, char *value, struct argp_state *state)
{
    cmdline *line = state->input;

    if (key >= DDPI_KEY_FIRST && key < key_of(line->options->entry_count))
        return take_option(line, key, value, state);
    switch (key) {
    case ARGP_KEY_INIT:
        for (size_t i = 0; i < line->options->group_count && state->child_inputs != NULL; i++)
            state->child_inputs[i] = line;
        return 0;
    case ARGP_KEY_ARG:
        line->status = DDP_FAIL(
            DDP_ERR_USAGE, "found \"%.200s\" (command line): only options are expected; see --help",
            value);
        return EINVAL;
    case ARGP_KEY_ERROR:
        if (line->status == DDP_OK)
            line->status = refused(line->options, state->argv[line->next]);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

ddp_status ddpi_options_read_cmdline(ddp_options *options, int argc, char **argv,
                                     ddpi_assignment **list_out, size_t *count_out)
{
    cmdline line = {.options = options, .next = 1, .status = DDP_OK};

    DDP_TRY(DDP_ALLOC(line.list, argc > 0 ? (size_t)argc : 1));
    if (argc > 1 && argp_parse(&options->root, argc, argv, ARGP_QUIET, NULL, &line) != 0 &&
        line.status == DDP_OK)
        line.status = DDP_FAIL(DDP_ERR_NOMEM, "the command line could not be read");
    if (line.status != DDP_OK) {
        ddp_free(line.list);
        return line.status;
    }
    *list_out = line.list;
    *count_out = line.count;
    return DDP_OK;
}

static ddp_status make_negation(ddpi_option_entry *entry)
{
    size_t bytes = strlen(entry->option->name) + sizeof "no-";

    DDP_TRY(DDP_ALLOC(entry->negation, bytes));
    snprintf(entry->negation, bytes, "no-%s", entry->option->name);
    return DDP_OK;
}

/* Writes the argp options of a group to *at, which moves behind their end mark. */
static ddp_status build_group(ddp_options *options, size_t group, struct argp_option **at)
{
    struct argp_option *to = *at;

    for (size_t i = 0; i < options->entry_count; i++) {
        ddpi_option_entry *entry = &options->entries[i];
        bool is_switch = entry->option->type == DDP_OPT_BOOL;

        if (entry->group != group)
            continue;
        *to++ = (struct argp_option){
            .name = entry->option->name,
            .key = key_of(i),
            .arg = is_switch && group == 0 ? NULL : "VALUE",
            .flags = is_switch && group > 0 ? OPTION_ARG_OPTIONAL : 0,
        };
        if (!is_switch || group == 0)
            continue;
        DDP_TRY(make_negation(entry));
        *to++ = (struct argp_option){
            .name = entry->negation, .key = key_of(i) + 1, .flags = OPTION_HIDDEN};
    }
    *at = to + 1;
    return DDP_OK;
}

ddp_status ddpi_options_argp_build(ddp_options *options)
{
    size_t groups = options->group_count;

    DDP_TRY(DDP_ALLOC(options->group_argps, groups));
    DDP_TRY(DDP_ALLOC(options->children, groups + 1));
    DDP_TRY(DDP_ALLOC(options->argp_options, 2 * options->entry_count + groups));
    struct argp_option *at = options->argp_options;
    for (size_t i = 0; i < groups; i++) {
        options->group_argps[i] = (struct argp){.options = at, .parser = on_argp};
        options->children[i] =
            (struct argp_child){.argp = &options->group_argps[i], .group = (int)i + 1};
        DDP_TRY(build_group(options, i, &at));
    }
    options->root = (struct argp){.parser = on_argp, .children = options->children};
    return DDP_OK;
}

void ddpi_options_argp_free(ddp_options *options)
{
    ddp_free(options->group_argps);
    ddp_free(options->children);
    ddp_free(options->argp_options);
}
