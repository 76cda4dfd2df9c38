#include "backend/cuda/runtime/panels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/integers.h"

namespace mercer::cuda {
namespace {

/// Panels are padded to the largest tile.
constexpr std::int64_t kPadding = 128;
constexpr std::int64_t kPackPoints = 32, kPackFeatures = 32, kPackThreads = 256;

std::int64_t padded(std::int64_t count) { return round_up(count, kPadding); }
std::int64_t size_in(Dtype type) { return static_cast<std::int64_t>(size_of(type)); }

/// Blocks along n: one a tile, or one for several where the plan says so and enough blocks are left.
std::int64_t columns_of_blocks(const plan::GpuPairPlan& plan, std::int64_t tiles_m, std::int64_t tiles_n,
                               int multiprocessors) {
  constexpr std::int64_t kTilesOfBlock = 8, kWaves = 8;
  if (!plan.many_tiles()) return tiles_n;
  const std::int64_t least = kWaves * plan.tile.min_blocks * multiprocessors;
  const std::int64_t wanted =
      std::max(ceil_div(tiles_n, kTilesOfBlock), least / std::max<std::int64_t>(1, tiles_m));
  return std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(1, tiles_n));
}

bool plain(const plan::Sides& sides) {
  return sides.stages.empty() && plan::are_points(sides.x_streams) && plan::are_points(sides.z_streams);
}

/// Blocks along the features: enough to fill the device when there are few points.
std::int64_t feature_blocks(std::int64_t point_blocks, std::int64_t features, int multiprocessors) {
  const std::int64_t slices = std::max<std::int64_t>(1, ceil_div(features, kPackFeatures));
  const std::int64_t wanted = ceil_div(std::int64_t{8} * multiprocessors, point_blocks);
  return std::clamp<std::int64_t>(wanted, 1, slices);
}

/// `separate`: whether slots, where they are wanted, have blocks of their own.
void launch_pack(const Kernel& kernel, const PairJob& job, const std::vector<PackArguments>& sides, bool separate,
                 Overlap overlap = Overlap::blocks) {
  PackBothArguments both{};
  std::int64_t blocks = 0;
  for (std::size_t s = 0; s < sides.size(); ++s) {
    both.side[s] = sides[s];
    blocks = std::max<std::int64_t>(blocks, sides[s].blocks * sides[s].sets);
  }
  if (blocks == 0) return;
  std::int64_t rows = separate && sides[0].slots != nullptr ? 1 : 0;
  if (sides[0].values != nullptr) rows += feature_blocks(blocks, sides[0].k, job.hardware().multiprocessors);
  const auto count = static_cast<std::int64_t>(sides.size());
  launch_overlapping(kernel, job, {blocks, std::max<std::int64_t>(rows, 1), count}, kPackThreads, both, 0, overlap);
}

std::int64_t offset_of(const BatchAxes& axes, const long long* steps, std::int64_t index) {
  std::int64_t offset = 0;
  for (int axis = axes.count - 1; axis >= 0; --axis) {
    offset += index % axes.extent[axis] * steps[axis];
    index /= axes.extent[axis];
  }
  return offset;
}

std::vector<std::int64_t> full(const std::vector<std::int64_t>& steps, std::size_t axes) {
  return steps.empty() ? std::vector<std::int64_t>(axes, 0) : steps;
}

}  // namespace

ParamPlan param_plan(const plan::GpuPairPlan& plan) {
  return {&plan.split.params, &plan.programs.uniforms, plan.split.uniforms.size()};
}

bool reciprocals_are_normal(const plan::GpuPairPlan& plan, const PairJob& job) {
  if (plan.programs.reciprocals.empty()) return true;
  const std::vector<double> values = number_values(param_plan(plan), job);
  return std::all_of(plan.programs.reciprocals.begin(), plan.programs.reciprocals.end(), [&](int u) {
    return std::isnormal(static_cast<float>(values[plan.split.params.size() + static_cast<std::size_t>(u)]));
  });
}

