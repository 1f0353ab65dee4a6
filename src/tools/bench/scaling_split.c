/* scaling_split.c - from measured times to where they went. Pure arithmetic. */
#include <math.h>

#include "tools/bench/scaling.h"

/* The gradient in equal pieces that come evenly over backward: what a record of a run does not
 * tell. */
enum { PIECES = 256 };
#define SMALLEST_BYTES 8.0

double ddpi_scaling_ideal(ddpi_scaling_mode mode, int ranks, const ddpi_run_times *base,
                          const ddpi_run_times *full)
{
    return mode == DDPI_SCALING_WEAK ? base->wall : full->wall / ranks;
}

typedef struct model {
    ddp_cost_open open;
    double latency_share; /* of all communication */
} model;

/* A step of the case on the measured link, if ranks were as fast as the base. */
static model predict(const ddpi_scaling_case *c)
{
    double bytes[PIECES], ready[PIECES];
    int ends[PIECES];

    if (c->curve.count == 0)
        return (model){.latency_share = 0};
    for (int i = 0; i < PIECES; i++) {
        bytes[i] = c->run.gradient_bytes / PIECES;
        ready[i] = c->base.backward * (i + 1) / PIECES;
    }
    const ddp_cost_step step = {.count = PIECES,
                                .bytes = bytes,
                                .ready = ready,
                                .backward = c->base.backward,
                                .curve = &c->curve,
                                .hidden = c->run.hides};
    int buckets = ddp_cost_cut_by_size(&step, c->run.first_bucket_bytes, c->run.bucket_bytes, ends);
    model m = {.open = ddp_cost_cut(&step, ends, buckets)};
    if (m.open.comm > 0)
        m.latency_share =
            fmin(1, buckets * ddp_cost_seconds(&c->curve, SMALLEST_BYTES) / m.open.comm);
    return m;
}

void ddpi_scaling_divide(ddpi_scaling_case *c)
{
    const ddpi_run_times *run = &c->run, *base = &c->base;
    const double ideal = ddpi_scaling_ideal(c->mode, c->ranks, base, &c->full);
    const double exposed = run->least_exposed - base->least_exposed;
    const model m = predict(c);
    ddpi_scaling_split s = {.efficiency = ideal / run->wall, .lost = 1 - ideal / run->wall};

    s.latency = exposed * m.latency_share / run->wall;
    s.bandwidth = exposed * (1 - m.latency_share) / run->wall;
    s.stragglers = (run->mean_exposed - run->least_exposed) / run->wall;
    s.data = (run->mean_data - base->mean_data) / run->wall;
    s.batch = (base->wall - ideal) / run->wall;
    s.compute = (run->mean_compute - base->mean_compute) / run->wall;
    s.rest = s.lost - (s.latency + s.bandwidth + s.stragglers + s.data + s.batch + s.compute);
    s.ceiling = ideal / (base->wall + m.open.exposed);
    c->split = s;
}
