/* test_hooks.c - compression hooks against references in double, over worlds of 1 to 4 ranks. */
#include "harness.h"

#include "hook_rig.h"
#include "sync/largest.h"
#include "sync/matrix.h"

/* ---- what was sent and what was kept is what there was ---- */

typedef struct job {
    const ddp_hook_ops *ops;
    ddp_hook_opts opts;
    ddp_conv_algo algo;
    double room; /* relative to the sums of magnitudes */
    bool plain;  /* every step's sums are the gradients' */
    bool bits;   /* and are these, added in the order of the ranks, bit for bit */
    value_fn *values;
} job;

typedef struct ledger {
    double *given, *size, *sent; /* [length] */
    float *flat;
} ledger;

static ddp_status ledger_open(ledger *l, size_t length)
{
    DDP_TRY(DDP_ALLOC(l->given, length));
    DDP_TRY(DDP_ALLOC(l->size, length));
    DDP_TRY(DDP_ALLOC(l->sent, length));
    return DDP_ALLOC(l->flat, length);
}

static void ledger_close(ledger *l)
{
    ddp_free(l->given);
    ddp_free(l->size);
    ddp_free(l->sent);
    ddp_free(l->flat);
}

static ddp_status check_bits(const rig *g, const job *j, int step, ledger *l)
{
    float *sum = l->flat; /* a sum in f32, in the order of the ranks */
    float *one;
    DDP_TRY(DDP_ALLOC(one, g->length));
    memset(sum, 0, g->length * sizeof *sum);
    ddp_status st = DDP_OK;
    for (int r = 0; r < ddp_comm_world(g->comm) && st == DDP_OK; r++) {
        st = write_gradients(g, r, step, j->values, one);
        for (size_t i = 0; i < g->length; i++)
            sum[i] += one[i];
    }
    ddp_free(one);
    DDP_TRY(st);
    for (size_t i = 0; i < g->length; i++)
        if (memcmp(&sum[i], &g->grads[i], sizeof *sum) != 0)
            return DDP_FAIL(DDP_ERR_INTERNAL, "step %d, element %zu: %a, want %a", step, i,
                            (double)g->grads[i], (double)sum[i]);
    return DDP_OK;
}

static ddp_status run_steps(rig *g, const job *j, ledger *l)
{
    for (int step = 0; step < STEPS; step++) {
        for (int r = 0; r < ddp_comm_world(g->comm); r++) {
            DDP_TRY(write_gradients(g, r, step, j->values, l->flat));
            for (size_t i = 0; i < g->length; i++) {
                l->given[i] += (double)l->flat[i];
                l->size[i] += fabs((double)l->flat[i]) + 1;
            }
        }
        DDP_TRY(write_gradients(g, ddp_comm_rank(g->comm), step, j->values, g->grads));
        ddpi_hook *hook = g->hook;
        hook->count = 32;
        DDP_TRY(rig_step(g));
        DDP_TRY(same_everywhere(g));
        for (size_t i = 0; i < g->length; i++) {
            l->sent[i] += (double)g->grads[i];
            if (j->plain && !(fabs(l->sent[i] - l->given[i]) <= j->room * l->size[i]))
                return DDP_FAIL(DDP_ERR_INTERNAL, "step %d, element %zu: %g, want %g", step, i,
                                l->sent[i], l->given[i]);
        }
        if (j->bits)
            DDP_TRY(check_bits(g, j, step, l));
    }
    return DDP_OK;
}

static ddp_status check_sum(const rig *g, const job *j, ledger *l)
{
    double kept = 0;
    memset(l->flat, 0, g->length * sizeof *l->flat);
    if (g->hook->rest != NULL)
        memcpy(l->flat, g->hook->rest, g->length * sizeof *l->flat);
    DDP_TRY(ddp_comm_allreduce(g->comm, l->flat, g->length, DDP_F32, DDP_REDUCE_SUM, "rests"));
    for (size_t i = 0; i < g->length; i++) {
        const double all = l->sent[i] + (double)l->flat[i];
        kept += fabs((double)l->flat[i]);
        if (!(fabs(all - l->given[i]) <= j->room * l->size[i]))
            return DDP_FAIL(DDP_ERR_INTERNAL, "element %zu: %g sent, %g kept, of %g", i, l->sent[i],
                            (double)l->flat[i], l->given[i]);
    }
    if (!j->plain && kept == 0)
        return DDP_FAIL(DDP_ERR_INTERNAL, "nothing was kept back");
    return DDP_OK;
}

