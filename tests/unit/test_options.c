/* Sources and their order, errors, and what is printed and read back. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include "ddp/fs.h"
#include "ddp/memory.h"
#include "ddp/options.h"
#include "harness.h"

typedef struct train {
    int64_t batch;
    double lr;
    bool exact;
    bool shuffle;
    int optimizer;
} train;

typedef struct files {
    const char *run_dir;
    const char *resume;
    int64_t any;
} files;

static const ddp_option train_table[] = {
    {"batch-size", DDP_OPT_INT, offsetof(train, batch), 1, 65536, NULL, "N", "Global batch"},
    {"lr", DDP_OPT_DOUBLE, offsetof(train, lr), 0, INFINITY, NULL, "X", "Learning rate"},
    {"exact", DDP_OPT_BOOL, offsetof(train, exact), 0, 0, NULL, NULL, "Same bits"},
    {"shuffle", DDP_OPT_BOOL, offsetof(train, shuffle), 0, 0, NULL, NULL, "Shuffle"},
    {"optimizer", DDP_OPT_CHOICE, offsetof(train, optimizer), 0, 0, "sgd|adam|adamw", NULL, "Rule"},
    {0},
};
static const ddp_option files_table[] = {
    {"run-dir", DDP_OPT_STRING, offsetof(files, run_dir), 0, 0, NULL, "DIR", "Where to write"},
    {"resume", DDP_OPT_STRING, offsetof(files, resume), 0, 0, NULL, "DIR", "Go on from"},
    {"any-number", DDP_OPT_INT, offsetof(files, any), 0, 0, NULL, "N", "Without limits"},
    {0},
};

/* One set of options with what it writes to. */
typedef struct fixture {
    train train;
    files files;
    ddp_options *options;
    ddp_options_verdict verdict;
} fixture;

static void open_fixture(fixture *fix)
{
    *fix = (fixture){.train = {256, 0.2, false, true, 0}, .files = {"runs", NULL, 0}};
    ddp_option_group groups[] = {{"Training", train_table, &fix->train},
                                 {"Files", files_table, &fix->files}};
    CHECK_OK(ddp_options_create("ddp_train", "Trains.", groups, 2, &fix->options));
}

static void close_fixture(fixture *fix)
{
    ddp_options_destroy(fix->options);
}

/* Parses the NULL-terminated arguments (without argv[0]) and variables. */
static ddp_status parse(fixture *fix, char **arguments, char **envp)
{
    char *argv[32] = {"ddp_train"};
    int argc = 1;

    for (; arguments[argc - 1] != NULL; argc++)
        argv[argc] = arguments[argc - 1];
    return ddp_options_parse(fix->options, argc, argv, envp, &fix->verdict);
}

#define ARGS(...) ((char *[]){__VA_ARGS__ __VA_OPT__(, ) NULL})
#define NO_ENV    NULL

static char ini_path[64];

static char *write_ini(const char *text)
{
    static char argument[96];
    FILE *file = fopen(ini_path, "w");

    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    snprintf(argument, sizeof argument, "--config=%s", ini_path);
    return argument;
}

static void defaults_stay(void **state)
{
    fixture fix;

    (void)state;
    open_fixture(&fix);
    CHECK_OK(parse(&fix, ARGS(), NO_ENV));
    assert_int_equal(fix.verdict, DDP_OPTIONS_RUN);
    assert_int_equal(fix.train.batch, 256);
    assert_true(fix.train.shuffle);
    assert_string_equal(fix.files.run_dir, "runs");
    assert_null(fix.files.resume);
    assert_false(ddp_options_was_set(fix.options, "lr"));
    assert_false(ddp_options_was_set(fix.options, "no-such"));
    CHECK_OK(ddp_options_parse(fix.options, 0, (char *[]){NULL}, NULL, &fix.verdict));
    close_fixture(&fix);
}

