/* test_ckpt_shares.c - whoever owns which elements of the optimizer's state, the checkpoint's files
 * are the same: each element comes from a rank that owns it, wherever parameters are cut, and also
 * where they are not plain in memory.
 */
#include "harness.h"

#include <stdlib.h>
#include <unistd.h>

#include "ddp/checkpoint.h"
#include "ddp/fs.h"
#include "loopback_ranks.h"

enum { PARAMS = 4, BUCKETS = 3, PATH_BYTES = 256 };

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/ddp_shares.XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    return ddp_fs_remove_tree(folder) != DDP_OK;
}

/* ---- what is saved ---- */

typedef struct rig {
    ddp_device *device;
    ddp_param_table *table;
    ddp_buffer_table *buffers;
    float *params, *momentum;
    double seen[1];
    ddp_ckpt_parts parts;
} rig;

/* As a convolution likes its weights: blocks of channels, with padding where the numbers of
 * channels are odd. */
static ddp_status conv_layout(ddp_device *device, int64_t in, int64_t out, int64_t kernel,
                              ddp_layout **layout_out)
{
    const ddp_shape shape = {4, {2, in, 8, 8}};
    const ddp_op_desc desc = {.kind = DDP_OP_CONV2D,
                              .training = true,
                              .need_diff_src = true,
                              .u.conv2d = {.out_channels = out,
                                           .kernel_h = kernel,
                                           .kernel_w = kernel,
                                           .stride_h = 1,
                                           .stride_w = 1}};
    ddp_layout *src;
    ddp_op_plan *plan = NULL;
    DDP_TRY(ddp_layout_plain(device, &shape, &src));
    const ddp_status st = ddp_op_plan_create(device, &desc, src, NULL, &plan);
    if (st == DDP_OK)
        *layout_out = ddp_layout_ref(ddp_op_plan_weights(plan));
    ddp_op_plan_destroy(plan);
    ddp_layout_unref(src);
    return st;
}

/* kernel 0: a plain vector of `out`. */
static ddp_status add_param(rig *g, const char *name, int64_t in, int64_t out, int64_t kernel)
{
    ddp_param param = {.shape = {1, {out}}, .use_count = 1};
    int index;
    snprintf(param.name, sizeof param.name, "%s", name);
    if (kernel == 0) {
        DDP_TRY(ddp_layout_plain(g->device, &param.shape, &param.layout));
    } else {
        param.shape = (ddp_shape){4, {out, in, kernel, kernel}};
        DDP_TRY(conv_layout(g->device, in, out, kernel, &param.layout));
    }
    param.init_number = (uint32_t)ddp_param_table_count(g->table);
    const ddp_status st = ddp_param_table_add(g->table, &param, &index);
    ddp_layout_unref(param.layout);
    return st;
}

static ddp_status open_rig(rig *g)
{
    ddp_device_opts opts = DDP_DEVICE_OPTS_DEFAULTS;
    *g = (rig){0};
    opts.conv_algo = DDP_CONV_DIRECT; /* an own choice could differ from rank to rank */
    DDP_TRY(ddp_device_open(ddp_device_cpu(), &opts, &g->device));
    DDP_TRY(ddp_param_table_create(&g->table));
    DDP_TRY(ddp_buffer_table_create(&g->buffers));
    DDP_TRY(add_param(g, "fc.bias", 0, 501, 0));
    DDP_TRY(add_param(g, "conv3.weight", 64, 48, 3));
    DDP_TRY(add_param(g, "conv2.weight", 24, 40, 1));
    DDP_TRY(add_param(g, "conv1.weight", 3, 20, 5));
    DDP_TRY(DDP_ALLOC(g->params, ddp_param_table_length(g->table)));
    DDP_TRY(DDP_ALLOC(g->momentum, ddp_param_table_length(g->table)));
    g->parts = (ddp_ckpt_parts){.device = g->device,
                                .table = g->table,
                                .params = g->params,
                                .flats = {{"momentum", g->momentum}},
                                .flat_count = 1,
                                .buffers = g->buffers,
                                .shards = 1,
                                .own = 1,
                                .seen = g->seen};
    return DDP_OK;
}

