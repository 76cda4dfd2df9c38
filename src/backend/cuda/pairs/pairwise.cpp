#include <algorithm>
#include <optional>

#include "backend/cuda/gemm/matrix_products.h"
#include "backend/cuda/pairs/mask_strips.h"
#include "backend/cuda/pairs/mixed.h"
#include "backend/cuda/pairs/operations.h"
#include "backend/cuda/pairs/sum_planes.h"
#include "backend/cuda/runtime/feature_ranges.h"
#include "core/error.h"
#include "core/integers.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kMostBlocks = 0x7fffffff;

/// Along such an axis only the epilogue's parameters and the output differ: its items share an accumulation. Kernels
/// with their parameters in the arguments store one item.
bool is_member_axis(const Panels& panels, const PairJob& job, const plan::GpuPairPlan& plan, std::size_t axis) {
  return !plan.problem.params.by_value && job.batch[axis] > 1 && panels.x().batch_steps[axis] == 0 &&
         panels.z().batch_steps[axis] == 0 && !panels.params().differs(plan.programs.accumulation_params, axis);
}

/// Axes along which the sums in planes differ, or no items share an accumulation.
std::vector<bool> axes_of_sums(const plan::GpuPairPlan& plan, const PairJob& job) {
  std::vector<bool> differ(job.batch.size(), plan.problem.params.by_value);
  const bool packed = plan::reads_params(plan.sides);
  for (std::size_t axis = 0; axis < job.batch.size(); ++axis) {
    for (const JobSide* side : {&job.x, &job.z})
      differ[axis] = differ[axis] || side->points.steps(axis) || side->user.steps(axis);
    for (const Expr& leaf : plan.programs.accumulation_params)
      differ[axis] = differ[axis] || job.param(leaf).array.steps(axis);
    for (std::size_t p = 0; packed && p < plan.split.params.size(); ++p)
      differ[axis] = differ[axis] || job.param(plan.split.params[p]).array.steps(axis);
  }
  return differ;
}

/// Pairs that planes are read for, some rows after the others. A part of a symmetric matrix has the columns from its
/// first row on.
void run_parts(const PairKernels& kernels, const PairJob& job, const SumPlanes& sums, const PairArguments& a, Dtype out,
               const Workspace& workspace) {
  const plan::GpuPairPlan& plan = *kernels.plan;
  sums.prepare(workspace);
  for (std::int64_t first = 0; first < a.m; first += sums.rows()) {
    const PairPlace place{first, a.symmetric != 0 ? first : 0};
    PairArguments part = part_of(a, place, std::min<std::int64_t>(sums.rows(), a.m - first), kernels, job);
    sums.write(part, place, workspace);
    part.out.data = static_cast<char*>(a.out.data) +
                    (place.m * a.out.row + place.n * a.out.column) * static_cast<std::int64_t>(size_of(out));
    launch(kernels.common.tile, job, {part.tiles_m * part.splits}, plan.tile.threads(), plan.shared_bytes(job.features),
           part);
  }
}

/// False where the call ends with the lay-out of its memory.
bool run_pairwise(const PairKernels& kernels, const PairJob& job, const JobMatrix& out, bool symmetric,
                  Workspace& workspace) {
  const plan::GpuPairPlan& plan = *kernels.plan;
  const Panels panels(kernels, job, workspace);
  std::optional<MixedPipes> mixed;
  const auto products = matrix_products(kernels, job, panels, job.x.count, symmetric, workspace);
  if (plan.asks_ranges()) mixed.emplace(kernels, job, panels, workspace);
  std::optional<SumPlanes> sums;
  if (!kernels.products.sums.empty()) sums.emplace(kernels, job, SumPlanes::rows_of(kernels, job), workspace);
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
  std::optional<FeatureRanges> split;
  if (plan.by_ranges() && !products) split.emplace(kernels, job, group_count, workspace);
  if (!workspace.take(job)) return false;
  PanelRanges ranges;
  if (mixed) ranges = mixed->start(group_count, workspace);
  if (products) ranges.packs = !products->takes_points(group_count);
  panels.run(workspace, ranges);
  PairArguments a = panels.arguments(workspace);
  a.out.data = out.data;
  a.out.row = out.row_stride;
  a.out.column = out.col_stride;
  a.symmetric = symmetric;
  a.groups = groups.axes();
  groups.write(0, a.x.step);
  groups.write(1, a.z.step);
  groups.write(2, a.params.step);
  groups.write(3, a.out.step);
  a.members.axes = members.axes();
  a.members.count = member_count;
  members.write(0, a.members.item_step);
  members.write(1, a.members.out_step);
  if (products) return products->run(a, group_count, plan, out.dtype, workspace), true;
  require(!sums || group_count == 1, "{}: planes serve items that share their sums. Received {} groups.", job.op,
          group_count);
  if (sums) return run_parts(kernels, job, *sums, a, out.dtype, workspace), true;
  std::int64_t blocks = 0;
  const bool fits = !__builtin_mul_overflow(a.tiles_m * a.splits, group_count, &blocks) && blocks <= kMostBlocks;
  require(fits,
          "{}: at most 2^31 - 1 tiles of {} x {} pairs are offered in one call on CUDA. Received {} x {} pairs, "
          "{} times.",
          job.op, plan.tile.tile_m, plan.tile.tile_n, a.m, a.n, group_count);
  if (split) return split->run(kernels.common.tile, a, blocks, plan.shared_bytes(job.features), workspace), true;
  if (mixed) return mixed->run(a, group_count, blocks / group_count, out.dtype, workspace), true;
  launch_overlapping(kernels.common.tile, job, {blocks}, plan.tile.threads(), a, plan.shared_bytes(job.features));
  return true;
}

}  // namespace

