#include "plan/gpu/pair_ways.h"

#include "core/integers.h"
#include "plan/gpu/stored_ways.h"
#include "plan/gpu/sums/differences.h"
#include "plan/gpu/sums/expanded.h"
#include "plan/gpu/sums/sum_planes.h"
#include "plan/gpu/value_products.h"

namespace mercer::plan {
namespace {

constexpr const char* kOfFloat32 = "each operation within 1e-6 of its result, sums of many terms promoted";
constexpr const char* kOfFloat64 = "each operation rounded once";
constexpr const char* kOfPieces = "1e-6 of a distance, or of |x| |z|; what cancels is computed again";
constexpr const char* kOfSingle = "near 2^-11 of |x| |z|";

Consumer consumer_of(Verb verb) {
  switch (verb) {
    case Verb::product: return Consumer::product;
    case Verb::reduce: return Consumer::fold;
    default: return Consumer::store;
  }
}

GpuPairProblem problem_of(const Request& request) { return problem_of(request, consumer_of(request.verb)); }

/// Why there is no such tile.
Refusal no_gemm_tile(const Request& request, const Costs& costs) {
  const double work = request.pairs() * static_cast<double>(request.k);
  if (request.precision == Precision::direct) return {"the precision is \"direct\", which has no tensor cores"};
  if (costs.tensor_cores_from > 0 && work < costs.tensor_cores_from)
    return {"pairs times features", costs.tensor_cores_from, work};
  return {"points or features are too few, or too many for lists of pairs that cancel"};
}

/// Why the only sum of a formula that may have one does not run on tensor cores.
Refusal no_gemm(const Forms& forms) {
  if (!forms.gemm)
    return {"the formula's sum over the features is no product of two matrices, or it has several sums"};
  return {"what follows the sum is too long for values that stay in registers, or its operands for shared memory"};
}

/// Refuses a product with v whose passes over its columns make all values again, where storing them takes less, as the
/// way `materialised` does. Values that this way stores itself are in the plan.
std::optional<Refusal> passes_lose(const Request& request, const GpuPairPlan& plan, const Costs& costs) {
  const int wide = plan.problem.product.wide;
  if (request.verb != Verb::product || wide == 0 || request.columns <= wide || plan.keeps()) return {};
  if (costs.tensor_cores_from == 0 || request.precision != Precision::fp32) return {};
  if (std::min(request.m, request.n) < costs.stored_least_points) return {};
  const std::int64_t passes = ceil_div(request.columns, std::int64_t{wide});
  const ValueTimes times = value_times(costs, request, passes, wide);
  if (times.stored >= costs.kept.gain * times.passes || !product_of_values(request, request.columns, costs)) return {};
  return Refusal{"milliseconds that values stored once take", costs.kept.gain * times.passes, times.stored};
}

Considered consider_gemm(const Request& request, const Costs& costs, Planner& planner) {
  GpuPairProblem problem = problem_of(request);
  problem.product = sum_tile(request, costs);
  if (!problem.product) return no_gemm_tile(request, costs);
  problem.product.by_warps = request.device.by_warps;
  const auto plan = planner.plan(problem);
  if (!plan->products.bilinear) return no_gemm(planner.forms());
  if (const auto refusal = passes_lose(request, *plan, costs)) return *refusal;
  const bool is_double = request.type == Dtype::float64;
  const char* const of_float = request.precision == Precision::fp32 ? kOfPieces : kOfSingle;
  return Offer{FusedPlan{problem}, is_double ? kOfFloat64 : of_float};
}

Considered gemm_sum(const Request& request, const Costs& costs, Planner& planner) {
  if (request.type != Dtype::float32) return Refusal{"values are computed in float64"};
  return consider_gemm(request, costs, planner);
}

Considered gemm_sum_float64(const Request& request, const Costs& costs, Planner& planner) {
  if (request.type != Dtype::float64) return Refusal{"values are computed in float32"};
  return consider_gemm(request, costs, planner);
}

bool expands(const Request& request, const Costs& costs) {
  return request.precision != Precision::direct &&
         pays_expanded(request.m, request.n, request.k, costs);
}

Considered mma_rhs(const Request& request, const Costs& costs, Planner& planner) {
  if (request.k > kFewFeatures) return Refusal{"more than 16 features"};
  if (request.columns < kLeastWideColumns)
    return Refusal{"columns of v", kLeastWideColumns, static_cast<double>(request.columns)};
  GpuPairProblem problem = problem_of(request);
  problem.product =
      wide_tile(request.m, request.n, request.k, request.columns, request.precision, costs);
  if (!problem.product)
    return Refusal{"pairs (and a precision other than \"direct\")", costs.wide_from, request.pairs()};
  problem.tries.expands = expands(request, costs);
  const auto plan = planner.plan(problem);
  if (!plan->few.mma_rhs) return Refusal{"it needs float32, warpgroups (compute capability 9.0) and a short epilogue"};
  Offer offer{FusedPlan{problem}, kOfFloat32};
  if (plan->few.expanded) offer.needs = "norms near their smallest, else differences: the other kernel of this way";
  return offer;
}

Considered precomputed_sums(const Request& request, const Costs& costs, Planner& planner) {
  GpuPairProblem problem = problem_of(request);
  problem.plane_product = plane_tile(request, costs);
  if (!problem.plane_product)
    return request.k < costs.sums_features
               ? Refusal{"features", static_cast<double>(costs.sums_features), static_cast<double>(request.k)}
               : no_gemm_tile(request, costs);
  const auto plan = planner.plan(problem);
  if (plan->products.planes.empty())
    return Refusal{"none of several sums over the features is a product of two matrices"};
  const std::int64_t row = request.n * static_cast<std::int64_t>(size_of(request.type) * plan->products.planes.size());
  return Offer{FusedPlan{problem}, bound_of(request), row * rows_of_part(request.m, row / 4, request.part_bytes)};
}

MixedWork work_of(const Request& request, const Costs& costs) {
  return mixed_work(request.m, request.n, request.k, costs);
}

bool differs(const Request& request, const Costs& costs) {
  return fills_waves(request.m, request.n, request.k, request.device.multiprocessors, costs.differences,
                     request.symmetric);
}

/// A matrix of which the device finds that integers do not serve it takes its differences by tensor cores, if they do.
GpuPairProblem mixed_problem(const Request& request, const Costs& costs) {
  GpuPairProblem problem = problem_of(request);
  problem.product.by_warps = request.device.by_warps;
  problem.tries.mixed_work = work_of(request, costs);
  problem.tries.differs = request.verb == Verb::pairwise && differs(request, costs);
  return problem;
}

Considered dual_pipe(const Request& request, const Costs& costs, Planner& planner) {
  const GpuPairProblem problem = mixed_problem(request, costs);
  if (problem.tries.mixed_work == MixedWork::little)
    return Refusal{"pairs times features", costs.much_mixed_work / costs.some_parts,
                   request.pairs() * static_cast<double>(request.k)};
  if (planner.plan(problem)->pipes.mixed_sixteenths == 0)
    return planner.forms().absolute_differences != 1
               ? Refusal{"the formula has no single sum of |x - z| in float32"}
               : Refusal{"integers would save less than quantising costs, or what they lose would be seen"};
  return Offer{FusedPlan{problem}, kOfFloat32, 0, "values of a narrow range, else the values themselves: direct"};
}

Considered tensor_core_differences(const Request& request, const Costs& costs, Planner& planner) {
  const GpuPairProblem problem = mixed_problem(request, costs);
  if (!problem.tries.differs) return Refusal{"tiles would leave more than a tenth of the multiprocessors idle"};
  if (!planner.plan(problem)->pipes.differs)
    return Refusal{"it needs float32, warpgroups (compute capability 9.0) and a sum of additions of x - z alone"};
  return Offer{FusedPlan{problem}, "differences within 2^-23 of each", 0,
               "finite values with digits above 2^-126, else the values themselves: direct"};
}

Considered expanded(const Request& request, const Costs& costs, Planner& planner) {
  if (!expands(request, costs))
    return request.k > kMostExpandedFeatures
               ? Refusal{"more than 8 features"}
               : Refusal{"pairs (and a precision other than \"direct\")", costs.expanded_from, request.pairs()};
  GpuPairProblem problem = problem_of(request);
  problem.tries.expands = true;
  if (!planner.plan(problem)->few.expanded) return Refusal{"the formula is no Gauss kernel, or v has several columns"};
  return Offer{FusedPlan{problem}, kOfFloat32, 0, "norms near their smallest, else differences: direct"};
}

Considered direct(const Request& request, const Costs&, Planner&) {
  GpuPairProblem problem = problem_of(request);
  problem.product.by_warps = request.device.by_warps;
  return Offer{FusedPlan{problem}, bound_of(request)};
}

}  // namespace

const Way kMmaRhs{"mma_rhs", "values of few features are the left operand of products with v on tensor cores", mma_rhs};
const Way kGemmSum{"gemm_sum", "the sum is a product of matrices on tensor cores, of 16-bit pieces", gemm_sum};
const Way kGemmSumFloat64{"gemm_sum_float64", "the same by tensor cores of float64", gemm_sum_float64};
const Way kPrecomputedSums{"precomputed_sums", "of several sums, products of matrices are computed and stored first",
                           precomputed_sums};
const Way kDualPipe{"dual_pipe", "|x - z| on the integer and the float pipes together", dual_pipe};
const Way kTensorCoreDifferences{"tensor_core_differences", "x - z by products of matrices", tensor_core_differences};
const Way kExpanded{"expanded", "squares of few features as norms and products", expanded};
const Way kDirect{"direct", "every pair and feature by the program of the formula", direct};

const char* bound_of(const Request& request) { return request.type == Dtype::float64 ? kOfFloat64 : kOfFloat32; }

GpuPairProblem problem_of(const Request& request, Consumer consumer) {
  GpuPairProblem problem;
  problem.type = request.type;
  problem.arrays.out = consumer == Consumer::store && request.verb == Verb::pairwise ? request.out : request.type;
  problem.consumer = consumer;
  problem.use.fold = request.fold;
  if (consumer == Consumer::product)
    problem.use.columns = static_cast<int>(std::min<std::int64_t>(request.columns, kFewColumns));
  problem.sizes = sizes_of(request.m, request.n, request.k, request.device.multiprocessors);
  problem.arrays.points = request.points;
  problem.arrays.bytes = request.points == Dtype::uint8 && request.k < kMostByteFeatures;
  problem.params.by_value = request.by_value;
  problem.params.normal_reciprocals = request.by_value && request.type == Dtype::float32;
  problem.device.capability = request.device.capability;
  problem.device.shared_per_block = request.device.shared_per_block;
  return problem;
}

BilinearTile sum_tile(const Request& request, const Costs& costs) {
  const auto& [m, n, k] = std::tie(request.m, request.n, request.k);
  if (request.verb == Verb::pairwise) {
    if (request.type != Dtype::float64)
      return bilinear_tile(m, n, k, request.precision, request.device.multiprocessors, costs);
    Costs own = costs;
    own.tensor_cores.least_points = costs.tensor_cores.least_doubles;
    return bilinear_tile(m, n, k, request.precision, request.device.multiprocessors, own);
  }
  if (k <= kFewFeatures) return {};
  return bilinear_fold_tile(m, n, k, request.verb == Verb::product ? request.columns : 0, request.precision, costs);
}

BilinearTile values_tile(const Request& request, const Costs& costs) {
  const std::int64_t row = request.n * static_cast<std::int64_t>(size_of(request.type));
  BilinearTile tile =
      bilinear_tile(request.m, request.n, request.k, request.precision, request.device.multiprocessors,
                    costs, rows_of_part(request.m, row, request.part_bytes));
  tile.by_warps = request.device.by_warps;
  return tile;
}

BilinearTile plane_tile(const Request& request, const Costs& costs) {
  constexpr std::int64_t kLeastRows = 128, kMostBytes = 4 * kPartBytes;  // a part has so many rows at least
  const std::int64_t value = static_cast<std::int64_t>(size_of(request.type));
  if (request.n > kMostBytes / (kLeastRows * value)) return {};
  BilinearTile tile =
      plane_tile(request.m, request.n, request.k, request.precision, request.device.multiprocessors,
                 costs, rows_of_part(request.m, request.n * value, request.part_bytes));
  tile.by_warps = tile && request.device.by_warps;
  return tile;
}

}  // namespace mercer::plan