static void close_rig(rig *g)
{
    ddp_free(g->params);
    ddp_free(g->momentum);
    ddp_buffer_table_destroy(g->buffers);
    ddp_param_table_destroy(g->table);
    ddp_device_close(g->device);
}

static ddp_status fill(const rig *g, float *flat, float first)
{
    for (int p = 0; p < PARAMS; p++) {
        const ddp_param *param = ddp_param_table_at(g->table, p);
        const size_t count = (size_t)ddp_shape_count(&param->shape);
        float *plain;
        DDP_TRY(DDP_ALLOC(plain, count));
        for (size_t i = 0; i < count; i++)
            plain[i] = first + (float)(p * 100000) + (float)i;
        const ddp_status st = ddp_param_import(g->device, param, plain, flat);
        ddp_free(plain);
        DDP_TRY(st);
    }
    return DDP_OK;
}

/* ---- who owns what ---- */

typedef enum ownership {
    OWN_ALL,    /* said by no ranges */
    OWN_WHOLE,  /* said by ranges */
    OWN_SLICES, /* of buckets; the first bucket is one rank's, and others have none of it */
    OWN_PAIRS,  /* of slices, two ranks have the same, as on two nodes */
    OWN_ONE,    /* the last rank has everything, which needs more memory than an equal share */
    OWNERSHIPS
} ownership;

static void list_owned(const rig *g, ownership how, int rank, int world, ddp_range *owned)
{
    const size_t length = ddp_param_table_length(g->table);
    const size_t ends[BUCKETS + 1] = {0, 37, length / 2 + 3, length};
    const int groups = how == OWN_PAIRS && world % 2 == 0 ? world / 2 : world;
    for (int b = 0; b < BUCKETS; b++) {
        const size_t lo = ends[b], bytes = ends[b + 1] - lo;
        const size_t group = (size_t)(rank % groups), all = (size_t)groups;
        owned[b] = (ddp_range){lo + bytes * group / all, lo + bytes * (group + 1) / all};
        if (how == OWN_WHOLE || ((b == 0 || how == OWN_ONE) && group == all - 1))
            owned[b] = (ddp_range){lo, ends[b + 1]};
        else if (b == 0 || how == OWN_ONE)
            owned[b] = (ddp_range){lo, lo};
    }
}

/* What a rank does not own is out of date. */
static void spoil(const rig *g, const ddp_range *owned)
{
    size_t at = 0;
    for (int b = 0; b <= BUCKETS; b++) {
        const size_t end = b < BUCKETS ? owned[b].lo : ddp_param_table_length(g->table);
        for (; at < end; at++)
            g->momentum[at] = -1;
        at = b < BUCKETS ? owned[b].hi : at;
    }
}

/* ---- worlds ---- */

typedef struct job {
    char dir[PATH_BYTES];
    ownership how[2]; /* of the first save and the second */
} job;

static ddp_status save_rank(ddp_comm *comm, void *arg)
{
    const job *j = arg;
    const int rank = ddp_comm_rank(comm), world = ddp_comm_world(comm);
    const ddp_ckpt_opts opts = {.dir = j->dir, .keep = 10};
    ddp_range owned[BUCKETS];
    ddp_ckpt *ckpt = NULL;
    rig g;
    ddp_status st = open_rig(&g);
    g.parts.own = rank == 0 ? 1 : 0;
    if (st == DDP_OK)
        st = ddp_ckpt_create(&opts, &g.parts, comm, &ckpt);
    for (int i = 0; i < 2 && st == DDP_OK; i++) {
        const ddp_ckpt_save save = {.step = i + 1, .best = -1, .state = "{}\n"};
        DDP_TRY_GOTO(st, fill(&g, g.params, 0.25f + (float)i), done);
        DDP_TRY_GOTO(st, fill(&g, g.momentum, 0.5f + (float)i), done);
        list_owned(&g, j->how[i], rank, world, owned);
        if (j->how[i] != OWN_ALL)
            spoil(&g, owned);
        g.parts.owned = j->how[i] != OWN_ALL ? owned : NULL;
        g.parts.owned_count = j->how[i] != OWN_ALL ? BUCKETS : 0;
        DDP_TRY_GOTO(st, ddp_ckpt_begin(ckpt, &g.parts, &save), done);
        DDP_TRY_GOTO(st, ddp_ckpt_finish(ckpt), done);
    }
done:
    ddp_ckpt_destroy(ckpt);
    close_rig(&g);
    return st;
}

