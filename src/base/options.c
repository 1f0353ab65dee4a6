/* options.c - joins the modules' option tables and reads the sources in their order.
 *
 * The command line is listed first, because it names the file, but its values are set last. One
 * thread. */
#include "ddp/options.h"

#include <ctype.h>
#include <string.h>

#include "base/options_impl.h"
#include "ddp/memory.h"

#define NAME_LIMIT_BYTES 64

/* options_help.c goes on behind the first text: the variables' names are the program's. */
static const ddp_option own_options[] = {
    {"config", DDP_OPT_STRING, offsetof(struct ddpi_own_options, config), 0, 0, NULL, "FILE",
     "Read options from an INI file; a key is an option's name. Environment variables"},
    {"print-config", DDP_OPT_BOOL, offsetof(struct ddpi_own_options, print_config), 0, 0, NULL,
     NULL, "Print every value and where it comes from, then leave"},
    {"help", DDP_OPT_BOOL, offsetof(struct ddpi_own_options, help), 0, 0, NULL, NULL,
     "Print this text, then leave"},
    {"version", DDP_OPT_BOOL, offsetof(struct ddpi_own_options, version), 0, 0, NULL, NULL,
     "Print the version, then leave"},
    {0},
};

ddpi_option_entry *ddpi_option_find(const ddp_options *options, const char *name, size_t bytes)
{
    for (size_t i = 0; i < options->entry_count; i++) {
        const char *known = options->entries[i].option->name;
        if (strlen(known) == bytes && memcmp(known, name, bytes) == 0)
            return &options->entries[i];
    }
    return NULL;
}

bool ddpi_option_cmdline_only(const ddp_options *options, const ddpi_option_entry *entry)
{
    return entry->group == 0 && entry->target != &options->own.config;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Levenshtein's distance of two names of at most NAME_LIMIT_BYTES, by rows. */
static size_t edit_distance(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    size_t row[NAME_LIMIT_BYTES + 1];

    for (size_t j = 0; j <= b_bytes; j++)
        row[j] = j;
    for (size_t i = 1; i <= a_bytes; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_bytes; j++) {
            size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = smaller(replaced, smaller(row[j], row[j - 1]) + 1);
        }
    }
    return row[b_bytes];
}

const char *ddpi_option_nearest(const ddp_options *options, const char *name, size_t bytes)
{
    const char *nearest = "";
    size_t least = SIZE_MAX;

    bytes = smaller(bytes, NAME_LIMIT_BYTES);
    for (size_t i = 0; i < options->entry_count; i++) {
        const char *known = options->entries[i].option->name;
        size_t known_bytes = strlen(known);
        size_t distance = edit_distance(name, bytes, known, known_bytes);
        /* A name cut short is as likely as one wrong letter. */
        if (bytes >= 2 && known_bytes > bytes && memcmp(known, name, bytes) == 0)
            distance = 1;
        if (distance < least) {
            least = distance;
            nearest = known;
        }
    }
    return nearest;
}

static size_t table_length(const ddp_option *table)
{
    size_t length = 0;

    while (table[length].name != NULL)
        length++;
    return length;
}

static void add_entries(ddp_options *options, size_t group)
{
    const ddp_option_group *from = &options->groups[group];

    for (const ddp_option *option = from->options; option->name != NULL; option++) {
        DDP_ASSERT(strlen(option->name) <= NAME_LIMIT_BYTES);
        DDP_ASSERT(ddpi_option_find(options, option->name, strlen(option->name)) == NULL);
        DDP_ASSERT(option->type != DDP_OPT_CHOICE || option->choices != NULL);
        options->entries[options->entry_count++] = (ddpi_option_entry){
            .option = option, .target = (char *)from->target + option->offset, .group = group};
    }
}

/* "ddp_train" to "DDP_TRAIN_", "ddp_bench scaling" to "DDP_BENCH_SCALING_". */
static void make_prefix(const char *program, char prefix[DDPI_PREFIX_BYTES])
{
    size_t length = strlen(program);

    DDP_ASSERT(length + 2 <= DDPI_PREFIX_BYTES);
    for (size_t i = 0; i < length; i++)
        prefix[i] = (char)(program[i] == ' ' ? '_' : toupper((unsigned char)program[i]));
    memcpy(prefix + length, "_", 2);
}

