#include "backend/cuda/gradient/rank_field.h"

#include <algorithm>

#include "backend/cuda/runtime/ranges.h"
#include "core/integers.h"
#include "plan/gpu/rank_field_tile.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kThreads = 256, kFloat = sizeof(float);
constexpr std::int64_t kFinishPoints = 32;  // of a block of finish_rows
constexpr std::int64_t kRows = 16, kBlocks = 4;  // of a block of rank_rows; of these a multiprocessor

}  // namespace

RankFieldLaunch::RankFieldLaunch(const PairKernels& kernels, const PairJob& job, const FieldJob& operands,
                                 Workspace& workspace)
    : kernels_(kernels),
      field_(*kernels.plan->problem.gradient.rank_field),
      job_(job),
      operands_(operands),
      workspace_(workspace),
      panels_(kernels, job, workspace),
      products_(kernels, job, panels_, job.x.count, false, workspace),
      steps_(rank_field_kernels(field_, job)) {
  const auto factors = [&](const JobOperand& of, std::int64_t rows, std::int64_t row_stride, std::int64_t step) {
    return PlainPanel{of.array, rows, operands.outputs, row_stride, step, 0, 0, {}};
  };
  x_ = panel_of(job.x, job.features);
  z_ = panel_of(job.z, job.features);
  rows_ = factors(operands.rows, job.x.count, operands.rows.row_stride, operands.rows.col_stride);
  columns_ = factors(operands.coef, job.z.count, operands.coef.col_stride, operands.coef.row_stride);
  for (PlainPanel* panel : {&x_, &z_, &columns_, &rows_})
    if (panel->array.data != nullptr) lay_out(*panel, job, workspace);
  if (operands.by_matrix) weights_scale_ = workspace.add(kFloat);
  const plan::BilinearTile& tile = kernels.plan->problem.product;
  splits_ = choose_splits({ceil_div(job.x.count, tile.kRows * tile.cluster), ceil_div(job.z.count, tile.columns),
                           tile.columns, job.hardware().multiprocessors * tile.blocks / tile.cluster});
  const std::int64_t results = operands.results(), columns = field_.columns(job.features);
  results_ = plan::rank_outputs(results, columns);
  pass_ = operands.has_rows() ? std::max<std::int64_t>(1, plan::kFactorsOfUnit * tile.weight_units) : results_;
  const std::int64_t x_ld = panels_.x().ld, z_ld = panels_.z().ld;
  row_scales_ = workspace.add(x_ld * kFloat);
  column_scales_ = workspace.add(results_ * z_ld * kFloat);
  most_ = workspace.add(results * kFloat);
  v_ = workspace.add(results_ * columns * z_ld * kFloat);
  shares_ = workspace.add(z_ld * kFloat);
  side_sums_ = tile.side_sums;
  is_idle_ = side_sums_ > 0 && operands.sums.data == nullptr && operands.product.data == nullptr;
  if (is_idle_) idle_ = workspace.add(x_ld * kFloat);
  if (tile.extra > 0) extra_columns_ = operands.outputs;
  partial_ = workspace.add(splits_ * (results_ * columns + side_sums_ + extra_columns_) * x_ld * kFloat);
  times_ = workspace.add(z_ld * kFloat);
  if (side_sums_ > 0) side_sums_at_ = workspace.add(splits_ * side_sums_ * x_ld * kFloat);
  if (extra_columns_ > 0) extra_ = workspace.add(splits_ * extra_columns_ * x_ld * kFloat);
  spread_ = workspace.add(splits_ * x_ld * kFloat);
  left_ = workspace.add((job.x.count + 1) * static_cast<std::int64_t>(sizeof(unsigned)));
}

