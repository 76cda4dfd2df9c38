// Cholesky's factorisation of one large matrix of float32, by blocks: cuSOLVER factors the blocks of the diagonal,
// cuBLAS solves for the panel beside, and products on tensor cores take it from the rest.
//
//   for j in blocks   L_jj = chol(A_jj)      panel: L_ij = A_ij L_jj^-T      rest: A_ik -= L_ij L_kj^T
#pragma once

#include "backend/cuda/split_update.h"
#include "core/cuda_solver.h"

namespace mercer::cuda {

class SplitCholesky {
 public:
  /// `place`: the stream and what errors say.
  SplitCholesky(const PairJob& place, const CudaSolver& library, const SolverHandles& handles, std::int64_t order);
  /// Whether the device serves it.
  explicit operator bool() const { return static_cast<bool>(update_); }
  /// Scratch memory on the device and on the host.
  std::int64_t bytes() const { return bytes_; }
  std::size_t host_bytes() const { return host_bytes_; }
  /// Whether stores of this matrix go by vectors.
  static bool is_aligned(const void* a, std::int64_t stride);

  /// In place, of the lower triangle, column-major. `said`, on the device: 0, or the order of the first leading minor
  /// that is not positive.
  void run(float* a, std::int64_t stride, char* memory, void* host_memory, int* said) const;

 private:
  struct Places {
    std::int64_t halves = 0, scales = 0, bad = 0, block_said = 0, buffer = 0, update = 0;
  };
  void factor_block(float* a, std::int64_t stride, std::int64_t order, char* memory, void* host_memory) const;
  void solve_panel(float* a, std::int64_t stride, std::int64_t rest) const;

  PairJob place_;
  const CudaSolver& library_;
  const SolverHandles& handles_;
  std::int64_t order_, block_;
  SplitUpdate update_;
  Kernel find_scales_;
  Places places_;
  std::int64_t bytes_ = 0;
  std::size_t buffer_bytes_ = 0, host_bytes_ = 0;
};

}  // namespace mercer::cuda
