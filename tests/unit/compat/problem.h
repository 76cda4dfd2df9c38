// A product as a caller of FastKron has it, and what it must give, by a plain loop over all entries in double.
#pragma once

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "mercer/c/mercer.h"
#include "mercer/compat/fastkron.h"
#include "ops/testing.h"

namespace mercer::testing_support {

/// The functions of an element type.
template <class T>
struct Fast;
template <>
struct Fast<float> {
  static constexpr auto gemkm = sgemkm;
  static constexpr auto gekmm = sgekmm;
  static constexpr auto gemkm_batched = sgemkmStridedBatched;
  static constexpr auto gekmm_batched = sgekmmStridedBatched;
  static constexpr auto mkm_forward = smkmForward;
  static constexpr auto kmm_forward = skmmForward;
  static constexpr auto mkm_forward_batched = smkmForwardStridedBatched;
  static constexpr auto kmm_forward_batched = skmmForwardStridedBatched;
  static constexpr double kUnit = 0x1p-24;
};
template <>
struct Fast<double> {
  static constexpr auto gemkm = dgemkm;
  static constexpr auto gekmm = dgekmm;
  static constexpr auto gemkm_batched = dgemkmStridedBatched;
  static constexpr auto gekmm_batched = dgekmmStridedBatched;
  static constexpr auto mkm_forward = dmkmForward;
  static constexpr auto kmm_forward = dkmmForward;
  static constexpr auto mkm_forward_batched = dmkmForwardStridedBatched;
  static constexpr auto kmm_forward_batched = dkmmForwardStridedBatched;
  static constexpr double kUnit = 0x1p-53;
};

class OwnHandle {
 public:
  explicit OwnHandle(std::uint32_t backends = fastKronBackend_X86) {
    EXPECT_EQ(fastKronInit(&handle_, backends), fastKronSuccess);
  }
  OwnHandle(const OwnHandle&) = delete;
  OwnHandle& operator=(const OwnHandle&) = delete;
  ~OwnHandle() { fastKronDestroy(handle_); }
  operator fastKronHandle() const { return handle_; }  // NOLINT(google-explicit-constructor)

 private:
  fastKronHandle handle_ = nullptr;
};

/// The call answered so, and mercer_last_error() has the words.
inline void expect_answer(fastKronError answer, fastKronError expected, const std::string& words) {
  EXPECT_EQ(static_cast<int>(answer), static_cast<int>(expected)) << mercer_last_error();
  EXPECT_NE(std::string(mercer_last_error()).find(words), std::string::npos)
      << "received \"" << mercer_last_error() << "\" without \"" << words << "\"";
}
inline void expect_success(fastKronError answer) {
  ASSERT_EQ(static_cast<int>(answer), static_cast<int>(fastKronSuccess)) << mercer_last_error();
}

/// Arrays with room between the items of a batch. The factors' sizes all differ, so that no two axes can be mistaken.
template <class T>
struct Problem {
  bool left = false;
  fastKronOp op_x = fastKronOp_N, op_fs = fastKronOp_N;
  std::uint32_t batch = 1, m = 3;
  std::vector<std::uint32_t> p{2, 3, 4}, q{3, 2, 5};
  T alpha = 1, beta = 0;
  std::uint64_t stride_x = 0, stride_y = 0, stride_z = 0;
  std::vector<std::uint64_t> stride_f;
  std::vector<T> x, y, z;
  std::vector<std::vector<T>> f;
  fastKronBackend backend = fastKronBackend_X86;
  // What is handed over; a test may change it.
  const T *x_data = nullptr, *y_data = nullptr;
  T* z_data = nullptr;
  std::vector<const T*> f_data;

  static constexpr T kUnwritten = T(-77);

  std::uint32_t n() const { return static_cast<std::uint32_t>(p.size()); }
  static std::size_t product(const std::vector<std::uint32_t>& sizes) {
    std::size_t all = 1;
    for (const std::uint32_t size : sizes) all *= size;
    return all;
  }
  std::size_t k() const { return product(p); }
  std::size_t l() const { return product(q); }