static void command_line_sets_all_types(void **state)
{
    fixture fix;
    char text[] = "my runs;1";

    (void)state;
    open_fixture(&fix);
    CHECK_OK(parse(&fix,
                   ARGS("--batch-size", "64", "--lr=1e-3", "--exact", "--no-shuffle", "--optimizer",
                        "adam", "--run-dir", text, "--resume=", "--any-number=-5"),
                   NO_ENV));
    memset(text, 'x', strlen(text)); /* the set owns its copy */
    assert_int_equal(fix.train.batch, 64);
    assert_true(fix.train.lr == 1e-3);
    assert_true(fix.train.exact);
    assert_false(fix.train.shuffle);
    assert_int_equal(fix.train.optimizer, 1);
    assert_string_equal(fix.files.run_dir, "my runs;1");
    assert_string_equal(fix.files.resume, "");
    assert_int_equal(fix.files.any, -5);
    assert_true(ddp_options_was_set(fix.options, "lr"));
    close_fixture(&fix);
    open_fixture(&fix);
    /* The last one counts; a value may look like an option. */
    CHECK_OK(parse(
        &fix,
        ARGS("--exact", "--exact=no", "--shuffle=off", "--lr=1", "--lr", "2", "--run-dir", "--lr"),
        NO_ENV));
    assert_false(fix.train.exact);
    assert_false(fix.train.shuffle);
    assert_true(fix.train.lr == 2);
    assert_string_equal(fix.files.run_dir, "--lr");
    close_fixture(&fix);
}

static void later_sources_win(void **state)
{
    fixture fix;
    char *env[] = {"PATH=/bin", "DDP_TRAIN_LR=0.3", "DDP_TRAIN_BATCH_SIZE=3", NULL};
    char *text;

    (void)state;
    open_fixture(&fix);
    char *config = write_ini("[one]\nlr = 0.4\n  exact=yes ; why\n# note\n[two]\nbatch-size: 4\n"
                             "optimizer = adamw\n");
    CHECK_OK(parse(&fix, ARGS("--batch-size=2", config), env));
    assert_int_equal(fix.train.batch, 2);
    assert_true(fix.train.lr == 0.3);
    assert_true(fix.train.exact);
    assert_int_equal(fix.train.optimizer, 2);
    CHECK_OK(ddp_options_print(fix.options, &text));
    char line[128];
    assert_non_null(strstr(text, "\nbatch-size = 2 "));
    assert_non_null(strstr(text, " ; command line\n"));
    assert_non_null(strstr(text, " ; DDP_TRAIN_LR\n"));
    snprintf(line, sizeof line, " ; %s:3\n", ini_path);
    assert_non_null(strstr(text, line));
    snprintf(line, sizeof line, " ; %s:7\n", ini_path);
    assert_non_null(strstr(text, line));
    assert_non_null(strstr(text, " ; default\n"));
    ddp_free(text);
    close_fixture(&fix);
}

static void whole_numbers_are_printed_without_an_exponent(void **state)
{
    (void)state;
    static const char *const given[] = {"--lr=60", "--lr=0.25", "--lr=1e+20", "--lr=250000"};
    static const char *const want[] = {"\nlr = 60 ", "\nlr = 0.25 ", "\nlr = 1e+20 ",
                                       "\nlr = 250000 "};
    for (int i = 0; i < 4; i++) {
        fixture fix;
        char *text;
        open_fixture(&fix);
        CHECK_OK(parse(&fix, ARGS((char *)(uintptr_t)given[i]), NULL));
        CHECK_OK(ddp_options_print(fix.options, &text));
        assert_non_null(strstr(text, want[i]));
        ddp_free(text);
        close_fixture(&fix);
    }
}

static void a_variable_may_name_the_file(void **state)
{
    fixture fix;
    char variable[128];

    (void)state;
    write_ini("lr = 0.5\n");
    snprintf(variable, sizeof variable, "DDP_TRAIN_CONFIG=%s", ini_path);
    open_fixture(&fix);
    CHECK_OK(parse(&fix, ARGS(), ((char *[]){variable, NULL})));
    assert_true(fix.train.lr == 0.5);
    close_fixture(&fix);
    open_fixture(&fix);
    CHECK_FAILS(parse(&fix, ARGS(), ((char *[]){"DDP_TRAIN_CONFIG=/no/such", NULL})), DDP_ERR_IO,
                "/no/such");
    close_fixture(&fix);
}

