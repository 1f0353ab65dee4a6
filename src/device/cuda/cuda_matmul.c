/* cuda_matmul.c - matrix products by cuBLASLt: described and chosen once, run many times.
 *
 * The choice is the library's heuristics', for the workspace that plans allow and the alignment
 * that all our buffers have. Products of f32 may use tf32 where the device's options say so. One
 * thread at a time, as with the plans that hold them. */
#include "ddp/memory.h"
#include "ddp/thread.h"
#include "device/cuda/cuda_impl.h"

static cudaDataType_t type_of(ddp_dtype dtype)
{
    return dtype == DDP_BF16 ? CUDA_R_16BF : dtype == DDP_F16 ? CUDA_R_16F : CUDA_R_32F;
}

#define SET(function, object, attribute, value)                                                    \
    DDPI_CUBLAS_TRY(function((object), (attribute), &(value), sizeof(value)))

static ddp_status describe(const ddpi_cuda_device *device, const ddpi_cuda_matmul_desc *desc,
                           ddpi_cuda_matmul *matmul)
{
    const bool tf32 = desc->from == DDP_F32 && device->base.opts.tf32;
    const cublasOperation_t trans_a = desc->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t trans_b = desc->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue =
        desc->bias   ? desc->relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS
        : desc->relu ? CUBLASLT_EPILOGUE_RELU
                     : CUBLASLT_EPILOGUE_DEFAULT;
    DDPI_CUBLAS_TRY(cublasLtMatmulDescCreate(
        &matmul->desc, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
    SET(cublasLtMatmulDescSetAttribute, matmul->desc, CUBLASLT_MATMUL_DESC_TRANSA, trans_a);
    SET(cublasLtMatmulDescSetAttribute, matmul->desc, CUBLASLT_MATMUL_DESC_TRANSB, trans_b);
    SET(cublasLtMatmulDescSetAttribute, matmul->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    if (desc->bias) {
        const cudaDataType_t type = type_of(desc->to);
        const void *stand_in = device->main->sums; /* so that the choice knows of a bias */
        SET(cublasLtMatmulDescSetAttribute, matmul->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
            type);
        SET(cublasLtMatmulDescSetAttribute, matmul->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
            stand_in);
    }
    matmul->bias = desc->bias;
    const uint64_t m = (uint64_t)desc->m, n = (uint64_t)desc->n, k = (uint64_t)desc->k;
    DDPI_CUBLAS_TRY(cublasLtMatrixLayoutCreate(&matmul->a, type_of(desc->from),
                                               desc->trans_a ? k : m, desc->trans_a ? m : k,
                                               desc->trans_a ? desc->k : desc->m));
    DDPI_CUBLAS_TRY(cublasLtMatrixLayoutCreate(&matmul->b, type_of(desc->from),
                                               desc->trans_b ? n : k, desc->trans_b ? k : n,
                                               desc->trans_b ? desc->n : desc->k));
    DDPI_CUBLAS_TRY(cublasLtMatrixLayoutCreate(&matmul->d, type_of(desc->to), m, n, desc->m));
    return DDP_OK;
}

static ddp_status set_preference(const ddpi_cuda_device *device,
                                 cublasLtMatmulPreference_t preference)
{
    static const cublasLtMatmulPreferenceAttributes_t operands[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const size_t limit = DDPI_CUDA_WORKSPACE_LIMIT;
    const uint32_t alignment = DDP_ALIGN_BYTES;
    /* Partial sums of one product that are added in the output have an order only as long as the
     * blocks that make them keep to theirs. */
    const uint32_t schemes =
        CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    if (device->base.opts.deterministic)
        SET(cublasLtMatmulPreferenceSetAttribute, preference,
            CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
    SET(cublasLtMatmulPreferenceSetAttribute, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
        limit);
    for (size_t i = 0; i < sizeof operands / sizeof operands[0]; i++)
        SET(cublasLtMatmulPreferenceSetAttribute, preference, operands[i], alignment);
    return DDP_OK;
}

static ddp_status choose(const ddpi_cuda_device *device, const ddpi_cuda_matmul_desc *desc,
                         cublasLtMatmulPreference_t preference, ddpi_cuda_matmul *matmul)
{
    cublasLtMatmulHeuristicResult_t result;
    int count = 0;
    DDP_TRY(set_preference(device, preference));
    const cublasStatus_t error =
        cublasLtMatmulAlgoGetHeuristic(device->cublas, matmul->desc, matmul->a, matmul->b,
                                       matmul->d, matmul->d, preference, 1, &result, &count);
    if (error == CUBLAS_STATUS_NOT_SUPPORTED || (error == CUBLAS_STATUS_SUCCESS && count == 0))
        return DDP_FAIL(
            DDP_ERR_UNSUPPORTED, "cuBLASLt has no matrix product of %lld x %lld x %lld for %s",
            (long long)desc->m, (long long)desc->n, (long long)desc->k, ddp_dtype_name(desc->from));
    DDPI_CUBLAS_TRY(error);
    DDPI_CUBLAS_TRY(result.state);
    matmul->algo = result.algo;
    matmul->workspace_bytes = result.workspaceSize;
    return DDP_OK;
}

ddp_status ddpi_cuda_matmul_create(ddpi_cuda_device *device, const ddpi_cuda_matmul_desc *desc,
                                   ddpi_cuda_matmul *matmul)
{
    cublasLtMatmulPreference_t preference;
    DDP_TRY(describe(device, desc, matmul));
    DDPI_CUBLAS_TRY(cublasLtMatmulPreferenceCreate(&preference));
    const ddp_status st = choose(device, desc, preference, matmul);
    (void)cublasLtMatmulPreferenceDestroy(preference);
    return st;
}

void ddpi_cuda_matmul_destroy(ddpi_cuda_matmul *matmul)
{
    if (matmul->d != NULL)
        (void)cublasLtMatrixLayoutDestroy(matmul->d);
    if (matmul->b != NULL)
        (void)cublasLtMatrixLayoutDestroy(matmul->b);
    if (matmul->a != NULL)
        (void)cublasLtMatrixLayoutDestroy(matmul->a);
    if (matmul->desc != NULL)
        (void)cublasLtMatmulDescDestroy(matmul->desc);
    *matmul = (ddpi_cuda_matmul){0};
}

ddp_status ddpi_cuda_matmul_run(const ddpi_cuda_matmul *matmul, ddp_stream *stream,
                                const ddpi_cuda_matmul_args *args)
{
    const float one = 1, zero = 0;
    const ddpi_cuda_device *device = ddpi_cuda_of(stream->device);
    if (matmul->bias)
        SET(cublasLtMatmulDescSetAttribute, matmul->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
            args->bias);
    DDPI_CUBLAS_TRY(cublasLtMatmul(device->cublas, matmul->desc, &one, args->a, matmul->a, args->b,
                                   matmul->b, &zero, args->d, matmul->d, args->d, matmul->d,
                                   &matmul->algo,
                                   matmul->workspace_bytes > 0 ? args->workspace : NULL,
                                   matmul->workspace_bytes, ddpi_cuda_stream(stream)));
    return DDP_OK;
}

/* ---- the rate of large products ---- */

/* Seconds of one product of that size, the best of a few. */
static ddp_status time_product(ddpi_cuda_device *device, int64_t size, double *seconds_out)
{
    enum { RUNS = 4 };
    ddp_stream *stream = ddpi_cuda_main_stream(&device->base);
    const ddpi_cuda_matmul_desc desc = {
        .m = size, .n = size, .k = size, .from = DDP_F32, .to = DDP_F32};
    const size_t bytes = (size_t)(size * size) * sizeof(float);
    ddpi_cuda_matmul matmul = {0};
    void *memory = NULL;
    ddp_status st;
    DDP_TRY_GOTO(st, ddpi_cuda_matmul_create(device, &desc, &matmul), out);
    DDP_TRY_GOTO(st, ddpi_cuda_alloc(&device->base, 3 * bytes + matmul.workspace_bytes, &memory),
                 out);
    char *at = memory;
    const ddpi_cuda_matmul_args args = {
        .a = at, .b = at + bytes, .d = at + 2 * bytes, .workspace = at + 3 * bytes};
    for (int run = 0; run < RUNS; run++) {
        const int64_t start = ddp_now_ns();
        DDP_TRY_GOTO(st, ddpi_cuda_matmul_run(&matmul, stream, &args), out);
        DDP_TRY_GOTO(st, ddpi_cuda_stream_sync(stream), out);
        const double seconds = (double)(ddp_now_ns() - start) * 1e-9;
        if (run == 0 || seconds < *seconds_out)
            *seconds_out = seconds;
    }
out:
    ddpi_cuda_matmul_destroy(&matmul);
    if (memory != NULL)
        ddpi_cuda_free(&device->base, memory, 0);
    return st;
}

/* Products grow until one takes a millisecond, or no longer gets faster. */
ddp_status ddpi_cuda_measure_peak(ddp_device *device, double *flops_out)
{
    double best = 0;
    DDP_TRY(ddpi_cuda_enter(device));
    for (int64_t size = 128; size <= 8192; size *= 2) {
        double seconds = 0;
        DDP_TRY(time_product(ddpi_cuda_of(device), size, &seconds));
        const double flops = 2.0 * (double)(size * size) * (double)size / seconds;
        best = flops > best ? flops : best;
        if (seconds > 2e-3)
            break;
    }
    *flops_out = best;
    return DDP_OK;
}
