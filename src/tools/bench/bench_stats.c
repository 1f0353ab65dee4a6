/* bench_stats.c - order statistics of samples. */
#include <stdlib.h>

#include "tools/bench/bench_util.h"

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double quantile(const double *sorted, int count, double q)
{
    double at = q * (count - 1);
    int low = (int)at, high = low + 1 < count ? low + 1 : low;

    return sorted[low] + (at - low) * (sorted[high] - sorted[low]);
}

ddpi_bench_stats ddpi_bench_measure(double *values, int count)
{
    double sum = 0;

    if (count <= 0)
        return (ddpi_bench_stats){.count = 0};
    qsort(values, (size_t)count, sizeof *values, compare);
    for (int i = 0; i < count; i++)
        sum += values[i];
    return (ddpi_bench_stats){.count = count,
                              .min = values[0],
                              .p25 = quantile(values, count, 0.25),
                              .median = quantile(values, count, 0.5),
                              .p75 = quantile(values, count, 0.75),
                              .p90 = quantile(values, count, 0.9),
                              .max = values[count - 1],
                              .mean = sum / count};
}
