/* mpi_comm.c - the MPI world as a communicator: start-up, shared memory of a node, and the end.
 *
 * MPI_Init_thread(SERIALIZED) and the exchanges of start-up run on the main thread and may block.
 * From then on only the communication thread calls MPI, until it has been joined and the main
 * thread calls MPI_Finalize. After a failure MPI is not finalized: that would wait for ranks that
 * may be gone. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/mpi/mpi_device.h"
#include "comm/mpi/mpi_impl.h"
#include "comm/mpi/mpi_launch.h"
#include "ddp/log.h"
#include "ddp/memory.h"

#define MPI_DO(call)                                                                               \
    do {                                                                                           \
        int mpi_code_ = (call);                                                                    \
        if (mpi_code_ != MPI_SUCCESS)                                                              \
            return ddpi_mpi_error(mpi_code_, #call);                                               \
    } while (0)

/* ---- segments ---- */

/* The region's record is made anew from the segment's name, size and base where it is needed. */
static ddpi_shm_region region_of(const ddpi_segment *s)
{
    ddpi_shm_region region = {.base = s->base, .bytes = s->bytes};

    return region;
}

static ddp_status segment_create(ddp_comm *comm, ddpi_segment *s)
{
    ddpi_shm_region region;

    (void)comm;
    DDP_TRY(ddpi_shm_create(s->bytes, &region));
    memcpy(s->name, region.name, sizeof s->name);
    s->base = region.base;
    s->bytes = region.bytes;
    return DDP_OK;
}

static ddp_status segment_attach(ddp_comm *comm, ddpi_segment *s)
{
    ddpi_shm_region region;

    (void)comm;
    DDP_TRY(ddpi_shm_attach(s->name, s->bytes, &region));
    s->base = region.base;
    s->bytes = region.bytes;
    return DDP_OK;
}

static void segment_settled(ddp_comm *comm, ddpi_segment *s)
{
    ddpi_shm_region region = region_of(s);

    /* The pages are there, but not in this process's tables: better now than in the first step. */
    ddpi_shm_touch(&region, 0, region.bytes);
    if (comm->node_rank != 0)
        return;
    memcpy(region.name, s->name, sizeof region.name);
    ddpi_shm_unlink(&region);
}

static void segment_detach(ddp_comm *comm, ddpi_segment *s)
{
    ddpi_shm_region region = region_of(s);

    (void)comm;
    ddpi_shm_detach(&region);
}

/* ---- start-up, on the main thread ---- */

static ddp_status start_mpi(int *argc, char ***argv)
{
    int initialized = 0, provided = 0;

    MPI_DO(MPI_Initialized(&initialized));
    if (initialized)
        return DDP_FAIL(DDP_ERR_USAGE, "the MPI world can be opened only once");
    ddpi_mpi_tune();
    MPI_DO(MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &provided));
    MPI_DO(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    if (provided < MPI_THREAD_SERIALIZED)
        return DDP_FAIL(DDP_ERR_UNSUPPORTED,
                        "this MPI library offers thread level %d, needed is MPI_THREAD_SERIALIZED",
                        provided);
    return DDP_OK;
}

static void describe(ddp_comm *base)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length;

    if (MPI_Get_library_version(version, &length) != MPI_SUCCESS)
        snprintf(version, sizeof version, "unknown");
    version[strcspn(version, ",\n")] = '\0';
    for (char *at = version; (at = strchr(at, '\t')) != NULL;)
        *at = ' ';
    snprintf(base->library, sizeof base->library, "%.*s", (int)sizeof base->library - 1, version);
    base->device_aware = ddpi_mpi_device_aware();
    if (gethostname(base->host, sizeof base->host - 1) != 0)
        snprintf(base->host, sizeof base->host, "unknown host");
}

static ddp_status number_nodes(ddp_comm *base, MPI_Comm node_comm)
{
    int first = base->rank;
    int *firsts;

    MPI_DO(MPI_Bcast(&first, 1, MPI_INT, 0, node_comm));
    DDP_TRY(DDP_ALLOC(firsts, (size_t)base->world));
    int code = MPI_Allgather(&first, 1, MPI_INT, firsts, 1, MPI_INT, MPI_COMM_WORLD);
    ddp_status st = code == MPI_SUCCESS ? ddpi_comm_set_nodes(base, firsts)
                                        : ddpi_mpi_error(code, "MPI_Allgather");
    ddp_free(firsts);
    return st;
}

