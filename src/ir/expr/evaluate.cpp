// The oracle. For one pair:
//
//   every node that reads neither x, z, w nor a state   once, in topological order; among them the reductions:
//     for k in 0..K-1: its term's nodes, then acc = combine(acc, term)
//   for a field: the nodes at the free feature
//
// A reduction is closed (no feature of an outer loop reaches into it), so loops never nest and one buffer with a place
// per distinct node serves them all.
#include "ir/expr/evaluate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "core/error.h"
#include "ir/expr/ops.h"
#include "ir/expr/ptx.h"

namespace mercer::ir {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

enum class Level { pair, feature, loop };  // what a node's value depends on: the pair, k, the running state

struct Step {
  const Node* node;
  const OpInfo* row = nullptr;  // scalar ops
  int out = 0;
  std::array<int, 3> args{};
};

struct Loop {
  Op op{};
  int out = 0;
  std::vector<int> term, combine, identity, states, incoming;  // places; states: of the leaves state(s)
  int finish = 0;
  std::vector<Step> term_steps, combine_steps, finish_steps;
};

}  // namespace

struct Oracle::Plan {
  Expr root;
  std::vector<Expr> nodes;
  std::unordered_map<const Node*, int> place;
  std::vector<Level> levels;
  struct PairStep {
    Step step;
    std::optional<Loop> loop;
  };
  std::vector<PairStep> pair_steps;
  std::vector<Step> field_steps;
  int places = 0;

  explicit Plan(const Expr& e);
  int place_of(const Expr& e) const { return place.at(e.node().get()); }
  Level level_of(const Node& n) const;
  Step step_of(const Expr& e) const;
  /// The steps above the pair level that `targets` need, in order.
  std::vector<Step> steps_for(const std::vector<Expr>& targets) const;
  Loop loop_of(const Expr& e);
};

Level Oracle::Plan::level_of(const Node& n) const {
  if (n.op == Op::x || n.op == Op::z || n.op == Op::w) return Level::feature;
  if (n.op == Op::state || n.op == Op::incoming) return Level::loop;
  Level level = Level::pair;
  if (is_reduction(n.op)) return level;
  for (const Expr& a : n.args) level = std::max(level, levels[place_of(a)]);
  return level;
}

Step Oracle::Plan::step_of(const Expr& e) const {
  Step step{e.node().get()};
  step.out = place_of(e);
  if (is_leaf(e->op) || is_reduction(e->op)) return step;
  step.row = &info(e->op);
  for (std::size_t i = 0; i < e->args.size(); ++i) step.args[i] = place_of(e->args[i]);
  return step;
}

std::vector<Step> Oracle::Plan::steps_for(const std::vector<Expr>& targets) const {
  std::vector<bool> needed(nodes.size());
  for (const Expr& t : targets) needed[place_of(t)] = true;
  std::vector<Step> steps;
  for (int p = static_cast<int>(nodes.size()) - 1; p >= 0; --p) {  // users before arguments
    if (!needed[p] || levels[p] == Level::pair) continue;
    for (const Expr& a : nodes[p]->args) needed[place_of(a)] = true;
    if (nodes[p]->op != Op::state && nodes[p]->op != Op::incoming) steps.push_back(step_of(nodes[p]));
  }
  return {steps.rbegin(), steps.rend()};
}

Loop Oracle::Plan::loop_of(const Expr& e) {
  Loop loop;
  loop.op = e->op;
  loop.out = place_of(e);
  if (e->op != Op::reduce) {
    loop.term = {place_of(e->args[0])};
    loop.term_steps = steps_for(e->args);
    return loop;
  }
  const auto part = [&](int first, std::vector<int>& places_of_part) {
    std::vector<Expr> exprs(e->args.begin() + first * e->slot, e->args.begin() + (first + 1) * e->slot);
    for (const Expr& a : exprs) places_of_part.push_back(place_of(a));
    return steps_for(exprs);
  };
  loop.term_steps = part(0, loop.term);
  loop.combine_steps = part(1, loop.combine);
  part(2, loop.identity);
  loop.finish = place_of(e->args.back());
  loop.finish_steps = steps_for({e->args.back()});
  for (const auto& [op, leaves] : {std::pair{Op::state, &loop.states}, {Op::incoming, &loop.incoming}}) {
    leaves->assign(e->slot, places);  // a leaf that nobody reads goes to the spare place
    for (const Expr& n : nodes) {
      if (n->op == op && n->slot < e->slot) (*leaves)[n->slot] = place_of(n);
    }
  }
  return loop;
}

