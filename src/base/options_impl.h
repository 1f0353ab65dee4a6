/* options_impl.h - what the parts of options.h's implementation share.
 *
 * options.c joins the tables and orders the sources; options_value.c turns text into values and
 * back; options_cmdline.c speaks argp; options_sources.c reads INI files and the environment;
 * options_print.c writes values, options_help.c the text of --help. Everything ends in
 * ddpi_option_set(), whatever source it came from. */
#ifndef DDP_BASE_OPTIONS_IMPL_H
#define DDP_BASE_OPTIONS_IMPL_H

#include <argp.h>

#include "ddp/options.h"

/* argp's keys up to here would be short options. */
#define DDPI_KEY_FIRST 256
/* Holds any value but a string. */
#define DDPI_VALUE_BYTES  64
#define DDPI_PREFIX_BYTES 32

typedef struct ddpi_option_entry {
    const ddp_option *option; /* borrowed */
    void *target;             /* the value itself */
    size_t group;
    char *origin;   /* owned; NULL is the default */
    char *string;   /* owned copy behind a DDP_OPT_STRING target */
    char *negation; /* owned; "no-NAME" of a DDP_OPT_BOOL */
    bool in_file;   /* stood in the INI file that is being read */
} ddpi_option_entry;

/* An option as it stood on the command line. Both texts are borrowed from argv. */
typedef struct ddpi_assignment {
    size_t entry;
    const char *value; /* NULL: a switch without a value */
    bool negated;
} ddpi_assignment;

struct ddp_options {
    const char *program;
    const char *doc;
    char prefix[DDPI_PREFIX_BYTES]; /* of variables: "DDP_TRAIN_" for ddp_train */
    ddp_option_group *groups;       /* groups[0] is the program's own: --config, --help, ... */
    size_t group_count;
    ddpi_option_entry *entries;
    size_t entry_count;
    /* What argp reads: one table for each group, joined as children of one root. */
    struct argp root;
    struct argp *group_argps;
    struct argp_child *children;
    struct argp_option *argp_options;
    /* Targets of groups[0]. */
    struct ddpi_own_options {
        const char *config;
        bool help;
        bool version;
        bool print_config;
    } own;
};

/* NULL if there is no such option. */
ddpi_option_entry *ddpi_option_find(const ddp_options *options, const char *name, size_t bytes);
/* The option that a misspelled name most likely means. */
const char *ddpi_option_nearest(const ddp_options *options, const char *name, size_t bytes);
/* Whether an option may only stand on the command line. */
bool ddpi_option_cmdline_only(const ddp_options *options, const ddpi_option_entry *entry);

/* Sets the value from text (NULL: a switch that stood alone). origin says where it stood. */
DDP_INNER ddp_status ddpi_option_set(ddpi_option_entry *entry, const char *text,
                                     const char *origin);
/* The value as text: a string's own, else written to buffer. "" for a string that is NULL. */
const char *ddpi_option_text(const ddpi_option_entry *entry, char buffer[DDPI_VALUE_BYTES]);
/* The value as it stands in an INI file: in JSON's quotes where INI would change it. */
DDP_INNER ddp_status ddpi_option_ini_text(const ddpi_option_entry *entry, char **text_out);

/* Fills the argp tables; the entries are complete. */
DDP_INNER ddp_status ddpi_options_argp_build(ddp_options *options);
void ddpi_options_argp_free(ddp_options *options);
/* Lists the options of the command line without setting anything. The caller frees the list. */
DDP_INNER ddp_status ddpi_options_read_cmdline(ddp_options *options, int argc, char **argv,
                                               ddpi_assignment **list_out, size_t *count_out);
DDP_INNER ddp_status ddpi_options_read_ini(ddp_options *options, const char *path);
/* The file that the variable for --config names; NULL if there is none. */
const char *ddpi_options_config_variable(const ddp_options *options, char **envp);
DDP_INNER ddp_status ddpi_options_read_variables(ddp_options *options, char **envp);

#endif
