/* test_graphs.c - graphs of the CUDA device: work that is kept and launched, with numbers that are
 * read anew each time, against the same work given to the stream. Results are equal to the bit. */
#include "ddp/pointwise.h"
#include "gpu/gpu_fixture.h"

enum { COUNT = 5003, STEPS = 4, SAMPLES = 6, ELEMENTS = 50 };

/* An optimizer's buffers, and the sum of squares that it makes. */
typedef struct model {
    float *w, *grad, *m, *v;
    double *sum;
} model;

static model model_open(ddp_device *device)
{
    float *values = random_floats(COUNT, 5, false);
    double zero = 0;
    model m = {.w = device_copy_of(device, values, COUNT * sizeof(float)),
               .grad = device_copy_of(device, values, COUNT * sizeof(float)),
               .sum = device_copy_of(device, &zero, sizeof zero)};
    void *memory;
    CHECK_OK(ddp_device_alloc(device, COUNT * sizeof(float), &memory));
    m.m = memory;
    CHECK_OK(ddp_device_alloc(device, COUNT * sizeof(float), &memory));
    m.v = memory;
    free(values);
    return m;
}

static void model_close(ddp_device *device, model *m)
{
    ddp_device_free(device, m->w, COUNT * sizeof(float));
    ddp_device_free(device, m->grad, COUNT * sizeof(float));
    ddp_device_free(device, m->m, COUNT * sizeof(float));
    ddp_device_free(device, m->v, COUNT * sizeof(float));
    ddp_device_free(device, m->sum, sizeof *m->sum);
}

static void check_same(ddp_device *device, const void *a, const void *b, size_t bytes)
{
    char *x = malloc(bytes), *y = malloc(bytes);
    assert_true(x != NULL && y != NULL);
    device_get(device, x, a, bytes);
    device_get(device, y, b, bytes);
    assert_memory_equal(x, y, bytes);
    free(x);
    free(y);
}

static void check_models(ddp_device *device, const model *a, const model *b)
{
    check_same(device, a->w, b->w, COUNT * sizeof(float));
    check_same(device, a->m, b->m, COUNT * sizeof(float));
    check_same(device, a->v, b->v, COUNT * sizeof(float));
    check_same(device, a->sum, b->sum, sizeof *a->sum);
}

/* A step's update, with the numbers in `live` or, where that is NULL, as they are. */
typedef void update_fn(ddp_device *device, const model *m, int step, const void *live);
typedef void live_fn(ddp_device *device, int step, void *live_out);

static ddp_sgd_args sgd_args(int step)
{
    return (ddp_sgd_args){.lr = 0.1 / (step + 1),
                          .momentum = 0.9,
                          .weight_decay = 0.01,
                          .nesterov = true,
                          .first = step == 0,
                          .inv_count = 1.0 / (3 + step)};
}

static void sgd_update(ddp_device *device, const model *m, int step, const void *live)
{
    ddp_sgd_args args = sgd_args(step);
    args.live = live;
    CHECK_OK(ddp_op_sgd(device, ddp_device_main_stream(device), &args, m->w, m->grad, m->m, COUNT,
                        m->sum));
}

static void sgd_live(ddp_device *device, int step, void *live_out)
{
    const ddp_sgd_args args = sgd_args(step);
    ddp_op_sgd_live(device, &args, live_out);
}

static ddp_adam_args adam_args(int step)
{
    return (ddp_adam_args){.lr = 0.01 / (step + 1),
                           .beta1 = 0.9,
                           .beta2 = 0.999,
                           .eps = 1e-8,
                           .weight_decay = 0.1,
                           .step = step + 1,
                           .inv_count = 1.0 / (3 + step)};
}

static void adam_update(ddp_device *device, const model *m, int step, const void *live)
{
    const ddp_adam_span span = {m->w, m->grad, m->m, m->v, COUNT};
    ddp_adam_args args = adam_args(step);
    args.live = live;
    CHECK_OK(ddp_op_adam(device, ddp_device_main_stream(device), DDP_ADAMW, &args, &span, m->sum));
}

static void adam_live(ddp_device *device, int step, void *live_out)
{
    const ddp_adam_args args = adam_args(step);
    ddp_op_adam_live(device, &args, live_out);
}

