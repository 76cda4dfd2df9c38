#include "backend/cuda/gemm/kept_products.h"

#include <algorithm>

#include "core/integers.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kThreads = 256, kWarps = kThreads / 32, kFloat = sizeof(float);
constexpr std::int64_t kUnit = 32, kUnitBytes = 128;  // points n of a unit of the image, and its bytes of a row
constexpr std::int64_t kPadding = 128;                // of panels
constexpr std::int64_t kLeastPoints = 384;            // of a part: whole tiles of values

/// Rows of a part: no more than whole waves of tiles of the product, whose columns they are. Half a tile more would be
/// a wave.
std::int64_t rows_of_part(const plan::BilinearTile& tile, std::int64_t columns, std::int64_t m, std::int64_t part_bytes,
                          int multiprocessors) {
  constexpr std::int64_t kMany = 16384;
  const std::int64_t strips = ceil_div(columns, tile.kRows * tile.cluster);
  const std::int64_t wave = std::max<std::int64_t>(multiprocessors / tile.cluster / strips, 1) * tile.columns;
  const std::int64_t rows = wave * std::max<std::int64_t>(kMany / wave, 1) / kPadding * kPadding;
  const std::int64_t fitting = part_bytes / (kLeastPoints * kUnitBytes / kUnit) / kPadding * kPadding;
  return std::min({rows, std::max(fitting, kPadding), round_up(m, kPadding)});
}

/// Points n of a part: starting and ending a tile costs as much as some 240 of them.
std::int64_t points_of_part(std::int64_t rows, std::int64_t n, std::int64_t part_bytes) {
  constexpr std::int64_t kMost = 21 * kLeastPoints;
  const std::int64_t fitting = part_bytes / (rows * kUnitBytes / kUnit) / kLeastPoints * kLeastPoints;
  return std::min(std::clamp(fitting, kLeastPoints, kMost), round_up(n, kUnit));
}

}  // namespace

KeptProducts::KeptProducts(const PairKernels& kernels, const PairJob& job, const SplitProducts& values,
                           std::int64_t columns, Workspace& workspace)
    : kernels_(kernels), job_(job), values_(values), write_kept_(kept_operands(job)), columns_(columns),
      padded_(round_up(columns, kUnit)), ld_(round_up(job.x.count, kPadding)) {
  const plan::BilinearTile& tile = kernels.plan->products.kept_products->problem.product;
  rows_ = rows_of_part(tile, columns, job.x.count, job.part_bytes, job.hardware().multiprocessors);
  points_ = points_of_part(rows_, job.z.count, job.part_bytes);
  parts_ = ceil_div(job.z.count, points_);
  image_ = workspace.add(rows_ * points_ / kUnit * kUnitBytes);
  row_scale_ = workspace.add(rows_ * kFloat);
  states_ = 1 + ceil_div(job.x.count, rows_) * parts_;
  state_ = workspace.add(states_ * static_cast<std::int64_t>(sizeof(SplitState)));
  v_image_ = workspace.add(parts_ * padded_ * points_ / kUnit * kUnitBytes);
  v_scale_ = workspace.add(parts_ * padded_ * kFloat);
  zeros_ = workspace.add(std::max(rows_, padded_) * kFloat);
  marks_ = workspace.add(ceil_div(columns, MERCER_REGION) * ceil_div(rows_, MERCER_REGION) *
                         static_cast<std::int64_t>(sizeof(unsigned)));
  out_ = workspace.add(columns * ld_ * kFloat);
}

KeptArguments KeptProducts::columns(const PairArguments& group, const Workspace& workspace) const {
  KeptArguments a{};
  a.v = static_cast<const float*>(group.v.data);
  a.split = values_.state(workspace);
  a.state = workspace.at<SplitState>(state_);
  a.image = workspace.at<unsigned char>(v_image_);
  a.scale = workspace.at<float>(v_scale_);
  a.n = group.n;
  a.v_ld = group.v.ld;
  a.units = points_ / kUnit;
  a.states = states_;
  a.columns = static_cast<int>(columns_);
  a.padded = static_cast<int>(padded_);
  return a;
}

void KeptProducts::run(const PairArguments& group, const Workspace& workspace) const {
  const auto clear = [&](std::int64_t place, std::int64_t words) {
    fill_words(job_, workspace.at<float>(place), words);
  };
  clear(zeros_, std::max(rows_, padded_));
  clear(out_, columns_ * ld_);
  const KeptArguments v = columns(group, workspace);
  launch_overlapping(write_kept_, job_, {padded_ / kWarps, parts_}, kThreads, v);
  for (std::int64_t m = 0; m < group.m; m += rows_)
    for (std::int64_t n = 0; n < group.n; n += points_) add_part(group, {m, n}, workspace);
}

void KeptProducts::add_part(const PairArguments& group, const PairPlace& first, const Workspace& workspace) const {
  const std::int64_t rows = std::min<std::int64_t>(rows_, group.m - first.m);
  const std::int64_t points = std::min<std::int64_t>(points_, group.n - first.n), part = first.n / points_;
  PairArguments pairs = group;
  pairs.m = rows;
  pairs.n = points;
  BilinearArguments values = values_.products_from(pairs, first, workspace);
  const std::int64_t padded_rows = round_up(rows, kUnit), units = ceil_div(points, kUnit);
  SplitState* const state = workspace.at<SplitState>(state_) + 1 + first.m / rows_ * parts_ + part;
  values.kept = {workspace.at<unsigned char>(image_), workspace.at<float>(row_scale_), state, padded_rows, units};
  launch_products(kernels_.products.kept_values, *kernels_.plan->products.kept_values, job_, values,
                  ceil_div(points, kernels_.plan->products.kept_values->problem.product.columns));

  const float* const zeros = workspace.at<float>(zeros_);
  BilinearArguments products{};
  PairArguments& sums = products.pairs;
  sums.split.state = state;
  sums.split.marks = workspace.at<unsigned>(marks_);
  sums.out.data = workspace.at<float>(out_) + first.m;
  sums.out.row = ld_;
  sums.out.column = 1;
  sums.members.count = 1;
  sums.m = columns_;
  sums.n = rows;
  sums.x.ld = padded_;
  sums.z.ld = padded_rows;
  products.x = {workspace.at<unsigned char>(v_image_) + part * padded_ * points_ / kUnit * kUnitBytes, zeros, zeros,
                workspace.at<float>(v_scale_) + part * padded_};
  products.z = {workspace.at<unsigned char>(image_), zeros, zeros, workspace.at<float>(row_scale_)};
  products.units = units;
  products.ranges = 1;
  products.x_end = padded_;
  products.z_end = padded_rows;
  launch_products(kernels_.products.kept_products, *kernels_.plan->products.kept_products, job_, products,
                  ceil_div(rows, kernels_.plan->products.kept_products->problem.product.columns));
}

void KeptProducts::write(MergeArguments& a, const Workspace& workspace) const {
  a.partial = workspace.at<float>(out_);
  a.ld = ld_;
  a.columns = static_cast<int>(columns_);
  a.splits = 1;
  a.rated = 1;
}

}  // namespace mercer::cuda