static void check_args(char **arguments, const char *want)
{
    fixture fix;

    open_fixture(&fix);
    CHECK_FAILS(parse(&fix, arguments, NO_ENV), DDP_ERR_USAGE, want);
    close_fixture(&fix);
}

static void bad_command_lines(void **state)
{
    (void)state;
    check_args(ARGS("--batch-size=0"),
               "option --batch-size (command line): found \"0\", expected a whole number from 1 to "
               "65536");
    check_args(ARGS("--batch-size=65537"), "found \"65537\"");
    check_args(ARGS("--batch-size=12x"), "found \"12x\"");
    check_args(ARGS("--batch-size="), "found \"\"");
    check_args(ARGS("--batch-size= 5"), "found \" 5\"");
    check_args(ARGS("--batch-size=1.5"), "found \"1.5\"");
    check_args(ARGS("--any-number=99999999999999999999"), "expected a whole number");
    check_args(ARGS("--lr=-1"), "expected a number of at least 0");
    check_args(ARGS("--lr=nan"), "found \"nan\"");
    check_args(ARGS("--lr=inf"), "found \"inf\"");
    check_args(ARGS("--lr=1e999"), "found \"1e999\"");
    check_args(ARGS("--optimizer=ada"), "expected one of sgd|adam|adamw");
    check_args(ARGS("--optimizer="), "expected one of");
    check_args(ARGS("--exact=maybe"), "found \"maybe\", expected yes or no");
    check_args(ARGS("--lr"), "option --lr (command line): a value is missing");
    check_args(ARGS("--exact", "--batch-size"), "--batch-size (command line): a value is missing");
    check_args(ARGS("--no-exact=yes"), "option --no-exact (command line): takes no value");
    check_args(ARGS("--help=yes"), "option --help (command line): takes no value");
    check_args(ARGS("--config=a", "--config=b"), "--config (command line): stands twice");
}

static void unknown_and_short_names(void **state)
{
    (void)state;
    check_args(ARGS("--bach-size=3"),
               "unknown option --bach-size (command line); the nearest is --batch-size");
    check_args(ARGS("--lr=1", "--optimiser", "sgd"), "unknown option --optimiser (command line); "
                                                     "the nearest is --optimizer");
    /* getopt would take these for the only name that begins so. */
    check_args(ARGS("--batch", "3"), "unknown option --batch (command line); the nearest is "
                                     "--batch-size");
    check_args(ARGS("--run=x"), "the nearest is --run-dir");
    check_args(ARGS("--no-exac"), "unknown option --no-exac");
    check_args(ARGS("--exac"), "unknown option --exac");
    check_args(ARGS("--exac=yes"), "unknown option --exac");
    /* Begins more than one name. */
    check_args(ARGS("--r=x"), "unknown option --r");
    check_args(ARGS("--no-lr"), "unknown option --no-lr");
    check_args(ARGS("-b", "3"), "found \"-b\" (command line): there are no short options");
    check_args(ARGS("--exact", "-xyz"), "found \"-xyz\"");
    check_args(ARGS("--exact", "data"), "found \"data\" (command line): only options");
    check_args(ARGS("--", "--lr=3"), "found \"--lr=3\" (command line): only options");
    check_args(ARGS("-"), "found \"-\"");
    check_args(ARGS("--exact", "yes"), "found \"yes\"");
}

static void check_env(char *variable, const char *want)
{
    fixture fix;

    open_fixture(&fix);
    CHECK_FAILS(parse(&fix, ARGS(), ((char *[]){variable, NULL})), DDP_ERR_USAGE, want);
    close_fixture(&fix);
}

static void bad_variables(void **state)
{
    (void)state;
    check_env("DDP_TRAIN_BATCH_SIZ=3", "unknown variable DDP_TRAIN_BATCH_SIZ (environment); the "
                                       "nearest is DDP_TRAIN_BATCH_SIZE");
    check_env("DDP_TRAIN_batch_size=3", "unknown variable DDP_TRAIN_batch_size");
    check_env("DDP_TRAIN_=3", "unknown variable DDP_TRAIN_ ");
    check_env("DDP_TRAIN_LR=fast", "option --lr (DDP_TRAIN_LR): found \"fast\"");
    check_env("DDP_TRAIN_HELP=yes", "--help works on the command line only");
}

