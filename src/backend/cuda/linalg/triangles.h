// Triangular systems of one large float32 matrix with few right-hand sides (kernels/cuda/linalg/triangles.cuh).
#pragma once

#include <cstdint>

#include "backend/cuda/runtime/job.h"
#include "backend/cuda/runtime/kernels.h"
#include "core/devices/cuda_solver.h"

namespace mercer::cuda {

/// More columns keep a GPU busy by cuBLAS.
inline constexpr std::int64_t kFewRightSides = 64;

/// A triangle of a [order, order], by rows of `stride`, aligned to 16 bytes; right-hand sides b [order, count], by
/// columns of `b_stride`, become the solutions. A lower triangle has ones on its diagonal, whatever lies there.
struct TriangleSystem {
  const float* a;
  std::int64_t stride, order;
  float* b;
  std::int64_t b_stride, count;
};
void solve_triangle(const TriangleSystem& system, bool upper, const Kernel& kernels, const PairJob& job);

/// A lower triangle of a [rows, rows] with ones on its diagonal, and b [rows, count] of the same stride, which becomes
/// the solutions.
struct WideSystem {
  const float* a;
  float* b;
  std::int64_t stride, rows, count;
};
struct TriangleProducts {
  const CudaSolver& library;
  const SolverHandles& handles;
};
void solve_wide_triangle(const WideSystem& system, const Kernel& kernels, const TriangleProducts& products,
                         const PairJob& job);

}  // namespace mercer::cuda