static ddp_status save(const char *name, int world, ownership first, ownership second, job *j)
{
    ddp_comm_opts comm = DDP_COMM_OPTS_DEFAULTS;
    comm.exit_on_failure = false;
    j->how[0] = first;
    j->how[1] = second;
    DDP_TRY(ddp_fs_join(j->dir, sizeof j->dir, folder, name));
    return run_ranks(&comm, world, save_rank, j);
}

static void check_loads(const job *j, int64_t step)
{
    char path[PATH_BYTES + 32];
    rig got, want;
    snprintf(path, sizeof path, "%s/step-%010d", j->dir, (int)step);
    CHECK_OK(open_rig(&got));
    CHECK_OK(open_rig(&want));
    CHECK_OK(fill(&want, want.params, 0.25f + (float)(step - 1)));
    CHECK_OK(fill(&want, want.momentum, 0.5f + (float)(step - 1)));
    CHECK_OK(ddp_ckpt_load(path, &got.parts));
    const size_t bytes = ddp_param_table_length(got.table) * sizeof(float);
    assert_memory_equal(got.params, want.params, bytes);
    assert_memory_equal(got.momentum, want.momentum, bytes);
    close_rig(&got);
    close_rig(&want);
}

static char *manifest(const job *j, int64_t step)
{
    char path[PATH_BYTES + 64];
    char *text;
    size_t bytes;
    snprintf(path, sizeof path, "%s/step-%010d/MANIFEST.json", j->dir, (int)step);
    CHECK_OK(ddp_fs_read(path, 1 << 20, &text, &bytes));
    return text;
}

/* ---- tests ---- */

static void parameters_are_cut_that_are_not_plain(void **state)
{
    rig g;
    int blocked = 0;
    (void)state;
    CHECK_OK(open_rig(&g));
    for (int p = 0; p < PARAMS; p++)
        blocked += !ddp_layout_is_plain(ddp_param_table_at(g.table, p)->layout);
    close_rig(&g);
    if (blocked == 0)
        skip(); /* this processor's kernels take plain weights */
}

static void files_do_not_depend_on_who_owns_what(void **state)
{
    static const int worlds[] = {1, 2, 3, 4, 7};
    job alone, j;
    (void)state;
    CHECK_OK(save("alone", 1, OWN_ALL, OWN_ALL, &alone));
    check_loads(&alone, 1);
    char *want[2] = {manifest(&alone, 1), manifest(&alone, 2)};
    for (int w = 0; w < 5; w++)
        for (int how = 0; how < OWNERSHIPS; how++) {
            char name[32];
            const ownership second = (ownership)((how + 1) % OWNERSHIPS);
            snprintf(name, sizeof name, "world%d.%d", worlds[w], how);
            CHECK_OK(save(name, worlds[w], (ownership)how, second, &j));
            for (int64_t step = 1; step <= 2; step++) {
                char *text = manifest(&j, step);
                check_loads(&j, step);
                assert_string_equal(text, want[step - 1]);
                ddp_free(text);
            }
        }
    ddp_free(want[0]);
    ddp_free(want[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_are_cut_that_are_not_plain),
        cmocka_unit_test(files_do_not_depend_on_who_owns_what),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
