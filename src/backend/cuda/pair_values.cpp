#include "backend/cuda/pair_values.h"

#include <algorithm>

#include "core/integers.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kPadding = 128;

}  // namespace

std::int64_t rows_of_part(const PairJob& job, std::int64_t row_bytes) {
  const std::int64_t fitting =
      std::max<std::int64_t>(1, job.part_bytes / std::max<std::int64_t>(1, row_bytes) / kPadding);
  return std::min(job.x.count, fitting * kPadding);
}

PairValues::PairValues(const PairKernels& kernels, const PairJob& job, std::int64_t rows, Workspace& workspace)
    : kernels_(kernels), job_(job), panels_(kernels, job, workspace) {
  const bool finds = kernels.plan->problem.consumer == plan::Consumer::nearest;
  if (finds && kernels.plan->bilinear)
    finder_.emplace(kernels, job, panels_, rows, false, workspace);
  else
    products_ = matrix_products(kernels, job, panels_, rows, false, workspace);
}

void PairValues::prepare(const Workspace& workspace) const {
  panels_.run(workspace);
  const MatrixProducts* products = finder_ ? &*finder_ : products_.get();
  if (products != nullptr) products->prepare(panels_.arguments(workspace), workspace);
}

PairArguments PairValues::arguments(const Workspace& workspace, std::int64_t first, std::int64_t rows) const {
  const plan::GpuPairPlan& plan = *kernels_.plan;
  PairArguments a = panels_.arguments(workspace);
  const std::int64_t streams = static_cast<std::int64_t>(plan.sides.x_streams.size());
  if (plan.direct)
    a.x = shifted(a.x, first * job_.x.point_stride, job_.x.points.dtype);
  else
    a.x = shifted(a.x, first * plan.panel_rows(job_.features) * streams, job_.type);
  a.row = shifted(a.row, first, job_.type);
  a.i_offset += first;
  a.m = rows;
  a.tiles_m = ceil_div(rows, plan.tile.tile_m);
  return a;
}

void PairValues::store(const Workspace& workspace, std::int64_t first, std::int64_t rows, void* out, std::int64_t ld,
                       std::int64_t plane) const {
  if (job_.z.count == 0) return;
  const plan::GpuPairPlan& plan = *kernels_.plan;
  PairArguments a = arguments(workspace, first, rows);
  a.out = out;
  a.out_row = ld;
  a.out_col = 1;
  a.out_plane = plane;
  a.member_count = 1;
  if (products_) return products_->store(a, first, workspace);
  launch(kernels_.tile, job_, {a.tiles_m * a.splits}, plan.tile.threads(), plan.shared_bytes(job_.features), a);
}

void PairValues::find(const Workspace& workspace, std::int64_t first, PairArguments& a) const {
  constexpr std::int64_t kWaves = 8;
  const plan::GpuPairPlan& plan = *kernels_.plan;
  if (finder_) finder_->find(a, first, workspace);
  a.tiles_n = tiles_of_candidates(a.found, a.n, plan.tile.tile_n);
  const std::int64_t wanted = ceil_div(kWaves * plan.tile.min_blocks * kernels_.device->multiprocessors, a.tiles_m);
  a.splits = static_cast<int>(std::min<std::int64_t>(wanted, a.tiles_n));
  launch(kernels_.tile, job_, {a.tiles_m * a.splits}, plan.tile.threads(), plan.shared_bytes(job_.features), a);
}

}  // namespace mercer::cuda
