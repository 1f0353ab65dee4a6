/* bench_args.c - command lines of the subcommands, and lists of numbers in them. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ddp/memory.h"
#include "tools/bench/bench_util.h"

const ddp_option ddpi_bench_out_options[] = {
    {"out", DDP_OPT_STRING, offsetof(ddpi_bench_out, dir), 0, 0, NULL, "DIR",
     "Write the table, the numbers as JSON, and the pictures as SVG into this folder"},
    {"gnuplot", DDP_OPT_STRING, offsetof(ddpi_bench_out, gnuplot), 0, 0, NULL, "PROGRAM",
     "What draws the pictures"},
    {0},
};

static ddp_status answer(ddp_options *options, const ddpi_bench_call *call,
                         ddp_options_verdict verdict)
{
    char *text = NULL;
    ddp_status st = DDP_OK;

    if (call->launcher_rank != 0)
        return DDP_OK;
    if (verdict == DDP_OPTIONS_HELP)
        st = ddp_options_help(options, &text);
    else if (verdict == DDP_OPTIONS_PRINT_CONFIG)
        st = ddp_options_print(options, &text);
    DDP_TRY(st);
    fputs(text != NULL ? text : "ddp_bench " DDP_VERSION "\n", stdout);
    ddp_free(text);
    return DDP_OK;
}

ddp_status ddpi_bench_parse(const ddpi_bench_call *call, const ddpi_bench_form *form,
                            ddp_options **options_out, bool *run_out)
{
    ddp_options_verdict verdict;

    *options_out = NULL;
    DDP_TRY(
        ddp_options_create(form->program, form->doc, form->groups, form->group_count, options_out));
    DDP_TRY(ddp_options_parse(*options_out, call->argc, call->argv, call->envp, &verdict));
    *run_out = verdict == DDP_OPTIONS_RUN;
    return *run_out ? DDP_OK : answer(*options_out, call, verdict);
}

/* ---- lists ---- */

static int64_t unit_of(char letter)
{
    switch (letter) {
    case 'K':
        return INT64_C(1) << 10;
    case 'M':
        return INT64_C(1) << 20;
    case 'G':
        return INT64_C(1) << 30;
    default:
        return 0;
    }
}

/* One number; *end_out is behind it. */
static bool read_number(const ddpi_bench_list *list, const char *text, char **end_out,
                        int64_t *value_out)
{
    errno = 0;
    long long value = strtoll(text, end_out, 10);
    if (*end_out == text || errno != 0)
        return false;
    int64_t result = value, unit = list->sizes ? unit_of(**end_out) : 0;
    if (unit != 0) {
        (*end_out)++;
        if (__builtin_mul_overflow(result, unit, &result))
            return false;
    }
    *value_out = result;
    return result >= list->min && result <= list->max;
}

ddp_status ddpi_bench_numbers(const ddpi_bench_list *list, const char *text, int64_t *values_out,
                              int *count_out)
{
    const char *at = text != NULL ? text : "";
    int count = 0;

    for (char *end;; at = end + 1) {
        bool good = count < list->limit && read_number(list, at, &end, &values_out[count]);
        if (!good || (*end != ',' && *end != 0))
            return DDP_FAIL(DDP_ERR_USAGE,
                            "option --%s: found \"%s\", expected 1 to %d numbers from %" PRId64
                            " to %" PRId64 "%s, with commas between them",
                            list->option, text != NULL ? text : "", list->limit, list->min,
                            list->max, list->sizes ? ", perhaps with K, M or G" : "");
        count++;
        if (*end == 0)
            break;
    }
    *count_out = count;
    return DDP_OK;
}