  /// Fills the arrays. Strides of 0 repeat an item.
  void fill(bool repeat_x = false, bool repeat_f = false, bool repeat_y = false) {
    std::mt19937 random(7);
    std::normal_distribution<double> normal;
    const auto drawn = [&](std::size_t size, std::uint64_t& stride, bool repeat) {
      stride = repeat ? 0 : size + 3;
      std::vector<T> values(stride * (batch - 1) + size);
      for (T& value : values) value = static_cast<T>(normal(random));
      return values;
    };
    x = drawn(m * k(), stride_x, repeat_x);
    y = drawn(m * l(), stride_y, repeat_y);
    z = drawn(m * l(), stride_z, false);
    std::fill(z.begin(), z.end(), kUnwritten);
    f.clear(), f_data.clear(), stride_f.assign(n(), 0);
    for (std::uint32_t i = 0; i < n(); ++i)
      f.push_back(drawn(std::size_t{p[i]} * q[i], stride_f[i], repeat_f || (batch > 1 && i == 1)));
    for (const auto& factor : f) f_data.push_back(factor.data());
    x_data = x.data(), y_data = y.data(), z_data = z.data();
  }

  fastKronError call(fastKronHandle h) {
    if (left) return Fast<T>::gekmm(h, backend, n(), q.data(), p.data(), m, f_data.data(), op_fs, x_data, op_x, z_data,
                                    alpha, beta, y_data, nullptr, nullptr);
    return Fast<T>::gemkm(h, backend, m, n(), p.data(), q.data(), x_data, op_x, f_data.data(), op_fs, z_data, alpha,
                          beta, y_data, nullptr, nullptr);
  }
  fastKronError call_batched(fastKronHandle h) {
    if (left) return Fast<T>::gekmm_batched(h, backend, n(), q.data(), p.data(), m, f_data.data(), op_fs,
                                            stride_f.data(), x_data, op_x, stride_x, z_data, stride_z, alpha, beta,
                                            batch, y_data, stride_y, nullptr, nullptr);
    return Fast<T>::gemkm_batched(h, backend, m, n(), p.data(), q.data(), x_data, op_x, stride_x, f_data.data(), op_fs,
                                  stride_f.data(), z_data, stride_z, alpha, beta, batch, y_data, stride_y, nullptr,
                                  nullptr);
  }
  fastKronError call_forward(fastKronHandle h, std::vector<T*> kept) {
    if (left) return Fast<T>::kmm_forward(h, backend, n(), q.data(), p.data(), m, f_data.data(), op_fs, x_data, op_x,
                                          z_data, kept.data());
    return Fast<T>::mkm_forward(h, backend, m, n(), p.data(), q.data(), x_data, op_x, f_data.data(), op_fs, z_data,
                                kept.data());
  }
  fastKronError call_forward_batched(fastKronHandle h, std::vector<T*> kept, std::uint64_t* strides) {
    if (left) return Fast<T>::kmm_forward_batched(h, backend, n(), q.data(), p.data(), m, f_data.data(), op_fs,
                                                  stride_f.data(), x_data, op_x, stride_x, z_data, stride_z, batch,
                                                  kept.data(), strides);
    return Fast<T>::mkm_forward_batched(h, backend, m, n(), p.data(), q.data(), x_data, op_x, stride_x, f_data.data(),
                                        op_fs, stride_f.data(), z_data, stride_z, batch, kept.data(), strides);
  }

  /// Where row m, column c of a matrix of `columns` lies; KMM has them transposed.
  std::size_t at(fastKronOp op, std::size_t row, std::size_t column, std::size_t columns) const {
    return (op == fastKronOp_N) != left ? row * columns + column : column * m + row;
  }
  double x_at(std::size_t b, std::size_t row, std::size_t column) const {
    return x[b * stride_x + at(op_x, row, column, k())];
  }
  double f_at(std::size_t b, std::size_t i, std::size_t of_p, std::size_t of_q) const {
    const bool p_first = (op_fs == fastKronOp_N) != left;
    return f[i][b * stride_f[i] + (p_first ? of_p * q[i] + of_q : of_q * p[i] + of_p)];
  }

