// Plans of gradient fields on GPUs (kernels/cuda/field.cuh).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ir/program.h"
#include "ir/split.h"

namespace mercer::plan {

struct GpuFieldProblem {
  ir::FieldSplit field;
  Dtype type = Dtype::float32;  // computing type
  int outputs = 1;              // coefficients of one pass
  int planes = 0;               // pair values
  std::int64_t shared_per_block = 232448;
};

struct GpuFieldPlan {
  GpuFieldProblem problem;
  ir::Program program;   // one output: φ
  ir::Program uniforms;  // float64
  int thread_r = 4, thread_f = 4;
  bool reads_row = false, reads_col = false, reads_weights = false;

  int tile_r() const { return 16 * thread_r; }
  int tile_f() const { return 16 * thread_f; }
  std::int64_t shared_bytes(std::int64_t n) const;
};

/// Coefficients that one pass takes at most; more take several.
inline constexpr std::int64_t kFieldOutputs = 16;

std::shared_ptr<const GpuFieldPlan> plan_gpu_field(const GpuFieldProblem& problem);

}  // namespace mercer::plan
