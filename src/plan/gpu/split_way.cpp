#include <cmath>

#include "plan/gpu/pair_ways.h"
#include "plan/gpu/sums/feature_split.h"

namespace mercer::plan {
namespace {

/// Sizes alone: most calls are refused here.
std::optional<Refusal> no_size(const Request& request, const Costs& costs) {
  const double work = request.pairs() * static_cast<double>(request.k);
  if (request.k <= kFewFeatures) return Refusal{"at most 16 features"};
  if (work < costs.ranges.from) return Refusal{"pairs times features", costs.ranges.from, work};
  if (request.pairs() > static_cast<double>(costs.ranges.most_pairs))
    return Refusal{"tiles fill the device: there are more than 4194304 pairs"};
  return {};
}

/// Microseconds of a sum as a product in pieces, sides swapped or not; none where it does not pay.
std::optional<double> products_time(Request request, const Costs& costs) {
  std::optional<double> least;
  for (int order = 0; order < 2; ++order, std::swap(request.m, request.n)) {
    const BilinearTile tile = sum_tile(request, costs);
    if (!tile) continue;
    const double time = costs.ranges.products_call + bilinear_time(tile, request.m, request.n, request.k,
                                                                   request.device.multiprocessors, costs);
    if (!least || time < *least) least = time;
  }
  return least && costs.tensor_cores_from == 0 ? 0 : least;
}

/// What takes less: blocks with all features (`whole`), products on tensor cores, or sums that are computed first.
/// Where all sizes run on tensor cores their calls cost nothing.
std::optional<Refusal> no_gain(const Request& request, const GpuPairPlan& whole, double microseconds,
                               const Costs& costs, Planner& planner) {
  const auto& [m, n, k] = std::tie(request.m, request.n, request.k);
  const double one = whole_tiles_time(whole, m, n, k, request.device.multiprocessors, costs.ranges);
  if (microseconds > costs.ranges.gain * one)
    return Refusal{"microseconds of blocks with all features", microseconds / costs.ranges.gain, one};
  if (request.type != Dtype::float32) return {};
  const Forms& forms = planner.forms();
  if (const auto products = forms.gemm ? products_time(request, costs) : std::nullopt;
      products && *products < microseconds)
    return Refusal{"microseconds of products on tensor cores", microseconds, *products};
  if (forms.reductions > 1 && plane_tile(request, costs)) return Refusal{"several sums may be computed first"};
  return {};
}

Considered split_k(const Request& request, const Costs& costs, Planner& planner) {
  if (const auto refusal = no_size(request, costs)) return *refusal;
  GpuPairProblem problem = problem_of(request, Consumer::store);
  if (request.type == Dtype::float64) problem.product = sum_tile(request, costs);
  problem.product.by_warps = request.device.by_warps;
  GpuPairProblem by_ranges = problem;
  by_ranges.tries.by_ranges = true;
  const auto plan = planner.plan(by_ranges);
  if (!plan->by_ranges()) return Refusal{"states of ranges of the features cannot be merged, or values are bytes"};
  const FeatureSplit split = split_features(*plan, request.m, request.n, request.k, request.device.multiprocessors,
                                            costs.ranges);
  if (split.ranges == 1) return Refusal{"a slice of a tile has all features"};
  const bool is_forced = std::isinf(costs.ranges.gain);
  if (!is_forced)
    if (const auto refusal = no_gain(request, *planner.plan(problem), split.microseconds, costs, planner))
      return *refusal;
  return Offer{FusedPlan{by_ranges}, bound_of(request)};
}

}  // namespace

const Way kSplitK{"split_k", "few tiles: blocks share the features of one, and the last merges their sums", split_k};

}  // namespace mercer::plan
