#include "plan/forms/guarded_sums.h"

#include <algorithm>
#include <cmath>

#include "ir/passes/passes.h"
#include "ir/passes/safe_norm.h"

namespace mercer::plan {
namespace {

using ir::leaf;
using ir::Op;

/// Sums in range have all the digits of their terms: those that are lost for being small are too small to count.
struct Range {
  double least, most;
};
Range range_of(double power, Dtype type) {
  constexpr double kLargestGradual = 16;  // higher powers flush subnormal values
  const bool wide = type == Dtype::float64, whole = power == std::floor(power);
  if (wide) return {0x1p-940, 0x1p1016};
  const Range range{power > kLargestGradual ? 0x1p-96 : 0x1p-118, 0x1p120};
  if (whole) return range;
  // Powers here go by logarithms of the special-function unit, whose errors grow with them.
  constexpr double kMostLogarithm = 32;
  return {std::max(0x1p-96, std::exp2(-kMostLogarithm * power)),
          std::min(range.most, std::exp2(kMostLogarithm * power))};
}

/// What is added to the state of a sum.
Expr term_of(const ir::Reduction& r) {
  const Expr& update = r.update[0];
  if (r.kind != Op::sum || update->op != Op::add) return {};
  for (std::size_t i : {0, 1})
    if (same(update->args[i], leaf(Op::accumulator, r.first_slot))) return update->args[1 - i];
  return {};
}

/// The leaves of one split as those of another, which has all that it computes but its reductions and its outputs.
class SameLeaves {
 public:
  SameLeaves(ir::Split& to, const ir::Split& from) : to_(to), from_(from) {
    for (std::size_t u = 0; u < from.uniforms.size(); ++u)
      leaves_[ir::uniform_leaf(static_cast<int>(u))] = ir::uniform_leaf(place_or_add(to.uniforms, from.uniforms[u]));
    for (const Expr& param : from.params) found_ = found_ && place(to.params, param) >= 0;
    add_stages();
    add_streams(Op::x, to.x_streams, from.x_streams);
    add_streams(Op::z, to.z_streams, from.z_streams);
  }

  explicit operator bool() const { return found_; }
  Expr operator()(const Expr& e) const { return ir::substitute(e, leaves_); }
  void add(const Expr& from, const Expr& to) { leaves_[from] = to; }

 private:
  static int place(const std::vector<Expr>& list, const Expr& e) {
    const auto at = std::find_if(list.begin(), list.end(), [&](const Expr& known) { return same(known, e); });
    return at == list.end() ? -1 : static_cast<int>(at - list.begin());
  }
  static int place_or_add(std::vector<Expr>& list, const Expr& e) {
    if (const int found = place(list, e); found >= 0) return found;
    list.push_back(e);
    return static_cast<int>(list.size()) - 1;
  }

  bool same_stage(const ir::StageValue& to, const ir::StageValue& from) const {
    if (to.of_x != from.of_x || to.update.size() != from.update.size()) return false;
    bool alike = same(to.finish, (*this)(from.finish));
    for (std::size_t s = 0; s < to.update.size(); ++s)
      alike = alike && same(to.update[s], (*this)(from.update[s])) && same(to.identity[s], from.identity[s]);
    return alike;
  }
  void add_stages() {
    int own[2] = {};
    for (const ir::StageValue& stage : from_.stages) {
      int known[2] = {}, found = -1;
      for (const ir::StageValue& other : to_.stages) {
        const int number = known[other.of_x]++;
        if (found < 0 && same_stage(other, stage)) found = number;
      }
      found_ = found_ && found >= 0;
      const Op op = stage.of_x ? Op::row_stage : Op::col_stage;
      if (found >= 0) add(leaf(op, own[stage.of_x]++), leaf(op, found));
    }
  }
  void add_streams(Op side, const std::vector<Expr>& to, const std::vector<Expr>& from) {
    ir::ExprMap<Expr> moved;
    for (std::size_t s = 0; s < from.size(); ++s) {
      const int found = place(to, from[s]->op == side ? from[s] : (*this)(from[s]));
      found_ = found_ && found >= 0;
      if (found >= 0) moved[leaf(side, static_cast<int>(s))] = leaf(side, found);
    }
    leaves_.insert(moved.begin(), moved.end());
  }

