// The plan of a product with a Kronecker product on a GPU: passes over memory, each of one or several neighbouring
// factors, and the kernel of each pass.
//
// Floor of a pass on an H200: (bytes read + bytes written) / 4.2 TB/s, or 2 P flops an element of its output at
// 65 TFLOP/s (float32).
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "plan/kron.h"

namespace mercer::plan {

struct KronGpuTypes {
  Dtype type = Dtype::float32;                         // in which values are computed
  Dtype in = Dtype::float32, out = Dtype::float32;     // of what the pass reads and writes
  Dtype factor = Dtype::float32;
  bool final = false;                                  // alpha, beta and y come in
  /// 16 bytes at a time: nothing lies between neighbours, and all else starts at 16 bytes. `out` speaks for y as well.
  bool vectors_in = false, vectors_out = false;
  std::string key() const;
};

/// Where a pass stands in the call: what stands before and behind its factors in one row, columns of the call included.
struct KronGpuPlace {
  std::int64_t items = 1, rows = 1, left = 1, right = 1;
};

/// One factor, a tile of its outputs a block (kernels/cuda/kron_step.cuh). All of it is part of the kernel.
struct KronGpuTile {
  KronGpuTypes types;
  std::int64_t p = 1, q = 1;
  std::int64_t tile_a = 1, tile_b = 1, tile_p = 1, tile_q = 1;
  std::int64_t thread_n = 4, thread_q = 8, groups_n = 32, groups_q = 1;

  std::int64_t threads() const { return groups_n * groups_q; }
  std::int64_t tile_n() const { return groups_n * thread_n; }
  std::int64_t shared_bytes() const;
  std::int64_t blocks(const KronGpuPlace& place) const;
  /// Whether one block reads all that it replaces, so that a pass may write where it reads.
  bool whole() const { return tile_q == q; }
  /// Equal texts are equal kernels.
  std::string key() const;
};

/// Neighbouring factors first, first + 1, ... at their turn.
struct KronGpuPass {
  int first = 0, count = 1;
  std::int64_t p = 1, q = 1;  // products of theirs
  KronGpuPlace place;
  std::variant<KronGpuTile> kernel;
};

struct KronGpuProblem {
  Dtype dtype = Dtype::float32, type = Dtype::float32;  // of the arrays; in which values are computed
  std::vector<KronShape> factors;
  std::int64_t items = 1;
  std::int64_t rows = 1;     // of an item, without the columns
  std::int64_t columns = 1;  // neighbouring rows that are neighbours in memory
  bool vectors_in = false, vectors_out = false;  // of x, and of out and y: see KronGpuTypes
  int capability = 80, multiprocessors = 108;
  std::int64_t shared_per_block = 48 << 10;  // bytes
};

struct KronGpuPlan {
  std::vector<KronGpuPass> passes;  // in the order in which they run
  std::int64_t widest = 0;          // elements of a row between passes, with columns
};

KronGpuPlan plan_kron_gpu(const KronGpuProblem& problem);

}  // namespace mercer::plan
