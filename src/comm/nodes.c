/* nodes.c - which rank is on which node.
 *
 * A backend knows for every rank a label that ranks of one node have in common. From that, nodes
 * are numbered in the order of their lowest ranks, and ranks within their node in the order of the
 * world; a node's ranks need not follow each other. Rank's thread only; read-only once the threads
 * run. */
#include "comm/comm_impl.h"
#include "ddp/memory.h"

static int first_with(const int *labels, int rank)
{
    int first = 0;

    while (labels[first] != labels[rank])
        first++;
    return first;
}

/* Numbers the nodes and the ranks in them; returns how many nodes there are. */
static int number(const int *labels, int world, ddpi_place *places)
{
    int nodes = 0;

    for (int r = 0; r < world; r++) {
        const int first = first_with(labels, r);
        if (first == r)
            places[r] = (ddpi_place){.node = nodes++};
        else
            places[r] = (ddpi_place){.node = places[first].node};
    }
    return nodes;
}

ddp_status ddpi_comm_set_nodes(ddp_comm *comm, const int *labels)
{
    ddpi_place *places;
    int *sizes;

    DDP_TRY(DDP_ALLOC(places, (size_t)comm->world));
    ddp_status st = DDP_ALLOC(sizes, (size_t)comm->world);
    if (st != DDP_OK) {
        ddp_free(places);
        return st;
    }
    comm->node_count = comm->world;
    if (labels != NULL)
        comm->node_count = number(labels, comm->world, places);
    for (int r = 0; r < comm->world; r++) {
        if (labels == NULL)
            places[r].node = r;
        places[r].node_rank = sizes[places[r].node]++;
    }
    comm->node = places[comm->rank].node;
    comm->node_rank = places[comm->rank].node_rank;
    comm->node_size = sizes[comm->node];
    ddp_free(sizes);
    ddp_free(comm->places);
    comm->places = places;
    return DDP_OK;
}

int ddp_comm_node_of(const ddp_comm *comm, int rank)
{
    DDP_ASSERT(rank >= 0 && rank < comm->world);
    return comm->places[rank].node;
}
