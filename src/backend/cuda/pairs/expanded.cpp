#include "backend/cuda/pairs/expanded.h"

#include <algorithm>

#include "core/integers.h"
#include "plan/gpu/sums/expanded.h"

namespace mercer::cuda {
namespace {

static_assert(plan::kMostExpandedFeatures == MERCER_EXPANDED);

constexpr std::int64_t kFloat = sizeof(float), kPointThreads = 256, kWarp = 32, kPointsOfTile = 128, kRowsOfBound = 32;

}  // namespace

ExpandedSquares::ExpandedSquares(const PairKernels& kernels, const PairJob& job, const Panels& panels,
                                 Workspace& workspace)
    : kernels_(kernels), job_(job) {
  const std::int64_t x_ld = panels.x().ld, z_ld = panels.z().ld;
  const std::int64_t columns = std::max(1, kernels.plan->problem.product.wide);
  state_ = workspace.add(sizeof(ExpandedState));
  x_ = workspace.add(x_ld * job.features * kFloat);
  const std::int64_t z_end = round_up(z_ld, kPointsOfTile);
  z_ = workspace.add(z_end * job.features * kFloat);
  v_ = workspace.add(z_ld * columns * kFloat);
  row_factors_ = workspace.add(x_ld * kFloat);
  if (!kernels.plan->few.mma_rhs) return;
  const std::int64_t chunks = plan::expanded_chunk_bytes(job.features);
  powers_ = workspace.add(z_end * static_cast<std::int64_t>(sizeof(int)));
  x_chunks_ = workspace.add(x_ld * chunks);
  z_chunks_ = workspace.add(z_end * chunks);
}

ExpandedSquares::Both ExpandedSquares::prepare(const PairArguments& group, const Workspace& workspace) const {
  PairArguments values = group;
  values.expanded.state = workspace.at<ExpandedState>(state_);
  values.x.expanded = workspace.at<float>(x_);
  values.z.expanded = workspace.at<float>(z_);
  values.expanded.v = workspace.at<float>(v_);
  values.expanded.row_factors = workspace.at<float>(row_factors_);
  if (kernels_.plan->few.mma_rhs) {
    values.expanded.z_powers = workspace.at<int>(powers_);
    values.x.chunks = workspace.at<>(x_chunks_);
    values.z.chunks = workspace.at<>(z_chunks_);
  }
  PairArguments expanded = values;
  expanded.x.points = kernels_.plan->few.mma_rhs ? values.x.chunks : values.x.expanded;
  expanded.z.points = kernels_.plan->few.mma_rhs ? values.z.chunks : values.z.expanded;
  expanded.v.data = values.expanded.v;
  launch(kernels_.pipes.expand, job_, {1}, kWarp * job_.features, 0, values);
  const std::int64_t longest = std::max(group.x.ld, round_up(group.z.ld, kPointsOfTile));
  const auto of_points = [&](const char* name) {
    launch(sibling(kernels_.pipes.expand, name, job_), job_, {ceil_div(longest, kPointThreads), 2}, kPointThreads, 0,
           values);
  };
  of_points("expand_points");
  if (!kernels_.plan->few.mma_rhs) return {expanded, values};
  launch(sibling(kernels_.pipes.expand, "bound_rows", job_), job_, {ceil_div(group.m, kRowsOfBound)}, kPointThreads, 0,
         values);
  of_points("write_chunks");
  return {expanded, values};
}

}  // namespace mercer::cuda
