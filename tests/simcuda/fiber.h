/* fiber.h - the engine that runs one block: see fiber.cc. */
#ifndef DDP_TESTS_SIMCUDA_FIBER_H
#define DDP_TESTS_SIMCUDA_FIBER_H

#include "sim.h"

#include "gpu.h"

namespace sim
{
/* Calls call(arguments) for every thread of the block that cusim_current describes. The calling OS
 * thread keeps its fibers in *own_fibers. `loose`: __syncthreads does nothing. */
void run_block(Fibers **own_fibers, unsigned threads, bool loose, void (*call)(const void *),
               const void *arguments);
void release_fibers(Fibers *fibers);
} // namespace sim

#endif
