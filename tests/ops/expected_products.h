// Products over n against the oracle's values.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "ops/testing.h"

namespace mercer::testing_support {

/// [m][n] values of the oracle.
inline std::vector<std::vector<double>> table(const Expr& f, const Tensor& x, const Tensor& z,
                                              const Extra& extra = {}) {
  Reference reference(f, x, z, extra);
  std::vector<std::vector<double>> values(reference.m());
  for (std::int64_t m = 0; m < reference.m(); ++m)
    for (std::int64_t n = 0; n < reference.n(); ++n) values[m].push_back(reference(m, n));
  return values;
}

/// Within the contract of sums over n: 2 units of the sum of |terms|.
inline void expect_product(const Tensor& out, const std::vector<std::vector<double>>& k, const Tensor& v,
                           const std::string& what) {
  for (std::int64_t m = 0; m < out.shape[0]; ++m)
    for (std::int64_t e = 0; e < (out.ndim() == 2 ? out.shape[1] : 1); ++e) {
      double sum = 0, size = 0;
      for (std::size_t n = 0; n < k[m].size(); ++n) {
        const auto point = static_cast<std::int64_t>(n);
        const double term = k[m][n] * (v.ndim() == 2 ? read(v, {point, e}) : read(v, {point}));
        sum += term;
        size += std::abs(term);
      }
      const double value = out.ndim() == 2 ? read(out, {m, e}) : read(out, {m});
      ASSERT_TRUE(within(value, sum, 2 * unit(out.dtype) * size, out.dtype))
          << what << " at " << m << "," << e << ": " << value << " for " << sum << " of " << size;
    }
}

}  // namespace mercer::testing_support
