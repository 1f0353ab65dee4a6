/* test_heal.c - memory that changes between two steps is found before it is used: parameters by
 * comparing ranks, which three or more can heal; optimizer state by the rank that alone has it.
 *
 * A listener of the trainer flips one bit behind a step, on the ranks that a case names. */
#include "harness.h"

#include "ddp/trainer.h"
#include "loopback_ranks.h"

enum { BATCH = 24, STEPS = 6, FLIP_AFTER = 3, ALL_RANKS = -1, NO_RANK = -2, MAX_RANKS = 8 };

typedef enum where { IN_PARAMS, IN_STATE } where;

typedef struct job {
    ddp_optim_opts optim;
    const ddp_strategy_ops *strategy;
    int64_t every; /* steps between two checks */
    int on_mismatch;
    bool exact;
    int rank; /* whose bit flips */
    where in;
    size_t at;                  /* element of the flat buffer */
    uint64_t hashes[MAX_RANKS]; /* of the weights at the end */
} job;

typedef struct rig {
    job *j;
    ddp_comm *comm;
    ddp_device *device;
    ddp_dataset *data;
    ddp_loader *loader;
    ddp_model *model;
    ddp_strategy *strategy;
    ddp_sampler sampler;
} rig;

static ddp_status flip(void *arg, const ddp_run_info *info, const ddp_step_info *step)
{
    rig *g = arg;
    const job *j = g->j;
    ddp_strategy_state state;
    (void)info;
    if (step->step != FLIP_AFTER || (j->rank != ALL_RANKS && j->rank != ddp_comm_rank(g->comm)))
        return DDP_OK;
    DDP_TRY(ddp_strategy_get_state(g->strategy, false, &state));
    float *values =
        j->in == IN_PARAMS ? ddp_strategy_params(g->strategy) : state.optim.flats[0].values;
    uint32_t bits;
    memcpy(&bits, &values[j->at], sizeof bits);
    bits ^= 1u << 3;
    memcpy(&values[j->at], &bits, sizeof bits);
    return DDP_OK;
}

static ddp_status open_rig(rig *g)
{
    const job *j = g->j;
    const int world = ddp_comm_world(g->comm);
    const ddp_device_opts device = DDP_DEVICE_OPTS_DEFAULTS;
    const ddp_data_opts data = {.input_shape = {3, {1, 8, 8}},
                                .synthetic_train = BATCH * STEPS,
                                .synthetic_test = 10,
                                .synthetic_classes = 10,
                                .seed = 5};
    const ddp_model_opts model = {
        .input_shape = {3, {1, 8, 8}}, .classes = 10, .mlp_widths = "40,30"};
    ddp_strategy_opts opts = {
        .reducer = DDP_REDUCER_OPTS_DEFAULTS, .optim = j->optim, .seals = j->every > 0};
    opts.reducer.first_bucket_mb = 0.001;
    opts.reducer.bucket_cap_mb = 0.002;
    opts.reducer.exact = j->exact;
    g->sampler = (ddp_sampler){
        .size = BATCH * STEPS, .batch = BATCH, .shards = world, .seed = 5, .shuffle = true};
    const ddp_loader_opts loader = {
        .sampler = g->sampler, .first_shard = ddp_comm_rank(g->comm), .shard_count = 1, .ring = 2};
    DDP_TRY(ddp_device_open(ddp_device_cpu(), &device, &g->device));
    DDP_TRY(ddp_dataset_open(ddp_dataset_synthetic(), &data, DDP_SPLIT_TRAIN, g->comm, &g->data));
    DDP_TRY(ddp_loader_create(&loader, g->data, g->device, &g->loader));
    DDP_TRY(ddp_model_create(ddp_model_mlp(), &model, g->device, &g->model));
    DDP_TRY(ddp_model_plan(g->model, BATCH / world, true));
    DDP_TRY(ddp_strategy_create(j->strategy, &opts, g->model, g->device, g->comm, &g->strategy));
    return ddp_param_table_init(g->device, ddp_model_params(g->model), 1,
                                ddp_strategy_params(g->strategy));
}

static ddp_status train(rig *g)
{
    const ddp_run_info info = {.epochs = 1, .steps_per_epoch = STEPS};
    const ddp_observer observer = {.arg = g, .on_step = flip};
    const ddp_trainer_parts parts = {.strategy = g->strategy,
                                     .model = g->model,
                                     .device = g->device,
                                     .comm = g->comm,
                                     .loader = g->loader,
                                     .sampler = &g->sampler,
                                     .observers = &observer,
                                     .observer_count = 1};
    const ddp_schedule_opts rates = {.kind = DDP_SCHEDULE_CONSTANT};
    ddp_trainer_opts opts = {
        .epochs = 1, .check_replicas = g->j->every, .on_mismatch = g->j->on_mismatch};
    ddp_run_summary summary;
    DDP_TRY(ddp_schedule_make(&rates, 0.05, STEPS, STEPS, &opts.schedule));
    DDP_TRY(ddp_trainer_run(&opts, &info, &parts, &summary));
    g->j->hashes[ddp_comm_rank(g->comm)] = summary.weights_hash;
    return DDP_OK;
}

