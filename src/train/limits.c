/* limits.c - how long ranks wait for each other in each phase of a run. */
#include "ddp/limits.h"

#include <stdlib.h>
#include <string.h>

#define TIMES     20
#define NS_PER_MS 1000000

void ddp_limits_init(ddp_limits *limits, const ddp_limits_opts *opts)
{
    *limits = (ddp_limits){.opts = *opts};
}

void ddp_limits_learn(ddp_limits *limits, ddp_phase phase, int64_t taken_ns)
{
    int64_t *longest_ns = &limits->taken[phase].longest_ns;

    limits->taken[phase].last_ns[limits->taken[phase].count++ % DDP_LIMITS_KEPT] = taken_ns;
    *longest_ns = taken_ns > *longest_ns ? taken_ns : *longest_ns;
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static int64_t median_ns(const ddp_limits *limits, ddp_phase phase)
{
    const int64_t count = limits->taken[phase].count;
    const size_t n = (size_t)(count < DDP_LIMITS_KEPT ? count : DDP_LIMITS_KEPT);
    int64_t sorted[DDP_LIMITS_KEPT];

    if (n == 0)
        return 0;
    memcpy(sorted, limits->taken[phase].last_ns, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_value);
    return sorted[n / 2];
}

int64_t ddp_limits_ms(const ddp_limits *limits, ddp_phase phase)
{
    const ddp_limits_opts *opts = &limits->opts;

    if (opts->seconds[phase] > 0)
        return (int64_t)(opts->seconds[phase] * 1e3);
    if (opts->least <= 0)
        return 0;
    const int64_t typical_ns =
        phase == DDP_PHASE_CHECKPOINT ? limits->taken[phase].longest_ns : median_ns(limits, phase);
    const int64_t learned_ms = TIMES * (typical_ns / NS_PER_MS);
    const int64_t least_ms = (int64_t)(opts->least * 1e3);
    return learned_ms > least_ms ? learned_ms : least_ms;
}

void ddp_limits_enter(const ddp_limits *limits, ddp_phase phase, ddp_comm *comm)
{
    ddp_comm_set_timeout(comm, ddp_limits_ms(limits, phase));
}
