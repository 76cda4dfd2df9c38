#include "backend/cg_columns.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "core/system/aligned.h"

namespace mercer::cpu {
namespace {

/// A column of the caller's.
template <class T>
struct Strided {
  T* data;
  std::int64_t step;
  T& operator[](std::int64_t i) const { return data[i * step]; }
};

template <class T>
Strided<T> column_of(const Tensor& t, std::int64_t j) {
  return {static_cast<T*>(t.data) + j * t.strides[1], t.strides[0]};
}

/// One thread works on a column; its sums are in double.
template <class T>
class Columns final : public CgColumns {
 public:
  Columns(const Sizes& sizes, Pool& pool)
      : sizes_(sizes), n_(sizes.length), pool_(pool), states_(static_cast<std::size_t>(sizes.columns)),
        sums_(states_.size()), right_(vectors()), x_(vectors()), r_(vectors()), p_(vectors()), product_(vectors()),
        z_(sizes.preconditioned ? vectors() : AlignedBuffer()), w_(indefinite_vectors()),
        w_before_(indefinite_vectors()), v_before_(indefinite_vectors()) {}

  Tensor operand() const override { return all(p_); }
  Tensor product() const override { return all(product_); }
  Tensor residual() const override { return all(r_); }
  Tensor preconditioned() const override { return all(z_); }

  void begin(const Tensor& b, const Tensor* guess, const Ridges& ridges) override {
    for_each([&](std::int64_t j) { begin_column(j, b, guess, ridge_of(j, ridges)); });
  }
  void step() override {
    for_each([&](std::int64_t j) { step_column(j); });
  }
  void turn(Round round) override {
    const CgTurn turn = turn_of(sizes_, round);
    for_each([&](std::int64_t j) {
      if (sizes_.indefinite)
        turn_indefinite(j, turn);
      else
        turn_column(j, turn);
    });
  }

  bool has_ended() override {
    for (const CgColumn& state : states_)
      if (state.status == kCgLive) return false;
    return true;
  }

  void end(const Tensor& x, const Tensor* info, const Tensor* rounds) override {
    for_each([&](std::int64_t j) {
      const CgColumn& state = states_[j];
      const bool failed = cg_info(&state) == -1;
      const auto out = column_of<T>(x, j);
      for (std::int64_t i = 0; i < n_; ++i)
        out[i] = failed              ? std::numeric_limits<T>::quiet_NaN()
                 : state.right == 0 ? T(0)
                                    : static_cast<T>(cg_solution(&state, double(at(x_, j)[i])));
      if (info != nullptr) static_cast<std::int64_t*>(info->data)[j * info->strides[0]] = cg_info(&state);
      if (rounds != nullptr) static_cast<std::int64_t*>(rounds->data)[j * rounds->strides[0]] = state.rounds;
    });
  }

  std::vector<CgColumn> states() override { return states_; }

 private:
  AlignedBuffer vectors() const { return aligned_array<T>(n_ * sizes_.columns); }
  AlignedBuffer indefinite_vectors() const { return sizes_.indefinite ? vectors() : AlignedBuffer(); }
  T* at(const AlignedBuffer& vectors, std::int64_t j) const { return vectors.as<T>() + j * n_; }
  Tensor all(const AlignedBuffer& vectors) const {
    return {vectors.as<T>(), dtype_of<T>(), {n_, sizes_.columns}, {1, n_}};
  }
  void for_each(const std::function<void(std::int64_t)>& body) {
    pool_.run(sizes_.columns, [&](std::int64_t j, int) { body(j); });
  }
  double dot(const AlignedBuffer& u, const AlignedBuffer& v, std::int64_t j) const { return inner(u, v, j, 1, 0); }
  /// u^T (of_v v + of_u u).
  double inner(const AlignedBuffer& u, const AlignedBuffer& v, std::int64_t j, double of_v, double of_u) const {
    constexpr int kLanes = 8;  // sums that do not wait for each other
    const T *left = at(u, j), *right = at(v, j);
    double lanes[kLanes] = {}, sum = 0;
    const auto term = [&](std::int64_t i) {
      return double(left[i]) * (of_v * double(right[i]) + of_u * double(left[i]));
    };
    std::int64_t i = 0;
    for (; i + kLanes <= n_; i += kLanes)
      for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
    for (; i < n_; ++i) sum += term(i);
    for (const double lane : lanes) sum += lane;
    return sum;
  }

