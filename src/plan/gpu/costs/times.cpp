#include "plan/gpu/costs/times.h"

#include <algorithm>

#include "core/integers.h"
#include "plan/gpu/rank_field_tile.h"

namespace mercer::plan {
namespace {

double real(std::int64_t count) { return static_cast<double>(count); }
double bytes_of(Dtype dtype) { return static_cast<double>(size_of(dtype)); }

double points_bytes(const Request& request) {
  return real(request.m + request.n) * real(request.k) * bytes_of(request.points);
}

GpuTimes pair_times(const GpuPairPlan& plan, const Request& request, const FloorOf& of, const GpuInfo& gpu) {
  constexpr double kPieces = 3;
  const double pairs = request.pairs();
  const bool starts_otherwise = !plan.programs.first_update.code.empty();  // one feature takes the shorter program
  const double features = real(request.k - (starts_otherwise ? 1 : 0));
  GpuTimes times = gpu_times(mean_update_cost(plan, of.quantised), plan.problem.type, pairs * features, gpu);
  if (starts_otherwise) times += gpu_times(count_gpu(plan.programs.first_update), plan.problem.type, pairs, gpu);
  const double elements = pairs * real(request.k);
  constexpr double kNumbers = 16;  // of a difference by tensor cores
  if (plan.pipes.differs && !(of.quantised && plan.pipes.mixed_sixteenths > 0))
    times += gpu_tensor_times(elements * kNumbers, gpu);
  for (const auto& plane : plan.products.planes)
    times += plane->has_double_products() ? gpu_double_tensor_times(elements, gpu)
                                          : gpu_tensor_times(elements * kPieces, gpu);
  return times += gpu_times(count_gpu(plan.programs.epilogue), plan.problem.type, pairs * of.items, gpu);
}

GpuTimes gemm_times(const GpuPairPlan& plan, const Request& request, const FloorOf& of, const GpuInfo& gpu) {
  const double elements = request.pairs() * real(request.k);
  GpuTimes times = plan.has_double_products() ? gpu_double_tensor_times(elements, gpu)
                                              : gpu_tensor_times(elements * of.products, gpu);
  return times += gpu_times(count_gpu(plan.programs.epilogue), plan.problem.type, request.pairs() * of.items, gpu);
}

/// Values times v: three products of 16 bits, or of tf32 at half their rate; else a multiply-add for every column.
GpuTimes columns_times(const GpuPairPlan& plan, const GpuFieldProblem* product, const Request& request,
                       const GpuInfo& gpu) {
  const double columns = real(request.columns);
  if (product != nullptr && request.type == Dtype::float64)
    return gpu_double_tensor_times(request.pairs() * columns, gpu);
  const bool halves = product != nullptr ? !product->stored.tile : plan.takes_halves();
  if (product != nullptr || plan.problem.product.wide > 0)
    return gpu_tensor_times(request.pairs() * columns * (halves ? 3 : 6), gpu);
  return gpu_times({.issue = columns, .fma = columns, .alu = 0, .unit = 0}, request.type, request.pairs(), gpu);
}

/// Times that values are made again: for every few columns of v that a pass takes, where none are stored.
double passes_of(const GpuPairPlan& plan, bool stores, const Request& request) {
  if (request.verb != Verb::product || stores || plan.keeps()) return 1;
  const int wide = plan.problem.product.wide;
  return real(ceil_div(std::max<std::int64_t>(request.columns, 1), wide > 0 ? wide : std::int64_t{kFewColumns}));
}

/// Factors and matrices weigh the pairs of one result.
double outputs_of(const Request& request) {
  return request.gradient.weights == FieldWeights::Kind::coefficients ? real(request.columns) : 1;
}

/// φ and its contraction for every (m, n, k).
GpuTimes field_times(const GpuFieldPlan& field, const Request& request, const GpuInfo& gpu) {
  const double features = real(request.k), columns = outputs_of(request);
  const double elements = request.pairs() * features;
  if (field.doubles) return gpu_double_tensor_times(elements * columns, gpu);
  if (field.linear) return gpu_tensor_times(request.pairs() * columns * (features + 1) * 3, gpu);
  if (!field.products)
    return gpu_times(count_gpu(field.programs.phi), request.type, elements, gpu) +=
           gpu_times({.issue = columns, .fma = columns, .alu = 0, .unit = 0}, request.type, elements, gpu);
  // Signs: four elements in four instructions, three products of bytes, at twice the rate of 16 bits. Others: three
  // of 16 bits or of tf32, at half of it.
  GpuCost cost{.issue = 1, .fma = 0.5, .alu = 0.5, .unit = 0};
  if (!field.of_signs()) cost = count_gpu(field.contracted.factor);
  if (!field.of_signs() && field.has_units() && field.table_eighths() > 0)
    cost = blend(cost, count_gpu(field.contracted.factor_by_table), field.table_eighths() / 8.0);
  return gpu_times(cost, request.type, elements, gpu) +=
         gpu_tensor_times(elements * columns * (field.of_signs() ? 1.5 : field.has_units() ? 3 : 6), gpu);
}

/// A matrix times the points z.
GpuTimes points_times(const Request& request, const GpuInfo& gpu) {
  const double elements = request.pairs() * real(request.k);
  if (request.type == Dtype::float64) return gpu_double_tensor_times(elements, gpu);
  constexpr double kOfTf32 = 6;
  return gpu_tensor_times(elements * kOfTf32, gpu);
}

GpuTimes gradient_times(const GradientPlan& plan, const Request& request, const FloorOf& of, const GpuInfo& gpu) {
  if (plan.by_points()) return points_times(request, gpu);
  const GpuPairPlan* pairs = plan.pairs.plan.get();
  GpuTimes times;
  if (pairs != nullptr) times += values_times(*pairs, request, of, gpu);
  if (plan.field) return times += field_times(*plan.field, request, gpu);
  if (pairs->problem.gradient.field) return times += field_times(*pairs->problem.gradient.field, request, gpu);
  constexpr double kOfTf32 = 6;
  const double columns = outputs_of(request) * real(pairs->problem.gradient.rank_field->columns(request.k));
  return times += gpu_tensor_times(request.pairs() * columns * kOfTf32, gpu);
}

double output_bytes(const Request& request, const FloorOf& of) {
  switch (request.verb) {
    case Verb::gradient: return outputs_of(request) * real(request.m) * real(request.k) * bytes_of(request.type);
    case Verb::pairwise: return request.pairs() * of.items * bytes_of(request.out);
    case Verb::product: return real(request.m + request.n) * real(request.columns) * bytes_of(request.type);
    default: return 0;
  }
}

}  // namespace

GpuTimes values_times(const GpuPairPlan& plan, const Request& request, const FloorOf& of, const GpuInfo& gpu) {
  if (plan.products.bilinear) return gemm_times(plan, request, of, gpu);
  const bool expands = plan.few.expanded && of.quantised;
  return pair_times(expands ? *plan.few.expanded : plan, request, of, gpu);
}

GpuTimes way_times(const Request& request, const Offer& offer, const FloorOf& of, const GpuInfo& gpu,
                   Planner& planner) {
  if (const auto* gradient = std::get_if<GradientPlan>(&offer.plan))
    return gradient_times(*gradient, request, of, gpu) +=
           gpu_memory_times(output_bytes(request, of) + points_bytes(request), gpu);
  const auto plan = planner.plan(offer.pairs());
  const StoredPlan* stored = std::get_if<StoredPlan>(&offer.plan);
  FloorOf values = of;
  if (plan->folding.sums_decide) values.items = 0;
  GpuTimes times = values_times(*plan, request, values, gpu) * passes_of(*plan, stored != nullptr, request);
  const GpuFieldProblem* product = stored != nullptr ? &stored->product->problem : nullptr;
  if (request.verb == Verb::product) times += columns_times(*plan, product, request, gpu);
  const double half = request.symmetric ? 0.5 : 1;
  times = times * half;
  return times += gpu_memory_times(output_bytes(request, of) + points_bytes(request) * half, gpu);
}

}  // namespace mercer::plan
