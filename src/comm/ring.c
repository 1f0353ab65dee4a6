/* ring.c - the last works of a rank, and what is told of them after a failure. */
#include "comm/ring.h"

#include <stdatomic.h>
#include <stdio.h>

#include "comm/comm_impl.h"

#define STORE(field, value) atomic_store_explicit(&(field), (value), memory_order_relaxed)
/* Not to be moved behind the second look at the key. */
#define LOAD(field) atomic_load_explicit(&(field), memory_order_acquire)

void ddpi_ring_begin(ddpi_ring *ring, const ddp_work *work, int64_t step)
{
    ddpi_ring_entry *e = &ring->entries[work->seq % DDP_WORK_RECORDS];

    STORE(e->key, 0);
    atomic_thread_fence(memory_order_release);
    STORE(e->step, step);
    STORE(e->bytes, (int64_t)(work->coll.count * ddp_dtype_bytes(work->coll.dtype)));
    STORE(e->submit_ns, work->submit_ns);
    STORE(e->start_ns, 0);
    STORE(e->end_ns, 0);
    STORE(e->what, work->coll.what);
    STORE(e->kind, (int32_t)work->coll.kind);
    STORE(e->bucket, work->coll.bucket);
    atomic_store_explicit(&e->key, work->seq + 1, memory_order_release);
}

void ddpi_ring_end(ddpi_ring *ring, const ddp_work *work)
{
    ddpi_ring_entry *e = &ring->entries[work->seq % DDP_WORK_RECORDS];

    if (LOAD(e->key) != work->seq + 1)
        return;
    STORE(e->start_ns, work->start_ns);
    STORE(e->end_ns, work->end_ns);
}

static bool read_entry(const ddpi_ring_entry *e, uint64_t seq, ddp_work_record *record_out)
{
    if (LOAD(e->key) != seq + 1)
        return false;
    *record_out = (ddp_work_record){.seq = seq,
                                    .kind = ddpi_side_kind_name(LOAD(e->kind)),
                                    .what = LOAD(e->what),
                                    .bytes = LOAD(e->bytes),
                                    .bucket = LOAD(e->bucket),
                                    .step = LOAD(e->step),
                                    .submit_ns = LOAD(e->submit_ns),
                                    .start_ns = LOAD(e->start_ns),
                                    .end_ns = LOAD(e->end_ns)};
    return LOAD(e->key) == seq + 1;
}

int ddpi_ring_read(const ddpi_ring *ring, uint64_t next_seq,
                   ddp_work_record records_out[DDP_WORK_RECORDS])
{
    uint64_t seq = next_seq > DDP_WORK_RECORDS ? next_seq - DDP_WORK_RECORDS : 0;
    int count = 0;

    for (; seq < next_seq; seq++)
        count += read_entry(&ring->entries[seq % DDP_WORK_RECORDS], seq, &records_out[count]);
    return count;
}

/* ---- for those who write it down ---- */

int ddp_comm_records(const ddp_comm *comm, ddp_work_record records_out[DDP_WORK_RECORDS])
{
    return ddpi_ring_read(&comm->ring, __atomic_load_n(&comm->next_seq, __ATOMIC_ACQUIRE),
                          records_out);
}

bool ddp_comm_cause(const ddp_comm *comm, char *text, size_t text_bytes)
{
    bool failed = ddpi_comm_failed(comm);

    snprintf(text, text_bytes, "%s", failed ? comm->cause : "");
    return failed && !__atomic_load_n(&comm->heard, __ATOMIC_ACQUIRE);
}

static bool find_view(const ddp_comm *comm, int rank, ddpi_side_view *view_out)
{
    for (int i = 0; comm->side != NULL && i < ddpi_side_count(comm->side); i++) {
        ddpi_side_view_get(comm->side, i, view_out);
        if (view_out->present && view_out->rank == rank)
            return true;
    }
    return false;
}

bool ddp_comm_describe(const ddp_comm *comm, int rank, char *text, size_t text_bytes)
{
    ddpi_side_view view;
    char work[128] = "none";

    if (!find_view(comm, rank, &view))
        return false;
    if (view.entered > 0)
        ddpi_side_work_format(view.kind, view.entered - 1, view.what, view.bucket, work,
                              sizeof work);
    snprintf(text, text_bytes, "rank %d on %s (pid %lld): at step %lld in %s; last work: %s, %s%s",
             rank, view.host, (long long)view.pid, (long long)view.step,
             view.phase[0] != '\0' ? view.phase : "start", work,
             view.finished >= view.entered ? "complete" : "not complete",
             view.left ? "; has left in order" : "");
    return true;
}
