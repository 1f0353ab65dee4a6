/* optim.c - an optimizer's pass against the time that its bytes need at the bandwidth of copies.
 *
 *   mpirun -np N bench_optim [--params 11.2,25.6] [--samples N]
 *
 * --params is in millions of parameters; each of N ranks updates its share of them, as training
 * does with the slices that it owns, in buffers from where training has them. A sample is a
 * barrier, the time, the update, the time; the slowest rank's time counts. Samples take turns with
 * copies of all ranks at once, between private buffers of 64 MiB: by memcpy, and by a loop that
 * scales on the way, which does not write around the caches. copy is the bytes that the faster of
 * the two reads and writes a second. ratio is the median time over bytes / copy, bytes being what
 * the rule must read and write for an element: sgd with momentum 20 (w and buffer both ways,
 * gradient), adamw 28 (w and two moments both ways, gradient), lars 28 (norms read w and gradient
 * once more), lamb 40 (the moments' pass 24, the weights' pass 16). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ddp/comm.h"
#include "ddp/memory.h"
#include "ddp/optim.h"
#include "ddp/thread.h"

#define COPY_BYTES  ((size_t)64 << 20)
#define MAX_SAMPLES 200

typedef struct bench {
    ddp_comm *comm;
    ddp_device *device;
    float *copy_src, *copy_dst;
    int samples;
} bench;

typedef struct rule {
    const char *name;
    ddp_optim_kind kind;
    double momentum;
    int bytes; /* an element */
} rule;

static const rule rules[] = {
    {"sgd, momentum", DDP_OPTIM_SGD, 0.9, 20},
    {"adamw", DDP_OPTIM_ADAMW, 0, 28},
    {"lars", DDP_OPTIM_LARS, 0.9, 28},
    {"lamb", DDP_OPTIM_LAMB, 0, 40},
};

typedef struct update {
    ddp_optim *optim;
    float *params, *grads;
    ddp_range range;
} update;

/* ---- samples ---- */

static double since(int64_t begin_ns)
{
    return (double)(ddp_now_ns() - begin_ns) * 1e-9;
}

static ddp_status slowest(bench *b, double *seconds)
{
    return ddp_comm_allreduce(b->comm, seconds, 1, DDP_F64, DDP_REDUCE_MAX, "times");
}

static void scale(float *restrict dst, const float *restrict src, float factor)
{
    for (size_t i = 0; i < COPY_BYTES / sizeof *dst; i++)
        dst[i] = factor * src[i];
}

static ddp_status sample_copy(bench *b, bool scales, double *seconds_out)
{
    DDP_TRY(ddp_comm_barrier(b->comm));
    int64_t begin_ns = ddp_now_ns();
    if (scales)
        scale(b->copy_dst, b->copy_src, 0.5f);
    else
        memcpy(b->copy_dst, b->copy_src, COPY_BYTES);
    *seconds_out = since(begin_ns);
    b->copy_src[b->samples] += b->copy_dst[0]; /* nobody may leave the copy out */
    return slowest(b, seconds_out);
}

