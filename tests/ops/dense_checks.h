// What tests of linear algebra share: matrices of the host, layouts of memory, residuals.
#pragma once

#include <cmath>

#include "ops/linalg_mirror.h"
#include "ops/testing.h"

namespace mercer::testing_support {

inline double rounding(Dtype dtype) { return dtype == Dtype::float64 ? 0x1p-53 : 0x1p-24; }

/// A matrix of the host in double precision.
struct Dense {
  std::int64_t rows, cols;
  std::vector<double> values;
  Dense(std::int64_t r, std::int64_t c) : rows(r), cols(c), values(static_cast<std::size_t>(r * c)) {}
  explicit Dense(const Tensor& t) : Dense(t.shape[0], t.ndim() > 1 ? t.shape[1] : 1) {
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < cols; ++j) (*this)(i, j) = t.ndim() > 1 ? read(t, {i, j}) : read(t, {i});
  }
  double& operator()(std::int64_t i, std::int64_t j) { return values[static_cast<std::size_t>(i * cols + j)]; }
  double operator()(std::int64_t i, std::int64_t j) const { return values[static_cast<std::size_t>(i * cols + j)]; }
  Dense transposed() const {
    Dense t(cols, rows);
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < cols; ++j) t(j, i) = (*this)(i, j);
    return t;
  }
  double norm() const {
    double sum = 0;
    for (const double value : values) sum += value * value;
    return std::sqrt(sum);
  }
};
inline Dense operator*(const Dense& a, const Dense& b) {
  Dense c(a.rows, b.cols);
  for (std::int64_t i = 0; i < a.rows; ++i)
    for (std::int64_t k = 0; k < a.cols; ++k)
      for (std::int64_t j = 0; j < b.cols; ++j) c(i, j) += a(i, k) * b(k, j);
  return c;
}
inline Dense operator-(Dense a, const Dense& b) {
  for (std::size_t i = 0; i < a.values.size(); ++i) a.values[i] -= b.values[i];
  return a;
}

/// exp(-|x_i - x_j|^2) of points of a line, with a ridge: entries fall off, the condition is near 1 / ridge.
inline double kernel_value(std::int64_t i, std::int64_t j, double ridge) {
  const double gap = 0.3 * static_cast<double>(i - j);
  return std::exp(-gap * gap) + (i == j ? ridge : 0);
}

/// The layouts of a matrix: by rows, by columns, either with gaps, and two that no routine reads as they are.
struct LayoutRow {
  const char* name;
  Shape (*strides)(std::int64_t rows, std::int64_t cols);
};
inline const LayoutRow kLayouts[] = {
    {"rows", [](std::int64_t, std::int64_t c) { return Shape{c, 1}; }},
    {"columns", [](std::int64_t r, std::int64_t) { return Shape{1, r}; }},
    {"rows with gaps", [](std::int64_t, std::int64_t c) { return Shape{c + 3, 1}; }},
    {"columns with gaps", [](std::int64_t r, std::int64_t) { return Shape{1, r + 5}; }},
    {"every second element", [](std::int64_t, std::int64_t c) { return Shape{2 * c + 1, 2}; }},
    {"from the back", [](std::int64_t r, std::int64_t) { return Shape{-1, -r}; }},
};

inline Array kernel_matrix_of(Dtype dtype, std::int64_t n, const LayoutRow& layout, double ridge = 1e-2) {
  Array a(dtype, {n, n}, layout.strides(n, n));
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < n; ++j) a.set({i, j}, kernel_value(i, j, ridge));
  return a;
}
/// Neither symmetric nor diagonally dominant, so that rows are swapped.
inline Array general_matrix(Dtype dtype, std::int64_t n, const LayoutRow& layout) {
  return normal(dtype, {n, n}, 7, 1, layout.strides(n, n));
}
/// What must not be read holds NaN.
inline void spoil_triangle(Array& a, bool lower) {
  for (std::int64_t i = 0; i < a.shape()[0]; ++i)
    for (std::int64_t j = 0; j < a.shape()[0]; ++j)
      if (lower ? j > i : j < i) a.set({i, j}, kNan);
}

inline void expect_product(const Dense& left, const Dense& right, const Dense& a, double bound,
                           const std::string& what) {
  const double error = (left * right - a).norm();
  EXPECT_LE(error, bound * a.norm()) << what << ": " << error / (bound * a.norm()) << " bounds";
}
inline void expect_solution(const Dense& a, const Dense& x, const Dense& b, double unit, const std::string& what) {
  const double bound = 4 * static_cast<double>(a.rows) * unit * a.norm() * x.norm();
  EXPECT_LE((a * x - b).norm(), bound) << what;
}

/// Runs the body on the CPU, where the choice of an instruction set changes nothing, and on CUDA, with Mercer's kernels
/// where they serve and with the libraries.
template <class Body>
void on_both(const Body& body) {
  if (is_wanted("cpu")) {
    TestContext context(Target::interpreter);
    body(context);
  }
  for (const std::int64_t small_until : {std::int64_t{0}, plan::costs_of(90).dense.small_until})
    on_cuda([&](TestContext& context) {
      context.state().own_costs().dense.small_until = small_until;
      body(context);
    });
}

/// Runs body(context, dtype, layout of a, layout of b) for all of them; on CUDA for each with itself, by the libraries,
/// and with the next one, by kernels of our own.
template <class Body>
void in_every_layout(const Body& body) {
  constexpr std::size_t kCount = std::size(kLayouts);
  const auto run = [&](TestContext& context) {
    for (const Dtype dtype : kWide)
      for (std::size_t pair = 0; pair < kCount * kCount; ++pair) {
        const std::size_t one = pair / kCount, other = pair % kCount;
        if (context.on_cuda() && (other + kCount - one) % kCount > 1) continue;
        context.state().own_costs().dense.small_until = one == other ? 0 : plan::costs_of(90).dense.small_until;
        const LayoutRow &of_a = kLayouts[one], &of_b = kLayouts[other];
        SCOPED_TRACE(std::string(name_of(dtype)) + ", a " + of_a.name + ", b " + of_b.name);
        body(context, dtype, of_a, of_b);
        if (::testing::Test::HasFatalFailure()) return;
      }
  };
  if (is_wanted("cpu")) {
    TestContext context(Target::interpreter);
    run(context);
  }
  on_cuda(run);
}

}  // namespace mercer::testing_support
