/* comm_memory.c - memory that the ranks of a node share.
 *
 * The node's first rank makes a segment and says in an allgather how it is called; the others
 * attach; then all ranks of the world agree on how that went, so that either all nodes have got
 * their segment or none. Only collectives of the whole world are used, so the ranks of one node
 * need no communicator of their own. A window is one segment with a part for each rank; where it is
 * not to be had, mem_alloc falls back to private memory, on all ranks alike. Rank's thread only. */
#include <stdio.h>
#include <string.h>

#include "comm/comm_impl.h"
#include "comm/shm_region.h"
#include "ddp/log.h"
#include "ddp/memory.h"

typedef struct offer {
    int32_t status; /* of making the segment */
    int32_t node;
    uint64_t bytes;
    char name[DDPI_SEGMENT_NAME_BYTES];
    char message[192];
} offer;

/* ---- segments ---- */

void ddpi_segment_free(ddp_comm *comm, ddpi_segment *s)
{
    if (s->lane)
        comm->lane->ops->mem_free(comm->lane, s->base, s->bytes);
    else if (s->name[0] != '\0')
        comm->backend->segment_detach(comm, s);
    else
        ddp_large_free(s->base, s->bytes);
    ddp_free(s);
}

void ddpi_comm_segments_free(ddp_comm *comm, bool lane)
{
    for (ddpi_segment **at = &comm->segments; *at != NULL;) {
        ddpi_segment *s = *at;
        if (s->lane != lane) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        ddpi_segment_free(comm, s);
    }
}

static void keep(ddp_comm *comm, ddpi_segment *s, void *part)
{
    s->part = part;
    s->next = comm->segments;
    comm->segments = s;
}

static ddpi_segment *take(ddp_comm *comm, const void *part)
{
    for (ddpi_segment **at = &comm->segments; *at != NULL; at = &(*at)->next) {
        ddpi_segment *s = *at;
        if (s->part != part)
            continue;
        *at = s->next;
        return s;
    }
    return NULL;
}

/* What the first rank of this node offers. */
static const offer *find_offer(const ddp_comm *comm, const offer *all)
{
    for (int r = 0; r < comm->world; r++) {
        if (all[r].node == comm->node)
            return &all[r];
    }
    return NULL;
}

/* On failure *s has no name and nothing is mapped, on any rank. */
static ddp_status share(ddp_comm *comm, ddpi_segment *s, offer *all)
{
    offer mine = {.node = comm->node, .bytes = s->bytes};
    ddp_status status = DDP_OK;

    if (comm->node_rank == 0) {
        status = comm->backend->segment_create(comm, s);
        mine.status = (int32_t)status;
        mine.bytes = s->bytes;
        memcpy(mine.name, s->name, sizeof mine.name);
        if (status != DDP_OK)
            snprintf(mine.message, sizeof mine.message, "%s", ddp_status_message());
    }
    bool mapped = comm->node_rank == 0 && status == DDP_OK;
    ddp_status told = ddp_comm_allgather(comm, &mine, sizeof mine, all);
    if (told == DDP_OK && comm->node_rank != 0) {
        const offer *o = find_offer(comm, all);
        s->bytes = o->bytes;
        memcpy(s->name, o->name, sizeof s->name);
        status = o->status == DDP_OK
                     ? comm->backend->segment_attach(comm, s)
                     : ddp_status_set((ddp_status)o->status, NULL, 0, "%s", o->message);
        mapped = status == DDP_OK;
    }
    if (told == DDP_OK)
        told = ddp_comm_agree(comm, status, "share memory");
    if (mapped)
        comm->backend->segment_settled(comm, s);
    if (told != DDP_OK && mapped) {
        comm->backend->segment_detach(comm, s);
        s->name[0] = '\0';
    }
    return told;
}

static ddp_status share_new(ddp_comm *comm, size_t bytes, ddpi_segment **segment_out)
{
    ddpi_segment *s = NULL;
    offer *all = NULL;
    ddp_status st = DDP_ALLOC(s, 1);

    if (st == DDP_OK)
        st = DDP_ALLOC(all, (size_t)comm->world);
    st = ddp_comm_agree(comm, st, "share memory");
    if (st == DDP_OK) {
        s->bytes = bytes > 0 ? bytes : 1;
        st = share(comm, s, all);
    }
    ddp_free(all);
    if (st != DDP_OK) {
        ddp_free(s);
        return st;
    }
    *segment_out = s;
    return DDP_OK;
}

