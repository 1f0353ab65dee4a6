/* cli.c - the options of ddp_pack, and what it prints when it ends. */
#include <stdio.h>

#include "ddp/memory.h"
#include "ddp/options.h"
#include "tools/pack/pack.h"

#define AT(field) offsetof(ddpi_pack_opts, field)

static const ddp_option pack_options[] = {
    {"input", DDP_OPT_STRING, AT(input), 0, 0, NULL, "DIR",
     "Folder with a folder of JPEG and PNG files for each class"},
    {"output", DDP_OPT_STRING, AT(output), 0, 0, NULL, "DIR",
     "Folder for the shards: what --data-dir will name, and /train or /test"},
    {"size", DDP_OPT_INT, AT(size), 0, 16384, NULL, "N",
     "Scale images so that the shorter side has N pixels; 0: keep their sizes"},
    {"channels", DDP_OPT_INT, AT(channels), 1, 3, NULL, "1|3", "Grey or RGB, for all images"},
    {"shard-mb", DDP_OPT_INT, AT(shard_mb), 1, 65536, NULL, "MIB", "Size of a shard, at most"},
    {"workers", DDP_OPT_INT, AT(workers), 0, 256, NULL, "N",
     "Threads that decode; 0: one for each processor"},
    {"on-damaged", DDP_OPT_CHOICE, AT(on_damaged), 0, 0, "skip|stop", NULL,
     "What to do about a file that is no whole JPEG or PNG image"},
    {"quiet", DDP_OPT_BOOL, AT(quiet), 0, 0, NULL, NULL, "Print failures only"},
    {0},
};

static const char doc[] =
    "Packs a folder of class folders of JPEG and PNG files into shards, which ddp_train reads "
    "without decoding (--dataset shards).\v"
    "Classes are the folders of --input in the order of their names; folders within them belong to "
    "them. Files and folders whose names begin with a dot are left out. Images are RGB whatever "
    "they were: alpha is dropped, 16 bits become 8, and an orientation in EXIF is not applied. "
    "A file that is no whole image is named and skipped, and listed in MANIFEST.json.\n\n"
    "A run that was killed is continued by the same command. The manifest is written last, so a "
    "folder with one is complete.\n\n"
    "Exit status: 0 packed, 1 failed, 2 wrong options.";

static ddp_status check(const ddpi_pack_opts *opts)
{
    if (opts->input == NULL || opts->input[0] == 0)
        return DDP_FAIL(DDP_ERR_USAGE, "option --input: is missing, expected a folder of images");
    if (opts->output == NULL || opts->output[0] == 0)
        return DDP_FAIL(DDP_ERR_USAGE, "option --output: is missing, expected a folder to write");
    if (opts->channels == 2)
        return DDP_FAIL(DDP_ERR_USAGE, "option --channels: found 2, expected 1 or 3");
    return DDP_OK;
}

static ddp_status print_answer(ddp_options *options, ddp_options_verdict verdict)
{
    char *text = NULL;
    ddp_status st = DDP_OK;
    if (verdict == DDP_OPTIONS_HELP)
        st = ddp_options_help(options, &text);
    else if (verdict == DDP_OPTIONS_PRINT_CONFIG)
        st = ddp_options_print(options, &text);
    DDP_TRY(st);
    fputs(text != NULL ? text : "ddp_pack " DDP_VERSION "\n", stdout);
    ddp_free(text);
    if (fflush(stdout) != 0)
        return DDP_FAIL(DDP_ERR_IO, "standard output takes no text");
    return DDP_OK;
}

static ddp_status parse_and_run(ddp_options *options, const ddpi_pack_opts *opts, int argc,
                                char **argv, char **envp)
{
    ddp_options_verdict verdict;
    DDP_TRY(ddp_options_parse(options, argc, argv, envp, &verdict));
    if (verdict != DDP_OPTIONS_RUN)
        return print_answer(options, verdict);
    DDP_TRY(check(opts));
    return ddpi_pack_run(opts);
}

int ddpi_pack_main(int argc, char **argv, char **envp)
{
    ddpi_pack_opts opts = DDPI_PACK_OPTS_DEFAULTS;
    const ddp_option_group group = {"Packing", pack_options, &opts};
    ddp_options *options = NULL;
    ddp_status st = ddp_options_create("ddp_pack", doc, &group, 1, &options);
    if (st == DDP_OK)
        st = parse_and_run(options, &opts, argc, argv, envp);
    if (st != DDP_OK)
        fprintf(stderr, "ddp_pack: %s\n", ddp_status_message());
    ddp_options_destroy(options);
    return ddp_status_exit_code(st);
}