static size_t control_bytes(const ddp_comm *base)
{
    return ddpi_comm_side_bytes(base->node_size) + ddpi_shm_control_bytes(base->node_size);
}

/* Block of the side channel and the group, shared by the node. The status may differ by rank. */
static ddp_status share_control(ddpi_mpi_comm *comm, MPI_Comm node_comm)
{
    char name[DDPI_SHM_NAME_BYTES] = "";
    ddp_status st = DDP_OK;

    if (comm->base.node_rank == 0) {
        st = ddpi_shm_create(control_bytes(&comm->base), &comm->control);
        memcpy(name, comm->control.name, sizeof name);
    }
    MPI_DO(MPI_Bcast(name, (int)sizeof name, MPI_BYTE, 0, node_comm));
    if (comm->base.node_rank != 0)
        st = name[0] != '\0'
                 ? ddpi_shm_attach(name, control_bytes(&comm->base), &comm->control)
                 : DDP_FAIL(DDP_ERR_NOMEM, "the node's first rank has no shared memory");
    MPI_DO(MPI_Barrier(node_comm));
    ddpi_shm_unlink(&comm->control);
    return st;
}

/* Did all ranks succeed? The lowest that did not has the word, as in ddp_comm_agree(). */
static ddp_status agree(const ddp_comm *base, ddp_status mine)
{
    int failing = mine != DDP_OK ? base->rank : base->world, lowest = failing;
    char message[DDPI_CAUSE_BYTES] = "";
    int status = (int)mine;

    MPI_DO(MPI_Allreduce(&failing, &lowest, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD));
    if (lowest == base->world)
        return DDP_OK;
    snprintf(message, sizeof message, "%s", ddp_status_message());
    MPI_DO(MPI_Bcast(&status, 1, MPI_INT, lowest, MPI_COMM_WORLD));
    MPI_DO(MPI_Bcast(message, (int)sizeof message, MPI_BYTE, lowest, MPI_COMM_WORLD));
    if (lowest == base->rank)
        return mine;
    return ddp_status_set((ddp_status)status, NULL, 0, "rank %d: %s", lowest, message);
}

/* Finds the node and its shared memory; without, every rank is on a node of its own. */
static ddp_status find_node(ddpi_mpi_comm *comm)
{
    ddp_comm *base = &comm->base;
    MPI_Comm node_comm;

    DDP_TRY(ddpi_comm_set_nodes(base, NULL));
    if (base->world == 1)
        return DDP_OK;
    MPI_DO(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, base->rank, MPI_INFO_NULL,
                               &node_comm));
    MPI_DO(MPI_Comm_rank(node_comm, &base->local_rank));
    ddp_status st = DDP_OK;
    if (base->opts.shared_memory) {
        DDP_TRY(number_nodes(base, node_comm));
        if (base->node_size > 1)
            st = share_control(comm, node_comm);
    }
    MPI_DO(MPI_Comm_free(&node_comm));
    if (!base->opts.shared_memory)
        return DDP_OK;
    st = agree(base, st);
    if (st == DDP_OK)
        return DDP_OK;
    if (base->rank == 0)
        ddp_warn("no shared memory between ranks, they exchange messages: %s",
                 ddp_status_message());
    ddpi_shm_detach(&comm->control);
    comm->control = (ddpi_shm_region){.base = NULL};
    return ddpi_comm_set_nodes(base, NULL);
}

/* Connects the nodes beside MPI. Without, only messages tell the other nodes of a failure. */
static ddp_status connect_nodes(ddp_comm *base)
{
    ddpi_net_address address = {.port = 0};
    ddp_status st = DDP_OK;

    if (base->rank == 0)
        st = ddpi_net_listen(base->node_count, base->world, &address, &base->net);
    MPI_DO(MPI_Bcast(&address, (int)sizeof address, MPI_BYTE, 0, MPI_COMM_WORLD));
    if (base->rank != 0 && base->node_rank == 0 && address.port > 0)
        st = ddpi_net_join(&address, base->node, &base->net);
    if (st != DDP_OK)
        ddp_warn("no TCP between nodes, they tell each other of failures by MPI only: %s",
                 ddp_status_message());
    return DDP_OK;
}