Oracle::Plan::Plan(const Expr& e) : root(without_ptx(e)) {
  for_each(root, [&](const Expr& n) {
    place.emplace(n.node().get(), static_cast<int>(nodes.size()));
    nodes.push_back(n);
    levels.push_back(level_of(*n));
  });
  places = static_cast<int>(nodes.size());
  for (const Expr& n : nodes) {
    require(n->op < Op::row_stage || n->op > Op::pair_value,
            "evaluate: the oracle takes formulas, not the parts that split() makes. Received an internal leaf.");
    if (levels[place_of(n)] != Level::pair) continue;
    pair_steps.push_back({step_of(n), is_reduction(n->op) ? std::optional(loop_of(n)) : std::nullopt});
  }
  field_steps = steps_for({root});
}

namespace {

double apply(const Step& s, const double* v) {
  const double args[3] = {v[s.args[0]], v[s.args[1]], v[s.args[2]]};
  return s.row->eval(args);
}

Wide least(const Wide& a, const Wide& b) {
  if (std::isnan(a.hi) || std::isnan(b.hi)) return a.hi + b.hi;
  if (a == b) return std::signbit(a.hi) ? a : b;
  return a < b ? a : b;
}

Wide with_sign(const Wide& a, bool negative) { return std::signbit(a.hi) == negative ? a : -a; }

Wide apply(const Step& s, const Wide* v) {
  const Wide &a = v[s.args[0]], &b = v[s.args[1]], &c = v[s.args[2]];
  switch (s.node->op) {
    case Op::neg: return -a;
    case Op::abs: return with_sign(a, false);
    case Op::sqrt: return sqrt(a);
    case Op::rsqrt: return Wide(1.0) / sqrt(a);
    case Op::rcp: return Wide(1.0) / a;
    case Op::add: return a + b;
    case Op::sub: return a - b;
    case Op::mul: return a * b;
    case Op::div: return a / b;
    case Op::fma: return a * b + c;
    case Op::min: return least(a, b);
    case Op::max: return -least(-a, -b);
    case Op::copysign: return with_sign(a, std::signbit(b.hi));
    case Op::where: return a.hi != 0 ? b : c;
    case Op::less: return a < b;
    case Op::greater: return b < a;
    case Op::less_equal: return a < b || a == b;
    case Op::greater_equal: return b < a || a == b;
    case Op::equal: return a == b;
    case Op::not_equal: return !(a == b);
    default: break;
  }
  const long double args[3] = {static_cast<long double>(a), static_cast<long double>(b), static_cast<long double>(c)};
  return Wide::from(s.row->eval_wide(args));
}

double param_value(const Node& n, const PairInputs& in) {
  if (in.params) {
    if (auto it = in.params->find(n.name); it != in.params->end()) return it->second;
  }
  require(n.has_default, "evaluate: a parameter without a default must be given. Received no '{}'.", n.name);
  return n.value;
}

double leaf_value(const Node& n, const PairInputs& in, std::int64_t k) {
  switch (n.op) {
    case Op::constant: return n.value;
    case Op::x: return in.x[k];
    case Op::z: return in.z[k];
    case Op::w: return in.w ? in.w[k] : 1.0;
    case Op::row: return in.row;
    case Op::col: return in.col;
    case Op::index_i: return in.i;
    case Op::index_j: return in.j;
    case Op::features: return static_cast<double>(in.features);
    default: return param_value(n, in);
  }
}

/// A running sum: double with a compensation, double-double as it is.
template <class T>
struct Sum {
  T value = 0.0;
  void add(const T& t) { value = value + t; }
  T result() const { return value; }
};
template <>
struct Sum<double> {
  Wide value = 0.0;
  double plain = 0;  // Inf and NaN as the plain sum has them
  void add(double t) {
    value = value + t;
    plain += t;
  }
  double result() const { return std::isfinite(plain) ? value.hi : plain; }
};

double narrow_exp(double a) { return std::exp(a); }
Wide narrow_exp(const Wide& a) { return Wide::from(std::exp(static_cast<long double>(a))); }
double narrow_log(double a) { return std::log(a); }
Wide narrow_log(const Wide& a) { return Wide::from(std::log(static_cast<long double>(a))); }
double least(double a, double b) { return least(Wide(a), Wide(b)).hi; }
double head(double a) { return a; }
double head(const Wide& a) { return a.hi; }

template <class T>
struct Machine {
  T* v;
  const PairInputs& in;