Panels::Panels(const PairKernels& kernels, const PairJob& job, Workspace& workspace)
    : kernels_(kernels), job_(job), params_(param_plan(*kernels.plan), job, workspace) {
  const plan::GpuPairPlan& plan = *kernels.plan;
  if (job.weights.data != nullptr) weights_ = workspace.add(job.features * size_in(job.type));
  x_ = lay_out(true, workspace);
  same_ = !plan.input.direct && job.same_points && plain(plan.sides) && plan.programs.row_slots == 0 &&
          plan.programs.col_slots == 0;
  if (!same_) z_ = lay_out(false, workspace);
}

PackedPanels Panels::lay_out(bool of_x, Workspace& workspace) {
  const plan::GpuPairPlan& plan = *kernels_.plan;
  const JobSide& side = of_x ? job_.x : job_.z;
  const bool params = params_.in_table() && reads_params(plan.sides, of_x);
  PackedPanels panels;
  panels.ld = padded(side.count);
  if (plan.input.direct) {
    panels.batch_steps = full(side.points.batch_strides, job_.batch.size());
    return panels;
  }
  panels.batch_steps.assign(job_.batch.size(), 0);
  for (std::size_t axis = job_.batch.size(); axis-- > 0;) {
    const bool differs = side.points.steps(axis) || side.user.steps(axis) ||
                         (params && params_.differs(plan.split.params, axis));
    if (!differs) continue;
    panels.batch_steps[axis] = panels.sets;
    panels.sets *= job_.batch[axis];
  }
  const std::int64_t streams =
      static_cast<std::int64_t>(of_x ? plan.sides.x_streams.size() : plan.sides.z_streams.size());
  const std::int64_t slots = of_x ? plan.programs.row_slots : plan.programs.col_slots;
  const std::int64_t rows = plan.panel_rows(job_.features) * streams;
  panels.values = workspace.add(panels.sets * rows * panels.ld * size_in(job_.type));
  panels.slots = workspace.add(panels.sets * slots * panels.ld * size_in(job_.type));
  return panels;
}

void Panels::run(const Workspace& workspace, const PanelRanges& ranges) const {
  params_.run(kernels_.common.uniforms, workspace);
  if (kernels_.plan->input.direct) return;
  PackArguments x = pack_arguments(true, workspace), z = same_ ? x : pack_arguments(false, workspace);
  x.ranges = ranges.x;
  z.ranges = ranges.z;
  x.pieces[0] = ranges.x_pieces;
  (same_ ? x : z).pieces[1] = ranges.z_pieces;
  if (!ranges.packs) {
    x.values = z.values = nullptr;
    if (x.slots == nullptr && z.slots == nullptr && x.weights_out == nullptr) return;
  }
  launch(x, z);
}

void Panels::run_left(const SplitState* products, Overlap overlap, const Workspace& workspace) const {
  PackArguments x = pack_arguments(true, workspace), z = same_ ? x : pack_arguments(false, workspace);
  for (PackArguments* side : {&x, &z}) {
    side->products = products;
    side->slots = side->weights_out = nullptr;
  }
  launch(x, z, overlap);
}

/// One launch where both sides have one kernel.
void Panels::launch(const PackArguments& x, const PackArguments& z, Overlap overlap) const {
  const auto separate = [&](bool of_x) { return !plan::streams_read_slots(kernels_.plan->sides, of_x); };
  if (same_) return launch_pack(kernels_.common.pack_x, job_, {x}, separate(true), overlap);
  if (kernels_.common.pack_x.function == kernels_.common.pack_z.function)
    return launch_pack(kernels_.common.pack_x, job_, {x, z}, separate(true), overlap);
  launch_pack(kernels_.common.pack_x, job_, {x}, separate(true), overlap);
  launch_pack(kernels_.common.pack_z, job_, {z}, separate(false), overlap);
}

