/* graphs.h - whole steps as graphs of the device: captured once for each global batch, replayed. */
#ifndef DDP_STRATEGY_GRAPHS_H
#define DDP_STRATEGY_GRAPHS_H

#include "strategy/strategy_impl.h"

typedef struct ddpi_graphs ddpi_graphs;

/* How far a step has got. */
typedef enum ddpi_step_how {
    DDPI_STEP_OPEN,     /* nothing was taken from the loader yet */
    DDPI_STEP_GIVEN,    /* all of it was given to the main stream */
    DDPI_STEP_REPLAYED, /* all of it was given as a graph: collected by ddpi_graphs_collect() */
} ddpi_step_how;

/* Local, with the same result on all ranks but for lack of memory: fills strategy->graphs, unless
 * steps cannot be replayed or are not to be. */
DDP_INNER ddp_status ddpi_graphs_create(ddp_strategy *strategy);
/* NULL is fine. Before the reducer and the lane go. */
void ddpi_graphs_destroy(ddpi_graphs *graphs);
/* Collective, between begin and end of the optimizer's step: takes and starts a step of so many
 * samples. strategy->graphs is NULL afterwards if it turned out that there can be none. */
DDP_INNER ddp_status ddpi_graphs_step(ddp_strategy *strategy, ddp_loader *loader, int64_t count,
                                      ddpi_control_word *word, ddpi_step_how *how_out);
/* Waits for a replay, as ddp_reducer_collect() does for other steps. */
DDP_INNER ddp_status ddpi_graphs_collect(ddpi_graphs *graphs, ddp_reducer_times *times_out);

#endif
