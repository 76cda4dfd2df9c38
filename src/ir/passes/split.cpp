#include "ir/passes/split.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "ir/expr/machine.h"
#include "ir/expr/ops.h"
#include "ir/expr/ptx.h"
#include "ir/passes/fold.h"
#include "ir/passes/passes.h"
#include "ir/passes/safe_field.h"

namespace mercer::ir {
namespace {

Expr acc(int slot) { return leaf(Op::accumulator, slot); }

/// Moves the machine's local slots 0 … S-1 to first … first + S - 1.
Expr shift_slots(const Expr& e, int states, int first) {
  if (first == 0) return e;
  ExprMap<Expr> moved;
  for (int s = 0; s < states; ++s) moved[acc(s)] = acc(first + s);
  return substitute(e, moved);
}

Expr by_meaning(const Expr& e) { return uses(e).ptx ? simplify(without_ptx(e)) : e; }

/// The node `e` with mapped arguments. The meaning of a ptx stays as it is: nothing reads it any more, and what only it
/// needs shall not be computed.
template <class Map>
Expr with_mapped_args(const Expr& e, Map map) {
  std::vector<Expr> args = e->args;
  for (std::size_t i = 0; i < args.size() - (e->op == Op::ptx); ++i) args[i] = map(args[i]);
  return with_args(e, std::move(args));
}

Expr with_meaning(const Expr& e, const Expr& meaning) {
  std::vector<Expr> args = e->args;
  args.back() = meaning;
  return with_args(e, std::move(args));
}

bool reads_x_side(const Uses& u) { return u.x || u.row || u.index_i; }
bool reads_z_side(const Uses& u) { return u.z || u.col || u.index_j; }

class Splitter {
 public:
  Splitter(Split& out, const SplitOptions& options) : out_(out), options_(options) {}

  /// Rewrites the reductions inside `e`, an expression of the pair.
  Expr lift_pair(const Expr& e) { return lift(e, Context::pair); }

  /// Gives one-sided subexpressions of every update to the streams.
  void make_streams();

 private:
  enum class Context { pair, term, x_side, z_side };
  using Memo = ExprMap<Expr>;

  Expr lift(const Expr& e, Context context);
  Expr lift_reduction(const Expr& e, Context context);
  Expr stage(const Expr& e, bool of_x);
  Expr pair_reduction(const Expr& e);
  Expr stream(const Expr& e, bool of_x);
  Expr hoist(const Expr& e, Memo& memo);
  Expr hoist_points(const Expr& e);

