#include "backend/cuda/gradient/few_features.h"

#include <algorithm>

#include "backend/cuda/runtime/ranges.h"
#include "core/integers.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kSlice = MERCER_PANEL;

const void* shifted_place(const PlainPanel& panel, std::int64_t column, std::int64_t size,
                          const Workspace& workspace) {
  if (panel.array.data == nullptr) return nullptr;
  return workspace.at<char>(panel.place) + column * panel.ld * size;
}

}  // namespace

FewFeaturesField::FewFeaturesField(const PairKernels& kernels, const PairJob& job, const FieldJob& operands,
                                   Workspace& workspace)
    : kernels_(kernels),
      field_(*kernels.plan->problem.gradient.field),
      job_(job),
      operands_(operands),
      workspace_(workspace),
      panels_(kernels, job, workspace),
      params_({&field_.problem.field.params, &field_.programs.uniforms, field_.problem.field.uniforms.size()}, job,
              workspace),
      size_(static_cast<std::int64_t>(size_of(job.type))) {
  const auto values = [&](const JobSide& side) {
    return PlainPanel{side.user, side.count, 1, side.user_stride, 0, 0, 0, {}};
  };
  const auto columns = [&](const JobOperand& of, std::int64_t rows, std::int64_t row_stride, std::int64_t step) {
    return PlainPanel{of.array, rows, operands.outputs, row_stride, step, 0, 0, {}};
  };
  if (!plan::are_points(kernels.plan->sides.x_streams)) x_ = panel_of(job.x, job.features);
  if (!plan::are_points(kernels.plan->sides.z_streams)) z_ = panel_of(job.z, job.features);
  if (field_.reads.row) row_ = values(job.x);
  if (field_.reads.col) col_ = values(job.z);
  if (!operands.by_matrix)
    coefs_ = columns(operands.coef, job.z.count, operands.coef.col_stride, operands.coef.row_stride);
  if (operands.has_rows())
    weights_ = columns(operands.rows, job.x.count, operands.rows.row_stride, operands.rows.col_stride);
  for (PlainPanel* panel : {&x_, &z_, &row_, &col_, &coefs_, &weights_})
    if (panel->array.data != nullptr) lay_out(*panel, job, workspace);

  tiles_ = ceil_div(job.x.count, plan::kFewFeaturesThreads * plan::few_features_rows(*kernels.plan));
  splits_ = choose_splits({tiles_, ceil_div(job.z.count, kSlice), kSlice,
                           job.hardware().multiprocessors * plan::few_features_blocks(job.features)});
  const std::int64_t pass = std::min<std::int64_t>(field_.problem.outputs, operands.outputs);
  const std::int64_t sums = field_.has_one_output() ? 1 : pass;
  const bool adds = field_.has_one_output() && pass < operands.outputs;
  if (splits_ > 1 || adds) partial_ = workspace.add(splits_ * sums * job.x.count * job.features * size_);
  if (field_.side_sums() > 0) side_sums_at_ = workspace.add(splits_ * field_.side_sums() * job.x.count * size_);
}

void FewFeaturesField::run() const {
  panels_.run(workspace_);
  for (const PlainPanel* panel : {&x_, &z_, &row_, &col_, &coefs_, &weights_})
    if (panel->array.data != nullptr) pack(*panel, job_, workspace_);
  params_.run(kernels_.common.field_uniforms, workspace_);
  const std::int64_t pass = field_.problem.outputs;
  for (std::int64_t first = 0; first < operands_.outputs; first += pass)
    contract(first, std::min(pass, operands_.outputs - first));
}

