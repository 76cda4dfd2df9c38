// cuSOLVER and cuBLAS over the emulator's memory, by LAPACK: the functions of core/devices/cuda_solver.h.
//
// Arguments are checked as a device would have them: handles with a stream, matrices and buffers of device memory from
// the first element to the last, as much scratch memory as was asked for (which is overwritten), sizes in 32 bits for
// routines of batches. What is wrong is told and is status 3. NaN is treated as the originals do: factors report
// success; eigenvalues, which may take the device along, end the process.
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "core/devices/lapack.h"
#include "device/lapack.h"

namespace {

constexpr int kSuccess = 0, kInvalidValue = 3;
constexpr std::size_t kBufferBytes = 4096;
constexpr int kLower = 0, kPlain = 0, kDouble = 1, kVectors = 1, kRangeAll = 1001, kRangeIndices = 1002;

struct Handle {
  bool has_stream = false;
  void* stream = nullptr;
};

const mercer::Lapack& lapack() {
  const mercer::Lapack* found = mercer::testing::lapack_for_tests();
  if (found == nullptr) {
    std::fprintf(stderr, "emulated cuSOLVER: %s", mercer::describe_lapack().c_str());
    std::abort();
  }
  return *found;
}

template <class Function>
Function of_driver(const char* name) {
  void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return driver == nullptr ? nullptr : reinterpret_cast<Function>(::dlsym(driver, name));
}

bool is_device_byte(const void* at) {
  static const auto attribute = of_driver<int (*)(void*, int, std::uint64_t)>("cuPointerGetAttribute");
  int kind = 0;
  return attribute != nullptr && attribute(&kind, 2, reinterpret_cast<std::uint64_t>(at)) == 0;
}

bool is_device(const void* at, std::int64_t bytes) {
  const char* first = static_cast<const char*>(at);
  return bytes == 0 || (is_device_byte(first) && is_device_byte(first + bytes - 1));
}

std::int64_t size_of(int type) { return type == kDouble ? 8 : 4; }

/// Columns of a matrix in device memory.
bool is_matrix(const void* a, std::int64_t rows, std::int64_t cols, std::int64_t stride, int type) {
  if (rows == 0 || cols == 0) return true;
  return stride >= rows && reinterpret_cast<std::uintptr_t>(a) % size_of(type) == 0 &&
         is_device(a, ((cols - 1) * stride + rows) * size_of(type));
}

int told(bool ok, const char* function) {
  if (ok) return kSuccess;
  std::fprintf(stderr, "emulated %s: an argument is wrong\n", function);
  return kInvalidValue;
}

/// Copies from the host that the stream has before this call are made.
bool serves(const void* handle) {
  if (handle == nullptr || !static_cast<const Handle*>(handle)->has_stream) return false;
  static const auto ask = of_driver<int (*)(void*)>("cuStreamQuery");
  if (ask != nullptr) ask(static_cast<const Handle*>(handle)->stream);
  return true;
}

/// The buffer that the routine asked for; scribbled over.
bool takes_buffers(void* buffer, std::size_t bytes, void* host, std::size_t host_bytes) {
  if (bytes != kBufferBytes || host_bytes != kBufferBytes || !is_device(buffer, kBufferBytes)) return false;
  if (host == nullptr || is_device_byte(host)) return false;
  std::memset(buffer, 0x7b, bytes);
  std::memset(host, 0x7b, host_bytes);
  return true;
}

int asks(bool ok, std::size_t* device_bytes, std::size_t* host_bytes, const char* function) {
  *device_bytes = *host_bytes = kBufferBytes;
  return told(ok, function);
}

template <class T>
bool has_nan(const T* a, std::int64_t n, std::int64_t stride, bool lower) {
  for (std::int64_t j = 0; j < n; ++j)
    for (std::int64_t i = lower ? j : 0; i < (lower ? n : j + 1); ++i)
      if (std::isnan(a[i + j * stride])) return true;
  return false;
}

template <class T>
int potrf(int uplo, std::int64_t n, T* a, std::int64_t stride) {
  if (!has_nan(a, n, stride, uplo == kLower)) return static_cast<int>(lapack().potrf(uplo == kLower, n, a, stride));
  for (std::int64_t j = 0; j < n; ++j) a[j + j * stride] = std::numeric_limits<T>::quiet_NaN();
  return 0;
}

template <class T>
int getrf(std::int64_t m, std::int64_t n, T* a, std::int64_t stride, std::int64_t* pivots) {
  const int info = static_cast<int>(lapack().getrf(m, n, a, stride, pivots));
  for (std::int64_t i = 0; i < std::min(m, n); ++i) ++pivots[i];
  return info;
}

template <class T, class Pivot>
void getrs(int op, std::int64_t n, std::int64_t columns, const T* a, std::int64_t stride, const Pivot* pivots, T* b,
           std::int64_t b_stride) {
  const bool turned = op != kPlain;
  const auto swap_rows = [&](std::int64_t i) {
    for (std::int64_t j = 0; j < columns; ++j) std::swap(b[i + j * b_stride], b[pivots[i] - 1 + j * b_stride]);
  };
  if (!turned)
    for (std::int64_t i = 0; i < n; ++i) swap_rows(i);
  lapack().trsm(false, !turned, turned, !turned, n, columns, a, stride, b, b_stride);
  lapack().trsm(false, turned, turned, turned, n, columns, a, stride, b, b_stride);
  if (turned)
    for (std::int64_t i = n; i-- > 0;) swap_rows(i);
}

template <class T>
int syev(int job, int range, int uplo, std::int64_t n, T* a, std::int64_t stride, std::int64_t first, std::int64_t last,
         T* w) {
  if (has_nan(a, n, stride, uplo == kLower)) {
    std::fprintf(stderr, "emulated eigenvalues: NaN spoils the device\n");
    std::abort();
  }
  const mercer::Lapack& l = lapack();
  if (range == kRangeAll) {
    const auto size = l.syevd_scratch<T>(job == kVectors, n);
    std::vector<T> elements(static_cast<std::size_t>(size.elements));
    std::vector<std::int64_t> integers(static_cast<std::size_t>(size.integers));
    return static_cast<int>(
        l.syevd(job == kVectors, uplo == kLower, n, a, stride, w, elements.data(), integers.data(), size));
  }
  const auto size = l.syevr_scratch<T>(job == kVectors, n);
  std::vector<T> elements(static_cast<std::size_t>(size.elements)), v(static_cast<std::size_t>(n * (last - first + 1)));
  std::vector<std::int64_t> integers(static_cast<std::size_t>(size.integers));
  const auto info = l.syevr(job == kVectors, uplo == kLower, n, a, stride, first - 1, last - 1, w, v.data(), n,
                            elements.data(), integers.data(), size);
  for (std::int64_t j = 0; j < n; ++j)
    for (std::int64_t i = 0; i < n; ++i)
      a[i + j * stride] = j <= last - first && job == kVectors ? v[static_cast<std::size_t>(i + j * n)]
                                                               : std::numeric_limits<T>::quiet_NaN();
  return static_cast<int>(info);
}

/// Pointers in device memory to matrices in device memory.
bool are_matrices(const void* const* a, std::int64_t rows, std::int64_t cols, std::int64_t stride, int type,
                  int batch) {
  bool ok = batch >= 0 && is_device(a, batch * static_cast<std::int64_t>(sizeof(void*)));
  for (int i = 0; ok && i < batch; ++i) ok = is_matrix(a[i], rows, cols, stride, type);
  return ok;
}

bool are_ints(const void* at, std::int64_t count) { return is_device(at, count * 4); }

template <class T>
constexpr int kType = sizeof(T) == 8 ? kDouble : 0;

template <class T>
int potrf_batched(void* handle, int uplo, int n, T** a, int lda, int* info, int batch) {
  if (!serves(handle) || !are_matrices(reinterpret_cast<void**>(a), n, n, lda, kType<T>, batch) ||
      !are_ints(info, batch))
    return told(false, "potrfBatched");
  for (int i = 0; i < batch; ++i) info[i] = potrf(uplo, n, a[i], lda);
  return kSuccess;
}

template <class T>
int trsm(void* handle, int side, int uplo, int op, int diag, int m, int n, const T* alpha, const T* a, int lda, T* b,
         int ldb) {
  const bool right = side == 1;
  const int order = right ? n : m;
  if (!serves(handle) || (!right && side != 0) || (diag != 0 && diag != 1) || is_device_byte(alpha) || *alpha != 1 ||
      !is_matrix(a, order, order, lda, kType<T>) || !is_matrix(b, m, n, ldb, kType<T>))
    return told(false, "trsm");
  lapack().trsm(right, uplo == kLower, op != kPlain, diag == 1, m, n, a, lda, b, ldb);
  return kSuccess;
}

template <class T>
int gemm(void* handle, int op_a, int op_b, int m, int n, int k, const T* alpha, const T* a, int lda, const T* b,
         int ldb, const T* beta, T* c, int ldc) {
  const bool a_turned = op_a != kPlain, b_turned = op_b != kPlain;
  if (!serves(handle) || is_device_byte(alpha) || is_device_byte(beta) ||
      !is_matrix(a, a_turned ? k : m, a_turned ? m : k, lda, kType<T>) ||
      !is_matrix(b, b_turned ? n : k, b_turned ? k : n, ldb, kType<T>) || !is_matrix(c, m, n, ldc, kType<T>))
    return told(false, "gemm");
  lapack().gemm<T>(a_turned, b_turned, m, n, k, *alpha, a, lda, b, ldb, *beta, c, ldc);
  return kSuccess;
}

template <class T>
int trsm_batched(void* handle, int side, int uplo, int op, int diag, int m, int n, const T* alpha, const T* const* a,
                 int lda, T* const* b, int ldb, int batch) {
  if (!are_matrices(reinterpret_cast<const void* const*>(a), m, m, lda, kType<T>, batch) ||
      !are_matrices(reinterpret_cast<const void* const*>(b), m, n, ldb, kType<T>, batch))
    return told(false, "trsmBatched");
  for (int i = 0; i < batch; ++i)
    if (trsm(handle, side, uplo, op, diag, m, n, alpha, a[i], lda, b[i], ldb) != kSuccess) return kInvalidValue;
  return kSuccess;
}

template <class T>
int getrf_batched(void* handle, int n, T* const* a, int lda, int* pivots, int* info, int batch) {
  if (!serves(handle) || !are_matrices(reinterpret_cast<const void* const*>(a), n, n, lda, kType<T>, batch) ||
      !are_ints(pivots, std::int64_t{n} * batch) || !are_ints(info, batch))
    return told(false, "getrfBatched");
  std::vector<std::int64_t> found(static_cast<std::size_t>(n));
  for (int i = 0; i < batch; ++i) {
    info[i] = getrf(n, n, a[i], lda, found.data());
    std::copy(found.begin(), found.end(), pivots + std::int64_t{n} * i);
  }
  return kSuccess;
}

template <class T>
int getrs_batched(void* handle, int op, int n, int columns, const T* const* a, int lda, const int* pivots, T* const* b,
                  int ldb, int* info, int batch) {
  if (!serves(handle) || is_device_byte(info) ||
      !are_matrices(reinterpret_cast<const void* const*>(a), n, n, lda, kType<T>, batch) ||
      !are_matrices(reinterpret_cast<const void* const*>(b), n, columns, ldb, kType<T>, batch) ||
      !are_ints(pivots, std::int64_t{n} * batch))
    return told(false, "getrsBatched");
  for (int i = 0; i < batch; ++i) getrs(op, n, columns, a[i], lda, pivots + std::int64_t{n} * i, b[i], ldb);
  *info = 0;
  return kSuccess;
}

/// Calls body with a pointer of the type.
template <class Body>
int with_type(int type, void* a, const Body& body) {
  return type == kDouble ? body(static_cast<double*>(a)) : body(static_cast<float*>(a));
}

}  // namespace