  ir::Split& to_;
  const ir::Split& from_;
  ir::ExprMap<Expr> leaves_;
  bool found_ = true;
};

/// Whether equal points have equal streams, of which the base of every power is a difference.
bool vanishes(const ir::Split& split, const std::vector<ir::PowerTerm>& terms) {
  if (split.x_streams.size() != split.z_streams.size()) return false;
  for (std::size_t s = 0; s < split.x_streams.size(); ++s)
    if (!same(split.x_streams[s], ir::swap_sides(split.z_streams[s]))) return false;
  return std::all_of(terms.begin(), terms.end(), [](const ir::PowerTerm& term) {
    const Expr& d = term.base->op == Op::abs ? term.base->args[0] : term.base;
    return d->op == Op::sub && d->args[0]->slot == d->args[1]->slot &&
           ((d->args[0]->op == Op::x && d->args[1]->op == Op::z) ||
            (d->args[0]->op == Op::z && d->args[1]->op == Op::x));
  });
}

/// |t| of a feature that counts; a weight of 0 leaves only what is no number.
Expr counted(const ir::PowerTerm& term) {
  const Expr t = abs(term.base);
  return term.weight->op == Op::constant ? t : where(equal(term.weight, 0.0), 0.0 * t, t);
}

class GuardMaker {
 public:
  GuardMaker(ir::Split& split, const GuardedOutputs& guarded, const ir::SplitOptions& options, Dtype type)
      : split_(split), guarded_(guarded), options_(options), type_(type) {}

  GpuGuard make() {
    if (!take_sums()) return {};
    const ir::Split rest = ir::split(guarded_.outputs, options_);
    const SameLeaves moved(split_, rest);
    if (!moved) return {};
    guard_.vanishes = vanishes(split_, terms_);
    add_programs(rest, moved);
    return guard_;
  }

 private:
  /// The split's last outputs are the sums.
  bool take_sums() {
    guard_.least = 0;
    guard_.most = HUGE_VAL;
    const std::size_t outputs = split_.epilogue.size() - guarded_.sums.size();
    bool found = true;
    for (std::size_t q = 0; q < guarded_.sums.size(); ++q) found = take_sum(split_.epilogue[outputs + q]) && found;
    split_.epilogue.resize(outputs);
    return found && !terms_.empty();
  }
  bool take_sum(const Expr& value) {
    if (value->op != Op::accumulator) return false;
    for (const ir::Reduction& r : split_.reductions) {
      if (r.first_slot != value->slot) continue;
      const Expr term = term_of(r);
      const ir::PowerTerm power = term.empty() ? ir::PowerTerm{} : ir::read_power_term(term);
      if (!power || !(power.power > 1)) return false;
      const Range range = range_of(power.power, type_);
      guard_.least = std::max(guard_.least, range.least);
      guard_.most = std::min(guard_.most, range.most);
      guard_.states.push_back(value->slot);
      terms_.push_back(power);
      return true;
    }
    return false;
  }

  void add_programs(const ir::Split& rest, const SameLeaves& moved) {
    const int norms = guard_.norms();
    std::vector<Expr> largest, update, merge, epilogue;
    for (int q = 0; q < norms; ++q) {
      const ir::PowerTerm& term = terms_[static_cast<std::size_t>(q)];
      const Expr own = leaf(Op::accumulator, q), t = counted(term);
      largest.push_back(max(own, t));
      const Expr scaled = t * leaf(Op::pair_value, 2 * q) * leaf(Op::pair_value, 2 * q + 1);
      update.push_back(own + term.weight * pow(scaled, term.power));
      merge.push_back(own + leaf(Op::incoming, q));
      guard_.identity.push_back(0);
    }
    SameLeaves shifted = moved;
    for (int s = 0; s < rest.states; ++s) shifted.add(leaf(Op::accumulator, s), leaf(Op::accumulator, norms + s));
    bool merges = true;
    for (const ir::Reduction& r : rest.reductions) {
      ir::ExprMap<Expr> others;
      for (int s = 0; s < static_cast<int>(r.merge.size()); ++s)
        others[leaf(Op::incoming, s)] = leaf(Op::incoming, norms + r.first_slot + s);
      for (const Expr& e : r.update) update.push_back(shifted(e));
      for (const Expr& e : r.merge) merge.push_back(ir::substitute(shifted(e), others));
      merges = merges && !r.merge.empty();
    }
    for (const double number : numbers_of(rest.identities())) guard_.identity.push_back(number);
    ir::ExprMap<Expr> values;
    for (int q = 0; q < norms; ++q) {
      const Expr own = leaf(Op::accumulator, q), most = leaf(Op::pair_value, q);
      values[leaf(Op::pair_value, q)] =
          where(equal(most, 0.0), 0.0, most * pow(own, 1 / terms_[static_cast<std::size_t>(q)].power));
    }
    for (const Expr& e : rest.epilogue) epilogue.push_back(ir::simplify(ir::substitute(shifted(e), values)));
    guard_.largest = lower(largest);
    guard_.update = lower(update);
    if (merges) guard_.merge = lower(merge);
    guard_.epilogue = lower(epilogue);
  }

