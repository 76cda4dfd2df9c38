#include "plan/forms/weight_factors.h"

#include <algorithm>
#include <cstdlib>

#include "ir/expr/expr.h"

namespace mercer::plan {

bool WeightFactors::is_weight(const Expr& e) {
  const ir::Uses& uses = e->uses;
  if (!uses.w || uses.x || uses.z || uses.row || uses.col || uses.index_i || uses.index_j || uses.param) return false;
  if (uses.state || uses.accumulator || uses.ptx) return false;
  bool of_feature = true;
  ir::for_each(e, [&](const Expr& node) {
    of_feature = of_feature && !ir::is_reduction(node->op) && node->op != ir::Op::features;
  });
  return of_feature;
}

void WeightFactors::add(const Expr& e, bool divides) {
  if (e->op == ir::Op::rcp) return add(e->args[0], !divides);
  if (e->op == ir::Op::mul || e->op == ir::Op::div) {
    add(e->args[0], divides);
    return add(e->args[1], divides != (e->op == ir::Op::div));
  }
  const auto found = std::find_if(powers_.begin(), powers_.end(), [&](const auto& own) { return same(own.first, e); });
  const int power = divides ? -1 : 1;
  if (found == powers_.end())
    powers_.emplace_back(e, power);
  else
    found->second += power;
}

void WeightFactors::multiply(const WeightFactors& other) {
  for (const auto& [e, power] : other.powers_)
    for (int i = 0; i < std::abs(power); ++i) add(e, power < 0);
}

bool WeightFactors::stand() const {
  return std::all_of(powers_.begin(), powers_.end(), [](const auto& own) { return own.second != 0; });
}

Expr WeightFactors::quotient(int by, bool rest) const {
  Expr above, below;
  for (const auto& [e, power] : powers_) {
    Expr& side = power < 0 ? below : above;
    const int count = rest ? std::abs(power) % by : std::abs(power) / by;
    for (int i = 0; i < count; ++i) side = side.empty() ? e : side * e;
  }
  if (below.empty()) return above;
  return above.empty() ? rcp(below) : above / below;
}

Expr WeightFactors::root() const {
  const Expr whole = quotient(2, false), rest = quotient(2, true);
  if (rest.empty()) return whole;
  return whole.empty() ? sqrt(rest) : whole * sqrt(rest);
}

}  // namespace mercer::plan