  struct Value {
    double sum = 0, size = 0;  // and the sum of magnitudes
  };
  /// op(X) times the factors from `from` on, at a row and at the indices of all axes: of P before `from`, then of Q.
  Value entry(std::size_t b, std::size_t row, const std::vector<std::size_t>& index, std::size_t from) const {
    Value value;
    for (std::size_t column = 0; column < k(); ++column) {
      double term = x_at(b, row, column);
      std::size_t rest = column;
      for (std::size_t i = n(); i-- > 0; rest /= p[i]) {
        if (i >= from) term *= f_at(b, i, rest % p[i], index[i]);
        else if (rest % p[i] != index[i]) term = 0;
      }
      value.sum += term;
      value.size += std::abs(term);
    }
    return value;
  }
  /// The bound of mercer/kron.h, and the error of the sum in double.
  double bound(double size) const {
    double steps = 2.0 * n() + 2;
    for (const std::uint32_t extent : p) steps += extent;
    return (steps * Fast<T>::kUnit + static_cast<double>(k() + n() + 3) * 0x1p-53) * size;
  }

  /// `y_before`: what Y held, where Z is Y.
  void expect_product(const std::vector<T>& y_before) const {
    for (std::size_t b = 0; b < batch; ++b)
      for (std::size_t row = 0; row < m; ++row)
        for (std::size_t column = 0; column < l(); ++column) {
          std::vector<std::size_t> index(n());
          std::size_t rest = column;
          for (std::size_t i = n(); i-- > 0; rest /= q[i]) index[i] = rest % q[i];
          const Value value = entry(b, row, index, 0);
          const std::size_t place = at(fastKronOp_N, row, column, l());
          const double added = beta == 0 ? 0.0 : double(beta) * double(y_before[b * stride_y + place]);
          ASSERT_NEAR(z[b * stride_z + place], double(alpha) * value.sum + added,
                      bound(std::abs(double(alpha)) * value.size + std::abs(added)))
              << b << ", " << row << ", " << column;
        }
  }
  void expect_product() const { expect_product(y); }

  /// What is kept before factor i - 1: axes q[i], ..., q[n - 1], p[0], ..., p[i - 1].
  std::size_t kept_columns(std::size_t i) const {
    std::size_t all = 1;
    for (std::size_t axis = 0; axis < n(); ++axis) all *= axis < i ? p[axis] : q[axis];
    return all;
  }
  void expect_kept(std::size_t i, const std::vector<T>& kept, std::uint64_t stride) const {
    for (std::size_t b = 0; b < batch; ++b)
      for (std::size_t row = 0; row < m; ++row)
        for (std::size_t column = 0; column < kept_columns(i); ++column) {
          std::vector<std::size_t> index(n());
          std::size_t rest = column;
          for (std::size_t axis = i; axis-- > 0; rest /= p[axis]) index[axis] = rest % p[axis];
          for (std::size_t axis = n(); axis-- > i; rest /= q[axis]) index[axis] = rest % q[axis];
          const Value value = entry(b, row, index, i);
          ASSERT_NEAR(kept[b * stride + at(fastKronOp_N, row, column, kept_columns(i))], value.sum, bound(value.size))
              << "kept " << i << ": " << b << ", " << row << ", " << column;
        }
  }
  bool untouched() const {
    return std::all_of(z.begin(), z.end(), [](T value) { return value == kUnwritten; });
  }
};

/// Both sides, with all of opX and opFs, of both types.
template <class Body>
void on_each_problem(const Body& body) {
  const auto of_type = [&](auto zero) {
    for (const bool left : {false, true})
      for (const fastKronOp op_x : {fastKronOp_N, fastKronOp_T})
        for (const fastKronOp op_fs : {fastKronOp_N, fastKronOp_T}) {
          SCOPED_TRACE(std::string(sizeof zero == 4 ? "float" : "double") + (left ? ", KMM" : ", MKM") +
                       (op_x == fastKronOp_T ? ", X by columns" : "") +
                       (op_fs == fastKronOp_T ? ", F by columns" : ""));
          Problem<decltype(zero)> problem;
          problem.left = left;
          problem.op_x = op_x;
          problem.op_fs = op_fs;
          body(problem);
        }
  };
  of_type(float{});
  of_type(double{});
}

}  // namespace mercer::testing_support
