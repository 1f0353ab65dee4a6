/* test_cost.c - the time of a communication and the part of it that lies open, against closed forms
 * and against all cuts there are. */
#include "harness.h"

#include <math.h>

#include "ddp/cost.h"
#include "ddp/memory.h"
#include "ddp/rng.h"

#define CHECK_NEAR(got, want)                                                                      \
    do {                                                                                           \
        const double got_ = (got), want_ = (want);                                                 \
        if (!(fabs(got_ - want_) <= 1e-9 * (1 + fabs(want_))))                                     \
            fail_msg("%s: got %.12g, want %.12g", #got, got_, want_);                              \
    } while (0)

static void curves_follow_their_points(void **state)
{
    (void)state;
    ddp_cost_curve curve = {0};
    CHECK_NEAR(ddp_cost_seconds(&curve, 100), 0);
    ddp_cost_curve_add(&curve, 1000, 4);
    CHECK_NEAR(ddp_cost_seconds(&curve, 3000), 12);
    ddp_cost_curve_add(&curve, 100, 2);
    ddp_cost_curve_add(&curve, 2000, 14);
    CHECK_NEAR(ddp_cost_seconds(&curve, 10), 2);
    CHECK_NEAR(ddp_cost_seconds(&curve, 100), 2);
    CHECK_NEAR(ddp_cost_seconds(&curve, 550), 3);
    CHECK_NEAR(ddp_cost_seconds(&curve, 1500), 9);
    CHECK_NEAR(ddp_cost_seconds(&curve, 4000), 34);
    ddp_cost_curve_add(&curve, 1000, 5); /* replaces */
    assert_int_equal(curve.count, 3);
    CHECK_NEAR(ddp_cost_seconds(&curve, 1000), 5);
    ddp_cost_curve_add(&curve, 500, 6); /* slower than what is larger: that is noise */
    CHECK_NEAR(ddp_cost_seconds(&curve, 1000), 6);
    curve = ddp_cost_curve_line(0.5, 100);
    CHECK_NEAR(ddp_cost_seconds(&curve, 0), 0.5);
    CHECK_NEAR(ddp_cost_seconds(&curve, 250), 3);
    CHECK_NEAR(ddp_cost_seconds(&curve, 1e10), 0.5 + 1e8);
}

static ddp_status parse(const char *text, ddp_cost_curve *curve)
{
    ddp_json *object;
    CHECK_OK(ddp_json_load(text, strlen(text), "curve.json", &object));
    ddp_status st = ddp_cost_curve_read(object, "curve.json", curve);
    ddp_json_destroy(object);
    return st;
}

static void curves_survive_a_file(void **state)
{
    (void)state;
    ddp_cost_curve curve = ddp_cost_curve_line(1e-5, 1e8), back;
    ddp_json *object;
    char *text;
    curve.ranks = 4;
    curve.hosts = 2;
    CHECK_OK(ddp_json_object(&object));
    CHECK_OK(ddp_cost_curve_write(&curve, object));
    CHECK_OK(ddp_json_text(object, 0, &text));
    CHECK_OK(parse(text, &back));
    assert_memory_equal(&curve, &back, sizeof curve);
    ddp_free(text);
    ddp_json_destroy(object);
    CHECK_FAILS(parse("{\"points\":[]}", &back), DDP_ERR_FORMAT, "a list of 1 to 64");
    CHECK_FAILS(
        parse("{\"points\":[{\"bytes\":1,\"seconds\":2},{\"bytes\":-1,\"seconds\":0}]}", &back),
        DDP_ERR_FORMAT, "points[1]");
}

/* Four equal pieces, ready at 1, 2, 3 and 4 of a backward of 4. */
static const double bytes4[] = {100, 100, 100, 100}, ready4[] = {1, 2, 3, 4};

static ddp_cost_step step4(const ddp_cost_curve *curve)
{
    return (ddp_cost_step){.count = 4,
                           .bytes = bytes4,
                           .ready = ready4,
                           .backward = 4,
                           .curve = curve,
                           .hidden = true};
}

static void cuts_cost_what_the_closed_forms_say(void **state)
{
    (void)state;
    const int one[] = {4}, each[] = {1, 2, 3, 4}, halves[] = {2, 4};
    ddp_cost_curve curve = ddp_cost_curve_line(0, 200); /* a piece takes 0.5 */
    ddp_cost_step step = step4(&curve);
    ddp_cost_open open = ddp_cost_cut(&step, one, 1);
    CHECK_NEAR(open.comm, 2);
    CHECK_NEAR(open.exposed, 2);
    CHECK_NEAR(open.end, 6);
    CHECK_NEAR(ddp_cost_cut(&step, each, 4).exposed, 0.5); /* only the last piece's */
    CHECK_NEAR(ddp_cost_cut(&step, halves, 2).exposed, 1);

    curve = ddp_cost_curve_line(0, 50); /* bandwidth-bound: a piece takes 2, the link never rests */
    CHECK_NEAR(ddp_cost_cut(&step, each, 4).end, 1 + 4 * 2);
    CHECK_NEAR(ddp_cost_cut(&step, one, 1).end, 4 + 4 * 2);

    curve = ddp_cost_curve_line(3, 1e30); /* latency-bound: every bucket takes 3 */
    CHECK_NEAR(ddp_cost_cut(&step, each, 4).end, 1 + 4 * 3);
    CHECK_NEAR(ddp_cost_cut(&step, halves, 2).end, 2 + 2 * 3);
    CHECK_NEAR(ddp_cost_cut(&step, one, 1).end, 4 + 3);

    curve = ddp_cost_curve_line(0, 1e30); /* infinitely fast */
    CHECK_NEAR(ddp_cost_cut(&step, one, 1).exposed, 0);

    curve = ddp_cost_curve_line(0, 200);
    const ddp_cost_curve publish = ddp_cost_curve_line(0.1, 1000);
    step.publish = &publish;
    CHECK_NEAR(ddp_cost_cut(&step, each, 4).exposed, 0.5 + 4 * 0.1 + 0.4);
    CHECK_NEAR(ddp_cost_cut(&step, each, 4).comm, 2 + 4 * 0.1 + 0.4);
    step.publish = NULL;
    step.hidden = false;
    CHECK_NEAR(ddp_cost_cut(&step, each, 4).exposed, 2);
}

static void sizes_cut_as_the_reducer_does(void **state)
{
    (void)state;
    const ddp_cost_curve curve = ddp_cost_curve_line(0, 1);
    const ddp_cost_step step = step4(&curve);
    int ends[4];
    assert_int_equal(ddp_cost_cut_by_size(&step, 50, 200, ends), 3);
    assert_int_equal(ends[0], 1);
    assert_int_equal(ends[1], 3);
    assert_int_equal(ends[2], 4);
    assert_int_equal(ddp_cost_cut_by_size(&step, 1000, 1000, ends), 1);
    assert_int_equal(ends[0], 4);
}

/* ---- against all cuts ---- */

enum { PIECES = 9 };

typedef struct problem {
    double bytes[PIECES], ready[PIECES];
    ddp_cost_curve curve;
    ddp_cost_step step;
} problem;

static void draw(problem *p, uint32_t number)
{
    const ddp_rng rng = ddp_rng_make(7, DDP_RNG_INIT, number);
    double clock = 0;
    for (int i = 0; i < PIECES; i++) {
        p->bytes[i] = 10 + 1000 * ddp_rng_uniform(&rng, 4 * (uint64_t)i);
        clock += ddp_rng_uniform(&rng, 4 * (uint64_t)i + 1);
        p->ready[i] = clock;
    }
    if (number % 3 == 0) { /* two parameters of a layer, the wrong way round */
        const double swap = p->ready[4];
        p->ready[4] = p->ready[5];
        p->ready[5] = swap;
    }
    p->curve = (ddp_cost_curve){0};
    ddp_cost_curve_add(&p->curve, 100, ddp_rng_uniform(&rng, 100));
    ddp_cost_curve_add(&p->curve, 1000, p->curve.points[0].seconds + ddp_rng_uniform(&rng, 101));
    ddp_cost_curve_add(&p->curve, 3000, p->curve.points[1].seconds + ddp_rng_uniform(&rng, 102));
    p->step = (ddp_cost_step){.count = PIECES,
                              .bytes = p->bytes,
                              .ready = p->ready,
                              .backward = clock + 0.1,
                              .curve = &p->curve,
                              .hidden = number % 4 != 1};
}

static int ends_of(unsigned mask, int *ends)
{
    int buckets = 0;
    for (int i = 1; i <= PIECES; i++)
        if (i == PIECES || (mask >> (i - 1)) & 1)
            ends[buckets++] = i;
    return buckets;
}

/* The least end, and the fewest buckets of those that end by `limit`. */
static double search(const problem *p, double limit, int *fewest)
{
    double least = INFINITY;
    *fewest = PIECES + 1;
    for (unsigned mask = 0; mask < 1u << (PIECES - 1); mask++) {
        int ends[PIECES];
        const int buckets = ends_of(mask, ends);
        const double end = ddp_cost_cut(&p->step, ends, buckets).end;
        least = fmin(least, end);
        if (end <= limit && buckets < *fewest)
            *fewest = buckets;
    }
    return least;
}

static void the_best_cut_is_the_best_of_all(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 200; n++) {
        problem p;
        int ends[PIECES], buckets, fewest;
        draw(&p, n);
        const double least = search(&p, 0, &fewest), slack = n % 5 == 0 ? 0.3 : 0;
        CHECK_OK(ddp_cost_best_cut(&p.step, slack, NULL, 0, ends, &buckets));
        assert_int_equal(ends[buckets - 1], PIECES);
        const double end = ddp_cost_cut(&p.step, ends, buckets).end;
        if (!(end <= least + slack + 1e-6))
            fail_msg("problem %u: a cut of %d buckets ends at %.9g, the best one at %.9g", n,
                     buckets, end, least);
        (void)search(&p, least + slack, &fewest);
        assert_true(buckets <= fewest);
    }
}