extern "C" {

int cusolverDnCreate(void** handle) {
  *handle = new Handle;
  return kSuccess;
}
int cusolverDnSetStream(void* handle, void* stream) {
  *static_cast<Handle*>(handle) = {true, stream};
  return kSuccess;
}
int cublasCreate_v2(void** handle) { return cusolverDnCreate(handle); }
int cublasSetStream_v2(void* handle, void* stream) { return cusolverDnSetStream(handle, stream); }

int cusolverDnXpotrf_bufferSize(void* handle, void*, int, std::int64_t n, int type, const void*, std::int64_t lda,
                                int computed, std::size_t* device_bytes, std::size_t* host_bytes) {
  return asks(serves(handle) && lda >= n && computed == type, device_bytes, host_bytes, "Xpotrf_bufferSize");
}
int cusolverDnXpotrf(void* handle, void*, int uplo, std::int64_t n, int type, void* a, std::int64_t lda, int computed,
                     void* buffer, std::size_t bytes, void* host, std::size_t host_bytes, int* info) {
  if (!serves(handle) || computed != type || !is_matrix(a, n, n, lda, type) || !are_ints(info, 1) ||
      !takes_buffers(buffer, bytes, host, host_bytes))
    return told(false, "Xpotrf");
  *info = with_type(type, a, [&](auto* matrix) { return potrf(uplo, n, matrix, lda); });
  return kSuccess;
}
int cusolverDnXgetrf_bufferSize(void* handle, void*, std::int64_t m, std::int64_t n, int type, const void*,
                                std::int64_t lda, int computed, std::size_t* device_bytes, std::size_t* host_bytes) {
  return asks(serves(handle) && lda >= m && computed == type, device_bytes, host_bytes, "Xgetrf_bufferSize");
}
int cusolverDnXgetrf(void* handle, void*, std::int64_t m, std::int64_t n, int type, void* a, std::int64_t lda,
                     std::int64_t* pivots, int computed, void* buffer, std::size_t bytes, void* host,
                     std::size_t host_bytes, int* info) {
  if (!serves(handle) || computed != type || !is_matrix(a, m, n, lda, type) || !is_device(pivots, std::min(m, n) * 8) ||
      !are_ints(info, 1) || !takes_buffers(buffer, bytes, host, host_bytes))
    return told(false, "Xgetrf");
  *info = with_type(type, a, [&](auto* matrix) { return getrf(m, n, matrix, lda, pivots); });
  return kSuccess;
}
int cusolverDnXgetrs(void* handle, void*, int op, std::int64_t n, std::int64_t columns, int type, const void* a,
                     std::int64_t lda, const std::int64_t* pivots, int b_type, void* b, std::int64_t ldb, int* info) {
  if (!serves(handle) || b_type != type || !is_matrix(a, n, n, lda, type) || !is_matrix(b, n, columns, ldb, type) ||
      !is_device(pivots, n * 8) || !are_ints(info, 1))
    return told(false, "Xgetrs");
  *info = 0;
  return with_type(type, const_cast<void*>(a), [&](auto* matrix) {
    getrs(op, n, columns, matrix, lda, pivots, static_cast<decltype(matrix)>(b), ldb);
    return kSuccess;
  });
}
int cusolverDnXsyevdx_bufferSize(void* handle, void*, int, int range, int, std::int64_t n, int type, const void*,
                                 std::int64_t lda, void*, void*, std::int64_t, std::int64_t, std::int64_t* found,
                                 int w_type, const void*, int computed, std::size_t* device_bytes,
                                 std::size_t* host_bytes) {
  const bool ok = serves(handle) && (range == kRangeAll || range == kRangeIndices) && lda >= n && w_type == type &&
                  computed == type && !is_device_byte(found);
  return asks(ok, device_bytes, host_bytes, "Xsyevdx_bufferSize");
}
int cusolverDnXsyevdx(void* handle, void*, int job, int range, int uplo, std::int64_t n, int type, void* a,
                      std::int64_t lda, void*, void*, std::int64_t il, std::int64_t iu, std::int64_t* found, int w_type,
                      void* w, int computed, void* buffer, std::size_t bytes, void* host, std::size_t host_bytes,
                      int* info) {
  if (!serves(handle) || w_type != type || computed != type || !is_matrix(a, n, n, lda, type) ||
      !is_device(w, n * size_of(type)) || (range == kRangeIndices && !(1 <= il && il <= iu && iu <= n)) ||
      !are_ints(info, 1) || !takes_buffers(buffer, bytes, host, host_bytes))
    return told(false, "Xsyevdx");
  *found = range == kRangeAll ? n : iu - il + 1;
  *info = with_type(type, a, [&](auto* matrix) {
    return syev(job, range, uplo, n, matrix, lda, il, iu, static_cast<decltype(matrix)>(w));
  });
  return kSuccess;
}
int cusolverDnXsyevBatched_bufferSize(void* handle, void*, int, int, std::int64_t n, int type, const void*,
                                      std::int64_t lda, int w_type, const void*, int computed,
                                      std::size_t* device_bytes, std::size_t* host_bytes, std::int64_t batch) {
  const bool ok = serves(handle) && lda >= n && w_type == type && computed == type && batch > 0;
  return asks(ok, device_bytes, host_bytes, "XsyevBatched_bufferSize");
}
int cusolverDnXsyevBatched(void* handle, void*, int job, int uplo, std::int64_t n, int type, void* a, std::int64_t lda,
                           int w_type, void* w, int computed, void* buffer, std::size_t bytes, void* host,
                           std::size_t host_bytes, int* info, std::int64_t batch) {
  if (!serves(handle) || w_type != type || computed != type || !is_matrix(a, n, n * batch, lda, type) ||
      n * n * batch * size_of(type) > std::numeric_limits<int>::max() || !is_device(w, n * batch * size_of(type)) ||
      !are_ints(info, batch) || !takes_buffers(buffer, bytes, host, host_bytes))
    return told(false, "XsyevBatched");
  for (std::int64_t i = 0; i < batch; ++i)
    info[i] = with_type(type, a, [&](auto* matrix) {
      auto* const values = static_cast<decltype(matrix)>(w);
      return syev(job, kRangeAll, uplo, n, matrix + i * lda * n, lda, 0, 0, values + i * n);
    });
  return kSuccess;
}

#define MERCER_TYPED(letter, T)                                                                                     \
  int cusolverDn##letter##potrfBatched(void* handle, int uplo, int n, T** a, int lda, int* info, int batch) {       \
    return potrf_batched(handle, uplo, n, a, lda, info, batch);                                                     \
  }                                                                                                                 \
  int cublas##letter##gemm_v2(void* handle, int op_a, int op_b, int m, int n, int k, const T* alpha, const T* a,    \
                              int lda, const T* b, int ldb, const T* beta, T* c, int ldc) {                         \
    return gemm(handle, op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);                                  \
  }                                                                                                                 \
  int cublas##letter##trsm_v2(void* handle, int side, int uplo, int op, int diag, int m, int n, const T* alpha,     \
                              const T* a, int lda, T* b, int ldb) {                                                 \
    return trsm(handle, side, uplo, op, diag, m, n, alpha, a, lda, b, ldb);                                         \
  }                                                                                                                 \
  int cublas##letter##trsmBatched(void* handle, int side, int uplo, int op, int diag, int m, int n, const T* alpha, \
                                  const T* const* a, int lda, T* const* b, int ldb, int batch) {                    \
    return trsm_batched(handle, side, uplo, op, diag, m, n, alpha, a, lda, b, ldb, batch);                          \
  }                                                                                                                 \
  int cublas##letter##getrfBatched(void* handle, int n, T* const* a, int lda, int* pivots, int* info, int batch) {  \
    return getrf_batched(handle, n, a, lda, pivots, info, batch);                                                   \
  }                                                                                                                 \
  int cublas##letter##getrsBatched(void* handle, int op, int n, int columns, const T* const* a, int lda,            \
                                   const int* pivots, T* const* b, int ldb, int* info, int batch) {                 \
    return getrs_batched(handle, op, n, columns, a, lda, pivots, b, ldb, info, batch);                              \
  }
MERCER_TYPED(S, float)
MERCER_TYPED(D, double)
#undef MERCER_TYPED
}
