/* zoo_resnet.c - residual networks (He et al., "Deep Residual Learning for Image Recognition", CVPR
 * 2016) as lists of layer specifications.
 *
 * resnet18 to resnet101 have torchvision's form and its names, so that weights go both ways: the
 * stride of a bottleneck is in its 3x3 convolution. resnet18-small is for small images: a 3x3 stem
 * without pooling, convolutions with biases, and 1x1 shortcuts without norm. Convolutions start
 * from He's normal distribution over the outputs' fan. Pure functions of ddp_model_opts. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ddp/model.h"

enum { STAGES = 4, NAME_BYTES = 48 };

typedef struct resnet_form {
    bool small;      /* resnet18-small's form and names */
    bool bottleneck; /* 1x1, 3x3, 1x1 with four times the channels; else 3x3, 3x3 */
    int blocks[STAGES];
} resnet_form;

typedef struct resnet {
    ddp_model_builder *builder;
    const resnet_form *form;
    const ddp_model_opts *opts;
    int64_t channels;      /* of what the next block reads */
    char tail[NAME_BYTES]; /* its name */
} resnet;

/* A convolution by its name behind `prefix`; reads the layer `input`, NULL: the one before. */
typedef struct conv_spec {
    const char *name, *input;
    int64_t out, kernel, stride;
} conv_spec;

static const char *join(char text[NAME_BYTES], const char *prefix, const char *name)
{
    snprintf(text, NAME_BYTES, "%.20s%.24s", prefix, name); /* longer ones do not occur */
    return text;
}

static ddp_status add_conv(const resnet *net, const char *prefix, const conv_spec *conv)
{
    char name[NAME_BYTES];
    const double fan_out = (double)(conv->out * conv->kernel * conv->kernel);
    const ddp_layer_spec spec = {
        .type = "conv2d",
        .name = join(name, prefix, conv->name),
        .input = conv->input,
        .out = conv->out,
        .kernel = conv->kernel,
        .stride = conv->stride,
        .pad = conv->kernel / 2,
        .no_bias = !net->form->small,
        .weight_init = {DDP_INIT_NORMAL, sqrt(2.0 / fan_out)},
    };
    return ddp_model_add(net->builder, &spec);
}

/* A layer without numbers of its own. */
static ddp_status add_plain(const resnet *net, const char *type, const char *prefix,
                            const char *suffix)
{
    char name[NAME_BYTES];
    const ddp_layer_spec spec = {.type = type, .name = join(name, prefix, suffix)};
    return ddp_model_add(net->builder, &spec);
}

static ddp_status add_norm(const resnet *net, const char *prefix, const char *suffix, bool zero)
{
    char name[NAME_BYTES];
    const ddp_layer_spec spec = {
        .type = "batchnorm", .name = join(name, prefix, suffix), .zero_weight = zero};
    return ddp_model_add(net->builder, &spec);
}

static ddp_status add_conv_norm_relu(const resnet *net, const char *prefix, int number,
                                     const conv_spec *conv)
{
    char norm[16], relu[16];
    snprintf(norm, sizeof norm, "bn%d", number);
    snprintf(relu, sizeof relu, "relu%d", number);
    DDP_TRY(add_conv(net, prefix, conv));
    DDP_TRY(add_norm(net, prefix, norm, false));
    return add_plain(net, "relu", prefix, relu);
}

/* ---- blocks ---- */

/* The last convolution and its norm, which takes over the add and the relu that come behind. */
static ddp_status add_end(resnet *net, const char *prefix, const conv_spec *conv, int number,
                          const char *shortcut)
{
    char norm[16], relu[16], left[NAME_BYTES], add[NAME_BYTES];
    snprintf(norm, sizeof norm, "bn%d", number);
    snprintf(relu, sizeof relu, "relu%d", number);
    DDP_TRY(add_conv(net, prefix, conv));
    DDP_TRY(add_norm(net, prefix, norm, net->opts->zero_init_residual));
    const ddp_layer_spec spec = {.type = "add",
                                 .name = join(add, prefix, "add"),
                                 .input = join(left, prefix, norm),
                                 .input2 = shortcut};
    DDP_TRY(ddp_model_add(net->builder, &spec));
    DDP_TRY(add_plain(net, "relu", prefix, relu));
    join(net->tail, prefix, relu);
    net->channels = conv->out;
    return DDP_OK;
}

/* The way around a block whose output has another shape; its name goes to `shortcut`. It comes
 * first, so that the norm at the block's end finds it done. */
static ddp_status add_shortcut(const resnet *net, const char *prefix, int64_t out, int64_t stride,
                               char shortcut[NAME_BYTES])
{
    const bool small = net->form->small;
    memcpy(shortcut, net->tail, NAME_BYTES);
    if (out == net->channels && stride == 1)
        return DDP_OK;
    const conv_spec conv = {small ? "conv3" : "downsample.0", net->tail, out, 1, stride};
    DDP_TRY(add_conv(net, prefix, &conv));
    join(shortcut, prefix, small ? "conv3" : "downsample.1");
    return small ? DDP_OK : add_norm(net, prefix, "downsample.1", false);
}

