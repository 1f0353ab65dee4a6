/* loopback_comm.c - a world of ranks that are threads of one process: for tests and rehearsal.
 *
 * The ranks share a world object, which holds their mailboxes, the side channel's and the
 * shared-memory group's memory, and the segments that they share; it goes with the last of them, so
 * that a rank that leaves after a failure takes nothing away from those that are still at work. The
 * same group, engine and watchdog run over it as over processes, where the thread sanitizer sees
 * them. The world's lock guards its counts and its segments. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm_impl.h"
#include "comm/loopback/mailbox.h"
#include "ddp/memory.h"
#include "ddp/thread.h"

#define WORLD_MAX 256

typedef struct shared_segment {
    char name[DDPI_SEGMENT_NAME_BYTES];
    void *base;
    size_t bytes;
    int users;
    struct shared_segment *next;
} shared_segment;

typedef struct world {
    ddp_loopback_faults faults;
    ddpi_post *post;
    char *side_memory, *group_memory;
    ddp_monitor monitor; /* guards all below */
    int users;
    uint64_t segment_count; /* ever made; names them */
    shared_segment *segments;
} world;

typedef struct loopback_comm {
    ddp_comm base;
    world *world;
    ddpi_post_rank post;
} loopback_comm;

/* ---- the world ---- */

static void world_free(world *w)
{
    ddpi_post_destroy(w->post);
    ddp_free(w->side_memory);
    ddp_free(w->group_memory);
    ddp_monitor_destroy(&w->monitor);
    ddp_free(w);
}

static void world_leave(world *w)
{
    ddp_monitor_lock(&w->monitor);
    bool last = --w->users == 0;
    ddp_monitor_unlock(&w->monitor);
    if (last)
        world_free(w);
}

static ddp_status world_new(int ranks, const ddp_loopback_faults *faults, world **world_out)
{
    world *w;
    ddp_status st;

    DDP_TRY(DDP_ALLOC(w, 1));
    w->faults = *faults;
    st = ddp_monitor_init(&w->monitor);
    if (st != DDP_OK) {
        ddp_free(w);
        return st;
    }
    DDP_TRY_GOTO(st, ddpi_post_create(ranks, faults, &w->post), err);
    DDP_TRY_GOTO(st, DDP_ALLOC(w->side_memory, ddpi_comm_side_bytes(ranks)), err);
    DDP_TRY_GOTO(st, DDP_ALLOC(w->group_memory, ddpi_shm_control_bytes(ranks)), err);
    *world_out = w;
    return DDP_OK;
err:
    world_free(w);
    return st;
}

/* ---- segments ---- */

static world *world_of(ddp_comm *comm)
{
    return ((loopback_comm *)(void *)comm)->world;
}

static ddp_status segment_create(ddp_comm *comm, ddpi_segment *s)
{
    world *w = world_of(comm);
    shared_segment *shared;

    DDP_TRY(DDP_ALLOC(shared, 1));
    ddp_status st = ddp_large_alloc(s->bytes, &shared->base);
    if (st != DDP_OK) {
        ddp_free(shared);
        return st;
    }
    shared->bytes = s->bytes;
    shared->users = 1;
    ddp_monitor_lock(&w->monitor);
    snprintf(shared->name, sizeof shared->name, "%llu", (unsigned long long)++w->segment_count);
    shared->next = w->segments;
    w->segments = shared;
    ddp_monitor_unlock(&w->monitor);
    memcpy(s->name, shared->name, sizeof s->name);
    s->base = shared->base;
    return DDP_OK;
}

static ddp_status segment_attach(ddp_comm *comm, ddpi_segment *s)
{
    world *w = world_of(comm);
    ddp_status st = DDP_OK;

    ddp_monitor_lock(&w->monitor);
    shared_segment *shared = w->segments;
    while (shared != NULL && strcmp(shared->name, s->name) != 0)
        shared = shared->next;
    if (shared == NULL) {
        st = DDP_FAIL(DDP_ERR_NOMEM, "segment %s is gone", s->name);
    } else {
        shared->users++;
        s->base = shared->base;
    }
    ddp_monitor_unlock(&w->monitor);
    return st;
}

static void segment_settled(ddp_comm *comm, ddpi_segment *s)
{
    (void)comm;
    (void)s;
}

static void segment_detach(ddp_comm *comm, ddpi_segment *s)
{
    world *w = world_of(comm);
    shared_segment *unused = NULL;

    ddp_monitor_lock(&w->monitor);
    for (shared_segment **at = &w->segments; *at != NULL; at = &(*at)->next) {
        if (strcmp((*at)->name, s->name) != 0)
            continue;
        if (--(*at)->users == 0) {
            unused = *at;
            *at = unused->next;
        }
        break;
    }
    ddp_monitor_unlock(&w->monitor);
    if (unused == NULL)
        return;
    ddp_large_free(unused->base, unused->bytes);
    ddp_free(unused);
}

