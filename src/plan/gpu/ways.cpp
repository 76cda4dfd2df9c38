#include "plan/gpu/ways.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/key.h"
#include "plan/gpu/gradient_ways.h"
#include "plan/gpu/pair_ways.h"
#include "plan/gpu/stored_ways.h"

namespace mercer::plan {
namespace {

// The first that offers is taken. After the ways that need something special come those that serve more.
constexpr const Way* kOfPairwise[] = {&kGemmSum,  &kGemmSumFloat64,        &kPrecomputedSums,
                                      &kDualPipe, &kTensorCoreDifferences, &kDirect};
constexpr const Way* kOfProduct[] = {&kMmaRhs,         &kGemmSum,         &kMaterialised, &kGemmSumFloat64,
                                     &kPrecomputedSums, &kDualPipe, &kExpanded,     &kDirect};
constexpr const Way* kOfReduce[] = {&kGemmSum, &kGemmSumFloat64, &kPrecomputedSums, &kDirect};
constexpr const Way* kOfNearest[] = {&kCandidates, &kStoreAndSelect};
constexpr const Way* kOfGradient[] = {&kMatrixTimesPoints, &kFewFeaturesGradient, &kGradLowrank,
                                      &kGradGemm,          &kGradContract,        &kStoredValues};

/// Asks a way; a forced one whatever the sizes are.
Considered ask(const Way& way, bool is_forced, const Request& request, const Costs& costs, Planner& planner) {
  return way.consider(request, is_forced ? costs.everywhere() : costs, planner);
}

std::vector<std::string> parts_of(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t from = 0, to = 0; from <= text.size(); from = to + 1) {
    to = std::min(text.find(separator, from), text.size());
    if (to > from) parts.push_back(text.substr(from, to - from));
  }
  return parts;
}

bool is_way_of(Verb verb, const std::string& name) {
  return std::ranges::any_of(ways_of(verb), [&](const Way* way) { return name == way->name; });
}

Request without_product(const Request& request) {
  Request without = request;
  without.gradient.further.product = false;
  return without;
}

[[noreturn]] void fail_forced(const Request& request, const ForcedWays& forced, const WayRecord& record) {
  std::string refusals;
  for (const WayRecord::Row& row : record.rows)
    if (const auto* refusal = std::get_if<Refusal>(&row.said); refusal != nullptr && row.is_forced)
      refusals += fmt::format(" {}: {}.", row.way->name, refusal->to_text());
  fail(ErrorKind::unsupported, "{}: a way that is forced must serve the call. Received \"{}\".{}",
       name_of(request.verb), forced.text(), refusals);
}

}  // namespace

const char* name_of(Verb verb) {
  constexpr const char* kNames[] = {"pairwise", "kernel_product", "kernel_reduce", "knn", "kernel_gradient"};
  return kNames[static_cast<int>(verb)];
}

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

std::string Refusal::to_text() const {
  return least ? fmt::format("{}: at least {:.4g} must be there, {:.4g} are", reason, *least, received) : reason;
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

ForcedWays::ForcedWays(const std::string& text, const char* what) : text_(text) {
  for (const std::string& part : parts_of(text, ',')) {
    const std::size_t colon = part.find(':');
    const Name name = colon == std::string::npos ? Name{{}, part} : Name{part.substr(0, colon), part.substr(colon + 1)};
    const bool is_known = std::ranges::any_of(kVerbs, [&](Verb verb) {
      return (name.verb.empty() || name.verb == name_of(verb)) && is_way_of(verb, name.way);
    });
    if (!is_known) {
      std::string known;
      for (Verb verb : kVerbs) {
        known += fmt::format("{}{}", known.empty() ? "" : "; ", name_of(verb));
        for (const Way* way : ways_of(verb))
          known += fmt::format("{}{}", way == ways_of(verb)[0] ? ": " : ", ", way->name);
      }
      fail(ErrorKind::invalid_argument, "{}: ways must be some of {}. Received \"{}\".", what, known, part);
    }
    names_.push_back(name);
  }
}

bool ForcedWays::names(Verb verb, const Way& way) const {
  return std::ranges::any_of(names_, [&](const Name& name) {
    return name.way == way.name && (name.verb.empty() || name.verb == name_of(verb));
  });
}

bool ForcedWays::any_of(Verb verb) const {
  return !names_.empty() && std::ranges::any_of(ways_of(verb), [&](const Way* way) { return names(verb, *way); });
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
  const bool is_forced = forced.any_of(request.verb);
  for (const Way* way : ways_of(request.verb)) {
    if (is_forced && !forced.names(request.verb, *way)) continue;
    Considered said = ask(*way, is_forced, request, costs, planner);
    if (Offer* offer = std::get_if<Offer>(&said)) return {way, std::move(*offer)};
  }
  if (request.gradient.further.product) return choose(without_product(request), costs, forced, planner);
  fail_forced(request, forced, consider_all(request, costs, forced, planner));
}

WayRecord consider_all(const Request& request, const Costs& costs, const ForcedWays& forced, Planner& planner) {
  const bool is_forced = forced.any_of(request.verb);
  WayRecord record;
  for (const Way* way : ways_of(request.verb)) {
    const bool is_named = is_forced && forced.names(request.verb, *way);
    record.rows.push_back({way, ask(*way, is_named, request, costs, planner), is_named});
    const bool may_be_taken = is_named || !is_forced;
    if (record.taken == nullptr && may_be_taken && std::holds_alternative<Offer>(record.rows.back().said))
      record.taken = way;
  }
  if (record.taken != nullptr || !request.gradient.further.product) return record;
  record = consider_all(without_product(request), costs, forced, planner);
  record.without_product = true;
  return record;
}

}  // namespace mercer::plan