PackArguments Panels::pack_arguments(bool of_x, const Workspace& workspace) const {
  const PackedPanels& panels = of_x ? x_ : z_;
  const JobSide& side = of_x ? job_.x : job_.z;
  PackArguments a{};
  BatchWalk walk;
  // Only the axes along which the packed sets differ.
  walk.steps.resize(3);
  const std::size_t axes = job_.batch.size();
  for (std::size_t axis = 0; axis < axes; ++axis) {
    if (panels.batch_steps[axis] == 0) continue;
    walk.extent.push_back(job_.batch[axis]);
    walk.steps[0].push_back(full(side.points.batch_strides, axes)[axis]);
    walk.steps[1].push_back(full(side.user.batch_strides, axes)[axis]);
    walk.steps[2].push_back(params_.item_steps()[axis]);
  }
  walk.merge(job_.op);
  a.axes = walk.axes();
  walk.write(0, a.points_step);
  walk.write(1, a.user_step);
  walk.write(2, a.item_step);
  a.points = side.points.data;
  a.user = side.user.data;
  a.user_dtype = static_cast<int>(side.user.dtype);
  a.user_stride = side.user_stride;
  a.weights = job_.weights.data;
  a.weight_dtype = static_cast<int>(job_.weights.dtype);
  a.weight_stride = job_.weight_stride;
  a.weights_out = of_x && job_.weights.data != nullptr ? workspace.at<>(weights_) : nullptr;
  params_.write_wide(a.params, a.numbers, workspace);
  a.param_count = params_.count();
  a.values = workspace.at<>(panels.values);
  const plan::PairPrograms& programs = kernels_.plan->programs;
  a.slots = (of_x ? programs.row_slots : programs.col_slots) > 0 ? workspace.at<>(panels.slots) : nullptr;
  a.count = side.count;
  a.ld = panels.ld;
  a.k = job_.features;
  a.point_stride = side.point_stride;
  a.feature_stride = side.feature_stride;
  a.blocks = panels.ld / kPackPoints;
  a.sets = panels.sets;
  return a;
}

PairArguments Panels::arguments(const Workspace& workspace) const {
  const plan::GpuPairPlan& plan = *kernels_.plan;
  PairArguments a{};
  a.x.points = plan.input.direct ? job_.x.points.data : workspace.at<>(x().values);
  a.z.points = plan.input.direct ? job_.z.points.data : workspace.at<>(z().values);
  a.x.point = job_.x.point_stride;
  a.x.feature = job_.x.feature_stride;
  a.z.point = job_.z.point_stride;
  a.z.feature = job_.z.feature_stride;
  a.x.user = workspace.at<>(x().slots);
  a.z.user = workspace.at<>(z().slots);
  a.w = workspace.at<>(weights_);
  a.x.ld = x().ld;
  a.z.ld = z().ld;
  a.m = job_.x.count;
  a.n = job_.z.count;
  a.k = static_cast<int>(plan.panel_rows(job_.features));
  a.features = static_cast<int>(job_.features);
  a.chunk = plan.chunk(job_.features);
  a.x.offset = job_.x.index_offset;
  a.z.offset = job_.z.index_offset;
  a.tiles_m = ceil_div(a.m, plan.tile.tile_m);
  a.tiles_n = ceil_div(a.n, plan.tile.tile_n);
  a.splits = static_cast<int>(columns_of_blocks(plan, a.tiles_m, a.tiles_n, job_.hardware().multiprocessors));
  a.params.count = params_.count();
  params_.write_narrow(a.params.values, a.params.numbers, workspace);
  return a;
}

