// is_symmetric: f(x, z) = f(z, x) as real functions, up to the order of sums and products and the sign of a zero.
//
// Both f and its swapped form are brought to a normal form (never evaluated), where
//   a sign stands outside:  z - x = -(x - z),  |-u| = |u|,  (-u)(-v) = uv,  sum(-u) = -sum(u),  max(-u) = -min(u)
//   a chain of + and - is one sorted sum, a chain of * and / one sorted product over one sorted product.
#include <algorithm>
#include <cmath>
#include <optional>

#include "ir/expr/ops.h"
#include "ir/expr/order.h"
#include "ir/passes/passes.h"

namespace mercer::ir {
namespace {

/// ±e.
struct Signed {
  Expr e;
  bool negative = false;
};

bool operator<(const Signed& p, const Signed& q) {
  const int c = compare(p.e, q.e);
  return c != 0 ? c < 0 : p.negative < q.negative;
}

Parity parity_of(const Node& n) {
  if (n.op == Op::sum) return Parity::odd;
  if (n.op != Op::pow) return traits(n.op).parity;
  if (n.args[1]->op != Op::constant || std::fmod(n.args[1]->value, 1.0) != 0) return Parity::none;
  return std::fmod(n.args[1]->value, 2.0) == 0 ? Parity::even : Parity::odd;
}

std::optional<Op> mirrored(Op op) {  // f(-u, -v) = -mirror(u, v)
  switch (op) {
    case Op::min: return Op::max;
    case Op::max: return Op::min;
    case Op::min_over: return Op::max_over;
    case Op::max_over: return Op::min_over;
    default: return std::nullopt;
  }
}

enum class Chain { sum, product };

bool links(Op op, Chain chain) {
  return chain == Chain::sum ? op == Op::add || op == Op::sub : op == Op::mul || op == Op::div || op == Op::rcp;
}

/// Whether argument i is subtracted, or divided by.
bool inverts(Op op, std::size_t i) { return op == Op::rcp || ((op == Op::sub || op == Op::div) && i == 1); }

constexpr std::size_t kMostParts = 64;  // of a chain; shared nodes could make it exponentially long

class Normal {
 public:
  Signed operator()(const Expr& e) {
    if (auto it = seen_.find(e); it != seen_.end()) return it->second;
    const Signed result = normal(e);
    seen_.emplace(e, result);
    return result;
  }

 private:
  Signed normal(const Expr& e) {
    if (e->op == Op::constant) {
      const bool negative = std::signbit(e->value);
      return {constant(negative ? -e->value : e->value), negative};
    }
    if (is_leaf(e->op)) return {e};
    if (e->op == Op::neg) return negated((*this)(e->args[0]));
    if (links(e->op, Chain::sum)) return sum_chain(e);
    if (links(e->op, Chain::product)) return product_chain(e);
    return other(e);
  }

  static Signed negated(const Signed& s) { return {s.e, !s.negative}; }

  /// The parts of a chain; `negative` marks one that is subtracted, or divided by.
  static std::vector<Signed> parts(const Expr& e, Chain chain) {
    std::vector<Signed> open{{e}}, found;
    while (!open.empty()) {
      const Signed top = open.back();
      open.pop_back();
      if (!links(top.e->op, chain) || found.size() + open.size() > kMostParts) {
        found.push_back(top);
        continue;
      }
      for (std::size_t i = 0; i < top.e->args.size(); ++i) {
        open.push_back({top.e->args[i], top.negative != inverts(top.e->op, i)});
      }
    }
    return found;
  }

  Signed sum_chain(const Expr& e) {
    std::vector<Signed> terms = parts(e, Chain::sum);
    for (Signed& t : terms) {
      const Signed n = (*this)(t.e);
      t = {n.e, t.negative != n.negative};
    }
    std::sort(terms.begin(), terms.end());
    const bool flip = terms.front().negative;
    Expr total = terms.front().e;
    for (std::size_t i = 1; i < terms.size(); ++i) {
      total = terms[i].negative != flip ? total - terms[i].e : total + terms[i].e;
    }
    return {total, flip};
  }

  Signed product_chain(const Expr& e) {
    std::vector<Expr> above, below;
    bool negative = false;
    for (const Signed& f : parts(e, Chain::product)) {
      const Signed n = (*this)(f.e);
      negative = negative != n.negative;
      (f.negative ? below : above).push_back(n.e);
    }
    const Expr top = product(above);
    return {below.empty() ? top : top / product(below), negative};
  }

  static Expr product(std::vector<Expr> factors) {
    if (factors.empty()) return 1.0;
    std::sort(factors.begin(), factors.end(), [](const Expr& a, const Expr& b) { return compare(a, b) < 0; });
    Expr result = factors.front();
    for (std::size_t i = 1; i < factors.size(); ++i) result = result * factors[i];
    return result;
  }

  static Expr plain(const Signed& s) { return s.negative ? -s.e : s.e; }

  Signed other(const Expr& e) {
    std::vector<Signed> args;
    for (const Expr& a : e->args) args.push_back((*this)(a));
    if (const Parity parity = parity_of(*e); parity != Parity::none) {
      const bool negative = parity == Parity::odd && args[0].negative;
      args[0].negative = false;
      return {rebuilt(e, e->op, args), negative};
    }
    const bool all_negative = std::all_of(args.begin(), args.end(), [](const Signed& a) { return a.negative; });
    if (const auto mirror = mirrored(e->op); mirror && all_negative) {
      for (Signed& a : args) a.negative = false;
      return {rebuilt(e, *mirror, args), true};
    }
    const bool compares_with_zero = (e->op == Op::equal || e->op == Op::not_equal) && is_constant(args[0].e, 0.0);
    if (compares_with_zero) args[0].negative = args[1].negative = false;
    return {rebuilt(e, e->op, args)};
  }

  static Expr rebuilt(const Expr& e, Op op, const std::vector<Signed>& args) {
    std::vector<Expr> plain_args;
    for (const Signed& a : args) plain_args.push_back(plain(a));
    const bool swaps = !is_reduction(op) && (info(op).commutative || op == Op::fma);
    if (swaps && compare(plain_args[0], plain_args[1]) > 0) std::swap(plain_args[0], plain_args[1]);
    if (op == e->op) return with_args(e, std::move(plain_args));
    return make(op, std::move(plain_args));
  }

  ExprMap<Signed> seen_;
};

Expr swap_points(const Expr& e) {
  const auto swapped = [](Op op) {
    switch (op) {
      case Op::x: return Op::z;
      case Op::z: return Op::x;
      case Op::row: return Op::col;
      case Op::col: return Op::row;
      case Op::index_i: return Op::index_j;
      case Op::index_j: return Op::index_i;
      default: return op;
    }
  };
  return rewrite(e, [&](const Expr& n) { return swapped(n->op) == n->op ? n : leaf(swapped(n->op), n->slot); });
}

}  // namespace

bool is_symmetric(const Expr& e) {
  const Expr given = simplify(e);
  Normal normal;
  const Signed a = normal(given), b = normal(simplify(swap_points(given)));
  return a.negative == b.negative && same(a.e, b.e);
}

}  // namespace mercer::ir