static void check_ini(const char *text, const char *want)
{
    fixture fix;

    open_fixture(&fix);
    CHECK_FAILS(parse(&fix, ARGS(write_ini(text)), NO_ENV), DDP_ERR_USAGE, want);
    close_fixture(&fix);
}

static void bad_files(void **state)
{
    fixture fix;
    char want[128];
    char text[1000];

    (void)state;
    snprintf(want, sizeof want, "unknown key lrr (%s:2); the nearest is lr", ini_path);
    check_ini("exact = yes\nlrr = 3\n", want);
    snprintf(want, sizeof want, "option --lr (%s:3): found \"x\"", ini_path);
    check_ini("[s]\n\nlr = x\n", want);
    check_ini("lr = 1\nlr = 2\n", ":2): stands twice");
    check_ini("lr = 1\n\nno value\n", ":3: expected \"name = value\"");
    check_ini("[open\n", ":1: expected");
    check_ini("config = x\n", "key config");
    check_ini("run-dir = \"open\n", "in double quotes as in JSON");
    check_ini("run-dir = \"a\" b\n", "in double quotes as in JSON");
    check_ini("lr =\n", "found \"\"");
    /* A long line without a key is not the rest of the line before it. */
    memset(text, 'a', sizeof text);
    memcpy(text, "lr = 1\n", 7);
    strcpy(text + 900, "\nexact = yes\n");
    check_ini(text, ":2: expected \"name = value\"");
    memcpy(text + 7, "run-dir = x", 11);
    memset(text + 18, ' ', 800);
    check_ini(text, ":2: more than");
    open_fixture(&fix);
    CHECK_FAILS(parse(&fix, ARGS("--config=/no/such.ini"), NO_ENV), DDP_ERR_IO, "/no/such.ini");
    FILE *file = fopen(ini_path, "w");
    fwrite("lr = 1\0\n", 1, 8, file);
    fclose(file);
    snprintf(text, sizeof text, "--config=%s", ini_path);
    CHECK_FAILS(parse(&fix, ARGS(text), NO_ENV), DDP_ERR_FORMAT, "byte 0");
    close_fixture(&fix);
}

static void long_lines_and_comments(void **state)
{
    fixture fix;
    char text[8000];
    char value[1501];

    (void)state;
    for (size_t i = 0; i < sizeof value - 1; i++)
        value[i] = "ab c=:[]d"[i % 9];
    value[sizeof value - 1] = 0;
    snprintf(text, sizeof text, "; %s\n\trun-dir = %s   ; %s\r\n   lr=7\n# %s\nexact = on", value,
             value, value, value);
    open_fixture(&fix);
    CHECK_OK(parse(&fix, ARGS(write_ini(text)), NO_ENV));
    assert_string_equal(fix.files.run_dir, value);
    assert_true(fix.train.lr == 7);
    assert_true(fix.train.exact);
    close_fixture(&fix);
}

/* Parses `arguments`, writes the values by `write`, reads them by --config and compares. */
static void check_round_trip(char **arguments,
                             ddp_status (*write)(const ddp_options *options, char **text_out))
{
    fixture from;
    fixture to;
    char *text;

    open_fixture(&from);
    open_fixture(&to);
    CHECK_OK(parse(&from, arguments, NO_ENV));
    CHECK_OK(write(from.options, &text));
    CHECK_OK(parse(&to, ARGS(write_ini(text)), NO_ENV));
    assert_memory_equal(&from.train.batch, &to.train.batch, sizeof(int64_t));
    assert_memory_equal(&from.train.lr, &to.train.lr, sizeof(double));
    assert_int_equal(from.train.exact, to.train.exact);
    assert_int_equal(from.train.shuffle, to.train.shuffle);
    assert_int_equal(from.train.optimizer, to.train.optimizer);
    assert_int_equal(from.files.any, to.files.any);
    assert_string_equal(from.files.run_dir, to.files.run_dir);
    if (write == ddp_options_ini && from.files.resume == NULL)
        assert_null(to.files.resume);
    else
        assert_string_equal(from.files.resume != NULL ? from.files.resume : "", to.files.resume);
    ddp_free(text);
    close_fixture(&from);
    close_fixture(&to);
}

