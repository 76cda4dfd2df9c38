#include <optional>

#include "backend/cuda/matrix_products.h"
#include "backend/cuda/mixed.h"
#include "backend/cuda/operations.h"
#include "backend/cuda/panels.h"
#include "core/error.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kMostBlocks = 0x7fffffff;

/// Along such an axis only the epilogue's parameters and the output differ: its items share an accumulation. Kernels
/// with their parameters in the arguments store one item.
bool is_member_axis(const Panels& panels, const PairJob& job, const plan::GpuPairPlan& plan, std::size_t axis) {
  return !plan.problem.by_value && job.batch[axis] > 1 && panels.x().batch_steps[axis] == 0 &&
         panels.z().batch_steps[axis] == 0 && !panels.params().differs(plan.accumulation_params, axis);
}

}  // namespace

void pairwise(const PairKernels& kernels, const PairJob& job, const JobMatrix& out, bool symmetric) {
  const plan::GpuPairPlan& plan = *kernels.plan;
  const JobScope scope(job);
  Workspace workspace;
  const Panels panels(kernels, job, workspace);
  std::optional<MixedPipes> mixed;
  const auto products = matrix_products(kernels, job, panels, job.x.count, symmetric, workspace);
  if (plan.mixed_eighths > 0)
    mixed.emplace(kernels, job, panels, workspace);
  BatchWalk groups, members;
  groups.steps.resize(4);
  members.steps.resize(2);
  for (std::size_t axis = 0; axis < job.batch.size(); ++axis) {
    const std::int64_t out_step = out.batch_strides[axis], item_step = panels.params().item_steps()[axis];
    if (is_member_axis(panels, job, plan, axis)) {
      members.extent.push_back(job.batch[axis]);
      members.steps[0].push_back(item_step);
      members.steps[1].push_back(out_step);
      continue;
    }
    groups.extent.push_back(job.batch[axis]);
    groups.steps[0].push_back(panels.x().batch_steps[axis]);
    groups.steps[1].push_back(panels.z().batch_steps[axis]);
    groups.steps[2].push_back(item_step);
    groups.steps[3].push_back(out_step);
  }
  const std::int64_t group_count = groups.items(), member_count = members.items();
  groups.merge(job.op);
  members.merge(job.op);
  if (!workspace.take(job)) return;
  panels.run(workspace);
  PairArguments a = panels.arguments(workspace);
  a.out = out.data;
  a.out_row = out.row_stride;
  a.out_col = out.col_stride;
  a.symmetric = symmetric;
  a.groups = groups.axes();
  groups.write(0, a.x_step);
  groups.write(1, a.z_step);
  groups.write(2, a.item_step);
  groups.write(3, a.out_step);
  a.members = members.axes();
  a.member_count = member_count;
  members.write(0, a.member_item_step);
  members.write(1, a.member_out_step);
  if (products) return products->run(a, group_count, plan, out.dtype, workspace);
  std::int64_t blocks = 0;
  const bool fits = !__builtin_mul_overflow(a.tiles_m * a.splits, group_count, &blocks) && blocks <= kMostBlocks;
  require(fits,
          "{}: at most 2^31 - 1 tiles of {} x {} pairs are offered in one call on CUDA. Received {} x {} pairs, "
          "{} times.",
          job.op, plan.tile.tile_m, plan.tile.tile_n, a.m, a.n, group_count);
  if (mixed) return mixed->run(a, group_count, blocks / group_count, out.dtype, workspace);
  launch(kernels.tile, job, {blocks}, plan.tile.threads(), plan.shared_bytes(job.features), a);
}

}  // namespace mercer::cuda
