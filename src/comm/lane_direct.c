/* lane_direct.c - collectives whose messages are sent from and received into device memory, by a
 * transport that can do that.
 *
 * The algorithms are those of host memory. Where they add, the device does, on a stream of its own;
 * a segment may be sent on or received over only when that is done, so the engine waits for it. The
 * transport's own collectives never get device memory: they are where libraries that claim to know
 * it go wrong. ddp_comm_probe_lane() finds out whether this one keeps its word. Engine's thread,
 * but for create, destroy and the probe. */
#include "comm/lane_direct.h"

#include "comm/lane_staged.h"
#include "ddp/memory.h"
#include "ddp/pointwise.h"

struct ddpi_direct {
    ddp_device *device;
    ddp_stream *stream;
    ddp_event *added;
    void *scratch;  /* what the engine's is for host memory */
    float *wide[2]; /* the two addends in f32, of a segment of bf16 */
};

/* ---- additions ---- */

static ddp_status add_bf16(ddpi_direct *d, uint16_t *dst, const uint16_t *src, size_t count)
{
    DDP_TRY(ddp_op_from_bf16(d->device, d->stream, d->wide[0], dst, count, 1));
    DDP_TRY(ddp_op_from_bf16(d->device, d->stream, d->wide[1], src, count, 1));
    DDP_TRY(ddp_op_add(d->device, d->stream, d->wide[0], d->wide[1], count));
    return ddp_op_to_bf16(d->device, d->stream, dst, d->wide[0], count, 1);
}

static ddp_status combine(void *arg, ddpi_algo *algo, void *dst, const void *src, size_t count)
{
    ddpi_direct *d = arg;

    if (count == 0)
        return DDP_OK;
    if (algo->work->coll.dtype == DDP_BF16)
        DDP_TRY(add_bf16(d, dst, src, count));
    else
        DDP_TRY(ddp_op_add(d->device, d->stream, dst, src, count));
    DDP_TRY(ddp_event_record(d->added, d->stream));
    return ddpi_algo_await(algo, d->added);
}

static bool is_own(ddp_allreduce_algo choice)
{
    return choice != DDP_ALLREDUCE_MPI && choice != DDP_ALLREDUCE_SHM &&
           choice != DDP_ALLREDUCE_HIER;
}

ddp_status ddpi_direct_run(ddpi_direct *d, ddpi_algo *algo, ddp_allreduce_algo choice)
{
    void *const before = algo->scratch;

    algo->scratch = d->scratch;
    algo->combine = combine;
    algo->combine_arg = d;
    ddp_status st = ddpi_algo_run(algo, is_own(choice) ? choice : DDP_ALLREDUCE_AUTO);
    algo->combine = NULL;
    algo->scratch = before;
    return st;
}

/* ---- life ---- */

static ddp_status create_parts(ddpi_direct *d)
{
    void *memory;

    DDP_TRY(ddp_stream_create(d->device, "comm-direct", &d->stream));
    DDP_TRY(ddp_event_create(d->device, &d->added));
    DDP_TRY(ddp_device_alloc(d->device, DDPI_SCRATCH_BYTES, &d->scratch));
    for (int i = 0; i < 2; i++) {
        DDP_TRY(ddp_device_alloc(d->device, 2 * DDPI_SEGMENT_BYTES, &memory));
        d->wide[i] = memory;
    }
    return DDP_OK;
}

ddp_status ddpi_direct_create(ddp_device *device, ddpi_direct **direct_out)
{
    ddpi_direct *d;

    DDP_TRY(DDP_ALLOC(d, 1));
    d->device = device;
    ddp_status st = create_parts(d);
    if (st != DDP_OK) {
        ddpi_direct_destroy(d);
        return st;
    }
    *direct_out = d;
    return DDP_OK;
}

void ddpi_direct_destroy(ddpi_direct *d)
{
    if (d == NULL)
        return;
    for (int i = 0; i < 2; i++)
        if (d->wide[i] != NULL)
            ddp_device_free(d->device, d->wide[i], 2 * DDPI_SEGMENT_BYTES);
    if (d->scratch != NULL)
        ddp_device_free(d->device, d->scratch, DDPI_SCRATCH_BYTES);
    ddp_event_destroy(d->added);
    ddp_stream_destroy(d->stream);
    ddp_free(d);
}
