/* predict_sum.c - how long sums take, and how much later the slowest of many ranks comes. See
 * predict.h for the formulas. */
#include <math.h>

#include "ddp/rng.h"
#include "tools/bench/predict.h"

static int log2_down(int64_t n)
{
    int log = 0;

    while (n >> (log + 1) > 0)
        log++;
    return log;
}

static int log2_up(int64_t n)
{
    const int down = log2_down(n);

    return (INT64_C(1) << down) < n ? down + 1 : down;
}

ddpi_sum_shape ddpi_sum_shape_of(ddpi_sum_algo algo, int64_t ranks)
{
    const double n = (double)ranks;
    const int down = log2_down(ranks), up = log2_up(ranks);
    const double core = (double)(INT64_C(1) << down);

    if (ranks == 1)
        return (ddpi_sum_shape){0, 0};
    switch (algo) {
    case DDPI_SUM_RING:
        return (ddpi_sum_shape){2 * (n - 1), 2 * (n - 1) / n};
    case DDPI_SUM_TREE:
        return (ddpi_sum_shape){2 * up, 2 * up};
    case DDPI_SUM_RHD:
    case DDPI_SUM_BEST:
        break;
    }
    const double more = down < up ? 2 : 0;
    return (ddpi_sum_shape){2 * down + more, 2 * (core - 1) / core + more};
}

ddpi_sum_net ddpi_sum_net_line(double latency, double bytes_per_second)
{
    return (ddpi_sum_net){.link = ddp_cost_curve_line(latency, bytes_per_second),
                          .reference = {1, 1},
                          .local_latency = 1e-6,
                          .local_bytes_per_second = 10e9,
                          .per_host = 1};
}

/* The curve is a latency, its first point, and the rest, which grows with bytes. */
static double over_link(const ddpi_sum_net *net, ddpi_sum_shape shape, double bytes)
{
    const double latency = ddp_cost_seconds(&net->link, 0);
    const double rest = ddp_cost_seconds(&net->link, bytes) - latency;

    return latency * shape.latencies / net->reference.latencies +
           rest * shape.volumes / net->reference.volumes;
}

static double over_host(const ddpi_sum_net *net, ddpi_sum_shape shape, double bytes)
{
    return shape.latencies * net->local_latency +
           shape.volumes * bytes / net->local_bytes_per_second;
}

static double seconds_of(const ddpi_sum_net *net, ddpi_sum_algo algo, bool two_levels,
                         int64_t ranks, double bytes)
{
    const int64_t local = ranks < net->per_host ? ranks : net->per_host;
    const int64_t hosts = (ranks + local - 1) / local;
    const ddpi_sum_shape inside = ddpi_sum_shape_of(two_levels ? DDPI_SUM_RING : algo, local);

    if (!two_levels && algo == DDPI_SUM_RING && hosts > 1) {
        const ddpi_sum_shape ring = ddpi_sum_shape_of(algo, ranks);
        const double between = over_link(net, ring, bytes);
        return local > 1 ? fmax(between, over_host(net, ring, bytes)) : between;
    }
    return over_link(net, ddpi_sum_shape_of(algo, hosts), bytes) + over_host(net, inside, bytes);
}

ddp_cost_curve ddpi_sum_curve(const ddpi_sum_net *net, ddpi_sum_algo algo, bool two_levels,
                              int64_t ranks)
{
    ddp_cost_curve curve = {0};
    const double first = 256, last = 1 << 30;

    for (double bytes = 0; bytes <= last; bytes = bytes == 0 ? first : bytes * 2) {
        double seconds = INFINITY;
        for (int a = DDPI_SUM_RING; a < DDPI_SUM_BEST; a++)
            if (algo == DDPI_SUM_BEST || (int)algo == a)
                seconds =
                    fmin(seconds, seconds_of(net, (ddpi_sum_algo)a, two_levels, ranks, bytes));
        ddp_cost_curve_add(&curve, bytes, seconds);
    }
    return curve;
}

/* ---- stragglers ---- */

/* What a normal number exceeds with probability `tail`. */
static double quantile(double tail)
{
    double low = -40, high = 40;

    for (int i = 0; i < 100; i++) {
        const double mid = (low + high) / 2;
        if (erfc(mid / sqrt(2)) / 2 > tail)
            low = mid;
        else
            high = mid;
    }
    return low;
}

double ddpi_slowest(int64_t ranks, uint64_t seed, int draws)
{
    const ddp_rng rng = ddp_rng_make(seed, DDP_RNG_TEST, 0);
    double sum = 0;

    if (ranks == 1)
        return 0;
    /* All n stay below x with probability p(x)^n, so one draw gives the largest of them. Two draws
     * that lie opposite each other halve the noise. */
    for (int i = 0; i < draws; i++) {
        const double u = ((double)ddp_rng_u32(&rng, (uint64_t)i / 2) + 0.5) * 0x1p-32;
        sum += quantile(-expm1(log(i % 2 == 0 ? u : 1 - u) / (double)ranks));
    }
    return sum / draws;
}
