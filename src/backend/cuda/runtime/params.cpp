#include "backend/cuda/runtime/params.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"

namespace mercer::cuda {
namespace {

double read_host(const void* data, Dtype dtype, std::int64_t index) {
  switch (dtype) {
    case Dtype::float32: return static_cast<const float*>(data)[index];
    case Dtype::float64: return static_cast<const double*>(data)[index];
    default: return static_cast<double>(static_cast<const std::int64_t*>(data)[index]);
  }
}

void fill_numbers(double* to, const std::vector<double>& numbers, const PairJob& job) {
  for (std::size_t first = 0; first < numbers.size(); first += MERCER_FILL_NUMBERS) {
    FillArguments a{};
    a.to = to + first;
    a.count = static_cast<int>(std::min<std::size_t>(MERCER_FILL_NUMBERS, numbers.size() - first));
    std::copy_n(numbers.begin() + static_cast<std::ptrdiff_t>(first), a.count, a.numbers);
    launch(fill(job), job, {1}, 256, 0, a);
  }
}

}  // namespace

std::vector<double> number_values(const ParamPlan& plan, const PairJob& job) {
  std::vector<double> values;
  for (const Expr& leaf : *plan.leaves) {
    const JobParam& param = job.param(leaf);
    if (!param.is_number()) return {};
    values.push_back(param.number);
  }
  if (plan.uniform_count == 0) return values;
  std::vector<double> inputs;
  for (const ir::Input& input : plan.uniforms->inputs)
    inputs.push_back(input.site == ir::Site::features ? static_cast<double>(job.features)
                                                      : values[static_cast<std::size_t>(input.slot)]);
  const std::vector<double> results = ir::run<double>(*plan.uniforms, inputs);
  values.insert(values.end(), results.begin(), results.end());
  return values;
}

ParamTable::ParamTable(const ParamPlan& plan, const PairJob& job, Workspace& workspace)
    : plan_(plan), job_(job), values_(number_values(plan, job)), item_steps_(job.batch.size(), 0) {
  count_ = static_cast<int>(plan.leaves->size() + plan.uniform_count);
  if (count_ > MERCER_MAX_NUMBERS)
    fail(ErrorKind::unsupported,
         "{}: at most {} parameters and constants made of them are offered on CUDA. Received {}.", job.op,
         MERCER_MAX_NUMBERS, count_);
  std::int64_t arrays_of_host = 0;
  for (const Expr& leaf : *plan.leaves) {
    const JobParam& param = job.param(leaf);
    in_table_ = in_table_ || !param.is_number();
    if (!param.is_number() && !param.on_device) ++arrays_of_host;
  }
  if (!in_table_) return;
  std::int64_t rows = 1;
  for (std::size_t axis = job.batch.size(); axis-- > 0;) {
    item_steps_[axis] = rows;
    rows *= job.batch[axis];
  }
  wide_ = workspace.add(rows * count_ * 8);
  narrow_ = workspace.add(rows * count_ * static_cast<std::int64_t>(size_of(job.type)));
  numbers_ = workspace.add(rows * arrays_of_host * 8);
}

bool ParamTable::differs(const std::vector<Expr>& leaves, std::size_t axis) const {
  return std::any_of(leaves.begin(), leaves.end(),
                     [&](const Expr& leaf) { return job_.param(leaf).array.steps(axis); });
}

// Arrays of the host travel as arguments of kernels: a captured graph keeps them.
void ParamTable::gather(UniformArguments& a, BatchWalk& walk, const Workspace& workspace) const {
  std::vector<double> numbers;
  for (std::size_t p = 0; p < leaves().size(); ++p) {
    const JobParam& param = job_.param(leaves()[p]);
    a.numbers[p] = param.number;
    walk.steps.emplace_back(job_.batch.size(), 0);
    if (param.is_number()) continue;
    if (param.on_device) {
      a.params[p] = param.array.data;
      a.dtype[p] = static_cast<int>(param.array.dtype);
      if (!param.array.batch_strides.empty()) walk.steps.back() = param.array.batch_strides;
      continue;
    }
    a.params[p] = workspace.at<double>(numbers_) + numbers.size();
    a.dtype[p] = static_cast<int>(Dtype::float64);
    walk.steps.back() = item_steps_;
    for (std::int64_t i = 0; i < job_.items; ++i)
      numbers.push_back(
          read_host(param.array.data, param.array.dtype, batch_offset(job_.batch, param.array.batch_strides, i)));
  }
  fill_numbers(workspace.at<double>(numbers_), numbers, job_);
}

void ParamTable::run(const Kernel& uniforms, const Workspace& workspace) const {
  if (!in_table_) return;
  UniformArguments a{};
  BatchWalk walk;
  walk.extent = job_.batch;
  gather(a, walk, workspace);
  walk.merge(job_.op);
  a.axes = walk.axes();
  for (std::size_t p = 0; p < leaves().size(); ++p) walk.write(p, a.step[p]);
  a.items = job_.items;
  a.features = static_cast<double>(job_.features);
  a.wide = workspace.at<double>(wide_);
  a.narrow = workspace.at<>(narrow_);
  launch(uniforms, job_, {(job_.items + 127) / 128}, 128, 0, a);
}

void ParamTable::write_wide(const void*& table, double (&numbers)[MERCER_MAX_NUMBERS],
                            const Workspace& workspace) const {
  table = in_table_ ? workspace.at<>(wide_) : nullptr;
  std::copy(values_.begin(), values_.end(), numbers);
}

void ParamTable::write_narrow(const void*& table, double (&numbers)[MERCER_MAX_NUMBERS],
                              const Workspace& workspace) const {
  table = in_table_ ? workspace.at<>(narrow_) : nullptr;
  if (job_.type == Dtype::float64) {
    std::copy(values_.begin(), values_.end(), numbers);
    return;
  }
  const std::vector<float> narrow(values_.begin(), values_.end());
  if (!narrow.empty()) std::memcpy(numbers, narrow.data(), narrow.size() * sizeof(float));
}

}  // namespace mercer::cuda