  Split& out_;
  SplitOptions options_;
  Memo memo_[4];
  Memo row_stages_, col_stages_, pairs_, points_;
};

Expr Splitter::lift(const Expr& e, Context context) {
  if (is_leaf(e->op)) return e;
  Memo& memo = memo_[static_cast<int>(context)];
  if (auto found = memo.find(e); found != memo.end()) return found->second;
  Expr result;
  if (is_reduction(e->op)) {
    result = lift_reduction(e, context);
  } else {
    std::vector<Expr> args;
    for (const Expr& arg : e->args) args.push_back(lift(arg, context));
    result = with_args(e, std::move(args));
  }
  memo.emplace(e, result);
  return result;
}

Expr Splitter::lift_reduction(const Expr& e, Context context) {
  const Uses u = uses(e);
  const bool x_side = reads_x_side(u), z_side = reads_z_side(u);
  const bool indexed = u.index_i || u.index_j;
  // What is pinned is not computed before, in float64.
  if (!indexed && !(x_side && z_side) && !u.pinned) {
    // Neither side (sum(w)): one value, computed with the points of whichever side asks.
    const bool of_x = x_side || (!z_side && context != Context::z_side);
    return stage(e, of_x);
  }
  if (context != Context::pair) {
    fail(ErrorKind::unsupported,
         "formula: a reduction inside another reduction may read one side only (x or z), because both would need a "
         "pass over the features for every pair and feature. Received {}.",
         e.to_text());
  }
  return pair_reduction(e);
}

Expr Splitter::stage(const Expr& given, bool of_x) {
  const Expr e = by_meaning(given);
  Memo& known = of_x ? row_stages_ : col_stages_;
  if (auto found = known.find(e); found != known.end()) return found->second;
  std::vector<Expr> args;
  for (const Expr& arg : e->args) args.push_back(lift(arg, of_x ? Context::x_side : Context::z_side));
  Machine machine = machine_of(*with_args(e, std::move(args)));
  int& count = of_x ? out_.row_stages : out_.col_stages;
  Expr value = leaf(of_x ? Op::row_stage : Op::col_stage, count++);
  out_.stages.push_back({of_x, machine.identity, machine.update, machine.finish});
  known.emplace(e, value);
  return value;
}

Expr Splitter::pair_reduction(const Expr& e) {
  if (auto found = pairs_.find(e); found != pairs_.end()) return found->second;
  std::vector<Expr> args;
  for (const Expr& arg : e->args) args.push_back(lift(arg, Context::term));
  Machine machine = machine_of(*with_args(e, std::move(args)));
  const int states = static_cast<int>(machine.identity.size()), first = out_.states;
  Reduction reduction;
  reduction.kind = states > 1 ? Op::reduce : e->op;
  reduction.first_slot = first;
  for (const Expr& item : machine.identity) reduction.identity.push_back(simplify(without_ptx(item)));
  for (const Expr& item : machine.update) reduction.update.push_back(shift_slots(item, states, first));
  for (const Expr& item : machine.merge) reduction.merge.push_back(shift_slots(item, states, first));
  reduction.finish = shift_slots(machine.finish, states, first);
  out_.states += states;
  Expr value = reduction.finish;
  out_.reductions.push_back(std::move(reduction));
  pairs_.emplace(e, value);
  return value;
}

/// The leaf that reads one-sided expression `e` as a stream.
Expr Splitter::stream(const Expr& e, bool of_x) {
  auto& streams = of_x ? out_.x_streams : out_.z_streams;
  int s = 0;
  while (s < static_cast<int>(streams.size()) && !same(streams[s], e)) ++s;
  if (s == static_cast<int>(streams.size())) streams.push_back(e);
  return leaf(of_x ? Op::x : Op::z, s);
}

Expr Splitter::hoist(const Expr& e, Memo& memo) {
  if (auto found = memo.find(e); found != memo.end()) return found->second;
  const Uses u = uses(e);
  if (e->op == Op::pinned) {
    const Expr result = hoist_points(e);
    memo.emplace(e, result);
    return result;
  }
  const bool stays = u.ptx || u.pinned;
  const bool one_sided = (u.x != u.z) && !stays && !u.state && !u.accumulator && !u.index_i && !u.index_j &&
                         !(u.x ? u.col : u.row) && (options_.hoist || is_leaf(e->op));
  Expr result = e;
  if (one_sided) {
    result = stream(e, u.x);
  } else if (!is_leaf(e->op)) {
    result = with_mapped_args(e, [&](const Expr& arg) { return hoist(arg, memo); });
  }
  memo.emplace(e, result);
  return result;
}

/// The points alone.
Expr Splitter::hoist_points(const Expr& e) {
  if (e->op == Op::x || e->op == Op::z) return stream(e, e->op == Op::x);
  if (is_leaf(e->op)) return e;
  if (auto found = points_.find(e); found != points_.end()) return found->second;
  const Expr result = with_mapped_args(e, [this](const Expr& arg) { return hoist_points(arg); });
  points_.emplace(e, result);
  return result;
}

void Splitter::make_streams() {
  Memo memo;
  for (Reduction& reduction : out_.reductions)
    for (Expr& update : reduction.update) update = hoist(update, memo);
}

/// One-sided divisions stay as they are: they are computed once per point, and both variants of a plan share them.
bool divides_pair_by_uniform(const Expr& e) {
  if (e->op != Op::div || e->args[1]->op == Op::constant || !is_uniform(e->args[1])) return false;
  const Uses u = uses(e->args[0]);
  return u.accumulator || (u.x && u.z);
}

/// The power of two q of UniformDivisors::scaled, for the float64 value c = 1/u. Where a c is a number of float32 worth
/// having, a q neither overflows nor loses a bit.
Expr scale_of_reciprocal(const Expr& c) {
  constexpr double kLeast = std::numeric_limits<float>::min(), kMost = std::numeric_limits<float>::max();
  const double factor = std::ldexp(1.0, 100);
  return where(abs(c) < kLeast, 1 / factor, where(abs(c) > kMost, factor, 1.0));
}

/// Collects parameters and uniforms over several expressions.
class Uniforms {
 public:
  Uniforms(std::vector<Expr>& params, std::vector<Expr>& uniforms, UniformDivisors divisors = UniformDivisors::divide)
      : params_(params), uniforms_(uniforms), divisors_(divisors) {}

