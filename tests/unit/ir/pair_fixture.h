// Points for tests of the oracle: K features of one pair, parameters, and numerical derivatives of a formula.
#pragma once

#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "ir/expr/evaluate.h"
#include "mercer/formula.h"

namespace mercer::ir {

struct Pair {
  std::vector<double> x, z, w;
  double row = 0.7, col = 1.9, i = 3, j = 5;
  std::map<std::string, double> params;

  PairInputs inputs(std::int64_t k = -1) const {
    return {.x = x.data(), .z = z.data(), .w = w.data(), .features = static_cast<std::int64_t>(x.size()), .row = row,
            .col = col, .i = i, .j = j, .params = &params, .k = k};
  }
  double at(const Expr& e, std::int64_t k = -1) const { return evaluate(e, inputs(k)); }
  long double wide_at(const Expr& e, std::int64_t k = -1) const { return evaluate_wide(e, inputs(k)); }
};

/// reduce() without a merge.
inline Expr fold(std::vector<Expr> term, std::vector<Expr> combine, std::vector<Expr> identity, Expr finish = {}) {
  Reduce r;
  r.term = std::move(term);
  r.combine = std::move(combine);
  r.identity = std::move(identity);
  r.finish = std::move(finish);
  return reduce(r);
}

/// Features apart from each other and from 0, so that finite differences meet no kink.
inline Pair smooth_pair(int features, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> value(0.3, 0.9), gap(0.1, 0.6);
  Pair p;
  for (int k = 0; k < features; ++k) {
    p.x.push_back(value(random));
    p.z.push_back(p.x.back() + (random() % 2 ? gap(random) : -0.25 * gap(random)));
    p.w.push_back(value(random));
  }
  return p;
}

/// df/dv by central differences with one Richardson step in extended precision: error about h^4 f^(5) / 30.
template <class F>
long double slope(F f, double& v) {
  const double at = v;
  const auto central = [&](double h) {
    v = at + h;
    const long double above = f();
    v = at - h;
    const long double below = f();
    v = at;
    return (above - below) / (2 * static_cast<long double>(h));
  };
  const double h = 0x1p-11;
  return (4 * central(h / 2) - central(h)) / 3;
}

}  // namespace mercer::ir