/* The norms are this rank's own here: adding them over ranks is not the pass. */
static ddp_status sample_update(bench *b, update *u, double *seconds_out)
{
    ddp_stream *stream = ddp_device_main_stream(b->device);
    double grad_sq = 0;
    size_t sums;
    DDP_TRY(ddp_comm_barrier(b->comm));
    int64_t begin_ns = ddp_now_ns();
    ddp_optim_begin(u->optim, 1e-3, 1.0 / 256);
    for (bool again = ddp_optim_measures(u->optim); again;) {
        DDP_TRY(ddp_optim_measure(u->optim, stream, u->params, u->grads, u->range, true));
        DDP_TRY(ddp_optim_fetch(u->optim, stream));
        DDP_TRY(ddp_stream_sync(stream));
        (void)ddp_optim_sums(u->optim, &sums);
        again = ddp_optim_decide(u->optim);
    }
    DDP_TRY(ddp_optim_update(u->optim, stream, u->params, u->grads, u->range, &grad_sq));
    ddp_optim_end(u->optim);
    DDP_TRY(ddp_stream_sync(stream));
    *seconds_out = since(begin_ns);
    return slowest(b, seconds_out);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

/* ---- a row ---- */

static ddp_status measure(bench *b, update *u, const rule *r, double millions)
{
    double copies[2][MAX_SAMPLES], updates[MAX_SAMPLES], unused;
    const int world = ddp_comm_world(b->comm);
    DDP_TRY(sample_copy(b, false, &unused));
    DDP_TRY(sample_update(b, u, &unused));
    for (int i = 0; i < b->samples; i++) {
        DDP_TRY(sample_copy(b, false, &copies[0][i]));
        DDP_TRY(sample_copy(b, true, &copies[1][i]));
        DDP_TRY(sample_update(b, u, &updates[i]));
    }
    double plain = median(copies[0], b->samples), scaled = median(copies[1], b->samples);
    double copy = 2.0 * (double)COPY_BYTES * world / (plain < scaled ? plain : scaled);
    double seconds = median(updates, b->samples);
    double need = millions * 1e6 * r->bytes / copy;
    if (ddp_comm_rank(b->comm) == 0)
        printf("| %d | %.1f | %s | %.2f | %.1f | %.1f | %.2f |\n", world, millions, r->name,
               seconds * 1e3, millions * 1e6 * r->bytes / seconds * 1e-9, copy * 1e-9,
               seconds / need);
    return DDP_OK;
}

static ddp_status make_table(bench *b, int64_t count, ddp_param_table **table_out)
{
    ddp_param p = {.name = "weight",
                   .shape = {1, {count}},
                   .use_count = 1,
                   .flags = DDP_PARAM_TRAINABLE | DDP_PARAM_DECAY};
    int index;
    DDP_TRY(ddp_param_table_create(table_out));
    DDP_TRY(ddp_layout_plain(b->device, &p.shape, &p.layout));
    ddp_status st = ddp_param_table_add(*table_out, &p, &index);
    ddp_layout_unref(p.layout);
    return st;
}

static ddp_status run_rule(bench *b, const rule *r, double millions)
{
    ddp_optim_opts opts = DDP_OPTIM_OPTS_DEFAULTS;
    ddp_param_table *table;
    void *memory;
    update u;
    opts.kind = r->kind;
    opts.momentum = r->momentum;
    opts.weight_decay = 1e-4;
    DDP_TRY(make_table(b, (int64_t)(millions * 1e6), &table));
    DDP_TRY(ddp_optim_create(&opts, b->device, table, &u.optim));
    const size_t length = ddp_param_table_length(table);
    const size_t rank = (size_t)ddp_comm_rank(b->comm), world = (size_t)ddp_comm_world(b->comm);
    u.range = (ddp_range){length * rank / world / 16 * 16, length * (rank + 1) / world / 16 * 16};
    DDP_TRY(ddp_comm_mem_alloc(b->comm, length * sizeof(float), &memory));
    u.params = memory;
    DDP_TRY(ddp_comm_mem_alloc(b->comm, length * sizeof(float), &memory));
    u.grads = memory;
    for (size_t i = u.range.lo; i < u.range.hi; i++) {
        u.params[i] = (float)(i % 1021) * 1e-3f - 0.5f;
        u.grads[i] = (float)(i % 1013) * 1e-2f - 5;
    }
    ddp_status st = measure(b, &u, r, millions);
    ddp_comm_mem_free(b->comm, u.grads);
    ddp_comm_mem_free(b->comm, u.params);
    ddp_optim_destroy(u.optim);
    ddp_param_table_destroy(table);
    return st;
}

/* ---- the run ---- */

static ddp_status run_all(bench *b, const char *sizes)
{
    void *memory;
    DDP_TRY(ddp_device_alloc(b->device, COPY_BYTES, &memory));
    b->copy_src = memory;
    DDP_TRY(ddp_device_alloc(b->device, COPY_BYTES, &memory));
    b->copy_dst = memory;
    for (const char *at = sizes; *at != 0;) {
        char *end;
        double millions = strtod(at, &end);
        if (end == at || !(millions > 0))
            return DDP_FAIL(DDP_ERR_USAGE, "--params %s: expected numbers with commas between",
                            sizes);
        for (size_t r = 0; r < sizeof rules / sizeof *rules; r++)
            DDP_TRY(run_rule(b, &rules[r], millions));
        at = *end == ',' ? end + 1 : end;
    }
    ddp_device_free(b->device, b->copy_src, COPY_BYTES);
    ddp_device_free(b->device, b->copy_dst, COPY_BYTES);
    return DDP_OK;
}

int main(int argc, char **argv)
{
    bench b = {.samples = 30};
    ddp_comm_opts comm_opts = DDP_COMM_OPTS_DEFAULTS;
    ddp_device_opts device_opts = DDP_DEVICE_OPTS_DEFAULTS;
    const char *sizes = "11.2,25.6";
    ddp_status st = ddp_comm_mpi_open(&comm_opts, &argc, &argv, &b.comm);
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--params") == 0)
            sizes = argv[i + 1];
        else if (strcmp(argv[i], "--samples") == 0)
            b.samples = atoi(argv[i + 1]);
    }
    if (b.samples < 1 || b.samples > MAX_SAMPLES)
        b.samples = MAX_SAMPLES;
    if (st == DDP_OK)
        st = ddp_device_open(ddp_device_cpu(), &device_opts, &b.device);
    if (st == DDP_OK)
        st = run_all(&b, sizes);
    if (st != DDP_OK)
        fprintf(stderr, "bench_optim: %s\n", ddp_status_message());
    ddp_device_close(b.device);
    ddp_comm_close(b.comm);
    return st == DDP_OK ? 0 : 1;
}
