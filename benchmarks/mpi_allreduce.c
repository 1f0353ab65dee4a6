/* mpi_allreduce.c - the time of MPI_Allreduce called by itself, without any of this project's code
 * around it: what ddp_bench allreduce is compared with.
 *
 *   mpirun -np N bench_mpi_allreduce BYTES[,BYTES...] SECONDS
 *
 * Samples as in ddp_bench allreduce: sums of f32 in place; clear the buffer, barrier, take the
 * time, reduce, take the time; the slowest rank's time counts. One line a size: bytes, median
 * seconds. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SAMPLES 10000
#define MIN_SAMPLES 5
#define WARMUPS     2
#define MAX_BYTES   ((size_t)4 << 30)

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double sample(float *buf, size_t bytes)
{
    memset(buf, 0, bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime();
    MPI_Allreduce(MPI_IN_PLACE, buf, (int)(bytes / sizeof(float)), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
    return MPI_Wtime() - begin;
}

static double median_of(float *buf, size_t bytes, double min_time)
{
    static double seconds[MAX_SAMPLES];
    double warm = 0;

    for (int i = 0; i < WARMUPS; i++)
        warm = sample(buf, bytes);
    MPI_Allreduce(MPI_IN_PLACE, &warm, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    double wanted = min_time / (warm > 1e-9 ? warm : 1e-9);
    int count = wanted > MAX_SAMPLES   ? MAX_SAMPLES
                : wanted < MIN_SAMPLES ? MIN_SAMPLES
                                       : (int)wanted;
    for (int i = 0; i < count; i++)
        seconds[i] = sample(buf, bytes);
    MPI_Allreduce(MPI_IN_PLACE, seconds, count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    qsort(seconds, (size_t)count, sizeof *seconds, compare);
    return (seconds[(count - 1) / 2] + seconds[count / 2]) / 2;
}

/* The next size of the list; 0: it is none. */
static size_t next_size(char **text)
{
    char *end;
    unsigned long long bytes = strtoull(*text, &end, 10);

    if (end == *text || bytes < sizeof(float) || bytes > MAX_BYTES || (*end != ',' && *end != 0))
        return 0;
    *text = *end == ',' ? end + 1 : end;
    return (size_t)bytes;
}

static int run(char *sizes, double min_time)
{
    int rank;

    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    while (*sizes != 0) {
        size_t bytes = next_size(&sizes);
        float *buf = bytes > 0 ? malloc(bytes) : NULL;
        if (buf == NULL)
            return 2;
        double seconds = median_of(buf, bytes, min_time);
        if (rank == 0)
            printf("%zu %.9f\n", bytes, seconds);
        free(buf);
    }
    return 0;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    double min_time = argc == 3 ? strtod(argv[2], NULL) : 0;
    int code = min_time > 0 ? run(argv[1], min_time) : 2;
    if (code != 0)
        fprintf(stderr, "bench_mpi_allreduce: expected BYTES[,BYTES...] and SECONDS\n");
    MPI_Finalize();
    return code;
}
