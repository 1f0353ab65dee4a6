/* cublaslt_desc.cc - handles, matrix layouts, operations and preferences of the simulated cuBLASLt.
 * No locks: a descriptor belongs to who made it. */
#include <cstring>

#include "cublaslt_impl.h"

using namespace simlt;

static cublasStatus_t copy_attribute(const char *call, void *to, size_t bytes, const void *buf,
                                     size_t given)
{
    if (!buf || given != bytes)
        return refuse(CUBLAS_STATUS_INVALID_VALUE, call, "the attribute's size is another one");
    std::memcpy(to, buf, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t *lightHandle)
{
    if (!lightHandle)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (int error = cusim_inject_error("cublasLtCreate", CUBLAS_STATUS_NOT_INITIALIZED))
        return (cublasStatus_t)error;
    *lightHandle = reinterpret_cast<cublasLtHandle_t>(new handle{MAGIC_HANDLE});
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t lightHandle)
{
    handle *h = object<handle>(lightHandle, MAGIC_HANDLE, "the handle");
    if (!h)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    h->magic = 0;
    delete h;
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
        return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR:
        return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
        return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
        return "unknown cuBLAS status";
    }
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return cublasLtGetStatusName(status);
}

size_t cublasLtGetVersion(void)
{
    return CUBLAS_VERSION;
}

size_t cublasLtGetCudartVersion(void)
{
    return CUDART_VERSION;
}

cublasStatus_t cublasLtGetProperty(libraryPropertyType type, int *value)
{
    if (!value || type < MAJOR_VERSION || type > PATCH_LEVEL)
        return CUBLAS_STATUS_INVALID_VALUE;
    *value = type == MAJOR_VERSION   ? CUBLAS_VER_MAJOR
             : type == MINOR_VERSION ? CUBLAS_VER_MINOR
                                     : CUBLAS_VER_PATCH;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *matLayout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    if (!matLayout || !rows || !cols)
        return refuse(CUBLAS_STATUS_INVALID_VALUE, __func__, "a matrix has no rows or no columns");
    layout *made = new layout{MAGIC_LAYOUT, type, rows, cols, ld, 1, 0};
    *matLayout = reinterpret_cast<cublasLtMatrixLayout_t>(made);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t matLayout)
{
    layout *l = object<layout>(matLayout, MAGIC_LAYOUT, "the matrix layout");
    if (!l)
        return CUBLAS_STATUS_INVALID_VALUE;
    l->magic = 0;
    delete l;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t matLayout,
                                                cublasLtMatrixLayoutAttribute_t attr,
                                                const void *buf, size_t sizeInBytes)
{
    layout *l = object<layout>(matLayout, MAGIC_LAYOUT, "the matrix layout");
    if (!l)
        return CUBLAS_STATUS_INVALID_VALUE;
    int32_t order = CUBLASLT_ORDER_COL;
    uint32_t type;
    cublasStatus_t status;
    switch (attr) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
        status = copy_attribute(__func__, &type, sizeof type, buf, sizeInBytes);
        l->type = status == CUBLAS_STATUS_SUCCESS ? (cudaDataType)type : l->type;
        return status;
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
        status = copy_attribute(__func__, &order, sizeof order, buf, sizeInBytes);
        if (status == CUBLAS_STATUS_SUCCESS && order != CUBLASLT_ORDER_COL)
            return refuse(CUBLAS_STATUS_NOT_SUPPORTED, __func__,
                          "only column-major order is simulated");
        return status;
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
        return copy_attribute(__func__, &l->rows, sizeof l->rows, buf, sizeInBytes);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
        return copy_attribute(__func__, &l->cols, sizeof l->cols, buf, sizeInBytes);
    case CUBLASLT_MATRIX_LAYOUT_LD:
        return copy_attribute(__func__, &l->ld, sizeof l->ld, buf, sizeInBytes);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
        return copy_attribute(__func__, &l->batch, sizeof l->batch, buf, sizeInBytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
        return copy_attribute(__func__, &l->batch_stride, sizeof l->batch_stride, buf, sizeInBytes);
    default:
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, __func__, "this attribute is not simulated");
    }
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *matmulDesc,
                                        cublasComputeType_t computeType, cudaDataType_t scaleType)
{
    bool known = computeType == CUBLAS_COMPUTE_32F || computeType == CUBLAS_COMPUTE_32F_FAST_TF32;
    if (!matmulDesc || !known || scaleType != CUDA_R_32F)
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, __func__, "only products in f32 are simulated");
    matmul *made = new matmul{
        MAGIC_DESC, computeType, CUBLAS_OP_N, CUBLAS_OP_N, -1, CUBLASLT_EPILOGUE_DEFAULT, nullptr};
    *matmulDesc = reinterpret_cast<cublasLtMatmulDesc_t>(made);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t matmulDesc)
{
    matmul *m = object<matmul>(matmulDesc, MAGIC_DESC, "the operation");
    if (!m)
        return CUBLAS_STATUS_INVALID_VALUE;
    m->magic = 0;
    delete m;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t matmulDesc,
                                              cublasLtMatmulDescAttributes_t attr, const void *buf,
                                              size_t sizeInBytes)
{
    matmul *m = object<matmul>(matmulDesc, MAGIC_DESC, "the operation");
    if (!m)
        return CUBLAS_STATUS_INVALID_VALUE;
    int32_t mode = CUBLASLT_POINTER_MODE_HOST;
    cublasStatus_t status;
    switch (attr) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return copy_attribute(__func__, &m->trans_a, sizeof m->trans_a, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return copy_attribute(__func__, &m->trans_b, sizeof m->trans_b, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return copy_attribute(__func__, &m->epilogue, sizeof m->epilogue, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return copy_attribute(__func__, &m->bias, sizeof m->bias, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return copy_attribute(__func__, &m->bias_type, sizeof m->bias_type, buf, sizeInBytes);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
        status = copy_attribute(__func__, &mode, sizeof mode, buf, sizeInBytes);
        if (status == CUBLAS_STATUS_SUCCESS && mode != CUBLASLT_POINTER_MODE_HOST)
            return refuse(CUBLAS_STATUS_NOT_SUPPORTED, __func__,
                          "alpha and beta must lie on the host");
        return status;
    default:
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, __func__, "this attribute is not simulated");
    }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *pref)
{
    if (!pref)
        return CUBLAS_STATUS_INVALID_VALUE;
    preference *made = new preference{MAGIC_PREFERENCE, 0, {256, 256, 256, 256}};
    *pref = reinterpret_cast<cublasLtMatmulPreference_t>(made);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t pref)
{
    preference *p = object<preference>(pref, MAGIC_PREFERENCE, "the preference");
    if (!p)
        return CUBLAS_STATUS_INVALID_VALUE;
    p->magic = 0;
    delete p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                                    cublasLtMatmulPreferenceAttributes_t attr,
                                                    const void *buf, size_t sizeInBytes)
{
    preference *p = object<preference>(pref, MAGIC_PREFERENCE, "the preference");
    if (!p)
        return CUBLAS_STATUS_INVALID_VALUE;
    uint32_t mask;
    switch (attr) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return copy_attribute(__func__, &p->workspace, sizeof p->workspace, buf, sizeInBytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: // all schemes here repeat their bits
        return copy_attribute(__func__, &mask, sizeof mask, buf, sizeInBytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return copy_attribute(__func__,
                              &p->align[attr - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
                              sizeof p->align[0], buf, sizeInBytes);
    default:
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, __func__, "this attribute is not simulated");
    }
}

} // extern "C"
