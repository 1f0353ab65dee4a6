/* Self-tests: right gradients pass, each wrong one is found and named; so is a bit that differs. */
#include "harness.h"

#include <string.h>

#include "ddp/verify.h"
#include "model_fixture.h"

enum { BATCH = 6, CLASSES = 5 };

static ddp_status build(ddp_model_builder *builder, const ddp_model_opts *opts)
{
    const ddp_layer_spec specs[] = {
        {.type = "conv2d", .name = "c1", .out = 4, .kernel = 3, .pad = 1},
        {.type = "batchnorm", .name = "n1"},
        {.type = "relu", .name = "r1"},
        {.type = "maxpool", .name = "p1", .kernel = 2},
        {.type = "flatten", .name = "f"},
        {.type = "linear", .name = "l1", .out = opts->classes},
    };
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++)
        DDP_TRY(ddp_model_add(builder, &specs[i]));
    return DDP_OK;
}

static const ddp_model_def small = {"small", "test", build};

typedef struct rig {
    model_fixture f;
    float *inputs, *grads;
    int32_t *labels;
    ddp_model_input input;
    ddp_gradient_check check;
} rig;

static void rig_open(rig *r)
{
    const ddp_model_opts opts = {.input_shape = {3, {2, 8, 8}}, .classes = CLASSES};
    fixture_open(&r->f, &small, &opts, DDP_CONV_GEMM, BATCH);
    const size_t count = r->f.bytes / sizeof(float);
    const ddp_rng rng = ddp_rng_make(3, DDP_RNG_TEST, 1);
    for (int i = 0; i < ddp_param_table_count(r->f.table); i++) {
        const ddp_param *p = ddp_param_table_at(r->f.table, i);
        for (size_t e = p->offset; e < p->offset + p->count; e++)
            r->f.params[e] = 0.6f * ddp_rng_uniform(&rng, e) - 0.2f;
    }
    fixture_samples(4, (size_t)BATCH * 2 * 8 * 8, BATCH, CLASSES, &r->inputs, &r->labels);
    r->input = (ddp_model_input){.inputs = r->inputs, .labels = r->labels, .count = BATCH};
    (void)fixture_loss(&r->f, &r->input);
    ddp_param_table_begin(r->f.table);
    CHECK_OK(ddp_model_backward(r->f.model));
    CHECK_OK(DDP_ALLOC(r->grads, count));
    memcpy(r->grads, r->f.grads, r->f.bytes);
    r->check = (ddp_gradient_check){r->f.model, r->f.device, &r->input, r->f.params, r->grads};
}

static void rig_close(rig *r)
{
    ddp_free(r->inputs);
    ddp_free(r->labels);
    ddp_free(r->grads);
    fixture_close(&r->f);
}

static void right_gradients_pass(void **state)
{
    rig r;
    ddp_gradient_report report;
    (void)state;
    rig_open(&r);
    float *before;
    CHECK_OK(DDP_ALLOC(before, r.f.bytes / sizeof(float)));
    memcpy(before, r.f.params, r.f.bytes);
    CHECK_OK(ddp_check_gradient(&r.check, &report));
    assert_int_equal(report.params, 6);
    assert_true(report.worst > 0 && report.worst < 0.05);
    assert_memory_equal(before, r.f.params, r.f.bytes);
    ddp_free(before);
    rig_close(&r);
}

/* Scaled, turned, or moved by a place: for each parameter that has a gradient to speak of. */
static void wrong_gradients_are_named(void **state)
{
    static const char *const names[] = {"c1.weight", "n1.weight", "n1.bias", "l1.weight",
                                        "l1.bias"};
    rig r;
    ddp_gradient_report report;
    (void)state;
    rig_open(&r);
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        const int index = ddp_param_table_find(r.f.table, names[n]);
        const ddp_param *p = ddp_param_table_at(r.f.table, index);
        float *grad = r.grads + p->offset;
        for (size_t i = 0; i < p->count; i++)
            grad[i] *= 1.1f;
        CHECK_FAILS(ddp_check_gradient(&r.check, &report), DDP_ERR_MISMATCH, names[n]);
        for (size_t i = 0; i < p->count; i++)
            grad[i] = -grad[i] / 1.1f;
        CHECK_FAILS(ddp_check_gradient(&r.check, &report), DDP_ERR_MISMATCH, names[n]);
        for (size_t i = 0; i < p->count; i++)
            grad[i] = -grad[i];
        const float first = grad[0];
        memmove(grad, grad + 1, (p->count - 1) * sizeof *grad);
        grad[p->count - 1] = first;
        CHECK_FAILS(ddp_check_gradient(&r.check, &report), DDP_ERR_MISMATCH, names[n]);
        memmove(grad + 1, grad, (p->count - 1) * sizeof *grad);
        grad[0] = first;
    }
    rig_close(&r);
}

static void a_bit_is_found(void **state)
{
    rig r;
    float *copy;
    (void)state;
    rig_open(&r);
    const ddp_param *p = ddp_param_table_at(r.f.table, ddp_param_table_find(r.f.table, "n1.bias"));
    CHECK_OK(DDP_ALLOC(copy, r.f.bytes / sizeof(float)));
    memcpy(copy, r.f.params, r.f.bytes);
    CHECK_OK(ddp_check_same_params(r.f.table, copy, r.f.params, "a and b"));
    copy[p->offset + 2] = nextafterf(copy[p->offset + 2], 9);
    CHECK_FAILS(ddp_check_same_params(r.f.table, copy, r.f.params, "a and b"), DDP_ERR_MISMATCH,
                "a and b: parameter n1.bias differs from its element 2");
    ddp_free(copy);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_gradients_pass),
        cmocka_unit_test(wrong_gradients_are_named),
        cmocka_unit_test(a_bit_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