  Expr operator()(const Expr& e) {
    if (auto found = memo_.find(e); found != memo_.end()) return found->second;
    Expr result = e;
    if (e->op == Op::param) {
      add(params_, e);
    } else if (e->op == Op::pinned && divisors_ != UniformDivisors::divide) {
      result = Uniforms(params_, uniforms_)(e);
    } else if (e->op == Op::features || (!is_leaf(e->op) && is_uniform(e))) {
      for_each(e, [this](const Expr& n) { if (n->op == Op::param) add(params_, n); });
      result = uniform_leaf(add(uniforms_, e));
    } else if (divisors_ != UniformDivisors::divide && divides_pair_by_uniform(e)) {
      Expr dividend = (*this)(e->args[0]), factor = simplify(rcp(e->args[1]));
      if (divisors_ == UniformDivisors::scaled) {
        const Expr scale = scale_of_reciprocal(factor);
        dividend = make(Op::mul, {dividend, (*this)(scale)});
        factor = factor / scale;
      }
      result = make(Op::mul, {dividend, (*this)(factor)});
    } else if (!is_leaf(e->op)) {
      result = with_mapped_args(e, [&](const Expr& arg) { return (*this)(arg); });
    }
    memo_.emplace(e, result);
    return result;
  }

  void each(std::vector<Expr>& list) {
    for (Expr& e : list) e = (*this)(e);
  }

 private:
  static int add(std::vector<Expr>& list, const Expr& e) {
    for (std::size_t s = 0; s < list.size(); ++s)
      if (same(list[s], e)) return static_cast<int>(s);
    list.push_back(e);
    return static_cast<int>(list.size()) - 1;
  }

  std::vector<Expr>& params_;
  std::vector<Expr>& uniforms_;
  UniformDivisors divisors_;
  ExprMap<Expr> memo_;
};

bool has_free_feature(const Expr& e, ExprMap<bool>& memo) {
  if (e->op == Op::x || e->op == Op::z || e->op == Op::w) return true;
  if (is_leaf(e->op) || is_reduction(e->op)) return false;
  if (auto found = memo.find(e); found != memo.end()) return found->second;
  bool free = false;
  for (const Expr& arg : e->args) free = free || has_free_feature(arg, memo);
  memo.emplace(e, free);
  return free;
}

std::vector<Expr> concatenate_leaves(const std::vector<Expr>& params, std::size_t uniforms) {
  std::vector<Expr> leaves = params;
  for (std::size_t u = 0; u < uniforms; ++u) leaves.push_back(uniform_leaf(static_cast<int>(u)));
  return leaves;
}

}  // namespace

Expr uniform_leaf(int u) {
  Node node{};
  node.op = Op::param;
  node.slot = u + 1;  // a user's parameter has slot 0, whatever its name
  node.name = fmt::format("uniform{}", u);
  node.has_default = true;
  node.value = std::numeric_limits<double>::quiet_NaN();
  return make(std::move(node));
}

Split split(const std::vector<Expr>& outputs, const SplitOptions& options) {
  Split out;
  Splitter splitter(out, options);
  for (const Expr& e : outputs) out.epilogue.push_back(splitter.lift_pair(options.keep_ptx ? e : by_meaning(e)));
  Uniforms uniforms(out.params, out.uniforms, options.uniform_divisors);
  for (Reduction& reduction : out.reductions) {
    uniforms.each(reduction.update);
    uniforms.each(reduction.identity);
    uniforms.each(reduction.merge);
  }
  for (StageValue& stage : out.stages) {
    uniforms.each(stage.update);
    uniforms.each(stage.identity);
    stage.finish = uniforms(stage.finish);
  }
  uniforms.each(out.epilogue);
  splitter.make_streams();
  return out;
}

namespace {

/// Puts leaves in the place of values of the pair.
class PairValues {
 public:
  explicit PairValues(std::vector<Expr>& outputs) : outputs_(outputs) {}