  void run(const std::vector<Step>& steps, std::int64_t k) {
    for (const Step& s : steps) run(s, k);
  }
  void run(const Step& s, std::int64_t k) { v[s.out] = s.row ? apply(s, v) : T(leaf_value(*s.node, in, k)); }

  template <class Take>
  void each_term(const Loop& loop, Take take) {
    for (std::int64_t k = 0; k < in.features; ++k) {
      run(loop.term_steps, k);
      take(v[loop.term[0]]);
    }
  }

  T total(const Loop& loop) {
    Sum<T> sum;
    each_term(loop, [&](const T& t) { sum.add(t); });
    return sum.result();
  }

  T logsumexp(const Loop& loop) {
    std::vector<T> terms;
    T top = -kInf;
    each_term(loop, [&](const T& t) {
      terms.push_back(t);
      top = -least(-top, -t);
    });
    if (!std::isfinite(head(top))) return top;
    Sum<T> sum;
    for (const T& t : terms) sum.add(narrow_exp(t - top));
    return top + narrow_log(sum.result());
  }

  T folded(const Loop& loop) {
    T acc = loop.op == Op::prod ? 1.0 : loop.op == Op::max_over ? -kInf : kInf;
    each_term(loop, [&](const T& t) {
      acc = loop.op == Op::prod ? T(acc * t) : loop.op == Op::max_over ? T(-least(-acc, -t)) : least(acc, t);
    });
    return acc;
  }

  T custom(const Loop& loop) {
    const std::size_t states = loop.term.size();
    std::vector<T> next(states);
    const auto load = [&](const std::vector<int>& to, auto value) {
      for (std::size_t s = 0; s < states; ++s) v[to[s]] = value(s);
    };
    for (std::size_t s = 0; s < states; ++s) next[s] = v[loop.identity[s]];
    load(loop.states, [&](std::size_t s) { return next[s]; });
    each_term(loop, [&, k = std::int64_t(0)](const T&) mutable {
      load(loop.incoming, [&](std::size_t s) { return v[loop.term[s]]; });
      run(loop.combine_steps, k++);
      for (std::size_t s = 0; s < states; ++s) next[s] = v[loop.combine[s]];
      load(loop.states, [&](std::size_t s) { return next[s]; });
    });
    run(loop.finish_steps, -1);
    return v[loop.finish];
  }

  T reduce(const Loop& loop) {
    switch (loop.op) {
      case Op::sum: return total(loop);
      case Op::logsumexp: return logsumexp(loop);
      case Op::reduce: return custom(loop);
      default: return folded(loop);
    }
  }
};

template <class T, class Plan>
T run(const Plan& plan, const PairInputs& in, T* values) {
  Machine<T> machine{values, in};
  for (const auto& [step, loop] : plan.pair_steps) {
    if (loop) values[loop->out] = machine.reduce(*loop);
    else machine.run(step, -1);
  }
  require(plan.field_steps.empty() || in.k >= 0,
          "evaluate: a field is evaluated at a feature k. Received none, and x, z or w outside every reduction.");
  machine.run(plan.field_steps, in.k);
  return values[plan.place_of(plan.root)];
}

}  // namespace

Oracle::Oracle(const Expr& e) : plan_(std::make_shared<const Plan>(e)) {}

double Oracle::operator()(const PairInputs& inputs) {
  values_.resize(plan_->places + 1);
  return run(*plan_, inputs, values_.data());
}

long double Oracle::wide(const PairInputs& inputs) {
  wide_values_.resize(plan_->places + 1);
  return static_cast<long double>(run(*plan_, inputs, wide_values_.data()));
}

double evaluate(const Expr& e, const PairInputs& inputs) { return Oracle(e)(inputs); }
long double evaluate_wide(const Expr& e, const PairInputs& inputs) { return Oracle(e).wide(inputs); }

}  // namespace mercer::ir
