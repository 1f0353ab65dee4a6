/* math_check.h - what the tests of the simulated cuBLASLt and cuDNN share.
 *
 * Operands are random and rounded to their type first, so that a result differs from the double one
 * by its own rounding and the order of its sums. Mistakes are made on purpose in these tests:
 * reports go to a file and do not end the process.
 */
#ifndef DDP_TESTS_SIMCUDA_MATH_CHECK_H
#define DDP_TESTS_SIMCUDA_MATH_CHECK_H

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime_api.h>
#include <random>
#include <string>
#include <unistd.h>
#include <vector>

#include "num.h"

// Under the thread sanitizer plain loops take long, and races made on purpose are reported.
#if defined(__SANITIZE_THREAD__)
constexpr bool WATCHED = true;
#else
constexpr bool WATCHED = false;
#endif

inline int failures = 0;

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::printf("%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);                    \
            failures++;                                                                            \
        }                                                                                          \
    } while (0)

inline std::mt19937 chance(7);
inline cudaStream_t stream;

inline int64_t draw(int64_t low, int64_t high)
{
    return std::uniform_int_distribution<int64_t>(low, high)(chance);
}

// An array on the device and what it holds, seen from the host as float.
struct array {
    sim_type type;
    std::vector<float> values; // rounded to the type
    void *device = nullptr;

    array(sim_type element, int64_t count, bool random = true)
        : type(element), values((size_t)count)
    {
        std::uniform_real_distribution<float> uniform(-1, 1);
        for (float &value : values)
            value = random ? uniform(chance) : NAN;
        std::vector<char> bytes = stored();
        for (size_t i = 0; i < values.size(); i++)
            values[i] = sim_load(type, bytes.data(), (int64_t)i);
        CHECK(cudaMalloc(&device, bytes.size()) == cudaSuccess);
        CHECK(cudaMemcpy(device, bytes.data(), bytes.size(), cudaMemcpyHostToDevice) ==
              cudaSuccess);
    }
    array(const array &) = delete;
    ~array()
    {
        CHECK(cudaFree(device) == cudaSuccess);
    }
    std::vector<char> stored() const
    {
        std::vector<char> bytes(values.size() * sim_type_bytes(type));
        for (size_t i = 0; i < values.size(); i++)
            sim_store(type, bytes.data(), (int64_t)i, values[i]);
        return bytes;
    }
    std::vector<float> read() const
    {
        std::vector<char> bytes(values.size() * sim_type_bytes(type));
        std::vector<float> result(values.size());
        CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
        CHECK(cudaMemcpy(bytes.data(), device, bytes.size(), cudaMemcpyDeviceToHost) ==
              cudaSuccess);
        for (size_t i = 0; i < values.size(); i++)
            result[i] = sim_load(type, bytes.data(), (int64_t)i);
        return result;
    }
};

// Room for the rounding of the result and of a sum of `terms` products below 1.
inline bool near(sim_type type, double expected, float got, int64_t terms)
{
    double unit = type == SIM_F32 ? 6e-8 : type == SIM_BF16 ? 4e-3 : 5e-4;
    double tiny = type == SIM_F16 ? 3e-8 : 0;
    return std::fabs(expected - got) <=
           unit * std::fabs(expected) + 1e-6 + tiny + 3e-7 * (double)terms;
}

inline char log_path[] = "/tmp/simcuda_math_XXXXXX";

// Everything that was reported so far.
inline std::string reports()
{
    std::fflush(stderr);
    std::string text;
    std::FILE *file = std::fopen(log_path, "r");
    for (int c; file && (c = std::fgetc(file)) != EOF;)
        text += (char)c;
    if (file)
        std::fclose(file);
    return text;
}

// Before the first call of the simulator, which reads the environment.
inline void begin()
{
    setenv("CUSIM_STRICT", "0", 1);
    int log_file = mkstemp(log_path);
    CHECK(log_file >= 0 && std::freopen(log_path, "a", stderr));
    close(log_file);
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
}

inline int end()
{
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
    std::remove(log_path);
    std::printf("%d failures\n", failures);
    return failures != 0;
}

#endif
