// arrange_field: the chain rule leaves numbers, values of the pair and values at the free feature mixed in one product.
// Outside reductions each product becomes
//
//   (coefficient * uniform * pair / pair) * (feature * ... / feature)
//
// A number also moves out of where(c, 0, number * ...), so that φ of |x - z|^p is where(x == z, 0, s |x - z|^(p-1))
// for every p. Only numbers and parameters do: a value of the pair may be infinite where c holds.
#include "ir/passes/arrange.h"

#include <cmath>

#include "ir/expr/ops.h"
#include "ir/passes/passes.h"

namespace mercer::ir {
namespace {

constexpr std::size_t kMostFactors = 64;  // of one product; shared nodes could make it exponentially long

struct Product {
  double coefficient = 1;
  std::vector<Expr> uniform{}, pair{}, pair_below{}, feature{}, feature_below{};

  bool only_features() const {
    return coefficient == 1 && uniform.empty() && pair.empty() && pair_below.empty();
  }
  std::size_t size() const {
    return uniform.size() + pair.size() + pair_below.size() + feature.size() + feature_below.size();
  }
};

void append(std::vector<Expr>& to, const std::vector<Expr>& from) { to.insert(to.end(), from.begin(), from.end()); }

Product multiply(Product a, const Product& b) {
  a.coefficient *= b.coefficient;
  append(a.uniform, b.uniform);
  append(a.pair, b.pair);
  append(a.pair_below, b.pair_below);
  append(a.feature, b.feature);
  append(a.feature_below, b.feature_below);
  return a;
}

Product inverse(Product a) {
  a.coefficient = 1 / a.coefficient;
  std::swap(a.feature, a.feature_below);
  std::swap(a.pair, a.pair_below);
  append(a.pair_below, a.uniform);
  a.uniform.clear();
  return a;
}

Expr times(const Expr& a, const Expr& b) { return a.empty() ? b : b.empty() ? a : a * b; }

Expr product_of(const std::vector<Expr>& factors) {
  Expr result;
  for (const Expr& f : factors) result = times(result, f);
  return result;
}

Expr divided(const Expr& above, const std::vector<Expr>& below) {
  if (below.empty()) return above;
  return (above.empty() ? Expr(1.0) : above) / product_of(below);
}

Expr rebuilt(const Product& p) {
  const Expr number = p.coefficient == 1 ? Expr() : Expr(p.coefficient);
  const Expr values = divided(times(times(number, product_of(p.uniform)), product_of(p.pair)), p.pair_below);
  const Expr result = times(values, divided(product_of(p.feature), p.feature_below));
  return result.empty() ? Expr(1.0) : result;
}

class Arranger {
 public:
  Expr operator()(const Expr& e) { return is_free(e) ? rebuilt(product(e)) : e; }

 private:
  /// Whether the value varies with the free feature.
  bool is_free(const Expr& e) {
    if (is_reduction(e->op)) return false;
    if (is_leaf(e->op)) return e->op == Op::x || e->op == Op::z || e->op == Op::w;
    if (auto it = free_.find(e); it != free_.end()) return it->second;
    bool found = false;
    for (const Expr& a : e->args) found = is_free(a) || found;
    return free_.emplace(e, found).first->second;
  }

  static bool is_uniform(const Expr& e) {
    const Uses u = uses(e);
    return !(u.x || u.z || u.w || u.row || u.col || u.index_i || u.index_j || u.state || u.accumulator || u.reduction);
  }

  const Product& product(const Expr& e) {
    if (auto it = products_.find(e); it != products_.end()) return it->second;
    Product p = make_product(e);
    return products_.emplace(e, std::move(p)).first->second;
  }

  Product make_product(const Expr& e) {
    // NaN stays in the branch that chooses it.
    if (e->op == Op::constant) return std::isfinite(e->value) ? Product{.coefficient = e->value} : Product{.pair = {e}};
    if (e->op == Op::neg) return multiply(product(e->args[0]), {.coefficient = -1});
    if (e->op == Op::mul) return of_mul(e);
    if (e->op == Op::div) return of_div(e);
    if (!is_free(e)) return is_uniform(e) ? Product{.uniform = {e}} : Product{.pair = {e}};
    if (e->op == Op::where && is_constant(e->args[1], 0.0)) return of_guarded(e);
    // NOTE: what is compared keeps its rounding: t == max(t) holds only for the very same t.
    if (is_leaf(e->op) || info(e->op).boolean) return {.feature = {e}};
    std::vector<Expr> args;
    for (const Expr& a : e->args) args.push_back((*this)(a));
    if (e->op == Op::where) args[0] = e->args[0];
    return {.feature = {with_args(e, std::move(args))}};
  }

  Product of_mul(const Expr& e) {
    const Product a = product(e->args[0]), b = product(e->args[1]);
    // As it stands: t^2 * t^2 is shorter than t * t * t * t.
    if ((a.only_features() && b.only_features()) || a.size() + b.size() > kMostFactors) {
      return {.feature = {with_args(e, {rebuilt(a), rebuilt(b)})}};
    }
    return multiply(a, b);
  }

  Product of_div(const Expr& e) {
    const Product below = product(e->args[1]);
    const Product above = product(e->args[0]);
    const bool invertible = below.coefficient != 0 && std::isfinite(1 / below.coefficient);
    if (!invertible || above.size() + below.size() > kMostFactors) {
      return {.feature = {with_args(e, {rebuilt(above), rebuilt(below)})}};
    }
    return multiply(above, inverse(below));
  }

  Product of_guarded(const Expr& e) {
    Product inner = product(e->args[2]);
    Product outer{.coefficient = inner.coefficient, .uniform = std::move(inner.uniform)};
    inner.coefficient = 1;
    inner.uniform.clear();
    outer.feature = {where(e->args[0], 0.0, rebuilt(inner))};
    return outer;
  }

  ExprMap<bool> free_;
  ExprMap<Product> products_;
};

}  // namespace

Expr arrange_field(const Expr& field) { return Arranger()(field); }

}  // namespace mercer::ir