/* Captured with the numbers of a step that is never made. */
static void check_optimizer(update_fn *update, live_fn *live)
{
    char numbers[DDP_OP_LIVE_BYTES] = {0};
    ddp_graph *graph = NULL;
    ddp_device *device = gpu_open();
    ddp_stream *stream = ddp_device_main_stream(device);
    model given = model_open(device), launched = model_open(device);
    void *block = device_copy_of(device, numbers, sizeof numbers);
    CHECK_OK(ddp_graph_begin(stream));
    update(device, &launched, 77, block);
    CHECK_OK(ddp_graph_end(stream, &graph));
    for (int step = 0; step < STEPS; step++) {
        update(device, &given, step, NULL);
        live(device, step, numbers);
        device_put(device, block, numbers, sizeof numbers);
        CHECK_OK(ddp_graph_launch(graph, stream));
        CHECK_OK(ddp_stream_sync(stream));
        check_models(device, &given, &launched);
    }
    ddp_graph_destroy(graph);
    ddp_device_free(device, block, sizeof numbers);
    model_close(device, &given);
    model_close(device, &launched);
    ddp_device_close(device);
}

static void sgd_reads_the_step_at_each_launch(void **state)
{
    (void)state;
    check_optimizer(sgd_update, sgd_live);
}

static void adam_reads_the_step_at_each_launch(void **state)
{
    (void)state;
    check_optimizer(adam_update, adam_live);
}

static void dropout_reads_the_seed_at_each_launch(void **state)
{
    const ddp_op_desc desc = {.kind = DDP_OP_DROPOUT, .training = true, .u.dropout = {0.5}};
    const ddp_shape shape = {2, {SAMPLES, ELEMENTS}};
    const size_t bytes = (size_t)SAMPLES * ELEMENTS * sizeof(float);
    int64_t ids[SAMPLES];
    ddp_layout *layout;
    ddp_op_plan *plan;
    ddp_graph *graph = NULL;
    uint64_t seed = 0;
    (void)state;
    ddp_device *device = gpu_open();
    ddp_stream *stream = ddp_device_main_stream(device);
    for (int i = 0; i < SAMPLES; i++)
        ids[i] = 3 * i;
    CHECK_OK(ddp_layout_plain(device, &shape, &layout));
    CHECK_OK(ddp_op_plan_create(device, &desc, layout, NULL, &plan));
    float *values = random_floats(SAMPLES * ELEMENTS, 9, false);
    void *src = device_copy_of(device, values, bytes), *given = device_room(device, bytes),
         *launched = device_room(device, bytes), *place = device_copy_of(device, &seed, 8),
         *numbers = device_copy_of(device, ids, sizeof ids);
    ddp_op_args args = {.src = src, .dst = launched, .sample_ids = numbers, .rng_stream = 2};
    args.rng_live_seed = place;
    CHECK_OK(ddp_graph_begin(stream));
    CHECK_OK(ddp_op_run(plan, DDP_PASS_FORWARD, stream, &args));
    CHECK_OK(ddp_graph_end(stream, &graph));
    args.dst = given;
    args.rng_live_seed = NULL;
    for (int i = 0; i < STEPS; i++) {
        args.rng_seed = seed = 0x9e3779b97f4a7c15u * (uint64_t)(i + 1);
        CHECK_OK(ddp_op_run(plan, DDP_PASS_FORWARD, stream, &args));
        device_put(device, place, &seed, sizeof seed);
        CHECK_OK(ddp_graph_launch(graph, stream));
        CHECK_OK(ddp_stream_sync(stream));
        check_same(device, given, launched, bytes);
    }
    ddp_graph_destroy(graph);
    void *const memory[] = {src, given, launched};
    for (int i = 0; i < 3; i++)
        ddp_device_free(device, memory[i], bytes);
    ddp_device_free(device, place, 8);
    ddp_device_free(device, numbers, sizeof ids);
    free(values);
    ddp_op_plan_destroy(plan);
    ddp_layout_unref(layout);
    ddp_device_close(device);
}