static void written_values_read_back(void **state)
{
    static const char *const strings[] = {
        "plain",    "two words",    " blank ends ", "a ; b",        "a;b",  ";",         "#1",
        "x # y",    "\"quoted\"",   "back\\slash",  "tab\there",    "a\nb", "=",         "[x]",
        "\xc3\xa4", "ends with \\", "\"",           "null \\u0041", "a: b", " ; # \"\\ "};
    char argument[600];
    char text[500];

    (void)state;
    check_round_trip(ARGS(), ddp_options_ini);
    check_round_trip(ARGS(), ddp_options_print);
    for (size_t i = 0; i < sizeof strings / sizeof strings[0]; i++) {
        snprintf(argument, sizeof argument, "--run-dir=%s", strings[i]);
        char **arguments =
            ARGS(argument, "--lr=0.1", "--exact", "--no-shuffle",
                 "--any-number=-9223372036854775808", "--optimizer=adamw", "--resume=");
        check_round_trip(arguments, ddp_options_ini);
        check_round_trip(arguments, ddp_options_print);
    }
    /* Longer than a line of inih, with everything that needs care at any cut. */
    for (size_t shift = 0; shift < 7; shift++) {
        for (size_t i = 0; i < sizeof text - 1; i++)
            text[i] = " a;#b\"\\"[(i + shift) % 7];
        text[sizeof text - 1] = 0;
        snprintf(argument, sizeof argument, "--resume=%s", text);
        check_round_trip(ARGS(argument, "--lr=3.0000000000000004"), ddp_options_ini);
        check_round_trip(ARGS(argument), ddp_options_print);
    }
}

static void verdicts(void **state)
{
    static const struct {
        char *argument;
        ddp_options_verdict verdict;
    } cases[] = {{"--help", DDP_OPTIONS_HELP},
                 {"--version", DDP_OPTIONS_VERSION},
                 {"--print-config", DDP_OPTIONS_PRINT_CONFIG}};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        fixture fix;
        open_fixture(&fix);
        CHECK_OK(parse(&fix, ARGS("--lr=3", cases[i].argument), NO_ENV));
        assert_int_equal(fix.verdict, cases[i].verdict);
        close_fixture(&fix);
    }
    fixture fix;
    open_fixture(&fix);
    /* Help does not need a sound environment. */
    CHECK_OK(parse(&fix, ARGS("--help"), ((char *[]){"DDP_TRAIN_NONE=1", NULL})));
    assert_int_equal(fix.verdict, DDP_OPTIONS_HELP);
    close_fixture(&fix);
}

static void help_text(void **state)
{
    fixture fix;
    char *text;

    (void)state;
    open_fixture(&fix);
    CHECK_OK(parse(&fix, ARGS("--lr=3", "--help"), NO_ENV));
    CHECK_OK(ddp_options_help(fix.options, &text));
    assert_non_null(strstr(text, "Usage: ddp_train [OPTION...]"));
    assert_non_null(strstr(text, "Trains."));
    assert_non_null(strstr(text, "Training"));
    assert_non_null(strstr(text, "--batch-size=N"));
    assert_non_null(strstr(text, "(default 256)"));
    assert_non_null(strstr(text, "(default 0.2)"));
    assert_non_null(strstr(text, "--exact[=yes|no]"));
    assert_non_null(strstr(text, "--optimizer=sgd|adam|adamw"));
    assert_non_null(strstr(text, "--print-config"));
    assert_null(strstr(text, "--no-exact"));
    assert_non_null(strstr(text, "variables (DDP_TRAIN_NAME, in"));
    assert_true(strstr(text, "Training") < strstr(text, "Files"));
    /* The order of the table, which a text may refer to. */
    assert_true(strstr(text, "--shuffle") < strstr(text, "--optimizer"));
    ddp_free(text);
    close_fixture(&fix);
}