static ddp_status add_block(resnet *net, const char *prefix, int64_t width, int64_t stride)
{
    const bool bottleneck = net->form->bottleneck;
    const int64_t out = bottleneck ? 4 * width : width;
    char shortcut[NAME_BYTES], head[NAME_BYTES];
    memcpy(head, net->tail, sizeof head);
    DDP_TRY(add_shortcut(net, prefix, out, stride, shortcut));
    if (!bottleneck) {
        const conv_spec first = {"conv1", head, width, 3, stride},
                        last = {"conv2", NULL, out, 3, 1};
        DDP_TRY(add_conv_norm_relu(net, prefix, 1, &first));
        return add_end(net, prefix, &last, 2, shortcut);
    }
    const conv_spec first = {"conv1", head, width, 1, 1},
                    middle = {"conv2", NULL, width, 3, stride}, last = {"conv3", NULL, out, 1, 1};
    DDP_TRY(add_conv_norm_relu(net, prefix, 1, &first));
    DDP_TRY(add_conv_norm_relu(net, prefix, 2, &middle));
    return add_end(net, prefix, &last, 3, shortcut);
}

static ddp_status add_stages(resnet *net)
{
    int number = 0;
    for (int stage = 0; stage < STAGES; stage++)
        for (int block = 0; block < net->form->blocks[stage]; block++, number++) {
            char prefix[NAME_BYTES];
            if (net->form->small)
                snprintf(prefix, sizeof prefix, "block%d.", number);
            else
                snprintf(prefix, sizeof prefix, "layer%d.%d.", stage + 1, block);
            DDP_TRY(add_block(net, prefix, INT64_C(64) << stage, stage > 0 && block == 0 ? 2 : 1));
        }
    return DDP_OK;
}

/* ---- whole networks ---- */

static ddp_status add_stem(resnet *net)
{
    const conv_spec small = {"stem", NULL, 64, 3, 1}, large = {"conv1", NULL, 64, 7, 2};
    DDP_TRY(add_conv(net, "", net->form->small ? &small : &large));
    DDP_TRY(add_norm(net, "", net->form->small ? "stem_bn" : "bn1", false));
    DDP_TRY(add_plain(net, "relu", "", "relu"));
    net->channels = 64;
    join(net->tail, "", "relu");
    if (net->form->small)
        return DDP_OK;
    const ddp_layer_spec pool = {
        .type = "maxpool", .name = "maxpool", .kernel = 3, .stride = 2, .pad = 1};
    join(net->tail, "", "maxpool");
    return ddp_model_add(net->builder, &pool);
}

static ddp_status build(ddp_model_builder *builder, const ddp_model_opts *opts,
                        const resnet_form *form)
{
    resnet net = {.builder = builder, .form = form, .opts = opts};
    DDP_TRY(add_stem(&net));
    DDP_TRY(add_stages(&net));
    DDP_TRY(add_plain(&net, "globalavgpool", "", "avgpool"));
    DDP_TRY(add_plain(&net, "flatten", "", "flatten"));
    const ddp_layer_spec dropout = {.type = "dropout", .name = "dropout", .rate = opts->dropout};
    if (opts->dropout > 0)
        DDP_TRY(ddp_model_add(builder, &dropout));
    const ddp_param_init draw = {DDP_INIT_UNIFORM, 1.0 / sqrt((double)net.channels)};
    const ddp_layer_spec fc = {.type = "linear",
                               .name = "fc",
                               .out = opts->classes,
                               .weight_init = draw,
                               .bias_init = draw};
    return ddp_model_add(builder, &fc);
}

#define DDPI_RESNET(function, model_name, text, ...)                                               \
    static ddp_status function##_build(ddp_model_builder *builder, const ddp_model_opts *opts)     \
    {                                                                                              \
        static const resnet_form form = {__VA_ARGS__};                                             \
        return build(builder, opts, &form);                                                        \
    }                                                                                              \
    const ddp_model_def *ddp_model_##function(void)                                                \
    {                                                                                              \
        static const ddp_model_def def = {model_name, text, function##_build};                     \
        return &def;                                                                               \
    }

DDPI_RESNET(resnet18, "resnet18", "torchvision's: 8 blocks of two 3x3 convolutions, batch norm",
            .blocks = {2, 2, 2, 2})
DDPI_RESNET(resnet34, "resnet34", "torchvision's: 16 blocks of two 3x3 convolutions, batch norm",
            .blocks = {3, 4, 6, 3})
DDPI_RESNET(resnet50, "resnet50", "torchvision's: 16 bottleneck blocks, batch norm",
            .bottleneck = true, .blocks = {3, 4, 6, 3})
DDPI_RESNET(resnet101, "resnet101", "torchvision's: 33 bottleneck blocks, batch norm",
            .bottleneck = true, .blocks = {3, 4, 23, 3})
DDPI_RESNET(resnet18_small, "resnet18-small",
            "for small images: 3x3 stem without pooling, 8 blocks with biases, 1x1 shortcuts",
            .small = true, .blocks = {2, 2, 2, 2})
