/* outside.c - ddp_train with a model and a data set of one's own, through the installed headers
 * alone.
 *
 * The data: points on a grid, labelled by the quadrant of a circle that they lie in. */
#include <ddp/app.h>
#include <ddp/memory.h>

enum { SIDE = 64, CLASSES = 4 };

typedef struct points {
    int64_t first, count;
} points;

static ddp_status points_open(const ddp_data_opts *opts, ddp_split split, ddp_comm *comm,
                              ddp_dataset_info *info_out, void **self_out)
{
    points *p = NULL;
    ddp_status st = DDP_ALLOC(p, 1);

    (void)opts;
    st = ddp_comm_agree(comm, st, "open points");
    if (st != DDP_OK) {
        ddp_free(p);
        return st;
    }
    p->first = split == DDP_SPLIT_TRAIN ? 0 : SIDE * SIDE / 2;
    p->count = SIDE * SIDE / 2;
    *info_out = (ddp_dataset_info){.shape = {3, {2, 1, 1}}, .count = p->count, .classes = CLASSES};
    *self_out = p;
    return DDP_OK;
}

static ddp_status points_fetch(void *self, const int64_t *indices, int64_t n, float *dst,
                               int32_t *labels)
{
    const points *p = self;

    for (int64_t i = 0; i < n; i++) {
        /* An odd multiplier mixes the halves without repeating a point. */
        int64_t at = (p->first + indices[i]) * 1597 % (SIDE * SIDE);
        dst[2 * i] = (float)(at % SIDE) / SIDE;
        dst[2 * i + 1] = (float)(at / SIDE) / SIDE;
        labels[i] = (dst[2 * i] > 0.5f) + 2 * (dst[2 * i + 1] > 0.5f);
    }
    return DDP_OK;
}

static void points_close(void *self, ddp_comm *comm)
{
    (void)comm;
    ddp_free(self);
}

static ddp_status small_build(ddp_model_builder *builder, const ddp_model_opts *opts)
{
    const ddp_param_init draw = {DDP_INIT_NORMAL, 0.5};
    const ddp_layer_spec layers[] = {
        {.type = "flatten", .name = "flatten"},
        {.type = "linear", .name = "hidden", .out = 32, .weight_init = draw},
        {.type = "relu", .name = "relu"},
        {.type = "linear", .name = "out", .out = opts->classes, .weight_init = draw},
    };

    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++)
        DDP_TRY(ddp_model_add(builder, &layers[i]));
    return DDP_OK;
}

int main(int argc, char **argv)
{
    static const ddp_model_def small = {"small", "one hidden layer of 32", small_build};
    static const ddp_dataset_ops dataset = {
        .name = "points", .open = points_open, .fetch = points_fetch, .close = points_close};
    const ddp_model_def *models[] = {&small};
    const ddp_dataset_ops *datasets[] = {&dataset};
    const ddp_app_extras extras = {models, 1, datasets, 1};

    return ddp_app_main(argc, argv, &extras);
}
