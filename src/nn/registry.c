/* registry.c - layer types by name. A new type is one table in a file of its own, listed here. */
#include <stdio.h>
#include <string.h>

#include "nn/layer_impl.h"

static const ddpi_layer_ops *const types[] = {
    &ddpi_layer_conv2d,  &ddpi_layer_linear,        &ddpi_layer_relu,    &ddpi_layer_avgpool,
    &ddpi_layer_maxpool, &ddpi_layer_globalavgpool, &ddpi_layer_flatten, &ddpi_layer_batchnorm,
    &ddpi_layer_add,     &ddpi_layer_dropout,
};
enum { TYPE_COUNT = sizeof types / sizeof types[0] };

const ddpi_layer_ops *ddpi_layer_find(const char *type)
{
    for (int i = 0; i < TYPE_COUNT; i++)
        if (strcmp(types[i]->type, type) == 0)
            return types[i];
    return NULL;
}

char *ddpi_layer_types(char *text, size_t text_bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < TYPE_COUNT && used < text_bytes; i++)
        used +=
            (size_t)snprintf(text + used, text_bytes - used, "%s%s", i ? ", " : "", types[i]->type);
    return text;
}
