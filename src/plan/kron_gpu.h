// The plan of a product with a Kronecker product on a GPU: one pass of memory for each factor, and the tile of each
// pass (kernels/cuda/kron_step.cuh says what a tile is).
//
// Floor of a pass on an H200: (bytes read + bytes written) / 4.2 TB/s, or 2 P flops an element of its output at
// 65 TFLOP/s (float32).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/kron.h"

namespace mercer::plan {

/// All of it is part of the kernel.
struct KronGpuTile {
  Dtype type = Dtype::float32;                         // in which values are computed
  Dtype in = Dtype::float32, out = Dtype::float32;     // of what the pass reads and writes
  Dtype factor = Dtype::float32;
  bool final = false;                                  // alpha, beta and y come in
  std::int64_t p = 1, q = 1;
  std::int64_t tile_a = 1, tile_b = 1, tile_p = 1, tile_q = 1;
  std::int64_t thread_n = 4, thread_q = 8, groups_n = 32, groups_q = 1;

  std::int64_t threads() const { return groups_n * groups_q; }
  std::int64_t tile_n() const { return groups_n * thread_n; }
  std::int64_t shared_bytes() const;
  /// Whether one block reads all that it replaces, so that a pass may write where it reads.
  bool whole() const { return tile_q == q; }
  /// Equal texts are equal kernels.
  std::string key() const;
};

/// One factor at its turn: what stands before and behind it in one row, columns of the call included.
struct KronGpuPass {
  int factor = 0;
  std::int64_t left = 1, right = 1;
  KronGpuTile tile;
};

struct KronGpuProblem {
  Dtype dtype = Dtype::float32, type = Dtype::float32;  // of the arrays; in which values are computed
  std::vector<KronShape> factors;
  std::int64_t rows = 1;     // of an item, without the columns
  std::int64_t columns = 1;  // neighbouring rows that are neighbours in memory
};

struct KronGpuPlan {
  std::vector<KronGpuPass> passes;  // in the order in which they run
  std::int64_t widest = 0;          // elements of a row between passes, with columns
};

KronGpuPlan plan_kron_gpu(const KronGpuProblem& problem);

}  // namespace mercer::plan
