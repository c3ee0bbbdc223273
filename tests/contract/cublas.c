/* A stand-in for libcublas.so.13 over the stand-in driver: column-major products in host memory. It
   refuses what cuBLAS refuses of the calls that are made. */
#include <stddef.h>
#include <stdint.h>

enum { OK = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, EXECUTION_FAILED = 13 };
static struct { void *stream, *area; size_t size; } handle;

int cublasCreate_v2(void **created) { *created = &handle; return OK; }
int cublasSetStream_v2(void *h, void *stream) { handle.stream = stream; return h == &handle ? OK : NOT_INITIALIZED; }
int cublasSetWorkspace_v2(void *h, void *area, size_t size) {
    if (h != &handle || !area || (uintptr_t)area % 16) return INVALID_VALUE;
    handle.area = area;
    handle.size = size;
    return OK;
}
int cublasSgemm_v2(void *h, int ta, int tb, int m, int n, int k, const float *alpha, const float *a, int lda,
                   const float *b, int ldb, const float *beta, float *c, int ldc) {
    if (h != &handle || !handle.stream || !handle.area) return NOT_INITIALIZED;
    if (ta || tb || m < 0 || n < 0 || k < 0 || lda < m || ldb < k || ldc < m) return INVALID_VALUE;
    if (m == 7) return EXECUTION_FAILED;  /* for the error path */
    for (int column = 0; column < n; column++)
        for (int row = 0; row < m; row++) {
            float sum = 0;
            for (int i = 0; i < k; i++) sum += a[(size_t)i * lda + row] * b[(size_t)column * ldb + i];
            c[(size_t)column * ldc + row] = *alpha * sum + (*beta ? *beta * c[(size_t)column * ldc + row] : 0);
        }
    return OK;
}
