#include "backend/cuda/gradient/masked_field.h"

#include "backend/cuda/runtime/panels.h"
#include "core/integers.h"
#include "kernels/cuda/pairs/skipped.h"
#include "plan/gpu/stored_sums.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kThreads = 256;

/// The linear factor of the field and what values it weighs; an empty one where it has another form, of which a zero
/// may make no zeros.
plan::RankField linear_of(const plan::GpuPairPlan& pairs, const FieldKernels* field) {
  const plan::PairGradient& gradient = pairs.problem.gradient;
  if (field != nullptr) return plan::rank_field_of(field->plan->problem.field);
  if (gradient.rank_field) return *gradient.rank_field;
  return gradient.field ? plan::rank_field_of(gradient.field->problem.field) : plan::RankField{};
}

MaskedWork work_of(const plan::GpuPairPlan& plan, const FieldKernels* field, const PairJob& job,
                   const FieldJob& operands) {
  constexpr double kEpilogue = 16, kOfTensorCores = 8;
  const double features = static_cast<double>(job.features), sums = features * static_cast<double>(operands.results());
  const bool are_products = plan.problem.gradient.rank_field || (field != nullptr && field->plan->on_tensor_cores());
  return {.pair = kEpilogue + 2 * features / (plan.products.bilinear ? kOfTensorCores : 1) +
                  2 * sums / (are_products ? kOfTensorCores : 1),
          .least = 1};
}

bool is_floating(Dtype dtype) {
  return dtype == Dtype::float32 || dtype == Dtype::float64 || dtype == Dtype::float16 || dtype == Dtype::bfloat16;
}

}  // namespace

FieldJob part_of(const FieldJob& operands, const PairJob& job, const MaskStrip& strip) {
  FieldJob part = operands;
  const auto moved = [&](void* data, std::int64_t elements) {
    return const_cast<void*>(shifted(data, elements, job.type));
  };
  part.coef.array.data = shifted(part.coef.array.data, strip.column * part.coef.col_stride, part.coef.array.dtype);
  part.rows.array.data = shifted(part.rows.array.data, strip.row * part.rows.row_stride, part.rows.array.dtype);
  part.out = moved(part.out, strip.row * part.out_row_stride);
  part.sums.data = moved(part.sums.data, strip.row * part.sums.second_stride);
  part.product.data = moved(part.product.data, strip.row * part.product.first_stride);
  return part;
}

std::int64_t MaskedField::Flags::blocks() const { return ceil_div(rows, points); }

MaskedField::MaskedField(const PairKernels* pairs, const FieldKernels* field, const PairJob& job,
                         const FieldJob& operands)
    : job_(job), operands_(operands) {
  const bool reads_matrix = operands.amplitude.array.data != nullptr || operands.has_v() || operands.by_matrix;
  if (pairs == nullptr || !pairs->plan->mask || reads_matrix || operands.extra.data != nullptr) return;
  const plan::GpuPairPlan& plan = *pairs->plan;
  const plan::PairGradient& gradient = plan.problem.gradient;
  if (gradient.rank_field && (operands.sums.data != nullptr || operands.product.data != nullptr)) return;
  const MaskedWork work = work_of(plan, field, job, operands);
  if (!pays_strips(job, work)) return;
  const plan::RankField linear = linear_of(plan, field);
  if (!linear) return;
  std::vector<Expr> zeros = plan.problem.outputs;
  zeros.push_back(linear.amplitude);
  const plan::PairMask mask(zeros, job.type, plan.split.params);
  if (!mask) return;
  strips_ = mask_strips(mask, job, number_values(param_plan(plan), job), LeftOut{}, work);
  if (strips_.empty()) return;
  coef_ = {operands.coef.array,      job.z.count, operands.outputs, operands.coef.col_stride,
           operands.coef.row_stride, kStripPoints};
  rows_ = {operands.rows.array, job.x.count, operands.outputs, operands.rows.row_stride, operands.rows.col_stride};
  z_ = {job.z.points, job.z.count, job.features, job.z.point_stride, job.z.feature_stride, kStripPoints};
  x_ = {job.x.points, job.x.count, job.features, job.x.point_stride, job.x.feature_stride};
  if (!is_floating(job.z.points.dtype)) z_.array = {};
  if (!is_floating(job.x.points.dtype) || !linear.of_differences) x_.array = {};
  if (gradient.stored_sums)
    sums_ = gradient.stored_sums->sums;
  else if (gradient.field)
    sums_ = gradient.field->problem.pass.sums;
}

std::int64_t MaskedField::bytes() const { return coef_.bytes() + z_.bytes() + rows_.bytes() + x_.bytes(); }

void MaskedField::find(char* flags) {
  auto* to = reinterpret_cast<unsigned char*>(flags);
  for (Flags* of : {&coef_, &z_, &rows_, &x_}) {
    if (of->array.data == nullptr) continue;
    of->at = to;
    to += of->bytes();
    SkippedArguments a{};
    a.v = of->array.data;
    a.flags = of->at;
    a.n = of->rows;
    a.points = of->points;
    a.columns = of->columns;
    a.v_row = of->row_stride;
    a.v_column = of->col_stride;
    a.blocks = of->blocks();
    const Kernel kernels = skipped_kernels(of->array.dtype, job_.type, job_);
    launch(sibling(kernels, "find_not_finite", job_), job_, {ceil_div(a.blocks * a.columns, kThreads)}, kThreads, 0, a);
  }
}

void MaskedField::mark(const MaskStrip& strip, const Result& result) const {
  if (result.out == nullptr) return;
  SkippedFieldArguments a{};
  a.coef = coef_.at;
  a.z = result.by_feature ? z_.at : nullptr;
  a.x = result.by_feature && x_.at != nullptr ? x_.at + strip.row : nullptr;
  a.rows = result.by_rows && rows_.at != nullptr ? rows_.at + strip.row : nullptr;
  a.out = const_cast<void*>(shifted(result.out, strip.row * result.row_stride, job_.type));
  a.m = strip.rows;
  a.flag_rows = job_.x.count;
  a.blocks = ceil_div(job_.z.count, kStripPoints);
  a.first = strip.column / kStripPoints;
  a.end = ceil_div(strip.column_end(), kStripPoints);
  a.out_output = result.output_stride;
  a.out_row = result.row_stride;
  a.out_feature = result.feature_stride;
  a.factors = result.by_output ? 0 : operands_.outputs;
  launch(sibling(skipped_kernels(job_.type, job_.type, job_), "mark_field", job_), job_,
         {ceil_div(a.m, kThreads), result.features, result.outputs}, kThreads, 0, a);
}

void MaskedField::mark(const MaskStrip& strip) const {
  if (strip.columns == job_.z.count) return;
  const FieldJob& f = operands_;
  mark(strip, {f.out, f.results(), job_.features, f.out_output_stride, f.out_row_stride, f.out_feature_stride,
               !f.has_rows(), true, true});
  mark(strip, {f.sums.data, sums_, 1, f.sums.first_stride, f.sums.second_stride, 0, false, false, true});
  mark(strip, {f.product.data, f.outputs, 1, f.product.second_stride, f.product.first_stride, 0, true, false, false});
}

}  // namespace mercer::cuda
