// Cholesky's factorisation of one large matrix of float32, by blocks of columns: each is halved until kernels of ours
// factor 64 columns, cuBLAS takes one half from the other, and products on tensor cores take the block from the rest.
//
//   for j in blocks   columns j: L_jj = chol(A_jj), L_ij = A_ij L_jj^-T      rest: A_ik -= L_ij L_kj^T
#pragma once

#include "backend/cuda/gemm/split_update.h"
#include "core/devices/cuda_solver.h"
#include "kernels/cuda/common/arguments.h"

namespace mercer::cuda {

class SplitCholesky {
 public:
  /// `place`: the stream and what errors say.
  SplitCholesky(const PairJob& place, const CudaSolver& library, const SolverHandles& handles, std::int64_t order);
  /// Whether the device serves it.
  explicit operator bool() const { return static_cast<bool>(update_); }
  /// Scratch memory on the device.
  std::int64_t bytes() const { return bytes_; }
  /// Whether stores of this matrix go by vectors.
  static bool is_aligned(const void* a, std::int64_t stride);

  /// Factors the lower triangle in place, column-major. `said`, on the device: 0, or the order of the first leading
  /// minor that is not positive.
  void run(float* a, std::int64_t stride, char* memory, int* said) const;

 private:
  struct Places {
    std::int64_t halves = 0, scales = 0, bad = 0, update = 0;
  };
  /// Columns from `first` on, down to the last row.
  void factor_columns(FactorArguments& a, std::int64_t first, std::int64_t count) const;
  void step(const char* name, jit::Dim3 blocks, std::int64_t threads, FactorArguments& a) const;
  void overlapping_step(const char* name, jit::Dim3 blocks, std::int64_t threads, FactorArguments& a) const;

  PairJob place_;
  const CudaSolver& library_;
  const SolverHandles& handles_;
  std::int64_t order_, block_;
  SplitUpdate update_;
  Kernel find_scales_;
  Places places_;
  std::int64_t bytes_ = 0;
};

}  // namespace mercer::cuda
