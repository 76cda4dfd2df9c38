// Plans as CUDA C++: configuration and generated functions, then the skeleton from kernels/cuda/.
#pragma once

#include <string>

#include "mercer/pairwise.h"
#include "plan/gpu_plan.h"

namespace mercer::codegen {

/// The kernel `pair_tile` (kernels/cuda/pair_tile.cuh).
std::string cuda_pair_source(const plan::GpuPairPlan& plan);

/// The kernel `pack`: one side of a plan, for points of this dtype.
std::string cuda_pack_source(const plan::GpuPairPlan& plan, bool of_x, Dtype points);
/// The kernel `pack` without a formula: values are the features.
std::string cuda_plain_pack_source(Dtype type, Dtype points);

/// The kernel `fill`.
std::string cuda_fill_source();

/// The kernel `uniforms`.
std::string cuda_uniforms_source(const plan::GpuPairPlan& plan);

/// The kernel `merge_ranges` behind a fold over n.
std::string cuda_merge_source(plan::Consumer consumer, ReduceKind fold, Dtype type, Dtype out);

}  // namespace mercer::codegen
