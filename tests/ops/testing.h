// Shared by the tests of operations: arrays of any type and strides, the oracle on them, and comparisons by a bound.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/half.h"
#include "ir/expr/evaluate.h"
#include "mercer/mercer.h"
#include "ops/cuda_mirror.h"

namespace mercer::testing_support {

using Shape = std::vector<std::int64_t>;
using Values = std::map<std::string, double>;

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInf = std::numeric_limits<double>::infinity();

/// The contract's 1e-6 for float32. float64 sums without promotion: K roundings of 2^-53 stay below 1e-13 for K < 900.
inline double unit(Dtype dtype) { return compute_type(dtype) == Dtype::float64 ? 1e-13 : 1e-6; }

inline double read(const Tensor& t, const Shape& index) {
  std::int64_t offset = 0;
  for (int axis = 0; axis < t.ndim(); ++axis) offset += index[axis] * t.strides[axis];
  const char* at = static_cast<const char*>(t.data) + offset * static_cast<std::int64_t>(size_of(t.dtype));
  auto load = [&](auto value) {
    std::memcpy(&value, at, sizeof value);
    return value;
  };
  switch (t.dtype) {
    case Dtype::float16: return float_from_half(load(std::uint16_t{}));
    case Dtype::bfloat16: return float_from_bfloat16(load(std::uint16_t{}));
    case Dtype::float32: return load(float{});
    case Dtype::float64: return load(double{});
    case Dtype::int64: return static_cast<double>(load(std::int64_t{}));
    case Dtype::int32: return load(std::int32_t{});
    case Dtype::int8: return load(std::int8_t{});
    default: return load(std::uint8_t{});
  }
}

inline void write(const Tensor& t, const Shape& index, double value) {
  std::int64_t offset = 0;
  for (int axis = 0; axis < t.ndim(); ++axis) offset += index[axis] * t.strides[axis];
  char* at = static_cast<char*>(t.data) + offset * static_cast<std::int64_t>(size_of(t.dtype));
  auto store = [&](auto bits) { std::memcpy(at, &bits, sizeof bits); };
  switch (t.dtype) {
    case Dtype::float16: return store(half_from_float(static_cast<float>(value)));
    case Dtype::bfloat16: return store(bfloat16_from_float(static_cast<float>(value)));
    case Dtype::float32: return store(static_cast<float>(value));
    case Dtype::float64: return store(value);
    case Dtype::int64: return store(static_cast<std::int64_t>(value));
    case Dtype::int32: return store(static_cast<std::int32_t>(value));
    case Dtype::int8: return store(static_cast<std::int8_t>(value));
    default: return store(static_cast<std::uint8_t>(value));
  }
}

/// Calls body(index) for every element in row-major order.
template <class Body>
void each_index(const Shape& shape, const Body& body) {
  for (std::int64_t extent : shape)
    if (extent == 0) return;
  Shape index(shape.size(), 0);
  for (;;) {
    body(static_cast<const Shape&>(index));
    std::size_t axis = shape.size();
    while (axis > 0 && ++index[axis - 1] == shape[axis - 1]) index[--axis] = 0;
    if (axis == 0) return;
  }
}

/// Row-major strides whose last axes are permuted or padded: see the tests of strides.
inline Shape row_major(const Shape& shape) { return Tensor(nullptr, Dtype::float32, shape).strides; }
inline Shape column_major(const Shape& shape) {
  Shape swapped = shape;
  std::swap(swapped[swapped.size() - 1], swapped[swapped.size() - 2]);
  Shape strides = row_major(swapped);
  std::swap(strides[strides.size() - 1], strides[strides.size() - 2]);
  return strides;
}

/// An owned array with any strides. The bytes between its elements hold a pattern that untouched() checks, as do
/// `spare` bytes after them, for views that claim more than there is.
class Array {
 public:
  static constexpr char kPattern = 0x5a;
  Array(Dtype dtype, Shape shape, Shape strides = {}, std::int64_t spare = 0) {
    if (strides.empty()) strides = row_major(shape);
    std::int64_t low = 0, high = 0;
    for (std::size_t axis = 0; axis < shape.size(); ++axis)
      if (shape[axis] > 0) (strides[axis] < 0 ? low : high) += (shape[axis] - 1) * strides[axis];
    const auto size = static_cast<std::int64_t>(size_of(dtype));
    bytes_.assign((high - low + 1) * size + spare, kPattern);
    base_ = -low * size;
    tensor_ = Tensor(nullptr, dtype, std::move(shape), std::move(strides));
  }
  Tensor tensor() const {
    Tensor t = tensor_;
    t.data = const_cast<char*>(bytes_.data()) + base_;
    return t;
  }
  operator Tensor() const { return tensor(); }  // NOLINT(google-explicit-constructor)
  const Shape& shape() const { return tensor_.shape; }
  template <class... Index>
  double operator()(Index... index) const {
    return read(tensor(), {static_cast<std::int64_t>(index)...});
  }
  void set(const Shape& index, double value) { write(tensor(), index, value); }
  Array& fill(const std::function<double()>& next) {
    each_index(shape(), [&](const Shape& index) { set(index, next()); });
    return *this;
  }
  /// True when no byte differs from the pattern of a fresh array.
  bool untouched() const {
    for (char byte : bytes_)
      if (byte != kPattern) return false;
    return true;
  }
  const std::vector<char>& bytes() const { return bytes_; }
  std::vector<char>& bytes() { return bytes_; }

