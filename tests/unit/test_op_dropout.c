/* test_op_dropout.c - which elements are dropped, in every layout and however samples are spread
 * over batches; how many; gradients; inference. */
#include "op_fixture.h"

#include "ddp/rng.h"

#define SEED   0x123456789abcdefu
#define STREAM 7

static const ddp_shape shapes[] = {
    {4, {16, 20, 6, 6}}, {4, {3, 50, 9, 9}}, {4, {17, 5, 4, 11}}, {2, {5, 37}}};

typedef struct drop_case {
    place place;
    op_case c;
    int64_t ids[32];
} drop_case;

/* place_open's kinds; tensors that are no images are plain. */
static void drop_open(drop_case *d, const ddp_shape *shape, int kind, double rate, bool training)
{
    const ddp_shape image = {4, {1, 1, 1, 1}};
    const ddp_op_desc desc = {.kind = DDP_OP_DROPOUT,
                              .training = training,
                              .need_diff_src = training,
                              .u.dropout = {rate}};
    const bool flat = shape->ndim != 4;
    place_open(&d->place, flat ? &image : shape, flat ? PLACE_PLAIN : kind, 1 + kind % 2);
    case_open(&d->c, d->place.device, &desc, shape, flat ? NULL : d->place.layout, NULL);
    for (int i = 0; i < 32; i++)
        d->ids[i] = 1000003 * (int64_t)i + 5;
    d->c.args.sample_ids = d->ids;
    d->c.args.rng_seed = SEED;
    d->c.args.rng_stream = STREAM;
}

static void drop_run(drop_case *d)
{
    case_run_all(&d->c, d->c.src.shape.ndim == 4 ? d->place.layout : NULL);
}

static void drop_close(drop_case *d)
{
    case_close(&d->c);
    place_close(&d->place);
}

/* By the definition: a draw per sample and element, samples a whole number of blocks apart. */
static bool is_kept(const drop_case *d, size_t i, double rate)
{
    const ddp_rng rng = ddp_rng_make(SEED, DDP_RNG_DROPOUT, STREAM);
    const size_t elements = d->c.src.count / (size_t)d->c.src.shape.dims[0];
    const uint64_t apart = (elements + 3) / 4 * 4;
    const uint64_t index = (uint64_t)d->ids[i / elements] * apart + i % elements;
    return (double)ddp_rng_u32(&rng, index) >= rate * 4294967296.0;
}

static void mask_is_a_function_of_sample_and_element(void **state)
{
    const double rate = 0.375;
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int kind = 0; kind < PLACES; kind++) {
            drop_case d;
            drop_open(&d, &shapes[s], kind, rate, true);
            ddp_mem_freeze();
            case_run(&d.c, DDP_PASS_FORWARD);
            case_run(&d.c, DDP_PASS_BACKWARD_DATA);
            assert_int_equal(ddp_mem_allocs_since_freeze(), 0);
            ddp_mem_thaw();
            drop_run(&d);
            for (size_t i = 0; i < d.c.src.count; i++) {
                const double factor = is_kept(&d, i, rate) ? 1 / (1 - rate) : 0;
                assert_true((d.c.dst.f[i] != 0) == (factor != 0));
                assert_true((d.c.diff_src.f[i] != 0) == (factor != 0));
                d.c.dst.d[i] = d.c.src.d[i] * factor;
                d.c.diff_src.d[i] = d.c.diff_dst.d[i] * factor;
            }
            CHECK_CLOSE(&d.c.dst, kind == PLACE_BF16 ? BF16_ROUNDING : 1e-7);
            CHECK_CLOSE(&d.c.diff_src, kind == PLACE_BF16 ? BF16_ROUNDING : 1e-7);
            drop_close(&d);
        }
}

/* The same samples in one batch of 17, and the last 5 of them alone. */
static void mask_does_not_depend_on_the_batch(void **state)
{
    const ddp_shape some = {4, {5, 5, 4, 11}};
    (void)state;
    for (int kind = 0; kind < F32_PLACES; kind++) {
        drop_case whole, part;
        drop_open(&whole, &shapes[2], kind, 0.5, true);
        drop_open(&part, &some, (kind + 1) % F32_PLACES, 0.5, true);
        memcpy(part.ids, whole.ids + 12, 5 * sizeof part.ids[0]);
        drop_run(&whole);
        drop_run(&part);
        for (size_t i = 0; i < part.c.dst.count; i++)
            assert_true((part.c.dst.f[i] == 0) == (whole.c.dst.f[12 * 220 + i] == 0));
        drop_close(&part);
        drop_close(&whole);
    }
}

static size_t count_kept(drop_case *d)
{
    size_t kept = 0;
    case_run(&d->c, DDP_PASS_FORWARD);
    for (size_t i = 0; i < d->c.dst.count; i++)
        kept += ((const float *)d->c.args.dst)[i] != 0;
    return kept;
}

static void rate_seed_and_stream_count(void **state)
{
    static const double rates[] = {0, 0.1, 0.5, 0.9};
    const ddp_shape shape = {2, {32, 5000}};
    (void)state;
    for (int r = 0; r < 4; r++) {
        drop_case d;
        drop_open(&d, &shape, PLACE_PLAIN, rates[r], true);
        const double n = (double)d.c.src.count;
        const double deviation = sqrt(n * rates[r] * (1 - rates[r]));
        assert_true(fabs((double)count_kept(&d) - n * (1 - rates[r])) <= 4 * deviation);
        drop_close(&d);
    }
    drop_case d;
    float *first = buffer(160000 * sizeof *first);
    drop_open(&d, &shape, PLACE_PLAIN, 0.5, true);
    (void)count_kept(&d);
    memcpy(first, d.c.args.dst, 160000 * sizeof *first);
    for (int i = 0; i < 2; i++) {
        size_t same = 0;
        d.c.args.rng_seed = i == 0 ? SEED + 1 : SEED;
        d.c.args.rng_stream = i == 0 ? STREAM : STREAM + 1;
        (void)count_kept(&d);
        for (size_t k = 0; k < 160000; k++)
            same += (first[k] == 0) == (((const float *)d.c.args.dst)[k] == 0);
        assert_true(same > 79000 && same < 81000); /* half, within five deviations */
    }
    ddp_free(first);
    drop_close(&d);
}

static void inference_copies(void **state)
{
    (void)state;
    for (int kind = 0; kind < PLACES; kind++) {
        drop_case d;
        drop_open(&d, &shapes[1], kind, 0.5, false);
        d.c.args.sample_ids = NULL;
        drop_run(&d);
        assert_memory_equal(d.c.dst.f, d.c.src.f, d.c.src.count * sizeof *d.c.src.f);
        drop_close(&d);
    }
}

static void rates_outside_are_refused(void **state)
{
    static const double wrong[] = {-0.1, 1, NAN};
    ddp_shape dst, weights;
    (void)state;
    for (int i = 0; i < 3; i++) {
        const ddp_op_desc desc = {.kind = DDP_OP_DROPOUT, .u.dropout = {wrong[i]}};
        CHECK_FAILS(ddp_op_infer(&desc, &shapes[0], &dst, &weights), DDP_ERR_USAGE, "dropout rate");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mask_is_a_function_of_sample_and_element),
        cmocka_unit_test(mask_does_not_depend_on_the_batch),
        cmocka_unit_test(rate_seed_and_stream_count),
        cmocka_unit_test(inference_copies),
        cmocka_unit_test(rates_outside_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