ddp_status ddp_options_create(const char *program, const char *doc, const ddp_option_group *groups,
                              size_t group_count, ddp_options **options_out)
{
    ddp_options *options;
    size_t entry_count = table_length(own_options);
    ddp_status st;

    for (size_t i = 0; i < group_count; i++)
        entry_count += table_length(groups[i].options);
    DDP_TRY(DDP_ALLOC(options, 1));
    options->program = program;
    options->doc = doc;
    make_prefix(program, options->prefix);
    DDP_TRY_GOTO(st, DDP_ALLOC(options->groups, group_count + 1), err_destroy);
    DDP_TRY_GOTO(st, DDP_ALLOC(options->entries, entry_count), err_destroy);
    options->groups[0] = (ddp_option_group){"Program", own_options, &options->own};
    for (size_t i = 0; i < group_count; i++)
        options->groups[i + 1] = groups[i];
    options->group_count = group_count + 1;
    for (size_t i = 0; i < options->group_count; i++)
        add_entries(options, i);
    DDP_TRY_GOTO(st, ddpi_options_argp_build(options), err_destroy);
    *options_out = options;
    return DDP_OK;

err_destroy:
    ddp_options_destroy(options);
    return st;
}

void ddp_options_destroy(ddp_options *options)
{
    if (options == NULL)
        return;
    for (size_t i = 0; i < options->entry_count; i++) {
        ddp_free(options->entries[i].origin);
        ddp_free(options->entries[i].string);
        ddp_free(options->entries[i].negation);
    }
    ddpi_options_argp_free(options);
    ddp_free(options->entries);
    ddp_free(options->groups);
    ddp_free(options);
}

/* Sets the program's own options (own true) or all others from the command line. */
static ddp_status apply(ddp_options *options, const ddpi_assignment *list, size_t count, bool own)
{
    bool config_seen = false;

    for (size_t i = 0; i < count; i++) {
        ddpi_option_entry *entry = &options->entries[list[i].entry];
        if ((entry->group == 0) != own)
            continue;
        /* The first file would be dropped in silence. */
        if (entry->target == &options->own.config && config_seen)
            return DDP_FAIL(DDP_ERR_USAGE, "option --config (command line): stands twice");
        config_seen |= entry->target == &options->own.config;
        DDP_TRY(ddpi_option_set(entry, list[i].negated ? "no" : list[i].value, "command line"));
    }
    return DDP_OK;
}

static ddp_status read_sources(ddp_options *options, char **envp, const ddpi_assignment *list,
                               size_t count)
{
    DDP_TRY(apply(options, list, count, true));
    /* Help must be had even if the file or the environment is at fault. */
    if (options->own.help || options->own.version)
        return DDP_OK;
    const char *config = options->own.config;
    if (config == NULL)
        config = ddpi_options_config_variable(options, envp);
    if (config != NULL)
        DDP_TRY(ddpi_options_read_ini(options, config));
    DDP_TRY(ddpi_options_read_variables(options, envp));
    return apply(options, list, count, false);
}

ddp_status ddp_options_parse(ddp_options *options, int argc, char **argv, char **envp,
                             ddp_options_verdict *verdict_out)
{
    ddpi_assignment *list;
    size_t count;

    DDP_TRY(ddpi_options_read_cmdline(options, argc, argv, &list, &count));
    ddp_status st = read_sources(options, envp, list, count);
    ddp_free(list);
    DDP_TRY(st);
    *verdict_out = options->own.help           ? DDP_OPTIONS_HELP
                   : options->own.version      ? DDP_OPTIONS_VERSION
                   : options->own.print_config ? DDP_OPTIONS_PRINT_CONFIG
                                               : DDP_OPTIONS_RUN;
    return DDP_OK;
}

bool ddp_options_was_set(const ddp_options *options, const char *name)
{
    const ddpi_option_entry *entry = ddpi_option_find(options, name, strlen(name));

    return entry != NULL && entry->origin != NULL;
}
