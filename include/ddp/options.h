/* options.h - the modules' option tables joined into one command line, one INI file and one set of
 * environment variables.
 *
 * Each module describes its options in a constant table; a target is an offset into the module's
 * own options struct. The tables become argp children (glibc), the INI file is read through inih;
 * nothing is parsed here. Later sources win: defaults, --config FILE, variables, command line.
 * For a key "batch-size" of ddp_train the variable is DDP_TRAIN_BATCH_SIZE. */
#ifndef DDP_OPTIONS_H
#define DDP_OPTIONS_H

#include "ddp/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ddp_option_type {
    DDP_OPT_BOOL,   /* bool; --name, --name=yes|no, --no-name */
    DDP_OPT_INT,    /* int64_t within [min, max] */
    DDP_OPT_DOUBLE, /* double within [min, max], finite */
    DDP_OPT_STRING, /* const char *; the set owns the copy */
    DDP_OPT_CHOICE  /* int: index into choices, "a|b|c" */
} ddp_option_type;

/* The defaults are what the options struct holds before parsing. */
typedef struct ddp_option {
    const char *name; /* long name; NULL ends the table */
    ddp_option_type type;
    size_t offset;       /* of the target within the module's options struct */
    double min, max;     /* of INT and DOUBLE; no limits unless min < max */
    const char *choices; /* DDP_OPT_CHOICE only */
    const char *arg;     /* name of the argument in --help, e.g. "N" */
    const char *help;
} ddp_option;

typedef struct ddp_option_group {
    const char *title; /* heading in --help */
    const ddp_option *options;
    void *target; /* the options struct that the table writes to; borrowed */
} ddp_option_group;

typedef struct ddp_options ddp_options;

/* What parsing asks the program to do. */
typedef enum ddp_options_verdict {
    DDP_OPTIONS_RUN,
    DDP_OPTIONS_HELP,        /* --help; print ddp_options_help() and leave with 0 */
    DDP_OPTIONS_VERSION,     /* --version */
    DDP_OPTIONS_PRINT_CONFIG /* --print-config */
} ddp_options_verdict;

/* Joins the groups (copied; their tables and targets are borrowed). A name that stands twice is a
 * bug. `program` (at most 30 bytes)
 * and `doc` appear in --help, and the program's name in variables. */
DDP_CALL ddp_status ddp_options_create(const char *program, const char *doc,
                                       const ddp_option_group *groups, size_t group_count,
                                       ddp_options **options_out);
DDP_API void ddp_options_destroy(ddp_options *options);
/* Local, prints nothing. Reads all sources and writes the targets. DDP_ERR_USAGE names the option,
 * where it stood (command line, variable, file:line), what was found and what was expected; an
 * unknown name comes with the nearest known one. envp is environ or a test's own. */
DDP_CALL ddp_status ddp_options_parse(ddp_options *options, int argc, char **argv, char **envp,
                                      ddp_options_verdict *verdict_out);
/* The text of --help: `doc` up to a \v, the groups and their options in the order of their tables,
 * the rest of `doc`. Lines are wrapped at 80 columns; `doc`'s own stay. The caller frees it. */
DDP_CALL ddp_status ddp_options_help(const ddp_options *options, char **text_out);
/* Every value with its origin, one a line: "batch-size = 256   ; default". The caller frees it. */
DDP_CALL ddp_status ddp_options_print(const ddp_options *options, char **text_out);
/* An INI text that --config reads back to the same values. The caller frees it. */
DDP_CALL ddp_status ddp_options_ini(const ddp_options *options, char **text_out);
/* Local. Whether the value came from anywhere but the defaults. */
DDP_API bool ddp_options_was_set(const ddp_options *options, const char *name);
/* Calls fn for each option in order with its value as text. */
DDP_API void ddp_options_visit(const ddp_options *options,
                               void (*fn)(void *arg, const char *name, const char *value),
                               void *arg);

#ifdef __cplusplus
}
#endif
#endif