static ddp_status run_rank(ddp_comm *comm, void *arg)
{
    rig g = {.j = arg, .comm = comm};
    DDP_TRY(open_rig(&g));
    const ddp_status st = train(&g);
    char message[512];
    snprintf(message, sizeof message, "%s", ddp_status_message());
    ddp_strategy_destroy(g.strategy);
    ddp_model_destroy(g.model);
    ddp_loader_destroy(g.loader);
    ddp_dataset_close(g.data);
    ddp_device_close(g.device);
    return st == DDP_OK ? DDP_OK : ddp_status_set(st, NULL, 0, "%s", message);
}

static ddp_status run(job *j, int world)
{
    ddp_comm_opts comm = DDP_COMM_OPTS_DEFAULTS;
    comm.exit_on_failure = false;
    return run_ranks(&comm, world, run_rank, j);
}

static job undisturbed(ddp_optim_kind kind)
{
    job j = {.optim = DDP_OPTIM_OPTS_DEFAULTS,
             .strategy = ddp_strategy_ddp(),
             .every = 1,
             .rank = NO_RANK};
    j.optim.kind = kind;
    if (kind == DDP_OPTIM_SGD || kind == DDP_OPTIM_LARS)
        j.optim.momentum = 0.9;
    return j;
}

/* ---- parameters ---- */

static void three_ranks_of_four_heal_the_other(void **state)
{
    (void)state;
    job whole = undisturbed(DDP_OPTIM_SGD);
    CHECK_OK(run(&whole, 4));
    for (int rank = 0; rank < 4; rank += 2)
        for (size_t at = 0; at < 700; at += 233) {
            job j = undisturbed(DDP_OPTIM_SGD);
            j.on_mismatch = DDP_MISMATCH_HEAL;
            j.rank = rank;
            j.at = at;
            CHECK_OK(run(&j, 4));
            for (int r = 0; r < 4; r++)
                assert_true(j.hashes[r] == whole.hashes[0]);
        }
}

static void a_flipped_bit_stops_the_run_and_is_named(void **state)
{
    (void)state;
    job j = undisturbed(DDP_OPTIM_SGD);
    j.rank = 2;
    CHECK_FAILS(run(&j, 4), DDP_ERR_MISMATCH,
                "step 3: parameter fc3.weight differs between rank 0 and rank 2");
    CHECK_FAILS(run(&j, 4), DDP_ERR_MISMATCH, "3 of 4 ranks have what rank 0 has");
    j.rank = 0;
    CHECK_FAILS(run(&j, 4), DDP_ERR_MISMATCH, "differs between rank 1 and rank 0");
    j.every = 3;
    CHECK_FAILS(run(&j, 4), DDP_ERR_MISMATCH, "step 3: parameter fc3.weight");
}

static void fewer_than_three_that_agree_heal_nobody(void **state)
{
    (void)state;
    for (int world = 2; world <= 3; world++) {
        job j = undisturbed(DDP_OPTIM_SGD);
        j.on_mismatch = DDP_MISMATCH_HEAL;
        j.rank = 1;
        CHECK_FAILS(run(&j, world), DDP_ERR_MISMATCH, "differs between rank 0 and rank 1");
    }
}

/* ---- optimizer state ---- */

static void flipped_state_is_found_by_its_owner(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++)
        for (int kind = 0; kind < 2; kind++) {
            job j = undisturbed(kind == 0 ? DDP_OPTIM_SGD : DDP_OPTIM_LAMB);
            j.in = IN_STATE;
            j.rank = ALL_RANKS; /* one of them is the owner */
            CHECK_FAILS(run(&j, world), DDP_ERR_MISMATCH,
                        kind == 0 ? "step 4: the optimizer's state momentum.fc3.weight of rank"
                                  : "step 4: the optimizer's state exp_avg.fc3.weight of rank");
        }
}

static void undamaged_state_is_found_to_be_so(void **state)
{
    (void)state;
    static const ddp_optim_kind kinds[] = {DDP_OPTIM_SGD, DDP_OPTIM_ADAMW, DDP_OPTIM_LARS,
                                           DDP_OPTIM_LAMB};
    const ddp_strategy_ops *const strategies[] = {ddp_strategy_ddp(), ddp_strategy_sync(),
                                                  ddp_strategy_naive()};
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
        for (size_t s = 0; s <= sizeof strategies / sizeof *strategies; s++) {
            job j = undisturbed(kinds[kind]);
            j.optim.ema = 0.9;
            j.exact = s == 0; /* beside the strategies */
            j.strategy = strategies[s == 0 ? 0 : s - 1];
            j.every = 1 + (int64_t)kind % 2;
            CHECK_OK(run(&j, 2));
            job unchecked = j;
            unchecked.every = 0;
            CHECK_OK(run(&unchecked, 2));
            assert_true(j.hashes[0] == unchecked.hashes[0]);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_ranks_of_four_heal_the_other),
        cmocka_unit_test(a_flipped_bit_stops_the_run_and_is_named),
        cmocka_unit_test(fewer_than_three_that_agree_heal_nobody),
        cmocka_unit_test(flipped_state_is_found_by_its_owner),
        cmocka_unit_test(undamaged_state_is_found_to_be_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