static void the_best_cut_is_never_worse_than_the_other(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 200; n++) {
        problem p;
        int ends[PIECES], other[PIECES], buckets;
        draw(&p, n);
        const int others = ddp_cost_cut_by_size(&p.step, 300, 1500, other);
        CHECK_OK(ddp_cost_best_cut(&p.step, 10, other, others, ends, &buckets));
        assert_true(ddp_cost_cut(&p.step, ends, buckets).end <=
                    ddp_cost_cut(&p.step, other, others).end + 1e-6);
    }
}

static void the_chosen_cut_has_a_margin(void **state)
{
    (void)state;
    int closer = 0;
    for (uint32_t n = 0; n < 200; n++) {
        problem p;
        int edge[PIECES], chosen[PIECES], other[PIECES], edges, chosens;
        draw(&p, n);
        const int others = ddp_cost_cut_by_size(&p.step, 300, 1500, other);
        CHECK_OK(ddp_cost_best_cut(&p.step, 0, other, others, edge, &edges));
        CHECK_OK(ddp_cost_choose_cut(&p.step, other, others, chosen, &chosens));
        assert_true(ddp_cost_cut(&p.step, chosen, chosens).end <=
                    ddp_cost_cut(&p.step, other, others).end + 1e-6);
        for (int i = 0; i < p.curve.count; i++)
            p.curve.points[i].seconds *= 1.25;
        const double end = ddp_cost_cut(&p.step, chosen, chosens).end;
        closer += end < ddp_cost_cut(&p.step, edge, edges).end - 1e-6;
    }
    assert_true(closer > 10); /* problems where sums that take longer cost less than on the edge */
}

static void a_slower_link_never_exposes_less(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 50; n++) {
        problem p;
        double before = 0;
        draw(&p, n);
        for (int speed = 0; speed < 6; speed++) {
            int ends[PIECES], buckets;
            p.curve = ddp_cost_curve_line(0.01, 1e5 / (1 << (2 * speed)));
            CHECK_OK(ddp_cost_best_cut(&p.step, 0, NULL, 0, ends, &buckets));
            const double end = ddp_cost_cut(&p.step, ends, buckets).end;
            assert_true(end >= before - 1e-6);
            before = end;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(curves_follow_their_points),
        cmocka_unit_test(curves_survive_a_file),
        cmocka_unit_test(cuts_cost_what_the_closed_forms_say),
        cmocka_unit_test(sizes_cut_as_the_reducer_does),
        cmocka_unit_test(the_best_cut_is_the_best_of_all),
        cmocka_unit_test(the_best_cut_is_never_worse_than_the_other),
        cmocka_unit_test(the_chosen_cut_has_a_margin),
        cmocka_unit_test(a_slower_link_never_exposes_less),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
