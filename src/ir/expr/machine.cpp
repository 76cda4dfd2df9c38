#include "ir/expr/machine.h"

#include <limits>

namespace mercer::ir {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

Expr acc(int slot) { return leaf(Op::accumulator, slot); }

/// logsumexp keeps (m, s) with value m + log(s), rescaling by one exponential per term:
/// e = exp(-|t - m|), s' = t > m ? s e + 1 : s + e. Equal values (infinite ones too) count as e = 1.
Machine logsumexp_machine(const Expr& t) {
  auto step = [](const Expr& m, const Expr& s, const Expr& other, const Expr& weight) {
    Expr gap = where(equal(other, m), Expr(0.0), abs(other - m));
    Expr e = exp(-gap);
    return where(other > m, s * e + weight, s + e * weight);
  };
  Machine machine;
  machine.identity = {Expr(-kInf), Expr(0.0)};
  machine.update = {max(acc(0), t), step(acc(0), acc(1), t, Expr(1.0))};
  machine.merge = {max(acc(0), incoming(0)), step(acc(0), acc(1), incoming(0), incoming(1))};
  machine.finish = acc(0) + log(acc(1));
  return machine;
}

Machine reduce_machine(const Node& node) {
  const int states = node.slot;
  auto part = [&](int block, int s) { return node.args[block * states + s]; };
  ExprMap<Expr> terms, merged;
  for (int s = 0; s < states; ++s) {
    terms[leaf(Op::state, s)] = acc(s);
    terms[leaf(Op::incoming, s)] = part(0, s);
    merged[leaf(Op::state, s)] = acc(s);
  }
  Machine machine;
  for (int s = 0; s < states; ++s) {
    machine.update.push_back(substitute(part(1, s), terms));
    machine.identity.push_back(part(2, s));
    if (node.has_merge && node.associative) machine.merge.push_back(substitute(part(3, s), merged));
  }
  machine.finish = substitute(node.args.back(), merged);
  return machine;
}

}  // namespace

Machine machine_of(const Node& node) {
  const Expr& t = node.args[0];
  switch (node.op) {
    case Op::sum: return {{0.0}, {acc(0) + t}, {acc(0) + incoming(0)}, acc(0)};
    case Op::prod: return {{1.0}, {acc(0) * t}, {acc(0) * incoming(0)}, acc(0)};
    case Op::max_over: return {{-kInf}, {max(acc(0), t)}, {max(acc(0), incoming(0))}, acc(0)};
    case Op::min_over: return {{kInf}, {min(acc(0), t)}, {min(acc(0), incoming(0))}, acc(0)};
    case Op::logsumexp: return logsumexp_machine(t);
    default: return reduce_machine(node);
  }
}

}  // namespace mercer::ir