RankFieldArguments RankFieldLaunch::arguments() const {
  const plan::BilinearTile& tile = kernels_.plan->problem.product;
  RankFieldArguments a{};
  a.pairs = panels_.arguments(workspace_);
  a.pairs.out.partial_ld = a.pairs.x.ld;
  a.pairs.splits = static_cast<int>(splits_);
  const BilinearArguments products = products_.products(a.pairs, workspace_);
  a.pairs = products.pairs;
  FieldArguments& field = a.field;
  field.x = workspace_.at<>(x_.place);
  field.z = workspace_.at<>(z_.place);
  field.x_ld = x_.ld;
  field.z_ld = z_.ld;
  field.w = a.pairs.w;
  field.m = job_.x.count;
  field.n = job_.z.count;
  field.k = static_cast<int>(job_.features);
  field.out = operands_.out;
  field.out_output = operands_.out_output_stride;
  field.out_row = operands_.out_row_stride;
  field.out_feature = operands_.out_feature_stride;
  a.state = products.pairs.split.state;
  a.x_image = const_cast<unsigned char*>(products.x.image);
  a.z_image = const_cast<unsigned char*>(products.z.image);
  a.units = products.units;
  a.first_unit = products.units - tile.weight_units;
  a.factors.rows_ld = rows_.ld;
  a.factors.columns_ld = columns_.ld;
  a.factors.units = tile.weight_units;
  if (operands_.by_matrix) {
    a.weights.data = static_cast<const float*>(operands_.amplitude.array.data);
    a.weights.row = operands_.amplitude.row_stride;
    a.weights.column = operands_.amplitude.col_stride;
    a.weights.scale = workspace_.at<float>(weights_scale_);
  }
  a.difference = field_.of_differences ? 1 : 0;
  a.scale = static_cast<float>(field_.scale);
  a.factors.row_scales = workspace_.at<float>(row_scales_);
  a.factors.column_scales = workspace_.at<float>(column_scales_);
  a.centre = products_.centre(workspace_);
  a.columns.v = workspace_.at<float>(v_);
  a.columns.shares = workspace_.at<float>(shares_);
  a.columns.ld = a.pairs.z.ld;
  a.columns.partial = workspace_.at<float>(partial_);
  a.columns.spread = workspace_.at<float>(spread_);
  a.side.times = workspace_.at<float>(times_);
  a.side.partial = workspace_.at<float>(side_sums_at_);
  a.side.extra = workspace_.at<float>(extra_);
  a.side.extra_columns = static_cast<int>(extra_columns_);
  a.side.with_product = operands_.product.data != nullptr && extra_columns_ == 0 ? 1 : 0;
  a.side.summed = side_sums_ - a.side.with_product;
  a.side.sums = is_idle_ ? workspace_.at<float>(idle_) : static_cast<float*>(operands_.sums.data);
  a.side.product = static_cast<float*>(operands_.product.data);
  a.side.sums_first = operands_.sums.first_stride;
  a.side.sums_row = is_idle_ ? 1 : operands_.sums.second_stride;
  a.side.product_row = operands_.product.first_stride;
  a.side.product_column = operands_.product.second_stride;
  a.columns.partial_ld = a.pairs.x.ld;
  a.columns.splits = static_cast<int>(splits_);
  a.left = workspace_.at<unsigned>(left_);
  a.row_blocks = kBlocks * job_.hardware().multiprocessors;
  return a;
}

void RankFieldLaunch::launch_step(const char* name, jit::Dim3 grid, std::int64_t shared_bytes,
                                  const RankFieldArguments& a) const {
  launch(sibling(steps_, name, job_), job_, grid, kThreads, shared_bytes, a);
}

void RankFieldLaunch::run() const {
  panels_.run(workspace_);
  for (const PlainPanel* panel : {&x_, &z_, &columns_, &rows_})
    if (panel->array.data != nullptr) pack(*panel, job_, workspace_);
  RankFieldArguments a = arguments();
  products_.prepare(a.pairs, workspace_);
  a.factors.most = workspace_.at<unsigned>(most_);
  if (job_.rehearsal() == nullptr)
    check_cuda(cuda_driver()->set_words_async(reinterpret_cast<CuPointer>(a.factors.most), 0,
                                              static_cast<std::size_t>(operands_.results()), job_.stream()),
               job_.op);
  for (std::int64_t first = 0; first < operands_.outputs; first += pass_) {
    if (!operands_.by_matrix) a.factors.columns = workspace_.at<float>(columns_.place) + first * columns_.ld;
    a.factors.count = static_cast<int>(std::min(pass_, operands_.outputs - first));
    a.outputs = operands_.has_rows() ? 1 : a.factors.count;
    if (operands_.has_rows()) {
      a.factors.rows = workspace_.at<float>(rows_.place) + first * rows_.ld;
      a.adds = first > 0 ? 1 : 0;
    }
    contract(a);
    if (operands_.has_rows()) continue;
    a.factors.most += a.outputs;
    a.field.out = static_cast<float*>(a.field.out) + a.outputs * a.field.out_output;
  }
}

