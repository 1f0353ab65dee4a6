/* cublaslt.cc - libcublasLt.so.13 of the simulator: products of matrices as far as ddp_train asks
 * for them.
 *
 * D = alpha op(A) op(B) + beta C with column-major operands, f32, bf16 or f16, computed in f32.
 * Stricter than the library where that shows mistakes: an algorithm is bound to the problem it was
 * chosen for, pointers must keep the alignment that the preference promised, the workspace must be
 * there, and beta == 0 does not read C. Three algorithms exist: 0 splits k in two and wants 64 KiB,
 * 1 wants 4 KiB, 2 wants nothing. All repeat their bits. No locks.
 */
#include <algorithm>
#include <cstring>

#include "cublaslt_impl.h"

using namespace simlt;

namespace
{

// All that a run needs, checked.
struct problem {
    int64_t m, n, k, batch;
    sim_type type_ab, type_cd, type_bias;
    layout a, b, c, d;
    bool trans_a, trans_b, tf32;
    uint32_t epilogue;
    uint64_t key;
};

struct pointers {
    const void *a, *b, *c;
    void *d, *bias, *workspace;
    float alpha, beta;
    int algo;
};

bool element(cudaDataType type, sim_type *type_out)
{
    if (type != CUDA_R_32F && type != CUDA_R_16BF && type != CUDA_R_16F)
        return false;
    *type_out = type == CUDA_R_32F ? SIM_F32 : type == CUDA_R_16BF ? SIM_BF16 : SIM_F16;
    return true;
}

uint64_t hash(uint64_t key, uint64_t value)
{
    return (key ^ value) * 0x100000001b3ull + (value >> 7);
}

uint64_t problem_key(const problem &p)
{
    uint64_t key = 0xcbf29ce484222325ull;
    for (const layout *l : {&p.a, &p.b, &p.c, &p.d})
        for (uint64_t v : {(uint64_t)l->type, l->rows, l->cols, (uint64_t)l->ld, (uint64_t)l->batch,
                           (uint64_t)l->batch_stride})
            key = hash(key, v);
    for (uint64_t v :
         {(uint64_t)p.trans_a, (uint64_t)p.trans_b, (uint64_t)p.tf32, (uint64_t)p.epilogue})
        key = hash(key, v);
    return key;
}

// Types of the four operands that go together.
bool combine_types(const matmul &desc, problem *p)
{
    sim_type b, c, d;
    if (!element(p->a.type, &p->type_ab) || !element(p->b.type, &b) || !element(p->c.type, &c) ||
        !element(p->d.type, &d))
        return false;
    p->type_cd = d;
    p->tf32 = desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    if (p->tf32 && p->type_ab != SIM_F32)
        return false;
    return p->type_ab == b && c == d && (d == SIM_F32 || d == p->type_ab);
}

bool epilogue_known(uint32_t epilogue)
{
    switch (epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_RELU:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_BIAS:
    case CUBLASLT_EPILOGUE_BGRADA:
    case CUBLASLT_EPILOGUE_BGRADB:
        return true;
    default:
        return false;
    }
}

// NOT_SUPPORTED without a report: who asks for a heuristic may have another way.
cublasStatus_t describe(const matmul *desc, const layout *a, const layout *b, const layout *c,
                        const layout *d, problem *p)
{
    const char *call = "cublasLtMatmul";
    p->a = *a, p->b = *b, p->c = *c, p->d = *d;
    p->trans_a = desc->trans_a != CUBLAS_OP_N;
    p->trans_b = desc->trans_b != CUBLAS_OP_N;
    p->epilogue = desc->epilogue;
    p->m = (int64_t)(p->trans_a ? a->cols : a->rows);
    p->k = (int64_t)(p->trans_a ? a->rows : a->cols);
    p->n = (int64_t)(p->trans_b ? b->rows : b->cols);
    p->batch = d->batch;
    if ((int64_t)(p->trans_b ? b->cols : b->rows) != p->k)
        return refuse(CUBLAS_STATUS_INVALID_VALUE, call, "op(A) and op(B) have different k");
    for (const layout *l : {c, d})
        if ((int64_t)l->rows != p->m || (int64_t)l->cols != p->n)
            return refuse(CUBLAS_STATUS_INVALID_VALUE, call,
                          "C or D does not have the product's shape");
    for (const layout *l : {a, b, c, d}) {
        if (l->ld < (int64_t)l->rows)
            return refuse(CUBLAS_STATUS_INVALID_VALUE, call,
                          "a leading dimension is less than the rows");
        if (l->batch != d->batch)
            return refuse(CUBLAS_STATUS_INVALID_VALUE, call, "the batch counts differ");
    }
    if (!combine_types(*desc, p) || !epilogue_known(p->epilogue))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    cudaDataType bias = desc->bias_type < 0 ? d->type : (cudaDataType)desc->bias_type;
    p->type_bias = p->type_cd;
    if (p->epilogue & ~3u && (bias != d->type || p->batch != 1))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    p->key = problem_key(*p);
    return CUBLAS_STATUS_SUCCESS;
}

size_t span_bytes(const layout &l, sim_type type)
{
    int64_t last = (int64_t)(l.cols - 1) * l.ld + (int64_t)l.rows + (l.batch - 1) * l.batch_stride;
    return (size_t)last * sim_type_bytes(type);
}

size_t bias_count(const problem &p)
{
    if (p.epilogue & (CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADA))
        return (size_t)p.m;
    return p.epilogue & CUBLASLT_EPILOGUE_BGRADB ? (size_t)p.n : 0;
}

cublasStatus_t check_operand(const char *name, const void *at, size_t bytes, uint32_t align)
{
    if (!at || !cusim_valid(at, bytes)) {
        cusim_report(
            "cublasLtMatmul: %s (%p, %zu bytes) does not lie in one allocation of the device", name,
            at, bytes);
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if ((uintptr_t)at % align) {
        cusim_report("cublasLtMatmul: %s (%p) is not aligned to the %u bytes that were promised "
                     "(MIN_ALIGNMENT of the preference)",
                     name, at, align);
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_pointers(const problem &p, const pointers &at, const algorithm &algo)
{
    struct {
        const char *name;
        const void *at;
        size_t bytes;
        uint32_t align;
    } operands[] = {
        {"A", at.a, span_bytes(p.a, p.type_ab), algo.align[0]},
        {"B", at.b, span_bytes(p.b, p.type_ab), algo.align[1]},
        {"D", at.d, span_bytes(p.d, p.type_cd), algo.align[3]},
        {"C", at.c, span_bytes(p.c, p.type_cd), algo.align[2]},
        {"the bias", at.bias, bias_count(p) * sim_type_bytes(p.type_bias), 4},
    };
    for (auto &operand : operands) {
        bool unread = operand.at == at.c && at.beta == 0.0f;
        if (!operand.bytes || (unread && operand.at != at.d))
            continue;
        cublasStatus_t status =
            check_operand(operand.name, operand.at, operand.bytes, operand.align);
        if (status != CUBLAS_STATUS_SUCCESS)
            return status;
    }
    if (at.c == at.d && (p.c.ld != p.d.ld || p.c.batch_stride != p.d.batch_stride))
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "cublasLtMatmul",
                      "C is D, but the layouts differ");
    return CUBLAS_STATUS_SUCCESS;
}

// One matrix as plain f32, column after column: returns a(i, k) of the operand as it lies.
sim_matrix load_matrix(int slot, const layout &l, sim_type type, const void *at, int64_t batch,
                       bool tf32)
{
    int64_t rows = (int64_t)l.rows, cols = (int64_t)l.cols;
    float *values = sim_scratch(slot, (size_t)(rows * cols));
    for (int64_t j = 0; j < cols; j++)
        sim_load_row(type, at, batch * l.batch_stride + j * l.ld, 1, rows, values + j * rows);
    if (tf32)
        sim_round_tf32(values, rows * cols);
    return {values, 1, rows};
}

sim_matrix transposed(sim_matrix matrix)
{
    return {matrix.data, matrix.col, matrix.row};
}

// Sums of op(A) or op(B) over k.
void bias_gradient(const problem &p, sim_matrix a, sim_matrix b, void *bias)
{
    bool of_a = p.epilogue == CUBLASLT_EPILOGUE_BGRADA;
    sim_matrix from = of_a ? a : transposed(b); // element (i, k)
    for (int64_t i = 0; i < (of_a ? p.m : p.n); i++) {
        float sum = 0.0f;
        for (int64_t k = 0; k < p.k; k++)
            sum += from.data[i * from.row + k * from.col];
        sim_store(p.type_bias, bias, i, sum);
    }
}

void finish(const problem &p, const pointers &at, const float *product, int64_t batch)
{
    const void *c = at.beta != 0.0f ? cusim_host(at.c) : nullptr;
    const void *bias = p.epilogue & CUBLASLT_EPILOGUE_BIAS ? cusim_host(at.bias) : nullptr;
    void *d = cusim_host(at.d);
    for (int64_t j = 0; j < p.n; j++)
        for (int64_t i = 0; i < p.m; i++) {
            float value = at.alpha * product[j * p.m + i];
            if (c)
                value +=
                    at.beta * sim_load(p.type_cd, c, batch * p.c.batch_stride + j * p.c.ld + i);
            if (bias)
                value += sim_load(p.type_bias, bias, i);
            if (p.epilogue & CUBLASLT_EPILOGUE_RELU)
                value = value > 0.0f || value != value ? value : 0.0f;
            sim_store(p.type_cd, d, batch * p.d.batch_stride + j * p.d.ld + i, value);
        }
}

void run_one(const problem &p, const pointers &at, int64_t batch)
{
    sim_matrix a = load_matrix(0, p.a, p.type_ab, cusim_host(at.a), batch, p.tf32);
    sim_matrix b = load_matrix(1, p.b, p.type_ab, cusim_host(at.b), batch, p.tf32);
    a = p.trans_a ? transposed(a) : a;
    b = p.trans_b ? transposed(b) : b;
    if (p.epilogue & (CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB))
        bias_gradient(p, a, b, cusim_host(at.bias));
    // The product's transpose is row-major: (n, m) = op(B)^T op(A)^T.
    int64_t parts = at.algo == 0 && p.k > 1 ? 2 : 1, count = p.m * p.n;
    float *sums = sim_scratch(2, (size_t)(parts * count));
    std::fill_n(sums, parts * count, 0.0f);
    for (int64_t part = 0; part < parts; part++) {
        int64_t first = p.k * part / parts, depth = p.k * (part + 1) / parts - first;
        sim_matrix bt = transposed(b), atr = transposed(a);
        bt.data += first * bt.col;
        atr.data += first * atr.row;
        sim_product(p.n, p.m, depth, bt, atr, sums + part * count, p.m);
    }
    for (int64_t i = 0; parts == 2 && i < count; i++)
        sums[i] += sums[count + i];
    finish(p, at, sums, batch);
}

void run(const problem &p, const pointers &at)
{
    size_t bias_bytes = bias_count(p) * sim_type_bytes(p.type_bias);
    cusim_reads(at.a, span_bytes(p.a, p.type_ab));
    cusim_reads(at.b, span_bytes(p.b, p.type_ab));
    if (at.beta != 0.0f)
        cusim_reads(at.c, span_bytes(p.c, p.type_cd));
    if (bias_bytes && p.epilogue & CUBLASLT_EPILOGUE_BIAS)
        cusim_reads(at.bias, bias_bytes);
    else if (bias_bytes)
        cusim_writes(at.bias, bias_bytes);
    cusim_writes(at.d, span_bytes(p.d, p.type_cd));
    uint64_t seed = sim_spoil(at.workspace, ALGO_WORKSPACE[at.algo]);
    for (int64_t batch = 0; batch < p.batch; batch++)
        run_one(p, at, batch);
    sim_unspoiled("cublasLtMatmul", at.workspace, ALGO_WORKSPACE[at.algo], seed);
}

} // namespace

extern "C" {

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t operationDesc, cublasLtMatrixLayout_t Adesc,
    cublasLtMatrixLayout_t Bdesc, cublasLtMatrixLayout_t Cdesc, cublasLtMatrixLayout_t Ddesc,
    cublasLtMatmulPreference_t preference_given, int requestedAlgoCount,
    cublasLtMatmulHeuristicResult_t heuristicResultsArray[], int *returnAlgoCount)
{
    if (!object<handle>(lightHandle, MAGIC_HANDLE, "the handle"))
        return CUBLAS_STATUS_NOT_INITIALIZED;
    matmul *desc = object<matmul>(operationDesc, MAGIC_DESC, "the operation");
    layout *a = object<layout>(Adesc, MAGIC_LAYOUT, "layout A"),
           *b = object<layout>(Bdesc, MAGIC_LAYOUT, "layout B"),
           *c = object<layout>(Cdesc, MAGIC_LAYOUT, "layout C"),
           *d = object<layout>(Ddesc, MAGIC_LAYOUT, "layout D");
    preference *pref = object<preference>(preference_given, MAGIC_PREFERENCE, "the preference");
    if (!desc || !a || !b || !c || !d || !pref || requestedAlgoCount <= 0 ||
        !heuristicResultsArray || !returnAlgoCount)
        return CUBLAS_STATUS_INVALID_VALUE;
    *returnAlgoCount = 0;
    if (int error = cusim_inject_error(__func__, CUBLAS_STATUS_NOT_SUPPORTED))
        return (cublasStatus_t)error;
    problem p;
    cublasStatus_t status = describe(desc, a, b, c, d, &p);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    for (int id = 0; id < 3 && *returnAlgoCount < requestedAlgoCount; id++) {
        if (ALGO_WORKSPACE[id] > pref->workspace)
            continue;
        algorithm algo = {MAGIC_ALGO, id, p.key, {}};
        std::copy_n(pref->align, 4, algo.align);
        cublasLtMatmulHeuristicResult_t result = {};
        std::memcpy(&result.algo, &algo, sizeof algo);
        result.workspaceSize = ALGO_WORKSPACE[id];
        result.state = CUBLAS_STATUS_SUCCESS;
        result.wavesCount = 1.0f;
        heuristicResultsArray[(*returnAlgoCount)++] = result;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t computeDesc,
                              const void *alpha, const void *A, cublasLtMatrixLayout_t Adesc,
                              const void *B, cublasLtMatrixLayout_t Bdesc, const void *beta,
                              const void *C, cublasLtMatrixLayout_t Cdesc, void *D,
                              cublasLtMatrixLayout_t Ddesc, const cublasLtMatmulAlgo_t *algo_given,
                              void *workspace, size_t workspaceSizeInBytes, cudaStream_t stream)
{
    if (!object<handle>(lightHandle, MAGIC_HANDLE, "the handle"))
        return CUBLAS_STATUS_NOT_INITIALIZED;
    matmul *desc = object<matmul>(computeDesc, MAGIC_DESC, "the operation");
    layout *a = object<layout>(Adesc, MAGIC_LAYOUT, "layout A"),
           *b = object<layout>(Bdesc, MAGIC_LAYOUT, "layout B"),
           *c = object<layout>(Cdesc, MAGIC_LAYOUT, "layout C"),
           *d = object<layout>(Ddesc, MAGIC_LAYOUT, "layout D");
    if (!desc || !a || !b || !c || !d || !alpha || !beta)
        return refuse(CUBLAS_STATUS_INVALID_VALUE, __func__,
                      "a descriptor, alpha or beta is missing");
    if (int error = cusim_inject_error(__func__, CUBLAS_STATUS_EXECUTION_FAILED))
        return (cublasStatus_t)error;
    problem p;
    cublasStatus_t status = describe(desc, a, b, c, d, &p);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED)
        return refuse(status, __func__, "these types or this epilogue do not go together");
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    algorithm algo = {MAGIC_ALGO, 2, p.key, {16, 16, 16, 16}};
    if (algo_given)
        std::memcpy(&algo, algo_given, sizeof algo);
    if (algo.magic != MAGIC_ALGO || algo.id < 0 || algo.id > 2 || algo.problem != p.key)
        return refuse(CUBLAS_STATUS_INVALID_VALUE, __func__,
                      "the algorithm was chosen for another problem");
    size_t needed = ALGO_WORKSPACE[algo.id];
    if (workspaceSizeInBytes < needed)
        return refuse(CUBLAS_STATUS_INVALID_VALUE, __func__,
                      "the workspace is smaller than the algorithm needs");
    if (needed && (!cusim_valid(workspace, needed) || (uintptr_t)workspace % 256))
        return refuse(CUBLAS_STATUS_INVALID_VALUE, __func__,
                      "the workspace is no device memory or not aligned to 256 bytes");
    pointers at = {A, B, C, D, desc->bias, workspace, 0.0f, 0.0f, algo.id};
    std::memcpy(&at.alpha, alpha, sizeof at.alpha);
    std::memcpy(&at.beta, beta, sizeof at.beta);
    status = check_pointers(p, at, algo);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    sim_enqueue(stream, "cublasLtMatmul", [p, at] { run(p, at); });
    return CUBLAS_STATUS_SUCCESS;
}

} // extern "C"