namespace {

/// A first call: sums take the place of the values, then values that of the sums.
void run_bare(const PairKernels& kernels, const PairJob& job, const JobMatrix& out, bool symmetric,
              Workspace& workspace) {
  constexpr std::int64_t kThreads = 256, kMostRows = 1024, kMostItems = 65535;
  const ParamTable params(param_plan(*kernels.plan), job, workspace);
  run_pairwise(*kernels.first.bare->sums, job, out, symmetric, workspace);
  params.run(kernels.first.bare->uniforms, workspace);
  PairArguments a{};
  const bool guarded = static_cast<bool>(kernels.plan->guard);  // some values are made again of the points
  const auto steps_of = [&](const JobSide& side) {
    std::vector<std::int64_t> steps = guarded ? side.points.batch_strides : std::vector<std::int64_t>{};
    steps.resize(job.batch.size(), 0);
    return steps;
  };
  BatchWalk members{.extent = job.batch,
                    .steps = {params.item_steps(), out.batch_strides, steps_of(job.x), steps_of(job.z)}};
  members.merge(job.op);
  a.members.axes = members.axes();
  a.members.count = job.items;
  members.write(0, a.members.item_step);
  members.write(1, a.members.out_step);
  members.write(2, a.x.step);
  members.write(3, a.z.step);
  a.x.points = job.x.points.data;
  a.z.points = job.z.points.data;
  a.x.point = job.x.point_stride;
  a.x.feature = job.x.feature_stride;
  a.z.point = job.z.point_stride;
  a.z.feature = job.z.feature_stride;
  a.out.data = out.data;
  a.out.row = out.row_stride;
  a.out.column = out.col_stride;
  a.m = job.x.count;
  a.n = job.z.count;
  a.features = static_cast<int>(job.features);
  a.params.count = params.count();
  params.write_narrow(a.params.values, a.params.numbers, workspace);
  const jit::Dim3 blocks{ceil_div(a.n, kThreads), std::min<std::int64_t>(a.m, kMostRows),
                         std::min(job.items, kMostItems)};
  launch(kernels.first.bare->finish, job, blocks, kThreads, 0, a);
}

/// Planes are those of items that share them. False where the call ends with the lay-out of its memory.
bool run_groups(const PairKernels& kernels, const PairJob& job, const JobMatrix& out, bool symmetric,
                Workspace& workspace) {
  if (kernels.products.sums.empty()) {
    workspace.reuse();
    return run_pairwise(kernels, job, out, symmetric, workspace);
  }
  const FixedAxes groups(job.batch, axes_of_sums(*kernels.plan, job));
  for (std::int64_t index = 0; index < groups.items(); ++index) {
    workspace.reuse();
    if (!run_pairwise(kernels, job.at(groups, index), out.at(groups, index), symmetric, workspace)) return false;
  }
  return true;
}

/// Values strip by strip, and the known ones around them.
void run_strips(const PairKernels& kernels, const PairJob& job, const JobMatrix& out, bool symmetric,
                const std::vector<MaskStrip>& strips, Workspace& workspace) {
  const auto run = [&](const MaskStrip& strip, const PairJob& part, Workspace& own) {
    return strip.columns == 0 || run_groups(kernels, part, part_of(out, strip.row, strip.column), false, own);
  };
  std::int64_t bytes = 0;
  for (const MaskStrip& strip : strips)
    bytes = std::max(bytes, scratch_bytes(part_of(job, strip), [&](const PairJob& part, Workspace& rehearsed) {
                       run(strip, part, rehearsed);
                     }));
  workspace.add(bytes);
  const KnownValues known(job, out, symmetric);
  if (!workspace.take(job)) return;
  for (const MaskStrip& strip : strips) {
    known.fill(strip);
    if (!run(strip, part_of(job, strip), workspace)) return;
    known.mirror(strip);
  }
}

}  // namespace

void pairwise(const PairKernels& kernels, const PairJob& job, const JobMatrix& out, bool symmetric) {
  const JobScope scope(job);
  Workspace workspace;
  if (kernels.first.bare && job.rehearsal() == nullptr) return run_bare(kernels, job, out, symmetric, workspace);
  const std::vector<MaskStrip> strips = mask_strips(*kernels.plan, job, symmetric);
  if (!strips.empty()) return run_strips(kernels, job, out, symmetric, strips, workspace);
  run_groups(kernels, job, out, symmetric, workspace);
}

}  // namespace mercer::cuda
