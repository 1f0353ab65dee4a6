/* team.c - who leads what in a world of several nodes. See team.h. */
#include "comm/team.h"

#include <unistd.h>

#include "comm/comm_impl.h"
#include "ddp/memory.h"

/* Where nodes differ in size, every leader's slice is a work of its own in the group; of those,
 * sums and copies together must fit among the works in flight. */
#define MAX_UNEVEN_LEADERS (DDPI_SHM_MAX_INFLIGHT / 2)

static const size_t class_bytes[DDPI_TEAM_CLASSES] = {4096, 65536, (size_t)1 << 20, SIZE_MAX};

int ddpi_team_class(size_t bytes)
{
    int index = 0;

    while (bytes > class_bytes[index])
        index++;
    return index;
}

size_t ddpi_team_class_bytes(int index)
{
    return class_bytes[index];
}

bool ddpi_team_publishes(const ddpi_team *team, const ddp_coll *coll)
{
    /* Units belong to sums with a fixed order. */
    return team != NULL && (coll->unit == 0 ? team->even : team->ordered);
}

/* ---- making one ---- */

/* A group's works report to whoever polls for them. */
static void complete(void *arg, ddp_work *work, ddp_status status)
{
    (void)arg;
    work->status = status;
}

static int smallest_node(const ddp_comm *comm, const int *sizes)
{
    int smallest = sizes[0];

    for (int k = 1; k < comm->node_count; k++)
        smallest = sizes[k] < smallest ? sizes[k] : smallest;
    return smallest;
}

static bool is_power_of_two(int n)
{
    return (n & (n - 1)) == 0;
}

/* sizes: of all nodes. */
static void find_leaders(const ddp_comm *comm, const int *sizes, ddpi_team *team)
{
    team->leaders = smallest_node(comm, sizes);
    team->even = team->leaders * comm->node_count == comm->world;
    if (!team->even && team->leaders > MAX_UNEVEN_LEADERS)
        team->leaders = MAX_UNEVEN_LEADERS;
    team->in_order = team->even;
    for (int r = 0; r < comm->world; r++) {
        const ddpi_place *place = &comm->places[r];
        if (place->node_rank < team->leaders)
            team->table[place->node_rank * comm->node_count + place->node] = r;
        if (team->even && r != place->node * team->leaders + place->node_rank)
            team->in_order = false;
    }
    team->ordered = team->in_order && is_power_of_two(team->leaders);
}

static ddp_status fill(const ddp_comm *comm, void *control, ddpi_team *team)
{
    int *sizes;

    DDP_TRY(DDP_ALLOC(team->table, (size_t)comm->world));
    DDP_TRY(DDP_ALLOC(team->heads, (size_t)comm->node_count));
    DDP_TRY(DDP_ALLOC(sizes, (size_t)comm->node_count));
    for (int r = 0; r < comm->world; r++)
        sizes[comm->places[r].node]++;
    find_leaders(comm, sizes, team);
    ddp_free(sizes);
    for (int i = 0; i < DDPI_TEAM_CLASSES; i++)
        team->two_level[i] = true;
    /* Beside every engine there is a rank that computes. */
    ddpi_shm_group_opts group = {.n = comm->node_size,
                                 .rank = comm->node_rank,
                                 .crowded = 2 * comm->node_size > sysconf(_SC_NPROCESSORS_ONLN),
                                 .control = control,
                                 .complete = complete};
    return ddpi_shm_group_create(&group, &team->group);
}

ddp_status ddpi_team_create(const ddp_comm *comm, void *control, ddpi_team **team_out)
{
    ddpi_team *team;

    DDP_TRY(DDP_ALLOC(team, 1));
    team->node = comm->node;
    team->nodes = comm->node_count;
    team->node_rank = comm->node_rank;
    team->node_size = comm->node_size;
    ddp_status st = fill(comm, control, team);
    if (st != DDP_OK) {
        ddpi_team_destroy(team);
        return st;
    }
    *team_out = team;
    return DDP_OK;
}

void ddpi_team_destroy(ddpi_team *team)
{
    if (team == NULL)
        return;
    ddpi_shm_group_destroy(team->group);
    ddp_free(team->heads);
    ddp_free(team->table);
    ddp_free(team);
}
