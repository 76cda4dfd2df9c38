// Derivatives of formulas against finite differences, for the tests of differentiate.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "ir/passes/passes.h"
#include "pair_fixture.h"

namespace mercer::ir {

/// A pair with the parameters p and b of these tests.
inline Pair pair_for(int features, unsigned seed) {
  Pair pair = smooth_pair(features, seed);
  pair.params = {{"p", 1.7}, {"b", 1.3}};
  return pair;
}

/// The derivative by a feature of x, z or w, at each of them, against finite differences.
inline void check_field(const Expr& f, const Expr& v, Pair pair) {
  auto& values = v->op == Op::x ? pair.x : v->op == Op::z ? pair.z : pair.w;
  const Expr field = differentiate(f, v);
  ASSERT_NO_THROW(verify(field, Form::field)) << field.to_text();
  for (std::size_t k = 0; k < values.size(); ++k) {
    const auto at = static_cast<std::int64_t>(k);
    const long double expected = slope([&] { return pair.wide_at(f, at); }, values[k]);
    // Richardson's error: h^4 f^(5) / 480 with h = 2^-11 and |f^(5)| up to 1e7 at these points.
    EXPECT_NEAR(pair.at(field, at), static_cast<double>(expected), 1e-8 * (1 + std::abs(expected)))
        << "d/d" << v.to_text() << " " << f.to_text() << "\n = " << field.to_text();
  }
}

/// The derivative by a parameter, or by what `member` is in the pair.
inline void check_value(const Expr& f, const Expr& v, double Pair::* member, Pair pair) {
  double& value = v->op == Op::param ? pair.params.at(v->name) : pair.*member;
  const Expr derivative = differentiate(f, v);
  ASSERT_NO_THROW(verify(derivative)) << derivative.to_text();
  const long double expected = slope([&] { return pair.wide_at(f); }, value);
  EXPECT_NEAR(pair.at(derivative), static_cast<double>(expected), 1e-8 * (1 + std::abs(expected)))
      << "d/d" << v.to_text() << " " << f.to_text() << "\n = " << derivative.to_text();
}

}  // namespace mercer::ir
