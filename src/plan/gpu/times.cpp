#include "plan/gpu/times.h"

#include <algorithm>

#include "core/integers.h"

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
  const bool starts_otherwise = !plan.first_update.code.empty();  // one feature takes the shorter program
  const double features = real(request.k - (starts_otherwise ? 1 : 0));
  GpuTimes times = gpu_times(mean_update_cost(plan, of.quantised), plan.problem.type, pairs * features, gpu);
  if (starts_otherwise) times += gpu_times(count_gpu(plan.first_update), plan.problem.type, pairs, gpu);
  const double elements = pairs * real(request.k);
  constexpr double kNumbers = 16;  // of a difference by tensor cores
  if (plan.differs && !(of.quantised && plan.mixed_sixteenths > 0)) times += gpu_tensor_times(elements * kNumbers, gpu);
  for (const auto& plane : plan.planes)
    times += plane->has_double_products() ? gpu_double_tensor_times(elements, gpu)
                                          : gpu_tensor_times(elements * kPieces, gpu);
  return times += gpu_times(count_gpu(plan.epilogue), plan.problem.type, pairs * of.items, gpu);
}

GpuTimes gemm_times(const GpuPairPlan& plan, const Request& request, const FloorOf& of, const GpuInfo& gpu) {
  const double elements = request.pairs() * real(request.k);
  GpuTimes times = plan.has_double_products() ? gpu_double_tensor_times(elements, gpu)
                                              : gpu_tensor_times(elements * of.products, gpu);
  return times += gpu_times(count_gpu(plan.epilogue), plan.problem.type, request.pairs() * of.items, gpu);
}

/// Values times v: three products of 16 bits, or of tf32 at half their rate; else a multiply-add for every column.
GpuTimes columns_times(const GpuPairPlan& plan, const GpuFieldProblem* product, const Request& request,
                       const GpuInfo& gpu) {
  const double columns = real(request.columns);
  if (product != nullptr && request.type == Dtype::float64)
    return gpu_double_tensor_times(request.pairs() * columns, gpu);
  const bool halves = product != nullptr ? !product->stored : plan.takes_halves();
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

double output_bytes(const Request& request, const FloorOf& of) {
  switch (request.verb) {
    case Verb::pairwise: return request.pairs() * of.items * bytes_of(request.out);
    case Verb::product: return real(request.m + request.n) * real(request.columns) * bytes_of(request.type);
    default: return 0;
  }
}

}  // namespace

GpuTimes values_times(const GpuPairPlan& plan, const Request& request, const FloorOf& of, const GpuInfo& gpu) {
  if (plan.bilinear) return gemm_times(plan, request, of, gpu);
  const bool expands = plan.expanded && of.quantised;
  return pair_times(expands ? *plan.expanded : plan, request, of, gpu);
}

GpuTimes way_times(const Request& request, const Offer& offer, const FloorOf& of, const GpuInfo& gpu,
                   Planner& planner) {
  const auto plan = planner.plan(offer.pairs());
  const StoredPlan* stored = std::get_if<StoredPlan>(&offer.plan);
  FloorOf values = of;
  if (plan->sums_decide) values.items = 0;
  GpuTimes times = values_times(*plan, request, values, gpu) * passes_of(*plan, stored != nullptr, request);
  if (request.verb == Verb::product) times += columns_times(*plan, stored ? &stored->product : nullptr, request, gpu);
  const double half = request.symmetric ? 0.5 : 1;
  times = times * half;
  return times += gpu_memory_times(output_bytes(request, of) + points_bytes(request) * half, gpu);
}

}  // namespace mercer::plan
