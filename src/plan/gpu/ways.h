// Ways to compute a call on a GPU (docs/design/ways.md). Each verb has a list of them; choose() asks them in its order,
// each offers a plan or says why it does not serve, and the first offer is taken.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "plan/forms/forms.h"
#include "plan/gpu/costs.h"
#include "plan/gpu/request.h"
#include "plan/gpu_field.h"

namespace mercer::plan {

/// Values of the pairs are used by the kernel that makes them, or stored where the caller wants them.
struct FusedPlan {
  GpuPairProblem pairs;  // without outputs: Planner knows the formula
};
/// Values of a part of the pairs are stored, then multiplied with v.
struct StoredPlan {
  GpuPairProblem pairs;
  GpuFieldProblem product;
};
using WayPlan = std::variant<FusedPlan, StoredPlan>;

struct Offer {
  WayPlan plan;
  const char* error_bound = "";
  std::int64_t bytes = 0;  // of values of pairs that are stored for a second kernel
  const char* needs = "";  // a property of the data that the device looks for, and what serves without it; or nothing
  const GpuPairProblem& pairs() const;
};

/// A sentence, or one about two numbers.
struct Refusal {
  const char* reason = "";
  std::optional<double> least = {};  // what a call must have; it has `received`
  double received = 0;
  std::string to_text() const;
};

using Considered = std::variant<Offer, Refusal>;

/// Plans of the formula of one request. Ways ask for the same ones again and again: whoever asks often keeps them.
class Planner {
 public:
  virtual ~Planner() = default;
  virtual const Forms& forms() = 0;
  /// The plan of a problem, whose outputs are the formula. Throws what plan_gpu_pairs does.
  virtual std::shared_ptr<const GpuPairPlan> plan(const GpuPairProblem& problem) = 0;
};

struct Way {
  const char* name;
  const char* does;  // a line for people
  Considered (*consider)(const Request& request, const Costs& costs, Planner& planner);
};

/// The list of a verb; the last way of it serves every call.
std::span<const Way* const> ways_of(Verb verb);

/// Ways to take whatever the sizes are, for tests and comparisons: names, as "materialised" or
/// "kernel_product:materialised,direct". A verb that has none of them chooses as ever; one that has takes the first of
/// them, in its list's order, that serves the call at all.
class ForcedWays {
 public:
  ForcedWays() = default;
  /// Throws invalid_argument for a name that no verb has; `what` names, in errors, the thing that was given.
  ForcedWays(const std::string& text, const char* what);
  bool names(Verb verb, const Way& way) const;
  bool any_of(Verb verb) const;
  const std::string& text() const { return text_; }

 private:
  struct Name {
    std::string verb, way;  // verb: of all, where empty
  };
  std::string text_;
  std::vector<Name> names_;
};

struct Choice {
  const Way* way = nullptr;
  Offer offer;
};

/// What every way of a request said, in order; of a choice that was made, with `taken`.
struct WayRecord {
  struct Row {
    const Way* way;
    Considered said;
    bool is_forced = false;
  };
  std::vector<Row> rows;
  const Way* taken = nullptr;
};

/// The first offer. Throws unsupported where ways are forced and none of them serves.
Choice choose(const Request& request, const Costs& costs, const ForcedWays& forced, Planner& planner);
/// The choice, for people: all ways are asked, also those after the one that is taken.
WayRecord consider_all(const Request& request, const Costs& costs, const ForcedWays& forced, Planner& planner);

}  // namespace mercer::plan