/* This rank's own; lane: memory of the device. */
static ddp_status private_new(ddp_comm *comm, size_t bytes, bool lane, void **memory_out)
{
    ddpi_segment *s = NULL;
    ddp_status st = DDP_ALLOC(s, 1);

    if (st == DDP_OK) {
        s->bytes = bytes;
        s->lane = lane;
        st = lane ? comm->lane->ops->mem_alloc(comm->lane, bytes, &s->base)
                  : ddp_large_alloc(bytes, &s->base);
    }
    bool got = st == DDP_OK;
    st = ddp_comm_agree(comm, st, "allocate memory");
    if (st != DDP_OK) {
        if (got)
            ddpi_segment_free(comm, s);
        else
            ddp_free(s);
        return st;
    }
    keep(comm, s, s->base);
    *memory_out = s->base;
    return DDP_OK;
}

/* ---- windows ---- */

/* Whose windows there are. A team's is the engine's, which is idle after a collective: no other
 * work is in flight then. */
static ddpi_shm_group *group_of(const ddp_comm *comm)
{
    return comm->group == NULL && comm->team != NULL ? comm->team->group : comm->group;
}

static ddp_status window_new(ddp_comm *comm, size_t bytes, void **memory_out)
{
    ddpi_shm_group *group = group_of(comm);
    size_t part_bytes = ddpi_shm_page_round(bytes > 0 ? bytes : 1);
    ddpi_segment *s;
    void **bases = NULL;
    size_t total;

    if (__builtin_mul_overflow(part_bytes, (size_t)comm->node_size, &total))
        return DDP_FAIL(DDP_ERR_NOMEM, "%zu bytes for each of %d ranks are too many", part_bytes,
                        comm->node_size);
    DDP_TRY(share_new(comm, total, &s));
    char *own = (char *)s->base + (size_t)comm->node_rank * part_bytes;
    /* Each rank takes the page faults of its own part. */
    memset(own, 0, part_bytes);
    ddp_status st = DDP_ALLOC(bases, (size_t)comm->node_size);
    for (int i = 0; st == DDP_OK && i < comm->node_size; i++)
        bases[i] = (char *)s->base + (size_t)i * part_bytes;
    if (st == DDP_OK)
        st = ddpi_shm_window_add(group, bases, part_bytes);
    ddp_free(bases);
    bool added = st == DDP_OK;
    st = ddp_comm_agree(comm, st, "add a window");
    if (st != DDP_OK) {
        if (added)
            ddpi_shm_window_remove(group, own);
        ddpi_segment_free(comm, s);
        return st;
    }
    s->window = true;
    comm->windows += comm->group != NULL;
    keep(comm, s, own);
    *memory_out = own;
    return DDP_OK;
}

ddp_status ddp_comm_mem_alloc(ddp_comm *comm, size_t bytes, void **memory_out)
{
    if (comm->lane != NULL)
        return private_new(comm, bytes, /*lane*/ true, memory_out);
    if (group_of(comm) == NULL || comm->world == 1 || !ddpi_comm_wants_shm(comm))
        return private_new(comm, bytes, /*lane*/ false, memory_out);
    ddp_status st = window_new(comm, bytes, memory_out);
    if (st == DDP_OK || ddpi_comm_failed(comm))
        return st;
    if (comm->rank == 0)
        ddp_warn("gradients cannot live in shared memory and are exchanged by slower means: %s",
                 ddp_status_message());
    return private_new(comm, bytes, /*lane*/ false, memory_out);
}

void ddp_comm_mem_free(ddp_comm *comm, void *memory)
{
    if (memory == NULL)
        return;
    ddpi_segment *s = take(comm, memory);
    DDP_ASSERT(s != NULL);
    if (s->window) {
        /* Others may still be at work in this rank's part. */
        if (!ddpi_comm_failed(comm))
            (void)!ddp_comm_barrier(comm);
        ddpi_shm_window_remove(group_of(comm), memory);
        comm->windows -= comm->group != NULL;
    }
    ddpi_segment_free(comm, s);
}

/* ---- one memory for a node ---- */

ddp_status ddp_comm_node_alloc(ddp_comm *comm, size_t bytes, void **memory_out)
{
    ddpi_segment *s;

    if (comm->node_count == comm->world)
        return private_new(comm, bytes, /*lane*/ false, memory_out);
    DDP_TRY(share_new(comm, bytes, &s));
    keep(comm, s, s->base);
    *memory_out = s->base;
    return DDP_OK;
}

void ddp_comm_node_free(ddp_comm *comm, void *memory)
{
    if (memory == NULL)
        return;
    ddpi_segment *s = take(comm, memory);
    DDP_ASSERT(s != NULL);
    ddpi_segment_free(comm, s);
}
