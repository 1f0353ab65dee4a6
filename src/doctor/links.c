/* links.c - what messages between ranks take, what a sum over all ranks takes, and how far apart
 * the hosts' clocks are.
 *
 * All ranks pass all works in the same order; which ones there are follows from numbers that all
 * ranks have got from the same rank. Pairs are measured one after the other, so that they do not
 * share a link, and only while there is time: the first ranks of all hosts with each other (of many
 * hosts, of neighbours only), then two ranks of a host. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ddp/memory.h"
#include "ddp/thread.h"
#include "doctor/doctor.h"

enum {
    PINGS = 21,
    WARM_UP = 3,
    LARGE_PINGS = 2,
    SUMS = 3,
    FULL_HOSTS = 5,
    INSIDE_PAIRS = 4,
    GOOD_PART = 4
};
#define MIB           ((size_t)1 << 20)
#define SMALL_BYTES   (16 * sizeof(char))
#define LARGE_BYTES   (16 * MIB)
#define LARGE_NS      INT64_C(30000000)   /* a MiB that takes longer is large enough */
#define LONG_SUM_S    0.3                 /* not to be done again */
#define PAIRS_TIME_NS INT64_C(3000000000) /* for all pairs */

/* ---- one pair ---- */

static int by_time(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

/* The time of so many pings on rank from: the median of short ones, the best of long ones. */
static ddp_status time_pings(ddp_comm *comm, const ddpi_doctor_link *link, void *buf, size_t bytes,
                             int64_t *ns_out)
{
    const int count = bytes < MIB ? PINGS : LARGE_PINGS, warm_up = bytes < MIB ? WARM_UP : 1;
    int64_t times[PINGS];

    for (int i = -warm_up; i < count; i++) {
        ddp_ping ping = {0};
        DDP_TRY(ddp_comm_ping(comm, link->from, link->to, buf, bytes, &ping));
        if (i >= 0)
            times[i] = ping.back_ns - ping.sent_ns;
    }
    qsort(times, (size_t)count, sizeof times[0], by_time);
    *ns_out = times[bytes < MIB ? count / 2 : 0];
    return DDP_OK;
}

/* The interface that has carried most of so many bytes since then, and how many have carried a good
 * part of them: MPI may deal a message out to several. */
static void name_ways(const ddpi_doctor_traffic *before, int count, size_t bytes,
                      ddpi_doctor_link *link)
{
    ddpi_doctor_traffic after[DDPI_DOCTOR_IFACES];
    const int now = ddpi_doctor_traffic_read(after);
    uint32_t most = 0;

    for (int i = 0; i < now; i++)
        for (int k = 0; k < count; k++) {
            const uint32_t sent = after[i].sent - before[k].sent;
            if (strcmp(after[i].name, before[k].name) != 0 || sent < (uint32_t)bytes / GOOD_PART)
                continue;
            link->ways++;
            if (sent <= most)
                continue;
            most = sent;
            memcpy(link->iface, after[i].name, sizeof link->iface);
        }
}

static ddp_status measure_pair(ddp_comm *comm, void *buf, ddpi_doctor_link *link, int64_t *spent_ns)
{
    ddpi_doctor_traffic before[DDPI_DOCTOR_IFACES];
    const bool mine = ddp_comm_rank(comm) == link->from;
    const int64_t begin_ns = ddp_now_ns();
    struct {
        ddpi_doctor_link link;
        int64_t spent_ns;
    } told = {.link = *link};
    int64_t small_ns = 0, large_ns = 0;

    DDP_TRY(time_pings(comm, link, buf, SMALL_BYTES, &small_ns));
    const int count = mine ? ddpi_doctor_traffic_read(before) : 0;
    DDP_TRY(time_pings(comm, link, buf, MIB, &large_ns));
    DDP_TRY(ddp_comm_broadcast(comm, link->from, &large_ns, sizeof large_ns));
    told.link.bytes = MIB;
    if (large_ns < LARGE_NS) {
        told.link.bytes = LARGE_BYTES;
        DDP_TRY(time_pings(comm, link, buf, LARGE_BYTES, &large_ns));
    }
    if (mine) {
        name_ways(before, count, (LARGE_PINGS + 1) * (size_t)told.link.bytes, &told.link);
        told.link.latency_s = (double)small_ns / 2e9;
        told.link.rate = large_ns > 0 ? (double)told.link.bytes / ((double)large_ns / 2e9) : 0;
        told.spent_ns = ddp_now_ns() - begin_ns;
    }
    DDP_TRY(ddp_comm_broadcast(comm, link->from, &told, sizeof told));
    *link = told.link;
    *spent_ns += told.spent_ns;
    return DDP_OK;
}

/* ---- all pairs ---- */

/* The rank of this number within a node; -1: there is none. */
static int rank_in(const ddp_comm *comm, int node, int index)
{
    for (int r = 0; r < ddp_comm_world(comm); r++)
        if (ddp_comm_node_of(comm, r) == node && index-- == 0)
            return r;
    return -1;
}

static ddp_status add_pair(ddp_comm *comm, void *buf, int from, int to, ddpi_doctor_links *out,
                           int64_t *spent_ns)
{
    ddpi_doctor_link link = {.from = from,
                             .to = to,
                             .inside = ddp_comm_node_of(comm, from) == ddp_comm_node_of(comm, to)};

    out->pair_count++;
    if (out->link_count == DDPI_DOCTOR_LINKS || *spent_ns > PAIRS_TIME_NS)
        return DDP_OK;
    DDP_TRY(measure_pair(comm, buf, &link, spent_ns));
    out->links[out->link_count++] = link;
    return DDP_OK;
}

static ddp_status measure_pairs(ddp_comm *comm, void *buf, ddpi_doctor_links *out)
{
    const int nodes = ddp_comm_node_count(comm);
    int64_t spent_ns = 0;

    for (int a = 0; a < nodes; a++)
        for (int b = a + 1; b < nodes; b++)
            if (nodes <= FULL_HOSTS || b == a + 1)
                DDP_TRY(
                    add_pair(comm, buf, rank_in(comm, a, 0), rank_in(comm, b, 0), out, &spent_ns));
    for (int node = 0; node < nodes && node < INSIDE_PAIRS; node++)
        if (rank_in(comm, node, 1) >= 0)
            DDP_TRY(add_pair(comm, buf, rank_in(comm, node, 0), rank_in(comm, node, 1), out,
                             &spent_ns));
    return DDP_OK;
}

/* ---- clocks ---- */

static int64_t real_ns(void)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static ddp_status compare_clock(ddp_comm *comm, void *buf, ddpi_doctor_clock *clock)
{
    int64_t best_ns = INT64_MAX;

    for (int i = 0; i < PINGS / 2; i++) {
        ddp_ping ping = {0};
        DDP_TRY(ddp_comm_ping(comm, 0, clock->rank, buf, SMALL_BYTES, &ping));
        const int64_t ns = ping.back_ns - ping.sent_ns, middle_ns = ping.sent_ns + ns / 2;
        if (ddp_comm_rank(comm) != 0 || ns >= best_ns)
            continue;
        best_ns = ns;
        const int64_t ago_ns = ddp_now_ns() - middle_ns;
        clock->monotonic_s = (double)(ping.stamp.monotonic_ns - middle_ns) / 1e9;
        clock->real_s = (double)(ping.stamp.real_ns - (real_ns() - ago_ns)) / 1e9;
        clock->error_s = (double)ns / 2e9;
    }
    return DDP_OK;
}

static ddp_status compare_clocks(ddp_comm *comm, void *buf, ddpi_doctor_links *out)
{
    const int nodes = ddp_comm_node_count(comm), home = ddp_comm_node_of(comm, 0);

    for (int node = 0; node < nodes && out->clock_count < DDPI_DOCTOR_CLOCKS; node++) {
        ddpi_doctor_clock *clock = &out->clocks[out->clock_count];
        if (node == home)
            continue;
        *clock = (ddpi_doctor_clock){.rank = rank_in(comm, node, 0)};
        DDP_TRY(compare_clock(comm, buf, clock));
        out->clock_count++;
    }
    return DDP_OK;
}

/* ---- sums ---- */

static ddp_status sum_once(ddp_comm *comm, ddp_stream *stream, void *memory, size_t count,
                           double *seconds)
{
    const ddp_coll coll = {.kind = DDP_COLL_ALLREDUCE,
                           .dtype = DDP_F32,
                           .buf = memory,
                           .count = count,
                           .stream = stream,
                           .bucket = -1,
                           .what = "the doctor's sum"};
    ddp_work work;

    DDP_TRY(ddp_comm_barrier(comm));
    const int64_t begin_ns = ddp_now_ns();
    DDP_TRY(ddp_comm_submit(comm, &coll, &work));
    DDP_TRY(ddp_work_wait(&work));
    *seconds = (double)(ddp_now_ns() - begin_ns) / 1e9;
    return ddp_comm_allreduce(comm, seconds, 1, DDP_F64, DDP_REDUCE_MAX, "times");
}

static ddp_status measure_sum(ddp_comm *comm, ddp_stream *stream, void *memory, size_t count,
                              ddpi_doctor_links *out)
{
    double best, now;

    DDP_TRY(sum_once(comm, stream, memory, count, &best));
    for (int i = 0; i < SUMS && best < LONG_SUM_S; i++) {
        DDP_TRY(sum_once(comm, stream, memory, count, &now));
        if (now < best)
            best = now;
    }
    out->sums[out->sum_count++] =
        (ddpi_doctor_sum){.bytes = (int64_t)(count * sizeof(float)), .seconds = best};
    return DDP_OK;
}

static ddp_status measure_sums(ddp_comm *comm, ddp_stream *stream, size_t values,
                               ddpi_doctor_links *out)
{
    const size_t mib = MIB / sizeof(float), most = values > mib ? values : mib;
    const char *lane = ddp_comm_lane_name(comm);
    void *memory;

    snprintf(out->by, sizeof out->by, "%s", lane != NULL ? lane : ddp_comm_backend_name(comm));
    DDP_TRY(ddp_comm_mem_alloc(comm, most * sizeof(float), &memory));
    ddp_status st = measure_sum(comm, stream, memory, 16, out);
    if (st == DDP_OK)
        st = measure_sum(comm, stream, memory, mib, out);
    if (st == DDP_OK && values > 0)
        st = measure_sum(comm, stream, memory, values, out);
    ddp_comm_mem_free(comm, memory);
    return st;
}

ddp_status ddpi_doctor_measure(ddp_comm *comm, ddp_stream *stream, size_t values,
                               ddpi_doctor_links *links_out)
{
    char *buf;

    *links_out = (ddpi_doctor_links){.link_count = 0};
    if (ddp_comm_world(comm) == 1)
        return DDP_OK;
    ddp_status st = DDP_ALLOC(buf, LARGE_BYTES);
    DDP_TRY(ddp_comm_agree(comm, st, "measure links"));
    st = compare_clocks(comm, buf, links_out);
    if (st == DDP_OK)
        st = measure_pairs(comm, buf, links_out);
    ddp_free(buf);
    DDP_TRY(st);
    return measure_sums(comm, stream, values, links_out);
}
