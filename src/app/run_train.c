/* run_train.c - what a run is for: training, or the evaluation of given weights. */
#include "app/run.h"
#include "ddp/stop.h"

static ddp_status open_timeline(ddpi_run *run)
{
    const ddp_timeline_parts parts = {.comm = run->comm,
                                      .model = run->net.model,
                                      .spans = run->spans,
                                      .dir = run->dir,
                                      .asked = ddp_stop_timelines};

    return run->spans != NULL
               ? ddp_timeline_create(&run->config.timeline, &parts, &run->net.timeline)
               : DDP_OK;
}

static ddp_status train(ddpi_run *run)
{
    const bool evaluates = run->config.trainer.eval_every >= 0;
    ddpi_observer_state state = {.run = run};
    ddp_observer observer = {.arg = NULL};
    const ddp_run_info info = {.epochs = run->config.trainer.epochs,
                               .steps_per_epoch = ddp_sampler_steps(&run->data.sampler),
                               .train_flops = ddp_model_train_flops(run->net.model),
                               .machine_flops = run->net.peak_flops};
    DDP_TRY(open_timeline(run));
    const ddp_trainer_parts parts = {
        .strategy = run->net.strategy,
        .model = run->net.model,
        .device = run->net.device,
        .comm = run->comm,
        .loader = run->net.loader,
        .sampler = &run->data.sampler,
        /* With a held-out part the test set is kept for the end. */
        .eval = !evaluates             ? NULL
                : run->net.val != NULL ? run->net.val
                                       : run->net.test,
        .saver = run->net.saver,
        .timeline = run->net.timeline,
        .dir = run->dir,
        .start = &run->start,
        .observers = &observer,
        .observer_count = run->rank == 0 ? 1 : 0,
    };

    ddp_status st = DDP_OK;
    if (run->rank == 0)
        st = ddpi_observer_open(&state, run, &observer);
    DDP_TRY(ddpi_run_agree(run, st, "prepare records"));
    st = ddp_trainer_run(&run->config.trainer, &info, &parts, &run->summary);
    ddp_log_progress_end();
    ddpi_observer_close(&state);
    DDP_TRY(st);
    if (run->summary.stopped != DDP_SAVER_GO_ON)
        return DDP_OK;
    /* What the test and files see from here on. */
    DDP_TRY(ddp_strategy_average(run->net.strategy, &run->net.params));
    if (run->net.val == NULL || !evaluates)
        return DDP_OK;
    run->val = run->summary.test;
    ddp_comm_note(run->comm, run->summary.steps, "test evaluation");
    return ddp_eval_run(run->net.test, &run->summary.test);
}

static ddp_status evaluate(ddpi_run *run)
{
    ddp_comm_note(run->comm, 0, "evaluation");
    DDP_TRY(ddp_eval_run(run->net.test, &run->summary.test));
    DDP_TRY(ddpi_run_agree(run, ddpi_run_save_logits(run), "save logits"));
    run->summary.seconds = run->summary.test.seconds;
    run->summary.images_per_s = (double)run->summary.test.count / run->summary.test.seconds;
    return ddp_param_table_hash(run->net.device, ddp_model_params(run->net.model), run->net.params,
                                &run->summary.weights_hash);
}

ddp_status ddpi_run_work(ddpi_run *run)
{
    return run->config.run.eval_only ? evaluate(run) : train(run);
}
