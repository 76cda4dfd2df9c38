#include "backend/cuda/pairs/pair_values.h"

#include <algorithm>

#include "backend/cuda/pairs/sum_planes.h"
#include "core/integers.h"

namespace mercer::cuda {
std::int64_t rows_of_part(const PairJob& job, std::int64_t row_bytes) {
  return plan::rows_of_part(job.x.count, row_bytes, job.part_bytes);
}

PairValues::PairValues(const PairKernels& kernels, const PairJob& job, std::int64_t rows, Workspace& workspace)
    : kernels_(kernels), job_(job), panels_(kernels, job, workspace) {
  const bool finds = kernels.plan->problem.consumer == plan::Consumer::nearest;
  if (finds && kernels.plan->products.bilinear)
    finder_.emplace(kernels, job, panels_, rows, false, workspace);
  else
    products_ = matrix_products(kernels, job, panels_, rows, false, workspace);
  if (!kernels.products.sums.empty()) sums_ = std::make_unique<SumPlanes>(kernels, job, rows, workspace);
}

PairValues::~PairValues() = default;

void PairValues::prepare(const Workspace& workspace) const {
  panels_.run(workspace);
  const MatrixProducts* products = finder_ ? &*finder_ : products_.get();
  if (products != nullptr) products->prepare(panels_.arguments(workspace), workspace);
  if (sums_) sums_->prepare(workspace);
}

PairArguments PairValues::arguments(const Workspace& workspace, const PairPlace& first, std::int64_t rows) const {
  return part_of(panels_.arguments(workspace), first, rows, kernels_, job_);
}

void PairValues::store(const Workspace& workspace, const PairPlace& first, std::int64_t rows, void* out,
                       std::int64_t ld, std::int64_t plane) const {
  if (job_.z.count == 0) return;
  const plan::GpuPairPlan& plan = *kernels_.plan;
  PairArguments a = arguments(workspace, first, rows);
  a.out.data = out;
  a.out.row = ld;
  a.out.column = 1;
  a.out.plane = plane;
  a.members.count = 1;
  if (products_) return products_->store(a, first, workspace);
  if (sums_) sums_->write(a, first, workspace);
  launch(kernels_.common.tile, job_, {a.tiles_m * a.splits}, plan.tile.threads(), plan.shared_bytes(job_.features), a);
}

void PairValues::find(const Workspace& workspace, const PairPlace& first, PairArguments& a) const {
  constexpr std::int64_t kWaves = 8;
  const plan::GpuPairPlan& plan = *kernels_.plan;
  if (finder_) finder_->find(a, first, workspace);
  a.tiles_n = tiles_of_candidates(a.found, a.n, plan.tile.tile_n);
  const std::int64_t wanted = ceil_div(kWaves * plan.tile.min_blocks * job_.hardware().multiprocessors, a.tiles_m);
  a.splits = static_cast<int>(std::min<std::int64_t>(wanted, a.tiles_n));
  launch(kernels_.common.tile, job_, {a.tiles_m * a.splits}, plan.tile.threads(), plan.shared_bytes(job_.features), a);
}

}  // namespace mercer::cuda
