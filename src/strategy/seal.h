/* seal.h - has the optimizer's state stayed as the last update left it?
 *
 * No other rank has this state, so there is nothing to compare it with but itself: take() hashes
 * what this rank updates, parameter by parameter, and verify() hashes it again, before it is next
 * used. Local. */
#ifndef DDP_STRATEGY_SEAL_H
#define DDP_STRATEGY_SEAL_H

#include "ddp/optim.h"

typedef struct ddpi_seal ddpi_seal;

/* All borrowed. */
DDP_INNER ddp_status ddpi_seal_create(ddp_optim *optim, ddp_device *device,
                                      const ddp_param_table *table, ddpi_seal **seal_out);
void ddpi_seal_destroy(ddpi_seal *seal);
/* This rank updates the range; steps hand over the same ranges again and again. */
DDP_INNER ddp_status ddpi_seal_note(ddpi_seal *seal, ddp_range range);
/* Between steps: hashes the state of all ranges that were noted. */
DDP_INNER ddp_status ddpi_seal_take(ddpi_seal *seal);
/* Before the state of a range is used or changed. Each hash is compared once. */
DDP_INNER ddp_status ddpi_seal_verify(ddpi_seal *seal, ddp_range range);
DDP_INNER ddp_status ddpi_seal_verify_all(ddpi_seal *seal);
/* The first tensor, as files name it, that was found changed; NULL: none. */
const char *ddpi_seal_damage(const ddpi_seal *seal);

#endif
