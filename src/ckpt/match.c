/* match.c - which tensor of a file is which of the model.
 *
 * All that does not fit is gathered in classes and said at once. Names of a model that was saved
 * from inside PyTorch's DistributedDataParallel all start with "module."; that is taken off, unless
 * the model itself has such names. One thread. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/weights_impl.h"
#include "ddp/log.h"

#define MISFIT "does not fit the model"

/* Four lists and a path fit the message of a status. */
enum { LIST_BYTES = 360, ITEM_BYTES = 256, SHAPE_BYTES = 64 };

static const char PREFIX[] = "module.";

/* One class of complaints; what does not fit the text is counted. */
typedef struct complaints {
    char text[LIST_BYTES];
    size_t used;
    int count, hidden;
} complaints;

typedef struct match {
    const ddpi_safetensors *file;
    const char *what;
    ddpi_weight_list *model;
    size_t prefix_bytes; /* of the file's names */
    size_t fitting;      /* parameters and statistics, not counters */
    complaints missing, surplus, shapes, types;
} match;

static void add(complaints *items, const char *fmt, ...) DDP_PRINTF(2, 3);
static void add(complaints *items, const char *fmt, ...)
{
    char item[ITEM_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(item, sizeof item, fmt, args);
    va_end(args);
    if (items->hidden > 0 || items->used + strlen(item) + 2 >= sizeof items->text) {
        items->hidden++;
    } else {
        items->used += (size_t)snprintf(items->text + items->used, sizeof items->text - items->used,
                                        "%s%s", items->count > 0 ? ", " : "", item);
    }
    items->count++;
}

/* Puts "; TITLE: a, b and 3 more" behind what is in text. */
static void append(char *text, size_t text_bytes, const char *title, const complaints *items)
{
    char more[32] = "";
    const size_t used = strlen(text);
    if (items->count == 0)
        return;
    if (items->hidden > 0)
        snprintf(more, sizeof more, " and %d more", items->hidden);
    snprintf(text + used, text_bytes - used, "%s%s: %s%s", used > 0 ? "; " : "", title, items->text,
             more);
}

static bool has_prefix(const char *name)
{
    return strncmp(name, PREFIX, strlen(PREFIX)) == 0;
}

static ddp_status find_prefix(match *m)
{
    const ddpi_safetensors *file = m->file;
    const char *with = NULL, *without = NULL;
    for (size_t i = 0; i < m->model->count; i++)
        if (has_prefix(m->model->items[i].name))
            return DDP_OK;
    for (size_t i = 0; i < file->count; i++) {
        const char *name = file->tensors[i].name;
        if (has_prefix(name))
            with = name;
        else
            without = name;
    }
    if (with != NULL && without != NULL)
        return DDP_FAIL(DDP_ERR_SHAPE,
                        "%s does not fit the model: the prefix '%s' is before some names (%.80s) "
                        "but not before others (%.80s)",
                        m->what, PREFIX, with, without);
    m->prefix_bytes = with != NULL ? strlen(PREFIX) : 0;
    return DDP_OK;
}

static ddpi_weight *find(const ddpi_weight_list *model, const char *name)
{
    for (size_t i = 0; i < model->count; i++)
        if (strcmp(model->items[i].name, name) == 0)
            return &model->items[i];
    return NULL;
}

static void place(match *m, const ddpi_safetensor *tensor)
{
    const char *name = tensor->name + m->prefix_bytes;
    char have[SHAPE_BYTES], want[SHAPE_BYTES];
    ddpi_weight *weight = find(m->model, name);
    if (weight == NULL) {
        add(&m->surplus, "%.80s", name);
        return;
    }
    weight->tensor = tensor;
    if (!ddp_shape_equal(&tensor->shape, &weight->shape))
        add(&m->shapes, "%s (%s, not %s)", name,
            ddp_shape_format(&tensor->shape, have, sizeof have),
            ddp_shape_format(&weight->shape, want, sizeof want));
    else if (weight->counter ? tensor->dtype != DDPI_ST_I64 : !ddpi_weights_is_float(tensor->dtype))
        add(&m->types, "%s (%s, not %s)", name, ddpi_st_dtype_name(tensor->dtype),
            weight->counter ? "I64" : "F32, F64, F16 or BF16");
    else
        m->fitting += !weight->counter;
}

/* A file from before there were counters lacks nothing. */
static void find_missing(match *m)
{
    for (size_t i = 0; i < m->model->count; i++) {
        const ddpi_weight *weight = &m->model->items[i];
        if (weight->tensor == NULL && !weight->counter)
            add(&m->missing, "%s", weight->name);
    }
}

static ddp_status refuse(const match *m, const char *verdict)
{
    char text[4 * LIST_BYTES + ITEM_BYTES] = "";
    append(text, sizeof text, "missing", &m->missing);
    append(text, sizeof text, "not in the model", &m->surplus);
    append(text, sizeof text, "of another shape", &m->shapes);
    append(text, sizeof text, "of another type", &m->types);
    return DDP_FAIL(DDP_ERR_SHAPE, "%s %s: %s", m->what, verdict, text);
}

/* What has another shape keeps its value. */
static ddp_status accept_part(const match *m)
{
    char text[2 * LIST_BYTES + ITEM_BYTES] = "";
    if (m->types.count > 0)
        return refuse(m, MISFIT);
    if (m->fitting == 0)
        return refuse(m, "has no tensor that fits the model, expected one for a partial start");
    for (size_t i = 0; i < m->model->count; i++) {
        ddpi_weight *weight = &m->model->items[i];
        if (weight->tensor != NULL && !ddp_shape_equal(&weight->tensor->shape, &weight->shape))
            weight->tensor = NULL;
    }
    append(text, sizeof text, "missing", &m->missing);
    append(text, sizeof text, "of another shape", &m->shapes);
    ddp_info("%s: took %zu tensors%s%s", m->what, m->fitting,
             text[0] != 0 ? ", left as drawn what is " : "", text);
    text[0] = 0;
    append(text, sizeof text, "not in the model", &m->surplus);
    if (text[0] != 0)
        ddp_info("%s: ignored what is %s", m->what, text);
    return DDP_OK;
}

static void say_conversions(const match *m)
{
    size_t converted = 0;
    const ddpi_weight *first = NULL;
    for (size_t i = 0; i < m->model->count; i++) {
        const ddpi_weight *weight = &m->model->items[i];
        if (weight->tensor == NULL || weight->counter || weight->tensor->dtype == DDPI_ST_F32)
            continue;
        first = first == NULL ? weight : first;
        converted++;
    }
    if (converted > 0)
        ddp_info("%s: converted %zu tensor%s to F32 (%s was %s)", m->what, converted,
                 converted == 1 ? "" : "s", first->name, ddpi_st_dtype_name(first->tensor->dtype));
}

ddp_status ddpi_weights_match(const ddpi_safetensors *file, const char *what, bool partial,
                              ddpi_weight_list *list)
{
    match m = {.file = file, .what = what, .model = list};
    for (size_t i = 0; i < list->count; i++)
        list->items[i].tensor = NULL;
    DDP_TRY(find_prefix(&m));
    for (size_t i = 0; i < file->count; i++)
        place(&m, &file->tensors[i]);
    find_missing(&m);
    if (partial)
        DDP_TRY(accept_part(&m));
    else if (m.missing.count + m.surplus.count + m.shapes.count + m.types.count > 0)
        return refuse(&m, MISFIT);
    if (m.prefix_bytes > 0)
        ddp_info("%s: took the prefix '%s' off all names", what, PREFIX);
    say_conversions(&m);
    return DDP_OK;
}
