#include "plan/forms/bilinear.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "plan/forms/weight_factors.h"

namespace mercer::plan {
namespace {

using ir::Op;

struct Factor {
  Expr value;
  bool divides = false;
};

/// Factors of a product, however it is bracketed, and of divisors. A square stays in two.
void collect_factors(const Expr& e, bool divides, std::vector<Factor>& factors) {
  if (e->op == Op::neg) {
    factors.push_back({-1.0});
    return collect_factors(e->args[0], divides, factors);
  }
  if (e->op != Op::mul && e->op != Op::div) return factors.push_back({e, divides});
  collect_factors(e->args[0], divides, factors);
  collect_factors(e->args[1], divides != (e->op == Op::div), factors);
}

bool is_difference(const Expr& e) {
  if (e->op != Op::sub) return false;
  const Op left = e->args[0]->op, right = e->args[1]->op;
  return (left == Op::x && right == Op::z) || (left == Op::z && right == Op::x);
}

Bilinear bilinear_term(const Expr& term, const std::vector<Expr>& params) {
  std::vector<Factor> factors;
  collect_factors(term, false, factors);
  Bilinear result;
  int x = 0, z = 0;
  WeightFactors weights;
  std::vector<Expr> differences;
  for (const auto& [factor, divides] : factors) {
    if (factor->op == Op::constant) {
      result.factor = divides ? result.factor / factor->value : result.factor * factor->value;
    } else if (factor->op == Op::param) {
      const auto found = std::find_if(params.begin(), params.end(), [&](const Expr& p) { return same(p, factor); });
      if (found == params.end()) return {};
      result.uniforms.push_back({static_cast<int>(found - params.begin()), divides});
    } else if (WeightFactors::is_weight(factor)) {
      weights.add(factor, divides);
    } else if (divides) {
      return {};
    } else if (factor->op == Op::x) {
      ++x;
    } else if (factor->op == Op::z) {
      ++z;
    } else if (is_difference(factor)) {
      differences.push_back(factor);
    } else {
      return {};
    }
  }
  if (!std::isnormal(result.factor) || !weights.stand()) return {};
  if (result.uniforms.size() > Bilinear::kMostUniforms) return {};
  if (x == 1 && z == 1 && differences.empty())
    result.kind = BilinearKind::product;
  else if (x == 0 && z == 0 && differences.size() == 2 && differences[0].node() == differences[1].node())
    result.kind = BilinearKind::square;
  else
    return {};
  if (!weights.empty()) {
    result.weight = weights.product();
    result.multiplier = result.kind == BilinearKind::square ? weights.root() : result.weight;
    result.multiplier_text = result.multiplier.to_text();
  }
  return result;
}

}  // namespace

Expr Bilinear::uniform_factor(const std::vector<Expr>& params) const {
  Expr product = factor;
  for (const auto& [slot, divides] : uniforms) {
    const Expr& leaf = params[static_cast<std::size_t>(slot)];
    product = divides ? product / leaf : product * leaf;
  }
  return product;
}

std::string Bilinear::to_text() const {
  if (kind == BilinearKind::none) return "none";
  const char* term = kind == BilinearKind::product ? "x z" : "(x - z)^2";
  const std::string own = weighted() ? fmt::format("({}) ", weight.to_text()) : "";
  return fmt::format("sum of {:g} {}{}{}", factor, uniforms.empty() ? "" : "u ", own, term);
}

Bilinear bilinear_of(const ir::Split& split) {
  if (split.states != 1 || split.reductions.size() != 1 || split.reductions[0].kind != Op::sum) return {};
  if (split.x_streams.size() != 1 || split.z_streams.size() != 1) return {};
  const Expr& update = split.reductions[0].update[0];
  if (update->op != Op::add) return {};
  for (std::size_t i : {0, 1})
    if (update->args[i]->op == Op::accumulator) return bilinear_term(update->args[1 - i], split.param_leaves());
  return {};
}

}  // namespace mercer::plan
