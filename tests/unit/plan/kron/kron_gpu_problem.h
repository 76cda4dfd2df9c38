// Calls on an H200 whose arrays are read and written by vectors.
#pragma once

#include <utility>
#include <vector>

#include "plan/kron/kron_gpu_types.h"

namespace mercer::plan {

inline KronGpuProblem kron_problem(std::vector<KronShape> factors, Dtype type = Dtype::float32) {
  KronGpuProblem problem;
  problem.dtype = problem.type = type;
  problem.factors = std::move(factors);
  problem.rows = 1024;
  problem.vectors_in = problem.vectors_out = true;
  problem.capability = 90;
  problem.multiprocessors = 132;
  problem.shared_per_block = 227 << 10;
  return problem;
}

inline KronGpuTypes kron_types(Dtype type = Dtype::float32) {
  KronGpuTypes types;
  types.type = types.in = types.out = types.factor = type;
  types.vectors_in = types.vectors_out = true;
  return types;
}

}  // namespace mercer::plan
