#include "plan/forms/separate_sums.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "ir/passes/passes.h"
#include "plan/forms/bilinear.h"

namespace mercer::plan {
namespace {

using ir::Op;

bool is_bilinear(const Expr& term) { return bool(bilinear_of(ir::split({sum(term)}))); }

/// x + z as x - (-z).
Expr with_differences(const Expr& term) {
  return ir::rewrite(term, [](const Expr& e) {
    if (e->op != Op::add) return e;
    const ir::Uses &a = ir::uses(e->args[0]), &b = ir::uses(e->args[1]);
    const bool apart = a.x != a.z && b.x != b.z && a.x != b.x;
    return apart ? ir::make(Op::sub, {e->args[0], ir::make(Op::neg, {e->args[1]})}) : e;
  });
}

bool reads_points(const Expr& e) {
  const ir::Uses& used = ir::uses(e);
  return used.x || used.z;
}

/// The two terms of a sum or difference, with the factors before it; of anything else itself.
std::vector<Expr> addends(const Expr& e) {
  const auto wrapped = [&](int inner) {
    std::vector<Expr> parts = addends(e->args[inner]);
    for (Expr& part : parts) {
      std::vector<Expr> args = e->args;
      args[inner] = part;
      part = ir::with_args(e, std::move(args));
    }
    return parts;
  };
  switch (e->op) {
    case Op::add: return {e->args[0], e->args[1]};
    case Op::sub: return {e->args[0], ir::make(Op::neg, {e->args[1]})};
    case Op::neg: return wrapped(0);
    case Op::mul:
      if (reads_points(e->args[0]) && reads_points(e->args[1])) return {e};
      return wrapped(reads_points(e->args[0]) ? 0 : 1);
    case Op::div: return reads_points(e->args[1]) ? std::vector<Expr>{e} : wrapped(0);
    default: return {e};
  }
}

/// The terms of a sum over the features: `of_pairs` are bilinear.
struct Terms {
  std::vector<Expr> of_pairs, of_x, of_z, of_neither;
  int exact = 0;  // that are not the result of an operation that rounds, or of a sum of such

  bool add(const Expr& e) {
    const ir::Uses used = ir::uses(e);
    if (!(used.x && used.z)) {
      add_apart(e);
      return true;
    }
    for (const Expr& term : {e, with_differences(e)}) {
      if (!is_bilinear(term)) continue;
      of_pairs.push_back(term);
      return true;
    }
    const std::vector<Expr> parts = addends(e);
    return parts.size() > 1 && std::ranges::all_of(parts, [this](const Expr& part) { return add(part); });
  }

  bool may_be_apart() const { return !of_pairs.empty() && exact <= 1; }

 private:
  void add_apart(const Expr& e) {
    const ir::Uses used = ir::uses(e);
    const Expr& inner = e->op == Op::neg ? e->args[0] : e;
    if (ir::is_leaf(inner->op) || inner->op == Op::add || inner->op == Op::sub) ++exact;
    (used.x ? of_x : used.z ? of_z : of_neither).push_back(e);
  }
};

Expr total(const std::vector<Expr>& terms) {
  Expr all = terms[0];
  for (std::size_t i = 1; i < terms.size(); ++i) all = all + terms[i];
  return all;
}

/// The sum as sums of its terms, if it has such.
std::optional<Expr> separated(const Expr& of_sum) {
  const Expr& term = of_sum->args[0];
  if (is_bilinear(term)) return std::nullopt;
  Terms terms;
  if (!terms.add(term) || !terms.may_be_apart()) return std::nullopt;
  std::vector<Expr> sums;
  for (const Expr& of_pair : terms.of_pairs) sums.push_back(sum(of_pair));
  for (const auto* side : {&terms.of_x, &terms.of_z})
    if (!side->empty()) sums.push_back(sum(total(*side)));
  if (!terms.of_neither.empty()) {
    const Expr rest = total(terms.of_neither);
    sums.push_back(ir::is_uniform(rest) ? ir::leaf(Op::features) * rest : sum(rest));
  }
  return total(sums);
}

}  // namespace

Expr separate_sums(const Expr& output) {
  return ir::rewrite(output, [](const Expr& e) {
    const ir::Uses used = ir::uses(e);
    if (e->op != Op::sum || !used.x || !used.z || used.ptx || used.pinned || used.index_i || used.index_j || used.row ||
        used.col)
      return e;
    return separated(e).value_or(e);
  });
}

}  // namespace mercer::plan
