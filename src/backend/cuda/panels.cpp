#include "backend/cuda/panels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>

#include "codegen/cuda_source.h"
#include "core/error.h"

namespace mercer::cuda {
namespace {

/// Panels are padded to the largest tile.
constexpr std::int64_t kPadding = 128;
constexpr std::int64_t kPackPoints = 32, kPackFeatures = 32, kPackThreads = 256;

std::int64_t padded(std::int64_t count) { return (count + kPadding - 1) / kPadding * kPadding; }
std::int64_t size_in(Dtype type) { return static_cast<std::int64_t>(size_of(type)); }
CuStream stream_of(const PairJob& job) { return static_cast<CuStream>(job.queue->stream); }

double read_host(const void* data, Dtype dtype, std::int64_t index) {
  switch (dtype) {
    case Dtype::float32: return static_cast<const float*>(data)[index];
    case Dtype::float64: return static_cast<const double*>(data)[index];
    default: return static_cast<double>(static_cast<const std::int64_t*>(data)[index]);
  }
}

std::vector<double> with_uniforms(const plan::GpuPairPlan& plan, std::vector<double> params, std::int64_t features) {
  if (plan.uniforms.outputs.empty()) return params;
  std::vector<double> inputs;
  for (const ir::Input& input : plan.uniforms.inputs)
    inputs.push_back(input.site == ir::Site::features ? static_cast<double>(features)
                                                      : params[static_cast<std::size_t>(input.slot)]);
  const std::vector<double> results = ir::run<double>(plan.uniforms, inputs);
  params.insert(params.end(), results.begin(), results.end());
  return params;
}

bool reads_params(const plan::Sides& sides, bool of_x) {
  for (const plan::Sides::Stage& s : sides.stages)
    if (s.of_x == of_x && (plan::reads_site(s.update, {ir::Site::param}) || plan::reads_site(s.finish, {ir::Site::param})))
      return true;
  for (const plan::Sides::Stream& s : of_x ? sides.x_streams : sides.z_streams)
    if (plan::reads_site(s.program, {ir::Site::param})) return true;
  return false;
}

bool plain(const plan::Sides& sides) {
  return sides.stages.empty() && sides.x_streams.size() == 1 && sides.x_streams[0].plain &&
         sides.z_streams.size() == 1 && sides.z_streams[0].plain;
}

/// Blocks along the features: enough to fill the device when there are few points.
std::int64_t feature_blocks(std::int64_t point_blocks, std::int64_t features, int multiprocessors) {
  const std::int64_t slices = std::max<std::int64_t>(1, (features + kPackFeatures - 1) / kPackFeatures);
  const std::int64_t wanted = (std::int64_t{8} * multiprocessors + point_blocks - 1) / point_blocks;
  return std::clamp<std::int64_t>(wanted, 1, slices);
}

void fill_numbers(double* to, const std::vector<double>& numbers, const PairJob& job) {
  for (std::size_t first = 0; first < numbers.size(); first += MERCER_FILL_NUMBERS) {
    FillArguments a{};
    a.to = to + first;
    a.count = static_cast<int>(std::min<std::size_t>(MERCER_FILL_NUMBERS, numbers.size() - first));
    std::copy_n(numbers.begin() + static_cast<std::ptrdiff_t>(first), a.count, a.numbers);
    void* args[] = {&a};
    fill(job.device, stream_of(job)).function->launch({1}, {256}, 0, stream_of(job), args);
  }
}

std::vector<std::int64_t> full(const std::vector<std::int64_t>& steps, std::size_t axes) {
  return steps.empty() ? std::vector<std::int64_t>(axes, 0) : steps;
}

}  // namespace

ParamValues param_values(const plan::GpuPairPlan& plan, const PairJob& job) {
  ParamValues values;
  std::vector<double> numbers;
  for (const Expr& leaf : plan.split.params) {
    const JobParam& param = job.param(leaf);
    values.in_table = values.in_table || !param.is_number();
    numbers.push_back(param.number);
  }
  if (!values.in_table) values.wide = with_uniforms(plan, std::move(numbers), job.features);
  return values;
}

bool reciprocals_are_normal(const plan::GpuPairPlan& plan, const PairJob& job) {
  if (plan.reciprocals.empty()) return true;
  const ParamValues values = param_values(plan, job);
  if (values.in_table) return false;
  for (int u : plan.reciprocals) {
    const double value = values.wide[plan.split.params.size() + static_cast<std::size_t>(u)];
    if (job.type == Dtype::float64 ? !std::isnormal(value) : !std::isnormal(static_cast<float>(value))) return false;
  }
  return true;
}

Panels::Panels(const PairKernels& kernels, const PairJob& job, Workspace& workspace)
    : kernels_(kernels), job_(job), values_(param_values(*kernels.plan, job)) {
  const plan::GpuPairPlan& plan = *kernels.plan;
  param_count_ = static_cast<int>(plan.split.params.size() + plan.split.uniforms.size());
  if (param_count_ > MERCER_MAX_NUMBERS)
    fail(ErrorKind::unsupported, "{}: at most {} parameters and constants made of them are offered on CUDA. Received {}.",
         job.op, MERCER_MAX_NUMBERS, param_count_);
  item_steps_.assign(job.batch.size(), 0);
  if (values_.in_table) {
    std::int64_t rows = 1;
    for (std::size_t axis = job.batch.size(); axis-- > 0;) {
      item_steps_[axis] = rows;
      rows *= job.batch[axis];
    }
    wide_ = workspace.add(rows * param_count_ * 8);
    narrow_ = workspace.add(rows * param_count_ * size_in(job.type));
    for (const Expr& leaf : plan.split.params) {
      const JobParam& param = job.param(leaf);
      if (!param.is_number() && !param.on_device) number_count_ += rows;
    }
    numbers_ = workspace.add(number_count_ * 8);
  }
  if (job.weights.data != nullptr) weights_ = workspace.add(job.features * size_in(job.type));
  x_ = lay_out(true, workspace);
  same_ = job.same_points && plain(plan.sides) && plan.row_slots == 0 && plan.col_slots == 0;
  if (!same_) z_ = lay_out(false, workspace);
}

bool Panels::reads_array_param(const std::vector<Expr>& leaves, std::size_t axis) const {
  for (const Expr& leaf : leaves)
    if (job_.param(leaf).array.steps(axis)) return true;
  return false;
}

PackedPanels Panels::lay_out(bool of_x, Workspace& workspace) {
  const plan::GpuPairPlan& plan = *kernels_.plan;
  const JobSide& side = of_x ? job_.x : job_.z;
  const bool params = values_.in_table && reads_params(plan.sides, of_x);
  PackedPanels panels;
  panels.ld = padded(side.count);
  panels.batch_steps.assign(job_.batch.size(), 0);
  for (std::size_t axis = job_.batch.size(); axis-- > 0;) {
    const bool differs = side.points.steps(axis) || side.user.steps(axis) ||
                         (params && reads_array_param(plan.split.params, axis));
    if (!differs) continue;
    panels.batch_steps[axis] = panels.sets;
    panels.sets *= job_.batch[axis];
  }
  const std::int64_t streams =
      static_cast<std::int64_t>(of_x ? plan.sides.x_streams.size() : plan.sides.z_streams.size());
  const std::int64_t slots = of_x ? plan.row_slots : plan.col_slots;
  panels.values = workspace.add(panels.sets * job_.features * streams * panels.ld * size_in(job_.type));
  panels.slots = workspace.add(panels.sets * slots * panels.ld * size_in(job_.type));
  return panels;
}

void Panels::run(const Workspace& workspace) const {
  if (values_.in_table) run_uniforms(workspace);
  pack(true, workspace);
  if (!same_) pack(false, workspace);
}

void Panels::run_uniforms(const Workspace& workspace) const {
  const plan::GpuPairPlan& plan = *kernels_.plan;
  UniformArguments a{};
  BatchWalk walk;
  walk.extent = job_.batch;
  // Arrays of the host travel as arguments of kernels: a captured graph replays them.
  std::int64_t place = 0;
  std::vector<double> numbers;
  for (std::size_t p = 0; p < plan.split.params.size(); ++p) {
    const JobParam& param = job_.param(plan.split.params[p]);
    a.numbers[p] = param.number;
    walk.steps.push_back(std::vector<std::int64_t>(job_.batch.size(), 0));
    if (param.is_number()) continue;
    if (param.on_device) {
      a.params[p] = param.array.data;
      a.dtype[p] = static_cast<int>(param.array.dtype);
      walk.steps.back() = full(param.array.batch_strides, job_.batch.size());
      continue;
    }
    a.params[p] = workspace.at<double>(numbers_) + place;
    a.dtype[p] = static_cast<int>(Dtype::float64);
    walk.steps.back() = item_steps_;
    for (std::int64_t i = 0; i < job_.items; ++i)
      numbers.push_back(read_host(param.array.data, param.array.dtype,
                                  batch_offset(job_.batch, param.array.batch_strides, i)));
    place += job_.items;
  }
  fill_numbers(workspace.at<double>(numbers_), numbers, job_);
  walk.merge(job_.op);
  a.axes = walk.axes();
  for (std::size_t p = 0; p < plan.split.params.size(); ++p) walk.write(p, a.step[p]);
  a.items = job_.items;
  a.features = static_cast<double>(job_.features);
  a.wide = workspace.at<double>(wide_);
  a.narrow = workspace.at<>(narrow_);
  void* args[] = {&a};
  kernels_.uniforms.function->launch({(job_.items + 127) / 128}, {128}, 0, stream_of(job_), args);
}

void Panels::pack(bool of_x, const Workspace& workspace) const {
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
    walk.steps[2].push_back(item_steps_[axis]);
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
  a.params = values_.in_table ? workspace.at<>(wide_) : nullptr;
  a.param_count = param_count_;
  std::copy(values_.wide.begin(), values_.wide.end(), a.numbers);
  a.values = workspace.at<>(panels.values);
  a.slots = workspace.at<>(panels.slots);
  a.count = side.count;
  a.ld = panels.ld;
  a.k = job_.features;
  a.point_stride = side.point_stride;
  a.feature_stride = side.feature_stride;
  a.blocks = panels.ld / kPackPoints;
  const std::int64_t point_blocks = a.blocks * panels.sets;
  if (point_blocks == 0) return;
  void* args[] = {&a};
  const Kernel& kernel = of_x ? kernels_.pack_x : kernels_.pack_z;
  kernel.function->launch(
      {point_blocks, feature_blocks(point_blocks, job_.features, kernels_.device->multiprocessors)}, {kPackThreads}, 0,
      stream_of(job_), args);
}

PairArguments Panels::arguments(const Workspace& workspace) const {
  const plan::GpuPairPlan& plan = *kernels_.plan;
  PairArguments a{};
  a.x = workspace.at<>(x().values);
  a.z = workspace.at<>(z().values);
  a.row = workspace.at<>(x().slots);
  a.col = workspace.at<>(z().slots);
  a.w = workspace.at<>(weights_);
  a.x_ld = x().ld;
  a.z_ld = z().ld;
  a.m = job_.x.count;
  a.n = job_.z.count;
  a.k = static_cast<int>(job_.features);
  a.chunk = plan.chunk();
  a.i_offset = job_.x.index_offset;
  a.j_offset = job_.z.index_offset;
  a.tiles_m = (a.m + plan.tile.tile_m - 1) / plan.tile.tile_m;
  a.tiles_n = (a.n + plan.tile.tile_n - 1) / plan.tile.tile_n;
  a.param_count = param_count_;
  if (values_.in_table) {
    a.params = workspace.at<>(narrow_);
  } else if (job_.type == Dtype::float64) {
    std::copy(values_.wide.begin(), values_.wide.end(), a.numbers);
  } else {
    std::vector<float> narrow(values_.wide.begin(), values_.wide.end());
    std::memcpy(a.numbers, narrow.data(), narrow.size() * sizeof(float));
  }
  return a;
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

void pack(const PlainPanel& panel, const PairJob& job, const Workspace& workspace) {
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
  a.points = panel.array.data;
  a.values = workspace.at<>(panel.place);
  a.count = panel.rows;
  a.ld = panel.ld;
  a.k = panel.columns;
  a.point_stride = panel.row_stride;
  a.feature_stride = panel.column_stride;
  a.blocks = panel.ld / kPackPoints;
  const CudaDevice& device = cuda_device(job.device);
  const Kernel kernel = plain_pack(job.type, panel.array.dtype, job.device, stream_of(job));
  void* args[] = {&a};
  kernel.function->launch(
      {a.blocks * sets, feature_blocks(a.blocks * sets, panel.columns, device.multiprocessors)}, {kPackThreads}, 0,
      stream_of(job), args);
}

}  // namespace mercer::cuda
