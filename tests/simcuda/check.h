/* check.h - for the simulator's own tests: a condition that does not hold ends the program with
 * status 1. */
#ifndef DDP_TESTS_SIMCUDA_CHECK_H
#define DDP_TESTS_SIMCUDA_CHECK_H

#include <cstdio>
#include <cuda_runtime_api.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);          \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

#define GOOD(call) GIVES(call, cudaSuccess)
#define GIVES(call, expected)                                                                      \
    do {                                                                                           \
        cudaError_t given_ = (call);                                                               \
        if (given_ != (expected)) {                                                                \
            fprintf(stderr, "%s:%d: %s gives %s\n", __FILE__, __LINE__, #call,                     \
                    cudaGetErrorName(given_));                                                     \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

#endif
