// Random expressions of every kind of node, also such as no user writes: state outside reduce, parameters with the
// names of functions, negative zeros, heavy sharing.
#pragma once

#include <cmath>
#include <limits>
#include <numbers>
#include <random>
#include <string>
#include <vector>

#include "ir/expr/ops.h"

namespace mercer::testing {

class RandomExpr {
 public:
  explicit RandomExpr(std::uint64_t seed) : random_(seed) {}

  /// An expression of `size` inner nodes; arguments are drawn from all earlier nodes, so that parts are shared.
  Expr make(int size) {
    pool_.clear();
    for (int i = 0; i < 6; ++i) pool_.push_back(leaf());
    for (int i = 0; i < size; ++i) pool_.push_back(inner());
    return pool_.back();
  }

  std::size_t below(std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random_); }

 private:
  using Op = ir::Op;

  Expr leaf() {
    static const Op kPlain[] = {Op::x, Op::z, Op::w, Op::row, Op::col, Op::index_i, Op::index_j, Op::features};
    static const Op kSlots[] = {Op::state, Op::incoming, Op::row_stage, Op::col_stage, Op::accumulator, Op::pair_value};
    static const double inf = std::numeric_limits<double>::infinity();
    static const double kNumbers[] = {0.0, -0.0, 1, -1, 2, 0.1, -0.1, 1e300, 5e-324, -1e-7, 123456789.125, inf, -inf,
                                      std::numeric_limits<double>::quiet_NaN(), std::numbers::pi};
    static const char* const kNames[] = {"p", "bandwidth", "a", "t", "a0", "t1", "s1", "s2", "x", "sum", "sqrt", "inf",
                                         "merge", "_", "K", "e"};
    switch (below(4)) {
      case 0: return ir::leaf(kPlain[below(std::size(kPlain))]);
      case 1: return ir::constant(kNumbers[below(std::size(kNumbers))]);
      case 2: return ir::leaf(kSlots[below(std::size(kSlots))], static_cast<int>(below(3)));
      default: {
        const std::string name = kNames[below(std::size(kNames))];
        return below(3) ? param(name) : param(name, kNumbers[below(std::size(kNumbers))]);
      }
    }
  }

  Expr any() {  // mostly recent nodes, or the expressions stay shallow
    const std::size_t recent = std::min<std::size_t>(pool_.size(), 4);
    return below(3) ? pool_[pool_.size() - 1 - below(recent)] : below(4) ? pool_[below(pool_.size())] : leaf();
  }

  std::vector<Expr> some(std::size_t count) {
    std::vector<Expr> args;
    for (std::size_t i = 0; i < count; ++i) args.push_back(any());
    return args;
  }

  Expr inner() {
    const std::vector<ir::OpInfo>& table = ir::op_table();
    const std::size_t kind = below(table.size() + 9);
    if (kind < table.size()) return ir::make(table[kind].op, some(static_cast<std::size_t>(table[kind].arity)));
    static const Op kReductions[] = {Op::sum, Op::prod, Op::max_over, Op::min_over, Op::logsumexp};
    if (kind < table.size() + 5) return ir::make(kReductions[kind - table.size()], some(1));
    if (kind == table.size() + 5) return user_ptx();
    Reduce parts;
    const std::size_t states = 1 + below(3);
    parts.term = some(states);
    parts.combine = some(states);
    parts.identity = some(states);
    if (below(2)) parts.merge = some(states);
    if (states > 1 || below(2)) parts.finish = any();
    parts.associative = !parts.merge.empty() && below(2);
    return reduce(parts);
  }

  Expr user_ptx() {
    const std::vector<Expr> inputs = some(2);
    const Expr difference = inputs[0] - inputs[1];
    if (below(2)) return ptx("sub.f32 {out}, {0}, {1};", inputs, difference);
    const char* both = "sub.f32 {out0}, {0}, {1}; abs.f32 {out1}, {out0};";
    return ptx_outputs(both, inputs, {difference, abs(difference)})[below(2)];
  }

  std::mt19937_64 random_;
  std::vector<Expr> pool_;
};

}  // namespace mercer::testing