static ddp_status run_rank(ddp_comm *comm, void *arg)
{
    const job *j = arg;
    rig g = {0};
    ledger l = {0};
    ddp_status st = rig_open(&g, comm, j->ops, j->opts, j->algo);
    if (st == DDP_OK)
        st = ledger_open(&l, g.length);
    if (st == DDP_OK)
        st = run_steps(&g, j, &l);
    if (st == DDP_OK)
        st = check_sum(&g, j, &l);
    ledger_close(&l);
    if (st == DDP_OK)
        rig_close(&g);
    return st;
}

static void run_worlds(job *j)
{
    if (j->values == NULL)
        j->values = gradient;
    for (int variant = 0; variant < 2; variant++)
        for (int world = 1; world <= MOST_WORLD; world++) {
            ddp_comm_opts comm = DDP_COMM_OPTS_DEFAULTS;
            comm.exit_on_failure = false;
            comm.shared_memory = variant == 0;
            j->algo = variant == 0 ? DDP_CONV_GEMM : DDP_CONV_DIRECT;
            CHECK_OK(run_ranks(&comm, world, run_rank, j));
        }
}

static void powersgd_keeps_what_it_does_not_send(void **state)
{
    (void)state;
    for (int64_t rank = 1; rank <= 40; rank += 39) {
        job j = {.ops = ddp_hook_powersgd(), .opts = DDP_HOOK_OPTS_DEFAULTS, .room = 2e-6};
        j.opts.rank = rank;
        j.opts.min_ratio = 0;
        run_worlds(&j);
    }
}

/* As many columns as a weight has: nothing is left out, and nothing kept. */
static void powersgd_of_full_rank_is_a_sum(void **state)
{
    (void)state;
    job j = {
        .ops = ddp_hook_powersgd(), .opts = DDP_HOOK_OPTS_DEFAULTS, .room = 2e-5, .plain = true};
    j.opts.rank = 300;
    j.opts.min_ratio = 0;
    run_worlds(&j);
}

/* All ranks' gradients of a weight are multiples of one product of two vectors, in plain order. */
static float product_of_vectors(int rank, int step, int param, int64_t element)
{
    static const int64_t inner[PARAMS] = {1, 300, 32 * 9, 9, 20 * 9};
    const int64_t o = element / inner[param], i = element % inner[param];
    return (float)((double)(rank + step + 1) * sin((double)(o + 1)) * cos((double)(3 * i + 1)));
}

/* Which holds only if a weight's elements are taken for those of a matrix whose rows are output
 * channels, whatever the layout. */
static void powersgd_of_rank_one_finds_products_of_vectors(void **state)
{
    (void)state;
    job j = {.ops = ddp_hook_powersgd(),
             .opts = DDP_HOOK_OPTS_DEFAULTS,
             .room = 2e-5,
             .plain = true,
             .values = product_of_vectors};
    j.opts.rank = 1;
    run_worlds(&j);
}

static void topk_keeps_what_it_does_not_send(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        job j = {.ops = ddp_hook_topk(), .opts = DDP_HOOK_OPTS_DEFAULTS, .room = 1e-6};
        j.opts.share = (const double[]){1e-6, 0.01, 0.5}[i];
        run_worlds(&j);
    }
}

static void topk_of_all_is_a_sum_bit_for_bit(void **state)
{
    (void)state;
    job j = {.ops = ddp_hook_topk(),
             .opts = DDP_HOOK_OPTS_DEFAULTS,
             .room = 1e-6,
             .plain = true,
             .bits = true};
    j.opts.share = 1;
    run_worlds(&j);
}

/* ---- the first step of a weight, in double ---- */

static double at(const ddpi_matrix *m, const float *flat, size_t row, size_t col)
{
    size_t run = 0;
    while (m->runs[run].first + m->runs[run].count <= col)
        run++;
    return (double)flat[m->row_at[row] + m->runs[run].at + col - m->runs[run].first];
}

static void orthonormalise(double *v, size_t rank, size_t cols)
{
    for (size_t k = 0; k < rank; k++) {
        double length = 0;
        for (size_t j = 0; j < k; j++) {
            double share = 0;
            for (size_t c = 0; c < cols; c++)
                share += v[k * cols + c] * v[j * cols + c];
            for (size_t c = 0; c < cols; c++)
                v[k * cols + c] -= share * v[j * cols + c];
        }
        for (size_t c = 0; c < cols; c++)
            length += v[k * cols + c] * v[k * cols + c];
        for (size_t c = 0; c < cols; c++)
            v[k * cols + c] /= sqrt(length);
    }
}

