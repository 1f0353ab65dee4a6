/* num.h - what the simulated libraries of mathematics share: element types, work for a stream,
 * products.
 *
 * Numbers are computed in f32, stored in the element's own type and rounded to nearest even. A
 * product is packed and blocked; its innermost part exists for three instruction sets and the
 * processor picks one. Work goes to the stream through cusim_enqueue(), may run many times (a
 * captured graph) and so changes nothing of what it holds. Scratch belongs to the stream's thread
 * and stays there.
 */
#ifndef SIMCUDA_NUM_H
#define SIMCUDA_NUM_H

#include <cstddef>
#include <cstdint>
#include <utility>

#include "core.h"

enum sim_type { SIM_F32, SIM_BF16, SIM_F16 };

size_t sim_type_bytes(sim_type type);

/* Element index of an array. */
float sim_load(sim_type type, const void *array, int64_t index);
void sim_store(sim_type type, void *array, int64_t index, float value);

/* count elements, stride elements apart, from or to a plain f32 array. */
void sim_load_row(sim_type type, const void *array, int64_t first, int64_t stride, int64_t count,
                  float *dst);
void sim_store_row(sim_type type, void *array, int64_t first, int64_t stride, int64_t count,
                   const float *src);

/* The ten bits of fraction that tensor cores read of an f32. */
void sim_round_tf32(float *values, int64_t count);

/* A matrix in memory: element (i, j) lies at data[i * row + j * col]. */
struct sim_matrix {
    const float *data;
    int64_t row, col;
};

/* c[i * c_row + j] += sum over k of a(i, k) b(k, j), k in ascending blocks: a fixed order. */
void sim_product(int64_t m, int64_t n, int64_t k, sim_matrix a, sim_matrix b, float *c,
                 int64_t c_row);

/* Scratch of the calling thread: slot 0 to 7, valid until the thread asks for the slot again. */
float *sim_scratch(int slot, size_t count);

/* A number that is never the same twice: what a sum in a changing order draws its order from. */
uint64_t sim_changing(void);

/* 0 to count - 1 in an order drawn from seed, or in order when seed is 0. */
void sim_order(uint64_t seed, int64_t count, int64_t *order);

/* A workspace is filled with garbage when the work begins and found unchanged when it ends, or the
 * program shares it between streams: a report. Returns the garbage's seed. */
uint64_t sim_spoil(void *workspace, size_t bytes);
void sim_unspoiled(const char *name, const void *workspace, size_t bytes, uint64_t seed);

/* Gives the stream a copy of f, which it calls as often as the work runs. */
template <class F> void sim_enqueue(cudaStream_t stream, const char *name, F f)
{
    cusim_enqueue(
        stream, name, [](void *arg) { (*static_cast<F *>(arg))(); },
        [](void *arg) { delete static_cast<F *>(arg); }, new F(std::move(f)));
}

#endif