static const ddp_option long_table[] = {
    {"a", DDP_OPT_BOOL, offsetof(train, exact), 0, 0, NULL, NULL,
     "Words that are too many for what is left of a line of text"},
    {"the-option-with-a-long-name", DDP_OPT_INT, offsetof(train, batch), 0, 0, NULL, "N", "Short"},
    {0},
};

/* Wrapped text stays in its column, also that of a list in the program's own words. */
static void help_columns(void **state)
{
    train target = {0};
    ddp_option_group group = {"Long", long_table, &target};
    ddp_options *options;
    char *text;

    (void)state;
    CHECK_OK(ddp_options_create("ddp_train",
                                "Before.\vThings:\n  thing   words of a thing that are too many "
                                "for just one line of eighty columns\n  other   few\n",
                                &group, 1, &options));
    CHECK_OK(ddp_options_help(options, &text));
    assert_non_null(strstr(text, "\nBefore.\n\nProgram\n"));
    assert_non_null(strstr(text, "\nLong\n"
                                 "  --a[=yes|no]              Words that are too many for what is "
                                 "left of a line\n"
                                 "                            of text (default no)\n"
                                 "  --the-option-with-a-long-name=N\n"
                                 "                            Short (default 0)\n\n"
                                 "Things:\n"
                                 "  thing   words of a thing that are too many for just one "
                                 "line of eighty\n          columns\n"
                                 "  other   few\n"));
    ddp_free(text);
    ddp_options_destroy(options);
}

static void nothing_is_printed(void **state)
{
    fixture fix;
    int out = dup(STDOUT_FILENO);
    int err = dup(STDERR_FILENO);
    FILE *file = tmpfile();

    (void)state;
    fflush(stdout);
    dup2(fileno(file), STDOUT_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    open_fixture(&fix);
    ddp_status st[] = {parse(&fix, ARGS("--nonsense"), NO_ENV), parse(&fix, ARGS("--lr"), NO_ENV),
                       parse(&fix, ARGS("--help"), NO_ENV), parse(&fix, ARGS("-?"), NO_ENV),
                       parse(&fix, ARGS("--usage"), NO_ENV)};
    close_fixture(&fix);
    fflush(stdout);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    close(out);
    close(err);
    assert_int_equal(lseek(fileno(file), 0, SEEK_END), 0);
    fclose(file);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(st[i], i == 2 ? DDP_OK : DDP_ERR_USAGE);
}

static void note_value(void *arg, const char *name, const char *value)
{
    char *text = arg;

    snprintf(text + strlen(text), 400 - strlen(text), "%s=%s,", name, value);
}

static void visit_in_order(void **state)
{
    fixture fix;
    char text[400] = "";

    (void)state;
    open_fixture(&fix);
    CHECK_OK(parse(&fix, ARGS("--run-dir=a b", "--lr=1e-05"), NO_ENV));
    ddp_options_visit(fix.options, note_value, text);
    assert_string_equal(text, "batch-size=256,lr=1e-05,exact=no,shuffle=yes,optimizer=sgd,"
                              "run-dir=a b,resume=,any-number=0,");
    close_fixture(&fix);
}

static int make_path(void **state)
{
    (void)state;
    snprintf(ini_path, sizeof ini_path, "/tmp/ddp_test_options.XXXXXX");
    int fd = mkstemp(ini_path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_path(void **state)
{
    (void)state;
    return unlink(ini_path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_stay),
        cmocka_unit_test(command_line_sets_all_types),
        cmocka_unit_test(later_sources_win),
        cmocka_unit_test(whole_numbers_are_printed_without_an_exponent),
        cmocka_unit_test(a_variable_may_name_the_file),
        cmocka_unit_test(bad_command_lines),
        cmocka_unit_test(unknown_and_short_names),
        cmocka_unit_test(bad_variables),
        cmocka_unit_test(bad_files),
        cmocka_unit_test(long_lines_and_comments),
        cmocka_unit_test(written_values_read_back),
        cmocka_unit_test(verdicts),
        cmocka_unit_test(help_text),
        cmocka_unit_test(help_columns),
        cmocka_unit_test(nothing_is_printed),
        cmocka_unit_test(visit_in_order),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
