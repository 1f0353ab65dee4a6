/* zoo.c - the named models, as lists of layer specifications. Pure functions of ddp_model_opts. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "ddp/model.h"

/* ---- lenet ---- */

static ddp_status lenet_build(ddp_model_builder *builder, const ddp_model_opts *opts)
{
    const ddp_param_init draw = {DDP_INIT_NORMAL, 0.01};
    const ddp_layer_spec layers[] = {
        {.type = "conv2d", .name = "conv1", .out = 20, .kernel = 3, .weight_init = draw},
        {.type = "relu", .name = "relu1"},
        {.type = "avgpool", .name = "pool1", .kernel = 2},
        {.type = "conv2d", .name = "conv2", .out = 50, .kernel = 5, .weight_init = draw},
        {.type = "relu", .name = "relu2"},
        {.type = "avgpool", .name = "pool2", .kernel = 2},
        {.type = "flatten", .name = "flatten"},
        {.type = "linear", .name = "fc1", .out = 128, .weight_init = draw},
        {.type = "relu", .name = "relu3"},
        {.type = "linear", .name = "fc2", .out = opts->classes, .weight_init = draw},
    };
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++)
        DDP_TRY(ddp_model_add(builder, &layers[i]));
    return DDP_OK;
}

const ddp_model_def *ddp_model_lenet(void)
{
    static const ddp_model_def def = {
        "lenet",
        "conv 20@3x3, conv 50@5x5 (each relu, 2x2 average pool), linear 128, classes; weights N(0, "
        "0.01^2)",
        lenet_build};
    return &def;
}

/* ---- mlp ---- */

enum { MLP_MAX_WIDTHS = 64, MLP_MAX_WIDTH = 1 << 20, LAYER_NAME_BYTES = 16 };

/* "2048,2048": nothing but decimal numbers and single commas. */
static ddp_status parse_widths(const char *text, int64_t *widths, int *count_out)
{
    const char *at = text;
    int count = 0;
    for (;;) {
        char *end = NULL;
        errno = 0;
        const long width = isdigit((unsigned char)*at) ? strtol(at, &end, 10) : 0;
        if (width < 1 || width > MLP_MAX_WIDTH || errno != 0 || (*end != ',' && *end != '\0'))
            return DDP_FAIL(DDP_ERR_USAGE,
                            "--mlp-widths '%s': expected widths from 1 to %d with commas between, "
                            "such as 2048,2048; found '%s'",
                            text, MLP_MAX_WIDTH, at);
        if (count == MLP_MAX_WIDTHS)
            return DDP_FAIL(DDP_ERR_USAGE, "--mlp-widths '%s': more than %d widths", text,
                            MLP_MAX_WIDTHS);
        widths[count++] = width;
        if (*end == '\0')
            break;
        at = end + 1;
    }
    *count_out = count;
    return DDP_OK;
}

static ddp_status mlp_linear(ddp_model_builder *builder, int number, int64_t in, int64_t out)
{
    char name[LAYER_NAME_BYTES];
    snprintf(name, sizeof name, "fc%d", number);
    const ddp_layer_spec spec = {
        .type = "linear",
        .name = name,
        .out = out,
        .weight_init = {DDP_INIT_UNIFORM, 1.0 / sqrt((double)in)},
    };
    return ddp_model_add(builder, &spec);
}

static ddp_status mlp_build(ddp_model_builder *builder, const ddp_model_opts *opts)
{
    int64_t widths[MLP_MAX_WIDTHS];
    int count = 0;
    DDP_TRY(
        parse_widths(opts->mlp_widths != NULL ? opts->mlp_widths : "2048,2048", widths, &count));
    const ddp_layer_spec flatten = {.type = "flatten", .name = "flatten"};
    DDP_TRY(ddp_model_add(builder, &flatten));
    int64_t in = ddp_shape_count(&opts->input_shape);
    for (int i = 0; i < count; i++) {
        char name[LAYER_NAME_BYTES];
        snprintf(name, sizeof name, "relu%d", i + 1);
        const ddp_layer_spec relu = {.type = "relu", .name = name};
        DDP_TRY(mlp_linear(builder, i + 1, in, widths[i]));
        DDP_TRY(ddp_model_add(builder, &relu));
        in = widths[i];
    }
    return mlp_linear(builder, count + 1, in, opts->classes);
}

const ddp_model_def *ddp_model_mlp(void)
{
    static const ddp_model_def def = {
        "mlp",
        "linear layers of --mlp-widths with relu between, then classes; weights U(-1/sqrt(inputs), "
        "1/sqrt(inputs)), biases 0",
        mlp_build};
    return &def;
}