/* What powersgd makes of X in its first step is X V^T V, V being the orthogonal rows of L^T X. */
static void check_first_step(const ddpi_matrix *m, const float *before, const float *after,
                             size_t rank, uint32_t number)
{
    const ddp_rng rng = ddp_rng_make(0, DDP_RNG_COMPRESS, number);
    float *left = calloc(m->rows * rank, sizeof *left);
    double *v = calloc(rank * m->cols, sizeof *v);
    ddp_rng_normal_fill(&rng, 0, m->rows * rank, left);
    for (size_t k = 0; k < rank; k++)
        for (size_t c = 0; c < m->cols; c++)
            for (size_t r = 0; r < m->rows; r++)
                v[k * m->cols + c] += (double)left[r * rank + k] * at(m, before, r, c);
    orthonormalise(v, rank, m->cols);
    for (size_t r = 0; r < m->rows; r++)
        for (size_t c = 0; c < m->cols; c++) {
            double want = 0;
            for (size_t k = 0; k < rank; k++) {
                double share = 0;
                for (size_t i = 0; i < m->cols; i++)
                    share += at(m, before, r, i) * v[k * m->cols + i];
                want += share * v[k * m->cols + c];
            }
            if (!(fabs(at(m, after, r, c) - want) <= 2e-5))
                fail_msg("row %zu, column %zu: %g, want %g", r, c, at(m, after, r, c), want);
        }
    free(left);
    free(v);
}

static ddp_status first_step_rank(ddp_comm *comm, void *arg)
{
    rig g = {0};
    float *before;
    ddp_hook_opts opts = DDP_HOOK_OPTS_DEFAULTS;
    opts.rank = 3;
    opts.min_ratio = 0;
    DDP_TRY(rig_open(&g, comm, ddp_hook_powersgd(), opts, *(const ddp_conv_algo *)arg));
    DDP_TRY(DDP_ALLOC(before, g.length));
    DDP_TRY(write_gradients(&g, 0, 0, gradient, g.grads));
    memcpy(before, g.grads, g.length * sizeof *before);
    DDP_TRY(rig_step(&g));
    for (int i = 1; i < PARAMS; i++) {
        ddpi_matrix m;
        DDP_TRY(ddpi_matrix_make(g.device, ddp_param_table_at(g.table, i), &m));
        assert_true(m.found);
        check_first_step(&m, before, g.grads, 3, (uint32_t)i);
        ddpi_matrix_free(&m);
    }
    ddp_free(before);
    rig_close(&g);
    return DDP_OK;
}

static void powersgd_takes_the_step_of_the_paper(void **state)
{
    ddp_comm_opts comm = DDP_COMM_OPTS_DEFAULTS;
    ddp_conv_algo algos[] = {DDP_CONV_GEMM, DDP_CONV_DIRECT};
    (void)state;
    comm.exit_on_failure = false;
    for (int i = 0; i < 2; i++)
        CHECK_OK(run_ranks(&comm, 1, first_step_rank, &algos[i]));
}

/* ---- numbers that are none ---- */

static float poisoned(int rank, int step, int param, int64_t element)
{
    if (rank == 0 && step == 1 && element % 3 == 0) /* more than are sent */
        return param % 2 == 0 ? NAN : -INFINITY;
    return gradient(rank, step, param, element);
}

static ddp_status poisoned_rank(ddp_comm *comm, void *arg)
{
    const job *j = arg;
    rig g = {0};
    DDP_TRY(rig_open(&g, comm, j->ops, j->opts, j->algo));
    for (int step = 0; step < 4; step++) {
        DDP_TRY(write_gradients(&g, ddp_comm_rank(comm), step, poisoned, g.grads));
        DDP_TRY(rig_step(&g));
        for (int b = 0; b < g.plan.count; b++) {
            const ddp_range range = g.plan.ranges[b];
            if (ddpi_all_finite(g.grads + range.lo, range.hi - range.lo) != (step != 1))
                return DDP_FAIL(DDP_ERR_INTERNAL, "step %d, bucket %d: %s", step, b,
                                step == 1 ? "all is finite" : "not all is finite");
        }
        if (!ddpi_all_finite(g.hook->rest, g.length))
            return DDP_FAIL(DDP_ERR_INTERNAL, "step %d: the rest is not finite", step);
    }
    rig_close(&g);
    return DDP_OK;
}

