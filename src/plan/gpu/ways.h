// Ways to compute a call on a GPU (docs/design/ways.md). Each verb has a list of them; choose() asks them in its order,
// each offers a plan or says why it does not serve, and the first offer is taken.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "ir/passes/passes.h"
#include "plan/forms/forms.h"
#include "plan/gpu/costs/costs.h"
#include "plan/gpu/field.h"
#include "plan/gpu/request.h"
#include "plan/ways.h"

namespace mercer::plan {

/// A plan, and the key under which a Planner keeps it and others its kernels. There may be none.
template <class Plan>
struct KeptPlan {
  std::string key;
  std::shared_ptr<const Plan> plan;
  explicit operator bool() const { return plan != nullptr; }
  const Plan* operator->() const { return plan.get(); }
  const Plan& operator*() const { return *plan; }
};

/// Values of the pairs are used by the kernel that makes them, or stored where the caller wants them.
struct FusedPlan {
  GpuPairProblem pairs;  // without outputs: Planner knows the formula
};
/// Values of a part of the pairs are stored, then multiplied with v.
struct StoredPlan {
  GpuPairProblem pairs;
  KeptPlan<GpuFieldPlan> product;
};
/// A gradient: kernels of the pairs do all, or store values that a field is contracted with.
struct GradientPlan {
  KeptPlan<GpuPairPlan> pairs = {};      // none where the field reads no values of pairs but the caller's
  KeptPlan<GpuFieldPlan> field = {}, extra = {};  // none where `pairs` do all; of the sums by w
  bool product = false;                  // the product with v is among the results
  /// A matrix that weighs the pairs is multiplied with the points z.
  bool by_points() const { return field && field->problem.stored.of_product; }
};
using WayPlan = std::variant<FusedPlan, StoredPlan, GradientPlan>;

struct Offer {
  WayPlan plan = {};
  const char* error_bound = "";
  std::int64_t bytes = 0;  // of values of pairs that are stored for a second kernel
  const char* needs = "";  // a property of the data that the device looks for, and what serves without it; or nothing
  /// The plan of the pairs, for verbs other than the gradient.
  const GpuPairProblem& pairs() const;
};

template <class Plan>
using MakePlan = std::function<std::shared_ptr<const Plan>()>;

using Considered = std::variant<Offer, Refusal>;

/// The formula of a request: of pairs, or the field or fold whose gradient is asked for.
struct PlannedFormula {
  const std::string& key;  // equal keys are equal formulas
  const Expr& expression;
  ir::Form form = ir::Form::pairs;
  bool reads_amplitude = false;  // of a field or fold: the caller gives it
};

/// Plans of the formula of one request. Ways ask for the same ones again and again: whoever asks often keeps them.
class Planner {
 public:
  /// `costs` live as long as the plans that are made by them.
  explicit Planner(const Costs& costs) : costs_(costs) {}
  virtual ~Planner() = default;
  const Costs& costs() const { return costs_; }
  /// Tells plans by other costs apart.
  std::uint64_t costs_key() const { return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(&costs_)); }
  virtual PlannedFormula formula() = 0;
  virtual const Forms& forms() = 0;
  /// The formula's, by the points x, as a field.
  virtual const Expr& derivative() = 0;
  /// The plan of a problem, whose outputs are the formula. Throws what plan_gpu_pairs does.
  std::shared_ptr<const GpuPairPlan> plan(const GpuPairProblem& problem);
  /// What `make` gives, which may be null; made again only where it is not kept.
  KeptPlan<GpuPairPlan> pairs(std::string key, const MakePlan<GpuPairPlan>& make);
  KeptPlan<GpuFieldPlan> field(std::string key, const MakePlan<GpuFieldPlan>& make);

 protected:
  virtual std::shared_ptr<const GpuPairPlan> kept(const std::string& key, const MakePlan<GpuPairPlan>& make) = 0;
  virtual std::shared_ptr<const GpuFieldPlan> kept(const std::string& key, const MakePlan<GpuFieldPlan>& make) = 0;

 private:
  const Costs& costs_;
};

struct Way {
  const char* name;
  const char* does;  // a line for people
  Considered (*consider)(const Request& request, const Costs& costs, Planner& planner);
};

/// The list of a verb; the last way of it serves every call, but for gradients that are asked for with a product that
/// takes less by itself.
std::span<const Way* const> ways_of(Verb verb);

struct Choice {
  const Way* way = nullptr;
  Offer offer;
};

/// What every way of a request said, in order; of a choice that was made, with `taken`.
struct WayRecord {
  bool without_product = false;  // a gradient's, which is asked for again without the product with v
  struct Row {
    const Way* way;
    Considered said;
    bool is_forced = false;
  };
  std::vector<Row> rows;
  const Way* taken = nullptr;
};

/// The first offer; of a gradient with the product that no way has in its pass, one without it (GradientPlan::product).
/// Throws unsupported where ways are forced and none of them serves.
Choice choose(const Request& request, const Costs& costs, const ForcedWays& forced, Planner& planner);
/// The choice, for people: all ways are asked, also those after the one that is taken.
WayRecord consider_all(const Request& request, const Costs& costs, const ForcedWays& forced, Planner& planner);

}  // namespace mercer::plan
