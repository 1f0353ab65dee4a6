/*
 * core.h - what the simulator's libraries share: cuBLASLt, cuDNN and NCCL are built on these
 * functions of the simulated CUDA runtime (libcudart.so.13 exports them beside CUDA's own).
 *
 * Device memory is handed out as addresses that nobody may read or write: the simulator's own code
 * goes through cusim_host(). A stream is a thread that runs what it was given in order; whoever
 * simulates a library call checks its arguments at once and enqueues the work, which runs later, on
 * the stream's thread. The libraries are built without the thread sanitizer, so that their locks
 * order nothing; the work states what it reads and writes with cusim_reads() and cusim_writes(),
 * and the simulator states CUDA's own edges. Work must not use memcpy and the like on device
 * memory: see cusim_copy().
 *
 * Environment, read once at the first call:
 *   CUSIM_DEVICES=n        devices of this machine (default 8; see CUDA_VISIBLE_DEVICES, too)
 *   CUSIM_MEMORY_MB=n      memory of each (default 4096): more is cudaErrorMemoryAllocation
 *   CUSIM_DRIVER_VERSION=n version of the driver (default 13000), 0 for none
 *   CUSIM_DELAY_US=n       every piece of work starts a random 0..n microseconds late
 *   CUSIM_SEED=n           seed of the delays; not 0: blocks run in another order, too
 *   CUSIM_STRICT=0         a report does not end the process (default 1: exit status 99)
 *   CUSIM_TRACE=1          prints every piece of work when it runs
 *   CUSIM_UNRECORDED=ok    waiting for an event that was never recorded is not reported
 *   CUSIM_FIBERS=tsan      the thread sanitizer sees every CUDA thread as one of its own
 *   CUSIM_NCCL_TIMEOUT_MS  how long a collective waits for its peers (default 10000)
 *   CUSIM_NCCL_BUFFERS=1   ranks must pass the same allocation, counted per device
 *   CUSIM_NCCL_VERSION=n   another version than that of the header
 *   CUSIM_FAIL=LIST        calls that fail: WHAT[@rankR][:N][=ERROR], with commas between
 *   CUSIM_BUG=LIST         mistakes of the program, made in its name: WHAT[/NAME][@rankR][:N]
 *
 * WHAT is a function's name (cudaMalloc, cudnnConvolutionForward, ncclAllReduce) or
 *   launch     a launch that the runtime refuses at once,
 *   kernel     a kernel that faults when it runs: cudaErrorIllegalAddress stays,
 *   ncclAsync  a collective that fails asynchronously.
 * N counts the calls of that name in this process from 1 (default 1); N+ is that one and all later
 * ones. rankR: in the process with that OMPI_COMM_WORLD_RANK, PMIX_RANK, PMI_RANK or SLURM_PROCID
 * only. ERROR: number of the error to give instead of the usual one.
 *
 * A mistake is one of the following. A name fits what begins like it; without one, all are meant.
 *   wait/A<B   a cudaStreamWaitEvent of stream A for an event of stream B is left out. A stream is
 *              called high1, low2 ...: its priority, and which one of the process it is;
 *   sync/A     the host does not wait for stream A or its events, which seem to be ready;
 *   barrier/K  __syncthreads does nothing in kernel K;
 *   skip/C     the collective C, like ncclAllReduce, is left out;
 *   swap/C     it changes places with the next one.
 */
#ifndef DDP_TESTS_SIMCUDA_CORE_H
#define DDP_TESTS_SIMCUDA_CORE_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* In stream order: run(arg) on the stream's thread, then del(arg), which may be NULL. While the
 * stream is being captured it becomes a node instead: run as often as the graph is launched, del
 * when the last graph that holds it is gone. `name` must outlive the process (a literal). */
void cusim_enqueue(cudaStream_t stream, const char *name, void (*run)(void *arg),
                   void (*del)(void *arg), void *arg);

/* Where the simulator's own code may read and write device or pinned memory; NULL for anything
 * else. */
void *cusim_host(const void *device_or_pinned);

/* The whole range lies in one live allocation (device or pinned). */
bool cusim_valid(const void *p, size_t bytes);

/* Names the allocation that `p` lies in: a number that counts this device's allocations from 1, and
 * the place in it. 0: none. */
int cusim_allocation(const void *p, size_t *offset_out);

/* Operand ranges of the work that is running (device or pinned pointers as the program gave them;
 * ordinary host memory is taken as it is). */
void cusim_reads(const void *p, size_t bytes);
void cusim_writes(void *p, size_t bytes);

/* Copies between places that cusim_host() gave (or host memory), unseen by sanitizers. */
void cusim_copy(void *dst, const void *src, size_t bytes);

/* A mistake of the program: "simcuda: ..." on stderr; the process ends with status 99 at the next
 * call of the runtime or when it exits, unless CUSIM_STRICT=0. */
void cusim_report(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Does CUSIM_FAIL ask this call to fail? Counts the calls of that name. cusim_inject_error() gives
 * the number after `=` (or `usual`) in place of true, and 0 in place of false. */
bool cusim_inject(const char *what);

/* Does CUSIM_BUG ask for this mistake, in what has this name? */
bool cusim_mistake(const char *what, const char *name);
int cusim_inject_error(const char *what, int usual);

/* Edges between threads as the thread sanitizer shall see them; one token per edge. Nothing without
 * it. */
void cusim_edge_release(void *token);
void cusim_edge_acquire(void *token);

/* Number of the device that the stream belongs to, and of the calling thread's current one. */
int cusim_stream_device(cudaStream_t stream);
int cusim_current_device(void);

/* True while the stream is being captured. */
bool cusim_capturing(cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