static void what_is_not_finite_is_seen_by_all_and_not_kept(void **state)
{
    (void)state;
    const ddp_hook_ops *hooks[] = {ddp_hook_powersgd(), ddp_hook_topk()};
    for (int h = 0; h < 2; h++)
        for (int world = 1; world <= 3; world++) {
            ddp_comm_opts comm = DDP_COMM_OPTS_DEFAULTS;
            job j = {.ops = hooks[h], .opts = DDP_HOOK_OPTS_DEFAULTS, .algo = DDP_CONV_GEMM};
            comm.exit_on_failure = false;
            CHECK_OK(run_ranks(&comm, world, poisoned_rank, &j));
        }
}

/* ---- weights without a direction ---- */

static float nothing_at_first(int rank, int step, int param, int64_t element)
{
    return step < 3 ? 0 : gradient(rank, step, param, element);
}

/* Of a gradient that is 0 nothing can be learnt, but later ones are sent all the same. */
static ddp_status idle_rank(ddp_comm *comm, void *arg)
{
    const job *j = arg;
    rig g = {0};
    double before = 0, after = 0;
    DDP_TRY(rig_open(&g, comm, j->ops, j->opts, j->algo));
    for (int step = 0; step < 4; step++) {
        DDP_TRY(write_gradients(&g, ddp_comm_rank(comm), step, nothing_at_first, g.grads));
        for (size_t i = 0; i < g.length; i++)
            before += (double)g.grads[i] * (double)g.grads[i];
        DDP_TRY(rig_step(&g));
        for (int i = 1; i < PARAMS; i++) {
            const ddp_param *p = ddp_param_table_at(g.table, i);
            after = 0;
            for (size_t e = p->offset; e < p->offset + p->count; e++)
                after += (double)g.grads[e] * (double)g.grads[e];
            if ((after > 0) != (step == 3))
                return DDP_FAIL(DDP_ERR_INTERNAL, "step %d, %s: %g", step, p->name, after);
        }
    }
    rig_close(&g);
    return DDP_OK;
}

static void powersgd_goes_on_after_gradients_of_zero(void **state)
{
    ddp_comm_opts comm = DDP_COMM_OPTS_DEFAULTS;
    job j = {.ops = ddp_hook_powersgd(), .opts = DDP_HOOK_OPTS_DEFAULTS, .algo = DDP_CONV_GEMM};
    (void)state;
    comm.exit_on_failure = false;
    j.opts.min_ratio = 0;
    CHECK_OK(run_ranks(&comm, 2, idle_rank, &j));
}

/* ---- before compression starts ---- */

static ddp_status late_rank(ddp_comm *comm, void *arg)
{
    const job *j = arg;
    rig g = {0};
    ledger l = {0};
    DDP_TRY(rig_open(&g, comm, j->ops, j->opts, j->algo));
    DDP_TRY(ledger_open(&l, g.length));
    for (int step = 0; step < 4; step++) {
        DDP_TRY(write_gradients(&g, ddp_comm_rank(comm), step, gradient, g.grads));
        DDP_TRY(rig_step(&g));
        ddp_status st = check_bits(&g, j, step, &l);
        if ((st == DDP_OK) != (step < 2))
            return DDP_FAIL(DDP_ERR_INTERNAL, "step %d: %s", step,
                            step < 2 ? "compressed" : "not compressed");
    }
    ledger_close(&l);
    rig_close(&g);
    return DDP_OK;
}

static void nothing_is_compressed_before_its_time(void **state)
{
    const ddp_hook_ops *hooks[] = {ddp_hook_powersgd(), ddp_hook_topk()};
    (void)state;
    for (int h = 0; h < 2; h++) {
        ddp_comm_opts comm = DDP_COMM_OPTS_DEFAULTS;
        job j = {.ops = hooks[h], .opts = DDP_HOOK_OPTS_DEFAULTS, .algo = DDP_CONV_GEMM};
        comm.exit_on_failure = false;
        j.opts.after = 2;
        j.values = gradient;
        CHECK_OK(run_ranks(&comm, 2, late_rank, &j));
    }
}

/* ---- two bytes ---- */

