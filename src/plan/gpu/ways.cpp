#include "plan/gpu/ways.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/key.h"
#include "plan/gpu/gradient_ways.h"
#include "plan/gpu/pair_ways.h"
#include "plan/gpu/stored_ways.h"

namespace mercer::plan {
namespace {

// The first that offers is taken. After the ways that need something special come those that serve more.
constexpr const Way* kOfPairwise[] = {&kSplitK,   &kGemmSum,               &kGemmSumFloat64, &kPrecomputedSums,
                                      &kDualPipe, &kTensorCoreDifferences, &kDirect};
constexpr const Way* kOfProduct[] = {&kMmaRhs,         &kGemmSum,         &kMaterialised, &kGemmSumFloat64,
                                     &kPrecomputedSums, &kDualPipe, &kExpanded,     &kDirect};
constexpr const Way* kOfReduce[] = {&kGemmSum, &kGemmSumFloat64, &kPrecomputedSums, &kDirect};
constexpr const Way* kOfNearest[] = {&kCandidates, &kStoreAndSelect};
constexpr const Way* kOfGradient[] = {&kMatrixTimesPoints, &kFewFeaturesGradient, &kGradLowrank, &kGradGemm,
                                      &kGradGemmFloat64,   &kGradContract,        &kStoredValues};

/// Asks a way; a forced one whatever the sizes are.
Considered ask(const Way& way, bool is_forced, const Request& request, const Costs& costs, Planner& planner) {
  return way.consider(request, is_forced ? costs.everywhere() : costs, planner);
}

Request without_product(const Request& request) {
  Request without = request;
  without.gradient.side_sums.product = false;
  return without;
}

[[noreturn]] void fail_forced(const Request& request, const ForcedWays& forced, const WayRecord& record) {
  std::string refusals;
  for (const WayRecord::Row& row : record.rows)
    if (const auto* refusal = std::get_if<Refusal>(&row.said); refusal != nullptr && row.is_forced)
      refusals += fmt::format(" {}: {}.", row.way->name, refusal->to_text());
  fail_forced(request.verb, forced, refusals);
}

}  // namespace

std::int64_t rows_of_part(std::int64_t m, std::int64_t row_bytes, std::int64_t part_bytes) {
  constexpr std::int64_t kPadding = 128;
  const std::int64_t fitting =
      std::max<std::int64_t>(1, part_bytes / std::max<std::int64_t>(1, row_bytes) / kPadding);
  return std::min(m, fitting * kPadding);
}

const GpuPairProblem& Offer::pairs() const {
  const auto* stored = std::get_if<StoredPlan>(&plan);
  return stored != nullptr ? stored->pairs : std::get<FusedPlan>(plan).pairs;
}

std::span<const Way* const> ways_of(Verb verb) {
  switch (verb) {
    case Verb::pairwise: return kOfPairwise;
    case Verb::product: return kOfProduct;
    case Verb::reduce: return kOfReduce;
    case Verb::nearest: return kOfNearest;
    default: return kOfGradient;
  }
}

std::shared_ptr<const GpuPairPlan> Planner::plan(const GpuPairProblem& problem) {
  const PlannedFormula own = formula();
  return kept(cache_key(own.key, problem, costs_key()), MakePlan<GpuPairPlan>([&] {
                GpuPairProblem complete = problem;
                complete.outputs = {own.expression};
                return plan_gpu_pairs(complete, costs_);
              }));
}

KeptPlan<GpuPairPlan> Planner::pairs(std::string key, const MakePlan<GpuPairPlan>& make) {
  auto plan = kept(key, make);
  return {std::move(key), std::move(plan)};
}

KeptPlan<GpuFieldPlan> Planner::field(std::string key, const MakePlan<GpuFieldPlan>& make) {
  auto plan = kept(key, make);
  return {std::move(key), std::move(plan)};
}

Choice choose(const Request& request, const Costs& costs, const ForcedWays& forced, Planner& planner) {
  const bool is_forced = forced.any_of(request.verb, ways_of(request.verb));
  for (const Way* way : ways_of(request.verb)) {
    if (is_forced && !forced.names(request.verb, way->name)) continue;
    Considered said = ask(*way, is_forced, request, costs, planner);
    if (Offer* offer = std::get_if<Offer>(&said)) return {way, std::move(*offer)};
  }
  if (request.gradient.side_sums.product) return choose(without_product(request), costs, forced, planner);
  fail_forced(request, forced, consider_all(request, costs, forced, planner));
}

WayRecord consider_all(const Request& request, const Costs& costs, const ForcedWays& forced, Planner& planner) {
  const bool is_forced = forced.any_of(request.verb, ways_of(request.verb));
  WayRecord record;
  for (const Way* way : ways_of(request.verb)) {
    const bool is_named = is_forced && forced.names(request.verb, way->name);
    record.rows.push_back({way, ask(*way, is_named, request, costs, planner), is_named});
    const bool may_be_taken = is_named || !is_forced;
    if (record.taken == nullptr && may_be_taken && std::holds_alternative<Offer>(record.rows.back().said))
      record.taken = way;
  }
  if (record.taken != nullptr || !request.gradient.side_sums.product) return record;
  record = consider_all(without_product(request), costs, forced, planner);
  record.without_product = true;
  return record;
}

}  // namespace mercer::plan
