// LAPACK and BLAS, of OpenBLAS, MKL or any other make, found and loaded at run time: MERCER_LAPACK, and nothing else;
// wheels of OpenBLAS alone, which the package hands over; OpenBLAS where the loader finds it; the copies in the wheels
// of NumPy and SciPy and in the folder of this Python (conda), whose number of threads these share; MKL and LAPACK
// where the loader finds them.
//
// Builds differ in names (a prefix, a suffix) and in how wide their integers are; callers see neither. Matrices are
// column-major, as LAPACK has them: element (i, j) at a[i + j * stride].
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/system/apart.h"

namespace mercer {

/// A file that may have LAPACK; those of the first call come first, those that others use (`shared`) after all else.
void add_lapack_file(std::filesystem::path file, bool shared = false);

enum class Routine : std::uint8_t { potrf, getrf, gemm, syrk, trsm, trsv, syevd, syevr };
inline constexpr int kRoutines = 8;

class Lapack {
 public:
  struct Functions;
  explicit Lapack(const Functions& functions);

  /// This library, its long calls cut into ones of so many operations a thread.
  Lapack in_calls_of(double operations) const;

  const std::string& file() const;
  /// What OpenBLAS says of itself: version, width of integers, the processor it chose; empty when it does not say.
  std::string configuration() const;
  /// Sizes and strides up to here are right: 2^31 - 1, or 2^63 - 1.
  std::int64_t largest_size() const;
  /// Orders up to here are right in syevd, whose 1 + 6n + 2n^2 elements of scratch memory are counted in such integers.
  std::int64_t largest_syevd() const;

  // LAPACK's routines return its info. T is float or double. A call of BLAS or a factorisation that is long is made of
  // short ones (lapack_parts.cpp), between which `stop_if_cancelled` is asked: what it wrote is then half done.

  /// a = L L^T in the lower triangle, or U^T U in the upper; the other one is left alone. > 0: the order of the first
  /// leading minor that is not positive.
  template <class T>
  std::int64_t potrf(bool lower, std::int64_t n, T* a, std::int64_t stride) const;
  /// P a = L U of a [m, n]; row i went where row pivots[i] was, counted from 0. > 0: the first zero on U's diagonal.
  template <class T>
  std::int64_t getrf(std::int64_t m, std::int64_t n, T* a, std::int64_t stride, std::int64_t* pivots) const;
  /// The lower or the upper triangle of c [n, n] = alpha a a^T + beta c, a [n, k], or of a^T a, a [k, n], when
  /// transposed; the other one is left alone.
  template <class T>
  void syrk(bool lower, bool transposed, std::int64_t n, std::int64_t k, T alpha, const T* a, std::int64_t a_stride,
            T beta, T* c, std::int64_t c_stride) const;
  /// c [m, n] = alpha op(a) op(b) + beta c, k the extent that is summed over.
  template <class T>
  void gemm(bool a_transposed, bool b_transposed, std::int64_t m, std::int64_t n, std::int64_t k, T alpha, const T* a,
            std::int64_t a_stride, const T* b, std::int64_t b_stride, T beta, T* c, std::int64_t c_stride) const;
  /// b [rows, cols] = op(t)^-1 b, or b op(t)^-1 when t stands on the right; op transposes when asked to.
  template <class T>
  void trsm(bool right, bool lower, bool transposed, bool unit, std::int64_t rows, std::int64_t cols, const T* t,
            std::int64_t stride, T* b, std::int64_t b_stride) const;
  /// As `trsm`, for one vector b, of any stride but 0: element i at b[i * step].
  template <class T>
  void trsv(bool lower, bool transposed, bool unit, std::int64_t n, const T* t, std::int64_t stride, T* b,
            std::int64_t step) const;

  /// Scratch memory of the two below, in elements and in integers of 64 bits.
  struct Scratch {
    std::int64_t elements = 0, integers = 0;
  };
  // The two below cannot be made of parts; run_apart (core/system/apart.h) returns before they do.
  /// All eigenvalues of a symmetric matrix, ascending, and its vectors in place of it when wanted; divide and conquer.
  template <class T>
  Scratch syevd_scratch(bool vectors, std::int64_t n) const;
  template <class T>
  std::int64_t syevd(bool vectors, bool lower, std::int64_t n, T* a, std::int64_t stride, T* w, T* elements,
                     std::int64_t* integers, Scratch size) const;
  /// Eigenvalues from first to last, counted from 0, and their vectors; a is destroyed. w has n elements;
  /// v [n, last - first + 1] may be null when no vectors are wanted. Relatively robust representations.
  template <class T>
  Scratch syevr_scratch(bool vectors, std::int64_t n) const;
  template <class T>
  std::int64_t syevr(bool vectors, bool lower, std::int64_t n, T* a, std::int64_t stride, std::int64_t first,
                     std::int64_t last, T* w, T* v, std::int64_t v_stride, T* elements, std::int64_t* integers,
                     Scratch size) const;

 private:
  friend class LapackThreads;
  /// What one call of the library may take, in operations: some tenths of a second at most.
  double most_operations() const;
  // One call of the library each.
  template <class T>
  std::int64_t potrf_at_once(bool lower, std::int64_t n, T* a, std::int64_t stride) const;
  /// a [m, n]; min(m, n) pivots.
  template <class T>
  std::int64_t getrf_at_once(std::int64_t m, std::int64_t n, T* a, std::int64_t stride, std::int64_t* pivots) const;
  template <class T>
  std::int64_t getrf_parts(std::int64_t m, std::int64_t n, T* a, std::int64_t stride, std::int64_t* pivots) const;
  template <class T>
  void gemm_at_once(bool a_transposed, bool b_transposed, std::int64_t m, std::int64_t n, std::int64_t k, T alpha,
                    const T* a, std::int64_t a_stride, const T* b, std::int64_t b_stride, T beta, T* c,
                    std::int64_t c_stride) const;
  template <class T>
  void syrk_at_once(bool lower, bool transposed, std::int64_t n, std::int64_t k, T alpha, const T* a,
                    std::int64_t a_stride, T beta, T* c, std::int64_t c_stride) const;
  template <class T>
  void trsm_at_once(bool right, bool lower, bool transposed, bool unit, std::int64_t rows, std::int64_t cols,
                    const T* t, std::int64_t stride, T* b, std::int64_t b_stride) const;
  const Functions* functions_;
  double operations_ = 4e9;  // of a thread and a call: a tenth of a second of float64 by AVX2
};

/// Loaded at the first call and kept; nullptr when none was found. Looks again after add_lapack_file.
const Lapack* lapack();
/// The library, or an error that says what `op` needs, what was looked for and what to install.
const Lapack& need_lapack(const char* op);
/// "LAPACK: OpenBLAS 0.3.… (file)", or why there is none and what to install.
std::string describe_lapack();

/// While it lives, OpenBLAS works with so many threads. The number is a setting of the library: calls that want the
/// same one share it, others wait. Not for bodies of the pool.
class LapackThreads {
 public:
  LapackThreads(const Lapack& lapack, int threads);
  ~LapackThreads();
  LapackThreads(const LapackThreads&) = delete;
  LapackThreads& operator=(const LapackThreads&) = delete;

 private:
  const ForeignWork work_;
  const Lapack& lapack_;
};

}  // namespace mercer
