/* test_products.cc - the simulated cuBLASLt against plain double loops, and what it refuses. */
#include <cublasLt.h>

#include "math_check.h"

namespace
{

cudaDataType lt_type(sim_type type)
{
    return type == SIM_F32 ? CUDA_R_32F : type == SIM_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

cublasLtHandle_t lt;

struct product {
    sim_type from, to;
    int64_t m, n, k;
    bool trans_a, trans_b;
    cublasLtEpilogue_t epilogue;
    float alpha, beta;
    int64_t pad; // added to every leading dimension
    int32_t batch = 1;
};

struct product_objects {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t layouts[3]; // A, B, C and D
    cublasLtMatmulPreference_t preference;

    product_objects(const product &p, const void *bias,
                    cublasComputeType_t compute = CUBLAS_COMPUTE_32F)
    {
        int32_t trans_a = p.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                trans_b = p.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
        CHECK(!cublasLtMatmulDescCreate(&desc, compute, CUDA_R_32F));
        CHECK(!cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &trans_a,
                                              sizeof trans_a));
        CHECK(!cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSB, &trans_b,
                                              sizeof trans_b));
        CHECK(!cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &p.epilogue,
                                              sizeof p.epilogue));
        CHECK(!cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                              sizeof bias));
        int64_t rows[3] = {p.trans_a ? p.k : p.m, p.trans_b ? p.n : p.k, p.m};
        int64_t cols[3] = {p.trans_a ? p.m : p.k, p.trans_b ? p.k : p.n, p.n};
        for (int i = 0; i < 3; i++) {
            int64_t stride = (rows[i] + p.pad) * cols[i];
            CHECK(!cublasLtMatrixLayoutCreate(&layouts[i], lt_type(i < 2 ? p.from : p.to),
                                              (uint64_t)rows[i], (uint64_t)cols[i],
                                              rows[i] + p.pad));
            CHECK(!cublasLtMatrixLayoutSetAttribute(layouts[i], CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                    &p.batch, sizeof p.batch));
            CHECK(!cublasLtMatrixLayoutSetAttribute(
                layouts[i], CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride));
        }
        uint64_t limit = 1 << 20;
        CHECK(!cublasLtMatmulPreferenceCreate(&preference));
        CHECK(!cublasLtMatmulPreferenceSetAttribute(
            preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &limit, sizeof limit));
    }
    ~product_objects()
    {
        CHECK(!cublasLtMatmulDescDestroy(desc));
        for (cublasLtMatrixLayout_t layout : layouts)
            CHECK(!cublasLtMatrixLayoutDestroy(layout));
        CHECK(!cublasLtMatmulPreferenceDestroy(preference));
    }
    int choose(cublasLtMatmulHeuristicResult_t results[4])
    {
        int count = 0;
        cublasStatus_t status =
            cublasLtMatmulAlgoGetHeuristic(lt, desc, layouts[0], layouts[1], layouts[2], layouts[2],
                                           preference, 4, results, &count);
        return status ? -(int)status : count;
    }
    cublasStatus_t run(const void *a, const void *b, const void *c, void *d, const product &p,
                       const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes)
    {
        return cublasLtMatmul(lt, desc, &p.alpha, a, layouts[0], b, layouts[1], &p.beta, c,
                              layouts[2], d, layouts[2], algo, workspace, bytes, stream);
    }
};

struct product_arrays {
    int64_t lda, ldb, ldc;
    array a, b, c, d, bias, workspace;

    explicit product_arrays(const product &p)
        : lda((p.trans_a ? p.k : p.m) + p.pad), ldb((p.trans_b ? p.n : p.k) + p.pad),
          ldc(p.m + p.pad), a(p.from, lda * (p.trans_a ? p.m : p.k) * p.batch),
          b(p.from, ldb * (p.trans_b ? p.k : p.n) * p.batch),
          c(p.to, ldc * p.n * p.batch, p.beta != 0), d(p.to, ldc * p.n * p.batch),
          bias(p.to, p.m + p.n), workspace(SIM_F32, 1 << 18)
    {
    }
    double at_a(const product &p, int64_t batch, int64_t i, int64_t k) const
    {
        int64_t cols = p.trans_a ? p.m : p.k;
        return a.values[(size_t)(batch * lda * cols + (p.trans_a ? i * lda + k : k * lda + i))];
    }
    double at_b(const product &p, int64_t batch, int64_t k, int64_t j) const
    {
        int64_t cols = p.trans_b ? p.k : p.n;
        return b.values[(size_t)(batch * ldb * cols + (p.trans_b ? k * ldb + j : j * ldb + k))];
    }
};

