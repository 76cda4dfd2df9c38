// The C++ front end: operators and functions that build nodes as written. Nothing is simplified here, so that printing
// shows what the user wrote.
#include <limits>

#include "core/error.h"
#include "ir/expr/expr.h"
#include "ir/expr/syntax.h"
#include "mercer/formula.h"

namespace mercer {

using ir::leaf;
using ir::make;
using ir::Node;
using ir::Op;

Expr::Expr(double value) : Expr(ir::constant(value)) {}

Points points() { return {leaf(Op::x), leaf(Op::z)}; }
Expr weights() { return leaf(Op::w); }
Expr row_value() { return leaf(Op::row); }
Expr col_value() { return leaf(Op::col); }
Expr index_i() { return leaf(Op::index_i); }
Expr index_j() { return leaf(Op::index_j); }
Expr feature_count() { return leaf(Op::features); }
Expr state(int slot) { return leaf(Op::state, slot); }
Expr incoming(int slot) { return leaf(Op::incoming, slot); }

namespace {

Expr make_param(std::string name, bool has_default, double value) {
  // Plans are kept under the text of a formula: it must not read as another one.
  require(ir::is_name(name),
          "param: a name has letters, digits and underscores, and starts with no digit. Received \"{}\".", name);
  Node node{.op = Op::param};
  node.has_default = has_default;
  node.value = value;
  node.name = std::move(name);
  return make(std::move(node));
}

}  // namespace

Expr param(std::string name) { return make_param(std::move(name), false, std::numeric_limits<double>::quiet_NaN()); }
Expr param(std::string name, double default_value) { return make_param(std::move(name), true, default_value); }

Expr operator+(const Expr& a, const Expr& b) { return make(Op::add, {a, b}); }
Expr operator-(const Expr& a, const Expr& b) { return make(Op::sub, {a, b}); }
Expr operator*(const Expr& a, const Expr& b) { return make(Op::mul, {a, b}); }
Expr operator/(const Expr& a, const Expr& b) { return make(Op::div, {a, b}); }
Expr operator-(const Expr& a) { return make(Op::neg, {a}); }
Expr operator<(const Expr& a, const Expr& b) { return make(Op::less, {a, b}); }
Expr operator<=(const Expr& a, const Expr& b) { return make(Op::less_equal, {a, b}); }
Expr operator>(const Expr& a, const Expr& b) { return make(Op::greater, {a, b}); }
Expr operator>=(const Expr& a, const Expr& b) { return make(Op::greater_equal, {a, b}); }
Expr equal(const Expr& a, const Expr& b) { return make(Op::equal, {a, b}); }
Expr not_equal(const Expr& a, const Expr& b) { return make(Op::not_equal, {a, b}); }
Expr logical_and(const Expr& a, const Expr& b) { return make(Op::logical_and, {a, b}); }
Expr logical_or(const Expr& a, const Expr& b) { return make(Op::logical_or, {a, b}); }
Expr logical_not(const Expr& a) { return make(Op::logical_not, {a}); }
Expr where(const Expr& condition, const Expr& a, const Expr& b) { return make(Op::where, {condition, a, b}); }

Expr abs(const Expr& a) { return make(Op::abs, {a}); }
Expr sign(const Expr& a) { return make(Op::sign, {a}); }
Expr square(const Expr& a) { return make(Op::mul, {a, a}); }
Expr sqrt(const Expr& a) { return make(Op::sqrt, {a}); }
Expr rsqrt(const Expr& a) { return make(Op::rsqrt, {a}); }
Expr rcp(const Expr& a) { return make(Op::rcp, {a}); }
Expr exp(const Expr& a) { return make(Op::exp, {a}); }
Expr exp2(const Expr& a) { return make(Op::exp2, {a}); }
Expr expm1(const Expr& a) { return make(Op::expm1, {a}); }
Expr log(const Expr& a) { return make(Op::log, {a}); }
Expr log2(const Expr& a) { return make(Op::log2, {a}); }
Expr log1p(const Expr& a) { return make(Op::log1p, {a}); }
Expr sin(const Expr& a) { return make(Op::sin, {a}); }
Expr cos(const Expr& a) { return make(Op::cos, {a}); }
Expr asin(const Expr& a) { return make(Op::asin, {a}); }
Expr acos(const Expr& a) { return make(Op::acos, {a}); }
Expr tanh(const Expr& a) { return make(Op::tanh, {a}); }
Expr erf(const Expr& a) { return make(Op::erf, {a}); }
Expr floor(const Expr& a) { return make(Op::floor, {a}); }
Expr ceil(const Expr& a) { return make(Op::ceil, {a}); }
Expr round(const Expr& a) { return make(Op::round, {a}); }
Expr fma(const Expr& a, const Expr& b, const Expr& c) { return make(Op::fma, {a, b, c}); }
Expr min(const Expr& a, const Expr& b) { return make(Op::min, {a, b}); }
Expr max(const Expr& a, const Expr& b) { return make(Op::max, {a, b}); }
Expr pow(const Expr& a, const Expr& b) { return make(Op::pow, {a, b}); }
Expr xlogy(const Expr& a, const Expr& b) { return make(Op::xlogy, {a, b}); }
Expr atan2(const Expr& a, const Expr& b) { return make(Op::atan2, {a, b}); }
Expr copysign(const Expr& magnitude, const Expr& sign) { return make(Op::copysign, {magnitude, sign}); }

Expr sum(const Expr& term) { return make(Op::sum, {term}); }
Expr prod(const Expr& term) { return make(Op::prod, {term}); }
Expr max(const Expr& term) { return make(Op::max_over, {term}); }
Expr min(const Expr& term) { return make(Op::min_over, {term}); }
Expr logsumexp(const Expr& term) { return make(Op::logsumexp, {term}); }

Expr reduce(const Reduce& d) {
  const std::size_t states = d.term.size();
  require(states > 0, "reduce: the term must have at least one component. Received none.");
  require(d.combine.size() == states && d.identity.size() == states,
          "reduce: term, combine and identity must be equally many. Received {}, {} and {}.", states, d.combine.size(),
          d.identity.size());
  require(d.merge.empty() || d.merge.size() == states, "reduce: merge must give every state. Received {} of {}.",
          d.merge.size(), states);
  require(!d.associative || !d.merge.empty(), "reduce: an associative reduction needs `merge`. Received none.");
  require(!d.finish.empty() || states == 1, "reduce: a state of {} components needs `finish`. Received none.", states);
  Node node{.op = Op::reduce};
  node.slot = static_cast<std::int32_t>(states);
  node.has_merge = !d.merge.empty();
  node.associative = d.associative;
  for (const auto* part : {&d.term, &d.combine, &d.identity, &d.merge}) {
    node.args.insert(node.args.end(), part->begin(), part->end());
  }
  node.args.push_back(d.finish.empty() ? state(0) : d.finish);
  return make(std::move(node));
}

std::vector<std::pair<std::string, std::optional<double>>> parameters(const Expr& expression) {
  std::vector<std::pair<std::string, std::optional<double>>> found;
  ir::for_each(expression, [&](const Expr& e) {
    if (e->op != Op::param) return;
    const std::optional<double> value = e->has_default ? std::optional(e->value) : std::nullopt;
    for (auto& [name, known] : found) {
      if (name != e->name) continue;
      if (!known) known = value;
      return;
    }
    found.emplace_back(e->name, value);
  });
  return found;
}

Expr bind(const Expr& expression, const std::map<std::string, Expr>& values) {
  ir::ExprMap<Expr> replacements;
  ir::for_each(expression, [&](const Expr& e) {
    if (e->op != Op::param) return;
    if (auto it = values.find(e->name); it != values.end()) replacements.emplace(e, it->second);
  });
  return ir::substitute(expression, replacements);
}

}  // namespace mercer
