/* inject_impl.h - where the training loop lets mishaps happen. */
#ifndef DDPI_INJECT_IMPL_H
#define DDPI_INJECT_IMPL_H

#include "ddp/trainer.h"

/* Before a step's work, and after it, before anything is checked. Do what is due on this rank.
 * kept: what the one has to tell the other. */
DDP_INNER ddp_status ddpi_inject_before(const ddp_inject *inject, const ddp_trainer_parts *parts,
                                        int64_t step, uint32_t *kept);
DDP_INNER ddp_status ddpi_inject_after(const ddp_inject *inject, const ddp_trainer_parts *parts,
                                       int64_t step, uint32_t kept);

#endif