/* ---- life ---- */

static ddp_status admit(ddp_comm *comm, uint64_t seq)
{
    const ddp_loopback_faults *faults = &world_of(comm)->faults;

    if (comm->rank != faults->die_rank || seq < faults->die_at)
        return DDP_OK;
    return DDP_FAIL(DDP_ERR_COMM, "rank %d died at work %llu (injected fault)", comm->rank,
                    (unsigned long long)seq);
}

static void loopback_close(ddp_comm *comm)
{
    world *w = world_of(comm);

    ddpi_comm_stop(comm);
    ddp_free(comm->places);
    ddp_free(comm);
    world_leave(w);
}

static const ddp_comm_backend backend = {
    .name = "loopback",
    .segment_create = segment_create,
    .segment_attach = segment_attach,
    .segment_settled = segment_settled,
    .segment_detach = segment_detach,
    .admit = admit,
    .close = loopback_close,
};

static ddp_status place(ddp_comm *base, const ddp_comm_opts *opts, int rank, int ranks)
{
    static const int together[WORLD_MAX]; /* on node 0 */

    base->backend = &backend;
    base->opts = *opts;
    base->rank = rank;
    base->world = ranks;
    base->local_rank = rank;
    if (gethostname(base->host, sizeof base->host - 1) != 0)
        snprintf(base->host, sizeof base->host, "localhost");
    snprintf(base->library, sizeof base->library, "threads of one process");
    if (!opts->shared_memory)
        return ddpi_comm_set_nodes(base, NULL);
    return ddpi_comm_set_nodes(base,
                               opts->loopback_nodes != NULL ? opts->loopback_nodes : together);
}

/* The groups of all nodes lie one behind the other. */
static char *node_memory(const ddp_comm *base, const world *w)
{
    int before = 0;

    for (int r = 0; r < base->world; r++)
        before += base->places[r].node < base->node;
    return w->group_memory + ddpi_shm_control_bytes(before);
}

static ddp_status open_rank(const ddp_comm_opts *opts, world *w, int rank, int ranks,
                            ddp_comm **comm_out)
{
    loopback_comm *comm;

    DDP_TRY(DDP_ALLOC(comm, 1));
    ddp_status st = place(&comm->base, opts, rank, ranks);
    if (st != DDP_OK) {
        ddp_free(comm);
        return st;
    }
    comm->world = w;
    comm->post = (ddpi_post_rank){.post = w->post, .rank = rank};
    ddpi_comm_parts parts = {.side_memory = w->side_memory,
                             .side_count = ranks,
                             .side_index = rank,
                             .watch_processes = false,
                             .group_memory =
                                 opts->shared_memory ? node_memory(&comm->base, w) : NULL,
                             .transport = &ddpi_loopback_transport,
                             .transport_self = &comm->post};
    st = ddpi_comm_start(&comm->base, &parts);
    if (st != DDP_OK) {
        ddp_free(comm->base.places);
        ddp_free(comm);
        return st;
    }
    ddp_monitor_lock(&w->monitor);
    w->users++;
    ddp_monitor_unlock(&w->monitor);
    *comm_out = &comm->base;
    return DDP_OK;
}

ddp_status ddp_comm_loopback_open(const ddp_comm_opts *opts, int world_size,
                                  const ddp_loopback_faults *faults, ddp_comm **comms_out)
{
    static const ddp_loopback_faults none = DDP_LOOPBACK_FAULTS_NONE;
    ddp_comm *comms[WORLD_MAX];
    world *w;

    if (world_size < 1 || world_size > WORLD_MAX)
        return DDP_FAIL(DDP_ERR_USAGE, "a loopback world has 1 to %d ranks, not %d", WORLD_MAX,
                        world_size);
    if (opts->allreduce == DDP_ALLREDUCE_MPI)
        return DDP_FAIL(DDP_ERR_USAGE,
                        "option --allreduce: found mpi with --comm loopback, expected another "
                        "algorithm, or --comm mpi");
    DDP_TRY(world_new(world_size, faults != NULL ? faults : &none, &w));
    for (int r = 0; r < world_size; r++) {
        ddp_status st = open_rank(opts, w, r, world_size, &comms[r]);
        if (st == DDP_OK)
            continue;
        if (r == 0)
            world_free(w);
        while (--r >= 0)
            loopback_close(comms[r]);
        return st;
    }
    memcpy(comms_out, comms, (size_t)world_size * sizeof *comms);
    return DDP_OK;
}