  ir::Program lower(std::vector<Expr>& expressions) const {
    for (Expr& e : expressions) e = ir::simplify(e);
    ir::LowerOptions options;
    options.type = type_;
    options.params = split_.param_leaves();
    options.processor = ir::Processor::gpu;
    return ir::lower(expressions, options);
  }

  ir::Split& split_;
  const GuardedOutputs& guarded_;
  const ir::SplitOptions& options_;
  Dtype type_;
  std::vector<ir::PowerTerm> terms_;
  GpuGuard guard_;
};

}  // namespace

namespace {

/// A sum of powers is 0, or above it, where its norm is.
Expr compared_with_zero(const Expr& e, const std::vector<Expr>& sums) {
  return ir::rewrite(e, [&](const Expr& node) {
    const bool compares = node->op == Op::equal || node->op == Op::not_equal || node->op == Op::less ||
                          node->op == Op::less_equal;
    if (!compares) return node;
    std::vector<Expr> args = node->args;
    for (std::size_t i : {0, 1})
      for (std::size_t q = 0; q < sums.size(); ++q)
        if (ir::is_constant(args[1 - i], 0) && same(args[i], sums[q]))
          args[i] = leaf(Op::pair_value, static_cast<int>(q));
    return ir::with_args(node, std::move(args));
  });
}

}  // namespace

GuardedOutputs guarded_outputs(const std::vector<Expr>& outputs, bool always) {
  GuardedOutputs guarded;
  guarded.outputs = outputs;
  bool reads_values = false;
  ir::ExprMap<Expr> norms;
  for (const Expr& output : outputs) {
    ir::for_each(output, [&](const Expr& e) {
      reads_values = reads_values || e->op == Op::pair_value;
      if (e->op != Op::sum) return;
      const ir::PowerTerm term = ir::read_power_term(e->args[0]);
      if (!term || !(term.power > 1)) return;
      const Expr root = pow(e, 1 / term.power), norm = ir::safe_norms(ir::simplify(root));
      if (norm->op != Op::reduce || norms.contains(norm)) return;
      norms[norm] = leaf(Op::pair_value, static_cast<int>(guarded.sums.size()));
      guarded.sums.push_back(e);
    });
  }
  if (reads_values || norms.empty()) return {};
  bool any = always;
  for (Expr& output : guarded.outputs) {
    const Expr safe = ir::substitute(ir::safe_norms(output), norms);
    any = any || !same(safe, output);
    output = compared_with_zero(safe, guarded.sums);
  }
  return any ? guarded : GuardedOutputs{};
}

bool GpuGuard::serves_products(double factor) const {
  constexpr double kMost = 0x1p16;
  const double size = std::abs(factor);
  return states.empty() || (size >= 1 / kMost && size <= kMost);
}

ir::Split split_guarded(const std::vector<Expr>& outputs, const GuardedOutputs& guarded,
                        const ir::SplitOptions& options, Dtype type, GpuGuard& guard) {
  if (guarded.sums.empty()) return ir::split(outputs, options);
  std::vector<Expr> all = outputs;
  all.insert(all.end(), guarded.sums.begin(), guarded.sums.end());
  ir::Split split = ir::split(all, options);
  guard = GuardMaker(split, guarded, options, type).make();
  return guard ? split : ir::split(outputs, options);
}

}  // namespace mercer::plan
