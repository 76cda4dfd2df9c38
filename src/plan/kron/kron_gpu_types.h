// What the kernels of products with Kronecker products on a GPU are planned from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/kron/kron.h"

namespace mercer::plan {

struct KronCosts;

struct KronGpuTypes {
  Dtype type = Dtype::float32;                         // in which values are computed
  Dtype in = Dtype::float32, out = Dtype::float32;     // of what the pass reads and writes
  Dtype factor = Dtype::float32;
  bool final = false;                                  // alpha, beta and y come in
  /// 16 bytes at a time: nothing lies between neighbours, and all else starts at 16 bytes. `out` speaks for y as well.
  bool vectors_in = false, vectors_out = false;
  std::string key() const;
};

/// Where a pass stands in the call: what comes before and after its factors in one row, columns of the call included.
struct KronGpuPlace {
  std::int64_t items = 1, rows = 1, left = 1, right = 1;
};

struct KronGpuProblem {
  Dtype dtype = Dtype::float32, type = Dtype::float32;  // of the arrays; in which values are computed
  std::vector<KronShape> factors;
  std::int64_t items = 1;
  std::int64_t rows = 1;     // of an item, without the columns
  std::int64_t columns = 1;  // neighbouring rows that are neighbours in memory
  bool vectors_in = false, vectors_out = false;  // of x, and of out and y: see KronGpuTypes
  bool combines = true;      // alpha is not 1, or there is a y: the last pass has instructions for them
  int capability = 80, multiprocessors = 108;
  std::int64_t shared_per_block = 48 << 10;  // bytes
  const KronCosts* own_costs = nullptr;      // in place of those of its capability
  const KronCosts& costs() const;
};

}  // namespace mercer::plan
