// LU with partial pivoting of one large matrix of float32, by rows and by blocks of columns: panels by a cluster of
// blocks, which holds them in its registers, and products in split precision on tensor cores for the rest.
//
//   for blocks of columns
//     for panels of 32 of its columns   P A = L U of the panel (lu_panel.cuh); rows and U of the block's others
//     rows of the other columns; U_12 = L_11^-1 A_12; A_22 -= L_21 U_12            (lu_steps.cuh)
#pragma once

#include <optional>

#include "backend/cuda/gemm/split_update.h"
#include "backend/dense_job.h"
#include "core/devices/cuda_solver.h"
#include "kernels/cuda/common/arguments.h"

namespace mercer::cuda {

class SplitLu {
 public:
  /// `place`: the stream and what errors say; `columns`: most right-hand sides that are solved for together.
  SplitLu(const PairJob& place, const CudaSolver& library, const SolverHandles& handles, std::int64_t order,
          std::int64_t columns, const plan::LuCosts& choice);
  /// Whether a device serves it: one with clusters of blocks, and rows that their registers hold.
  static bool serves(const CudaDevice& device, std::int64_t order);
  /// Scratch memory on the device.
  std::int64_t bytes() const { return bytes_; }
  /// Whether rows of this matrix may be read by vectors.
  static bool is_aligned(const void* a, std::int64_t stride);

  /// Factors in place, by rows. `pivots` [order] count from 1; `said`: 0, or the first pivot that is zero, from 1.
  void factor(float* a, std::int64_t stride, std::int64_t* pivots, char* memory, int* said) const;
  /// b = a^-1 b of what `factor` left in a and in the memory; b [order, count] by columns.
  void solve(const float* a, std::int64_t stride, float* b, std::int64_t count, char* memory) const;

 private:
  struct Places {
    std::int64_t state = 0, most = 0, least = 0, from = 0, to = 0, order = 0, block_from = 0, block_to = 0,
                 permutation = 0, exponents = 0, l = 0, u = 0, stray_rows = 0, stray_columns = 0, update = 0, given = 0;
  };
  void lay_out();
  LuArguments arguments(char* memory) const;
  void scale(LuArguments& arguments) const;
  void factor_block(LuArguments& arguments, std::int64_t* pivots, int* said) const;
  void factor_panel(const LuArguments& arguments, std::int64_t* pivots, int* said) const;
  void join_panel(const LuArguments& arguments) const;
  void update_rest(const LuArguments& arguments, char* memory) const;
  void step(const char* name, jit::Dim3 blocks, std::int64_t threads, const LuArguments& arguments) const;

  PairJob place_;
  const CudaSolver& library_;
  const SolverHandles& handles_;
  std::int64_t order_, columns_, block_;
  plan::LuCosts choice_;
  std::optional<SplitUpdate> update_;  // where there is more than a block
  Kernel panels_, steps_, triangles_;
  Places places_;
  std::int64_t bytes_ = 0;
};

}  // namespace mercer::cuda