 private:
  Tensor tensor_;
  std::vector<char> bytes_;
  std::int64_t base_ = 0;
};

inline Array normal(Dtype dtype, Shape shape, unsigned seed, double scale = 1, Shape strides = {}) {
  std::mt19937 random(seed);
  std::normal_distribution<double> values(0, scale);
  return Array(dtype, std::move(shape), std::move(strides)).fill([&] { return values(random); });
}
inline Array uniform(Dtype dtype, Shape shape, unsigned seed, double low = 0.1, double high = 1.1, Shape strides = {}) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> values(low, high);
  return Array(dtype, std::move(shape), std::move(strides)).fill([&] { return values(random); });
}
inline Array filled(Dtype dtype, Shape shape, const std::vector<double>& values) {
  std::size_t next = 0;
  return Array(dtype, std::move(shape)).fill([&] { return values[next++]; });
}
/// A copy with other strides or of another type.
inline Array copy(const Tensor& from, Dtype dtype, Shape strides = {}, std::int64_t spare = 0) {
  Array to(dtype, from.shape, std::move(strides), spare);
  each_index(from.shape, [&](const Shape& index) { to.set(index, read(from, index)); });
  return to;
}

/// One batch item: the tensor with its leading indices fixed.
inline Tensor item(const Tensor& t, const Shape& leading) {
  Tensor part = t;
  std::int64_t offset = 0;
  for (std::size_t axis = 0; axis < leading.size(); ++axis) offset += leading[axis] * t.strides[axis];
  part.data = static_cast<char*>(t.data) + offset * static_cast<std::int64_t>(size_of(t.dtype));
  part.shape.erase(part.shape.begin(), part.shape.begin() + static_cast<std::ptrdiff_t>(leading.size()));
  part.strides.erase(part.strides.begin(), part.strides.begin() + static_cast<std::ptrdiff_t>(leading.size()));
  return part;
}

/// What a formula reads in addition to its points.
struct Extra {
  Values params;
  std::vector<double> w, row, col;
  std::int64_t i_offset = 0, j_offset = 0;
};

/// The oracle on two matrices of points: value of the pair (m, n), at the feature k for fields.
class Reference {
 public:
  Reference(const Expr& f, const Tensor& x, const Tensor& z, Extra extra = {})
      : oracle_(f),
        x_(dense(x)),
        z_(dense(z)),
        m_(x.shape[0]),
        n_(z.shape[0]),
        features_(x.shape[1]),
        extra_(std::move(extra)) {}
  double operator()(std::int64_t m, std::int64_t n, std::int64_t k = -1) {
    ir::PairInputs inputs;
    inputs.x = x_.data() + m * features_;
    inputs.z = z_.data() + n * features_;
    inputs.w = extra_.w.empty() ? nullptr : extra_.w.data();
    inputs.features = features_;
    inputs.row = extra_.row.empty() ? 0 : extra_.row[m];
    inputs.col = extra_.col.empty() ? 0 : extra_.col[n];
    inputs.i = static_cast<double>(m + extra_.i_offset);
    inputs.j = static_cast<double>(n + extra_.j_offset);
    inputs.params = &extra_.params;
    inputs.k = k;
    return oracle_(inputs);
  }
  std::int64_t m() const { return m_; }
  std::int64_t n() const { return n_; }
  std::int64_t features() const { return features_; }

 private:
  static std::vector<double> dense(const Tensor& t) {
    std::vector<double> values;
    each_index(t.shape, [&](const Shape& index) { values.push_back(read(t, index)); });
    values.push_back(0);  // an address also without points
    return values;
  }
  ir::Oracle oracle_;
  std::vector<double> x_, z_;
  std::int64_t m_, n_, features_;
  Extra extra_;
};