void check_product(const product &p, const product_arrays &arrays)
{
    std::vector<float> got = arrays.d.read(), bias = arrays.bias.read();
    int64_t wrong = 0;
    for (int64_t batch = 0; batch < p.batch; batch++)
        for (int64_t j = 0; j < p.n; j++)
            for (int64_t i = 0; i < p.m; i++) {
                size_t at = (size_t)(batch * arrays.ldc * p.n + j * arrays.ldc + i);
                double sum = 0;
                for (int64_t k = 0; k < p.k; k++)
                    sum += arrays.at_a(p, batch, i, k) * arrays.at_b(p, batch, k, j);
                sum = p.alpha * sum + (p.beta != 0 ? p.beta * arrays.c.values[at] : 0);
                sum += p.epilogue & CUBLASLT_EPILOGUE_BIAS ? arrays.bias.values[(size_t)i] : 0;
                sum = p.epilogue & CUBLASLT_EPILOGUE_RELU ? std::fmax(sum, 0) : sum;
                wrong += !near(p.to, sum, got[at], p.k);
            }
    for (int64_t i = 0; p.epilogue == CUBLASLT_EPILOGUE_BGRADA && i < p.m; i++) {
        double sum = 0;
        for (int64_t k = 0; k < p.k; k++)
            sum += arrays.at_a(p, 0, i, k);
        wrong += !near(p.to, sum, bias[(size_t)i], p.k);
    }
    for (int64_t j = 0; p.epilogue == CUBLASLT_EPILOGUE_BGRADB && j < p.n; j++) {
        double sum = 0;
        for (int64_t k = 0; k < p.k; k++)
            sum += arrays.at_b(p, 0, k, j);
        wrong += !near(p.to, sum, bias[(size_t)j], p.k);
    }
    if (wrong)
        std::printf(
            "product %lld x %lld x %lld, types %d %d, trans %d %d, epilogue %d: %lld wrong\n",
            (long long)p.m, (long long)p.n, (long long)p.k, p.from, p.to, p.trans_a, p.trans_b,
            p.epilogue, (long long)wrong);
    CHECK(wrong == 0);
}

void test_products()
{
    const sim_type types[][2] = {{SIM_F32, SIM_F32},
                                 {SIM_BF16, SIM_BF16},
                                 {SIM_BF16, SIM_F32},
                                 {SIM_F16, SIM_F16},
                                 {SIM_F16, SIM_F32}};
    const cublasLtEpilogue_t epilogues[] = {CUBLASLT_EPILOGUE_DEFAULT,   CUBLASLT_EPILOGUE_BIAS,
                                            CUBLASLT_EPILOGUE_RELU_BIAS, CUBLASLT_EPILOGUE_RELU,
                                            CUBLASLT_EPILOGUE_BGRADA,    CUBLASLT_EPILOGUE_BGRADB};
    for (int i = 0; i < (WATCHED ? 12 : 60); i++) {
        bool plain = i % 6 == 0;
        product p = {types[i % 5][0],     types[i % 5][1],        draw(1, 70),
                     draw(1, 70),         draw(1, 300),           draw(0, 1) == 1,
                     draw(0, 1) == 1,     epilogues[i % 6],       i % 3 ? 1.0f : 0.5f,
                     i % 4 ? 0.0f : 2.0f, i % 2 ? 0 : draw(0, 5), plain ? 2 : 1};
        product_arrays arrays(p);
        product_objects objects(p, arrays.bias.device);
        cublasLtMatmulHeuristicResult_t results[4];
        int count = objects.choose(results);
        CHECK(count == 3);
        for (int algo = 0; algo < count; algo++) {
            CHECK(!objects.run(arrays.a.device, arrays.b.device, arrays.c.device, arrays.d.device,
                               p, &results[algo].algo, arrays.workspace.device,
                               results[algo].workspaceSize));
            check_product(p, arrays);
        }
    }
}

