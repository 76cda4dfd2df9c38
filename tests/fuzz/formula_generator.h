// Seeded random formulas that a user could write: every op, every reduction, weights, parameters, values per point,
// indices, one-sided reductions inside terms, reduce() with one or two states. And a shrinker for those that fail.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "ir/expr/expr.h"
#include "ir/expr/ops.h"
#include "ir/passes/passes.h"

namespace mercer::fuzz {

class FormulaGenerator {
 public:
  explicit FormulaGenerator(std::uint64_t seed) : random_(seed) {}

  /// A formula that ir::verify accepts.
  Expr operator()() {
    const Expr f = pair(1 + static_cast<int>(below(4)));
    return ir::uses(f).x && ir::uses(f).z ? f : f + reduction(2);
  }

  std::size_t below(std::size_t n) { return random_() % n; }
  bool chance(std::size_t in) { return below(in) == 0; }

 private:
  using Op = ir::Op;
  enum class Side { both, x, z };

  /// Outside of reductions.
  Expr pair(int depth) {
    if (depth == 0 || chance(5)) return chance(4) ? pair_leaf() : reduction(1 + static_cast<int>(below(3)));
    return scalar_op([&] { return pair(depth - 1); });
  }

  Expr pair_leaf() {
    switch (below(9)) {
      case 0: return row_value();
      case 1: return col_value();
      case 2: return index_i();
      case 3: return index_j();
      case 4: return feature_count();
      case 5: return where(equal(index_i(), index_j()), number(), param("c"));
      default: return constant_leaf();
    }
  }

  Expr constant_leaf() {
    if (chance(2)) return number();
    return chance(2) ? param("c") : param(chance(2) ? "a" : "b", 0.75);
  }

  Expr number() {
    static constexpr double kNumbers[] = {1, 2, -1, 0.5, 3, 0.1, -2.5, 10, 1.5, 0};
    return kNumbers[below(std::size(kNumbers))];
  }

  Expr reduction(int depth, Side side = Side::both) {
    static constexpr Op kKinds[] = {Op::sum,      Op::sum,      Op::sum,  Op::sum,
                                    Op::max_over, Op::min_over, Op::prod, Op::logsumexp};
    if (chance(8)) return user_reduction(depth, side);
    const Expr t = side == Side::both && chance(3) ? typical_term() : term(depth, side);
    return ir::make(kKinds[below(std::size(kKinds))], {t});
  }

  /// Terms that paths of their own exist for.
  Expr typical_term() {
    const auto [x, z] = points();
    const Expr t = x - z;
    switch (below(10)) {
      case 0: return abs(t);
      case 1: return square(t);
      case 2: return x * z;
      case 3: return pow(abs(t), exponent());
      case 4: return weights() * abs(t);
      case 5: return weights() * t * t;
      case 6: return max(abs(t) - param("c"), 0.0);
      case 7: return where(equal(x, z), 0.0, abs(t) / (abs(x) + abs(z)));
      case 8: return square(sqrt(abs(x)) - sqrt(abs(z)));
      default: return (x - sum(x) / feature_count()) * (z - sum(z) / feature_count());
    }
  }

  Expr exponent() {
    static constexpr double kExponents[] = {0, 1, 2, 3, 4, 0.5, 1.5, 2.5, 1.3, 0.7, -1, 7, 11};
    return chance(4) ? Expr(param("a", 0.75)) : Expr(kExponents[below(std::size(kExponents))]);
  }

  /// Inside of a reduction.
  Expr term(int depth, Side side) {
    if (depth == 0) return term_leaf(side);
    if (depth > 1 && chance(10)) return reduction(1, side == Side::both ? (chance(2) ? Side::x : Side::z) : side);
    return scalar_op([&] { return term(depth - 1, side); });
  }

