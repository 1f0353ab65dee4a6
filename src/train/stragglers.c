/* stragglers.c - sums of the ranks' own times, by part of the step. See stragglers.h. */
#include "ddp/stragglers.h"

#include <string.h>

#include "ddp/memory.h"

#define LATE_SHARE 1.5 /* of the mean */
enum { LATE_STEPS = 10 };

typedef struct rank_sums {
    int64_t part_ns[DDP_PARTS];
    int64_t slowest_steps;
} rank_sums;

struct ddp_stragglers {
    int world;
    int64_t steps;
    int late_rank; /* that has been late in the last late_steps steps */
    int late_steps;
    bool told;
    rank_sums ranks[]; /* [world] */
};

const char *ddp_step_part_name(ddp_step_part part)
{
    static const char *const names[DDP_PARTS] = {"between steps", "waiting for data", "forward",
                                                 "backward",      "optimizer",        "other"};
    return names[part];
}

ddp_status ddp_stragglers_create(int world, ddp_stragglers **stragglers_out)
{
    void *memory;

    DDP_TRY(
        ddp_alloc_bytes(sizeof **stragglers_out + (size_t)world * sizeof(rank_sums), 1, &memory));
    memset(memory, 0, sizeof **stragglers_out + (size_t)world * sizeof(rank_sums));
    *stragglers_out = memory;
    (*stragglers_out)->world = world;
    return DDP_OK;
}

void ddp_stragglers_destroy(ddp_stragglers *s)
{
    ddp_free(s);
}

static void parts_of(const ddp_rank_times *t, int64_t ns[DDP_PARTS])
{
    ns[DDP_PART_BETWEEN] = t->between_ns;
    ns[DDP_PART_DATA] = t->data_ns;
    ns[DDP_PART_FORWARD] = t->forward_ns;
    ns[DDP_PART_BACKWARD] = t->backward_ns;
    ns[DDP_PART_OPTIM] = t->optim_ns;
    /* May be negative: communication that a backward advances is in both. */
    ns[DDP_PART_OTHER] =
        t->step_ns - t->exposed_ns - t->data_ns - t->forward_ns - t->backward_ns - t->optim_ns;
}

static int64_t total(const int64_t ns[DDP_PARTS])
{
    int64_t sum = 0;

    for (int i = 0; i < DDP_PARTS; i++)
        sum += ns[i];
    return sum;
}

/* Counts steps on end in which one rank is late. */
static bool follow(ddp_stragglers *s, int slowest, bool late)
{
    if (!late || slowest != s->late_rank)
        s->late_steps = 0;
    s->late_rank = slowest;
    s->late_steps += late;
    if (s->told || s->late_steps < LATE_STEPS)
        return false;
    s->told = true;
    return true;
}

bool ddp_stragglers_step(ddp_stragglers *s, const ddp_step_stats *stats, ddp_straggler *late_out)
{
    int64_t sum = 0, most = -1;
    int slowest = 0;

    for (int r = 0; r < s->world; r++) {
        int64_t ns[DDP_PARTS];
        parts_of(&stats->ranks[r], ns);
        for (int i = 0; i < DDP_PARTS; i++)
            s->ranks[r].part_ns[i] += ns[i];
        const int64_t own = total(ns);
        sum += own;
        if (own > most) {
            most = own;
            slowest = r;
        }
    }
    s->steps++;
    s->ranks[slowest].slowest_steps++;
    const double mean = (double)sum / s->world;
    return follow(s, slowest, s->world > 1 && (double)most > LATE_SHARE * mean) &&
           ddp_stragglers_get(s, late_out);
}

/* The part in which a rank is furthest above the mean of all. */
static ddp_step_part worst_part(const ddp_stragglers *s, int rank)
{
    double worst = -1;
    int part = DDP_PART_OTHER;

    for (int i = 0; i < DDP_PARTS; i++) {
        double mean = 0;
        for (int r = 0; r < s->world; r++)
            mean += (double)s->ranks[r].part_ns[i] / s->world;
        const double above = (double)s->ranks[rank].part_ns[i] - mean;
        if (above > worst) {
            worst = above;
            part = i;
        }
    }
    return (ddp_step_part)part;
}

bool ddp_stragglers_get(const ddp_stragglers *s, ddp_straggler *out)
{
    double mean = 0;
    int slowest = 0;

    if (s->steps == 0 || s->world < 2)
        return false;
    for (int r = 0; r < s->world; r++) {
        mean += ddp_stragglers_own_ms(s, r) / s->world;
        if (ddp_stragglers_own_ms(s, r) > ddp_stragglers_own_ms(s, slowest))
            slowest = r;
    }
    *out = (ddp_straggler){.rank = slowest,
                           .part = worst_part(s, slowest),
                           .own_ms = ddp_stragglers_own_ms(s, slowest),
                           .mean_ms = mean,
                           .slowest_steps = s->ranks[slowest].slowest_steps,
                           .steps = s->steps};
    return true;
}

double ddp_stragglers_own_ms(const ddp_stragglers *s, int rank)
{
    return s->steps > 0 ? (double)total(s->ranks[rank].part_ns) * 1e-6 / (double)s->steps : 0;
}

void ddp_stragglers_reset(ddp_stragglers *s)
{
    const int world = s->world;

    memset(s, 0, sizeof *s + (size_t)world * sizeof(rank_sums));
    s->world = world;
}
