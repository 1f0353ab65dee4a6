/* team.h - the ranks of a node as one party in a world of several nodes.
 *
 * A team is the node's shared-memory group together with what the ranks must know of the other
 * nodes for collectives on two levels (algo_hier.c): who has which place where, and which ranks of
 * a node talk to others. Those are its leaders: leader i exchanges slice i of a buffer with leader
 * i of every other node. Made by the rank's thread; used by the engine's. */
#ifndef DDPI_COMM_TEAM_H
#define DDPI_COMM_TEAM_H

#include "comm/shm_group.h"
#include "ddp/comm.h"

/* Lengths for which the algorithm of sums is chosen together. */
enum { DDPI_TEAM_CLASSES = 4 };

typedef struct ddpi_team {
    ddpi_shm_group *group; /* of the node's ranks; numbered by node_rank */
    int node, nodes, node_rank, node_size;
    int leaders;   /* on every node */
    bool even;     /* every node has as many ranks as leaders */
    bool in_order; /* that, and a node's ranks follow each other in the world */
    /* That, and their number is a power of two: a sum over a node is one node of sum_tree.h's tree
     * over all ranks, and those over nodes make the same tree. */
    bool ordered;
    int *table; /* [leader * nodes + node]: its rank */
    int *heads; /* nodes; the engine's own */
    /* Whether sums of a class are made on two levels, where the options leave the choice. Written
     * while no work is in flight. */
    bool two_level[DDPI_TEAM_CLASSES];
    double flat_seconds[DDPI_TEAM_CLASSES], two_level_seconds[DDPI_TEAM_CLASSES]; /* 0: unknown */
} ddpi_team;

/* Collective in effect: all ranks of the world make one. control: of the node's group. Several
 * nodes, and ranks that share one. */
DDP_INNER ddp_status ddpi_team_create(const ddp_comm *comm, void *control, ddpi_team **team_out);
/* NULL is fine. */
void ddpi_team_destroy(ddpi_team *team);
/* May there be owned slices of such a buffer, so that they have to be published? NULL: no. */
bool ddpi_team_publishes(const ddpi_team *team, const ddp_coll *coll);
/* The class of sums of so many bytes, and the longest of a class. */
int ddpi_team_class(size_t bytes);
size_t ddpi_team_class_bytes(int index);

#endif