  /// The power of two at or below the largest |b|; infinite where b or the guess is not finite.
  double scale_of(std::int64_t j, const Tensor& b, const Tensor* guess) const {
    double most = 0;
    for (std::int64_t i = 0; i < n_; ++i) {
      const double value = column_of<T>(b, j)[i], x = guess != nullptr ? column_of<T>(*guess, j)[i] : 0;
      if (!std::isfinite(value) || !std::isfinite(x)) return std::numeric_limits<double>::infinity();
      most = std::max(most, std::abs(value));
    }
    return most == 0 ? 1 : std::max(std::ldexp(1.0, std::ilogb(most)), std::numeric_limits<double>::min());
  }

  static double ridge_of(std::int64_t j, const Ridges& ridges) {
    if (ridges.numbers == nullptr) return ridges.number;
    const Tensor& t = *ridges.numbers;
    const std::int64_t at = j * t.strides[0];
    return t.dtype == Dtype::float32 ? double(static_cast<const float*>(t.data)[at])
                                     : static_cast<const double*>(t.data)[at];
  }

  void begin_column(std::int64_t j, const Tensor& b, const Tensor* guess, double ridge) {
    const bool serves = std::isfinite(ridge) && ridge >= 0;
    const double scale = serves ? scale_of(j, b, guess) : std::numeric_limits<double>::infinity();
    const bool finite = std::isfinite(scale);
    states_[j] = CgColumn{};
    states_[j].scale = finite ? scale : 1;
    states_[j].ridge = finite ? ridge : 0;
    for (std::int64_t i = 0; i < n_; ++i) {
      const T value = finite ? static_cast<T>(double(column_of<T>(b, j)[i]) / scale) : T(0);
      at(right_, j)[i] = at(r_, j)[i] = value;
      at(x_, j)[i] = finite && guess != nullptr ? static_cast<T>(double(column_of<T>(*guess, j)[i]) / scale) : T(0);
    }
    sums_[j].residual = finite ? dot(r_, r_, j) : scale;
  }

  /// The unit of a from this round on, which x and, but for minimal residuals, p are brought to.
  CgUnit begin_unit(std::int64_t j) {
    CgColumn& state = states_[j];
    T *x = at(x_, j), *p = at(p_, j);
    double vector = 0, product = 0;
    if (state.of_product == 0 && state.operand == kCgDirection)
      for (std::int64_t i = 0; i < n_; ++i) {
        vector = std::max(vector, std::abs(double(p[i])));
        product = std::max(product, std::abs(double(at(product_, j)[i]) + state.ridge * double(p[i])));
      }
    CgUnit unit = cg_unit(&state, vector, product, sizes_.indefinite ? 0 : 1);
    if (unit.of_product == state.of_product) return unit;
    for (std::int64_t i = 0; i < n_; ++i) {
      x[i] = static_cast<T>(unit.of_solution * double(x[i]));
      p[i] = static_cast<T>(unit.of_direction * double(p[i]));
    }
    state.of_product = unit.of_product;
    state.inverse = unit.inverse;
    state.product *= unit.of_direction;
    unit.factor *= unit.of_direction;
    return unit;
  }

