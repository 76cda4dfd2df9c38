#include "backend/cuda/runtime/job.h"

#include <functional>
#include <numeric>

#include "core/error.h"
#include "plan/gpu/costs/costs.h"

namespace mercer::cuda {

std::vector<std::int64_t> FixedAxes::of(const std::vector<std::int64_t>& axes, bool fixed) const {
  std::vector<std::int64_t> some;
  for (std::size_t axis = 0; axis < axes.size(); ++axis)
    if (fixed_[axis] == fixed) some.push_back(axes[axis]);
  return some;
}

std::int64_t FixedAxes::items() const {
  const std::vector<std::int64_t> extents = of(batch_, true);
  return std::accumulate(extents.begin(), extents.end(), std::int64_t{1}, std::multiplies<>());
}

std::int64_t FixedAxes::offset(const std::vector<std::int64_t>& strides, std::int64_t index) const {
  return batch_offset(of(batch_, true), of(strides, true), index);
}

BatchedArray FixedAxes::at(const BatchedArray& array, std::int64_t index) const {
  return {shifted(array.data, offset(array.batch_strides, index), array.dtype), array.dtype, rest(array.batch_strides)};
}

std::int64_t batch_offset(const std::vector<std::int64_t>& batch, const std::vector<std::int64_t>& strides,
                          std::int64_t item) {
  std::int64_t offset = 0;
  for (std::size_t axis = batch.size(); axis-- > 0;) {
    if (!strides.empty()) offset += item % batch[axis] * strides[axis];
    item /= batch[axis];
  }
  return offset;
}

PairJob PairJob::at(const FixedAxes& axes, std::int64_t index) const {
  PairJob one = *this;
  one.batch = axes.rest(batch);
  one.items = items / axes.items();
  for (auto [side, from] : {std::pair(&one.x, &x), std::pair(&one.z, &z)}) {
    side->points = axes.at(from->points, index);
    side->user = axes.at(from->user, index);
  }
  for (std::size_t p = 0; p < params.size(); ++p) one.params[p].array = axes.at(params[p].array, index);
  return one;
}

JobMatrix JobMatrix::at(const FixedAxes& axes, std::int64_t index) const {
  JobMatrix one = *this;
  one.data = static_cast<char*>(data) + axes.offset(batch_strides, index) * static_cast<std::int64_t>(size_of(dtype));
  one.batch_strides = axes.rest(batch_strides);
  return one;
}

PairJob PairJob::item(std::int64_t index) const {
  return at({batch, std::vector<bool>(batch.size(), true)}, index);
}

const CudaDevice& PairJob::hardware() const {
  const Rehearsal* rehearsed = rehearsal();
  return rehearsed != nullptr && rehearsed->device != nullptr ? *rehearsed->device : cuda_device(device);
}

const plan::Costs& PairJob::costs() const {
  return own_costs != nullptr ? *own_costs : plan::costs_of(hardware().capability());
}

const JobParam& PairJob::param(const Expr& leaf) const {
  for (const JobParam& candidate : params)
    if (same(candidate.leaf, leaf)) return candidate;
  fail(ErrorKind::compile, "{}: no value of the parameter '{}'.", op, leaf->name);
}

PairJob place_of(const char* op, Device device, const Queue& queue, Dtype type) {
  PairJob place;
  place.op = op;
  place.device = device.index;
  place.queue = &queue;
  place.type = type;
  return place;
}

void fill_words(const PairJob& job, const void* at, std::int64_t count, unsigned value) {
  if (job.rehearsal() != nullptr) return;
  const auto words = reinterpret_cast<CuPointer>(at);
  check_cuda(cuda_driver()->set_words_async(words, value, static_cast<std::size_t>(count), job.stream()), job.op);
}

}  // namespace mercer::cuda