FewFeaturesArguments FewFeaturesField::arguments() const {
  FewFeaturesArguments a{};
  a.pairs = panels_.arguments(workspace_);
  FieldArguments& field = a.field;
  field.x = shifted_place(x_, 0, size_, workspace_);
  field.z = shifted_place(z_, 0, size_, workspace_);
  field.row = shifted_place(row_, 0, size_, workspace_);
  field.col = shifted_place(col_, 0, size_, workspace_);
  field.x_ld = x_.ld;
  field.z_ld = z_.ld;
  a.coefs_ld = coefs_.ld;
  a.rows_ld = weights_.ld;
  if (operands_.by_matrix) {
    const JobOperand& matrix = operands_.amplitude;
    a.weights = matrix.array.data;
    a.weights_row = matrix.row_stride;
    a.weights_column = matrix.col_stride;
    a.weights_whole = has_whole_lines(matrix.array, matrix.col_stride, matrix.row_stride) ? 1 : 0;
  }
  params_.write_narrow(field.params, field.numbers, workspace_);
  return a;
}

void FewFeaturesField::contract(std::int64_t first, std::int64_t count) const {
  FewFeaturesArguments a = arguments();
  const std::int64_t m = job_.x.count, k = job_.features, sums = field_.has_one_output() ? 1 : count;
  const std::int64_t place = field_.has_one_output() ? 0 : first * operands_.out_output_stride;
  const bool adds = field_.has_one_output() && first > 0, is_partial = splits_ > 1 || adds;
  void* const out = static_cast<char*>(operands_.out) + place * size_;
  FieldArguments& field = a.field;
  a.coefs = shifted_place(coefs_, first, size_, workspace_);
  a.rows = shifted_place(weights_, first, size_, workspace_);
  field.outputs = static_cast<int>(count);
  field.out = is_partial ? workspace_.at<>(partial_) : out;
  field.out_output = is_partial ? m * k : operands_.out_output_stride;
  field.out_row = is_partial ? k : operands_.out_row_stride;
  field.out_feature = is_partial ? 1 : operands_.out_feature_stride;
  field.out_split = sums * m * k;
  a.side_sums = workspace_.at<>(side_sums_at_);
  launch(kernels_.common.tile, job_, {tiles_, splits_}, plan::kFewFeaturesThreads,
         plan::few_features_bytes(*kernels_.plan), a);
  finish_side_sums(first, count);
  if (!is_partial) return;
  SumArguments sum{workspace_.at<>(partial_),
                   out,
                   m,
                   k,
                   sums * m * k,
                   operands_.out_output_stride,
                   operands_.out_row_stride,
                   operands_.out_feature_stride,
                   static_cast<int>(sums),
                   static_cast<int>(splits_),
                   adds};
  launch(sum_splits(job_), job_, {ceil_div(sums * m * k, 256)}, 256, 0, sum);
}

/// Sums of all passes are added up; each pass has columns of the product.
void FewFeaturesField::finish_side_sums(std::int64_t first, std::int64_t count) const {
  const std::int64_t m = job_.x.count, sums = field_.problem.pass.sums;
  const auto add_up = [&](std::int64_t from, std::int64_t outputs, void* out, std::int64_t output_stride,
                          std::int64_t row_stride, bool adds) {
    if (outputs == 0) return;
    SumArguments sum{workspace_.at<char>(side_sums_at_) + from * m * size_,
                     out,
                     m,
                     1,
                     field_.side_sums() * m,
                     output_stride,
                     row_stride,
                     0,
                     static_cast<int>(outputs),
                     static_cast<int>(splits_),
                     adds};
    launch(sum_splits(job_), job_, {ceil_div(outputs * m, 256)}, 256, 0, sum);
  };
  add_up(0, sums, operands_.sums.data, operands_.sums.first_stride, operands_.sums.second_stride, first > 0);
  const std::int64_t features = field_.problem.pass.features;
  add_up(field_.side_sums() - features, features, operands_.extra.data, operands_.extra.first_stride,
         operands_.extra.second_stride, first > 0);
  if (!field_.problem.pass.with_product) return;
  char* const out = static_cast<char*>(operands_.product.data) + first * operands_.product.second_stride * size_;
  add_up(sums, count, out, operands_.product.second_stride, operands_.product.first_stride, false);
}

}  // namespace mercer::cuda