  /// `pinned`: as a part of something pinned.
  Expr operator()(const Expr& e, bool pinned = false) {
    if (e->op == Op::constant || e->op == Op::param || e->op == Op::x || e->op == Op::z || e->op == Op::w) return e;
    ExprMap<Expr>& memo = memo_[pinned];
    if (auto found = memo.find(e); found != memo.end()) return found->second;
    Expr result = e;
    if (has_free_feature(e, free_)) {
      result = with_mapped_args(e, [&](const Expr& arg) { return (*this)(arg, pinned || e->op == Op::pinned); });
      // Values of the pair that its meaning needs are none of the field's. What it still tells is its sign.
      if (e->op == Op::ptx) result = with_meaning(result, is_nonnegative(e->args.back()) ? 1.0 : -1.0);
    } else if (!is_uniform(e)) {
      result = leaf(Op::pair_value, static_cast<int>(outputs_.size()));
      outputs_.push_back(pinned && !is_leaf(e->op) && !is_reduction(e->op) ? make(Op::pinned, {e}) : e);
    }
    memo.emplace(e, result);
    return result;
  }

 private:
  std::vector<Expr>& outputs_;
  ExprMap<bool> free_;
  ExprMap<Expr> memo_[2];
};

}  // namespace

namespace {

/// Puts values in the place of leaves that stand for them, within the range and beyond it.
void take_scaled_values(FieldSplit& out, const std::vector<ScaledFields::Value>& values) {
  out.again = out.pair_outputs;
  for (std::size_t p = 0; p < out.pair_outputs.size(); ++p)
    for (const ScaledFields::Value& value : values) {
      if (!same(out.pair_outputs[p], value.leaf)) continue;
      out.pair_outputs[p] = value.plain;
      out.again[p] = value.beyond;
      if (value.is_unit) out.units.push_back(static_cast<int>(p));
      break;
    }
  out.scaled = out.field;
  out.scaled_extra = out.extra;
  out.field = simplify(without_units(out.field, out.units));
  if (!out.extra.empty()) out.extra = simplify(without_units(out.extra, out.units));
}

}  // namespace

FieldSplit split_field(const Expr& field, const Expr& extra, const FieldOptions& options) {
  FieldSplit out;
  const auto kept = [&](const Expr& e) { return options.keep_ptx ? e : by_meaning(e); };
  std::vector<Expr> fields{kept(field)};
  if (!extra.empty()) fields.push_back(kept(extra));
  fields = pin_compared(fields);
  ScaledFields scaled;
  if (options.most_scale > 0) scaled = scaled_fields(fields, options.most_scale);
  if (!scaled.values.empty()) fields = scaled.fields;
  PairValues values(out.pair_outputs);
  Uniforms uniforms(out.params, out.uniforms);
  out.field = uniforms(values(fields[0]));
  if (!extra.empty()) out.extra = uniforms(values(fields[1]));
  if (!scaled.values.empty()) take_scaled_values(out, scaled.values);
  return out;
}

bool reads_pairs(const Expr& phi) {
  const Uses used = uses(phi);
  bool found = used.index_i || used.index_j;
  for_each(phi, [&](const Expr& n) { found |= is_reduction(n->op); });
  return found;
}

FieldSplit split_amplitude_field(const Expr& phi, bool pairs_sides, const FieldOptions& options) {
  FieldSplit out;
  if (pairs_sides || reads_pairs(phi))
    out = split_field(phi, {}, options);
  else
    // Row and col are cheap to read there.
    out.field = Uniforms(out.params, out.uniforms)(options.keep_ptx ? phi : by_meaning(phi));
  const Expr amplitude = leaf(Op::pair_value, static_cast<int>(out.pair_outputs.size()));
  out.field = amplitude * out.field;
  if (!out.units.empty()) out.scaled = amplitude * out.scaled;
  return out;
}

namespace {

/// Terms, and combines that read indices, with leaves for values of the pair.
Expr with_pair_values(const Expr& fold, std::vector<Expr>& outputs) {
  if (!fold_reads_pairs(fold)) return fold;  // row and col are cheap to read there
  PairValues values(outputs);
  const std::size_t states = fold->op == Op::reduce ? static_cast<std::size_t>(fold->slot) : 1;
  std::vector<Expr> args = fold->args;
  const std::vector<Expr> terms = pin_compared({args.begin(), args.begin() + static_cast<std::ptrdiff_t>(states)});
  for (std::size_t s = 0; s < args.size(); ++s) {
    if (s < states) {
      args[s] = values(terms[s]);
      continue;
    }
    for (const Op index : {Op::index_i, Op::index_j})
      if (index == Op::index_i ? uses(args[s]).index_i : uses(args[s]).index_j)
        args[s] = substitute(args[s], {{leaf(index), values(leaf(index))}});
  }
  return with_args(fold, std::move(args));
}

/// Slots of states that `finish` reads, or that are read by the updates of such.
std::vector<bool> needed_states(const Machine& machine) {
  std::vector<bool> needed(machine.update.size(), false);
  std::vector<Expr> open{machine.finish};
  while (!open.empty()) {
    const Expr e = open.back();
    open.pop_back();
    for_each(e, [&](const Expr& n) {
      if (n->op != Op::accumulator || needed[static_cast<std::size_t>(n->slot)]) return;
      needed[static_cast<std::size_t>(n->slot)] = true;
      open.push_back(machine.update[static_cast<std::size_t>(n->slot)]);
    });
  }
  if (std::find(needed.begin(), needed.end(), true) == needed.end()) needed[0] = true;  // of a constant result
  return needed;
}

bool reads_slot(const Expr& e, int slot) {
  bool found = false;
  for_each(e, [&](const Expr& n) { found = found || (n->op == Op::accumulator && (slot < 0 || n->slot == slot)); });
  return found;
}

/// Whether state `slot` is the sum of its terms.
bool is_summed(const std::vector<Expr>& updates, int slot) {
  for (int s = 0; s < static_cast<int>(updates.size()); ++s)
    if (s != slot && reads_slot(updates[static_cast<std::size_t>(s)], slot)) return false;
  const Expr& e = updates[static_cast<std::size_t>(slot)];
  const auto is_own = [&](std::size_t i) { return same(e->args[i], acc(slot)); };
  if (e->op == Op::add) return (is_own(0) && !reads_slot(e->args[1], -1)) || (is_own(1) && !reads_slot(e->args[0], -1));
  if (e->op == Op::sub) return is_own(0) && !reads_slot(e->args[1], -1);
  return e->op == Op::fma && is_own(2) && !reads_slot(e->args[0], -1) && !reads_slot(e->args[1], -1);
}

}  // namespace

FieldSplit split_fold(const Expr& fold) {
  FieldSplit out;
  const Machine machine = machine_of(*with_pair_values(by_meaning(fold), out.pair_outputs));
  const std::vector<bool> needed = needed_states(machine);
  ExprMap<Expr> leaves{{amplitude_leaf(), leaf(Op::pair_value, static_cast<int>(out.pair_outputs.size()))},
                       {coef_leaf(), leaf(Op::incoming)}};
  int states = 0;
  for (std::size_t s = 0; s < needed.size(); ++s)
    if (needed[s]) leaves[acc(static_cast<int>(s))] = acc(states++);
  Uniforms uniforms(out.params, out.uniforms);
  const auto taken = [&](const Expr& e) { return uniforms(simplify(substitute(e, leaves))); };
  for (std::size_t s = 0; s < needed.size(); ++s) {
    if (!needed[s]) continue;
    out.fold.update.push_back(taken(machine.update[s]));
    out.fold.identity.push_back(machine.identity[s]);
  }
  out.fold.finish = taken(machine.finish);
  for (int s = 0; s < states; ++s) out.fold.summed.push_back(is_summed(out.fold.update, s));
  return out;
}

ValueSplit split_values(const std::vector<Expr>& values) {
  ValueSplit out;
  ExprMap<Expr> memo;
  bool stands = true;
  std::function<Expr(const Expr&)> visit = [&](const Expr& e) -> Expr {
    if (is_uniform(e)) return e;
    if (auto found = memo.find(e); found != memo.end()) return found->second;
    Expr result = e;
    if (is_reduction(e->op)) {
      stands = stands && uses(e).x && uses(e).z;
      result = leaf(Op::pair_value, static_cast<int>(out.reductions.size()));
      out.reductions.push_back(e);
    } else if (is_leaf(e->op)) {
      stands = stands && (e->op == Op::row || e->op == Op::col);
    } else {
      result = with_mapped_args(e, visit);
    }
    memo.emplace(e, result);
    return result;
  };
  for (const Expr& value : values) out.values.push_back(visit(by_meaning(value)));
  if (!stands) return {};
  Uniforms(out.params, out.uniforms).each(out.values);
  return out;
}

std::vector<Expr> Split::param_leaves() const { return concatenate_leaves(params, uniforms.size()); }
std::vector<Expr> FieldSplit::param_leaves() const { return concatenate_leaves(params, uniforms.size()); }
std::vector<Expr> ValueSplit::param_leaves() const { return concatenate_leaves(params, uniforms.size()); }

std::vector<Expr> Split::updates() const {
  std::vector<Expr> all;
  for (const Reduction& r : reductions) all.insert(all.end(), r.update.begin(), r.update.end());
  return all;
}

std::vector<Expr> Split::identities() const {
  std::vector<Expr> all;
  for (const Reduction& r : reductions) all.insert(all.end(), r.identity.begin(), r.identity.end());
  return all;
}

std::vector<bool> Split::nonnegative_slots(std::initializer_list<Op> kinds) const {
  std::vector<bool> slots(static_cast<std::size_t>(states), false);
  for (const Reduction& r : reductions) {
    const Expr& update = r.update[0];
    const bool is_kind = std::find(kinds.begin(), kinds.end(), r.kind) != kinds.end();
    if (!is_kind || update->op != (r.kind == Op::sum ? Op::add : Op::max)) continue;
    slots[static_cast<std::size_t>(r.first_slot)] =
        std::all_of(update->args.begin(), update->args.end(),
                    [](const Expr& part) { return part->op == Op::accumulator || is_nonnegative(part); });
  }
  return slots;
}

std::string Split::to_text() const {
  std::string text;
  for (std::size_t u = 0; u < uniforms.size(); ++u) text += fmt::format("uniform{} = {}\n", u, uniforms[u].to_text());
  int row = 0, col = 0;
  for (const StageValue& stage : stages) {
    text += fmt::format("{}_stage[{}]:", stage.of_x ? "row" : "col", stage.of_x ? row++ : col++);
    for (std::size_t s = 0; s < stage.update.size(); ++s)
      text += fmt::format(" acc{} = {} from {};", s, stage.update[s].to_text(), stage.identity[s].to_text());
    text += fmt::format(" {}\n", stage.finish.to_text());
  }
  for (std::size_t s = 0; s < x_streams.size(); ++s) text += fmt::format("xs[{}] = {}\n", s, x_streams[s].to_text());
  for (std::size_t s = 0; s < z_streams.size(); ++s) text += fmt::format("zs[{}] = {}\n", s, z_streams[s].to_text());
  for (const Reduction& r : reductions)
    for (std::size_t s = 0; s < r.update.size(); ++s)
      text += fmt::format("acc{} = {} from {}\n", r.first_slot + s, r.update[s].to_text(), r.identity[s].to_text());
  for (const Expr& e : epilogue) text += fmt::format("out = {}\n", e.to_text());
  return text;
}

Expr swap_sides(const Expr& e) {
  ExprMap<Expr> swapped;
  const std::pair<Op, Op> pairs[] = {{Op::x, Op::z}, {Op::row, Op::col}, {Op::index_i, Op::index_j}};
  for (auto [a, b] : pairs) {
    swapped[leaf(a)] = leaf(b);
    swapped[leaf(b)] = leaf(a);
  }
  return substitute(e, swapped);
}

}  // namespace mercer::ir
