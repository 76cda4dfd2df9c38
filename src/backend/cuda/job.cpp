#include "backend/cuda/job.h"

#include "core/error.h"

namespace mercer::cuda {
namespace {

BatchedArray at(const BatchedArray& array, const std::vector<std::int64_t>& batch, std::int64_t index) {
  BatchedArray item = array;
  if (array.data != nullptr)
    item.data = static_cast<const char*>(array.data) +
                batch_offset(batch, array.batch_strides, index) * static_cast<std::int64_t>(size_of(array.dtype));
  item.batch_strides.clear();
  return item;
}

}  // namespace

std::int64_t batch_offset(const std::vector<std::int64_t>& batch, const std::vector<std::int64_t>& strides,
                          std::int64_t item) {
  std::int64_t offset = 0;
  for (std::size_t axis = batch.size(); axis-- > 0;) {
    if (!strides.empty()) offset += item % batch[axis] * strides[axis];
    item /= batch[axis];
  }
  return offset;
}

PairJob PairJob::item(std::int64_t index) const {
  PairJob one = *this;
  one.batch.clear();
  one.items = 1;
  for (auto [side, from] : {std::pair(&one.x, &x), std::pair(&one.z, &z)}) {
    side->points = at(from->points, batch, index);
    side->user = at(from->user, batch, index);
  }
  for (std::size_t p = 0; p < params.size(); ++p) one.params[p].array = at(params[p].array, batch, index);
  return one;
}

const CudaDevice& PairJob::hardware() const {
  const Rehearsal* rehearsed = rehearsal();
  return rehearsed != nullptr && rehearsed->device != nullptr ? *rehearsed->device : cuda_device(device);
}

const JobParam& PairJob::param(const Expr& leaf) const {
  for (const JobParam& candidate : params)
    if (same(candidate.leaf, leaf)) return candidate;
  fail(ErrorKind::compile, "{}: no value of the parameter '{}'.", op, leaf->name);
}

}  // namespace mercer::cuda
