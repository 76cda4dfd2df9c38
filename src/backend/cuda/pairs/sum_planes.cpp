#include "backend/cuda/pairs/sum_planes.h"

#include "core/integers.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kPadding = 128;

std::int64_t size_in(Dtype type) { return static_cast<std::int64_t>(size_of(type)); }
std::int64_t count_of(const PairKernels& kernels) { return static_cast<std::int64_t>(kernels.products.sums.size()); }

}  // namespace

// A launch of products wants many tiles: of 30000 points and 256 features, parts of 1 GiB take 8.9 ms where parts of a
// quarter of that take 10.6.
std::int64_t SumPlanes::rows_of(const PairKernels& kernels, const PairJob& job) {
  constexpr std::int64_t kParts = 4;
  const std::int64_t row_bytes = count_of(kernels) * round_up(job.z.count, kPadding) * size_in(job.type);
  return rows_of_part(job, ceil_div(row_bytes, kParts));
}

SumPlanes::SumPlanes(const PairKernels& kernels, const PairJob& job, std::int64_t rows, Workspace& workspace)
    : job_(job.item(0)), rows_(rows), ld_(round_up(job.z.count, kPadding)) {
  for (const auto& sum : kernels.products.sums)
    sums_.push_back(std::make_unique<PairValues>(*sum, job_, rows, workspace));
  planes_ = workspace.add(count_of(kernels) * rows * ld_ * size_in(job.type));
}

SumPlanes::~SumPlanes() = default;

void SumPlanes::prepare(const Workspace& workspace) const {
  for (const auto& sum : sums_) sum->prepare(workspace);
}

void SumPlanes::write(PairArguments& part, const PairPlace& first, const Workspace& workspace) const {
  char* plane = workspace.at<char>(planes_);
  part.planes.data = plane;
  part.planes.ld = ld_;
  part.planes.step = rows_ * ld_;
  for (const auto& sum : sums_) {
    sum->store(workspace, first, part.m, plane, ld_, 0);
    plane += part.planes.step * size_in(job_.type);
  }
}

}  // namespace mercer::cuda