/* Sums of a batch of 4096 samples, far above what f16 holds, and means that it does hold. */
static ddp_status narrow_rank(ddp_comm *comm, void *arg)
{
    const ddp_hook_ops *ops = arg;
    const double count = 4096, rounding = ops == ddp_hook_fp16() ? 0x1p-11 : 0x1p-8;
    rig g = {0};
    const ddp_hook_opts opts = DDP_HOOK_OPTS_DEFAULTS;
    DDP_TRY(rig_open(&g, comm, ops, opts, DDP_CONV_GEMM));
    g.hook->count = count;
    for (size_t i = 0; i < g.length; i++)
        g.grads[i] = (float)(count * (1 + (double)i * 9000 / (double)g.length));
    g.grads[7] = (float)(count * 70000);
    const float seven = g.grads[7];
    DDP_TRY(rig_step(&g));
    for (size_t i = 0; i < g.length; i++) {
        const double want =
            ddp_comm_world(comm) * count * (1 + (double)i * 9000 / (double)g.length);
        if (i != 7 && !(fabs((double)g.grads[i] - want) <= 3 * rounding * want))
            return DDP_FAIL(DDP_ERR_INTERNAL, "element %zu: %g, want %g", i, (double)g.grads[i],
                            want);
    }
    const bool infinite = isinf(g.grads[7]);
    rig_close(&g);
    if (infinite != (ops == ddp_hook_fp16()))
        return DDP_FAIL(DDP_ERR_INTERNAL, "a mean of %g is wrong", (double)seven / count);
    return DDP_OK;
}

static void sums_of_large_batches_do_not_overflow_f16(void **state)
{
    (void)state;
    for (int shared = 0; shared < 2; shared++)
        for (int world = 1; world <= 4; world++) {
            ddp_comm_opts comm = DDP_COMM_OPTS_DEFAULTS;
            comm.exit_on_failure = false;
            comm.shared_memory = shared;
            CHECK_OK(run_ranks(&comm, world, narrow_rank, (void *)(uintptr_t)ddp_hook_bf16()));
            CHECK_OK(run_ranks(&comm, world, narrow_rank, (void *)(uintptr_t)ddp_hook_fp16()));
        }
}

/* ---- selection ---- */

static const float *sorted_values;

/* By magnitude, what is no number first; then by place. */
static int compare_entries(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    uint32_t of_x, of_y;
    memcpy(&of_x, &sorted_values[x], sizeof of_x);
    memcpy(&of_y, &sorted_values[y], sizeof of_y);
    of_x &= 0x7fffffff;
    of_y &= 0x7fffffff;
    if (of_x != of_y)
        return of_x > of_y ? -1 : 1;
    return x < y ? -1 : x > y;
}

static int compare_places(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static void check_selection(ddpi_largest *largest, const float *values, size_t length, size_t count)
{
    uint32_t *want = calloc(length, sizeof *want);
    for (size_t i = 0; i < length; i++)
        want[i] = (uint32_t)i;
    sorted_values = values;
    qsort(want, length, sizeof *want, compare_entries);
    qsort(want, count, sizeof *want, compare_places);
    assert_memory_equal(ddpi_largest_find(largest, values, length, count), want,
                        count * sizeof *want);
    free(want);
}

static void the_largest_elements_are_found(void **state)
{
    enum { LENGTH = 3000 };
    static const size_t counts[] = {1, 2, 30, 1500, LENGTH - 1, LENGTH};
    float values[LENGTH];
    ddpi_largest *largest;
    (void)state;
    CHECK_OK(ddpi_largest_create(LENGTH, &largest));
    for (int kind = 0; kind < 5; kind++) {
        for (int i = 0; i < LENGTH; i++) {
            const float value = gradient(0, kind, 0, i);
            values[i] = kind == 0   ? value
                        : kind == 1 ? roundf(value * 2) /* many equal ones */
                        : kind == 2 ? 0
                        : kind == 3 ? value * 1e-40f /* subnormal */
                                    : (i % 100 == 0 ? (i % 200 == 0 ? NAN : INFINITY) : value);
        }
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
            check_selection(largest, values, LENGTH, counts[c]);
    }
    ddpi_largest_destroy(largest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(powersgd_keeps_what_it_does_not_send),
        cmocka_unit_test(powersgd_of_full_rank_is_a_sum),
        cmocka_unit_test(powersgd_of_rank_one_finds_products_of_vectors),
        cmocka_unit_test(powersgd_takes_the_step_of_the_paper),
        cmocka_unit_test(powersgd_goes_on_after_gradients_of_zero),
        cmocka_unit_test(topk_keeps_what_it_does_not_send),
        cmocka_unit_test(topk_of_all_is_a_sum_bit_for_bit),
        cmocka_unit_test(what_is_not_finite_is_seen_by_all_and_not_kept),
        cmocka_unit_test(nothing_is_compressed_before_its_time),
        cmocka_unit_test(sums_of_large_batches_do_not_overflow_f16),
        cmocka_unit_test(the_largest_elements_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
