// Products with Kronecker products and solutions of systems, by the bounds that their headers state. Sizes, strides and
// scalars follow from the numbers of a case; its formula is not read.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "device/lapack.h"
#include "fuzz/call_check.h"
#include "ops/kron_mirror.h"
#include "ops/linalg_mirror.h"

namespace mercer::fuzz {

/// op(X) (op(F1) x ... x op(FN)), from the right or from the left.
class KronCheck {
 public:
  explicit KronCheck(const Case& c) : case_(c), from_left_(c.same != 0), x_(Dtype::float32, {}), y_(x_) {
    const std::int64_t most = c.count + 1 > 4 ? 5 : c.count + 1;
    std::int64_t p_all = 1, q_all = 1;
    for (std::int64_t f = 0; f < most; ++f) {
      const auto side = [&](int which) {
        const auto most_of_side = static_cast<std::uint64_t>(which ? c.n : c.m) + 1;
        return static_cast<std::int64_t>(1 + Hash(c.values, f, which, 41).below(most_of_side));
      };
      const std::int64_t p = side(0), q = side(1);
      if (f > 0 && (p_all * p > 3000 || q_all * q > 3000)) break;
      p_all *= p, q_all *= q;
      sizes_.push_back({p, q});
      turned_.push_back(Hash(c.layout, f, 42).below(3) == 0 && c.layout != 0);
      const Shape own = turned_.back() ? Shape{q, p} : Shape{p, q};
      factors_.push_back(array(own, static_cast<std::uint64_t>(f)));
    }
    rows_ = std::min<std::int64_t>(c.k, 40);
    p_all_ = p_all, q_all_ = q_all;
    turns_x_ = c.layout % 5 == 1;
    x_ = array((turns_x_ != from_left_) ? Shape{p_all, rows_} : Shape{rows_, p_all}, 50);
    y_ = array(from_left_ ? Shape{q_all, rows_} : Shape{rows_, q_all}, 51);
    alpha_ = c.offset ? is_whole(type()) ? 3 : -0.75 : 1, beta_ = c.arrays == 2 ? 2 : 0;
  }

  std::string fault(const Contexts& contexts) const {
    const Shape shape = from_left_ ? Shape{q_all_, rows_} : Shape{rows_, q_all_};
    const Tensor x = x_, y = y_;
    std::vector<Tensor> factors(factors_.begin(), factors_.end());
    // A product with op(F) from the left is one with its transpose from the right.
    std::vector<bool> turned = turned_;
    if (from_left_) turned.flip();
    kron::Options options{.alpha = alpha_, .beta = beta_, .y = beta_ != 0 ? &y : nullptr, .transpose_x = turns_x_,
                          .transpose_factors = turned};
    for (const auto& context : contexts) {
      const Array out(type(), shape, drawn_strides(shape, case_.layout, 152, true));
      if (from_left_) testing_support::kron_matmul(factors, x, out, options, *context);
      else testing_support::matmul(x, factors, out, options, *context);
      for (std::int64_t row = 0; row < rows_; row += 1 + rows_ / 4)
        if (std::string found = row_fault(out, row); !found.empty()) return std::string(context->name()) + ": " + found;
    }
    return "";
  }

 private:
  Dtype type() const {
    if (size_of(case_.dtype) > 1) return case_.dtype;
    return case_.option % 2 ? Dtype::int64 : Dtype::int32;
  }
  Array array(const Shape& shape, std::uint64_t which) const {
    Array a(type(), shape, drawn_strides(shape, case_.layout, 60 + which, false));
    testing_support::each_index(shape, [&](const Shape& at) {
      Hash h(case_.values, which, at[0], at[1], 43);
      a.set(at, is_whole(type()) ? static_cast<double>(h.below(7)) - 3 : h.normal());
    });
    return a;
  }

  /// Row `row` of op(X) times all factors, or of magnitudes.
  std::vector<long double> product(std::int64_t row, bool magnitudes) const {
    const auto value = [&](double v) -> long double { return magnitudes ? std::abs(v) : v; };
    std::vector<long double> now;
    for (std::int64_t e = 0; e < p_all_; ++e) now.push_back(value(turns_x_ != from_left_ ? x_(e, row) : x_(row, e)));
    std::int64_t left = 1;
    for (std::size_t f = 0; f < sizes_.size(); ++f) {
      const auto [p, q] = sizes_[f];
      const std::int64_t right = static_cast<std::int64_t>(now.size()) / left / p;
      std::vector<long double> next(static_cast<std::size_t>(left * q * right));
      for (std::int64_t k = 0; k < p; ++k)
        for (std::int64_t j = 0; j < q; ++j) {
          const long double factor = value(turned_[f] ? factors_[f](j, k) : factors_[f](k, j));
          for (std::int64_t l = 0; l < left; ++l)
            for (std::int64_t r = 0; r < right; ++r)
              next[static_cast<std::size_t>((l * q + j) * right + r)] +=
                  now[static_cast<std::size_t>((l * p + k) * right + r)] * factor;
        }
      now.swap(next);
      left *= q;
    }
    return now;
  }