static ddp_status make_parts(ddpi_mpi_comm *comm, ddpi_comm_parts *parts)
{
    ddp_comm *base = &comm->base;
    char *control = comm->control.base;

    const bool shares = base->node_count < base->world; /* some ranks do */

    if (control == NULL) {
        const size_t group_bytes = shares ? ddpi_shm_control_bytes(1) : 0;
        DDP_TRY(ddp_alloc_bytes(1, ddpi_comm_side_bytes(1) + group_bytes, &comm->own_control));
        control = comm->own_control;
    }
    comm->transport = ddpi_mpi_transport;
    if (base->node_size < base->world) {
        comm->transport.listen = ddpi_mpi_talk_listen;
        comm->transport.tell_cause = ddpi_mpi_talk_cause;
        comm->transport.ask = ddpi_mpi_talk_ask;
        comm->transport.missing = ddpi_mpi_talk_missing;
    }
    *parts = (ddpi_comm_parts){.side_memory = control,
                               .side_count = base->node_size,
                               .side_index = base->node_rank,
                               .watch_processes = true,
                               .group_memory =
                                   shares ? control + ddpi_comm_side_bytes(base->node_size) : NULL,
                               .transport = &comm->transport,
                               .transport_self = comm};
    return DDP_OK;
}

static void free_comm(ddpi_mpi_comm *comm)
{
    ddpi_mpi_talk_destroy(comm->talk);
    ddpi_net_close(comm->base.net, false);
    ddpi_shm_detach(&comm->control);
    ddp_free(comm->own_control);
    ddp_free(comm->base.places);
    ddp_free(comm);
}

static void mpi_close(ddp_comm *base)
{
    ddp_rank_ctx ctx = *ddp_rank_ctx_get();
    bool healthy = !ddpi_comm_failed(base);

    ddpi_comm_stop(base);
    if (ctx.on_fatal_arg == base) {
        ctx.on_fatal = NULL;
        ctx.on_fatal_arg = NULL;
        ctx.host = NULL;
        ddp_rank_ctx_set(&ctx);
    }
    free_comm((ddpi_mpi_comm *)(void *)base);
    if (healthy)
        (void)MPI_Finalize();
}

static const ddp_comm_backend backend = {
    .name = "mpi",
    .segment_create = segment_create,
    .segment_attach = segment_attach,
    .segment_settled = segment_settled,
    .segment_detach = segment_detach,
    .close = mpi_close,
};

/* All that follows MPI_Init_thread. */
static ddp_status open_world(ddpi_mpi_comm *comm)
{
    ddp_comm *base = &comm->base;
    ddpi_comm_parts parts;

    MPI_DO(MPI_Comm_rank(MPI_COMM_WORLD, &base->rank));
    MPI_DO(MPI_Comm_size(MPI_COMM_WORLD, &base->world));
    DDP_TRY(ddpi_mpi_check_launch(base->world));
    describe(base);
    DDP_TRY(find_node(comm));
    DDP_TRY(agree(base, make_parts(comm, &parts)));
    if (base->node_size < base->world)
        DDP_TRY(agree(base, ddpi_mpi_talk_create(comm, &comm->talk)));
    if (base->node_size < base->world)
        DDP_TRY(connect_nodes(base));
    /* The threads start only when nothing but they can fail any more. */
    return ddpi_comm_start(base, &parts);
}

bool ddp_comm_has_mpi(void)
{
    return true;
}

ddp_status ddp_comm_mpi_open(const ddp_comm_opts *opts, int *argc, char ***argv,
                             ddp_comm **comm_out)
{
    ddpi_mpi_comm *comm;
    ddp_rank_ctx ctx;

    DDP_TRY(start_mpi(argc, argv));
    DDP_TRY(DDP_ALLOC(comm, 1));
    comm->base.backend = &backend;
    comm->base.opts = *opts;
    ddp_status st = open_world(comm);
    if (st != DDP_OK) {
        free_comm(comm);
        (void)MPI_Finalize();
        return st;
    }
    ddpi_comm_rank_ctx(&comm->base, &ctx);
    ddp_rank_ctx_set(&ctx);
    *comm_out = &comm->base;
    return DDP_OK;
}
