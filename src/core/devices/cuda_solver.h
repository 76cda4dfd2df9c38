// cuSOLVER and cuBLAS, found and loaded at run time: a table of their functions, and handles, which are kept.
//
// Where they are looked for: MERCER_CUSOLVER, and then nowhere else (cuBLAS is next to it); copies that are in the
// process already (torch's); the folders of NVRTC (core/devices/nvrtc.h); the loader's own places. CUDA 13's, where the
// driver serves it, before CUDA 12's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/devices/cuda_driver.h"

namespace mercer {

// Handles and values of cusolverDn.h and cublas_v2.h. `params` of the X functions may be null.
using CuSolverHandle = struct CuSolverHandleData*;
using CuBlasHandle = struct CuBlasHandleData*;
inline constexpr int kCuFloat32 = 0, kCuFloat64 = 1;              // cudaDataType
inline constexpr int kCuLower = 0, kCuUpper = 1;                  // cublasFillMode_t
inline constexpr int kCuPlain = 0, kCuTransposed = 1;             // cublasOperation_t
inline constexpr int kCuLeft = 0, kCuRight = 1;                   // cublasSideMode_t
inline constexpr int kCuNonUnit = 0, kCuUnit = 1;                 // cublasDiagType_t
inline constexpr int kCuValuesOnly = 0, kCuVectors = 1;           // cusolverEigMode_t
inline constexpr int kCuRangeAll = 1001, kCuRangeIndices = 1002;  // cusolverEigRange_t

/// The functions; all return a status, 0 for success. Arrays of two hold float's and double's. Matrices are
/// column-major; `info` and all arrays lie on the device unless said otherwise.
struct CudaSolver {
  using Size = std::size_t;
  int (*create)(CuSolverHandle* handle);
  int (*set_stream)(CuSolverHandle handle, CuStream stream);
  int (*potrf_size)(CuSolverHandle, void* params, int uplo, std::int64_t n, int type, const void* a, std::int64_t lda,
                    int computed, Size* device_bytes, Size* host_bytes);
  int (*potrf)(CuSolverHandle, void* params, int uplo, std::int64_t n, int type, void* a, std::int64_t lda,
               int computed, void* buffer, Size bytes, void* host_buffer, Size host_bytes, int* info);
  int (*getrf_size)(CuSolverHandle, void* params, std::int64_t m, std::int64_t n, int type, const void* a,
                    std::int64_t lda, int computed, Size* device_bytes, Size* host_bytes);
  int (*getrf)(CuSolverHandle, void* params, std::int64_t m, std::int64_t n, int type, void* a, std::int64_t lda,
               std::int64_t* pivots, int computed, void* buffer, Size bytes, void* host_buffer, Size host_bytes,
               int* info);
  int (*getrs)(CuSolverHandle, void* params, int op, std::int64_t n, std::int64_t columns, int type, const void* a,
               std::int64_t lda, const std::int64_t* pivots, int b_type, void* b, std::int64_t ldb, int* info);
  int (*syevdx_size)(CuSolverHandle, void* params, int job, int range, int uplo, std::int64_t n, int type,
                     const void* a, std::int64_t lda, void* vl, void* vu, std::int64_t il, std::int64_t iu,
                     std::int64_t* found, int w_type, const void* w, int computed, Size* device_bytes,
                     Size* host_bytes);
  int (*syevdx)(CuSolverHandle, void* params, int job, int range, int uplo, std::int64_t n, int type, void* a,
                std::int64_t lda, void* vl, void* vu, std::int64_t il, std::int64_t iu, std::int64_t* found, int w_type,
                void* w, int computed, void* buffer, Size bytes, void* host_buffer, Size host_bytes, int* info);
  /// Null before CUDA 12.6.
  int (*syev_batched_size)(CuSolverHandle, void* params, int job, int uplo, std::int64_t n, int type, const void* a,
                           std::int64_t lda, int w_type, const void* w, int computed, Size* device_bytes,
                           Size* host_bytes, std::int64_t batch);
  int (*syev_batched)(CuSolverHandle, void* params, int job, int uplo, std::int64_t n, int type, void* a,
                      std::int64_t lda, int w_type, void* w, int computed, void* buffer, Size bytes, void* host_buffer,
                      Size host_bytes, int* info, std::int64_t batch);
  /// `a` holds pointers to matrices.
  int (*potrf_batched[2])(CuSolverHandle, int uplo, int n, void** a, int lda, int* info, int batch);

  int (*blas_create)(CuBlasHandle* handle);
  int (*blas_set_stream)(CuBlasHandle handle, CuStream stream);
  /// alpha and beta lie on the host.
  int (*gemm[2])(CuBlasHandle, int op_a, int op_b, int m, int n, int k, const void* alpha, const void* a, int lda,
                 const void* b, int ldb, const void* beta, void* c, int ldc);
  int (*trsm[2])(CuBlasHandle, int side, int uplo, int op, int diag, int m, int n, const void* alpha, const void* a,
                 int lda, void* b, int ldb);
  int (*trsm_batched[2])(CuBlasHandle, int side, int uplo, int op, int diag, int m, int n, const void* alpha,
                         const void* const* a, int lda, void* const* b, int ldb, int batch);
  int (*getrf_batched[2])(CuBlasHandle, int n, void* const* a, int lda, int* pivots, int* info, int batch);
  /// info lies on the host.
  int (*getrs_batched[2])(CuBlasHandle, int op, int n, int columns, const void* const* a, int lda, const int* pivots,
                          void* const* b, int ldb, int* info, int batch);

  std::string file;  // cuSOLVER's
};

/// Loaded at the first call and kept; nullptr when there are none. Looks again after add_library_folder.
const CudaSolver* cuda_solver();
/// The libraries, or an error that says what `op` needs, what was looked for and what to install.
const CudaSolver& need_cuda_solver(const char* op);
/// "cuSOLVER: file", or why there is none and what to install.
std::string describe_cuda_solver();
/// Throws device unless `status` is 0.
void check_solver(int status, const char* op, const char* function);

/// Handles of both libraries that put their work into one stream. Taken from those that no call holds; those of the
/// same stream, whose memory its own order protects, and else new ones. Needs the device to be current.
class SolverHandles {
 public:
  struct Kept;
  SolverHandles(int device, CuStream stream, const char* op);
  ~SolverHandles();
  SolverHandles(const SolverHandles&) = delete;
  SolverHandles& operator=(const SolverHandles&) = delete;

  CuSolverHandle solver() const;
  CuBlasHandle blas() const;
  /// Memory of the host that routines may still use when they have returned.
  void* host_memory(std::size_t bytes) const;

 private:
  std::unique_ptr<Kept> kept_;
};

}  // namespace mercer