  Expr term_leaf(Side side) {
    const auto [x, z] = points();
    const bool of_x = side == Side::x || (side == Side::both && chance(2));
    switch (below(8)) {
      case 0: return constant_leaf();
      case 1: return weights();
      case 2: return of_x ? row_value() : col_value();
      case 3: return side == Side::both ? x - z : of_x ? x : z;
      default: return of_x ? x : z;
    }
  }

  template <class Argument>
  Expr scalar_op(Argument&& argument) {
    const auto& table = ir::op_table();
    const ir::OpInfo& row = chance(2) ? table[below(table.size())] : ir::info(common_op());
    if (row.op == Op::pow) return chance(3) ? pow(argument(), exponent()) : pow(abs(argument()), exponent());
    // Functions whose arguments have a domain are given it, mostly.
    const bool positive =
        row.op == Op::sqrt || row.op == Op::rsqrt || row.op == Op::log || row.op == Op::log2 || row.op == Op::log1p;
    if (positive && !chance(6)) return ir::make(row.op, {abs(argument())});
    if (row.op == Op::xlogy) return xlogy(argument(), abs(argument()));
    if ((row.op == Op::exp || row.op == Op::exp2 || row.op == Op::expm1) && !chance(4))
      return ir::make(row.op, {-abs(argument())});
    std::vector<Expr> args;
    for (int i = 0; i < row.arity; ++i) args.push_back(argument());
    return ir::make(row.op, args);
  }

  Op common_op() {
    static constexpr Op kCommon[] = {Op::add, Op::sub, Op::mul,  Op::div, Op::min,
                                     Op::max, Op::abs, Op::sqrt, Op::exp, Op::where};
    return kCommon[below(std::size(kCommon))];
  }

  Expr user_reduction(int depth, Side side) {
    Reduce r;
    const Expr t = term(depth, side);
    switch (below(5)) {
      case 0:  // a mean with weights
        r.term = {t, term(1, side)};
        r.combine = {state(0) + incoming(0), state(1) + abs(incoming(1))};
        r.identity = {0.0, 1.0};
        r.finish = state(0) / state(1);
        break;
      case 1:  // an exponential average: the order of k matters
        r.term = {t};
        r.combine = {0.5 * state(0) + incoming(0)};
        r.identity = {number()};
        break;
      case 2:  // the two states swap
        r.term = {t, abs(t)};
        r.combine = {state(1), state(0) + incoming(1)};
        r.identity = {0.0, 1.0};
        r.finish = state(0) - 2.0 * state(1);
        break;
      case 3:
        r.term = {t};
        r.combine = {max(state(0), abs(incoming(0)))};
        r.identity = {0.0};
        r.merge = {max(state(0), incoming(0))};
        r.associative = true;
        break;
      default:
        r.term = {t};
        r.combine = {where(incoming(0) < state(0), incoming(0), state(0) + 0.25 * incoming(0))};
        r.identity = {1.0};
        r.finish = abs(state(0));
    }
    if (r.finish.empty()) r.finish = state(0);
    return reduce(r);
  }

  std::mt19937_64 random_;
};

/// The smallest formula that still fails: every node is tried in place of its parent, and simple leaves in place of it.
template <class Fails>
Expr shrink(Expr f, Fails&& fails) {
  const auto valid = [](const Expr& e) {
    try {
      ir::verify(e);
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  for (bool changed = true; changed;) {
    changed = false;
    std::vector<Expr> nodes;
    ir::for_each(f, [&](const Expr& e) { nodes.push_back(e); });
    for (auto node = nodes.rbegin(); node != nodes.rend() && !changed; ++node) {
      std::vector<Expr> candidates((*node)->args);
      if (!ir::is_leaf((*node)->op)) candidates.insert(candidates.end(), {points().x, points().z, Expr(1.0)});
      for (const Expr& by : candidates) {
        const Expr smaller = ir::substitute(f, {{*node, by}});
        if (smaller.to_text().size() >= f.to_text().size() || !valid(smaller) || !fails(smaller)) continue;
        f = smaller;
        changed = true;
        break;
      }
    }
  }
  return f;
}

}  // namespace mercer::fuzz