// tf32 keeps ten bits of the operands: near the exact result, and not as near as f32.
void test_tf32_product()
{
    product p = {SIM_F32, SIM_F32, 8, 8, 64, false, false, CUBLASLT_EPILOGUE_DEFAULT, 1, 0, 0};
    product_arrays arrays(p);
    product_objects objects(p, nullptr, CUBLAS_COMPUTE_32F_FAST_TF32);
    CHECK(!objects.run(arrays.a.device, arrays.b.device, arrays.c.device, arrays.d.device, p,
                       nullptr, nullptr, 0));
    std::vector<float> got = arrays.d.read();
    double sum = 0;
    for (int64_t k = 0; k < p.k; k++)
        sum += arrays.at_a(p, 0, 0, k) * arrays.at_b(p, 0, k, 0);
    CHECK(std::fabs(sum - got[0]) < 1e-2);
    CHECK(std::fabs(sum - got[0]) > 1e-6);
}

void test_refused_products()
{
    product p = {SIM_F32, SIM_F32, 16, 12, 20, true, false, CUBLASLT_EPILOGUE_DEFAULT, 1, 0, 0};
    product other = p;
    other.k = 24;
    product_arrays arrays(p);
    product_objects objects(p, nullptr), others(other, nullptr);
    cublasLtMatmulHeuristicResult_t results[4], other_results[4];
    CHECK(objects.choose(results) == 3 && others.choose(other_results) == 3);
    void *a = arrays.a.device, *b = arrays.b.device, *d = arrays.d.device,
         *workspace = arrays.workspace.device;
    float on_host[400] = {};
    auto run = [&](const void *a_given, void *d_given, const cublasLtMatmulAlgo_t &algo,
                   void *memory, size_t bytes) {
        return objects.run(a_given, b, d_given, d_given, p, &algo, memory, bytes);
    };
    CHECK(run(a, d, results[0].algo, workspace, results[0].workspaceSize) == CUBLAS_STATUS_SUCCESS);
    CHECK(run(a, d, other_results[0].algo, workspace, 1 << 20) == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(run(a, d, results[0].algo, workspace, results[0].workspaceSize - 1) ==
          CUBLAS_STATUS_INVALID_VALUE);
    CHECK(run(a, d, results[0].algo, (char *)workspace + 16, 1 << 19) ==
          CUBLAS_STATUS_INVALID_VALUE);
    CHECK(run(a, d, results[0].algo, nullptr, 1 << 20) == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(run(on_host, d, results[2].algo, nullptr, 0) == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(run((float *)a + 4, d, results[2].algo, nullptr, 0) == CUBLAS_STATUS_INVALID_VALUE);
    CHECK(run(a, (char *)d + 256, results[2].algo, nullptr, 0) ==
          CUBLAS_STATUS_INVALID_VALUE); // runs over the end
    std::swap(objects.layouts[0], objects.layouts[1]);
    CHECK(run(a, d, results[2].algo, nullptr, 0) == CUBLAS_STATUS_INVALID_VALUE);
    std::swap(objects.layouts[0], objects.layouts[1]);
    // 64-byte alignment is enough where the preference says so.
    uint32_t align = 64;
    for (int i = CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
         i <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES; i++)
        CHECK(!cublasLtMatmulPreferenceSetAttribute(
            objects.preference, (cublasLtMatmulPreferenceAttributes_t)i, &align, sizeof align));
    CHECK(objects.choose(results) == 3);
    product_arrays larger(other);
    CHECK(run((char *)larger.a.device + 64, d, results[2].algo, nullptr, 0) ==
          CUBLAS_STATUS_SUCCESS);
    uint32_t gelu = CUBLASLT_EPILOGUE_GELU;
    CHECK(!cublasLtMatmulDescSetAttribute(objects.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &gelu,
                                          sizeof gelu));
    CHECK(objects.choose(results) == -(int)CUBLAS_STATUS_NOT_SUPPORTED);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
}

} // namespace

int main(void)
{
    begin();
    CHECK(cublasLtCreate(&lt) == CUBLAS_STATUS_SUCCESS);
    test_products();
    test_tf32_product();
    test_refused_products();
    CHECK(cublasLtDestroy(lt) == CUBLAS_STATUS_SUCCESS);
    return end();
}