  void step_column(std::int64_t j) {
    const CgColumn& state = states_[j];
    if (state.operand == kCgZeros) return;
    const CgUnit unit = begin_unit(j);
    T *x = at(x_, j), *r = at(r_, j);
    const T *p = at(p_, j), *given = at(product_, j), *right = at(right_, j);
    const auto multiplied = [&](std::int64_t i) {
      return unit.factor * double(given[i]) + unit.of_vector * double(p[i]);
    };
    sums_[j].curvature = 0;
    if (state.operand == kCgSolution) {
      for (std::int64_t i = 0; i < n_; ++i) r[i] = static_cast<T>(double(right[i]) - multiplied(i));
    } else {
      const double curvature = sums_[j].curvature = inner(p_, product_, j, unit.factor, unit.of_vector);
      if (sizes_.indefinite) return step_indefinite(j, curvature, unit);
      const double alpha = curvature > 0 ? state.product / curvature : 0;
      for (std::int64_t i = 0; i < n_; ++i) {
        x[i] = static_cast<T>(double(x[i]) + alpha * double(p[i]));
        r[i] = static_cast<T>(double(r[i]) - alpha * multiplied(i));
      }
    }
    sums_[j].residual = dot(r_, r_, j);
  }

  /// r = a v - alpha v - beta v_before.
  void step_indefinite(std::int64_t j, double alpha, const CgUnit& unit) {
    const CgColumn& state = states_[j];
    T* r = at(r_, j);
    const T *v = at(p_, j), *given = at(product_, j), *before = at(v_before_, j);
    for (std::int64_t i = 0; i < n_; ++i)
      r[i] = static_cast<T>(unit.factor * double(given[i]) + (unit.of_vector - alpha) * double(v[i]) -
                            state.beta * double(before[i]));
    sums_[j].residual = dot(r_, r_, j);
  }

  void turn_indefinite(std::int64_t j, CgTurn turn) {
    CgColumn& state = states_[j];
    const MinresNext next = minres_turn(&state, sums_[j], turn);
    T *x = at(x_, j), *p = at(p_, j), *w = at(w_, j), *w_before = at(w_before_, j), *v_before = at(v_before_, j);
    const T* r = at(r_, j);
    for (std::int64_t i = 0; i < n_; ++i) {
      if (next.moves) {
        const double own = double(p[i]) - next.of_w * double(w[i]) - next.of_before * double(w_before[i]);
        const double moved = next.scale * own;
        w_before[i] = w[i];
        w[i] = static_cast<T>(moved);
        v_before[i] = p[i];
        x[i] = static_cast<T>(double(x[i]) + next.step * moved);
      }
      if (next.begins) w[i] = w_before[i] = v_before[i] = T(0);
      const double value = state.operand == kCgSolution    ? double(x[i])
                           : state.operand == kCgDirection ? next.of_residual * double(r[i])
                                                           : 0;
      p[i] = static_cast<T>(value);
    }
  }

  void turn_column(std::int64_t j, CgTurn turn) {
    CgColumn& state = states_[j];
    // Where x is measured, and after the last round, no direction is made, and z is that of nothing.
    const double inverse = state.of_product == 0 ? 1 : state.inverse;
    if (state.status == kCgLive && !turn.measures && !turn.last)
      sums_[j].preconditioned = sizes_.preconditioned ? inner(r_, z_, j, inverse, 0) : sums_[j].residual;
    const CgNext next = cg_turn(&state, sums_[j], turn);
    const bool of_residual = next.source == kCgOfResidual || !sizes_.preconditioned;
    const T *source = at(of_residual ? r_ : z_, j), *x = at(x_, j);
    T* p = at(p_, j);
    for (std::int64_t i = 0; i < n_; ++i) {
      double value = 0;
      if (state.operand == kCgSolution) value = x[i];
      if (state.operand == kCgDirection) value = (of_residual ? 1 : inverse) * double(source[i]);
      if (next.beta != 0) value += next.beta * double(p[i]);  // what p holds at first may be anything
      p[i] = static_cast<T>(value);
    }
  }

  const Sizes sizes_;
  const std::int64_t n_;
  Pool& pool_;
  std::vector<CgColumn> states_;
  std::vector<CgSums> sums_;
  AlignedBuffer right_, x_, r_, p_, product_, z_, w_, w_before_, v_before_;
};

}  // namespace

std::unique_ptr<CgColumns> cg_columns(const CgColumns::Sizes& sizes, Pool& pool) {
  if (sizes.type == Dtype::float64) return std::make_unique<Columns<double>>(sizes, pool);
  return std::make_unique<Columns<float>>(sizes, pool);
}

}  // namespace mercer::cpu