PairArguments part_of(const PairArguments& a, const PairPlace& first, std::int64_t rows, const PairKernels& kernels,
                      const PairJob& job) {
  const plan::GpuPairPlan& plan = *kernels.plan;
  PairArguments part = a;
  const auto places = [&](const JobSide& side, std::int64_t at, std::size_t streams) {
    return plan.input.direct ? at * side.point_stride
                             : at * plan.panel_rows(job.features) * static_cast<std::int64_t>(streams);
  };
  const Dtype type = plan.input.direct ? job.x.points.dtype : job.type;
  part.x.points = shifted(a.x.points, places(job.x, first.m, plan.sides.x_streams.size()), type);
  part.z.points = shifted(a.z.points, places(job.z, first.n, plan.sides.z_streams.size()), type);
  part.x.user = shifted(a.x.user, first.m, job.type);
  part.z.user = shifted(a.z.user, first.n, job.type);
  part.x.offset += first.m;
  part.z.offset += first.n;
  part.m = rows;
  part.n -= first.n;
  part.tiles_m = ceil_div(rows, plan.tile.tile_m);
  if (first.n == 0) return part;
  part.tiles_n = ceil_div(part.n, plan.tile.tile_n);
  part.splits =
      static_cast<int>(columns_of_blocks(plan, part.tiles_m, part.tiles_n, job.hardware().multiprocessors));
  return part;
}

GroupSets sets_of(const PairArguments& a, std::int64_t group) {
  return {offset_of(a.groups, a.x.step, group), offset_of(a.groups, a.z.step, group)};
}

PairArguments group_of(const PairArguments& a, std::int64_t group, const plan::GpuPairPlan& plan, Dtype out) {
  PairArguments one = a;
  const Dtype type = plan.problem.type;
  const GroupSets sets = sets_of(a, group);
  one.groups = {};
  one.x.points = shifted(a.x.points, sets.x * a.x.ld * a.k, type);
  one.z.points = shifted(a.z.points, sets.z * a.z.ld * a.k, type);
  one.x.user = shifted(a.x.user, sets.x * plan.programs.row_slots * a.x.ld, type);
  one.z.user = shifted(a.z.user, sets.z * plan.programs.col_slots * a.z.ld, type);
  one.params.values = shifted(a.params.values, offset_of(a.groups, a.params.step, group) * a.params.count, type);
  one.v.data = shifted(a.v.data, offset_of(a.groups, a.v.step, group), type);
  one.out.data =
      static_cast<char*>(a.out.data) + offset_of(a.groups, a.out.step, group) * static_cast<std::int64_t>(size_of(out));
  return one;
}

void lay_out(PlainPanel& panel, const PairJob& job, Workspace& workspace) {
  panel.ld = padded(panel.rows);
  std::int64_t sets = 1;
  panel.batch_steps.assign(job.batch.size(), 0);
  for (std::size_t axis = job.batch.size(); axis-- > 0;) {
    if (!panel.array.steps(axis)) continue;
    panel.batch_steps[axis] = sets * panel.columns * panel.ld;
    sets *= job.batch[axis];
  }
  panel.place = workspace.add(sets * panel.columns * panel.ld * size_in(job.type));
}

void pack(const PlainPanel& panel, const PairJob& job, const Workspace& workspace, const SplitState* products) {
  if (panel.rows == 0) return;
  PackArguments a{};
  BatchWalk walk;
  walk.steps.resize(1);
  std::int64_t sets = 1;
  for (std::size_t axis = 0; axis < job.batch.size(); ++axis) {
    if (panel.batch_steps[axis] == 0) continue;
    walk.extent.push_back(job.batch[axis]);
    walk.steps[0].push_back(panel.array.batch_strides[axis]);
    sets *= job.batch[axis];
  }
  walk.merge(job.op);
  a.axes = walk.axes();
  walk.write(0, a.points_step);
  a.products = products;
  a.points = panel.array.data;
  a.values = workspace.at<>(panel.place);
  a.count = panel.rows;
  a.ld = panel.ld;
  a.k = panel.columns;
  a.point_stride = panel.row_stride;
  a.feature_stride = panel.column_stride;
  a.blocks = panel.ld / kPackPoints;
  a.sets = sets;
  launch_pack(plain_pack(panel.array.dtype, job), job, {a}, false);
}

}  // namespace mercer::cuda
