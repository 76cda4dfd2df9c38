// Nystrom's preconditioner, of products with random vectors.
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "ops/linalg/approximation.h"
#include "ops/linalg/block_method.h"

namespace mercer::linalg {
namespace {

/// The shift starts at the rounding of the products and may not grow to this part of them.
constexpr double kMostShift = 1e-2;

// With O [n, r] orthonormal and Y = (k + v) O, O^T Y = C^T C: B = Y C^-1, B B^T ~ k + v, where the shift v keeps the
// factor C from failing by rounding.
class Nystrom {
 public:
  Nystrom(const char* op, const Operator& a, std::int64_t rank, double ridge, std::uint64_t seed, Context& context)
      : op_(op), a_(a), rank_(std::min(rank, a.order)), ridge_(ridge),
        approximation_(op, a, 2 * rank_, rank_, seed, context) {}

  Preconditioner run() {
    BlockBasis& basis = approximation_.basis();
    start(basis);
    a_.multiply(basis.basis(0, rank_), basis.basis(rank_, rank_));
    if (!basis.seems_finite(basis.basis(rank_, rank_))) approximation_.require_finite({NAN});
    const Projection parts = basis.project(rank_, rank_);
    approximation_.require_finite(parts.coefficients);
    approximation_.require_finite(parts.gram);
    SmallMatrix core(rank_, rank_, parts.coefficients);
    for (std::int64_t j = 0; j < rank_; ++j) {
      core(j, j) -= ridge_;
      for (std::int64_t i = 0; i < j; ++i) core(i, j) = core(j, i) = 0.5 * (core(i, j) + core(j, i));
    }
    const SmallMatrix rest(rank_, rank_, parts.gram);
    double size = core.squares();
    for (std::int64_t j = 0; j < rank_; ++j) size += rest(j, j);
    size = std::sqrt(size);
    // The ridge is taken away as far as O is orthonormal.
    double shift = approximation_.rounding() * std::max(size, 8 * double(rank_) * ridge_);
    const Approximation::Law law{.ridges = {ridge_}, .is_relative = true, .shift = shift};
    if (size <= shift) return approximation_.finish(0, law);
    const SmallMatrix c = factor(core, size, shift);
    return finish(c, shift);
  }

 private:
  void start(BlockBasis& basis) {
    if (rank_ == a_.order) {
      std::vector<double> identity(static_cast<std::size_t>(rank_ * rank_), 0);
      for (std::int64_t i = 0; i < rank_; ++i) identity[i * (rank_ + 1)] = 1;
      basis.fill(0, rank_, identity);
      return;
    }
    basis.draw(0, rank_);
    approximation_.orthonormalise(rank_);
  }

  SmallMatrix factor(const SmallMatrix& core, double size, double& shift) {
    for (SmallMatrix c = core;; c = core, shift *= 10) {
      if (approximation_.algebra().factor_upper(c, shift)) return c;
      if (10 * shift > kMostShift * size)
        fail(ErrorKind::numerical,
             "{}: a less the ridge must be positive semi-definite. Received a matrix that is not, by more than {:.3g} "
             "of its size.",
             op_, shift / size);
    }
  }

  /// Y + v O = O C^T C + R with R orthogonal to O, so B = O C^T + R C^-1: [O, R C^-1] times [C^T; 1].
  Preconditioner finish(const SmallMatrix& c, double shift) {
    BlockBasis& basis = approximation_.basis();
    basis.divide(rank_, rank_, c.values);
    SmallMatrix sum(2 * rank_, rank_);
    for (std::int64_t j = 0; j < rank_; ++j) {
      for (std::int64_t i = j; i < rank_; ++i) sum(i, j) = 0;
      for (std::int64_t i = 0; i <= rank_ - 1; ++i) sum(i, j) = c(j, i);
      sum(rank_ + j, j) = 1;
    }
    basis.combine(2 * rank_, rank_, sum.values);
    basis.copy(basis.results(0, rank_), basis.basis(0, rank_));
    return approximation_.finish(rank_, {.ridges = {ridge_}, .is_relative = true, .shift = shift});
  }

  const char* op_;
  const Operator& a_;
  const std::int64_t rank_;
  const double ridge_;
  Approximation approximation_;
};

}  // namespace

Preconditioner nystrom_preconditioner(const Operator& a, std::int64_t rank, double ridge, std::uint64_t seed,
                                      Context& context) {
  constexpr const char* op = "nystrom";
  ops::check_operator(op, a);
  check_rank(op, rank);
  require(ridge >= 0 && std::isfinite(ridge), "{}: ridge must not be negative. Received {}.", op, ridge);
  if (a.order == 0) return empty_preconditioner(a, {ridge}, true);
  return Nystrom(op, a, rank, ridge, seed, context).run();
}

}  // namespace mercer::linalg