  std::string row_fault(const Array& out, std::int64_t row) const {
    const std::vector<long double> values = product(row, false), sizes = product(row, true);
    long double steps = 2, largest = 0;
    for (const auto& [p, q] : sizes_) steps += static_cast<long double>(p) + 2;
    for (const long double size : sizes) largest = std::max(largest, size);
    for (std::int64_t j = 0; j < q_all_; ++j) {
      const auto place = static_cast<std::size_t>(j);
      const double v = from_left_ ? out(j, row) : out(row, j);
      const double added = beta_ == 0 ? 0 : beta_ * (from_left_ ? y_(j, row) : y_(row, j));
      const long double wanted = alpha_ * values[place] + added;
      const long double size = std::fabs(alpha_) * sizes[place] + std::fabs(added);
      if (is_whole(type())) {
        if (v == wanted) continue;
      } else if (std::fabs(v - wanted) <= bound(wanted, steps * size, largest)) {
        continue;
      }
      return fmt::format("the product has {} at ({}, {}) for {}", v, row, j, static_cast<double>(wanted));
    }
    return "";
  }

  /// Tensor cores add a part of the largest values of the row, and of all factors.
  long double bound(long double wanted, long double size, long double largest) const {
    if (type() == Dtype::float64) return 0x1p-53L * size;
    const bool half = type() == Dtype::float16, narrow = half || type() == Dtype::bfloat16;
    if (half && std::fabs(wanted) + size * 0x1p-11L > 65000) return INFINITY;
    const long double last = half ? 0x1p-11L : narrow ? 0x1p-8L : 0;
    return 0x1p-22L * size + 0x1p-20L * largest + 1.01L * last * std::fabs(wanted) + (half ? 0x1p-25L : 0x1p-126L);
  }

  Case case_;
  bool from_left_, turns_x_ = false;
  std::vector<std::pair<std::int64_t, std::int64_t>> sizes_;  // P, Q: op(F) from the right, its transpose from the left
  std::vector<bool> turned_;
  std::vector<Array> factors_;
  std::int64_t rows_ = 1, p_all_ = 1, q_all_ = 1;
  double alpha_ = 1, beta_ = 0;
  Array x_, y_;
};

/// a x = b for a well conditioned symmetric matrix: the residual, |b - a x| <= 10 n u |a| |x| (Higham, "Accuracy and
/// Stability of Numerical Algorithms", sections 9.3 and 10.1).
inline std::string solve_fault(const Case& c, const Contexts& contexts) {
  const Dtype type = c.dtype == Dtype::float64 ? Dtype::float64 : Dtype::float32;
  const std::int64_t n = c.m, columns = std::max<std::int64_t>(1, c.count);
  const Shape square{n, n}, right = c.count ? Shape{n, c.count} : Shape{n};
  Array a(type, square, drawn_strides(square, c.layout % 3 == 2 ? 0 : c.layout, 70, true)),
      b(type, right, drawn_strides(right, c.layout, 71, true));
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      const double drawn = Hash(c.values, std::min(i, j), std::max(i, j), 44).normal();
      a.set({i, j}, drawn + (i == j ? 3.0 * static_cast<double>(n + 2) : 0));
    }
  testing_support::each_index(right,
                              [&](const Shape& at) { b.set(at, Hash(c.values, at[0], at.back(), 45).normal()); });
  for (const auto& context : contexts) {
    if (!context->on_cuda() && testing::lapack_for_tests() == nullptr) continue;
    const Array x(type, right, drawn_strides(right, c.layout, 172, true));
    const linalg::Options options{.lower = c.option % 2 == 0};
    if (c.same) testing_support::solve_lu(a, b, x, options, *context);
    else testing_support::solve_cholesky(a, b, x, options, *context);
    for (std::int64_t e = 0; e < columns; ++e)
      for (std::int64_t i = 0; i < n; ++i) {
        const auto at = [&](const Array& from, std::int64_t row) { return c.count ? from(row, e) : from(row); };
        long double residual = at(b, i), size = std::fabs(at(b, i));
        for (std::int64_t j = 0; j < n; ++j) {
          residual -= static_cast<long double>(a(i, j)) * at(x, j);
          size += std::fabs(static_cast<long double>(a(i, j)) * at(x, j));
        }
        // Norms of the whole, for pivots mix rows.
        const long double unit = type == Dtype::float64 ? 0x1p-53L : 0x1p-24L;
        if (!(std::fabs(residual) <= 10 * static_cast<long double>(n) * unit * (size + 1)))
          return fmt::format("{}: row {} of column {} has the residual {}", context->name(), i, e,
                             static_cast<double>(residual));
      }
  }
  return "";
}

}  // namespace mercer::fuzz