/* Another stream's work belongs to the graph between two events. */
static void takes_in_streams_that_wait_and_are_waited_for(void **state)
{
    float *values = random_floats(COUNT, 3, false), *sums = calloc(COUNT, sizeof *sums);
    ddp_graph *graph = NULL;
    ddp_stream *other;
    ddp_event *ready, *done, *begin, *end;
    int64_t ns = -1;
    (void)state;
    assert_non_null(sums);
    ddp_device *device = gpu_open();
    ddp_stream *stream = ddp_device_main_stream(device);
    float *sum = device_copy_of(device, sums, COUNT * sizeof *sums),
          *one = device_copy_of(device, values, COUNT * sizeof *sums);
    CHECK_OK(ddp_stream_create(device, "other", &other));
    CHECK_OK(ddp_event_create(device, &ready));
    CHECK_OK(ddp_event_create(device, &done));
    CHECK_OK(ddp_event_create(device, &begin));
    CHECK_OK(ddp_event_create(device, &end));
    CHECK_OK(ddp_graph_begin(stream));
    CHECK_OK(ddp_op_add(device, stream, sum, one, COUNT));
    CHECK_OK(ddp_event_record(ready, stream));
    CHECK_OK(ddp_stream_wait_event(other, ready));
    CHECK_OK(ddp_event_stamp(begin, other));
    CHECK_OK(ddp_op_add(device, other, sum, one, COUNT));
    CHECK_OK(ddp_event_stamp(end, other));
    CHECK_OK(ddp_event_record(done, other));
    CHECK_OK(ddp_stream_wait_event(stream, done));
    CHECK_OK(ddp_op_add(device, stream, sum, one, COUNT));
    CHECK_OK(ddp_graph_end(stream, &graph));
    for (int i = 0; i < 2; i++)
        CHECK_OK(ddp_graph_launch(graph, stream));
    device_get(device, sums, sum, COUNT * sizeof *sums);
    for (int i = 0; i < COUNT; i++) {
        float want = 0;
        for (int k = 0; k < 6; k++)
            want += values[i];
        assert_true(sums[i] == want);
    }
    CHECK_OK(ddp_event_elapsed(begin, end, &ns));
    assert_true(ns > 0);
    ddp_graph_destroy(graph);
    ddp_event *const events[] = {ready, done, begin, end};
    for (int i = 0; i < 4; i++)
        ddp_event_destroy(events[i]);
    ddp_stream_destroy(other);
    ddp_device_free(device, sum, COUNT * sizeof *sums);
    ddp_device_free(device, one, COUNT * sizeof *sums);
    free(values);
    free(sums);
    ddp_device_close(device);
}

/* What was captured is lost, and the stream goes on as before. */
static void a_wait_within_a_graph_is_refused(void **state)
{
    ddp_graph *graph = NULL;
    float zero = 0, value = 2, found = 0;
    (void)state;
    ddp_device *device = gpu_open();
    ddp_stream *stream = ddp_device_main_stream(device);
    float *sum = device_copy_of(device, &zero, sizeof zero),
          *one = device_copy_of(device, &value, sizeof value);
    CHECK_OK(ddp_graph_begin(stream));
    CHECK_OK(ddp_op_add(device, stream, sum, one, 1));
    assert_true(ddp_stream_sync(stream) != DDP_OK);
    assert_true(ddp_graph_end(stream, &graph) != DDP_OK);
    assert_null(graph);
    CHECK_OK(ddp_op_add(device, stream, sum, one, 1));
    device_get(device, &found, sum, sizeof found);
    assert_true(found == 2);
    ddp_device_free(device, sum, sizeof zero);
    ddp_device_free(device, one, sizeof value);
    ddp_device_close(device);
}

static void the_cpu_has_no_graphs(void **state)
{
    (void)state;
    ddp_device *device = cpu_open();
    assert_false(ddp_device_has_graphs(device));
    CHECK_FAILS(ddp_graph_begin(ddp_device_main_stream(device)), DDP_ERR_UNSUPPORTED, "no graphs");
    ddp_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sgd_reads_the_step_at_each_launch),
        cmocka_unit_test(adam_reads_the_step_at_each_launch),
        cmocka_unit_test(dropout_reads_the_seed_at_each_launch),
        cmocka_unit_test(takes_in_streams_that_wait_and_are_waited_for),
        cmocka_unit_test(a_wait_within_a_graph_is_refused),
        cmocka_unit_test(the_cpu_has_no_graphs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
