#include "plan/gpu/stored_ways.h"

#include <algorithm>

#include "core/key.h"
#include "plan/gpu/pair_ways.h"
#include "plan/gpu/sums/sum_planes.h"
#include "plan/gpu/value_products.h"

namespace mercer::plan {
namespace {

constexpr const char* kBound = "values as pairwise has them, products with v in pieces of tf32 or of 16 bits";

std::int64_t stored_bytes(const Request& request) {
  const std::int64_t row = request.n * static_cast<std::int64_t>(size_of(request.type));
  return row * rows_of_part(request.m, row, request.part_bytes);
}

/// Values whose sum is no product of matrices on tensor cores are made for every few columns of v again, where they are
/// not stored. Whether storing them takes less; `of_sums`: their sums are stored in either case.
std::optional<Refusal> no_gain(const Request& request, const Costs& costs, bool of_sums) {
  if (costs.tensor_cores_from == 0) return {};
  const std::int64_t points = std::min(request.m, request.n);
  if (points < costs.stored_least_points)
    return Refusal{"points of either side", static_cast<double>(costs.stored_least_points),
                   static_cast<double>(points)};
  const ValueTimes times = value_times(costs, request, of_sums);
  if (times.stored >= times.passes)
    return Refusal{"milliseconds that values made again for every 16 columns take", times.stored, times.passes};
  return {};
}

Considered materialised(const Request& request, const Costs& costs, Planner& planner) {
  if (request.columns <= kFewColumns)
    return Refusal{"columns of v", kFewColumns + 1, static_cast<double>(request.columns)};
  if (request.n == 0) return Refusal{"there are no points of z"};
  if (request.type == Dtype::float32 && request.precision == Precision::direct)
    return Refusal{"the precision is \"direct\", which has no tensor cores"};
  if (const auto refusal = no_gain(request, costs, false)) return *refusal;
  auto product = product_of_values(request, request.columns, costs);
  if (!product) return Refusal{"the operands of so many columns would be too large"};
  GpuPairProblem values = problem_of(request, Consumer::store);
  values.params.by_value = values.params.normal_reciprocals = false;
  values.product = values_tile(request, costs);
  values.plane_product = plane_tile(request, costs);
  if (!planner.plan(values)->products.planes.empty())
    if (const auto refusal = no_gain(request, costs, true)) return *refusal;
  return Offer{StoredPlan{values, product_plan(*std::move(product), planner)}, kBound, stored_bytes(request)};
}

/// Few neighbours of many points are found while their pairs are computed. Calls of up to so many neighbours share
/// their kernels.
Considered candidates(const Request& request, const Costs& costs, Planner&) {
  constexpr std::int64_t kMostFound = 256, kMostPoints = std::int64_t{1} << 31;
  if (request.type != Dtype::float32) return Refusal{"values are computed in float64"};
  if (request.columns > kMostFound) return Refusal{"more than 256 neighbours"};
  if (request.m < costs.candidates_rows)
    return Refusal{"points that look for neighbours", static_cast<double>(costs.candidates_rows),
                   static_cast<double>(request.m)};
  if (request.n < costs.candidates_from)
    return Refusal{"points to choose from", static_cast<double>(costs.candidates_from), static_cast<double>(request.n)};
  if (request.n >= kMostPoints) return Refusal{"2^31 points to choose from, or more"};
  GpuPairProblem problem = problem_of(request, Consumer::nearest);
  problem.product =
      bilinear_nearest_tile(request.m, request.n, request.k, request.precision, costs);
  problem.product.by_warps = request.device.by_warps;
  problem.plane_product = plane_tile(request, costs);
  return Offer{FusedPlan{problem}, "values as pairwise has them: those that are kept are computed again"};
}

Considered store_and_select(const Request& request, const Costs& costs, Planner&) {
  GpuPairProblem values = problem_of(request, Consumer::store);
  values.product = values_tile(request, costs);
  values.plane_product = plane_tile(request, costs);
  return Offer{FusedPlan{values}, "values as pairwise has them", stored_bytes(request)};
}

}  // namespace

const Way kMaterialised{"materialised", "values are stored, a part at a time, and multiplied with all columns of v",
                        materialised};
const Way kCandidates{"candidates", "few neighbours are kept while pairs are computed", candidates};
const Way kStoreAndSelect{"store_and_select", "values are stored, a part at a time, and the smallest selected",
                          store_and_select};

std::optional<GpuFieldProblem> product_of_values(const Request& request, std::int64_t columns,
                                                 const Costs& costs) {
  GpuFieldProblem field;
  field.type = request.type;
  field.stored.of_product = true;
  field.stored.columns_of_doubles = columns_of_doubles(columns);
  field.device.capability = request.device.capability;
  field.device.shared_per_block = request.device.shared_per_block;
  if (request.type != Dtype::float32) return field;
  const bool has_warpgroups = field.device.capability == kOfWarpgroups && !request.device.by_warps;
  if (has_warpgroups) field.stored.tile = stored_tile(columns, costs);
  if (field.stored.tile) return field;
  const LinearSizes sizes =
      value_product_sizes(request.m, request.n, columns, request.part_bytes, request.device.multiprocessors);
  if (!sizes.fits) return {};
  field.contraction.linear = linear_tile(sizes, request.device.multiprocessors, costs);
  field.contraction.linear.by_warps = request.device.by_warps;
  return field;
}

KeptPlan<GpuFieldPlan> product_plan(GpuFieldProblem product, Planner& planner) {
  const int columns = product.type == Dtype::float64 ? product.stored.columns_of_doubles : 0;
  std::string key = cache_key("product of values", product.type, product.contraction.linear, product.stored.tile,
                              product.stored.lie, columns, product.device.capability, product.device.shared_per_block);
  return planner.field(std::move(key), [&] {
    product.field = value_product_field();
    product.planes = 1;
    return plan_gpu_field(product);
  });
}

}  // namespace mercer::plan