/// |value - expected| <= bound; NaN for NaN; beyond float32, infinity.
inline bool within(double value, double expected, double bound, Dtype dtype) {
  if (std::isnan(expected)) return std::isnan(value);
  if (dtype != Dtype::float64) expected = std::abs(expected) > 3.4028235e38 ? std::copysign(kInf, expected) : expected;
  return value == expected || std::abs(value - expected) <= bound;
}

/// Values of a formula on all pairs, computed once and compared with the results of every target.
struct Expected {
  std::vector<double> values, bounds;
  std::int64_t n = 0;
};
/// Bounds are `tolerance` times the formula `scale` (the value itself when empty).
inline Expected expected_pairs(const Expr& f, const Tensor& x, const Tensor& z, double tolerance,
                               const Expr& scale = {}, const Extra& extra = {}) {
  Reference value(f, x, z, extra), size(scale.empty() ? f : scale, x, z, extra);
  Expected result;
  result.n = value.n();
  for (std::int64_t m = 0; m < value.m(); ++m)
    for (std::int64_t n = 0; n < value.n(); ++n) {
      result.values.push_back(value(m, n));
      result.bounds.push_back(tolerance * std::abs(scale.empty() ? result.values.back() : size(m, n)));
    }
  return result;
}
inline void expect_pairs(const Tensor& out, const Expected& expected, const std::string& what) {
  for (std::int64_t m = 0; m < out.shape[0]; ++m)
    for (std::int64_t n = 0; n < out.shape[1]; ++n) {
      const double value = read(out, {m, n}), wanted = expected.values[m * expected.n + n];
      const double bound = expected.bounds[m * expected.n + n];
      ASSERT_TRUE(within(value, wanted, bound, out.dtype))
          << what << " at " << m << "," << n << ": " << value << " for " << wanted << ", off by "
          << std::abs(value - wanted) / bound << " bounds";
    }
}

inline bool same_bits(const Array& a, const Array& b) { return a.bytes() == b.bytes(); }

inline Arguments arguments_of(const Extra& extra) {
  Arguments arguments;
  for (const auto& [name, value] : extra.params) arguments.params[name] = value;
  arguments.i_offset = extra.i_offset;
  arguments.j_offset = extra.j_offset;
  return arguments;
}

/// Targets that this machine can run.
inline const std::vector<Target>& targets() {
  static const std::vector<Target> runnable = [] {
    std::vector<Target> list;
    for (Target target : {Target::x86_avx512, Target::x86_avx2, Target::interpreter}) {
      try {
        Context().set_target(target);
        list.push_back(target);
      } catch (const Error&) {}
    }
    return list;
  }();
  return runnable;
}
/// MERCER_TEST_TARGETS, names with commas between them, says which targets tests run on: "cuda", "x86_avx2,cuda".
inline bool is_wanted(const std::string& target) {
  const char* list = std::getenv("MERCER_TEST_TARGETS");
  if (list == nullptr) return true;
  return ("," + std::string(list) + ",").find("," + target + ",") != std::string::npos;
}
/// Contexts whose system denies executable memory after they have chosen a target: the interpreter runs what was
/// planned for that one.
template <class Body>
void on_each_denied_target(const Body& body) {
  for (Target target : targets()) {
    if (target == Target::interpreter) continue;
    SCOPED_TRACE(std::string(name_of(target)) + ", denied");
    TestContext context(target);
    ::setenv("MERCER_NO_EXEC", "1", 1);
    body(context);
    ::unsetenv("MERCER_NO_EXEC");
    if (::testing::Test::HasFatalFailure()) return;
  }
}
/// "denied" in MERCER_TEST_TARGETS adds the contexts above, which are left out otherwise.
template <class Body>
void on_each_cpu_target(const Body& body) {
  for (Target target : targets()) {
    if (!is_wanted(name_of(target))) continue;
    SCOPED_TRACE(name_of(target));
    TestContext context(target);
    body(context);
    if (::testing::Test::HasFatalFailure()) return;
  }
  if (std::getenv("MERCER_TEST_TARGETS") != nullptr && is_wanted("denied")) on_each_denied_target(body);
}
/// Where there is no GPU, what would have run on it is counted; the program says so at its end.
template <class Body>
void on_cuda(const Body& body) {
  if (!is_wanted("cuda") || !cuda_serves()) return;
  SCOPED_TRACE("cuda");
  TestContext context{TestContext::Cuda()};
  body(context);
}
template <class Body>
void on_each_target(const Body& body) {
  on_each_cpu_target(body);
  if (!::testing::Test::HasFatalFailure()) on_cuda(body);
}

inline constexpr Dtype kWide[] = {Dtype::float32, Dtype::float64};

/// Message of the Error that `call` throws; empty when it throws none.
template <class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace mercer::testing_support
