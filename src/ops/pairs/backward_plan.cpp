#include "ops/pairs/backward_plan.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "core/system/mutex.h"
#include "core/system/recent_cache.h"
#include "ir/passes/passes.h"
#include "ir/passes/point_form.h"
#include "ops/call/prepared.h"
#include "ops/context.h"
#include "ops/pairs/summed_leaves.h"
#include "plan/backward/backward_costs.h"
#include "plan/backward/weight_form.h"
#include "plan/cpu/sum_field.h"
#include "plan/cpu/ways.h"
#include "plan/forms/linear_form.h"
#include "plan/gpu/sums/bilinear_tile.h"

namespace mercer::ops {
namespace {

using Names = std::vector<std::string>;
using Verb = BackwardPass::Verb;

/// A formula as one side of a backward has it.
struct SideForms {
  explicit SideForms(const Expr& f)
      : formula(Formula(f)), linear(plan::linear_form(f)), weighted(plan::weight_form(f)) {}
  Formula formula;
  plan::LinearForm linear;
  plan::WeightForm weighted;

  /// Whether the factor of w that a field is to lack is that of the linear form.
  bool linear_has_factor() const {
    return weighted && !linear.weight.empty() && same(weighted.weight, linear.weight);
  }
};

struct Forms {
  explicit Forms(const Expr& f)
      : x(f), z(ir::swap_sides(f)), points(ir::point_form(f)), both(plan::cpu::sum_field(x.formula.expression())) {}
  SideForms x, z;
  ir::PointForm points;
  plan::cpu::SumField both;
  const SideForms& of(PassRows rows) const { return rows == PassRows::z ? z : x; }
};

std::shared_ptr<const Forms> forms_of(const Expr& f) {
  static constinit Lazy<RecentCache<Forms>> kept;
  auto& known = kept.get([] { return RecentCache<Forms>(1024); });
  return known.get(f.to_text(), [&] { return std::make_shared<const Forms>(f); });
}

bool has(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool yields(const std::vector<BackwardPass>& passes, const std::string& leaf) {
  return std::any_of(passes.begin(), passes.end(), [&](const BackwardPass& pass) {
    return std::any_of(pass.yields.begin(), pass.yields.end(), [&](const std::string& leaves) {
      return (" " + leaves + " ").find(" " + leaf + " ") != std::string::npos;
    });
  });
}

bool is_parameter(const std::string& leaf) { return leaf.starts_with("p:"); }

/// Whether an expression reads a leaf by this name.
bool reads(const Expr& e, const std::string& leaf) {
  bool found = false;
  ir::for_each(e, [&](const Expr& part) {
    const bool is_it = leaf == "x"   ? part->op == ir::Op::x
                       : leaf == "w" ? part->op == ir::Op::w
                                     : part->op == ir::Op::param && "p:" + part->name == leaf;
    found = found || is_it;
  });
  return found;
}

/// Passes over the pairs pay for what is no batch of tiny items. On CPUs vectors lie along the features: of one
/// feature and column derivatives go one by one, sooner.
bool pays_passes(bool on_cuda, std::int64_t k, std::int64_t columns, Choice choice) {
  if (choice != Choice::planned) return choice == Choice::always;
  return columns > 0 && (on_cuda || k > 1 || columns > 1);
}

class Planner {
 public:
  explicit Planner(const BackwardRequest& request)
      : request_(request), forms_(request.along.empty() ? forms_of(request.formula) : nullptr) {}

  std::vector<BackwardPass> plan() {
    if (takes_both_sides()) add_both_sides();
    else if (takes_passes()) add_passes();
    add_others();
    return std::move(passes_);
  }

  /// Whether one pass may have both sides.
  bool serves_both_sides() const {
    const bool is_plain = !on_cuda() && request_.in_memory && !request_.recorded && request_.along.empty();
    const bool by_matrix = request_.weights == PairWeights::matrix;
    const bool is_weighed = by_matrix || (request_.weights == PairWeights::factors && request_.columns > 0);
    const bool has_pairs = request_.m > 0 && request_.n > 0 && request_.k > 0;
    const auto is_of_it = [](const std::string& leaf) { return leaf == "x" || leaf == "z" || leaf == "v"; };
    return is_plain && is_weighed && has_pairs && !request_.same_points && wants("x") && wants("z") &&
           std::ranges::all_of(request_.wanted, is_of_it) && forms_->both && !forms_->x.linear;
  }
  plan::cpu::Request both_request() const {
    plan::cpu::Request request;
    request.verb = plan::Verb::gradient;
    request.m = request_.m, request.n = request_.n, request.k = request_.k;
    request.columns = request_.weights == PairWeights::matrix ? 0 : request_.columns;
    request.type = request_.type;
    request.both_sides = true;
    return request;
  }
  plan::cpu::PairForms both_forms() const {
    plan::cpu::PairForms forms;
    forms.sum = forms_->both.sum;
    return forms;
  }

 private:
  bool wants(const std::string& leaf) const { return has(request_.wanted, leaf); }
  bool on_cuda() const { return request_.capability > 0; }
  bool has_few_features() const { return request_.k <= plan::kFewFeatures; }
  bool wants_z() const { return wants(request_.same_points ? "x" : "z"); }
  bool is_made(const std::string& leaf) const { return yields(passes_, leaf); }
  /// Whether x and z are the same points to a formula that does not tell them apart.
  bool has_same_sides() const {
    return request_.same_points && request_.same_row && request_.same_offsets && request_.along.empty() &&
           forms_->x.formula.symmetric();
  }

  bool takes_both_sides() const {
    if (!serves_both_sides() || request_.both_sides == Choice::never) return false;
    if (request_.both_sides == Choice::always) return true;
    Context& context = Context::shared();
    const plan::cpu::Costs& costs = context.state().way_costs(context.target());
    const plan::cpu::Way& way =
        plan::cpu::choose(both_request(), both_forms(), costs, *context.state().forced_ways.load());
    return &way == &plan::cpu::kBothSides;
  }

  void add_both_sides() {
    BackwardPass pass{.verb = Verb::both_sides, .yields = {"x", "z"}, .product = wants("v")};
    if (pass.product) pass.yields.push_back("v");
    passes_.push_back(std::move(pass));
  }

  bool takes_passes() const {
    const bool weighed = request_.weights != PairWeights::other;
    if (!weighed || request_.recorded || !request_.along.empty() || request_.tiny_items) return false;
    const std::int64_t columns = request_.weights == PairWeights::matrix ? 2 : request_.columns;
    return pays_passes(on_cuda(), request_.k, columns, request_.passes);
  }

  /// Whether gradients by w are made of those by the points. Sums by w in a field's pass round less in float32: points
  /// of few features, of which narrow kernels see a small part at a time, have those. On CPUs, where such sums come
  /// with one field, a second field for their sake is more.
  bool makes_weights() const {
    if (!request_.has_w || !wants("w") || request_.m == 0 || request_.n == 0 || request_.k == 0) return false;
    if (request_.type == Dtype::float32 && has_few_features()) return false;
    if (!forms_->x.weighted || !forms_->z.weighted) return false;
    const bool has_fields =
        forms_->x.weighted.of_both_sides ? wants("x") && wants_z() : wants("x") || wants_z();
    return on_cuda() || has_fields;
  }

  Names parameters() const {
    Names names;
    for (const std::string& leaf : request_.wanted)
      if (is_parameter(leaf)) names.push_back(leaf);
    return names;
  }

  void add_passes() {
    makes_weights_ = makes_weights();
    // A field by w alone takes less on CUDA, of more features, than a pass that computes the field to x as well.
    const bool has_fields = !on_cuda() || has_few_features();
    Names numbers = parameters();
    const bool has_others = wants("x") || wants_z() || wants("row") || wants("col") || !numbers.empty();
    bool by_w = !makes_weights_ && request_.has_w && wants("w") && (has_fields || has_others);
    if (!wants("x") && !wants_z() && !by_w && !makes_weights_) return;
    if (request_.weights == PairWeights::factors && has_same_sides()) {
      const bool by_row = request_.has_row && (wants("row") || wants("col"));
      return add_pass(PassRows::both, taken(numbers, by_row), by_w, by_row, wants("v"));
    }
    const bool both = forms_->x.weighted && forms_->x.weighted.of_both_sides;
    const bool of_x = wants("x") || (makes_weights_ && (both || !wants_z())) || (by_w && !wants_z());
    const bool of_z = wants_z() || (makes_weights_ && both);
    if (of_x) {
      const bool by_row = request_.has_row && wants("row");
      add_pass(PassRows::x, taken(numbers, by_row), std::exchange(by_w, false), by_row, false);
    }
    if (of_z) {
      const bool by_row = request_.has_col && wants("col");
      add_pass(PassRows::z, taken(numbers, by_row), by_w, by_row, wants("v"));
    }
  }

  /// The names that a pass takes; the others go with the next one.
  static Names taken(Names& names, bool by_row) {
    const std::size_t count = std::min(names.size(), kMostSums - by_row);
    const auto behind = names.begin() + static_cast<std::ptrdiff_t>(count);
    const Names first(names.begin(), behind);
    names.erase(names.begin(), behind);
    return first;
  }

  std::string field_leaf(PassRows rows) const {
    const std::string leaf = rows == PassRows::z && !request_.same_points ? "z" : "x";
    return wants(leaf) ? leaf : "";
  }
  static std::string leaf_of(const std::string& by, PassRows rows) {
    if (by != "row") return by;
    return rows == PassRows::z ? "col" : rows == PassRows::both ? "row col" : "row";
  }

  void add_pass(PassRows rows, Names names, bool by_w, bool by_row, bool product) {
    if (by_row) names.push_back("row");
    const SideForms& forms = forms_->of(rows);
    const bool has_pairs = request_.m > 0 && request_.n > 0;
    const bool is_linear =
        forms.linear && has_pairs && (!makes_weights_ || forms.linear_has_factor());
    if (is_linear) {
      std::erase_if(names, is_parameter);  // a linear form reads none
      // Elsewhere BLAS is sooner than a pass.
      const bool by_pass =
          on_cuda() && request_.type == Dtype::float32 && request_.weights == PairWeights::matrix;
      return add_field(by_pass ? Verb::linear_form_by_pass : Verb::linear_form, rows, names, by_w, product);
    }
    const Verb verb =
        request_.weights == PairWeights::factors ? Verb::product_backward : Verb::pairwise_backward;
    const PassParts parts = parts_of(summed_leaves(forms.formula, request_.arrays), names, by_w);
    add_field(verb, rows, parts.sums ? names : Names(), by_w && parts.weights, product && parts.product);
    if (!parts.sums)
      for (const std::string& name : names) add(Verb::sums, rows, {name}, {leaf_of(name, rows)});
    if (by_w && !parts.weights) add(Verb::field, rows, {"w"}, {"w"});
    if (product && !parts.product) add(Verb::product, rows, {}, {"v"});
  }

  void add_field(Verb verb, PassRows rows, const Names& names, bool by_w, bool product) {
    BackwardPass pass{.verb = verb, .rows = rows, .product = product, .without_weight = makes_weights_};
    pass.yields.push_back(field_leaf(rows));
    if (by_w) pass.by.push_back("w");
    pass.by.insert(pass.by.end(), names.begin(), names.end());
    for (const std::string& by : pass.by) pass.yields.push_back(leaf_of(by, rows));
    if (product) pass.yields.push_back("v");
    // Where one side is enough, the first pass has it.
    if (makes_weights_ && (forms_->x.weighted.of_both_sides || !is_made("w"))) pass.yields.push_back("w");
    passes_.push_back(std::move(pass));
  }

  void add(Verb verb, PassRows rows, Names by, Names yields) {
    passes_.push_back({.verb = verb, .rows = rows, .by = std::move(by), .yields = std::move(yields)});
  }

  /// What no pass has is made leaf by leaf.
  void add_others() {
    const auto is_missing = [&](const std::string& leaf) { return wants(leaf) && !is_made(leaf); };
    if (is_missing("x")) {
      const bool at_once = request_.same_points && has_same_sides();
      add(Verb::field, at_once ? PassRows::both : PassRows::x, {"x"}, {"x"});
      if (request_.same_points && !at_once) add(Verb::field, PassRows::x, {"z"}, {"x"});
    }
    if (!request_.same_points && is_missing("z")) add(Verb::field, PassRows::x, {"z"}, {"z"});
    if (request_.has_w && is_missing("w")) add(Verb::field, PassRows::x, {"w"}, {"w"});
    if (request_.has_row && is_missing("row")) add(Verb::sums, PassRows::x, {"row"}, {"row"});
    if (request_.has_col && is_missing("col")) add(Verb::sums, PassRows::z, {"row"}, {"col"});
    for (const std::string& leaf : request_.wanted) {
      if (is_parameter(leaf) && !is_made(leaf)) add(Verb::sums, PassRows::x, {leaf}, {leaf});
      if (leaf.starts_with("d:")) add(Verb::direction, PassRows::x, {leaf.substr(2)}, {leaf});
    }
  }

  const BackwardRequest& request_;
  std::shared_ptr<const Forms> forms_;  // null where f is differentiated in a direction, which no pass has
  bool makes_weights_ = false;
  std::vector<BackwardPass> passes_;
};

/// The points of one side of a point form, and what is wanted of them.
struct PointSide {
  const ir::PointForm::Side& of;
  Names wanted;  // "x", "w" and parameters

  PointSide(const BackwardRequest& request, const ir::PointForm::Side& side, bool of_z) : of(side) {
    if (has(request.wanted, of_z && !request.same_points ? "z" : "x")) wanted.push_back("x");
    for (const std::string& leaf : request.wanted)
      if (leaf == "w" || is_parameter(leaf)) wanted.push_back(leaf);
  }
  bool read_by(const Expr& e) const {
    return !e.empty() && std::any_of(wanted.begin(), wanted.end(), [&](const auto& leaf) { return reads(e, leaf); });
  }
  bool wants_points() const { return has(wanted, "x") || read_by(of.shift) || read_by(of.scale); }
  bool wants_value() const { return read_by(of.value); }
  /// Whether the form has anything to do with what is wanted.
  bool matters() const { return !of.is_plain() && (has(wanted, "x") || wants_points() || wants_value()); }
};

bool are_same(const Expr& a, const Expr& b) { return a.empty() == b.empty() && (a.empty() || same(a, b)); }

bool are_same(const ir::PointForm::Side& a, const ir::PointForm::Side& b) {
  return are_same(a.shift, b.shift) && are_same(a.scale, b.scale) && are_same(a.value, b.value);
}

bool pays_point_form(const BackwardRequest& request) {
  if (request.recorded || !request.along.empty() || request.tiny_items) return false;
  if (request.points != Choice::planned) return request.points == Choice::always;
  return request.m * request.n * request.k >= plan::backward_costs(request.capability).least_work_of_points;
}

/// The backward of the formula of the other points.
BackwardRequest request_of_points(const BackwardRequest& request, const ir::PointForm& form, const PointSide& x,
                                  const PointSide& z) {
  BackwardRequest made = request;
  const ir::Uses uses = ir::uses(form.formula);
  made.formula = form.formula;
  made.same_points = request.same_points && are_same(form.x, form.z);
  made.same_row = made.same_points && (!form.x.value.empty() || request.same_row);
  made.has_w = request.has_w && uses.w;
  made.has_row = uses.row && (request.has_row || !form.x.value.empty());
  made.has_col = uses.col && (request.has_col || !form.z.value.empty());
  made.wanted.clear();
  if (x.wants_points() || (z.wants_points() && made.same_points)) made.wanted.push_back("x");
  if (z.wants_points() && !made.same_points) made.wanted.push_back("z");
  if (form.x.value.empty() ? has(request.wanted, "row") : x.wants_value()) made.wanted.push_back("row");
  if (form.z.value.empty() ? has(request.wanted, "col") : z.wants_value()) made.wanted.push_back("col");
  for (const std::string& leaf : request.wanted)
    if (leaf == "w" || leaf == "v" || (is_parameter(leaf) && reads(form.formula, leaf))) made.wanted.push_back(leaf);
  return made;
}

/// The passes of the given points, or of others where that pays; without the gradient by v where none of them has it.
std::vector<BackwardPass> with_point_form(const BackwardRequest& request) {
  if (!pays_point_form(request)) return Planner(request).plan();
  const auto forms = forms_of(request.formula);
  const ir::PointForm& form = forms->points;
  if (!form) return Planner(request).plan();
  const PointSide x(request, form.x, false), z(request, form.z, true);
  if (!x.matters() && !z.matters()) return Planner(request).plan();
  const BackwardRequest of_points = request_of_points(request, form, x, z);
  std::vector<BackwardPass> passes = Planner(of_points).plan();
  passes.insert(passes.begin(), {.verb = Verb::point_form, .formula = form.formula.to_text()});
  BackwardPass back{.verb = Verb::point_form_back};
  std::copy_if(request.wanted.begin(), request.wanted.end(), std::back_inserter(back.yields),
               [](const std::string& leaf) { return leaf != "v"; });
  passes.push_back(std::move(back));
  return passes;
}

}  // namespace

SummedLeaves summed_leaves(const Formula& formula, const Names& arrays) {
  const Formula::Prepared& prepared = formula.prepared();
  SummedLeaves leaves{{}, prepared.uses.row, prepared.uses.w};
  const auto is_array = [&](const Expr& leaf) { return has(arrays, leaf->name); };
  const bool are_bound = std::none_of(prepared.exponents.begin(), prepared.exponents.end(), is_array);
  for (const Expr& leaf : prepared.params) {
    const auto is_leaf = [&](const Expr& exponent) { return same(exponent, leaf); };
    const bool is_exponent = std::any_of(prepared.exponents.begin(), prepared.exponents.end(), is_leaf);
    if (!is_exponent || !are_bound) leaves.params.push_back(leaf->name);
  }
  return leaves;
}

std::vector<BackwardPass> plan_backward(const BackwardRequest& request) {
  std::vector<BackwardPass> passes = with_point_form(request);
  if (has(request.wanted, "v") && !yields(passes, "v"))
    passes.push_back({.verb = Verb::product, .rows = PassRows::z, .yields = {"v"}});
  return passes;
}

std::string ways_of_both_sides(const BackwardRequest& request) {
  const Planner planner(request);
  if (!planner.serves_both_sides()) return "";
  Context::State& state = Context::shared().state();
  return plan::cpu::ways_text(planner.both_request(), planner.both_forms(), state.way_costs(Context::shared().target()),
                              *state.forced_ways.load());
}

FieldVerb plan_field(const FieldRequest& request) {
  const bool of_factors = !request.has_matrix && request.has_u && request.has_v;
  const bool of_matrix = request.has_matrix && !request.has_u && !request.has_v;
  const bool in_one_pass =
      request.target == "x" || (request.target == "w" && request.on_cuda && request.k <= plan::kFewFeatures &&
                                forms_of(request.formula)->x.formula.prepared().uses.w);
  const std::int64_t columns = of_matrix ? 2 : request.columns;
  if ((of_factors || of_matrix) && in_one_pass &&
      pays_passes(request.on_cuda, request.k, columns, Choice::planned)) {
    const bool of_gradient = of_factors && request.target == "x";
    return of_gradient ? FieldVerb::product_gradient
           : of_factors ? FieldVerb::product_backward
                        : FieldVerb::pairwise_backward;
  }
  // If there is one column, u is a factor of the rows of the result, and v the coefficients.
  return request.has_u && request.has_v && request.columns > 1 ? FieldVerb::by_rows : FieldVerb::contraction;
}

}  // namespace mercer::ops
