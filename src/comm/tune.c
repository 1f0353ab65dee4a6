/* tune.c - are sums over several nodes faster on two levels? Measured once, at the start.
 *
 * For one length of each class, some sums are made flat and on two levels. Rank 0's clock decides,
 * and its word goes to all. Flat has to be clearly faster, in its slower round too: it crosses the
 * links between nodes more often, which a few sums over idle links do not show, and a link whose
 * rate is limited lets the first bytes after a pause pass at once. Slow links end the trial early;
 * what is not measured then stays on two levels. Rank's thread only. */
#include "comm/comm_impl.h"
#include "ddp/thread.h"

#define NS_PER_S  1e9
#define ROUNDS    2                    /* of each way in turn */
#define BUDGET_NS ((int64_t)250000000) /* for all trials together */
/* Of the time on two levels; below, flat is chosen. */
#define CLEARLY_FASTER 0.8

typedef struct trial {
    size_t bytes;
    int sums;
} trial;

static const trial trials[DDPI_TEAM_CLASSES] = {
    {4096, 6}, {65536, 4}, {(size_t)1 << 20, 2}, {(size_t)2 << 20, 1}};

/* What rank 0 has found. seconds 0: not measured. */
typedef struct findings {
    double seconds[DDPI_TEAM_CLASSES][2]; /* flat, the slower round; on two levels, the faster */
    int32_t two_level[DDPI_TEAM_CLASSES];
} findings;

static ddp_status time_sums(ddp_comm *comm, void *memory, const trial *t, double *seconds_out)
{
    const size_t count = t->bytes / sizeof(float);

    DDP_TRY(ddp_comm_barrier(comm));
    const int64_t start_ns = ddp_now_ns();
    for (int i = 0; i < t->sums; i++)
        DDP_TRY(ddp_comm_allreduce(comm, memory, count, DDP_F32, DDP_REDUCE_SUM, "trial sums"));
    *seconds_out = (double)(ddp_now_ns() - start_ns) / t->sums / NS_PER_S;
    return DDP_OK;
}

/* By the class before: will this one take no longer than there is time? Rank 0's word. */
static ddp_status has_time(ddp_comm *comm, const findings *f, int index, int64_t start_ns,
                           bool *yes_out)
{
    int32_t yes = 1;

    if (index > 0) {
        const double *before = f->seconds[index - 1];
        const double growth = (double)trials[index].bytes / (double)trials[index - 1].bytes;
        const double each = (before[0] + before[1]) * growth;
        const double left = (double)(BUDGET_NS - (ddp_now_ns() - start_ns)) / NS_PER_S;
        yes = each * ROUNDS * trials[index].sums <= left;
    }
    DDP_TRY(ddp_comm_broadcast(comm, 0, &yes, sizeof yes));
    *yes_out = yes != 0;
    return DDP_OK;
}

static ddp_status measure(ddp_comm *comm, void *memory, findings *f)
{
    const int64_t start_ns = ddp_now_ns();

    for (int i = 0; i < DDPI_TEAM_CLASSES; i++) {
        bool yes;
        DDP_TRY(has_time(comm, f, i, start_ns, &yes));
        if (!yes)
            break;
        for (int turn = 0; turn < 2 * ROUNDS; turn++) {
            const bool two = turn % 2 != 0;
            comm->team->two_level[i] = two;
            double seconds, *kept = &f->seconds[i][two];
            DDP_TRY(time_sums(comm, memory, &trials[i], &seconds));
            if (*kept <= 0 || (two ? seconds < *kept : seconds > *kept))
                *kept = seconds;
        }
    }
    return DDP_OK;
}

static void choose(findings *f)
{
    for (int i = 0; i < DDPI_TEAM_CLASSES; i++)
        f->two_level[i] =
            f->seconds[i][1] <= 0 || f->seconds[i][0] >= CLEARLY_FASTER * f->seconds[i][1];
}

static void adopt(ddpi_team *team, const findings *f)
{
    for (int i = 0; i < DDPI_TEAM_CLASSES; i++) {
        team->two_level[i] = f->two_level[i] != 0;
        team->flat_seconds[i] = f->seconds[i][0];
        team->two_level_seconds[i] = f->seconds[i][1];
    }
}

ddp_status ddp_comm_tune(ddp_comm *comm)
{
    findings f = {.seconds = {{0}}};
    void *memory;

    if (comm->team == NULL || comm->lane != NULL || comm->opts.allreduce != DDP_ALLREDUCE_AUTO)
        return DDP_OK;
    DDP_TRY(ddp_comm_mem_alloc(comm, trials[DDPI_TEAM_CLASSES - 1].bytes, &memory));
    ddp_status st = measure(comm, memory, &f);
    ddp_comm_mem_free(comm, memory);
    DDP_TRY(st);
    choose(&f);
    DDP_TRY(ddp_comm_broadcast(comm, 0, &f, sizeof f));
    adopt(comm->team, &f);
    return DDP_OK;
}

bool ddp_comm_tuned(const ddp_comm *comm, int index, ddp_sum_trial *choice_out)
{
    const ddpi_team *team = comm->team;

    if (team == NULL || index < 0 || index >= DDPI_TEAM_CLASSES ||
        team->two_level_seconds[index] <= 0)
        return false;
    *choice_out = (ddp_sum_trial){.bytes = trials[index].bytes,
                                  .flat_seconds = team->flat_seconds[index],
                                  .two_level_seconds = team->two_level_seconds[index],
                                  .two_level = team->two_level[index]};
    return true;
}
