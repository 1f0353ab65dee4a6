/* lane_ranks.h - ranks with a device that runs behind them, and a lane for its memory. */
#ifndef DDP_TESTS_LANE_RANKS_H
#define DDP_TESTS_LANE_RANKS_H

#include "async_device.h"
#include "comm/lane.h"
#include "harness.h"
#include "loopback_ranks.h"

typedef struct place {
    ddp_device *device;
    ddp_stream *stream;
} place;

static inline ddp_status enter(ddp_comm *comm, const ddp_lane_ops *ops, place *at)
{
    const ddp_device_opts device = DDP_DEVICE_OPTS_DEFAULTS;
    const ddp_lane_opts lane = {.deterministic = true};
    DDP_TRY(ddp_device_open(async_device(), &device, &at->device));
    at->stream = ddp_device_main_stream(at->device);
    return ddp_comm_attach(comm, at->device, ops, &lane);
}

static inline void leave(ddp_comm *comm, place *at)
{
    ddp_comm_detach(comm);
    ddp_device_close(at->device);
}

static inline void run_opts(int world, int64_t timeout_ms, rank_fn fn, void *arg)
{
    ddp_comm_opts opts = DDP_COMM_OPTS_DEFAULTS;
    opts.exit_on_failure = false;
    opts.timeout_ms = timeout_ms;
    CHECK_OK(run_ranks(&opts, world, fn, arg));
}

static inline ddp_status expect(bool holds, const char *what)
{
    return holds ? DDP_OK : DDP_FAIL(DDP_ERR_INTERNAL, "does not hold: %s", what);
}
#define EXPECT(condition) DDP_TRY(expect(condition, #condition))

static inline ddp_status expect_failure(ddp_status got, ddp_status want, const char *text)
{
    if (got == want && strstr(ddp_status_message(), text) != NULL)
        return DDP_OK;
    char message[512];
    snprintf(message, sizeof message, "%s", got != DDP_OK ? ddp_status_message() : "");
    return DDP_FAIL(DDP_ERR_INTERNAL, "got %s (%s), want %s with \"%s\"", ddp_status_name(got),
                    message, ddp_status_name(want), text);
}

#endif
