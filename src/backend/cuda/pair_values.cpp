#include "backend/cuda/pair_values.h"

#include <algorithm>

namespace mercer::cuda {
namespace {

constexpr std::int64_t kPairBytes = std::int64_t{256} << 20, kPadding = 128;

const void* shifted(const void* base, std::int64_t elements, Dtype type) {
  return static_cast<const char*>(base) + elements * static_cast<std::int64_t>(size_of(type));
}

}  // namespace

std::int64_t rows_of_part(std::int64_t rows, std::int64_t row_bytes) {
  const std::int64_t fitting = std::max<std::int64_t>(1, kPairBytes / std::max<std::int64_t>(1, row_bytes) / kPadding);
  return std::min(rows, fitting * kPadding);
}

void store_rows(const PairKernels& kernels, const Panels& panels, const PairJob& job, const Workspace& workspace,
                std::int64_t first, std::int64_t rows, void* out, std::int64_t ld, std::int64_t plane) {
  if (job.z.count == 0) return;
  const plan::GpuPairPlan& plan = *kernels.plan;
  PairArguments a = panels.arguments(workspace);
  const std::int64_t streams = static_cast<std::int64_t>(plan.sides.x_streams.size());
  a.x = shifted(a.x, first * plan.panel_rows(job.features) * streams, job.type);
  a.row = shifted(a.row, first, job.type);
  a.i_offset += first;
  a.m = rows;
  a.tiles_m = (rows + plan.tile.tile_m - 1) / plan.tile.tile_m;
  a.out = out;
  a.out_row = ld;
  a.out_col = 1;
  a.out_plane = plane;
  a.member_count = 1;
  launch(kernels.tile, job, {a.tiles_m * a.splits}, plan.tile.threads(), plan.shared_bytes(job.features), a);
}

}  // namespace mercer::cuda