void RankFieldLaunch::contract(const RankFieldArguments& a) const {
  const plan::BilinearTile& tile = kernels_.plan->problem.product;
  if (a.weights.data != nullptr) launch_step("scale_weights", {1}, 0, a);
  launch_step("write_factors", {std::max(a.pairs.x.ld, a.pairs.z.ld) / MERCER_IMAGE_ROWS, 2}, 0, a);
  launch_step("write_columns", {ceil_div(a.pairs.z.ld, kThreads)}, 0, a);
  BilinearArguments products = products_.products(a.pairs, workspace_);
  products.shares = a.columns.shares;
  products.spread = workspace_.at<float>(spread_);
  products.times = a.side.times;
  products.side_sums = workspace_.at<float>(side_sums_at_);
  products.weights = a.weights.data;
  products.weights_row = a.weights.row;
  products.weights_column = a.weights.column;
  products.weights_scale = a.weights.scale;
  const JobOperand& matrix = operands_.amplitude;
  const std::int64_t along = std::min(a.weights.row, a.weights.column);
  const std::int64_t across = std::max(a.weights.row, a.weights.column);
  products.weights_whole = a.weights.data != nullptr && has_whole_lines(matrix.array, along, across) ? 1 : 0;
  products.extra = workspace_.at<float>(extra_);
  PairArguments& pairs = products.pairs;
  pairs.v.ld = a.columns.ld;
  const std::int64_t width = a.outputs * field_.columns(job_.features);
  pairs.v.partial_columns = static_cast<int>(width);
  for (std::int64_t first = 0; first < width; first += tile.wide) {
    pairs.v.data = a.columns.v + first * a.columns.ld;
    pairs.v.columns = static_cast<int>(std::min<std::int64_t>(tile.wide, width - first));
    pairs.out.data = workspace_.at<float>(partial_) + first * a.columns.partial_ld;
    // One pass makes the product with v.
    products.extra_columns = first == 0 ? a.side.extra_columns : 0;
    ExtraColumns extra;
    if (products.extra_columns > 0) extra = {a.factors.columns, a.factors.columns_ld, a.side.extra_columns};
    products_.multiply(products, workspace_, extra);
  }
  launch_step("finish_rows", {ceil_div(job_.x.count, kFinishPoints)},
              job_.features * (kFinishPoints + 1) * kFloat, a);
  const bool plain = plan::are_points(kernels_.plan->sides.x_streams) &&
                     plan::are_points(kernels_.plan->sides.z_streams);
  const std::int64_t factors = operands_.by_matrix ? 0 : operands_.has_rows() ? a.factors.count : 1;
  const std::int64_t floats =
      job_.features * (MERCER_PANEL + 1) +
      kRows * (round_up(job_.features, 4) * (plain ? 1 : 2) + factors + (tile.extra > 0 ? 2 : 1) * MERCER_PANEL);
  RankFieldArguments left = a;  // of one output
  left.factors.count = static_cast<int>(factors);
  for (int o = 0; o < a.outputs; ++o) {
    if (a.factors.columns != nullptr) left.factors.columns = a.factors.columns + o * a.factors.columns_ld;
    left.field.out = static_cast<float*>(a.field.out) + o * a.field.out_output;
    launch(kernels_.common.tile, job_, {left.row_blocks}, kThreads, floats * kFloat, left);
    launch(sibling(kernels_.common.tile, "merge_rows", job_), job_, {job_.hardware().multiprocessors}, kThreads, 0,
           left);
  }
}

}  // namespace mercer::cuda
