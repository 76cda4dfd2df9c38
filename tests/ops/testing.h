// Shared by the tests of operations: matrices of any type with any strides, and the oracle on them.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "ir/evaluate.h"
#include "mercer/mercer.h"

namespace mercer::testing_support {

/// Owned rows x cols values of float32 or float64, also kept as doubles (rounded to the type).
class Matrix {
 public:
  Matrix(Dtype dtype, std::int64_t rows, std::int64_t cols, unsigned seed, bool positive = false)
      : dtype_(dtype), rows_(rows), cols_(cols), bytes_(rows * cols * size_of(dtype)), values_(rows * cols) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    std::uniform_real_distribution<double> uniform(0.1, 1.1);
    for (std::int64_t i = 0; i < rows * cols; ++i) set(i, positive ? uniform(random) : normal(random));
  }
  void set(std::int64_t index, double value) {
    if (dtype_ == Dtype::float64) std::memcpy(&bytes_[index * 8], &value, 8);
    else {
      const float narrow = static_cast<float>(value);
      std::memcpy(&bytes_[index * 4], &narrow, 4);
      value = narrow;
    }
    values_[index] = value;
  }
  void set(std::int64_t i, std::int64_t j, double value) { set(i * cols_ + j, value); }
  double at(std::int64_t i, std::int64_t j) const {
    const std::int64_t index = i * cols_ + j;
    if (dtype_ == Dtype::float64) {
      double value;
      std::memcpy(&value, &bytes_[index * 8], 8);
      return value;
    }
    float value;
    std::memcpy(&value, &bytes_[index * 4], 4);
    return value;
  }
  void poison() {
    for (std::int64_t i = 0; i < rows_ * cols_; ++i) set(i, std::numeric_limits<double>::quiet_NaN());
  }
  const double* row(std::int64_t i) const { return values_.data() + i * cols_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  Tensor tensor() const { return Tensor(const_cast<char*>(bytes_.data()), dtype_, {rows_, cols_}); }

 private:
  Dtype dtype_;
  std::int64_t rows_, cols_;
  std::vector<char> bytes_;
  std::vector<double> values_;
};

inline double oracle(const Expr& f, const Matrix& x, std::int64_t i, const Matrix& z, std::int64_t j,
                     const std::map<std::string, double>& params = {}, const double* w = nullptr, std::int64_t k = -1) {
  ir::PairInputs inputs;
  inputs.x = x.row(i);
  inputs.z = z.row(j);
  inputs.w = w;
  inputs.features = x.cols();
  inputs.i = static_cast<double>(i);
  inputs.j = static_cast<double>(j);
  inputs.params = &params;
  inputs.k = k;
  return ir::evaluate(f, inputs);
}

inline bool close(double value, double expected, double tolerance) {
  if (std::isnan(expected)) return std::isnan(value);
  if (value == expected) return true;
  return std::abs(value - expected) <= tolerance * std::abs(expected);
}

inline void set_target_or_skip(Context& context, Target target) {
  try {
    context.set_target(target);
  } catch (const Error&) {
    GTEST_SKIP() << "this machine cannot run " << name_of(target);
  }
}

}  // namespace mercer::testing_support
