/* test_steady.c - a training step allocates nothing: neither through our allocator nor through
 * malloc.
 *
 * The test's own malloc counts calls while `counting` is set, on any thread (ranks, loader
 * workers), and then asks glibc's. Sanitizers have a malloc of their own: under them only our
 * allocator is counted. */
#include "harness.h"

#include <errno.h>
#include <stdlib.h>

#include "ddp/spans.h"
#include "ddp/strategy.h"
#include "loopback_ranks.h"

enum { BATCH = 64, WARM_UP = 5, STEPS = 20 };

static int counting;
static unsigned long mallocs;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTS_MALLOC 1
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);

static void count(void)
{
    if (__atomic_load_n(&counting, __ATOMIC_RELAXED))
        __atomic_add_fetch(&mallocs, 1, __ATOMIC_RELAXED);
}

void *malloc(size_t bytes)
{
    count();
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    count();
    return __libc_calloc(n, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    count();
    return __libc_realloc(memory, bytes);
}

void *aligned_alloc(size_t align, size_t bytes)
{
    count();
    return __libc_memalign(align, bytes);
}

int posix_memalign(void **memory_out, size_t align, size_t bytes)
{
    count();
    *memory_out = __libc_memalign(align, bytes);
    return *memory_out == NULL ? ENOMEM : 0;
}
#else
#define COUNTS_MALLOC 0
#endif

typedef struct job {
    const ddp_model_def *model;
    bool changes;             /* samples are augmented and mixed */
    bool gated;               /* updates wait for norms over all ranks */
    const ddp_hook_ops *hook; /* how gradients travel; NULL: as they are */
    uint64_t ours;            /* allocations of ddp/memory.h after the warm-up */
} job;

static ddp_status steps(ddp_comm *comm, ddp_strategy *strategy, ddp_loader *loader, job *j)
{
    ddp_step_stats stats;
    for (int i = 0; i < WARM_UP; i++)
        DDP_TRY(ddp_strategy_step(strategy, loader, BATCH, 0.01, &stats));
    DDP_TRY(ddp_comm_barrier(comm));
    if (ddp_comm_rank(comm) == 0) {
        ddp_mem_freeze();
        __atomic_store_n(&counting, 1, __ATOMIC_SEQ_CST);
    }
    DDP_TRY(ddp_comm_barrier(comm));
    for (int i = 0; i < STEPS; i++)
        DDP_TRY(ddp_strategy_step(strategy, loader, BATCH, 0.01, &stats));
    DDP_TRY(ddp_comm_barrier(comm));
    if (ddp_comm_rank(comm) == 0) {
        __atomic_store_n(&counting, 0, __ATOMIC_SEQ_CST);
        j->ours = ddp_mem_allocs_since_freeze();
        ddp_mem_thaw();
    }
    return ddp_comm_barrier(comm);
}

/* A step must have left spans, or the test proves nothing about them. */
static ddp_status check_spans(ddp_spans *spans)
{
    ddp_span found[4];
    bool loads = false;
    for (int i = 0; i < ddp_spans_tracks(spans); i++) {
        if (ddp_spans_read(spans, i, 0, found, 4) < 4)
            return DDP_FAIL(DDP_ERR_INTERNAL, "track %d has hardly any spans", i);
        loads |= found[0].kind == DDP_SPAN_LOAD;
    }
    return loads ? DDP_OK : DDP_FAIL(DDP_ERR_INTERNAL, "nothing was loaded");
}

static ddp_status train(ddp_comm *comm, job *j)
{
    int world = ddp_comm_world(comm);
    ddp_device *device;
    ddp_dataset *data;
    ddp_loader *loader;
    ddp_model *model;
    ddp_strategy *strategy;
    ddp_device_opts device_opts = DDP_DEVICE_OPTS_DEFAULTS;
    ddp_data_opts data_opts = {.input_shape = {3, {1, 28, 28}},
                               .synthetic_train = BATCH * (WARM_UP + STEPS) * 2,
                               .synthetic_test = 10,
                               .synthetic_classes = 10};
    ddp_loader_opts loader_opts = {.sampler = {.size = data_opts.synthetic_train,
                                               .batch = BATCH,
                                               .shards = world,
                                               .shuffle = true},
                                   .first_shard = ddp_comm_rank(comm),
                                   .shard_count = 1,
                                   .workers = 1,
                                   .ring = 3};
    ddp_model_opts model_opts = {
        .input_shape = {3, {1, 28, 28}}, .classes = 10, .mlp_widths = "128,64"};
    ddp_strategy_opts opts = {.reducer = DDP_REDUCER_OPTS_DEFAULTS,
                              .optim = DDP_OPTIM_OPTS_DEFAULTS};
    device_opts.conv_algo = DDP_CONV_GEMM; /* ranks that measure for themselves may differ */
    opts.optim.momentum = j->gated ? 0 : 0.9;
    if (j->gated) {
        opts.optim.kind = DDP_OPTIM_LAMB;
        opts.optim.clip_grad_norm = 0.5;
        opts.optim.ema = 0.9;
    }
    opts.reducer.hook = j->hook;
    DDP_TRY(ddp_device_open(ddp_device_cpu(), &device_opts, &device));
    DDP_TRY(ddp_dataset_open(ddp_dataset_synthetic(), &data_opts, DDP_SPLIT_TRAIN, comm, &data));
    ddp_transform *transform = NULL;
    if (j->changes) {
        const ddp_transform_opts transform_opts = {.augment = "crop:4,flip,cutout:5"};
        DDP_TRY(
            ddp_transform_create(&transform_opts, ddp_dataset_get_info(data), true, &transform));
        loader_opts.transform = transform;
        loader_opts.mixup = 0.2;
    }
    DDP_TRY(ddp_loader_create(&loader_opts, data, device, &loader));
    DDP_TRY(ddp_loader_seek(loader, 0, 0));
    DDP_TRY(ddp_model_create(j->model, &model_opts, device, &model));
    DDP_TRY(ddp_model_plan(model, BATCH / world, true));
    DDP_TRY(ddp_strategy_create(ddp_strategy_ddp(), &opts, model, device, comm, &strategy));
    DDP_TRY(
        ddp_param_table_init(device, ddp_model_params(model), 1, ddp_strategy_params(strategy)));
    DDP_TRY(steps(comm, strategy, loader, j));
    ddp_strategy_destroy(strategy);
    ddp_model_destroy(model);
    ddp_loader_destroy(loader);
    ddp_transform_destroy(transform);
    ddp_dataset_close(data);
    ddp_device_close(device);
    return DDP_OK;
}

static ddp_status run_rank(ddp_comm *comm, void *arg)
{
    const ddp_rank_ctx before = *ddp_rank_ctx_get();
    ddp_rank_ctx ctx = before;
    DDP_TRY(ddp_spans_create(&ctx.spans));
    ddp_rank_ctx_set(&ctx);
    ddp_spans_join("main", DDP_SPANS_MAIN);
    ddp_status st = train(comm, arg);
    if (st == DDP_OK)
        st = check_spans(ctx.spans);
    ddp_spans_leave();
    ddp_rank_ctx_set(&before);
    ddp_spans_destroy(ctx.spans);
    return st;
}

static void check_job(job j)
{
    ddp_comm_opts comm = DDP_COMM_OPTS_DEFAULTS;
    comm.exit_on_failure = false;
    mallocs = 0;
    CHECK_OK(run_ranks(&comm, 2, run_rank, &j));
    assert_int_equal(j.ours, 0);
    assert_int_equal(mallocs, 0);
}

static void check(const ddp_model_def *model, bool changes, bool gated)
{
    check_job((job){.model = model, .changes = changes, .gated = gated});
}

static void lenet_steps_allocate_nothing(void **state)
{
    (void)state;
    check(ddp_model_lenet(), false, false);
}

static void mlp_steps_allocate_nothing(void **state)
{
    (void)state;
    check(ddp_model_mlp(), false, false);
}

static void changed_samples_allocate_nothing(void **state)
{
    (void)state;
    check(ddp_model_mlp(), true, false);
}

static void gated_steps_allocate_nothing(void **state)
{
    (void)state;
    check(ddp_model_mlp(), false, true);
}

static void compressed_steps_allocate_nothing(void **state)
{
    (void)state;
    check_job((job){.model = ddp_model_lenet(), .hook = ddp_hook_fp16()});
    check_job((job){.model = ddp_model_lenet(), .hook = ddp_hook_powersgd()});
    check_job((job){.model = ddp_model_lenet(), .hook = ddp_hook_topk(), .gated = true});
}

static void the_count_counts(void **state)
{
    (void)state;
    float *memory;
    ddp_mem_freeze();
    mallocs = 0;
    __atomic_store_n(&counting, 1, __ATOMIC_SEQ_CST);
    CHECK_OK(DDP_ALLOC(memory, 10));
    __atomic_store_n(&counting, 0, __ATOMIC_SEQ_CST);
    assert_int_equal(ddp_mem_allocs_since_freeze(), 1);
    ddp_mem_thaw();
    ddp_free(memory);
    if (COUNTS_MALLOC)
        assert_int_equal(mallocs, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compressed_steps_allocate_nothing),
        cmocka_unit_test(the_count_counts),
        cmocka_unit_test(lenet_steps_allocate_nothing),
        cmocka_unit_test(mlp_steps_allocate_nothing),
        cmocka_unit_test(changed_samples_allocate_nothing),
        cmocka_unit_test(gated_steps_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
